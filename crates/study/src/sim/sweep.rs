//! One pass of a trace through many caches: every policy at every size.
//!
//! Owns cells and their counts, and the threads they run on. Never decides: that is for the engine's `Replay`.
//! Invariant: a cell sees every access of the trace, in order, whatever runs beside it; so counts do not depend on how
//! many threads there are.

use crate::sim::batch::{Ended, Take, drive};
use crate::sim::cell::{CacheCounts, Cell, CellResult};
use crate::sim::error::SimError;
use crate::sim::future::{Past, accesses_max, too_long};
use crate::sim::grid::check_slots;
use crate::sim::reference::Reference;
use crate::sim::rule::Rule;
use crate::sim::run::{Go, SweepOptions};
use undercroft_engine::{PolicyKind, Replay};

/// The results of a sweep.
#[derive(Debug)]
pub struct Sweep {
    /// One for each cell, in their order.
    pub results: Vec<CellResult>,
    /// Accesses read, warm-up included.
    pub accesses: u64,
    /// Whether it was ended before the trace was.
    pub stopped: bool,
    /// Why the trace could not be read to its end; what comes before is in the results.
    pub broken: Option<SimError>,
}

struct Running<'a> {
    cache: Replay,
    result: &'a mut CellResult,
    /// Blocks of accesses of one kind that follow each other.
    run: Vec<u64>,
}

impl Running<'_> {
    fn run(&mut self, batch: &[Reference]) {
        let Self { cache, result, run } = self;
        for same in batch.chunk_by(|a, b| a.write == b.write) {
            run.clear();
            run.extend(same.iter().map(|r| r.block));
            result.counts.count_run(same[0].write, run.len() as u64, cache.feed(run));
        }
    }
}

/// One consumer of the pass over the trace.
enum Taker<'a> {
    Cache(Box<Running<'a>>),
    /// For what has to know the trace, which runs afterwards.
    Past(Past),
}

impl Take for Taker<'_> {
    fn take(&mut self, batch: &[Reference], cold: usize) {
        match self {
            Taker::Past(past) => past.take(batch, cold),
            Taker::Cache(cache) => {
                if cold > 0 {
                    let before = cache.result.counts;
                    cache.run(&batch[..cold]);
                    cache.result.counts = before;
                }
                cache.run(&batch[cold..]);
            }
        }
    }
}

