//! Keeping a disk's cache exclusive of its guest: which blocks the guest has evicted, holds, or is about to evict.
//!
//! Owns the decisions for one disk: what a reused page means, which pages to copy early, whether it is worth it. What
//! is known of the guest is in its [`GuestTable`], which the disks of a guest share. Never sees content and never
//! copies: it says which page to copy, and is told the result. Invariant: a wrong guess wastes a slot, nothing more;
//! whether a copy is right is decided by comparing its tag with that of the block's current content.
//!
//! The rules are those of docs/decisions/0003: evictions are inferred from reused pages (Jones et al., ASPLOS 2006);
//! a page that still holds its block when it is reused is captured then; a guest that zeroes pages leaves nothing to
//! capture, so pages near the age of eviction are copied early, wait on probation, and become hot when their eviction
//! is proved. A disk whose blocks pages never hold is opaque (docs/decisions/0186): no page is copied and no content
//! hashed for it, what the guest reads is still the first to go, and that must save more than an inclusive cache would.

mod early;
mod restart;
mod run;

pub use restart::Rescue;
pub use run::{RUN_MAX, Run};

use super::mode::{Copied, Departure, ExclusiveMode, ExclusiveStats, Ways};
use super::opaque::Evidence;
use super::residency::{Class, Member, Resident};
use super::shadow::{ShadowCache, Verdict};
use super::table::GuestTable;
use super::yields::Pace;
use crate::index::Index;
use crate::index::tiers::Tier;
use crate::policy::{PolicyKind, PolicySet};
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

/// Youngest age at which pages are copied, in transfers.
const AGE_MIN: f64 = 64.0;
/// Evictions after which it is looked anew at which age to copy pages.
const AGES_EVERY: u64 = 256;
/// Ages are told apart no finer than copies last where they have so much of the slots: one in so many.
const ROOM_PART: u32 = 8;
/// Evictions of a disk from which on it shows what the order of eviction alone brings.
const ORDER_SHOWS: u64 = 256;
/// An eviction comes shortly before its copy if so small a part of the age was missing.
const NEAR: f64 = 0.125;

/// A block of one disk that is moved through a page of the guest.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// The page; its former content is still there.
    pub page: u32,
    /// The block.
    pub block: u64,
    /// A read or a write.
    pub class: Class,
    /// The tag of the block's content, if it is known.
    pub tag: Option<u64>,
    /// Whether a read found the block cached, where that is a question of what the cache keeps.
    pub found: Option<bool>,
}

/// See the head of the file.
#[derive(Debug)]
pub struct Exclusive<K: PolicySet = PolicyKind> {
    /// Which of the guest's disks it is.
    member: Member,
    shadow: ShadowCache<K>,
    /// Slots of the cache when this was made, or followed last.
    capacity: u32,
    mode: ExclusiveMode,
    /// Whether pages ever hold the disk's blocks.
    evidence: Evidence,
    /// Evictions of the disk from which on the order of eviction can have brought something.
    shows_at: u64,
    /// Transfers after which pages of each class are copied, counted from the one that filled them.
    ages: [f64; 3],
    /// The table's count of steps that these ages have followed.
    followed: [u32; 3],
    /// Evictions of the guest when these were last looked at.
    aimed: u64,
    /// The transfer to look at next, for pages filled by reads and by writes.
    next: [u32; 2],
    /// Transfers that a copy lasts, about.
    lasts: u32,
    pace: Pace,
    /// The guest has begun afresh, and what it held is looked through.
    restart: Option<restart::Restart>,
    /// The transfer after which the last such look began.
    restarted: Option<u32>,
    /// Whether the index is that of several disks of the guest.
    pooled: bool,
    stats: ExclusiveStats,
}

impl Exclusive {
    /// Bytes of memory for the first disk of a guest of `pages` pages, with a cache of `capacity` slots, at most.
    pub fn bytes_for(pages: u32, capacity: u32) -> u64 {
        GuestTable::bytes_for(pages) + Self::own_bytes_for(capacity)
    }

