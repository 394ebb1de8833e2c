//! LFU with dynamic aging (Arlitt et al., "Evaluating content management techniques for Web proxy caches", 1999), and
//! GDSF (Cherkasova, "Improving WWW proxies performance with greedy-dual-size-frequency caching policy", HP
//! Laboratories report HPL-98-69R1, 1998), which is the same where all blocks have one size and one cost.
//!
//! Owns a priority for each slot: how often it was asked for, plus the cache's age when it last was. The age is the
//! priority of the last victim, so what was popular long ago goes in the end. Never forgets a count while a block
//! stays. Invariant: no slot's priority is below the age.

use super::heap::Heap;
use super::per_slot::PerSlot;
use crate::policy::{Policy, Search, Seen};
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

#[derive(Debug)]
pub(crate) struct LfuDa {
    /// By priority; ties go to the least recently used.
    heap: Heap<(u64, u64)>,
    counts: PerSlot<u32>,
    age: u64,
    clock: u64,
}

impl LfuDa {
    pub fn new(capacity: u32, _key: HashKey) -> Self {
        Self { heap: Heap::new(capacity), counts: PerSlot::new(capacity), age: 0, clock: 0 }
    }
}

impl Policy for LfuDa {
    fn touch(&mut self, _places: &mut Places, slot: Slot, _block: u64) {
        self.clock += 1;
        let count = self.counts.get_mut(slot);
        *count = count.saturating_add(1);
        self.heap.change(slot, (self.age + u64::from(*count), self.clock));
    }

    fn victim(
        &mut self,
        _places: &mut Places,
        _keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        _seen: Seen,
    ) -> Option<Slot> {
        let least = self.heap.first().map(|((priority, _), _)| priority);
        let (_, slot) = self.heap.first_that(&may_evict, &mut Search::default())?;
        // that of the smallest, also where a larger one had to go
        self.age = least.unwrap_or(self.age);
        self.heap.remove(slot);
        Some(slot)
    }

    fn insert(&mut self, _places: &mut Places, slot: Slot, _block: u64, _seen: Seen) {
        self.clock += 1;
        self.counts.set(slot, 1);
        self.heap.push(slot, (self.age + 1, self.clock));
    }

    fn remove(&mut self, _places: &mut Places, slot: Slot) {
        self.heap.remove(slot);
    }

    fn moved(&mut self, _places: &mut Places, from: Slot, to: Slot) {
        self.heap.moved(from, to);
        self.counts.set(to, self.counts.get(from));
    }

    fn coldest_first(&self, _places: &Places, visit: &mut dyn FnMut(Slot)) {
        self.heap.sorted().into_iter().for_each(visit);
    }

    fn memory_bytes(&self) -> usize {
        self.heap.memory_bytes() + self.counts.memory_bytes()
    }

    fn check(&self, _places: &Places, occupied: u32) {
        self.heap.check(occupied);
        assert!(self.heap.first().is_none_or(|((priority, _), _)| priority >= self.age), "a priority below the age");
    }
}
