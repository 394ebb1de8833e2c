//! The LRU curve by the average eviction time model, and average footprints.
//!
//! Owns a sample of reuse times. Never keeps an order of blocks, so a request that is not in the sample costs a hash
//! and a look at one byte. Invariant: memory follows the blocks that are being watched, at most `rate` times the
//! requests.
//!
//! AET (Hu, Wang, Zhou, Luo, Wang, Ding and Zhang, "Kinetic Modeling of Data Eviction in Cache", ATC 2016): a block
//! that is not asked for again wanders down the queue at the pace at which requests miss; when the paces add up to the
//! cache's size it is evicted. So the cache of c blocks misses what is not reused within T(c), where survival sums up
//! to c. The model knows averages: on loads whose phases differ much it errs, by what it would on all reuse times,
//! however many are sampled.

use crate::curves::reuse::ReuseTimes;
use crate::curves::watch::Watch;
use undercroft_engine::HashKey;
use undercroft_engine::curve::{Curve, bucket, last_of};

/// The curve of a trace by the eviction time model.
pub struct Aet {
    key: HashKey,
    watch: Watch,
    times: ReuseTimes,
}

impl Aet {
    /// Samples one request in `1 / rate` (0 < rate <= 1), chosen by `seed`.
    pub fn new(rate: f64, seed: u64) -> Self {
        let key = HashKey::from_seed(seed);
        Self { key, watch: Watch::new(rate, key), times: ReuseTimes::default() }
    }

    /// Requests in order.
    pub fn observe(&mut self, blocks: &[u64]) {
        for &block in blocks {
            let hash = self.key.hash(block);
            if let Some(watched) = self.watch.request(block, hash) {
                self.times.add(self.watch.time() - watched.time);
            }
            if self.watch.is_picked() {
                self.watch.watch(block, hash, 0);
            }
        }
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        self.watch.time()
    }

    /// Reuse times with the requests that were the last for their block: whose block has not come yet never will.
    fn times(&self) -> ReuseTimes {
        self.times.with_last(self.watch.watched().map(|w| self.watch.time() + 1 - w.time))
    }

    /// Requests that a sampled one stands for.
    fn weight(&self) -> f64 {
        self.requests() as f64 / (self.watch.picked() as f64).max(1.0)
    }

    /// The curve.
    pub fn curve(&self) -> Curve {
        let (requests, weight, times) = (self.requests() as f64, self.weight(), self.times());
        let footprints = times.footprints(self.requests(), weight, times.buckets());
        let (counts, never) = times.survivors();
        let mut misses = never + counts.iter().sum::<f64>();
        let mut points = vec![];
        for (&size, &hits) in footprints.at_ends().iter().zip(counts) {
            misses -= hits;
            if size > 0.0 {
                points.push((size.round() as u64, (misses * weight).min(requests)));
            }
        }
        Curve::new(requests, points)
    }

    /// The different blocks that `window` requests in a row touch on average; of more requests than there were, as of
    /// those.
    pub fn footprint(&self, window: u64) -> f64 {
        let window = window.min(self.requests());
        let at = bucket(window);
        let footprints = self.times().footprints(self.requests(), self.weight(), at + 1);
        let (from, before) = at.checked_sub(1).map_or((0, 0.0), |b| (last_of(b), footprints.at_ends()[b]));
        let to = last_of(at).min(self.requests());
        before + (footprints.at_ends()[at] - before) * (window - from) as f64 / (to - from).max(1) as f64
    }

    /// An estimate of the different blocks so far.
    pub fn distinct(&self) -> f64 {
        self.watch.watched().count() as f64 * self.weight()
    }

    /// Requests in the sample.
    pub(crate) fn picked(&self) -> u64 {
        self.watch.picked()
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        self.watch.memory_bytes() + self.times.buckets() * size_of::<f64>()
    }
}