    /// Bytes of those that are the disk's alone.
    pub fn own_bytes_for(capacity: u32) -> u64 {
        ShadowCache::<PolicyKind>::bytes_for(capacity) + size_of::<Self>() as u64
    }
}

impl<K: PolicySet> Exclusive<K> {
    /// For a disk that `table` serves as `member`, with a cache of `capacity` slots under the policy `kind`.
    pub fn new(table: &GuestTable, member: Member, mode: ExclusiveMode, kind: K, capacity: u32, key: HashKey) -> Self {
        let first = f64::from(table.residency.pages()) / 2.0;
        Self {
            member,
            shadow: ShadowCache::new(kind, capacity, key),
            capacity,
            mode,
            evidence: Evidence::new(table.residency.pages()),
            shows_at: ORDER_SHOWS,
            ages: [first, first, 2.0 * first].map(|age| age.max(AGE_MIN)),
            followed: table.earlier,
            aimed: 0,
            next: [table.residency.now().wrapping_add(1); 2],
            lasts: u32::MAX,
            pace: Pace::default(),
            restart: None,
            restarted: None,
            pooled: false,
            stats: ExclusiveStats::default(),
        }
    }

    /// The policy that it is made for.
    pub fn kind(&self) -> K {
        self.shadow.kind()
    }

    /// Slots of the cache that it is made for.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The cache is under the policy `kind` from now on, with `capacity` slots of which `limit` may be used: what it is
    /// held against follows. Its memory does as well: see [`Exclusive::own_bytes_for`].
    pub fn follow(&mut self, kind: K, capacity: u32, limit: u32) {
        self.capacity = capacity;
        self.shadow.follow(kind, capacity);
        self.shadow.set_limit(limit);
    }

    /// Bytes of memory that this one takes at most; the table is not its own.
    pub fn memory_bytes_max(&self) -> u64 {
        Exclusive::own_bytes_for(self.capacity)
    }

    /// Which of the guest's disks it is.
    #[inline]
    pub fn member(&self) -> Member {
        self.member
    }

    /// Blocks of the disk that were moved through pages, modulo 2^32.
    #[inline]
    pub fn transfers(&self) -> u32 {
        self.pace.transfers
    }

    /// The ways of learning content in use.
    pub fn ways(&self, table: &GuestTable) -> Ways {
        table.ways(self.mode)
    }

    /// The counts.
    pub fn stats(&self, table: &GuestTable) -> ExclusiveStats {
        let age = |class: Class| self.ages[class as usize] as u32;
        let residency = table.residency();
        ExclusiveStats {
            age_read: age(Class::Read),
            age_write: age(Class::Write),
            age_again: age(Class::Kept),
            pages_held: residency.held_by(self.member),
            pages_held_by_all: residency.held(),
            pages: residency.pages(),
            ..self.stats
        }
    }

    /// A block of this disk is about to be put into a page. Deals with the block that the page held before, if that was
    /// one of this disk: if it is cached it becomes hot. One of another disk is said to be so: see
    /// [`Exclusive::departs`].
    #[inline]
    pub fn arrives(&mut self, table: &mut GuestTable, index: &mut Index<K>, moved: Transfer) -> Departure {
        self.arrives_behind(table, index, moved, None)
    }

    /// The same where `gone` is the slot of what the page holds, if it is cached and that was looked up.
    #[inline]
    fn arrives_behind(
        &mut self,
        table: &mut GuestTable,
        index: &mut Index<K>,
        moved: Transfer,
        gone: Option<Slot>,
    ) -> Departure {
        let Transfer { page, block, class, tag, found } = moved;
        match found {
            Some(hit) => self.compare(table, index, block, class == Class::Write, hit),
            None if self.mode == ExclusiveMode::Auto => self.shadow.passed(block, class == Class::Write),
            None => {}
        }
        table.pay();
        self.pace.transfers = self.pace.transfers.wrapping_add(1);
        let Some(left) = table.residency.transfer(self.member, page, block, class, tag) else { return Departure::None };
        table.evicted(&left);
        if table.residency.has_dropped() {
            self.dropped(table, index);
        }
        if left.member != self.member {
            return Departure::Other(left);
        }
        // What was looked up may be of another block, which was in the page then and went to another since.
        let slot = gone.filter(|&slot| index.holds(slot, left.block)).or_else(|| index.peek(left.block));
        self.departs_from(table, index, left, class != Class::Write, slot)
    }

