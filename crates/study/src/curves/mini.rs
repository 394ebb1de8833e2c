//! The curve of any policy, from miniature caches beside the exact curve of LRU.
//!
//! Owns the caches, and how far off their answer may be. Never lets intervals pass, so the misses of a cache that fills
//! count, as they do in a replay. Invariant: a size's result depends on that size, the rate and the seed, and on no
//! other size; a cache that is simulated whole misses what a replay does.
//!
//! Waldspurger, Saemundsson, Ahmad and Park, "Cache Modeling and Optimization using Miniature Simulations", ATC 2017: a
//! cache of s blocks behaves like one of R·s slots on the blocks that are sampled at rate R. What is done beyond it:
//!
//! - LRU's curve is exact, by stack distances, and a miniature LRU runs beside the policy's own miniature on the same
//!   blocks: what the policy misses is what LRU misses, known, and the sampled difference of the two, in which the
//!   errors that both have in common cancel (a control variate: Lavenberg and Welch, Management Science 1981). LRU
//!   itself needs no sample.
//! - The rate is a lower bound: a cache has at least [`SLOTS_MIN`] slots, and of a trace whose blocks are known at
//!   least [`BLOCKS_MIN`] are sampled; where that is more than a quarter of them, all. What an error depends on is how
//!   much is sampled, not which part of the whole that is.
//! - Rates are powers of a half, so that what a policy has as a power of two (the width of W-TinyLFU's sketch) is in
//!   the same proportion to the slots as in the whole cache.
//! - How far it may be off: the spread of [`GROUPS`] groups of the sampled blocks (random groups: Wolter, Introduction
//!   to Variance Estimation, chapter 2), and how much the answer changes with half as many slots, which tells what a
//!   spread cannot: that the policy behaves otherwise in a small cache.

use crate::curves::{ExactLru, Requests};
use undercroft_engine::curve::Curve;
use undercroft_engine::{Access, AnyPolicyKind, HashKey, Index, Outcome, PolicyKind, StudiedPolicyKind};

/// Slots of a miniature cache at least; twice as many of LFU and SIEVE, eight times as many of W-TinyLFU.
pub const SLOTS_MIN: u64 = 8192;
/// Blocks that are sampled at least, where it is known how many there are.
pub const BLOCKS_MIN: u64 = 65_536;
/// Groups of sampled blocks that tell the spread.
const GROUPS: usize = 16;
/// A sample of more than this part, four caches, costs as much as all.
const WHOLE_ABOVE: f64 = 0.25;
/// Hashes that there are.
const HASHES: f64 = 18_446_744_073_709_551_616.0;

/// A cache of fewer slots on fewer blocks, and an LRU of the same kind.
struct Pair {
    threshold: u64,
    rate: f64,
    policy: Index<AnyPolicyKind>,
    lru: Index<AnyPolicyKind>,
    /// Misses of the policy less those of LRU, by group of blocks.
    more: [i64; GROUPS],
}

impl Pair {
    fn new(kind: AnyPolicyKind, size: u64, rate: f64, key: HashKey) -> Self {
        let slots = ((size as f64 * rate).round() as u32).max(1);
        // to the slot: a cache of whole slots stands for the size exactly
        let rate = (f64::from(slots) / size as f64).min(1.0);
        // not the key of the filter: what is sampled has low hashes by it, and all homes would be one
        let index = |kind| Index::with_hash_key(kind, slots, key.derived());
        Self {
            threshold: (rate * HASHES) as u64,
            rate,
            policy: index(kind),
            lru: index(PolicyKind::Lru.into()),
            more: [0; GROUPS],
        }
    }

    /// A request for a block that is sampled, or is not.
    #[inline]
    fn access(&mut self, block: u64, hash: u64) {
        if hash > self.threshold {
            return;
        }
        let missed =
            |index: &mut Index<AnyPolicyKind>| !matches!(index.access(block, Access::Read, |_| true), Outcome::Hit(_));
        let more = i64::from(missed(&mut self.policy)) - i64::from(missed(&mut self.lru));
        // the low bits: the high ones decide whether it is here at all
        self.more[hash as usize % GROUPS] += more;
    }

