//! What the API says of locked blocks: what is pinned of a disk, what misses most, what is known of one block.
//!
//! Owns the shapes. Never locks anything. Invariant: places are in bytes of the disk, or in blocks of 4096 bytes
//! counted from its first byte, whichever way a cache counts.

use crate::ranges::RangeBody;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Locked blocks of a disk, as `status` tells of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LockStatus {
    /// How blocks come to be locked that are not pinned: `off`, `static` or `online`.
    pub mode: String,
    /// Whether a block stays locked though the guest holds it as well.
    pub held: bool,
    /// Bytes of its blocks that are locked now.
    pub locked_bytes: u64,
    /// The same of all disks that it keeps its blocks together with, its own among them.
    pub shared_locked_bytes: u64,
    /// Bytes of its blocks that are pinned, cached or not.
    pub pinned_bytes: u64,
    /// Bytes that may be locked now, of all those disks together.
    pub budget_bytes: u64,
    /// Whether blocks that are locked are still to be looked at, after a change.
    pub settling: bool,
    /// Why what the configuration has pinned (`pins`, `lock_profile`) is not; absent if all is well.
    #[serde(default)]
    pub problem: Option<String>,
    /// Blocks that the table of those that miss most has at most; 0: there is none.
    pub miss_table: u64,
    /// Misses that it has counted.
    pub counted_misses: u64,
    /// Blocks that were evicted and are kept a moment longer.
    pub victim_buffer: VictimBufferStatus,
    /// What the rule of `online` has done; absent in other modes.
    #[serde(default)]
    pub online: Option<OnlineStatus>,
}

/// The victim buffer of a disk, or of all disks that it keeps its blocks together with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VictimBufferStatus {
    /// Blocks in it now.
    pub blocks: u64,
    /// How many there may be; 0: there is none.
    pub max_blocks: u64,
    /// How often a block was found there.
    pub hits: u64,
}

/// What the rule of `lock = "online"` has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OnlineStatus {
    /// Blocks that it wants locked now.
    pub chosen_blocks: u64,
    /// Blocks that it has chosen, ever.
    pub locks: u64,
    /// Of these, those that it has given up.
    pub unlocks: u64,
    /// How often it has given all of them up, because locks cost more misses than they saved.
    pub rests: u64,
    /// How often it has decided.
    pub epochs: u64,
}

/// What is pinned of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PinsStatus {
    /// Full name of the disk.
    pub disk: String,
    /// Bytes of the disk.
    pub size_bytes: u64,
    /// Ranges of blocks of 4096 bytes: the number of the first block, and how many there are.
    #[schema(value_type = Vec<Vec<u64>>)]
    pub ranges: Vec<(u64, u64)>,
    /// Bytes of these blocks.
    pub pinned_bytes: u64,
    /// Bytes of the disk's blocks that are locked now, pinned or not.
    pub locked_bytes: u64,
    /// Bytes that may be locked now, less what is pinned of the other disks that it keeps its blocks together with:
    /// what its pins may come to.
    pub budget_bytes: u64,
    /// It differs when something else is pinned: what `If-Match` of a change may say.
    #[serde(default)]
    pub version: u64,
    /// Blocks of the cache begin elsewhere than at multiples of 4096 bytes of the disk: each range takes one more of
    /// them than it has.
    #[serde(default)]
    pub is_displaced: bool,
    /// Who has pinned them: `file` (that of `pins` in the configuration), `hand`, or absent if nothing is pinned.
    #[serde(default)]
    pub origin: Option<String>,
    /// That file.
    #[serde(default)]
    pub file: Option<String>,
    /// Why what the configuration has pinned is not, if it is not.
    #[serde(default)]
    pub problem: Option<String>,
}

/// The answer of `PUT /v1/disks/{name}/lock-profile`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProfileTaken {
    /// Ranges of blocks that it names, after those that touch were joined.
    pub ranges: u64,
    /// Bytes of these blocks.
    pub named_bytes: u64,
    /// Bytes that may be locked now, pinned blocks included: what is past them is not locked.
    pub budget_bytes: u64,
}

