//! First in, first out (Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal
//! 1966).
//!
//! Owns one queue. Never reacts to a hit, so a hit costs nothing beyond the look-up.
//! Invariant: the queue is in the order in which blocks came.

use crate::policy::{Policy, Search, Seen, oldest};
use crate::structures::list::List;
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

#[derive(Debug)]
pub(crate) struct Fifo {
    queue: List,
}

impl Fifo {
    pub fn new(_capacity: u32, _key: HashKey) -> Self {
        Self { queue: List::new() }
    }
}

impl Policy for Fifo {
    #[inline]
    fn touch(&mut self, _places: &mut Places, _slot: Slot, _block: u64) {}

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
