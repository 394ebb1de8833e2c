//! Blocks of one disk in the order in which they were named, each once.
//!
//! Owns that order, by which a list is cut where it is too long. Never knows where blocks come from. Invariant: no
//! block is in two of its ranges, and none is past the end of the disk.

use super::span::DiskSpan;
use crate::cli::Failure;
use std::collections::BTreeMap;
use undercroft_api::hot_set::{BLOCK_BYTES, HotSet};
use undercroft_units::Size;

/// What there is room for.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Blocks of the cache.
    pub blocks: u64,
    /// Ranges, after those that touch were joined.
    pub ranges: usize,
    /// Blocks of the cache that a range takes beside those that it has.
    pub more: u64,
}

/// See the head of the file.
#[derive(Debug)]
pub struct Chosen {
    size_bytes: u64,
    /// Where ranges that have been named begin and end, those that touch joined.
    named: BTreeMap<u64, u64>,
    /// The first block, and how many, in order.
    order: Vec<(u64, u64)>,
}

impl Chosen {
    /// None of a disk's.
    pub fn new(size_bytes: u64) -> Self {
        Self { size_bytes, named: BTreeMap::new(), order: Vec::new() }
    }

    /// All blocks that have a byte of it.
    ///
    /// # Errors
    /// It ends past the disk.
    pub fn add_span(&mut self, span: DiskSpan) -> Result<(), Failure> {
        if span.end > self.size_bytes {
            let size = Size(self.size_bytes);
            return Err(Failure::Said(format!(
                "{span} is not all on the disk, which has {size}; count from the first byte of the whole disk, not of \
                 a partition"
            )));
        }
        self.add(span.start / BLOCK_BYTES, span.end.div_ceil(BLOCK_BYTES));
        Ok(())
    }

    /// Blocks from one on up to another, those past the end of the disk left out.
    pub fn add(&mut self, first: u64, end: u64) {
        let end = end.min(self.size_bytes.div_ceil(BLOCK_BYTES));
        let (mut from, mut joined) = (first, (first, end));
        // The last range that begins before it may reach into it.
        let before = self.named.range(..=first).next_back().map(|(&start, &end)| (start, end));
        let within = before.into_iter().filter(|&(_, end)| end >= first);
        let after = self.named.range(first + 1..=end.max(first + 1)).map(|(&start, &end)| (start, end));
        let known: Vec<(u64, u64)> = within.chain(after).filter(|&(start, _)| start <= end).collect();
        for &(start, known_end) in &known {
            if from < start.min(end) {
                self.order.push((from, start.min(end) - from));
            }
            from = from.max(known_end);
            joined = (joined.0.min(start), joined.1.max(known_end));
            self.named.remove(&start);
        }
        if from < end {
            self.order.push((from, end - from));
        }
        if joined.0 < joined.1 {
            self.named.insert(joined.0, joined.1);
        }
    }

    /// All blocks of another list, in its order.
    pub fn add_list(&mut self, ranges: &[(u64, u64)]) {
        ranges.iter().for_each(|&(first, count)| self.add(first, first.saturating_add(count)));
    }

    /// Whether no block is named.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty()
    }

    /// The first ones that there is room for, and how many blocks are left out.
    pub fn fit(self, room: Room) -> (Self, u64) {
        let all: u64 = self.order.iter().map(|&(_, count)| count).sum();
        let mut fits = Self::new(self.size_bytes);
        let mut left = room.blocks;
        for (first, count) in self.order {
            let is_behind = fits.named.range(..first).next_back().is_some_and(|(_, &end)| end == first);
            let is_before = fits.named.contains_key(&(first + count));
            let touched = usize::from(is_behind) + usize::from(is_before);
            let takes = (count + room.more).saturating_sub(room.more * touched as u64);
            if takes <= left && fits.named.len() + 1 - touched <= room.ranges {
                left -= takes;
                fits.add(first, first + count);
                continue;
            }
            // Its beginning.
            let some = left.saturating_sub(room.more * u64::from(!is_behind)).min(count);
            if some > 0 && fits.named.len() + usize::from(!is_behind) <= room.ranges {
                fits.add(first, first + some);
            }
            break;
        }
        let kept: u64 = fits.order.iter().map(|&(_, count)| count).sum();
        (fits, all - kept)
    }

    /// As a list: the first ones are kept if it is cut.
    pub fn list(self) -> HotSet {
        HotSet { size_bytes: self.size_bytes, ranges: self.order }
    }
}

