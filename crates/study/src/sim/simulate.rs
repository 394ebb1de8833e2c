//! One pass of a trace through hierarchies, with the times that their devices would have taken.
//!
//! Owns the run and what is counted of it. Never decides. Invariant: hierarchies do not see each other, and the warm-up
//! fills caches without being counted or timed.

use crate::sim::batch::{Ended, Take, drive};
use crate::sim::error::SimError;
use crate::sim::hierarchy::{Hierarchy, Hints, LevelCounts, LevelOptions};
use crate::sim::latency::{Arrivals, Device, LatencyReport, Queues};
use crate::sim::reference::Reference;
use crate::sim::run::{Go, SweepOptions};
use std::sync::Arc;

/// What is to be simulated.
#[derive(Clone, Debug)]
pub struct HierarchyPlan {
    /// What results call it.
    pub name: String,
    /// The levels, the client's first.
    pub levels: Vec<LevelOptions>,
    /// What is told of ranges of blocks, for levels that keep by it.
    pub hints: Option<Arc<Hints>>,
    /// What they and the disk take, and when requests come; no times without.
    pub timing: Option<HierarchyTiming>,
}

/// See [`HierarchyPlan::timing`].
#[derive(Clone, Debug, PartialEq)]
pub struct HierarchyTiming {
    /// One for each level, and at last the disk's.
    pub devices: Vec<Device>,
    /// When requests come.
    pub arrivals: Arrivals,
    /// For what is drawn by chance.
    pub seed: u64,
}

/// The result of one plan.
#[derive(Clone, Debug)]
pub struct HierarchyResult {
    /// Its name.
    pub name: String,
    /// The names of the levels, and at last `disk`.
    pub names: Vec<String>,
    /// What each was asked for.
    pub counts: Vec<LevelCounts>,
    /// What requests would have taken.
    pub latency: Option<LatencyReport>,
}

/// What a simulation came to.
#[derive(Debug)]
pub struct Simulation {
    /// One for each plan, in their order.
    pub results: Vec<HierarchyResult>,
    /// Accesses read, warm-up included.
    pub accesses: u64,
    /// Whether it was ended before the trace was.
    pub stopped: bool,
    /// Why the trace could not be read to its end.
    pub broken: Option<SimError>,
}

struct Running {
    name: String,
    hierarchy: Hierarchy,
    queues: Option<Queues>,
    /// What was counted while it was warming up.
    cold: Vec<LevelCounts>,
}

impl Take for Running {
    fn take(&mut self, batch: &[Reference], cold: usize) {
        for &reference in &batch[..cold] {
            self.hierarchy.access(reference);
        }
        if cold > 0 {
            self.cold = self.hierarchy.counts();
        }
        for &reference in &batch[cold..] {
            let steps = self.hierarchy.access(reference);
            if let Some(queues) = &mut self.queues {
                queues.offer(reference.time_ns, reference.write, steps);
            }
        }
    }
}

impl Running {
    fn new(plan: &HierarchyPlan) -> Result<Self, SimError> {
        let hierarchy = Hierarchy::new(&plan.levels, plan.hints.as_ref())?;
        if let Some(timing) = &plan.timing {
            check(timing, plan.levels.len())?;
        }
        let queues = plan.timing.as_ref().map(|t| Queues::new(&t.devices, t.arrivals, t.seed));
        Ok(Self { name: plan.name.clone(), hierarchy, queues, cold: vec![] })
    }

    fn result(self) -> HierarchyResult {
        let mut counts = self.hierarchy.counts();
        for (c, cold) in counts.iter_mut().zip(&self.cold) {
            c.reads -= cold.reads;
            c.read_misses -= cold.read_misses;
            c.writes -= cold.writes;
            c.write_misses -= cold.write_misses;
            c.demotions -= cold.demotions;
            c.evictions -= cold.evictions;
        }
        let names = self.hierarchy.names().iter().cloned().chain(["disk".to_string()]).collect();
        HierarchyResult { name: self.name, names, counts, latency: self.queues.map(Queues::finish) }
    }
}

fn check(timing: &HierarchyTiming, levels: usize) -> Result<(), SimError> {
    let positive = |x: f64| x.is_finite() && x > 0.0;
    let sensible = match timing.arrivals {
        Arrivals::Trace(speed) => positive(speed),
        Arrivals::Random(per_second) => positive(per_second),
        Arrivals::Closed(depth) => (1..=1 << 20).contains(&depth),
    };
    if !sensible {
        return Err(SimError::Options("a speed and a rate are above 0, and a queue depth is from 1 to 1048576".into()));
    }
    if timing.devices.len() != levels + 1 {
        return Err(SimError::Options("times need a device for each level and one for the disk".into()));
    }
    if timing.devices.iter().any(|d| !(1..=1 << 20).contains(&d.channels)) {
        return Err(SimError::Options("a device has from 1 to 1048576 channels".into()));
    }
    Ok(())
}

