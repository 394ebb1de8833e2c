//! Keeping a cache exclusive of its guest: which blocks the guest has evicted, holds, or is about to evict.
//!
//! Owns the decisions: what a reused page means, which pages to copy early, which ways are worth their time. Never sees
//! content and never copies: it says which page to copy, and is told the result. Invariant: a wrong guess wastes a
//! slot, nothing more; whether a copy is right is decided by comparing its tag with that of the block's current
//! content.
//!
//! The rules are those of docs/decisions/0003: evictions are inferred from reused pages (Jones et al., ASPLOS 2006);
//! a page that still holds its block when it is reused is captured then; a guest that zeroes pages leaves nothing to
//! capture, so pages near the age of eviction are copied early, wait on probation, and become hot when their eviction
//! is proved.

mod early;

use super::ages::Ages;
use super::mode::{Departure, ExclusiveMode, ExclusiveStats, Ways};
use super::residency::{Class, Residency, Resident};
use super::shadow::{ShadowCache, Verdict};
use super::yields::{Pace, Yields};
use crate::index::Index;
use crate::index::tiers::Tier;
use crate::policy::{PolicyKind, PolicySet};
use crate::structures::table::HashKey;
use std::collections::VecDeque;

/// Youngest age at which pages are copied, in transfers.
const AGE_MIN: f64 = 64.0;
/// Evictions after which it is looked anew at which age to copy pages.
const AGES_EVERY: u64 = 256;
/// Ages are told apart no finer than copies last where they have so much of the slots: one in so many.
const ROOM_PART: u32 = 8;
/// An eviction comes shortly before its copy if so small a part of the age was missing.
const NEAR: f64 = 0.125;
/// Ages of pages that are kept longer than most are told apart up to so many times those of others.
const OLDER: u32 = 4;
/// Pages that wait to be copied again at most: one in so many of the guest's.
const AGAIN_PART: u32 = 2;
/// Copies that one transfer pays for.
const COPIES_PER_TRANSFER: u32 = 2;
/// Copies saved up at most.
const CREDIT_MAX: u32 = 128;
/// Copies at reuse after which what they bring is judged.
const JUDGED_AFTER: u64 = 256;
/// Copies at reuse that must hold their block for them to go on: one in so many.
const CAPTURE_PAYS_PART: u64 = 16;
/// A way that does not pay is tried again now and then: once in so many evictions.
const TRIED_AGAIN: u64 = 32;

/// See the head of the file.
#[derive(Debug)]
pub struct Exclusive<K: PolicySet = PolicyKind> {
    residency: Residency,
    shadow: ShadowCache<K>,
    /// Slots of the cache when this was made.
    capacity: u32,
    mode: ExclusiveMode,
    ways: Ways,
    /// Copies at reuse since they were last judged, and how many of them held their block.
    judged: (u64, u64),
    /// Nothing may be copied for now: the processor time for it is used up.
    throttled: bool,
    /// Transfers after which pages of each class are copied, counted from the one that filled them.
    ages: [f64; 3],
    /// At which ages pages filled by reads and by writes were evicted, and those whose first copies had lapsed.
    seen: [Box<Ages>; 3],
    /// The transfer to look at next, for pages filled by reads and by writes.
    next: [u32; 2],
    /// Pages to copy again, and the transfers that filled them.
    again: VecDeque<(u32, u32)>,
    /// Transfers that a copy lasts, about.
    lasts: u32,
    credit: u32,
    yields: Yields,
    pace: Pace,
    stats: ExclusiveStats,
}

impl Exclusive {
    /// Bytes of memory for a guest of `pages` pages and a cache of `capacity` slots, at most.
    pub fn bytes_for(pages: u32, capacity: u32) -> u64 {
        let again = (pages / AGAIN_PART) as usize + 1;
        Residency::bytes_for(pages)
            + ShadowCache::<PolicyKind>::bytes_for(capacity)
            + (size_of::<Self>() + 3 * size_of::<Ages>() + again * size_of::<(u32, u32)>()) as u64
    }
}

