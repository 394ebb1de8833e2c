//! The blocks of a disk that are in no slot yet, but near at hand: being read, or read ahead and not used.
//!
//! Owns the table of them, and the ring with the frames of those read ahead. Never reads a block. Invariants: a block
//! is in the table once; those of the second kind are the blocks in the ring.

use super::ahead::AheadRing;
use crate::disk::allowance::Allowance;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use undercroft_host::Frame;

/// Bytes of a bucket of the table.
const ENTRY_BYTES: usize = size_of::<(u64, Near)>() + 1;

/// A block that is not in a slot but close.
#[derive(Clone, Copy, Debug)]
pub(in crate::disk) enum Near {
    /// Being read: block `at` of operation `op`.
    Reading { op: u32, at: u32 },
    /// Read ahead and unused, under this number in the ring.
    Ahead(u64),
}

/// See the head of the file.
#[derive(Debug)]
pub(in crate::disk) struct NearBlocks {
    table: HashMap<u64, Near, NearHash>,
    /// Entries that the table has room for from its first one on.
    entries: usize,
    ring: AheadRing,
}

impl NearBlocks {
    pub(in crate::disk) fn new(allowance: &Allowance, seed: u64) -> Self {
        let table = HashMap::with_hasher(NearHash::new(seed));
        Self { table, entries: entries(allowance), ring: AheadRing::new(allowance.ahead) }
    }

    /// Bytes held at most.
    pub(in crate::disk) fn bytes_max(allowance: &Allowance) -> usize {
        table_bytes(allowance) + AheadRing::bytes_max(allowance.ahead)
    }

    /// Bytes held now, those of the table from the beginning on.
    pub(in crate::disk) fn memory_bytes(&self, allowance: &Allowance) -> usize {
        table_bytes(allowance) + self.ring.memory_bytes()
    }

    /// Whether no block is.
    pub(in crate::disk) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// How many are.
    pub(in crate::disk) fn len(&self) -> usize {
        self.table.len()
    }

    /// The table's memory is taken with its first block, all of it: a disk that is never read needs none.
    #[cold]
    fn make_room(&mut self) {
        self.table.reserve(self.entries);
    }

    fn insert(&mut self, block: u64, near: Near) -> Option<Near> {
        if self.table.capacity() == 0 {
            self.make_room();
        }
        self.table.insert(block, near)
    }

    /// How near a block is, if it is.
    pub(in crate::disk) fn get(&self, block: u64) -> Option<Near> {
        self.table.get(&block).copied()
    }

    /// Whether a block is.
    pub(in crate::disk) fn contains(&self, block: u64) -> bool {
        self.table.contains_key(&block)
    }

    /// Those among blocks `first..end`.
    pub(in crate::disk) fn within(&self, first: u64, end: u64) -> Vec<(u64, Near)> {
        self.table.iter().filter(|(b, _)| (first..end).contains(b)).map(|(&b, &n)| (b, n)).collect()
    }

    /// Operation `op` reads blocks `first..first+count`, of which none was near.
    pub(in crate::disk) fn reading(&mut self, op: u32, first: u64, count: u32) {
        (0..count).for_each(|at| self.reading_one(op, at, first + u64::from(at)));
    }

    /// Block `at` of operation `op` is `block`, which was not near.
    pub(in crate::disk) fn reading_one(&mut self, op: u32, at: u32, block: u64) {
        let other = self.insert(block, Near::Reading { op, at });
        assert!(other.is_none(), "a block is read that is near at hand");
    }

    /// A block that was being read is not any more, or nobody else may have what comes.
    pub(in crate::disk) fn read_over(&mut self, block: u64) {
        let was = self.table.remove(&block);
        debug_assert!(!matches!(was, Some(Near::Ahead(_))), "the frame of a block read ahead was forgotten");
    }

    // ---- read ahead ----

    /// Blocks read ahead that wait to be used.
    pub(in crate::disk) fn ahead(&self) -> usize {
        self.ring.held()
    }

