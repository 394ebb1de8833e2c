//! Miss-ratio curves while requests go by: what a disk would miss at other sizes of its cache.
//!
//! Owns the curves, the samplers behind them and the [`Meter`] that a leaf of the tree of shares carries. Never decides
//! a share; reads no clock: the caller says where an interval ends.
//! Invariant: memory is bounded by the options, whatever is observed, and a block that is not sampled costs one keyed
//! hash and a comparison.
//!
//! Two estimates. [`LruCurve`] knows every size at once, for LRU, from stack distances of a spatial sample (SHARDS,
//! Waldspurger et al., FAST 2015). [`PolicyCurve`] knows a few sizes, for the policy in use, from scaled-down caches
//! run on such samples (miniature simulation, Waldspurger et al., ATC 2017). docs/decisions/0110 has costs and errors.

mod correction;
mod filter;
mod histogram;
mod lru;
mod meter;
pub(crate) mod points;
mod policy;
mod recency;
mod stacked;
mod tenants;

pub use histogram::{bucket, last_of};
pub use lru::{LruCurve, LruCurveOptions};
pub use meter::{Meter, MeterOptions, Served, Telemetry};
pub use points::Curve;
pub use policy::{PolicyCurve, PolicyCurveOptions, sizes_around};
pub use recency::Recency;
pub use stacked::{Benefit, Stacked, StoreTimes};
pub(crate) use tenants::partitioned_by_weight;
pub use tenants::{best_partition, partitioned, shared};
