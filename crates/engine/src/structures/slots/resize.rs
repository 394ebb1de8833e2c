//! How the number of slots changes, a few at a time, while blocks come and go.
//!
//! Owns how far that has come. Never evicts: whoever shrinks has made the blocks few enough, and keeps them so.
//! Invariant: a slot that is to go is given to no block once those there are have begun to leave.
//!
//! More slots: the table gets larger first, then slots are added at the end. Fewer: free slots are sorted into those
//! that stay and those that go, blocks move out of the slots that go, the table gets smaller, and the slots are cut
//! off at last.

use super::{Map, Slot, Slots};
use crate::structures::array::Release;
use crate::structures::list::NIL;

/// See the head of the file.
#[derive(Debug)]
pub(super) struct Resize {
    to: u32,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Free slots are sorted; `kept` is the first of those that stay, the others wait in the list of all free ones.
    Sort { kept: u32 },
    /// Blocks move out of the slots that go: from `next` on, up to `end`, which are all that were ever used.
    Leave { next: u32, end: u32 },
    /// The table becomes larger or smaller.
    Table,
    /// Slots are added, or cut off.
    Slots,
}

impl Resize {
    /// The first of the free slots that have been sorted out to stay.
    pub fn kept(&self) -> u32 {
        match self.stage {
            Stage::Sort { kept } => kept,
            _ => NIL,
        }
    }

    pub fn check<M: Map>(&self, slots: &Slots<M>, free: u32) {
        let grows = self.to > slots.capacity();
        match self.stage {
            _ if grows => assert_eq!(slots.len + free, slots.fresh, "every used slot is free or occupied"),
            // those that go and are free already are in no list
            Stage::Sort { .. } => assert!(slots.len + free <= slots.fresh, "a slot is free twice"),
            Stage::Leave { next, end } => {
                assert!(slots.fresh <= self.to);
                let leaving = (next..end).filter(|&slot| slots.block_of(slot).is_some()).count() as u32;
                assert_eq!(slots.len - leaving + free, slots.fresh, "every slot that stays is free or occupied");
                assert!((self.to..next).all(|slot| slots.block_of(slot).is_none()), "a block was left behind");
            }
            Stage::Table | Stage::Slots => {
                assert_eq!(slots.len + free, slots.fresh, "every slot that stays is free or occupied");
                assert!(slots.fresh <= self.to, "a slot that goes is in use");
            }
        }
    }
}

impl<M: Map> Slots<M> {
    /// Blocks that may be here: as many as there are slots, or will be.
    pub fn most(&self) -> u32 {
        self.resize.as_ref().map_or(u32::MAX, |resize| resize.to).min(self.capacity())
    }

    /// Slots that there are or will be.
    pub fn capacity_max(&self) -> u32 {
        self.resize.as_ref().map_or(0, |resize| resize.to).max(self.capacity())
    }

    /// Whether the number of slots is changing.
    pub fn is_resizing(&self) -> bool {
        self.resize.is_some()
    }

    /// Whether a slot that is set free will never be used again.
    #[inline]
    pub(super) fn goes(&self, slot: Slot) -> bool {
        self.resize.as_ref().is_some_and(|resize| slot >= resize.to && !matches!(resize.stage, Stage::Sort { .. }))
    }

    /// The capacity at or above `capacity` at which no slot that goes holds a block that may not move.
    pub fn reachable(&self, capacity: u32, may_move: impl Fn(Slot) -> bool) -> u32 {
        let held = |s: &Slot| !may_move(*s) && self.block_of(*s).is_some();
        (capacity..self.fresh).rev().find(held).map_or(capacity, |slot| slot + 1)
    }

    /// Begins to change the number of slots to `to`, into which the blocks fit. [`Slots::step`] does it.
    pub fn begin(&mut self, to: u32) {
        debug_assert!(self.resize.is_none() && self.len <= to);
        let stage = match to.cmp(&self.capacity()) {
            std::cmp::Ordering::Equal => return,
            std::cmp::Ordering::Less => Stage::Sort { kept: NIL },
            std::cmp::Ordering::Greater => {
                self.table.begin(to);
                Stage::Table
            }
        };
        self.set_stage(to, stage);
    }

