//! ublk: block devices of the kernel whose requests a process answers (Linux 6.5 and later).
//!
//! Owns the calls of the driver: control commands, and the queue of one device. Never knows what a disk is, and decides
//! nothing about a request. Invariant: no command of a queue names memory of this process, so that a queue can be
//! closed at any time; memory that a control command names is kept until the kernel has done with it, or leaked.

mod control;
mod queue;
mod wire;

pub use control::{Ended, UblkControl};
pub use queue::{Request, UblkQueue};
pub use wire::{DeviceInfo, DeviceState, NewDevice, Params};

use std::path::PathBuf;

/// Where devices are made and ended.
pub const UBLK_CONTROL: &str = "/dev/ublk-control";
/// The number of a device that the kernel is to choose.
pub const ANY_DEVICE: u32 = u32::MAX;

/// What a driver can do, or a device does.
pub mod feature {
    /// A device outlives its server.
    pub const USER_RECOVERY: u64 = 1 << 3;
    /// And what the server had not answered is asked again.
    pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// Data are copied by reading and writing the device's own node.
    pub const USER_COPY: u64 = 1 << 7;
    /// Partitions are not looked for.
    pub const NO_AUTO_PART_SCAN: u64 = 1 << 18;
}

/// What is asked for.
pub mod operation {
    /// Read.
    pub const READ: u8 = 0;
    /// Write.
    pub const WRITE: u8 = 1;
    /// Make durable.
    pub const FLUSH: u8 = 2;
    /// No longer needed.
    pub const DISCARD: u8 = 3;
    /// Zero.
    pub const WRITE_ZEROES: u8 = 5;
    /// A flag: durable before the answer.
    pub const FUA: u32 = 1 << 13;
    /// A flag: space is not to be freed.
    pub const NOUNMAP: u32 = 1 << 15;
}

/// The block device that programs use.
pub fn block_path(id: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{id}"))
}

/// The node of a device that its server uses.
fn server_path(id: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkc{id}"))
}

/// Numbers of the devices that there are now.
///
/// # Errors
/// If /sys cannot be read; no device is no error.
pub fn devices() -> std::io::Result<Vec<u32>> {
    let entries = match std::fs::read_dir("/sys/class/ublk-char") {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let number = |name: &str| name.strip_prefix("ublkc")?.parse().ok();
    let mut found: Vec<u32> = entries.flatten().filter_map(|e| number(e.file_name().to_str()?)).collect();
    found.sort_unstable();
    Ok(found)
}
