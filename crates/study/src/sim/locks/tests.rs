//! Locked caches against ones that are written down as plainly as can be, and against what simulates without locks.

use super::*;
use crate::sim::{Cell, sweep};
use proptest::prelude::*;
use std::collections::BTreeMap;
use undercroft_engine::replay;
use undercroft_trace::synth::Zipf;
use undercroft_units::CacheSize;

fn arm(text: &str) -> LockingArm {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn plans(policy: PolicyKind, blocks: u32, arms: &[&str]) -> Vec<LocksPlan> {
    arms.iter().map(|text| LocksPlan::new(policy, blocks, arm(text))).collect()
}

fn passed(references: &[Reference]) -> impl Iterator<Item = Result<Reference, undercroft_trace::TraceError>> + '_ {
    references.iter().copied().map(Ok)
}

/// A first run over `first`, and then one over `second`.
fn studied(
    plans: Vec<LocksPlan>,
    first: &[Reference],
    second: &[Reference],
    options: &SweepOptions,
) -> Vec<LocksResult> {
    let mut study = LockStudy::new(plans).expect("plans that make sense");
    study.profile(passed(first), options, &mut |_| Go::On).expect("a first run");
    let done = study.run(passed(second), || 0, options, &mut |_| Go::On).expect("it runs");
    assert!(!done.pass.stopped && done.pass.broken.is_none());
    assert_eq!(done.pass.accesses, second.len() as u64);
    done.results
}

/// LRU with locked blocks, which are never evicted; the most recent block is the last.
#[derive(Default)]
struct Plain {
    capacity: usize,
    /// So many may be locked.
    budget: usize,
    to_lock: Vec<u64>,
    order: Vec<u64>,
    locked: Vec<u64>,
    read_misses: u64,
    locked_read_hits: u64,
    /// Of each block: reads that missed, and those that hit.
    reads: BTreeMap<u64, (u64, u64)>,
}

impl Plain {
    fn access(&mut self, r: Reference) {
        let is_locked = self.locked.contains(&r.block);
        let at = self.order.iter().position(|&b| b == r.block);
        if !r.write {
            let of = self.reads.entry(r.block).or_default();
            *(if is_locked || at.is_some() { &mut of.1 } else { &mut of.0 }) += 1;
            self.read_misses += u64::from(!is_locked && at.is_none());
            self.locked_read_hits += u64::from(is_locked);
        }
        if is_locked {
            return;
        }
        match at {
            Some(at) => _ = self.order.remove(at),
            None if self.order.len() + self.locked.len() == self.capacity => _ = self.order.remove(0),
            None => {}
        }
        let locks = self.locked.len() < self.budget && self.to_lock.contains(&r.block);
        let to = if locks { &mut self.locked } else { &mut self.order };
        to.push(r.block);
    }

    fn run(capacity: u32, budget: u32, to_lock: Vec<u64>, references: &[Reference]) -> Self {
        let (capacity, budget) = (capacity as usize, budget as usize);
        let mut plain = Plain { capacity, budget, to_lock, ..Plain::default() };
        references.iter().for_each(|&r| plain.access(r));
        plain
    }

    /// Blocks by what `count` says of their reads, the most first, then the lower number.
    fn ranked(&self, count: fn(&(u64, u64)) -> u64) -> Vec<u64> {
        let mut ranked: Vec<_> = self.reads.iter().map(|(&block, of)| (count(of), block)).collect();
        ranked.retain(|&(count, _)| count > 0);
        ranked.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        ranked.into_iter().map(|(_, block)| block).collect()
    }
}

fn references() -> impl Strategy<Value = Vec<Reference>> {
    let one = (0u64..60, prop::bool::weighted(0.2));
    prop::collection::vec(one.prop_map(|(block, write)| Reference { block, write, time_ns: 0 }), 0..500)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn under_lru_what_a_first_run_names_is_locked_and_the_rest_is_an_lru_cache(
        capacity in 2u32..40,
        percent in 1u32..=90,
        first in references(),
        second in references(),
    ) {
        let arms = [format!("static:{percent}%"), format!("hits:{percent}%")];
        let arms: Vec<&str> = arms.iter().map(String::as_str).collect();
        let options = SweepOptions { jobs: Some(1), ..SweepOptions::default() };
        let got = studied(plans(PolicyKind::Lru, capacity, &arms), &first, &second, &options);
        // Rounded up, but nine tenths of the cache at most, and all of it but a block.
        let most = (capacity * 9 / 10).min(capacity - 1);
        let count = (capacity * percent).div_ceil(100).min(most);
        let profile = Plain::run(capacity, 0, vec![], &first);
        for (got, ranked) in got.iter().zip([profile.ranked(|of| of.0), profile.ranked(|of| of.1)]) {
            let to_lock = ranked[..ranked.len().min(count as usize)].to_vec();
            // A list as short as this takes one block of the cache, and no list takes none.
            let left = capacity - u32::from(!to_lock.is_empty());
            let permille = (count * 1000).div_ceil(left).min(900);
            let budget = (left * permille / 1000).min(left - 1);
            let plain = Plain::run(left, budget, to_lock, &second);
            let wanted = (plain.read_misses, plain.locked_read_hits, plain.locked.len() as u32);
            prop_assert_eq!((got.counts.read_misses, got.locked_read_hits, got.locked_blocks), wanted);
            prop_assert_eq!(got.counts.reads, second.iter().filter(|r| !r.write).count() as u64);
            prop_assert_eq!((got.limit_blocks, got.budget_blocks), (left, budget));
        }
    }
}

