//! Where the content of cached blocks is kept: in RAM.
//!
//! Owns one module for each kind of memory. Never decides what is kept. Invariant: what a store holds is also on the
//! disk it came from.

pub(crate) mod ram;
