//! The LRU curve from a spatial sample, as SHARDS takes it: of fixed rate, or of fixed size with a rate that falls.
//!
//! Owns nothing but the choice: the sampler is the engine's own, which the daemon runs on live disks. Never lets
//! intervals pass, so that everything counts alike. Invariant: with a rate of 1 and enough room the curve is exact
//! where the engine's buckets (1/64 of a size) end.
//!
//! SHARDS and its adjustment SHARDS-adj (Waldspurger, Park, Garthwaite and Ahmad, FAST 2015), with the difference
//! between expected and sampled requests divided among hits and misses: see the engine's `curve::LruCurve`. Where a hot
//! block decides, [`crate::curves::Paired`] errs much less for the same rate.

use crate::curves::bars::{Sideways, Vertical};
use undercroft_engine::HashKey;
use undercroft_engine::curve::{Curve, LruCurve, LruCurveOptions};

/// Groups of the blocks that tell how far the curve may be off.
const GROUPS: usize = 8;
/// Blocks that a sampler takes at least.
const SAMPLES_MIN: u32 = 64;

/// How much is sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sample {
    /// This part of all blocks, 0 to 1.
    Rate(f64),
    /// At most so many blocks, at least 64, and at first all.
    Blocks(u32),
}

/// The curve of a trace by a sample of its blocks.
pub struct Shards {
    curve: LruCurve,
    /// Each of another part of the blocks, and all together of as large a sample as the curve.
    groups: Vec<LruCurve>,
    key: HashKey,
    /// What comes to the groups: of a sample of fixed rate only what is sampled.
    threshold: u64,
    rate: f64,
}

impl Shards {
    /// An empty sample; `seed` decides which blocks it is of.
    pub fn new(sample: Sample, seed: u64) -> Self {
        let (rate_max, samples_max) = match sample {
            Sample::Rate(rate) => (rate, u32::MAX),
            Sample::Blocks(blocks) => (1.0, blocks),
        };
        let options = LruCurveOptions { rate_max, samples_max, size_max: u64::MAX };
        let (threshold, rate) = match sample {
            Sample::Rate(rate) => ((rate * 2f64.powi(64)) as u64, rate),
            Sample::Blocks(_) => (u64::MAX, 1.0),
        };
        let samples_max =
            if samples_max == u32::MAX { samples_max } else { (samples_max / GROUPS as u32).max(SAMPLES_MIN) };
        let group = |n: usize| {
            let options = LruCurveOptions { rate_max: 1.0, samples_max, size_max: u64::MAX };
            LruCurve::new(options, HashKey::from_seed(seed.wrapping_add(n as u64 + 1) ^ 0x6772_6f75_7073))
        };
        let groups = (0..GROUPS).map(group).collect();
        Self {
            curve: LruCurve::new(options, HashKey::from_seed(seed)),
            groups,
            key: HashKey::from_seed(!seed),
            threshold,
            rate,
        }
    }

    /// Requests in order.
    pub fn observe(&mut self, blocks: &[u64]) {
        for &block in blocks {
            self.curve.observe(block);
            let hash = self.key.hash(block);
            if hash <= self.threshold {
                self.groups[hash as usize % GROUPS].observe(block);
            }
        }
    }

    /// The curve.
    pub fn curve(&self) -> Curve {
        self.curve.curve()
    }

    /// What chance may have done.
    pub(crate) fn chance(&self) -> (Vertical, Sideways) {
        let part = self.rate / GROUPS as f64;
        let curves = self.groups.iter().map(LruCurve::curve).collect();
        let rate = self.rate();
        (Vertical::Groups { curves, size: part, weight: 1.0 / part, rate }, Sideways::Counted { rate, belief: vec![] })
    }

    /// An estimate of the different blocks so far.
    pub fn footprint(&self) -> f64 {
        self.curve.distinct()
    }

    /// The part of all blocks that is sampled now.
    pub fn rate(&self) -> f64 {
        self.curve.rate()
    }

    /// Blocks in the sample.
    pub fn samples(&self) -> u32 {
        self.curve.samples()
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        self.curve.memory_bytes() + self.groups.iter().map(LruCurve::memory_bytes).sum::<usize>()
    }
}
