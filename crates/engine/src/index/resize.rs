//! How an index comes to have more slots or fewer: at once for simulators, in steps for who serves guests meanwhile.
//!
//! Owns the order: slots first, then what policies keep beside them. Never evicts on its own account. Invariant: it is
//! an index like any other between two steps, and what a step takes is bounded by its units, whatever the capacity.

#[cfg(test)]
mod tests;

use super::Index;
use super::parts::policy_of;
use super::ranges::REST;
use crate::policy::{Policy, PolicySet};
use crate::structures::array::{KeepAll, Release};
use crate::structures::places::{BUFFERED, LOCKED};
use crate::structures::slots::Slot;

/// Bytes of memory that a step gives back at most.
const RELEASE_BYTES: usize = 256 << 10;

impl<K: PolicySet> Index<K> {
    /// Changes the capacity. Growing keeps every slot number. Shrinking first evicts down to the new capacity
    /// (calling `evicted`), then moves blocks out of slots past the end: `moved(from, to)` for each.
    /// Slots for which `may_evict` is false are neither evicted nor moved; where they stand in the way the index
    /// shrinks as far as it can and returns the capacity reached: call again later.
    ///
    /// Allocates, and takes time in proportion to the capacity.
    pub fn resize(
        &mut self,
        capacity: u32,
        may_evict: impl Fn(Slot) -> bool,
        mut evicted: impl FnMut(u64, Slot),
        mut moved: impl FnMut(Slot, Slot),
    ) -> u32 {
        self.finish(&mut moved);
        while self.len() > capacity {
            match self.evict(&may_evict) {
                Some((block, slot)) => evicted(block, slot),
                None => break,
            }
        }
        let reached = match capacity < self.capacity() {
            true => self.slots.reachable(capacity.max(self.len()), may_evict),
            false => capacity,
        };
        match reached == self.capacity() {
            true => self.settle(),
            false => self.begin_resize(reached),
        }
        self.finish(&mut moved);
        reached
    }

    fn finish(&mut self, moved: &mut impl FnMut(Slot, Slot)) {
        while !self.step(u32::MAX, &mut KeepAll, &mut *moved) {}
    }

    /// Begins to change the capacity to `capacity`, which is not less than there are blocks; the limit becomes no more
    /// than that at once. [`Index::step`] does it, and must have done it before this is called again.
    pub fn begin_resize(&mut self, capacity: u32) {
        assert!(capacity < u32::MAX, "an index has fewer than 2^32 - 1 slots");
        assert!(!self.is_resizing() && capacity >= self.len(), "an index changes its size twice at once, or too far");
        self.slots.begin(capacity);
        self.choose_way();
        if self.limit > self.slots.most() {
            self.limit = self.slots.most();
            self.limit_parts();
            self.line_up();
        }
    }

    /// Whether the number of slots is changing.
    pub fn is_resizing(&self) -> bool {
        self.slots.is_resizing()
    }

    /// Whether [`Index::step`] has something to do: the number of slots is changing, or what policies keep beside them,
    /// or slots leave the tiers.
    pub fn is_moving(&self) -> bool {
        self.moves || self.is_resizing()
    }

    /// Slots that there are or will be: what memory is needed for.
    pub fn capacity_max(&self) -> u32 {
        self.slots.capacity_max()
    }

    /// Goes on with changes of size, for about as long as it takes to move `units` blocks. Calls `moved(from, to)` for
    /// each block that gets another slot. Whether all is done. Slots become more, or fewer, some at a time, each when
    /// all is ready for it; when all are there the limit is their number.
    pub fn step(&mut self, units: u32, by: &mut impl Release, mut moved: impl FnMut(Slot, Slot)) -> bool {
        let mut left = units;
        if self.is_resizing() {
            let unreleased = self.release(by);
            if !self.step_slots(&mut left, !unreleased, &mut moved) {
                return false;
            }
            self.settle();
        }
        if self.moves {
            let done = self.step_policies(&mut left) && self.step_leaving(&mut left) && self.step_locks(&mut left);
            self.moves = self.release(by) || !done;
            self.line_up();
        }
        !self.moves
    }

    fn step_slots(&mut self, left: &mut u32, cut: bool, moved: &mut impl FnMut(Slot, Slot)) -> bool {
        let Self { slots, places, policy, tiers, parts, locks, victims, .. } = self;
        let done = slots.step(left, cut, |from, to| {
            let part = parts.as_mut().map_or(REST, |parts| parts.moved(from, to));
            match (places.marks[from as usize], &mut *locks, &mut *victims) {
                (LOCKED, Some(locks), _) => locks.moved(places, part, from, to),
                (BUFFERED, _, Some(victims)) => victims.moved(places, from, to),
                _ => {
                    if !tiers.as_mut().is_some_and(|t| t.moved(part, from, to)) {
                        policy_of::<K>(policy, parts, part).moved(places, from, to);
                    }
                }
            }
            moved(from, to);
        });
        let (capacity, end) = (slots.capacity(), slots.capacity_max());
        places.set_len(capacity, end);
        if let Some(tiers) = tiers {
            tiers.set_len(capacity, end);
        }
        if let Some(parts) = parts {
            parts.set_len(capacity, end);
        }
        if done {
            places.fit();
            tiers.iter_mut().for_each(|tiers| tiers.fit());
            parts.iter_mut().for_each(|parts| parts.fit());
        }
        done
    }

    /// The slots are as many as were asked for: what policies keep beside them follows.
    fn settle(&mut self) {
        self.limit = self.capacity();
        self.moves = true;
        self.choose_way();
        match self.parts.is_some() {
            true => self.fit_parts(),
            false => self.policy.resize(&mut self.places, self.limit, self.slots.keys()),
        }
        self.line_up();
        self.fit_locks();
    }

    fn step_policies(&mut self, left: &mut u32) -> bool {
        let Self { places, policy, parts, .. } = self;
        match parts {
            None => policy.step(places, left),
            Some(parts) => parts.step(policy, places, left),
        }
    }

    /// What policies keep follows at once, and what is locked.
    pub(super) fn finish_policies(&mut self) {
        self.finish_leaving();
        self.finish_locks();
        while !self.step_policies(&mut { u32::MAX }) {}
        self.moves = false;
        self.line_up();
    }

    /// Gives back memory that is not needed any more, but not too much at once; whether some is left.
    fn release(&mut self, by: &mut impl Release) -> bool {
        if self.most == 0 {
            return false;
        }
        let mut bytes = RELEASE_BYTES;
        self.slots.release(by, &mut bytes);
        self.places.release(by, &mut bytes);
        self.policy.release(by, &mut bytes);
        if let Some(tiers) = &mut self.tiers {
            tiers.release(by, &mut bytes);
        }
        if let Some(parts) = &mut self.parts {
            parts.release(by, &mut bytes);
        }
        bytes == 0
    }
}
