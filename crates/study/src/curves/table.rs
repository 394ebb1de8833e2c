//! A flat hash table from blocks to small values, made for traces: look-ups are prefetched in batches.
//!
//! Owns the entries, in linear probing with deletion by shifting back. Never shrinks. Invariant: at most half of the
//! entries are occupied, and each can be reached from its home without crossing a vacant one.
//!
//! An entry holds block and value, so a look-up costs one cache miss. Eight blocks in a row have their homes side by
//! side, in two lines: disks are read in order, and a run then costs a quarter of the misses; blocks that all are
//! multiples of eight share the first of eight homes with few others, since no more than half of the entries are taken.
//! [`Table::warm`] reads the homes of a whole batch in a loop whose iterations do not depend on each other: the
//! processor has ten or more of these misses under way at once, and the look-ups that follow find their lines in its
//! caches. That is a prefetch without `unsafe`.

use std::hint::black_box;
use undercroft_engine::HashKey;

/// Look-ups that are warmed together: enough to fill what a core can have under way, few enough to stay in its first
/// cache.
pub(crate) const BATCH: usize = 64;
/// Entries of an empty table.
const LEAST: usize = 1024;

/// Blocks in a row whose homes are side by side, as a power of two.
const RUN_BITS: u32 = 3;

/// A value that has one to spare for "nothing here".
pub(crate) trait Value: Copy {
    /// Nothing here.
    const VACANT: Self;
    /// Whether it is that.
    fn is_vacant(&self) -> bool;
}

impl Value for u32 {
    const VACANT: Self = u32::MAX;

    #[inline]
    fn is_vacant(&self) -> bool {
        *self == u32::MAX
    }
}

#[derive(Clone, Copy)]
struct Entry<V> {
    block: u64,
    value: V,
}

/// A map from blocks to values.
pub(crate) struct Table<V> {
    entries: Vec<Entry<V>>,
    /// By how many bits a hash is shifted right to give the number of a run of entries.
    shift: u32,
    len: usize,
    key: HashKey,
}

impl<V: Value> Table<V> {
    pub fn new(key: HashKey) -> Self {
        Self { entries: Self::vacant(LEAST), shift: Self::shift(LEAST), len: 0, key }
    }

    fn shift(entries: usize) -> u32 {
        u64::BITS - (entries.ilog2() - RUN_BITS)
    }

    fn vacant(entries: usize) -> Vec<Entry<V>> {
        vec![Entry { block: 0, value: V::VACANT }; entries]
    }

    /// Blocks in the table.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Makes room for so many more blocks: until they have come, homes stay.
    #[inline]
    pub fn reserve(&mut self, more: usize) {
        if (self.len + more) * 2 > self.entries.len() {
            self.grow(more);
        }
    }

    #[cold]
    fn grow(&mut self, more: usize) {
        let entries = ((self.len + more) * 2).next_power_of_two();
        let before = std::mem::replace(&mut self.entries, Self::vacant(entries));
        self.shift = Self::shift(entries);
        self.len = 0;
        for entry in before.into_iter().filter(|e| !e.value.is_vacant()) {
            *self.entry(entry.block, self.home(entry.block)) = entry.value;
        }
    }

    /// Where the search for a block begins.
    #[inline]
    pub fn home(&self, block: u64) -> usize {
        let run = (self.key.hash(block >> RUN_BITS) >> self.shift) as usize;
        run << RUN_BITS | (block as usize & ((1 << RUN_BITS) - 1))
    }

    /// The homes of the blocks of a batch, at most [`BATCH`], whose entries are in the processor's caches afterwards.
    #[inline]
    pub fn warm(&self, blocks: &[u64], homes: &mut [usize; BATCH]) {
        let mut sum = 0;
        for (home, &block) in homes.iter_mut().zip(blocks) {
            *home = self.home(block);
            sum ^= self.entries[*home].block;
        }
        // the reads must happen, and nobody needs their sum
        black_box(sum);
    }

    /// The value of a block, vacant if it is new: it is in the table as soon as the caller writes another value, as it
    /// must. Room must have been reserved.
    #[inline]
    pub fn entry(&mut self, block: u64, home: usize) -> &mut V {
        let mask = self.entries.len() - 1;
        let mut at = home;
        while !self.entries[at].value.is_vacant() && self.entries[at].block != block {
            at = (at + 1) & mask;
        }
        let entry = &mut self.entries[at];
        if entry.value.is_vacant() {
            entry.block = block;
            self.len += 1;
        }
        &mut entry.value
    }

    /// Takes a block out.
    pub fn remove(&mut self, block: u64) -> Option<V> {
        let mask = self.entries.len() - 1;
        let mut hole = self.home(block);
        while self.entries[hole].block != block || self.entries[hole].value.is_vacant() {
            if self.entries[hole].value.is_vacant() {
                return None;
            }
            hole = (hole + 1) & mask;
        }
        let found = self.entries[hole].value;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let entry = self.entries[at];
            if entry.value.is_vacant() {
                break;
            }
            let from_home = at.wrapping_sub(self.home(entry.block)) & mask;
            if from_home >= at.wrapping_sub(hole) & mask {
                self.entries[hole] = entry;
                hole = at;
            }
        }
        self.entries[hole].value = V::VACANT;
        self.len -= 1;
        Some(found)
    }

    /// All values, in no particular order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.iter().map(|e| &e.value).filter(|v| !v.is_vacant())
    }

    /// All values, to be changed to others that are not vacant.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.iter_mut().map(|e| &mut e.value).filter(|v| !v.is_vacant())
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry<V>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Against a BTreeMap, past several doublings, with removals that shift back over the end of the array.
        #[test]
        fn behaves_like_a_map(
            seed: u64,
            steps in prop::collection::vec((0u64..1500, 0u32..4), 1..4000),
            stride in prop::sample::select(vec![1u64, 8, 1 << 40]),
        ) {
            let mut table: Table<u32> = Table::new(HashKey::from_seed(seed));
            let mut model = BTreeMap::new();
            for (i, (block, what)) in steps.into_iter().enumerate() {
                let block = block * stride;
                if what == 0 {
                    prop_assert_eq!(table.remove(block), model.remove(&block));
                } else {
                    table.reserve(1);
                    let value = table.entry(block, table.home(block));
                    prop_assert_eq!(Some(*value).filter(|v| !v.is_vacant()), model.insert(block, i as u32));
                    *value = i as u32;
                }
                prop_assert_eq!(table.len(), model.len());
            }
            let mut values: Vec<u32> = table.values().copied().collect();
            values.sort_unstable();
            let mut wanted: Vec<u32> = model.into_values().collect();
            wanted.sort_unstable();
            prop_assert_eq!(values, wanted);
        }
    }
}
