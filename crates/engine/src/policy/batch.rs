//! Reads of many blocks, one after another, by one policy: the loop of a replay.
//!
//! Owns the loop. It is compiled for each policy; and what the table and the queues hold of the next few blocks is read
//! before it is needed, so that those reads wait for memory together and not one after another. Never decides anything:
//! the policy does, through the calls that an index makes. Invariant: misses are those of an index with the same key.

use super::{Policy, access};
use crate::structures::list::NIL;
use crate::structures::places::Places;
use crate::structures::slots::ChainedSlots;

/// Blocks whose entries are read ahead together. More than the reads a processor has under way at once (10 to 48), few
/// enough that what was read is still near when it is needed.
const AHEAD: usize = 32;

/// See the head of the file; returns the misses.
#[inline]
pub(super) fn replay(slots: &mut ChainedSlots, places: &mut Places, policy: &mut impl Policy, blocks: &[u64]) -> u64 {
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
            access::miss(slots, places, policy, block, hash, capacity, |_| true);
        }
    }
    misses
}
