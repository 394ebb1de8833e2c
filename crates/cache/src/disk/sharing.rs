//! The frames that a disk holds in common with others: equal contents that were found, and blocks of its base image.
//!
//! Owns what a disk knows of its base and which of its blocks wait to be hashed. Never looks at another disk: what is
//! shared is found through the store, within the disk's own domains.
//! Invariants: a block counts as the base's only while no change of its cluster has begun since the base was set; a
//! frame is replaced by another only after all bytes were compared; a frame copied from a guest is never known as a
//! block of a base. The index's limit is the disk's frames and what deduplication saves it, so its charge stays within
//! its share.

use crate::content::{ContentHash, is_zeroes};
use crate::disk::{B, Disk};
use crate::fault_injection::{Bug, FaultInjection};
use crate::limits::{BASE_MAP_PART, IO_BLOCKS_MAX, UNLEARNED_MAX};
use crate::store::ram::{ALONE, SharingDomain, Store};
use crate::types::Base;
use std::collections::VecDeque;
use undercroft_host::Held;

/// The base of a disk.
#[derive(Debug)]
struct Standing {
    domain: SharingDomain,
    /// Whole blocks that both have.
    blocks: u32,
    /// Blocks of a cluster, as a power of two.
    shift: u32,
    own: Vec<u64>,
}

impl Standing {
    fn is_own(&self, cluster: u64) -> bool {
        self.own.get((cluster / 64) as usize).is_none_or(|w| w >> (cluster % 64) & 1 != 0)
    }
}

/// The part of a disk that is about frames held in common with other disks.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    /// The domain of its group.
    group: SharingDomain,
    base: Option<Box<Standing>>,
    /// Blocks whose content has not been hashed since it came.
    unlearned: VecDeque<u64>,
    /// Whether what the disk is charged may have changed since its limit was set.
    moved: bool,
}

impl Sharing {
    pub(crate) fn new(group: SharingDomain) -> Self {
        Self { group, ..Self::default() }
    }

    pub(super) fn is_on(&self) -> bool {
        self.group != ALONE
    }

    /// Bytes of metadata held now.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.map_bytes() as usize + self.unlearned.capacity() * size_of::<u64>()
    }

    /// Bytes that blocks which wait to be hashed take at most.
    pub(super) const fn queue_bytes_max() -> usize {
        2 * UNLEARNED_MAX * size_of::<u64>()
    }

    fn map_bytes(&self) -> u64 {
        self.base.as_ref().map_or(0, |b| (b.own.capacity() * size_of::<u64>() + size_of::<Standing>()) as u64)
    }

    /// Blocks of the disk's capacity that the map of its own clusters takes instead.
    pub(super) fn overhead_blocks(&self) -> u32 {
        self.map_bytes().div_ceil(B) as u32
    }

    /// What the disk is charged may have changed.
    #[inline]
    pub(super) fn moves(&mut self) {
        self.moved = true;
    }

    /// The disk's limit is set by what it is charged now.
    pub(super) fn settled(&mut self) {
        self.moved = false;
    }

    /// Whether what the disk is charged may have changed since its limit was set.
    #[inline]
    pub(super) fn is_unsettled(&self) -> bool {
        self.moved
    }

    /// Whether there is something to hash.
    #[inline]
    pub(crate) fn wants_spare(&self) -> bool {
        !self.unlearned.is_empty()
    }
}

impl<P: FaultInjection> Disk<P> {
    // ---- the base ----

    /// Sets the base image below the disk; cached blocks are dropped. False if there is no room for the map of the
    /// disk's own clusters, or if the disk holds nothing in common with others.
    pub(crate) fn set_base(&mut self, base: Base, arena: &mut Store) -> bool {
        let bytes = base.own.len() as u64 * size_of::<u64>() as u64;
        let cluster = u64::from(base.cluster_bytes);
        let sound = cluster.is_power_of_two() && cluster >= B;
        if self.own_count() > 0 || self.sharing.base.is_some() {
            self.invalidate(arena);
        }
        // Blocks that do not begin where the base's do are none of it.
        let sound = sound && self.settings.lead() == 0;
        if !self.sharing.is_on() || !sound || bytes > self.own_blocks() * B / BASE_MAP_PART {
            return false;
        }
        let blocks = (base.size_bytes.min(self.settings.size()) / B).min(u64::from(u32::MAX - 1)) as u32;
        self.make_room_for(bytes.div_ceil(B) as u32 + 1, arena);
        let domain = arena.stand_on(self.settings.id(), base.layer);
        let shift = (cluster / B).trailing_zeros();
        let mut own = base.own;
        own.shrink_to_fit();
        self.sharing.base = Some(Box::new(Standing { domain, blocks, shift, own }));
        // Changes that began before may still start operations on blocks that are not marked yet.
        let begun: Vec<(u64, u64)> = self.changes.active().collect();
        for (first, end) in begun {
            self.leave_base(first, end);
        }
        self.account_overhead(arena);
        true
    }

