//! OPT in a sweep: the trace is kept in memory as it is read, and then run through caches that know all of it.
//!
//! Owns what is kept, and the second pass. Never decides: that is the engine's `opt`. Invariant: caches see the
//! accesses that were kept, in order.

use crate::sim::batch::{BATCH, Take, threads};
use crate::sim::cell::{CacheCounts, CellResult};
use crate::sim::error::SimError;
use crate::sim::reference::Reference;
use crate::sim::run::{Go, SweepOptions};
use rayon::prelude::*;
use undercroft_engine::opt::{ACCESSES_MAX, Future, Opt, OptAdmission};
use undercroft_units::human_size;

/// Bytes of memory that an access of a trace may take until OPT is done: kept, and its next one looked for.
const BYTES_PER_ACCESS: u64 = 48;

/// A trace as far as it has been read.
#[derive(Default)]
pub(crate) struct Past {
    blocks: Vec<u64>,
    writes: Vec<bool>,
    /// Accesses at the beginning that are not counted.
    cold: usize,
}

impl Take for Past {
    fn take(&mut self, batch: &[Reference], cold: usize) {
        self.blocks.extend(batch.iter().map(|r| r.block));
        self.writes.extend(batch.iter().map(|r| r.write));
        self.cold += cold;
    }
}

/// The accesses that may be kept.
pub(crate) fn accesses_max(options: &SweepOptions) -> u64 {
    let fit = options.memory_bytes.map_or(u64::MAX, |bytes| bytes / BYTES_PER_ACCESS);
    fit.min(ACCESSES_MAX as u64)
}

/// What to say of a trace that is longer.
pub(crate) fn too_long(options: &SweepOptions) -> SimError {
    let most = accesses_max(options);
    let there = options.memory_bytes.map_or(String::new(), |bytes| format!(" in {} of memory", human_size(bytes)));
    SimError::Options(format!(
        "opt keeps the whole trace, and has room for {most} accesses{there}; give --limit, or a part of the trace \
         (undercroft trace sample)"
    ))
}

struct Knowing<'a> {
    cache: Opt<'a>,
    result: &'a mut CellResult,
}

