//! Calls of a core about the guests of its disks: which guest there is, what it holds, what the scanner has found.
//!
//! Owns which disks have the same guest. Never reads guest memory, and never makes a table (`tables.rs` does).
//! Invariants: disks with the same memory share one table; a block that left its guest is credited to the disk that it
//! is a block of; no call takes longer for a guest with much memory than for one with little.

use super::Core;
use crate::content::ContentHash;
use crate::disk::Cx;
use crate::fault_injection::{Bug, FaultInjection};
use crate::store::guests::{Left, NO_GUEST};
use crate::types::{DiskId, Effects, ExclusiveReport, MemoryId};
use undercroft_engine::ExclusiveMode;

impl<P: FaultInjection> Core<P> {
    /// The disk's guest has `pages` pages of memory from now on, and nothing is known of what they hold; 0 if there is
    /// no guest, or none whose memory can be seen. To be called whenever the memory is mapped anew. No other disk has
    /// this guest; see [`Core::share_guest`]. The table of the pages, up to 40 bytes each, takes room from the disk's
    /// share; while that is more than a quarter of it, the cache is inclusive and [`Core::exclusive`] says why. Once
    /// the share has grown, the guest is followed again.
    ///
    /// A table that takes long to come (blocks go for it first, and the memory of the disk's former one is made as new)
    /// comes in spare time: [`Core::wants_spare`]. Until then the guest is not followed.
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
            self.follow_guest(guest);
        }
        self.enlist(id);
    }

    /// Puts a disk on the list of those that want spare time, if it does.
    fn enlist(&mut self, id: DiskId) {
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
        self.follow_guest(guest);
        self.enlist(id);
    }

    fn guest_is(&mut self, id: DiskId, memory: Option<MemoryId>, pages: u32) {
        let Some(guest) = self.disk(id).map(|d| d.guest()) else { return };
        if let Some(known) = self.arena.guests.known(guest) {
            if memory.is_some() && (known.memory, known.pages) == (memory, pages) {
                return;
            }
            // That of a disk alone goes.
            if !self.faults.has(Bug::TableOutlivesMap)
                && known.disks.len() > 1
                && let Some(table) = self.arena.guests.table_mut(guest)
            {
                table.forget_all();
            }
            self.leave_guest(id);
        }
        if pages > 0 {
            self.with_disk(id, |d, arena| {
                let guest = arena.guests.enter(memory, pages, id);
                d.set_guest(guest);
            });
            if let Some(guest) = self.disk(id).map(|d| d.guest()) {
                self.follow_guest(guest);
            }
        }
        self.enlist(id);
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
        self.follow_guest(guest);
        self.enlist(id);
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
            self.enlist(other);
        }
        left
    }
}
