//! A trace through both stores, RAM over SSD, with the daemon's own code: `undercroft_cache::Core` and its SSD store.
//!
//! Owns which pairs of stores are simulated, and what is counted of them. Never decides what a store keeps, never holds
//! a byte of data. Invariant: every block that is read is counted once, as found in RAM, found on the SSD, or missed.
//!
//! ```
//! use undercroft_engine::PolicyKind;
//! use undercroft_study::sim::stores::{Admission, StoresPlan, simulate_stores};
//! use undercroft_study::sim::{Go, Reference, SweepOptions};
//! let trace = (0..30_000).map(|i| Ok(Reference::read(i % 1000)));
//! let admission = Admission::Second;
//! let plan = StoresPlan { ram_blocks: 100, ssd_bytes: 32 << 20, admission, ..StoresPlan::new(PolicyKind::Lru) };
//! let done = simulate_stores(trace, &[plan], &SweepOptions::default(), &mut |_| Go::On)?;
//! let counts = done.results[0].counts;
//! // The first time a block leaves RAM it is not admitted, the second time it is.
//! assert_eq!((counts.ram_hits, counts.ssd_hits + counts.misses), (0, 30_000));
//! assert!((1900..2200).contains(&counts.misses));
//! # Ok::<(), undercroft_study::sim::SimError>(())
//! ```

mod flash;
mod pair;
mod result;

pub use result::{RestartResult, SsdWritten, StoresCounts, StoresResult};
pub use undercroft_cache::ssd::Admission;

use crate::sim::batch::{Ended, Take, drive};
use crate::sim::error::SimError;
use crate::sim::grid::check_slots;
use crate::sim::near::Near;
use crate::sim::reference::Reference;
use crate::sim::run::{Go, SweepOptions};
use pair::{FAR_BLOCKS, Pair};
use result::Sum;
use undercroft_engine::PolicyKind;

/// Intervals in which what follows a restart is counted.
const INTERVALS: u64 = 20;

/// Names of the rules of admission.
const RULES: [(&str, Admission); 4] = [
    ("measured", Admission::Measured),
    ("all", Admission::All),
    ("second", Admission::Second),
    ("none", Admission::None),
];

/// The rule of admission of this name.
pub fn admission_named(name: &str) -> Option<Admission> {
    RULES.iter().find(|(known, _)| *known == name).map(|(_, rule)| *rule)
}

/// The name of a rule of admission.
pub fn admission_name(rule: Admission) -> &'static str {
    RULES.iter().find(|(_, known)| *known == rule).map_or("", |(name, _)| name)
}

/// Two stores to simulate.
#[derive(Clone, Debug, PartialEq)]
pub struct StoresPlan {
    /// Who decides in RAM.
    pub policy: PolicyKind,
    /// The size of RAM as it was asked for.
    pub ram: String,
    /// Blocks that RAM has.
    pub ram_blocks: u32,
    /// The size of the SSD as it was asked for.
    pub ssd: String,
    /// Bytes of the SSD, with what the store writes about itself; 0 for none.
    pub ssd_bytes: u64,
    /// Which blocks that leave RAM are admitted.
    pub admission: Admission,
    /// Bytes that may be written to the SSD each day.
    pub writes_per_day: Option<u64>,
    /// Whether both are stopped and started again.
    pub restart: Option<Restart>,
}

impl StoresPlan {
    /// Nothing but a policy: no RAM, no SSD, no limit.
    pub fn new(policy: PolicyKind) -> Self {
        Self {
            policy,
            ram: String::new(),
            ram_blocks: 0,
            ssd: String::new(),
            ssd_bytes: 0,
            admission: Admission::default(),
            writes_per_day: None,
            restart: None,
        }
    }
}

/// An orderly stop and a start over what the SSD has; beside it, for comparison, a start with nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restart {
    /// After so many accesses of the trace.
    pub at: u64,
    /// Accesses that are counted in intervals after it.
    pub count: u64,
}

/// What a simulation of stores came to.
#[derive(Debug)]
pub struct StoresSimulation {
    /// One for each plan, in their order.
    pub results: Vec<StoresResult>,
    /// Accesses read, warm-up included.
    pub accesses: u64,
    /// Whether the trace says when its accesses were.
    pub has_times: bool,
    /// Whether it was ended before the trace was.
    pub stopped: bool,
    /// Why the trace could not be read to its end.
    pub broken: Option<SimError>,
}

/// A start with nothing, beside the one that goes on.
struct Cold {
    pair: Pair,
    result: RestartResult,
    seen: u64,
}

