//! Every decision of the cache: which block is kept, which one goes. The simulator and the daemon both ask here.
//!
//! Owns policies and the index over them. Never sees a byte of data, does no I/O, reads no clock, starts no thread.
//! Invariant: the same sequence of calls gives the same sequence of answers, on every machine.
#![forbid(unsafe_code)]

pub mod control;
pub mod curve;
mod guest;
mod index;
mod limits;
pub mod locking;
mod names;
mod policy;
#[cfg(test)]
mod reference;
pub mod shares;
mod structures;
mod study;

pub use curve::{
    Curve, LruCurve, LruCurveOptions, Meter, MeterOptions, PolicyCurve, PolicyCurveOptions, Served, Telemetry,
};
pub use guest::{
    Copied, Departure, Due, Exclusive, ExclusiveMode, ExclusiveStats, GuestTable, RUN_MAX, Rescue, Run, TableMemory,
    Transfer, Ways, residency,
};
pub use index::locks::{LOCK_PERMILLE_MAX, LockOptions};
pub use index::origins::{ORIGIN_STEP, Placed, origin_of};
pub use index::parts::PartSetting;
pub use index::ranges::{PartId, PartRange, PartsError};
pub use index::tiers::Tier;
pub use index::victims::VICTIMS_MAX;
pub use index::{Access, Index, ranges};
pub use names::UnknownName;
pub use policy::{AnyPolicyKind, Outcome, PolicyKind, PolicySet, StudiedPolicyKind};
pub use structures::array::{Array, KeepAll, Release};
pub use structures::slots::Slot;
pub use structures::table::HashKey;
pub use study::replay::Replay;
pub use study::{opt, probability, replay};
