//! The invariants of a disk that can be checked from inside; for tests.
//!
//! Owns no state. Never changes anything. Invariant: a disk that is sound passes, whatever is under way.

use super::Disk;
use crate::fault_injection::FaultInjection;

impl<P: FaultInjection> Disk<P> {
    pub(crate) fn for_each_cached(&self, see: &mut impl FnMut(u64, &[u8])) {
        for (block, slot) in self.index.iter() {
            if let Some(f) = &self.frames[slot as usize] {
                see(block, &f.bytes()[..self.block_bytes(block) as usize]);
            }
        }
        for (block, f) in self.ring.iter() {
            see(block, &f.bytes()[..self.block_bytes(block) as usize]);
        }
    }

    /// Checks the disk's invariants; returns how many frames are with operations or read ahead.
    pub(crate) fn check(&self) -> usize {
        self.index.check();
        self.check_parts();
        if let Some(e) = &self.side.exclusive {
            e.residency().check();
        }
        let hashed = self.hashes.iter().zip(&self.frames).all(|(&h, f)| h == 0 || f.is_some());
        assert!(hashed && (!self.contents || self.hashes.len() == self.frames.len()), "a hash without its content");
        let resident = self.frames.iter().flatten().count();
        assert!(resident == self.resident as usize, "resident blocks are miscounted");
        let named = self.index.iter().filter(|&(_, s)| self.frames[s as usize].is_some()).count();
        assert!(named == resident, "a frame sits in a slot without a block");
        assert!(self.demand_used <= self.allowance.demand, "more frames under way than allowed");
        assert!(self.ahead_used <= self.allowance.ahead, "more frames read ahead than allowed");
        let ahead = self.near.values().filter(|n| matches!(n, crate::disk::records::Near::Ahead(_))).count();
        assert!(ahead == self.ring.held(), "the ring of blocks read ahead and its table disagree");
        if self.is_idle() {
            assert!(self.demand_used == 0 && self.ops_used == 0, "an idle disk has frames under way");
            assert!(self.ahead_used == ahead && self.near.len() == ahead, "an idle disk is reading");
            assert!(self.waiters.len() == 0 && self.changes.is_empty(), "an idle disk has somebody waiting");
            assert!(self.blocked.is_empty() && self.starved.is_empty() && self.ready.is_empty());
        }
        self.demand_used + self.ahead_used
    }
}
