//! What blocks are worth to one node: its misses as a function of its size.
//!
//! Owns the points and what is read from them. Never measures: who samples accesses makes the points.
//! Invariant: sizes rise strictly from 0, misses are finite and never rise; between two points misses fall evenly.

/// Misses of an interval as a function of size in blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct MissCurve {
    points: Vec<(u64, f64)>,
}

/// What part of all that size can save may be missing for a size to count as enough.
const ENOUGH: f64 = 0.001;

impl MissCurve {
    /// From points in any order. Points that say nothing (misses that are negative or no number) are dropped; misses that
    /// rise with size, as samples may, are flattened to the least so far.
    pub fn new(points: impl IntoIterator<Item = (u64, f64)>) -> Self {
        let mut points: Vec<(u64, f64)> = points.into_iter().filter(|p| p.1.is_finite() && p.1 >= 0.0).collect();
        points.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        points.dedup_by_key(|p| p.0);
        match points.first() {
            None => points.push((0, 0.0)),
            Some(&(0, _)) => {}
            Some(&(_, misses)) => points.insert(0, (0, misses)),
        }
        let mut least = f64::INFINITY;
        for point in &mut points {
            least = least.min(point.1);
            point.1 = least;
        }
        Self { points }
    }

    /// The same misses at every size.
    pub fn flat(misses: f64) -> Self {
        Self::new([(0, misses)])
    }

    /// The points.
    pub fn points(&self) -> &[(u64, f64)] {
        &self.points
    }

    /// The misses with `blocks` blocks.
    pub fn at(&self, blocks: u64) -> f64 {
        let after = self.points.partition_point(|p| p.0 <= blocks);
        let (size, misses) = self.points[after - 1];
        match self.points.get(after) {
            None => misses,
            Some(&(next_size, next)) => misses - (misses - next) * (blocks - size) as f64 / (next_size - size) as f64,
        }
    }

    /// The smallest size with at most `misses`; `None` if no size does it.
    pub fn size_for(&self, misses: f64) -> Option<u64> {
        let first = self.points.iter().position(|p| p.1 <= misses)?;
        let (size, there) = self.points[first];
        let Some(before) = first.checked_sub(1) else { return Some(size) };
        let (size_before, more) = self.points[before];
        // more > misses >= there
        let part = (more - misses) / (more - there);
        Some((size_before + (part * (size - size_before) as f64).ceil() as u64).min(size))
    }

    /// The smallest size that saves all that any size saves, but for a thousandth of it: what the node could use.
    pub fn enough(&self) -> u64 {
        let (most, least) = (self.points[0].1, self.points[self.points.len() - 1].1);
        self.size_for(least + (most - least) * ENOUGH).unwrap_or(0)
    }

    /// The same with all misses multiplied.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        Self { points: self.points.iter().map(|&(size, misses)| (size, misses * factor)).collect() }
    }

    /// The greatest convex curve that is nowhere above this one: what a node gets whose space is given out where it saves most
    /// first.
    #[must_use]
    pub fn hull(&self) -> Self {
        let mut hull: Vec<(u64, f64)> = vec![];
        for &point in &self.points {
            while let [.., a, b] = hull[..] {
                if slope(a, b) > slope(b, point) {
                    break;
                }
                hull.pop();
            }
            hull.push(point);
        }
        Self { points: hull }
    }

    /// The curve of a group of nodes that divide what they have so that it saves most, each by its weight: the pieces of their
    /// hulls, the steepest (weighted) first. Misses are not weighted.
    pub fn merged<'a>(parts: impl IntoIterator<Item = (u32, &'a MissCurve)>) -> Self {
        let mut pieces = vec![];
        let mut misses = 0.0;
        for (weight, curve) in parts {
            let hull = curve.hull();
            misses += hull.points[0].1;
            pieces.extend(hull.points.windows(2).map(|w| {
                let (blocks, saved) = (w[1].0 - w[0].0, w[0].1 - w[1].1);
                (saved / blocks as f64 * f64::from(weight), blocks, saved)
            }));
        }
        pieces.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut points = vec![(0, misses)];
        let mut size = 0;
        for (_, blocks, saved) in pieces {
            size += blocks;
            misses -= saved;
            points.push((size, misses.max(0.0)));
        }
        Self::new(points)
    }
}

/// Misses saved per block from one point to the next.
pub(super) fn slope(from: (u64, f64), to: (u64, f64)) -> f64 {
    (from.1 - to.1) / (to.0 - from.0) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn curve() -> impl Strategy<Value = MissCurve> {
        prop::collection::vec((0u64..1000, 0u32..1000), 0..20)
            .prop_map(|points| MissCurve::new(points.into_iter().map(|(s, m)| (s, f64::from(m)))))
    }

    proptest! {
        #[test]
        fn the_hull_is_convex_and_never_above(curve in curve()) {
            let hull = curve.hull();
            for size in 0..1000 {
                prop_assert!(hull.at(size) <= curve.at(size) + 1e-9);
                prop_assert!(2.0 * hull.at(size + 1) <= hull.at(size) + hull.at(size + 2) + 1e-9);
            }
            prop_assert_eq!(hull.at(0), curve.at(0));
            prop_assert_eq!(hull.at(1000), curve.at(1000));
        }

        #[test]
        fn the_size_for_some_misses_is_the_smallest(curve in curve(), misses in 0u32..1000) {
            let misses = f64::from(misses);
            match curve.size_for(misses) {
                Some(size) => {
                    prop_assert!(curve.at(size) <= misses + 1e-6);
                    prop_assert!(size == 0 || curve.at(size - 1) > misses - 1e-6);
                }
                None => prop_assert!(curve.at(u64::MAX) > misses),
            }
        }

        #[test]
        fn a_group_misses_no_more_than_its_members_with_any_parts(a in curve(), b in curve(), x in 0u64..1000, y in 0u64..1000) {
            let merged = MissCurve::merged([(1, &a), (1, &b)]);
            prop_assert!(merged.at(x + y) <= a.at(x) + b.at(y) + 1e-6);
        }
    }

    #[test]
    fn points_that_say_nothing_do_no_harm() {
        let curve = MissCurve::new([(10, 5.0), (5, f64::NAN), (20, 7.0), (30, -1.0), (10, 6.0)]);
        assert_eq!(curve.points(), [(0, 5.0), (10, 5.0), (20, 5.0)]);
        assert_eq!(MissCurve::new([]).at(17), 0.0);
    }

    #[test]
    fn enough_is_where_more_would_not_matter() {
        let curve = MissCurve::new([(0, 1000.0), (500, 0.5), (10_000, 0.0)]);
        assert_eq!(curve.enough(), 500);
        assert_eq!(MissCurve::flat(7.0).enough(), 0);
    }
}