    /// The difference to LRU's misses, of all blocks.
    fn difference(&self) -> f64 {
        self.more.iter().sum::<i64>() as f64 / self.rate
    }

    /// The standard deviation of that.
    fn deviation(&self) -> f64 {
        let (n, mean) = (GROUPS as f64, self.more.iter().sum::<i64>() as f64 / GROUPS as f64);
        let square = self.more.iter().map(|&m| (m as f64 - mean).powi(2)).sum::<f64>() / (n - 1.0);
        (n * square * (1.0 - self.rate)).sqrt() / self.rate
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.policy.memory_bytes() + self.lru.memory_bytes()
    }
}

/// The part of the blocks that is sampled for a cache of `size`; `None` where all are.
fn sampled_part(kind: AnyPolicyKind, size: u64, rate: f64, footprint: Option<u64>) -> Option<f64> {
    let known = footprint.map_or(0.0, |blocks| BLOCKS_MIN as f64 / blocks.max(1) as f64);
    let slots_min = match kind {
        // LFU never forgets, so that newcomers share what few slots are not taken for good: fewer of a small cache. Of
        // SIEVE, 9,672 slots for 38,688 of arc-P6 were off by 0.043, and the bar of 0.003 did not tell: half as many
        // erred alike.
        AnyPolicyKind::Studied(StudiedPolicyKind::Lfu) | AnyPolicyKind::Served(PolicyKind::Sieve) => 2 * SLOTS_MIN,
        // 29,016 slots for 232,131 of arc-P6 were off by 0.025, which the spread does not tell
        AnyPolicyKind::Served(PolicyKind::WTinyLfu) => 8 * SLOTS_MIN,
        _ => SLOTS_MIN,
    };
    let part = power_of_half(rate.max(known).max(slots_min as f64 / size as f64));
    (rate < 1.0 && part <= WHOLE_ABOVE).then_some(part)
}

/// Slots of the caches, and how many of that size, that stand for one of `size`.
fn slots_for(kind: AnyPolicyKind, size: u64, rate: f64, footprint: Option<u64>) -> [(u64, usize); 2] {
    match sampled_part(kind, size, rate, footprint) {
        Some(part) => [part, part / 2.0].map(|part| (((size as f64 * part).round() as u64).max(1), 2)),
        None => [(size, 1), (0, 0)],
    }
}

/// The least power of a half that is no less.
fn power_of_half(rate: f64) -> f64 {
    rate.log2().ceil().exp2()
}

/// How one size is simulated.
enum How {
    Whole { index: Box<Index<AnyPolicyKind>>, misses: u64 },
    Sampled { full: Box<Pair>, half: Box<Pair> },
}

/// What is known at one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MiniPoint {
    /// The size, in blocks.
    pub blocks: u64,
    /// Misses.
    pub misses: f64,
    /// Half of the interval that the misses are in with a probability of 95 %; 0 of a cache that was simulated whole.
    pub error: f64,
    /// The part of the blocks that was sampled.
    pub rate: f64,
}

/// Miniature caches of one policy, a set for each size.
pub struct Miniature {
    key: HashKey,
    caches: Vec<(u64, How)>,
    /// Beside caches that sample, and for LRU.
    exact: Option<ExactLru>,
    requests: u64,
    hashes: Vec<u64>,
}

impl Miniature {
    /// Slots of each cache that [`Miniature::new`] would make of the same: before there are too many.
    pub fn slots(
        kind: impl Into<AnyPolicyKind>,
        sizes: &[u64],
        rate: f64,
        footprint: Option<u64>,
    ) -> impl Iterator<Item = u64> {
        let kind = kind.into();
        let simulated = sizes.iter().filter(move |&&size| size > 0 && (rate >= 1.0 || kind != PolicyKind::Lru));
        simulated
            .flat_map(move |&size| slots_for(kind, size, rate, footprint))
            .flat_map(|(slots, caches)| std::iter::repeat_n(slots, caches))
    }