impl<K: PolicySet> Exclusive<K> {
    /// For a guest of `pages` pages and a cache of `capacity` slots under the policy `kind`.
    pub fn new(pages: u32, mode: ExclusiveMode, kind: K, capacity: u32, key: HashKey) -> Self {
        let first = f64::from(pages) / 2.0;
        let residency = Residency::new(pages, key);
        let oldest = residency.memory();
        Self {
            residency,
            shadow: ShadowCache::new(kind, capacity, key),
            capacity,
            mode,
            ways: mode.ways(),
            judged: (0, 0),
            throttled: false,
            ages: [first, first, 2.0 * first].map(|age| age.max(AGE_MIN)),
            seen: [oldest, oldest, oldest.saturating_mul(OLDER)].map(|oldest| Box::new(Ages::new(oldest))),
            next: [1; 2],
            again: VecDeque::with_capacity((pages / AGAIN_PART) as usize + 1),
            lasts: u32::MAX,
            credit: 0,
            yields: Yields::default(),
            pace: Pace::default(),
            stats: ExclusiveStats::default(),
        }
    }

    /// Bytes of memory that this one was made with, at most.
    pub fn memory_bytes_max(&self) -> u64 {
        Exclusive::bytes_for(self.residency.pages(), self.capacity)
    }

    /// The table of guest pages.
    pub fn residency(&self) -> &Residency {
        &self.residency
    }

    /// The table of guest pages, to tell it about contents.
    pub fn residency_mut(&mut self) -> &mut Residency {
        &mut self.residency
    }

    /// Whether copies have to wait, because they have used up their processor time.
    pub fn set_throttled(&mut self, throttled: bool) {
        self.throttled = throttled;
    }

    /// Finds out which ways pay, if that is left to us.
    fn judge(&mut self, held: bool) {
        self.judged.0 += 1;
        self.judged.1 += u64::from(held);
        let (tried, good) = self.judged;
        if self.mode != ExclusiveMode::Auto || tried < JUDGED_AFTER {
            return;
        }
        // Where nearly every page still holds its block at reuse, early copies are not worth their time.
        self.ways = Ways { capture: good >= tried / CAPTURE_PAYS_PART, delay: good * 10 < tried * 9 };
        self.judged = (0, 0);
    }

    /// The ways of learning content in use.
    pub fn ways(&self) -> Ways {
        self.ways
    }

    /// The counts.
    pub fn stats(&self) -> ExclusiveStats {
        let age = |class: Class| self.ages[class as usize] as u32;
        ExclusiveStats {
            age_read: age(Class::Read),
            age_write: age(Class::Write),
            age_again: age(Class::Kept),
            pages_held: self.residency.held(),
            pages: self.residency.pages(),
            ..self.stats
        }
    }

    /// Forgets what the guest holds; what was learned about its ages stays.
    pub fn reset(&mut self) {
        self.residency.clear();
        self.again.clear();
        self.next = [self.residency.now().wrapping_add(1); 2];
    }

