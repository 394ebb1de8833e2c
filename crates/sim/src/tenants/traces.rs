//! Traces as tenants of one cache: each has its own blocks, and they take turns as their times say.
//!
//! Owns the merge. Never looks at what is asked for. Invariant: the requests of one tenant keep their order.

use super::load::{Load, Phase};
use super::row::LabRow;
use super::run::{Arm, Options, run};
use super::trace::Trace;
use crate::batch::threads;
use crate::error::Error;
use crate::reference::Reference;
use crate::sweep::Go;
use rayon::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// What one tenant asks for.
#[derive(Clone, Debug)]
pub struct TenantTrace {
    /// Its name; no two have the same.
    pub name: String,
    /// Its requests, in order.
    pub references: Vec<Reference>,
}

impl Trace {
    /// The requests of `tenants` to a cache of `total` blocks, in intervals of `interval` requests, after which
    /// controllers decide.
    ///
    /// If every trace has times, they are merged by time, each from its own beginning. If some have none, tenants take
    /// turns in proportion to their lengths.
    ///
    /// # Errors
    /// No tenant, none that asks for anything, or two of one name.
    pub fn of_tenants(tenants: &[TenantTrace], total: u32, interval: usize) -> Result<Self, Error> {
        let requests = merged(tenants);
        if requests.is_empty() {
            return Err(Error::Options("the tenants' traces hold no access".into()));
        }
        for (i, tenant) in tenants.iter().enumerate() {
            if tenants[..i].iter().any(|t| t.name == tenant.name) {
                return Err(Error::Options(format!("two tenants are called {}; rename a file", tenant.name)));
            }
        }
        let intervals: Vec<(usize, Vec<(usize, u64)>)> =
            requests.chunks(interval.max(1)).map(|some| (0, some.to_vec())).collect();
        let phase = Phase { name: "all", intervals: intervals.len() as u32, activities: vec![] };
        let names = tenants.iter().map(|t| t.name.clone().into()).collect();
        let load = Load { name: "traces".into(), total, tenants: names, phases: vec![phase], bursts: false };
        Ok(Self::of(load, intervals))
    }
}

/// Runs every arm, beside each other; `done` is asked after each whether to go on. `None` for those that were not run.
///
/// # Errors
/// Threads that cannot be had.
pub fn run_all(
    trace: &Trace,
    arms: &[(Arm, Options)],
    jobs: Option<usize>,
    done: &(dyn Fn() -> Go + Sync),
) -> Result<Vec<Option<LabRow>>, Error> {
    let stopped = AtomicBool::new(false);
    let one = |(arm, options): &(Arm, Options)| {
        if stopped.load(Ordering::Relaxed) {
            return None;
        }
        let row = run(trace, arm, options);
        if done() == Go::Stop {
            stopped.store(true, Ordering::Relaxed);
        }
        Some(row)
    };
    Ok(match threads(jobs)? {
        Some(pool) => pool.install(|| arms.par_iter().map(one).collect()),
        None => arms.iter().map(one).collect(),
    })
}

/// Whose turn it is, and for which block.
fn merged(tenants: &[TenantTrace]) -> Vec<(usize, u64)> {
    let timed = |t: &TenantTrace| t.references.last().is_some_and(|r| r.time_ns > t.references[0].time_ns);
    let by_time = tenants.iter().all(|t| t.references.len() < 2 || timed(t));
    let mut due: Vec<(u64, usize, u64)> = vec![];
    for (i, tenant) in tenants.iter().enumerate() {
        let n = tenant.references.len() as u128;
        let first = tenant.references.first().map_or(0, |r| r.time_ns);
        let mut last = 0;
        for (k, r) in tenant.references.iter().enumerate() {
            let at = if by_time {
                // A trace whose times go back keeps its order.
                last = r.time_ns.saturating_sub(first).max(last);
                last
            } else {
                // The k-th of n is due at (k + 1/2) / n.
                ((((2 * k as u128) + 1) << 62) / (2 * n).max(1)) as u64
            };
            due.push((at, i, r.block));
        }
    }
    // Stable: what is due at the same time stays in the order of tenants, and of each tenant's own requests.
    due.sort_by_key(|d| d.0);
    due.into_iter().map(|(_, tenant, block)| (tenant, block)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use undercroft_engine::control::Kind;
    use undercroft_trace::synth::Zipf;

    fn tenant(name: &str, blocks: impl Iterator<Item = u64>, step_ns: u64) -> TenantTrace {
        let at = |(i, block): (usize, u64)| Reference { time_ns: 1000 + i as u64 * step_ns, ..Reference::read(block) };
        TenantTrace { name: name.into(), references: blocks.enumerate().map(at).collect() }
    }

    #[test]
    fn tenants_take_turns_by_time_or_by_length() {
        let turns = |a_ns, b_ns| -> Vec<usize> {
            let both = [tenant("a", 0..4, a_ns), tenant("b", 10..12, b_ns)];
            merged(&both).into_iter().map(|(t, _)| t).collect()
        };
        assert_eq!(turns(10, 100), [0, 1, 0, 0, 0, 1], "by time");
        assert_eq!(turns(0, 100), [0, 1, 0, 0, 1, 0], "by length: 1/8 3/8 5/8 7/8 and 1/4 3/4");
    }

    #[test]
    fn a_controller_gives_to_whom_blocks_save_most() {
        // One that no cache helps, and one that a larger share helps.
        let once = tenant("once", 1_000_000..1_100_000, 10);
        let popular = tenant("popular", Zipf::new(4000, 0.8, 3).take(100_000), 10);
        let trace = Trace::of_tenants(&[once, popular], 2000, 5000).expect("it goes together");
        assert_eq!(trace.intervals.len(), 40);
        let arms = [Arm::Strict, Arm::Governed(Kind::Utility)].map(|arm| (arm, Options::default()));
        let rows = run_all(&trace, &arms, Some(2), &|| Go::On).expect("it runs");
        let alone = run_all(&trace, &arms, Some(1), &|| Go::Stop).expect("it runs");
        assert_eq!((&alone[0], &alone[1]), (&rows[0], &None), "it stops when told, and threads change nothing");
        let (equal, utility) = (rows[0].clone().expect("run"), rows[1].clone().expect("run"));
        assert_eq!((equal.requests, utility.requests), (200_000, 200_000));
        assert_eq!(equal.tenants[0].misses, 100_000);
        assert!(utility.misses < equal.misses * 95 / 100, "{} of {}", utility.misses, equal.misses);
        let last = utility.targets.last().expect("intervals");
        assert!(last[1] > 1600 && last.iter().sum::<u64>() <= 2000, "{last:?}");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refused = |tenants: &[TenantTrace]| Trace::of_tenants(tenants, 10, 10).expect_err("refused").to_string();
        assert!(refused(&[]).contains("no access"));
        assert!(refused(&[tenant("a", 0..0, 1)]).contains("no access"));
        assert!(refused(&[tenant("a", 0..9, 1), tenant("a", 0..9, 1)]).contains("two tenants are called a"));
    }
}
