//! Tests of goals: what they take, and what happens where they do not fit.

use super::*;

#[test]
fn a_goal_gets_what_it_takes_and_the_rest_saves_misses_elsewhere() {
    let mut bench = Bench::new(1000, &[("a", weighing(100)), ("b", weighing(100))]).with(Target::default());
    bench.governor.set_goal(bench.disks[0], Some(Goal::HitRatio(0.8)));
    // 1000 requests, all saved by 500 blocks: 400 save 80 %
    let seen = || [(Activity { misses: 200, ..even(1000, 500, 0).0 }, even(1000, 500, 0).1), even(500, 5000, 0)];
    bench.interval(&seen());
    assert_eq!(bench.interval(&seen()), [400, 600]);
    assert!(!bench.last_events().iter().any(|e| e.contains("out of reach")));
}

#[test]
fn goals_that_do_not_fit_get_their_parts_by_weight_and_are_told_what_they_take() {
    let mut bench =
        Bench::new(900, &[("a", weighing(200)), ("b", weighing(100)), ("c", weighing(100))]).with(Target::default());
    bench.governor.set_goal(bench.disks[0], Some(Goal::HitRatio(0.8)));
    bench.governor.set_goal(bench.disks[1], Some(Goal::HitRatio(0.8)));
    let seen = || [even(1000, 1000, 0), even(1000, 1000, 0), even(1000, 100, 0)];
    let targets = bench.interval(&seen());
    assert_eq!(targets, [600, 300, 0]);
    let events = bench.last_events();
    assert!(
        events
            .iter()
            .any(|e| e.contains("takes a 800 blocks, and all goals together 1600 blocks where there are 900 blocks")),
        "{events:?}"
    );
    // what is asked for only once cannot hit
    let mut bench = Bench::new(900, &[("a", weighing(100))]).with(Target::default());
    bench.governor.set_goal(bench.disks[0], Some(Goal::HitRatio(0.8)));
    bench.interval(&[even(1000, 100, 900)]);
    assert!(bench.last_events().iter().any(|e| e.contains("out of reach at any size")), "{:?}", bench.last_events());
}

#[test]
fn latency_and_rate_become_the_sizes_that_they_take() {
    let size = |goal, seen: Activity| {
        let mut bench = Bench::new(2000, &[("a", weighing(100)), ("b", weighing(100))]).with(Target::default());
        bench.governor.set_goal(bench.disks[0], Some(goal));
        // a thousand blocks save all of a thousand misses, so a block saves a tenth of a percent
        let curve = Curve::falling([(0, 1000.0), (1000, 0.0)]);
        bench.interval(&[(seen, curve), even(10, 2000, 0)])[0]
    };
    let seen = Activity {
        requests: 1000,
        misses: 1000,
        hit_us: 20.0,
        miss_us: 520.0,
        iops: 1923.0,
        slow_misses: 0.1,
        ..Activity::default()
    };
    // a tenth of the misses is too slow: a tenth of the requests may miss
    assert_eq!(size(Goal::P99LatencyUs(600.0), seen), 900);
    assert_eq!(size(Goal::P99LatencyUs(600.0), Activity { slow_misses: 0.0, ..seen }), 0);
    // 1923 per second at 520 us: one in flight; 5000 per second take 200 us each, 180 of 500 above a hit: 36 % misses
    assert!(size(Goal::Iops(5000.0), seen).abs_diff(640) <= 1, "{}", size(Goal::Iops(5000.0), seen));
}