    /// `block` is about to be put into `page`, whose former content is still there. Deals with the block that the page
    /// held before: if it is cached it becomes hot. `found` says whether a read found the block cached, where that is a
    /// question of what the cache keeps.
    pub fn arrives(
        &mut self,
        index: &mut Index<K>,
        page: u32,
        block: u64,
        class: Class,
        tag: Option<u64>,
        found: Option<bool>,
    ) -> Departure {
        match found {
            Some(hit) => self.compare(index, block, class == Class::Write, hit),
            None if self.mode == ExclusiveMode::Auto => self.shadow.passed(block, class == Class::Write),
            None => {}
        }
        self.credit = (self.credit + COPIES_PER_TRANSFER).min(CREDIT_MAX);
        let Some(left) = self.residency.transfer(page, block, class, tag) else { return Departure::None };
        self.stats.evictions += 1;
        // What is kept longer than most was filled by a read before, as a rule.
        self.seen[usize::from(left.class == Class::Write)].add(left.age);
        if left.class == Class::Kept {
            self.seen[Class::Kept as usize].add(left.age);
        }
        if self.stats.evictions.is_multiple_of(AGES_EVERY) && !self.is_inclusive() {
            self.aim(index);
        }
        if let Some(slot) = index.peek(left.block) {
            self.stats.evictions_cached += 1;
            if index.tier(slot) == Tier::Probation {
                self.yields.paid(left.class);
            }
            index.set_tier(slot, Tier::Hot);
            return Departure::Kept(left.block);
        }
        let capture =
            self.ways.capture || self.mode == ExclusiveMode::Auto && self.stats.evictions.is_multiple_of(TRIED_AGAIN);
        if capture && !self.throttled && !self.is_inclusive() && class != Class::Write && left.tag.is_some() {
            self.stats.captures_tried += 1;
            return Departure::Capture(left);
        }
        self.lost(&left);
        Departure::Lost(left.block)
    }

    /// A copy is on probation.
    fn made(&mut self, class: Class) {
        self.yields.made(class);
        self.pace.copies = self.pace.copies.wrapping_add(1);
    }

    /// Chooses the ages at which pages are copied: those that most evictions follow while the copies last.
    fn aim(&mut self, index: &Index<K>) {
        let [_, probation, cold] = index.tier_lens();
        // Free slots and cold ones are probation's whenever it needs them.
        let room = probation + cold + index.limit().saturating_sub(index.len());
        let room = room.max(index.limit() / ROOM_PART);
        // Where pages are copied twice, copies last as much shorter.
        let room = (f64::from(room) / self.pace.take(self.residency.now()).max(1.0)) as u32;
        self.lasts = room;
        for (seen, age) in self.seen.iter().zip(&mut self.ages) {
            if let Some(best) = seen.best(room) {
                *age = f64::from(best).max(AGE_MIN);
            }
        }
    }

    /// Holds the cache against an inclusive one, if that is left to us, and changes over where that one hits more.
    #[inline]
    fn compare(&mut self, index: &mut Index<K>, block: u64, write: bool, hit: bool) {
        if self.mode != ExclusiveMode::Auto {
            return;
        }
        match self.shadow.observe(block, write, hit) {
            Verdict::Stay => {}
            Verdict::Inclusive => index.set_tiers(false),
            Verdict::Exclusive => index.set_tiers(true),
        }
    }

    /// Whether an inclusive cache is better at present.
    pub fn is_inclusive(&self) -> bool {
        self.shadow.is_inclusive()
    }

    /// The cache may keep so many blocks from now on.
    pub fn set_limit(&mut self, limit: u32) {
        self.shadow.set_limit(limit);
    }

    /// What came of a copy at reuse.
    pub fn captured(&mut self, what: &Resident, held: bool, zeroes: bool) {
        self.judge(held);
        self.stats.captures += u64::from(held);
        self.stats.captures_zeroed += u64::from(zeroes && !held);
        if !held {
            self.lost(what);
        }
    }

    /// A page was to be copied at reuse, and there was no room for the copy.
    pub fn missed(&mut self) {
        self.stats.captures_tried -= 1;
    }

    /// A block was evicted and its content is gone. Its copy would have come too late if the page was evicted shortly
    /// before: ages drift, faster at times than it is looked at them.
    fn lost(&mut self, what: &Resident) {
        let (class, age) = (what.class as usize, &mut self.ages[what.class as usize]);
        if f64::from(what.age) < *age && f64::from(what.age) >= *age * (1.0 - NEAR) {
            *age = (*age - f64::from(self.seen[class].step())).max(AGE_MIN);
        }
    }
}
