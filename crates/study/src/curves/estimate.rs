//! A curve in the making, by whichever method.
//!
//! Owns the choice. Never reads. Invariant: what samples the same blocks by the same seed gives the same curve, however
//! the requests were cut into batches.

use crate::curves::bars::{BLOCKS_FEW, Bars, REQUESTS_FEW, Sideways, Vertical};
use crate::curves::{Aet, ExactLru, Miniature, Paired, Requests, Sample, Shards};
use crate::sim::{SimError, check_memory, check_slots};
use std::str::FromStr;
use undercroft_engine::curve::Curve;
use undercroft_engine::{AnyPolicyKind, PolicyKind};

/// How a curve is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CurveMethod {
    /// Stack distances for LRU, simulations for other policies.
    Exact,
    /// A sample of blocks (SHARDS).
    Shards,
    /// A sample of requests, whose distances a sample of blocks tells.
    Paired,
    /// The average eviction time model.
    Aet,
    /// Small caches on a sample of blocks.
    Mini,
}

impl CurveMethod {
    /// All.
    pub const ALL: [CurveMethod; 5] =
        [CurveMethod::Exact, CurveMethod::Shards, CurveMethod::Paired, CurveMethod::Aet, CurveMethod::Mini];

    /// As the command line writes it.
    pub fn name(self) -> &'static str {
        match self {
            CurveMethod::Exact => "exact",
            CurveMethod::Shards => "shards",
            CurveMethod::Paired => "paired",
            CurveMethod::Aet => "aet",
            CurveMethod::Mini => "mini",
        }
    }

    /// What it is, for help.
    pub fn about(self) -> &'static str {
        match self {
            CurveMethod::Exact => "No sampling: stack distances for LRU, whole simulations for other policies",
            CurveMethod::Shards => "LRU from a sample of blocks (SHARDS, FAST 2015)",
            CurveMethod::Paired => {
                "LRU from a sample of requests, whose distances a sample of blocks tells: the most exact of the samples"
            }
            CurveMethod::Aet => {
                "LRU by the average eviction time model (ATC 2016), from a sample of requests: the fastest"
            }
            CurveMethod::Mini => {
                "Any policy, by simulating small caches on a sample of blocks (ATC 2017) beside LRU's exact curve"
            }
        }
    }

    /// Whether it can make a curve of this policy.
    pub fn knows(self, policy: AnyPolicyKind) -> bool {
        policy == PolicyKind::Lru || matches!(self, CurveMethod::Exact | CurveMethod::Mini)
    }

    /// Whether its sizes must be known before it begins, with this policy.
    pub fn needs_sizes(self, policy: AnyPolicyKind) -> bool {
        matches!(self, CurveMethod::Mini | CurveMethod::Exact) && policy != PolicyKind::Lru
    }

    /// Whether it is better off if the different blocks are known before it begins.
    pub fn needs_footprint(self, policy: AnyPolicyKind) -> bool {
        self == CurveMethod::Mini && policy != PolicyKind::Lru
    }
}

/// A name that no [`CurveMethod`] has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is no way to make a curve; take one of {}", CurveMethod::ALL.map(CurveMethod::name).join(", "))]
pub struct NoSuchCurveMethod {
    name: String,
}

impl FromStr for CurveMethod {
    type Err = NoSuchCurveMethod;

    /// # Errors
    /// The names there are.
    fn from_str(text: &str) -> Result<Self, NoSuchCurveMethod> {
        CurveMethod::ALL
            .into_iter()
            .find(|m| m.name() == text)
            .ok_or_else(|| NoSuchCurveMethod { name: text.to_owned() })
    }
}

/// Requests in the order of the trace; the three are of one length.
#[derive(Clone, Debug, Default)]
pub struct RequestBatch {
    /// Blocks.
    pub blocks: Vec<u64>,
    /// Whether each is a write.
    pub writes: Vec<bool>,
    /// When, in nanoseconds of the trace's time.
    pub times: Vec<u64>,
}

impl RequestBatch {
    /// Forgets them.
    pub fn clear(&mut self) {
        self.blocks.clear();
        self.writes.clear();
        self.times.clear();
    }

    /// Adds one.
    pub fn push(&mut self, block: u64, write: bool, time_ns: u64) {
        self.blocks.push(block);
        self.writes.push(write);
        self.times.push(time_ns);
    }
}

/// What is sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EstimateOptions {
    /// The part of blocks or requests, above 0 to 1; for miniature caches, at least (see [`Miniature`]).
    pub rate: f64,
    /// For SHARDS: at most so many blocks, at a rate that falls, instead of the part.
    pub samples: Option<u32>,
    /// Chooses the sample.
    pub seed: u64,
    /// The different blocks, if they are known: for miniature caches.
    pub footprint: Option<u64>,
}

/// How much a curve's sample has, and what that is too little for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// Blocks or requests.
    pub of: &'static str,
    /// How many of them.
    pub count: u64,
    /// Below this size, in blocks, there is no answer.
    pub too_few_below: u64,
}

