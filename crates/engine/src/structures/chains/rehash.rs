//! Chains that get more heads, or fewer, where they are, one chain after another.
//!
//! Owns how far that has come. As for the table with cells (`table/rehash`), homes are in the order of hashes, so
//! chains are taken apart from the last one back when heads are added, from the first one on when they are cut off. A
//! chain never has keys of both kinds of homes: one that is taken apart is empty before its keys go where they belong.
//! Invariant: between any two calls every key is in one chain, which is that of its home.

use super::{END, slot_mask_for};
use crate::structures::array::Array;
use crate::structures::table::{HashKey, home_among};

/// Elements that are added in the time of one unit.
const ELEMENTS_PER_UNIT: usize = 16;

/// See the head of the file.
#[derive(Debug)]
pub(super) struct Rehash {
    /// Heads before, and then.
    from: usize,
    to: usize,
    /// Slots there are to be.
    slots: usize,
    /// Chains not below this have been taken apart if heads are added; if they are cut off, those below.
    border: usize,
    mask_before: u32,
    mask_then: u32,
    key: HashKey,
}

impl Rehash {
    /// From `from` heads to `to`, for slots `0..slots`.
    pub fn new(from: usize, to: usize, mask_before: u32, slots: u32, key: HashKey) -> Self {
        let border = if to >= from { from } else { 0 };
        let slots_then = slots as usize;
        Self { from, to, slots: slots_then, border, mask_before, mask_then: slot_mask_for(slots), key }
    }

    /// The bits of a cell that are the slot, when all is done.
    pub fn slot_mask(&self) -> u32 {
        self.mask_then
    }

    fn grows(&self) -> bool {
        self.to >= self.from
    }

    /// The bits of the cells of chain `home` that are the slot.
    pub fn slot_mask_at(&self, home: usize) -> u32 {
        if (home >= self.border) == self.grows() { self.mask_then } else { self.mask_before }
    }

    /// The home of a hash, and the bits of the cells of its chain that are the slot.
    #[cold]
    #[inline(never)]
    pub fn chain(&self, hash: u64) -> (usize, u32) {
        let before = home_among(hash, self.from);
        if (before >= self.border) == self.grows() {
            (home_among(hash, self.to), self.mask_then)
        } else {
            (before, self.mask_before)
        }
    }

    /// Goes on for at most `left` units, which it counts down; whether all is done.
    pub fn step(&mut self, heads: &mut Array<u32>, next: &mut Array<u32>, keys: &[u64], left: &mut u32) -> bool {
        for (array, to) in [(&mut *heads, self.to), (&mut *next, self.slots)] {
            let some = to.saturating_sub(array.len()).min(*left as usize * ELEMENTS_PER_UNIT);
            *left -= some.div_ceil(ELEMENTS_PER_UNIT) as u32;
            array.stretch_with(array.len() + some, to, || END);
            if array.len() < to {
                return false;
            }
        }
        let end = if self.grows() { 0 } else { self.from };
        while *left > 0 && self.border != end {
            let home = if self.grows() { self.border - 1 } else { self.border };
            *left -= 1;
            self.take_apart(home, heads, next, keys, left);
        }
        if self.border != end {
            return false;
        }
        heads.cut(self.to);
        next.cut(self.slots);
        heads.fit();
        next.fit();
        true
    }

    /// Moves the keys of chain `home` to their new ones.
    fn take_apart(&mut self, home: usize, heads: &mut [u32], next: &mut [u32], keys: &[u64], left: &mut u32) {
        let mut cell = std::mem::replace(&mut heads[home], END);
        self.border = if self.grows() { home } else { home + 1 };
        while cell != END {
            let slot = (cell & self.mask_before) as usize;
            cell = next[slot];
            let hash = self.key.hash(keys[slot]);
            let (home, slot_mask) = self.chain(hash);
            next[slot] = heads[home];
            heads[home] = hash as u32 & !slot_mask | slot as u32;
            *left = left.saturating_sub(1);
        }
    }
}
