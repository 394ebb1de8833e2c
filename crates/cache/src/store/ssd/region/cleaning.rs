//! Room: the oldest segment of whoever is most over its share is emptied.
//!
//! Owns which one that is, and which of its blocks are written again: those that were read since they were written and
//! are not held, as long as all that is written besides admitted blocks stays a tenth of those; and pinned ones, if
//! there are few enough (`keeps_pins`). Never drops a block of a segment that is not the oldest. Invariants: when a
//! segment is free, no entry of the index names it; without admissions cleaning comes to an end, whatever is pinned.

use super::super::format::NO_BLOCK;
use super::io::Job;
use super::*;
use crate::fault_injection::Bug;
use crate::limits::SSD_FREE_SEGMENTS;

/// A segment that is being emptied.
pub(super) struct Cleaning {
    segment: u32,
    number: u16,
    /// An operation of it is under way.
    is_waiting: bool,
    /// Blocks to write again; the last one first. `None` before the summary was read.
    again: Option<Vec<Again>>,
}

/// A block to write again.
struct Again {
    slot: u32,
    block: u64,
    /// It is written again since it is pinned.
    pinned: bool,
}

/// Pinned blocks are written again if they are no more than one part in so many of what their owner may have...
const PINS_PART: u64 = 2;
/// ... and the segments that they fill no more than this part of those that it has: when all of them were emptied, the
/// others are free.
const PINS_SEGMENTS: [u64; 2] = [3, 4];

impl Cleaning {
    pub fn segment(&self) -> u32 {
        self.segment
    }
}

impl<F: FaultInjection> Region<F> {
    /// Free segments that are kept ready.
    pub(super) fn wanted_free(&self) -> usize {
        SSD_FREE_SEGMENTS.min(self.segments.len() / 4).max(2)
    }

    /// The next operation of it, if there is too little room.
    pub(super) fn next_cleaning(&mut self) -> Option<SsdIo> {
        if self.cleaning.is_none() {
            if self.segments.free() >= self.wanted_free() || self.stop.is_some() {
                return None;
            }
            let (segment, number) = self.victim()?;
            let io = self.read_summary(Job::CleanSummary(segment), segment)?;
            self.segments.get_mut(segment).state = Segment::Evicting;
            self.cleaning = Some(Cleaning { segment, number, is_waiting: true, again: None });
            return Some(io);
        }
        let cleaning = self.cleaning.as_ref().filter(|c| !c.is_waiting)?;
        let segment = cleaning.segment;
        let slot = cleaning.again.as_ref()?.last()?.slot;
        let io = self.read(Job::CleanBlock(segment), self.layout.offset(slot), 4096)?;
        self.cleaning.as_mut()?.is_waiting = true;
        Some(io)
    }

    /// The oldest segment of the owner that is most over its share, if that segment is complete.
    fn victim(&self) -> Option<(u32, u16)> {
        // What is being written down of an owner names its segments.
        let busy = self.writing.as_ref().map(Writing::number);
        let over = |number: u16| {
            if busy == Some(number) {
                return None;
            }
            let owner = self.owners[usize::from(number)].as_ref()?;
            let segment = self.segments.oldest(number)?;
            let it = self.segments.get(segment);
            let is_complete = it.state == Segment::Sealed && it.busy == 0;
            let over = i64::from(self.segments.of(number)) - i64::from(owner.share);
            is_complete.then_some((over, segment, number))
        };
        let all = (0..OWNERS_MAX as u16).filter_map(over);
        all.max_by_key(|(over, ..)| *over).map(|(_, segment, number)| (segment, number))
    }

    /// Whether what is pinned of an owner is written again: if that leaves room in its queue for others, and the device
    /// may be written to. A share that became smaller ends it, as long as it is too small; so does the end of the disk.
    fn keeps_pins(&self, number: u16) -> bool {
        let owner = self.owner(number);
        if self.faults.has(Bug::SsdPinsOutliveDetach) && !owner.is_attached {
            return true;
        }
        let data_blocks = u64::from(self.layout.data_blocks());
        let fits = owner.pinned.saturating_mul(PINS_PART) <= u64::from(owner.share) * data_blocks;
        let (filled, has) = (owner.pinned.div_ceil(data_blocks), u64::from(self.segments.of(number)));
        let leaves_room = filled * PINS_SEGMENTS[1] <= has * PINS_SEGMENTS[0];
        owner.is_attached && fits && leaves_room && self.admitting.may_write()
    }

