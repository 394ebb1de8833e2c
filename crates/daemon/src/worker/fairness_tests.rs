//! What a neighbour waits for, in bytes: a real worker, core and image, turned by hand, so that no clock is in it.
//!
//! Owns clients that count what is copied for them. Never waits for time, only for the image to answer.

use super::{Worker, WorkerHandle, WorkerOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use undercroft_backend::{OpenOptions, open};
use undercroft_cache::limits::{REQUEST_BYTES_MAX, STEP_BYTES};
use undercroft_cache::{CoreOptions, DiskId, DiskOptions, IoError, Op};
use undercroft_config::{ImageFormat, ImageSpec};
use undercroft_frontend::AnyPort;
use undercroft_frontend::turns::QUANTUM_BYTES;
use undercroft_porttest::client::{Load, TestPort};

const MIB: u64 = 1 << 20;
const IMAGE_BYTES: u64 = 32 * MIB;
/// What one step of a write copies.
const WRITE_STEP_BYTES: u64 = 256 * 1024;

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
}

/// A client that asks for the first `len` bytes again and again.
struct Client {
    op: Op,
    len: u64,
    counts: Arc<Counts>,
    neighbour: bool,
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
            return;
        }
        let now = c.flooded.load(Ordering::Relaxed);
        c.worst.fetch_max(now - c.seen.swap(now, Ordering::Relaxed), Ordering::Relaxed);
        c.answers.fetch_add(1, Ordering::Relaxed);
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
}

fn add_disk(w: &mut Worker, dir: &std::path::Path, n: u32) -> DiskId {
    let path = dir.join(format!("{n}.raw"));
    std::fs::File::create(&path).unwrap().set_len(IMAGE_BYTES).unwrap();
    let spec = ImageSpec { location: path.to_str().unwrap().into(), format: Some(ImageFormat::Raw), read_only: false };
    let backend = open(&spec, &OpenOptions::default()).unwrap();
    let geometry = backend.geometry().clone();
    let options = DiskOptions {
        size_bytes: geometry.size_bytes,
        align: geometry.align,
        read_only: false,
        can_discard: false,
        can_write_zeroes: false,
        policy: undercroft_engine::PolicyKind::Lru,
        capacity_blocks: (IMAGE_BYTES / 4096) as u32,
        readahead_bytes: 0,
        write_allocate: true,
        exclusive: undercroft_engine::ExclusiveMode::Off,
        share: None,
    };
    w.add_disk(format!("d{n}"), backend, options, 0).unwrap()
}

/// Lets the flood run beside a neighbour that reads one cached block at a time, until it has had 2,000 answers. Returns
/// the most bytes that were copied for the flood between two of those.
fn longest_wait(flood: Flood) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    let core = CoreOptions { contents: false, ..CoreOptions::new((u64::from(flood.disks) + 2) * 48 * MIB) };
    let name = "worker".to_string();
    let options = WorkerOptions { name, core, poll_ns_max: 0, copy_cpu_percent: 0, check_captures: false };
    let worker = WorkerHandle::start(options).unwrap();
    let counts = Arc::<Counts>::default();
    let of = counts.clone();
    // Between two turns of its own, the worker is turned by hand.
    worker
        .call(move |w| {
            let add = |w: &mut Worker, disk, op, len, depth, neighbour: bool| {
                let counts = of.clone();
                w.add_port(
                    disk,
                    Box::new(move |id| {
                        AnyPort::plain(TestPort::new(id, disk, depth, Client { op, len, counts, neighbour }))
                    }),
                );
            };
            let turn = |w: &mut Worker| {
                w.reap();
                w.serve();
                w.finish_turn();
            };
            let disks: Vec<DiskId> = (1..=flood.disks).map(|n| add_disk(w, &path, n)).collect();
            for n in 0..flood.clients {
                add(w, disks[(n % flood.disks) as usize], flood.op, flood.len, flood.depth, false);
            }
            // Everything is cached once each has had some answers.
            while of.floods.load(Ordering::Relaxed) < 4 * u64::from(flood.clients) {
                turn(w);
            }
            let own = add_disk(w, &path, 0);
            add(w, own, Op::Read, 4096, 1, true);
            while of.answers.load(Ordering::Relaxed) < 20 {
                turn(w);
            }
            of.worst.store(0, Ordering::Relaxed);
            while of.answers.load(Ordering::Relaxed) < 2_020 {
                turn(w);
            }
            w.ports.iter_mut().flatten().for_each(|s| s.port.shut());
            while w.ports.iter().flatten().any(|s| s.port.inflight() > 0) {
                turn(w);
            }
        })
        .unwrap();
    assert_eq!(counts.failed.load(Ordering::Relaxed), 0);
    assert!(counts.flooded.load(Ordering::Relaxed) > 64 * MIB, "there was no flood");
    worker.call(Worker::remove_all_for_test).unwrap();
    worker.stop();
    counts.worst.load(Ordering::Relaxed)
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
    let waited = longest_wait(flood);
    let bound = QUANTUM_BYTES as u64 + step;
    assert!(waited <= bound, "{waited} bytes were copied for others between two answers; {bound} may be: {flood:?}");
}

const LONG: u64 = REQUEST_BYTES_MAX as u64;

#[test]
fn a_flood_of_long_reads_is_served_in_steps() {
    assert_bounded(Flood { disks: 1, clients: 1, op: Op::Read, len: LONG, depth: 64 }, STEP_BYTES);
}

#[test]
fn many_connections_are_one_disk() {
    assert_bounded(Flood { disks: 1, clients: 64, op: Op::Read, len: MIB, depth: 4 }, STEP_BYTES);
}

#[test]
fn several_disks_take_turns() {
    assert_bounded(Flood { disks: 4, clients: 4, op: Op::Read, len: 25 * MIB, depth: 8 }, STEP_BYTES);
}

#[test]
fn a_flood_of_small_reads_is_counted_too() {
    assert_bounded(Flood { disks: 1, clients: 1, op: Op::Read, len: 4096, depth: 1024 }, STEP_BYTES);
}

#[test]
fn a_flood_of_long_writes_is_served_in_steps() {
    let write = Op::Write { fua: false };
    assert_bounded(Flood { disks: 1, clients: 1, op: write, len: 8 * MIB, depth: 8 }, WRITE_STEP_BYTES);
}
