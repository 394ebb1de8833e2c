//! The miss table: the blocks that missed most, and how often.
//!
//! Owns a bounded number of counters. Never counts a hit. Invariants: until a block is forgotten by name, one that the
//! table does not name has missed no more often than the smallest counter says, halved as often as that; a block's
//! count is above its misses by no more than its error.
//!
//! Space-Saving (Metwally, Agrawal and El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data
//! Streams", ICDT 2005): a block without a counter takes over the smallest one, with its count. The thesis that locks
//! by such a table (Asaduzzaman, chapter 4) keeps 20 entries and does not say how it finds them.
//!
//! All memory is taken at the start. A miss takes time in proportion to the logarithm of the number of counters, and to
//! halve all counts takes as long as to halve one: each counter says how often it has been halved, and halves what it
//! has missed of that when it is looked at. Halves are rounded down, which changes no order.

use crate::structures::slots::{ChainedSlots, Slot};
use crate::structures::table::{Fill, HashKey};
use std::cmp::Reverse;

/// Entries of a table, if nobody says.
pub const ENTRIES: usize = 20;
/// Entries that a table can have.
pub const ENTRIES_MAX: usize = 4096;
/// Counters for each entry: so many times as many blocks are told apart as are shown.
const COUNTERS_PER_ENTRY: usize = 8;
/// Bytes that a counter takes at most: itself, its place in the heap, its block, and 7 where that is found.
const COUNTER_BYTES: usize = size_of::<Counter>() + size_of::<Slot>() + size_of::<u64>() + 7;

/// What is known of a block that missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed {
    /// The block; its key, in an index of several disks.
    pub block: u64,
    /// How often it missed at most.
    pub misses: u64,
    /// How many of those may be other blocks' that were forgotten for it.
    pub error: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    misses: u64,
    error: u64,
    /// Of the table's halvings, those that both numbers have behind them.
    halvings: u32,
    /// Where it stands in the heap.
    place: u32,
}

/// See the head of the file.
#[derive(Debug)]
pub struct MissTable {
    entries: usize,
    /// Which block each counter is of.
    blocks: ChainedSlots,
    counters: Vec<Counter>,
    /// The counters in use, the smallest count first.
    heap: Vec<Slot>,
    halvings: u32,
    misses: u64,
}

impl MissTable {
    /// An empty table that shows `entries` blocks, 1 to [`ENTRIES_MAX`]. Where a block's counter is found depends on
    /// the key, and nothing else.
    pub fn new(entries: usize, key: HashKey) -> Self {
        let entries = entries.clamp(1, ENTRIES_MAX);
        Self::with_counters(entries, entries * COUNTERS_PER_ENTRY, key)
    }

    /// One that shows `entries` blocks and tells `counters` apart, no fewer, and at least one.
    pub(super) fn with_counters(entries: usize, counters: usize, key: HashKey) -> Self {
        Self {
            entries,
            blocks: ChainedSlots::new(counters as u32, Fill::TwoThirds, key),
            counters: vec![Counter::default(); counters],
            heap: Vec::with_capacity(counters),
            halvings: 0,
            misses: 0,
        }
    }

    /// Blocks that it tells apart.
    pub(super) fn counters(&self) -> usize {
        self.counters.len()
    }

    /// Counters in use.
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    /// What the counter says that is at place `at` of the heap, in no order to speak of; `None` past the end.
    pub(super) fn at(&self, at: usize) -> Option<Missed> {
        self.heap.get(at).map(|&slot| self.missed(slot))
    }

    /// Blocks that it shows.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Misses of all blocks that were counted.
    pub fn misses(&self) -> u64 {
        self.misses
    }

    /// Bytes that a table of so many entries takes at most.
    pub fn bytes_max(entries: usize) -> usize {
        Self::bytes_for(entries.clamp(1, ENTRIES_MAX) * COUNTERS_PER_ENTRY)
    }

    /// Bytes that a table of so many counters takes at most.
    pub(super) fn bytes_for(counters: usize) -> usize {
        size_of::<Self>() + counters * COUNTER_BYTES
    }

    /// A block missed. Returns how often it has, with what may be others'.
    pub fn count(&mut self, block: u64) -> u64 {
        self.misses += 1;
        let hash = self.blocks.hash(block);
        let slot = match self.blocks.find(block, hash) {
            Some(slot) => slot,
            None => self.give_counter(block, hash),
        };
        let mut counter = self.counter(slot);
        counter.misses += 1;
        self.counters[slot as usize] = counter;
        self.sink(counter.place as usize);
        counter.misses
    }

