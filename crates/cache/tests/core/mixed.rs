//! Reads and writes of single blocks on a slow disk, several at a time: how many operations are under way on average.
//!
//! Owns a disk each of whose operations takes equally long, however many there are. Invariant: time passes only while
//! every place of the client is taken by a request that waits.

use std::collections::VecDeque;
use undercroft_cache::limits::STEP_BYTES;
use undercroft_cache::{Core, CoreOptions, DiskId, DiskOptions, Geometry, Op};
use undercroft_engine::PolicyKind;
use undercroft_testkit::front::{Front, NoData, block_request};
use undercroft_testkit::rng::Rng;

const DISK: DiskId = DiskId(0);
/// Nanoseconds that an operation takes.
const TAKES_NS: u64 = 500_000;
const DEPTH: u64 = 8;
const REQUESTS: u64 = 40_000;

/// A load of `REQUESTS` requests, `DEPTH` at a time, of which so many percent write, to disk blocks below `blocks`.
struct Load {
    blocks: u64,
    cached_blocks: u32,
    write_percent: u64,
    fua: bool,
    contents: bool,
}

/// Operations under way on average, requests answered in the time of one operation, and operations for each request.
fn run(load: &Load) -> (f64, f64, f64) {
    let options =
        CoreOptions { step_bytes: STEP_BYTES, hash_seed: 1, contents: load.contents, ..CoreOptions::new(128 << 20) };
    let mut core = Core::new(options).unwrap();
    let disk = DiskOptions::new(&Geometry::new(load.blocks * 4096), PolicyKind::S3Fifo, load.cached_blocks);
    core.add_disk(DISK, disk).unwrap();
    let (mut front, mut rng) = (Front::new(NoData), Rng::new(7));
    let (mut asked, mut operations) = (0, 0);
    // When each operation ends, in the order of `front.ios`.
    let mut ends: VecDeque<u64> = VecDeque::new();
    let (mut now_ns, mut area) = (0, 0);
    while front.answered < REQUESTS {
        while asked - front.answered < DEPTH && asked < REQUESTS {
            let write = rng.below(100) < load.write_percent;
            let op = if write { Op::Write { fua: load.fua } } else { Op::Read };
            front.ask(&mut core, block_request(DISK, op, rng.below(load.blocks), 1));
            asked += 1;
            let new = front.ios.len() - ends.len();
            operations += new as u64;
            ends.extend(std::iter::repeat_n(now_ns + TAKES_NS, new));
        }
        let Some(end) = ends.pop_front() else { continue };
        area += front.ios.len() as u64 * (end - now_ns);
        now_ns = end;
        front.end(&mut core, 0, |_| Ok(()));
        let new = front.ios.len() - ends.len();
        operations += new as u64;
        ends.extend(std::iter::repeat_n(now_ns + TAKES_NS, new));
    }
    core.check();
    let (time, all) = (now_ns as f64, REQUESTS as f64);
    (area as f64 / time, all * TAKES_NS as f64 / time, operations as f64 / all)
}

/// Nothing but the disk holds requests of different blocks up: as many operations are under way as requests wait, and
/// each of those waits for one of its own, whether the blocks are cached or not.
#[test]
fn writes_of_different_blocks_do_not_wait_for_each_other() {
    for cached_blocks in [16_384, 2_000] {
        for (fua, contents) in [(false, false), (true, false), (false, true)] {
            let load = Load { blocks: 16_384, cached_blocks, write_percent: 30, fua, contents };
            let (under_way, rate, each) = run(&load);
            println!("{cached_blocks} cached: {under_way:.3} under way, {rate:.2} answered, {each:.3} operations each");
            assert!(under_way > 0.99 * DEPTH as f64, "{under_way} operations were under way");
            // Each request takes an operation at most, so more are answered than that many.
            assert!(each < 1.0 && rate >= 0.99 * DEPTH as f64 / each, "{rate} requests in the time of an operation");
        }
    }
}

/// Of a load that writes the same few blocks, only those wait that write the same one.
#[test]
fn writes_wait_for_the_same_block_alone() {
    let load = Load { blocks: 64, cached_blocks: 2_000, write_percent: 100, fua: false, contents: false };
    let (under_way, ..) = run(&load);
    // That of eight blocks out of 64, those that are the first of their kind are 7.56 on average; who waits stays, so
    // that it is less.
    assert!((6.0..7.6).contains(&under_way), "{under_way} operations were under way");
}
