//! Accesses by stack distance, and the miss-ratio curve that they make.
//!
//! Owns the counts. Never measures a distance. Invariant: the curve falls, and at size 0 every access misses.

use undercroft_engine::Curve;

/// Sizes at which a curve has a point.
const POINTS: u64 = 128;

/// Counts of accesses by stack distance, in steps of 1/128 of the cache. Distances are told apart in steps of a part of
/// the cache.
#[derive(Clone, Debug)]
pub(super) struct DistanceCounts {
    step: u64,
    /// Accesses by distance; the last: none of these.
    counts: Vec<f64>,
}

impl DistanceCounts {
    /// For a cache of `total` blocks.
    pub fn new(total: u64) -> Self {
        Self { step: total.div_ceil(POINTS).max(1), counts: vec![0.0; POINTS as usize + 1] }
    }

    /// One access.
    pub fn add(&mut self, distance: Option<u64>) {
        let at = distance.map_or(POINTS, |d| (d / self.step).min(POINTS));
        self.counts[at as usize] += 1.0;
    }

    /// What was counted counts `keep` times, and another's `factor` times.
    pub fn merge(&mut self, keep: f64, other: &Self, factor: f64) {
        for (own, new) in self.counts.iter_mut().zip(&other.counts) {
            *own = *own * keep + new * factor;
        }
    }

    /// Forgets what was counted.
    pub fn clear(&mut self) {
        self.counts.fill(0.0);
    }

    /// Misses of an LRU cache by size.
    pub fn curve(&self) -> Curve {
        let mut misses = self.counts.iter().sum::<f64>();
        Curve::falling((0..=POINTS).map(|i| {
            let point = (i * self.step, misses);
            misses = (misses - self.counts[i as usize]).max(0.0);
            point
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_curve_is_lru_s() {
        let mut histogram = DistanceCounts::new(1280);
        [Some(0), Some(9), Some(10), Some(25), Some(5000), None].into_iter().for_each(|d| histogram.add(d));
        let at = |h: &DistanceCounts, size| h.curve().misses_at(size);
        assert_eq!([0, 10, 20, 30, 1280].map(|size| at(&histogram, size)), [6.0, 4.0, 3.0, 2.0, 2.0]);
        let mut recent = histogram.clone();
        recent.merge(0.5, &histogram, 0.25);
        assert_eq!([0, 10].map(|size| at(&recent, size)), [4.5, 3.0]);
        histogram.clear();
        assert_eq!(at(&histogram, 0), 0.0);
    }
}
