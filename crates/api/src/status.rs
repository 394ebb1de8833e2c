//! What the daemon says about itself: the JSON of `status`, which metrics are made from too.
//!
//! Owns the words and units of the public API: a field never changes its meaning within `/v1`. Sizes in bytes, times in
//! microseconds. Invariant: `openapi.json` is made from these types and nothing else.

use crate::ksm::{Numbers, Settings};
use crate::locks::LockStatus;
use crate::ssd::SsdStatus;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Everything about the running daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Seconds since the daemon started.
    pub uptime_seconds: f64,
    /// The configuration file; absent for `serve --image`.
    pub config_file: Option<String>,
    /// Its directory for sockets and files that are given no other place.
    #[serde(default)]
    pub runtime_dir: String,
    /// Worker threads.
    pub workers: u32,
    /// Seconds of processor time that copying and hashing contents has taken.
    pub copying_seconds: f64,
    /// Where NBD clients connect: `unix:PATH` or `tcp:ADDRESS`.
    pub nbd: Vec<String>,
    /// The same listeners, with what can be reached there.
    #[serde(default)]
    pub nbd_listeners: Vec<NbdListenerStatus>,
    /// Memory for the data of NBD requests.
    #[serde(default)]
    pub nbd_data: NbdDataStatus,
    /// The RAM store.
    pub store: StoreStatus,
    /// The SSD store; absent if none is configured.
    #[serde(default)]
    pub ssd: Option<SsdStatus>,
    /// How the store follows shortage of memory on the machine.
    pub pressure: PressureStatus,
    /// Merging of equal pages of guests' RAM by the kernel.
    pub ksm: KsmStatus,
    /// The scan of guests' memory; absent if it is off.
    #[serde(default)]
    pub scan: Option<ScanStatus>,
    /// Lines that were not logged.
    #[serde(default)]
    pub log: LogStatus,
    /// Groups of disks that hold contents in common.
    pub sharing: Vec<SharingDomainStatus>,
    /// The disks, in the order of the configuration.
    pub disks: Vec<DiskStatus>,
}

/// Where NBD clients connect, and for what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NbdListenerStatus {
    /// `unix:PATH` or `tcp:ADDRESS`.
    pub address: String,
    /// `off`, `offer` (clients may encrypt) or `require` (they must).
    pub tls: String,
    /// Whether clients that encrypt have to show a certificate.
    pub client_certificates: bool,
    /// Full names of the disks that are exported there.
    pub disks: Vec<String>,
}

/// Memory for the data of NBD requests under way, of all connections together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NbdDataStatus {
    /// Bytes in use, but for the reserve of each connection.
    pub used_bytes: u64,
    /// Bytes that there may be.
    pub max_bytes: u64,
    /// Connections closed because they were slow while others waited for it.
    pub slow_closed: u64,
}

/// Lines that were not logged since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogStatus {
    /// Those that were too many of one kind, or about one peer.
    pub limited_lines: u64,
    /// Those that found the log full, since nobody read it.
    pub unread_lines: u64,
}

/// What some disks hold in common. Each of them is charged for it in proportion to its blocks in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SharingDomainStatus {
    /// `trust` for a trust group, `base` for disks on one image that nobody writes.
    pub kind: String,
    /// Name of the trust group: as given, or `vm:NAME`, or `disk:NAME`. Absent for a base.
    pub name: Option<String>,
    /// Full names of the disks.
    pub disks: Vec<String>,
    /// Bytes of blocks that share their memory with others.
    pub shared_bytes: u64,
    /// Bytes of memory that those take.
    pub held_bytes: u64,
}

/// What a disk holds in common with others, and what it is charged for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SharingStatus {
    /// The trust group: as given, or `vm:NAME`, or `disk:NAME`; absent if nothing is shared.
    pub trust: Option<String>,
    /// Whether blocks of its base image are held once for all disks on it.
    pub base: bool,
    /// Bytes of cached blocks of zeroes, which take no memory.
    pub zero_bytes: u64,
    /// Bytes of cached blocks that share their memory with others, of this disk or another.
    pub shared_bytes: u64,
    /// Bytes of memory that the disk is charged for: what it alone holds, and its part of what is shared.
    pub charged_bytes: u64,
}

