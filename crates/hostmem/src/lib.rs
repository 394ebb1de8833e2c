//! What the host does with its memory beside the store: pressure, kernel same-page merging, the scanner of guests'
//! memory.
//!
//! Owns what is read of /proc, /sys and control groups. Never caches a block. Invariant: what is set in the kernel can
//! be put back.
#![forbid(unsafe_code)]

pub mod ksm;
pub mod pressure;
pub mod scan;