    /// The summary of the segment was read: most of its blocks go.
    pub(super) fn cleaning_begins(&mut self, segment: u32, bytes: Option<&[u8]>) {
        let Some(number) = self.cleaning.as_ref().filter(|c| c.segment == segment).map(|c| c.number) else { return };
        let Some(summary) = self.parse_summary(segment, bytes) else {
            self.lose_segment(segment);
            return self.finish_cleaning();
        };
        let mut allowance = self.allowance() - 4096 * i64::from(self.layout.summary_blocks + 1);
        let keeps_pins = self.keeps_pins(number);
        let mut again = Vec::new();
        for (n, (block, _)) in summary.entries.iter().enumerate().filter(|(_, (block, _))| *block != NO_BLOCK) {
            let slot = self.layout.slot(segment, n as u32);
            let found = self.index.find(&self.segments, number, (*block).min(BLOCKS_MAX - 1));
            let Some((at, entry)) = found.filter(|(_, e)| e.slot == slot) else { continue };
            let pinned = keeps_pins && self.owner(number).is_pinned(*block);
            if !entry.held && (pinned || entry.chance && allowance >= 4096) {
                allowance -= if pinned { 0 } else { 4096 };
                again.push(Again { slot, block: *block, pinned });
            } else if !self.faults.has(Bug::SsdCleaningLeavesEntries) {
                self.index.remove(at);
                self.removed(number, &entry, false);
            }
        }
        if let Some(cleaning) = &mut self.cleaning {
            (cleaning.is_waiting, cleaning.again) = (false, Some(again));
        }
        self.finish_cleaning();
    }

    /// A block was read that is to be written again.
    pub(super) fn cleaning_goes_on(&mut self, segment: u32, bytes: Option<&[u8]>) {
        let Some(cleaning) = self.cleaning.as_mut().filter(|c| c.segment == segment) else { return };
        cleaning.is_waiting = false;
        let number = cleaning.number;
        if let Some(Again { slot, block, pinned }) = cleaning.again.as_mut().and_then(Vec::pop) {
            let token = Token { sequence: self.segments.get(segment).sequence, slot };
            let bytes = bytes.and_then(|bytes| bytes.first_chunk::<4096>());
            let is_good = match bytes {
                Some(bytes) => self.verify(number, block, token, bytes) == Verified::Good,
                None => {
                    self.read_failed(number, block, token);
                    false
                }
            };
            if self.service.is_some() {
                return;
            }
            let found = self.index.find(&self.segments, number, block).filter(|(_, e)| e.slot == slot);
            if let (Some((at, entry)), Some(bytes)) = (found, bytes) {
                self.index.remove(at);
                self.removed(number, &entry, false);
                // Held since: it has its place elsewhere.
                if is_good && !entry.held && self.put(number, block, bytes, None, true).is_ok() && pinned {
                    self.written.pins += 4096;
                }
            }
        }
        self.finish_cleaning();
    }

    /// When nothing is left to be written again, the segment is free.
    fn finish_cleaning(&mut self) {
        let is_empty = |c: &mut Cleaning| c.again.as_ref().is_none_or(Vec::is_empty);
        if self.service.is_none()
            && let Some(cleaning) = self.cleaning.take_if(is_empty)
        {
            if self.faults.has(Bug::SsdLinkOutlivesSegment) {
                self.segments.unlinked(cleaning.segment);
            }
            self.segments.give_up_oldest(cleaning.number);
        }
    }

    /// A segment's summary cannot be read: its entries are looked for in the whole index.
    pub(super) fn lose_segment(&mut self, segment: u32) {
        let number = self.segments.get(segment).owner;
        let slots = self.segments.slots(segment);
        let Self { index, segments, owners, .. } = self;
        index.remove_where(|item| {
            let is_gone = slots.contains(&item.slot);
            if is_gone {
                leaves(owners, item.owner(segments));
            }
            is_gone
        });
        self.segments.unlinked(segment);
        self.segments.get_mut(segment).lost = true;
        self.mismatch(number);
    }
}
