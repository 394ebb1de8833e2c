//! Ranges in blocks: what the cache is told of a disk's containers.
//!
//! Owns the rounding. Invariants: runs are in order and disjoint, neighbours of one container are one run, every run
//! has a block at least.
//!
//! Ranges are rounded outwards: a block of which a container has any byte is its. Where a file system's blocks are
//! smaller than ours, a block can hold bytes of two containers; the one whose bytes come first has it.

use super::{BLOCK_BYTES, ByteRange};

/// Blocks of a disk that belong to one container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first block.
    pub first: u64,
    /// How many, at least 1.
    pub blocks: u64,
    /// Whose: a place in [`Parts::containers`].
    pub container: usize,
}

impl Run {
    fn end(&self) -> u64 {
        self.first + self.blocks
    }
}

/// Which blocks of a disk belong to which container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    containers: Vec<String>,
    runs: Vec<Run>,
}

impl Parts {
    /// From ranges by container that have no byte in common.
    pub(super) fn new<'a>(ranges: impl Iterator<Item = (&'a str, &'a [ByteRange])>) -> Self {
        let mut parts = Self::default();
        let mut all: Vec<(ByteRange, usize)> = Vec::new();
        for (name, ranges) in ranges {
            all.extend(ranges.iter().map(|&r| (r, parts.containers.len())));
            parts.containers.push(name.to_string());
        }
        all.sort_unstable();
        for (range, container) in all {
            let taken = parts.runs.last().map_or(0, Run::end);
            let (first, end) = ((range.start / BLOCK_BYTES).max(taken), range.end.div_ceil(BLOCK_BYTES));
            match parts.runs.last_mut() {
                _ if first >= end => {}
                Some(last) if last.container == container && last.end() == first => last.blocks = end - last.first,
                _ => parts.runs.push(Run { first, blocks: end - first, container }),
            }
        }
        parts
    }

    /// The containers by name, without their VM, in order. One can be left without a block where all its ranges are
    /// smaller than a block.
    pub fn containers(&self) -> &[String] {
        &self.containers
    }

    /// The runs in order of their blocks, disjoint.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Whose a block is.
    #[cfg(test)]
    pub(crate) fn container_of(&self, block: u64) -> Option<&str> {
        let after = self.runs.partition_point(|r| r.first <= block);
        let run = self.runs[..after].last().filter(|r| block < r.end())?;
        Some(&self.containers[run.container])
    }

    /// Blocks of a container, by its place in [`Parts::containers`].
    pub fn blocks_of(&self, container: usize) -> u64 {
        self.runs.iter().filter(|r| r.container == container).map(|r| r.blocks).sum()
    }

    pub(super) fn check(&self, size_bytes: u64) {
        assert!(self.runs.iter().all(|r| r.blocks > 0 && r.container < self.containers.len()), "a run of nothing");
        assert!(self.runs.last().is_none_or(|r| r.end() <= size_bytes.div_ceil(BLOCK_BYTES)), "a run past the disk");
        for pair in self.runs.windows(2) {
            assert!(pair[0].end() <= pair[1].first, "runs overlap");
            assert!(pair[0].end() < pair[1].first || pair[0].container != pair[1].container, "neighbours are apart");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_goes_outwards_and_never_twice() {
        let range = |offset, length| ByteRange::new(offset, length).unwrap();
        let (a, b) = ([range(1024, 1024), range(3072, 2048), range(20480, 1)], [range(2048, 1024), range(5120, 8192)]);
        let parts = Parts::new([("a", &a[..]), ("b", &b[..])].into_iter());
        let run = |first, blocks, container| Run { first, blocks, container };
        assert_eq!(parts.runs(), [run(0, 2, 0), run(2, 2, 1), run(5, 1, 0)]);
        assert_eq!((parts.blocks_of(0), parts.blocks_of(1)), (3, 2));
        assert_eq!(
            [1, 2, 3, 4, 5, 6].map(|b| parts.container_of(b)),
            [Some("a"), Some("b"), Some("b"), None, Some("a"), None]
        );
        assert_eq!(Parts::default().container_of(0), None);
    }
}
