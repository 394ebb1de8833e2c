//! Hyperbolic caching (Blankstein, Sen and Freedman, "Hyperbolic Caching: Flexible Caching for Web Applications",
//! USENIX ATC 2017).
//!
//! Owns for each slot how often it was asked for and since when; of 64 slots drawn at random the one that was asked for
//! least often per access since it came goes. Never keeps any order.
//! Invariant: random numbers depend on the key and on how many were drawn, so replays with the same key agree.

use super::per_slot::{Lots, Members, PerSlot};
use crate::policy::{Policy, Search, Seen};
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

/// Slots drawn for an eviction, as in the paper.
const SAMPLE: u32 = 64;

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    count: u32,
    came: u64,
}

#[derive(Debug)]
pub(crate) struct Hyperbolic {
    members: Members,
    known: PerSlot<Known>,
    lots: Lots,
    clock: u64,
}

impl Hyperbolic {
    pub fn new(capacity: u32, key: HashKey) -> Self {
        Self { members: Members::new(capacity), known: PerSlot::new(capacity), lots: Lots::new(key), clock: 0 }
    }

    fn priority(&self, slot: Slot) -> f64 {
        let known = self.known.get(slot);
        f64::from(known.count) / (self.clock - known.came).max(1) as f64
    }
}

impl Policy for Hyperbolic {
    #[inline]
    fn touch(&mut self, _places: &mut Places, slot: Slot, _block: u64) {
        self.clock += 1;
        let known = self.known.get_mut(slot);
        known.count = known.count.saturating_add(1);
    }

    fn miss(&mut self, _block: u64) -> Seen {
        self.clock += 1;
        Seen::Never
    }

    fn victim(
        &mut self,
        _places: &mut Places,
        _keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        _seen: Seen,
    ) -> Option<Slot> {
        let (mut search, mut least) = (Search::default(), None);
        for _ in 0..SAMPLE {
            let slot = self.members.draw(&mut self.lots)?;
            if !may_evict(slot) {
                if search.refused() {
                    break;
                }
                continue;
            }
            let priority = self.priority(slot);
            if least.is_none_or(|(p, _)| priority < p) {
                least = Some((priority, slot));
            }
        }
        let (_, slot) = least?;
        self.members.remove(slot);
        Some(slot)
    }

    fn insert(&mut self, _places: &mut Places, slot: Slot, _block: u64, _seen: Seen) {
        self.members.add(slot);
        self.known.set(slot, Known { count: 1, came: self.clock });
    }

    fn remove(&mut self, _places: &mut Places, slot: Slot) {
        self.members.remove(slot);
    }

    fn moved(&mut self, _places: &mut Places, from: Slot, to: Slot) {
        self.members.moved(from, to);
        self.known.set(to, self.known.get(from));
    }

    fn coldest_first(&self, _places: &Places, visit: &mut dyn FnMut(Slot)) {
        let mut slots: Vec<Slot> = self.members.iter().collect();
        slots.sort_by(|&a, &b| self.priority(a).total_cmp(&self.priority(b)));
        slots.into_iter().for_each(visit);
    }

    fn memory_bytes(&self) -> usize {
        self.members.memory_bytes() + self.known.memory_bytes()
    }

    fn check(&self, _places: &Places, occupied: u32) {
        self.members.check(occupied);
    }
}
