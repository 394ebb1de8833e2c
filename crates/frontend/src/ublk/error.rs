//! Why a disk did not become a block device, and what is to be done about it.
//!
//! Owns the words. Never tries anything. Invariant: no error is without a remedy, where there is one.

use std::io;
use std::path::{Path, PathBuf};
use undercroft_host::ublk::UBLK_CONTROL;

/// Why a disk did not become a block device.
#[derive(Debug, thiserror::Error)]
pub enum UblkError {
    /// The kernel has no driver, or not here.
    #[error(
        "{UBLK_CONTROL} does not exist: load the driver with `modprobe ublk_drv` (Linux 6.5 or later with \
         CONFIG_BLK_DEV_UBLK); a container needs `--device {UBLK_CONTROL}` and the devices that appear"
    )]
    NoDriver,
    /// This process may not.
    #[error(
        "block devices of ublk are made by root alone (CAP_SYS_ADMIN): run the daemon as root, or give the unit \
         `CapabilityBoundingSet=CAP_SYS_ADMIN` and `DeviceAllow={UBLK_CONTROL} rw`"
    )]
    NotPermitted,
    /// The driver is too old.
    #[error("the ublk driver of this kernel is too old: Linux 6.5 is needed (it lacks {0})")]
    TooOld(&'static str),
    /// The directory of the link is missing.
    #[error("the directory of the link {path} does not exist: make it with `mkdir -p {}`", parent(path).display())]
    NoDirectory {
        /// The link.
        path: PathBuf,
    },
    /// Something else has that name.
    #[error("{0} exists and is no link to a device of ublk: move it away, or choose another path")]
    Taken(PathBuf),
    /// The link cannot be made.
    #[error("the link {path} cannot be made: {source}")]
    Link {
        /// The link.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The device of the disk is served.
    #[error(
        "{device}, which is this disk's, is served by the process {server} still: end that, or wait until the kernel \
         has done with it"
    )]
    InUse {
        /// The device.
        device: PathBuf,
        /// Who serves it.
        server: i32,
    },
    /// The kernel refused.
    #[error("cannot {what} {device}: {source}")]
    Os {
        /// The device.
        device: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The worker of the disk did not take the device.
    #[error("{0} is not served: the worker of its disk does not answer, or the disk is gone")]
    NoWorker(PathBuf),
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}