/// Reads by Zipf's law, every seventh a write, with a loop in the middle that does not fit.
fn mixed() -> Vec<Reference> {
    let zipf = |seed| Zipf::new(2000, 0.9, seed).take(30_000);
    let blocks = zipf(3).chain((0..30_000).map(|n| 5000 + n % 250)).chain(zipf(4));
    blocks.enumerate().map(|(n, block)| Reference { block, write: n % 7 == 0, time_ns: 0 }).collect()
}

#[test]
fn without_locks_it_is_what_a_sweep_and_a_replay_of_the_same_policy_count() {
    let trace = mixed();
    let reads: Vec<u64> = trace.iter().map(|r| r.block).collect();
    for policy in PolicyKind::ALL {
        let plain = studied(plans(policy, 200, &["none"]), &[], &trace, &SweepOptions::default());
        let cell = Cell::new(policy, CacheSize::Blocks(200), 200);
        let swept = sweep(passed(&trace), vec![cell], &SweepOptions::default(), &mut |_| Go::On).expect("it runs");
        assert_eq!(plain[0].counts, swept.results[0].counts, "{policy}");
        assert_eq!(plain[0].counts.misses(), replay::replay(policy, 200, &reads), "{policy}");
        assert_eq!((plain[0].locked_blocks, plain[0].budget_blocks, plain[0].online), (0, 0, None), "{policy}");
    }
}

#[test]
fn what_locks_take_is_not_there_for_blocks() {
    let trace = mixed();
    let texts = ["none", "buffer:12", "static:30%", "random:30%", "online:30%"];
    let got = studied(plans(PolicyKind::Lru, 1860, &texts), &trace, &trace, &SweepOptions::default());
    for result in &got {
        let taken = result.lock_bytes.div_ceil(4096) as u32;
        assert_eq!(result.limit_blocks, 1860 - taken, "{}", result.plan.arm);
    }
    let bytes: Vec<u64> = got.iter().map(|result| result.lock_bytes).collect();
    assert_eq!(bytes[..2], [0, 0]);
    // Some are next to others, which are one range.
    assert!(bytes[2..4].iter().all(|&bytes| bytes > 0 && bytes < 558 * 64), "{bytes:?}");
    assert!(bytes[4] > 100 << 10, "{bytes:?}");
    // Of larger blocks it takes fewer.
    let plan = LocksPlan { block_bytes: 65_536, ..LocksPlan::new(PolicyKind::Lru, 1860, arm("online:30%")) };
    let large = &studied(vec![plan], &[], &trace, &SweepOptions::default())[0];
    assert_eq!(large.limit_blocks, 1860 - large.lock_bytes.div_ceil(65_536) as u32);
    assert!(large.limit_blocks > got[4].limit_blocks);
}

#[test]
fn memory_is_that_of_the_first_runs_or_of_the_caches_and_rules() {
    let slots = |texts: &[&str], footprint| {
        LockStudy::new(plans(PolicyKind::Lru, 1000, texts)).expect("plans that make sense").slots(footprint)
    };
    assert_eq!(slots(&["none", "buffer:12"], 1 << 20), [1000, 1000]);
    assert_eq!(slots(&["none", "static:10%", "hits:10%"], 50_000), [51_000]);
    let with_rule = slots(&["none", "static:10%", "online:30%"], 10);
    assert_eq!(with_rule[..2], [1000, 1000]);
    assert!(with_rule[2] > 2000, "{with_rule:?}");
}

#[test]
fn what_is_sampled_or_locked_by_chance_depends_on_the_seed() {
    // More slots than the guard simulates, so that it has a sample of the blocks.
    let trace: Vec<Reference> = (0..120_000).map(|n| Reference::read(n % 7000)).collect();
    let with = |seed| {
        let study = LockStudy::new(plans(PolicyKind::Lru, 6000, &["none", "random:10%", "online:90%"]));
        let mut study = study.expect("plans that make sense").with_seed(seed);
        study.profile(passed(&trace), &SweepOptions::default(), &mut |_| Go::On).expect("a first run");
        study.run(passed(&trace), || 0, &SweepOptions::default(), &mut |_| Go::On).expect("it runs").results
    };
    assert_eq!(with(3), with(3));
    let all: Vec<Vec<LocksResult>> = (3..8).map(with).collect();
    assert!(all.iter().all(|of| of[0] == all[0][0]));
    // Other blocks are locked, which are other ranges.
    assert!(all.iter().any(|of| of[1].lock_bytes != all[0][1].lock_bytes));
}