    /// Gives a block a counter that has none: a new one, or the smallest, if there are no more or it says nothing.
    fn give_counter(&mut self, block: u64, hash: u64) -> Slot {
        match self.heap.first().map(|&slot| (slot, self.counter(slot))) {
            Some((slot, smallest)) if smallest.misses == 0 || self.blocks.is_full() => {
                self.blocks.replace(slot, block, hash);
                self.counters[slot as usize] = Counter { error: smallest.misses, ..smallest };
                slot
            }
            _ => {
                let slot = self.blocks.insert(block, hash);
                let place = self.heap.len();
                self.heap.push(slot);
                let halvings = self.halvings;
                self.counters[slot as usize] = Counter { misses: 0, error: 0, halvings, place: place as u32 };
                // Its count is 0, and none of the others is.
                self.rise(place);
                slot
            }
        }
    }

    /// A counter with all halvings behind it.
    fn counter(&self, slot: Slot) -> Counter {
        let counter = self.counters[slot as usize];
        let by = self.halvings.wrapping_sub(counter.halvings);
        let halved = |count: u64| count.checked_shr(by).unwrap_or(0);
        Counter {
            misses: halved(counter.misses),
            error: halved(counter.error),
            halvings: self.halvings,
            place: counter.place,
        }
    }

    fn missed(&self, slot: Slot) -> Missed {
        let Counter { misses, error, .. } = self.counter(slot);
        Missed { block: self.blocks.keys()[slot as usize], misses, error }
    }

    /// What is known of a block.
    pub fn of(&self, block: u64) -> Option<Missed> {
        let slot = self.blocks.find(block, self.blocks.hash(block))?;
        Some(self.missed(slot)).filter(|missed| missed.misses > 0)
    }

    /// Halves all counts: what was long ago weighs less. Blocks whose count comes to 0 are forgotten.
    pub fn halve(&mut self) {
        self.halvings = self.halvings.wrapping_add(1);
    }

    /// Forgets a block.
    pub fn forget(&mut self, block: u64) {
        let Some(slot) = self.blocks.find(block, self.blocks.hash(block)) else { return };
        self.blocks.free(slot);
        let at = self.counters[slot as usize].place as usize;
        self.heap.swap_remove(at);
        if at < self.heap.len() {
            self.counters[self.heap[at] as usize].place = at as u32;
            let at = self.rise(at);
            self.sink(at);
        }
    }

    /// Forgets the blocks for which `gone` is true.
    pub fn forget_all(&mut self, gone: impl Fn(u64) -> bool) {
        let blocks: Vec<u64> = self.heap.iter().map(|&slot| self.blocks.keys()[slot as usize]).collect();
        blocks.into_iter().filter(|&block| gone(block)).for_each(|block| self.forget(block));
    }

    /// The blocks that missed most, the most often first; ties by the lower number.
    pub fn top(&self) -> Vec<Missed> {
        let order = |m: &Missed| (Reverse(m.misses - m.error), Reverse(m.misses), m.block);
        let mut all: Vec<Missed> = self.heap.iter().map(|&slot| self.missed(slot)).filter(|m| m.misses > 0).collect();
        if all.len() > self.entries {
            all.select_nth_unstable_by_key(self.entries, order);
            all.truncate(self.entries);
        }
        all.sort_unstable_by_key(order);
        all
    }

    /// The count at a place of the heap.
    fn misses_at(&self, at: usize) -> u64 {
        self.counter(self.heap[at]).misses
    }