    /// Caches of `kind` that stand for `sizes` blocks (0 is ignored), each of at least the part `rate` of the blocks
    /// (0 < rate <= 1); `footprint` is how many there are, if that is known.
    pub fn new(kind: impl Into<AnyPolicyKind>, sizes: &[u64], rate: f64, footprint: Option<u64>, seed: u64) -> Self {
        let kind = kind.into();
        let mut sizes: Vec<u64> = sizes.iter().copied().filter(|&size| size > 0).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let key = HashKey::from_seed(seed);
        let rate_of = |size: u64| sampled_part(kind, size, rate, footprint);
        // what is exact for all sizes at once needs no cache
        let simulated = sizes.iter().filter(|_| rate >= 1.0 || kind != PolicyKind::Lru);
        let cache = |&size: &u64| {
            let how = if let Some(part) = rate_of(size) {
                let pair = |rate| Box::new(Pair::new(kind, size, rate, key));
                How::Sampled { full: pair(part), half: pair(part / 2.0) }
            } else {
                let slots = u32::try_from(size).unwrap_or(u32::MAX - 1);
                How::Whole { index: Box::new(Index::with_hash_key(kind, slots, key.derived())), misses: 0 }
            };
            (size, how)
        };
        let caches: Vec<(u64, How)> = simulated.map(cache).collect();
        let beside = caches.is_empty() || caches.iter().any(|(_, how)| matches!(how, How::Sampled { .. }));
        Self { key, caches, exact: beside.then(ExactLru::new), requests: 0, hashes: vec![] }
    }

    /// Requests in order.
    pub fn observe(&mut self, blocks: &[u64]) {
        self.requests += blocks.len() as u64;
        if let Some(exact) = &mut self.exact {
            exact.observe(blocks);
            self.hashes.clear();
            self.hashes.extend(blocks.iter().map(|&block| self.key.hash(block)));
        }
        for (_, how) in &mut self.caches {
            match how {
                How::Whole { index, misses } => {
                    let missed =
                        |&&block: &&u64| !matches!(index.access(block, Access::Read, |_| true), Outcome::Hit(_));
                    *misses += blocks.iter().filter(missed).count() as u64;
                }
                How::Sampled { full, half } => {
                    let threshold = full.threshold;
                    for (&block, &hash) in blocks.iter().zip(&self.hashes).filter(|&(_, &hash)| hash <= threshold) {
                        full.access(block, hash);
                        half.access(block, hash);
                    }
                }
            }
        }
    }

    /// The sizes that are simulated, rising; none for LRU, which is known at all.
    pub fn sizes(&self) -> Vec<u64> {
        self.caches.iter().map(|(size, _)| *size).collect()
    }

    /// What is known at each of these sizes.
    pub fn points(&self) -> Vec<MiniPoint> {
        let lru = self.exact.as_ref().map(|exact| exact.curve(Requests::All));
        let point = |(blocks, how): &(u64, How)| match how {
            How::Whole { misses, .. } => MiniPoint { blocks: *blocks, misses: *misses as f64, error: 0.0, rate: 1.0 },
            How::Sampled { full, half } => {
                let known = lru.as_ref().map_or(0.0, |curve| curve.misses_at(*blocks));
                let more = full.difference();
                let (spread, change) = (full.deviation(), more - half.difference());
                MiniPoint {
                    blocks: *blocks,
                    misses: (known + more).clamp(0.0, self.requests as f64),
                    error: 2.0 * spread.hypot(change),
                    rate: full.rate,
                }
            }
        };
        self.caches.iter().map(point).collect()
    }

    /// The curve, with a point at each size; LRU's at a rate below 1 is exact at every size.
    pub fn curve(&self) -> Curve {
        match &self.exact {
            Some(exact) if self.caches.is_empty() => exact.curve(Requests::All),
            _ => Curve::new(self.requests as f64, self.points().into_iter().map(|p| (p.blocks, p.misses))),
        }
    }

    /// The different blocks so far; `None` where all caches are simulated whole.
    pub fn footprint(&self) -> Option<u64> {
        self.exact.as_ref().map(ExactLru::footprint)
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        let of = |(_, how): &(u64, How)| match how {
            How::Whole { index, .. } => index.memory_bytes(),
            How::Sampled { full, half } => full.memory_bytes() + half.memory_bytes(),
        };
        self.caches.iter().map(of).sum::<usize>()
            + self.exact.as_ref().map_or(0, ExactLru::memory_bytes)
            + self.hashes.capacity() * size_of::<u64>()
    }
}
