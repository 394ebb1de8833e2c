//! The guests of a core's disks whose memory can be seen, and the table of each one's pages.
//!
//! Owns the tables and who shares them, and blocks that left a guest through a request to another disk, until the event
//! is over. Never decides whether there is room for a table: the core does. Invariants: disks have one guest exactly if
//! they have the same memory; a table serves those of its disks that are members, and no other; memory of a table that
//! serves nobody, not yet or no more, is paid for by those who will or did.

use crate::types::{DiskId, MemoryId};
use std::collections::VecDeque;
use undercroft_engine::residency::{MEMBERS_MAX, Member, Resident};
use undercroft_engine::{GuestTable, TableMemory};
use undercroft_host::Held;

/// A guest's number in its core; reused when the last disk leaves.
pub(crate) type GuestNumber = u16;

/// The number of no guest.
pub(crate) const NO_GUEST: GuestNumber = GuestNumber::MAX;

/// Blocks of other disks that one event can find to have left their guest; of more, nobody is told.
const LEFT_MAX: usize = 128;

/// Bytes that a table with several disks takes beside the table itself.
pub(crate) const LEFT_BYTES: u64 = (LEFT_MAX * size_of::<Left>()) as u64;

/// A guest.
#[derive(Debug)]
pub(crate) struct KnownGuest {
    /// Its memory, if other disks can have the same.
    pub memory: Option<MemoryId>,
    /// Pages of that.
    pub pages: u32,
    /// Its disks, those that are not kept exclusive of it among them.
    pub disks: Vec<DiskId>,
    /// The disks that the table serves, by their numbers there.
    members: Vec<Option<DiskId>>,
    /// There was no room for the table when last looked.
    pub refused: bool,
    /// It stands among those that wait.
    waits: bool,
}

/// A table.
#[derive(Debug)]
pub(crate) struct Owned {
    pub table: Box<GuestTable>,
    /// Disks that pay for a part of it and are no members any more, with the bytes of each.
    pub former: Vec<(DiskId, u64)>,
}

/// Memory of a table that is not made yet, or served somebody before.
#[derive(Debug)]
pub(crate) struct Unused {
    pub memory: TableMemory,
    /// Disks that pay for it, with the bytes of each.
    pub payers: Vec<(DiskId, u64)>,
    /// Nobody takes it, whoever has a guest of as many pages: there was no room for that.
    pub goes: bool,
}

/// A block that left a guest through a request to another of its disks.
#[derive(Debug)]
pub(crate) struct Left {
    /// The guest.
    pub guest: GuestNumber,
    /// The disk that the request was for.
    pub by: DiskId,
    /// The block, and whose it is.
    pub what: Resident,
    /// A copy of what its page held, if one was made.
    pub copy: Option<Held>,
}

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct Guests {
    tables: Vec<Option<Owned>>,
    known: Vec<Option<KnownGuest>>,
    left: Vec<Left>,
    /// Memory of tables that serve nobody, made or given back a step of each in turn.
    pub unused: VecDeque<Unused>,
    /// Guests whose table is to come, or to be paid for by others.
    waiting: VecDeque<GuestNumber>,
}

impl Guests {
    /// A disk comes whose guest has `pages` pages, of `memory` if that can be told from others.
    pub fn enter(&mut self, memory: Option<MemoryId>, pages: u32, disk: DiskId) -> GuestNumber {
        let same = |k: &Option<KnownGuest>| {
            let same = |k: &KnownGuest| (k.memory, k.pages) == (memory, pages) && k.disks.len() < MEMBERS_MAX;
            memory.is_some() && k.as_ref().is_some_and(same)
        };
        let free = || self.known.iter().position(Option::is_none);
        let at = self.known.iter().position(same).or_else(free).unwrap_or(self.known.len());
        if at == self.known.len() {
            self.known.push(None);
            self.tables.push(None);
        }
        let known = self.known[at].get_or_insert(KnownGuest {
            memory,
            pages,
            disks: Vec::new(),
            members: Vec::new(),
            refused: false,
            waits: false,
        });
        known.disks.push(disk);
        at as GuestNumber
    }

    /// A disk has that guest no more. Its table, if there is one, does not serve the disk any more. The disk goes on
    /// paying for its part until others do, or the table's memory is as new.
    pub fn leave(&mut self, guest: GuestNumber, disk: DiskId) {
        let Some(known) = self.known[usize::from(guest)].as_mut() else { return };
        known.disks.retain(|&d| d != disk);
        if known.disks.is_empty() {
            self.retire(guest);
            self.known[usize::from(guest)] = None;
        }
        if self.known.iter().flatten().all(|k| k.disks.len() < 2) {
            self.left = Vec::new();
        }
    }

    /// A guest, if there is one of this number.
    pub fn known(&self, guest: GuestNumber) -> Option<&KnownGuest> {
        self.known.get(usize::from(guest))?.as_ref()
    }

    /// The same, to be changed.
    pub fn known_mut(&mut self, guest: GuestNumber) -> Option<&mut KnownGuest> {
        self.known.get_mut(usize::from(guest))?.as_mut()
    }

    /// Numbers that guests have or had.
    pub fn numbers(&self) -> GuestNumber {
        self.known.len() as GuestNumber
    }

    /// The table of a guest, if it has one.
    #[inline]
    pub fn table(&self, guest: GuestNumber) -> Option<&GuestTable> {
        self.tables.get(usize::from(guest))?.as_ref().map(|owned| &*owned.table)
    }

