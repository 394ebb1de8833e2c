//! Keeping a cache exclusive of its guest: which blocks the guest has evicted, holds, or is about to evict.
//!
//! Owns the decisions: what a reused page means, which pages to copy early, what pays. Never sees content and never
//! copies: it says which page to copy, and is told what came of it. Invariant: a wrong guess wastes a slot, nothing
//! more; whether a copy is right is decided by comparing its tag with that of the block's current content.
//!
//! The rules are those of docs/decisions/0003: evictions are inferred from reused pages (Jones et al., ASPLOS 2006);
//! a page that still holds its block when it is reused is captured then; a guest that zeroes pages leaves nothing to
//! capture, so pages near the age of eviction are copied early, wait on probation, and become hot when their eviction
//! is proved.

use crate::guest::ages::Ages;
use crate::guest::residency::{Class, Residency, Resident};
use crate::guest::shadow::{ShadowCache, Verdict};
use crate::index::Index;
use crate::index::tiers::Tier;
use crate::policy::PolicyKind;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;
use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

/// How a disk's cache is kept exclusive of its guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ExclusiveMode {
    /// Not at all: whatever passes is kept as the policy wants.
    Off,
    /// In the ways that turn out to pay, or not at all where none does.
    #[default]
    Auto,
    /// By copying pages when they are reused.
    Capture,
    /// By copying pages before they are evicted.
    Delayed,
}

impl ExclusiveMode {
    /// All modes.
    pub const ALL: [ExclusiveMode; 4] =
        [ExclusiveMode::Auto, ExclusiveMode::Off, ExclusiveMode::Capture, ExclusiveMode::Delayed];

    /// The name used in configuration and status.
    pub fn name(self) -> &'static str {
        match self {
            ExclusiveMode::Off => "off",
            ExclusiveMode::Auto => "auto",
            ExclusiveMode::Capture => "capture",
            ExclusiveMode::Delayed => "delayed",
        }
    }

    /// The ways to begin with.
    pub fn ways(self) -> Ways {
        match self {
            ExclusiveMode::Off => Ways { capture: false, delay: false },
            ExclusiveMode::Auto => Ways { capture: true, delay: true },
            ExclusiveMode::Capture => Ways { capture: true, delay: false },
            ExclusiveMode::Delayed => Ways { capture: false, delay: true },
        }
    }
}

impl fmt::Display for ExclusiveMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ExclusiveMode {
    type Err = String;

    /// # Errors
    /// A sentence that lists the known names.
    fn from_str(s: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|m| m.name() == s).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|m| m.name()).collect();
            format!("unknown mode \"{s}\"; known are {}", known.join(", "))
        })
    }
}

/// Which ways of learning content are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ways {
    /// Copy what a page holds when it is reused.
    pub capture: bool,
    /// Copy pages before they are evicted.
    pub delay: bool,
}

/// What became of the block that a page held before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// The page held no other block, as far as is known.
    None,
    /// This block is cached, and hot from now on.
    Kept(u64),
    /// It is not cached. The page may still hold it: copy it before the page is written to, compare the tag, and
    /// call [`Exclusive::captured`].
    Capture(Resident),
    /// This block is not cached and cannot be had.
    Lost(u64),
}

impl Departure {
    /// The block that the guest holds no longer, if there is one.
    pub fn block(self) -> Option<u64> {
        match self {
            Departure::None => None,
            Departure::Kept(block) | Departure::Lost(block) => Some(block),
            Departure::Capture(what) => Some(what.block),
        }
    }
}

/// A page to copy now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// The page.
    pub page: u32,
    /// What it should hold.
    pub what: Resident,
}

/// Counts since the guest came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExclusiveStats {
    /// Pages whose reuse showed that the guest had evicted their block.
    pub evictions: u64,
    /// Evicted blocks that were cached already.
    pub evictions_cached: u64,
    /// Pages copied at reuse.
    pub captures_tried: u64,
    /// Copies at reuse that held the block.
    pub captures: u64,
    /// Copies at reuse that were all zeroes.
    pub captures_zeroed: u64,
    /// Pages copied early.
    pub early_tried: u64,
    /// Early copies that held the block.
    pub early: u64,
    /// Early copies that had to go before the eviction was proved.
    pub early_lapsed: u64,
    /// Gauge: page transfers after which pages filled by reads are copied.
    pub age_read: u32,
    /// Gauge: the same for pages filled by writes.
    pub age_write: u32,
    /// Gauge: page transfers after which a page whose first copy lapsed is copied again.
    pub age_again: u32,
    /// Gauge: pages of the guest that hold a known block.
    pub pages_held: u32,
    /// Gauge: pages of the guest.
    pub pages: u32,
}

