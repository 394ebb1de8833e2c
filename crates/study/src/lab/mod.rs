//! Experiments with the daemon's own engine: policies compared over workloads and sizes, and errors of estimated
//! curves.
//!
//! Owns the experiments and their figures. Never decides anything: every decision goes through the same index call as
//! in the daemon. Invariant: results depend on input only.

mod comparison;
pub mod curve;
mod replay;
mod workload;

pub use comparison::{Comparison, ComparisonRow, Standing};
pub use replay::{misses, misses_while_resized};
pub use workload::Workload;
