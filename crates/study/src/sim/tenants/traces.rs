//! Traces as tenants of one cache: each has its own blocks, and requests are merged by their times.
//!
//! Owns the merge. Never looks at what is asked for. Invariant: the requests of one tenant keep their order.

use super::above::{Above, AboveCounts, Ask, Asked};
use super::load::{Phase, TenantLoad};
use super::row::LabRow;
use super::run::{Arm, ArmOptions, run};
use super::trace::Trace;
use crate::sim::batch::threads;
use crate::sim::error::SimError;
use crate::sim::grid::check_slots;
use crate::sim::reference::Reference;
use crate::sim::run::Go;
use rayon::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the times of several tenants' requests say of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocks {
    /// Nothing: each counts from its own beginning. If every trace has times, they are merged by them, as if all began
    /// together; if some have none, tenants take turns in proportion to their lengths.
    Own,
    /// All count from one moment, as in one recording of them: what is earlier goes first, at the same time as tenants
    /// are listed.
    Common,
}

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
    /// # Errors
    /// No tenant, none that asks for anything, or two of one name.
    pub fn of_tenants(tenants: &[TenantTrace], clocks: Clocks, total: u32, interval: usize) -> Result<Self, SimError> {
        let all: Vec<_> = tenants.iter().map(|t| t.references.iter().map(|&r| (r, Ask::Read)).collect()).collect();
        let names: Vec<&str> = tenants.iter().map(|t| t.name.as_str()).collect();
        Self::of_asked(&names, merged(&all, clocks), total, interval, false)
    }

    /// The same of tenants that each have a cache of their own, in their order, above the one that is divided; with
    /// what those did. Either all of them hand down what they evict, or none.
    ///
    /// # Errors
    /// As [`Trace::of_tenants`]; or not as many caches as tenants, or caches that differ in what they hand down.
    pub fn of_tenants_below(
        tenants: &[TenantTrace],
        above: &[Above],
        clocks: Clocks,
        total: u32,
        interval: usize,
    ) -> Result<(Self, Vec<AboveCounts>), SimError> {
        let hands_down = above.first().is_some_and(|a| a.hands_down);
        if above.len() != tenants.len() || above.iter().any(|a| a.hands_down != hands_down) {
            return Err(SimError::Options("every tenant has one cache above, and all hand down or none does".into()));
        }
        let (all, counts): (Vec<_>, Vec<_>) = tenants.iter().zip(above).map(|(t, a)| a.filter(t)).unzip();
        let names: Vec<&str> = tenants.iter().map(|t| t.name.as_str()).collect();
        Ok((Self::of_asked(&names, merged(&all, clocks), total, interval, hands_down)?, counts))
    }

    fn of_asked(
        tenants: &[&str],
        requests: Vec<Asked>,
        total: u32,
        interval: usize,
        of_victims: bool,
    ) -> Result<Self, SimError> {
        if requests.is_empty() {
            return Err(SimError::Options("the tenants' traces hold no access".into()));
        }
        for (i, tenant) in tenants.iter().enumerate() {
            if tenants[..i].contains(tenant) {
                return Err(SimError::Options(format!("two tenants are called {tenant}; rename a file")));
            }
        }
        let intervals: Vec<(usize, Vec<Asked>)> =
            requests.chunks(interval.max(1)).map(|some| (0, some.to_vec())).collect();
        let phase = Phase { name: "all", intervals: intervals.len() as u32, activities: vec![] };
        let names = tenants.iter().map(|&t| t.to_string().into()).collect();
        let load = TenantLoad { name: "traces".into(), total, tenants: names, phases: vec![phase], bursts: false };
        Ok(Self::of(load, intervals, of_victims))
    }
}