/// What is known of one block of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BlockStatus {
    /// Full name of the disk.
    pub disk: String,
    /// The byte of the disk where the block begins.
    pub offset_bytes: u64,
    /// It is in RAM.
    pub cached: bool,
    /// It is not, but is being read, or was read ahead.
    pub on_its_way: bool,
    /// It is locked: never evicted while it is.
    pub locked: bool,
    /// It was evicted, and is kept a moment longer in the victim buffer.
    pub buffered: bool,
    /// It is one of those that are evicted first: the guest holds it, or it will not be wanted again.
    pub first_to_go: bool,
    /// The guest is about to evict it.
    pub on_probation: bool,
    /// The container that has this part of the disk, if it is divided by ranges.
    #[serde(default)]
    pub container: Option<String>,
    /// The replacement policy that decides about it when nothing else does.
    pub policy: String,
    /// How the disk will be used: its `hint`.
    pub hint: String,
    /// The guest has it in a page of its memory, as far as is known.
    pub guest_holds: bool,
    /// The SSD store has it.
    pub on_ssd: bool,
    /// The pinned range that it is in.
    #[serde(default)]
    pub pinned_by: Option<RangeBody>,
    /// Who has pinned that: `file` or `hand`.
    #[serde(default)]
    pub pinned_from: Option<String>,
    /// The profile of the disk names it.
    pub named_by_profile: bool,
    /// The rule of `lock = "online"` wants it locked.
    pub chosen: bool,
    /// How often it was missed, if the table of those that miss most knows it: at most.
    #[serde(default)]
    pub misses: Option<u64>,
    /// How many of these may be other blocks'.
    #[serde(default)]
    pub misses_error: Option<u64>,
    /// The disk may keep nothing at present.
    pub keeps_nothing: bool,
    /// Whether blocks stay locked that the guest holds as well.
    pub lock_held: bool,
    /// Bytes that are locked now: of its container, if the disk has containers; else of all disks that this one keeps
    /// its blocks together with.
    pub locked_bytes: u64,
    /// Bytes that may be locked of these.
    pub budget_bytes: u64,
}

/// A block that misses often.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MissedBlock {
    /// Full name of its disk.
    pub disk: String,
    /// The byte of the disk where it begins.
    pub offset_bytes: u64,
    /// How often it was missed: at most.
    pub misses: u64,
    /// How many of these may be other blocks', which were forgotten for it.
    pub error: u64,
}

/// The blocks that miss most of a disk, or of all disks of a VM, a container or the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MissesStatus {
    /// Misses that the tables have counted since the disks were attached, or `miss_table` was set; of a disk that is a
    /// container's in part, those of its blocks in the table alone.
    pub counted_misses: u64,
    /// Blocks that the largest of these tables has at most; 0: there is none.
    pub miss_table: u64,
    /// The blocks, those that missed most often for certain first.
    pub blocks: Vec<MissedBlock>,
}

impl MissesStatus {
    /// Of several tables. The result has as many blocks as the largest of them may have.
    pub fn merged(tables: impl IntoIterator<Item = MissesStatus>) -> Self {
        let mut all = Self::default();
        for table in tables {
            all.counted_misses += table.counted_misses;
            all.miss_table = all.miss_table.max(table.miss_table);
            all.blocks.extend(table.blocks);
        }
        // stable, so that what misses equally often stands in the order of the disks
        all.blocks.sort_by_key(|m| std::cmp::Reverse((m.misses.saturating_sub(m.error), m.misses)));
        all.blocks.truncate(usize::try_from(all.miss_table).unwrap_or(usize::MAX));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_merged_by_what_is_certain() {
        let table = |disk: &str, size: u64, blocks: &[(u64, u64, u64)]| MissesStatus {
            counted_misses: 10,
            miss_table: size,
            blocks: blocks
                .iter()
                .map(|&(offset_bytes, misses, error)| MissedBlock { disk: disk.into(), offset_bytes, misses, error })
                .collect(),
        };
        let merged = MissesStatus::merged([
            table("web:a", 3, &[(0, 9, 0), (4096, 100, 95), (8192, 2, 0)]),
            table("web:b", 2, &[(0, 7, 0), (4096, 5, 0)]),
            table("web:c", 0, &[]),
        ]);
        let shown: Vec<_> = merged.blocks.iter().map(|m| (m.disk.as_str(), m.offset_bytes)).collect();
        assert_eq!(shown, [("web:a", 0), ("web:b", 0), ("web:a", 4096)]);
        assert_eq!((merged.counted_misses, merged.miss_table), (30, 3));
        assert_eq!(MissesStatus::merged([]), MissesStatus::default());
    }
}
