//! What a guest holds in its own page cache, and how a disk's cache is kept exclusive of it.
//!
//! Owns the table of guest pages, the ages at which pages are evicted, and the decision which page to copy. Never sees
//! the content of a page. Invariant: a wrong guess about the guest wastes a slot, nothing more.

mod ages;
mod exclusive;
mod memory;
mod mode;
mod opaque;
pub mod residency;
mod shadow;
mod table;
mod voids;
mod yields;

pub use exclusive::{Exclusive, RUN_MAX, Rescue, Run, Transfer};
pub use memory::TableMemory;
pub use mode::{Copied, Departure, Due, ExclusiveMode, ExclusiveStats, Ways};
pub use table::GuestTable;
