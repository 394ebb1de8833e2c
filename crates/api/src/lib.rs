//! What goes over the control socket: types, bodies of requests, errors, and the client.
//!
//! Owns the shapes, which other programs depend on, and the way from bytes to them. Never opens anything but the
//! control socket of a running daemon. Invariant: any bytes give a value or an error with a remedy.
#![forbid(unsafe_code)]

pub mod body;
pub mod client;
pub mod hot_set;
pub mod ksm;
pub mod locks;
pub mod ranges;
mod ranges_status;
pub mod record;
pub mod shares;
pub mod ssd;
pub mod status;

pub use locks::{
    BlockStatus, LockStatus, MissedBlock, MissesStatus, OnlineStatus, PinsStatus, ProfileTaken, VictimBufferStatus,
};
pub use ranges_status::{ContainerRanges, RangesStatus, RangesTaken};
pub use record::RecordingStatus;
pub use shares::{NextStatus, NodeChanged, NodeSsdStatus, NodeStatus, ShareEvent, SharesStatus};
pub use ssd::{SsdClass, SsdClasses, SsdCounters, SsdDeviceStatus, SsdDiskStatus, SsdStatus, SsdWritten};
pub use status::{
    CacheStatus, DiskCounters, DiskLatency, DiskState, DiskStatus, ExclusiveStatus, FrontendKind, FrontendStatus,
    KsmStatus, LatencyBucket, LatencySnapshot, LogStatus, NbdDataStatus, NbdListenerStatus, PressureDirection,
    PressureStatus, ReloadReport, ScanStatus, SharingDomainStatus, SharingStatus, Status, StoreStatus, VersionInfo,
};
pub use undercroft_config::{ControlError, ControlErrorKind, NodeChange, NodeSettings};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The version of the API, as it stands in its paths.
pub const API_VERSION: &str = "1";

/// The body of every error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What is wrong; names the thing.
    pub error: String,
    /// What to do about it.
    pub remedy: String,
    /// With status 412: what is set for the node now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<Box<NodeSettings>>,
}

/// The answer of `POST /v1/disks/{name}/drop-cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Dropped {
    /// Bytes of cached data that were dropped.
    pub dropped_bytes: u64,
}
