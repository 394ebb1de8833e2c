//! Blocks that were evicted not long ago, each with a value that the policy will want back.
//!
//! Owns one queue of block numbers, oldest out first. Never allocates after construction but to resize.
//! Invariant: a block is remembered once; there are at most `capacity`.

use crate::list::{Links, List, NIL};
use crate::slots::ChainedSlots;
use crate::table::{Fill, HashKey};

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

    /// Forgets `block`; returns what was remembered of it.
    pub fn take(&mut self, block: u64) -> Option<T> {
        let slot = self.slots.find(block, self.slots.hash(block))?;
        self.queue.remove(&mut self.links, slot);
        self.slots.free(slot);
        Some(self.values[slot as usize])
    }

    /// Remembers an absent block; the oldest goes where there is no room. With no room at all nothing is remembered.
    pub fn push(&mut self, block: u64, value: T) {
        if self.slots.is_full() && !self.forget_oldest() {
            return;
        }
        let slot = self.slots.insert(block, self.slots.hash(block));
        self.values[slot as usize] = value;
        self.queue.push(&mut self.links, slot);
    }

    fn forget_oldest(&mut self) -> bool {
        let slot = self.queue.tail();
        if slot == NIL {
            return false;
        }
        self.queue.remove(&mut self.links, slot);
        self.slots.free(slot);
        true
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
