//! Recordings of a live daemon: one row for each request to a disk, in Parquet; docs/trace-format.md describes the
//! file.
//!
//! Owns rows, what a file says about itself, and which blocks a sample holds. Never decides what is recorded.
//! Invariant: the rows of one disk stand in the order in which the cache dealt with the requests.

mod columns;
mod read;
mod write;

pub(crate) use read::MAGIC;
pub use read::Recording;
pub use write::RecordingWriter;

pub use crate::error::WriteError;
use crate::hashed::mixed;
use serde::{Deserialize, Serialize};

/// Version of the format: higher ones may add columns and fields, and change none of these.
pub const VERSION: u32 = 1;
/// Rows of a row group at most.
pub const GROUP_ROWS: usize = 64 << 10;
/// Disks of a recording at most.
pub const DISKS_MAX: usize = 1 << 13;
/// Gaps that a file names at most; the last one stands for all after it.
pub const GAPS_MAX: usize = 256;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordedOp {
    /// Reads the range.
    Read,
    /// Writes it.
    Write,
    /// Makes everything before durable; has no range.
    Flush,
    /// The range is not needed any more.
    Discard,
    /// The range reads as zeroes.
    WriteZeroes,
}

impl RecordedOp {
    /// All of them.
    pub const ALL: [RecordedOp; 5] =
        [RecordedOp::Read, RecordedOp::Write, RecordedOp::Flush, RecordedOp::Discard, RecordedOp::WriteZeroes];

    /// Its name in the file.
    pub fn name(self) -> &'static str {
        match self {
            RecordedOp::Read => "read",
            RecordedOp::Write => "write",
            RecordedOp::Flush => "flush",
            RecordedOp::Discard => "discard",
            RecordedOp::WriteZeroes => "write_zeroes",
        }
    }
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordedFailure {
    /// The image failed.
    Io,
    /// The image is full.
    NoSpace,
    /// The request makes no sense.
    Invalid,
    /// The disk is read-only.
    ReadOnly,
    /// The disk cannot do this.
    Unsupported,
    /// The disk was being detached.
    Shutdown,
    /// No answer before the recording ended.
    Unanswered,
}

impl RecordedFailure {
    /// All of them.
    pub const ALL: [RecordedFailure; 7] = [
        RecordedFailure::Io,
        RecordedFailure::NoSpace,
        RecordedFailure::Invalid,
        RecordedFailure::ReadOnly,
        RecordedFailure::Unsupported,
        RecordedFailure::Shutdown,
        RecordedFailure::Unanswered,
    ];

    /// Its name in the file.
    pub fn name(self) -> &'static str {
        match self {
            RecordedFailure::Io => "io",
            RecordedFailure::NoSpace => "no_space",
            RecordedFailure::Invalid => "invalid",
            RecordedFailure::ReadOnly => "read_only",
            RecordedFailure::Unsupported => "unsupported",
            RecordedFailure::Shutdown => "shutdown",
            RecordedFailure::Unanswered => "unanswered",
        }
    }
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Nanoseconds from the start of the recording to the turn of the worker in which the cache dealt with it.
    pub time_ns: u64,
    /// Which disk, of [`RecordingHeader::disks`].
    pub disk: u16,
    /// Which client of the daemon: a vhost-user device or an NBD connection; numbers are used again.
    pub client: u32,
    /// What it asks for.
    pub op: RecordedOp,
    /// First byte.
    pub offset_bytes: u64,
    /// Bytes.
    pub length_bytes: u64,
    /// Reads: blocks found in RAM, those read ahead not counted.
    pub hit_blocks: u32,
    /// Reads: blocks found among those read ahead.
    pub ahead_blocks: u32,
    /// Reads: blocks that were being read for somebody else.
    pub joined_blocks: u32,
    /// Reads: blocks that had to be read.
    pub miss_blocks: u32,
    /// Nanoseconds to the reply; `None` if it came in the same turn, which reads no clock.
    pub latency_ns: Option<u64>,
    /// Why it failed, if it did.
    pub failure: Option<RecordedFailure>,
}

impl Row {
    /// The first block and how many blocks of `block_bytes` it touches.
    pub fn blocks(&self, block_bytes: u32) -> (u64, u64) {
        let unit = u64::from(block_bytes.max(1));
        let first = self.offset_bytes / unit;
        match self.length_bytes {
            0 => (first, 0),
            n => (first, self.offset_bytes.saturating_add(n - 1) / unit - first + 1),
        }
    }
}

/// What a recording knew when it began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordingHeader {
    /// [`VERSION`] of the format.
    pub format: u32,
    /// Version of the daemon.
    pub version: String,
    /// The wall clock at `time_ns` 0: nanoseconds since 1970, UTC.
    pub started_unix_ns: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Bytes of the whole store.
    pub store_bytes: u64,
    /// One of so many blocks is in the recording; see [`in_sample`].
    pub sample: u32,
    /// The disks, in the order of [`Row::disk`].
    pub disks: Vec<RecordedDisk>,
}

