//! The simulator: traces through caches, and through hierarchies of caches, on the daemon's own engine.
//!
//! Owns how a trace is fed to caches, what is counted, and what time it would have taken. Never decides what a cache
//! keeps: that is `undercroft_engine`. Reads no clock, and draws random numbers from a seed only. Invariant: the result
//! depends on trace and options only, not on threads.
//!
//! One pass of a trace through several caches:
//!
//! ```
//! use undercroft_engine::PolicyKind;
//! use undercroft_study::sim::{Cell, Go, Reference, SweepOptions, sweep};
//! use undercroft_units::CacheSize;
//! let trace = (0..1000).map(|i| Ok(Reference::read(i % 10)));
//! let cells = [5, 10].map(|blocks| Cell::new(PolicyKind::Lru, CacheSize::Blocks(blocks), blocks as u32));
//! let done = sweep(trace, cells.to_vec(), &SweepOptions::default(), &mut |_| Go::On)?;
//! assert_eq!(done.results.iter().map(|r| r.counts.misses()).collect::<Vec<_>>(), [1000, 10]);
//! # Ok::<(), undercroft_study::sim::SimError>(())
//! ```

mod batch;
mod cell;
mod choice;
pub mod daemon;
mod error;
mod future;
mod grid;
pub mod guest;
pub mod guest_policy;
pub mod hierarchy;
pub mod host;
pub mod latency;
pub mod locks;
mod near;
mod reference;
mod rule;
mod run;
pub mod simulate;
pub mod stores;
mod sweep;
pub mod tenants;
pub mod transfer_log;

pub use cell::{CacheCounts, Cell, CellResult};
pub use choice::{OptNotHere, Policies, only_policies, without_repeats};
pub use error::SimError;
pub(crate) use grid::check_slots;
pub use grid::{CellRow, Grid, SweepDocument, TraceRun, check_memory};
pub use reference::{Footprint, Reference};
pub use rule::{NoSuchRule, Rule};
pub use run::{Go, SweepOptions};
pub use sweep::{Sweep, sweep};
