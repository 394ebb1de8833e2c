//! Which blocks are to be locked: ranges that are pinned, ranges that a profile names, and single blocks that a rule
//! has chosen.
//!
//! Owns these sets, of all disks of an index. Never knows what is cached. Invariant: the ranges of a set are sorted,
//! none is empty, and no two overlap or touch.

use crate::index::origins::{ORIGIN_STEP, origin_of};
use std::collections::BTreeSet;

/// See the head of the file. Blocks are named by their keys.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    pins: Ranges,
    /// What profiles name.
    named: Ranges,
    chosen: BTreeSet<u64>,
}

/// Keys in ranges: the first and the one after the last.
#[derive(Debug, Default)]
struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Those of the disk that counts from `origin` are these (first block, count) from now on.
    fn set(&mut self, origin: u64, ranges: impl IntoIterator<Item = (u64, u64)>) {
        self.forget(origin);
        let own = ranges.into_iter().filter(|&(first, count)| first < ORIGIN_STEP && count > 0);
        self.0.extend(own.map(|(first, count)| (origin | first, origin | first.saturating_add(count).min(END))));
        self.0.sort_unstable();
        self.0.dedup_by(|next, kept| {
            let joins = next.0 <= kept.1 && origin_of(next.0) == origin_of(kept.0);
            if joins {
                kept.1 = kept.1.max(next.1);
            }
            joins
        });
        self.0.shrink_to_fit();
    }

    fn forget(&mut self, origin: u64) {
        self.0.retain(|&(first, _)| origin_of(first) != origin);
    }

    /// A binary search.
    fn have(&self, key: u64) -> bool {
        let at = self.0.partition_point(|&(first, _)| first <= key);
        at.checked_sub(1).is_some_and(|at| key < self.0[at].1)
    }
}

impl Wanted {
    /// The pins of the disk that counts from `origin` are these ranges (first block, count) from now on.
    pub fn set_pins(&mut self, origin: u64, ranges: impl IntoIterator<Item = (u64, u64)>) {
        self.pins.set(origin, ranges);
    }

    /// The profile of that disk names these.
    pub fn set_profile(&mut self, origin: u64, ranges: impl IntoIterator<Item = (u64, u64)>) {
        self.named.set(origin, ranges);
    }

    /// A rule wants this block locked.
    pub fn choose(&mut self, key: u64) {
        self.chosen.insert(key);
    }

    /// No rule wants this block locked any more.
    pub fn choose_not(&mut self, key: u64) {
        self.chosen.remove(&key);
    }

    /// Nothing of the disk that counts from `origin` is wanted any more.
    pub fn forget(&mut self, origin: u64) {
        self.pins.forget(origin);
        self.named.forget(origin);
        self.chosen.retain(|&key| origin_of(key) != origin);
    }

    /// Whether a block is in a pinned range.
    pub fn is_pinned(&self, key: u64) -> bool {
        self.pins.have(key)
    }

    /// Whether a block is to be locked.
    pub fn has(&self, key: u64) -> bool {
        self.pins.have(key) || self.named.have(key) || self.chosen.contains(&key)
    }

    /// Bytes of memory held; what a tree of keys takes is estimated.
    pub fn memory_bytes(&self) -> usize {
        (self.pins.0.capacity() + self.named.0.capacity()) * size_of::<(u64, u64)>()
            + self.chosen.len() * 2 * size_of::<u64>()
    }
}

/// Blocks of a disk end here.
const END: u64 = ORIGIN_STEP - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined_and_each_disk_has_its_own() {
        let mut wanted = Wanted::default();
        let other = 3 * ORIGIN_STEP;
        wanted.set_pins(0, [(10, 5), (12, 10), (22, 1), (40, 0), (50, 1)]);
        wanted.set_pins(other, [(12, 1)]);
        assert_eq!(wanted.pins.0, [(10, 23), (50, 51), (other + 12, other + 13)]);
        let pinned: Vec<u64> = (0..60).filter(|&b| wanted.is_pinned(b)).collect();
        assert_eq!(pinned, (10..23).chain([50]).collect::<Vec<u64>>());
        assert!(wanted.is_pinned(other + 12) && !wanted.is_pinned(other + 10));
        wanted.set_pins(0, []);
        assert_eq!(wanted.pins.0, [(other + 12, other + 13)]);
        wanted.choose(7);
        wanted.choose(other + 7);
        wanted.forget(other);
        assert!(wanted.has(7) && !wanted.has(other + 7) && !wanted.has(other + 12));
        wanted.choose_not(7);
        assert!(!wanted.has(7));
    }

    #[test]
    fn what_a_profile_names_is_wanted_and_not_pinned() {
        let mut wanted = Wanted::default();
        wanted.set_profile(0, [(10, 5)]);
        wanted.set_pins(0, [(12, 1)]);
        assert!(wanted.has(10) && !wanted.is_pinned(10) && wanted.is_pinned(12));
        // Each stands for itself.
        wanted.set_pins(0, []);
        assert!(wanted.has(12) && !wanted.is_pinned(12));
        wanted.set_profile(0, []);
        assert!(!wanted.has(10));
        wanted.set_profile(0, [(10, 5)]);
        wanted.forget(0);
        assert!(!wanted.has(10));
    }

    #[test]
    fn a_range_that_ends_nowhere_ends_with_its_disk() {
        let mut wanted = Wanted::default();
        wanted.set_pins(0, [(5, u64::MAX), (u64::MAX, 3)]);
        assert!(wanted.is_pinned(1 << 50) && !wanted.is_pinned(ORIGIN_STEP) && !wanted.is_pinned(u64::MAX));
    }
}