    /// The disk has no base any more; it holds nothing of it.
    pub(super) fn forget_base(&mut self, arena: &mut Store) {
        if self.sharing.base.take().is_some() {
            arena.leave_base(self.settings.id());
            if let Some(tier) = arena.tier_mut() {
                tier.forget_base(self.settings.id());
            }
            self.note_overhead();
        }
    }

    /// Whether the disk stands on a base.
    pub(crate) fn has_base(&self) -> bool {
        self.sharing.base.is_some()
    }

    /// The domain of the disk's group, within which equal contents are held once; `ALONE` if they are not.
    pub(crate) fn group(&self) -> SharingDomain {
        self.sharing.group
    }

    /// The domain of the disk's base.
    pub(crate) fn base_domain(&self) -> Option<SharingDomain> {
        self.sharing.base.as_ref().map(|base| base.domain)
    }

    /// The domain and the number of `block` in the base, if the disk has not changed it.
    #[inline]
    pub(super) fn base_block(&self, block: u64) -> Option<(SharingDomain, u32)> {
        let base = self.sharing.base.as_ref()?;
        let n = u32::try_from(block).ok().filter(|&n| n < base.blocks)?;
        (!base.is_own(block >> base.shift)).then_some((base.domain, n))
    }

    /// Blocks `first..end` are about to change: from now on they are the disk's own.
    pub(super) fn leave_base(&mut self, first: u64, end: u64) {
        let Some(base) = &mut self.sharing.base else { return };
        if self.faults.has(Bug::BaseNotLeft) {
            return;
        }
        let clusters = base.own.len() as u64 * 64;
        let (first, end) = ((first >> base.shift).min(clusters), (((end - 1) >> base.shift) + 1).min(clusters));
        if first >= end {
            return;
        }
        // Whole words at a time: a discard may be as large as the disk.
        let (from, to) = ((first / 64) as usize, ((end - 1) / 64) as usize);
        let (low, high) = (u64::MAX << (first % 64), u64::MAX >> (63 - (end - 1) % 64));
        if from == to {
            base.own[from] |= low & high;
        } else {
            base.own[from] |= low;
            base.own[from + 1..to].fill(u64::MAX);
            base.own[to] |= high;
        }
    }

    /// Whether `block` is in RAM as a block of the base, in a slot of whatever disk.
    #[inline]
    pub(super) fn is_at_base(&self, block: u64, arena: &Store) -> bool {
        self.base_block(block).is_some_and(|(domain, n)| arena.has_base(domain, n))
    }

    /// Looks whether another disk on the same base has `block` in RAM. If so, puts its frame into this disk's slot, if
    /// there is one for the block. Returns whether one has it.
    pub(super) fn adopt(&mut self, block: u64, arena: &mut Store) -> bool {
        let Some((domain, n)) = self.base_block(block) else { return false };
        let Some(held) = arena.again_base(domain, n) else { return false };
        let Some(slot) = self.residents.slot(block) else {
            arena.release(held);
            return true;
        };
        let known = arena.is_registered(&held);
        let seated = self.put_in_slot(slot, held, domain, arena);
        assert!(seated, "a frame that is in a slot takes no other");
        if !known || self.side.is_seen() {
            self.learn_in_slot_later(block, arena);
        }
        true
    }

    // ---- slots ----