#[test]
fn under_lru_a_buffer_out_of_the_cache_changes_nothing_but_is_hit() {
    let got = studied(plans(PolicyKind::Lru, 200, &["none", "buffer:12"]), &[], &mixed(), &SweepOptions::default());
    assert_eq!(got[0].counts, got[1].counts);
    assert!(got[1].buffer_hits > 0 && got[0].buffer_hits == 0);
}

#[test]
fn threads_and_the_numbers_of_blocks_change_nothing() {
    let (trace, texts) = (mixed(), ["none", "static:20%", "hits:20%", "buffer:12", "static:20%+12"]);
    let with = |jobs, trace: &[Reference]| {
        let all = PolicyKind::ALL.iter().flat_map(|&policy| plans(policy, 150, &texts)).collect();
        studied(all, trace, trace, &SweepOptions { jobs: Some(jobs), ..SweepOptions::default() })
    };
    let one = with(1, &trace);
    assert_eq!(one, with(3, &trace));
    // Far away, blocks are numbered as they come: so that ties are as before, they are here, too.
    let mut numbers = BTreeMap::new();
    let mut number = |block| {
        let next = numbers.len() as u64;
        *numbers.entry(block).or_insert(next)
    };
    let near: Vec<Reference> = trace.iter().map(|r| Reference { block: number(r.block), ..*r }).collect();
    let far: Vec<Reference> = near.iter().map(|r| Reference { block: u64::MAX - r.block, ..*r }).collect();
    for (near, far) in with(1, &near).into_iter().zip(with(1, &far)) {
        // What it samples hangs on the numbers.
        if near.plan.policy != PolicyKind::WTinyLfu {
            assert_eq!(near, far);
        }
    }
}

#[test]
fn the_warm_up_is_not_counted_in_either_run() {
    let trace = mixed();
    let options = SweepOptions { warm_up: 70_000, ..SweepOptions::default() };
    let got = studied(plans(PolicyKind::Lru, 150, &["static:30%", "buffer:12"]), &trace, &trace, &options);
    for result in &got {
        assert_eq!(result.counts.accesses(), trace.len() as u64 - 70_000);
        assert!(result.locked_read_hits <= result.counts.reads - result.counts.read_misses);
        assert!(result.buffer_hits <= result.counts.accesses() - result.counts.misses());
    }
    // What is locked comes back late in the trace: the loop before it has no part in the profile.
    let whole = studied(plans(PolicyKind::Lru, 150, &["static:30%"]), &trace, &trace, &SweepOptions::default());
    assert!(got[0].locked_read_hits > 0 && whole[0].locked_read_hits > got[0].locked_read_hits);
}

#[test]
fn what_cannot_be_is_refused() {
    let of = |blocks, text| LockStudy::new(plans(PolicyKind::Lru, blocks, &[text])).map(|_| ());
    assert!(of(24, "buffer:12").is_ok());
    let said = of(23, "online:30%+12").expect_err("more than half").to_string();
    assert!(
        said.contains("online:30%+12: a victim buffer of 12 blocks is more than half of the cache of 23"),
        "{said}"
    );
    assert!(of(1 << 31, "none").expect_err("too large").to_string().contains("2147483648 blocks"));
    let mut study = LockStudy::new(plans(PolicyKind::Lru, 10, &["none", "static:10%", "hits:5%"])).expect("plans");
    assert_eq!(study.first_runs(), 1);
    let said = study.run(passed(&[]), || 0, &SweepOptions::default(), &mut |_| Go::On).expect_err("no first run");
    assert_eq!(said.to_string(), "static:10%: a first run has to say what is locked");
    // A first run that saw nothing names nothing.
    study.profile(passed(&[]), &SweepOptions::default(), &mut |_| Go::On).expect("an empty run");
    let done = study.run(passed(&mixed()), || 0, &SweepOptions::default(), &mut |_| Go::Stop).expect("it runs");
    assert!(done.pass.stopped && done.results[1].locked_blocks == 0);
    assert_eq!(done.results[0].counts, done.results[1].counts);
}

#[test]
fn the_clock_is_the_callers() {
    fn steps() -> u64 {
        use std::sync::atomic::{AtomicU64, Ordering};
        static STEPS: AtomicU64 = AtomicU64::new(0);
        STEPS.fetch_add(5, Ordering::Relaxed)
    }
    let trace = mixed();
    let mut study = LockStudy::new(plans(PolicyKind::Lru, 100, &["none"])).expect("a plan");
    let options = SweepOptions { jobs: Some(1), ..SweepOptions::default() };
    let done = study.run(passed(&trace), steps, &options, &mut |_| Go::On).expect("it runs");
    let batches = trace.len().div_ceil(crate::sim::batch::BATCH) as u64;
    assert!(done.results[0].took_ns >= 5 * batches, "{}", done.results[0].took_ns);
}
