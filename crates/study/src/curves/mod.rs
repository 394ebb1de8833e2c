//! Miss-ratio curves of whole traces, and what follows from them: how memory should be divided.
//!
//! Owns the algorithms that need not run beside a live disk: exact stack distances, paired samples, the eviction time
//! model, Zipf fits, working sets, partitions, plots. What the daemon runs too (SHARDS, miniature simulation, the
//! curves and their hulls) is the engine's, and is used from there. Never reads a trace or a clock: the caller passes
//! requests and times. Invariant: the same requests and seed give the same result on every machine.
//!
//! ```
//! use undercroft_study::curves::{ExactLru, Requests};
//! let mut exact = ExactLru::new();
//! exact.observe(&[1, 2, 3, 1, 2, 3]);
//! let curve = exact.curve(Requests::All);
//! assert_eq!((curve.misses_at(2), curve.misses_at(3)), (6.0, 3.0));
//! ```

mod aet;
mod bars;
mod estimate;
mod exact;
mod font;
mod mini;
mod paired;
pub mod partition;
pub mod plot;
mod reuse;
mod shards;
mod stack;
mod table;
mod talus;
mod watch;
mod working_set;
mod zipf;

pub use aet::Aet;
pub use bars::Bars;
pub use estimate::{CurveMethod, Estimate, EstimateOptions, NoSuchCurveMethod, RequestBatch, Sampled};
pub use exact::{ExactLru, Requests};
pub use mini::{MiniPoint, Miniature};
pub use paired::Paired;
pub use partition::{Method, NoSuchMethod, PartitionError, Tenant};
pub use shards::{Sample, Shards};
pub use stack::StackDistances;
pub use talus::{Talus, talus};
pub use undercroft_engine::curve::{Curve, partitioned, shared};
pub use working_set::{Window, WindowCounts, WindowError, WorkingSet};
pub use zipf::{Popularity, ZipfFit};