/// Runs a trace through every plan. `watch` is told how many accesses have been read, and may end it. What only a level
/// has at the end stays there: see [`Hierarchy::flush`].
///
/// # Errors
/// A plan that makes no sense, or threads that cannot be had. A trace that breaks off is told in
/// [`Simulation::broken`].
pub fn simulate(
    trace: impl Iterator<Item = Result<Reference, undercroft_trace::TraceError>>,
    plans: &[HierarchyPlan],
    options: &SweepOptions,
    watch: &mut dyn FnMut(u64) -> Go,
) -> Result<Simulation, SimError> {
    let mut running = vec![];
    for plan in plans {
        running.push(Running::new(plan)?);
    }
    let Ended { accesses, stopped, broken } = drive(trace, &mut running, options, watch)?;
    let results = running.into_iter().map(Running::result).collect();
    Ok(Simulation { results, accesses, stopped, broken })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::hierarchy::Keeps;
    use crate::sim::latency::Spread;
    use undercroft_engine::PolicyKind;
    use undercroft_trace::synth::Zipf;

    fn plans() -> Vec<HierarchyPlan> {
        let device = |ns| Device { read_ns: ns, write_ns: ns, spread: Spread::Exponential, channels: 2 };
        let plan = |keeps| {
            let host = LevelOptions { keeps, ..LevelOptions::new("host", PolicyKind::Lru, 300) };
            let levels = vec![LevelOptions::new("guest", PolicyKind::Lru, 200), host];
            let devices = vec![device(1_000), device(20_000), device(500_000)];
            let timing = Some(HierarchyTiming { devices, arrivals: Arrivals::Closed(4), seed: 5 });
            HierarchyPlan { name: format!("{keeps:?}"), levels, hints: None, timing }
        };
        [Keeps::Passing, Keeps::Demoted, Keeps::Captured].map(plan).to_vec()
    }

    fn run(jobs: usize, warm_up: u64) -> Vec<(Vec<LevelCounts>, Option<LatencyReport>)> {
        let trace = Zipf::new(3000, 0.8, 9).take(70_000).map(|block| Ok(Reference::read(block)));
        let options = SweepOptions { jobs: Some(jobs), warm_up, ..SweepOptions::default() };
        let done = simulate(trace, &plans(), &options, &mut |_| Go::On).expect("it runs");
        assert_eq!(done.accesses, 70_000);
        done.results.into_iter().map(|r| (r.counts, r.latency)).collect()
    }

    #[test]
    fn threads_do_not_change_counts_or_times() {
        let one = run(1, 0);
        assert_eq!(one, run(3, 0));
        for (counts, latency) in &one {
            let latency = latency.as_ref().expect("timed");
            assert_eq!(latency.reads.requests, 70_000);
            // At depth 4 on two channels the disk limits: its reads, one after the other, are most of the time.
            let disk_seconds = counts[2].reads as f64 * 500e-6 / 2.0;
            assert!(latency.seconds >= disk_seconds * 0.98, "{} and {disk_seconds}", latency.seconds);
        }
        assert!(one[1].0[2].reads < one[0].0[2].reads, "demotion saves disk reads");
    }

    #[test]
    fn the_warm_up_is_neither_counted_nor_timed() {
        for ((all, _), (warm, latency)) in run(2, 0).iter().zip(run(2, 40_000)) {
            assert_eq!((warm[0].reads, latency.expect("timed").reads.requests), (30_000, 30_000));
            assert!(warm[2].reads < all[2].reads / 2);
        }
    }

    #[test]
    fn plans_that_make_no_sense_are_refused() {
        let refused = |change: &dyn Fn(&mut HierarchyTiming), what: &str| {
            let mut plan = plans().remove(0);
            change(plan.timing.as_mut().expect("timed"));
            let none = std::iter::empty::<Result<Reference, undercroft_trace::TraceError>>();
            let said = simulate(none, &[plan], &SweepOptions::default(), &mut |_| Go::On).expect_err(what).to_string();
            assert!(said.contains(what), "{said}");
        };
        refused(&|t| t.arrivals = Arrivals::Closed(0), "queue depth");
        refused(&|t| t.arrivals = Arrivals::Trace(f64::NAN), "speed");
        refused(&|t| t.arrivals = Arrivals::Random(-1.0), "rate");
        refused(&|t| t.devices.truncate(2), "for each level");
        refused(&|t| t.devices[1].channels = 0, "channels");
    }
}
