//! What happens to guests: they live, come and go, have their memory mapped anew, and their disks are reset; and what
//! the core may think of their pages.
//!
//! Owns the order in which the disks of a guest are told. Never decides what a page holds. Invariant: a disk sees one
//! memory at a time, and takes requests for that one only.

use super::Sim;
use crate::coverage::Seen;
use crate::sim_guest::SimGuest;
use undercroft_cache::fault_injection::FaultInjection;
use undercroft_cache::{DiskId, ExclusiveState, MemoryId};

/// Pages that may be copied for a disk of which none ever holds its block: enough to judge by, those under way, and
/// those of a trial or two.
const TRIES_MAX: u64 = 256 + 512 + 64 + 2 * 32;

/// In runs in which the disks of a guest are told at different times, one step in so many tells one of them.
const TOLD_RATE: u64 = 100;

impl<P: FaultInjection> Sim<P> {
    /// Something happens inside a guest.
    pub(super) fn guest_lives(&mut self) -> bool {
        let d = self.any_disk();
        let sees = self.world.sides[d].sees;
        match sees.and_then(|id| self.world.memories.get_mut(&id)) {
            Some(guest) => guest.live(&mut self.world.guest_rng),
            None => return false,
        }
        true
    }

    /// A guest comes, goes, or has its memory mapped anew.
    pub(super) fn guest_changes(&mut self, d: usize) {
        let d = self.world.sides[d].guest_of;
        let none = self.rng.one_in(4) && !self.extras.opaque;
        let mut guest = if none { None } else { Some(SimGuest::new(&mut self.rng)) };
        if let Some(guest) = guest.as_mut().filter(|_| self.extras.opaque) {
            guest.never_zero();
        }
        if let (Some(guest), Some(rng)) = (&mut guest, &mut self.extras.offsets) {
            guest.set_folio(*rng.pick(&[1, 4, 16]));
        }
        let pages = guest.as_ref().map_or(0, SimGuest::pages);
        self.see(Seen::Guest, d);
        self.world.note(|| format!("guest of disk {d}: {pages} pages"));
        let memory = guest.map(|guest| self.world.new_memory(guest));
        // All wait for it, so that it is there until the last of them sees it.
        let disks: Vec<usize> = (0..self.world.sides.len()).filter(|&e| self.world.sides[e].guest_of == d).collect();
        disks.iter().for_each(|&e| self.world.sides[e].awaits = Some(memory));
        for e in disks {
            if !self.extras.late.as_mut().is_some_and(|late| late.one_in(2)) {
                self.memory_changes(e, memory);
            }
        }
    }

    /// A disk sees another memory from now on, or the same one anew, and the core is told.
    fn memory_changes(&mut self, d: usize, memory: Option<u64>) {
        let id = DiskId(d as u32);
        self.world.note(|| format!("disk {d} sees memory {memory:?}"));
        match self.world.sees(d, memory) {
            Some((memory, pages)) => self.core().share_guest(id, MemoryId(memory), pages),
            None => self.core().set_guest(id, 0),
        }
    }

    /// Now and then, in runs that have it, a disk is told what others of its guest know already, or is reset.
    pub(super) fn tell_late(&mut self) {
        let disks = self.world.sides.len() as u64;
        let Some(late) = &mut self.extras.late else { return };
        if !late.one_in(TOLD_RATE) {
            return;
        }
        let d = late.below(disks) as usize;
        let side = &self.world.sides[d];
        let memory = side.awaits.unwrap_or(side.sees);
        if memory.is_some() || side.awaits.is_some() {
            self.count_guest(d);
            self.memory_changes(d, memory);
            let restarts = self.extras.late.as_mut().is_some_and(|late| late.one_in(2));
            if restarts && self.world.sides[d].sees.is_some() {
                self.see(Seen::Restart, d);
                self.world.note(|| format!("the guest of disk {d} begins afresh"));
                self.core().restart_guest(DiskId(d as u32));
            }
        }
    }

    /// A disk has come back. In some runs it is the same guest's again, which has gone on meanwhile.
    pub(super) fn guest_comes_back(&mut self, d: usize) {
        let memory = self.world.sides[d].awaits.flatten();
        if memory.is_some() && self.extras.late.as_mut().is_some_and(|late| !late.one_in(4)) {
            return self.memory_changes(d, memory);
        }
        self.guest_changes(d);
    }

    /// Counts the disks whose blocks do not begin at multiples of 4096.
    pub(super) fn count_offsets(&mut self) {
        for d in 0..self.world.sides.len() {
            let offset = self.core().exclusive(DiskId(d as u32)).map_or(0, |r| r.block_offset);
            self.outcome.offset += u64::from(offset != 0);
        }
    }

    /// A disk whose blocks the guest's pages never hold is found to be such a one after a limited number of copies.
    pub(super) fn judge_tries(&mut self) {
        for d in 0..self.world.sides.len() {
            if !self.world.sides[d].opaque {
                continue;
            }
            let Some(r) = self.core().exclusive(DiskId(d as u32)) else { continue };
            let (tried, held) = (r.stats.captures_tried + r.stats.early_tried, r.stats.captures + r.stats.early);
            if held == 0 && tried > TRIES_MAX {
                self.world.violate(format!("{tried} pages were copied for disk {d}, and none ever held its block"));
            }
            self.outcome.opaque += u64::from(matches!(r.state, ExclusiveState::Opaque { .. }));
        }
    }

    /// The core thinks of no page what it cannot hold.
    pub(super) fn judge_pages(&mut self) {
        let mut claimed = Vec::new();
        for d in 0..self.world.sides.len() {
            let Self { core, world, .. } = self;
            let Some(core) = core.as_ref() else { return };
            let id = DiskId(d as u32);
            core.for_each_guest_page(id, |page, block| {
                world.judge_page(d, page, core.place_of(id, block), &mut claimed);
            });
        }
    }
}
