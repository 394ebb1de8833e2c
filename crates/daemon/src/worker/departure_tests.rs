//! What becomes of requests whose disk is taken away: a real worker, core and image, turned by hand.
//!
//! Owns a client that counts its answers. Never waits for time, only for the image to answer.

use super::Worker;
use super::fairness_tests::{add_disk, start};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use undercroft_cache::{IoError, Op};
use undercroft_frontend::AnyPort;
use undercroft_porttest::client::{Load, TestPort};

const MIB: u64 = 1 << 20;

#[derive(Default)]
struct Answers {
    good: AtomicU64,
    failed: AtomicU64,
}

/// A client whose requests are so long that a turn takes more of them than it has time for.
struct Client(Op, Arc<Answers>);

impl Load for Client {
    fn next(&mut self) -> (Op, u64, u64) {
        (self.0, 0, MIB)
    }

    fn replied(&mut self, result: Result<(), IoError>) {
        let count = if result.is_ok() { &self.1.good } else { &self.1.failed };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// A guest must not see an I/O error because its daemon is stopped: what was taken from its rings is no longer there
/// for the next one.
#[test]
fn what_was_taken_and_not_begun_is_served_before_the_disk_goes() {
    for op in [Op::Read, Op::Write { fua: false }, Op::WriteZeroes { unmap: false, fua: false }] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        let worker = start(96 * MIB);
        let (answers, (to, left)) = (Arc::<Answers>::default(), channel());
        let of = Arc::clone(&answers);
        worker
            .call(move |w: &mut Worker| {
                let disk = add_disk(w, &path, 1);
                let client = Client(op, Arc::clone(&of));
                let port = w.add_port(disk, Box::new(move |id| AnyPort::plain(TestPort::new(id, disk, 64, client))));
                w.serve();
                let waits = |w: &Worker| w.ports[port as usize].as_ref().is_some_and(|s| s.backlog.has_waiting());
                assert!(waits(w), "the turn had time for all");
                w.remove_disk(disk, to);
                while w.disks.iter().any(Option::is_some) {
                    w.reap();
                    w.serve();
                    w.finish_turn();
                    w.let_go();
                }
            })
            .unwrap();
        left.recv().expect("the image comes back");
        worker.stop();
        let (good, failed) = (answers.good.load(Ordering::Relaxed), answers.failed.load(Ordering::Relaxed));
        assert!(good > 1 && failed == 0, "{op:?}: {good} were served, {failed} failed");
    }
}
