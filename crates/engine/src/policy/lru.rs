//! Least recently used.
//!
//! Owns one queue. Never counts how often a block is used.
//! Invariant: the queue is in the order of the last access of each block.

use super::fifo::oldest;
use super::{Policy, Search, Seen};
use crate::index::Slot;
use crate::list::{Links, List};
use crate::table::HashKey;

#[derive(Debug)]
pub(crate) struct Lru {
    links: Links,
    queue: List,
}

impl Policy for Lru {
    fn new(capacity: u32, _key: HashKey) -> Self {
        Self { links: Links::new(capacity as usize), queue: List::new() }
    }

    #[inline]
    fn touch(&mut self, slot: Slot, _block: u64) {
        self.queue.renew(&mut self.links, slot);
    }

    fn miss(&mut self, _block: u64) -> Seen {
        Seen::Never
    }

    fn victim(&mut self, _keys: &[u64], may_evict: impl Fn(Slot) -> bool, _seen: Seen) -> Option<Slot> {
        let slot = oldest(&self.queue, &self.links, &may_evict, &mut Search::default())?;
        self.queue.remove(&mut self.links, slot);
        Some(slot)
    }

    fn insert(&mut self, slot: Slot, _block: u64, _seen: Seen) {
        self.queue.push(&mut self.links, slot);
    }

    fn remove(&mut self, slot: Slot) {
        self.queue.remove(&mut self.links, slot);
    }

    fn forget(&mut self, _block: u64) {}

    fn moved(&mut self, from: Slot, to: Slot) {
        self.queue.replace(&mut self.links, from, to);
    }

    fn resize(&mut self, capacity: u32, _keys: &[u64]) {
        self.links.resize(capacity as usize);
    }

    fn coldest_first(&self, visit: &mut dyn FnMut(Slot)) {
        self.queue.iter(&self.links).for_each(visit);
    }

    fn memory_bytes(&self) -> usize {
        self.links.memory_bytes()
    }

    fn check(&self, occupied: u32) {
        self.queue.check(&self.links);
        assert_eq!(self.queue.len(), occupied, "slots in the queue");
    }
}
