//! The policies that a disk may have: their memory and the time of each call are bounded, and each is held against a
//! reference model.
//!
//! Owns one file for each. Never uses a policy that is only studied. Invariant: see `Policy`.

pub(super) mod arc;
pub(super) mod car;
pub(super) mod clock;
pub(super) mod fifo;
pub(super) mod lru;
pub(super) mod s3fifo;
pub(super) mod sieve;
pub(super) mod wtinylfu;