/// Youngest age at which pages are copied, in transfers.
const AGE_MIN: f64 = 64.0;
/// Early copies of a class that are remembered.
const YIELD_MEMORY: u32 = 2048;
/// Early copies of a class from which what they bring is known.
const YIELD_SURE: u32 = 512;
/// A class gives way if it brings so many times less than the best one.
const YIELD_BEHIND: f64 = 2.0;
/// Second copies shorten the time that first ones last: they must pay at least so often.
const SECOND_PAYS: f64 = 0.5;
/// Of a class that gives way one page in so many is copied all the same.
const YIELD_SAMPLE: u32 = 16;
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
/// Schedule entries looked at for one copy.
const LOOKS_MAX: u32 = 64;
/// Copies at reuse after which what they bring is judged.
const JUDGED_AFTER: u64 = 256;
/// Copies at reuse that must hold their block for them to go on: one in so many.
const CAPTURE_PAYS_PART: u64 = 16;
/// A way that does not pay is tried again now and then: once in so many evictions.
const TRIED_AGAIN: u64 = 32;

/// See the head of the file.
#[derive(Debug)]
pub struct Exclusive {
    residency: Residency,
    shadow: ShadowCache,
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

/// How many copies come to a transfer of late.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// Copies put on probation ever, modulo 2^32.
    copies: u32,
    /// Copies and transfers when this was last asked.
    before: (u32, u32),
    /// Copies for each transfer, the latest ones weighing most.
    rate: f64,
}

impl Pace {
    /// Copies for each transfer, at transfer number `now`.
    fn take(&mut self, now: u32) -> f64 {
        let (copies, transfers) = (self.copies.wrapping_sub(self.before.0), now.wrapping_sub(self.before.1));
        self.before = (self.copies, now);
        self.rate = (self.rate + f64::from(copies) / f64::from(transfers.max(1))) / 2.0;
        self.rate
    }
}

/// What early copies of each class bring: how many of the latest ones were still there when their eviction was proved.
///
/// Pages whose ages at eviction vary widely bring little for the room they take; where room is short they give way to
/// those that can be copied just in time.
#[derive(Clone, Copy, Debug, Default)]
struct Yields {
    made: [u32; 3],
    paid: [u32; 3],
    turn: u32,
}

impl Yields {
    fn made(&mut self, class: Class) {
        let i = class as usize;
        self.made[i] += 1;
        if self.made[i] >= YIELD_MEMORY {
            self.made[i] /= 2;
            self.paid[i] /= 2;
        }
    }

    fn paid(&mut self, class: Class) {
        let i = class as usize;
        self.paid[i] = (self.paid[i] + 1).min(self.made[i]);
    }

    /// Whether a page of this class is worth a copy now: whether it brings as much, nearly, as the better class of
    /// first copies. Second ones are no measure for first ones, without which there would be none: these nearly always
    /// pay, where half of the first ones lapse.
    fn worth(&mut self, class: Class) -> bool {
        let part = |i: usize| f64::from(self.paid[i]) / f64::from(self.made[i].max(1));
        let i = class as usize;
        let first = [Class::Read as usize, Class::Write as usize];
        let best = first.into_iter().filter(|&k| self.made[k] >= YIELD_SURE).map(part).fold(0.0, f64::max);
        let least = if class == Class::Kept { best.max(SECOND_PAYS) } else { best / YIELD_BEHIND };
        if self.made[i] < YIELD_SURE || part(i) >= least {
            return true;
        }
        self.turn = self.turn.wrapping_add(1);
        self.turn.is_multiple_of(YIELD_SAMPLE)
    }
}

