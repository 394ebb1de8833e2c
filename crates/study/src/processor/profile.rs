//! Which blocks miss, and how often: what a lock set is made of.
//!
//! Owns the counts of one run without locks and without a victim buffer. Never decides what is locked.

use super::LineReference;
use super::cache::{Cache, CacheOptions};
use super::shape::Shape;
use rustc_hash::FxHashMap;

/// See the head of the file.
pub struct Profile {
    cache: Cache,
    misses: FxHashMap<u64, u64>,
    hits: FxHashMap<u64, u64>,
}

impl Profile {
    /// Of a cache of this shape, before the first reference.
    pub fn new(shape: Shape) -> Self {
        let cache = Cache::new(shape, CacheOptions::default());
        Self { cache, misses: FxHashMap::default(), hits: FxHashMap::default() }
    }

    /// A reference.
    #[inline]
    pub fn access(&mut self, reference: LineReference) {
        let hit = self.cache.access(reference);
        let of = if hit { &mut self.hits } else { &mut self.misses };
        *of.entry(reference.block()).or_insert(0) += 1;
    }

    /// Blocks by misses, those with the most first; of equal ones the lower number first.
    pub fn by_misses(&self) -> Vec<(u64, u64)> {
        ranked(&self.misses)
    }

    /// The same by hits.
    pub(super) fn by_hits(&self) -> Vec<(u64, u64)> {
        ranked(&self.hits)
    }

    /// All blocks that were referenced, in no order.
    pub fn blocks(&self) -> impl Iterator<Item = u64> {
        // Each has missed at least once.
        self.misses.keys().copied()
    }

    /// What the cache of the run counted.
    pub fn counts(&self) -> super::Counts {
        self.cache.counts()
    }
}

fn ranked(counts: &FxHashMap<u64, u64>) -> Vec<(u64, u64)> {
    let mut ranked: Vec<_> = counts.iter().map(|(block, n)| (*block, *n)).collect();
    ranked.sort_unstable_by(|(a, x), (b, y)| y.cmp(x).then(a.cmp(b)));
    ranked
}
