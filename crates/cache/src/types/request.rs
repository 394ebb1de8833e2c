//! What front ends ask for: disks, requests, how blocks of a read were found, why a request failed.
//!
//! Owns the names of requests. Never owns behaviour. Units: offsets and lengths in bytes.

use std::fmt;

/// A disk of one core; dense, from 0, reused after the disk is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DiskId(pub u32);

/// The memory of a guest: equal for two disks of a core exactly if both have the same memory, whose pages are numbered
/// in the same way for both. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemoryId(pub u64);

/// A front end's name for a request under way; the core only hands it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReqId {
    /// Which front-end port (a vhost-user device, an NBD connection) the request came from.
    pub port: u32,
    /// The port's own number for it.
    pub tag: u32,
}

/// A request that has been served in part and waits to be resumed: [`Effects::paused`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paused {
    /// Its disk.
    pub disk: DiskId,
    /// Its record there.
    pub(crate) rec: u32,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read `len` bytes at `offset`.
    Read,
    /// Write `len` bytes at `offset`; with `fua`, durable before the reply.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Everything acknowledged before is durable at the reply.
    Flush,
    /// The range is no longer needed; what it reads afterwards is up to the disk (but the same until written).
    Discard,
    /// The range reads as zeroes afterwards.
    WriteZeroes {
        /// Whether the disk may free the space.
        unmap: bool,
        /// Force unit access.
        fua: bool,
    },
    /// Which parts of the range are allocated (NBD block status); answered by [`Effects::extents`], then the reply.
    Status,
}

impl Op {
    /// Whether it is a change that must be durable before the reply.
    pub(crate) fn is_durable(self) -> bool {
        matches!(self, Op::Write { fua: true } | Op::WriteZeroes { fua: true, .. })
    }

    /// Whether it is a change that is durable only after a flush.
    pub(crate) fn changes_unflushed(self) -> bool {
        matches!(self, Op::Write { fua: false } | Op::WriteZeroes { fua: false, .. } | Op::Discard)
    }
}

/// A request from a front end. Range and alignment have been checked against the disk's size by the front end; the
/// core checks again and answers [`IoError::Invalid`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Handed back with every effect.
    pub id: ReqId,
    /// The disk.
    pub disk: DiskId,
    /// What to do.
    pub op: Op,
    /// First byte; any alignment.
    pub offset: u64,
    /// Bytes; up to `REQUEST_BYTES_MAX` for reads and writes, up to the size of the disk otherwise; 0 for a flush.
    pub len: u64,
}

/// How the blocks of one read were found; the counts that [`DiskStats`] sums up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// In RAM, those read ahead not counted.
    pub hits: u32,
    /// Among those read ahead.
    pub ahead: u32,
    /// Part of a read operation that was already under way.
    pub joined: u32,
    /// Only on the disk.
    pub missed: u32,
}

/// Why a request or an operation failed. Small and `Copy`: details are logged where they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IoError {
    /// The disk failed.
    Io,
    /// Changes that were acknowledged are lost, and this is how the port of the request is told; to its peer it is an
    /// input/output error.
    Lost,
    /// The disk is full.
    NoSpace,
    /// The range or the request makes no sense.
    Invalid,
    /// The disk is read-only.
    ReadOnly,
    /// The disk cannot do this.
    Unsupported,
    /// The disk is being detached, or the daemon stops.
    Shutdown,
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IoError::Io => "input/output error",
            IoError::Lost => "writes acknowledged before are lost",
            IoError::NoSpace => "no space left on the disk",
            IoError::Invalid => "invalid request",
            IoError::ReadOnly => "the disk is read-only",
            IoError::Unsupported => "not supported by the disk",
            IoError::Shutdown => "the disk is shutting down",
        })
    }
}

impl std::error::Error for IoError {}
