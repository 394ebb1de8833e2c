//! What a file can be asked to do, and what comes back.
//!
//! Owns the vocabulary of file operations. Never carries one out: `ring` and `pool` do.

use crate::io_buf::IoBuf;
use rustix::io::Errno;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Fills the buffer from the file. The end of the file within the range is an error (`EIO`).
    Read,
    /// Writes the buffer; with `dsync`, the data is durable at completion (`RWF_DSYNC`).
    Write {
        /// Force unit access.
        dsync: bool,
    },
    /// Makes all writes completed before durable (`fdatasync`).
    Sync,
    /// Frees the range of a file; it reads as zeroes (`FALLOC_FL_PUNCH_HOLE`).
    PunchHole,
    /// Zeroes the range, keeping it allocated where the file system can (`FALLOC_FL_ZERO_RANGE`).
    ZeroRange,
    /// Tells a block device that the range is not needed (`BLKDISCARD`).
    DeviceDiscard,
    /// Looks up which parts of the range are allocated (`SEEK_DATA`, `SEEK_HOLE`); all of it where that is not known.
    Map,
    /// Does nothing and succeeds: lets an answer that is known already come back like any other.
    Nothing,
}

/// An operation; `T` is the caller's name for it, handed back.
#[derive(Debug)]
pub struct FileOp<T> {
    /// Handed back.
    pub token: T,
    /// What to do.
    pub action: Action,
    /// First byte of the file.
    pub offset: u64,
    /// Bytes; for reads and writes equal to `buf.len`.
    pub len: u64,
    /// The memory to read into or write from; empty for the other kinds.
    pub buf: IoBuf,
}

/// A finished operation.
#[derive(Debug)]
pub struct FileDone<T> {
    /// As submitted.
    pub token: T,
    /// The buffer, back.
    pub buf: IoBuf,
    /// Whether all of it was done.
    pub result: Result<(), Errno>,
    /// For [`Action::Map`]: consecutive parts from the operation's offset on; they may end early.
    pub regions: Vec<Region>,
}

/// A part of a file with one allocation state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Bytes.
    pub len: u64,
    /// Not allocated; reads as zeroes.
    pub hole: bool,
}
