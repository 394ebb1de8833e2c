//! A miss curve: misses by size of the cache.
//!
//! Owns points and the arithmetic on one curve. Never knows where the points come from.
//! Invariant: sizes rise strictly and begin with 0, where every request that counts misses; misses are finite and
//! within 0..=requests.

/// What part of all that size can save may be missing for a size to count as enough.
const ENOUGH: f64 = 0.001;

/// Misses as a function of a cache's size in blocks: straight lines between points, level after the last one.
///
/// It need not fall everywhere: some policies miss more with more space, and estimates err. Who needs a curve that
/// falls and flattens takes [`Curve::convex_hull`], or makes it with [`Curve::falling`].
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Size in blocks and misses.
    points: Vec<(u64, f64)>,
}

impl Curve {
    /// The curve of `requests` requests through points of (size in blocks, misses), in any order; of points with the
    /// same size the last counts. Misses are held within `0..=requests`. At size 0 all requests miss.
    ///
    /// # Panics
    /// If a number is not finite, or `requests` is negative: estimates are, by construction.
    pub fn new(requests: f64, points: impl IntoIterator<Item = (u64, f64)>) -> Self {
        assert!(requests.is_finite() && requests >= 0.0, "a curve of {requests} requests");
        let mut given: Vec<_> = points.into_iter().filter(|&(size, _)| size > 0).collect();
        given.sort_by_key(|&(size, _)| size);
        let mut points = vec![(0, requests)];
        for (size, misses) in given {
            assert!(misses.is_finite(), "{misses} misses at {size} blocks");
            let point = (size, misses.clamp(0.0, requests));
            match points.last_mut() {
                Some(last) if last.0 == size => *last = point,
                _ => points.push(point),
            }
        }
        Self { points }
    }

