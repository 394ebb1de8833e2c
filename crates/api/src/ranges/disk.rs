//! The ranges of one disk: whose bytes are whose.
//!
//! Owns what was accepted. Never changes half of a list. Invariants: see the head of the module; `check` holds all of
//! them.

use super::parts::Parts;
use super::{ByteRange, CONTAINERS_MAX, RANGES_MAX, RangeList, RangesError};
use std::collections::BTreeMap;

/// What containers have of one disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskRanges {
    disk: String,
    size_bytes: u64,
    /// By container: in order, apart from each other, never none.
    containers: BTreeMap<String, Vec<ByteRange>>,
}

impl DiskRanges {
    /// A disk of which nothing was said. `disk` is for messages.
    pub fn new(disk: &str, size_bytes: u64) -> Self {
        Self { disk: disk.to_string(), size_bytes, containers: BTreeMap::new() }
    }

    /// Whether nothing is said of it.
    pub fn is_empty(&self) -> bool {
        self.containers.is_empty()
    }

    /// Every container with its ranges: in order, apart from each other.
    pub fn containers(&self) -> impl Iterator<Item = (&str, &[ByteRange])> {
        self.containers.iter().map(|(name, ranges)| (name.as_str(), ranges.as_slice()))
    }

    /// Replaces what is said of the list's container; a list without ranges takes it away.
    ///
    /// # Errors
    /// A range past the end of the disk, bytes that another container has, or too many; then everything is as it was.
    pub fn put(&mut self, list: &RangeList) -> Result<(), RangesError> {
        let (container, disk) = (list.container.clone(), self.disk.clone());
        if let Some(&range) = list.ranges.last().filter(|r| r.end > self.size_bytes) {
            return Err(RangesError::BeyondDisk { container, range, disk, size_bytes: self.size_bytes });
        }
        let others = || self.containers.iter().filter(|(name, _)| **name != list.container);
        let count: usize = others().map(|(_, ranges)| ranges.len()).sum();
        if count + list.ranges.len() > RANGES_MAX {
            return Err(RangesError::TooMany { container, disk, count: list.ranges.len() });
        }
        if !list.ranges.is_empty() && others().count() >= CONTAINERS_MAX {
            return Err(RangesError::TooManyContainers { container, disk });
        }
        for (other, theirs) in others() {
            if let Some((range, other_range)) = first_overlap(&list.ranges, theirs) {
                return Err(RangesError::Overlap { container, range, disk, other: other.clone(), other_range });
            }
        }
        if list.ranges.is_empty() {
            self.containers.remove(&list.container);
        } else {
            self.containers.insert(container, list.ranges.clone());
        }
        Ok(())
    }

    /// Forgets containers for which `keep` is false; whether there were any.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) -> bool {
        let before = self.containers.len();
        self.containers.retain(|name, _| keep(name));
        before != self.containers.len()
    }

    /// The same in blocks of the cache.
    pub fn parts(&self) -> Parts {
        Parts::new(self.containers())
    }

    /// Asserts every invariant, for tests and the fuzzer.
    ///
    /// # Panics
    /// If one is broken.
    pub fn check(&self) {
        let mut all: Vec<ByteRange> = Vec::new();
        for ranges in self.containers.values() {
            assert!(!ranges.is_empty(), "a container without ranges is kept");
            assert!(ranges.windows(2).all(|w| w[0].end < w[1].start), "ranges of one container touch");
            all.extend(ranges);
        }
        assert!(all.len() <= RANGES_MAX && self.containers.len() <= CONTAINERS_MAX, "too many");
        all.sort_unstable();
        assert!(all.iter().all(|r| r.start < r.end && r.end <= self.size_bytes), "a range is empty or past the disk");
        assert!(all.windows(2).all(|w| w[0].end <= w[1].start), "a byte has two owners");
        self.parts().check(self.size_bytes);
    }
}

