//! Calls of a core about the guests of its disks: which guest there is, what it holds, what the scanner has found.
//!
//! Owns no state: each disk has its guest's side. Never reads guest memory. Invariant: a guest whose table was dropped
//! for lack of room gets a new table once there is room for it.

use super::Core;
use crate::content::ContentHash;
use crate::fault_injection::FaultInjection;
use crate::types::{DiskId, ExclusiveReport};

impl<P: FaultInjection> Core<P> {
    /// The disk's guest has `pages` pages of memory from now on, and nothing is known of what they hold; 0 if there is
    /// no guest, or none whose memory can be seen. To be called whenever the memory is mapped anew. The table of the
    /// pages, up to 40 bytes each, takes room from the disk's share; while that is more than a quarter of it, the cache
    /// is inclusive and [`Core::exclusive`] says why. Once the share has grown, the guest is followed again.
    pub fn set_guest(&mut self, id: DiskId, pages: u32) {
        self.with_disk(id, |d, arena| d.set_guest(pages, arena));
        self.make_room(0);
    }

    /// Whether the disk's cache is exclusive of its guest's, and if not, why; `None` if there is no such disk.
    pub fn exclusive(&mut self, id: DiskId) -> Option<ExclusiveReport> {
        self.disk_mut(id).map(|d| d.exclusive_report())
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
    pub fn cached_hashes(&mut self, id: DiskId, from: u32, most: u32, out: &mut Vec<(ContentHash, u64)>) -> Option<u32> {
        self.disk_mut(id)?.cached_hashes(from, most, out)
    }

    /// The disk's guest has been found to hold these contents: blocks that are cached with them are the first to go
    /// from now on. Returns how many there are.
    pub fn cool(&mut self, id: DiskId, found: &[(ContentHash, u64)]) -> u32 {
        self.disk_mut(id).map_or(0, |d| d.cool(found))
    }

    /// Makes new, empty tables for guests whose tables were dropped while their disks' shares were too small for them.
    pub(crate) fn restore_guests(&mut self) {
        for i in 0..self.disks.len() {
            self.bring_index(DiskId(i as u32));
            if let Some(pages) = self.disks[i].as_ref().and_then(|d| d.guest_to_restore()) {
                self.set_guest(DiskId(i as u32), pages);
            }
        }
    }
}
