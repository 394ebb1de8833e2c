//! Random replacement: any block goes, by lot.
//!
//! Owns the slots in no order, and the lots. Never reacts to a hit.
//! Invariant: lots depend on the key and on how many were drawn, so a replay with the same key is the same.

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
