//! What recording costs: processor time per request with a recording on and off, side by side in one run.
//!
//! `cargo run --release -p undercroft --example record_cost [ROUNDS] [PATH]`. A worker serves hits of 4 KiB at depth 32
//! to a port in the same process that copies them into 64 MiB of memory, as vhost-user does; there is no guest, no
//! socket and no system call, so that the worker's own part is as large as it can be. Rounds with and without a
//! recording take turns. Figures are processor time of the worker's thread (not the time that passes, so that a busy
//! machine does not matter much): medians, quarters, and the ratio of pairs; and of the thread that writes, per
//! request, to the end of the file. The second half is the same with every request a miss that an image in memory
//! serves at once.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use undercroft_api::record::Order;
use undercroft_backend::Backend;
use undercroft_cache::Geometry;
use undercroft_cache::{CoreOptions, DiskId, DiskOptions, Io, IoDone, IoError, IoKind, Op};
use undercroft_daemon::record::{self, Ready, Reason, Recorder, Watched};
use undercroft_daemon::worker::{WorkerHandle, WorkerOptions};
use undercroft_engine::{ExclusiveMode, PolicyKind};
use undercroft_frontend::AnyPort;
use undercroft_host::EventFd;
use undercroft_host::idle::thread_cpu_ns;
use undercroft_porttest::client::{Load, TestPort};
use undercroft_trace::recording::RecordedDisk;

const BLOCK: u64 = 4096;
/// Blocks of the disk.
const BLOCKS: u64 = 32 * 1024;
const DEPTH: usize = 32;
/// How long a round is: so short that what a worker may have on its way to the writer holds all of it, and nothing is
/// dropped however busy the machine is. A request that is dropped would cost less than one that is noted.
const ROUND: Duration = Duration::from_millis(60);

/// An image in memory: everything is done at once.
struct Instant0 {
    geometry: Geometry,
    wake_fd: EventFd,
    done: VecDeque<IoDone>,
}

impl Backend for Instant0 {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }
    fn submit(&mut self, mut io: Io) {
        if io.kind == IoKind::Read {
            // Written, or all frames would be the kernel's one page of zeroes.
            io.buf.pieces_mut().for_each(|p| p.fill(1));
        }
        self.done.push_back(IoDone { op: io.op, disk: io.disk, buf: io.buf, result: Ok(()), extents: Vec::new() });
    }
    fn kick(&mut self) {}
    fn poll(&mut self, done: &mut Vec<IoDone>) -> bool {
        done.extend(self.done.drain(..));
        false
    }
    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake_fd.as_fd()
    }
    fn describe(&self) -> String {
        "in memory".into()
    }
    fn inflight(&self) -> usize {
        self.done.len()
    }
}

/// A client that reads blocks here and there.
struct Reads {
    to: Vec<u8>,
    /// Blocks that it reads among.
    among: u64,
    state: u64,
    served: Arc<AtomicU64>,
}

impl Load for Reads {
    fn next(&mut self) -> (Op, u64, u64) {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let block = (self.state >> 33) % self.among;
        (Op::Read, block * BLOCK, BLOCK)
    }

    fn copied_out(&mut self, at: usize, bytes: &[u8]) {
        let to = (self.state >> 20) as usize % (self.to.len() / 4096) * 4096 + at;
        self.to[to..to + bytes.len()].copy_from_slice(bytes);
    }

