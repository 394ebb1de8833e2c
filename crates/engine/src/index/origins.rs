//! One index for several disks: each disk counts its blocks from an origin of its own.
//!
//! Owns which disk is the present one, which disks have tiers, and what lapsed of disks that were not the present one.
//! Never moves a block of one disk to another. Invariant: a key is the origin of its disk and the number of the block,
//! so the keys of two disks are never the same; there is one policy, and one order of eviction, over the keys of all.
//!
//! The caller says which disk is the present one ([`Index::set_origin`]). Every call that takes or gives block numbers
//! is then about that disk; what is evicted is told as a key, because it may be any disk's.

use super::Index;
use super::tiers::Tier;
use crate::policy::{Policy, PolicySet};
use crate::structures::slots::Slot;
use std::collections::VecDeque;

/// Block numbers of a disk are below this, and origins are multiples of it.
pub const ORIGIN_STEP: u64 = 1 << 52;

/// Lapsed blocks of other disks that are remembered; the oldest are forgotten.
const LAPSED_MAX: usize = 64;

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct Origins {
    /// Origins of the disks that have tiers.
    tiered: Vec<u64>,
    lapsed: VecDeque<u64>,
}

impl Origins {
    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + (self.tiered.capacity() + self.lapsed.capacity()) * size_of::<u64>()
    }
}

/// The origin that a key was counted from.
pub fn origin_of(key: u64) -> u64 {
    key & !(ORIGIN_STEP - 1)
}

impl<K: PolicySet> Index<K> {
    /// From now on block numbers are those of the disk whose origin this is: a multiple of [`ORIGIN_STEP`]. The index
    /// is one for several disks from the first such call on.
    pub fn set_origin(&mut self, origin: u64) {
        debug_assert_eq!(origin_of(origin), origin, "an origin is no multiple of the step");
        let had = self.has_tiers();
        let origins = self.origins.get_or_insert_with(|| {
            Box::new(Origins { tiered: Vec::from_iter(had.then_some(origin)), lapsed: VecDeque::new() })
        });
        self.origin = origin;
        self.tiered = origins.tiered.contains(&origin);
    }

    /// Where the block with this key is, whosever it is, without telling the policy.
    #[inline]
    pub fn find(&self, key: u64) -> Option<Slot> {
        self.slots.find(key, self.slots.hash(key))
    }

    /// The block number of a key, if it is one of the present disk.
    #[inline]
    pub fn own(&self, key: u64) -> Option<u64> {
        (self.origins.is_none() || origin_of(key) == self.origin).then_some(key ^ self.origin)
    }

    /// Whether the tables of tiers are wanted, now that this disk wants them or not.
    pub(super) fn note_tiered(&mut self, on: bool) -> bool {
        let origin = self.origin;
        let Some(origins) = &mut self.origins else {
            self.tiered = on;
            return on;
        };
        origins.tiered.retain(|&o| o != origin);
        if on {
            origins.tiered.push(origin);
        }
        self.tiered = on;
        !origins.tiered.is_empty()
    }

    /// The block of the present disk that lapsed longest ago; `key` lapsed just now, if there is one.
    pub(super) fn lapsed_of_own(&mut self, key: Option<u64>) -> Option<u64> {
        let origin = self.origin;
        let Some(origins) = &mut self.origins else { return key };
        if let Some(key) = key {
            if origins.lapsed.len() >= LAPSED_MAX {
                origins.lapsed.pop_front();
            }
            origins.lapsed.push_back(key);
        }
        let first = origins.lapsed.iter().position(|&key| origin_of(key) == origin)?;
        origins.lapsed.remove(first).map(|key| key ^ origin)
    }

    /// Blocks of the present disk, those that would go first before the others as far as that is known.
    pub fn coldest(&self) -> impl Iterator<Item = Placed> {
        let mut order = Vec::new();
        let mut see = |slot: Slot| {
            if let Some(block) = self.own(self.slots.keys()[slot as usize]) {
                let tier = if self.tiered { self.tier(slot) } else { Tier::Hot };
                order.push(Placed { block, slot, tier });
            }
        };
        for part in 0..self.tiers.as_ref().map_or(0, |t| t.parts()) {
            self.tiers.iter().flat_map(|t| t.slots_of(part)).for_each(&mut see);
        }
        self.victims.iter().flat_map(|v| v.slots(&self.places)).for_each(&mut see);
        self.policy.coldest_first(&self.places, &mut see);
        let others = self.parts.iter().flat_map(|p| p.policies());
        others.for_each(|policy| policy.coldest_first(&self.places, &mut see));
        for part in 0..self.parts.as_ref().map_or(1, |p| p.count()) {
            self.locks.iter().flat_map(|l| l.slots_of(&self.places, part)).for_each(&mut see);
        }
        order.into_iter()
    }

    /// Forgets what is remembered of the present disk beside its blocks; it has none any more.
    pub fn leave(&mut self) {
        let origin = self.origin;
        self.set_tiers(false);
        self.unlock_all();
        if let Some(origins) = &mut self.origins {
            origins.lapsed.retain(|&key| origin_of(key) != origin);
        }
    }

    pub(super) fn origins_bytes(&self) -> usize {
        self.origins.as_ref().map_or(0, |o| o.memory_bytes())
    }
}

/// A block of an index, and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its number.
    pub block: u64,
    /// Its slot.
    pub slot: Slot,
    /// Its tier; [`Tier::Hot`] without tiers.
    pub tier: Tier,
}
