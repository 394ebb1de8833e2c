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
    /// Steps after which frames for I/O were lent, after which hardly any were left to lend, and after which some were
    /// owed to disks that had gone or shrunk. Campaigns do not keep these three.
    pub lent: u64,
    /// See `lent`.
    pub short: u64,
    /// See `lent`.
    pub owed: u64,
    /// Disks that came to keep their blocks together with another's. Campaigns do not keep it.
    pub joins: u64,
    /// Locked blocks, counted again each time that somebody looked.
    pub locked: u64,
    /// Times that what a scan had found was seen to be the first to go. Campaigns do not keep it.
    pub scanned: u64,
    /// Times that a disk was seen whose blocks pages of its guest were found never to hold. Campaigns do not keep it.
    pub opaque: u64,
    /// Times that a disk was seen whose blocks begin elsewhere than at multiples of 4096. Campaigns do not keep it.
    pub offset: u64,
    /// Of the captures, those of such blocks. Campaigns do not keep it.
    pub captures_across: u64,
    /// Blocks read from the SSD store, those that it did not give in time, those that it took without writing them, and
    /// those that it had when a core started. Campaigns do not keep these four.
    pub below: u64,
    /// See `below`.
    pub late: u64,
    /// See `below`.
    pub linked: u64,
    /// See `below`.
    pub recovered: u64,
    /// Blocks that another process went on with.
    pub taken_over: u64,
    /// Disks whose image was written down in the SSD store after they had gone.
    pub written_down: u64,
    /// Times that the SSD store was told the stamp of a disk at rest. Campaigns do not keep it.
    pub stamped: u64,
    /// SSD stores that it went on with.
    pub adopted: u64,
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
}

impl Outcome {
    /// Every count that campaigns keep, but those of coverage, in a fixed order.
    pub(crate) fn counts_mut(&mut self) -> [&mut u64; 30] {
        let f = &mut self.faults;
        [
            &mut self.steps,
            &mut self.answers,
            &mut self.crashes,
            &mut self.hits,
            &mut self.misses,
            &mut self.joined,
            &mut self.stale,
            &mut self.ahead,
            &mut self.evicted,
            &mut self.failures,
            &mut self.shared,
            &mut self.zeroes,
            &mut self.at_base,
            &mut self.beyond,
            &mut self.parted,
            &mut self.captures,
            &mut self.promoted,
            &mut self.early,
            &mut self.taken,
            &mut self.refused,
            &mut self.slowest,
            &mut f.reads,
            &mut f.writes,
            &mut f.flushes,
            &mut f.clears,
            &mut f.statuses,
            &mut f.bad,
            &mut f.power_cuts,
            &mut f.foreign,
            &mut f.lost,
        ]
    }

    /// Adds another run's counts.
    pub fn add(&mut self, o: &Outcome) {
        let slowest = self.slowest.max(o.slowest);
        let mut more = *o;
        for (n, m) in self.counts_mut().into_iter().zip(more.counts_mut()) {
            *n += *m;
        }
        self.slowest = slowest;
        (self.lent, self.short, self.owed) = (self.lent + o.lent, self.short + o.short, self.owed + o.owed);
        self.joins += o.joins;
        self.locked += o.locked;
        self.scanned += o.scanned;
        self.opaque += o.opaque;
        self.offset += o.offset;
        self.captures_across += o.captures_across;
        self.below += o.below;
        self.late += o.late;
        self.linked += o.linked;
        self.recovered += o.recovered;
        self.taken_over += o.taken_over;
        self.adopted += o.adopted;
        self.written_down += o.written_down;
        self.stamped += o.stamped;
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
        let pool = [self.lent, self.short, self.owed];
        assert!(pool.iter().all(|&n| n > 0), "the pool for I/O never ran short: {self:?}");
        assert!(self.captures_across > 0, "nothing was captured of blocks that begin elsewhere: {self:?}");
        assert!(self.offset > 0, "no disk's blocks began where pages do: {self:?}");
        assert!(self.opaque > 0, "no disk was found to be opaque: {self:?}");
        assert!(self.joins > 0, "no disks kept their blocks together: {self:?}");
        assert!(self.locked > 1000, "hardly anything was locked: {self:?}");
        assert!(self.scanned > 0, "no scan found anything: {self:?}");
        let below = [self.below, self.late, self.recovered, self.adopted, self.written_down];
        assert!(below.iter().all(|&n| n > 0), "the SSD store was of no use: {self:?}");
        assert!(self.taken_over > 1000, "other processes went on with nothing: {self:?}");
        let missing = self.coverage.missing(RARE);
        assert!(missing.is_empty(), "the runs never came by {missing:?}:\n{}", self.coverage.table());
    }
}
