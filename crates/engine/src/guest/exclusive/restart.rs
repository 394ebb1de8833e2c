//! A guest that begins afresh: what its memory still holds of a disk is copied before it is overwritten.
//!
//! Owns which page is copied next. Never copies: the caller does, and compares the content. Invariants: a page that was
//! filled before the guest began afresh is looked at once and forgotten then; one that has been filled since stays
//! known.
//!
//! The cache of an exclusive disk has what its guest had evicted. After a reboot the guest asks for what it held, which
//! is what it had used most, and nobody else has that. A reset leaves memory as it is until the new kernel uses it.

use super::Exclusive;
use crate::guest::mode::Due;
use crate::guest::table::GuestTable;
use crate::index::Index;
use crate::index::tiers::Tier;
use crate::policy::PolicySet;
use crate::structures::slots::Slot;

/// Pages looked at for one copy at most, so that a call takes a bounded time.
const LOOKS_MAX: u32 = 256;
/// Blocks that are copied for one restart at most, which is 1 GiB and takes about a second of a processor.
const COPIES_MAX: u32 = 1 << 18;

/// Copies that may fail before any has held its block.
const TRIES: u32 = 1024;
/// Times that the guest has filled as many pages as it has, after which those that it still holds come first.
const OLD: u32 = 16;

/// Walks through the table of pages. Those that the guest has kept for long come first: it uses them most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restart {
    /// The last transfer before the guest began afresh.
    at: u32,
    /// The page to look at next.
    page: u32,
    /// Pages are copied in this walk that the guest had kept for so many transfers at least; the next one takes those
    /// of half the age, the last one all.
    oldest: u32,
    /// Blocks that may still be copied.
    left: u32,
    /// Copies that may still fail before one holds its block.
    tries: u32,
    /// The slot to look at next for a block that gives way to a copy.
    slot: Slot,
    /// One has been found, and there was no copy to take its place yet.
    gives_way: bool,
}

/// Times that the guest fills as many pages as it has before it is looked again for what it has dropped.
const DROPS_EVERY: u32 = 4;

/// What a look for pages to copy has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rescue {
    /// Copy this page, and call [`Exclusive::rescued`].
    Copy(Due),
    /// Nothing so far; there is more to look at.
    Later,
    /// All has been looked at.
    Done,
}

impl<K: PolicySet> Exclusive<K> {
    /// The guest begins afresh, with the memory that it had: what it held it will ask for again.
    pub fn restart(&mut self, table: &mut GuestTable, index: &Index<K>) {
        if self.is_inclusive() || table.residency.held_by(self.member) == 0 {
            // What it held is cached as far as an inclusive cache has room for it.
            self.restart = None;
            return table.residency.forget_member(self.member);
        }
        if self.is_restarting() {
            return;
        }
        // Where disks share an index, each may have as much of it as it has of the guest's memory.
        let held = (u64::from(table.residency.held_by(self.member)), u64::from(table.residency.held().max(1)));
        let part = (u64::from(index.limit()) * held.0).div_ceil(held.1) as u32;
        self.restarted = Some(table.residency.now());
        let (at, left) = (table.residency.now(), part.min(COPIES_MAX));
        // Where pages never held the disk's blocks none is copied; where none is known to have, few are until one has.
        let left = if self.is_opaque() { 0 } else { left };
        let tries = if self.stats.captures + self.stats.early > 0 { u32::MAX } else { TRIES };
        self.restart = Some(Restart {
            tries,
            at,
            page: 0,
            oldest: table.residency.pages().saturating_mul(OLD),
            left,
            slot: 0,
            gives_way: false,
        });
    }

    /// The guest seems to have dropped its cache, all of it or a part: it holds less than was thought. It will ask for
    /// that again, and its pages hold it until they are used. One that reads past its own cache looks like this, too:
    /// so it is not done often.
    #[cold]
    pub(super) fn dropped(&mut self, table: &mut GuestTable, index: &Index<K>) {
        let every = table.residency.pages().saturating_mul(DROPS_EVERY);
        if self.restarted.is_none_or(|at| table.residency.now().wrapping_sub(at) >= every) {
            self.restart(table, index);
        }
    }

    /// Whether what the guest held before it began afresh is still being looked through. Nothing is said meanwhile of
    /// what it holds.
    #[inline]
    pub fn is_restarting(&self) -> bool {
        self.restart.is_some()
    }

    /// The next page to copy, after a bounded number of looks.
    pub fn rescue(&mut self, table: &mut GuestTable, index: &mut Index<K>) -> Rescue {
        let Some(mut walk) = self.restart else { return Rescue::Done };
        for _ in 0..LOOKS_MAX {
            if walk.page >= table.residency.pages() {
                if walk.oldest == 0 {
                    self.restart = None;
                    return Rescue::Done;
                }
                walk.page = 0;
                walk.oldest = if walk.oldest > table.residency.pages() && walk.left > 0 { walk.oldest / 2 } else { 0 };
            }
            let page = walk.page;
            walk.page += 1;
            let since = table.residency.now().wrapping_sub(walk.at);
            let Some(what) = table.residency.get(page).filter(|what| what.member == self.member) else { continue };
            // Those filled since are not concerned, and the others may be for a later step.
            if what.age.checked_sub(since).is_none_or(|age| age < walk.oldest) {
                continue;
            }
            if let Some(slot) = index.peek(what.block) {
                index.set_tier(slot, Tier::Hot);
            } else if walk.left > 0 && what.tag.is_some() {
                walk.left -= 1;
                walk.make_way(index);
                self.restart = Some(walk);
                return Rescue::Copy(Due { page, what });
            }
            table.residency.forget(self.member, what.block);
        }
        self.restart = Some(walk);
        Rescue::Later
    }

    /// What came of a copy: whether it held the block.
    pub fn rescued(&mut self, table: &mut GuestTable, due: &Due, held: bool) {
        self.stats.restart_tried += 1;
        self.stats.restart_copied += u64::from(held);
        table.residency.forget(self.member, due.what.block);
        if let Some(walk) = &mut self.restart {
            walk.gives_way &= !held;
            walk.tries = if held { u32::MAX } else { walk.tries.saturating_sub(1) };
            if walk.tries == 0 {
                walk.left = 0;
            }
        }
    }
}

impl Restart {
    /// What is cached gives way, but for what is locked: the guest had evicted that before what it held in the end. A
    /// policy would let newcomers give way to each other.
    fn make_way<K: PolicySet>(&mut self, index: &mut Index<K>) {
        for _ in 0..LOOKS_MAX {
            if self.gives_way || self.slot >= index.capacity() {
                return;
            }
            let slot = self.slot;
            self.slot += 1;
            let stays = index.is_locked(slot) || index.is_buffered(slot);
            if index.block_of(slot).is_some() && !stays && index.tier(slot) == Tier::Hot {
                index.set_tier(slot, Tier::Cold);
                self.gives_way = true;
            }
        }
    }
}