    /// The guest has evicted a block of this disk. `may_copy` says whether what its page held can be had: it is still
    /// there, or was copied aside.
    pub fn departs(
        &mut self,
        table: &mut GuestTable,
        index: &mut Index<K>,
        left: Resident,
        may_copy: bool,
    ) -> Departure {
        let slot = index.peek(left.block);
        self.departs_from(table, index, left, may_copy, slot)
    }

    /// The same for a block in `slot`, if it is cached.
    #[inline]
    fn departs_from(
        &mut self,
        table: &mut GuestTable,
        index: &mut Index<K>,
        left: Resident,
        may_copy: bool,
        slot: Option<Slot>,
    ) -> Departure {
        self.stats.evictions += 1;
        if self.evidence.changes(self.pace.transfers) {
            self.settle(table);
        }
        if table.evictions - self.aimed >= AGES_EVERY && !self.is_inclusive() {
            self.aim(table, index);
        }
        if let Some(slot) = slot {
            self.stats.evictions_cached += 1;
            if index.tier(slot) == Tier::Probation {
                table.yields.paid(left.class);
            }
            index.set_tier(slot, Tier::Hot);
            return Departure::Kept(left.block);
        }
        if may_copy && self.evidence.wants(left.class) && table.wants_copy(&left) {
            self.stats.captures_tried += 1;
            return Departure::Capture(left);
        }
        self.lost(table, &left);
        Departure::Lost(left.block)
    }

    /// A copy is on probation.
    fn made(&mut self, table: &mut GuestTable, class: Class) {
        table.yields.made(class);
        self.pace.copies = self.pace.copies.wrapping_add(1);
    }

    /// Chooses the ages at which pages are copied: those that most evictions follow while the copies last.
    fn aim(&mut self, table: &GuestTable, index: &Index<K>) {
        self.follow_others(table);
        self.aimed = table.evictions;
        let [_, probation, cold] = index.tier_lens();
        // Free slots and cold ones are probation's whenever it needs them.
        let room = probation + cold + index.limit().saturating_sub(index.len());
        let room = room.max(index.limit() / ROOM_PART);
        // Where pages are copied twice, copies last as much shorter; where other disks' pages come between, longer.
        let room = (f64::from(room) / self.pace.take(table.residency.now(), self.pooled)) as u32;
        self.lasts = room;
        for (seen, age) in table.seen.iter().zip(&mut self.ages) {
            if let Some(best) = seen.best(room) {
                *age = f64::from(best).max(AGE_MIN);
            }
        }
    }

    /// Holds the cache against an inclusive one, if that is left to us, and changes over where that one hits more.
    #[inline]
    fn compare(&mut self, table: &mut GuestTable, index: &mut Index<K>, block: u64, write: bool, hit: bool) {
        if self.mode == ExclusiveMode::Auto && self.shadow.samples(block) {
            self.compare_sampled(table, index, block, write, hit);
        }
    }

    #[cold]
    fn compare_sampled(&mut self, table: &mut GuestTable, index: &mut Index<K>, block: u64, write: bool, hit: bool) {
        let shows = self.stats.evictions >= self.shows_at && !self.evidence.in_trial();
        let inclusive = match self.shadow.observe(block, write, hit, shows) {
            Verdict::Stay => return,
            Verdict::Inclusive => true,
            Verdict::Exclusive => false,
        };
        index.set_tiers(!inclusive);
        self.settle(table);
    }

    /// Notes what came of a copy, and whether that says that pages hold the disk's blocks, or never do. A disk whose
    /// way was chosen by hand keeps to it.
    fn tell(&mut self, table: &mut GuestTable, copied: Copied, class: Class) {
        let before = self.is_opaque();
        if self.mode != ExclusiveMode::Auto || !self.evidence.tell(copied, class, self.pace.transfers) {
            return;
        }
        if self.is_opaque() != before {
            table.judge_anew();
            self.shadow.set_must_lead(self.is_opaque());
        }
        self.settle(table);
    }