/// The same blocks in the order of the disk, those that touch joined.
pub fn in_order(list: HotSet) -> HotSet {
    let mut ranges = list.ranges;
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let joins = last.0 + last.1 == next.0;
        if joins {
            last.1 += next.1;
        }
        joins
    });
    HotSet { ranges, ..list }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_is_chosen_once_in_the_order_in_which_it_was_named() {
        let mut chosen = Chosen::new(100 * BLOCK_BYTES - 1);
        for (first, end) in [(50, 60), (10, 20), (55, 65), (5, 70), (70, 70), (98, 200), (0, 5), (64, 72)] {
            chosen.add(first, end);
        }
        let list = chosen.list();
        assert_eq!(list.ranges, [(50, 10), (10, 10), (60, 5), (5, 5), (20, 30), (65, 5), (98, 2), (0, 5), (70, 2)]);
        assert_eq!(in_order(list).ranges, [(0, 72), (98, 2)]);
    }

    /// Against a list of single blocks.
    #[test]
    fn it_is_what_single_blocks_would_be() {
        let mut seed = 1u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..200 {
            let (mut chosen, mut singly) = (Chosen::new(40 * BLOCK_BYTES), Vec::new());
            for _ in 0..next(12) {
                let (first, count) = (next(45), next(10));
                chosen.add(first, first + count);
                let new = (first..(first + count).min(40)).filter(|b| !singly.contains(b)).collect::<Vec<_>>();
                singly.extend(new);
            }
            let blocks: Vec<u64> = chosen.list().ranges.iter().flat_map(|&(first, n)| first..first + n).collect();
            assert_eq!(blocks, singly);
        }
    }

    #[test]
    fn the_first_ones_that_there_is_room_for_are_kept() {
        let fit = |room: Room| {
            let mut chosen = Chosen::new(1000 * BLOCK_BYTES);
            chosen.add_list(&[(50, 10), (10, 5), (60, 5), (15, 35), (200, 4)]);
            let (fits, left) = chosen.fit(room);
            (fits.list().ranges, left)
        };
        let room = |blocks, ranges, more| Room { blocks, ranges, more };
        assert_eq!(fit(room(59, 9, 0)), (vec![(50, 10), (10, 5), (60, 5), (15, 35), (200, 4)], 0));
        assert_eq!(fit(room(57, 9, 0)), (vec![(50, 10), (10, 5), (60, 5), (15, 35), (200, 2)], 2));
        assert_eq!(fit(room(13, 9, 0)), (vec![(50, 10), (10, 3)], 46));
        assert_eq!(fit(room(0, 9, 0)), (Vec::new(), 59));
        // Each range takes one block more: two at first, and one once they are joined.
        assert_eq!(fit(room(22, 9, 1)), (vec![(50, 10), (10, 5), (60, 5)], 39));
        assert_eq!(fit(room(56, 9, 1)), (vec![(50, 10), (10, 5), (60, 5), (15, 35)], 4));
        assert_eq!(fit(room(57, 9, 1)), (vec![(50, 10), (10, 5), (60, 5), (15, 35)], 4), "none is left for its own");
        assert_eq!(fit(room(58, 9, 1)).1, 3);
        // Only so many ranges, however small.
        assert_eq!(fit(room(100, 1, 0)), (vec![(50, 10)], 49));
        assert_eq!(fit(room(100, 2, 0)).1, 0);
    }

    #[test]
    fn a_span_is_rounded_outwards_and_must_be_on_the_disk() {
        let mut chosen = Chosen::new(10 * BLOCK_BYTES);
        chosen.add_span("4095..4097".parse().unwrap()).unwrap();
        let e = chosen.add_span("36KiB+8KiB".parse().unwrap()).unwrap_err().to_string();
        assert!(e.contains("36KiB..44KiB is not all on the disk, which has 40KiB"), "{e}");
        assert_eq!(chosen.list().ranges, [(0, 2)]);
    }
}
