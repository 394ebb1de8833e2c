//! What the API says of the ranges of disks.
//!
//! Owns the shapes. Never checks a list: `crate::ranges` does.

use crate::ranges::{DiskRanges, RangeBody, RangeList};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The ranges of a disk that belong to containers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RangesStatus {
    /// Full name of the disk.
    pub disk: String,
    /// Every container that has ranges of it.
    pub containers: Vec<ContainerRanges>,
}

/// The ranges of a disk that belong to one container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ContainerRanges {
    /// The container, without its VM.
    pub container: String,
    /// Bytes in all its ranges.
    pub bytes: u64,
    /// Blocks (4 KiB) of the cache that are its: all of which it has any byte, but for those of which another container
    /// has the first.
    pub blocks: u64,
    /// Its ranges: in order, apart from each other.
    pub ranges: Vec<RangeBody>,
}

/// The answer to a list of ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RangesTaken {
    /// Full name of the disk.
    pub disk: String,
    /// The container, without its VM.
    pub container: String,
    /// How many ranges it has now, after joining what touches.
    pub ranges: u64,
    /// Bytes in all of them.
    pub bytes: u64,
    /// How many it had before.
    pub previous_ranges: u64,
    /// Bytes in those.
    pub previous_bytes: u64,
}

impl RangesStatus {
    /// From what was accepted.
    pub fn new(disk: &str, ranges: &DiskRanges) -> Self {
        let parts = ranges.parts();
        let one = |(n, (name, list)): (usize, (&str, &[crate::ranges::ByteRange]))| ContainerRanges {
            container: name.to_string(),
            bytes: list.iter().map(|r| r.length()).sum(),
            blocks: parts.blocks_of(n),
            ranges: list.iter().map(|r| RangeBody { offset_bytes: r.offset(), length_bytes: r.length() }).collect(),
        };
        Self { disk: disk.to_string(), containers: ranges.containers().enumerate().map(one).collect() }
    }
}

impl RangesTaken {
    /// What `list` replaced in `before`.
    pub fn new(list: &RangeList, before: &DiskRanges) -> Self {
        let sum =
            |ranges: &[crate::ranges::ByteRange]| (ranges.len() as u64, ranges.iter().map(|r| r.length()).sum::<u64>());
        let had = before.containers().find(|(name, _)| *name == list.container()).map_or(&[][..], |(_, r)| r);
        let ((ranges, bytes), (previous_ranges, previous_bytes)) = (sum(list.ranges()), sum(had));
        let (disk, container) = (list.disk().to_string(), list.container().to_string());
        Self { disk, container, ranges, bytes, previous_ranges, previous_bytes }
    }
}
