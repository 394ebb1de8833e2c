//! What a neighbour waits for, in bytes: a real worker, core and image, turned by hand, so that no clock is in it.
//!
//! Owns clients that count what is copied for them. Never waits for time, only for the image to answer.

use super::{Worker, WorkerHandle, WorkerOptions};
use crate::watched_backend::{Watch, Watched};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use undercroft_backend::{Backend, OpenOptions, open};
use undercroft_cache::limits::{REQUEST_BYTES_MAX, STEP_BYTES, UNIT_BYTES};
use undercroft_cache::{CoreOptions, DiskId, DiskOptions, Event, Io, IoDone, IoError, Op};
use undercroft_config::{ImageFormat, ImageSpec};
use undercroft_frontend::AnyPort;
use undercroft_frontend::turns::QUANTUM_BYTES;
use undercroft_host::now_ns;
use undercroft_porttest::client::{Load, TestPort};

const MIB: u64 = 1 << 20;
const IMAGE_BYTES: u64 = 32 * MIB;
/// What one call to send takes at most.
const SEND_BYTES: u64 = undercroft_frontend::turns::SEND_BYTES as u64;

/// What all clients have had.
#[derive(Default)]
struct Counts {
    /// Bytes copied for those who flood.
    flooded: AtomicU64,
    /// The same, at the last answer of the neighbour.
    seen: AtomicU64,
    /// The most between two of its answers.
    worst: AtomicU64,
    /// Its answers.
    answers: AtomicU64,
    /// Answers of those who flood.
    floods: AtomicU64,
    failed: AtomicU64,
    /// Bytes of operations started since the last answer of the neighbour.
    started: AtomicU64,
    /// Answers of the neighbour before which long operations were started and data was copied for others, too.
    both: AtomicU64,
    /// Bytes of writes that have finished.
    finished: AtomicU64,
    /// Answers of the neighbour while finished operations were dealt with.
    looks: AtomicU64,
    /// Turns after whose sending a worker asks who has woken.
    heard: AtomicU64,
}

/// A client that asks for the first `len` bytes again and again.
struct Client {
    op: Op,
    len: u64,
    counts: Arc<Counts>,
    neighbour: bool,
    /// Whether replies have to be sent, as over a socket, and bytes of them that are not.
    sends: bool,
    unsent: u64,
}

impl Load for Client {
    fn next(&mut self) -> (Op, u64, u64) {
        (self.op, 0, self.len)
    }

    fn copied_out(&mut self, _at: usize, bytes: &[u8]) {
        if !self.neighbour {
            self.counts.flooded.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
    }

    fn copy_in(&mut self, _at: usize, bytes: &mut [u8]) {
        self.counts.flooded.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }

    fn replied(&mut self, result: Result<(), IoError>) {
        let c = &self.counts;
        c.failed.fetch_add(u64::from(result.is_err()), Ordering::Relaxed);
        if !self.neighbour {
            c.floods.fetch_add(1, Ordering::Relaxed);
            self.unsent += if self.sends { self.len } else { 0 };
            return;
        }
        let now = c.flooded.load(Ordering::Relaxed);
        let copied = now - c.seen.swap(now, Ordering::Relaxed);
        c.worst.fetch_max(copied, Ordering::Relaxed);
        let started = c.started.swap(0, Ordering::Relaxed);
        c.both.fetch_add(u64::from(copied > 0 && started >= 128 * 1024), Ordering::Relaxed);
        c.answers.fetch_add(1, Ordering::Relaxed);
    }

    fn unsent(&self) -> usize {
        self.unsent as usize
    }

    fn send(&mut self, most: usize) {
        let some = self.unsent.min(most as u64);
        self.unsent -= some;
        self.counts.flooded.fetch_add(some, Ordering::Relaxed);
    }
}

/// A flood: how many clients on how many disks, what each asks for, how many at a time.
#[derive(Clone, Copy, Debug)]
struct Flood {
    disks: u32,
    clients: u32,
    op: Op,
    len: u64,
    depth: usize,
    sends: bool,
    /// Turns after which what is cached of its disks is forgotten, so that all clients read the same from the image.
    forgets: u32,
}

/// Counts what a back end begins, and what it has finished.
struct Counting {
    submitted: u64,
    counts: Arc<Counts>,
}

impl Watch for Counting {
    fn submitted(&mut self, io: &Io) {
        self.submitted += io.len;
    }

    fn kicked(&mut self) {
        self.counts.started.fetch_add(std::mem::take(&mut self.submitted), Ordering::Relaxed);
    }

