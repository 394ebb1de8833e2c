//! What is known of a guest, whichever of its disks showed it: what its pages hold, at which ages it evicts them, what
//! copying them brings.
//!
//! Owns the table of its pages, and what one disk's requests teach for all of them. Never decides for a disk: each has
//! its [`Exclusive`](super::Exclusive). Invariant: what is learned of a guest's behaviour outlives what its pages hold.

use super::ages::Ages;
use super::memory::TableMemory;
use super::mode::{ExclusiveMode, Ways};
use super::residency::{Class, MEMBERS_MAX, Member, Residency, ResidencyMemory, Resident};
use super::yields::Yields;
use crate::structures::table::HashKey;
use std::collections::VecDeque;

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
/// Pages looked at in one go for what is to be forgotten.
const SWEEP_PAGES: u32 = 1024;

/// See the head of the file.
#[derive(Debug)]
pub struct GuestTable {
    pub(super) residency: Residency,
    /// Disks that the table serves, by number, and how each is kept exclusive.
    members: [Option<ExclusiveMode>; MEMBERS_MAX],
    /// Those of them of whose pages none is copied for the time being: they are inclusive, or opaque.
    uncopied: u32,
    /// At which ages pages filled by reads and by writes were evicted, and those whose first copies had lapsed.
    pub(super) seen: [Box<Ages>; 3],
    /// Steps by which evictions have been found to come earlier than copies were made, for each class, modulo 2^32:
    /// whichever disk found it, the guest has one order of eviction.
    pub(super) earlier: [u32; 3],
    /// Evictions of all disks.
    pub(super) evictions: u64,
    /// Pages to copy again, and the transfers that filled them.
    pub(super) again: VecDeque<(u32, u32)>,
    /// Nothing may be copied for now: the processor time for it is used up.
    pub(super) throttled: bool,
    /// Copies that transfers have paid for.
    pub(super) credit: u32,
    pub(super) yields: Yields,
    /// The ways that pay, for disks that are left to us.
    ways: Ways,
    /// Copies at reuse since they were last judged, and how many of them held their block.
    judged: (u64, u64),
}

impl GuestTable {
    /// For a guest of `pages` pages, none of them known, made at once.
    pub fn new(pages: u32, key: HashKey) -> Self {
        let mut memory = TableMemory::new(pages);
        memory.make(usize::MAX);
        Self::over(memory, key)
    }

    /// The memory of a table that serves nobody any more.
    pub fn into_memory(self) -> TableMemory {
        let Self { residency, mut again, .. } = self;
        // moved by nobody: an empty one is in order
        again.clear();
        TableMemory::of(residency.pages(), residency.into_memory(), again.into())
    }

    pub(super) fn again_for(pages: u32) -> usize {
        (pages / AGAIN_PART) as usize + 1
    }

    pub(super) fn of(memory: ResidencyMemory, again: VecDeque<(u32, u32)>, key: HashKey) -> Self {
        let residency = Residency::over(memory, key);
        let oldest = residency.memory();
        Self {
            residency,
            members: [None; MEMBERS_MAX],
            uncopied: 0,
            seen: [oldest, oldest, oldest.saturating_mul(OLDER)].map(|oldest| Box::new(Ages::new(oldest))),
            earlier: [0; 3],
            evictions: 0,
            again,
            throttled: false,
            credit: 0,
            yields: Yields::default(),
            ways: ExclusiveMode::Auto.ways(),
            judged: (0, 0),
        }
    }

    /// Bytes of memory for a guest of `pages` pages, at most; however many disks it has.
    pub fn bytes_for(pages: u32) -> u64 {
        let again = Self::again_for(pages) * size_of::<(u32, u32)>();
        let fixed = size_of::<Self>() + 3 * size_of::<Ages>() + again;
        Residency::bytes_for(pages) + fixed as u64
    }

    /// The table of pages.
    pub fn residency(&self) -> &Residency {
        &self.residency
    }

    /// The table of pages, to tell it about contents.
    pub fn residency_mut(&mut self) -> &mut Residency {
        &mut self.residency
    }

    /// Serves one more disk; `None` if it serves as many as it can.
    pub fn join(&mut self, mode: ExclusiveMode) -> Option<Member> {
        let n = self.members.iter().position(Option::is_none)?;
        self.members[n] = Some(mode);
        self.uncopied &= !(1 << n);
        Member::new(n)
    }

