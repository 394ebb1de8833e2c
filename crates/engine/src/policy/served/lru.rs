//! Least recently used (Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for storage hierarchies", IBM
//! Systems Journal 1970).
//!
//! Owns one queue. Never counts how often a block is used.
//! Invariant: the queue is in the order of the last access of each block.

use crate::policy::{Policy, Search, Seen, oldest};
use crate::structures::list::List;
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

#[derive(Debug)]
pub(crate) struct Lru {
    queue: List,
}

impl Lru {
    pub fn new(_capacity: u32, _key: HashKey) -> Self {
        Self { queue: List::new() }
    }
}

impl Policy for Lru {
    #[inline]
    fn touch(&mut self, places: &mut Places, slot: Slot, _block: u64) {
        self.queue.renew(&mut places.links, slot);
    }

    fn victim(
        &mut self,
        places: &mut Places,
        _keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        _seen: Seen,
    ) -> Option<Slot> {
        let slot = oldest(&self.queue, &places.links, &may_evict, &mut Search::default())?;
        self.queue.remove(&mut places.links, slot);
        Some(slot)
    }

    fn insert(&mut self, places: &mut Places, slot: Slot, _block: u64, _seen: Seen) {
        self.queue.push(&mut places.links, slot);
    }

    fn remove(&mut self, places: &mut Places, slot: Slot) {
        self.queue.remove(&mut places.links, slot);
    }

    #[inline]
    fn ahead(&self, places: &Places, slots: &[Slot], _hashes: &[u64]) {
        places.links.read_ahead(slots);
    }

    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        self.queue.replace(&mut places.links, from, to);
    }

    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        self.queue.iter(&places.links).for_each(visit);
    }

    fn memory_bytes(&self) -> usize {
        0
    }

    fn check(&self, places: &Places, occupied: u32) {
        self.queue.check(&places.links);
        assert_eq!(self.queue.len(), occupied, "slots in the queue");
    }
}
