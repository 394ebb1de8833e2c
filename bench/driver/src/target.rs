//! What the load is applied to: a disk behind a vhost-user or an NBD socket.
//!
//! Owns the words both sides share. Knows nothing of rings or sockets.
//! Invariant: every operation submitted comes back from `reap` exactly once, or `reap` says that the server is gone.

use crate::ledger::BrokenPromise;
use std::time::Duration;
use thiserror::Error;

/// How long the driver waits for any completion before it says that the server does not answer.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads into the tag's buffer.
    Read,
    /// Writes the tag's buffer.
    Write,
    /// Makes everything acknowledged before it durable.
    Flush,
    /// Says that the contents are not needed; they are zeroes or unchanged afterwards.
    Discard,
    /// Makes the range read as zeroes.
    WriteZeroes,
}

/// One operation. `tag` names its buffer, and comes back with the completion.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// What to do.
    pub kind: Kind,
    /// First byte on the disk.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub length: u32,
    /// Below the target's depth, and not under way.
    pub tag: usize,
}

/// A finished operation.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// The operation's tag.
    pub tag: usize,
    /// The errno the server answered with, if it refused (virtio has only EIO and ENOTSUP).
    pub result: Result<(), u32>,
}

/// What the server says about the disk.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Geometry {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Logical block size in bytes.
    pub block_bytes: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether flush is offered.
    pub flush: bool,
    /// Whether discard (trim) is offered.
    pub discard: bool,
    /// Whether write-zeroes is offered.
    pub write_zeroes: bool,
    /// Queues (vhost-user) or whether several connections see one disk (NBD: 1 or more).
    pub queues: u32,
    /// Longest list of data segments in one request (vhost-user), 0 if not said.
    pub segments_max: u32,
    /// The virtio feature bits or NBD transmission flags as they came, in hexadecimal.
    pub features: String,
}

/// How often the two sides had to wake each other.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Notifications sent to the server (eventfd writes; for NBD, writes to the socket).
    pub kicks: u64,
    /// Times the driver slept and was woken.
    pub wakes: u64,
}

/// What is wrong with data that was read.
#[derive(Debug, Error)]
pub enum WrongData {
    /// It is not that of the file to compare with, from this byte of the disk on.
    #[error("byte {0} is not that of the file")]
    NotOfTheFile(u64),
    /// It breaks what the journal promises.
    #[error("{0}")]
    Broken(#[from] BrokenPromise),
}

/// Why a run cannot go on.
#[derive(Debug, Error)]
pub enum Fault {
    /// The server closed the connection or died.
    #[error("the server is gone: {0}")]
    Gone(String),
    /// Nothing came back within [`PATIENCE`].
    #[error("the server did not answer within {} s", PATIENCE.as_secs())]
    Silent,
    /// The server broke the protocol.
    #[error("the server broke the protocol: {0}")]
    Protocol(String),
    /// The data read is not what it must be.
    #[error("wrong data: {0}")]
    WrongData(#[from] WrongData),
    /// Something on the driver's own side failed.
    #[error("{0}")]
    Own(#[from] anyhow::Error),
}

impl From<std::io::Error> for Fault {
    fn from(e: std::io::Error) -> Self {
        Fault::Own(e.into())
    }
}

/// A disk behind a socket, with a buffer per tag.
pub trait Target {
    /// What the server says about the disk.
    fn geometry(&self) -> &Geometry;

    /// Puts bytes at the start of the tag's buffer, for a write.
    fn fill(&mut self, tag: usize, bytes: &[u8]);

    /// Takes bytes from the start of the tag's buffer, after a read.
    fn fetch(&self, tag: usize, into: &mut [u8]);

    /// Queues an operation; nothing need happen before `send`.
    fn submit(&mut self, operation: &Operation) -> Result<(), Fault>;

    /// Lets the server see what was submitted.
    fn send(&mut self) -> Result<(), Fault>;

    /// Waits for at least one completion and appends all there are to `done`.
    fn reap(&mut self, done: &mut Vec<Done>) -> Result<(), Fault>;

    /// How often the sides woke each other so far.
    fn counters(&self) -> Counters;

    /// Ends the connection as the protocol says it should be ended.
    fn close(self: Box<Self>) -> Result<(), Fault>;
}
