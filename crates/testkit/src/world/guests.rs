//! The guests of a world: which memory each disk's port sees, and what the core may know of its pages.
//!
//! Owns no state beside the world's. Never calls the core. Invariant: a memory is there as long as a disk sees it, or
//! is to see it.

use super::World;
use crate::sim_guest::SimGuest;

impl World {
    /// A guest comes with memory of its own; returns the memory's number.
    pub(crate) fn new_memory(&mut self, guest: SimGuest) -> u64 {
        self.seen += 1;
        self.memories.insert(self.seen, guest);
        self.seen
    }

    /// The guest whose memory a disk sees.
    pub(crate) fn guest(&mut self, d: usize) -> Option<&mut SimGuest> {
        self.memories.get_mut(&self.sides[d].sees?)
    }

    /// A disk sees another memory from now on, or the same one anew. Returns its number and pages, if there is one.
    pub(crate) fn sees(&mut self, d: usize, memory: Option<u64>) -> Option<(u64, u32)> {
        let side = &mut self.sides[d];
        side.memory += 1;
        side.awaits = None;
        let before = std::mem::replace(&mut side.sees, memory);
        if before != memory
            && let Some(guest) = before.and_then(|id| self.memories.get_mut(&id))
        {
            // What the other disks know of the former goes as well.
            guest.forget(None);
        }
        let Self { sides, memories, .. } = self;
        memories.retain(|&id, _| {
            Some(id) == memory || sides.iter().any(|s| s.sees == Some(id) || s.awaits == Some(Some(id)))
        });
        let id = memory?;
        Some((id, self.memories.get(&id)?.pages()))
    }

    /// A disk goes, its guest stays: what is known of its blocks is to be forgotten. When it comes back it may see what
    /// it would have seen.
    pub(crate) fn goes(&mut self, d: usize) {
        if let Some(guest) = self.guest(d) {
            guest.forget(Some(d));
        }
        let side = &mut self.sides[d];
        side.awaits = Some(side.awaits.unwrap_or(side.sees));
        side.sees = None;
    }

    /// All guests are gone.
    pub(crate) fn forget_guests(&mut self) {
        self.memories.clear();
        self.sides.iter_mut().for_each(|s| (s.sees, s.awaits) = (None, None));
    }

    /// Notes that the core thinks that a page holds what a disk has from byte `place` on; `claimed` has what was said
    /// of the pages of this memory before. A page holds one block, of one disk, and one that was moved through it.
    pub(crate) fn judge_page(&mut self, d: usize, page: u32, place: u64, claimed: &mut Vec<(u64, u32)>) {
        let Some(id) = self.sides[d].sees else {
            return self.violate(format!("a page is thought to hold byte {place} of disk {d}, which has no guest"));
        };
        if !self.memories.get(&id).is_some_and(|guest| guest.may_hold(page, d, place)) {
            return self.violate(format!("page {page} is thought to hold byte {place} of disk {d}, and cannot"));
        }
        if claimed.contains(&(id, page)) {
            return self
                .violate(format!("page {page} is thought to hold two blocks, one of them at {place} of disk {d}"));
        }
        claimed.push((id, page));
    }
}
