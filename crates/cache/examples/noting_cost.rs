//! What noting costs that a guest was given cached blocks: nanoseconds a block, by the size of reads.
//!
//! `cargo run --release -p undercroft-cache --example noting_cost`. Everything that is read is cached, so nothing is
//! captured. Reads begin at random among 32,768 blocks (256 MiB in two halves, so that the guest's pages do not hold
//! all of them) and go to random places among 65,536 pages, so what is looked up is not in the processor's nearest
//! cache, as in life. No data is copied. `off` is the same without a guest that is seen; the difference is the cost of
//! noting.

use std::time::Instant;
use undercroft_cache::{Core, CoreOptions, DiskId, DiskOptions, Geometry, Op, ReqId, Request};
use undercroft_engine::{ExclusiveMode, PolicyKind};
use undercroft_testkit::front::{Client, Front, block_request, fill_blocks};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 32 * 1024;
const PAGES: u32 = 64 * 1024;
const DISK: DiskId = DiskId(0);

/// A guest whose requests go to adjacent pages, from one on.
struct Pages {
    first: u32,
    bytes: u64,
    /// Where data is copied to; empty: nowhere.
    memory: Vec<[u8; BLOCK as usize]>,
}

impl Client for Pages {
    #[inline]
    fn take(&mut self, _req: ReqId, at: usize, bytes: &[u8]) {
        self.bytes += u64::from(bytes[0]);
        if !self.memory.is_empty() {
            let page = (self.first as usize + at / BLOCK as usize) % self.memory.len();
            self.memory[page][..bytes.len()].copy_from_slice(bytes);
        }
    }
    fn give(&mut self, _req: ReqId, _at: usize, _bytes: &mut [u8]) {}
    #[inline]
    fn page(&mut self, _req: ReqId, at: usize) -> Option<u32> {
        at.is_multiple_of(BLOCK as usize).then_some(self.first + (at / BLOCK as usize) as u32)
    }
    fn copy_page(&mut self, _disk: DiskId, _page: u32, _to: &mut [u8; BLOCK as usize]) -> bool {
        false
    }
}

fn read(block: u64, blocks: u64) -> Request {
    block_request(DISK, Op::Read, block, blocks)
}

/// Pseudo-random numbers (splitmix64).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Nanoseconds a block, the least and the median of several rounds.
fn cost(mode: ExclusiveMode, unit: u64, in_ring: bool, copies: bool) -> (f64, f64) {
    let mut core = Core::new(CoreOptions::new(400 << 20)).unwrap_or_else(|e| panic!("no address space: {e}"));
    let geometry = Geometry::new(BLOCKS * BLOCK);
    let options = DiskOptions::new(&geometry, PolicyKind::S3Fifo, (BLOCKS * 3 / 2) as u32);
    let options = DiskOptions { readahead_bytes: 0, exclusive: mode, ..options };
    core.add_disk(DISK, options).unwrap_or_else(|e| panic!("{e}"));
    core.set_guest(DISK, PAGES);
    let memory = if copies { vec![[0; BLOCK as usize]; 512] } else { Vec::new() };
    let mut front = Front::new(Pages { first: 0, bytes: 0, memory });
    for block in (0..BLOCKS).step_by(16) {
        front.client.first = (block % u64::from(PAGES)) as u32;
        front.run(&mut core, read(block, 16), |io| fill_blocks(io, |_| 1));
    }
    let before = core.stats(DISK).backend_reads;
    let (mut state, mut rounds, mut ring) = (unit, Vec::new(), 0);
    for round in 0..if std::env::args().nth(1).is_some() { 300 } else { 25 } {
        let n = BLOCKS / unit;
        let at: Vec<(u64, u32)> = (0..n)
            .map(|_| {
                ring = (ring + unit as u32) % PAGES;
                let page = random(&mut state) as u32 % (PAGES / unit as u32) * unit as u32;
                (random(&mut state) % (BLOCKS / unit) * unit, if in_ring { ring % 512 } else { page })
            })
            .collect();
        let began = Instant::now();
        for &(block, page) in &at {
            front.client.first = page;
            front.ask(&mut core, read(block, unit));
        }
        if round >= 5 {
            rounds.push(began.elapsed().as_nanos() as f64 / (n * unit) as f64);
        }
    }
    assert_eq!(core.stats(DISK).backend_reads, before, "all that was measured were hits");
    rounds.sort_by(f64::total_cmp);
    (rounds[0], rounds[rounds.len() / 2])
}

fn main() {
    if let Some(n) = std::env::args().nth(1) {
        let (unit, in_ring) = if n == "ring" { (64, true) } else { (n.parse().unwrap_or(64), false) };
        println!("{:?}", cost(ExclusiveMode::Auto, unit, in_ring, true));
        return;
    }
    println!("{:32} {:>9} {:>9}", "ns a block", "least", "median");
    for (unit, name) in [(1, "4 KiB"), (16, "64 KiB"), (64, "256 KiB")] {
        for (mode, in_ring, copies, label) in [
            (ExclusiveMode::Off, false, false, "off"),
            (ExclusiveMode::Auto, false, false, "noted, all pages"),
            (ExclusiveMode::Auto, true, false, "noted, 512 pages"),
            (ExclusiveMode::Off, true, true, "off, copied"),
            (ExclusiveMode::Auto, true, true, "noted, copied"),
        ] {
            let (least, median) = cost(mode, unit, in_ring, copies);
            println!("{:32} {least:9.1} {median:9.1}", format!("{name}: {label}"));
        }
    }
}
