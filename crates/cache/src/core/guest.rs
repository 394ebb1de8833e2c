//! Calls of a core about the guests of its disks: which guest there is, what it holds, what the scanner has found.
//!
//! Owns who shares a table of guest pages, whether there is room for it, and who pays how much. Never reads guest
//! memory. Invariants: disks with the same memory share one table, each paying in proportion to what its share allows,
//! but for those that it brings nothing; a guest whose table was dropped for lack of room gets a new one once there is
//! room for it; a block that left its guest is credited to the disk that it is a block of.

use super::Core;
use crate::content::ContentHash;
use crate::disk::Cx;
use crate::fault_injection::{Bug, FaultInjection};
use crate::store::guests::{GuestNumber, LEFT_BYTES, Left, NO_GUEST};
use crate::types::{DiskId, Effects, ExclusiveReport, MemoryId};
use undercroft_engine::HashKey;
use undercroft_engine::{ExclusiveMode, GuestTable};

/// A table that was dropped for lack of room comes back once there is so much more than it needs: one part in so many.
/// A share that moves to and fro would otherwise empty it each time.
const MORE_PART: u64 = 4;

/// A disk and its part in a table.
struct Payer {
    disk: DiskId,
    /// What the table may take of its share; 0 for a disk that has no room for a part.
    room: u64,
}

impl<P: FaultInjection> Core<P> {
    /// The disk's guest has `pages` pages of memory from now on, and nothing is known of what they hold; 0 if there is
    /// no guest, or none whose memory can be seen. To be called whenever the memory is mapped anew. No other disk has
    /// this guest; see [`Core::share_guest`]. The table of the pages, up to 40 bytes each, takes room from the disk's
    /// share; while that is more than a quarter of it, the cache is inclusive and [`Core::exclusive`] says why. Once
    /// the share has grown, the guest is followed again.
    pub fn set_guest(&mut self, id: DiskId, pages: u32) {
        self.guest_is(id, None, pages);
    }

    /// The same for a guest that other disks of this core may have as well: those with the same `memory`, whose pages
    /// have the same numbers for all of them. They share one table, and pay for it together. When the disk had other
    /// memory before, what is known of that is forgotten for all of its disks, since it is theirs no longer, or not for
    /// long. When it had this memory before, nothing changes: its front end stopped and goes on; see
    /// [`Core::restart_guest`].
    pub fn share_guest(&mut self, id: DiskId, memory: MemoryId, pages: u32) {
        self.guest_is(id, Some(memory), pages);
    }

    /// The disk's guest begins afresh with the memory that it had, as at a reboot: it holds nothing of what it held,
    /// and will ask for that again. What its pages still hold of it is copied first, when the replies are out: in a
    /// bounded time, at most as much as the cache holds, what the guest kept for long before the rest.
    pub fn restart_guest(&mut self, id: DiskId) {
        self.with_disk(id, |d, arena| {
            d.restart_guest(arena);
            d.begin_session(arena);
        });
        if let Some(guest) = self.disk(id).map(|d| d.guest()) {
            self.fit_guest(guest);
            self.make_room(0);
        }
        let Some(disk) = self.disk_mut(id) else { return };
        if disk.wants_spare() && disk.enlist() {
            self.spare.push_back(id);
        }
    }

    /// The disk has no guest any more, because it goes: others keep theirs, and what is known of their blocks.
    pub fn leave_guest(&mut self, id: DiskId) {
        let Some(guest) = self.disk(id).map(|d| d.guest()).filter(|&g| g != NO_GUEST) else { return };
        self.with_disk(id, |d, arena| {
            d.leave_table(None, arena);
            d.set_guest(NO_GUEST);
            arena.guests.leave(guest, id);
        });
        self.fit_guest(guest);
        self.make_room(0);
    }

    fn guest_is(&mut self, id: DiskId, memory: Option<MemoryId>, pages: u32) {
        let Some(guest) = self.disk(id).map(|d| d.guest()) else { return };
        if let Some(known) = self.arena.guests.known(guest) {
            if memory.is_some() && (known.memory, known.pages) == (memory, pages) {
                return;
            }
            if !self.faults.has(Bug::TableOutlivesMap)
                && let Some(table) = self.arena.guests.table_mut(guest)
            {
                table.clear();
            }
            self.leave_guest(id);
        }
        if pages > 0 {
            self.with_disk(id, |d, arena| {
                let guest = arena.guests.enter(memory, pages, id);
                d.set_guest(guest);
            });
            if let Some(guest) = self.disk(id).map(|d| d.guest()) {
                self.fit_guest(guest);
            }
        }
        self.make_room(0);
    }

