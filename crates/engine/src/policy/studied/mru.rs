//! Most recently used: the newest goes, which suits a loop that is longer than the cache, and little else (Chou and
//! DeWitt, "An Evaluation of Buffer Management Strategies for Relational Database Systems", VLDB 1985).
//!
//! Owns one queue. Never counts how often a block is used.
//! Invariant: the queue is in the order of the last access of each block.

use crate::policy::{Policy, Search, Seen};
use crate::structures::list::List;
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

#[derive(Debug)]
pub(crate) struct Mru {
    queue: List,
}

impl Mru {
    pub fn new(_capacity: u32, _key: HashKey) -> Self {
        Self { queue: List::new() }
    }
}

impl Policy for Mru {
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
        let mut search = Search::default();
        let slot = {
            let mut newest = self.queue.iter_newest(&places.links);
            loop {
                let slot = newest.next()?;
                if may_evict(slot) {
                    break slot;
                }
                if search.refused() {
                    return None;
                }
            }
        };
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
        self.queue.iter_newest(&places.links).for_each(visit);
    }

    fn memory_bytes(&self) -> usize {
        0
    }

    fn check(&self, places: &Places, occupied: u32) {
        self.queue.check(&places.links);
        assert_eq!(self.queue.len(), occupied, "slots in the queue");
    }
}
