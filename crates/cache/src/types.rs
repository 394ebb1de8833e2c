//! What goes into the core and what comes out of it: requests, I/O operations, their results.
//!
//! Owns the vocabulary shared by core, front ends and back ends. Never owns behaviour.
//! Units: offsets and lengths in bytes, times in nanoseconds of a monotonic clock.

use crate::core::AddDiskError;
use std::fmt;
use std::ops::Range;
use undercroft_engine::{ExclusiveMode, ExclusiveStats, PartId, PartsError, PolicyKind};
use undercroft_host::{FRAME_BYTES, IoBuf};

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

/// What one part of a disk has and did. The parts' numbers together are the disk's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartStats {
    /// Its number.
    pub part: PartId,
    /// Its policy.
    pub policy: PolicyKind,
    /// Blocks of read requests found in RAM. What a part that is gone did, and what the disk did before it had parts,
    /// is part 0's.
    pub hit_blocks: u64,
    /// Blocks of read requests that were not: the disk's misses, and those that joined a read under way.
    pub miss_blocks: u64,
    /// Blocks evicted.
    pub evicted_blocks: u64,
    /// Gauge: blocks cached now.
    pub cached_blocks: u64,
    /// Gauge: of the frames that the disk pays for, those in proportion to that.
    pub charged_blocks: u64,
    /// Gauge: blocks of the disk's capacity that are its share.
    pub share_blocks: u64,
    /// Gauge: blocks it may keep now: its share of those that the disk may keep.
    pub limit_blocks: u64,
}

/// Why parts of a disk, or shares for them, were refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetPartsError {
    /// Something is wrong with the lists.
    Parts(PartsError),
    /// There is no such disk, or its capacity cannot be what the shares come to.
    Disk(AddDiskError),
    /// The map of the ranges and what each part takes are more than the disk's share.
    NoRoom {
        /// Blocks that they take.
        needed_blocks: u64,
        /// Blocks of the disk's capacity.
        disk_blocks: u64,
    },
}

impl fmt::Display for SetPartsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetPartsError::Parts(why) => why.fmt(f),
            SetPartsError::Disk(why) => why.fmt(f),
            SetPartsError::NoRoom { needed_blocks, disk_blocks } => write!(
                f,
                "the ranges and parts take the memory of {needed_blocks} blocks, but the disk's share is {disk_blocks}; \
                 give the disk more, or fewer parts"
            ),
        }
    }
}

impl std::error::Error for SetPartsError {}

/// A disk of one core; dense, from 0, reused after the disk is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DiskId(pub u32);

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

/// The core's name for an I/O operation under way; unique while it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u64);

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

/// An operation for a back end. It owns its buffer until it comes back in an [`IoDone`].
#[derive(Debug)]
pub struct Io {
    /// Handed back.
    pub op: OpId,
    /// The disk.
    pub disk: DiskId,
    /// What to do.
    pub kind: IoKind,
    /// First byte; a multiple of the disk's `align` for reads and writes.
    pub offset: u64,
    /// Bytes; for reads and writes equal to `buf.len` and a multiple of the disk's `align`. May reach past the end of
    /// the last, partial block of the disk never: it is cut there.
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

/// What a disk may have lost: its server crashed, or nobody can tell that it did not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Ranges of bytes, sorted, disjoint, whose content may be what it was before the changes of them that no flush has
    /// vouched for; acknowledged or not.
    pub ranges: Vec<Range<u64>>,
    /// Whether such a change had been acknowledged: then each port's next flush fails, or its next write that must be
    /// durable.
    pub unflushed: bool,
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

/// Why a request or an operation failed. Small and `Copy`: details are logged where they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IoError {
    /// The disk failed.
    Io,
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
            IoError::NoSpace => "no space left on the disk",
            IoError::Invalid => "invalid request",
            IoError::ReadOnly => "the disk is read-only",
            IoError::Unsupported => "not supported by the disk",
            IoError::Shutdown => "the disk is shutting down",
        })
    }
}

impl std::error::Error for IoError {}

/// Something that happened, for the core to deal with.
#[derive(Debug)]
pub enum Event {
    /// A front end passes a request on.
    Request(Request),
    /// A paused request goes on. One that is not paused (any more) is let be.
    Resume(Paused),
    /// A back end has finished an operation.
    IoDone(IoDone),
    /// A back end may have lost changes. Comes before the completions of what happened after the loss; those of what
    /// happened before may follow.
    Lost {
        /// The disk.
        disk: DiskId,
        /// What.
        lost: Lost,
    },
    /// Time has passed; sent a few times a second at most while anything is open.
    Tick,
    /// The replies given so far are out: there is time for what could wait, of which as much is done as one event
    /// should copy; [`Core::wants_spare`](crate::Core::wants_spare) says whether more is left. With `copies` false, no
    /// guest memory is copied until the next one that allows it: the processor time for that is used up.
    Spare {
        /// Whether pages of guests may be copied.
        copies: bool,
    },
}

