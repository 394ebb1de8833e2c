//! What many disks and parts of disks cost a RAM hit: a thousand disks, or one of 64 parts, beside one disk with as
//! many blocks and frames in all.
//!
//! `cargo run --release -p undercroft-cache --example many_disks [--json] [rounds [case]]`. All cores read the same
//! sequence of blocks, in turn, in short rounds, and begin with another one each time, so that whatever else the
//! machine does hits them alike; the figures are the median of the nanoseconds per 4 KiB read and the median of the
//! rounds' ratios to one disk that is measured as much. Prefetched as workers do it, and without.

use std::hint::black_box;
use std::time::Instant;
use undercroft_cache::{Core, CoreOptions, DiskId, DiskOptions, Geometry, Op, Request};
use undercroft_engine::{PartId, PartRange, PartSetting, PolicyKind};
use undercroft_testkit::front::{Buffer, Front, block_request, fill_blocks};

/// As the daemon's.
#[global_allocator]
static HEAP: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 128_000;
const DISKS: u64 = 1000;
const METERED: u64 = 200;
const PARTS: u64 = 64;
const RANGES: u64 = 2000;
/// Blocks whose memory a meter takes at most.
const METER_BLOCKS: u64 = 200;
const READS: usize = 10_000;
const AHEAD: usize = 8;

/// One core of those compared.
struct Case {
    name: &'static str,
    core: Core,
    disks: u64,
    /// The case that it is compared with.
    beside: usize,
}

impl Case {
    fn new(name: &'static str, disks: u64, metered: u64, parts: bool, beside: usize) -> Self {
        let mut core = Core::new(CoreOptions::new(16 << 30)).unwrap_or_else(|e| panic!("no address space: {e}"));
        let per_disk = BLOCKS / disks;
        let spare = |d: u64| match (d < metered, parts) {
            (measured, true) => 1000 + u64::from(measured) * PARTS * METER_BLOCKS,
            (measured, false) => u64::from(measured) * METER_BLOCKS,
        };
        for d in 0..disks {
            let id = DiskId(d as u32);
            // As many frames for all; but what is measured pays for that, and parts for theirs.
            let capacity_blocks = (per_disk * 5 / 4 + spare(d)) as u32;
            let geometry = Geometry::new(per_disk * BLOCK as u64);
            let options = DiskOptions::new(&geometry, PolicyKind::S3Fifo, capacity_blocks);
            let options = DiskOptions { readahead_bytes: 1 << 20, ..options };
            core.add_disk(id, options).unwrap_or_else(|e| panic!("{e}"));
            if d < metered {
                core.measure(id, Some(BLOCKS * 4));
            }
        }
        if parts {
            let blocks = BLOCKS / RANGES;
            let part = |n| PartId((1 + n % PARTS) as u8);
            let ranges: Vec<_> = (0..RANGES).map(|n| PartRange { first: n * blocks, blocks, part: part(n) }).collect();
            let share_blocks = (BLOCKS * 5 / 4 / PARTS) as u32;
            let setting = |n| PartSetting { part: part(n), policy: PolicyKind::S3Fifo, share_blocks };
            let settings: Vec<_> = (0..PARTS).map(setting).collect();
            core.set_parts(DiskId(0), &ranges, &settings).unwrap_or_else(|e| panic!("{e}"));
            if metered > 0 {
                core.measure(DiskId(0), None);
                assert!((0..PARTS).all(|n| core.measure_part(DiskId(0), part(n), Some(BLOCKS * 4))));
            }
        }
        Self { name, core, disks, beside }
    }

    /// Block `n` of all disks' together: neighbours are on different disks.
    fn read(&self, n: u64) -> Request {
        let (disk, block) = (DiskId((n % self.disks) as u32), n / self.disks);
        block_request(disk, Op::Read, block, 1)
    }

    fn fill(&mut self, front: &mut Front<Buffer>) {
        for n in 0..BLOCKS {
            let read = self.read(n);
            // Written, or all frames would be the kernel's one page of zeroes.
            front.run(&mut self.core, read, |io| fill_blocks(io, |_| 1));
        }
    }

    fn missed(&self) -> u64 {
        (0..self.disks).map(|d| self.core.stats(DiskId(d as u32)).backend_reads).sum()
    }

