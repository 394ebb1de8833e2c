//! Why the daemon cannot serve something, and how that is told over the API.
//!
//! Owns the words. Never fails itself. Invariant: each names the disk, the listener or the worker that it is about.

use crate::worker::{AddDiskError, CALL_WAIT};
use undercroft_backend::OpenError;
use undercroft_config::{ControlError, ControlErrorKind};
use undercroft_frontend::fuse::FuseError;
use undercroft_frontend::nbd::NbdError;
use undercroft_frontend::ublk::UblkError;
use undercroft_frontend::vhost::VhostError;

/// Why the daemon cannot serve something.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// An image does not open.
    #[error("disk \"{disk}\": {source}")]
    Open {
        /// Which disk.
        disk: String,
        /// Why.
        source: OpenError,
    },
    /// A worker has no room.
    #[error("disk \"{disk}\": {source}")]
    Attach {
        /// Which disk.
        disk: String,
        /// Why.
        source: AddDiskError,
    },
    /// A vhost-user socket cannot be had.
    #[error("disk \"{disk}\": {source}")]
    Vhost {
        /// Which disk.
        disk: String,
        /// Why.
        source: VhostError,
    },
    /// It cannot be a file.
    #[error("disk \"{disk}\": {source}")]
    Fuse {
        /// Which disk.
        disk: String,
        /// Why.
        source: FuseError,
    },
    /// It cannot be a block device.
    #[error("disk \"{disk}\": {source}")]
    Ublk {
        /// Which disk.
        disk: String,
        /// Why.
        source: UblkError,
    },
    /// An NBD listener cannot be had.
    #[error("NBD listener {listen}: {source}")]
    Nbd {
        /// Which listener.
        listen: String,
        /// Why.
        source: Box<NbdError>,
    },
    /// The share is too small to cache anything.
    #[error(
        "disk \"{disk}\": its share of {share} holds no cache at all; give it a larger `size`, or the store more \
         `memory`"
    )]
    TooSmall {
        /// Which disk.
        disk: String,
        /// Its share.
        share: String,
    },
    /// A worker thread cannot be started.
    #[error("cannot start a worker: {0}; the store's memory may be larger than this process may map (see `ulimit -v`)")]
    Worker(std::io::Error),
    /// Something holds a worker up: memory of a guest that does not come, as a rule.
    #[error("worker w{worker} has not answered for {} s; its disks wait, those of other workers go \
        on", CALL_WAIT.as_secs())]
    Silent {
        /// Which, from 0.
        worker: usize,
    },
    /// The daemon is stopping.
    #[error("the daemon is stopping")]
    Stopping,
}

impl From<ServiceError> for ControlError {
    fn from(e: ServiceError) -> Self {
        let (kind, remedy) = match &e {
            ServiceError::Stopping => (ControlErrorKind::Unavailable, "wait until it runs again"),
            ServiceError::Silent { .. } => (
                ControlErrorKind::Unavailable,
                "see which of its disks has trust_memory = true, and what serves that guest's memory; \
                 end that guest, or restart the daemon",
            ),
            ServiceError::TooSmall { .. } => (ControlErrorKind::Invalid, "name a larger `size`"),
            _ => (ControlErrorKind::Failed, "correct that and try again; the disks served so far go on"),
        };
        ControlError::new(kind, e.to_string(), remedy)
    }
}
