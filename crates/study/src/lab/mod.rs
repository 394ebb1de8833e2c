//! Simulators and experiments over the daemon's own engine.
//!
//! Owns no decision: each goes through the same index call as in the daemon. Invariant: results depend on input only.

pub mod comparison;
pub mod curve;
pub mod replay;
pub mod workload;

pub use comparison::{Comparison, Row, Standing};
pub use replay::{misses, misses_while_resized};
pub use workload::Workload;