impl Past {
    /// Fills in the results of OPT. `watch` is told the accesses done, from 0 again, and may end it: false then.
    pub(crate) fn run(
        self,
        results: &mut [(OptAdmission, &mut CellResult)],
        options: &SweepOptions,
        watch: &mut dyn FnMut(u64) -> Go,
    ) -> Result<bool, SimError> {
        let Past { blocks, writes, cold } = self;
        let future = Future::of(&blocks);
        drop(blocks);
        let mut caches: Vec<Knowing<'_>> = results
            .iter_mut()
            .map(|(admission, result)| Knowing { cache: Opt::new(&future, result.cell.blocks, *admission), result })
            .collect();
        let pool = threads(options.jobs)?;
        let (mut done, mut cold) = (0, cold);
        for batch in writes.chunks(BATCH) {
            let not_counted = cold.min(batch.len());
            let mut go = || caches.par_iter_mut().for_each(|c| c.run(batch, not_counted));
            match &pool {
                Some(pool) => pool.install(go),
                None => go(),
            }
            cold -= not_counted;
            done += batch.len() as u64;
            if watch(done) == Go::Stop {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Knowing<'_> {
    fn run(&mut self, writes: &[bool], cold: usize) {
        let mut counts = CacheCounts::default();
        for (i, (&write, hit)) in writes.iter().zip(&mut self.cache).enumerate() {
            if i >= cold {
                counts.count_run(write, 1, u64::from(!hit));
            }
        }
        self.result.counts.add(&counts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::cell::Cell;
    use crate::sim::rule::Rule;
    use crate::sim::sweep::sweep;
    use undercroft_engine::opt::misses;
    use undercroft_engine::{PolicyKind, Replay};
    use undercroft_trace::synth::Zipf;
    use undercroft_units::CacheSize;

    fn trace(n: usize) -> Vec<Reference> {
        let blocks = Zipf::new(2_000, 0.9, 3).take(n).enumerate();
        blocks.map(|(i, block)| Reference { block, write: i % 5 == 0, ..Reference::default() }).collect()
    }

    fn cells() -> Vec<Cell> {
        let rules = Rule::OPT.into_iter().chain([PolicyKind::Lru.into()]);
        rules.flat_map(|rule| [0u32, 1, 100, 5000].map(|n| Cell::new(rule, CacheSize::Blocks(n.into()), n))).collect()
    }

    #[test]
    fn opt_stands_beside_policies_and_counts_as_the_engine_does() {
        let trace = trace(3 * BATCH + 17);
        let blocks: Vec<u64> = trace.iter().map(|r| r.block).collect();
        for jobs in [Some(1), Some(2), None] {
            let options = SweepOptions { jobs, ..SweepOptions::default() };
            let done = sweep(trace.iter().copied().map(Ok), cells(), &options, &mut |_| Go::On).expect("it runs");
            assert_eq!(done.accesses, trace.len() as u64);
            for r in &done.results {
                let expected = match r.cell.rule {
                    Rule::Opt(admission) => misses(&blocks, r.cell.blocks, admission),
                    Rule::Policy(kind) => Replay::new(kind, r.cell.blocks).feed(&blocks),
                };
                assert_eq!(r.counts.misses(), expected, "{:?}", r.cell);
                assert_eq!(r.counts.writes, trace.len().div_ceil(5) as u64);
                assert_eq!(r.counts.accesses(), trace.len() as u64);
            }
        }
    }

    #[test]
    fn a_warm_up_is_not_counted() {
        let trace = trace(2 * BATCH);
        let blocks: Vec<u64> = trace.iter().map(|r| r.block).collect();
        for warm_up in [1, BATCH - 1, BATCH + 5, 3 * BATCH] {
            let options = SweepOptions { warm_up: warm_up as u64, ..SweepOptions::default() };
            let done = sweep(trace.iter().copied().map(Ok), cells(), &options, &mut |_| Go::On).expect("it runs");
            for r in done.results {
                let Rule::Opt(admission) = r.cell.rule else { continue };
                let future = Future::of(&blocks);
                let missed = Opt::new(&future, r.cell.blocks, admission).skip(warm_up).filter(|hit| !hit).count();
                assert_eq!(r.counts.misses(), missed as u64, "{:?} after {warm_up}", r.cell);
            }
        }
    }

    #[test]
    fn it_is_ended_in_either_pass_and_says_so() {
        let trace = trace(3 * BATCH);
        for (looks, opt_accesses) in [(1, BATCH), (2, 2 * BATCH), (4, BATCH), (5, 2 * BATCH)] {
            let mut left = looks;
            let done = sweep(trace.iter().copied().map(Ok), cells(), &SweepOptions::default(), &mut |_| {
                left -= 1;
                if left <= 0 { Go::Stop } else { Go::On }
            });
            let done = done.expect("it runs");
            assert!(done.stopped);
            let counted = |rule: Rule| done.results.iter().find(|r| r.cell.rule == rule).map(|r| r.counts.accesses());
            assert_eq!(counted(Rule::OPT[0]), Some(opt_accesses as u64), "ended at look {looks}");
            assert_eq!(counted(PolicyKind::Lru.into()), Some(looks.min(3) as u64 * BATCH as u64));
        }
    }

    #[test]
    fn a_trace_that_memory_cannot_hold_is_refused() {
        let trace = trace(3 * BATCH);
        let fits = 3 * BATCH as u64 * BYTES_PER_ACCESS;
        for (memory_bytes, refused) in [(fits, false), (fits - 1, true)] {
            let options = SweepOptions { memory_bytes: Some(memory_bytes), ..SweepOptions::default() };
            let run = |cells| sweep(trace.iter().copied().map(Ok), cells, &options, &mut |_| Go::On);
            assert_eq!(run(cells()).err().map(|e| e.to_string().contains("give --limit")), refused.then_some(true));
            assert!(run(vec![cells().pop().expect("LRU")]).is_ok(), "without OPT nothing is kept");
        }
    }
}