    fn done(&mut self, done: &[IoDone]) {
        let bytes: u64 = done.iter().map(|d| u64::from(d.buf.len)).sum();
        self.counts.finished.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// A worker that neither polls nor knows contents, with so much memory.
pub(super) fn start(bytes: u64) -> Arc<WorkerHandle> {
    let core = CoreOptions { contents: false, ..CoreOptions::new(bytes) };
    let name = "worker".to_owned();
    let options = WorkerOptions { name, core, poll_ns_max: 0, copy_cpu_percent: 0, check_captures: false };
    WorkerHandle::start(options).unwrap()
}

/// A disk on a sparse raw image, as large as the cache may become.
pub(super) fn add_disk(w: &mut Worker, dir: &std::path::Path, n: u32) -> DiskId {
    add_counted(w, dir, n, Arc::default())
}

fn add_counted(w: &mut Worker, dir: &std::path::Path, n: u32, counts: Arc<Counts>) -> DiskId {
    let path = dir.join(format!("{n}.raw"));
    std::fs::File::create(&path).unwrap().set_len(IMAGE_BYTES).unwrap();
    let spec = ImageSpec { location: path.to_str().unwrap().into(), format: Some(ImageFormat::Raw), read_only: false };
    let real = open(&spec, &OpenOptions::default()).unwrap();
    let backend: Box<dyn Backend> = Box::new(Watched { watch: Counting { submitted: 0, counts }, real });
    let capacity_blocks = (IMAGE_BYTES / 4096) as u32;
    let options = DiskOptions {
        exclusive: undercroft_engine::ExclusiveMode::Off,
        ..DiskOptions::new(backend.geometry(), undercroft_engine::PolicyKind::Lru, capacity_blocks)
    };
    w.add_disk(format!("d{n}"), backend, options, 0).unwrap()
}

/// Lets the flood run beside a neighbour that reads one cached block at a time, until it has had 2,000 answers, and of
/// writes 8 MiB have finished. Returns what was counted.
fn beside(flood: Flood) -> Arc<Counts> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    let worker = start((u64::from(flood.disks) + 2) * 48 * MIB);
    let counts = Arc::<Counts>::default();
    let of = counts.clone();
    // Between two turns of its own, the worker is turned by hand.
    worker
        .call(move |w| {
            let add = |w: &mut Worker, disk, flood: Flood, neighbour: bool| {
                let Flood { op, len, depth, sends, .. } = flood;
                let counts = of.clone();
                w.add_port(
                    disk,
                    Box::new(move |id| {
                        let load = Client { op, len, counts, neighbour, sends, unsent: 0 };
                        AnyPort::plain(TestPort::new(id, disk, depth, load))
                    }),
                );
            };
            let disks: Vec<DiskId> = (1..=flood.disks).map(|n| add_counted(w, &path, n, of.clone())).collect();
            let mut turns = 0;
            let mut turn = |w: &mut Worker| {
                // One that slept while its image took long has another request since: nothing of it can wake a worker.
                for (n, slot) in w.ports.iter_mut().enumerate() {
                    if let Some(slot) = slot.as_mut().filter(|slot| !slot.active && !slot.starved)
                        && slot.port.arm()
                    {
                        slot.wake(n as u32, &mut w.flows, w.now_ns);
                    }
                }
                let answers = of.answers.load(Ordering::Relaxed);
                w.reap();
                of.looks.fetch_add(of.answers.load(Ordering::Relaxed) - answers, Ordering::Relaxed);
                // The worker then looks at the clock, which is not for here.
                of.heard.fetch_add(u64::from(w.send_large()), Ordering::Relaxed);
                w.serve();
                w.finish_turn();
                turns += 1;
                if turns % flood.forgets == 0 {
                    disks.iter().for_each(|&d| w.core.invalidate(d));
                }
            };
            for n in 0..flood.clients {
                add(w, disks[(n % flood.disks) as usize], flood, false);
            }
            // Everything is cached once each has had some answers.
            while of.floods.load(Ordering::Relaxed) < 4 * u64::from(flood.clients) {
                turn(w);
            }
            let own = add_disk(w, &path, 0);
            add(w, own, Flood { op: Op::Read, len: 4096, depth: 1, sends: false, ..flood }, true);
            while of.answers.load(Ordering::Relaxed) < 20 {
                turn(w);
            }
            [&of.worst, &of.both, &of.finished, &of.looks].iter().for_each(|n| n.store(0, Ordering::Relaxed));
            // However slow the image is, enough has to come back from it.
            let enough = if matches!(flood.op, Op::Write { .. }) { 8 * MIB } else { 0 };
            while of.answers.load(Ordering::Relaxed) < 2_020 || of.finished.load(Ordering::Relaxed) < enough {
                turn(w);
            }
            let (finished, looks) = (of.finished.load(Ordering::Relaxed), of.looks.load(Ordering::Relaxed));
            w.ports.iter_mut().flatten().for_each(|s| s.port.shut());
            while w.ports.iter().flatten().any(|s| s.port.inflight() > 0) {
                turn(w);
            }
            // What ends when the neighbour has gone does not count.
            of.finished.store(finished, Ordering::Relaxed);
            of.looks.store(looks, Ordering::Relaxed);
        })
        .unwrap();
    assert_eq!(counts.failed.load(Ordering::Relaxed), 0);
    assert!(counts.flooded.load(Ordering::Relaxed) > 64 * MIB, "there was no flood");
    worker.call(Worker::remove_all_for_test).unwrap();
    worker.stop();
    counts
}

impl Worker {
    /// Removes every disk; back ends are dropped as they go.
    fn remove_all_for_test(&mut self) {
        let (to, _) = std::sync::mpsc::channel();
        for n in 0..self.disks.len() {
            self.remove_disk(DiskId(n as u32), to.clone());
        }
    }
}

fn assert_bounded(flood: Flood, step: u64) {
    let waited = beside(flood).worst.load(Ordering::Relaxed);
    let bound = QUANTUM_BYTES as u64 + step;
    assert!(waited <= bound, "{waited} bytes were copied for others between two answers; {bound} may be: {flood:?}");
}

const LONG: u64 = REQUEST_BYTES_MAX as u64;
const READS: Flood =
    Flood { disks: 1, clients: 1, op: Op::Read, len: LONG, depth: 64, sends: false, forgets: u32::MAX };
const WRITES: Flood = Flood { op: Op::Write { fua: false }, len: 8 * MIB, depth: 8, ..READS };

#[test]
fn a_flood_of_long_reads_is_served_in_steps() {
    assert_bounded(READS, STEP_BYTES);
}

#[test]
fn many_connections_are_one_disk() {
    assert_bounded(Flood { clients: 64, len: MIB, depth: 4, ..READS }, STEP_BYTES);
}

#[test]
fn several_disks_take_turns() {
    assert_bounded(Flood { disks: 4, clients: 4, len: 25 * MIB, depth: 8, ..READS }, STEP_BYTES);
}

#[test]
fn a_flood_of_small_reads_is_counted_too() {
    assert_bounded(Flood { len: 4096, depth: 1024, ..READS }, STEP_BYTES);
}

#[test]
fn a_flood_of_long_writes_is_served_in_steps() {
    assert_bounded(WRITES, STEP_BYTES);
}

#[test]
fn writes_of_one_operation_each_are_served_in_steps() {
    assert_bounded(Flood { clients: 4, len: MIB / 4, depth: 64, ..WRITES }, STEP_BYTES);
}

/// A write that has finished is installed in steps, with a look at the neighbour after each.
#[test]
fn finished_writes_are_installed_in_steps() {
    let counts = beside(WRITES);
    let (finished, looks) = (counts.finished.load(Ordering::Relaxed), counts.looks.load(Ordering::Relaxed));
    assert!(finished > 4 * MIB, "{finished} bytes were written");
    println!("{looks} answers while {finished} bytes were installed");
    // What the last turn has left is not installed yet.
    let least = (finished - 2 * MIB) / STEP_BYTES;
    assert!(looks >= least, "{looks} answers while {finished} bytes were installed");
}

/// Long operations are started neither before nor after something is copied, unless the neighbour is looked at between.
#[test]
fn starting_a_long_operation_is_a_piece_of_work_of_its_own() {
    for flood in [WRITES, Flood { clients: 4, len: MIB / 4, depth: 64, ..WRITES }] {
        let both = beside(flood).both.load(Ordering::Relaxed);
        println!("{both} of 2,000");
        assert!(both == 0, "{both} of 2,000 answers waited for a copy and a start: {flood:?}");
    }
}

/// A turn sends what one call may, and copies nothing for the disk then.
#[test]
fn what_many_connections_send_is_bounded_too() {
    assert_bounded(Flood { clients: 64, len: MIB / 4, depth: 2, sends: true, ..READS }, STEP_BYTES + SEND_BYTES);
}

#[test]
fn long_replies_are_sent_in_steps() {
    let flood = Flood { len: LONG, depth: 4, sends: true, ..READS };
    assert_bounded(flood, STEP_BYTES + SEND_BYTES);
    // A neighbour that sleeps is not looked at between two pieces: the worker hears of it after each turn's sending.
    assert!(beside(flood).heard.load(Ordering::Relaxed) > 500, "nobody asked who had woken after replies were sent");
}

/// Were the time that sending takes counted as idle, a worker would look for the next request for so much less, or not
/// at all: of 128 KiB it takes half of that time.
#[test]
fn to_send_much_is_not_to_be_idle() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    let worker = start(96 * MIB);
    let (before, now, worked) = worker
        .call(move |w| {
            let disk = add_disk(w, &path, 1);
            let make = move |id| {
                let counts = Arc::default();
                let load = Client { op: Op::Read, len: MIB / 8, counts, neighbour: false, sends: true, unsent: 0 };
                AnyPort::plain(TestPort::new(id, disk, 1, load))
            };
            let port = w.add_port(disk, Box::new(make)) as usize;
            while w.dirty.sending.is_empty() {
                w.reap();
                w.serve();
                w.finish_turn();
            }
            let before = now_ns();
            w.send_large();
            let seen = (before, w.now_ns, w.ports[port].as_ref().map(|s| s.worked_ns));
            w.ports.iter_mut().flatten().for_each(|s| s.port.shut());
            while w.ports.iter().flatten().any(|s| s.port.inflight() > 0) {
                w.reap();
                w.send_large();
                w.serve();
                w.finish_turn();
            }
            seen
        })
        .unwrap();
    worker.call(Worker::remove_all_for_test).unwrap();
    worker.stop();
    assert!(now >= before && worked >= Some(before), "idle since {now} and {worked:?}, and it was sent at {before}");
}

/// What images answer in a turn is bounded by itself: 256 KiB and one operation, and as much as one event copies for
/// those who have joined it.
#[test]
fn many_readers_of_what_is_being_read_are_not_all_answered_at_once() {
    let joined = Flood { clients: 64, len: MIB / 4, depth: 4, forgets: 40, ..READS };
    assert_bounded(joined, STEP_BYTES + 2 * MIB / 4 + 2 * STEP_BYTES);
}

/// A disk whose share moves, up or down, changes its tables a few slots at a time, in ticks and when the replies are
/// out.
#[test]
fn a_disk_whose_tables_change_gives_way() {
    const MOST: u64 = STEP_BYTES / UNIT_BYTES;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    let worker = start(96 * MIB);
    worker
        .call(move |w| {
            let disk = add_disk(w, &path, 1);
            for (share, slots) in [(12_000, 15_000), (1000, 1250)] {
                let mut before = w.core.table_units(disk);
                let mut step = |w: &Worker| {
                    let now = w.core.table_units(disk);
                    assert!(now - before <= MOST, "{} units of work on tables at once", now - before);
                    before = now;
                };
                w.core.set_share(disk, share).unwrap();
                step(w);
                w.apply(Event::Tick);
                step(w);
                let mut steps = 0;
                while w.core.wants_spare() {
                    steps += 1;
                    assert!(steps < 1000, "it goes on for ever");
                    w.use_spare_time();
                    step(w);
                }
                assert_eq!(w.core.slots(disk), slots, "what a tick begins is done when the replies are out");
                assert!(steps > 10, "there was something to do");
            }
        })
        .unwrap();
    worker.call(Worker::remove_all_for_test).unwrap();
    worker.stop();
}

/// A disk whose share shrinks gives its blocks up a few at a time, in ticks and when the replies are out.
#[test]
fn a_shrinking_disk_gives_way() {
    const BLOCKS: u64 = IMAGE_BYTES / 4096;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    let worker = start(96 * MIB);
    let counts = Arc::<Counts>::default();
    let of = counts.clone();
    worker
        .call(move |w| {
            let disk = add_disk(w, &path, 1);
            w.add_port(
                disk,
                Box::new(move |id| {
                    let Flood { op, len, sends, .. } = READS;
                    let load = Client { op, len, counts: of.clone(), neighbour: false, sends, unsent: 0 };
                    AnyPort::plain(TestPort::new(id, disk, 1, load))
                }),
            );
            let evicted = |w: &Worker| w.core.stats(disk).evicted_blocks;
            let turn = |w: &mut Worker| {
                w.reap();
                w.serve();
                w.finish_turn();
            };
            while w.core.stats(disk).cached_blocks < BLOCKS {
                turn(w);
            }
            w.ports.iter_mut().flatten().for_each(|s| s.port.shut());
            while w.ports.iter().flatten().any(|s| s.port.inflight() > 0) {
                turn(w);
            }
            w.core.set_capacity(disk, 16).unwrap();
            let (mut ticks, mut before) = (0, evicted(w));
            while w.core.stats(disk).cached_blocks > 16 {
                ticks += 1;
                w.apply(Event::Tick);
                let mut steps = 0;
                loop {
                    let went = evicted(w) - before;
                    assert!(went <= 256, "{went} blocks went at once");
                    before += went;
                    if !w.core.wants_spare() {
                        break;
                    }
                    steps += 1;
                    assert!(steps < 1000, "it goes on for ever");
                    w.use_spare_time();
                }
            }
            assert_eq!(ticks, 1, "what is left of a tick's work is done when the replies are out");
        })
        .unwrap();
    assert_eq!(counts.failed.load(Ordering::Relaxed), 0);
    worker.call(Worker::remove_all_for_test).unwrap();
    worker.stop();
}
