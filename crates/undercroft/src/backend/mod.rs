//! Back ends: what serves I/O operations from a real disk. One file per kind.
//!
//! Owns the image. Never knows about caching. Invariant: every operation submitted comes back from `poll` exactly
//! once, with its buffer, whatever happens to the disk.

use std::os::fd::BorrowedFd;
use undercroft_cache::{Io, IoDone};

/// What a disk is like; fixed while it is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Alignment of offsets and lengths that operations need, in bytes: a power of two, 1 to 4096.
    pub align: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether `Discard` does something.
    pub can_discard: bool,
    /// Whether `WriteZeroes` is served.
    pub can_write_zeroes: bool,
}

/// A disk that serves operations asynchronously; owned and driven by one worker thread.
pub trait Backend: Send {
    /// What the disk is like.
    fn geometry(&self) -> &Geometry;

    /// Takes an operation over. Never blocks: it is queued inside if the device is busy. A failure, too, comes back
    /// through `poll`. Offsets, lengths and buffers keep to the geometry.
    fn submit(&mut self, io: Io);

    /// Hands everything submitted so far to the device: once per turn of the worker.
    fn kick(&mut self);

    /// Appends finished operations to `done`, at most `undercroft_cache::limits::BATCH`; true if there may be more.
    fn poll(&mut self, done: &mut Vec<IoDone>) -> bool;

    /// Becomes readable (level-triggered) when `poll` has something to say.
    fn wake_fd(&self) -> BorrowedFd<'_>;

    /// What it is, for `status` and the logs: `raw (io_uring, O_DIRECT)`.
    fn describe(&self) -> String;

    /// Operations submitted and not yet returned by `poll`.
    fn inflight(&self) -> usize;
}

/// Which image to open, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSpec {
    /// A path, or the URI of an NBD server: `nbd://host[:port]/export`, `nbd+unix:///export?socket=path`.
    pub location: String,
    /// The format; found out from the location and the first bytes if `None` (raw is only guessed for files without a
    /// known magic number, and said in the log).
    pub format: Option<ImageFormat>,
    /// Whether to open without the right to write.
    pub read_only: bool,
}

/// Formats of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    /// Bytes as they are: a file or a block device.
    Raw,
    /// QEMU's copy-on-write format, with its backing chain.
    Qcow2,
    /// Served by an NBD server.
    Nbd,
}
