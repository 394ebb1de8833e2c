//! First in, first out.
//!
//! Owns one queue. Never reacts to a hit, so a hit costs nothing beyond the look-up.
//! Invariant: the queue is in the order in which blocks came.

use super::{Policy, Search, Seen};
use crate::index::Slot;
use crate::list::{Links, List, NIL};
use crate::table::HashKey;

#[derive(Debug)]
pub(crate) struct Fifo {
    links: Links,
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

impl Policy for Fifo {
    fn new(capacity: u32, _key: HashKey) -> Self {
        Self { links: Links::new(capacity as usize), queue: List::new() }
    }

    #[inline]
    fn touch(&mut self, _slot: Slot, _block: u64) {}

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