/// What the core wants done; carried out at once, inside the call.
///
/// An implementor may be a live worker or a simulation. It must not call the core back.
pub trait Effects {
    /// `bytes` are bytes `at..` of the read request's data: copy them to the requester now.
    ///
    /// Of a read that is answered `Ok`, each byte is copied out exactly once before the reply; of one that fails, at
    /// most once. Pieces are not empty, come in any order, and none reaches past the request's length. So a front end
    /// may count bytes: it has all of them when the sum is the length, and only then. After an error it must send none.
    fn copy_out(&mut self, req: ReqId, at: usize, bytes: &[u8]);
    /// Fills `bytes` with bytes `at..` of the write request's data. Called exactly once per byte of an accepted write.
    fn copy_in(&mut self, req: ReqId, at: usize, bytes: &mut [u8]);
    /// The page of guest memory that bytes `at .. at + 4096` of the request's data are, if they are one whole page of
    /// the memory that the guest has now; numbered from 0 without gaps. `None` for clients without such memory.
    fn guest_page(&mut self, _req: ReqId, _at: usize) -> Option<u32> {
        None
    }
    /// Copies a page of the memory of the disk's guest. False if there is no such page (any more): then `to` holds
    /// anything.
    fn copy_guest_page(&mut self, _disk: DiskId, _page: u32, _to: &mut [u8; FRAME_BYTES]) -> bool {
        false
    }
    /// `bytes`, copied from guest memory, are about to become what is cached of `block`, of which nothing is under way:
    /// for those who know better. False if they must not.
    fn captured(&mut self, _disk: DiskId, _block: u64, _bytes: &[u8; FRAME_BYTES]) -> bool {
        true
    }
    /// Starts an I/O operation. It comes back later, exactly once, as [`Event::IoDone`].
    fn submit(&mut self, io: Io);
    /// How the blocks of a read were found; comes before its reply. Not for a read that found all of its blocks cached
    /// and was answered in one event: then there is nothing to say, and nothing to pay for.
    fn found(&mut self, _req: ReqId, _found: Found) {}
    /// The request has been served in part, and its event has copied as much as one should
    /// ([`CoreOptions::step_bytes`](crate::CoreOptions::step_bytes)): it goes on with [`Event::Resume`], which whoever
    /// implements this owes it exactly once for each call.
    fn paused(&mut self, req: ReqId, _paused: Paused) {
        panic!("{req:?} was paused by a core whose driver resumes nothing: its `step_bytes` must be u64::MAX");
    }
    /// The answer to a [`Op::Status`] request; comes before its reply.
    fn extents(&mut self, req: ReqId, extents: &[Extent]);
    /// The request is finished; exactly once for each request.
    fn reply(&mut self, req: ReqId, result: Result<(), IoError>);
}

/// How the blocks of one read were found; the counts that [`DiskStats`] sums up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// In RAM, those read ahead not counted.
    pub hits: u32,
    /// Among those read ahead.
    pub ahead: u32,
    /// Being read for somebody else.
    pub joined: u32,
    /// Nowhere but on the disk.
    pub missed: u32,
}

/// A trust group: disks that may hold equal content in one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u32);

/// One state of an image that nobody writes: equal for two disks only if they have the same bytes below them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayerId(pub u64);

/// What a disk stands on: an image that nobody writes, below what the disk has of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// The image.
    pub layer: LayerId,
    /// Bytes of it; what the disk reads at an offset below, and has not of its own, is what the image has there.
    pub size_bytes: u64,
    /// Unit in which `own` counts: a multiple of 4096, a power of two.
    pub cluster_bytes: u32,
    /// Bit per cluster of the disk, lowest first: the disk has it of its own, or it is not known. Clusters past the end
    /// count as own. Changes that go through the core need not be told.
    pub own: Vec<u64>,
}

/// Who shares frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Shared {
    /// The disks of a trust group.
    Group(GroupId),
    /// The disks that stand on one image.
    Layer(LayerId),
}

/// What is shared among some disks of a core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharingDomainReport {
    /// By whom.
    pub what: Shared,
    /// The disks.
    pub disks: Vec<DiskId>,
    /// Frames that several blocks hold.
    pub shared_frames: u64,
    /// Those blocks.
    pub shared_blocks: u64,
}

