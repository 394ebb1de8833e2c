//! The page of each block that has one: a hash table of page numbers in which neighbouring blocks stand side by side.
//!
//! Owns the cells. Never stores a block: who asks says whether a page holds the block. A cell is a page number and, in
//! the bits that the number leaves free, its distance from its block's home and a tag of the block's hash, so that a
//! probe reads a page almost only where it is the one sought, and a deletion almost never. Invariant: each full cell
//! can be reached from its block's home without crossing an empty one, and tells its page, tag and distance.
//!
//! It is linear probing with deletion by shifting back, over the cells in an order in which the next cell is in the
//! next line of the processor's cache. Sixteen blocks whose numbers differ in the last four bits have one hash and one
//! line between them, each in a column of its own: so a request of 64 blocks reads a few lines and not 64, while the
//! homes of one column are as random as if each block had a hash of its own (docs/decisions/0191).

use super::Member;
use crate::structures::blank::Blank;
use crate::structures::table::{HashKey, Layout};

/// No page: page numbers are smaller in the bits that they take, so no full cell looks like this.
const EMPTY: u32 = u32::MAX;
/// Cells in a line.
const LINE: usize = 16;
/// The bits of a block's number that tell it from those that have the same hash.
const LINE_BITS: u32 = LINE.trailing_zeros();

/// The hash of the latest group of sixteen blocks that was asked for, so that a run of blocks is hashed once a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    of: u64,
    hash: u64,
}

impl Group {
    /// None was asked for.
    pub const NONE: Group = Group { of: u64::MAX, hash: 0 };
}

/// See the head of the file.
#[derive(Debug)]
pub(super) struct Cells {
    cells: Vec<u32>,
    layout: Layout,
    key: HashKey,
}

/// Cells for `pages` pages: whole lines, at most two thirds full.
fn cells_for(pages: u32) -> usize {
    (pages as usize * 3 / 2 + 1).next_multiple_of(LINE)
}

impl Cells {
    /// What cells for `pages` pages are made of, none of which has a block.
    pub fn blank(pages: u32) -> Blank<u32> {
        Blank::new(cells_for(pages), EMPTY)
    }

    /// The cells made of that, for pages `0..pages`.
    pub fn over(blank: Blank<u32>, pages: u32, key: HashKey) -> Self {
        Self { cells: blank.take(), layout: Layout::new(pages), key }
    }

    /// The memory, of which all is to be made anew.
    pub fn into_blank(self) -> Blank<u32> {
        Blank::over(self.cells, EMPTY)
    }

    /// Bytes that this takes for `pages` pages, beside the record itself.
    pub fn bytes_for(pages: u32) -> usize {
        cells_for(pages) * size_of::<u32>()
    }

    /// The hash of a block's group, from `group` if that is the one.
    #[inline]
    fn hash(&self, member: Member, block: u32, group: &mut Group) -> u64 {
        let of = u64::from(member.0) << 32 | u64::from(block >> LINE_BITS);
        if of != group.of {
            *group = Group { of, hash: self.key.hash(of) };
        }
        group.hash
    }

    /// Where a block of a group with this hash is at home. The columns are turned by the hash, so that blocks a power
    /// of two apart do not crowd into one.
    #[inline]
    fn home(&self, hash: u64, block: u32) -> usize {
        let lines = self.cells.len() / LINE;
        let line = (((hash >> 32) * lines as u64) >> 32) as usize;
        line * LINE + (hash as usize).wrapping_add(block as usize) % LINE
    }

    /// The cell that is probed after `at`: the one below it; after the last line, the next column from its top.
    #[inline]
    fn after(&self, at: usize) -> usize {
        let next = at + LINE;
        if next < self.cells.len() {
            return next;
        }
        (next - self.cells.len() + 1) % LINE
    }

    /// How many probes lead from `from` to `to`.
    fn distance(&self, from: usize, to: usize) -> usize {
        let lines = self.cells.len() / LINE;
        let order = |at: usize| at % LINE * lines + at / LINE;
        let (from, to) = (order(from), order(to));
        if to >= from { to - from } else { to + self.cells.len() - from }
    }

    /// The page of a block, if it has one; `holds` says whether a page holds it.
    #[inline]
    pub fn find(&self, member: Member, block: u32, group: &mut Group, holds: impl Fn(u32) -> bool) -> Option<u32> {
        let hash = self.hash(member, block, group);
        let mut at = self.home(hash, block);
        loop {
            let cell = self.cells[at];
            if cell == EMPTY {
                return None;
            }
            let page = cell & self.layout.slot_mask;
            if (cell ^ hash as u32) & self.layout.tag_mask == 0 && holds(page) {
                return Some(page);
            }
            at = self.after(at);
        }
    }

    /// Gives a block that has no page this one.
    #[inline]
    pub fn insert(&mut self, member: Member, block: u32, group: &mut Group, page: u32) {
        let hash = self.hash(member, block, group);
        let mut at = self.home(hash, block);
        let mut distance = 0;
        while self.cells[at] != EMPTY {
            at = self.after(at);
            distance += 1;
        }
        self.cells[at] = self.layout.cell(page, hash, distance);
    }

    /// The block that has page `from` has page `to` instead.
    #[inline]
    pub fn replace(&mut self, member: Member, block: u32, group: &mut Group, from: u32, to: u32) {
        let at = self.cell_of(member, block, group, from);
        self.cells[at] = self.cells[at] & !self.layout.slot_mask | to;
    }

