//! Caches with locks, simulated, and the daemon's core with the same locks: both miss the same reads.
//!
//! Owns the requests. Never compares a cache with itself: what a share leaves for blocks, what is locked and when is
//! decided on each side by itself. Invariant: the core holds nothing but its one disk.

use undercroft_cache::{
    ByteRange, ContentKey, Core, CoreOptions, DiskId, DiskOptions, Event, Geometry, LockReport, Op,
};
use undercroft_engine::locking::{LockMode, LockSettings};
use undercroft_engine::{Access, ExclusiveMode, Index, Outcome, PolicyKind};
use undercroft_study::sim::locks::{LockStudy, LockingArm, LocksPlan, LocksResult};
use undercroft_study::sim::{Go, Reference, SweepOptions};
use undercroft_testkit::front::{Front, NoData, block_request};
use undercroft_trace::synth::Zipf;

const SHARE: u32 = 400;
const DISK: DiskId = DiskId(0);
const B: u64 = 4096;

/// Reads by Zipf's law, a loop that does not fit, other reads by Zipf's law, and the loop again.
fn reads() -> Vec<u64> {
    let zipf = |seed| Zipf::new(3000, 0.9, seed).take(15_000);
    let looped = || (0..25_000).map(|n| 5000 + n % 450);
    zipf(3).chain(looped()).chain(zipf(4)).chain(looped()).collect()
}

/// The blocks that a cache without locks misses most, of equal ones those with the lower numbers.
fn most_missed(policy: PolicyKind, reads: &[u64], count: usize) -> Vec<u64> {
    let mut index = Index::new(policy, SHARE);
    let mut misses = std::collections::BTreeMap::<u64, u64>::new();
    for &block in reads {
        if !matches!(index.access(block, Access::Read, |_| true), Outcome::Hit(_)) {
            *misses.entry(block).or_default() += 1;
        }
    }
    let mut ranked: Vec<(u64, u64)> = misses.into_iter().map(|(block, n)| (u64::MAX - n, block)).collect();
    ranked.sort_unstable();
    ranked.into_iter().take(count).map(|(_, block)| block).collect()
}

/// Blocks as ranges of bytes, those beside each other as one.
fn ranges(mut blocks: Vec<u64>) -> Vec<ByteRange> {
    blocks.sort_unstable();
    let runs = blocks.chunk_by(|a, b| a + 1 == *b);
    runs.map(|run| ByteRange { offset: run[0] * B, bytes: run.len() as u64 * B }).collect()
}

/// The same reads through the core: how many missed, the blocks that there are at the end, and its locks.
fn through_the_core(
    policy: PolicyKind,
    settings: LockSettings,
    profile: &[ByteRange],
    reads: &[u64],
) -> (u64, u64, LockReport) {
    let plain = CoreOptions::new(64 << 20);
    let options = CoreOptions { hash_seed: 1, contents: false, content_key: ContentKey::from_seed(0), ..plain };
    let mut core = Core::new(options).expect("a core");
    let disk = DiskOptions::new(&Geometry::new(1 << 30), policy, SHARE);
    core.add_disk(DISK, DiskOptions { exclusive: ExclusiveMode::Off, ..disk }).expect("a disk");
    core.set_locking(DISK, settings);
    core.set_lock_profile(DISK, profile).expect("a profile");
    let mut front = Front::new(NoData);
    for &block in reads {
        front.run(&mut core, block_request(DISK, Op::Read, block, 1), |_| {});
        if core.wants_spare() {
            core.apply(Event::Spare { copies: false }, 0, &mut front);
        }
    }
    core.check();
    let stats = core.stats(DISK);
    (stats.miss_blocks, stats.cached_blocks, core.lock_report(DISK))
}

/// The same reads through the simulator, after a first run over them.
fn simulated(policy: PolicyKind, arm: &str, reads: &[u64]) -> LocksResult {
    let arm: LockingArm = arm.parse().expect("an arm");
    let mut study = LockStudy::new(vec![LocksPlan::new(policy, SHARE, arm)]).expect("a plan");
    let trace = || reads.iter().map(|&block| Ok(Reference::read(block)));
    study.profile(trace(), &SweepOptions::default(), &mut |_| Go::On).expect("a first run");
    let mut done = study.run(trace(), || 0, &SweepOptions::default(), &mut |_| Go::On).expect("it runs");
    done.results.remove(0)
}

#[test]
fn the_daemons_core_misses_what_the_simulator_says_with_what_it_has_left_for_blocks() {
    let reads = reads();
    let off = LockSettings { budget_permille: 900, miss_entries: 0, ..LockSettings::default() };
    let online = LockSettings { mode: LockMode::Online, ..off };
    let named = LockSettings { mode: LockMode::Static, ..off };
    let arms = [
        ("none", off, 0),
        ("online:90%", online, 0),
        ("online:30%", LockSettings { budget_permille: 300, ..online }, 0),
        ("static:20%", named, 80),
        ("buffer:12", LockSettings { victim_blocks: 12, ..off }, 0),
        ("online:90%+12", LockSettings { victim_blocks: 12, ..online }, 0),
    ];
    for policy in [PolicyKind::Lru, PolicyKind::S3Fifo, PolicyKind::Arc, PolicyKind::Sieve] {
        for (arm, settings, count) in arms {
            let profile = ranges(most_missed(policy, &reads, count));
            let (misses, cached, report) = through_the_core(policy, settings, &profile, &reads);
            let got = simulated(policy, arm, &reads);
            let what = format!("{policy}, {arm}: {report:?}");
            assert_eq!(u64::from(got.limit_blocks), cached, "{what}");
            assert_eq!(got.counts.read_misses, misses, "{what}");
            assert_eq!(u64::from(got.locked_blocks), report.locked_blocks, "{what}");
            assert_eq!((got.online, got.buffer_hits), (report.online, report.buffer_hits), "{what}");
            if settings.mode == LockMode::Online {
                let stats = report.online.expect("the rule");
                assert!(stats.epochs > 20, "{what}");
                // The loop misses always under LRU, and what is locked of it does not.
                assert!(policy != PolicyKind::Lru || stats.locks > 0 && got.locked_read_hits > 0, "{what}");
                assert!(got.limit_blocks < SHARE - 10, "{what}");
            }
        }
    }
}
