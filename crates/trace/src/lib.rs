//! Block trace formats: streaming readers, one file each.
//!
//! Owns the bytes of a trace file. Never decides anything about caches.
//! Invariant: a damaged file gives an error that names the record, never a panic or a wrong access.
#![forbid(unsafe_code)]
