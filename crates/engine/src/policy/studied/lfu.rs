//! LFU: least frequently used, ties first in, first out; counts last as long as a block stays (Aho, Denning and Ullman,
//! "Principles of optimal page replacement", Journal of the ACM 1971, where counts are known probabilities).
//!
//! Owns the frequencies. Never forgets that a block was once popular, which is the policy's well-known weakness.
//! Invariant: that of `frequencies`.

use super::frequencies::Frequencies;
use crate::policy::{Policy, Search, Seen};
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

#[derive(Debug)]
pub(crate) struct Lfu {
    frequencies: Frequencies,
}

impl Lfu {
    pub fn new(capacity: u32, _key: HashKey) -> Self {
        Self { frequencies: Frequencies::new(capacity) }
    }
}

impl Policy for Lfu {
    #[inline]
    fn touch(&mut self, places: &mut Places, slot: Slot, _block: u64) {
        self.frequencies.touch(&mut places.links, slot);
    }

    fn victim(
        &mut self,
        places: &mut Places,
        _keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        _seen: Seen,
    ) -> Option<Slot> {
        let slot = self.frequencies.least(&places.links, &may_evict, &mut Search::default())?;
        self.frequencies.remove(&mut places.links, slot);
        Some(slot)
    }

    fn insert(&mut self, places: &mut Places, slot: Slot, _block: u64, _seen: Seen) {
        self.frequencies.add(&mut places.links, slot, 1);
    }

    fn remove(&mut self, places: &mut Places, slot: Slot) {
        self.frequencies.remove(&mut places.links, slot);
    }

    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        self.frequencies.moved(&mut places.links, from, to);
    }

    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        self.frequencies.iter(&places.links).for_each(visit);
    }

    fn memory_bytes(&self) -> usize {
        self.frequencies.memory_bytes()
    }

    fn check(&self, places: &Places, occupied: u32) {
        self.frequencies.check(&places.links, occupied);
    }
}
