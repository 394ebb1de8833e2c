//! What stays of the RAM store when another process goes on with it: which block is in which frame.
//!
//! Owns the way out of one core and into another. Never reads a frame. What goes is listed by the disks in the order in
//! which their blocks would be evicted; what else a policy knows (ghosts, frequencies), hashes of contents, guests'
//! tables and what disks share is learned again. Invariants: blocks have the same numbers in both; while a core is
//! frozen its frames are neither taken nor given back; a frame that was left is in one slot at most.

use super::Core;
use crate::fault_injection::FaultInjection;
use crate::types::{DiskId, KeptBlocks};
use undercroft_host::SharedMemory;

impl<P: FaultInjection> Core<P> {
    /// The memory that the frames are in; `None` if it goes with the process.
    pub fn frames_memory(&self) -> Option<SharedMemory> {
        self.arena.arena().memory().cloned()
    }

    /// From now on no frame is taken and none given back, whatever is evicted; or, that again.
    pub fn freeze_frames(&mut self, frozen: bool) {
        self.arena.arena_mut().freeze(frozen);
    }

    /// The cached blocks of a disk, those first that would go first. What it holds must not change until another
    /// process has gone on with it: nothing may be under way, and nothing come.
    pub fn kept(&mut self, id: DiskId) -> KeptBlocks {
        self.bring_index(id);
        self.disk(id).map_or_else(KeptBlocks::default, |d| d.kept(&self.arena))
    }

    /// Has a disk that is idle cache what another process has left of it, where slots are free. How many blocks.
    /// 0 where the disk cannot count its blocks as that process did.
    pub fn restore(&mut self, id: DiskId, kept: &KeptBlocks) -> u64 {
        let mut count = 0;
        self.with_disk(id, |d, arena| count = d.restore(kept, arena));
        count
    }

    /// What was left and is not in a slot is free.
    pub fn settle_frames(&mut self) {
        self.arena.arena_mut().settle();
    }
}