    /// Nanoseconds per read of the blocks in `at`.
    fn round(&mut self, at: &[u64], ahead: usize, front: &mut Front<Buffer>) -> f64 {
        let began = Instant::now();
        for (i, &n) in at.iter().enumerate() {
            if ahead > 0
                && let Some(&next) = at.get(i + 2 * ahead)
            {
                self.core.approach(self.read(next).disk);
            }
            if ahead > 0
                && let Some(&next) = at.get(i + ahead)
            {
                self.core.prefetch(&self.read(next));
            }
            let read = self.read(n);
            front.ask(&mut self.core, read);
        }
        black_box(&mut front.client.0);
        began.elapsed().as_nanos() as f64 / at.len() as f64
    }
}

fn median(of: &mut [f64]) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn main() {
    let (options, mut numbers): (Vec<String>, Vec<String>) = std::env::args().skip(1).partition(|a| a == "--json");
    let json = !options.is_empty();
    numbers.reverse();
    let rounds: usize = numbers.pop().map_or(Ok(101), |n| n.parse()).unwrap_or_else(|_| {
        eprintln!("how many rounds? a number, please");
        std::process::exit(2);
    });
    // For a profiler: one case alone.
    let only: Option<usize> = numbers.pop().and_then(|n| n.parse().ok());
    let mut front = Front::new(Buffer(vec![0; BLOCK]));
    let mut cases = [
        Case::new("one disk", 1, 0, false, 0),
        Case::new("one disk, again", 1, 0, false, 0),
        Case::new("1000 disks", DISKS, 0, false, 0),
        Case::new("one disk, measured", 1, 1, false, 3),
        Case::new("1000 disks, 200 measured", DISKS, METERED, false, 3),
        Case::new("1000 disks, all measured", DISKS, DISKS, false, 3),
        Case::new("one disk of 64 parts", 1, 0, true, 0),
        Case::new("one disk of 64 parts, all measured", 1, 1, true, 3),
    ];
    for (_, case) in cases.iter_mut().enumerate().filter(|(i, _)| only.is_none_or(|only| only == *i)) {
        case.fill(&mut front);
        case.fill(&mut front);
    }
    let missed: Vec<u64> = cases.iter().map(Case::missed).collect();
    if !json {
        println!("{BLOCKS} blocks of 4 KiB in all, {RANGES} ranges; {rounds} rounds of {READS} reads");
        println!("{:36} {:>10} {:>8} {:>14} {:>8}", "", "ns", "ratio", "ns, prefetch", "ratio");
    }
    let mut times = [vec![Vec::new(); cases.len()], vec![Vec::new(); cases.len()]];
    let mut state = 1u64;
    for round in 0..rounds {
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % BLOCKS
        };
        let at: Vec<u64> = (0..READS).map(|_| next()).collect();
        for (times, ahead) in times.iter_mut().zip([0, AHEAD]) {
            for i in 0..cases.len() {
                let i = (i + round) % cases.len();
                if only.is_some_and(|only| only != i) {
                    times[i].push(1.0);
                    continue;
                }
                times[i].push(cases[i].round(&at, ahead, &mut front));
            }
        }
    }
    for (i, case) in cases.iter().enumerate() {
        let figures = times.each_ref().map(|times| {
            let mut ratios: Vec<f64> = times[i].iter().zip(&times[case.beside]).map(|(a, b)| a / b).collect();
            (median(&mut times[i].clone()), median(&mut ratios))
        });
        let [(ns, ratio), (ns_ahead, ratio_ahead)] = figures;
        if json {
            let plain = format!(r#""ns":{ns:.1},"ratio":{ratio:.4}"#);
            let ahead = format!(r#""prefetched_ns":{ns_ahead:.1},"prefetched_ratio":{ratio_ahead:.4}"#);
            println!(r#"{{"case":"{}","beside":"{}",{plain},{ahead}}}"#, case.name, cases[case.beside].name);
        } else {
            println!("{:36} {ns:10.1} {ratio:8.3} {ns_ahead:14.1} {ratio_ahead:8.3}", case.name);
        }
        assert_eq!(case.missed(), missed[i], "all that was measured were hits");
    }
}