    /// A disk goes. What is known of its blocks has been forgotten ([`Residency::forget_member`]): another disk may get
    /// its number.
    pub fn leave(&mut self, member: Member) {
        self.members[member.index()] = None;
    }

    /// Disks that it serves.
    pub fn members(&self) -> usize {
        self.members.iter().flatten().count()
    }

    /// Pages of a disk are not copied for the time being, or are again.
    pub(super) fn set_uncopied(&mut self, member: Member, uncopied: bool) {
        let bit = 1 << member.index();
        self.uncopied = if uncopied { self.uncopied | bit } else { self.uncopied & !bit };
    }

    fn is_uncopied(&self, member: Member) -> bool {
        self.uncopied >> member.index() & 1 == 1
    }

    /// Forgets what the guest's pages hold; what was learned about its ages stays. All counts as forgotten at once. A
    /// part of the table is walked now, and the rest of a large one later ([`GuestTable::sweep`]).
    pub fn forget_all(&mut self) {
        self.residency.forget_all();
        self.again.clear();
        self.sweep();
    }

    /// Whether what the last page that was reused had held is to be copied from it, if its disk has not got it, and
    /// there is processor time for it.
    #[inline]
    pub fn wants_copy(&self, left: &Resident) -> bool {
        let member = left.member;
        let Some(mode) = self.members[member.index()] else { return false };
        let again = mode == ExclusiveMode::Auto && self.evictions.is_multiple_of(TRIED_AGAIN);
        left.tag.is_some() && !self.throttled && !self.is_uncopied(member) && (self.ways(mode).capture || again)
    }

    /// Whether pages of a disk are to be copied early.
    pub(super) fn wants_early(&self, member: Member) -> bool {
        let mode = self.members[member.index()];
        !self.is_uncopied(member) && mode.is_some_and(|mode| self.ways(mode).delay)
    }

    /// A page is used by a disk that the table does not serve. Returns the block that it held, which its disk is to be
    /// told of ([`Exclusive::departs`](super::Exclusive::departs)).
    pub fn reused(&mut self, page: u32) -> Option<Resident> {
        self.pay();
        let left = self.residency.vacate(page)?;
        self.evicted(&left);
        Some(left)
    }

    /// Whether copies have to wait, because they have used up their processor time.
    pub fn set_throttled(&mut self, throttled: bool) {
        self.throttled = throttled;
    }

    /// A page was transferred, which pays for copies.
    #[inline]
    pub(super) fn pay(&mut self) {
        self.credit = (self.credit + COPIES_PER_TRANSFER).min(CREDIT_MAX);
    }

    /// A page was reused: a block is evicted.
    #[inline]
    pub(super) fn evicted(&mut self, left: &Resident) {
        self.evictions += 1;
        // What is kept longer than most was filled by a read before, as a rule.
        self.seen[usize::from(left.class == Class::Write)].add(left.age);
        if left.class == Class::Kept {
            self.seen[Class::Kept as usize].add(left.age);
        }
    }

    /// The ways of learning content in use by a disk in `mode`.
    pub(super) fn ways(&self, mode: ExclusiveMode) -> Ways {
        if mode == ExclusiveMode::Auto { self.ways } else { mode.ways() }
    }

    /// Finds out which ways pay: a copy at reuse held its block, or not.
    pub(super) fn judge(&mut self, held: bool) {
        self.judged.0 += 1;
        self.judged.1 += u64::from(held);
        let (tried, good) = self.judged;
        if tried < JUDGED_AFTER {
            return;
        }
        // Where nearly every page still holds its block at reuse, early copies are not worth their time.
        self.ways = Ways { capture: good >= tried / CAPTURE_PAYS_PART, delay: good * 10 < tried * 9 };
        self.judged = (0, 0);
    }

    /// What copies at reuse have shown is forgotten: most were of a disk that is not copied any more, and other disks
    /// are to be judged by their own.
    pub(super) fn judge_anew(&mut self) {
        (self.ways, self.judged) = (ExclusiveMode::Auto.ways(), (0, 0));
    }

    /// Goes on with forgetting what was to be forgotten, for a bounded time. Whether there is more.
    pub fn sweep(&mut self) -> bool {
        if self.residency.wants_sweep() {
            self.residency.sweep(SWEEP_PAGES);
        }
        self.residency.wants_sweep()
    }
}
