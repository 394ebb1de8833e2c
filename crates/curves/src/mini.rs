//! The curve of any policy, from miniature caches.
//!
//! Owns nothing but the choice: the caches are the engine's own (`PolicyCurve`), which the daemon runs beside live disks.
//! Never lets intervals pass, so the misses of a cache that fills count, as they do in a replay.
//! Invariant: at a rate of 1 each size is simulated whole, and its misses are those of a replay.
//!
//! Waldspurger, Saemundsson, Ahmad and Park, "Cache Modeling and Optimization using Miniature Simulations", ATC 2017; all
//! sizes get about as many slots, so small sizes are simulated at higher rates than large ones, where the paper has one rate.

use undercroft_engine::curve::{Curve, PolicyCurve, PolicyCurveOptions};
use undercroft_engine::{HashKey, PolicyKind};

/// See the head of the file.
pub struct Miniature {
    curve: PolicyCurve,
}

impl Miniature {
    /// Caches of `kind` that stand for `sizes` blocks (0 is ignored), at `rate` on average over the sizes (0 < rate <= 1).
    pub fn new(kind: PolicyKind, sizes: &[u64], rate: f64, seed: u64) -> Self {
        let mut sizes: Vec<u64> = sizes.iter().copied().filter(|&size| size > 0).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let options = PolicyCurveOptions {
            // a hair more than the sum, so that rounding does not leave the smallest one out
            rates_sum_max: rate * sizes.len() as f64 * (1.0 + 1e-9),
            slots_max: u32::MAX - 1,
            slots_min: 1,
        };
        Self { curve: PolicyCurve::new(kind, &sizes, options, HashKey::from_seed(seed)) }
    }

    /// Requests in order.
    pub fn observe(&mut self, blocks: &[u64]) {
        blocks.iter().for_each(|&block| self.curve.observe(block));
    }

    /// The sizes that are simulated, rising: all, unless the rate is too low to give each a slot.
    pub fn sizes(&self) -> Vec<u64> {
        self.curve.sizes()
    }

    /// The curve, with a point at each size.
    pub fn curve(&self) -> Curve {
        self.curve.curve()
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        self.curve.memory_bytes()
    }
}
