//! A table that changes its size where it is, one home after another.
//!
//! Owns how far that has come. Never has two arrays: a key's home is its hash's place in proportion to the number of
//! cells, so homes of a larger table are in the same order, each at or past the old one. Keys move to their new homes
//! from the last one back when the table grows, from the first one on when it shrinks, and always into the part where
//! all homes are new ones already. Invariant: between any two calls this is a table as any other, with homes that are
//! the new ones on one side of a border and the old ones on the other.
//!
//! How a cell tells its slot depends on which side of the border the cell is, so a run of cells that crosses it can be
//! read.

#[cfg(test)]
mod planted;

use super::{EMPTY, HashKey, Layout, home_among};
use crate::structures::array::Array;

/// Cells that are made empty, or passed, in the time of one unit.
const CELLS_PER_UNIT: usize = 16;

/// See the head of the file.
#[derive(Debug)]
pub(super) struct Rehash {
    /// Cells before, and then.
    from: usize,
    to: usize,
    /// Cells in use now: past the last comes the first.
    cells: usize,
    /// Keys at home here before the change have moved if the table grows and they are not below, or if it shrinks and
    /// they are below.
    border: usize,
    before: Layout,
    then: Layout,
    key: HashKey,
    /// Keys between two homes: slots and hashes. Empty between calls.
    taken: Vec<(u32, u64)>,
}

impl Rehash {
    /// From `from` cells to `to`, which are another number, for slots `0..slots`.
    pub fn new(from: usize, to: usize, before: Layout, slots: u32, key: HashKey) -> Self {
        let border = if to > from { from } else { 0 };
        Self { from, to, cells: from, border, before, then: Layout::new(slots), key, taken: Vec::new() }
    }

    /// The layout of all cells when all is done.
    pub fn layout(&self) -> Layout {
        self.then
    }

    fn grows(&self) -> bool {
        self.to > self.from
    }

    /// How the cell `at` tells its slot.
    pub fn layout_at(&self, at: usize) -> Layout {
        if (at >= self.border) == self.grows() { self.then } else { self.before }
    }

    fn home(&self, hash: u64) -> usize {
        let before = home_among(hash, self.from);
        if (before >= self.border) == self.grows() { home_among(hash, self.to) } else { before }
    }

