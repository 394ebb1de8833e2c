//! Divisions against all divisions there are, on curves small enough for that; hulls; fits; windows.

use proptest::prelude::*;
use undercroft_study::curves::partition::{divide, equal, misses, proportional};
use undercroft_study::curves::{
    Curve, ExactLru, Method, Popularity, Requests, Tenant, Window, WorkingSet, shared, talus,
};
use undercroft_trace::synth::Zipf;

fn tenant(curve: Curve, floor: u64, ceiling: u64) -> Tenant {
    Tenant { name: "t".into(), curve, floor, ceiling }
}

/// Curves with cliffs, of few blocks.
fn any_tenant() -> impl Strategy<Value = Tenant> {
    (prop::collection::vec((1u64..20, 0u32..100), 0..6), 0u64..5, 0u64..25).prop_map(|(points, floor, more)| {
        let curve =
            Curve::falling(std::iter::once((0, 100.0)).chain(points.into_iter().map(|(s, m)| (s, f64::from(m)))));
        tenant(curve, floor, floor + more)
    })
}

/// The fewest misses of all divisions, by trying each.
fn least(tenants: &[Tenant], total: u64) -> f64 {
    let Some((first, rest)) = tenants.split_first() else { return 0.0 };
    let floors: u64 = rest.iter().map(|t| t.floor).sum();
    (first.floor..=first.ceiling.min(total - floors))
        .map(|part| first.curve.misses_at(part) + least(rest, total - part))
        .fold(f64::INFINITY, f64::min)
}

proptest! {
    #[test]
    fn programming_finds_the_best_and_everybody_keeps_the_bounds(
        tenants in prop::collection::vec(any_tenant(), 1..4),
        more in 0u64..40,
    ) {
        let total = tenants.iter().map(|t| t.floor).sum::<u64>() + more;
        let best = least(&tenants, total);
        for method in Method::ALL {
            let parts = divide(&tenants, total, method).expect("floors fit");
            prop_assert!(parts.iter().sum::<u64>() <= total, "{method}: {parts:?}");
            for (part, t) in parts.iter().zip(&tenants) {
                prop_assert!((t.floor..=t.ceiling).contains(part), "{method}: {parts:?}");
            }
            let reached = misses(&tenants, &parts);
            prop_assert!(reached >= best - 1e-6, "{method} beats all divisions");
            // a thousandth more is what it may cost to treat equals alike
            prop_assert!(method != Method::Dp || reached <= best * 1.001 + 1e-6, "{reached} where {best} is possible");
        }
        for parts in [equal(&tenants, total), proportional(&tenants, total)] {
            let parts = parts.expect("floors fit");
            prop_assert!(parts.iter().sum::<u64>() <= total);
            prop_assert!(parts.iter().zip(&tenants).all(|(p, t)| (t.floor..=t.ceiling).contains(p)), "{parts:?}");
            prop_assert!(misses(&tenants, &parts) >= best - 1e-6);
        }
    }

    #[test]
    fn on_convex_curves_greed_is_as_good(
        tenants in prop::collection::vec(any_tenant(), 1..4),
        more in 0u64..40,
    ) {
        let hull = |t: Tenant| Tenant { curve: t.curve.convex_hull(), ..t };
        let tenants: Vec<Tenant> = tenants.into_iter().map(hull).collect();
        let total = tenants.iter().map(|t| t.floor).sum::<u64>() + more;
        let best = least(&tenants, total);
        for method in Method::ALL {
            let reached = misses(&tenants, &divide(&tenants, total, method).expect("floors fit"));
            prop_assert!(reached <= best + 1e-6, "{method}: {reached} where {best} is possible");
        }
    }

    #[test]
    fn a_cache_that_is_two_misses_what_the_hull_says(t in any_tenant(), size in 0u64..40) {
        let curve = t.curve;
        let two = talus(&curve, size);
        let hull = curve.convex_hull();
        prop_assert!((two.misses - hull.misses_at(size)).abs() < 1e-9);
        prop_assert!((two.first + two.second - size as f64).abs() < 1e-9);
        // each part, scaled up to the whole, is at a corner of the hull
        let scaled = |blocks: f64, part: f64| {
            if part > 0.0 { part * hull.misses_at((blocks / part).round() as u64) } else { 0.0 }
        };
        let together = scaled(two.first, two.part) + scaled(two.second, 1.0 - two.part);
        prop_assert!((together - two.misses).abs() < 1e-6, "{together} for {}", two.misses);
    }

    #[test]
    fn windows_add_up(
        blocks in prop::collection::vec((0u64..50, 0u64..30, any::<bool>()), 1..400),
        length in 1u64..100,
    ) {
        let mut time = 0;
        let requests: Vec<(u64, u64, bool)> = blocks.iter().map(|&(b, gap, w)| { time += gap; (b, time, w) }).collect();
        for window in [Window::Requests(length), Window::Time(length)] {
            let mut set = WorkingSet::new(window);
            requests.iter().for_each(|&(block, time, write)| set.observe(block, time, write));
            let windows = set.windows();
            prop_assert_eq!(windows.iter().map(|w| w.requests).sum::<u64>(), requests.len() as u64);
            prop_assert_eq!(windows.iter().map(|w| w.new_blocks).sum::<u64>(), set.footprint());
            for w in &windows {
                let inside = &requests[w.first_request as usize..(w.first_request + w.requests) as usize];
                let mut distinct: Vec<u64> = inside.iter().map(|r| r.0).collect();
                distinct.sort_unstable();
                distinct.dedup();
                prop_assert_eq!(w.blocks, distinct.len() as u64);
                prop_assert_eq!(w.writes, inside.iter().filter(|r| r.2).count() as u64);
                match window {
                    Window::Requests(n) => prop_assert!(w.requests <= n),
                    Window::Time(n) => prop_assert!(
                        inside.iter().all(|r| (w.start_ns..w.start_ns + n).contains(&r.1)), "{w:?}"
                    ),
                }
            }
        }
    }
}

