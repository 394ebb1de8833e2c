//! Simulators and experiments over the daemon's own engine.
//!
//! Owns no decision: each goes through the same index call as in the daemon. Invariant: results depend on input only.

mod comparison;
pub mod curve;
mod replay;
mod workload;

pub use comparison::{Comparison, ComparisonRow, Standing};
pub use replay::{misses, misses_while_resized};
pub use workload::Workload;
