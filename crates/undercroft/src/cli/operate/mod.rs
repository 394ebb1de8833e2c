//! The commands of operators: they serve, attach, show, change and record.
//!
//! Owns nothing beside its commands. Never studies a trace: `study` does. Invariant: whatever changes the running
//! daemon goes over its control socket.

pub mod args;
pub(crate) mod attach;
pub(crate) mod blocks;
pub mod check;
pub mod control;
pub mod disks;
pub mod duplicates;
pub mod hot_sets;
pub mod ksm;
pub mod misses;
pub(crate) mod mount;
pub mod pins;
pub mod ranges;
pub mod record;
pub mod serve;
pub mod shares;
pub mod ssd;
pub mod status;
pub(crate) mod upgrade;
pub(crate) mod volume_plugin;
