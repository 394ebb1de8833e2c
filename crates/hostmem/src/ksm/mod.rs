//! Kernel same-page merging (KSM) for guests whose RAM is private anonymous memory: switched, set, observed, put back.
//!
//! Owns what this program does with /sys/kernel/mm/ksm and what it reads of it in /proc. Never merges anything itself,
//! and touches no setting unless it is asked to. Invariant: before the first setting is changed, what was found stands
//! in a file, so that a later start can put it back after a crash.

mod keeper;
pub mod parse;
mod process;
mod saved;
mod sysfs;

pub use keeper::{Keeper, KsmError};
pub use process::{KsmGuest, guests};
pub use sysfs::Ksm;
pub use undercroft_api::ksm::{Numbers, Settings};

/// Where Linux has it.
pub const SYSFS: &str = "/sys/kernel/mm/ksm";

/// Why merging is off unless asked for.
pub const SIDE_CHANNEL: &str = "merging lets a guest find out, by how long its own writes take, whether another guest \
    (or any process that marked its memory) holds the same page: keys, addresses and versions of programs leak that \
    way, and Rowhammer attacks have changed merged pages. Use it only among guests that may know each other's memory";

/// Why shared guest memory cannot be merged.
pub const SHARED_RAM: &str = "the kernel merges private anonymous memory only; RAM that is shared with another process \
    (vhost-user, memory-backend-memfd or -file with share=on) is never merged";