    /// Puts a page into a slot, in place of what was there. False if the disks would then hold one frame too many: the
    /// slot is then empty, and the caller gives it up.
    #[must_use]
    pub(super) fn put_in_slot(&mut self, slot: u32, held: Held, domain: SharingDomain, arena: &mut Store) -> bool {
        let part = self.residents.part_of_slot(slot);
        let hash = self.residents.hash(slot);
        self.vacate(slot, self.residents.index().key_of(slot), part, arena);
        let common = arena.is_seated(&held);
        if !common && !arena.has_seat() {
            arena.release(held);
            // The charge of some disk went up when others gave shared frames up, and it has not evicted yet.
            arena.look_at_all();
            return false;
        }
        arena.seat(&held, self.settings.id(), domain);
        self.residents.put(slot, held);
        if let Some(hash) = hash.filter(|_| self.faults.has(Bug::HashOutlivesContent)) {
            self.residents.set_hash(slot, hash.get());
        }
        if !(common && self.faults.has(Bug::CommonOfNoPart)) {
            self.measuring.came(part);
        }
        self.sharing.moved = true;
        true
    }

    /// The domain that a frame with a new content of `block` belongs to, and its number if that is a base.
    pub(super) fn domain_for(&self, block: u64) -> (SharingDomain, Option<u32>) {
        match self.base_block(block) {
            Some((domain, n)) => (domain, Some(n)),
            None => (self.sharing.group, None),
        }
    }

    /// The same for a frame that was copied from a guest, which never counts as a block of the base.
    pub(super) fn domain_for_copy(&self, block: u64) -> (SharingDomain, Option<u32>) {
        if self.faults.has(Bug::CaptureTakenForBase) { self.domain_for(block) } else { (self.sharing.group, None) }
    }

    /// The content in `block`'s slot is to be hashed when there is time.
    pub(super) fn learn_in_slot_later(&mut self, block: u64, arena: &mut Store) {
        if !(self.sharing.is_on() || self.side.wants_hash(block, arena)) || !self.settings.is_whole(block) {
            return;
        }
        if self.sharing.unlearned.len() >= UNLEARNED_MAX {
            self.learn_oldest(arena);
        }
        self.sharing.unlearned.push_back(block);
    }

    /// Nothing waits to be hashed any more: nothing is cached.
    pub(super) fn forget_unlearned(&mut self) {
        self.sharing.unlearned.clear();
    }

    /// Whether as much waits to be hashed as may, but for what one operation brings.
    #[inline]
    pub(crate) fn is_behind(&self) -> bool {
        self.sharing.unlearned.len() > UNLEARNED_MAX - IO_BLOCKS_MAX
    }

    /// Hashes what has waited in a slot for longest.
    pub(super) fn learn_oldest(&mut self, arena: &mut Store) {
        let Some(block) = self.sharing.unlearned.pop_front() else { return };
        let Some(slot) = self.residents.slot(block) else { return };
        let Some(held) = self.residents.page(slot) else { return };
        if self.residents.hash(slot).is_some() {
            return;
        }
        self.stats.hashed_blocks += 1;
        let hash = self.side.hash(held.bytes());
        self.residents.set_hash(slot, hash.get());
        // While a change is under way, the guest's page may hold what is not on the disk yet.
        if !self.changes.active_in(block, block + 1) {
            self.side.note_hash(block, hash, arena);
        }
        self.deduplicate(slot, hash, arena);
    }

    /// The hash of a slot's content is known now: takes an equal frame of its domain instead, if there is one;
    /// otherwise lets this one be found by others.
    pub(super) fn deduplicate(&mut self, slot: u32, hash: ContentHash, arena: &mut Store) {
        if !self.sharing.is_on() {
            return;
        }
        let Some(held) = self.residents.page(slot) else { return };
        if held.is_zeroes() {
            return;
        }
        let (compare, within) =
            (!self.faults.has(Bug::DeduplicatesUncompared), !self.faults.has(Bug::DeduplicatesAcrossGroups));
        let mut equal = None;
        if is_zeroes(held.bytes()) {
            equal = Some(Held::zeroes());
        }
        let domain = arena.domain_of(held);
        let equal = equal.or_else(|| arena.find_equal(domain, hash, held, compare, within)).or_else(|| {
            let base = self.sharing.base.as_ref().filter(|b| b.domain != domain)?;
            arena.find_equal(base.domain, hash, held, compare, within)
        });
        let Some(equal) = equal else { return arena.register(held, hash, within) };
        arena.seat(&equal, self.settings.id(), ALONE);
        if let Some(old) = self.residents.replace(slot, equal) {
            arena.unseat(old, self.settings.id(), self.faults.has(Bug::ChargeLost));
        }
        self.sharing.moved = true;
    }
}
