//! Which evicted blocks are written to the SSD: a rule that resists scans, within what the flash is to bear.
//!
//! Owns two rotating filters of what was evicted lately, and a bucket of bytes. Never sees content. Invariant: bytes
//! written in any time are at most those of that time's budget, and what the bucket holds (an hour's) before.

use super::permutation::mix;
use super::types::Admission;

/// Nanoseconds of a day.
const DAY_NS: u128 = 86_400_000_000_000;
/// The bucket holds this part of a day's bytes...
const BUCKET_PART: u64 = 24;
/// ... and at least so many (16 MiB).
const BUCKET_LEAST: u64 = 16 << 20;
/// Each filter knows one block for so many slots of the region.
const GHOST_PART: u32 = 4;
/// A filter has this many bits for each block it is to know before it is exchanged.
const BITS_PER_BLOCK: usize = 8;

/// Blocks that were evicted lately: two Bloom filters, of which the older is emptied when the younger is full.
struct Ghosts {
    bits: [Box<[u64]>; 2],
    young: usize,
    seen: usize,
    seed: u64,
}

impl Ghosts {
    fn new(blocks: usize, seed: u64) -> Self {
        let words = (blocks * BITS_PER_BLOCK).div_ceil(64).max(1);
        let bits = [(); 2].map(|()| vec![0; words].into_boxed_slice());
        Self { bits, young: 0, seen: 0, seed }
    }

    /// Whether the block was evicted lately; it was now.
    fn was_there(&mut self, owner: u16, block: u64) -> bool {
        let hash = mix(mix(self.seed ^ u64::from(owner)) ^ block);
        let words = self.bits[0].len();
        let word = ((u128::from(hash) * words as u128) >> 64) as usize;
        // Three bits of one word: one line of memory for each filter.
        let mask = 1 << (hash & 63) | 1 << (hash >> 6 & 63) | 1 << (hash >> 12 & 63);
        let known = self.bits.iter().any(|bits| bits[word] & mask == mask);
        if self.bits[self.young][word] & mask != mask {
            self.bits[self.young][word] |= mask;
            self.seen += 1;
        }
        if self.seen >= words * 64 / BITS_PER_BLOCK {
            self.young = 1 - self.young;
            self.bits[self.young].fill(0);
            self.seen = 0;
        }
        known
    }
}

/// Bytes that may be written: a bucket that time fills.
pub(super) struct Budget {
    per_day: u64,
    /// What it holds at most.
    most: i64,
    left: i64,
    /// Of a byte, in parts of a day's nanoseconds.
    rest: u128,
}

impl Budget {
    /// A full one.
    pub fn new(per_day: u64, most: u64) -> Self {
        let most = most.min(i64::MAX as u64) as i64;
        Self { per_day, most, left: most, rest: 0 }
    }

    /// So many nanoseconds passed.
    pub fn advance(&mut self, passed: u64) {
        let parts = u128::from(passed) * u128::from(self.per_day) + self.rest;
        self.rest = parts % DAY_NS;
        self.left = self.left.saturating_add((parts / DAY_NS).min(i64::MAX as u128) as i64).min(self.most);
    }

    /// Bytes were written.
    pub fn spend(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes as i64);
    }

    /// Bytes that are left; negative if more were written than there were.
    pub fn left(&self) -> i64 {
        self.left
    }
}

/// See the head of the file.
pub(super) struct Admitting {
    rule: Admission,
    ghosts: Ghosts,
    budget: Option<Budget>,
    now: u64,
}

impl Admitting {
    /// For a region of so many slots.
    pub fn new(slots: u32, seed: u64) -> Self {
        let ghosts = Ghosts::new((slots / GHOST_PART) as usize, seed);
        Self { rule: Admission::default(), ghosts, budget: None, now: 0 }
    }

    /// Bytes of its tables.
    pub fn bytes(&self) -> usize {
        self.ghosts.bits.iter().map(|b| b.len() * 8).sum()
    }

    pub fn set_rule(&mut self, rule: Admission) {
        self.rule = rule;
    }

    /// Bytes that may be written each day; `None`: without a limit.
    pub fn set_budget(&mut self, per_day: Option<u64>) {
        let left = self.budget.as_ref().map(|b| b.left);
        self.budget = per_day.map(|per_day| {
            let mut budget = Budget::new(per_day, (per_day / BUCKET_PART).max(BUCKET_LEAST));
            budget.left = left.unwrap_or(i64::MAX).min(budget.most);
            budget
        });
    }

    /// Time goes on.
    pub fn advance(&mut self, now: u64) {
        let passed = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        if let Some(b) = &mut self.budget {
            b.advance(passed);
        }
    }

    /// Bytes were written, for whatever reason.
    pub fn spend(&mut self, bytes: u64) {
        if let Some(b) = &mut self.budget {
            b.spend(bytes);
        }
    }

    /// Whether anything may be written now.
    pub fn may_write(&self) -> bool {
        self.budget.as_ref().is_none_or(|b| b.left > 0)
    }

    /// Bytes that may be written at once; `None`: without a limit.
    pub fn left(&self) -> Option<u64> {
        self.budget.as_ref().map(|b| b.left.max(0) as u64)
    }

    /// Whether the rule admits a block that is evicted now.
    pub fn admits(&mut self, owner: u16, block: u64, reused: bool) -> bool {
        match self.rule {
            Admission::All => true,
            Admission::None => false,
            Admission::Second => self.ghosts.was_there(owner, block) || reused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_admitted_when_it_is_evicted_again_and_a_scan_is_not() {
        let mut a = Admitting::new(1 << 16, 3);
        let first = (0..4000).filter(|b| a.admits(1, *b, false)).count();
        assert!(first < 40, "{first} of 4000 that were never seen");
        assert_eq!((0..4000).filter(|b| a.admits(1, *b, false)).count(), 4000);
        let others = (0..4000).filter(|b| a.admits(2, *b, false)).count();
        assert!(others < 100, "{others} of another owner");
        assert!(a.admits(1, 1 << 39, true), "it was used again in RAM");
        // Long ago.
        (10_000..40_000).for_each(|b| _ = a.admits(1, b, false));
        let forgotten = (0..2000).filter(|b| !a.admits(1, *b, false)).count();
        assert!(forgotten > 1800, "{forgotten}");
    }

    #[test]
    fn no_more_is_written_than_the_budget() {
        let (mut a, day) = (Admitting::new(1024, 1), DAY_NS as u64);
        a.set_budget(Some(48 << 30));
        let mut written = 0u64;
        for minute in 0..2 * 24 * 60u64 {
            a.advance(minute * (day / 24 / 60));
            while a.may_write() {
                a.spend(4096);
                written += 4096;
            }
        }
        assert!((96 << 30..=(98 << 30) + (16 << 20)).contains(&written), "{written} in two days");
        a.set_budget(None);
        assert!(a.may_write() && a.left().is_none());
    }
}
