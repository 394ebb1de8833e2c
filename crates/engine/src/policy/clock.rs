//! CLOCK: first in, first out, with a second chance for what was accessed (Corbató, 1968).
//!
//! Owns one queue whose tail is under the hand, and one reference bit per slot.
//! Never reorders on a hit: a hit sets the bit and no more.
//! Invariant: a reference bit is set only for an occupied slot.

use super::{Policy, Search, Seen};
use crate::index::Slot;
use crate::list::{Links, List, NIL, resize_exact};
use crate::table::HashKey;

#[derive(Debug)]
pub(crate) struct Clock {
    links: Links,
    queue: List,
    referenced: Vec<bool>,
}

impl Policy for Clock {
    fn new(capacity: u32, _key: HashKey) -> Self {
        Self { links: Links::new(capacity as usize), queue: List::new(), referenced: vec![false; capacity as usize] }
    }

    #[inline]
    fn touch(&mut self, slot: Slot, _block: u64) {
        self.referenced[slot as usize] = true;
    }

    fn miss(&mut self, _block: u64) -> Seen {
        Seen::Never
    }

    fn victim(&mut self, _keys: &[u64], may_evict: impl Fn(Slot) -> bool, _seen: Seen) -> Option<Slot> {
        let mut search = Search::default();
        let mut at = self.queue.tail();
        while at != NIL {
            let next = self.links.newer(at);
            if !may_evict(at) {
                if search.refused() {
                    return None;
                }
                at = next;
            } else if self.referenced[at as usize] && search.spared() {
                self.referenced[at as usize] = false;
                self.queue.renew(&mut self.links, at);
                // the newest of all stays where it is, and is next again
                at = if next == NIL { at } else { next };
            } else {
                self.remove(at);
                return Some(at);
            }
        }
        None
    }

    fn insert(&mut self, slot: Slot, _block: u64, _seen: Seen) {
        self.queue.push(&mut self.links, slot);
    }

    fn remove(&mut self, slot: Slot) {
        self.queue.remove(&mut self.links, slot);
        self.referenced[slot as usize] = false;
    }

    fn forget(&mut self, _block: u64) {}

    fn moved(&mut self, from: Slot, to: Slot) {
        self.queue.replace(&mut self.links, from, to);
        self.referenced[to as usize] = std::mem::take(&mut self.referenced[from as usize]);
    }

    fn resize(&mut self, capacity: u32, _keys: &[u64]) {
        self.links.resize(capacity as usize);
        resize_exact(&mut self.referenced, capacity as usize, false);
    }

    fn coldest_first(&self, visit: &mut dyn FnMut(Slot)) {
        for marked in [false, true] {
            self.queue.iter(&self.links).filter(|&s| self.referenced[s as usize] == marked).for_each(&mut *visit);
        }
    }

    fn memory_bytes(&self) -> usize {
        self.links.memory_bytes() + self.referenced.capacity()
    }

    fn check(&self, occupied: u32) {
        self.queue.check(&self.links);
        assert_eq!(self.queue.len(), occupied, "slots in the queue");
        let marked = self.referenced.iter().filter(|&&r| r).count();
        let marked_in_queue = self.queue.iter(&self.links).filter(|&s| self.referenced[s as usize]).count();
        assert_eq!(marked, marked_in_queue, "a free slot is marked");
    }
}
