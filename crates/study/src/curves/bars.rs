//! How far a sampled curve may be off: half of the interval that a miss ratio is in with a probability of 95 %.
//!
//! Owns the arithmetic. Never samples. Invariant: an error is within 0..=1, and 0 where nothing was sampled.
//!
//! Two things are chance in a sample. How many requests it has of each kind: for samples of blocks the spread of groups
//! of blocks says that (random groups: Wolter, Introduction to Variance Estimation, chapter 2), for samples of requests
//! the binomial distribution does. And how large a cache a distance stands for: a distance that n sampled blocks
//! measure is off by about 1/√n of it (Waldspurger et al., FAST 2015, section 5.3), which moves the curve sideways, and
//! a ratio by as much as the curve falls there. Both together: the root of the sum of squares. What a model errs by
//! (AET) is not chance, and not in it.

use crate::curves::mini::MiniPoint;
use undercroft_engine::curve::Curve;

/// Standard deviations of an interval of 95 %.
const DEVIATIONS: f64 = 1.96;
/// Blocks of a sample without which a size has no answer: sizes are off by more than a third then.
pub(crate) const BLOCKS_FEW: f64 = 32.0;
/// Requests of a sample without which no size has one.
pub(crate) const REQUESTS_FEW: u64 = 1000;

/// The error of a sampled curve at each size.
#[derive(Clone, Debug)]
pub struct Bars(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Exact,
    Points { requests: f64, points: Vec<MiniPoint> },
    Sample { curve: Curve, vertical: Vertical, sideways: Sideways },
}

/// Chance in the number of requests.
#[derive(Clone, Debug)]
pub(crate) enum Vertical {
    /// So many requests were picked.
    Picked(u64),
    /// Curves of groups of the blocks; a size is so many times as large in them, and a miss stands for so many.
    Groups { curves: Vec<Curve>, size: f64, weight: f64, rate: f64 },
}

/// Chance in the sizes.
#[derive(Clone, Debug)]
pub(crate) enum Sideways {
    /// Distances were counted in a sample of blocks: of this part of them, and believed as far, 0 to 1, by size,
    /// rising; all of the way if it does not say.
    Counted { rate: f64, belief: Vec<(u64, f64)> },
    /// Sizes were summed up from reuse times of so many requests, of which those count that miss.
    Summed { picked: u64 },
}

impl Bars {
    /// Of what was not sampled.
    pub(crate) fn exact() -> Self {
        Self(Kind::Exact)
    }

    pub(crate) fn of_points(requests: f64, points: Vec<MiniPoint>) -> Self {
        Self(if points.iter().all(|p| p.error == 0.0) { Kind::Exact } else { Kind::Points { requests, points } })
    }

    pub(crate) fn of_sample(curve: Curve, vertical: Vertical, sideways: Sideways) -> Self {
        Self(Kind::Sample { curve, vertical, sideways })
    }

    /// Whether nothing was sampled.
    pub fn is_exact(&self) -> bool {
        matches!(self.0, Kind::Exact)
    }

    /// Half of the interval at a size, as a miss ratio.
    pub fn at(&self, size: u64) -> f64 {
        match &self.0 {
            Kind::Exact => 0.0,
            Kind::Points { requests, points } => {
                // between two sizes as at the worse of both
                let after = points.partition_point(|p| p.blocks < size).min(points.len() - 1);
                let same = points[after].blocks == size;
                let before = if same { after } else { after.saturating_sub(1) };
                let error = points[before..=after].iter().map(|p| p.error).fold(0.0, f64::max);
                (error / requests.max(1.0)).min(1.0)
            }
            Kind::Sample { curve, vertical, sideways } => {
                vertical.at(curve, size).hypot(sideways.at(curve, size)).min(1.0)
            }
        }
    }
}

impl Vertical {
    fn at(&self, curve: &Curve, size: u64) -> f64 {
        match self {
            Vertical::Picked(0) => 1.0,
            Vertical::Picked(picked) => {
                // with one request more of each kind (Agresti and Coull, 1998): none of few is not none at all
                let n = *picked as f64 + 4.0;
                let ratio = (curve.miss_ratio_at(size) * *picked as f64 + 2.0) / n;
                DEVIATIONS * (ratio * (1.0 - ratio) / n).sqrt()
            }
            Vertical::Groups { curves, size: scale, weight, rate } => {
                let n = curves.len() as f64;
                let requests = curve.requests().max(1.0);
                let at = (size as f64 * scale).round() as u64;
                let ratios: Vec<f64> = curves.iter().map(|c| c.misses_at(at) * weight / requests).collect();
                let mean = ratios.iter().sum::<f64>() / n;
                let square = ratios.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / (n - 1.0);
                // Student's, for 7 degrees of freedom
                2.365 * (square * (1.0 - rate).max(0.0) / n).sqrt()
            }
        }
    }
}

impl Sideways {
    fn at(&self, curve: &Curve, size: u64) -> f64 {
        let square = match self {
            Sideways::Counted { rate, belief } => {
                let after = belief.partition_point(|b| b.0 < size);
                let belief = belief.get(after).or(belief.last()).map_or(1.0, |b| b.1);
                belief * (1.0 - rate).max(0.0) / (size as f64 * rate).max(1e-9)
            }
            Sideways::Summed { picked } => 1.0 / (*picked as f64 * curve.miss_ratio_at(size)).max(1.0),
        };
        let part = (DEVIATIONS * square.sqrt()).min(0.9);
        let off = |factor: f64| curve.miss_ratio_at((size as f64 * factor).round() as u64);
        let here = curve.miss_ratio_at(size);
        (off(1.0 - part) - here).abs().max((off(1.0 + part) - here).abs())
    }
}
