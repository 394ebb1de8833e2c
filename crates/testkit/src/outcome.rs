//! What a run has done, and which faults it survived.
//!
//! Owns the counts. Never decides anything. Invariant: counts of several runs add up.

use crate::coverage::{Coverage, RARE};

/// What a run that found nothing wrong has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Events.
    pub steps: u64,
    /// Requests answered.
    pub answers: u64,
    /// Crashes survived.
    pub crashes: u64,
    /// The counters of all disks of all lives, summed.
    pub hits: u64,
    /// Blocks read from the disk.
    pub misses: u64,
    /// Blocks that joined a read.
    pub joined: u64,
    /// Reads that could not be published.
    pub stale: u64,
    /// Read-ahead hits.
    pub ahead: u64,
    /// Blocks evicted.
    pub evicted: u64,
    /// Failed operations.
    pub failures: u64,
    /// Blocks seen at rest whose frame other blocks held too.
    pub shared: u64,
    /// Blocks seen at rest that were zeroes and took no frame.
    pub zeroes: u64,
    /// Blocks of a base that another disk had in RAM.
    pub at_base: u64,
    /// Times that a disk was seen to keep more blocks than it has capacity for, at no more cost.
    pub beyond: u64,
    /// Times that a disk was seen at rest with blocks in more than one of its parts.
    pub parted: u64,
    /// Copies of guest pages that became cached.
    pub captures: u64,
    /// Guests' evictions of blocks that were cached.
    pub promoted: u64,
    /// Guest pages copied early.
    pub early: u64,
    /// Larger capacities that were taken, and those that there was no memory for.
    pub taken: u64,
    /// See `taken`.
    pub refused: u64,
    /// The longest that a request waited, in operations of its disk for each of its work: see `world::work_of`.
    pub slowest: u64,
    /// What went wrong outside.
    pub faults: Faults,
    /// What was seen under which conditions.
    pub coverage: Coverage,
}

/// Faults of disks and hosts that runs survived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Reads that failed.
    pub reads: u64,
    /// Writes that failed.
    pub writes: u64,
    /// Flushes that failed.
    pub flushes: u64,
    /// Discards and zeroes that failed.
    pub clears: u64,
    /// Questions for the allocation that failed.
    pub statuses: u64,
    /// Of the reads, those of bad sectors.
    pub bad: u64,
    /// Crashes with loss of power.
    pub power_cuts: u64,
    /// Times that others wrote to a disk.
    pub foreign: u64,
    /// Times that a disk lost what was not flushed.
    pub lost: u64,
}

impl Faults {
    /// Adds a disk's failures: reads, writes, flushes, discards and zeroes, statuses, bad sectors.
    pub fn failed(&mut self, of: &[u64; 6]) {
        self.reads += of[0];
        self.writes += of[1];
        self.flushes += of[2];
        self.clears += of[3];
        self.statuses += of[4];
        self.bad += of[5];
    }

    fn add(&mut self, o: &Faults) {
        self.failed(&[o.reads, o.writes, o.flushes, o.clears, o.statuses, o.bad]);
        self.power_cuts += o.power_cuts;
        self.foreign += o.foreign;
        self.lost += o.lost;
    }
}

impl Outcome {
    /// Adds another run's counts.
    pub fn add(&mut self, o: &Outcome) {
        self.steps += o.steps;
        self.answers += o.answers;
        self.crashes += o.crashes;
        self.hits += o.hits;
        self.misses += o.misses;
        self.joined += o.joined;
        self.stale += o.stale;
        self.ahead += o.ahead;
        self.evicted += o.evicted;
        self.failures += o.failures;
        self.shared += o.shared;
        self.zeroes += o.zeroes;
        self.at_base += o.at_base;
        self.beyond += o.beyond;
        self.parted += o.parted;
        self.captures += o.captures;
        self.promoted += o.promoted;
        self.early += o.early;
        self.taken += o.taken;
        self.refused += o.refused;
        self.slowest = self.slowest.max(o.slowest);
        self.faults.add(&o.faults);
        self.coverage.add(&o.coverage);
    }

    /// That the runs came by every corner: a simulation that never joins a read tests no join.
    ///
    /// # Panics
    /// With the counts, if one of them is 0.
    pub fn assert_reached_everything(&self) {
        let Outcome { answers, crashes, hits, misses, joined, stale, ahead, evicted, failures, .. } = *self;
        let Outcome { shared, zeroes, at_base, beyond, parted, .. } = *self;
        assert!(parted > 0, "no disk had parts: {self:?}");
        assert!([shared, zeroes, at_base, beyond].iter().all(|&n| n > 0), "the runs shared too little: {self:?}");
        let Outcome { captures, promoted, early, .. } = *self;
        let all = [answers, crashes, hits, misses, joined, stale, ahead, evicted, failures, captures, promoted, early];
        assert!(all.iter().all(|&n| n > 0), "the runs missed something: {self:?}");
        assert!(self.taken > 0 && self.refused > 0, "capacities always fitted, or never: {self:?}");
        let missing = self.coverage.missing(RARE);
        assert!(missing.is_empty(), "the runs never came by {missing:?}:\n{}", self.coverage.table());
    }
}
