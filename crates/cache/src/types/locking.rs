//! Locks of a disk, as others ask for them and are told: ranges of the image, reports, and what is wrong with a pin.
//!
//! Owns the form. Never computes a number. Invariant: places are in bytes from the start of the image, whichever way
//! blocks are counted inside.

use std::fmt;
use undercroft_engine::locking::{LockSettings, Missed, OnlineStats};
use undercroft_engine::{PartId, PolicyKind};
use undercroft_units::human_size;

/// Bytes of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// Where they begin.
    pub offset: u64,
    /// How many; at least 1.
    pub bytes: u64,
}

impl ByteRange {
    /// The byte after the last one.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }
}

/// Why ranges were not pinned. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinError {
    /// There is no such disk.
    NoDisk,
    /// A range is empty, or ends behind the disk.
    OutOfDisk {
        /// The range.
        range: ByteRange,
        /// Bytes of the disk.
        size_bytes: u64,
    },
    /// More ranges than a disk may have.
    TooMany {
        /// How many there are.
        ranges: usize,
        /// How many there may be.
        most: usize,
    },
    /// They are more than the budget.
    OverBudget {
        /// What is to be pinned, in whole blocks.
        pinned_bytes: u64,
        /// What may be locked, less what is pinned of the other disks that it keeps its blocks together with.
        budget_bytes: u64,
    },
    /// The list itself takes more than the share.
    NoRoom,
}

impl fmt::Display for PinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            PinError::NoDisk => f.write_str("there is no such disk"),
            PinError::OutOfDisk { range: ByteRange { offset, bytes }, size_bytes } => write!(
                f,
                "{bytes} bytes at byte {offset} are none of the disk, which has {size_bytes}: a range has at least one \
                 byte and ends with the disk"
            ),
            PinError::TooMany { ranges, most } => {
                write!(f, "{ranges} ranges are more than the {most} that a disk may have; join neighbouring ones")
            }
            PinError::OverBudget { pinned_bytes, budget_bytes } => write!(
                f,
                "the pins come to {}, but {} may be locked now; pin less, or give the disk a larger share or a larger \
                 lock_budget",
                human_size(pinned_bytes),
                human_size(budget_bytes)
            ),
            PinError::NoRoom => f.write_str("the list of pins takes more memory than the share of the disk has"),
        }
    }
}

impl std::error::Error for PinError {}

/// What there is to say of a disk's locks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockReport {
    /// What was set. Where it keeps its blocks together with other disks, the budget, `keep_held` and the victim buffer
    /// are those that count for all of them.
    pub settings: LockSettings,
    /// Its blocks that are locked now.
    pub locked_blocks: u64,
    /// The same of all disks that it keeps its blocks together with.
    pub pool_locked_blocks: u64,
    /// How many of those there may be, whether or not anything is to be locked. Of a disk with parts, each part has its
    /// own budget, and this is their sum.
    pub budget_blocks: u64,
    /// Blocks that are locked are still to be unlocked, or to be looked at.
    pub settling: bool,
    /// Blocks of its that are pinned, here or not.
    pub pinned_blocks: u64,
    /// The same of the other disks that it keeps its blocks together with: it may have pins for what these leave of the
    /// budget.
    pub others_pinned_blocks: u64,
    /// Blocks in the victim buffer, of all those disks; how many there may be; and how often one was found there.
    pub buffered_blocks: u64,
    /// See above.
    pub buffer_blocks: u64,
    /// See above.
    pub buffer_hits: u64,
    /// What the online rule has done, if there is one.
    pub online: Option<OnlineStats>,
    /// Misses that the table has counted.
    pub misses: u64,
    /// The blocks that missed most, named by the byte of the image where they begin.
    pub most_missed: Vec<Missed>,
}

/// What is known of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockReport {
    /// The byte of the image where it begins.
    pub offset: u64,
    /// It is in RAM.
    pub cached: bool,
    /// It is not, but is being read, or was read ahead.
    pub on_its_way: bool,
    /// It is locked.
    pub locked: bool,
    /// It is in the victim buffer.
    pub buffered: bool,
    /// It is one of those that go first: the guest holds it, or will not want it again.
    pub first_to_go: bool,
    /// The guest is about to evict it.
    pub on_probation: bool,
    /// Its part of the disk.
    pub part: PartId,
    /// Blocks of that part that are locked; of a disk without parts, of all disks that it keeps its blocks together
    /// with.
    pub part_locked_blocks: u64,
    /// How many of those there may be; 0 while nothing is to be locked.
    pub part_budget_blocks: u64,
    /// The policy that decides about it when nothing else does.
    pub policy: PolicyKind,
    /// The guest has it in a page, as far as is known.
    pub guest_holds: bool,
    /// The SSD store has it.
    pub on_ssd: bool,
    /// The pin that names it.
    pub pinned_by: Option<ByteRange>,
    /// A profile names it.
    pub named_by_profile: bool,
    /// The online rule wants it locked.
    pub chosen: bool,
    /// How often it was missed, if the table of misses knows it.
    pub missed: Option<Missed>,
    /// The disk may keep nothing at present.
    pub keeps_nothing: bool,
}
