//! What the API says of the SSD store: its files and devices, what it holds, what was written and why.
//!
//! Owns the shapes. Never knows how the store works. Invariant: counts are since the daemon started, and only grow.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The SSD store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SsdStatus {
    /// Whether its files and devices are open and blocks may be in it.
    pub in_service: bool,
    /// Why it is not in service, or not all of it.
    pub reason: Option<String>,
    /// Why it was made anew when it was opened last; null if what it held was kept.
    pub made: Option<String>,
    /// Its files and devices, in the order of the configuration.
    pub devices: Vec<SsdDeviceStatus>,
    /// Which blocks that RAM evicts are written to it: `measured`, `second`, `all` or `none`.
    pub admit: String,
    /// Bytes that it has room for.
    pub capacity_bytes: u64,
    /// Bytes of blocks in it.
    pub cached_bytes: u64,
    /// Of these, bytes of blocks that are in RAM or with a guest as well: the first to go.
    pub held_bytes: u64,
    /// Of these, bytes of blocks that take no room there, since equal ones were there before.
    #[serde(default)]
    pub deduplicated_bytes: u64,
    /// Bytes of memory that its tables and the blocks take that wait to be written.
    pub memory_bytes: u64,
    /// Bytes of `store.memory` that are set aside for that, whether it is in service or not.
    #[serde(default)]
    pub memory_reserved_bytes: u64,
    /// Bytes that may be written in a day, if there is a limit.
    pub writes_per_day_bytes: Option<u64>,
    /// Bytes that may be written at once now, if there is a limit.
    pub budget_left_bytes: Option<u64>,
    /// Bytes written to the devices, by what for.
    pub written: SsdWritten,
    /// Bytes written for each byte of blocks admitted; null before any was.
    pub write_amplification: Option<f64>,
    /// Blocks found in it, and whatever became of those that were not, or were offered to it.
    pub counters: SsdCounters,
    /// The disks that use it.
    #[serde(default)]
    pub disks: Vec<SsdDiskStatus>,
}

/// What a disk has of the SSD store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SsdDiskStatus {
    /// Its full name.
    pub disk: String,
    /// What it may have: what it has beyond that goes first.
    pub share_bytes: u64,
    /// The share that it is moving to.
    pub target_bytes: u64,
    /// Bytes of its blocks there.
    pub cached_bytes: u64,
    /// Blocks found there, since it was attached.
    pub hits: u64,
    /// Blocks looked for there and not found.
    pub misses: u64,
    /// Blocks admitted.
    pub admitted: u64,
}

/// A file or device of the SSD store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SsdDeviceStatus {
    /// Its path.
    pub path: String,
    /// Whether it is a block device.
    pub is_device: bool,
    /// Bytes of it that are used.
    pub size_bytes: u64,
    /// Bytes of each worker's region.
    pub region_bytes: u64,
    /// Workers whose regions of it are in service.
    pub regions_in_service: u32,
    /// What reads and writes it: `io_uring` or `threads`.
    pub engine: String,
}

/// Bytes written to the SSD store, by what for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SsdWritten {
    /// Blocks that were admitted.
    pub admitted_bytes: u64,
    /// Blocks that were kept although the oldest segment went.
    pub cleaning_bytes: u64,
    /// Summaries of segments.
    pub summaries_bytes: u64,
    /// Tables of the disks that have blocks in it.
    pub tables_bytes: u64,
}

/// Counts of the SSD store, in blocks of 4096 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SsdCounters {
    /// Blocks found.
    pub hits: u64,
    /// Blocks asked for that were not there.
    pub misses: u64,
    /// Blocks admitted.
    pub admitted: u64,
    /// Of these, blocks that were not written, since equal ones were there.
    #[serde(default)]
    pub deduplicated: u64,
    /// Not admitted: the guest holds them itself.
    pub refused_guest_holds: u64,
    /// Not admitted by the rule (`admit`).
    pub refused_rule: u64,
    /// Not admitted: `writes_per_day` was used up.
    pub refused_budget: u64,
    /// Not admitted: no segment was free yet.
    pub refused_no_room: u64,
    /// Not admitted: too many waited to be written.
    pub refused_staging: u64,
    /// Not admitted: they were being changed, or lie too far behind.
    pub refused_range: u64,
    /// Not admitted: the device was out of service.
    pub refused_out_of_service: u64,
    /// Not admitted: their disk has no share of the store.
    pub refused_no_share: u64,
    /// Blocks that were not what was written, and came from the image instead.
    pub mismatches: u64,
    /// Under `admit = "measured"`: what became of the blocks that the rule was asked about, by how they left RAM.
    pub classes: SsdClasses,
}

/// What the rule made of blocks, by how they left RAM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SsdClasses {
    /// For the first time in a while.
    pub first: SsdClass,
    /// The same, as one of a sequential stream.
    pub first_sequential: SsdClass,
    /// After they had left it before, not long ago.
    pub again: SsdClass,
    /// The same, as one of a sequential stream.
    pub again_sequential: SsdClass,
    /// After they had been used again there.
    pub reused: SsdClass,
}

/// What the rule made of the blocks of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SsdClass {
    /// Admitted by it.
    pub admitted: u64,
    /// Not admitted.
    pub refused: u64,
}

/// The body of `PATCH /v1/ssd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SsdChangeBody {
    /// Whether it is to be in service.
    pub in_service: bool,
}
