//! S4-FIFO (Xia, Nixon, Marthen, Bhandari and Yang, "Learning-Augmented Heuristics: Simple, yet Smart, Robust and
//! Interpretable Cache Eviction", OSDI 2026): S3-FIFO with five knobs, turned as it goes.
//!
//! Owns the queues (`s4queues`) and the choice of their knobs (`s4choice`), and brings the two together. Decides
//! nothing itself. Begins as S3-FIFO, and stays that where the cache is too small for miniatures. Invariant: the knobs
//! are those of the configuration in use.
//!
//! The rules of the queues are the paper's, as libCacheSim has them. The choice is ours, and so are the figures: this
//! is not what the paper measured. See docs/decisions/0118.

use super::s4choice::{CONFIGURATIONS, Choice, FIRST};
use super::s4queues::{Knobs, Queues};
use crate::policy::{Policy, Seen};
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

/// See the head of the file. Only construction, resizing and a switch of configuration allocate.
#[derive(Debug)]
pub(crate) struct S4Fifo {
    queues: Queues,
    choice: Option<Box<Choice>>,
    key: HashKey,
}

impl S4Fifo {
    pub fn new(capacity: u32, key: HashKey) -> Self {
        Self { queues: Queues::new(Knobs::DEFAULT, capacity, key), choice: Choice::new(capacity, FIRST, key), key }
    }

    #[inline]
    fn observe(&mut self, block: u64) {
        if let Some(choice) = &mut self.choice
            && let Some(knobs) = choice.observe(block)
        {
            self.queues.turn(knobs);
        }
    }
}

impl Policy for S4Fifo {
    #[inline]
    fn touch(&mut self, places: &mut Places, slot: Slot, block: u64) {
        self.queues.touch(places, slot, block);
        self.observe(block);
    }

    fn miss(&mut self, block: u64) -> Seen {
        self.observe(block);
        self.queues.miss(block)
    }

    fn victim(
        &mut self,
        places: &mut Places,
        keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        seen: Seen,
    ) -> Option<Slot> {
        self.queues.victim(places, keys, may_evict, seen)
    }

    fn insert(&mut self, places: &mut Places, slot: Slot, block: u64, seen: Seen) {
        self.queues.insert(places, slot, block, seen);
    }

    fn remove(&mut self, places: &mut Places, slot: Slot) {
        self.queues.remove(places, slot);
    }

    #[inline]
    fn ahead(&self, places: &Places, slots: &[Slot], hashes: &[u64]) {
        self.queues.ahead(places, slots, hashes);
    }

    fn forget(&mut self, block: u64) {
        self.queues.forget(block);
    }

    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        self.queues.moved(places, from, to);
    }

    fn limit(&mut self, places: &mut Places, limit: u32) {
        self.queues.limit(places, limit);
        if let Some(choice) = &mut self.choice {
            choice.set_limit(limit);
        }
    }

    /// The configuration stays; the miniatures begin anew.
    fn resize(&mut self, places: &mut Places, capacity: u32, keys: &[u64]) {
        self.queues.resize(places, capacity, keys);
        let in_use = self.choice.as_ref().map_or(FIRST, |choice| choice.in_use());
        self.choice = Choice::new(capacity, in_use, self.key);
        if self.choice.is_none() {
            self.queues.turn(Knobs::DEFAULT);
        }
    }

    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        self.queues.coldest_first(places, visit);
    }

    fn memory_bytes(&self) -> usize {
        self.queues.memory_bytes() + self.choice.as_ref().map_or(0, |choice| choice.memory_bytes())
    }

    fn check(&self, places: &Places, occupied: u32) {
        self.queues.check(places, occupied);
        if let Some(choice) = &self.choice {
            choice.check(self.queues.capacity());
            assert_eq!(self.queues.knobs(), CONFIGURATIONS[choice.in_use()], "the configuration in use");
        } else {
            assert_eq!(self.queues.knobs(), Knobs::DEFAULT, "knobs that nobody chose");
        }
    }
}
