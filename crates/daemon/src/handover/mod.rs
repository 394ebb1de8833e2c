//! What one daemon tells the next, so that guests and clients do not notice that another process serves them.
//!
//! Owns the words between the two (`channel`); the list of what is cached is `undercroft_cache`'s. Never serves
//! anything: `service` decides what is told and when. Invariant: what does not match is refused as a whole.
//!
//! The order, and who serves when: docs/decisions/0203.

pub(crate) mod channel;
pub(crate) mod letters;