    /// The curve through points of (size in blocks, misses), in any order, that falls wherever it does not stand: of
    /// points with one size the lowest counts, and misses that rise with size, as those of samples may, are flattened
    /// to the least so far. Points that say nothing (misses that are negative or no number) are dropped. Below the
    /// first size as at it.
    pub fn falling(points: impl IntoIterator<Item = (u64, f64)>) -> Self {
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

    /// The same misses at every size: of requests that no space makes hits.
    ///
    /// # Panics
    /// If `misses` is negative or not finite.
    pub fn flat(misses: f64) -> Self {
        Self::new(misses, [])
    }

    /// The points: size in blocks, rising strictly from 0, and misses.
    pub fn points(&self) -> &[(u64, f64)] {
        &self.points
    }

    /// Requests that the misses are of.
    pub fn requests(&self) -> f64 {
        self.points[0].1
    }

    /// The largest size that is known; beyond it the curve is level.
    pub fn max_size(&self) -> u64 {
        self.points[self.points.len() - 1].0
    }

    /// Misses at `size` blocks.
    pub fn misses_at(&self, size: u64) -> f64 {
        self.at(size as f64)
    }

    /// Misses at a size of 0 or more that need not be whole.
    pub(super) fn at(&self, size: f64) -> f64 {
        let after = self.points.partition_point(|&(s, _)| s as f64 <= size);
        let (from, misses) = self.points[after - 1];
        match self.points.get(after) {
            Some(&(to, less)) => misses + (less - misses) * ((size - from as f64) / (to - from) as f64),
            None => misses,
        }
    }

    /// Misses per request at `size` blocks, 0..=1; without requests 0.
    pub fn miss_ratio_at(&self, size: u64) -> f64 {
        if self.requests() > 0.0 { self.misses_at(size) / self.requests() } else { 0.0 }
    }

    /// Misses that each of `blocks` further blocks saves on average at `size`: what growing is worth, in misses per
    /// block. Negative where more space means more misses; 0 for 0 blocks.
    pub fn marginal(&self, size: u64, blocks: u64) -> f64 {
        if blocks == 0 {
            return 0.0;
        }
        (self.misses_at(size) - self.misses_at(size.saturating_add(blocks))) / blocks as f64
    }

    /// The largest convex curve that is nowhere above this one and never rises: what a cache reaches if it may be
    /// divided at will (Talus, Beckmann and Sanchez, HPCA 2015), and what makes greedy allocation the best one. Its
    /// points are points of this curve.
    pub fn convex_hull(&self) -> Self {
        let mut hull: Vec<(u64, f64)> = vec![];
        for &point in &self.points {
            while let [.., before, last] = hull[..] {
                if slope(before, last) < slope(last, point) {
                    break;
                }
                hull.pop();
            }
            hull.push(point);
        }
        let falling = hull.windows(2).take_while(|pair| pair[1].1 < pair[0].1).count();
        hull.truncate(falling + 1);
        Self { points: hull }
    }

    /// The same shape for another number of requests.
    ///
    /// # Panics
    /// If `requests` is negative or not finite.
    pub fn scaled_to(&self, requests: f64) -> Self {
        let factor = if self.requests() > 0.0 { requests / self.requests() } else { 0.0 };
        Self::new(requests, self.points.iter().map(|&(size, misses)| (size, misses * factor)))
    }

    /// The same misses at sizes `factor` times as large.
    ///
    /// # Panics
    /// If `factor` is not finite or not above 0.
    pub fn stretched(&self, factor: f64) -> Self {
        assert!(factor.is_finite() && factor > 0.0, "a curve stretched by {factor}");
        let size = |size: u64| ((size as f64 * factor).round() as u64).max(1);
        Self::new(self.requests(), self.points[1..].iter().map(|&(s, misses)| (size(s), misses)))
    }

    /// What is left to a store below one of `size` blocks: the misses of that one, by the size of the store below.
    #[must_use]
    pub fn beyond(&self, size: u64) -> Self {
        let rest = self.points.iter().filter(|p| p.0 > size).map(|&(s, misses)| (s - size, misses));
        Self::falling(std::iter::once((0, self.misses_at(size))).chain(rest))
    }

    /// Of the sizes with `misses` misses, the one that is nearest to `size` on the side where a falling curve has it;
    /// `None` if there is none on that side.
    pub(super) fn nearest_size(&self, size: f64, misses: f64) -> Option<f64> {
        let line = |pair: &[(u64, f64)]| {
            let (a, b) = (pair[0], pair[1]);
            a.0 as f64 + (b.0 - a.0) as f64 * ((misses - a.1) / (b.1 - a.1)).clamp(0.0, 1.0)
        };
        let after = self.points.partition_point(|&(s, _)| s as f64 <= size);
        if self.at(size) < misses {
            let before = &self.points[..(after + 1).min(self.points.len())];
            before.windows(2).rev().find(|p| p[0].1 >= misses).map(|p| line(p).min(size))
        } else {
            self.points[after - 1..].windows(2).find(|p| p[1].1 <= misses).map(|p| line(p).max(size))
        }
    }

    /// The smallest size with at most `misses`, rounded up to a whole block; `None` if no size does it.
    pub fn size_for(&self, misses: f64) -> Option<u64> {
        let at = self.points.iter().position(|&(_, there)| there <= misses)?;
        if at == 0 {
            return Some(0);
        }
        // high > misses >= low
        let ((from, high), (to, low)) = (self.points[at - 1], self.points[at]);
        Some((from + ((to - from) as f64 * ((high - misses) / (high - low))).ceil() as u64).min(to))
    }

    /// The working-set size: the smallest size whose misses exceed those that no size avoids by at most `slack` of
    /// all requests. What no size avoids is the lowest point of the curve.
    pub fn working_set(&self, slack: f64) -> u64 {
        let enough = self.size_for(self.least() + slack.max(0.0) * self.requests());
        // the lowest point always is, unless there is no number for the requests
        enough.unwrap_or_else(|| self.points.last().map_or(0, |&(size, _)| size))
    }

    /// The smallest size that saves all that any size saves, but for a thousandth of it: what a cache could use.
    pub fn enough(&self) -> u64 {
        let least = self.least();
        self.size_for(least + (self.requests() - least) * ENOUGH).unwrap_or(0)
    }

    /// The lowest point: the misses that no size avoids.
    fn least(&self) -> f64 {
        self.points.iter().fold(f64::INFINITY, |least, &(_, misses)| least.min(misses))
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        self.points.capacity() * size_of::<(u64, f64)>()
    }
}

/// Misses per block from one point to a later one.
pub(crate) fn slope(from: (u64, f64), to: (u64, f64)) -> f64 {
    (to.1 - from.1) / (to.0 - from.0) as f64
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(in crate::curve) fn any_curve() -> impl Strategy<Value = Curve> {
        (0.0..1e6, prop::collection::vec((0u64..10_000, 0.0..1e6), 0..20)).prop_map(|(n, points)| Curve::new(n, points))
    }

    pub(crate) fn falling_curve() -> impl Strategy<Value = Curve> {
        prop::collection::vec((0u64..1000, 0u32..1000), 0..20)
            .prop_map(|points| Curve::falling(points.into_iter().map(|(s, m)| (s, f64::from(m)))))
    }

    #[test]
    fn lines_between_points_and_level_after_them() {
        let curve = Curve::new(100.0, [(20, 10.0), (10, 60.0)]);
        assert_eq!(curve.points(), [(0, 100.0), (10, 60.0), (20, 10.0)]);
        let at = |size| curve.misses_at(size);
        assert_eq!([at(0), at(5), at(10), at(15), at(20), at(u64::MAX)], [100.0, 80.0, 60.0, 35.0, 10.0, 10.0]);
        assert_eq!(curve.miss_ratio_at(15), 0.35);
        assert_eq!(curve.marginal(0, 10), 4.0);
        assert_eq!(curve.marginal(10, 5), 5.0);
        assert_eq!(curve.marginal(20, u64::MAX), 0.0);
        assert_eq!(curve.marginal(5, 0), 0.0);
        assert_eq!(curve.max_size(), 20);
    }

    #[test]
    fn a_curve_of_nothing_is_nothing_at_every_size() {
        let curve = Curve::new(0.0, [(10, 0.0)]);
        assert_eq!((curve.misses_at(0), curve.misses_at(5), curve.miss_ratio_at(7)), (0.0, 0.0, 0.0));
        assert_eq!(curve.working_set(0.01), 0);
        assert_eq!(curve.scaled_to(10.0).misses_at(10), 0.0);
        assert_eq!(Curve::new(5.0, []).misses_at(u64::MAX), 5.0);
    }

    #[test]
    fn misses_are_held_within_the_requests_and_the_last_of_equal_sizes_counts() {
        let curve = Curve::new(10.0, [(1, 11.0), (3, -1.0), (2, 5.0), (2, 6.0), (0, 3.0)]);
        assert_eq!(curve.points(), [(0, 10.0), (1, 10.0), (2, 6.0), (3, 0.0)]);
    }

    #[test]
    fn the_hull_bridges_a_cliff() {
        // a loop of 10 blocks under LRU, then a rise that no hull has
        let curve = Curve::new(100.0, [(9, 100.0), (10, 10.0), (20, 12.0)]);
        assert_eq!(curve.convex_hull().points(), [(0, 100.0), (10, 10.0)]);
        assert_eq!(curve.working_set(0.0), 10);
        assert_eq!(curve.working_set(0.45), 10);
        assert_eq!(curve.working_set(1.0), 0);
    }

    #[test]
    fn what_is_beyond_a_size_begins_with_what_that_misses() {
        let curve = Curve::new(100.0, [(10, 60.0), (30, 20.0)]);
        assert_eq!(curve.beyond(20).points(), [(0, 40.0), (10, 20.0)]);
        assert_eq!(curve.beyond(0).points(), curve.points());
        assert_eq!(curve.beyond(99).points(), [(0, 20.0)]);
    }

    #[test]
    fn points_that_say_nothing_do_no_harm() {
        let curve = Curve::falling([(10, 5.0), (5, f64::NAN), (20, 7.0), (30, -1.0), (10, 6.0)]);
        assert_eq!(curve.points(), [(0, 5.0), (10, 5.0), (20, 5.0)]);
        assert_eq!(Curve::falling([]).misses_at(17), 0.0);
    }

    #[test]
    fn enough_is_where_more_would_not_matter() {
        let curve = Curve::falling([(0, 1000.0), (500, 0.5), (10_000, 0.0)]);
        assert_eq!(curve.enough(), 500);
        assert_eq!(Curve::flat(7.0).enough(), 0);
    }

    proptest! {
        #[test]
        fn the_size_for_some_misses_is_the_smallest(curve in falling_curve(), misses in 0u32..1000) {
            let misses = f64::from(misses);
            match curve.size_for(misses) {
                Some(size) => {
                    prop_assert!(curve.misses_at(size) <= misses + 1e-6);
                    prop_assert!(size == 0 || curve.misses_at(size - 1) > misses - 1e-6);
                }
                None => prop_assert!(curve.misses_at(u64::MAX) > misses),
            }
        }

        #[test]
        fn the_hull_of_a_falling_curve_begins_and_ends_as_it_does(curve in falling_curve()) {
            let hull = curve.convex_hull();
            for size in 0..1000 {
                prop_assert!(hull.misses_at(size) <= curve.misses_at(size) + 1e-9);
                let around = hull.misses_at(size) + hull.misses_at(size + 2);
                prop_assert!(2.0 * hull.misses_at(size + 1) <= around + 1e-9);
            }
            prop_assert_eq!(hull.misses_at(0), curve.misses_at(0));
            prop_assert_eq!(hull.misses_at(1000), curve.misses_at(1000));
        }

        #[test]
        fn the_hull_is_convex_falls_and_is_the_highest_below(curve in any_curve()) {
            let hull = curve.convex_hull();
            let slopes: Vec<_> = hull.points().windows(2).map(|p| slope(p[0], p[1])).collect();
            prop_assert!(slopes.iter().all(|&s| s < 0.0) && slopes.windows(2).all(|s| s[0] < s[1]), "{slopes:?}");
            for &(size, misses) in curve.points() {
                prop_assert!(hull.misses_at(size) <= misses * (1.0 + 1e-12) + 1e-9, "above the curve at {size}");
            }
            // the highest: its corners are on the curve
            prop_assert!(hull.points().iter().all(|p| curve.points().contains(p)));
            prop_assert_eq!(hull.misses_at(u64::MAX), curve.points().iter().fold(f64::INFINITY, |l, p| l.min(p.1)));
        }

        #[test]
        fn the_working_set_is_the_smallest_size_that_is_enough(curve in any_curve(), slack in 0.0..0.5) {
            let size = curve.working_set(slack);
            let enough =
                curve.misses_at(u64::MAX).min(curve.convex_hull().misses_at(u64::MAX)) + slack * curve.requests();
            prop_assert!(curve.misses_at(size) <= enough * (1.0 + 1e-9) + 1e-6);
            prop_assert!(size == 0 || curve.misses_at(size - 1) > enough * (1.0 - 1e-9) - 1e-6);
        }
    }
}
