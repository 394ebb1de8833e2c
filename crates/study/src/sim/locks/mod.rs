//! A trace through a cache some of whose blocks are locked: by a first run, by the daemon's rule, or by chance; and
//! through one with a victim buffer.
//!
//! Owns which blocks a first run names, and what is counted. Never decides what a cache keeps, locks or unlocks: the
//! daemon's own index and rule do (`undercroft_engine`). Reads no clock: callers bring one, for what an arm costs.
//! Invariants: all arms see the same accesses, and what they count depends on these, the plans and the seed alone; all
//! have the same memory, out of which comes what locks take, as in the daemon.
//!
//! ```
//! use undercroft_engine::PolicyKind;
//! use undercroft_study::sim::locks::{LockStudy, LockingArm, LocksPlan};
//! use undercroft_study::sim::{Go, Reference, SweepOptions};
//! // A loop that does not fit: under LRU every read misses, and what is locked does not.
//! let trace = || (0..1000).map(|i| Ok(Reference::read(i % 20)));
//! let plan = |arm: &str| LocksPlan::new(PolicyKind::Lru, 10, arm.parse::<LockingArm>().expect("an arm"));
//! let mut study = LockStudy::new(vec![plan("none"), plan("static:50%")])?;
//! study.profile(trace(), &SweepOptions::default(), &mut |_| Go::On)?;
//! let done = study.run(trace(), || 0, &SweepOptions::default(), &mut |_| Go::On)?;
//! let misses: Vec<u64> = done.results.iter().map(|r| r.counts.read_misses).collect();
//! // The list of what is locked takes memory as well: one of the ten blocks.
//! assert_eq!(done.results[1].limit_blocks, 9);
//! assert_eq!(misses, [1000, 5 + 15 * 50]);
//! # Ok::<(), undercroft_study::sim::SimError>(())
//! ```

mod arm;
mod profile;
mod running;
#[cfg(test)]
mod tests;

pub use arm::{LockChoice, LockingArm, LockingArmError};

use self::profile::{FirstRun, Ranking};
use self::running::Running;
use crate::sim::batch::{Ended, drive};
use crate::sim::cell::CacheCounts;
use crate::sim::choice::without_repeats;
use crate::sim::error::SimError;
use crate::sim::grid::{BYTES_PER_BLOCK, check_slots};
use crate::sim::near::Near;
use crate::sim::reference::Reference;
use crate::sim::run::{Go, SweepOptions};
use undercroft_engine::locking::{Online, OnlineStats};
use undercroft_engine::{ORIGIN_STEP, PolicyKind};
use undercroft_trace::BLOCK_BYTES;

/// Blocks from here on are given other numbers: an index has larger ones for other disks.
const FAR_BLOCKS: u64 = ORIGIN_STEP - (1 << 32);

/// One cache to simulate.
#[derive(Clone, Debug, PartialEq)]
pub struct LocksPlan {
    /// Who decides about what is not locked.
    pub policy: PolicyKind,
    /// Its size as it was asked for.
    pub size: String,
    /// Its size: what the cache and its locks have together.
    pub blocks: u32,
    /// Bytes of a block, by which what locks take is counted in blocks. At least 1.
    pub block_bytes: u64,
    /// What is locked.
    pub arm: LockingArm,
}

impl LocksPlan {
    /// A cache of so many blocks of 4 KiB.
    pub fn new(policy: PolicyKind, blocks: u32, arm: LockingArm) -> Self {
        Self { policy, size: format!("{blocks}blocks"), blocks, block_bytes: BLOCK_BYTES.into(), arm }
    }

    /// Blocks that are left beside so many bytes.
    fn left_beside(&self, bytes: u64) -> u32 {
        let taken = u32::try_from(bytes.div_ceil(self.block_bytes)).unwrap_or(u32::MAX);
        self.blocks.saturating_sub(taken)
    }

    /// What a first run is made of: it knows of no locks.
    fn unlocked(&self) -> (PolicyKind, u32) {
        (self.policy, self.blocks)
    }
}

/// What became of one plan.
#[derive(Clone, Debug, PartialEq)]
pub struct LocksResult {
    /// The plan.
    pub plan: LocksPlan,
    /// What was counted.
    pub counts: CacheCounts,
    /// Reads that hit a locked block.
    pub locked_read_hits: u64,
    /// Reads and writes that hit a block in the victim buffer.
    pub buffer_hits: u64,
    /// Blocks that are locked at the end.
    pub locked_blocks: u32,
    /// Blocks that may be locked.
    pub budget_blocks: u32,
    /// Blocks that the cache may keep: its size less what its locks take.
    pub limit_blocks: u32,
    /// What the rule has done, warm-up included, if there is one.
    pub online: Option<OnlineStats>,
    /// Bytes of memory that the rule takes at most, or the list of what is locked: they come out of the cache's size.
    pub lock_bytes: u64,
    /// What the counted accesses took by the caller's clock.
    pub took_ns: u64,
}

/// How a pass over a trace ended.
#[derive(Debug)]
pub struct LocksPass {
    /// Accesses read, warm-up included.
    pub accesses: u64,
    /// Whether it was ended before the trace was.
    pub stopped: bool,
    /// Why the trace could not be read to its end.
    pub broken: Option<SimError>,
}

/// What a simulation came to.
#[derive(Debug)]
pub struct LocksSimulation {
    /// One for each plan, in their order.
    pub results: Vec<LocksResult>,
    /// How the pass ended.
    pub pass: LocksPass,
}

