//! Changes on a server that no successful flush covers yet, and that it may therefore lose in a crash.
//!
//! Owns the ranges, a bounded number of them. Never touches a socket. Invariant: a change is in here from the answer to
//! it, or its failure, until a flush that was sent after that has succeeded. If there are too many ranges, the whole
//! disk stands for all of them.

use std::collections::VecDeque;
use std::ops::Range;
use undercroft_cache::Lost;
use undercroft_host::FRAME_BYTES;

/// Ranges that are told apart between two flushes.
const RANGES_MAX: usize = 1024;
/// Flushes under way whose changes are told apart.
const SETS_MAX: usize = 4;

/// Changes between two flushes.
#[derive(Debug, Default)]
struct Set {
    /// Number of the last one.
    last: u64,
    /// Whether one of them was acknowledged.
    acked: bool,
    /// Where they are: sorted, disjoint, not touching, in whole blocks.
    ranges: Vec<Range<u64>>,
}

/// Changes that no flush has vouched for.
#[derive(Debug)]
pub struct Unflushed {
    size_bytes: u64,
    /// Changes so far.
    count: u64,
    /// In order of time. What comes goes into the last one; there is always one.
    sets: VecDeque<Set>,
}

impl Unflushed {
    /// Nothing, on a disk of so many bytes.
    pub fn new(size_bytes: u64) -> Self {
        Self { size_bytes, count: 0, sets: VecDeque::from([Set::default()]) }
    }

    /// Bytes `offset..offset + len` were changed, or may have been; `acked` if that was acknowledged.
    pub fn note(&mut self, offset: u64, len: u64, acked: bool) {
        let block = FRAME_BYTES as u64;
        self.count += 1;
        let Some(set) = self.sets.back_mut() else { return };
        set.last = self.count;
        set.acked |= acked;
        let end = offset.saturating_add(len).next_multiple_of(block).min(self.size_bytes);
        join(&mut set.ranges, offset / block * block..end);
        if set.ranges.len() > RANGES_MAX {
            set.ranges.clear();
            set.ranges.push(0..self.size_bytes);
        }
    }

    /// A flush is about to be sent: what it will vouch for.
    pub fn flush_sent(&mut self) -> u64 {
        if self.sets.len() < SETS_MAX && self.sets.back().is_some_and(|s| !s.ranges.is_empty()) {
            self.sets.push_back(Set::default());
        }
        self.count
    }

    /// The flush for which `flush_sent` returned `vouched` has succeeded.
    pub fn flushed(&mut self, vouched: u64) {
        while self.sets.front().is_some_and(|s| s.last <= vouched) {
            self.sets.pop_front();
        }
        if self.sets.is_empty() {
            self.sets.push_back(Set::default());
        }
    }

    /// All of it may be lost. Nothing is left in here then.
    pub fn lose(&mut self) -> Lost {
        let mut lost = Lost::default();
        for set in std::mem::take(&mut self.sets) {
            lost.unflushed |= set.acked;
            set.ranges.into_iter().for_each(|r| join(&mut lost.ranges, r));
        }
        self.sets.push_back(Set::default());
        lost
    }
}

/// Adds a range to sorted, disjoint ones that do not touch.
pub fn join(ranges: &mut Vec<Range<u64>>, mut new: Range<u64>) {
    if new.start >= new.end {
        return;
    }
    let first = ranges.partition_point(|r| r.end < new.start);
    let end = first + ranges[first..].partition_point(|r| r.start <= new.end);
    for r in &ranges[first..end] {
        new = new.start.min(r.start)..new.end.max(r.end);
    }
    ranges.splice(first..end, [new]);
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "one range is what is meant")]
mod tests {
    use super::*;

    const B: u64 = FRAME_BYTES as u64;

    #[test]
    fn ranges_are_joined_like_a_set_of_blocks() {
        let mut x = 1u64;
        let (mut ranges, mut model) = (Vec::new(), std::collections::BTreeSet::new());
        for _ in 0..500 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (from, len) = (x >> 33 & 1023, x >> 43 & 7);
            join(&mut ranges, from..from + len);
            model.extend(from..from + len);
            assert!(ranges.iter().cloned().flatten().eq(model.iter().copied()));
            assert!(ranges.windows(2).all(|w| w[0].end < w[1].start));
        }
    }

    #[test]
    fn a_flush_vouches_for_what_was_acknowledged_before_it_was_sent() {
        let mut u = Unflushed::new(100 * B);
        u.note(0, B, true);
        let first = u.flush_sent();
        u.note(5 * B, 2 * B, true);
        u.flushed(first);
        assert_eq!(u.lose(), Lost { ranges: vec![5 * B..7 * B], unflushed: true });
        assert_eq!(u.lose(), Lost::default());
        u.note(100, 1, false);
        assert_eq!(
            u.lose(),
            Lost { ranges: vec![0..B], unflushed: false },
            "doubtful, but nobody was promised anything"
        );
        u.note(0, B, true);
        let all = u.flush_sent();
        u.flushed(all);
        assert_eq!(u.lose(), Lost::default());
    }

    #[test]
    fn more_flushes_than_are_told_apart_forget_nothing_too_early() {
        let mut u = Unflushed::new(100 * B);
        let marks: Vec<u64> = (0..20).map(|n| (u.note(n * 2 * B, B, true), u.flush_sent()).1).collect();
        u.flushed(marks[9]);
        let lost = u.lose();
        (10..20).for_each(|n| assert!(lost.ranges.iter().any(|r| r.contains(&(n * 2 * B))), "change {n}"));
    }

    #[test]
    fn too_many_ranges_are_the_whole_disk_until_a_flush() {
        let size = 10_000 * B + 5;
        let mut u = Unflushed::new(size);
        (0..RANGES_MAX as u64).for_each(|n| u.note(n * 3 * B, B, true));
        assert_eq!(u.sets[0].ranges.len(), RANGES_MAX);
        u.note(9_000 * B, B, true);
        assert_eq!(u.sets[0].ranges, [0..size]);
        let mark = u.flush_sent();
        u.note(size - 1, 1, true);
        u.flushed(mark);
        assert_eq!(u.lose().ranges, [10_000 * B..size]);
    }
}
