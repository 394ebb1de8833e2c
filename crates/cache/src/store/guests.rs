//! The guests of a core's disks whose memory can be seen, and the table of each one's pages.
//!
//! Owns the tables and who shares them, and blocks that left a guest through a request to another disk, until the event
//! is over. Never decides whether there is room for a table: the core does. Invariants: disks have one guest exactly if
//! they have the same memory; a table serves those of its disks that are members, and no other.

use crate::types::{DiskId, MemoryId};
use undercroft_engine::GuestTable;
use undercroft_engine::residency::{MEMBERS_MAX, Member, Resident};
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
    tables: Vec<Option<Box<GuestTable>>>,
    known: Vec<Option<KnownGuest>>,
    left: Vec<Left>,
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
        });
        known.disks.push(disk);
        at as GuestNumber
    }

    /// A disk has that guest no more. Its table, if there is one, does not serve the disk any more.
    pub fn leave(&mut self, guest: GuestNumber, disk: DiskId) {
        let Some(known) = self.known[usize::from(guest)].as_mut() else { return };
        known.disks.retain(|&d| d != disk);
        if known.disks.is_empty() {
            self.known[usize::from(guest)] = None;
            self.tables[usize::from(guest)] = None;
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
        self.tables.get(usize::from(guest))?.as_deref()
    }

    /// The same, to be changed.
    #[inline]
    pub fn table_mut(&mut self, guest: GuestNumber) -> Option<&mut GuestTable> {
        self.tables.get_mut(usize::from(guest))?.as_deref_mut()
    }

    /// Gives a guest its table, or takes it away.
    pub fn set_table(&mut self, guest: GuestNumber, table: Option<Box<GuestTable>>) {
        self.tables[usize::from(guest)] = table;
        if let Some(known) = self.known_mut(guest) {
            known.members.clear();
        }
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
