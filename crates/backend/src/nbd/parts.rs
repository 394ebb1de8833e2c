//! What reads the bytes of a server, by itself: for the fuzz target that plays a server, and needs no socket for it.
//!
//! Owns nothing. Never grows into another way to use the back end: a program opens an image. Invariant: what is named
//! here is what `Nbd` uses.

pub use super::handshake::handshake;
pub use super::ops::{Ops, Stage};
pub use super::replies::Replies;
