//! The ublk front end: disks as block devices of the host, `/dev/ublkbN`.
//!
//! Owns the devices. Never knows about caching or images; what is served and what is refused, and why, stands in
//! docs/decisions/0209-disks-as-block-devices.md. Invariants: each disk has a device of its own, whose requests reach
//! the worker that owns the disk and no other; what requests hold is bounded; a device is one process's at a time, and
//! the kernel itself keeps whose it is.

pub mod device;
mod error;
mod link;
mod mark;
pub mod port;
pub mod rules;
mod server;

pub use error::UblkError;
pub use link::look;
pub use mark::Mark;
pub use port::{DeviceLimits, UblkPort};
pub use server::{UblkOptions, UblkServer, are_there, probe, sweep};
