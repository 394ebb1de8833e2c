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

/// Of the machine's memory without reserved huge pages, what is to stay available unless the configuration says how
/// much: a fiftieth.
pub const AVAILABLE_PART_DEFAULT: u64 = 50;
/// Of a control group's limit, what is to stay available unless the configuration says how much: a 64th.
pub const GROUP_PART_DEFAULT: u64 = 64;
/// Into the last part of a control group's limit the store does not grow; half of what is available beyond that is the
/// most at a time. (A group that runs into its limit kills: there is nothing in it to reclaim but the store.)
pub const GROUP_PART_KEPT: u64 = 32;
/// Into the last part of a control group's limit nothing goes that is copied to guests whose memory is not allocated.
pub const GROUP_PART_GUESTS: u64 = 128;
/// But at least so many bytes are left by them, or a 16th of a small limit: in a group that is full to the last the
/// kernel takes pages of our own program and reads them again, all the time, and nobody is served.
pub const GROUP_GUESTS_KEPT: (u64, u64) = (8 << 20, 16);
