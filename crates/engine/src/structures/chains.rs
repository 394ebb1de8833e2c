//! A hash table from block numbers to slots, for simulators and ghosts: chains through flat arrays.
//!
//! Owns the head of each chain and, for each slot, the next of its chain: 4 bytes each. Never stores a key. Like the
//! index's own table (`table`) it keeps a tag of the hash in the bits that a slot number leaves free; unlike it, it
//! searches nothing to insert and shifts nothing to remove. That is what misses cost, and on a trace with many misses
//! it is twice as fast; but a hit may read one line of memory more, so an index that serves guests keeps the other.
//! Invariant: each slot in the table is in the chain of its key's home, once.

use crate::structures::slots::Map;
use crate::structures::table::{Fill, HashKey};
use std::hint::black_box;

/// The end of a chain. Slots are smaller than `u32::MAX` in the bits they take, so no other cell looks like this.
const END: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Chains {
    heads: Vec<u32>,
    next: Vec<u32>,
    /// The bits of a cell that are the slot; the others are the tag.
    slot_mask: u32,
    key: HashKey,
    fill: Fill,
}

impl Chains {
    #[inline]
    fn home(&self, hash: u64) -> usize {
        (((hash >> 32) * self.heads.len() as u64) >> 32) as usize
    }

    #[inline]
    fn matches(&self, cell: u32, key: u64, hash: u64, keys: &[u64]) -> bool {
        (cell ^ hash as u32) & !self.slot_mask == 0 && keys[(cell & self.slot_mask) as usize] == key
    }

    /// What is first in the chain of a hash, for [`Chains::look`].
    #[inline]
    pub fn first(&self, hash: u64) -> u32 {
        self.heads[self.home(hash)]
    }

    /// What the first two of a chain that begins with `first` tell of `key`: its slot (else `u32::MAX`), and whether it
    /// is surely absent. Without branches, since how far a search goes is what a processor cannot foresee; so more is
    /// read than is needed. There must be slots.
    #[inline]
    pub fn look(&self, first: u32, key: u64, keys: &[u64]) -> (u32, bool) {
        let slot_of = |cell: u32| (cell & self.slot_mask).min(keys.len() as u32 - 1);
        let one = slot_of(first);
        let is_one = (first != END) & (keys[one as usize] == key);
        let second = if first == END { END } else { self.next[one as usize] };
        let two = slot_of(second);
        let is_two = (second != END) & (keys[two as usize] == key);
        let third = self.next[two as usize];
        let over = (second == END) | (third == END);
        let slot = if is_one {
            one
        } else if is_two {
            two
        } else {
            u32::MAX
        };
        (slot, over & !is_one & !is_two)
    }

    /// Reads what [`Chains::find`] will need for keys of these hashes, to no other effect.
    #[inline]
    pub fn read_ahead(&self, hashes: &[u64], keys: &[u64]) {
        let Some(last) = keys.len().checked_sub(1) else { return };
        let all = hashes.iter().fold(0, |all, &hash| {
            let first = self.first(hash) & self.slot_mask;
            all ^ keys[(first as usize).min(last)]
        });
        black_box(all);
    }
}

impl Map for Chains {
    fn new(slots: u32, fill: Fill, key: HashKey) -> Self {
        let heads = match fill {
            Fill::Half => slots as usize * 2,
            Fill::TwoThirds => slots as usize * 3 / 4,
        };
        let slot_bits = u32::BITS - slots.leading_zeros();
        Self {
            heads: vec![END; heads.max(1)],
            next: vec![END; slots as usize],
            slot_mask: u32::MAX.checked_shr(u32::BITS - slot_bits).unwrap_or(0),
            key,
            fill,
        }
    }

    fn resized(&self, slots: u32) -> Self {
        Self::new(slots, self.fill, self.key)
    }

    #[inline]
    fn find(&self, key: u64, hash: u64, keys: &[u64]) -> Option<u32> {
        let mut cell = self.first(hash);
        while cell != END {
            if self.matches(cell, key, hash, keys) {
                return Some(cell & self.slot_mask);
            }
            cell = self.next[(cell & self.slot_mask) as usize];
        }
        None
    }

    #[inline]
    fn insert(&mut self, hash: u64, slot: u32) {
        let home = self.home(hash);
        self.next[slot as usize] = self.heads[home];
        self.heads[home] = hash as u32 & !self.slot_mask | slot;
    }

    #[inline]
    fn remove(&mut self, key: u64, slot: u32, _keys: &[u64]) {
        let home = self.home(self.key.hash(key));
        let mut at = self.heads[home] & self.slot_mask;
        if at == slot {
            self.heads[home] = self.next[slot as usize];
            return;
        }
        loop {
            // past the end of the chain this is past the end of the array
            let next = self.next[at as usize] & self.slot_mask;
            if next == slot {
                self.next[at as usize] = self.next[slot as usize];
                return;
            }
            at = next;
        }
    }

    fn relocate(&mut self, key: u64, keys: &[u64], from: u32, to: u32) {
        self.remove(key, from, keys);
        self.insert(self.key.hash(key), to);
    }

    fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.heads.iter().flat_map(move |&head| {
            let mut cell = head;
            std::iter::from_fn(move || {
                let slot = (cell != END).then_some(cell & self.slot_mask)?;
                cell = self.next[slot as usize];
                Some(slot)
            })
        })
    }

    fn memory_bytes(&self) -> usize {
        (self.heads.capacity() + self.next.capacity()) * size_of::<u32>()
    }

    fn check(&self, keys: &[u64], len: usize) {
        let mut seen = 0;
        for slot in self.slots() {
            let key = keys[slot as usize];
            assert_eq!(self.find(key, self.key.hash(key), keys), Some(slot), "key {key} cannot be reached, or twice");
            seen += 1;
            assert!(seen <= self.next.len(), "a chain is a ring");
        }
        assert_eq!(seen, len, "keys in the table");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Against a BTreeMap; few heads, so that chains are long. Slot numbers up to the largest that a table may have
        /// room for leave no bits for a tag.
        #[test]
        fn behaves_like_a_map(
            seed: u64,
            slot_bits in prop::sample::select(vec![4u32, 5, 20, 31]),
            heads in 1usize..30,
            ops in prop::collection::vec((0u64..24, any::<bool>()), 1..200),
        ) {
            let mut table = Chains::new(12, Fill::Half, HashKey::from_seed(seed));
            table.heads = vec![END; heads];
            table.slot_mask = (1 << slot_bits) - 1;
            let mut keys = vec![0; 12];
            let mut free: Vec<u32> = (0..12).collect();
            let mut model = BTreeMap::new();
            for (key, add) in ops {
                let hash = table.key.hash(key);
                let found = table.find(key, hash, &keys);
                prop_assert_eq!(found, model.get(&key).copied());
                let (slot, absent) = table.look(table.first(hash), key, &keys);
                prop_assert!(slot == u32::MAX || Some(slot) == found);
                prop_assert!(!absent || found.is_none());
                if add && found.is_none() {
                    if let Some(slot) = free.pop() {
                        keys[slot as usize] = key;
                        table.insert(hash, slot);
                        model.insert(key, slot);
                    }
                } else if !add && let Some(slot) = found {
                    table.remove(key, slot, &keys);
                    model.remove(&key);
                    free.push(slot);
                }
                table.check(&keys, model.len());
            }
        }
    }
}