    /// Moves a counter towards the top of the heap while it is smaller than the one above it.
    fn rise(&mut self, mut at: usize) -> usize {
        while at > 0 && self.misses_at(at) < self.misses_at((at - 1) / 2) {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
        at
    }

    fn sink(&mut self, mut at: usize) {
        loop {
            let below = (2 * at + 1)..(2 * at + 3).min(self.heap.len()).max(2 * at + 1);
            let Some(least) = below.min_by_key(|&n| self.misses_at(n)) else { return };
            if self.misses_at(least) >= self.misses_at(at) {
                return;
            }
            self.swap(at, least);
            at = least;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        for at in [a, b] {
            self.counters[self.heap[at] as usize].place = at as u32;
        }
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.blocks.memory_bytes()
            + self.counters.capacity() * size_of::<Counter>()
            + self.heap.capacity() * size_of::<Slot>()
    }

    #[cfg(test)]
    fn check(&self) {
        self.blocks.check();
        assert_eq!(self.heap.len(), self.blocks.len() as usize);
        for (at, &slot) in self.heap.iter().enumerate() {
            assert_eq!(self.counters[slot as usize].place, at as u32, "a block's place");
            assert!(at == 0 || self.misses_at((at - 1) / 2) <= self.misses_at(at), "the smallest is not first");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn table(entries: usize) -> MissTable {
        MissTable::new(entries, HashKey::from_seed(5))
    }

    proptest! {
        #[test]
        fn counts_are_never_below_the_truth_and_above_it_by_no_more_than_said(
            entries in 1usize..6,
            blocks in prop::collection::vec(prop_oneof![3 => 0u64..10, 1 => 0u64..200], 0..600),
            forget in prop::collection::vec(0u64..10, 0..3),
        ) {
            let mut table = table(entries);
            let mut truth = BTreeMap::new();
            for &block in &blocks {
                table.count(block);
                *truth.entry(block).or_insert(0u64) += 1;
                table.check();
            }
            let smallest = table.at(0).map_or(0, |m| m.misses);
            let is_full = table.heap.len() == entries * COUNTERS_PER_ENTRY;
            for (&block, &misses) in &truth {
                match table.of(block) {
                    Some(m) => prop_assert!(m.misses >= misses && m.misses - m.error <= misses, "{m:?}, not {misses}"),
                    None => prop_assert!(is_full && misses <= smallest, "{block} missed {misses} times, unseen"),
                }
            }
            prop_assert_eq!(table.misses(), blocks.len() as u64);
            prop_assert!(table.top().len() <= entries);
            for block in forget {
                table.forget(block);
                table.check();
                prop_assert!(table.of(block).is_none());
            }
        }

        /// Each count by itself, as if all were gone through each time.
        #[test]
        fn halves_are_those_of_each_count(
            blocks in prop::collection::vec((0u64..12, 0u32..9), 0..400),
        ) {
            // More counters than blocks: all are known exactly.
            let mut table = table(2);
            let mut plain = BTreeMap::new();
            for (block, halvings) in blocks {
                *plain.entry(block).or_insert(0u64) += 1;
                let missed = table.count(block);
                prop_assert_eq!(missed, plain[&block]);
                for _ in 7..halvings {
                    table.halve();
                    plain.values_mut().for_each(|misses| *misses /= 2);
                }
                table.check();
                for (&block, &misses) in &plain {
                    let expected = (misses > 0).then_some(Missed { block, misses, error: 0 });
                    prop_assert_eq!(table.of(block), expected);
                }
                let shown = plain.iter().filter(|(_, misses)| **misses > 0).count();
                prop_assert_eq!(table.top().len(), shown.min(2));
            }
        }
    }

    #[test]
    fn after_many_halvings_nothing_is_left_and_all_counters_are_free() {
        let mut table = table(1);
        (0..8).for_each(|block| _ = table.count(block));
        (0..200).for_each(|_| table.halve());
        assert!(table.top().is_empty() && table.of(3).is_none());
        (10..18).for_each(|block| _ = table.count(block));
        table.check();
        assert!((10..18).all(|block| table.of(block) == Some(Missed { block, misses: 1, error: 0 })));
    }

    #[test]
    fn its_memory_is_taken_at_the_start_and_is_what_was_said() {
        for entries in [1, 3, 20, 333, ENTRIES_MAX] {
            let mut table = table(entries);
            let bytes = table.memory_bytes();
            assert!(bytes <= MissTable::bytes_max(entries), "{entries}: {bytes}");
            (0..20 * entries as u64).for_each(|block| _ = table.count(block));
            assert_eq!(table.memory_bytes(), bytes, "{entries}");
        }
    }

    #[test]
    fn the_blocks_that_miss_most_are_found_among_many_that_miss_once() {
        let mut table = table(20);
        for round in 0..200u64 {
            for block in 0..20u64 {
                if round % (block + 1) == 0 {
                    table.count(block);
                }
            }
            (0..10).for_each(|n| _ = table.count(1000 + round * 10 + n));
        }
        let top: Vec<u64> = table.top().iter().map(|m| m.block).take(8).collect();
        assert_eq!(top, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(table.memory_bytes() <= MissTable::bytes_max(20), "{} bytes", table.memory_bytes());
    }
}
