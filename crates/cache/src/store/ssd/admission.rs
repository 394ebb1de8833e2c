//! Which evicted blocks are written to the SSD: a rule that resists scans, within what the flash is to bear.
//!
//! Owns what was evicted lately, and a bucket of bytes; what is measured of classes of evictions stands in `measured`.
//! Never sees content. Invariant: bytes written in any time are at most those of that time's
//! budget, and what the bucket holds (an hour's) before.

use super::measured::Measured;
use super::permutation::mix;
use super::types::{Admission, Class};
use std::ops::Range;

/// Nanoseconds of a day.
const DAY_NS: u128 = 86_400_000_000_000;
/// The bucket holds this part of a day's bytes...
const BUCKET_PART: u64 = 24;
/// ... and at least so many (16 MiB).
const BUCKET_LEAST: u64 = 16 << 20;
/// One block is known for so many slots of the region.
const GHOST_PART: u32 = 3;
/// Blocks of a set: one line of a processor's cache.
const GHOST_WAYS: usize = 32;

/// Blocks that were evicted lately, by 16 bits of what stands for each; 0 is none. A block that never was here is known
/// once in 2,000 times: a scan is many times larger than what would have to go for those.
struct Ghosts {
    /// The latest first.
    sets: Box<[[u16; GHOST_WAYS]]>,
    seed: u64,
}

impl Ghosts {
    fn new(blocks: usize, seed: u64) -> Self {
        let sets = (blocks / GHOST_WAYS).max(1);
        Self { sets: vec![[0; GHOST_WAYS]; sets].into_boxed_slice(), seed }
    }

    /// What stands for a block here.
    #[inline]
    fn hash(&self, owner: u16, block: u64) -> u64 {
        mix(mix(self.seed ^ u64::from(owner)) ^ block)
    }

    /// Where a block is, and what of it.
    fn place(&self, hash: u64) -> (usize, u16) {
        let set = ((u128::from(hash) * self.sets.len() as u128) >> 64) as usize;
        (set, (hash as u16).max(1))
    }

    /// Whether the block was evicted lately.
    fn knows(&self, hash: u64) -> bool {
        let (set, tag) = self.place(hash);
        self.sets[set].contains(&tag)
    }

    /// The block is evicted.
    fn note(&mut self, hash: u64) {
        let (set, tag) = self.place(hash);
        let set = &mut self.sets[set];
        let at = set.iter().position(|known| *known == tag).unwrap_or(GHOST_WAYS - 1);
        set[..=at].rotate_right(1);
        set[0] = tag;
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

    /// So much is left, if it is not more than there can be.
    pub fn set_left(&mut self, left: i64) {
        self.left = left.min(self.most);
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
    measured: Measured,
    budget: Option<Budget>,
    now: u64,
}

/// What the rule says of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// The class of the eviction, if the rule tells them apart.
    pub class: Option<Class>,
    /// Whether the block is to be admitted.
    pub admits: bool,
}

impl Admitting {
    /// For a region of so many slots.
    pub fn new(slots: u32, seed: u64) -> Self {
        let ghosts = Ghosts::new((slots / GHOST_PART) as usize, seed);
        Self { rule: Admission::default(), ghosts, measured: Measured::new(slots), budget: None, now: 0 }
    }

    /// Bytes of its tables.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.ghosts.sets) + self.measured.bytes()
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

    /// Goes on where another process was, at its time and with what it had left of its budget, if it had one.
    pub fn go_on_from(&mut self, now: u64, left: Option<i64>) {
        self.now = now;
        self.budget = left.map(|left| Budget { left, ..Budget::new(0, i64::MAX as u64) });
    }

    /// What is left of the budget; negative if more was written.
    pub fn budget_left(&self) -> Option<i64> {
        self.budget.as_ref().map(Budget::left)
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

    /// A disk comes, or comes back.
    pub fn attach(&mut self, owner: u16) {
        self.measured.attach(owner);
    }

    /// It goes.
    pub fn detach(&mut self, owner: u16) {
        self.measured.detach(owner);
    }

    /// A disk may have so many blocks.
    pub fn set_room(&mut self, owner: u16, blocks: u64) {
        self.measured.set_room(owner, blocks);
    }

    /// Whether the rule admits a block that is evicted now and not in the store; `has_room`: nobody has the place that
    /// it would take.
    pub fn judge(&mut self, owner: u16, block: u64, reused: bool, has_room: bool) -> Verdict {
        let plain = |admits| Verdict { class: None, admits };
        match self.rule {
            Admission::All => plain(true),
            Admission::None => plain(false),
            Admission::Second => {
                let hash = self.ghosts.hash(owner, block);
                let is_known = self.ghosts.knows(hash);
                self.ghosts.note(hash);
                plain(is_known || reused)
            }
            Admission::Measured => {
                let hash = self.ghosts.hash(owner, block);
                let is_known = self.ghosts.knows(hash);
                let (class, admits) = self.measured.leaves(owner, block, hash, is_known, reused);
                // A scan of which nothing is admitted does not wash out what is known of others.
                if admits || class != Class::FirstSequential {
                    self.ghosts.note(hash);
                }
                Verdict { class: Some(class), admits: admits || has_room }
            }
        }
    }

    /// Whether pinned blocks are admitted whatever the rule says of others.
    pub fn admits_pinned(&self) -> bool {
        self.rule != Admission::None
    }

    /// A block is evicted that is in the store.
    pub fn returns(&mut self, owner: u16, block: u64, reused: bool) {
        if self.rule == Admission::Measured {
            let hash = self.ghosts.hash(owner, block);
            self.measured.leaves(owner, block, hash, true, reused);
            self.ghosts.note(hash);
        }
    }

    /// A block is asked for that is not in RAM.
    #[inline]
    pub fn asked(&mut self, owner: u16, block: u64) {
        if self.rule == Admission::Measured {
            self.measured.asked(owner, self.ghosts.hash(owner, block));
        }
    }

    /// Blocks are changed.
    pub fn changes(&mut self, owner: u16, blocks: Range<u64>) {
        if self.rule == Admission::Measured {
            self.measured.changes(blocks, |block| self.ghosts.hash(owner, block));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rule: Admission, slots: u32, room: u64) -> Admitting {
        let mut admitting = Admitting::new(slots, 3);
        admitting.set_rule(rule);
        admitting.attach(1);
        admitting.set_room(1, room);
        admitting
    }

    #[test]
    fn a_block_is_admitted_when_it_is_evicted_again_and_a_scan_is_not() {
        let mut a = of(Admission::Second, 1 << 16, 0);
        let mut admits = |owner, block, reused| a.judge(owner, block, reused, false).admits;
        let first = (0..4000).filter(|b| admits(1, *b, false)).count();
        assert!(first < 10, "{first} of 4000 that were never seen");
        assert_eq!((0..4000).filter(|b| admits(1, *b, false)).count(), 4000);
        let others = (0..4000).filter(|b| admits(2, *b, false)).count();
        assert!(others < 20, "{others} of another owner");
        assert!(admits(1, 1 << 39, true), "it was used again in RAM");
        // Long ago.
        (10_000..60_000).for_each(|b| _ = admits(1, b, false));
        let forgotten = (0..2000).filter(|b| !admits(1, *b, false)).count();
        assert!(forgotten > 1700, "{forgotten}");
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
