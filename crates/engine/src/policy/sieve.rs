//! SIEVE (Zhang et al., "SIEVE is Simpler than LRU", NSDI 2024).
//!
//! Owns one queue in order of arrival, one visited bit per slot, and a hand that moves from old to new and stays where
//! it found its last victim. Never moves a block within the queue.
//! Invariant: the hand is on an occupied slot, or nowhere (the next search then begins with the oldest).

use super::{Policy, Search, Seen};
use crate::index::Slot;
use crate::list::{Links, List, NIL, resize_exact};
use crate::table::HashKey;

#[derive(Debug)]
pub(crate) struct Sieve {
    links: Links,
    queue: List,
    visited: Vec<bool>,
    hand: Slot,
}

impl Policy for Sieve {
    fn new(capacity: u32, _key: HashKey) -> Self {
        Self {
            links: Links::new(capacity as usize),
            queue: List::new(),
            visited: vec![false; capacity as usize],
            hand: NIL,
        }
    }

    #[inline]
    fn touch(&mut self, slot: Slot, _block: u64) {
        self.visited[slot as usize] = true;
    }

    fn miss(&mut self, _block: u64) -> Seen {
        Seen::Never
    }

    fn victim(&mut self, _keys: &[u64], may_evict: impl Fn(Slot) -> bool, _seen: Seen) -> Option<Slot> {
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
                self.hand = self.links.newer(at);
                if search.refused() {
                    self.hand = start;
                    return None;
                }
            } else if self.visited[at as usize] && search.spared() {
                self.visited[at as usize] = false;
                self.hand = self.links.newer(at);
            } else {
                self.remove(at);
                return Some(at);
            }
        }
    }

    fn insert(&mut self, slot: Slot, _block: u64, _seen: Seen) {
        self.queue.push(&mut self.links, slot);
    }

    fn remove(&mut self, slot: Slot) {
        if self.hand == slot {
            self.hand = self.links.newer(slot);
        }
        self.queue.remove(&mut self.links, slot);
        self.visited[slot as usize] = false;
    }

    fn forget(&mut self, _block: u64) {}

    fn moved(&mut self, from: Slot, to: Slot) {
        self.queue.replace(&mut self.links, from, to);
        self.visited[to as usize] = std::mem::take(&mut self.visited[from as usize]);
        if self.hand == from {
            self.hand = to;
        }
    }

    fn resize(&mut self, capacity: u32, _keys: &[u64]) {
        self.links.resize(capacity as usize);
        resize_exact(&mut self.visited, capacity as usize, false);
    }

    fn coldest_first(&self, visit: &mut dyn FnMut(Slot)) {
        // from the hand to the newest, then from the oldest to the hand; the unvisited before the visited
        let before_hand = if self.hand == NIL {
            self.queue.len() as usize
        } else {
            self.queue.iter(&self.links).take_while(|&s| s != self.hand).count()
        };
        for marked in [false, true] {
            let all = || self.queue.iter(&self.links);
            let in_hand_order = all().skip(before_hand).chain(all().take(before_hand));
            in_hand_order.filter(|&s| self.visited[s as usize] == marked).for_each(&mut *visit);
        }
    }

    fn memory_bytes(&self) -> usize {
        self.links.memory_bytes() + self.visited.capacity()
    }

    fn check(&self, occupied: u32) {
        self.queue.check(&self.links);
        assert_eq!(self.queue.len(), occupied, "slots in the queue");
        let marked = self.visited.iter().filter(|&&v| v).count();
        let marked_in_queue = self.queue.iter(&self.links).filter(|&s| self.visited[s as usize]).count();
        assert_eq!(marked, marked_in_queue, "a free slot is marked");
        assert!(self.hand == NIL || self.queue.iter(&self.links).any(|s| s == self.hand), "the hand is off the queue");
    }
}
