//! A curve in the making, by whichever method.
//!
//! Owns the choice. Never reads. Invariant: what samples the same blocks by the same seed gives the same curve, however the
//! requests were cut into batches.

use super::curve_args::{CurveMethod, TraceArgs};
use super::curve_input::Batch;
use undercroft_curves::{Aet, Curve, ExactLru, Miniature, Paired, Requests, Sample, Shards};
use undercroft_engine::PolicyKind;

/// See the head of the file.
pub enum Estimate {
    /// Stack distances.
    Exact(Box<ExactLru>, Requests),
    /// A sample of blocks.
    Shards(Box<Shards>),
    /// Two samples.
    Paired(Box<Paired>),
    /// The eviction time model.
    Aet(Box<Aet>),
    /// Small caches, or whole ones.
    Mini(Box<Miniature>),
}

impl Estimate {
    /// Nothing seen yet. `sizes`, in blocks, are needed where caches are simulated.
    pub fn new(method: CurveMethod, policy: PolicyKind, of: Requests, sizes: &[u64], args: &TraceArgs) -> Self {
        let (rate, seed) = (args.rate, args.seed);
        match method {
            CurveMethod::Exact if policy == PolicyKind::Lru => Estimate::Exact(Box::default(), of),
            CurveMethod::Exact => Estimate::Mini(Box::new(Miniature::new(policy, sizes, 1.0, seed))),
            CurveMethod::Mini => Estimate::Mini(Box::new(Miniature::new(policy, sizes, rate, seed))),
            CurveMethod::Shards => {
                let sample = args.samples.map_or(Sample::Rate(rate), Sample::Blocks);
                Estimate::Shards(Box::new(Shards::new(sample, seed)))
            }
            CurveMethod::Paired => Estimate::Paired(Box::new(Paired::new(rate, seed))),
            CurveMethod::Aet => Estimate::Aet(Box::new(Aet::new(rate, seed))),
        }
    }

    /// Whether this method needs to know its sizes before it begins.
    pub fn needs_sizes(method: CurveMethod, policy: PolicyKind) -> bool {
        method == CurveMethod::Mini || method == CurveMethod::Exact && policy != PolicyKind::Lru
    }

    /// The next requests.
    pub fn observe(&mut self, batch: &Batch) {
        match self {
            Estimate::Exact(exact, Requests::All) => exact.observe(&batch.blocks),
            Estimate::Exact(exact, _) => exact.observe_kinds(&batch.blocks, &batch.writes),
            Estimate::Shards(shards) => shards.observe(&batch.blocks),
            Estimate::Paired(paired) => paired.observe(&batch.blocks),
            Estimate::Aet(aet) => aet.observe(&batch.blocks),
            Estimate::Mini(mini) => mini.observe(&batch.blocks),
        }
    }

    /// The curve so far.
    pub fn curve(&self) -> Curve {
        match self {
            Estimate::Exact(exact, of) => exact.curve(*of),
            Estimate::Shards(shards) => shards.curve(),
            Estimate::Paired(paired) => paired.curve(),
            Estimate::Aet(aet) => aet.curve(),
            Estimate::Mini(mini) => mini.curve(),
        }
    }

    /// The different blocks so far, and whether that is exact; `None` where caches are simulated.
    pub fn footprint(&self) -> Option<(u64, bool)> {
        match self {
            Estimate::Exact(exact, _) => Some((exact.footprint(), true)),
            Estimate::Shards(shards) => Some((shards.footprint().round() as u64, shards.rate() >= 1.0)),
            Estimate::Paired(paired) => Some((paired.footprint().round() as u64, false)),
            Estimate::Aet(aet) => Some((aet.distinct().round() as u64, false)),
            Estimate::Mini(_) => None,
        }
    }
}
