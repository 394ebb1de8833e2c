//! What only simulators use: traces replayed through one policy, the optimum, and replacement by probability.
//!
//! Owns loops over traces that are known beforehand. Never serves a guest: nothing of `cache` or `daemon` comes here.
//! Invariant: a replay decides as an index does.

pub mod opt;
pub mod probability;
pub mod replay;
