//! Several cores, each with caches of its own for instructions and data, over a cache that they share.
//!
//! Owns the batches of jobs, the order in which the cores reach the shared cache, and what a task waits for. Never
//! chooses what is locked (`jobs`). Invariants: a core's own caches see its job's references alone, in their order;
//! the shared cache sees the misses of all cores in the order of the references that they belong to, those of the
//! first core first, so that the result does not depend on how many threads there are.
//!
//! Source: chapter 4 of the thesis. A miss of a core's cache that the shared one has costs 1, one that goes to memory
//! 15 more; what hits costs nothing.

use super::LineReference;
use super::jobs::{Decision, Job, Strategy, decide};
use super::shape::Shape;
use super::ways::{LockedWays, WayCache};
use rayon::prelude::*;

/// What a miss of a core's own cache costs, and one of the shared cache besides.
const FROM_SHARED: u64 = 1;
const FROM_MEMORY: u64 = 15;

/// Caches of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Cores.
    pub cores: usize,
    /// Each core's cache of instructions.
    pub instructions: Shape,
    /// Each core's cache of data.
    pub data: Shape,
    /// The cache that they share.
    pub shared: Shape,
}

/// What became of a queue of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MachineResult {
    /// Tasks of all jobs.
    pub tasks: u64,
    /// Of each batch, the delay of the core that had most, added up.
    pub delay: u64,
    /// References.
    pub references: u64,
    /// Misses of the cores' own caches.
    pub core_misses: u64,
    /// Misses of the shared cache.
    pub shared_misses: u64,
    /// Lines that went to memory since they were changed.
    pub written_back: u64,
    /// Ways that were locked, in percent of those that there are, on average over cores and batches.
    pub locked_percent: f64,
}

impl MachineResult {
    /// Mean delay of a task, in units of what a transfer from the shared cache takes.
    pub fn mean_delay(&self) -> f64 {
        self.delay as f64 / self.tasks.max(1) as f64
    }
}

/// A miss of a core: at which of its references, and what it asks the shared cache for.
struct Miss {
    at: u64,
    reference: LineReference,
    /// Not asked for by the job, but given up by the core's cache, changed.
    is_write_back: bool,
}

/// Runs a queue of jobs, in batches of one job for each core, under a strategy.
pub fn run(machine: &Machine, queue: &[Job], strategy: Strategy) -> MachineResult {
    let mut result = MachineResult::default();
    let mut shared = WayCache::new(machine.shared, LockedWays::default());
    let once = decide(machine, queue, strategy);
    let (mut locked, mut decisions) = (0.0, 0);
    for batch in queue.chunks(machine.cores) {
        let plan: Vec<Decision> = once.of_batch(machine, batch, strategy);
        plan.iter().flat_map(|d| &d.shared).for_each(|block| shared.preload(*block));
        let work: Vec<_> = batch.iter().zip(&plan).collect();
        let missed: Vec<(Vec<Miss>, u64)> = work.par_iter().map(|(job, plan)| own_misses(machine, job, plan)).collect();
        let delays = share(&mut shared, &missed, machine);
        result.delay += delays.into_iter().max().unwrap_or(0);
        for (job, decision) in batch.iter().zip(&plan) {
            result.tasks += job.tasks;
            result.references += job.references.len() as u64;
            locked += decision.locked_percent(machine);
            decisions += 1;
        }
        result.core_misses += missed.iter().map(|(_, misses)| misses).sum::<u64>();
    }
    result.shared_misses = shared.misses();
    result.written_back = shared.written_back();
    result.locked_percent = locked / f64::from(decisions.max(1));
    result
}

/// What a core's own caches miss of a job, and give up changed; and how many of them are misses.
fn own_misses(machine: &Machine, job: &Job, plan: &Decision) -> (Vec<Miss>, u64) {
    let data = WayCache::new(machine.data, plan.data.clone());
    let instructions = WayCache::new(machine.instructions, plan.instructions.clone());
    let mut caches = [data, instructions];
    let (mut missed, mut misses) = (Vec::new(), 0);
    for (reference, at) in job.references.iter().zip(0..) {
        // No branch: which of the two is hard to foresee.
        let cache = &mut caches[usize::from(reference.is_fetch())];
        let Some(miss) = cache.access(*reference) else { continue };
        misses += 1;
        missed.push(Miss { at, reference: *reference, is_write_back: false });
        if let Some(block) = miss.written_back {
            missed.push(Miss { at, reference: LineReference::store(block), is_write_back: true });
        }
    }
    (missed, misses)
}

/// The misses of a core's own caches of a job.
pub(super) fn own_miss_count(machine: &Machine, job: &Job, plan: &Decision) -> u64 {
    own_misses(machine, job, plan).1
}

/// Brings the misses of all cores to the shared cache. The delay of each core.
fn share(shared: &mut WayCache, missed: &[(Vec<Miss>, u64)], machine: &Machine) -> Vec<u64> {
    // Lines of the shared cache may be longer than those of the cores.
    let shift = (machine.shared.line_bytes() / machine.data.line_bytes()).max(1).trailing_zeros();
    let mut next = vec![0; missed.len()];
    let mut delays = vec![0; missed.len()];
    loop {
        let first = |core: usize| missed[core].0.get(next[core]).map(|miss| (miss.at, core));
        let Some((_, core)) = (0..missed.len()).filter_map(first).min() else { return delays };
        let miss = &missed[core].0[next[core]];
        next[core] += 1;
        let block = miss.reference.block() >> shift;
        let reference = if miss.is_write_back { LineReference::store(block) } else { LineReference::load(block) };
        let goes_to_memory = shared.access(reference).is_some();
        // What is written back is not waited for.
        if !miss.is_write_back {
            delays[core] += FROM_SHARED + if goes_to_memory { FROM_MEMORY } else { 0 };
        }
    }
}
