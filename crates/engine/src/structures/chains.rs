//! A hash table from block numbers to slots, for simulators and ghosts: chains through flat arrays.
//!
//! Owns the head of each chain and, for each slot, the next of its chain: 4 bytes each. Never stores a key. Like the
//! index's own table (`table`) it keeps a tag of the hash in the bits that a slot number leaves free; unlike it, it
//! searches nothing to insert and shifts nothing to remove. That is what misses cost, and on a trace with many misses
//! it is twice as fast; but a hit may read one line of memory more, so an index that serves guests keeps the other.
//! Invariant: each slot in the table is in the chain of its key's home, once.

mod rehash;

use crate::structures::array::{Array, Release};
use crate::structures::slots::Map;
use crate::structures::table::{Fill, HashKey, home_among};
use rehash::Rehash;
use std::hint::black_box;

/// The end of a chain. Slots are smaller than `u32::MAX` in the bits they take, so no other cell looks like this.
const END: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Chains {
    heads: Array<u32>,
    next: Array<u32>,
    /// The bits of a cell that are the slot; the others are the tag.
    slot_mask: u32,
    /// While the table changes its size: every call goes by this then.
    rehash: Option<Box<Rehash>>,
    key: HashKey,
    fill: Fill,
}

/// Heads of a table for slots `0..slots`.
fn heads_for(slots: u32, fill: Fill) -> usize {
    let heads = match fill {
        Fill::Half => slots as usize * 2,
        Fill::TwoThirds => slots as usize * 3 / 4,
    };
    heads.max(1)
}

/// The bits of a cell that are the slot, in a table for slots `0..slots`.
fn slot_mask_for(slots: u32) -> u32 {
    u32::MAX.checked_shr(slots.leading_zeros()).unwrap_or(0)
}

impl Chains {
    #[inline]
    fn home(&self, hash: u64) -> usize {
        home_among(hash, self.heads.len())
    }

    /// The home of a hash, and the bits of the cells of its chain that are the slot.
    #[inline]
    fn chain(&self, hash: u64) -> (usize, u32) {
        match &self.rehash {
            None => (self.home(hash), self.slot_mask),
            Some(rehash) => rehash.chain(hash),
        }
    }

    /// What is first in the chain of a hash, for [`Chains::look`].
    #[inline]
    pub fn first(&self, hash: u64) -> u32 {
        self.heads[self.home(hash)]
    }

    /// What the first two of a chain that begins with `first` tell of `key`: its slot (else `u32::MAX`), and whether it
    /// is surely absent. Without branches, since how far a search goes is what a processor cannot foresee; so more is
    /// read than is needed. There must be slots, and the table must not be changing its size.
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
    fn new(slots: u32, most: u32, fill: Fill, key: HashKey) -> Self {
        let most_heads = if most > 0 { heads_for(most, fill) } else { 0 };
        Self {
            heads: Array::new(heads_for(slots, fill), most_heads, END),
            // Read of slots in a chain alone, so that the others need no memory.
            next: Array::zeroed(slots as usize, most as usize),
            slot_mask: slot_mask_for(slots),
            rehash: None,
            key,
            fill,
        }
    }

    #[inline]
    fn find(&self, key: u64, hash: u64, keys: &[u64]) -> Option<u32> {
        let (home, slot_mask) = self.chain(hash);
        let mut cell = self.heads[home];
        while cell != END {
            let slot = (cell & slot_mask) as usize;
            if (cell ^ hash as u32) & !slot_mask == 0 && keys[slot] == key {
                return Some(slot as u32);
            }
            cell = self.next[slot];
        }
        None
    }

    #[inline]
    fn insert(&mut self, hash: u64, slot: u32) {
        let (home, slot_mask) = self.chain(hash);
        self.next[slot as usize] = self.heads[home];
        self.heads[home] = hash as u32 & !slot_mask | slot;
    }

    #[inline]
    fn remove(&mut self, key: u64, slot: u32, _keys: &[u64]) {
        let (home, slot_mask) = self.chain(self.key.hash(key));
        let mut at = self.heads[home] & slot_mask;
        if at == slot {
            self.heads[home] = self.next[slot as usize];
            return;
        }
        loop {
            // past the end of the chain this is past the end of the array
            let next = self.next[at as usize] & slot_mask;
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
        self.heads.iter().enumerate().flat_map(move |(home, &head)| {
            let slot_mask = self.rehash.as_ref().map_or(self.slot_mask, |rehash| rehash.slot_mask_at(home));
            let mut cell = head;
            std::iter::from_fn(move || {
                let slot = (cell != END).then_some(cell & slot_mask)?;
                cell = self.next[slot as usize];
                Some(slot)
            })
        })
    }

    fn begin(&mut self, slots: u32) {
        debug_assert!(self.rehash.is_none(), "a table changes its size twice at once");
        if slots as usize != self.next.len() {
            let heads = heads_for(slots, self.fill);
            self.rehash = Some(Box::new(Rehash::new(self.heads.len(), heads, self.slot_mask, slots, self.key)));
        }
    }

    fn step(&mut self, keys: &[u64], left: &mut u32) -> bool {
        let Some(rehash) = &mut self.rehash else { return true };
        if rehash.step(&mut self.heads, &mut self.next, keys, left) {
            self.slot_mask = rehash.slot_mask();
            self.rehash = None;
        }
        self.rehash.is_none()
    }

    fn reserve(&mut self, most: u32) {
        self.heads.reserve(heads_for(most, self.fill));
        self.next.reserve(most as usize);
    }

    fn release(&mut self, by: &mut impl Release, bytes: &mut usize) {
        self.heads.release(by, bytes);
        self.next.release(by, bytes);
    }

    fn memory_bytes(&self) -> usize {
        self.heads.memory_bytes() + self.next.memory_bytes()
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
            let mut table = Chains::new(12, 0, Fill::Half, HashKey::from_seed(seed));
            table.heads = Array::new(heads, 0, END);
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
