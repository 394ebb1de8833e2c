//! SIEVE (Zhang et al., "SIEVE is Simpler than LRU", NSDI 2024).
//!
//! Owns one queue in order of arrival, one visited bit per slot, and a hand that moves from old to new and stays where
//! it found its last victim. Never moves a block within the queue.
//! Invariant: the hand is on an occupied slot, or nowhere (the next search then begins with the oldest).

use crate::policy::{Policy, Search, Seen};
use crate::structures::list::{List, NIL};
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

/// The mark of a slot that was accessed.
const VISITED: u8 = 1;

#[derive(Debug)]
pub(crate) struct Sieve {
    queue: List,
    hand: Slot,
}

impl Sieve {
    pub fn new(_capacity: u32, _key: HashKey) -> Self {
        Self { queue: List::new(), hand: NIL }
    }
}

impl Policy for Sieve {
    #[inline]
    fn touch(&mut self, places: &mut Places, slot: Slot, _block: u64) {
        places.marks[slot as usize] = VISITED;
    }

    fn victim(
        &mut self,
        places: &mut Places,
        _keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        _seen: Seen,
    ) -> Option<Slot> {
        let mut search = Search::default();
        let start = self.hand;
        if self.queue.len() == 0 {
            return None;
        }
        loop {
            if self.hand == NIL {
                self.hand = self.queue.tail();
            }
            let at = self.hand;
            if !may_evict(at) {
                self.hand = places.links.newer(at);
                if search.refused() {
                    self.hand = start;
                    return None;
                }
            } else if places.marks[at as usize] == VISITED && search.spared() {
                places.marks[at as usize] = 0;
                self.hand = places.links.newer(at);
            } else {
                self.remove(places, at);
                return Some(at);
            }
        }
    }

    fn insert(&mut self, places: &mut Places, slot: Slot, _block: u64, _seen: Seen) {
        self.queue.push(&mut places.links, slot);
    }

    fn remove(&mut self, places: &mut Places, slot: Slot) {
        if self.hand == slot {
            self.hand = places.links.newer(slot);
        }
        self.queue.remove(&mut places.links, slot);
        places.marks[slot as usize] = 0;
    }

    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        self.queue.replace(&mut places.links, from, to);
        places.marks[to as usize] = std::mem::take(&mut places.marks[from as usize]);
        if self.hand == from {
            self.hand = to;
        }
    }

    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        // from the hand to the newest, then from the oldest to the hand; the unvisited before the visited
        let before_hand = if self.hand == NIL {
            self.queue.len() as usize
        } else {
            self.queue.iter(&places.links).take_while(|&s| s != self.hand).count()
        };
        for mark in [0, VISITED] {
            let all = || self.queue.iter(&places.links);
            let in_hand_order = all().skip(before_hand).chain(all().take(before_hand));
            in_hand_order.filter(|&s| places.marks[s as usize] == mark).for_each(&mut *visit);
        }
    }

    fn memory_bytes(&self) -> usize {
        0
    }

    fn check(&self, places: &Places, occupied: u32) {
        self.queue.check(&places.links);
        assert_eq!(self.queue.len(), occupied, "slots in the queue");
        assert!(
            self.hand == NIL || self.queue.iter(&places.links).any(|s| s == self.hand),
            "the hand is off the queue"
        );
    }
}
