//! Curves of several tenants in one: under the best division of the space, and in one LRU queue.
//!
//! Owns the ways to combine, for the samplers and for the controllers. Never decides a share: a controller has floors
//! and damping besides. Invariant: no tenants make the curve of no requests; the order of tenants changes nothing but
//! rounding and ties.

use super::points::{Curve, slope};

/// A piece of a tenant's convex hull.
struct Segment {
    tenant: usize,
    blocks: u64,
    /// Misses per block, negative.
    slope: f64,
    /// The same in misses as they weigh.
    weighed: f64,
}

/// The segments of all tenants' convex hulls, the steepest (as misses weigh) first.
fn segments<'a>(tenants: impl IntoIterator<Item = (u32, &'a Curve)>) -> Vec<Segment> {
    let mut segments = vec![];
    for (tenant, (weight, curve)) in tenants.into_iter().enumerate() {
        let hull = curve.convex_hull();
        segments.extend(hull.points().windows(2).map(|pair| {
            let slope = slope(pair[0], pair[1]);
            Segment { tenant, blocks: pair[1].0 - pair[0].0, slope, weighed: slope * f64::from(weight) }
        }));
    }
    // stable: of equal slopes the earlier tenant's comes first, and a tenant's own stay in their order
    segments.sort_by(|a, b| a.weighed.total_cmp(&b.weighed));
    segments
}

/// The fewest misses that tenants with these curves can have together, by the size of what they divide among them:
/// greedy on the convex hulls, the steepest segment first, which is the best division (Fox, Operations Research 1966).
/// The curve of a node whose children's space moves to where it saves most. It is convex.
pub fn partitioned(tenants: &[Curve]) -> Curve {
    partitioned_by_weight(tenants.iter().map(|tenant| (1, tenant)))
}

/// The same where a miss of each tenant weighs as much as is said before it: space goes where it saves most weight. The
/// misses of the result are not weighed, so with unequal weights it need not be convex.
pub(crate) fn partitioned_by_weight<'a>(tenants: impl IntoIterator<Item = (u32, &'a Curve)> + Clone) -> Curve {
    let requests: f64 = tenants.clone().into_iter().map(|(_, curve)| curve.requests()).sum();
    let (mut size, mut misses) = (0u64, requests);
    let mut points = vec![];
    for segment in segments(tenants) {
        size = size.saturating_add(segment.blocks);
        misses += segment.slope * segment.blocks as f64;
        points.push((size, misses));
    }
    Curve::new(requests, points)
}

/// The division behind [`partitioned`]: blocks of each tenant when `total` are divided, in the tenants' order. What
/// would save no miss is not given out, so the sum may be less than `total`.
pub fn best_partition(tenants: &[Curve], total: u64) -> Vec<u64> {
    let mut shares = vec![0; tenants.len()];
    let mut left = total;
    for segment in segments(tenants.iter().map(|tenant| (1, tenant))) {
        let taken = segment.blocks.min(left);
        shares[segment.tenant] += taken;
        left -= taken;
    }
    shares
}

/// How much of an LRU queue a tenant fills while everything flows past: time, size and misses at the corners of its
/// curve. Time is in intervals, those that the curve's requests are of.
struct Filling(Vec<(f64, f64, f64)>);

impl Filling {
    fn of(curve: &Curve) -> Self {
        let mut corners = vec![];
        let mut time = 0.0;
        for (i, &(size, misses)) in curve.points().iter().enumerate() {
            if i > 0 {
                // at `misses` an interval the tenant grows by so many blocks an interval; between corners the rate
                // falls on a line, and the time to cross it is the integral of 1 / rate
                let (from, before) = curve.points()[i - 1];
                let blocks = (size - from) as f64;
                let change = (before - misses) / before;
                time += if change.abs() < 1e-6 {
                    blocks / before
                } else {
                    blocks / (before - misses) * (before / misses).ln()
                };
            }
            if !time.is_finite() {
                break;
            }
            corners.push((time, size as f64, misses));
            if misses <= 0.0 {
                break;
            }
        }
        Self(corners)
    }

    /// Size and misses after `time`.
    fn at(&self, time: f64) -> (f64, f64) {
        let after = self.0.partition_point(|&(t, ..)| t <= time);
        let (t, size, misses) = self.0[after - 1];
        let Some(&(to, larger, fewer)) = self.0.get(after) else { return (size, misses) };
        let part = (time - t) / (to - t);
        (size + (larger - size) * part, misses + (fewer - misses) * part)
    }
}