    /// Sees to it that pages of the disk are copied, or not.
    fn settle(&mut self, table: &mut GuestTable) {
        table.set_uncopied(self.member, self.is_inclusive() || !self.evidence.wants_copies());
    }

    /// The disk was found opaque before, and its table was freed: a few copies tell whether it still is. The counts go
    /// on from `past`.
    pub fn ask_again(&mut self, table: &mut GuestTable, past: ExclusiveStats) {
        self.stats = past;
        self.shows_at = past.evictions + ORDER_SHOWS;
        self.evidence = Evidence::of_opaque(table.residency.pages());
        self.shadow.set_must_lead(true);
        self.settle(table);
    }

    /// Another system may run in the guest: if pages did not hold the disk's blocks, it is to be found out anew.
    pub fn begin_anew(&mut self, table: &mut GuestTable, index: &mut Index<K>) {
        if self.is_opaque() {
            self.shadow.begin_anew();
            index.set_tiers(true);
            self.evidence = Evidence::new(table.residency.pages());
            self.settle(table);
        }
    }

    /// Whether pages never hold the disk's blocks, as far as is known.
    pub fn is_opaque(&self) -> bool {
        self.evidence.is_opaque()
    }

    /// Whether the table of guest pages brings the disk nothing: pages never hold its blocks, and an inclusive cache is
    /// better than the order of eviction alone.
    pub fn needs_no_table(&self) -> bool {
        self.is_opaque() && self.is_inclusive()
    }

    /// Whether contents of blocks that the guest has been given, into pages of this class, are to be hashed.
    #[inline]
    pub fn wants_hash(&self, class: Class) -> bool {
        self.evidence.wants_hash(class)
    }

    /// A content was hashed.
    pub fn hashed(&mut self) {
        self.evidence.hashed();
    }

    /// Whether an inclusive cache is better at present.
    pub fn is_inclusive(&self) -> bool {
        self.shadow.is_inclusive()
    }

    /// Whether the index is that of several disks of the guest, so that copies of all take its room.
    pub fn set_pooled(&mut self, pooled: bool) {
        self.pooled = pooled;
    }

    /// The cache may keep so many blocks from now on.
    pub fn set_limit(&mut self, limit: u32) {
        self.shadow.set_limit(limit);
    }

    /// What came of a copy at reuse.
    pub fn captured(&mut self, table: &mut GuestTable, what: &Resident, copied: Copied) {
        let held = copied == Copied::Held;
        table.judge(held);
        self.stats.captures += u64::from(held);
        self.stats.captures_zeroed += u64::from(copied == Copied::Zeroes);
        self.tell(table, copied, what.class);
        if !held {
            self.lost(table, what);
        }
    }

    /// A page was to be copied at reuse, and there was no room for the copy.
    pub fn missed(&mut self) {
        self.stats.captures_tried -= 1;
    }

    /// A block was evicted and its content is gone. Its copy would have come too late if the page was evicted shortly
    /// before: ages drift, faster at times than it is looked at them. All disks of the guest follow at once: by what
    /// each finds itself, four would follow a fourth as fast as one.
    fn lost(&mut self, table: &mut GuestTable, what: &Resident) {
        self.follow_others(table);
        let (class, age) = (what.class as usize, self.ages[what.class as usize]);
        if f64::from(what.age) < age && f64::from(what.age) >= age * (1.0 - NEAR) {
            table.earlier[class] = table.earlier[class].wrapping_add(1);
            self.follow_others(table);
        }
    }

    /// Ages follow what disks of the guest have found of its evictions.
    #[inline]
    fn follow_others(&mut self, table: &GuestTable) {
        if self.followed == table.earlier {
            return;
        }
        for (class, age) in self.ages.iter_mut().enumerate() {
            let steps = table.earlier[class].wrapping_sub(self.followed[class]);
            if steps > 0 {
                *age = (*age - f64::from(steps) * f64::from(table.seen[class].step())).max(AGE_MIN);
            }
        }
        self.followed = table.earlier;
    }
}