/// See the head of the file.
pub struct LockStudy {
    plans: Vec<LocksPlan>,
    near: Near,
    /// Of each cache that a first run was made of.
    rankings: Vec<((PolicyKind, u32), Ranking)>,
    seed: u64,
}

impl LockStudy {
    /// Of these caches.
    ///
    /// # Errors
    /// One is too large, or a victim buffer is more than half of its cache.
    pub fn new(plans: Vec<LocksPlan>) -> Result<Self, SimError> {
        for plan in &plans {
            check_slots(plan.policy, plan.blocks.into())?;
            let LocksPlan { size, blocks, arm, .. } = plan;
            if arm.buffer > blocks / 2 {
                return Err(SimError::Options(format!(
                    "{arm}: a victim buffer of {} blocks is more than half of the cache of {blocks} blocks (--size \
                     {size}), whose blocks it takes; give a smaller buffer or a larger cache",
                    arm.buffer
                )));
            }
        }
        Ok(Self { plans, near: Near::below(FAR_BLOCKS), rankings: vec![], seed: 1 })
    }

    /// With another seed: what the random control locks depends on it, and the sample of the blocks that the rule's
    /// guard simulates.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// The caches that need a first run, each once.
    fn profiled(&self) -> Vec<(PolicyKind, u32)> {
        let needs = |plan: &&LocksPlan| plan.arm.lock.is_some_and(|(choice, _)| choice.needs_profile());
        without_repeats(self.plans.iter().filter(needs).map(LocksPlan::unlocked))
    }

    /// Caches that need a first run, [`LockStudy::profile`], before [`LockStudy::run`].
    pub fn first_runs(&self) -> usize {
        self.profiled().len()
    }

    /// What is in memory at a time, in slots of caches ([`check_memory`](crate::sim::check_memory)): first runs, each
    /// of which counts the reads of all blocks of a trace of so many, or the caches with what their rules remember,
    /// whichever is more.
    pub fn slots(&self, footprint: u32) -> Vec<u32> {
        let first: Vec<u32> = self.profiled().into_iter().map(|(_, blocks)| blocks.saturating_add(footprint)).collect();
        let rule = |plan: &LocksPlan| match plan.arm.lock {
            Some((choice, _)) if !choice.needs_profile() => {
                Online::<PolicyKind>::bytes_max(plan.blocks).div_ceil(BYTES_PER_BLOCK) as u32
            }
            _ => 0,
        };
        let caches: Vec<u32> = self.plans.iter().map(|plan| plan.blocks.saturating_add(rule(plan))).collect();
        let sum = |of: &[u32]| of.iter().map(|&n| u64::from(n)).sum::<u64>();
        if sum(&first) > sum(&caches) { first } else { caches }
    }

    /// Runs a trace through these caches, to learn what is worth a lock: the trace itself, a part of it, or another
    /// one. `watch` is told how many accesses have been read, and may end it.
    ///
    /// # Errors
    /// Threads that cannot be had. A trace that breaks off is told in [`LocksPass::broken`].
    pub fn profile(
        &mut self,
        trace: impl Iterator<Item = Result<Reference, undercroft_trace::TraceError>>,
        options: &SweepOptions,
        watch: &mut dyn FnMut(u64) -> Go,
    ) -> Result<LocksPass, SimError> {
        let caches = self.profiled();
        let mut runs: Vec<FirstRun> = caches.iter().map(|&(policy, blocks)| FirstRun::new(policy, blocks)).collect();
        let near = &mut self.near;
        let ended = drive(trace.map(|r| r.map(|r| near.of(r))), &mut runs, options, watch)?;
        let most = |cache| {
            let same = self.plans.iter().filter(|plan| plan.unlocked() == cache);
            same.map(|plan| plan.arm.named_in(plan.blocks)).max().unwrap_or(0)
        };
        let seed = self.seed;
        let ranked = caches.into_iter().zip(runs).map(|(cache, run)| (cache, run.ranking(most(cache), seed)));
        self.rankings = ranked.collect();
        Ok(ended.into())
    }

    /// Runs a trace through every cache. `clock` is read before and after the counted accesses of each batch, on the
    /// thread that runs them, and tells nanoseconds; `watch` as above.
    ///
    /// # Errors
    /// As [`LockStudy::profile`]; and the first run that a cache needs has not been made.
    pub fn run(
        &mut self,
        trace: impl Iterator<Item = Result<Reference, undercroft_trace::TraceError>>,
        clock: fn() -> u64,
        options: &SweepOptions,
        watch: &mut dyn FnMut(u64) -> Go,
    ) -> Result<LocksSimulation, SimError> {
        let (plans, rankings, near, seed) = (&self.plans, &self.rankings, &mut self.near, self.seed);
        let running = plans.iter().map(|plan| Running::new(plan, rankings, seed, clock));
        let mut running = running.collect::<Result<Vec<_>, _>>()?;
        let ended = drive(trace.map(|r| r.map(|r| near.of(r))), &mut running, options, watch)?;
        Ok(LocksSimulation { results: running.into_iter().map(Running::result).collect(), pass: ended.into() })
    }
}

impl From<Ended> for LocksPass {
    fn from(Ended { accesses, stopped, broken }: Ended) -> Self {
        Self { accesses, stopped, broken }
    }
}
