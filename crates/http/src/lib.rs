//! Control: what operators see and change while the daemon runs, and the API over which they do.
//!
//! Owns the contract between the API and the daemon (`Daemon`), and the only async runtime of the project, on one
//! thread of its own. Never touches the data path: it asks the daemon, which asks its workers. Invariant: no request
//! from the control socket blocks a disk, and none is unbounded.

mod answer;
mod api;
mod control_stream;
mod description;
mod disks;
mod hot_sets;
mod locks;
pub mod metrics;
mod nodes;
mod recordings;
mod routes;
mod scope;
pub mod server;
mod ssd;

pub use description::openapi;
pub use server::{ControlListeners, ControlServer, ListenError};

use std::fmt;
use std::path::PathBuf;
use undercroft_api::hot_set::{HotSet, Warming};
use undercroft_api::ranges::RangeList;
use undercroft_api::record::Order;
use undercroft_api::{
    BlockStatus, ControlError, DiskStatus, KsmStatus, MissesStatus, NodeChange, NodeChanged, NodeStatus, PinsStatus,
    ProfileTaken, RangesStatus, RangesTaken, RecordingStatus, ReloadReport, ShareEvent, SharesStatus, SsdStatus,
    Status, StoreStatus,
};
use undercroft_config::DiskSpec;
use undercroft_host::Passed;

/// Who asks for a change, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Somebody at a control socket, as the kernel knew him when he connected.
    Socket {
        /// The socket.
        path: PathBuf,
        /// His user.
        uid: u32,
        /// His process, where the kernel tells.
        pid: Option<i32>,
    },
    /// A client of the metrics listener, who can change nothing.
    Metrics,
    /// A signal.
    Signal,
    /// A program that may write to the file which a disk is.
    File(PathBuf),
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket { path, uid, pid } => {
                write!(f, "uid {uid}")?;
                pid.iter().try_for_each(|pid| write!(f, " pid {pid}"))?;
                write!(f, " at {}", path.display())
            }
            Self::Metrics => f.write_str("a client of metrics"),
            Self::Signal => f.write_str("a signal"),
            Self::File(path) => write!(f, "a program at the file {}", path.display()),
        }
    }
}