/// One plan, and how far it is.
struct Running<'a> {
    plan: &'a StoresPlan,
    /// None after it has failed.
    pair: Option<Pair>,
    accesses: u64,
    counts: StoresCounts,
    sum: Sum,
    cold: Option<Cold>,
    restarted: Option<RestartResult>,
    /// The time of the first counted access, and of the last.
    times_ns: Option<(u64, u64)>,
    failed: Option<SimError>,
}

impl Take for Running<'_> {
    fn take(&mut self, batch: &[Reference], cold: usize) {
        for (n, &reference) in batch.iter().enumerate() {
            if self.plan.restart.is_some_and(|restart| restart.at == self.accesses) {
                self.restart();
            }
            let Some(pair) = &mut self.pair else { return };
            let mut counts = StoresCounts::default();
            pair.access(reference, &mut counts);
            self.accesses += 1;
            if n >= cold {
                self.counts.add(&counts);
                self.times_ns = Some((self.times_ns.map_or(reference.time_ns, |t| t.0), reference.time_ns));
            } else if n + 1 == cold {
                self.sum = Sum::before(pair);
            }
            self.compare(reference, &counts);
        }
    }
}

impl<'a> Running<'a> {
    fn new(plan: &'a StoresPlan) -> Result<Self, SimError> {
        check_slots(plan.policy, plan.ram_blocks.into())?;
        Ok(Self {
            plan,
            pair: Some(Pair::new(plan)?),
            accesses: 0,
            counts: StoresCounts::default(),
            sum: Sum::default(),
            cold: None,
            restarted: None,
            times_ns: None,
            failed: None,
        })
    }

    /// Stops both stores and starts them again.
    fn restart(&mut self) {
        let Some(mut pair) = self.pair.take() else { return };
        pair.stop();
        self.sum.ends(&pair);
        let begun = pair.again(self.plan).and_then(|warm| Ok((warm, Pair::new(self.plan)?)));
        match begun {
            Ok(((pair, recovered_blocks), cold)) => {
                self.sum.begins(&pair);
                self.pair = Some(pair);
                let result = RestartResult { at: self.accesses, recovered_blocks, warm: vec![], cold: vec![] };
                self.cold = Some(Cold { pair: cold, result, seen: 0 });
            }
            Err(e) => self.failed = Some(e),
        }
    }

    /// The same access where nothing was taken over.
    fn compare(&mut self, reference: Reference, warm: &StoresCounts) {
        let (Some(cold), Some(restart)) = (&mut self.cold, self.plan.restart) else { return };
        let interval = restart.count.div_ceil(INTERVALS).max(1);
        if cold.seen.is_multiple_of(interval) {
            cold.result.warm.push(StoresCounts::default());
            cold.result.cold.push(StoresCounts::default());
        }
        cold.seen += 1;
        if let (Some(of_warm), Some(of_cold)) = (cold.result.warm.last_mut(), cold.result.cold.last_mut()) {
            of_warm.add(warm);
            cold.pair.access(reference, of_cold);
        }
        if cold.seen >= restart.count {
            self.restarted = self.cold.take().map(|cold| cold.result);
        }
    }

    fn result(mut self) -> Result<StoresResult, SimError> {
        if let Some(e) = self.failed {
            return Err(e);
        }
        if let Some(pair) = &self.pair {
            self.sum.ends(pair);
        }
        let restart = self.restarted.or(self.cold.map(|cold| cold.result));
        let seconds = self.times_ns.map_or(0, |(first, last)| last.saturating_sub(first)) as f64 / 1e9;
        Ok(self.sum.result(self.plan, self.counts, seconds, restart))
    }
}

/// Runs a trace of blocks of 4 KiB through every pair of stores. `watch` is told how many accesses have been read, and
/// may end it.
///
/// # Errors
/// A plan that makes no sense, or threads or memory that cannot be had. A trace that breaks off is told in
/// [`StoresSimulation::broken`].
pub fn simulate_stores(
    trace: impl Iterator<Item = Result<Reference, undercroft_trace::TraceError>>,
    plans: &[StoresPlan],
    options: &SweepOptions,
    watch: &mut dyn FnMut(u64) -> Go,
) -> Result<StoresSimulation, SimError> {
    let mut running = plans.iter().map(Running::new).collect::<Result<Vec<_>, _>>()?;
    let (mut near, mut has_times) = (Near::below(FAR_BLOCKS), false);
    let trace = trace.map(|reference| {
        let reference = near.of(reference?);
        has_times |= reference.time_ns > 0;
        Ok(reference)
    });
    let Ended { accesses, stopped, broken } = drive(trace, &mut running, options, watch)?;
    let results = running.into_iter().map(Running::result).collect::<Result<_, _>>()?;
    Ok(StoresSimulation { results, accesses, has_times, stopped, broken })
}