/// A curve that is being made, by one of the methods.
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
    /// Nothing seen yet. `sizes`, in blocks, are needed where caches are simulated; `of` is for exact curves of LRU. Of
    /// a policy that the method does not know ([`CurveMethod::knows`]), the curve is LRU's.
    pub fn new(
        method: CurveMethod,
        policy: impl Into<AnyPolicyKind>,
        of: Requests,
        sizes: &[u64],
        options: &EstimateOptions,
    ) -> Self {
        let policy = policy.into();
        let EstimateOptions { rate, samples, seed, footprint } = *options;
        match method {
            CurveMethod::Exact if policy == PolicyKind::Lru => Estimate::Exact(Box::default(), of),
            CurveMethod::Exact => Estimate::Mini(Box::new(Miniature::new(policy, sizes, 1.0, None, seed))),
            CurveMethod::Mini => Estimate::Mini(Box::new(Miniature::new(policy, sizes, rate, footprint, seed))),
            CurveMethod::Shards => {
                let sample = samples.map_or(Sample::Rate(rate), Sample::Blocks);
                Estimate::Shards(Box::new(Shards::new(sample, seed)))
            }
            CurveMethod::Paired => Estimate::Paired(Box::new(Paired::new(rate, seed))),
            CurveMethod::Aet => Estimate::Aet(Box::new(Aet::new(rate, seed))),
        }
    }

    /// Refuses what [`Estimate::new`] of the same, one for each policy, would need more slots for than a cache can
    /// have, or more memory than `there` bytes.
    ///
    /// # Errors
    /// The caches are too large.
    pub fn check(
        method: CurveMethod,
        policies: &[AnyPolicyKind],
        sizes: &[u64],
        options: &EstimateOptions,
        there: u64,
    ) -> Result<(), SimError> {
        let mut caches = vec![];
        for &policy in policies.iter().filter(|&&policy| method.needs_sizes(policy)) {
            let (rate, footprint) = match method {
                CurveMethod::Mini => (options.rate, options.footprint),
                _ => (1.0, None),
            };
            for slots in Miniature::slots(policy, sizes, rate, footprint) {
                check_slots(policy, slots)?;
                caches.push(u32::try_from(slots).unwrap_or(u32::MAX));
            }
        }
        check_memory(caches, there)
    }

    /// The next requests.
    pub fn observe(&mut self, batch: &RequestBatch) {
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

    /// How far the curve may be off; `curve` is that of now.
    pub fn bars(&self, curve: &Curve) -> Bars {
        match self {
            Estimate::Exact(..) => Bars::exact(),
            Estimate::Mini(mini) => Bars::of_points(curve.requests(), mini.points()),
            Estimate::Shards(shards) if shards.rate() >= 1.0 => Bars::exact(),
            Estimate::Shards(shards) => {
                let (vertical, sideways) = shards.chance();
                Bars::of_sample(curve.clone(), vertical, sideways)
            }
            Estimate::Paired(paired) => {
                let (vertical, sideways) = paired.chance();
                Bars::of_sample(curve.clone(), vertical, sideways)
            }
            Estimate::Aet(aet) => {
                let picked = aet.picked();
                Bars::of_sample(curve.clone(), Vertical::Picked(picked), Sideways::Summed { picked })
            }
        }
    }

    /// What the sample has; `None` where nothing is sampled, and of miniature caches, which sample enough for each
    /// size.
    pub fn sampled(&self) -> Option<Sampled> {
        let blocks = |count: u64, rate: f64| {
            let below = if (count as f64) < BLOCKS_FEW { u64::MAX } else { (BLOCKS_FEW / rate).ceil() as u64 };
            Some(Sampled { of: "blocks", count, too_few_below: below })
        };
        match self {
            Estimate::Exact(..) | Estimate::Mini(_) => None,
            Estimate::Shards(shards) if shards.rate() >= 1.0 => None,
            Estimate::Shards(shards) => blocks(shards.samples().into(), shards.rate()),
            Estimate::Paired(paired) => blocks(paired.samples(), paired.rate()),
            Estimate::Aet(aet) => {
                let below = if aet.picked() < REQUESTS_FEW { u64::MAX } else { 0 };
                Some(Sampled { of: "requests", count: aet.picked(), too_few_below: below })
            }
        }
    }

    /// The different blocks so far, and whether that is exact; `None` where all caches are simulated whole.
    pub fn footprint(&self) -> Option<(u64, bool)> {
        match self {
            Estimate::Exact(exact, _) => Some((exact.footprint(), true)),
            Estimate::Shards(shards) => Some((shards.footprint().round() as u64, shards.rate() >= 1.0)),
            Estimate::Paired(paired) => Some((paired.footprint().round() as u64, false)),
            Estimate::Aet(aet) => Some((aet.distinct().round() as u64, false)),
            Estimate::Mini(mini) => mini.footprint().map(|blocks| (blocks, true)),
        }
    }
}
