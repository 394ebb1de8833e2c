//! Random replacement: any block goes, drawn at random (Belady, "A study of replacement algorithms for a
//! virtual-storage computer", IBM Systems Journal 1966).
//!
//! Owns the slots in no order, and the random numbers. Never reacts to a hit.
//! Invariant: random numbers depend on the key and on how many were drawn, so replays with the same key agree.

use super::per_slot::{Lots, Members};
use crate::policy::{Policy, Search, Seen};
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

#[derive(Debug)]
pub(crate) struct Random {
    members: Members,
    lots: Lots,
}

impl Random {
    pub fn new(capacity: u32, key: HashKey) -> Self {
        Self { members: Members::new(capacity), lots: Lots::new(key) }
    }
}

impl Policy for Random {
    #[inline]
    fn touch(&mut self, _places: &mut Places, _slot: Slot, _block: u64) {}

    fn victim(
        &mut self,
        _places: &mut Places,
        _keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        _seen: Seen,
    ) -> Option<Slot> {
        let mut search = Search::default();
        loop {
            let slot = self.members.draw(&mut self.lots)?;
            if may_evict(slot) {
                self.members.remove(slot);
                return Some(slot);
            }
            if search.refused() {
                return None;
            }
        }
    }

    fn insert(&mut self, _places: &mut Places, slot: Slot, _block: u64, _seen: Seen) {
        self.members.add(slot);
    }

    fn remove(&mut self, _places: &mut Places, slot: Slot) {
        self.members.remove(slot);
    }

    fn moved(&mut self, _places: &mut Places, from: Slot, to: Slot) {
        self.members.moved(from, to);
    }

    fn coldest_first(&self, _places: &Places, visit: &mut dyn FnMut(Slot)) {
        self.members.iter().for_each(visit);
    }

    fn memory_bytes(&self) -> usize {
        self.members.memory_bytes()
    }

    fn check(&self, _places: &Places, occupied: u32) {
        self.members.check(occupied);
    }
}
