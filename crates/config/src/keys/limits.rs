//! Bounds and defaults of what the configuration sets.
//!
//! Owns the numbers. Never reads a file. Invariant: the words of the keys agree with them (a test of `keys` holds it).

use std::time::Duration;
use undercroft_engine::locking::misses;
use undercroft_units::{KIB, MIB, Percent};

/// What the host is called among nodes: no VM and no disk can be called that.
pub const HOST: &str = "host";
/// Least memory of a store, in bytes.
pub const MEMORY_BYTES_MIN: u64 = 8 * MIB;
/// Memory of a store if none is given: a quarter of the machine's, but not more than this.
pub const MEMORY_BYTES_DEFAULT_MAX: u64 = 1024 * MIB;
/// Bytes of a unit in which the tree of shares counts: what a disk has of the store, metadata and operations under way
/// included.
pub const UNIT_BYTES: u64 = 4096;
/// Least share of a disk, in bytes: at least half of it is cache then, besides the disk's I/O under way.
pub const SHARE_BYTES_MIN: u64 = 4 * MIB;
/// Files and devices of an SSD store at most.
pub const SSD_PATHS_MAX: usize = 16;
/// Least bytes of a file of an SSD store.
pub const SSD_BYTES_MIN: u64 = 64 * MIB;
/// Bytes of a segment of an SSD store.
pub const SSD_SEGMENT_DEFAULT: u64 = 2 * MIB;
/// Bounds of that.
pub const SSD_SEGMENT_RANGE: [u64; 2] = [256 * KIB, 16 * MIB];
/// Least bytes that an SSD store may be allowed to write in a day.
pub const SSD_WRITES_PER_DAY_MIN: u64 = 1024 * MIB;
/// Weight of a disk without one.
pub const WEIGHT_DEFAULT: u32 = 100;
/// Largest weight.
pub const WEIGHT_MAX: u32 = 10_000;
/// Read-ahead of a disk without one, in bytes.
pub const READAHEAD_BYTES_DEFAULT: u32 = 512 * KIB as u32;
/// Largest read-ahead, in bytes.
pub const READAHEAD_BYTES_MAX: u32 = 4 * MIB as u32;
/// Part of what a disk may keep that may be locked.
pub const LOCK_BUDGET_DEFAULT: Percent = Percent(2500);
/// Bounds of that.
pub const LOCK_BUDGET_RANGE: [Percent; 2] = [Percent(10), Percent(9000)];
/// Blocks that the table of those that miss most shows.
pub const MISS_TABLE_DEFAULT: u16 = misses::ENTRIES as u16;
/// Most of them.
pub const MISS_TABLE_MAX: u16 = misses::ENTRIES_MAX as u16;
/// Most blocks of a victim buffer.
pub const VICTIM_BUFFER_MAX: u16 = 4096;
/// Longest file of blocks that are pinned, in bytes.
pub const PIN_LIST_BYTES_MAX: u64 = 16 * MIB;
/// Queues of a vhost-user device.
pub const QUEUES_DEFAULT: u16 = 4;
/// Most queues of a vhost-user device.
pub const QUEUES_MAX: u16 = 64;
/// Entries of a queue.
pub const QUEUE_SIZE_DEFAULT: u16 = 256;
/// Fewest entries of a queue.
pub const QUEUE_SIZE_MIN: u16 = 2;
/// Most entries of a queue: what QEMU allows.
pub const QUEUE_SIZE_MAX: u16 = 1024;
/// Bound of polling.
pub const POLL_DEFAULT: Duration = Duration::from_micros(50);
/// Largest bound of polling: past it a worker would only burn a processor.
pub const POLL_MAX: Duration = Duration::from_millis(10);
/// Most worker threads.
pub const WORKERS_MAX: usize = 256;
/// Workers at most if no number is given.
pub const WORKERS_DEFAULT_MAX: usize = 16;
/// How often the store is divided anew.
pub const SHARES_INTERVAL_DEFAULT: Duration = Duration::from_secs(5);
/// Bounds of that.
pub const SHARES_INTERVAL_RANGE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(600)];
/// Percent of a processor for copying and hashing guest memory.
pub const COPY_CPU_PERCENT_DEFAULT: u32 = 20;
/// Longest serial number that virtio-blk can carry, in bytes.
pub const SERIAL_BYTES_MAX: usize = 20;
/// The stall in a second that counts as pressure.
pub const STALL_DEFAULT: Duration = Duration::from_millis(150);
/// Bounds of that stall.
pub const STALL_RANGE: [Duration; 2] = [Duration::from_millis(1), Duration::from_secs(1)];
/// Time in which half of what is above the floor is given back.
pub const GIVE_WITHIN_DEFAULT: Duration = Duration::from_secs(2);
/// Bounds of that time.
pub const GIVE_WITHIN_RANGE: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(60)];
/// Time without pressure before the store grows.
pub const CALM_DEFAULT: Duration = Duration::from_secs(30);
/// Time in which the store grows from nothing to its ceiling.
pub const REGROW_DEFAULT: Duration = Duration::from_secs(64);
/// Bounds of both.
pub const CALM_RANGE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3600)];
/// Bounds of the pause between two scans of KSM.
pub const KSM_SLEEP_RANGE: [Duration; 2] = [Duration::from_millis(1), Duration::from_secs(60)];
/// Bounds of the time that a scan of KSM should take.
pub const KSM_SCAN_TIME_RANGE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3600)];
/// Most pages that KSM looks at before a pause.
pub const KSM_PAGES_MAX: u64 = 1_000_000;
/// Longest path of a unix socket, in bytes.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Longest name of a disk or VM, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Containers of a VM that have nothing and are in no file, whose settings by hand are kept at most.
pub const PAST_CONTAINERS_MAX: usize = 32;
/// Largest configuration file, in bytes.
pub const FILE_BYTES_MAX: u64 = 4 * MIB;
/// Memory for the data of NBD requests under way.
pub const NBD_MEMORY_DEFAULT: u64 = 256 << 20;
/// The least of it.
pub const NBD_MEMORY_MIN: u64 = 64 << 20;
/// How long an NBD client may be slow while others wait for that memory.
pub const NBD_SLOW_AFTER_DEFAULT: Duration = Duration::from_secs(10);
/// Bounds of that.
pub const NBD_SLOW_AFTER_RANGE: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(600)];
/// Connections of an NBD listener, and handshakes.
pub const NBD_CONNECTIONS_DEFAULT: u64 = 64;
/// Most of each.
pub const NBD_CONNECTIONS_MAX: u64 = 1024;
/// How long an NBD handshake may take.
pub const NBD_HANDSHAKE_DEFAULT: Duration = Duration::from_secs(10);
/// Bounds of that.
pub const NBD_HANDSHAKE_RANGE: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(60)];
/// Processor time of the scanner, in hundredths of a percent of one core.
pub const SCAN_CPU_DEFAULT: Percent = Percent(500);
/// Shortest time between two scans.
pub const SCAN_PERIOD_MIN_DEFAULT: Duration = Duration::from_secs(10);
/// Longest time between two scans.
pub const SCAN_PERIOD_MAX_DEFAULT: Duration = Duration::from_secs(600);
/// Least and most that a time between two scans may be.
pub const SCAN_PERIODS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(86_400)];
/// Memory of the scanner's index.
pub const SCAN_MEMORY_DEFAULT: u64 = 64 * MIB;
/// Least memory of the scanner's index.
pub const SCAN_MEMORY_MIN: u64 = MIB;

/// The policy of a disk without one; the reason is in the decision records of the engine.
pub const POLICY_DEFAULT: undercroft_engine::PolicyKind = undercroft_engine::PolicyKind::S3Fifo;