/// The scan of guests' memory. Counts are since the daemon started, over all passes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScanStatus {
    /// Passes over all guests that have ended.
    pub passes: u64,
    /// Guests in the last pass.
    pub guests: u64,
    /// Seconds between passes, as of now.
    pub period_seconds: f64,
    /// Seconds that the last pass took.
    pub pass_seconds: f64,
    /// Processor time used, in seconds.
    pub cpu_seconds: f64,
    /// Processor time that may be used, in percent of one core.
    pub cpu_limit_percent: f64,
    /// Pages read.
    pub read_pages: u64,
    /// Pages that have no memory, and were left so.
    pub hole_pages: u64,
    /// Pages swapped out, and left so.
    pub swapped_pages: u64,
    /// Pages that could not be read.
    pub unreadable_pages: u64,
    /// Pages of zeroes among those read.
    pub zero_pages: u64,
    /// Pages with the content that they had in the pass before.
    pub unchanged_pages: u64,
    /// Pages equal to one met before in the same pass.
    pub equal_pages: u64,
    /// Of those, found by looking at what follows the last match.
    pub lookahead_hits: u64,
    /// Times that this look found nothing.
    pub lookahead_misses: u64,
    /// Contents that the index had no room for.
    pub unindexed_pages: u64,
    /// Pages not read because the kernel knows that they have not changed (`track_writes`).
    #[serde(default)]
    pub unread_pages: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Cached blocks found in guests, counted in each pass.
    pub found_blocks: u64,
    /// Of those, blocks that became the first to go.
    pub cooled_blocks: u64,
    /// What could not be scanned in the last pass, in sentences.
    pub problems: Vec<String>,
}

/// The RAM store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoreStatus {
    /// Hard ceiling for data and metadata.
    pub memory_bytes: u64,
    /// How much of it is never given back when the machine is short of memory.
    pub floor_bytes: u64,
    /// What it may hold at most: the ceiling, or what was set by hand below it.
    pub limit_bytes: u64,
    /// What it may hold now: less than the limit while the machine is, or was, short of memory.
    pub allowed_bytes: u64,
    /// Bytes of memory that cached data takes, what several blocks share counted once.
    pub data_bytes: u64,
    /// Bytes of cached data that take no memory of their own: zeroes, and contents held once for several blocks.
    pub saved_bytes: u64,
    /// Bytes of metadata: indexes, policies, ghosts, and what the SSD store has in memory.
    pub metadata_bytes: u64,
    /// Bytes that I/O operations under way own.
    pub io_bytes: u64,
}

/// How the store follows shortage of memory on the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PressureStatus {
    /// Whether the machine is watched.
    pub watching: bool,
    /// Where shortage is seen: which of the kernel's sources are in use.
    pub source: String,
    /// Whether the store is growing, shrinking or neither.
    pub direction: PressureDirection,
    /// By how many bytes it may grow until the machine's memory is looked at again, a quarter of a second later; null
    /// if by all that it may hold.
    pub room_bytes: Option<u64>,
    /// Shared memory charged to the control group, in bytes: pages of guests that the daemon touched first, but for a
    /// little. Null where no group limits it.
    pub guests_bytes: Option<u64>,
    /// How often memory was given back.
    pub given_count: u64,
    /// How many bytes went back, together.
    pub given_bytes: u64,
    /// Why memory was last given back.
    pub last_cause: Option<String>,
    /// How many seconds ago that was.
    pub last_seconds_ago: Option<u64>,
    /// Stalls while the machine as a whole reclaimed nothing, or had a quarter of its memory available: somebody
    /// else's, at the limit of his control group. Also reclaim in our control group that left enough of it free: of
    /// page cache.
    pub ignored_stalls: u64,
}

/// Whether the store is growing, shrinking or neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PressureDirection {
    /// It may hold all that it is to hold at most.
    #[default]
    Full,
    /// It gives memory back.
    Giving,
    /// It keeps what it has, until there was no shortage for long enough.
    Waiting,
    /// It grows again.
    Growing,
}

/// Merging of equal pages of guests' RAM by the kernel (KSM), on the whole machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KsmStatus {
    /// Whether this kernel has it.
    pub available: bool,
    /// Whether this daemon has set it up, and will put back what it found.
    pub managed: bool,
    /// Settings that were asked for and could not be made, with the reason.
    pub problems: Vec<String>,
    /// The settings of the kernel.
    pub settings: Settings,
    /// What merging has saved so far.
    pub numbers: Numbers,
}

