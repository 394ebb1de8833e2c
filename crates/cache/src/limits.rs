//! Every limit of the data path, in one place: queues, batches, scans, sizes.
//!
//! Owns numbers only. Invariant: nothing in the data path grows past a number that stands here or in a configuration.

/// Requests and completions that a worker takes from one source before it turns to the next.
pub const BATCH: usize = 64;

/// Bytes of hits that a worker has one event copy: what is left of a longer request goes on when others have had
/// theirs.
pub const STEP_BYTES: u64 = 64 * 1024;

/// Bytes of one request at most; front ends split or refuse longer reads and writes.
pub const REQUEST_BYTES_MAX: u32 = 32 * 1024 * 1024;

/// Blocks that one I/O operation spans at most (256 KiB); longer requests become several operations.
pub const IO_BLOCKS_MAX: usize = 64;

/// Requests of one disk that are under way at most; further ones wait in their front end.
pub const REQUESTS_PER_DISK_MAX: usize = 1024;

/// Frames of one disk that I/O operations may own at a time, besides the cached ones (8 MiB); what of them is more than
/// guaranteed is lent from the pool of the disk's core.
pub const IO_FRAMES_PER_DISK: usize = 2048;

/// Frames that each disk is guaranteed for requests, and as many again for read-ahead: one operation of the largest
/// size each (256 KiB).
pub const IO_FRAMES_GUARANTEED: usize = IO_BLOCKS_MAX;

/// What of these a disk has at least that has them with the others of its pool: operations for 1 MiB under way...
pub const IO_FRAMES_LEAST: usize = 4 * IO_BLOCKS_MAX;

/// ... and 64 KiB for requests, and as much for read-ahead, whatever is lent.
pub const IO_FRAMES_GUARANTEED_LEAST: usize = READAHEAD_BLOCKS_MIN as usize;

/// The same for operations with frames, read-ahead not counted.
pub const OPS_LEAST: usize = 128;

/// The same for requests under way.
pub const REQUESTS_LEAST: usize = 256;

/// The same for frames of contents that wait to be hashed.
pub const LATER_GUARANTEED_LEAST: usize = 4;

/// A disk brings one frame into the pool of its core for so many blocks of its capacity, at most as many as it may have
/// under way.
pub const POOL_PART: u32 = 64;

/// Bytes of metadata per 4 KiB block at most: index, policy, ghosts and the core's own.
pub const METADATA_BYTES_PER_BLOCK_MAX: usize = 64;

/// Bytes of metadata per block besides those, in a core that knows contents: hash, tier and miniature of the slot, and
/// 28 for the frame, which may have several holders.
pub const CONTENT_BYTES_PER_BLOCK_MAX: usize = SLOT_CONTENT_BYTES_MAX + 28;

/// Of those, what a slot takes, however many slots hold its frame.
pub const SLOT_CONTENT_BYTES_MAX: usize = 20;

/// Slots of a disk at most for each block of its capacity, if deduplication saves it the frames for them.
pub const SLOTS_PER_BLOCK_MAX: u32 = 8;

/// How long a read of the SSD store may take before a tick has the image read as well: many times what a device in
/// order needs, and less than a guest finds long.
pub const SSD_LATE_NS: u64 = 100_000_000;

/// Blocks of one disk that wait in their slots to be hashed at most; one more is hashed at once.
pub const UNLEARNED_MAX: usize = 1024;

/// The map of the clusters that a disk has of its own takes at most one part in so many of its share.
pub const BASE_MAP_PART: u64 = 16;

/// Disks of one daemon at most.
pub const DISKS_MAX: usize = 4096;

/// Operations with frames of one disk that are under way at most, read-ahead not counted; a request that needs one
/// more waits in the core.
pub const OPS_PER_DISK_MAX: usize = 512;

/// Operations and joined reads that one request waits for at a time; the rest of a long request follows as they end,
/// so that it cannot take all frames of its disk.
pub const REQUEST_OPS_MAX: u32 = 32;

/// Sequential streams that are watched per disk.
pub const STREAMS_PER_DISK: usize = 16;

/// Requests in a row that prove a stream sequential.
pub const STREAM_PROOF: u32 = 3;

/// Blocks that a new stream is read ahead, and what waste can shrink the window to (64 KiB).
pub const READAHEAD_BLOCKS_MIN: u32 = 16;

/// How long a block read ahead may wait unused before a tick drops it.
pub const READAHEAD_KEEP_NS: u64 = 5_000_000_000;

/// Misses after which a disk that found its guest's pages never to hold its blocks looks at some again: at least so
/// many (256 MiB), and so many for each page of the guest. Twice as many after each time that it finds it so again.
pub const ASK_AGAIN_MISSES: u64 = 1 << 16;

