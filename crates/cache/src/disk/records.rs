//! What a disk remembers of requests, operations and waiters while they are under way.
//!
//! Owns their records and the table of blocks near at hand. Never acts on them: disk.rs, fill.rs, write.rs and range.rs
//! do. Invariant: a record is plain data of a fixed size, so that the tables of them are paid for when the disk comes.

use crate::disk::writes::losses::Since;
use crate::types::{Found, IoError, Request};
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};

/// Bytes of a bucket of the table of blocks near at hand.
pub(crate) const NEAR_ENTRY_BYTES: usize = size_of::<(u64, Near)>() + 1;

/// Marks the end of a list of waiters.
pub(crate) const NONE: u32 = u32::MAX;

/// A request under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rec {
    pub req: Request,
    /// The next byte of the disk to deal with; everything before is done or under way.
    pub cursor: u64,
    /// Reads: blocks below this have been through the index.
    pub touched: u64,
    /// Reads: how those were found.
    pub found: Found,
    /// Operations owned and reads joined.
    pub pending: u32,
    pub parked: Parked,
    pub error: Option<IoError>,
    /// A read whose stream is told of it at its end: it paused before it was known whether it finds everything.
    pub untold: bool,
    /// A write: its segment that is being filled, while it is paused; else [`NONE`].
    pub segment: u32,
    /// A planted bug has answered it already.
    pub answered: bool,
}

/// What a request waits for, besides its own operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parked {
    /// Nothing.
    No,
    /// Its turn in the queue of those that can go on.
    Ready,
    /// For one of its operations to end, because it has as many as it may, or goes step by step.
    Window,
    /// For frames, or a place in a table.
    Starved,
    /// A read: for the change that is active at its cursor, or for the read of its block that many have joined.
    Blocked,
    /// A change: for earlier ones that it overlaps.
    Turn,
    /// To be resumed: its event has copied enough.
    Paused,
}

/// An operation under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpRec {
    /// Unique among all operations of the disk's life; the upper half of its `OpId`.
    pub seq: u32,
    pub what: What,
}

/// What to do when an operation completes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    /// Whole blocks are read, for waiters, slots, or the ring of blocks read ahead.
    Read(ReadOp),
    /// Part of a read that failed is read again, for those who waited for it and need less than all of it.
    Again(Again),
    /// A segment of a write or of zeroes.
    Write(WriteOp),
    /// The block under a partial write is read; the write follows in the same frame.
    Merge(Merge),
    /// Discard or zeroes of blocks that overlap bytes `from..to`.
    Range { rec: u32, from: u64, to: u64 },
    /// Flush or status; how the disk stood when it began.
    Plain { rec: u32, since: Since },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadOp {
    pub first: u64,
    pub count: u32,
    /// Bit per block: it is in the table of blocks near at hand, so it can be joined and will be published.
    pub fresh: u64,
    /// Bit per block: somebody waits for it.
    pub wanted: u64,
    /// Whether its frames come from the allowance for read-ahead.
    pub ahead: bool,
    /// Blocks to copy for those who have joined it.
    pub joined: u32,
    pub head: u32,
    pub tail: u32,
}

/// Bytes `from..to` of a read that failed, being read again. Nothing of it is published.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Again {
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
pub(crate) struct Merge {
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
pub(crate) enum Edge {
    /// All of it, so that it can be cached.
    Whole,
    /// That failed: the unit of alignment that the part begins in, and no more than is needed.
    Head,
    /// The unit that it ends in.
    Tail,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteOp {
    pub rec: u32,
    pub first: u64,
    pub count: u32,
    /// Whether the first and the last frame hold all of their blocks.
    pub head_whole: bool,
    pub tail_whole: bool,
    pub epoch: u32,
}

/// A request that waits for blocks `first..first+count` of a read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub rec: u32,
    pub first: u16,
    pub count: u16,
    /// Whether the read was started for this request.
    pub own: bool,
    pub next: u32,
}

/// A block that is not in a slot but close.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Near {
    /// Being read: block `at` of operation `op`.
    Reading { op: u32, at: u32 },
    /// Read ahead and unused, under this number in the ring.
    Ahead(u64),
}

/// Hashes block numbers by one multiplication with a secret factor: guests choose block numbers, and should not be able
/// to choose ones that collide.
#[derive(Clone, Copy)]
pub(crate) struct NearHash {
    factor: u64,
}

impl NearHash {
    pub(crate) fn new(seed: u64) -> Self {
        Self { factor: (seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xd6e8_feb8_6659_fd93) | 1 }
    }
}

impl BuildHasher for NearHash {
    type Hasher = BlockHasher;
    fn build_hasher(&self) -> BlockHasher {
        BlockHasher { factor: self.factor, hash: 0 }
    }
}

pub(crate) struct BlockHasher {
    factor: u64,
    hash: u64,
}

impl Hasher for BlockHasher {
    fn finish(&self) -> u64 {
        self.hash
    }
    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("block numbers are hashed as u64");
    }
    fn write_u64(&mut self, n: u64) {
        let h = n.wrapping_mul(self.factor);
        self.hash = h ^ (h >> 32);
    }
}

pub(crate) type NearTable = HashMap<u64, Near, NearHash>;