/// Runs every arm, beside each other; `done` is asked after each whether to go on. `None` for those that were not run.
///
/// # Errors
/// Threads that cannot be had, or a cache that is larger than its policy can have.
pub fn run_all(
    trace: &Trace,
    arms: &[(Arm, ArmOptions)],
    jobs: Option<usize>,
    done: &(dyn Fn() -> Go + Sync),
) -> Result<Vec<Option<LabRow>>, SimError> {
    for (_, options) in arms {
        check_slots(options.policy, trace.load.total.into())?;
    }
    let stopped = AtomicBool::new(false);
    let one = |(arm, options): &(Arm, ArmOptions)| {
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

/// The tenant, the block, and what is asked of it.
fn merged(tenants: &[Vec<(Reference, Ask)>], clocks: Clocks) -> Vec<Asked> {
    let timed = |t: &Vec<(Reference, Ask)>| t.last().is_some_and(|(r, _)| r.time_ns > t[0].0.time_ns);
    let by_time = clocks == Clocks::Common || tenants.iter().all(|t| t.len() < 2 || timed(t));
    let mut due: Vec<(u64, usize, u64, Ask)> = vec![];
    for (i, tenant) in tenants.iter().enumerate() {
        let n = tenant.len() as u128;
        let first = match clocks {
            Clocks::Own => tenant.first().map_or(0, |(r, _)| r.time_ns),
            Clocks::Common => 0,
        };
        let mut last = 0;
        for (k, &(r, ask)) in tenant.iter().enumerate() {
            let at = if by_time {
                // A trace whose times go back keeps its order.
                last = r.time_ns.saturating_sub(first).max(last);
                last
            } else {
                // The k-th of n is due at (k + 1/2) / n.
                ((((2 * k as u128) + 1) << 62) / (2 * n).max(1)) as u64
            };
            due.push((at, i, r.block, ask));
        }
    }
    // Stable: what is due at the same time stays in the order of tenants, and of each tenant's own requests.
    due.sort_by_key(|d| d.0);
    due.into_iter().map(|(_, tenant, block, ask)| (tenant, block, ask)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use undercroft_engine::PolicyKind;
    use undercroft_engine::control::ControllerKind;
    use undercroft_trace::synth::Zipf;

    fn tenant(name: &str, blocks: impl Iterator<Item = u64>, step_ns: u64) -> TenantTrace {
        let at = |(i, block): (usize, u64)| Reference { time_ns: 1000 + i as u64 * step_ns, ..Reference::read(block) };
        TenantTrace { name: name.into(), references: blocks.enumerate().map(at).collect() }
    }

    #[test]
    fn tenants_take_turns_by_time_or_by_length() {
        let turns = |a_ns, b_ns| -> Vec<usize> {
            let both = [tenant("a", 0..4, a_ns), tenant("b", 10..12, b_ns)];
            let asked = both.map(|t| t.references.into_iter().map(|r| (r, Ask::Read)).collect::<Vec<_>>());
            merged(&asked, Clocks::Own).into_iter().map(|(t, ..)| t).collect()
        };
        assert_eq!(turns(10, 100), [0, 1, 0, 0, 0, 1], "by time");
        assert_eq!(turns(0, 100), [0, 1, 0, 0, 1, 0], "by length: 1/8 3/8 5/8 7/8 and 1/4 3/4");
    }

    #[test]
    fn tenants_of_one_recording_keep_its_order() {
        use undercroft_engine::{Access, Index, Outcome};
        // Whose turn it is has no rule, the second begins late, and each is sometimes silent for long.
        let blocks = Zipf::new(3000, 0.8, 5).take(60_000);
        let whose = |i: usize, block: u64| usize::from(i > 20_000 && (block * 2_654_435_761) >> 7 & 3 == 1);
        let recording: Vec<(usize, u64)> = blocks.enumerate().map(|(i, block)| (whose(i, block), block)).collect();
        let of = |tenant: usize| {
            let rows = recording.iter().enumerate().filter(|(_, r)| r.0 == tenant);
            let references = rows.map(|(i, r)| Reference { time_ns: i as u64, ..Reference::read(r.1) });
            TenantTrace { name: tenant.to_string(), references: references.collect() }
        };
        let both = [of(0), of(1)];
        let trace = Trace::of_tenants(&both, Clocks::Common, 500, 5000).expect("it goes together");
        let order = trace.intervals.iter().flat_map(|i| &i.requests).map(|r| (r.tenant, r.block));
        assert!(order.eq(recording.iter().copied()));
        // So a cache that nobody divides misses what one of the recording does.
        let mut index = Index::new(PolicyKind::Lru, 500);
        let missed = |&&(t, block): &&(usize, u64)| {
            !matches!(index.access((t as u64) << 48 | block, Access::Read, |_| true), Outcome::Hit(_))
        };
        let misses = recording.iter().filter(missed).count() as u64;
        assert_eq!(run(&trace, &Arm::Shared, &ArmOptions::default()).misses, misses);
        let began_together = Trace::of_tenants(&both, Clocks::Own, 500, 5000).expect("it goes together");
        assert_ne!(run(&began_together, &Arm::Shared, &ArmOptions::default()).misses, misses, "no other order does");
    }

    #[test]
    fn a_controller_gives_to_whom_blocks_save_most() {
        // One that no cache helps, and one that a larger share helps.
        let once = tenant("once", 1_000_000..1_100_000, 10);
        let popular = tenant("popular", Zipf::new(4000, 0.8, 3).take(100_000), 10);
        let trace = Trace::of_tenants(&[once, popular], Clocks::Own, 2000, 5000).expect("it goes together");
        assert_eq!(trace.intervals.len(), 40);
        let arms = [Arm::Strict, Arm::Governed(ControllerKind::Utility)].map(|arm| (arm, ArmOptions::default()));
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
    fn a_tenant_alone_below_its_cache_misses_what_the_same_hierarchy_does() {
        use crate::sim::hierarchy::{Hierarchy, Keeps, LevelOptions};
        for (hands_down, keeps) in [(false, Keeps::Passing), (true, Keeps::Demoted)] {
            let popular = tenant("popular", Zipf::new(8000, 0.8, 3).take(100_000), 10);
            let above = Above { blocks: 500, policy: PolicyKind::Lru.into(), hands_down };
            let (trace, counts) =
                Trace::of_tenants_below(std::slice::from_ref(&popular), &[above], Clocks::Own, 1500, 5000)
                    .expect("it goes together");
            let levels = [
                LevelOptions::new("guest", PolicyKind::Lru, 500),
                LevelOptions { keeps, ..LevelOptions::new("host", PolicyKind::Lru, 1500) },
            ];
            let mut hierarchy = Hierarchy::new(&levels, None).expect("it goes together");
            popular.references.iter().for_each(|&r| {
                hierarchy.access(r);
            });
            let expected = hierarchy.counts();
            assert_eq!(counts[0], AboveCounts { accesses: 100_000, hits: 100_000 - expected[0].read_misses });
            let row = run(&trace, &Arm::Shared, &ArmOptions::default());
            assert_eq!((row.requests, row.misses), (expected[1].reads, expected[1].read_misses), "{keeps:?}");
            // And the distances say the same of LRU, at other sizes too.
            let far = trace.intervals.iter().flat_map(|i| &i.requests).filter(|r| r.ask == Ask::Read);
            assert_eq!(far.filter(|r| r.distance.is_none_or(|d| d >= 1500)).count() as u64, row.misses, "{keeps:?}");
        }
    }

    #[test]
    fn controllers_divide_what_the_caches_above_leave() {
        // Both are popular alike; but for one of them hardly anything is left, as it has a large cache of its own.
        let two = ["small", "large"].map(|name| tenant(name, Zipf::new(4000, 0.8, 3).take(100_000), 10));
        let above = |blocks| Above { blocks, policy: PolicyKind::Lru.into(), hands_down: true };
        let (trace, counts) = Trace::of_tenants_below(&two, &[above(100), above(3900)], Clocks::Own, 2000, 5000)
            .expect("it goes together");
        assert!(counts[1].hits > 90_000 && counts[0].hits < 50_000, "{counts:?}");
        let [equal, utility] =
            [Arm::Strict, Arm::Governed(ControllerKind::Utility)].map(|arm| run(&trace, &arm, &ArmOptions::default()));
        let last = utility.targets.last().expect("intervals");
        assert!(last[0] > 1700 && last.iter().sum::<u64>() <= 2000, "{last:?}");
        assert!(utility.misses < equal.misses * 90 / 100, "{} of {}", utility.misses, equal.misses);
        let refused = |above: &[Above]| Trace::of_tenants_below(&two, above, Clocks::Own, 2000, 5000).is_err();
        assert!(refused(&[above(100)]) && refused(&[above(100), Above { hands_down: false, ..above(100) }]));
    }

    #[test]
    fn blocks_of_tenants_are_different_blocks_whatever_their_numbers_are() {
        // Numbers of all 64 bits, as hashes of names and keys of objects are, and those that differ by the tenant.
        let bits = |n: u64| 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(n + 1);
        let [a, b] = [0, 1].map(|tenant| tenant_of(tenant, (0..16).map(move |n| bits(n) ^ (tenant << 48))));
        let many: Vec<TenantTrace> = (0..80).map(|t| tenant_of(t, std::iter::once(t << 51))).collect();
        for (tenants, blocks) in [(vec![a, b], 32), (many, 80)] {
            let trace = Trace::of_tenants(&tenants, Clocks::Own, 1000, 100).expect("it goes together");
            assert_eq!(run(&trace, &Arm::Shared, &ArmOptions::default()).misses, blocks, "each once");
        }
    }

    fn tenant_of(number: u64, blocks: impl Iterator<Item = u64>) -> TenantTrace {
        tenant(&format!("tenant {number}"), blocks, 10)
    }

    #[test]
    fn tenants_are_called_as_they_are_in_their_trace() {
        // Devices of an iolog, no name, one that is too long, and what another would be called in their place.
        let long = "x".repeat(10_000);
        let names = ["/dev/sda", "", "a/b", "tenant 2", "tenant 3", &long];
        let tenants: Vec<_> = names.iter().map(|name| tenant(name, 0..50, 10)).collect();
        let trace = Trace::of_tenants(&tenants, Clocks::Own, 120, 60).expect("it goes together");
        let row = run(&trace, &Arm::Governed(ControllerKind::Utility), &ArmOptions::default());
        let called: Vec<_> = row.tenants.iter().map(|t| t.name.to_string()).collect();
        assert_eq!((called, row.misses), (names.map(str::to_owned).to_vec(), 300));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refused =
            |tenants: &[TenantTrace]| Trace::of_tenants(tenants, Clocks::Own, 10, 10).expect_err("refused").to_string();
        assert!(refused(&[]).contains("no access"));
        assert!(refused(&[tenant("a", 0..0, 1)]).contains("no access"));
        assert!(refused(&[tenant("a", 0..9, 1), tenant("a", 0..9, 1)]).contains("two tenants are called a"));
        let trace = Trace::of_tenants(&[tenant("a", 0..9, 1)], Clocks::Own, 1 << 28, 10).expect("it goes together");
        let options =
            ArmOptions { policy: undercroft_engine::StudiedPolicyKind::Lirs2.into(), ..ArmOptions::default() };
        let said = run_all(&trace, &[(Arm::Shared, options)], None, &|| Go::On).expect_err("too large").to_string();
        assert!(said.contains("268435456 blocks") && said.contains("268435455 that one of lirs2 can have"), "{said}");
    }
}