/// How a disk is set up in a core.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// Size in bytes; any value, the last block may be partial.
    pub size_bytes: u64,
    /// Alignment of offset and length that the back end needs, in bytes: a power of two from 1 to 4096. If the size is
    /// not a multiple of it, the rest cannot be reached and front ends must not offer it.
    pub align: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether the back end can discard; if not, a discard succeeds and does nothing (it is a hint).
    pub can_discard: bool,
    /// Whether the back end can write zeroes itself; if not, the core writes them.
    pub can_write_zeroes: bool,
    /// The replacement policy.
    pub policy: PolicyKind,
    /// Blocks of 4 KiB that the disk may keep.
    pub capacity_blocks: u32,
    /// Read-ahead for proven sequential streams: bytes ahead at most; 0 turns it off.
    pub readahead_bytes: u32,
    /// Whether a written block that was not cached becomes cached.
    pub write_allocate: bool,
    /// Whether the cache is kept exclusive of the guest's, once [`Core::set_guest`](crate::Core::set_guest) has said
    /// that there is one.
    pub exclusive: ExclusiveMode,
    /// The disks among which equal content is held once, of those of the same core; `None` for not even within this
    /// disk. Nothing without [`CoreOptions::contents`](crate::CoreOptions::contents).
    pub share: Option<GroupId>,
}

/// How a disk's cache stands to its guest's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExclusiveState {
    /// Not asked for.
    Off,
    /// No guest whose memory can be seen.
    NoGuest,
    /// The table of the guest's pages would take more of the disk's share than is sensible.
    NoMemory {
        /// Bytes that the table takes.
        needed_bytes: u64,
        /// Bytes that the share allows for it.
        allowed_bytes: u64,
    },
    /// Exclusive.
    On {
        /// Whether pages are copied at reuse.
        capture: bool,
        /// Whether pages are copied early.
        delay: bool,
    },
    /// Inclusive for the time being: that saves more with this guest and load.
    Inclusive,
}

/// What is known of a disk's guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExclusiveReport {
    /// What was asked for.
    pub mode: ExclusiveMode,
    /// How it stands.
    pub state: ExclusiveState,
    /// Blocks cached that the guest does not hold, that it is about to evict, that it holds.
    pub tiers: [u32; 3],
    /// Bytes of the table of guest pages.
    pub table_bytes: u64,
    /// The counts.
    pub stats: ExclusiveStats,
}

/// Counters of one disk since it was added. Every one only grows, but for the gauges at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Read requests finished.
    pub reads: u64,
    /// Write requests finished.
    pub writes: u64,
    /// Flush requests finished.
    pub flushes: u64,
    /// Discard requests finished.
    pub discards: u64,
    /// Write-zeroes requests finished.
    pub write_zeroes: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Bytes that read requests were given.
    pub read_bytes: u64,
    /// Bytes that write requests stored.
    pub write_bytes: u64,
    /// Blocks of read requests found in RAM.
    pub hit_blocks: u64,
    /// Blocks of read requests that had to be read from the disk.
    pub miss_blocks: u64,
    /// Blocks of read requests that joined a read already under way (counted neither as hit nor as miss).
    pub joined_blocks: u64,
    /// Blocks of read requests found among those read ahead (counted as hits too).
    pub readahead_hit_blocks: u64,
    /// Blocks read ahead that were dropped unused.
    pub readahead_wasted_blocks: u64,
    /// Blocks evicted.
    pub evicted_blocks: u64,
    /// Blocks that the policy or a full cache refused.
    pub bypassed_blocks: u64,
    /// Read operations sent to the back end.
    pub backend_reads: u64,
    /// Write operations sent to the back end.
    pub backend_writes: u64,
    /// Bytes read from the back end, read-ahead included.
    pub backend_read_bytes: u64,
    /// Bytes written to the back end.
    pub backend_write_bytes: u64,
    /// Operations that the back end failed.
    pub backend_errors: u64,
    /// Fills that were not published because the block was written or dropped meanwhile.
    pub stale_fills: u64,
    /// Blocks of read requests that another disk on the same base had in RAM (counted as hits too).
    pub shared_hit_blocks: u64,
    /// Blocks whose content was hashed, to be shared.
    pub hashed_blocks: u64,
    /// Gauge: blocks cached now.
    pub cached_blocks: u64,
    /// Gauge: of those, blocks of zeroes, which take no memory.
    pub zero_blocks: u64,
    /// Gauge: of those, blocks whose frame other blocks hold too, of this disk or another.
    pub shared_blocks: u64,
    /// Gauge: frames that the disk pays for: those it alone holds, and its part of the shared ones, rounded up.
    pub charged_blocks: u64,
    /// Gauge: blocks the disk may keep.
    pub capacity_blocks: u64,
    /// Gauge: blocks the disk may keep for now; fewer than its capacity while memory is short on the host.
    pub limit_blocks: u64,
    /// Gauge: requests under way.
    pub inflight_requests: u64,
    /// Gauge: operations under way.
    pub inflight_ops: u64,
}
