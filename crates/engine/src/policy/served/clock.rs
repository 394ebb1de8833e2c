//! CLOCK: first in, first out, with a second chance for what was accessed (Corbató, "A Paging Experiment with the
//! Multics System", MIT Project MAC report M-384, 1968).
//!
//! Owns one queue, whose tail is the slot that the hand points at, and one reference bit per slot.
//! Never reorders on a hit: a hit sets the bit and no more.
//! Invariant: a reference bit is set only for an occupied slot.

use crate::policy::{Policy, Search, Seen};
use crate::structures::list::{List, NIL};
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

/// The mark of a slot that was accessed.
const REFERENCED: u8 = 1;

#[derive(Debug)]
pub(crate) struct Clock {
    queue: List,
}

impl Clock {
    pub fn new(_capacity: u32, _key: HashKey) -> Self {
        Self { queue: List::new() }
    }
}

impl Policy for Clock {
    #[inline]
    fn touch(&mut self, places: &mut Places, slot: Slot, _block: u64) {
        places.marks[slot as usize] = REFERENCED;
    }

    fn victim(
        &mut self,
        places: &mut Places,
        _keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        _seen: Seen,
    ) -> Option<Slot> {
        let mut search = Search::default();
        let mut at = self.queue.tail();
        while at != NIL {
            let next = places.links.newer(at);
            if !may_evict(at) {
                if search.refused() {
                    return None;
                }
                at = next;
            } else if places.marks[at as usize] == REFERENCED && search.spared() {
                places.marks[at as usize] = 0;
                self.queue.renew(&mut places.links, at);
                // the newest of all stays where it is, and is next again
                at = if next == NIL { at } else { next };
            } else {
                self.remove(places, at);
                return Some(at);
            }
        }
        None
    }

    fn insert(&mut self, places: &mut Places, slot: Slot, _block: u64, _seen: Seen) {
        self.queue.push(&mut places.links, slot);
    }

    fn remove(&mut self, places: &mut Places, slot: Slot) {
        self.queue.remove(&mut places.links, slot);
        places.marks[slot as usize] = 0;
    }

    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        self.queue.replace(&mut places.links, from, to);
        places.marks[to as usize] = std::mem::take(&mut places.marks[from as usize]);
    }

    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        for mark in [0, REFERENCED] {
            self.queue.iter(&places.links).filter(|&s| places.marks[s as usize] == mark).for_each(&mut *visit);
        }
    }

    fn memory_bytes(&self) -> usize {
        0
    }

    fn check(&self, places: &Places, occupied: u32) {
        self.queue.check(&places.links);
        assert_eq!(self.queue.len(), occupied, "slots in the queue");
    }
}
