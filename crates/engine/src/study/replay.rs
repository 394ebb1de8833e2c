//! A trace through one policy, for simulators: the decisions of an [`Index`], several times as fast.
//!
//! Owns the loop. Which policy runs is asked once per batch, so the loop is compiled for each; and what the table and
//! the queues hold of the next few blocks is read before it is needed, so that those reads wait for memory together and
//! not one after another. Never decides anything: the policies do, through the calls that an index makes. Invariant:
//! misses are those of `access(block, Access::Read, |_| true)` for each block, on an index with the same key.
//!
//! What an index can do besides (remove, resize, parts, tiers, slots under I/O) is left out.

use crate::index::{AnyPolicy, SIMULATION_SEED, miss_with, with_policy};
use crate::policy::{Policy, PolicyKind};
use crate::structures::list::NIL;
use crate::structures::places::Places;
use crate::structures::slots::ChainedSlots;
use crate::structures::table::{Fill, HashKey};

/// Blocks whose entries are read ahead together. More than the reads a processor has under way at once (10 to 48), few
/// enough that what was read is still near when its turn comes.
const AHEAD: usize = 32;

/// The misses of a cache of `capacity` blocks, cold at first, that replaces by `kind` and is asked for `blocks` in
/// turn.
///
/// ```
/// use undercroft_engine::{PolicyKind, replay};
/// assert_eq!(replay::replay(PolicyKind::Lru, 2, &[1, 2, 1, 3, 1, 2]), 4);
/// ```
pub fn replay(kind: PolicyKind, capacity: u32, blocks: &[u64]) -> u64 {
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
    pub fn new(kind: PolicyKind, capacity: u32) -> Self {
        Self::with_hash_key(kind, capacity, HashKey::from_seed(SIMULATION_SEED))
    }

    /// The same with another hash key: its seed is also that of policies that draw lots.
    ///
    /// # Panics
    /// If `capacity` is `u32::MAX`.
    pub fn with_hash_key(kind: PolicyKind, capacity: u32, key: HashKey) -> Self {
        assert!(capacity < u32::MAX, "an index has fewer than 2^32 - 1 slots");
        Self::with_policy(AnyPolicy::new(kind, capacity, key), capacity, key)
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
        let misses = with_policy!(policy, p => p.replay(slots, places, blocks));
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
    pub fn kind(&self) -> PolicyKind {
        self.policy.kind()
    }

    /// Blocks that there is room for.
    pub fn capacity(&self) -> u32 {
        self.slots.capacity()
    }

    /// Bytes of memory held, ghosts included.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.slots.memory_bytes()
            + self.places.memory_bytes()
            + with_policy!(&self.policy, p => p.memory_bytes())
    }

    /// Checks the invariants; for tests. Panics with what is broken. Takes time in proportion to the capacity.
    pub fn check(&self) {
        self.slots.check();
        with_policy!(&self.policy, p => p.check(&self.places, self.slots.len()));
    }
}

/// The loop for one policy.
#[inline]
pub(crate) fn replay_with(
    slots: &mut ChainedSlots,
    places: &mut Places,
    policy: &mut impl Policy,
    blocks: &[u64],
) -> u64 {
    let capacity = slots.capacity();
    if capacity == 0 {
        return blocks.len() as u64;
    }
    let mut misses = 0;
    let (mut hashes, mut likely) = ([0; AHEAD], [NIL; AHEAD]);
    for blocks in blocks.chunks(AHEAD) {
        for (hash, &block) in hashes.iter_mut().zip(blocks) {
            *hash = slots.hash(block);
        }
        for (likely, &hash) in likely.iter_mut().zip(&hashes[..blocks.len()]) {
            *likely = slots.first(hash);
        }
        // bit by bit: blocks of the batch that were absent, and some of the hash of each that came since
        let (mut absent, mut came) = (0u64, 0u64);
        for (n, (likely, &block)) in likely.iter_mut().zip(blocks).enumerate() {
            let (slot, is_absent) = slots.look(*likely, block);
            *likely = slot;
            absent |= u64::from(is_absent) << n;
        }
        policy.ahead(places, &likely[..blocks.len()], &hashes[..blocks.len()]);
        for (n, (&block, &hash)) in blocks.iter().zip(&hashes).enumerate() {
            let slot = likely[n];
            // nothing frees a slot here: it holds the block that its key says, whatever came between
            if slot != NIL && slots.keys()[slot as usize] == block {
                policy.touch(places, slot, block);
                continue;
            }
            let bit = 1 << (hash >> 58);
            if (absent >> n & 1 == 0 || came & bit != 0)
                && let Some(slot) = slots.find(block, hash)
            {
                policy.touch(places, slot, block);
                continue;
            }
            misses += 1;
            came |= bit;
            miss_with(slots, places, policy, block, hash, capacity, |_| true);
        }
    }
    misses
}
