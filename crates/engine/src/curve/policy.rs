//! The miss curve of the policy in use, at a few sizes, from caches that are scaled down.
//!
//! Owns the miniature caches: each is an [`Index`] like the disk's own, with fewer slots, that is asked only for as
//! small a part of the blocks. Never sees what the disk's own index decided.
//! Invariant: the rates' sum is within the budget. Where not even the largest size fits, there is no cache.
//!
//! Miniature simulation (Waldspurger, Saemundsson, Ahmad and Park, "Cache Modeling and Optimization using Miniature
//! Simulations", ATC 2017): a cache of s blocks behaves like one of R·s slots on the blocks that are sampled at rate R.
//! All caches get about the same number of slots, so the larger ones sample fewer blocks, and of nested samples.

use super::filter::Threshold;
use super::histogram::Weight;
use super::points::Curve;
use crate::index::{Access, Index};
use crate::policy::{Outcome, PolicyKind, PolicySet};
use crate::structures::table::HashKey;

/// What a [`PolicyCurve`] may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicyCurveOptions {
    /// The sum of the rates at which all miniature caches sample: what bounds the time. As many as there are sizes,
    /// with `slots_max` large enough makes each of them whole and exact.
    pub rates_sum_max: f64,
    /// Slots of a miniature cache at most: what bounds the memory, at about 50 bytes each.
    pub slots_max: u32,
    /// Slots without which a miniature cache says too little: where the budget does not reach, the smallest sizes
    /// are left out.
    pub slots_min: u32,
}

impl Default for PolicyCurveOptions {
    /// 1 in 128 in all, 32 to 1024 slots.
    fn default() -> Self {
        Self { rates_sum_max: 1.0 / 128.0, slots_max: 1024, slots_min: 32 }
    }
}

/// Sampled requests for each slot after which a miniature cache is said to be warm though it never became full.
const WARM_REQUESTS_PER_SLOT: u64 = 8;

/// The sizes that [`sizes_around`] gives.
const SIZES: usize = 6;

/// Six sizes around a share of `share` blocks, up to `max`: powers of the square root of 2, so that a share that moves
/// a little keeps all of them and one that moves more keeps most. From about half the share to almost three times as
/// much; near `max`, further below. Fewer where sizes would be below 4 blocks.
pub fn sizes_around(share: u64, max: u64) -> Vec<u64> {
    let size = |step: i32| 2f64.powf(f64::from(step) / 2.0).round() as u64;
    let step_below = |blocks: u64| ((blocks.max(4) as f64).log2() * 2.0 + 1e-9).floor() as i32;
    let last = (step_below(share.min(max)) + 3).min(step_below(max));
    let sizes = (last - SIZES as i32 + 1..=last).map(size).filter(|&s| s >= 4);
    sizes.collect()
}

/// See the head of the file. Only construction, [`PolicyCurve::set_sizes`] and [`PolicyCurve::set_policy`] allocate.
pub struct PolicyCurve<K: PolicySet = PolicyKind> {
    options: PolicyCurveOptions,
    kind: K,
    key: HashKey,
    /// By falling threshold, so by rising size.
    caches: Vec<Miniature<K>>,
    /// Requests ever.
    clock: u64,
    /// Requests when `decay` was last called.
    decayed: u64,
}

struct Miniature<K: PolicySet> {
    /// The size it stands for, in blocks.
    size: u64,
    threshold: Threshold,
    index: Index<K>,
    /// Requests that a sampled one stands for.
    weight: f64,
    /// How often the block in each slot was asked for since it came, halved with all else.
    asked: Vec<u32>,
    /// Sampled requests and the misses among them, as they stand for all blocks; those of earlier intervals halved.
    told: Weight,
    missed: Weight,
    /// Requests, likewise, of all blocks, until `counted_to`.
    requests: f64,
    counted_to: u64,
    /// Sampled requests ever.
    sampled: u64,
    warm: bool,
}

impl<K: PolicySet> Miniature<K> {
    fn new(size: u64, plan: (u32, Threshold), kind: K, key: HashKey, clock: u64) -> Self {
        let (slots, threshold) = plan;
        // not the key of the filter: what is sampled has low hashes by it, and all homes would be one
        let index = Index::with_hash_key(kind, slots, key.derived());
        let weight = 1.0 / threshold.rate();
        let (told, missed, asked) = (Weight::default(), Weight::default(), vec![0; slots as usize]);
        Self {
            size,
            threshold,
            index,
            weight,
            asked,
            told,
            missed,
            requests: 0.0,
            counted_to: clock,
            sampled: 0,
            warm: false,
        }
    }
}

