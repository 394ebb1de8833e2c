//! ARC: adaptive replacement cache (Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003,
//! figure 4).
//!
//! Owns T1 (blocks accessed once of late) and T2 (more than once). Never keeps ghosts or the target size of T1 itself:
//! `adaptive` does. Invariant: a slot is in the one of the two lists that its mark names.

use super::adaptive::{Adaptive, B1, B2};
use crate::policy::{Policy, Search, Seen, oldest};
use crate::structures::array::Release;
use crate::structures::list::List;
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

/// The mark of a slot in T2.
const IN_T2: u8 = 1;

#[derive(Debug)]
pub(crate) struct Arc {
    t1: List,
    t2: List,
    adaptive: Adaptive,
}

impl Arc {
    pub fn new(capacity: u32, key: HashKey) -> Self {
        Self { t1: List::new(), t2: List::new(), adaptive: Adaptive::new(capacity, key) }
    }
}

impl Policy for Arc {
    #[inline]
    fn touch(&mut self, places: &mut Places, slot: Slot, _block: u64) {
        if places.marks[slot as usize] == IN_T2 {
            self.t2.renew(&mut places.links, slot);
        } else {
            self.t1.remove(&mut places.links, slot);
            self.t2.push(&mut places.links, slot);
            places.marks[slot as usize] = IN_T2;
        }
    }

    fn miss(&mut self, block: u64) -> Seen {
        let Some(queue) = self.adaptive.queue_of(block) else { return Seen::Never };
        self.adaptive.adapt(block, queue);
        if queue == B1 { Seen::Once } else { Seen::Often }
    }

    /// REPLACE.
    fn victim(
        &mut self,
        places: &mut Places,
        keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        seen: Seen,
    ) -> Option<Slot> {
        let (t1, target) = (f64::from(self.t1.len()), self.adaptive.target());
        let from_t1 = self.t2.len() == 0 || t1 > 0.0 && (t1 > target || (t1 == target && seen == Seen::Often));
        let mut search = Search::default();
        let (first, second) = if from_t1 { (&self.t1, &self.t2) } else { (&self.t2, &self.t1) };
        let slot = oldest(first, &places.links, &may_evict, &mut search)
            .or_else(|| oldest(second, &places.links, &may_evict, &mut search))?;
        let ghost = if places.marks[slot as usize] == IN_T2 { B2 } else { B1 };
        self.remove(places, slot);
        self.adaptive.evicted(ghost, keys[slot as usize], self.t1.len());
        Some(slot)
    }

    fn insert(&mut self, places: &mut Places, slot: Slot, _block: u64, seen: Seen) {
        let again = seen != Seen::Never;
        places.marks[slot as usize] = if again { IN_T2 } else { 0 };
        if again { &mut self.t2 } else { &mut self.t1 }.push(&mut places.links, slot);
        self.adaptive.inserted(self.t1.len());
    }

    fn remove(&mut self, places: &mut Places, slot: Slot) {
        let in_t2 = std::mem::take(&mut places.marks[slot as usize]);
        if in_t2 == IN_T2 { &mut self.t2 } else { &mut self.t1 }.remove(&mut places.links, slot);
    }

    #[inline]
    fn ahead(&self, _places: &Places, _slots: &[Slot], hashes: &[u64]) {
        self.adaptive.read_ahead(hashes);
    }

    fn forget(&mut self, block: u64) {
        self.adaptive.forget(block);
    }

    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        let in_t2 = std::mem::take(&mut places.marks[from as usize]);
        places.marks[to as usize] = in_t2;
        if in_t2 == IN_T2 { &mut self.t2 } else { &mut self.t1 }.replace(&mut places.links, from, to);
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
        self.t1.iter(&places.links).chain(self.t2.iter(&places.links)).for_each(visit);
    }

    fn memory_bytes(&self) -> usize {
        self.adaptive.memory_bytes()
    }

    fn check(&self, places: &Places, occupied: u32) {
        self.t1.check(&places.links);
        self.t2.check(&places.links);
        assert_eq!(self.t1.len() + self.t2.len(), occupied, "slots in T1 and T2");
        assert!(self.t1.iter(&places.links).all(|s| places.marks[s as usize] == 0), "a slot of T1 is marked as of T2");
        assert!(
            self.t2.iter(&places.links).all(|s| places.marks[s as usize] == IN_T2),
            "a slot of T2 is marked as of T1"
        );
        self.adaptive.check();
    }
}
