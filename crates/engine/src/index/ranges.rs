//! Which part of a disk a block belongs to: block ranges, each of one part, and everything else of part 0.
//!
//! Owns the list and what is wrong with one. Never knows what is cached.
//! Invariant: the ranges are sorted, none is empty, no two overlap, and all end at or before the disk's last block.

use std::fmt;

/// The number of a part of one disk, below [`PARTS_MAX`]. Part 0 is everything that is in no range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartId(pub u8);

/// What no range says otherwise of.
pub const REST: PartId = PartId(0);

/// Parts of one disk at most, [`REST`] among them.
pub const PARTS_MAX: usize = 256;

/// Ranges of one disk at most.
pub const RANGES_MAX: usize = 65_536;

/// Blocks `first..first + blocks` of a disk are those of `part`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartRange {
    /// The first block.
    pub first: u64,
    /// How many; at least 1.
    pub blocks: u64,
    /// Whose they are; not [`REST`].
    pub part: PartId,
}

/// Why a list of ranges and parts, or of their shares, was refused. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartsError {
    /// There is no range, or no part.
    Empty,
    /// More ranges than [`RANGES_MAX`].
    TooMany {
        /// How many there are.
        ranges: usize,
    },
    /// A range has no blocks.
    EmptyRange {
        /// Where it begins.
        first: u64,
    },
    /// A range ends behind the disk.
    OutOfDisk {
        /// Where it begins.
        first: u64,
        /// How many blocks it has.
        blocks: u64,
        /// Blocks of the disk.
        disk_blocks: u64,
    },
    /// Two ranges have a block in common.
    Overlap {
        /// Where one begins.
        first: u64,
        /// Where the other begins, in the first one.
        second: u64,
    },
    /// A range names a part that is not in the list of parts, or a share is set for one that the disk does not have.
    UnknownPart(PartId),
    /// A part is in the list twice.
    Twice(PartId),
    /// The list names part 0, which is what all others leave.
    Rest,
    /// The parts' shares together are more than the disk has.
    Shares {
        /// What they come to.
        wanted_blocks: u64,
        /// What there is.
        disk_blocks: u64,
    },
}

impl fmt::Display for PartsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            PartsError::Empty => {
                f.write_str("the list of ranges is empty; to have the disk in one again, remove its parts")
            }
            PartsError::TooMany { ranges } => {
                write!(f, "{ranges} ranges are more than the {RANGES_MAX} that a disk may have; join neighbouring ones")
            }
            PartsError::EmptyRange { first } => write!(f, "the range at block {first} has no blocks; leave it out"),
            PartsError::OutOfDisk { first, blocks, disk_blocks } => write!(
                f,
                "the range of {blocks} blocks at block {first} ends behind the disk, which has {disk_blocks}; take the \
                 ranges again from inside the guest"
            ),
            PartsError::Overlap { first, second } => write!(
                f,
                "the ranges at blocks {first} and {second} overlap; a block belongs to one part only, so cut one of \
                 them"
            ),
            PartsError::UnknownPart(part) => {
                write!(f, "there is no part {} of the disk; name it in the list of parts", part.0)
            }
            PartsError::Twice(part) => write!(f, "part {} is in the list twice; name it once", part.0),
            PartsError::Rest => f.write_str("part 0 is what the ranges leave; number the parts with ranges from 1"),
            PartsError::Shares { wanted_blocks, disk_blocks } => write!(
                f,
                "the parts' shares come to {wanted_blocks} blocks, but the disk has {disk_blocks}; give them less or \
                 the disk more"
            ),
        }
    }
}

impl std::error::Error for PartsError {}

/// See the head of the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct RangeMap {
    /// The first blocks, apart: the search reads nothing else.
    firsts: Box<[u64]>,
    /// The blocks behind the last ones, and the parts.
    ends: Box<[(u64, PartId)]>,
}