    fn after(&self, cell: usize) -> usize {
        if cell + 1 == self.cells { 0 } else { cell + 1 }
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.cells - from }
    }

    fn slot_at(&self, cells: &[u32], at: usize) -> u32 {
        cells[at] & self.layout_at(at).slot_mask
    }

    fn distance_from_home(&self, cells: &[u32], at: usize, keys: &[u64]) -> usize {
        let Layout { distance_shift, far, .. } = self.layout_at(at);
        let told = cells[at] >> distance_shift & far;
        if told < far {
            return told as usize;
        }
        self.distance(self.home(self.key.hash(keys[self.slot_at(cells, at) as usize])), at)
    }

    /// The slot of `key`.
    #[cold]
    #[inline(never)]
    pub fn find(&self, cells: &[u32], key: u64, hash: u64, keys: &[u64]) -> Option<u32> {
        self.find_cell(cells, key, hash, keys).map(|(_, slot)| slot)
    }

    /// The cell and the slot of `key`.
    pub fn find_cell(&self, cells: &[u32], key: u64, hash: u64, keys: &[u64]) -> Option<(usize, u32)> {
        let mut at = self.home(hash);
        while cells[at] != EMPTY {
            let layout = self.layout_at(at);
            let slot = cells[at] & layout.slot_mask;
            if (cells[at] ^ hash as u32) & layout.tag_mask == 0 && keys[slot as usize] == key {
                return Some((at, slot));
            }
            at = self.after(at);
        }
        None
    }

    /// Adds a key that is absent.
    #[cold]
    #[inline(never)]
    pub fn insert(&self, cells: &mut [u32], hash: u64, slot: u32) {
        let mut at = self.home(hash);
        let mut distance = 0;
        while cells[at] != EMPTY {
            at = self.after(at);
            distance += 1;
        }
        cells[at] = self.layout_at(at).cell(slot, hash, distance);
    }

    /// Takes the key in the full cell `hole` out.
    #[cold]
    #[inline(never)]
    pub fn remove_at(&self, cells: &mut [u32], mut hole: usize, keys: &[u64]) {
        let mut at = hole;
        loop {
            at = self.after(at);
            if cells[at] == EMPTY {
                break;
            }
            let from_home = self.distance_from_home(cells, at, keys);
            let back = self.distance(hole, at);
            if from_home >= back {
                let slot = self.slot_at(cells, at);
                let to = self.layout_at(hole);
                // A tag that has more bits on the other side of the border is that of the whole hash.
                cells[hole] = if to.slot_mask == self.layout_at(at).slot_mask {
                    to.cell(slot, u64::from(cells[at]), from_home - back)
                } else {
                    to.cell(slot, self.key.hash(keys[slot as usize]), from_home - back)
                };
                hole = at;
            }
        }
        cells[hole] = EMPTY;
    }

    /// Goes on for at most `left` units, which it counts down; whether all is done.
    pub fn step(&mut self, cells: &mut Array<u32>, keys: &[u64], left: &mut u32) -> bool {
        if self.grows() && self.cells == self.from && !self.make_cells(cells, keys, left) {
            return false;
        }
        while *left > 0 && self.border != if self.grows() { 0 } else { self.from } {
            *left -= 1;
            self.move_home(cells, keys);
        }
        if self.border != if self.grows() { 0 } else { self.from } {
            return false;
        }
        if !self.grows() {
            self.cut_cells(cells, keys);
        }
        true
    }

    /// Adds the cells of a larger table, and uses them once they are all there; whether they are.
    fn make_cells(&mut self, cells: &mut Array<u32>, keys: &[u64], left: &mut u32) -> bool {
        let some = (self.to - cells.len()).min(*left as usize * CELLS_PER_UNIT);
        *left -= some.div_ceil(CELLS_PER_UNIT) as u32;
        cells.set_len(cells.len() + some, self.to, EMPTY);
        if cells.len() < self.to {
            return false;
        }
        self.unwrap(cells, keys);
        self.cells = self.to;
        self.put_taken(cells);
        true
    }

    /// Cuts the cells off that a smaller table does not have; all keys are at their new homes.
    fn cut_cells(&mut self, cells: &mut Array<u32>, keys: &[u64]) {
        self.unwrap(cells, keys);
        // What has run past the last cell now goes on at the first.
        for at in self.to..self.from {
            if cells[at] == EMPTY {
                break;
            }
            let slot = self.slot_at(cells, at);
            self.taken.push((slot, self.key.hash(keys[slot as usize])));
            cells[at] = EMPTY;
        }
        self.cells = self.to;
        cells.cut(self.to);
        cells.fit();
        self.put_taken(cells);
    }

    /// Takes out the keys that stand before their homes: those that ran past the last cell.
    fn unwrap(&mut self, cells: &mut [u32], keys: &[u64]) {
        let mut at = 0;
        while cells[at] != EMPTY {
            if self.distance_from_home(cells, at, keys) > at {
                self.take(cells, at, keys);
            } else {
                at += 1;
            }
        }
    }

    fn take(&mut self, cells: &mut [u32], at: usize, keys: &[u64]) {
        let slot = self.slot_at(cells, at);
        self.taken.push((slot, self.key.hash(keys[slot as usize])));
        self.remove_at(cells, at, keys);
    }

    fn put_taken(&mut self, cells: &mut [u32]) {
        while let Some((slot, hash)) = self.taken.pop() {
            self.insert(cells, hash, slot);
        }
    }

    /// Moves the keys of the home at the border across it.
    fn move_home(&mut self, cells: &mut [u32], keys: &[u64]) {
        let home = if self.grows() { self.border - 1 } else { self.border };
        let mut at = home;
        while cells[at] != EMPTY {
            // keys that have moved have other homes: all on their side of the border
            if self.distance_from_home(cells, at, keys) == self.distance(home, at) {
                self.take(cells, at, keys);
            } else {
                at = self.after(at);
            }
        }
        // The cell comes to be on the other side, with whatever stands in it.
        let passing = (cells[home] != EMPTY).then(|| {
            let slot = self.slot_at(cells, home);
            (slot, self.distance_from_home(cells, home, keys))
        });
        self.border = if self.grows() { home } else { home + 1 };
        if let Some((slot, distance)) = passing {
            cells[home] = self.layout_at(home).cell(slot, self.key.hash(keys[slot as usize]), distance);
        }
        self.put_taken(cells);
    }

    /// Panics unless every cell tells its key's tag and distance.
    pub fn check(&self, cells: &[u32], keys: &[u64]) {
        assert!(self.taken.is_empty(), "a key is on its way");
        for at in (0..cells.len()).filter(|&at| cells[at] != EMPTY) {
            assert!(at < self.cells, "a cell past the last one is full");
            let slot = self.slot_at(cells, at);
            let hash = self.key.hash(keys[slot as usize]);
            let told = self.layout_at(at).cell(slot, hash, self.distance(self.home(hash), at));
            assert_eq!(cells[at], told, "cell {at} tells its key wrongly");
        }
    }
}