/// See [`ASK_AGAIN_MISSES`].
pub const ASK_AGAIN_LIVES: u64 = 4;

/// Blocks that a shrinking disk gives up in one event, a tick among them, so that no request waits long behind a change
/// of capacity; the others go when the replies are out.
pub const SHRINK_BLOCKS_PER_EVENT: u32 = 256;

/// What a slot, a home or a ghost that is moved while a disk's tables become larger or smaller counts for among the
/// bytes that an event may copy: 1,024 of them are an event's.
pub const UNIT_BYTES: u64 = 64;

/// Those that even the shortest step moves.
pub const UNITS_MIN: u64 = 16;

/// What an eviction counts for among the bytes that an event may copy: about what takes as long.
pub const EVICTION_BYTES: u64 = 1024;

/// What it counts for among those bytes to look whether a block is cached, for one that is to be dropped if it is.
pub const LOOK_BYTES: u64 = 64;

/// Bytes of a table of guest pages that even the shortest step makes. Otherwise each counts as one that is copied.
pub const TABLE_BYTES_MIN: u64 = 256;

/// Bytes of such a table that one event gives back to the kernel at most.
pub const TABLE_GIVE_BACK_BYTES: u64 = 256 * 1024;

/// So many of them count for one that is copied: the kernel takes pages back faster than it brings them.
pub const TABLE_GIVE_BACK_RATE: u64 = 16;

/// Unused frames whose memory goes back to the kernel for each tick (16 MiB).
pub const TRIM_FRAMES_PER_TICK: usize = 4096;

/// Those of one event, the tick or when the replies are out.
pub const TRIM_FRAMES_PER_EVENT: usize = 64;

/// Ranges of blocks that a disk is told to fetch at a time at most.
pub const WANTED_RANGES_MAX: usize = 4096;

/// Ports of one disk that are told of a loss each for itself; more of them share a place.
pub const PORTS_PER_DISK_MAX: usize = 256;

/// Frames that a short frame list has room for; most operations have one or a few.
pub const SHORT_LIST_FRAMES: usize = 8;

/// Empty short frame lists of one disk kept for the next operations.
pub const SHORT_LISTS_MAX: usize = 128;

/// Empty frame lists for operations of the largest size kept for the next ones.
pub const LONG_LISTS_MAX: usize = 32;

/// Contents of one disk that wait to be hashed at most; one more is hashed at once.
pub const LATER_MAX: usize = 64;

/// Those of them that each disk is guaranteed frames for; for more they are lent.
pub const LATER_GUARANTEED: usize = 16;

/// Pages of a guest copied early in one go.
pub const EARLY_COPIES_MAX: u32 = 32;

/// The table of a guest's pages takes at most one part in so many of its disk's share.
pub const GUEST_TABLE_PART: u64 = 4;

/// Blocks of one device that wait in memory to be written to it at most (1 MiB).
pub const SSD_STAGED_MAX: usize = 256;

/// Frames of one device for summaries and tables of its store.
pub const SSD_IO_FRAMES: usize = 64;

/// Bytes a day that one region may write to tell that disks are without changes, however little was admitted (4 MiB).
pub const SSD_QUIET_BYTES_PER_DAY: u64 = 4 << 20;

/// Operations of one device's store that are under way at most; reads of blocks are not its own.
pub const SSD_OPS_MAX: usize = 16;

/// Free segments of a device that are kept ready.
pub const SSD_FREE_SEGMENTS: usize = 4;

/// Blocks that one event looks for at most, to drop them because they are changed.
pub const SSD_DROP_BLOCKS: u64 = 4096;

/// Of a change that spans more (16 GiB), all that the SSD store has of the disk is dropped: to look for that many would
/// keep the disk's changes waiting.
pub const SSD_DROP_BLOCKS_MAX: u64 = 1 << 22;

/// Segments of an SSD whose summaries are in memory, for blocks that are offered to be compared with.
pub const SSD_LINK_SEGMENTS: usize = 16;

/// Blocks that wait in memory until such a summary has been read, at most: half of all that may wait there.
pub const SSD_PARKED_MAX: usize = SSD_STAGED_MAX / 2;

/// Buckets of the index that are looked at in one step for links to segments that were given up (40 KiB of memory).
pub const SSD_SWEPT_BUCKETS: usize = 512;

/// So many blocks that do not hold what was written take a device out of service.
pub const SSD_MISMATCHES_MAX: u64 = 16;

/// An operation of a store's that takes so long makes its device one that is not asked for blocks...
pub const SSD_STALL_NS: u64 = 1_000_000_000;

/// ... and so long, one that is out of service.
pub const SSD_GIVE_UP_NS: u64 = 20_000_000_000;
