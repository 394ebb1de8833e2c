//! A trace through one policy, for simulators: the decisions of an [`Index`](crate::Index), several times as fast.
//!
//! Owns the cache that a trace runs through, and the counts. Which policy runs is asked once per batch, so the loop
//! (`policy/batch`) is compiled for each. Never decides anything: the policies do. Invariant: misses are those of
//! `access(block, Access::Read, |_| true)` for each block, on an index with the same key.
//!
//! What an index can do besides (remove, resize, parts, tiers, slots under I/O) is left out.

use crate::policy::{AnyPolicy, AnyPolicyKind, Makes, Policy};
use crate::structures::places::Places;
use crate::structures::slots::ChainedSlots;
use crate::structures::table::{Fill, HashKey, SIMULATION_SEED};

/// The misses of a cache of `capacity` blocks, cold at first, that replaces by `kind` and is asked for `blocks` in
/// turn.
///
/// ```
/// use undercroft_engine::{PolicyKind, replay};
/// assert_eq!(replay::replay(PolicyKind::Lru, 2, &[1, 2, 1, 3, 1, 2]), 4);
/// ```
pub fn replay(kind: impl Into<AnyPolicyKind>, capacity: u32, blocks: &[u64]) -> u64 {
    Replay::new(kind, capacity).feed(blocks)
}

/// See the head of the file. Only construction allocates, but for policies that say otherwise.
pub struct Replay {
    slots: ChainedSlots,
    places: Places,
    policy: AnyPolicy,
    requests: u64,
    misses: u64,
}

impl Replay {
    /// An empty cache of `capacity` blocks (may be 0: everything misses), with a hash key that is the same every time.
    ///
    /// # Panics
    /// If `capacity` is `u32::MAX`.
    pub fn new(kind: impl Into<AnyPolicyKind>, capacity: u32) -> Self {
        Self::with_hash_key(kind, capacity, HashKey::from_seed(SIMULATION_SEED))
    }

    /// The same with another hash key: policies that draw random numbers take it as their seed.
    ///
    /// # Panics
    /// If `capacity` is `u32::MAX`.
    pub fn with_hash_key(kind: impl Into<AnyPolicyKind>, capacity: u32, key: HashKey) -> Self {
        assert!(capacity < u32::MAX, "an index has fewer than 2^32 - 1 slots");
        Self::with_policy(kind.into().make(capacity, key), capacity, key)
    }

    /// The same with a policy made for that capacity and key.
    pub(crate) fn with_policy(policy: AnyPolicy, capacity: u32, key: HashKey) -> Self {
        Self {
            slots: ChainedSlots::new(capacity, Fill::Half, key),
            places: Places::new(capacity),
            policy,
            requests: 0,
            misses: 0,
        }
    }

    /// Reads of `blocks`, one after another; returns how many missed. A trace may come in pieces of any length.
    pub fn feed(&mut self, blocks: &[u64]) -> u64 {
        let Self { slots, places, policy, .. } = self;
        let misses = policy.replay(slots, places, blocks);
        self.requests += blocks.len() as u64;
        self.misses += misses;
        misses
    }

    /// Accesses so far.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Misses so far.
    pub fn misses(&self) -> u64 {
        self.misses
    }

    /// The policy.
    pub fn kind(&self) -> AnyPolicyKind {
        AnyPolicyKind::of(&self.policy)
    }

    /// Blocks that there is room for.
    pub fn capacity(&self) -> u32 {
        self.slots.capacity()
    }

    /// Bytes of memory held, ghosts included.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.slots.memory_bytes() + self.places.memory_bytes() + self.policy.memory_bytes()
    }

    /// Checks the invariants; for tests. Panics with what is broken. Takes time in proportion to the capacity.
    pub fn check(&self) {
        self.slots.check();
        self.policy.check(&self.places, self.slots.len());
    }
}
