//! Several tenants on one cache, or on two levels of it: who gets what under which controller, on the daemon's own
//! engine.
//!
//! Owns the loads, the arms and the rows of results. Never decides: tree, controllers, mover and index are the
//! engine's. Invariant: every arm sees the same requests in the same order.

pub mod above;
pub mod below;
#[cfg(test)]
mod below_tests;
pub mod distance;
mod divided;
mod histogram;
pub mod load;
pub mod loads;
pub mod row;
pub mod run;
pub mod trace;
mod traces;

pub use above::{Above, AboveCounts};
pub use below::Below;
pub use load::{Activity, Load, Name, Pattern, Phase};
pub use row::LabRow;
pub use run::{Arm, Options, run};
pub use trace::Trace;
pub use traces::{Clocks, TenantTrace, run_all};
