//! First in, first out.
//!
//! Owns one queue. Never reacts to a hit, so a hit costs nothing beyond the look-up.
//! Invariant: the queue is in the order in which blocks came.

use super::{Policy, Search, Seen};
use crate::index::Slot;
use crate::list::{Links, List, NIL};
use crate::places::Places;
use crate::table::HashKey;

#[derive(Debug)]
pub(crate) struct Fifo {
    queue: List,
}

/// The oldest slot in `queue` that may go; not taken out.
#[inline]
pub(super) fn oldest(
    queue: &List,
    links: &Links,
    may_evict: &impl Fn(Slot) -> bool,
    search: &mut Search,
) -> Option<Slot> {
    let mut at = queue.tail();
    while at != NIL {
        if may_evict(at) {
            return Some(at);
        }
        if search.refused() {
            return None;
        }
        at = links.newer(at);
    }
    None
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
