//! CAR: clock with adaptive replacement (Bansal and Modha, "CAR: Clock with Adaptive Replacement", FAST 2004, figure
//! 2).
//!
//! Owns the clocks T1 (blocks accessed once of late) and T2 (more than once), and a reference bit per slot. Never
//! reorders on a hit; ghosts and the target size of T1 are those of `adaptive`. Invariant: a slot is in the one of the
//! two clocks that its mark names.

use super::adaptive::{Adaptive, B1, B2};
use crate::policy::{Policy, Search, Seen};
use crate::structures::array::Release;
use crate::structures::list::{List, NIL};
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

/// Bits of a slot's state.
const REFERENCED: u8 = 1;
const IN_T2: u8 = 2;

#[derive(Debug)]
pub(crate) struct Car {
    t1: List,
    t2: List,
    adaptive: Adaptive,
}

impl Car {
    pub fn new(capacity: u32, key: HashKey) -> Self {
        Self { t1: List::new(), t2: List::new(), adaptive: Adaptive::new(capacity, key) }
    }
}

impl Policy for Car {
    #[inline]
    fn touch(&mut self, places: &mut Places, slot: Slot, _block: u64) {
        places.marks[slot as usize] |= REFERENCED;
    }

    fn miss(&mut self, block: u64) -> Seen {
        // unlike ARC, CAR adapts after it has made room: see `insert`
        match self.adaptive.queue_of(block) {
            None => Seen::Never,
            Some(B1) => Seen::Once,
            Some(_) => Seen::Often,
        }
    }

    fn victim(
        &mut self,
        places: &mut Places,
        keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        _seen: Seen,
    ) -> Option<Slot> {
        let mut search = Search::default();
        let (mut hand1, mut hand2) = (self.t1.tail(), self.t2.tail());
        loop {
            let from_t1 = hand1 != NIL && (hand2 == NIL || f64::from(self.t1.len()) >= self.adaptive.target().max(1.0));
            let at = if from_t1 { hand1 } else { hand2 };
            if at == NIL {
                return None;
            }
            let mut next = places.links.newer(at);
            if !may_evict(at) {
                if search.refused() {
                    return None;
                }
            } else if places.marks[at as usize] & REFERENCED != 0 && search.spared() {
                places.marks[at as usize] = IN_T2;
                if from_t1 {
                    self.t1.remove(&mut places.links, at);
                    self.t2.push(&mut places.links, at);
                    if hand2 == NIL {
                        hand2 = at;
                    }
                } else {
                    self.t2.renew(&mut places.links, at);
                    if next == NIL {
                        next = at;
                    }
                }
            } else {
                self.remove(places, at);
                let ghost = if from_t1 { B1 } else { B2 };
                self.adaptive.evicted(ghost, keys[at as usize], self.t1.len());
                return Some(at);
            }
            *if from_t1 { &mut hand1 } else { &mut hand2 } = next;
        }
    }

    fn insert(&mut self, places: &mut Places, slot: Slot, block: u64, seen: Seen) {
        if seen == Seen::Never {
            places.marks[slot as usize] = 0;
            self.t1.push(&mut places.links, slot);
        } else {
            let queue = if seen == Seen::Once { B1 } else { B2 };
            self.adaptive.adapt(block, queue);
            places.marks[slot as usize] = IN_T2;
            self.t2.push(&mut places.links, slot);
        }
        self.adaptive.inserted(self.t1.len());
    }

    fn remove(&mut self, places: &mut Places, slot: Slot) {
        let state = std::mem::take(&mut places.marks[slot as usize]);
        if state & IN_T2 != 0 { &mut self.t2 } else { &mut self.t1 }.remove(&mut places.links, slot);
    }

    #[inline]
    fn ahead(&self, _places: &Places, _slots: &[Slot], hashes: &[u64]) {
        self.adaptive.read_ahead(hashes);
    }

    fn forget(&mut self, block: u64) {
        self.adaptive.forget(block);
    }

    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        let state = std::mem::take(&mut places.marks[from as usize]);
        places.marks[to as usize] = state;
        if state & IN_T2 != 0 { &mut self.t2 } else { &mut self.t1 }.replace(&mut places.links, from, to);
    }

    fn limit(&mut self, _places: &mut Places, limit: u32) {
        self.adaptive.limit(self.t1.len(), limit);
    }

    fn resize(&mut self, _places: &mut Places, capacity: u32, _keys: &[u64]) {
        self.adaptive.resize(self.t1.len(), capacity);
    }

    fn step(&mut self, _places: &mut Places, left: &mut u32) -> bool {
        self.adaptive.step(self.t1.len(), left)
    }

    fn reserve(&mut self, most: u32) {
        self.adaptive.reserve(most);
    }

    fn release(&mut self, by: &mut impl Release, bytes: &mut usize) {
        self.adaptive.release(by, bytes);
    }

    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        for marked in [0, REFERENCED] {
            for queue in [&self.t1, &self.t2] {
                let of_mark = queue.iter(&places.links).filter(|&s| places.marks[s as usize] & REFERENCED == marked);
                of_mark.for_each(&mut *visit);
            }
        }
    }

    fn memory_bytes(&self) -> usize {
        self.adaptive.memory_bytes()
    }

    fn check(&self, places: &Places, occupied: u32) {
        self.t1.check(&places.links);
        self.t2.check(&places.links);
        assert_eq!(self.t1.len() + self.t2.len(), occupied, "slots in T1 and T2");
        let in_t2 = |s: Slot| places.marks[s as usize] & IN_T2 != 0;
        assert!(self.t1.iter(&places.links).all(|s| !in_t2(s)), "a slot of T1 is marked as of T2");
        assert!(self.t2.iter(&places.links).all(in_t2), "a slot of T2 is marked as of T1");
        self.adaptive.check();
    }
}