impl Exclusive {
    /// For a guest of `pages` pages and a cache of `capacity` slots under the policy `kind`.
    pub fn new(pages: u32, mode: ExclusiveMode, kind: PolicyKind, capacity: u32, key: HashKey) -> Self {
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

    /// Bytes of memory for a guest of `pages` pages and a cache of `capacity` slots, at most.
    pub fn bytes_for(pages: u32, capacity: u32) -> u64 {
        let again = (pages / AGAIN_PART) as usize + 1;
        Residency::bytes_for(pages)
            + ShadowCache::bytes_for(capacity)
            + (size_of::<Self>() + 3 * size_of::<Ages>() + again * size_of::<(u32, u32)>()) as u64
    }

    /// Bytes of memory that this one was made with, at most.
    pub fn memory_bytes_max(&self) -> u64 {
        Self::bytes_for(self.residency.pages(), self.capacity)
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
        index: &mut Index,
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
    fn aim(&mut self, index: &Index) {
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
    fn compare(&mut self, index: &mut Index, block: u64, write: bool, hit: bool) {
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

    /// A page to copy now, if there is one and it has been paid for. The caller copies it and calls
    /// [`Exclusive::copied`].
    pub fn due(&mut self, index: &mut Index) -> Option<Due> {
        if !self.ways.delay || self.credit == 0 || self.throttled || self.is_inclusive() {
            return None;
        }
        let mut looks = 0;
        while looks < LOOKS_MAX {
            looks += 1;
            let due = self.next_due()?;
            if !self.yields.worth(due.what.class) {
                continue;
            }
            if let Some(slot) = index.peek(due.what.block) {
                // it need not be copied: it is here
                if index.tier(slot) == Tier::Cold {
                    index.set_tier(slot, Tier::Probation);
                    self.made(due.what.class);
                }
                continue;
            }
            if due.what.tag.is_none() {
                continue;
            }
            self.credit -= 1;
            self.stats.early_tried += 1;
            return Some(due);
        }
        None
    }

    fn next_due(&mut self) -> Option<Due> {
        let now = self.residency.now();
        let memory = self.residency.memory();
        for class in [Class::Read, Class::Write] {
            let age = (self.ages[class as usize] as u32).min(memory - 1);
            // What is older than copies last beyond that age was to be copied when the age was another: it would keep
            // those waiting whose turn it is, for as many transfers as the age has fallen.
            let oldest = age.saturating_add(self.lasts).min(memory - 1);
            let next = &mut self.next[class as usize];
            if now.wrapping_sub(*next) > oldest && now.wrapping_sub(*next) < u32::MAX / 2 {
                *next = now.wrapping_sub(oldest);
            }
            let mut looks = 0;
            while looks < LOOKS_MAX && now.wrapping_sub(*next) >= age && now.wrapping_sub(*next) < u32::MAX / 2 {
                let seq = *next;
                *next = seq.wrapping_add(1);
                looks += 1;
                if let Some((page, what)) = self.residency.transferred(seq)
                    && what.class == class
                    && !what.doubtful
                {
                    return Some(Due { page, what });
                }
            }
        }
        let mut looks = 0;
        while looks < LOOKS_MAX
            && let Some(&(page, seq)) = self.again.front()
            && now.wrapping_sub(seq) >= self.ages[Class::Kept as usize] as u32
        {
            looks += 1;
            self.again.pop_front();
            if let Some(what) = self.residency.get(page)
                && now.wrapping_sub(what.age) == seq
            {
                return Some(Due { page, what });
            }
        }
        None
    }

    /// What came of a copy. `slot` is where it went, if it held the block and got one.
    pub fn copied(&mut self, index: &mut Index, due: &Due, held: bool, slot: Option<Slot>) {
        if held {
            self.stats.early += 1;
            self.made(due.what.class);
        } else {
            // dirty in the guest, or lost to another use: decided when the page is next seen
            self.residency.doubt(due.page);
        }
        let _ = slot;
        self.lapses(index);
    }

    /// Deals with a block that had to go while on probation; to be called after whatever may evict one.
    pub fn lapses(&mut self, index: &mut Index) {
        let Some(block) = index.take_lapsed() else { return };
        self.stats.early_lapsed += 1;
        let Some(page) = self.residency.page_of(block) else { return };
        let Some(what) = self.residency.get(page) else { return };
        let now = self.residency.now();
        self.residency.set_class(page, Class::Kept);
        // A second copy that lapses came too early for a page that is kept longest of all.
        let again = what.class != Class::Kept || what.age < self.ages[Class::Kept as usize] as u32;
        if again && self.again.len() < self.again.capacity() {
            self.again.push_back((page, now.wrapping_sub(what.age)));
        }
    }
}
