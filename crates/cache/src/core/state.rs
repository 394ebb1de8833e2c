//! What can be asked of a core: counters, memory in use, what disks hold in common, what is cached; and the checks of
//! its invariants.
//!
//! Owns `MemoryUse`. Never changes anything. Invariant: every answer is computed from the disks and the store when it
//! is asked for, so it is never out of date.

use super::Core;
use crate::disk::ARENA_BYTES_PER_FRAME;
use crate::fault_injection::FaultInjection;
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

/// What the disks of a core lend each other for operations under way, beyond what each is guaranteed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoPoolUse {
    /// Frames that the disks have brought, each in proportion to its capacity.
    pub frames: u64,
    /// Frames lent.
    pub lent: u64,
    /// Of those, frames of disks that are gone or have become smaller: nobody may have their memory yet.
    pub owed: u64,
}

impl<P: FaultInjection> Core<P> {
    /// The counters of a disk; zeroes if there is none. Of one that keeps its blocks together with others
    /// ([`Core::join_pool`]), the capacity and the limit are those of all.
    pub fn stats(&self, id: DiskId) -> DiskStats {
        let Some(d) = self.disk(id) else { return DiskStats::default() };
        let mut s = d.stats();
        if let Some(holder) = self.index_holder(id).filter(|_| d.pool().is_some()) {
            let (of_pool, (cached, evicted)) = (holder.stats(), holder.counts_of(d));
            s.cached_blocks = u64::from(cached);
            s.evicted_blocks += evicted;
            (s.capacity_blocks, s.limit_blocks) = (of_pool.capacity_blocks, of_pool.limit_blocks);
        }
        if d.deduplicates() {
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
        self.index_holder(id).map(|d| d.index().kind())
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

    /// What the disks lend each other for operations under way.
    pub fn io_pool(&self) -> IoPoolUse {
        let pool = self.arena.pool();
        IoPoolUse { frames: pool.frames() as u64, lent: pool.lent() as u64, owed: pool.owed() as u64 }
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
        if let (Some(d), Some(holder)) = (self.disk(id), self.index_holder(id)) {
            holder.for_each_cached_of(d, &mut see);
        }
    }

    /// Checks every invariant that can be checked from inside; for tests.
    ///
    /// # Panics
    /// With what is broken.
    pub fn check(&self) {
        self.arena.pool().check();
        self.check_guests();
        let lent: usize = self.disks.iter().flatten().map(|d| d.check_loan()).sum();
        assert!(lent == self.arena.pool().lent(), "the pool has lent what no disk has");
        let mut held = 0;
        let mut shared = HashMap::new();
        for d in self.disks.iter().flatten() {
            held += d.check();
            for page in d.pages().map(|(_, page)| page).chain(d.pages_waiting()) {
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
        let disks = self.disks.iter().flatten();
        self.arena.check(disks.flat_map(|d| d.pages()));
        self.check_pools();
        let m = self.memory();
        assert!(m.frames_bytes + m.metadata_bytes <= m.ceiling_bytes, "over the ceiling: {m:?}");
    }

    /// Bytes beyond the shares, or what disks still hold where that is more: what a share that has shrunk has not given
    /// back to the kernel yet. Nobody outside this core may have them meanwhile.
    pub fn over_shares_bytes(&self) -> u64 {
        let (mut used, mut due) = (self.arena.arena().committed_bytes() as u64, 0);
        for d in self.disks.iter().flatten() {
            used += d.metadata_bytes() as u64;
            let held = d.charged(&self.arena).min(u64::from(u32::MAX)) as u32;
            due += d.promised_bytes_for(d.capacity_blocks().max(held));
        }
        used.saturating_sub(due)
    }
}
