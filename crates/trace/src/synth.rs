//! Synthetic traces, the same on every machine.
//!
//! Owns generators. Invariant: a generator's output depends on its parameters only.

pub mod zipf;

pub use zipf::Zipf;