/// Slots and threshold for each of some sizes (rising), within the budget; `None` for a size that is left out.
fn plan(sizes: &[u64], options: &PolicyCurveOptions) -> Vec<Option<(u32, Threshold)>> {
    let rate = |size: u64, slots: f64| (slots / size as f64).min(1.0);
    let sum = |from: usize, slots: f64| sizes[from..].iter().map(|&s| rate(s, slots)).sum::<f64>();
    let slots_max = f64::from(options.slots_max.max(1));
    let slots_min = f64::from(options.slots_min).clamp(1.0, slots_max);
    let from = (0..sizes.len()).find(|&from| sum(from, slots_min) <= options.rates_sum_max).unwrap_or(sizes.len());
    // as many as the budget allows: the sum rises with the slots
    let (mut low, mut high) = (slots_min, slots_max);
    for _ in 0..32 {
        let middle = (low + high) / 2.0;
        if sum(from, middle) <= options.rates_sum_max { low = middle } else { high = middle }
    }
    let slots = if sum(from, slots_max) <= options.rates_sum_max { slots_max } else { low };
    let one = |&size: &u64| {
        let slots = slots.min(size as f64).floor();
        (slots as u32, Threshold::of_rate(slots / size as f64))
    };
    sizes.iter().enumerate().map(|(i, size)| (i >= from).then(|| one(size))).collect()
}

impl<K: PolicySet> PolicyCurve<K> {
    /// Miniature caches of `kind` for `sizes` in blocks (any order; 0 is ignored). The key decides which blocks are
    /// sampled, and is as secret as the index's.
    pub fn new(kind: K, sizes: &[u64], options: PolicyCurveOptions, key: HashKey) -> Self {
        Self::with_filter(kind, sizes, options, key.derived())
    }

    /// The same for a caller that hashes blocks with `key` already.
    pub(super) fn with_filter(kind: K, sizes: &[u64], options: PolicyCurveOptions, key: HashKey) -> Self {
        let mut curve = Self { options, kind, key, caches: vec![], clock: 0, decayed: 0 };
        curve.set_sizes(sizes);
        curve
    }

    /// One request for `block`.
    #[inline]
    pub fn observe(&mut self, block: u64) {
        self.clock += 1;
        let hash = self.key.hash(block);
        if self.threshold().is_some_and(|t| t.admits(hash)) {
            self.sampled(&[(block, hash)]);
        }
    }

    /// The highest hash that any cache samples; `None` without caches.
    #[inline]
    pub(super) fn threshold(&self) -> Option<Threshold> {
        self.caches.first().map(|cache| cache.threshold)
    }

    /// Counts requests whose blocks the caller has filtered.
    pub(super) fn count(&mut self, requests: u64) {
        self.clock += requests;
    }

    /// Requests in order, as block and hash; some of them for blocks that a cache samples.
    pub(super) fn sampled(&mut self, requests: &[(u64, u64)]) {
        for cache in &mut self.caches {
            let threshold = cache.threshold;
            for &(block, _) in requests.iter().filter(|&&(_, hash)| threshold.admits(hash)) {
                cache.access(block);
            }
        }
    }

    /// Other sizes. A cache whose size stays keeps what it knows: where the budget now gives it fewer slots it shrinks,
    /// and only where it could have twice as many it begins anew. In proportion to the slots.
    pub fn set_sizes(&mut self, sizes: &[u64]) {
        let mut sizes: Vec<u64> = sizes.iter().copied().filter(|&s| s > 0).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let plans = plan(&sizes, &self.options);
        let mut before = std::mem::take(&mut self.caches);
        for (size, plan) in sizes.into_iter().zip(plans) {
            let Some(plan) = plan else { continue };
            let same = |c: &Miniature<K>| c.size == size && c.index.capacity() > plan.0 / 2;
            let cache = match before.iter().position(same) {
                Some(at) => {
                    let mut cache = before.swap_remove(at);
                    cache.shrink(plan, self.key);
                    cache
                }
                None => Miniature::new(size, plan, self.kind, self.key, self.clock),
            };
            self.caches.push(cache);
        }
        // caches that were kept may have fewer slots than the others: larger sizes could sample more
        self.caches.sort_by_key(|cache| std::cmp::Reverse(cache.threshold));
    }