    fn set_stage(&mut self, to: u32, stage: Stage) {
        match &mut self.resize {
            Some(resize) => resize.stage = stage,
            None => self.resize = Some(Box::new(Resize { to, stage })),
        }
    }

    /// Adds free slots until there are `to`, all at once.
    pub fn grow(&mut self, to: u32) {
        self.begin(to);
        while !self.step(&mut { u32::MAX }, true, |_, _| {}) {}
    }

    /// Goes on with that, for at most `left` units, which it counts down: a unit is a slot or about as much work. Calls
    /// `moved(from, to)` for each block that gets another slot. Whether all is done.
    ///
    /// Slots are cut off only while `cut` says so.
    pub fn step(&mut self, left: &mut u32, cut: bool, mut moved: impl FnMut(Slot, Slot)) -> bool {
        while let Some(resize) = &self.resize {
            let to = resize.to;
            match resize.stage {
                _ if *left == 0 => return false,
                Stage::Sort { kept } => self.sort(kept, to, left),
                Stage::Leave { next, end } => self.leave(next, end, to, left, &mut moved),
                Stage::Table => {
                    if self.table.step(&self.keys, left) {
                        self.set_stage(to, Stage::Slots);
                    }
                }
                Stage::Slots => {
                    let have = self.capacity();
                    let some = to.abs_diff(have).min(*left);
                    if to < have && !cut {
                        return false;
                    }
                    *left -= some;
                    let now = if to > have { have + some } else { have - some };
                    self.keys.set_len(now as usize, to as usize, 0);
                    if now == to {
                        self.keys.fit();
                        self.resize = None;
                    }
                }
            }
        }
        true
    }

    /// Sorts some of the free slots.
    fn sort(&mut self, mut kept: u32, to: u32, left: &mut u32) {
        while *left > 0 && self.free != NIL {
            *left -= 1;
            let slot = self.free;
            self.free = self.keys[slot as usize] as u32;
            if slot < to {
                self.keys[slot as usize] = u64::from(kept);
                kept = slot;
            }
        }
        let mut stage = Stage::Sort { kept };
        if self.free == NIL {
            self.free = kept;
            let end = self.fresh;
            self.fresh = end.min(to);
            stage = Stage::Leave { next: to, end };
        }
        self.set_stage(to, stage);
    }

    /// Moves some of the blocks out of the slots that go.
    fn leave(&mut self, next: u32, end: u32, to: u32, left: &mut u32, moved: &mut impl FnMut(Slot, Slot)) {
        let mut from = next;
        while *left > 0 && from < end {
            *left -= 1;
            if let Some(block) = self.block_of(from) {
                let free = self.take_free();
                self.table.relocate(block, &self.keys, from, free);
                self.keys[free as usize] = block;
                moved(from, free);
            }
            from += 1;
        }
        let stage = if from < end {
            Stage::Leave { next: from, end }
        } else {
            self.table.begin(to);
            Stage::Table
        };
        self.set_stage(to, stage);
    }

    /// Takes a free slot when the list of those is empty: one of those sorted out to stay, or one never used.
    #[cold]
    pub(super) fn take_other(&mut self) -> Slot {
        if let Some(resize) = &mut self.resize
            && let Stage::Sort { kept } = &mut resize.stage
            && *kept != NIL
        {
            let slot = *kept;
            *kept = self.keys[slot as usize] as u32;
            return slot;
        }
        self.fresh += 1;
        self.fresh - 1
    }

    /// There may be `most` slots in time.
    pub fn reserve(&mut self, most: u32) {
        self.table.reserve(most);
        self.keys.reserve(most as usize);
    }

    /// Gives back memory that is not needed any more, at most so many bytes; those are counted off.
    pub fn release(&mut self, by: &mut impl Release, bytes: &mut usize) {
        self.table.release(by, bytes);
        self.keys.release(by, bytes);
    }
}