    #[inline]
    fn cell_of(&self, member: Member, block: u32, group: &mut Group, page: u32) -> usize {
        let hash = self.hash(member, block, group);
        let mut at = self.home(hash, block);
        while self.cells[at] & self.layout.slot_mask != page {
            assert!(self.cells[at] != EMPTY, "page {page} holds block {block} and cannot be found");
            at = self.after(at);
        }
        at
    }

    /// Takes a block that has this page out; `block_of` says which block a page holds.
    #[inline]
    pub fn remove(
        &mut self,
        member: Member,
        block: u32,
        group: &mut Group,
        page: u32,
        block_of: impl Fn(u32) -> (Member, u32),
    ) {
        let mut hole = self.cell_of(member, block, group, page);
        let (mut at, mut back) = (hole, 0);
        let Layout { far, distance_shift, slot_mask, .. } = self.layout;
        loop {
            at = self.after(at);
            back += 1;
            let cell = self.cells[at];
            if cell == EMPTY {
                break;
            }
            let mut from_home = (cell >> distance_shift & far) as usize;
            if from_home >= far as usize {
                from_home = self.distance_anew(at, block_of(cell & slot_mask));
            }
            if from_home >= back {
                let told = ((from_home - back).min(far as usize) as u32) << distance_shift;
                self.cells[hole] = cell & !(far << distance_shift) | told;
                (hole, back) = (at, 0);
            }
        }
        self.cells[hole] = EMPTY;
    }

    #[cold]
    fn distance_anew(&self, at: usize, (member, block): (Member, u32)) -> usize {
        self.distance(self.home(self.hash(member, block, &mut { Group::NONE }), block), at)
    }

    /// Panics unless `held` cells are full and each tells what it should; for tests.
    pub fn check(&self, held: usize, block_of: impl Fn(u32) -> (Member, u32)) {
        let full = || self.cells.iter().enumerate().filter(|&(_, &cell)| cell != EMPTY);
        assert_eq!(full().count(), held, "cells in use");
        for (at, &cell) in full() {
            let page = cell & self.layout.slot_mask;
            let (member, block) = block_of(page);
            let hash = self.hash(member, block, &mut { Group::NONE });
            let told = self.layout.cell(page, hash, self.distance(self.home(hash, block), at));
            assert_eq!(cell, told, "the cell of page {page} tells it wrongly");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        /// Against a map; in few lines, so that runs of cells cross lines, wrap into other columns and shift back.
        /// Large numbers of pages leave little or no room for distance and tag.
        fn behave_like_a_map(
            seed: u64,
            pages in prop::sample::select(vec![12u32, 40, 1 << 27, 1 << 31]),
            ops in prop::collection::vec((0u32..64, 0u32..3, any::<bool>()), 1..200),
        ) {
            let key = HashKey::from_seed(seed);
            let few = pages.min(40);
            let mut cells = Cells { cells: vec![EMPTY; cells_for(few)], layout: Layout::new(pages), key };
            let mut model: BTreeMap<(u8, u32), u32> = BTreeMap::new();
            let mut held = vec![(Member(0), u32::MAX); few as usize];
            let mut group = Group::NONE;
            for (n, (block, member, add)) in ops.into_iter().enumerate() {
                // neighbours, and blocks a power of two apart
                let block = if n % 3 == 0 { block << 20 } else { block };
                let at = (Member(member as u8), block);
                let found = cells.find(at.0, block, &mut group, |page| held[page as usize] == at);
                prop_assert_eq!(found, model.get(&(at.0.0, block)).copied());
                let free = held.iter().position(|&h| h.1 == u32::MAX).map(|page| page as u32);
                match (found, free) {
                    (None, Some(page)) if add => {
                        cells.insert(at.0, block, &mut group, page);
                        held[page as usize] = at;
                        model.insert((at.0.0, block), page);
                    }
                    (Some(from), Some(to)) if add => {
                        cells.replace(at.0, block, &mut group, from, to);
                        held[from as usize].1 = u32::MAX;
                        held[to as usize] = at;
                        model.insert((at.0.0, block), to);
                    }
                    (Some(page), _) => {
                        cells.remove(at.0, block, &mut group, page, |page| held[page as usize]);
                        held[page as usize].1 = u32::MAX;
                        model.remove(&(at.0.0, block));
                    }
                    _ => {}
                }
                cells.check(model.len(), |page| held[page as usize]);
            }
        }
    }

    #[test]
    fn columns_are_filled_evenly_whatever_blocks_a_guest_chooses() {
        const PAGES: u32 = 60_000;
        for stride in [1, 16, 64, 1 << 12] {
            let mut blank = Cells::blank(PAGES);
            blank.make(&mut { usize::MAX });
            let mut cells = Cells::over(blank, PAGES, HashKey::from_seed(7));
            let mut group = Group::NONE;
            (0..PAGES).for_each(|n| cells.insert(Member(0), n * stride, &mut group, n));
            let far = |(at, &cell): (usize, &u32)| {
                let block = (cell & cells.layout.slot_mask) * stride;
                let home = cells.home(cells.hash(Member(0), block, &mut { Group::NONE }), block);
                if cell == EMPTY { 0 } else { cells.distance(home, at) }
            };
            // 1 on the average is what linear probing takes at two thirds
            let sum: usize = cells.cells.iter().enumerate().map(far).sum();
            assert!(sum < PAGES as usize * 3 / 2, "stride {stride}: {} on the average", sum as f64 / f64::from(PAGES));
        }
    }
}
