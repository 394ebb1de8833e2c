//! What the static probes of a hit cost where nobody listens: the same hits with and without them, in turns.
//!
//! `cargo run --release -p undercroft-cache --example probe_cost`. Measures the core, with the three probes that the
//! worker fires for a hit (`request`, `reply`, `hit`, as `daemon/src/worker` does) and without: no front end, no guest.
//! The loop without probes also runs a second time in each round: by how far that differs from the first, the machine
//! differs from itself. Ratios of rounds: median, and the quarters around it.

use std::hint::black_box;
use std::time::Instant;
use undercroft_cache::{Core, CoreOptions, DiskId, DiskOptions, Geometry, Op, Request};
use undercroft_engine::{ExclusiveMode, PolicyKind};
use undercroft_host::probes;
use undercroft_testkit::front::{Buffer, Front, block_request, fill_blocks};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64 * 1024;
const DISK: DiskId = DiskId(0);
const ROUNDS: usize = 101;

fn read(block: u64, blocks: u64) -> Request {
    block_request(DISK, Op::Read, block, blocks)
}

/// Nanoseconds of a hit, over reads of the blocks `at`.
#[inline(never)]
fn hits<const PROBES: bool>(core: &mut Core, front: &mut Front<Buffer>, at: &[u64]) -> f64 {
    let began = Instant::now();
    for &block in at {
        let r = read(block, 1);
        // As the worker numbers requests; the optimiser must not know that they are all the same here.
        let number = black_box(u64::from(r.id.port) << 32 | u64::from(r.id.tag));
        if PROBES {
            probes::request(r.disk.0, number, probes::kind::READ, r.offset, r.len);
        }
        front.ask(core, r);
        if PROBES {
            probes::reply(number, true);
            probes::hit(number);
        }
    }
    began.elapsed().as_nanos() as f64 / at.len() as f64
}

/// The median of some ratios, and where a quarter of them and three quarters end.
fn quarters(ratios: &mut [f64]) -> String {
    ratios.sort_by(f64::total_cmp);
    let at = |part: usize| ratios[(ratios.len() - 1) * part / 4];
    format!("{:.4} ({:.4} to {:.4})", at(2), at(1), at(3))
}

fn main() {
    let mut core = Core::new(CoreOptions::new(400 << 20)).unwrap_or_else(|e| panic!("no address space: {e}"));
    let geometry = Geometry::new(BLOCKS * BLOCK as u64);
    let options = DiskOptions::new(&geometry, PolicyKind::S3Fifo, (BLOCKS * 5 / 4) as u32);
    let options = DiskOptions { exclusive: ExclusiveMode::Off, ..options };
    core.add_disk(DISK, options).unwrap_or_else(|e| panic!("{e}"));
    let mut front = Front::new(Buffer(vec![0; 16 * BLOCK]));
    for block in (0..BLOCKS).step_by(16) {
        front.run(&mut core, read(block, 16), |io| fill_blocks(io, |_| 1));
    }
    let reads_before = core.stats(DISK).backend_reads;
    println!("{:28} {:>8} {:>26} {:>26}", "", "ns a hit", "with probes to without", "without to without");
    for (name, blocks, n) in [("1 MiB, in processor caches", 256, 60_000u64), ("256 MiB", BLOCKS, 60_000)] {
        let at: Vec<u64> = (0..n).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % blocks).collect();
        let (mut costs, mut probed, mut itself) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            // Whoever comes first in a round finds the caches as the one before left them: each in turn.
            let mut ns = [0.0; 3];
            for which in (0..3).map(|i| (i + round) % 3) {
                ns[which] = match which {
                    1 => hits::<true>(&mut core, &mut front, &at),
                    _ => hits::<false>(&mut core, &mut front, &at),
                };
            }
            costs.push(ns[0]);
            probed.push(ns[1] / ns[0]);
            itself.push(ns[2] / ns[0]);
        }
        costs.sort_by(f64::total_cmp);
        println!("{name:28} {:8.1} {:>26} {:>26}", costs[ROUNDS / 2], quarters(&mut probed), quarters(&mut itself));
    }
    assert_eq!(core.stats(DISK).backend_reads, reads_before, "all that was measured were hits");
}
