//! Tables with bugs planted in how they change their size: the tests that a sound one passes find each.

use super::{EMPTY, HashKey, Rehash};
use crate::structures::array::Release;
use crate::structures::slots::{Map, tests::there_and_back};
use crate::structures::table::{Fill, Table};
use std::panic::catch_unwind;

/// A mistake that is easily made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// Look-ups go by the homes before the change alone.
    OldHomesOnly,
    /// Look-ups go by the homes that will be.
    NewHomesOnly,
    /// A key is moved, and stays where it was.
    MovedTwice,
    /// A key is taken out of its old home, and put nowhere.
    LostOnItsWay,
}

/// A table that makes the mistake of that number.
#[derive(Debug)]
struct Wrong<const MISTAKE: usize> {
    table: Table,
    made: bool,
}

impl<const MISTAKE: usize> Wrong<MISTAKE> {
    const MISTAKE: Mistake =
        [Mistake::None, Mistake::OldHomesOnly, Mistake::NewHomesOnly, Mistake::MovedTwice, Mistake::LostOnItsWay]
            [MISTAKE];

    /// The table as it would be with its border at one of the ends.
    fn find_beyond(&self, border_at_end: bool, key: u64, hash: u64, keys: &[u64]) -> Option<u32> {
        let rehash = self.table.rehash.as_ref()?;
        let mut wrong = Rehash::new(rehash.from, rehash.to, rehash.before, keys.len() as u32, rehash.key);
        wrong.then = rehash.then;
        wrong.cells = rehash.cells;
        if border_at_end {
            wrong.border = if rehash.to > rehash.from { 0 } else { rehash.from };
        }
        wrong.find(&self.table.cells, key, hash, keys)
    }
}

impl<const MISTAKE: usize> Map for Wrong<MISTAKE> {
    fn new(slots: u32, most: u32, fill: Fill, key: HashKey) -> Self {
        Self { table: Table::new(slots, most, fill, key), made: false }
    }
    fn find(&self, key: u64, hash: u64, keys: &[u64]) -> Option<u32> {
        match Self::MISTAKE {
            Mistake::OldHomesOnly if self.table.rehash.is_some() => self.find_beyond(false, key, hash, keys),
            Mistake::NewHomesOnly if self.table.rehash.is_some() => self.find_beyond(true, key, hash, keys),
            _ => self.table.find(key, hash, keys),
        }
    }
    fn insert(&mut self, hash: u64, slot: u32) {
        self.table.insert(hash, slot);
    }
    fn remove(&mut self, key: u64, slot: u32, keys: &[u64]) {
        Map::remove(&mut self.table, key, slot, keys);
    }
    fn relocate(&mut self, key: u64, keys: &[u64], _from: u32, to: u32) {
        self.table.relocate(key, keys, to);
    }
    fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.table.slots()
    }
    fn begin(&mut self, slots: u32) {
        self.table.begin(slots);
    }
    fn step(&mut self, keys: &[u64], left: &mut u32) -> bool {
        let done = self.table.step(keys, left);
        let first = self.table.slots().next();
        if let Some(slot) = first
            && !done
            && !self.made
        {
            let hash = self.table.hash(keys[slot as usize]);
            match Self::MISTAKE {
                Mistake::MovedTwice => {
                    self.table.insert(hash, slot);
                    self.made = true;
                }
                Mistake::LostOnItsWay => {
                    let at = self.table.cells.iter().position(|&cell| cell != EMPTY);
                    self.table.cells[at.expect("a slot is in the table")] = EMPTY;
                    self.made = true;
                }
                _ => {}
            }
        }
        done
    }
    fn reserve(&mut self, most: u32) {
        self.table.reserve(most);
    }
    fn release(&mut self, by: &mut impl Release, bytes: &mut usize) {
        Map::release(&mut self.table, by, bytes);
    }
    fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
    }
    fn check(&self, keys: &[u64], len: usize) {
        self.table.check(keys, len);
    }
}

#[test]
fn mistakes_in_a_change_of_size_are_found() {
    there_and_back::<Wrong<0>>();
    assert!(catch_unwind(there_and_back::<Wrong<1>>).is_err(), "look-ups that forget the new homes");
    assert!(catch_unwind(there_and_back::<Wrong<2>>).is_err(), "look-ups that forget the old homes");
    assert!(catch_unwind(there_and_back::<Wrong<3>>).is_err(), "a key moved twice");
    assert!(catch_unwind(there_and_back::<Wrong<4>>).is_err(), "a key that is lost on its way");
}
