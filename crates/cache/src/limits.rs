//! Every limit of the data path, in one place: queues, batches, scans, sizes.
//!
//! Owns numbers only. Invariant: nothing in the data path grows past a number that stands here or in a configuration.

/// Requests and completions that a worker takes from one source before it turns to the next.
pub const BATCH: usize = 64;

/// Bytes of one request at most; front ends split or refuse longer reads and writes.
pub const REQUEST_BYTES_MAX: u32 = 32 * 1024 * 1024;

/// Blocks that one I/O operation spans at most (256 KiB); longer requests become several operations.
pub const IO_BLOCKS_MAX: usize = 64;

/// Requests of one disk that are under way at most; further ones wait in their front end.
pub const REQUESTS_PER_DISK_MAX: usize = 1024;

/// Frames of one disk that I/O operations may own at a time, besides the cached ones (8 MiB).
pub const IO_FRAMES_PER_DISK: usize = 2048;

/// Candidates that a policy looks at before it gives up finding a victim that may be evicted.
pub const VICTIM_SCAN_MAX: usize = 64;

/// Bytes of metadata per 4 KiB block at most: index, policy, ghosts and the core's own.
pub const METADATA_BYTES_PER_BLOCK_MAX: usize = 64;

/// Disks of one daemon at most.
pub const DISKS_MAX: usize = 4096;
