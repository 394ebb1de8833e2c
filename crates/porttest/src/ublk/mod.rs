//! A kernel that drives block devices of ublk, and arbitrary requests of it.
//!
//! Owns nothing itself. Never makes a device.

pub mod exercise;
pub mod kernel;
pub(crate) mod sim_device;
