//! The LRU curve from a spatial sample, as SHARDS takes it: of fixed rate, or of fixed size with a rate that falls.
//!
//! Owns nothing but the choice: the sampler is the engine's own, which the daemon runs on live disks. Never lets intervals
//! pass, so that everything counts alike. Invariant: with a rate of 1 and enough room the curve is exact where the
//! engine's buckets (1/64 of a size) end.
//!
//! SHARDS and its adjustment SHARDS-adj (Waldspurger, Park, Garthwaite and Ahmad, FAST 2015), with the difference between
//! expected and sampled requests divided among hits and misses: see the engine's `curve::LruCurve`. Where a hot block
//! decides, [`crate::Paired`] errs much less for the same rate.

use undercroft_engine::HashKey;
use undercroft_engine::curve::{Curve, LruCurve, LruCurveOptions};

/// How much is sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sample {
    /// This part of all blocks, 0 to 1.
    Rate(f64),
    /// At most so many blocks, at least 64, and at first all.
    Blocks(u32),
}

/// See the head of the file.
pub struct Shards {
    curve: LruCurve,
}

impl Shards {
    /// An empty sample; `seed` decides which blocks it is of.
    pub fn new(sample: Sample, seed: u64) -> Self {
        let (rate_max, samples_max) = match sample {
            Sample::Rate(rate) => (rate, u32::MAX),
            Sample::Blocks(blocks) => (1.0, blocks),
        };
        let options = LruCurveOptions { rate_max, samples_max, size_max: u64::MAX };
        Self { curve: LruCurve::new(options, HashKey::from_seed(seed)) }
    }

    /// Requests in order.
    pub fn observe(&mut self, blocks: &[u64]) {
        blocks.iter().for_each(|&block| self.curve.observe(block));
    }

    /// The curve.
    pub fn curve(&self) -> Curve {
        self.curve.curve()
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
        self.curve.memory_bytes()
    }
}
