//! CAR: clock with adaptive replacement (Bansal and Modha, "CAR: Clock with Adaptive Replacement", FAST 2004, figure
//! 2).
//!
//! Owns the clocks T1 (blocks accessed once of late) and T2 (more than once), a reference bit per slot, the ghosts B1
//! and B2, and the target size `p` of T1. Never reorders on a hit.
//! Invariants: as for ARC.

use super::arc::{B1, B2, adapted, step, trim};
use crate::policy::{Policy, Search, Seen};
use crate::structures::array::Release;
use crate::structures::ghosts::Ghosts;
use crate::structures::list::{List, NIL};
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

/// Bits of a slot's state.
const REFERENCED: u8 = 1;
const IN_T2: u8 = 2;

#[derive(Debug)]
pub(crate) struct Car {
    capacity: u32,
    t1: List,
    t2: List,
    ghosts: Box<Ghosts>,
    /// Target size of T1; a real number, as in ARC.
    p: f64,
    /// As in ARC.
    trims: bool,
}

impl Car {
    pub fn new(capacity: u32, key: HashKey) -> Self {
        Self {
            capacity,
            t1: List::new(),
            t2: List::new(),
            // one more: a victim is remembered just before the insertion trims
            ghosts: Box::new(Ghosts::new(capacity + 1, key)),
            p: 0.0,
            trims: false,
        }
    }
}

impl Policy for Car {
    #[inline]
    fn touch(&mut self, places: &mut Places, slot: Slot, _block: u64) {
        places.marks[slot as usize] |= REFERENCED;
    }

    fn miss(&mut self, block: u64) -> Seen {
        // unlike ARC, CAR adapts after it has made room: see `insert`
        match self.ghosts.find(block) {
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
            let from_t1 = hand1 != NIL && (hand2 == NIL || f64::from(self.t1.len()) >= self.p.max(1.0));
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
                self.ghosts.push(if from_t1 { B1 } else { B2 }, keys[at as usize]);
                // the insertion trims; where none follows, since the cache shrinks, this does
                trim(&mut self.ghosts, self.t1.len(), self.capacity + 1);
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
            self.p = adapted(self.p, self.capacity, &self.ghosts, queue);
            self.ghosts.forget(block);
            places.marks[slot as usize] = IN_T2;
            self.t2.push(&mut places.links, slot);
        }
        self.trims = trim(&mut self.ghosts, self.t1.len(), self.capacity);
    }

    fn remove(&mut self, places: &mut Places, slot: Slot) {
        let state = std::mem::take(&mut places.marks[slot as usize]);
        if state & IN_T2 != 0 { &mut self.t2 } else { &mut self.t1 }.remove(&mut places.links, slot);
    }

    #[inline]
    fn ahead(&self, _places: &Places, _slots: &[Slot], hashes: &[u64]) {
        self.ghosts.read_ahead(hashes);
    }

    fn forget(&mut self, block: u64) {
        self.ghosts.forget(block);
    }

    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        let state = std::mem::take(&mut places.marks[from as usize]);
        places.marks[to as usize] = state;
        if state & IN_T2 != 0 { &mut self.t2 } else { &mut self.t1 }.replace(&mut places.links, from, to);
    }

    fn limit(&mut self, _places: &mut Places, limit: u32) {
        self.capacity = limit;
        self.p = self.p.min(f64::from(limit));
        self.trims = trim(&mut self.ghosts, self.t1.len(), limit);
    }

    fn resize(&mut self, _places: &mut Places, capacity: u32, _keys: &[u64]) {
        self.capacity = capacity;
        self.p = self.p.min(f64::from(capacity));
        self.trims = trim(&mut self.ghosts, self.t1.len(), capacity);
        self.ghosts.begin(capacity + 1);
    }

    fn step(&mut self, _places: &mut Places, left: &mut u32) -> bool {
        step(&mut self.ghosts, self.t1.len(), self.capacity, &mut self.trims, left)
    }

    fn reserve(&mut self, most: u32) {
        self.ghosts.reserve(most.saturating_add(1));
    }

    fn release(&mut self, by: &mut impl Release, bytes: &mut usize) {
        self.ghosts.release(by, bytes);
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
        self.ghosts.memory_bytes()
    }

    fn check(&self, places: &Places, occupied: u32) {
        self.t1.check(&places.links);
        self.t2.check(&places.links);
        assert_eq!(self.t1.len() + self.t2.len(), occupied, "slots in T1 and T2");
        let in_t2 = |s: Slot| places.marks[s as usize] & IN_T2 != 0;
        assert!(self.t1.iter(&places.links).all(|s| !in_t2(s)), "a slot of T1 is marked as of T2");
        assert!(self.t2.iter(&places.links).all(in_t2), "a slot of T2 is marked as of T1");
        self.ghosts.check();
        let ghosts = self.ghosts.len(B1) + self.ghosts.len(B2);
        assert!(self.trims || ghosts <= self.capacity + 1, "{ghosts} ghosts");
        assert!((0.0..=f64::from(self.capacity)).contains(&self.p), "p is {}", self.p);
    }
}
