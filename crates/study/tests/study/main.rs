//! The simulator, its guests and the curves, against models, reference programs and the daemon's own parts.
//!
//! Owns the list of these tests, in one program: what they use is generic, and each program compiles it once more.
//! Never asserts a time. Invariant: no test depends on another that runs beside it.

mod bars;
mod curves;
mod daemon;
mod guest_kinds;
mod guests;
mod locks;
mod lru;
mod partition;
mod processor;
mod reference;
mod split;
mod stores;
mod stores_curve;
mod tenants;
