//! One access to a cache: the order in which the map from block to slot and the policy are called.
//!
//! Owns that order, for every index, replay and miniature cache. Never decides which block goes. Invariant: see
//! [`Policy`].

use super::Policy;
use crate::structures::places::Places;
use crate::structures::slots::{Map, Slot, Slots};

/// What the index decided about one access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The block is in this slot (or on its way there).
    Hit(Slot),
    /// The block was absent and has now been given this slot; the block that had to make room, if any.
    Fill {
        /// The slot now holding the accessed block.
        slot: Slot,
        /// The block and slot that were evicted; its slot may equal `slot`.
        evicted: Option<(u64, Slot)>,
    },
    /// The block was absent and is not to be cached (the policy refuses it, or nothing may be evicted).
    Bypass,
}

/// Looks `block` up, tells the policy, and on a miss makes room for it: at most `limit` slots are occupied. Their
/// number must not be changing.
#[inline]
pub(crate) fn access(
    slots: &mut Slots,
    places: &mut Places,
    policy: &mut impl Policy,
    block: u64,
    hash: u64,
    limit: u32,
    may_evict: impl Fn(Slot) -> bool,
) -> Outcome {
    if let Some(slot) = slots.find_still(block, hash) {
        policy.touch(places, slot, block);
        return Outcome::Hit(slot);
    }
    miss(slots, places, policy, block, hash, limit, may_evict)
}

/// The same for a block that was not found.
pub(crate) fn miss(
    slots: &mut Slots<impl Map>,
    places: &mut Places,
    policy: &mut impl Policy,
    block: u64,
    hash: u64,
    limit: u32,
    may_evict: impl Fn(Slot) -> bool,
) -> Outcome {
    if limit == 0 {
        return Outcome::Bypass;
    }
    let seen = policy.miss(block);
    let (slot, evicted) = if slots.len() >= limit {
        let Some(slot) = policy.victim(places, slots.keys(), may_evict, seen) else { return Outcome::Bypass };
        (slot, Some((slots.replace(slot, block, hash), slot)))
    } else {
        (slots.insert(block, hash), None)
    };
    policy.insert(places, slot, block, seen);
    Outcome::Fill { slot, evicted }
}
