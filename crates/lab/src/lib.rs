//! Simulators and experiments over the daemon's own engine.
//!
//! Owns no decision: each goes through the same index call as in the daemon. Invariant: results depend on input only.
#![forbid(unsafe_code)]