/// The running daemon, as control sees it. Calls may block for a turn of a worker; control makes them on threads where
/// that is fine, several at a time.
pub trait Daemon: Send + Sync + 'static {
    /// Everything, for `status` and metrics. Consistent per disk, not across disks.
    fn status(&self) -> Status;

    /// One disk by its full name (`VM:DISK`).
    ///
    /// # Errors
    /// `NotFound`.
    fn disk(&self, name: &str) -> Result<DiskStatus, ControlError>;

    /// Changes a disk while it serves. All or nothing.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if the share does not fit into the store.
    fn change_disk(&self, name: &str, change: NodeChange, by: &Caller) -> Result<DiskStatus, ControlError>;

    /// How the store is divided.
    fn shares(&self) -> SharesStatus;

    /// One node of it.
    ///
    /// # Errors
    /// `NotFound`.
    fn node(&self, name: &str) -> Result<NodeStatus, ControlError>;

    /// What moved to, from and within a node, oldest first; of all nodes for `host`. Only the last ones are kept. With
    /// `within`, only of what was divided in that VM: then no other VM is named.
    ///
    /// # Errors
    /// `NotFound`.
    fn share_events(&self, name: &str, within: Option<&str>) -> Result<Vec<ShareEvent>, ControlError>;

    /// Changes what is set for a VM, a container or a disk, or the controller of the host. Shares follow gradually.
    /// With `expected`, only if the version of what is set is one of these. All or nothing.
    ///
    /// # Errors
    /// `NotFound`; `Stale` if the version is another one; `Invalid` if it does not fit to what is set above, below or
    /// beside it.
    fn change_node(
        &self,
        name: &str,
        change: NodeChange,
        expected: Option<Vec<u64>>,
        by: &Caller,
    ) -> Result<NodeChanged, ControlError>;

    /// What containers have of a disk.
    ///
    /// # Errors
    /// `NotFound`.
    fn ranges(&self, disk: &str) -> Result<RangesStatus, ControlError>;

    /// Replaces what a container has of a disk. All or nothing.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` if another container has some of it; `Invalid` if it does not fit onto the disk.
    fn set_ranges(&self, list: RangeList, by: &Caller) -> Result<RangesTaken, ControlError>;

    /// Changes what the store may hold at most, within its floor and its ceiling. What is cached and fits stays.
    ///
    /// # Errors
    /// `Invalid` if it is below the floor or above the ceiling.
    fn set_memory(&self, bytes: u64, by: &Caller) -> Result<StoreStatus, ControlError>;

    /// Sets KSM up as the configuration says, or puts back what was found; with `unmerge` all merged pages of the
    /// machine become private again first.
    ///
    /// # Errors
    /// `Failed` if this kernel has none, this process may not, or another daemon does.
    fn manage_ksm(&self, manage: bool, unmerge: bool, by: &Caller) -> Result<KsmStatus, ControlError>;

    /// The SSD store.
    ///
    /// # Errors
    /// `NotFound` if none is configured.
    fn ssd(&self) -> Result<SsdStatus, ControlError>;

    /// Takes the SSD store into service, or out of it: its files and devices are closed then, and what they hold is
    /// given up. Nothing is done if that is so already.
    ///
    /// # Errors
    /// `NotFound` if none is configured; `Failed` if a file or device cannot be used.
    fn set_ssd(&self, in_service: bool, by: &Caller) -> Result<SsdStatus, ControlError>;

    /// Drops what the SSD store holds, of one disk or of all; returns how many bytes that were.
    ///
    /// # Errors
    /// `NotFound` if no SSD store is configured or there is no such disk; `Conflict` if it is out of service.
    fn drop_ssd(&self, disk: Option<&str>, by: &Caller) -> Result<u64, ControlError>;

    /// Attaches a disk. See `ServePlan::plan_disk` for the checks against the disks there are.
    ///
    /// # Errors
    /// `Invalid` with every problem of the spec; `Conflict` if the name is taken; `Failed` if the image does not open.
    fn add_disk(&self, spec: DiskSpec, by: &Caller) -> Result<DiskStatus, ControlError>;

    /// Detaches a disk: requests under way are finished, then its front ends are closed.
    ///
    /// # Errors
    /// `NotFound`.
    fn remove_disk(&self, name: &str, by: &Caller) -> Result<(), ControlError>;

    /// Drops every cached block of a disk (for measurements); returns how many bytes that were.
    ///
    /// # Errors
    /// `NotFound`.
    fn drop_cache(&self, name: &str) -> Result<u64, ControlError>;

    /// Which blocks of a disk its cache would keep longest.
    ///
    /// # Errors
    /// `NotFound`.
    fn hot_set(&self, name: &str) -> Result<HotSet, ControlError>;

    /// Has a disk fetch the blocks that were hot elsewhere: at most `budget_bytes`, and what there is room for. Returns
    /// before they are there.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if they are of a disk of another size.
    fn warm(&self, name: &str, set: HotSet, budget_bytes: Option<u64>, by: &Caller) -> Result<Warming, ControlError>;

    /// What is pinned of a disk.
    ///
    /// # Errors
    /// `NotFound`.
    fn pins(&self, name: &str) -> Result<PinsStatus, ControlError>;

    /// Pins blocks of a disk in place of those that are, if these are of one of the versions that are `expected`. All
    /// or nothing.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if they are of a disk of another size; `Conflict` if they are more than may be locked;
    /// `Stale` if what is pinned is of none of the versions that are expected.
    fn set_pins(
        &self,
        name: &str,
        list: HotSet,
        expected: Option<Vec<u64>>,
        by: &Caller,
    ) -> Result<PinsStatus, ControlError>;

    /// Names the blocks that are locked where `lock` is `static`.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if they are of a disk of another size; `Conflict` if `lock` is something else.
    fn set_lock_profile(&self, name: &str, list: HotSet, by: &Caller) -> Result<ProfileTaken, ControlError>;

    /// What is known of the block that has this byte of the disk.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if the disk has no such byte.
    fn block(&self, name: &str, byte: u64) -> Result<BlockStatus, ControlError>;

    /// The blocks that miss most, of a disk, or of all disks of a VM, a container or the host.
    ///
    /// # Errors
    /// `NotFound`.
    fn misses(&self, node: &str) -> Result<MissesStatus, ControlError>;

    /// Reads the configuration file again and does what can be done live. See `ServePlan::difference`.
    ///
    /// # Errors
    /// `Invalid` with every problem of the file, or if there is no file; nothing has been changed then.
    fn reload(&self, detach_most: bool, by: &Caller) -> Result<ReloadReport, ControlError>;

    /// Begins to record what guests ask for, into the first file that was passed along if the order says so.
    ///
    /// # Errors
    /// `Conflict` if a recording is under way or the file holds something; `NotFound` if a name of the order means
    /// nothing; `Invalid` or `Failed` if the file cannot be had.
    fn record(&self, order: Order, passed: &Passed) -> Result<RecordingStatus, ControlError>;

    /// The recording under way, or else the last one.
    fn recordings(&self) -> Vec<RecordingStatus>;

    /// How a recording stands; renews its lease.
    ///
    /// # Errors
    /// `NotFound`.
    fn recording(&self, id: u64) -> Result<RecordingStatus, ControlError>;

    /// Ends a recording, if it has not, and finishes its file.
    ///
    /// # Errors
    /// `NotFound`.
    fn end_recording(&self, id: u64) -> Result<RecordingStatus, ControlError>;

    /// Has a new process of the program serve from now on, whose guests stay connected. Returns only if that fails:
    /// why; all goes on as before then. Else the process ends.
    fn upgrade(&self, by: &Caller) -> ControlError;

    /// Begins an orderly stop, as SIGTERM does; returns at once.
    fn stop(&self, by: &Caller);
}
