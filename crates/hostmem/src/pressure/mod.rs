//! Memory given back: the store shrinks while the machine is short of memory, and grows again slowly.
//!
//! Owns the watch over the machine's memory and the rule for how much the store may hold. Never evicts a block itself:
//! the workers' cores do, a bounded step at a time. Invariant: what is allowed stays between the floor and the ceiling.

mod control;
mod divide;
pub mod parse;
mod room;
mod source;
mod stalls;
mod watch;

pub use control::{Direction, Reading};
pub use divide::{Holding, allowed_bytes, held_above};
pub use room::GuestRoom;
pub use source::{Roots, Sources};
pub use watch::{Store, View, Watch};

use undercroft_host::control_group;

/// Of the machine's memory, what is to stay available unless the configuration says how much: a fiftieth.
pub const AVAILABLE_PART_DEFAULT: u64 = 50;
/// Of a control group's limit, what is to stay available unless the configuration says how much: a 64th.
pub const GROUP_PART_DEFAULT: u64 = 64;
/// Into the last part of a control group's limit the store does not grow; half of what is available beyond that is the
/// most at a time. (A group that runs into its limit kills: there is nothing in it to reclaim but the store.)
pub const GROUP_PART_KEPT: u64 = 32;
/// Into the last part of a control group's limit nothing goes that is copied to guests whose memory is not allocated.
pub const GROUP_PART_GUESTS: u64 = 128;
/// But at least so many bytes are left by them, or a 16th of a small limit: in a group that is full to the last the kernel
/// takes pages of our own program and reads them again, all the time, and nobody is served.
pub const GROUP_GUESTS_KEPT: (u64, u64) = (8 << 20, 16);

/// Puts any bytes through every parser of this module, for the fuzzer.
///
/// # Panics
/// If a result breaks its bounds: that is a bug.
pub fn check_bytes(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Some(m) = parse::meminfo(&text) {
        assert!(m.free_bytes <= m.total_bytes, "more memory is free than there is");
    }
    let _ = parse::stalled_us(&text);
    let _ = (control_group::field(&text, "max"), control_group::limit(&text));
    let paths = control_group::own_groups(&text);
    for path in paths.v2.iter().chain(paths.memory_v1.iter()) {
        assert!(path.starts_with('/') && !path.split('/').any(|p| p == ".."), "a path leads out of the tree");
    }
    let mounts = control_group::mounts(&text);
    assert!(mounts.v2.is_none_or(|m| m.at.is_absolute()) && mounts.memory_v1.is_none_or(|m| m.at.is_absolute()));
}
