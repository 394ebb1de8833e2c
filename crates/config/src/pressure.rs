//! `[pressure]`: when the store gives memory back.
//!
//! Owns the wish. Never looks at the machine's memory. Invariant: every bound of it is within what `keys` says.

use std::time::Duration;

/// `[pressure]`: when memory is given back and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PressurePlan {
    /// Whether the machine is watched at all.
    pub watch: bool,
    /// How long, of a second, some process has to wait for memory until that is pressure.
    pub stall: Duration,
    /// How much of the machine's memory is to stay available; `None` for the defaults.
    pub available_min_bytes: Option<u64>,
    /// Within this, half of what the store holds above its floor is given back.
    pub give_within: Duration,
    /// How long there must be no pressure before the store grows again.
    pub calm: Duration,
    /// How long growing from nothing to the ceiling takes at least.
    pub regrow: Duration,
}

/// The floor of a store without one is this part of its memory.
pub const FLOOR_PART_DEFAULT: u64 = 4;