/// One disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiskStatus {
    /// Full name: `VM:DISK`, or the bare name.
    pub name: String,
    /// The VM it belongs to.
    pub vm: Option<String>,
    /// Whether it is being served.
    pub state: DiskState,
    /// Why it is not serving, if it is not.
    pub reason: Option<String>,
    /// Path or URI of the image.
    pub image: String,
    /// `raw`, `qcow2` or `nbd`.
    pub format: String,
    /// What serves it: `raw (io_uring, O_DIRECT)`.
    pub backend: String,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Size of the disk in bytes.
    pub size_bytes: u64,
    /// The vhost-user socket.
    pub socket: Option<String>,
    /// Whether NBD clients see it, under its full name.
    pub nbd: bool,
    /// The file of the daemon's host that it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The link on the daemon's host to the block device that it is; `frontends` has the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Who is connected.
    pub frontends: Vec<FrontendStatus>,
    /// Its part of the store.
    pub cache: CacheStatus,
    /// Whether its cache is exclusive of the guest's.
    pub exclusive: ExclusiveStatus,
    /// Its blocks that are locked, and what misses.
    #[serde(default)]
    pub locks: LockStatus,
    /// What it holds in common with others.
    pub sharing: SharingStatus,
    /// Counts since it was attached.
    pub counters: DiskCounters,
    /// How long requests took.
    pub latency: DiskLatency,
    /// Operations that the image has not answered for more than five seconds.
    pub stalled_ops: u64,
    /// Requests under way.
    pub inflight_requests: u64,
    /// Operations under way.
    pub inflight_ops: u64,
    /// How long a worker polls for this disk at most before it sleeps; 0 is off.
    pub poll_us: f64,
    /// The worker that owns it.
    pub worker: u32,
    /// Queues of the vhost-user device.
    pub queues: u16,
    /// Entries of each of its queues.
    pub queue_size: u16,
}

/// Whether a disk's cache is exclusive of its guest's, and what was done for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExclusiveStatus {
    /// What was asked for: `auto`, `off`, `capture`, `delayed`.
    pub mode: String,
    /// What is done: `off`, `capture`, `delayed`, `capture and delayed`, `learning`, `opaque` (pages of the guest never
    /// hold what the disk has: none is copied, and what the guest was given goes first), `inclusive`, `no guest`,
    /// `no memory`.
    pub state: String,
    /// Why, in a sentence, where it is not what was asked for.
    pub reason: Option<String>,
    /// Blocks cached that the guest does not hold, as far as is known.
    pub hot_blocks: u64,
    /// Blocks cached that the guest is about to evict.
    pub probation_blocks: u64,
    /// Blocks cached that the guest holds as well.
    pub cold_blocks: u64,
    /// Pages of the guest's memory.
    pub guest_pages: u64,
    /// Pages of it that hold a known block of this disk.
    pub guest_pages_held: u64,
    /// Pages of it that hold a known block of any of the disks that share the table.
    pub guest_pages_held_by_all: u64,
    /// Where blocks begin, in bytes after each multiple of 4096 of the disk: not 0 where pages of the guest begin
    /// elsewhere, as with file systems of 1 KiB blocks.
    pub block_offset: u64,
    /// Bytes of the table of guest pages that are taken from the disk's share: its part of the table, and what it needs
    /// for itself.
    pub table_bytes: u64,
    /// Disks that share the table, this one included: those of the guest on the same worker. 0 without a table.
    pub table_disks: u64,
    /// Evictions of the guest, inferred from reused pages.
    pub evictions: u64,
    /// Evicted blocks that were cached already.
    pub evictions_cached: u64,
    /// Pages copied when they were reused.
    pub captures_tried: u64,
    /// Of those, pages that still held the block.
    pub captures: u64,
    /// Of those, pages that held zeroes only.
    pub captures_zeroed: u64,
    /// Pages compared with the image before they were kept (`daemon.check_captures`).
    pub captures_compared: u64,
    /// Of those, pages that differed and were not kept: a fault of this program.
    pub captures_wrong: u64,
    /// Pages copied before their eviction.
    pub early_tried: u64,
    /// Of those, pages that held the block.
    pub early: u64,
    /// Early copies that had to go before the eviction was seen.
    pub early_lapsed: u64,
    /// Pages copied because the guest had begun afresh, as after a reboot.
    pub restart_tried: u64,
    /// Of those, pages that still held the block.
    pub restart_copied: u64,
    /// Page transfers after which a page filled by a read is copied.
    pub age_read: u64,
    /// The same for pages filled by a write.
    pub age_write: u64,
}