/// The first range of `a` with bytes in common with one of `b`, and that one; both are in order.
fn first_overlap(a: &[ByteRange], b: &[ByteRange]) -> Option<(ByteRange, ByteRange)> {
    let mut at = 0;
    for &range in a {
        while b.get(at).is_some_and(|other| other.end <= range.start) {
            at += 1;
        }
        if let Some(&other) = b.get(at).filter(|other| other.start < range.end) {
            return Some((range, other));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::{RangeBody, RangeListBody};
    use super::*;
    use proptest::prelude::*;
    use undercroft_config::{ControlError, ControlErrorKind};

    fn list(container: &str, ranges: &[(u64, u64)]) -> RangeList {
        let ranges = ranges.iter().map(|&(offset_bytes, length_bytes)| RangeBody { offset_bytes, length_bytes });
        let body = RangeListBody { disk: "vm:root".into(), container: container.into(), ranges: ranges.collect() };
        RangeList::new(body).unwrap()
    }

    #[test]
    fn a_list_replaces_the_one_before_and_none_takes_it_away() {
        let mut disk = DiskRanges::new("vm:root", 1 << 20);
        disk.put(&list("web", &[(0, 8192)])).unwrap();
        disk.put(&list("db", &[(8192, 4096)])).unwrap();
        // Its own bytes of before are no overlap.
        disk.put(&list("web", &[(4096, 4096), (1 << 19, 1 << 19)])).unwrap();
        let of = |disk: &DiskRanges| disk.containers().map(|(n, r)| (n.to_string(), r.len())).collect::<Vec<_>>();
        assert_eq!(of(&disk), [("db".to_string(), 1), ("web".to_string(), 2)]);
        disk.put(&list("web", &[])).unwrap();
        assert_eq!(of(&disk), [("db".to_string(), 1)]);
        disk.put(&list("new", &[(0, 8192)])).unwrap();
        assert!(disk.retain(|name| name == "db") && !disk.retain(|name| name == "db"));
        disk.check();
    }

    #[test]
    fn what_does_not_fit_is_refused_whole() {
        let mut disk = DiskRanges::new("vm:root", 1 << 20);
        disk.put(&list("web", &[(8192, 4096), (65536, 4096)])).unwrap();
        let before = disk.clone();
        for (bad, kind, needles) in [
            (
                list("db", &[(0, 4096), (69000, 10_000), (65535, 2)]),
                ControlErrorKind::Conflict,
                vec!["\"db\"", "65535 to 65536 (2 bytes)", "65536 to 69631", "\"web\"'s", "\"ranges\": []"],
            ),
            (
                list("db", &[(0, 4096), ((1 << 20) - 1, 2)]),
                ControlErrorKind::Invalid,
                vec!["\"db\"", "1048575 to 1048576", "\"vm:root\"", "1048576 bytes", "right disk"],
            ),
        ] {
            let e = ControlError::from(disk.put(&bad).unwrap_err());
            assert_eq!(e.kind, kind);
            for needle in needles {
                assert!(e.to_string().contains(needle), "{needle}: {e}");
            }
            assert_eq!(disk, before);
        }
        let many: Vec<_> = (0..RANGES_MAX as u64).map(|n| ((1 << 20) + n * 8192, 1)).collect();
        let mut large = DiskRanges::new("vm:root", 1 << 40);
        large.put(&list("web", &many)).unwrap();
        let e = ControlError::from(large.put(&list("db", &[(0, 1)])).unwrap_err());
        assert!(e.error.contains("\"db\"") && e.remedy.contains("defragment"), "{e}");
        large.put(&list("web", &many)).unwrap();
        for n in 0..CONTAINERS_MAX as u64 {
            disk.put(&list(&format!("c{n}"), &[(131_072 + n * 512, 512)])).map_or_else(
                |e| {
                    assert!(n + 1 == CONTAINERS_MAX as u64 && matches!(e, RangesError::TooManyContainers { .. }), "{e}")
                },
                |()| assert!(n + 1 < CONTAINERS_MAX as u64),
            );
        }
        disk.check();
    }

    /// Units of 1 KiB, four to a block, of a disk of 64 KiB.
    const UNITS: usize = 64;

    proptest! {
        /// Against a plain array of who owns what: overlaps, replacement, and the owner of each block.
        #[test]
        fn agrees_with_an_array_of_owners(
            lists in proptest::collection::vec(
                (0usize..3, proptest::collection::vec((0u64..70, 0u64..12), 0..5)),
                1..12,
            )
        ) {
            let names = ["a", "b", "c"];
            let mut disk = DiskRanges::new("vm:root", UNITS as u64 * 1024);
            let mut owners = [None; UNITS];
            for (who, ranges) in lists {
                let units: Vec<_> = ranges.iter().flat_map(|&(at, n)| at..at + n + 1).map(|u| u as usize).collect();
                let fits = units.iter().all(|&u| u < UNITS && owners[u].is_none_or(|o| o == who));
                let bytes: Vec<_> = ranges.iter().map(|&(at, n)| (at * 1024, (n + 1) * 1024)).collect();
                let done = disk.put(&list(names[who], &bytes));
                prop_assert_eq!(done.is_ok(), fits, "{:?}", done);
                if fits {
                    owners.iter_mut().filter(|o| **o == Some(who)).for_each(|o| *o = None);
                    units.iter().for_each(|&u| owners[u] = Some(who));
                }
                disk.check();
                let parts = disk.parts();
                for (block, units) in owners.chunks(4).enumerate() {
                    // Whoever's bytes come first in a block has it.
                    let wanted = units.iter().flatten().next();
                    prop_assert_eq!(parts.container_of(block as u64), wanted.map(|&w| names[w]), "block {}", block);
                }
            }
        }
    }
}
