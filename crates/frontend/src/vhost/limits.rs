//! Every limit of the vhost-user-blk device, in one place.
//!
//! Owns numbers only. Invariant: nothing that a guest or a front-end process sends makes the device hold or do more
//! than a number that stands here.

/// Queues that a device may offer at most. QEMU asks for one per virtual processor.
pub const QUEUES_MAX: u16 = 64;

/// Entries of one queue at most: a power of two, as the split ring needs.
pub const QUEUE_SIZE_MAX: u16 = 1024;

/// Data segments of one request, as told to guests (`seg_max`): what fits QEMU's default queue of 128 entries with a
/// header and a status beside it.
pub const SEG_MAX: u32 = 126;

/// Bytes of one data segment, as told to guests (`size_max`): `SEG_MAX` of them stay under the cache's largest request.
pub const SEGMENT_BYTES_MAX: u32 = 256 * 1024;

/// Pieces of guest memory that one request may consist of; twice what guests are told, since a descriptor may straddle
/// memory regions. A longer chain is answered with an I/O error.
pub const SPANS_MAX: usize = 256;

/// Memory regions of one guest at most: what other vhost-user devices allow.
pub const REGIONS_MAX: usize = 509;

/// Mappings of one device at most: the regions of its guest twice, since new ones are mapped while requests under way
/// still use the old ones, records of requests under way and logs of dirty memory.
pub const MAPPINGS_MAX: usize = 2 * REGIONS_MAX + 8;

/// Bytes that the file with a record of requests under way may have beyond it: whoever hands over more has us keep
/// memory that nobody can use.
pub const INFLIGHT_SLACK_MAX: u64 = 2 * 1024 * 1024;

/// Bytes that the file with a log of dirty memory may have beyond what the guest's memory needs: a front end makes the
/// log larger before it adds memory, and 64 MiB are enough for 2 TiB of it.
pub const LOG_SLACK_MAX: u64 = 64 * 1024 * 1024;

/// Ranges of one discard or write-zeroes request at most.
pub const RANGES_MAX: usize = 16;

/// Sectors of 512 bytes in one range of a discard or write-zeroes request at most (2 GiB).
pub const RANGE_SECTORS_MAX: u32 = 4 * 1024 * 1024;

/// The same where the cache has to write the zeroes itself (32 MiB).
pub const WRITTEN_ZEROES_SECTORS_MAX: u32 = 64 * 1024;

/// Bytes of config space that a front end may ask for; those after the block device's fields read as zero.
pub const CONFIG_BYTES_MAX: usize = 256;

/// Descriptors that one message may bring at most; further ones are closed.
pub const DESCRIPTORS_MAX: usize = vhost::vhost_user::message::MAX_ATTACHED_FD_ENTRIES;

/// Bytes of one message at most, its head of 12 bytes included. One that says it is longer ends the session.
pub const MESSAGE_BYTES_MAX: usize = 12 + vhost::vhost_user::message::MAX_MSG_SIZE;

/// Threads that handle messages at most, for all disks together. A worker that does not answer keeps one of them.
pub const HANDLERS_MAX: usize = 16;

/// Newcomers that are turned away in one go; the others a moment later, after whatever else has happened.
pub const TURNED_AWAY_MAX: usize = 32;

const _: () = assert!(SEG_MAX as u64 * SEGMENT_BYTES_MAX as u64 <= undercroft_cache::limits::REQUEST_BYTES_MAX as u64);
const _: () = assert!(QUEUE_SIZE_MAX.is_power_of_two());
const _: () = assert!(SEG_MAX as usize * 2 <= SPANS_MAX);
