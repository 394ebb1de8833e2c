//! The guard of the online rule: the same cache without locks, in small, and whether it misses less.
//!
//! Owns that cache and both counts of misses. Never locks or unlocks. Invariants: both counts are about the same
//! accesses, those to a sample of the blocks; nothing is counted before the cache is full or a whole epoch has gone
//! through it, as what comes first to an empty cache misses whatever is locked.

use crate::index::{Access, Index};
use crate::policy::{Outcome, PolicySet};
use crate::structures::table::HashKey;

/// Slots that it has at most, when it is made.
pub(super) const GUARD_SLOTS: u32 = 4096;
/// Misses by which locks may seem to cost something before the guard believes it: so many standard deviations of what a
/// count spreads by.
const DOUBT: f64 = 2.0;

/// See the head of the file.
pub(super) struct Guard<K: PolicySet> {
    index: Index<K>,
    /// Blocks with a hash up to this are in the sample.
    threshold: u64,
    key: HashKey,
    /// It has so many slots for an index that may hold so many blocks.
    slots: u32,
    of: u32,
    /// Epochs that have ended since it was made.
    ended: u32,
    warm: bool,
    /// Misses in the sample, halved with each epoch: of the cache, and without locks.
    pub(super) live: u64,
    pub(super) without: u64,
}

impl<K: PolicySet> Guard<K> {
    /// For an index under `kind` that may hold `limit` blocks.
    pub(super) fn new(kind: K, limit: u32, key: HashKey) -> Self {
        let of = limit.max(1);
        let slots = of.min(GUARD_SLOTS);
        let threshold =
            if slots == of { u64::MAX } else { (u64::MAX / u64::from(of)).saturating_mul(u64::from(slots)) };
        let key = key.derived();
        let index = Index::with_hash_key(kind, slots, key.derived());
        let mut guard = Self { index, threshold, key, slots, of, ended: 0, warm: false, live: 0, without: 0 };
        guard.follow(limit, false);
        guard
    }

    pub(super) fn kind(&self) -> K {
        self.index.kind()
    }

    /// The index may hold `limit` blocks from now on, not many more than when the guard was made. More than it has
    /// slots for only if it `may_grow`, which takes time in proportion to these.
    pub(super) fn follow(&mut self, limit: u32, may_grow: bool) {
        let slots = (u64::from(limit) * u64::from(self.slots)).div_ceil(u64::from(self.of)) as u32;
        if may_grow && slots > self.index.capacity() {
            self.index.resize(slots, |_| true, |_, _| {}, |_, _| {});
        }
        let slots = slots.min(self.index.capacity());
        if slots == self.index.limit() {
            return;
        }
        self.index.set_limit(slots);
        while self.index.excess() > 0 && self.index.evict(|_| true).is_some() {}
    }

    /// A block was asked for by a read (`counts`) or a write, and missed or not.
    #[inline]
    pub(super) fn note(&mut self, key: u64, counts: bool, missed: bool) {
        if self.key.hash(key) > self.threshold {
            return;
        }
        let without = !matches!(self.index.access(key, Access::Read, |_| true), Outcome::Hit(_));
        if !self.warm {
            self.warm = self.index.len() >= self.index.limit();
        } else if counts {
            self.live += u64::from(missed);
            self.without += u64::from(without);
        }
    }

    /// Whether the locks cost more than chance explains.
    pub(super) fn objects(&self) -> bool {
        self.live as f64 > self.without as f64 + DOUBT * (self.without as f64).sqrt()
    }

    /// An epoch is over: what was long ago counts less.
    pub(super) fn end_epoch(&mut self) {
        self.live /= 2;
        self.without /= 2;
        self.ended = self.ended.saturating_add(1);
        // The first may have begun before.
        self.warm |= self.ended >= 2;
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.index.memory_bytes()
    }
}
