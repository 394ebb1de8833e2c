//! Divides blocks where they save most misses: greedy by marginal gain, looking ahead past flat parts of a curve.
//!
//! Owns the search (Lookahead of Qureshi and Patt, Utility-Based Cache Partitioning, MICRO 2006). Never limits how much
//! moves at once.
//! Invariant: on convex curves the result is the best there is, to the resolution of the points; on others no extension
//! that fits into what was left saved more per block than the one taken.

use crate::curve::Curve;
use crate::curve::points::slope;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// One of those among whom blocks are divided.
#[derive(Clone, Copy, Debug)]
pub struct Appetite<'a> {
    /// What a miss of it weighs.
    pub weight: u32,
    /// Blocks it has from the start.
    pub from: u64,
    /// Blocks it may have at most; at least `from`.
    pub room: u64,
    /// What blocks save it.
    pub curve: &'a Curve,
}

/// The extension that saves a party most per block.
#[derive(Clone, Copy, PartialEq)]
struct Extension {
    gain: f64,
    party: usize,
    to: u64,
    misses: f64,
}

impl Eq for Extension {}

impl Ord for Extension {
    fn cmp(&self, other: &Self) -> Ordering {
        // among equals the first party
        self.gain.total_cmp(&other.gain).then(other.party.cmp(&self.party))
    }
}

impl PartialOrd for Extension {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn best(party: usize, of: &Appetite<'_>, size: u64, misses: f64, left: u64) -> Option<Extension> {
    let end = of.room.min(size.saturating_add(left));
    let points = of.curve.points();
    let after = points.partition_point(|p| p.0 <= size);
    let inside = points[after..].iter().copied().take_while(|p| p.0 < end);
    let mut found: Option<Extension> = None;
    for to in inside.chain((end > size).then(|| (end, of.curve.misses_at(end)))) {
        let gain = -slope((size, misses), to) * f64::from(of.weight);
        // of equal gains the longer: fewer steps
        if gain > 0.0 && found.is_none_or(|f| gain >= f.gain) {
            found = Some(Extension { gain, party, to: to.0, misses: to.1 });
        }
    }
    found
}

/// Divides `total` blocks: each child's `from` first, which must fit, then whatever saves most. What saves no
/// anything is left over: the sum may be below the total.
///
/// # Panics
/// If the `from` sum to more than the total.
pub fn lookahead(total: u64, parties: &[Appetite<'_>]) -> Vec<u64> {
    let mut sizes: Vec<u64> = parties.iter().map(|p| p.from).collect();
    let mut left = total.checked_sub(sizes.iter().sum()).expect("what everybody has from the start fits");
    let extend = |party: usize, size: u64, left: u64| {
        best(party, &parties[party], size, parties[party].curve.misses_at(size), left)
    };
    let mut heap: BinaryHeap<Extension> = (0..parties.len()).filter_map(|i| extend(i, sizes[i], left)).collect();
    while let Some(next) = heap.pop() {
        let (i, size) = (next.party, sizes[next.party]);
        if next.to - size > left {
            // it was found when more was left
            heap.extend(extend(i, size, left));
            continue;
        }
        left -= next.to - size;
        sizes[i] = next.to;
        heap.extend(extend(i, next.to, left));
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn divide(total: u64, curves: &[Curve]) -> Vec<u64> {
        let parties: Vec<Appetite<'_>> =
            curves.iter().map(|curve| Appetite { weight: 1, from: 0, room: u64::MAX, curve }).collect();
        lookahead(total, &parties)
    }

    /// The best division, block by block.
    fn least(total: u64, curves: &[Curve]) -> f64 {
        let mut best: Vec<f64> = vec![0.0; total as usize + 1];
        for curve in curves {
            best = (0..=total)
                .map(|n| (0..=n).map(|k| best[(n - k) as usize] + curve.misses_at(k)).fold(f64::INFINITY, f64::min))
                .collect();
        }
        best[total as usize]
    }

    fn curve() -> impl Strategy<Value = Curve> {
        prop::collection::vec((0u64..40, 0u32..1000), 1..8)
            .prop_map(|points| Curve::falling(points.into_iter().map(|(s, m)| (s, f64::from(m)))))
    }

    proptest! {
        #[test]
        fn is_the_best_there_is_on_convex_curves(curves in prop::collection::vec(curve(), 1..5), total in 0u64..60) {
            let curves: Vec<Curve> = curves.iter().map(Curve::convex_hull).collect();
            let sizes = divide(total, &curves);
            prop_assert!(sizes.iter().sum::<u64>() <= total);
            let misses: f64 = sizes.iter().zip(&curves).map(|(&s, c)| c.misses_at(s)).sum();
            prop_assert!(misses <= least(total, &curves) + 1e-6, "{misses} of {}", least(total, &curves));
        }

        #[test]
        fn nobody_leaves_room_or_loses_what_it_had(
            curves in prop::collection::vec((curve(), 0u64..10, 0u64..30), 1..5),
            more in 0u64..60,
        ) {
            let parties: Vec<Appetite<'_>> = curves
                .iter()
                .map(|(curve, from, room)| Appetite { weight: 3, from: *from, room: from + room, curve })
                .collect();
            let total = parties.iter().map(|p| p.from).sum::<u64>() + more;
            for (size, party) in lookahead(total, &parties).into_iter().zip(&parties) {
                prop_assert!((party.from..=party.room).contains(&size));
            }
        }
    }

    #[test]
    fn sees_past_a_cliff_that_step_by_step_greed_does_not() {
        // a loop of 100 blocks: nothing helps until all fits
        let cliff = Curve::falling([(0, 1000.0), (99, 1000.0), (100, 0.0)]);
        let gentle = Curve::falling([(0, 100.0), (100, 0.0)]);
        assert_eq!(divide(100, &[cliff.clone(), gentle.clone()]), [100, 0]);
        // and does not throw blocks after what cannot be reached
        assert_eq!(divide(80, &[cliff, gentle]), [0, 80]);
    }

    #[test]
    fn a_miss_counts_as_much_as_its_party_weighs() {
        let (a, b) = (Curve::falling([(0, 100.0), (10, 0.0)]), Curve::falling([(0, 150.0), (10, 0.0)]));
        let party = |weight, curve| Appetite { weight, from: 0, room: 100, curve };
        assert_eq!(lookahead(10, &[party(1, &a), party(1, &b)]), [0, 10]);
        assert_eq!(lookahead(10, &[party(2, &a), party(1, &b)]), [10, 0]);
    }
}
