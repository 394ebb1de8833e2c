//! What a disk remembers of an operation while it is under way.
//!
//! Owns the records. Never acts on them: reads and writes do. Invariant: a record is plain data of a fixed size, so
//! that the table of them is paid for when the disk is added.

use super::writes::losses::Since;
use crate::store::tier::Stored;

/// What to do when an operation completes.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    /// Whole blocks are read, for waiters, slots, or the ring of blocks read ahead.
    Read(ReadOp),
    /// A read of the SSD store that took too long: the image was read instead.
    Late {
        count: u32,
        /// Whether its frames come from the allowance for read-ahead.
        ahead: bool,
    },
    /// Part of a read that failed is read again, for those who waited for it and need less than all of it.
    Again(Again),
    /// A segment of a write or of zeroes.
    Write(WriteOp),
    /// The block under a partial write is read; the write follows in the same frame.
    Merge(Merge),
    /// Discard or zeroes of blocks that overlap bytes `from..to`.
    Range { rec: u32, from: u64, to: u64 },
    /// Flush or status; how the disk stood when it began, and how many changes it had had if none was under way.
    Plain { rec: u32, since: Since, quiet: Option<u64> },
}

impl What {
    /// Whether the operation is one of the SSD store, not of the image.
    pub(super) fn is_below(&self) -> bool {
        matches!(self, What::Read(ReadOp { stored: Some(_), .. }) | What::Late { .. })
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ReadOp {
    pub first: u64,
    pub count: u32,
    /// Bit per block: it is in the table of blocks near at hand, so it can be joined and will be published.
    pub fresh: u64,
    /// Bit per block: somebody waits for it.
    pub wanted: u64,
    /// Where in the SSD store the blocks are, if they are read from there.
    pub stored: Option<Stored>,
    /// Whether what comes is the disk's own, and is not to be known as a block of its base.
    pub apart: bool,
    /// When it was submitted, in nanoseconds.
    pub since_ns: u64,
    /// Whether its frames come from the allowance for read-ahead.
    pub ahead: bool,
    /// Blocks to copy for those who have joined it.
    pub joined: u32,
    pub head: u32,
    pub tail: u32,
}

/// Bytes `from..to` of a read that failed, being read again. Nothing of it is published.
#[derive(Clone, Copy, Debug)]
pub(super) struct Again {
    /// The block that the places of waiters are counted from.
    pub first: u64,
    pub from: u64,
    pub to: u64,
    /// Frames that the operation owns; the first of them is that of the block of `from`.
    pub count: u32,
    /// Whether they come from the allowance for read-ahead.
    pub ahead: bool,
    /// Those who wait, the ones for whom it is read among them.
    pub head: u32,
}

/// A block that is to be written in part, being read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merge {
    pub rec: u32,
    pub block: u64,
    /// The part of the block to write.
    pub lo: u32,
    pub hi: u32,
    /// What of the block is read.
    pub edge: Edge,
    pub epoch: u32,
}

/// How much of a block is read before a part of it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edge {
    /// All of it, so that it can be cached.
    Whole,
    /// That failed: the unit of alignment that the part begins in, and no more than is needed.
    Head,
    /// The unit that it ends in.
    Tail,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct WriteOp {
    pub rec: u32,
    pub first: u64,
    pub count: u32,
    /// Blocks before those that it had, too, and that are installed already.
    pub installed: u32,
    /// Whether the first and the last frame hold all of their blocks.
    pub head_whole: bool,
    pub tail_whole: bool,
    pub epoch: u32,
}
