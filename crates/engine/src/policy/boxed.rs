//! Policies for simulators, behind one pointer: what keeps the daemon's few in [`AnyPolicy`] small and quick to build.
//!
//! Owns the object-safe face of [`Policy`] and its two ways round: every policy has it, and a boxed one is a policy
//! again. Never decides anything. A policy's code is the same on either way.
//! Invariant: a replay through the box is one virtual call for a whole batch, so its loop knows the policy.
//!
//! [`AnyPolicy`]: crate::index::AnyPolicy

use super::{Policy, Seen};
use crate::structures::places::Places;
use crate::structures::slots::{ChainedSlots, Slot};

/// [`Policy`] as a trait object; each method is that of the same name there.
pub(crate) trait StudiedPolicy {
    fn touch(&mut self, places: &mut Places, slot: Slot, block: u64);
    fn miss(&mut self, block: u64) -> Seen;
    fn victim(
        &mut self,
        places: &mut Places,
        keys: &[u64],
        may_evict: &dyn Fn(Slot) -> bool,
        seen: Seen,
    ) -> Option<Slot>;
    fn insert(&mut self, places: &mut Places, slot: Slot, block: u64, seen: Seen);
    fn remove(&mut self, places: &mut Places, slot: Slot);
    fn forget(&mut self, block: u64);
    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot);
    fn resize(&mut self, places: &mut Places, capacity: u32, keys: &[u64]);
    fn limit(&mut self, places: &mut Places, limit: u32);
    fn replay(&mut self, slots: &mut ChainedSlots, places: &mut Places, blocks: &[u64]) -> u64;
    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot));
    fn memory_bytes(&self) -> usize;
    fn check(&self, places: &Places, occupied: u32);
}

impl<P: Policy> StudiedPolicy for P {
    fn touch(&mut self, places: &mut Places, slot: Slot, block: u64) {
        Policy::touch(self, places, slot, block);
    }
    fn miss(&mut self, block: u64) -> Seen {
        Policy::miss(self, block)
    }
    fn victim(
        &mut self,
        places: &mut Places,
        keys: &[u64],
        may_evict: &dyn Fn(Slot) -> bool,
        seen: Seen,
    ) -> Option<Slot> {
        Policy::victim(self, places, keys, may_evict, seen)
    }
    fn insert(&mut self, places: &mut Places, slot: Slot, block: u64, seen: Seen) {
        Policy::insert(self, places, slot, block, seen);
    }
    fn remove(&mut self, places: &mut Places, slot: Slot) {
        Policy::remove(self, places, slot);
    }
    fn forget(&mut self, block: u64) {
        Policy::forget(self, block);
    }
    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        Policy::moved(self, places, from, to);
    }
    fn resize(&mut self, places: &mut Places, capacity: u32, keys: &[u64]) {
        Policy::resize(self, places, capacity, keys);
    }
    fn limit(&mut self, places: &mut Places, limit: u32) {
        Policy::limit(self, places, limit);
    }
    fn replay(&mut self, slots: &mut ChainedSlots, places: &mut Places, blocks: &[u64]) -> u64 {
        Policy::replay(self, slots, places, blocks)
    }
    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        Policy::coldest_first(self, places, visit);
    }
    fn memory_bytes(&self) -> usize {
        Policy::memory_bytes(self)
    }
    fn check(&self, places: &Places, occupied: u32) {
        Policy::check(self, places, occupied);
    }
}

/// A policy in a box. `Send`, as every index is.
pub(crate) type Studied = Box<dyn StudiedPolicy + Send + Sync>;

impl Policy for Studied {
    fn touch(&mut self, places: &mut Places, slot: Slot, block: u64) {
        (**self).touch(places, slot, block);
    }
    fn miss(&mut self, block: u64) -> Seen {
        (**self).miss(block)
    }
    fn victim(
        &mut self,
        places: &mut Places,
        keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        seen: Seen,
    ) -> Option<Slot> {
        (**self).victim(places, keys, &may_evict, seen)
    }
    fn insert(&mut self, places: &mut Places, slot: Slot, block: u64, seen: Seen) {
        (**self).insert(places, slot, block, seen);
    }
    fn remove(&mut self, places: &mut Places, slot: Slot) {
        (**self).remove(places, slot);
    }
    fn forget(&mut self, block: u64) {
        (**self).forget(block);
    }
    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        (**self).moved(places, from, to);
    }
    fn resize(&mut self, places: &mut Places, capacity: u32, keys: &[u64]) {
        (**self).resize(places, capacity, keys);
    }
    fn limit(&mut self, places: &mut Places, limit: u32) {
        (**self).limit(places, limit);
    }
    fn replay(&mut self, slots: &mut ChainedSlots, places: &mut Places, blocks: &[u64]) -> u64 {
        (**self).replay(slots, places, blocks)
    }
    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        (**self).coldest_first(places, visit);
    }
    fn memory_bytes(&self) -> usize {
        (**self).memory_bytes()
    }
    fn check(&self, places: &Places, occupied: u32) {
        (**self).check(places, occupied);
    }
}
