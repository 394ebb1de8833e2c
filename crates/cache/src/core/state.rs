//! What a core tells of itself: counters, memory, who shares what, what is cached; and the checks of its invariants.
//!
//! Owns the form in which memory in use is told. Never changes anything: all it does takes the core as it is.
//! Invariant: what it says is computed from the disks and the store when it is asked, so it is never out of date.

use super::Core;
use crate::disk::Disk;
use crate::fault_injection::FaultInjection;
use crate::memory::ARENA_BYTES_PER_FRAME;
use crate::types::{DiskId, DiskStats, SharingDomainReport};
use std::collections::HashMap;
use undercroft_engine::PolicyKind;

/// Where a core's memory is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes committed to frames: cached blocks, operations under way, and frames kept ready.
    pub frames_bytes: u64,
    /// Bytes of index, policies, ghosts and tables.
    pub metadata_bytes: u64,
    /// Bytes promised to disks: what the two can come to.
    pub promised_bytes: u64,
    /// The ceiling.
    pub ceiling_bytes: u64,
}

impl<P: FaultInjection> Core<P> {
    /// The counters of a disk; zeroes if there is none.
    pub fn stats(&self, id: DiskId) -> DiskStats {
        let Some(d) = self.disk(id) else { return DiskStats::default() };
        let mut s = d.stats();
        if d.sharing.is_on() {
            let account = self.arena.account(id);
            s.zero_blocks = u64::from(account.zeroes);
            s.shared_blocks = account.shared.iter().map(|&n| u64::from(n)).sum();
            s.charged_blocks = self.arena.charge(id);
        } else {
            s.charged_blocks = s.cached_blocks;
        }
        s
    }

    /// The policy of a disk.
    pub fn policy(&self, id: DiskId) -> Option<PolicyKind> {
        self.disk(id).map(|d| d.index.kind())
    }

    /// Where the memory is.
    pub fn memory(&self) -> MemoryUse {
        let disks: usize = self.disks.iter().flatten().map(|d| d.metadata_bytes()).sum();
        let arena = self.arena.arena();
        MemoryUse {
            frames_bytes: arena.committed_bytes() as u64,
            metadata_bytes: (disks + arena.reserved() * ARENA_BYTES_PER_FRAME + self.arena.memory_bytes()) as u64,
            promised_bytes: self.promised_bytes(),
            ceiling_bytes: self.options.memory_bytes,
        }
    }

    /// Who shares, and how much.
    pub fn domains(&self) -> Vec<SharingDomainReport> {
        self.arena.report()
    }

    /// Frames in slots, each counted once however many blocks it is: the sum of what all disks are charged.
    pub fn frames_used(&self) -> u64 {
        u64::from(self.arena.seated())
    }

    /// Calls `see` with every block of the disk that is in RAM, cached or read ahead, and its bytes.
    pub fn for_each_cached(&self, id: DiskId, mut see: impl FnMut(u64, &[u8])) {
        if let Some(d) = self.disk(id) {
            d.for_each_cached(&mut see);
        }
    }

    /// Checks every invariant that can be checked from inside; for tests.
    ///
    /// # Panics
    /// With what is broken.
    pub fn check(&self) {
        let mut held = 0;
        let mut shared = HashMap::new();
        for d in self.disks.iter().flatten() {
            held += d.check();
            for page in d.frames.iter().flatten().chain(d.side.waiting()) {
                let arena = self.arena.arena();
                if let Some(n) = arena.number_of(page) {
                    shared.entry(n).or_insert((0, arena.holders(page))).0 += 1;
                }
            }
        }
        assert!(shared.values().all(|&(found, holders)| found == holders), "holders of a frame are miscounted");
        held += shared.len();
        let arena = self.arena.arena();
        assert!(arena.reserved() - arena.available() == held, "frames are lost or counted twice");
        let slots = |d: &'_ Disk<P>| d.id;
        let disks = self.disks.iter().flatten();
        self.arena.check(disks.flat_map(|d| d.frames.iter().flatten().map(move |f| (slots(d), f))));
        let m = self.memory();
        assert!(m.frames_bytes + m.metadata_bytes <= m.ceiling_bytes, "over the ceiling: {m:?}");
    }
}

impl<P: FaultInjection> Disk<P> {
    fn for_each_cached(&self, see: &mut impl FnMut(u64, &[u8])) {
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
    fn check(&self) -> usize {
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
        let ahead = self.near.values().filter(|n| matches!(n, crate::records::Near::Ahead(_))).count();
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
