//! What a core reports of its disks: counters, parts, frames held in common, and the relation to the guest's cache.
//!
//! Owns the form. Never computes a number. Invariant: a counter only grows; what can fall is called a gauge.

use super::options::{GroupId, LayerId};
use super::request::DiskId;
use undercroft_engine::{ExclusiveMode, ExclusiveStats, PartId, PolicyKind};

/// Sizes and counts of one part of a disk. The numbers of all parts add up to those of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartStats {
    /// Its number.
    pub part: PartId,
    /// Its policy.
    pub policy: PolicyKind,
    /// Blocks of read requests found in RAM. Part 0 includes the counts of parts that are gone, and of the time before
    /// the disk had parts.
    pub hit_blocks: u64,
    /// Blocks of read requests that were not: the disk's misses, and those that joined a read under way.
    pub miss_blocks: u64,
    /// Blocks evicted.
    pub evicted_blocks: u64,
    /// Gauge: blocks cached now.
    pub cached_blocks: u64,
    /// Gauge: the frames that the disk pays for, divided among its parts in proportion to `cached_blocks`.
    pub charged_blocks: u64,
    /// Gauge: blocks of the disk's capacity that are its share.
    pub share_blocks: u64,
    /// Gauge: blocks it may keep now: its share of those that the disk may keep.
    pub limit_blocks: u64,
}

/// Sizes of what a disk keeps its blocks in, with those that it keeps them together with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// The disks; 1 for one that keeps its blocks apart.
    pub disks: u64,
    /// Blocks cached now.
    pub cached_blocks: u64,
    /// Frames that the disks pay for.
    pub charged_blocks: u64,
    /// Blocks that they may keep.
    pub capacity_blocks: u64,
}

/// Which disks hold frames in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Shared {
    /// The disks of a trust group.
    Group(GroupId),
    /// The disks that stand on one image.
    Layer(LayerId),
}

/// What some disks of a core hold in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharingDomainReport {
    /// Why these disks: a trust group, or an image below all of them.
    pub what: Shared,
    /// The disks.
    pub disks: Vec<DiskId>,
    /// Frames that several blocks hold.
    pub shared_frames: u64,
    /// Those blocks.
    pub shared_blocks: u64,
}

/// Whether a disk's cache is exclusive of its guest's, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExclusiveState {
    /// Not asked for.
    Off,
    /// No guest whose memory can be seen, or the table of its pages is not there yet.
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
    /// Pages of the guest never hold what the disk has, so none is copied.
    Opaque {
        /// Pages that were copied to find out.
        tried: u64,
        /// Of those, pages that held their block.
        held: u64,
        /// Whether what the guest was given is still the first to go, because that saves more than an inclusive cache
        /// would. If not, the cache is inclusive, and takes no memory for a table.
        ordered: bool,
    },
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
    /// Where blocks begin, in bytes after each multiple of 4096 of the disk: as pages of the guest do.
    pub block_offset: u32,
    /// Bytes of the table of guest pages that the disk pays for, its own for the same purpose included.
    pub table_bytes: u64,
    /// Disks of the guest that share that table, this one included; 0 without a table.
    pub table_disks: u32,
    /// The counts.
    pub stats: ExclusiveStats,
}

macro_rules! stats {
    ($($(#[$what:meta])* $name:ident: $unit:ident, $metric:literal;)*) => {
        /// Counters of one disk since it was added, by their table. Every one only grows, but for the gauges at the
        /// end.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct DiskStats {
            $($(#[$what])* pub $name: u64,)*
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
    };
}
crate::disk_counters!(stats);