/// Runs a trace through every cell. `watch` is told how many accesses have been read, after each batch, and may end it.
///
/// The caller's thread reads the next batch while caches take the one before, and caches run beside each other. With
/// OPT or replacement by probability among the cells, the trace is kept, and a second pass over it follows, which
/// `watch` is told from 0 again.
///
/// # Errors
/// A cell that is too large, a trace that is too long to be kept for these, or threads that cannot be had. A trace
/// that breaks off is told in [`Sweep::broken`].
pub fn sweep(
    trace: impl Iterator<Item = Result<Reference, undercroft_trace::TraceError>>,
    cells: Vec<Cell>,
    options: &SweepOptions,
    watch: &mut dyn FnMut(u64) -> Go,
) -> Result<Sweep, SimError> {
    for cell in &cells {
        // OPT, and replacement by probability, need no more slots than any policy of one list.
        check_slots(cell.rule.policy().unwrap_or(PolicyKind::Lru.into()), cell.blocks.into())?;
    }
    let mut results: Vec<CellResult> =
        cells.into_iter().map(|cell| CellResult { cell, counts: CacheCounts::default() }).collect();
    let (mut takers, mut knowing) = (vec![], vec![]);
    for result in &mut results {
        match result.cell.rule {
            Rule::Opt(_) | Rule::Probability(_) => knowing.push(result),
            Rule::Policy(kind) => {
                let cache = Replay::new(kind, result.cell.blocks);
                takers.push(Taker::Cache(Box::new(Running { cache, result, run: Vec::new() })));
            }
        }
    }
    let keep = !knowing.is_empty();
    if keep {
        takers.push(Taker::Past(Past::default()));
    }
    let most = if keep { accesses_max(options, &knowing) } else { u64::MAX };
    let Ended { accesses, mut stopped, broken } = drive(trace, &mut takers, options, &mut |accesses| {
        if accesses > most { Go::Stop } else { watch(accesses) }
    })?;
    if accesses > most {
        return Err(too_long(options, most));
    }
    if let Some(Taker::Past(past)) = takers.pop() {
        // Of a trace that was left early, all that has been read.
        let mut look = |accesses| if stopped { Go::On } else { watch(accesses) };
        let whole = past.run(&mut knowing, options, &mut look)?;
        stopped |= !whole;
    }
    Ok(Sweep { results, accesses, stopped, broken })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::batch::BATCH;
    use proptest::prelude::*;
    use undercroft_engine::{Access, Index, Outcome};
    use undercroft_engine::{AnyPolicyKind, PolicyKind};
    use undercroft_trace::synth::Zipf;
    use undercroft_units::CacheSize;

    fn cells() -> Vec<Cell> {
        let sizes = [0u32, 1, 100, 5000];
        let all =
            AnyPolicyKind::ALL.into_iter().flat_map(|p| sizes.map(|n| Cell::new(p, CacheSize::Blocks(n.into()), n)));
        all.collect()
    }

    fn trace(n: usize) -> Vec<Reference> {
        let blocks = Zipf::new(20_000, 0.9, 3).take(n).enumerate();
        blocks.map(|(i, block)| Reference { block, write: i % 5 == 0, ..Reference::default() }).collect()
    }

    fn swept(trace: &[Reference], options: &SweepOptions) -> Sweep {
        sweep(trace.iter().copied().map(Ok), cells(), options, &mut |_| Go::On).expect("it runs")
    }

    #[test]
    fn threads_do_not_change_counts() {
        let trace = trace(3 * BATCH + 17);
        let one = swept(&trace, &SweepOptions { jobs: Some(1), ..SweepOptions::default() });
        for jobs in [Some(2), Some(5), None] {
            let many = swept(&trace, &SweepOptions { jobs, ..SweepOptions::default() });
            assert_eq!(many.results, one.results);
        }
        assert_eq!(one.accesses, trace.len() as u64);
        for r in &one.results {
            assert_eq!(r.counts.accesses(), trace.len() as u64);
            assert_eq!(r.counts.writes, trace.len().div_ceil(5) as u64);
            let mut index = Index::new(r.cell.rule.policy().expect("a policy"), r.cell.blocks);
            let missed = |t: &&Reference| !matches!(index.access(t.block, Access::Read, |_| true), Outcome::Hit(_));
            assert_eq!(r.counts.misses(), trace.iter().filter(missed).count() as u64, "{:?}", r.cell);
        }
    }

    #[test]
    fn it_stops_when_told_and_counts_what_it_did() {
        let trace = trace(4 * BATCH);
        let mut said = vec![];
        let done = sweep(trace.iter().copied().map(Ok), cells(), &SweepOptions::default(), &mut |n| {
            said.push(n);
            if said.len() == 2 { Go::Stop } else { Go::On }
        });
        let done = done.expect("it runs");
        assert!(done.stopped && done.broken.is_none());
        assert_eq!((done.accesses, said), (2 * BATCH as u64, vec![BATCH as u64, 2 * BATCH as u64]));
        let whole = swept(&trace[..2 * BATCH], &SweepOptions::default());
        assert_eq!(done.results, whole.results);
    }

    #[test]
    fn what_comes_before_damage_is_counted() {
        let whole = trace(BATCH + 100);
        let lines: String = whole.iter().map(|r| format!("{} 1 0 0\n", r.block)).collect();
        let damaged = format!("{lines}not a line\n");
        let reader = undercroft_trace::TraceReader::new(damaged.as_bytes(), "x.lis", undercroft_trace::Format::ArcLis);
        let trace = reader.expect("it opens").map(|a| a.map(Reference::from));
        let done = sweep(trace, cells(), &SweepOptions::default(), &mut |_| Go::On).expect("it runs");
        assert!(done.broken.expect("damage").to_string().contains("x.lis"));
        assert_eq!(done.accesses, whole.len() as u64);
        let sound = swept(&whole, &SweepOptions::default());
        let misses = |s: &[CellResult]| s.iter().map(|r| r.counts.misses()).collect::<Vec<_>>();
        assert_eq!(misses(&done.results), misses(&sound.results));
    }

    #[test]
    fn too_large_a_cell_is_refused() {
        let cell = Cell::new(PolicyKind::Lru, CacheSize::Blocks(1 << 31), 1 << 31);
        let none = std::iter::empty::<Result<Reference, undercroft_trace::TraceError>>();
        let refused = sweep(none, vec![cell], &SweepOptions::default(), &mut |_| Go::On);
        assert!(refused.expect_err("too large").to_string().contains("2147483648 blocks"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]
        #[test]
        fn warm_up_and_limit_cut_where_they_say(warm_up in 0u64..3000, limit in 0u64..3000) {
            let trace = trace(2000);
            let options = SweepOptions { warm_up, limit: Some(limit), jobs: Some(1), ..SweepOptions::default() };
            let done = swept(&trace, &options);
            let end = limit.min(2000) as usize;
            prop_assert_eq!(done.accesses, end as u64);
            let cold = (warm_up as usize).min(end);
            for r in &done.results {
                let mut index = Index::new(r.cell.rule.policy().expect("a policy"), r.cell.blocks);
                let mut missed =
                    |t: &Reference| !matches!(index.access(t.block, Access::Read, |_| true), Outcome::Hit(_));
                trace[..cold].iter().for_each(|t| { missed(t); });
                let misses = trace[cold..end].iter().filter(|t| missed(t)).count() as u64;
                prop_assert_eq!((r.counts.accesses(), r.counts.misses()), ((end - cold) as u64, misses));
            }
        }
    }
}
