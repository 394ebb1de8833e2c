//! Changes of disks: what leaves the store before they are submitted, and when they may be.
//!
//! Owns the rule. Never waits. Invariants: while a change of a block is under way the block has no entry; no change of
//! an owner is ready while a table that calls it clean could be recovered.

use super::*;
use crate::fault_injection::Bug;
use crate::limits::{SSD_DROP_BLOCKS, SSD_DROP_BLOCKS_MAX};

impl<F: FaultInjection> Region<F> {
    /// A change of blocks is about to be submitted, once `may_change` is true.
    pub(in super::super) fn change_begins(&mut self, number: u16, blocks: Range<u64>) {
        self.owner_mut(number).changing.push(blocks.clone());
        self.admitting.changes(number, blocks.clone());
        self.invalidate(number, blocks);
    }

    /// It has ended, well or not.
    pub(in super::super) fn change_ended(&mut self, number: u16, blocks: Range<u64>) {
        let changing = &mut self.owner_mut(number).changing;
        let under_way = changing.iter().position(|r| *r == blocks);
        debug_assert!(under_way.is_some(), "a change ended that had not begun");
        under_way.map(|n| changing.swap_remove(n));
    }

    /// Changes of an owner that are under way.
    pub(in super::super) fn changing(&self, number: u16) -> &[Range<u64>] {
        &self.owner(number).changing
    }

    /// Whether changes of an owner may be submitted.
    pub(in super::super) fn may_change(&self, number: u16) -> bool {
        if self.faults.has(Bug::SsdGivenUpNotWaitedFor) && self.service.is_some() {
            return true;
        }
        let is_dirty = !self.tables.may_be_clean(number) || self.given_up_is_recorded;
        self.owner(number).dropping.is_empty() && (is_dirty || self.faults.has(Bug::SsdDirtyAfterWrite))
    }

    /// What the store has of blocks is not to be found any more.
    pub(in super::super) fn invalidate(&mut self, number: u16, blocks: Range<u64>) {
        if !self.faults.has(Bug::SsdQuietIgnoresChange) {
            self.abort_quiet(number);
        }
        if !self.faults.has(Bug::SsdParkedOutlivesChange) {
            self.unpark(number, &blocks);
        }
        let generation = self.next_generation;
        let owner = self.owner_mut(number);
        if owner.state != State::Dirty {
            owner.state = State::Dirty;
            owner.generation = generation;
            self.next_generation += 1;
            self.tables.is_wanted = true;
        }
        if self.service.is_some() {
            return;
        }
        let owner = self.owner_mut(number);
        let end = blocks.end.min(owner.blocks.min(BLOCKS_MAX));
        if blocks.start < end && owner.entries > 0 && end - blocks.start > SSD_DROP_BLOCKS_MAX {
            return self.forget_blocks(number);
        }
        let owner = self.owner_mut(number);
        if blocks.start < end && owner.entries > 0 {
            owner.dropping.push(blocks.start..end);
            self.may_drop = true;
            self.drop_blocks(number);
        }
    }

    /// What the store has of an owner is not to be found any more.
    pub(in super::super) fn invalidate_all(&mut self, number: u16) {
        self.invalidate(number, 0..0);
        if self.service.is_none() {
            self.forget_blocks(number);
        }
    }

    /// Whether blocks of large ranges are still to be dropped, or links to what was.
    pub(in super::super) fn has_more_to_drop(&self) -> bool {
        let is_dropping = self.may_drop && self.owners.iter().flatten().any(|o| !o.dropping.is_empty());
        is_dropping || self.has_links_to_take_out()
    }

    /// A step of dropping blocks of large ranges, for each owner that has some.
    pub(super) fn drop_some(&mut self) {
        if !self.may_drop {
            return;
        }
        let waits = |o: &Option<Owner>| o.as_ref().is_some_and(|o| !o.dropping.is_empty());
        while let Some(number) = self.owners.iter().position(waits) {
            self.drop_blocks(number as u16);
            if waits(&self.owners[number]) {
                break;
            }
        }
        self.may_drop = self.owners.iter().any(waits);
    }

    /// Drops the next blocks of what is to be dropped of an owner, at most so many that no event takes long.
    fn drop_blocks(&mut self, number: u16) {
        let mut left = SSD_DROP_BLOCKS;
        while left > 0 {
            let owner = self.owner_mut(number);
            let Some(range) = owner.dropping.last_mut() else { return };
            let end = range.end.min(range.start + left);
            let (blocks, has_more) = (range.start..end, end < range.end);
            left -= end - range.start;
            range.start = end;
            if !has_more {
                owner.dropping.pop();
            }
            for block in blocks {
                self.drop_block(number, block);
            }
        }
    }

    fn drop_block(&mut self, number: u16, block: u64) {
        let Some((at, entry)) = self.index.find(&self.segments, number, block) else { return };
        let segment = self.segments.get(self.segments.number_of(entry.slot));
        if segment.state == Segment::Open && self.faults.has(Bug::SsdChangeKeepsStaged)
            || entry.is_link && self.faults.has(Bug::SsdLinkOutlivesChange)
        {
            return;
        }
        self.index.remove(at);
        self.removed(number, &entry, true);
    }
}