    /// The same, to be changed.
    #[inline]
    pub fn table_mut(&mut self, guest: GuestNumber) -> Option<&mut GuestTable> {
        self.tables.get_mut(usize::from(guest))?.as_mut().map(|owned| &mut *owned.table)
    }

    /// Gives a guest its table, which serves nobody yet.
    pub fn set_table(&mut self, guest: GuestNumber, table: Box<GuestTable>) {
        self.tables[usize::from(guest)] = Some(Owned { table, former: Vec::new() });
        if let Some(known) = self.known_mut(guest) {
            known.members.clear();
        }
    }

    // ---- tables whose disks have left ----

    /// Takes a guest's table away, if it has one: it serves nobody any more.
    pub fn retire(&mut self, guest: GuestNumber) {
        if let Some(Owned { table, former }) = self.tables[usize::from(guest)].take() {
            self.unused.push_back(Unused { memory: table.into_memory(), payers: former, goes: false });
        }
        if let Some(known) = self.known_mut(guest) {
            known.members.clear();
        }
    }

    /// A disk pays for `bytes` of a guest's table that does not serve it any more; false if there is no table.
    pub fn owe(&mut self, guest: GuestNumber, disk: DiskId, bytes: u64) -> bool {
        let Some(owned) = self.tables.get_mut(usize::from(guest)).and_then(Option::as_mut) else { return false };
        owned.former.push((disk, bytes));
        true
    }

    /// Those who pay for a guest's table that does not serve them pay no more: who, and what each did.
    pub fn forgive(&mut self, guest: GuestNumber) -> Vec<(DiskId, u64)> {
        let owned = self.tables.get_mut(usize::from(guest)).and_then(Option::as_mut);
        owned.map_or(Vec::new(), |owned| std::mem::take(&mut owned.former))
    }

    /// What a disk pays for its guest's table without being a member: it is to become one again.
    pub fn take_back(&mut self, guest: GuestNumber, disk: DiskId) -> u64 {
        let Some(owned) = self.tables.get_mut(usize::from(guest)).and_then(Option::as_mut) else { return 0 };
        let bytes = owned.former.iter().filter(|f| f.0 == disk).map(|f| f.1).sum();
        owned.former.retain(|f| f.0 != disk);
        bytes
    }

    /// Memory that serves nobody and that this disk pays for.
    pub fn take_unused_of(&mut self, disk: DiskId) -> Option<Unused> {
        let at = self.unused.iter().position(|unused| unused.payers.iter().any(|p| p.0 == disk))?;
        self.unused.remove(at)
    }

    /// A guest for whose table this disk pays without being a member.
    pub fn owed_by(&self, disk: DiskId) -> Option<GuestNumber> {
        let owes = |owned: &Option<Owned>| owned.iter().any(|owned| owned.former.iter().any(|f| f.0 == disk));
        self.tables.iter().position(owes).map(|at| at as GuestNumber)
    }

    /// Those who pay for a guest's table and are no members any more, with the bytes of each.
    pub fn former(&self, guest: GuestNumber) -> &[(DiskId, u64)] {
        self.tables.get(usize::from(guest)).and_then(Option::as_ref).map_or(&[], |owned| &owned.former)
    }

    /// A guest's table is to come, or to be paid for by others: that is for spare time.
    pub fn wait_for(&mut self, guest: GuestNumber) {
        if let Some(known) = self.known_mut(guest).filter(|k| !k.waits) {
            known.waits = true;
            self.waiting.push_back(guest);
        }
    }

    /// One of those guests.
    pub fn next_waiting(&mut self) -> Option<GuestNumber> {
        let guest = self.waiting.pop_front()?;
        if let Some(known) = self.known_mut(guest) {
            known.waits = false;
        }
        Some(guest)
    }

    /// Whether there is something to do for tables.
    #[inline]
    pub fn are_busy(&self) -> bool {
        !self.unused.is_empty() || !self.waiting.is_empty()
    }

    /// A member of a guest's table is this disk, or none any more.
    pub fn set_member(&mut self, guest: GuestNumber, member: Member, disk: Option<DiskId>) {
        let Some(known) = self.known_mut(guest) else { return };
        if known.members.len() <= member.index() {
            known.members.resize(member.index() + 1, None);
        }
        known.members[member.index()] = disk;
        // What the table's disks pay for includes this.
        if known.disks.len() > 1 && self.left.capacity() == 0 {
            self.left.reserve_exact(LEFT_MAX);
        }
    }

    /// The disk that is a member of a guest's table.
    pub fn disk_of(&self, guest: GuestNumber, member: Member) -> Option<DiskId> {
        self.known(guest)?.members.get(member.index()).copied().flatten()
    }

    /// The `n`th of the disks that a guest's table serves, besides `disk`.
    pub fn other(&self, guest: GuestNumber, disk: DiskId, n: usize) -> Option<DiskId> {
        self.known(guest)?.members.iter().flatten().copied().filter(|&d| d != disk).nth(n)
    }

    // ---- blocks of other disks ----

    /// Whether one more block of another disk can be noted.
    pub fn has_room(&self) -> bool {
        self.left.len() < LEFT_MAX
    }

    /// Notes a block of another disk; there is room for it.
    pub fn note(&mut self, left: Left) {
        self.left.push(left);
    }

    /// Whether blocks of other disks were noted.
    #[inline]
    pub fn any_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// The one noted last.
    pub fn take_left(&mut self) -> Option<Left> {
        self.left.pop()
    }
}
