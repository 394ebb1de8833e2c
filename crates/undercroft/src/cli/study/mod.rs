//! The commands of those who study caches: traces, simulations, curves.
//!
//! Owns what they share: reading traces, and a copy of what can be read only once. Never talks to a daemon. Invariant:
//! policies, curves and controllers are those that serve guests.

pub mod curve;
pub mod lab;
mod plot_file;
pub mod reading;
pub mod sim;
pub mod spool;
pub mod trace;
