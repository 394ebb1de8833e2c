//! Every decision of the cache: which block is kept, which one goes. The simulator and the daemon both ask here.
//!
//! Owns policies and the index over them. Never sees a byte of data, does no I/O, reads no clock, starts no thread.
//! Invariant: the same sequence of calls gives the same sequence of answers, on every machine.
#![forbid(unsafe_code)]

mod ages;
mod chains;
pub mod control;
pub mod curve;
pub mod exclusive;
mod ghosts;
pub mod index;
pub mod limits;
mod list;
pub mod opt;
pub mod parts;
mod places;
pub mod policy;
pub mod probability;
pub mod ranges;
#[cfg(test)]
mod reference;
pub mod replay;
pub mod residency;
mod shadow;
pub mod shares;
mod sketch;
mod slots;
mod table;
mod tiers;

pub use curve::{
    Curve, LruCurve, LruCurveOptions, Meter, MeterOptions, PolicyCurve, PolicyCurveOptions, Served, Telemetry,
};
pub use exclusive::{Departure, Due, Exclusive, ExclusiveMode, ExclusiveStats, Ways};
pub use index::{Access, Index, Outcome, Slot};
pub use parts::PartSetting;
pub use policy::PolicyKind;
pub use ranges::{PartId, PartRange, PartsError};
pub use replay::Replay;
pub use table::HashKey;
pub use tiers::Tier;
