//! Where the content of cached blocks is kept: in RAM; and what a core's disks know together of their guests.
//!
//! Owns one module for each. Never decides what is kept. Invariant: what a store holds is also on the
//! disk it came from.

pub(crate) mod guests;
pub(crate) mod ram;
