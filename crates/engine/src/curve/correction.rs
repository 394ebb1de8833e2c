//! Corrects a sampled curve by comparing it with what the disk really missed at the size that it has.
//!
//! Owns the counts of intervals in which the size stood still, and the factor that follows from them. Never corrects by
//! more than chance in the sample explains. Invariant: the factor is within [`bound`] of the sample's size.
//!
//! A sample of n blocks is off by about 1/√n in how many blocks there are. Of a working set of a thousand blocks a
//! sample at a rate of 1/48 has some twenty: a cliff may then be placed a quarter too early, and a controller that
//! trusts it would leave the leaf just short of its working set for good. What the leaf misses at the size it has is
//! counted exactly: sizes are stretched until the curve agrees with it. A step that SHARDS does not have; its
//! correction (SHARDS-adj) is of requests, not of blocks.

use super::points::Curve;

/// Weights of what was asked for and missed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    requests: f64,
    misses: f64,
}

/// See the head of the file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Correction {
    /// Real sizes per size in the curve.
    factor: f64,
    /// Of intervals at the size of now, the earlier ones weighing less each.
    steady: Counts,
    /// Of the last interval: it counts once it is known that the size did not move in it.
    last: Counts,
    /// Misses that are to be expected since the leaf has grown and has not filled up yet.
    filling: f64,
}

/// Parts of all requests by which a curve may be off without being corrected.
const TOLERANCE: f64 = 0.001;

/// How many standard deviations of chance in the sample are corrected.
const DEVIATIONS: f64 = 3.0;

/// The largest factor, and the inverse of the least one, for a sample of so many blocks.
fn bound(samples: u32) -> f64 {
    1.0 + DEVIATIONS / f64::from(samples.max(1)).sqrt().max(DEVIATIONS)
}

impl Correction {
    /// For a leaf of `share` blocks that are not filled yet.
    pub(super) fn new(share: u64) -> Self {
        Self { factor: 1.0, steady: Counts::default(), last: Counts::default(), filling: share as f64 }
    }

    /// The leaf's size is another one: what was counted at the old one says nothing any more.
    pub(super) fn moved(&mut self, from: u64, to: u64) {
        (self.steady, self.last) = (Counts::default(), Counts::default());
        self.filling = (self.filling + to as f64 - from as f64).max(0.0);
    }

    /// An interval with these requests and misses is over.
    pub(super) fn interval(&mut self, requests: u64, misses: u64) {
        if requests == 0 {
            return;
        }
        for (sum, last) in
            [(&mut self.steady.requests, self.last.requests), (&mut self.steady.misses, self.last.misses)]
        {
            *sum = *sum / 2.0 + last;
        }
        let first = self.filling.min(misses as f64);
        self.filling -= first;
        self.last = Counts { requests: requests as f64 - first, misses: misses as f64 - first };
    }

    /// The curve with its sizes stretched so that it agrees with what was missed with `share` blocks, as far as chance
    /// in a sample of `samples` blocks explains the difference.
    pub(super) fn apply(&mut self, curve: Curve, share: u64, samples: u32) -> Curve {
        let bound = bound(samples);
        if self.steady.requests > 0.0 && curve.requests() > 0.0 {
            let ratio = self.steady.misses / self.steady.requests;
            let chance = 2.0 * (ratio * (1.0 - ratio) / self.steady.requests).sqrt();
            let said = curve.at(share as f64 / self.factor) / curve.requests();
            if (said - ratio).abs() > TOLERANCE + chance
                && let Some(there) = curve.nearest_size(share as f64 / self.factor, ratio * curve.requests())
            {
                self.factor = share as f64 / there.max(1e-9);
            }
        }
        self.factor = self.factor.clamp(1.0 / bound, bound);
        if self.factor == 1.0 { curve } else { curve.stretched(self.factor) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends two intervals with the same counts at a size: the second one confirms the first.
    fn after(correction: &mut Correction, curve: &Curve, share: u64, ratio: f64) -> Curve {
        for _ in 0..2 {
            correction.interval(100_000, (ratio * 100_000.0) as u64);
        }
        correction.apply(curve.clone(), share, 20)
    }

    #[test]
    fn a_cliff_that_was_placed_too_early_is_found() {
        let curve = Curve::new(1000.0, [(800, 0.0)]);
        let mut correction = Correction::new(0);
        // really 1000 blocks: 800 of them leave a fifth
        let stretched = after(&mut correction, &curve, 800, 0.2);
        assert!((stretched.max_size() as f64 - 1000.0).abs() < 5.0, "{stretched:?}");
        correction.moved(800, 1000);
        correction.filling = 0.0;
        assert_eq!(after(&mut correction, &curve, 1000, 0.0).max_size(), stretched.max_size(), "no news, no change");
    }

    #[test]
    fn a_cliff_that_was_placed_too_late_is_found() {
        let curve = Curve::new(1000.0, [(1250, 0.0)]);
        let mut correction = Correction::new(0);
        assert!((after(&mut correction, &curve, 1000, 0.0).max_size() as f64 - 1000.0).abs() < 5.0);
    }

    #[test]
    fn no_more_than_chance_explains_is_corrected() {
        let curve = Curve::new(1000.0, [(800, 0.0)]);
        let mut correction = Correction::new(0);
        correction.interval(1000, 900);
        correction.interval(1000, 900);
        let few = correction.clone().apply(curve.clone(), 800, 100);
        assert_eq!(few.max_size(), 1040, "3 of 10 standard deviations");
        assert!(correction.apply(curve, 800, 8192).max_size() < 830);
    }

    #[test]
    fn misses_of_a_leaf_that_fills_say_nothing() {
        let curve = Curve::new(1000.0, [(800, 0.0)]);
        let mut correction = Correction::new(800);
        correction.interval(10_000, 800);
        correction.interval(10_000, 0);
        assert_eq!(correction.apply(curve, 800, 20).max_size(), 800);
    }

    #[test]
    fn what_was_counted_while_the_size_moved_says_nothing() {
        let curve = Curve::new(1000.0, [(800, 0.0)]);
        let mut correction = Correction::new(0);
        correction.interval(10_000, 5_000);
        correction.moved(800, 700);
        correction.interval(10_000, 0);
        assert_eq!(correction.apply(curve, 700, 20).max_size(), 800);
    }
}