impl RangeMap {
    /// The map of `ranges`, in any order, of a disk of `disk_blocks` blocks. Neighbours of one part become one range.
    ///
    /// # Errors
    /// What is wrong with the list.
    pub fn new(ranges: &[PartRange], disk_blocks: u64) -> Result<Self, PartsError> {
        if ranges.is_empty() {
            return Err(PartsError::Empty);
        }
        if ranges.len() > RANGES_MAX {
            return Err(PartsError::TooMany { ranges: ranges.len() });
        }
        let mut sorted = ranges.to_vec();
        sorted.sort_by_key(|r| r.first);
        let (mut firsts, mut ends) = (Vec::new(), Vec::<(u64, PartId)>::new());
        let mut last = PartRange { first: 0, blocks: 0, part: REST };
        for r in sorted {
            let PartRange { first, blocks, part } = r;
            if part == REST {
                return Err(PartsError::Rest);
            }
            if blocks == 0 {
                return Err(PartsError::EmptyRange { first });
            }
            let end = first.checked_add(blocks).filter(|&end| end <= disk_blocks);
            let end = end.ok_or(PartsError::OutOfDisk { first, blocks, disk_blocks })?;
            match ends.last_mut() {
                Some(before) if before.0 > first => {
                    return Err(PartsError::Overlap { first: last.first, second: first });
                }
                Some(before) if *before == (first, part) => before.0 = end,
                _ => {
                    firsts.push(first);
                    ends.push((end, part));
                }
            }
            last = r;
        }
        Ok(Self { firsts: firsts.into(), ends: ends.into() })
    }

    /// Whose `block` is. A binary search.
    #[inline]
    pub fn part_of(&self, block: u64) -> PartId {
        let at = self.firsts.partition_point(|&first| first <= block);
        match at.checked_sub(1).map(|at| self.ends[at]) {
            Some((end, part)) if block < end => part,
            _ => REST,
        }
    }

    /// How many ranges there are.
    pub fn len(&self) -> usize {
        self.firsts.len()
    }

    /// The parts that ranges name, each as often as it does.
    pub fn parts(&self) -> impl Iterator<Item = PartId> + '_ {
        self.ends.iter().map(|e| e.1)
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        self.firsts.len() * RANGE_BYTES
    }
}

/// Bytes that a range takes.
pub(crate) const RANGE_BYTES: usize = size_of::<u64>() + size_of::<(u64, PartId)>();

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, blocks: u64, part: u8) -> PartRange {
        PartRange { first, blocks, part: PartId(part) }
    }

    #[test]
    fn every_block_belongs_to_the_range_it_is_in_and_the_others_to_the_rest() {
        let map = RangeMap::new(&[range(30, 5, 2), range(10, 5, 1), range(15, 5, 1), range(20, 1, 2)], 35).unwrap();
        assert_eq!(map.firsts.len(), 3, "neighbours of one part are one range");
        let parts: Vec<u8> = (0..40).map(|b| map.part_of(b).0).collect();
        let expected: Vec<u8> = (0..40)
            .map(|b| match b {
                10..20 => 1,
                20 | 30..35 => 2,
                _ => 0,
            })
            .collect();
        assert_eq!(parts, expected);
        assert_eq!(map.part_of(u64::MAX), REST);
    }

    #[test]
    fn what_is_wrong_with_a_list_is_told() {
        let refused = |ranges: &[PartRange]| RangeMap::new(ranges, 100).unwrap_err();
        assert_eq!(refused(&[]), PartsError::Empty);
        assert_eq!(refused(&[range(5, 0, 1)]), PartsError::EmptyRange { first: 5 });
        assert_eq!(refused(&[range(5, 5, 0)]), PartsError::Rest);
        assert_eq!(refused(&[range(20, 5, 1), range(5, 16, 2)]), PartsError::Overlap { first: 5, second: 20 });
        assert_eq!(refused(&[range(5, 3, 1), range(5, 3, 1)]), PartsError::Overlap { first: 5, second: 5 });
        let out = |first, blocks| PartsError::OutOfDisk { first, blocks, disk_blocks: 100 };
        assert_eq!(refused(&[range(99, 2, 1)]), out(99, 2));
        assert_eq!(refused(&[range(u64::MAX, u64::MAX, 1)]), out(u64::MAX, u64::MAX));
        let many: Vec<_> = (0..=RANGES_MAX as u64).map(|n| range(n, 1, 1)).collect();
        assert_eq!(RangeMap::new(&many, 1 << 40).unwrap_err(), PartsError::TooMany { ranges: RANGES_MAX + 1 });
        assert!(RangeMap::new(&many[1..], 1 << 40).is_ok());
        assert!(RangeMap::new(&[range(0, 100, 255)], 100).is_ok());
    }
}