    fn replied(&mut self, _result: Result<(), IoError>) {
        self.served.store(self.served.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

fn process_cpu_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// What a round took: nanoseconds of the worker per request; and requests.
struct Round {
    worker: f64,
    requests: u64,
}

fn round(worker: &WorkerHandle, served: &AtomicU64) -> Result<Round, Box<dyn std::error::Error>> {
    let look = || worker.call(|_| thread_cpu_ns()).map(|own| (own, served.load(Ordering::Relaxed)));
    let before = look()?;
    std::thread::sleep(ROUND);
    let after = look()?;
    let requests = (after.1 - before.1).max(1);
    Ok(Round { worker: (after.0 - before.0) as f64 / requests as f64, requests })
}

/// Processor time of all threads but the worker's.
fn others_ns(worker: &WorkerHandle) -> Result<u64, undercroft_daemon::worker::Gone> {
    worker.call(|_| process_cpu_ns() - thread_cpu_ns())
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|q| values[(values.len() - 1) * q / 4])
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let rounds: usize = arguments.next().map_or(Ok(40), |r| r.parse())?;
    let dir = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let path = std::path::absolute(dir.join(format!("record_cost.{}.parquet", std::process::id())))?;
    println!(
        "{:8} {:>22} {:>22} {:>10} {:>10} {:>9}",
        "", "worker off, ns", "worker on, ns", "ratio", "writer", "dropped"
    );
    for (name, capacity, among) in [("hits", BLOCKS as u32 * 5 / 4, BLOCKS / 2), ("misses", 64, BLOCKS)] {
        measure(name, capacity, among, rounds.max(4), &path)?;
    }
    Ok(())
}

/// A worker with one disk, whose reads are done at once.
fn start(capacity: u32) -> Result<(Arc<WorkerHandle>, DiskId), Box<dyn std::error::Error>> {
    let worker = WorkerHandle::start(WorkerOptions {
        name: "worker".into(),
        core: CoreOptions::new(512 << 20),
        poll_ns_max: 0,
        copy_cpu_percent: 0,
        check_captures: false,
    })?;
    let geometry = Geometry { can_discard: false, can_write_zeroes: false, ..Geometry::new(BLOCKS * BLOCK) };
    let options = DiskOptions::new(&geometry, PolicyKind::S3Fifo, capacity);
    let options = DiskOptions { exclusive: ExclusiveMode::Off, ..options };
    let backend = Instant0 { geometry, wake_fd: EventFd::new()?, done: VecDeque::new() };
    let disk = worker.call(move |w| w.add_disk("disk".into(), Box::new(backend), options, 0))??;
    Ok((worker, disk))
}

/// What all rounds took.
#[derive(Default)]
struct Figures {
    off: Vec<f64>,
    on: Vec<f64>,
    ratio: Vec<f64>,
    writer: Vec<f64>,
    dropped: u64,
    requests: u64,
}

impl Figures {
    /// One round with a recording and one without; `with_first` says which comes first.
    fn pair(
        &mut self,
        (worker, disk): (&Arc<WorkerHandle>, DiskId),
        served: &AtomicU64,
        with_first: bool,
        path: &Path,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let mut pair = [None, None];
        for with in [with_first, !with_first] {
            let (mut recorder, others) = (None, others_ns(worker)?);
            if with {
                let order = Order::all(path.to_path_buf(), 1 << 30);
                let file = record::create(path, true, |_, _| None)?;
                let about = RecordedDisk { name: "vm:disk".into(), vm: Some("vm".into()), ..RecordedDisk::default() };
                let watched = vec![Watched { worker: 0, id: disk, about }];
                let ready = Ready::new(order, file, None, 512 << 20)?;
                recorder = Some(Recorder::start(1, ready, std::slice::from_ref(worker), watched)?);
                std::thread::sleep(ROUND / 8);
            }
            pair[usize::from(with)] = Some(round(worker, served)?);
            if let Some(mut recorder) = recorder {
                recorder.end(Reason::Stopped);
                let tally = recorder.progress(false).tally;
                self.dropped += tally.dropped;
                self.requests += tally.rows;
                self.writer.push((others_ns(worker)? - others) as f64 / tally.rows.max(1) as f64);
            }
        }
        if let [Some(without), Some(with)] = pair {
            assert!(without.requests > 0 && with.requests > 0, "nothing was served");
            self.ratio.push(with.worker / without.worker);
            self.off.push(without.worker);
            self.on.push(with.worker);
        }
        Ok(())
    }

    fn print(self, name: &str, rounds: usize) {
        let [off, on, ratio, writer] = [self.off, self.on, self.ratio, self.writer].map(quartiles);
        let span = |q: [f64; 3]| format!("{:.1} ({:.1}-{:.1})", q[1], q[0], q[2]);
        println!(
            "{name:8} {:>22} {:>22} {:>10} {:>10} {:>8.1}%",
            span(off),
            span(on),
            format!("{:.3}", ratio[1]),
            format!("{:.1} ns", writer[1]),
            self.dropped as f64 * 100.0 / (self.dropped + self.requests).max(1) as f64
        );
        println!("{:8} ratio of pairs: {:.3} to {:.3} between the quarters, {rounds} pairs", "", ratio[0], ratio[2]);
    }
}

fn measure(
    name: &str,
    capacity: u32,
    among: u64,
    rounds: usize,
    path: &Path,
) -> Result<(), Box<dyn std::error::Error>> {
    let (worker, disk) = start(capacity)?;
    let served = Arc::new(AtomicU64::new(0));
    let count = served.clone();
    let host = undercroft_daemon::worker::DiskHost::new(worker.clone(), disk);
    let port = undercroft_frontend::PortHost::attach(
        &host,
        Box::new(move |port| {
            let reads = Reads { to: vec![1; 64 << 20], among, state: 1, served: count };
            AnyPort::plain(TestPort::new(port, disk, DEPTH, reads))
        }),
    );
    // Until everything that fits is cached, and the processor runs at its speed.
    std::thread::sleep(Duration::from_millis(1500));
    let mut figures = Figures::default();
    for n in 0..rounds {
        // Which of the two comes first takes turns, too.
        figures.pair((&worker, disk), &served, n % 2 == 1, path)?;
    }
    let _ = std::fs::remove_file(path);
    undercroft_frontend::PortHost::detach(&host, port);
    let (tx, rx) = std::sync::mpsc::channel();
    worker.send(move |w| w.remove_disk(disk, tx))?;
    let _ = rx.recv();
    worker.stop();
    figures.print(name, rounds);
    Ok(())
}