    /// How the disk is kept exclusive of its guest from now on. Cached blocks stay; what the guest holds is learned
    /// anew.
    pub fn set_exclusive(&mut self, id: DiskId, mode: ExclusiveMode) {
        let mut guest = NO_GUEST;
        self.with_disk(id, |d, arena| {
            if d.set_exclusive(mode) {
                d.leave_table(None, arena);
                guest = d.guest();
            }
        });
        if let Some(known) = self.arena.guests.known_mut(guest) {
            known.refused = false;
        }
        self.fit_guest(guest);
        self.make_room(0);
    }

    /// Whether the disk's cache is exclusive of its guest's, and if not, why; `None` if there is no such disk.
    pub fn exclusive(&mut self, id: DiskId) -> Option<ExclusiveReport> {
        self.bring_index(id);
        self.disk(id).map(|d| d.exclusive_report(&self.arena))
    }

    /// Calls `see` with every page of the guest that is thought to hold a block of the disk, and with that block; for
    /// tests.
    pub fn for_each_guest_page(&self, id: DiskId, see: impl FnMut(u32, u64)) {
        if let Some(d) = self.disk(id) {
            d.for_each_guest_page(&self.arena, see);
        }
    }

    /// The byte of the disk that one of its blocks begins with: blocks are counted from where pages of the guest begin
    /// ([`ExclusiveReport::block_offset`]). The first one begins with byte 0.
    pub fn place_of(&self, id: DiskId, block: u64) -> u64 {
        self.disk(id).map_or(0, |d| d.place_of(block))
    }

    /// Whether the memory of the disk's guest is scanned for contents, so that [`Core::cool`] will be called: then the
    /// hash of everything cached is learned, and there is a place for what goes first.
    pub fn set_scanned(&mut self, id: DiskId, scanned: bool) {
        if let Some(d) = self.disk_mut(id) {
            d.set_scanned(scanned);
        }
    }

    /// Appends hashes and numbers of the disk's cached blocks to `out`, from slot `from` on, of at most `most` slots.
    /// Returns the slot to go on with, if there are more; what changes between two calls may be missed.
    pub fn cached_hashes(
        &mut self,
        id: DiskId,
        from: u32,
        most: u32,
        out: &mut Vec<(ContentHash, u64)>,
    ) -> Option<u32> {
        self.disk_mut(id)?.cached_hashes(from, most, out)
    }

    /// The disk's guest has been found to hold these contents: blocks that are cached with them are the first to go
    /// from now on. Returns how many there are.
    pub fn cool(&mut self, id: DiskId, found: &[(ContentHash, u64)]) -> u32 {
        self.disk_mut(id).map_or(0, |d| d.cool(found))
    }

    // ---- who pays for a table ----

    /// Looks whether there is room for the tables of all guests, and who pays for them, as shares are now.
    pub(crate) fn fit_guests(&mut self) {
        for guest in 0..self.arena.guests.numbers() {
            self.fit_guest(guest);
        }
    }

    /// Gives a guest its table if there is room for it, takes it away if there is none any more, and divides it among
    /// those who pay. Whoever pays more makes room first.
    fn fit_guest(&mut self, guest: GuestNumber) {
        let Some(known) = self.arena.guests.known(guest) else { return };
        let (pages, refused, disks) = (known.pages, known.refused, known.disks.clone());
        let more = if disks.len() > 1 { LEFT_BYTES } else { 0 };
        let table = GuestTable::bytes_for(pages) + more;
        let mut payers = Vec::with_capacity(disks.len());
        let (mut needed, mut allowed, mut room) = (table, 0, 0);
        for disk in disks {
            self.bring_index(disk);
            let Some(d) = self.disk(disk).filter(|d| d.exclusive_mode() != ExclusiveMode::Off) else { continue };
            if !d.wants_table() {
                self.with_disk(disk, |d, arena| d.give_up_table(pages, arena));
                continue;
            }
            let (own, most) = d.table_room();
            let payer = Payer { disk, room: most.saturating_sub(own) };
            needed += own;
            allowed += most;
            room += payer.room;
            payers.push(payer);
        }
        let Some(key) = payers.first().and_then(|p| self.disk(p.disk)).map(|d| d.hash_key()) else {
            return self.arena.guests.set_table(guest, None);
        };
        let exists = self.arena.guests.table(guest).is_some();
        let fits = if !exists && refused { needed + needed / MORE_PART <= allowed } else { needed <= allowed };
        if let Some(known) = self.arena.guests.known_mut(guest) {
            known.refused = !(fits && table <= room);
        }
        if fits && table <= room {
            return self.divide(guest, &payers, table, room, key);
        }
        for payer in payers {
            self.with_disk(payer.disk, |d, arena| d.leave_table(Some((needed, allowed)), arena));
        }
        self.arena.guests.set_table(guest, None);
    }

