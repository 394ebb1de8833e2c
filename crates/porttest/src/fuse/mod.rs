//! Kernels that drive files: in the simulation of ports, and with arbitrary input.
//!
//! Owns nothing itself. Never mounts anything.

pub mod exercise;
pub(crate) mod messages;
pub(crate) mod sim_file;
