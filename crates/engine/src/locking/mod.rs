//! Locking by what was missed: the table of the blocks that miss most, and the rule that locks and unlocks by it.
//!
//! Owns what is known of misses, and what is worth a lock. Never keeps a lock itself: the index does (`index::locks`).
//! Invariant: memory and time for one access are bounded, whatever blocks a guest asks for.

pub mod misses;
mod mode;
pub mod online;

pub use misses::{MissTable, Missed};
pub use mode::{BUDGET_PERMILLE, LockMode, LockSettings};
pub use online::{Online, OnlineStats};