/// A load beside itself, whose curve has steps and plateaus as those of all real loads: nobody is served better than
/// the other.
#[test]
fn equals_get_equal_parts_but_over_a_cliff() {
    let blocks: Vec<u64> = Zipf::new(5000, 0.8, 5).take(30_000).collect();
    let mut exact = ExactLru::new();
    exact.observe(&blocks);
    let load = tenant(exact.curve(Requests::All), 0, u64::MAX);
    let other = tenant(Curve::new(1000.0, [(10, 0.0)]), 0, u64::MAX);
    for method in Method::ALL {
        for total in [1000, 2000, 2001, 3000] {
            let parts = divide(&[load.clone(), other.clone(), load.clone()], total, method).expect("no floors");
            assert!(parts[0].abs_diff(parts[2]) <= 1, "{method} of {total}: {parts:?}");
        }
    }
    // a loop of 100 blocks: half of it hits nothing, so that one of two gets what there is
    let cliff = tenant(Curve::new(1000.0, [(99, 1000.0), (100, 100.0)]), 0, u64::MAX);
    let parts = divide(&[cliff.clone(), cliff], 120, Method::Dp).expect("no floors");
    assert!(parts.contains(&100), "{parts:?}");
}

#[test]
fn floors_that_do_not_fit_are_named() {
    let tenants = [tenant(Curve::flat(5.0), 10, 20), tenant(Curve::flat(5.0), 10, 20)];
    let said = divide(&tenants, 15, Method::Dp).expect_err("20 of 15").to_string();
    assert!(said.contains("the floors sum to 20 blocks, and there are 15"), "{said}");
    let crossed = [tenant(Curve::flat(5.0), 10, 9)];
    assert!(divide(&crossed, 15, Method::Greedy).expect_err("crossed").to_string().contains("above its ceiling of 9"));
}

#[test]
fn a_cliff_is_climbed_as_a_whole_or_not_at_all() {
    // a loop of 100 blocks beside a gentle slope; the hull of the loop would take the middle of its cliff
    let cliff = Curve::new(1000.0, [(99, 1000.0), (100, 0.0)]);
    let gentle = Curve::new(600.0, [(100, 0.0)]);
    let tenants = [tenant(cliff, 0, u64::MAX), tenant(gentle, 0, u64::MAX)];
    assert_eq!(divide(&tenants, 80, Method::Dp), Ok(vec![0, 80]));
    assert_eq!(divide(&tenants, 80, Method::Lookahead), Ok(vec![0, 80]));
    assert_eq!(divide(&tenants, 80, Method::Greedy), Ok(vec![80, 0]), "what greed costs");
    assert_eq!(divide(&tenants, 150, Method::Dp), Ok(vec![100, 50]));
}

#[test]
fn a_fit_finds_the_exponent_of_zipf_loads_and_says_where_there_is_none() {
    for (alpha, seed) in [(0.6, 1), (0.8, 2), (1.0, 3), (1.2, 4)] {
        let mut popularity = Popularity::new();
        popularity.observe(&Zipf::new(100_000, alpha, seed).take(2_000_000).collect::<Vec<_>>());
        let fit = popularity.zipf().expect("many requests");
        assert!((fit.alpha - alpha).abs() < 0.03, "{fit:?} for {alpha}");
        assert!(fit.distance < 0.02 && fit.error < 0.01 && fit.part > 0.1, "{fit:?} for {alpha}");
    }
    let mut uniform = Popularity::new();
    uniform.observe(&(0..2_000_000u64).map(|i| i % 10_000).collect::<Vec<_>>());
    let fit = uniform.zipf().expect("200 requests each");
    assert!(fit.alpha < 0.01 && fit.distance < 0.01, "{fit:?}");
    // half of the requests to one block, half to a thousand: no law of Zipf's
    let mut two = Popularity::new();
    two.observe(&(0..400_000u64).map(|i| if i % 2 == 0 { 0 } else { 1 + i % 2001 }).collect::<Vec<_>>());
    assert!(two.zipf().expect("requests enough").distance > 0.05);
    let mut few = Popularity::new();
    few.observe(&[1, 2, 3]);
    assert_eq!((few.zipf(), few.footprint()), (None, 3));
}

#[test]
fn tenants_in_one_queue_miss_what_footprints_say() {
    // two Zipf loads taking turns
    let one: Vec<u64> = Zipf::new(20_000, 0.9, 1).take(400_000).collect();
    let other: Vec<u64> = Zipf::new(50_000, 0.6, 2).take(400_000).map(|b| b + (1 << 32)).collect();
    let curve = |blocks: &[u64]| {
        let mut exact = ExactLru::new();
        exact.observe(blocks);
        exact.curve(Requests::All)
    };
    let mixed: Vec<u64> = one.iter().zip(&other).flat_map(|(&a, &b)| [a, b]).collect();
    let truth = curve(&mixed);
    let told = shared(&[curve(&one), curve(&other)]);
    for size in [1000, 5000, 20_000, 50_000] {
        let off = told.miss_ratio_at(size) - truth.miss_ratio_at(size);
        assert!(off.abs() < 0.01, "at {size}: off by {off:.4}");
    }
}
