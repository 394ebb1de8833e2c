//! What the core asks of back ends, and what comes back: I/O operations, completions, losses, extents.
//!
//! Owns the operation with its buffer. Never carries one out. Invariant: an operation owns its frames until it comes
//! back.

use super::request::{DiskId, IoError};
use std::ops::Range;
use undercroft_host::IoBuf;

/// The core's name for an I/O operation under way; unique while it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u64);

/// Where an operation goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IoTarget {
    /// The disk's image.
    Image,
    /// A device of the core's SSD store, by its number there; offsets are those of the store's region.
    Ssd(u16),
}

/// An operation that the core wants done. It owns its buffer until it comes back in an [`IoDone`].
#[derive(Debug)]
pub struct Io {
    /// The core's number for it, which comes back in the [`IoDone`].
    pub op: OpId,
    /// The disk.
    pub disk: DiskId,
    /// Where it goes.
    pub target: IoTarget,
    /// What to do.
    pub kind: IoKind,
    /// First byte; a multiple of the disk's `align` for reads and writes.
    pub offset: u64,
    /// Bytes; for reads and writes equal to `buf.len` and a multiple of the disk's `align`. Never reaches past the end
    /// of the disk: in the last block, if that is partial, it is cut there.
    pub len: u64,
    /// The memory to read into or write from; empty for the other kinds.
    pub buf: IoBuf,
}

/// What an [`Io`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoKind {
    /// Fill `buf` from the disk.
    Read,
    /// Write `buf`; with `fua`, durable before completion.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Make every write completed before durable.
    Flush,
    /// Free the range.
    Discard,
    /// Zero the range.
    WriteZeroes {
        /// Whether the space may be freed.
        unmap: bool,
        /// Durable before completion.
        fua: bool,
    },
    /// Report the allocation of the range.
    Status,
}

impl IoKind {
    /// Whether it changes what the disk holds.
    pub fn changes(self) -> bool {
        matches!(self, IoKind::Write { .. } | IoKind::Discard | IoKind::WriteZeroes { .. })
    }
}

/// The completion of an [`Io`], with its buffer.
#[derive(Debug)]
pub struct IoDone {
    /// Which operation.
    pub op: OpId,
    /// The disk.
    pub disk: DiskId,
    /// The operation's buffer, back again; filled if it was a read that succeeded.
    pub buf: IoBuf,
    /// Whether all of it was done. After an error nothing is known about the range.
    pub result: Result<(), IoError>,
    /// For [`IoKind::Status`]: consecutive extents from the operation's offset on; at least one, they may end early.
    pub extents: Vec<Extent>,
}

/// What a disk may have lost, because its server crashed or may have crashed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Ranges of bytes, sorted and disjoint, in which changes may be lost: those after which no flush has succeeded,
    /// acknowledged or not.
    pub ranges: Vec<Range<u64>>,
    /// Whether one of these changes had been acknowledged. Then the next flush of each port fails, or its next write
    /// that must be durable.
    pub unflushed: bool,
}

/// Whether all that the image of a disk was given is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// All of it: a flush vouches for it, or nobody writes to the image.
    Whole,
    /// Not as far as is known: a flush would tell, [`Event::MakeDurable`](crate::Event::MakeDurable).
    Unflushed,
    /// A change or a flush is under way, or the disk does not use the SSD store, which this is about.
    NotNow,
    /// A flush has failed: nobody knows what was lost, and no later flush tells.
    Never,
}

/// A part of a disk with one allocation state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub len: u64,
    /// Nothing is allocated there (NBD_STATE_HOLE).
    pub hole: bool,
    /// It reads as zeroes (NBD_STATE_ZERO).
    pub zero: bool,
}
