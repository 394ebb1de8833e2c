//! What a RAM hit costs: nanoseconds per 4 KiB and per 256 KiB read, beside the copy alone.
//!
//! `cargo run --release -p undercroft-cache --example hit_cost [policy]`. Measures the core only: no front end, no
//! guest. In the end the same with a guest whose memory is seen: what a page transferred costs before the reply (to
//! look up, and to copy aside what it held) and after it (to hash and keep that). The medians of several rounds, and
//! the least; read them as ratios.

use std::hint::black_box;
use std::time::Instant;
use undercroft_cache::{Core, CoreOptions, DiskId, DiskOptions, Event, Geometry, Op, Request};
use undercroft_engine::{ExclusiveMode, PolicyKind};
use undercroft_testkit::front::{Buffer, Front, Guest, NoData, block_request, fill_blocks};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64 * 1024;
const DISK: DiskId = DiskId(0);

fn read(block: u64, blocks: u64) -> Request {
    block_request(DISK, Op::Read, block, blocks)
}

/// Units of the first `blocks` blocks in an order that no prefetcher guesses.
fn scattered(n: usize, unit: u64, blocks: u64) -> Vec<u64> {
    let units = blocks / unit;
    (0..n as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % units * unit).collect()
}

/// Nanoseconds per call of `f` over all of `at`: the least and the median of some rounds.
fn measure(at: &[u64], mut f: impl FnMut(&[u64])) -> (f64, f64) {
    let mut rounds: Vec<f64> = (0..15)
        .map(|_| {
            let began = Instant::now();
            f(at);
            began.elapsed().as_nanos() as f64 / at.len() as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    (rounds[0], rounds[rounds.len() / 2])
}

/// A core with one disk.
fn one_disk(policy: PolicyKind, capacity_blocks: u64, readahead_bytes: u32, exclusive: ExclusiveMode) -> Core {
    let mut core = Core::new(CoreOptions::new(400 << 20)).unwrap_or_else(|e| panic!("no address space: {e}"));
    let geometry = Geometry::new(BLOCKS * BLOCK as u64);
    let options = DiskOptions::new(&geometry, policy, capacity_blocks as u32);
    let options = DiskOptions { readahead_bytes, exclusive, ..options };
    core.add_disk(DISK, options).unwrap_or_else(|e| panic!("{e}"));
    core
}

fn main() {
    let policy = std::env::args().nth(1).map_or(Ok(PolicyKind::S3Fifo), |name| name.parse()).unwrap_or_else(|e| {
        eprintln!("{e}");
        std::process::exit(2);
    });
    let mut core = one_disk(policy, BLOCKS * 5 / 4, 1 << 20, ExclusiveMode::Off);
    // Copies to one buffer, as a front end would copy to a guest.
    let mut front = Front::new(Buffer(vec![0; 64 * BLOCK]));
    for block in (0..BLOCKS).step_by(16) {
        // Written, or all frames would be the kernel's one page of zeroes.
        front.run(&mut core, read(block, 16), |io| fill_blocks(io, |_| 1));
    }
    let reads_before = core.stats(DISK).backend_reads;
    let from: Vec<u8> = vec![1; (BLOCKS as usize) * BLOCK];
    let mut to = vec![0u8; 64 * BLOCK];
    println!("{policy}, {BLOCKS} blocks cached of {:?}", core.stats(DISK).cached_blocks);
    println!("{:34} {:>9} {:>9}", "ns per read", "least", "median");
    // The first in the processor's cache, to see what the core itself costs; the others from memory, as guests do.
    for (name, unit, n, blocks) in [
        ("4 KiB of 1 MiB", 1u64, 60_000usize, 256u64),
        ("4 KiB", 1, 60_000, BLOCKS),
        ("64 KiB", 16, 10_000, BLOCKS),
        ("256 KiB", 64, 3000, BLOCKS),
    ] {
        let at = scattered(n, unit, blocks);
        let bytes = unit as usize * BLOCK;
        let (least, median) = measure(&at, |at| {
            for &b in at {
                let b = b as usize * BLOCK;
                to[..bytes].copy_from_slice(&from[b..b + bytes]);
                black_box(&mut to);
            }
        });
        println!("{:34} {least:9.1} {median:9.1}", format!("{name}: copy alone"));
        let mut hits = |ahead: usize, metered: bool| {
            core.measure(DISK, metered.then_some(BLOCKS * 4));
            measure(&at, |at| {
                for (i, &b) in at.iter().enumerate() {
                    if let Some(&next) = at.get(i + ahead)
                        && ahead > 0
                    {
                        core.prefetch(&read(next, unit));
                    }
                    front.ask(&mut core, read(b, unit));
                }
                black_box(&mut front.client.0);
            })
        };
        for (label, ahead, metered) in [
            ("core", 0, false),
            ("core, measured", 0, true),
            ("core, prefetch 2 ahead", 2, false),
            ("core, prefetch 8 ahead", 8, false),
            ("core, prefetch 8, measured", 8, true),
        ] {
            let (least, median) = hits(ahead, metered);
            println!("{:34} {least:9.1} {median:9.1}", format!("{name}: {label}"));
        }
    }
    assert_eq!(core.stats(DISK).backend_reads, reads_before, "all that was measured were hits");
    drop(from);
    beside_a_guest(policy);
}

/// Reads of a guest whose memory is seen and that reuses its pages in a ring, over four times what the cache holds:
/// nearly everything is captured at reuse.
fn beside_a_guest(policy: PolicyKind) {
    const PAGES: u64 = 16 * 1024;
    for (name, mode, measured) in [
        ("off", ExclusiveMode::Off, false),
        ("off, measured", ExclusiveMode::Off, true),
        ("capture", ExclusiveMode::Capture, false),
        ("capture, measured", ExclusiveMode::Capture, true),
    ] {
        let mut core = one_disk(policy, BLOCKS / 4, 0, mode);
        core.set_guest(DISK, PAGES as u32);
        core.measure(DISK, measured.then_some(BLOCKS));
        let mut front = Front::new(Guest::<NoData>::new(PAGES as u32));
        let (mut n, mut reply, mut spare) = (0u64, Vec::new(), Vec::new());
        for round in 0..12 {
            let (mut reply_ns, mut spare_ns, mut pages) = (0u64, 0u64, 0u64);
            for _ in 0..BLOCKS / 16 {
                let began = Instant::now();
                for _ in 0..16 {
                    front.client.page = Some((n % PAGES) as u32);
                    front.run(&mut core, read(n * 7919 % BLOCKS, 1), |io| fill_blocks(io, |block| block as u8 | 1));
                    n += 1;
                }
                let replied = Instant::now();
                core.apply(Event::Spare { copies: true }, 0, &mut front);
                spare_ns += replied.elapsed().as_nanos() as u64;
                reply_ns += (replied - began).as_nanos() as u64;
                pages += 16;
            }
            // The first rounds fill the cache.
            if round >= 3 {
                reply.push(reply_ns as f64 / pages as f64);
                spare.push(spare_ns as f64 / pages as f64);
            }
        }
        for (what, ns) in [("before the reply", &mut reply), ("after it", &mut spare)] {
            ns.sort_by(f64::total_cmp);
            let label = format!("4 KiB, guest, {name}: {what}");
            println!("{label:34} {:9.1} {:9.1}", ns[0], ns[ns.len() / 2]);
        }
        let stats = core.exclusive(DISK).map(|report| report.stats).unwrap_or_default();
        let per_page = stats.captures as f64 / n as f64;
        println!("{:34} {:9.2}", format!("  captures per page, {name}"), per_page);
        assert_eq!(stats.captures > n / 2, mode == ExclusiveMode::Capture, "what was measured is not what it says");
    }
}