/// The state of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DiskState {
    /// It serves.
    Serving,
    /// Its image or its worker does not answer, or there is no memory for what it reads; requests wait.
    Stalled,
    /// Its image does not open; it is tried again, and until then the disk has no socket and no export.
    Waiting,
    /// Its image is gone or damaged; all requests fail, or those that would change it: see the reason.
    Failed,
    /// Its guest does not run here, so its image is not open: it is opened when the guest starts.
    Dormant,
    /// It finishes what is under way and goes.
    Detaching,
}

/// A connected front end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FrontendStatus {
    /// The protocol.
    pub kind: FrontendKind,
    /// What is known of the peer: `vhost-user, 4 queues`, `127.0.0.1:51342`.
    pub peer: String,
}

/// Protocols of front ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FrontendKind {
    /// vhost-user-blk.
    VhostUser,
    /// Network block device.
    Nbd,
    /// A file of the daemon's host.
    Fuse,
    /// A block device of the daemon's host.
    Ublk,
}

/// A disk's part of the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CacheStatus {
    /// The replacement policy.
    pub policy: String,
    /// Its share of the store, metadata included.
    pub share_bytes: u64,
    /// Data it may keep, in bytes; with the disks of `pool`, what they may keep together.
    pub capacity_bytes: u64,
    /// Data it keeps now, in bytes; can be more than the capacity where it is shared.
    pub cached_bytes: u64,
    /// Hits of hits and misses, 0 to 1; blocks that joined a read under way are neither, blocks that read-ahead had
    /// brought are hits (the counters tell them apart). Absent before the first read.
    pub hit_ratio: Option<f64>,
    /// Full names of the disks that it keeps its blocks together with, its own among them: all of them have one
    /// capacity and one order of eviction. Empty if it keeps them apart.
    #[serde(default)]
    pub pool: Vec<String>,
}

macro_rules! counters {
    ($($(#[$what:meta])* $name:ident: $unit:ident, $metric:literal;)*) => {
        /// Counts of a disk since it was attached. Each of them only grows.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
        pub struct DiskCounters {
            $($(#[$what])* pub $name: u64,)*
        }
    };
}
undercroft_cache::disk_counters!(counters);

/// How long requests of a disk took, from when the daemon saw them to their reply.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiskLatency {
    /// Reads served from RAM alone.
    pub read_hit: LatencySnapshot,
    /// Reads that waited for the image.
    pub read_miss: LatencySnapshot,
    /// Writes.
    pub write: LatencySnapshot,
}

/// A histogram of latencies with the usual numbers worked out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LatencySnapshot {
    /// How many.
    pub count: u64,
    /// Sum of all.
    pub sum_us: f64,
    /// Half stay at or below; at most 12.5 % too high, as all quantiles here.
    pub p50_us: f64,
    /// 99 % stay at or below.
    pub p99_us: f64,
    /// 99.9 % stay at or below.
    pub p999_us: f64,
    /// The longest, exactly.
    pub max_us: f64,
    /// The buckets that are not empty, eight to a power of two.
    pub buckets: Vec<LatencyBucket>,
}

/// A bucket of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LatencyBucket {
    /// Upper end in nanoseconds, inclusive; absent for the last bucket of all, which has none (from 68.7 s on).
    pub le_ns: Option<u64>,
    /// How many fell into it.
    pub count: u64,
}

/// What a reload did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReloadReport {
    /// Disks attached.
    pub added: Vec<String>,
    /// Disks detached.
    pub removed: Vec<String>,
    /// What changed live, each key with what it was: `disk "web:root": poll: 50us -> 0us`.
    pub changed: Vec<String>,
    /// What differs from the running daemon but needs a restart: `daemon.workers: 2 -> 4`.
    pub needs_restart: Vec<String>,
    /// What was tried and failed, by disk.
    pub failed: Vec<String>,
}

/// The program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VersionInfo {
    /// Version of the program.
    pub version: String,
    /// Version of the API.
    pub api: String,
}
