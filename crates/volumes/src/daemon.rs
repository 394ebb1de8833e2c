//! The daemon, as whoever mounts its disks asks it.
//!
//! Owns the path of its control socket. Never waits longer than the client of the API does. Invariant: what the daemon
//! refuses is refused here with its words.

use crate::VolumeError;
use hyper::Method;
use std::path::{Path, PathBuf};
use undercroft_api::client::{self, ClientError, disk_path};
use undercroft_api::{DiskStatus, Status};
use undercroft_config::DiskSpec;

/// The folder below the runtime directory in which disks are files that were none before they were mounted.
const FILES: &str = "mounted";

/// A running daemon.
#[derive(Clone, Debug)]
pub struct DaemonLink {
    control: PathBuf,
}

impl DaemonLink {
    /// The daemon at a control socket.
    pub fn new(control: PathBuf) -> Self {
        Self { control }
    }

    pub(crate) fn status(&self) -> Result<Status, ClientError> {
        client::request_json(&self.control, Method::GET, "/v1/status", None)
    }

    pub(crate) fn disks(&self) -> Result<Vec<DiskStatus>, ClientError> {
        client::request_json(&self.control, Method::GET, "/v1/disks", None)
    }

    pub(crate) fn disk(&self, name: &str) -> Result<DiskStatus, ClientError> {
        client::request_json(&self.control, Method::GET, &disk_path(name), None)
    }

    /// Makes a disk a file, or no file any more.
    pub(crate) fn set_file(&self, name: &str, path: Option<&Path>) -> Result<DiskStatus, ClientError> {
        let path = path.map_or("none".into(), |p| p.to_string_lossy());
        let body = serde_json::json!({ "fuse": path }).to_string();
        client::request_json(&self.control, Method::PATCH, &disk_path(name), Some(body))
    }

    pub(crate) fn attach(&self, spec: &DiskSpec) -> Result<DiskStatus, VolumeError> {
        let body = serde_json::to_string(spec).map_err(|e| {
            VolumeError::new(format!("disk \"{}\" cannot be asked for: {e}", spec.name), "report this as a defect")
        })?;
        Ok(client::request_json(&self.control, Method::POST, "/v1/disks", Some(body))?)
    }

    pub(crate) fn detach(&self, name: &str) -> Result<(), ClientError> {
        client::request(&self.control, Method::DELETE, &disk_path(name), None).map(drop)
    }
}

/// Where a disk becomes a file that is none yet.
pub(crate) fn file_for(status: &Status, disk: &str) -> PathBuf {
    Path::new(&status.runtime_dir).join(FILES).join(disk)
}

/// Whether a path is one that [`file_for`] gives.
pub(crate) fn is_made_for_mount(path: &Path) -> bool {
    path.parent().and_then(Path::file_name).is_some_and(|folder| folder == FILES)
}
