//! Disks mounted on this host, and a volume plugin for container engines: both are clients of the running daemon.
//!
//! Owns loop devices, file systems on them, and the folder of volumes. Never serves a disk, and never writes to one
//! that holds something. Invariant: whatever is made here is undone when a later step fails.
#![forbid(unsafe_code)]

mod daemon;
mod error;
mod filesystem;
pub mod mount;
mod mounts;
pub mod plugin;

pub use daemon::DaemonLink;
pub use error::VolumeError;
pub use filesystem::FsKind;
