//! One line of results, for tables and plots.
//!
//! Owns the form: a row is one arm on one load. Invariant: every number is measured in the run it names.

use super::load::Name;
use serde::Serialize;

/// The results of one arm on one load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LabRow {
    /// The load.
    pub load: Name,
    /// The arm.
    pub arm: String,
    /// The replacement policy of the indexes.
    pub policy: &'static str,
    /// Blocks of the cache.
    pub total_blocks: u32,
    /// Requests in all.
    pub requests: u64,
    /// Misses in all.
    pub misses: u64,
    /// By phase.
    pub phases: Vec<Part>,
    /// By tenant.
    pub tenants: Vec<Part>,
    /// Blocks that moved from one tenant's limit to another's.
    pub moved_blocks: u64,
    /// Mean part of the cache in use.
    pub utilisation: f64,
    /// Targets of the tenants at the end of each interval; empty without partitions.
    pub targets: Vec<Vec<u64>>,
    /// Misses of each interval.
    pub misses_by_interval: Vec<u64>,
    /// Hit ratio of each tenant in each interval; empty without partitions.
    pub hit_ratios: Vec<Vec<f64>>,
    /// The same of the level below, if there is one: it was asked for what was missed here, and its misses are the
    /// disk's reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub below: Option<Box<LabRow>>,
}

/// Part of a row.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Part {
    /// The phase or the tenant.
    pub name: Name,
    /// Its requests.
    pub requests: u64,
    /// Its misses.
    pub misses: u64,
}

impl Part {
    /// Its hit ratio.
    pub fn hit_ratio(&self) -> f64 {
        1.0 - self.misses as f64 / (self.requests.max(1)) as f64
    }

    /// The mean time of a request if hits and misses take so long.
    pub fn mean_us(&self, hit_us: f64, miss_us: f64) -> f64 {
        miss_us + (hit_us - miss_us) * self.hit_ratio()
    }
}

impl LabRow {
    /// How many fewer misses than `other`, as a part of its; negative: more.
    pub fn saved_against(&self, other: &Self) -> f64 {
        1.0 - self.misses as f64 / other.misses as f64
    }

    /// Reads of the disk: what the last level missed.
    pub fn disk_reads(&self) -> u64 {
        self.below.as_ref().map_or(self.misses, |below| below.misses)
    }

    /// As one line of JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a row is plain numbers and names")
    }
}
