//! What the API says of shares, and what can be changed about them.
//!
//! Owns the shapes. Never decides. Sizes are bytes of the store, metadata included.

use serde::{Deserialize, Serialize};
use undercroft_config::NodeSettings;
use utoipa::ToSchema;

/// How the store is divided.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SharesStatus {
    /// The controller where none is set for a VM or container.
    pub controller: String,
    /// Seconds between two divisions of the store.
    pub interval_seconds: f64,
    /// Intervals so far.
    pub intervals: u64,
    /// Whether shares are on their way to their targets.
    pub moving: bool,
    /// Why shares stay as they are, if they do.
    pub problem: Option<String>,
    /// The host, then VMs, containers and disks, each after what it belongs to.
    pub nodes: Vec<NodeStatus>,
}

/// The host, a VM, a container or a disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeStatus {
    /// `host`, `VM`, `VM/CONTAINER`, or the full name of a disk.
    pub name: String,
    /// `host`, `vm`, `container` or `disk`.
    pub level: String,
    /// What it belongs to.
    pub parent: Option<String>,
    /// Its weight against its siblings, where they want more than there is.
    pub weight: u32,
    /// What it gets whenever it can make use of it, however much others want.
    pub floor_bytes: u64,
    /// What is set as its floor: more than `floor_bytes` where it does not fit into what is above it any more, less
    /// where its disks need more.
    #[serde(default)]
    pub set_floor_bytes: u64,
    /// The most that it may ever have.
    pub ceiling_bytes: Option<u64>,
    /// The controller that divides its share, if one is set here.
    pub controller: Option<String>,
    /// What it is meant to reach: `hit 90%`, `p99 2ms` or `iops 5000`.
    #[serde(default)]
    pub goal: Option<String>,
    /// The replacement policy that is set here: of a VM or a container, that of what is below it and names none.
    #[serde(default)]
    pub policy: Option<String>,
    /// The stores that are set here.
    #[serde(default)]
    pub store: Option<String>,
    /// A disk: how it will be used.
    #[serde(default)]
    pub hint: Option<String>,
    /// Rises whenever anybody changes what is set for it; its `ETag`.
    #[serde(default)]
    pub version: u64,
    /// What it gets when all nodes want more than they can have.
    pub entitled_bytes: u64,
    /// Its share now.
    pub share_bytes: u64,
    /// The share that it is moving to.
    pub target_bytes: u64,
    /// Blocks read in the last interval.
    pub requests: u64,
    /// Those of them that were not in the cache.
    pub misses: u64,
    /// Of these, those that read-ahead had brought in time.
    pub read_ahead_hits: u64,
    /// The size from which on a larger cache would save hardly any more misses.
    pub working_set_bytes: u64,
    /// A disk: misses of an interval like the last ones by size, as (bytes, misses).
    pub curve: Vec<(u64, f64)>,
    /// Whether the curve is that of the disk's policy; otherwise it is LRU's, until enough has been seen.
    pub curve_of_policy: bool,
    /// What a tenth more RAM would bring, by the curves; absent until something is measured.
    #[serde(default)]
    pub next_ram: Option<NextStatus>,
    /// What a tenth more of the SSD store would bring; absent where none is used.
    #[serde(default)]
    pub next_ssd: Option<NextStatus>,
    /// What it has of the SSD store; absent where none is used.
    #[serde(default)]
    pub ssd: Option<NodeSsdStatus>,
}

/// What more of a store would bring a node, if each disk below it got a tenth more of what it has; for loads like that
/// of the last intervals, with RAM and SSD store taken for one LRU stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NextStatus {
    /// So many more bytes.
    pub bytes: u64,
    /// Blocks a second that would come from RAM, and now come from the SSD store or the image.
    pub ram_hits_per_second: f64,
    /// Blocks a second that would not come from the image any more.
    pub image_reads_saved_per_second: f64,
    /// Milliseconds of waiting saved a second, by the mean times of reads measured; null until these are known.
    pub saved_ms_per_second: Option<f64>,
}

/// What a node has of the SSD store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeSsdStatus {
    /// Its share now: what it has beyond that goes first.
    pub share_bytes: u64,
    /// The share that it is moving to.
    pub target_bytes: u64,
    /// Bytes of its blocks there.
    pub cached_bytes: u64,
    /// Blocks found there in the last interval.
    pub hits: u64,
    /// Blocks looked for there in the last interval and not found.
    pub misses: u64,
    /// A disk: misses of both stores together in an interval like the last ones, by the sum of their sizes, as (bytes,
    /// misses), for LRU.
    pub curve: Vec<(u64, f64)>,
}

/// A node that was changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeChanged {
    /// How it is now.
    #[serde(flatten)]
    pub node: NodeStatus,
    /// What was set until then.
    pub previous: NodeSettings,
}

/// A part of the store that moved from one node to another, or a finding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShareEvent {
    /// Rises by one with every event of its store, or of its worker's part of the SSD store.
    pub sequence: u64,
    /// The number of the interval after which it was decided, of those of its store.
    pub interval: u64,
    /// Whether it is of the SSD store, where each worker's part is divided by itself; else of RAM.
    #[serde(default)]
    pub ssd: bool,
    /// The node whose share was divided.
    pub node: String,
    /// The node that gave it; absent: it was free.
    pub from: Option<String>,
    /// The node that took it; absent: it is free now.
    pub to: Option<String>,
    /// How much; 0 for a finding.
    pub bytes: u64,
    /// How long ago it was decided, where that is still known.
    #[serde(default)]
    pub seconds_ago: Option<u64>,
    /// What was decided.
    #[serde(default)]
    pub decided: String,
    /// What was seen that led to it.
    #[serde(default)]
    pub seen: String,
    /// What it should bring, where that is known.
    #[serde(default)]
    pub expected: Option<String>,
    /// All of it on one line.
    pub text: String,
}
