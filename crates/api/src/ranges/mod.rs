//! Which blocks of a disk belong to which container, as somebody outside the guest was told.
//!
//! Owns the checks and the way from bytes of the virtual disk to blocks of the cache. Never looks into an image or a
//! guest, and never divides anything: `parts` is what the cache is told. Invariants of [`DiskRanges`]: no byte belongs
//! to two containers, no range is empty or reaches past the disk, and there are at most [`RANGES_MAX`] of them.
//!
//! A list is a claim, not a proof: files move while a guest runs, so that what it says of a block is at worst out of
//! date. Who is charged for a block follows from it; what a guest reads never does.

mod body;
mod disk;
mod parts;

pub use body::{BODY_BYTES_MAX, RangeBody, RangeList, RangeListBody, parse};
pub use disk::DiskRanges;
pub use parts::{Parts, Run};

use std::fmt;
use undercroft_config::{ControlError, ControlErrorKind};

/// Ranges of one disk at most, those of all its containers together.
pub const RANGES_MAX: usize = undercroft_ranges::RANGES_MAX;
/// Containers of one disk at most.
pub const CONTAINERS_MAX: usize = 256;
/// Bytes of a block of the cache, to which ranges are rounded outwards.
pub const BLOCK_BYTES: u64 = 4096;

/// Bytes of a virtual disk: at least one, and their end fits into 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteRange {
    start: u64,
    end: u64,
}

impl ByteRange {
    /// `length` bytes from `offset` on; `None` if there are none, or more than 64 bits can count.
    pub fn new(offset: u64, length: u64) -> Option<Self> {
        let end = offset.checked_add(length)?;
        (length > 0).then_some(Self { start: offset, end })
    }

    /// The first byte.
    pub fn offset(self) -> u64 {
        self.start
    }

    /// How many there are.
    pub fn length(self) -> u64 {
        self.end - self.start
    }

    /// The first byte after it.
    pub fn end(self) -> u64 {
        self.end
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {} ({} bytes)", self.start, self.end - 1, self.length())
    }
}

/// Why a list of ranges is refused. Nothing has been changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangesError {
    /// It is no list at all, or a name in it is none.
    #[error("{0}")]
    Unreadable(ControlError),
    /// A range without bytes.
    #[error("container \"{container}\": range {number}, at byte {offset}, is empty")]
    Empty {
        /// Whose.
        container: String,
        /// Which of the list, from 1.
        number: usize,
        /// Where.
        offset: u64,
    },
    /// A range whose end cannot be counted.
    #[error(
        "container \"{container}\": range {number}, {length} bytes from byte {offset}, ends past what 64 bits count"
    )]
    Overflow {
        /// Whose.
        container: String,
        /// Which of the list, from 1.
        number: usize,
        /// Where.
        offset: u64,
        /// How long.
        length: u64,
    },
    /// A range that the disk does not have.
    #[error("container \"{container}\": bytes {range} are not all on disk \"{disk}\", which has {size_bytes} bytes")]
    BeyondDisk {
        /// Whose.
        container: String,
        /// Which.
        range: ByteRange,
        /// Where it should be.
        disk: String,
        /// How large that is.
        size_bytes: u64,
    },
    /// Bytes that another container has.
    #[error(
        "container \"{container}\": bytes {range} of disk \"{disk}\" overlap bytes {other_range}, which are container \
         \"{other}\"'s"
    )]
    Overlap {
        /// Whose.
        container: String,
        /// Which.
        range: ByteRange,
        /// Where.
        disk: String,
        /// Who has them.
        other: String,
        /// Of which range of that one.
        other_range: ByteRange,
    },
    /// More than there may be.
    #[error(
        "container \"{container}\": with {count} ranges disk \"{disk}\" would have more than {RANGES_MAX} in all its \
         containers"
    )]
    TooMany {
        /// Whose.
        container: String,
        /// Where.
        disk: String,
        /// How many this one has.
        count: usize,
    },
    /// More containers than there may be.
    #[error("container \"{container}\" would be one more than the {CONTAINERS_MAX} that disk \"{disk}\" may have")]
    TooManyContainers {
        /// Whose.
        container: String,
        /// Where.
        disk: String,
    },
}

impl RangesError {
    /// What to do about it.
    pub fn remedy(&self) -> String {
        match self {
            Self::Unreadable(e) => e.remedy.clone(),
            Self::Empty { .. } => "leave it out".into(),
            Self::Overflow { .. } | Self::BeyondDisk { .. } => {
                "give bytes of the whole virtual disk, not of a partition, as `undercroft ranges` prints them inside \
                 the guest; is it the right disk?"
                    .into()
            }
            Self::Overlap { other, .. } => {
                format!(
                    "bring the list of \"{other}\" up to date first: send it anew, or with \"ranges\": [] to take it \
                     away"
                )
            }
            Self::TooMany { .. } => {
                "name fewer or larger files, defragment them in the guest (e4defrag, xfs_fsr), or give the container a \
                 disk of its own"
                    .into()
            }
            Self::TooManyContainers { .. } => {
                "take the ranges of one away with \"ranges\": [], or give containers disks of their own".into()
            }
        }
    }
}

impl From<RangesError> for ControlError {
    fn from(e: RangesError) -> Self {
        match e {
            RangesError::Unreadable(e) => e,
            RangesError::Overlap { .. } => ControlError::new(ControlErrorKind::Conflict, e.to_string(), e.remedy()),
            _ => ControlError::new(ControlErrorKind::Invalid, e.to_string(), e.remedy()),
        }
    }
}