    /// The sizes that have a cache, rising.
    pub fn sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<u64> = self.caches.iter().map(|cache| cache.size).collect();
        sizes.sort_unstable();
        sizes
    }

    /// Another policy. What is cached stays, as in [`Index::switch`]; what was counted does not.
    pub fn set_policy(&mut self, kind: K) {
        if kind == self.kind {
            return;
        }
        self.kind = kind;
        for cache in &mut self.caches {
            cache.index.switch(kind);
            cache.start_anew(self.clock);
        }
    }

    /// The policy.
    pub fn kind(&self) -> K {
        self.kind
    }

    /// Ends an interval: all that was counted so far weighs half from now on. A cache that has become warm in it starts
    /// to count: what it missed while it filled says nothing of its size. If nothing was counted since the last call
    /// nothing happens.
    pub fn decay(&mut self) {
        if self.clock == self.decayed {
            return;
        }
        self.decayed = self.clock;
        for cache in &mut self.caches {
            let slots = cache.index.capacity();
            let full = cache.index.len() == slots;
            if !cache.warm && (full || cache.sampled >= u64::from(slots) * WARM_REQUESTS_PER_SLOT) {
                cache.start_anew(self.clock);
                cache.warm = true;
                continue;
            }
            cache.requests = (cache.requests + (self.clock - cache.counted_to) as f64) / 2.0;
            cache.counted_to = self.clock;
            cache.told.halve();
            cache.missed.halve();
            cache.asked.iter_mut().for_each(|asked| *asked = asked.div_ceil(2));
        }
    }

    /// Whether at least half of the caches are warm and have counted since: from then on the curve tells the policy's
    /// steady state.
    pub fn is_ready(&self) -> bool {
        !self.caches.is_empty() && self.caches.iter().filter(|c| self.is_steady(c)).count() * 2 >= self.caches.len()
    }

    fn is_steady(&self, cache: &Miniature<K>) -> bool {
        cache.warm && cache.counted(self.clock) > 0.0
    }

    /// The curve: the requests of all intervals, the earlier ones weighing less each, and a point for each cache that
    /// is warm; if it is not ready, for all, with the misses of their filling up.
    pub fn curve(&self) -> Curve {
        let ready = self.is_ready();
        let caches = self.caches.iter().filter(|c| !ready || self.is_steady(c)).filter(|c| c.counted(self.clock) > 0.0);
        let requests = caches.clone().map(|c| c.counted(self.clock)).fold(0.0, f64::max);
        let points = caches.map(|c| {
            let counted = c.counted(self.clock);
            (c.size, c.missed.misses_of(c.told, counted, c.weight) / counted * requests)
        });
        Curve::new(requests, points)
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        let beside = self.caches.capacity() * size_of::<Miniature<K>>() - self.caches.len() * size_of::<Index<K>>();
        size_of::<Self>()
            + beside
            + self.caches.iter().map(|c| c.index.memory_bytes() + c.asked.capacity() * size_of::<u32>()).sum::<usize>()
    }

    /// Checks the invariants; for tests. Panics with what is broken.
    pub fn check(&self) {
        let rates: f64 = self.caches.iter().map(|cache| cache.threshold.rate()).sum();
        assert!(rates <= self.options.rates_sum_max * (1.0 + 1e-6), "the rates add up to {rates}");
        assert!(self.caches.is_sorted_by_key(|cache| std::cmp::Reverse(cache.threshold)), "thresholds fall");
        for cache in &self.caches {
            cache.index.check();
            for (block, _) in cache.index.iter() {
                assert!(cache.threshold.admits(self.key.hash(block)), "block {block} is not to be sampled");
            }
        }
    }
}

impl<K: PolicySet> Miniature<K> {
    #[inline]
    fn access(&mut self, block: u64) {
        self.sampled += 1;
        let (asked, missed) = match self.index.access(block, Access::Read, |_| true) {
            Outcome::Hit(slot) => {
                let asked = &mut self.asked[slot as usize];
                *asked = asked.saturating_add(1);
                (*asked, false)
            }
            Outcome::Fill { slot, .. } => {
                self.asked[slot as usize] = 1;
                (1, true)
            }
            Outcome::Bypass => (1, true),
        };
        let weight = Weight { requests: self.weight, popular: self.weight * f64::from(asked) };
        self.told.add(weight);
        if missed {
            self.missed.add(weight);
        }
    }

    /// Requests that the misses are of.
    fn counted(&self, clock: u64) -> f64 {
        self.requests + (clock - self.counted_to) as f64
    }

    /// Makes do with fewer slots and as many blocks fewer, if `plan` has fewer; what was counted stays.
    fn shrink(&mut self, (slots, threshold): (u32, Threshold), key: HashKey) {
        if slots >= self.index.capacity() {
            return;
        }
        (self.threshold, self.weight) = (threshold, 1.0 / threshold.rate());
        let blocks = self.index.iter().map(|(block, _)| block);
        let gone: Vec<u64> = blocks.filter(|&block| !threshold.admits(key.hash(block))).collect();
        for block in gone {
            self.index.remove(block);
        }
        let Self { index, asked, .. } = self;
        index.resize(slots, |_| true, |_, _| {}, |from, to| asked[to as usize] = asked[from as usize]);
        asked.truncate(slots as usize);
        asked.shrink_to_fit();
    }

    fn start_anew(&mut self, clock: u64) {
        (self.told, self.missed, self.requests, self.counted_to) = (Weight::default(), Weight::default(), 0.0, clock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the filter's own key all sampled blocks have low hashes, and an index that used it would search its whole
    /// table at each request.
    #[test]
    fn sampled_blocks_spread_over_the_tables_of_their_miniature_caches() {
        let mut curve =
            PolicyCurve::new(PolicyKind::Lru, &[100_000], PolicyCurveOptions::default(), HashKey::from_seed(1));
        (0..100_000).for_each(|block| curve.observe(block));
        let index = &curve.caches[0].index;
        let upper = index.iter().filter(|&(block, _)| index.slots.hash(block) >> 63 == 1).count();
        let all = index.len() as usize;
        assert!(all > 500 && (all * 2 / 5..=all * 3 / 5).contains(&upper), "{upper} of {all} in the upper half");
    }
}
