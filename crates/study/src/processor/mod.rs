//! Processor caches: sets of a few ways, with lines that are locked and a victim buffer, on memory traces.
//!
//! Owns shapes, what of a trace is a reference, and the caches of the thesis "Impact of Hypervisor Cache Locking on
//! Performance" (V. Suryanarayana, Wichita State University, 2013), whose rules docs/processor-caches.md makes precise.
//! Never reads a file. Invariant: a line that is locked is never evicted.

mod arms;
mod cache;
mod jobs;
mod lock;
mod multicore;
mod online;
mod optimum;
mod profile;
mod ratings;
mod reference;
pub mod response;
mod shape;
pub mod table;
mod victim;
mod ways;

pub use arms::{ArmResult, Arms, ArmsOptions, Control, LockArm};
pub use cache::{Cache, CacheOptions, Counts};
pub use jobs::{Bami, Job, Strategy};
pub use lock::{LOCKED_MAX, LockSet};
pub use multicore::{Machine, MachineResult, run};
pub use online::{OnlineLocks, OnlineResult};
pub use optimum::optimum_misses;
pub use profile::Profile;
pub use reference::LineReference;
pub use shape::{Shape, ShapeError};
pub use victim::{Room, VICTIM_LINES};
