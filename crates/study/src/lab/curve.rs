//! Exact miss curves, with which the engine's estimates are compared, and the error of an estimate.
//!
//! Owns a computation over a whole trace at once, with memory in proportion to it; shares no code with the estimates.
//! Invariant: [`MattsonLru::misses_at`] is what [`crate::lab::misses`] counts for LRU at that size.

use std::collections::HashMap;
use undercroft_engine::Curve;

/// The misses of LRU, from cold, at every size (Mattson, Gecsei, Slutz and Traiger, IBM Systems Journal 1970).
#[derive(Clone, Debug)]
pub struct MattsonLru {
    /// Entry `i`: requests that hit in `i + 1` blocks and not in `i`.
    hits: Vec<u64>,
    requests: u64,
}

/// A Fenwick tree over the times of requests: those that are some block's latest.
struct Latest(Vec<u32>);

impl Latest {
    fn add(&mut self, time: usize, by: u32) {
        let mut at = time + 1;
        while at < self.0.len() {
            self.0[at] = self.0[at].wrapping_add(by);
            at += at & at.wrapping_neg();
        }
    }

    /// How many there are at `time` and before.
    fn until(&self, time: usize) -> u32 {
        let (mut at, mut sum) = (time + 1, 0);
        while at > 0 {
            sum += self.0[at];
            at &= at - 1;
        }
        sum
    }
}

impl MattsonLru {
    /// From every access, in order.
    pub fn new(blocks: &[u64]) -> Self {
        let mut latest = Latest(vec![0; blocks.len() + 1]);
        let mut last: HashMap<u64, u32> = HashMap::new();
        let mut hits = vec![];
        for (time, &block) in blocks.iter().enumerate() {
            let distinct = last.len() as u32;
            if let Some(before) = last.insert(block, time as u32) {
                let newer = (distinct - latest.until(before as usize)) as usize;
                if hits.len() <= newer {
                    hits.resize(newer + 1, 0);
                }
                hits[newer] += 1;
                latest.add(before as usize, u32::MAX);
            }
            latest.add(time, 1);
        }
        Self { hits, requests: blocks.len() as u64 }
    }

    /// Misses at `size` blocks.
    pub fn misses_at(&self, size: u64) -> u64 {
        let sizes = (size.min(self.hits.len() as u64)) as usize;
        self.requests - self.hits[..sizes].iter().sum::<u64>()
    }

    /// The whole curve, with a point for each size at which it falls.
    pub fn curve(&self) -> Curve {
        let mut misses = self.requests;
        let mut points = vec![];
        for (i, &hits) in self.hits.iter().enumerate() {
            if hits > 0 {
                points.push((i as u64, misses as f64));
                misses -= hits;
                points.push((i as u64 + 1, misses as f64));
            }
        }
        Curve::new(self.requests as f64, points)
    }
}

/// How far an estimate of miss ratios is off.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CurveError {
    /// Mean of the absolute differences.
    pub mean: f64,
    /// The largest of them, and the size in blocks where it is.
    pub max: (f64, u64),
}

/// The error of `estimate` at the sizes of `exact`: (size in blocks, miss ratio). No sizes, no error.
pub fn error(estimate: &Curve, exact: impl IntoIterator<Item = (u64, f64)>) -> CurveError {
    let (mut error, mut sizes) = (CurveError::default(), 0u32);
    for (size, ratio) in exact {
        let off = (estimate.miss_ratio_at(size) - ratio).abs();
        error.mean += off;
        sizes += 1;
        if off > error.max.0 {
            error.max = (off, size);
        }
    }
    error.mean /= f64::from(sizes.max(1));
    error
}

/// About `count` sizes between `least` and `most` blocks, each larger than the last by the same factor.
pub fn sizes(least: u64, most: u64, count: u32) -> Vec<u64> {
    let factor = most.max(1) as f64 / least.max(1) as f64;
    let size = |i| (least.max(1) as f64 * factor.powf(f64::from(i) / f64::from(count.max(2) - 1))).round() as u64;
    let mut sizes: Vec<_> = (0..count).map(size).collect();
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::{Workload, misses};
    use undercroft_engine::PolicyKind;

    #[test]
    fn the_exact_curve_is_what_a_cache_of_each_size_misses() {
        let workload = Workload::zipf_with_scans("w", 300, 5000, 900, 60);
        let exact = MattsonLru::new(&workload.blocks);
        let curve = exact.curve();
        for size in 0..700 {
            let counted = misses(PolicyKind::Lru, size, &workload);
            assert_eq!(exact.misses_at(u64::from(size)), counted, "{size} blocks");
            assert_eq!(curve.misses_at(u64::from(size)), counted as f64, "{size} blocks");
        }
        assert_eq!(curve.misses_at(u64::MAX), f64::from(workload.footprint));
        assert_eq!(MattsonLru::new(&[]).misses_at(3), 0);
    }

    #[test]
    fn errors_are_absolute_and_sizes_geometric() {
        let estimate = Curve::new(10.0, [(10, 5.0)]);
        let error = error(&estimate, [(0, 1.0), (10, 0.4), (20, 0.8)]);
        assert!((error.mean - 0.4 / 3.0).abs() < 1e-12 && (error.max.0 - 0.3).abs() < 1e-12, "{error:?}");
        assert_eq!(error.max.1, 20);
        assert_eq!(sizes(1, 1000, 4), [1, 10, 100, 1000]);
        assert_eq!(sizes(0, 0, 3), [1]);
    }
}
