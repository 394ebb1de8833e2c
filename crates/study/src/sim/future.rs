//! OPT, and replacement by probability, in a sweep: the trace is kept in memory as it is read, and then run through
//! caches that know all of it, or how long it is.
//!
//! Owns what is kept, and the second pass. Never decides: the engine's `opt` and `probability` do. Invariant: caches
//! see the accesses that were kept, in order.

use crate::sim::batch::{BATCH, Take, threads};
use crate::sim::cell::{CacheCounts, CellResult};
use crate::sim::error::SimError;
use crate::sim::reference::Reference;
use crate::sim::rule::Rule;
use crate::sim::run::{Go, SweepOptions};
use rayon::prelude::*;
use undercroft_engine::opt::{ACCESSES_MAX, Future, Opt};
use undercroft_engine::probability::WholeCache;
use undercroft_units::human_size;

/// Bytes of memory that an access of a trace may take until the second pass is done: kept, and its next one looked
/// for.
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

/// The same of each cache that counts accesses by block, if no block comes twice.
const BYTES_PER_COUNT: u64 = 96;

/// The accesses that may be kept for these caches.
pub(crate) fn accesses_max(options: &SweepOptions, knowing: &[&mut CellResult]) -> u64 {
    let counting = knowing.iter().filter(|r| matches!(r.cell.rule, Rule::Probability(_))).count() as u64;
    let each = BYTES_PER_ACCESS + BYTES_PER_COUNT * counting;
    let fit = options.memory_bytes.map_or(u64::MAX, |bytes| bytes / each);
    fit.min(ACCESSES_MAX as u64)
}

/// What to say of a trace that is longer than so many.
pub(crate) fn too_long(options: &SweepOptions, most: u64) -> SimError {
    let there = options.memory_bytes.map_or(String::new(), |bytes| format!(" in {} of memory", human_size(bytes)));
    SimError::Options(format!(
        "opt and probability keep the whole trace, and have room for {most} accesses{there}; give --limit, or a part \
         of the trace (undercroft trace sample)"
    ))
}

/// A cache that knows the trace.
enum Knows<'a> {
    Future(Opt<'a>),
    Length { cache: Box<WholeCache>, blocks: std::slice::Iter<'a, u64> },
}

impl Iterator for Knows<'_> {
    /// Whether the next access hits.
    type Item = bool;

    fn next(&mut self) -> Option<bool> {
        match self {
            Knows::Future(opt) => opt.next(),
            Knows::Length { cache, blocks } => blocks.next().map(|block| cache.access(*block)),
        }
    }
}

struct Knowing<'a> {
    cache: Knows<'a>,
    result: &'a mut CellResult,
}

impl Past {
    /// Fills in the results of caches that know the trace. `watch` is told the accesses done, from 0 again, and may end
    /// it: false then.
    pub(crate) fn run(
        self,
        results: &mut [&mut CellResult],
        options: &SweepOptions,
        watch: &mut dyn FnMut(u64) -> Go,
    ) -> Result<bool, SimError> {
        let Past { mut blocks, writes, cold } = self;
        let is_opt = |result: &&mut CellResult| matches!(result.cell.rule, Rule::Opt(_));
        let future = if results.iter().any(is_opt) { Future::of(&blocks) } else { Future::of(&[]) };
        if results.iter().all(is_opt) {
            blocks = Vec::new();
        }
        let knows = |result: &CellResult| match result.cell.rule {
            Rule::Opt(admission) => Some(Knows::Future(Opt::new(&future, result.cell.blocks, admission))),
            Rule::Probability(rule) => {
                let cache = Box::new(WholeCache::new(rule, result.cell.blocks, writes.len() as u64));
                Some(Knows::Length { cache, blocks: blocks.iter() })
            }
            Rule::Policy(_) => None,
        };
        let caches = results.iter_mut().filter_map(|result| Some(Knowing { cache: knows(result)?, result }));
        let mut caches: Vec<Knowing<'_>> = caches.collect();
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
        let rules = Rule::OPT.into_iter().chain(Rule::PROBABILITY).chain([PolicyKind::Lru.into()]);
        rules.flat_map(|rule| [0u32, 1, 100, 5000].map(|n| Cell::new(rule, CacheSize::Blocks(n.into()), n))).collect()
    }

    #[test]
    fn what_knows_the_trace_stands_beside_policies_and_counts_as_the_engine_does() {
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
                    Rule::Probability(rule) => {
                        let mut cache = WholeCache::new(rule, r.cell.blocks, blocks.len() as u64);
                        blocks.iter().filter(|block| !cache.access(**block)).count() as u64
                    }
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
        let counting = cells().iter().filter(|c| matches!(c.rule, Rule::Probability(_))).count() as u64;
        let fits = 3 * BATCH as u64 * (BYTES_PER_ACCESS + BYTES_PER_COUNT * counting);
        for (memory_bytes, refused) in [(fits, false), (fits - 1, true)] {
            let options = SweepOptions { memory_bytes: Some(memory_bytes), ..SweepOptions::default() };
            let run = |cells| sweep(trace.iter().copied().map(Ok), cells, &options, &mut |_| Go::On);
            assert_eq!(run(cells()).err().map(|e| e.to_string().contains("give --limit")), refused.then_some(true));
            assert!(run(vec![cells().pop().expect("LRU")]).is_ok(), "without OPT nothing is kept");
        }
    }
}
