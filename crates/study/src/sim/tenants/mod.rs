//! Several tenants on one cache, or on two levels of it: how each controller of the engine divides it, and with which
//! misses. One way of dividing is called an arm.
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
pub use load::{BlockPattern, Name, Phase, TenantActivity, TenantLoad};
pub use row::LabRow;
pub use run::{Arm, ArmOptions, run};
pub use trace::Trace;
pub use traces::{Clocks, TenantTrace, run_all};