    /// Divides a guest's table, of `bytes` bytes, among those who have room for it, `room` bytes in all.
    fn divide(&mut self, guest: GuestNumber, payers: &[Payer], bytes: u64, room: u64, key: HashKey) {
        let part = |p: &Payer| (u128::from(bytes) * u128::from(p.room)).div_ceil(u128::from(room.max(1))) as u64;
        let exists = self.arena.guests.table(guest).is_some();
        let moves = |d: &crate::disk::Disk<P>, p: &Payer| {
            d.member().is_some() != (p.room > 0) || d.table_part().abs_diff(part(p)) > part(p) / 16
        };
        // What is paid in all must not become less than the table takes: so all parts change, or none.
        let paid: u64 = payers.iter().filter_map(|p| self.disk(p.disk)).map(|d| d.table_part()).sum();
        let changes = payers.iter().any(|p| self.disk(p.disk).is_some_and(|d| moves(d, p)));
        if exists && paid >= bytes && !changes {
            return;
        }
        for p in payers.iter().filter(|p| p.room > 0) {
            self.with_disk(p.disk, |d, arena| d.make_room_for_table(part(p), arena));
        }
        self.make_room(0);
        if !exists {
            let pages = self.arena.guests.known(guest).map_or(0, |k| k.pages);
            self.arena.guests.set_table(guest, Some(Box::new(GuestTable::new(pages, key))));
        }
        for p in payers {
            self.with_disk(p.disk, |d, arena| {
                if p.room == 0 {
                    let (own, most) = d.table_room();
                    return d.leave_table(Some((own, most)), arena);
                }
                if d.member().is_some() || d.enter_table(arena) {
                    d.set_table_part(part(p), arena);
                } else {
                    d.leave_table(Some((u64::MAX, 0)), arena);
                }
            });
        }
    }

    // ---- blocks that left through requests to other disks ----

    /// Tells disks of blocks that left their guest in the event that is over.
    #[cold]
    pub(super) fn tell_left(&mut self) {
        while let Some(Left { guest, by, what, copy }) = self.arena.guests.take_left() {
            let copied = copy.is_some();
            let wrong = self.faults.has(Bug::PageOfWrongDisk);
            let of = if wrong { Some(by) } else { self.arena.guests.disk_of(guest, what.member) };
            if let Some(id) = of {
                self.bring_index(id);
            }
            let Some(disk) = of.and_then(|id| self.disks.get_mut(id.0 as usize)).and_then(Option::as_mut) else {
                if let Some(held) = copy {
                    self.arena.release(held);
                    self.with_disk(by, |d, arena| d.handed_over(arena));
                }
                continue;
            };
            disk.left(what, copy, &mut self.arena);
            if disk.wants_spare() && disk.enlist() {
                self.spare.push_back(disk.id());
            }
            if copied {
                self.with_disk(by, |d, arena| d.handed_over(arena));
            }
        }
    }

    /// Copies pages of the other disks of `id`'s guest before their eviction: pages are evicted by whatever comes into
    /// the guest, also while nobody asks for anything of their own disk. `left` is what the event may still copy;
    /// returns what is left of that.
    pub(super) fn copy_for_others<E: Effects>(
        &mut self,
        id: DiskId,
        copies: bool,
        mut left: u64,
        now_ns: u64,
        fx: &mut E,
    ) -> u64 {
        let Some(guest) = self.disk(id).map(|d| d.guest()) else { return left };
        let mut n = 0;
        while let Some(other) = self.arena.guests.other(guest, id, n) {
            n += 1;
            if left == 0 {
                break;
            }
            self.bring_index(other);
            let Some(disk) = self.disks.get_mut(other.0 as usize).and_then(Option::as_mut) else { continue };
            let cx = &mut Cx { fx: &mut *fx, arena: &mut self.arena, now_ns, left };
            disk.copy_early(copies, cx);
            disk.go_on(cx);
            left = cx.left;
        }
        left
    }

    /// Checks the tables of guests against their disks; for tests.
    ///
    /// # Panics
    /// With what is broken.
    pub(super) fn check_guests(&self) {
        let guests = &self.arena.guests;
        assert!(!guests.any_left(), "a block that left its guest was told to nobody");
        for guest in 0..guests.numbers() {
            let disks = self.disks.iter().flatten().filter(|d| d.guest() == guest);
            let (members, paid) = disks.fold((0, 0), |(members, paid), d| {
                let right = d.member().is_none_or(|m| guests.disk_of(guest, m) == Some(d.id()));
                assert!(right, "a disk is another's member of their guest's table");
                (members + usize::from(d.member().is_some()), paid + d.table_part())
            });
            let Some(table) = guests.table(guest) else {
                assert!(members == 0 && paid == 0, "a disk is a member of a table that there is not");
                continue;
            };
            table.residency().check();
            assert!(members == table.members(), "a table serves a disk that is not its guest's");
            assert!(paid >= GuestTable::bytes_for(table.residency().pages()), "a table is not paid for");
        }
    }
}
