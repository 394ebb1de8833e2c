//! Blocks that were evicted not long ago, each with a value that the policy will want back.
//!
//! Owns one queue of block numbers, oldest out first. Never allocates after construction but to resize.
//! Invariant: a block is remembered once; there are at most `capacity`.

use crate::structures::list::{Links, List, NIL};
use crate::structures::slots::ChainedSlots;
use crate::structures::table::{Fill, HashKey};

#[derive(Debug)]
pub(super) struct History<T> {
    slots: ChainedSlots,
    links: Links,
    queue: List,
    values: Vec<T>,
}

impl<T: Copy + Default> History<T> {
    pub fn new(capacity: u32, key: HashKey) -> Self {
        Self {
            slots: ChainedSlots::new(capacity, Fill::TwoThirds, key),
            links: Links::new(capacity as usize),
            queue: List::new(),
            values: vec![T::default(); capacity as usize],
        }
    }

    pub fn capacity(&self) -> u32 {
        self.slots.capacity()
    }

    /// Reads what a search for blocks of these hashes (by the key that this was made with) will need.
    #[inline]
    pub fn read_ahead(&self, hashes: &[u64]) {
        self.slots.read_ahead(hashes);
    }

    /// Forgets `block`; returns what was remembered of it.
    pub fn take(&mut self, block: u64) -> Option<T> {
        let slot = self.slots.find(block, self.slots.hash(block))?;
        self.queue.remove(&mut self.links, slot);
        self.slots.free(slot);
        Some(self.values[slot as usize])
    }

    /// Remembers an absent block; the oldest goes where there is no room. With no room at all nothing is remembered.
    /// Returns the value that had to go, or for which there was no room.
    pub fn push(&mut self, block: u64, value: T) -> Option<T> {
        let mut gone = None;
        if self.slots.is_full() {
            gone = self.forget_oldest();
            if gone.is_none() {
                return Some(value);
            }
        }
        let slot = self.slots.insert(block, self.slots.hash(block));
        self.values[slot as usize] = value;
        self.queue.push(&mut self.links, slot);
        gone
    }

    fn forget_oldest(&mut self) -> Option<T> {
        let slot = self.queue.tail();
        if slot == NIL {
            return None;
        }
        self.queue.remove(&mut self.links, slot);
        self.slots.free(slot);
        Some(self.values[slot as usize])
    }

    /// What is remembered, of the oldest first.
    pub fn values(&self) -> impl Iterator<Item = T> + '_ {
        self.queue.iter(&self.links).map(|slot| self.values[slot as usize])
    }

    pub fn resize(&mut self, capacity: u32) {
        let mut resized = Self::new(capacity, self.slots.hash_key());
        for slot in self.queue.iter(&self.links) {
            resized.push(self.slots.keys()[slot as usize], self.values[slot as usize]);
        }
        *self = resized;
    }

    pub fn memory_bytes(&self) -> usize {
        self.slots.memory_bytes() + self.links.memory_bytes() + self.values.capacity() * size_of::<T>()
    }

    pub fn check(&self) {
        self.slots.check();
        self.queue.check(&self.links);
        assert_eq!(self.queue.len(), self.slots.len(), "blocks in the history");
    }
}
