//! Synthetic traces, the same on every machine.
//!
//! Owns generators. Invariant: a generator's output depends on its parameters only.

mod load;
pub mod zipf;

pub use load::{Load, Mix, MixError, Pattern};
pub use zipf::Zipf;
