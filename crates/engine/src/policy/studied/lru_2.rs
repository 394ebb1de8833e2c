//! LRU-2: LRU-K with K = 2 (O'Neil, O'Neil and Weikum, "The LRU-K Page Replacement Algorithm for Database Disk
//! Buffering", SIGMOD 1993).
//!
//! Owns the times of each block's last two accesses, and of the last access of blocks evicted not long ago. The block
//! whose last access but one is oldest goes; blocks asked for once count as infinitely old, by LRU among themselves.
//! Never treats two accesses as one (the paper's correlated reference period is 0).
//! Invariant: the heap has exactly the slots, by (last access but one or 0, last access).
//!
//! The paper keeps the history of evicted blocks for a time of its user's choice; here it is as many blocks as slots.

use super::heap::Heap;
use super::history::History;
use crate::policy::{Policy, Search, Seen};
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

#[derive(Debug)]
pub(crate) struct Lru2 {
    heap: Heap<(u64, u64)>,
    /// Last accesses.
    history: History<u64>,
    /// That of the block that misses.
    before: u64,
    clock: u64,
}

impl Lru2 {
    pub fn new(capacity: u32, key: HashKey) -> Self {
        Self { heap: Heap::new(capacity), history: History::new(capacity, key), before: 0, clock: 0 }
    }
}

impl Policy for Lru2 {
    fn touch(&mut self, _places: &mut Places, slot: Slot, _block: u64) {
        self.clock += 1;
        let (_, last) = self.heap.key(slot);
        self.heap.change(slot, (last, self.clock));
    }

    fn miss(&mut self, block: u64) -> Seen {
        let last = self.history.take(block);
        self.before = last.unwrap_or(0);
        if last.is_some() { Seen::Once } else { Seen::Never }
    }

    fn victim(
        &mut self,
        _places: &mut Places,
        keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        _seen: Seen,
    ) -> Option<Slot> {
        let ((_, last), slot) = self.heap.first_that(&may_evict, &mut Search::default())?;
        self.heap.remove(slot);
        self.history.push(keys[slot as usize], last);
        Some(slot)
    }

    fn insert(&mut self, _places: &mut Places, slot: Slot, _block: u64, seen: Seen) {
        self.clock += 1;
        let before = if seen == Seen::Never { 0 } else { self.before };
        self.heap.push(slot, (before, self.clock));
    }

    fn remove(&mut self, _places: &mut Places, slot: Slot) {
        self.heap.remove(slot);
    }

    fn forget(&mut self, block: u64) {
        self.history.take(block);
    }

    fn moved(&mut self, _places: &mut Places, from: Slot, to: Slot) {
        self.heap.moved(from, to);
    }

    fn resize(&mut self, _places: &mut Places, capacity: u32, _keys: &[u64]) {
        self.history.resize(capacity);
    }

    fn coldest_first(&self, _places: &Places, visit: &mut dyn FnMut(Slot)) {
        self.heap.sorted().into_iter().for_each(visit);
    }

    fn memory_bytes(&self) -> usize {
        self.heap.memory_bytes() + self.history.memory_bytes()
    }

    fn check(&self, _places: &Places, occupied: u32) {
        self.heap.check(occupied);
        self.history.check();
    }
}
