//! Static probes at the stages of a request, for perf, bpftrace and gdb: `docs/probes.md` says what each tells.
//!
//! Owns the names and arguments of the probes. Never decides when one fires: the caller does. Invariant: a probe that
//! nobody listens to is one `nop`, with its arguments in registers; an argument that costs time to find out is computed
//! only while somebody listens.

use probe::{probe, probe_lazy};

/// A request was put to the core. `request` is its port (upper half) and the port's tag for it; `kind` is [`kind`]'s;
/// `offset` and `len` are bytes of the disk.
#[inline(always)]
pub fn request(disk: u32, request: u64, kind: u8, offset: u64, len: u64) {
    probe!(undercroft, request, disk, request, kind, offset, len);
}

/// A read is answered from RAM alone.
#[inline(always)]
pub fn hit(request: u64) {
    probe!(undercroft, hit, request);
}

/// A read waits for the disk.
#[inline(always)]
pub fn miss(request: u64) {
    probe!(undercroft, miss, request);
}

/// How the blocks of a read were found that was not answered at once: in RAM, being read already, on the disk alone.
#[inline(always)]
pub fn found(request: u64, hits: u32, joined: u32, missed: u32) {
    probe!(undercroft, found, request, hits, joined, missed);
}

/// An operation was handed to the back end of a disk.
#[inline(always)]
pub fn submit(disk: u32, operation: u64, kind: u8, offset: u64, len: u64) {
    probe!(undercroft, submit, disk, operation, kind, offset, len);
}

/// An operation came back: `ok` is 1 if all of it was done, else 0.
#[inline(always)]
pub fn done(disk: u32, operation: u64, ok: bool) {
    probe!(undercroft, done, disk, operation, ok);
}

/// A request was answered: `ok` is 1, or 0 if with an error.
#[inline(always)]
pub fn reply(request: u64, ok: bool) {
    probe!(undercroft, reply, request, ok);
}

/// What a disk has evicted so far, in blocks: after a request that was not answered at once. `evicted` is asked only
/// while somebody listens.
#[inline(always)]
pub fn evict(disk: u32, evicted: impl FnOnce() -> u64) {
    probe_lazy!(undercroft, evict, disk, evicted());
}

/// A page of guest memory is about to become what is cached of a block.
#[inline(always)]
pub fn capture(disk: u32, block: u64) {
    probe!(undercroft, capture, disk, block);
}

/// Kinds of requests and operations, as probes give them.
pub mod kind {
    /// A read.
    pub const READ: u8 = 0;
    /// A write.
    pub const WRITE: u8 = 1;
    /// A flush.
    pub const FLUSH: u8 = 2;
    /// A discard.
    pub const DISCARD: u8 = 3;
    /// Zeroes written without data.
    pub const WRITE_ZEROES: u8 = 4;
    /// A question about which ranges hold data.
    pub const STATUS: u8 = 5;
}
