//! Index and model side by side.
//!
//! Owns the comparison: each step is done to both, and everything that can be seen of both must agree.

use crate::policy::model::ReferenceModel;
use crate::policy::{AnyPolicyKind, Outcome};
use crate::{Access, Index, Slot};
use std::collections::{BTreeMap, BTreeSet};

/// A step of a test.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Access(u64),
    Remove(u64),
    Evict,
    Resize(u32),
    Switch(AnyPolicyKind),
    /// The block's slot comes under I/O, or is released.
    Busy(u64),
    /// Every slot is released.
    Idle,
}

pub(crate) struct Pair {
    index: Index<AnyPolicyKind>,
    model: Box<dyn ReferenceModel>,
    /// Where the outcomes said that each block is.
    slots: BTreeMap<u64, Slot>,
    /// Blocks under I/O; may name absent ones.
    busy: BTreeSet<u64>,
}

fn model(kind: AnyPolicyKind, capacity: u32) -> Box<dyn ReferenceModel> {
    kind.model(capacity as usize).unwrap_or_else(|| panic!("{kind} has no model"))
}

impl Pair {
    pub fn new(kind: impl Into<AnyPolicyKind>, capacity: u32) -> Self {
        let kind = kind.into();
        Self::of(Index::new(kind, capacity), model(kind, capacity))
    }

    pub fn of(index: Index<AnyPolicyKind>, model: Box<dyn ReferenceModel>) -> Self {
        let (slots, busy) = Default::default();
        Self { index, model, slots, busy }
    }

    pub fn step(&mut self, step: &Step) {
        match *step {
            Step::Access(block) => self.access(block),
            Step::Remove(block) => {
                self.model.remove(block);
                assert_eq!(self.index.remove(block), self.slots.remove(&block), "slot of the removed block");
            }
            Step::Evict => {
                let expected = self.model_evicts();
                let busy = self.busy_slots();
                assert_eq!(self.index.evict(|s| !busy.contains(&s)), expected, "the evicted block");
            }
            Step::Resize(capacity) => self.resize(capacity),
            Step::Switch(kind) => self.switch(kind),
            Step::Busy(block) => {
                if !self.busy.remove(&block) {
                    self.busy.insert(block);
                }
            }
            Step::Idle => self.busy.clear(),
        }
        self.compare();
    }

    fn busy_slots(&self) -> BTreeSet<Slot> {
        self.busy.iter().filter_map(|b| self.slots.get(b)).copied().collect()
    }

    fn access(&mut self, block: u64) {
        let busy_slots = self.busy_slots();
        let outcome = self.index.access(block, Access::Read, |s| !busy_slots.contains(&s));
        if let Some(&slot) = self.slots.get(&block) {
            self.model.hit(block);
            assert_eq!(outcome, Outcome::Hit(slot));
            return;
        }
        if self.index.capacity() == 0 {
            assert_eq!(outcome, Outcome::Bypass);
            return;
        }
        let full = self.slots.len() == self.index.capacity() as usize;
        let expected = self.model.miss(block, full, &|b| !self.busy.contains(&b));
        match (outcome, expected) {
            (Outcome::Bypass, Err(())) => {}
            (Outcome::Fill { slot, evicted }, Ok(expected)) => {
                let expected = expected.map(|b| (b, self.slots.remove(&b).expect("the model evicts what is there")));
                assert_eq!(evicted, expected, "the evicted block and its slot");
                assert!(slot < self.index.capacity(), "a slot past the end");
                assert!(!self.slots.values().any(|&s| s == slot), "the slot is taken");
                self.slots.insert(block, slot);
            }
            _ => panic!("the index says {outcome:?}, the model {expected:?}"),
        }
    }

    fn model_evicts(&mut self) -> Option<(u64, Slot)> {
        let block = self.model.evict(&|b| !self.busy.contains(&b))?;
        Some((block, self.slots.remove(&block).expect("the model evicts what is there")))
    }

    fn resize(&mut self, capacity: u32) {
        let busy = self.busy_slots();
        let (mut evicted, mut moved) = (vec![], vec![]);
        let reached = self.index.resize(
            capacity,
            |s| !busy.contains(&s),
            |block, slot| evicted.push((block, slot)),
            |from, to| moved.push((from, to)),
        );
        for seen in evicted {
            assert!(self.slots.len() > capacity as usize, "evicted more than needed");
            assert_eq!(Some(seen), self.model_evicts(), "evicted by shrinking");
        }
        if self.slots.len() > capacity as usize {
            assert_eq!(self.model_evicts(), None, "the index could have evicted more");
        }
        let needed = busy.iter().filter(|s| self.slots.values().any(|v| v == *s)).max().map_or(0, |s| s + 1);
        assert_eq!(reached, capacity.max(needed).max(self.slots.len() as u32), "the capacity reached");
        for (from, to) in moved {
            assert!(from >= reached && to < reached && !busy.contains(&from), "moved {from} to {to}");
            assert!(!self.slots.values().any(|&s| s == to), "moved to slot {to}, which is taken");
            *self.slots.values_mut().find(|s| **s == from).expect("moved from a free slot") = to;
        }
        self.model.resize(reached as usize);
    }

    fn switch(&mut self, kind: AnyPolicyKind) {
        let order = self.model.coldest_first();
        self.index.switch(kind);
        assert_eq!(self.index.kind(), kind);
        self.model = model(kind, self.index.capacity());
        for block in order {
            let entered = self.model.miss(block, false, &|_| false);
            assert_eq!(entered, Ok(None), "a switch evicts nobody");
        }
    }

    fn compare(&self) {
        self.index.check();
        let blocks: BTreeMap<u64, Slot> = self.index.iter().collect();
        assert_eq!(blocks, self.slots, "blocks and their slots");
        assert_eq!(self.index.len() as usize, self.slots.len());
        assert_eq!(self.index.is_empty(), self.slots.is_empty());
        for (&block, &slot) in &self.slots {
            assert_eq!(self.index.peek(block), Some(slot));
            assert_eq!(self.index.block_of(slot), Some(block));
        }
        let mut order = self.model.coldest_first();
        assert_eq!(order, self.index.coldest_first(), "the order of eviction");
        order.sort_unstable();
        assert!(order.iter().eq(self.slots.keys()), "the model holds other blocks");
    }
}
