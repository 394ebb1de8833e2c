//! Many accesses at once, for simulators: the same decisions as one by one, several times as fast.
//!
//! Owns the loop. Which policy runs is asked once per batch, so the loop is compiled for each; and what the table and
//! the queues hold of the next few blocks is read before it is needed, so that those reads wait for memory together
//! and not one after another. Never decides anything itself: hits and misses go where [`Index::access`] sends them.
//! Invariant: after `replay(blocks)` the index is as after `access(block, Access::Read, |_| true)` for each of them.

use crate::index::{Access, Index, Outcome, miss_with, with_policy};
use crate::index::AnyPolicy;
use crate::list::NIL;
use crate::places::Places;
use crate::policy::{Policy, PolicyKind};
use crate::slots::Slots;

/// Blocks whose entries are read ahead together. More than the reads a processor has under way at once (10 to 48), few
/// enough that what was read is still near when its turn comes.
const AHEAD: usize = 32;

/// The misses of a cache of `capacity` blocks, cold at first, that replaces by `kind` and is asked for `blocks` in turn.
pub fn replay(kind: PolicyKind, capacity: u32, blocks: &[u64]) -> u64 {
    Index::new(kind, capacity).replay(blocks)
}

impl Index {
    /// Reads of `blocks`, one after another, each block being free to go at once; returns how many missed. A trace may
    /// come in pieces of any length.
    pub fn replay(&mut self, blocks: &[u64]) -> u64 {
        if !self.plain {
            let missed = |&&block: &&u64| !matches!(self.access(block, Access::Read, |_| true), Outcome::Hit(_));
            return blocks.iter().filter(missed).count() as u64;
        }
        let Self { slots, places, policy, limit, .. } = self;
        with_policy!(policy, p => p.replay(slots, places, *limit, blocks))
    }
}

/// The loop for one policy.
#[inline]
pub(crate) fn replay_with(
    slots: &mut Slots,
    places: &mut Places,
    policy: &mut impl Policy,
    limit: u32,
    blocks: &[u64],
) -> u64 {
    let mut misses = 0;
    let mut hashes = [0; AHEAD];
    let mut likely = [NIL; AHEAD];
    for blocks in blocks.chunks(AHEAD) {
        for (hash, &block) in hashes.iter_mut().zip(blocks) {
            *hash = slots.hash(block);
        }
        for (likely, &hash) in likely.iter_mut().zip(&hashes[..blocks.len()]) {
            *likely = slots.first(hash);
        }
        for ((likely, &hash), &block) in likely.iter_mut().zip(&hashes).zip(blocks) {
            *likely = slots.guess(*likely, block, hash);
        }
        policy.ahead(places, &likely[..blocks.len()]);
        for ((&block, &hash), &likely) in blocks.iter().zip(&hashes).zip(&likely) {
            // an occupied slot holds the block that its key says, whatever came between
            if likely != NIL && slots.keys()[likely as usize] == block {
                policy.touch(places, likely, block);
            } else if let Some(slot) = slots.find(block, hash) {
                policy.touch(places, slot, block);
            } else {
                misses += 1;
                miss_with(slots, places, policy, block, hash, limit, |_| true);
            }
        }
    }
    misses
}