/// A disk of a recording, as it was when its recording began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordedDisk {
    /// Its full name.
    pub name: String,
    /// Its VM.
    pub vm: Option<String>,
    /// The container of that VM to which it belongs.
    pub container: Option<String>,
    /// When its recording began, in nanoseconds since that of the first.
    pub since_ns: u64,
    /// Its size.
    pub size_bytes: u64,
    /// What the image takes operations in, in bytes; 0 in recordings that do not say.
    #[serde(default)]
    pub align_bytes: u32,
    /// The replacement policy.
    pub policy: String,
    /// Bytes of its share of the store, metadata included.
    pub share_bytes: u64,
    /// Blocks that it may cache.
    pub capacity_blocks: u64,
    /// Blocks that were cached; 0: it was empty.
    pub cached_blocks: u64,
    /// Most that is read ahead; 0 for no read-ahead.
    pub readahead_bytes: u64,
    /// Whether a written block that was not cached becomes cached.
    pub write_allocate: bool,
    /// How it stands to the guest's own cache: `off`, or what was asked for.
    pub exclusive: String,
    /// Whether it may be served from frames of other disks.
    pub shares_content: bool,
    /// The first of the disks that keep their blocks together with this one's, by name; it may be this one. Their
    /// capacity is that of all of them.
    #[serde(default)]
    pub together_with: Option<String>,
    /// What was set of its locks.
    #[serde(default)]
    pub locks: RecordedLocks,
}

/// How blocks of a disk came to be locked, when its recording began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedLocks {
    /// The mode; empty in recordings that do not say: nothing was locked.
    pub mode: String,
    /// How much could be, in thousandths of what the disk could keep.
    pub budget_permille: u16,
    /// Whether what the guest held stayed locked.
    pub keep_held: bool,
    /// Blocks that the table of misses showed.
    pub miss_entries: u16,
    /// Blocks of the victim buffer.
    pub victim_blocks: u16,
    /// What was pinned, and what a profile named: first byte, and how many.
    pub pins: Vec<(u64, u64)>,
    /// See above.
    pub profile: Vec<(u64, u64)>,
}

/// What a recording knew when it ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trailer {
    /// When, in nanoseconds since the start.
    pub ended_ns: u64,
    /// Why: `stopped`, `duration`, `max-size`, `disk-full`, `client-gone`, `daemon-stopped`.
    pub reason: String,
    /// Rows in the file.
    pub rows: u64,
    /// Requests that are not in the file although they should be.
    pub dropped: u64,
    /// Where those were; the last one may stand for several.
    pub gaps: Vec<Gap>,
    /// The disks at the end, as in [`RecordingHeader::disks`]: a simulation can be exact only if nothing changed in
    /// between.
    pub disks: Vec<DiskEnd>,
    /// One sum for each row group, over its rows.
    pub sums: Vec<u64>,
}

/// Requests that were dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// Which worker's; the highest number there is for those of several.
    pub worker: u32,
    /// When the first one came, in nanoseconds since the start.
    pub from_ns: u64,
    /// When the last one came.
    pub to_ns: u64,
    /// How many.
    pub dropped: u64,
}

/// A disk at the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskEnd {
    /// Whether it was detached before.
    pub detached: bool,
    /// The replacement policy.
    pub policy: String,
    /// Blocks that it may cache.
    pub capacity_blocks: u64,
    /// Blocks that are cached.
    pub cached_blocks: u64,
}

/// Whether `block` is in a sample of one of `one_of` blocks. A request is recorded, whole, if any of its blocks is; who
/// reads a sample for a cache of a part of the size leaves the others out.
#[inline]
pub fn in_sample(block: u64, one_of: u32) -> bool {
    one_of <= 1 || (u128::from(mixed(block)) * u128::from(one_of)) >> 64 == 0
}

/// A sum over rows, in order: what a damaged file does not have.
fn sum_of(rows: &[Row]) -> u64 {
    let mut sum = 0u64;
    for r in rows {
        let small = u64::from(r.hit_blocks)
            ^ u64::from(r.ahead_blocks).rotate_left(16)
            ^ u64::from(r.joined_blocks).rotate_left(32)
            ^ u64::from(r.miss_blocks).rotate_left(48);
        let codes = u64::from(r.disk) | (r.op as u64) << 16 | r.failure.map_or(0, |f| f as u64 + 1) << 24;
        let row = r.time_ns.wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ r.offset_bytes.wrapping_mul(0xc2b2_ae3d_27d4_eb4f).rotate_left(7)
            ^ r.length_bytes.wrapping_mul(0x1656_67b1_9e37_79f9).rotate_left(19)
            ^ r.latency_ns.map_or(0, |n| n + 1).wrapping_mul(0x27d4_eb2f_1656_67c5).rotate_left(29)
            ^ (codes | u64::from(r.client) << 32).wrapping_mul(0x85eb_ca77_c2b2_ae63).rotate_left(37)
            ^ small.wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(47);
        sum = (sum ^ row).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(31);
    }
    sum
}
