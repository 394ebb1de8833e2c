//! The disk's part in the table of its guest's pages: how it becomes a member of that and stops being one, and what it
//! pays.
//!
//! Owns no state beside the disk's. Never decides who has a part: the core does (`core/tables.rs`). Invariants: a
//! member pays for its part; a disk that is no member any more goes on paying for what it had, until others do or the
//! table's memory is gone or serves it again; no call takes more than a bounded time.

use crate::disk::{B, Disk};
use crate::fault_injection::{Bug, FaultInjection};
use crate::limits::{GUEST_TABLE_PART, SHRINK_BLOCKS_PER_EVENT};
use crate::store::ram::Store;
use undercroft_engine::Exclusive;

/// How far a disk has come on the way to a larger part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Raised {
    /// It pays for all of it, and has evicted what that takes.
    Ready,
    /// A step was done, and there is more to do.
    Moved,
    /// There is more to do, and nothing could be done now.
    Stuck,
}

impl<P: FaultInjection> Disk<P> {
    /// Bytes that the disk takes for itself where it is a member of a table, and the most that may be spent on both.
    pub(crate) fn table_room(&self) -> (u64, u64) {
        let allowed = self.own_blocks() * B / GUEST_TABLE_PART;
        (self.table_own().max(self.table_made()), allowed)
    }

    /// Bytes that the disk is to take for itself as a member.
    fn table_own(&self) -> u64 {
        Exclusive::own_bytes_for(self.capacity.slots())
    }

    /// Those that it takes now.
    fn table_made(&self) -> u64 {
        self.side.exclusive.as_ref().map_or(0, |e| e.memory_bytes_max())
    }

    /// Bytes of its guest's table that the disk pays for.
    pub(crate) fn table_part(&self) -> u64 {
        self.side.part_bytes
    }

    /// Bytes that it pays for of tables that it is no member of any more.
    pub(crate) fn owed_bytes(&self) -> u64 {
        self.side.owed_bytes
    }

    /// Whether the disk can go on paying for tables with the capacity that it has now.
    pub(in crate::disk) fn affords_table(&self) -> bool {
        self.side.table_bytes() + self.side.owed_bytes <= self.own_blocks() * B / 2
    }

    /// Pays for up to `part` bytes of a table, at most `blocks` blocks' worth more than now, and evicts at most about
    /// as many blocks.
    pub(crate) fn raise_table_part(&mut self, part: u64, blocks: u32, arena: &mut Store) -> Raised {
        let own = self.table_own().saturating_sub(self.table_made());
        let (now, len) = (self.side.part_bytes, self.len());
        let next = part.min(now.saturating_add(u64::from(blocks) * B)).max(now);
        self.side.part_bytes = next;
        self.account_overhead_with(self.side.overhead_blocks_with(own) - self.side.overhead_blocks(), arena);
        self.evict_step(blocks, arena);
        match next >= part && self.excess() == 0 {
            true => Raised::Ready,
            false if next > now || self.len() < len => Raised::Moved,
            false => Raised::Stuck,
        }
    }

    /// Makes the disk a member of its guest's table. False if that serves as many as it can.
    pub(crate) fn enter_table(&mut self, arena: &mut Store) -> bool {
        let (mode, kind, slots) = (self.side.mode, self.residents.index().kind(), self.capacity.slots());
        let (id, guest) = (self.settings.id(), self.side.guest);
        let Some(table) = arena.guests.table_mut(guest) else { return false };
        let Some(member) = table.join(mode) else { return false };
        let mut exclusive = Exclusive::new(table, member, mode, kind, slots, self.settings.hash_key());
        if let Some(gave_up) = &self.side.opaque {
            exclusive.ask_again(table, *gave_up.stats());
        }
        arena.guests.set_member(guest, member, Some(id));
        self.side.exclusive = Some(Box::new(exclusive));
        self.side.refused = None;
        self.residents.index_mut().set_tiers(true);
        true
    }

    /// The disk pays for so much of its guest's table.
    pub(crate) fn set_table_part(&mut self, part: u64, arena: &mut Store) {
        self.side.part_bytes = part;
        self.account_overhead(arena);
    }

    /// What the disk pays for its guest's table is for one that does not serve it yet; how much that is.
    pub(crate) fn owe_part(&mut self) -> u64 {
        let part = std::mem::take(&mut self.side.part_bytes);
        self.side.owed_bytes += part;
        part
    }

    /// What the disk pays for a table that it is no member of becomes its part in its guest's.
    pub(crate) fn keep_part(&mut self, bytes: u64) {
        self.side.owed_bytes -= bytes;
        self.side.part_bytes += bytes;
    }

    /// The disk pays `bytes` less for tables that it is no member of.
    pub(crate) fn forgiven(&mut self, bytes: u64, arena: &mut Store) {
        self.side.owed_bytes -= bytes;
        self.account_overhead(arena);
    }

    /// Whether what the disk's cache is held against has other slots than that, and could have as many.
    pub(crate) fn wants_to_follow(&self) -> bool {
        let index = self.residents.index();
        let slots = self.capacity.slots();
        self.side.exclusive.as_ref().is_some_and(|e| e.capacity() != slots)
            && !index.is_resizing()
            && index.capacity() == slots
    }

    /// What the disk's cache is held against follows its slots and its policy. There is room for it.
    pub(crate) fn follow_slots(&mut self, arena: &mut Store) {
        let (kind, limit) = (self.residents.index().kind(), self.own_part(self.residents.index().limit()));
        let slots = self.capacity.slots();
        if let Some(e) = &mut self.side.exclusive {
            e.follow(kind, slots, limit);
        }
        self.account_overhead(arena);
    }

    /// It follows the policy.
    pub(in crate::disk) fn follow_policy(&mut self) {
        let (kind, limit) = (self.residents.index().kind(), self.own_part(self.residents.index().limit()));
        if let Some(e) = self.side.exclusive.as_mut().filter(|e| e.kind() != kind) {
            let slots = e.capacity();
            e.follow(kind, slots, limit);
        }
    }

    /// The disk is no member of a table any more, because it has another guest or there is no room: `refused` says what
    /// would be needed, and what is allowed. What the table knows of its pages is forgotten.
    pub(crate) fn leave_table(&mut self, refused: Option<(u64, u64)>, arena: &mut Store) {
        self.side.refused = refused;
        if let Some((e, table)) = self.side.both(arena) {
            let member = e.member();
            if !self.faults.has(Bug::TableOutlivesDisk) {
                table.residency_mut().forget_member(member);
            }
            table.leave(member);
            arena.guests.set_member(self.side.guest, member, None);
        }
        let was_member = self.side.exclusive.take().is_some();
        if was_member {
            self.cancel(0, u64::MAX);
            self.residents.index_mut().set_tiers(self.side.scanned || self.settings.first_to_go());
        }
        let (id, guest, part) = (self.settings.id(), self.side.guest, self.side.part_bytes);
        match part > 0 && !self.faults.has(Bug::OldTableUnpaid) && arena.guests.owe(guest, id, part) {
            true => _ = self.owe_part(),
            false => self.side.part_bytes = 0,
        }
        self.account_overhead(arena);
        if was_member {
            // What stood in tiers becomes the policy's, and that goes on in spare time.
            self.resize_step(SHRINK_BLOCKS_PER_EVENT, arena);
        }
    }
}