    /// Whether the oldest must go before another one can be kept.
    pub(in crate::disk) fn is_ring_full(&self) -> bool {
        self.ring.is_full()
    }

    /// Lets the ring hold `max` blocks read ahead, if that is more.
    pub(in crate::disk) fn allow_ahead(&mut self, max: usize) {
        self.ring.allow(max);
    }

    /// Keeps a block that was read ahead.
    pub(in crate::disk) fn keep_ahead(&mut self, block: u64, frame: Frame, now_ns: u64) {
        let n = self.ring.push(block, frame, now_ns);
        self.insert(block, Near::Ahead(n));
    }

    /// Takes a block that was read ahead, if it is one.
    pub(in crate::disk) fn take_ahead(&mut self, block: u64) -> Option<Frame> {
        let Some(&Near::Ahead(n)) = self.table.get(&block) else { return None };
        self.table.remove(&block);
        Some(self.ring.take(n))
    }

    /// The oldest block read ahead, and since when it has been there.
    pub(in crate::disk) fn oldest_ahead(&self) -> Option<(u64, u64)> {
        self.ring.oldest()
    }

    /// Takes the oldest block read ahead.
    pub(in crate::disk) fn pop_ahead(&mut self) -> Option<Frame> {
        let (block, frame) = self.ring.pop()?;
        self.table.remove(&block);
        Some(frame)
    }

    /// Every block read ahead.
    pub(in crate::disk) fn iter_ahead(&self) -> impl Iterator<Item = (u64, &Frame)> {
        self.ring.iter()
    }

    /// Checks the invariants; for tests.
    pub(in crate::disk) fn check(&self) {
        let ahead = self.table.values().filter(|n| matches!(n, Near::Ahead(_))).count();
        assert!(ahead == self.ring.held(), "the ring of blocks read ahead and its table disagree");
    }
}

/// Entries that the table is made for: twice what it holds, so that traces of removed entries never make it grow.
fn entries(allowance: &Allowance) -> usize {
    2 * allowance.near_blocks()
}

/// Bytes of the table: its buckets, at most.
fn table_bytes(allowance: &Allowance) -> usize {
    (entries(allowance) * 8 / 7 + 8).next_power_of_two() * ENTRY_BYTES
}

/// Hashes block numbers by one multiplication with a secret factor: guests choose block numbers, and should not be able
/// to choose ones that collide.
#[derive(Clone, Copy, Debug)]
struct NearHash {
    factor: u64,
}

impl NearHash {
    fn new(seed: u64) -> Self {
        Self { factor: (seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xd6e8_feb8_6659_fd93) | 1 }
    }
}

impl BuildHasher for NearHash {
    type Hasher = BlockHasher;
    fn build_hasher(&self) -> BlockHasher {
        BlockHasher { factor: self.factor, hash: 0 }
    }
}

struct BlockHasher {
    factor: u64,
    hash: u64,
}

impl Hasher for BlockHasher {
    fn finish(&self) -> u64 {
        self.hash
    }
    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("block numbers are hashed as u64");
    }
    fn write_u64(&mut self, n: u64) {
        let h = n.wrapping_mul(self.factor);
        self.hash = h ^ (h >> 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::CoreOptions;

    #[test]
    fn the_table_takes_its_memory_with_its_first_block_and_never_more() {
        let allowance = Allowance::new(&CoreOptions::new(64 << 20), (1 << 20).into());
        let mut near = NearBlocks::new(&allowance, 1);
        assert_eq!(near.table.capacity(), 0, "a disk that is never read has a table");
        near.reading(0, 7, 1);
        let room = near.table.capacity();
        assert!(room >= entries(&allowance));
        // Blocks come and go, with as many there as there may be.
        for at in 8..8 + 20 * allowance.near_blocks() as u64 {
            near.reading(0, at, 1);
            if let Some(gone) = at.checked_sub(allowance.near_blocks() as u64 - 1) {
                near.read_over(gone);
            }
            // Less where removed entries have left traces.
            assert!(near.table.capacity() <= room, "the table grew");
        }
    }
}