/// The misses of tenants with these LRU curves in one LRU queue without any division, by its size.
///
/// By footprint theory (Xiang et al., ASPLOS 2013): a queue holds of each tenant what that tenant touched in one and
/// the same stretch of time, and its miss curve says how fast that grows. Assumes that the tenants' requests are mixed
/// evenly. The curves must be of the same stretch of time.
pub fn shared(tenants: &[Curve]) -> Curve {
    let requests: f64 = tenants.iter().map(Curve::requests).sum();
    let fillings: Vec<_> = tenants.iter().filter(|t| t.requests() > 0.0).map(Filling::of).collect();
    let mut times: Vec<f64> = fillings.iter().flat_map(|f| f.0.iter().map(|&(time, ..)| time)).collect();
    times.sort_by(f64::total_cmp);
    times.dedup();
    let points = times.into_iter().map(|time| {
        let (size, misses) =
            fillings.iter().map(|f| f.at(time)).fold((0.0, 0.0), |sum, at| (sum.0 + at.0, sum.1 + at.1));
        (size.round() as u64, misses)
    });
    Curve::new(requests, points)
}

#[cfg(test)]
mod tests {
    use super::super::points::tests::{any_curve, falling_curve};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn space_goes_where_it_saves_most() {
        let steep = Curve::new(100.0, [(10, 0.0)]);
        let gentle = Curve::new(100.0, [(100, 50.0)]);
        let none = Curve::new(100.0, []);
        let tenants = [gentle, none, steep];
        assert_eq!(partitioned(&tenants).points(), [(0, 300.0), (10, 200.0), (110, 150.0)]);
        assert_eq!(best_partition(&tenants, 0), [0, 0, 0]);
        assert_eq!(best_partition(&tenants, 7), [0, 0, 7]);
        assert_eq!(best_partition(&tenants, 60), [50, 0, 10]);
        assert_eq!(best_partition(&tenants, 1000), [100, 0, 10]);
        assert_eq!(partitioned(&[]).misses_at(5), 0.0);
        assert_eq!(shared(&[]).misses_at(5), 0.0);
    }

    #[test]
    fn space_goes_first_to_those_whose_misses_weigh_most() {
        let (steep, gentle) = (Curve::new(100.0, [(10, 0.0)]), Curve::new(100.0, [(20, 0.0)]));
        let merged = |weight| partitioned_by_weight([(1, &steep), (weight, &gentle)]);
        assert_eq!(merged(1), partitioned(&[steep.clone(), gentle.clone()]));
        assert_eq!(merged(3).points(), [(0, 200.0), (20, 100.0), (30, 0.0)]);
    }

    #[test]
    fn a_shared_queue_of_equals_is_twice_one_of_them() {
        let curve = Curve::new(1000.0, [(10, 700.0), (50, 200.0), (80, 100.0)]);
        let both = shared(&[curve.clone(), curve.clone()]);
        for &(size, misses) in curve.points() {
            assert!((both.misses_at(size * 2) - misses * 2.0).abs() < 1e-9, "at {size}");
        }
    }

    #[test]
    fn a_stream_takes_a_shared_queue_from_a_small_set() {
        // 100 blocks that are asked for all the time, beside ten times as many requests for what never comes again
        let small = Curve::new(1000.0, [(99, 1000.0), (100, 100.0)]);
        let stream = Curve::new(10_000.0, []);
        let tenants = [small, Curve::new(10_000.0, [(1_000_000, 10_000.0)])];
        assert!(shared(&tenants).misses_at(800) > 10_900.0, "the stream fills 800 blocks before the set returns");
        assert!(shared(&tenants).misses_at(1200) < 10_200.0, "with 1200 the set is kept");
        assert_eq!(best_partition(&[tenants[0].clone(), stream], 1000), [100, 0]);
    }

    proptest! {
        #[test]
        fn a_group_misses_no_more_than_its_members_with_any_parts(
            a in falling_curve(), b in falling_curve(), x in 0u64..1000, y in 0u64..1000,
        ) {
            let merged = partitioned_by_weight([(1, &a), (1, &b)]);
            prop_assert!(merged.misses_at(x + y) <= a.misses_at(x) + b.misses_at(y) + 1e-6);
        }

        /// Against every division into two on small curves.
        #[test]
        fn no_division_is_better(a in any_curve(), b in any_curve(), total in 0u64..10_000) {
            let tenants = [a, b];
            let hulls = [tenants[0].convex_hull(), tenants[1].convex_hull()];
            let best = partitioned(&tenants).misses_at(total);
            let shares = best_partition(&tenants, total);
            prop_assert!(shares.iter().sum::<u64>() <= total);
            let reached = hulls[0].misses_at(shares[0]) + hulls[1].misses_at(shares[1]);
            prop_assert!((reached - best).abs() <= 1e-6, "{reached} is promised as {best}");
            for first in (0..=total).step_by(7) {
                let other = hulls[0].misses_at(first) + hulls[1].misses_at(total - first);
                prop_assert!(other >= best - 1e-6, "{first} for the first makes {other}, not {best}");
            }
        }
    }
}
