//! Tests of the controllers that follow written rules: donors and the growth rule of the page cache.

use super::*;
use crate::control::paper::expand_file;

#[test]
fn donor_follows_the_rules_one_by_one() {
    let marks = Thresholds { requests: 750.0, misses: 75.0 };
    let seen = |requests, misses, distinct| {
        (Activity { requests, misses, distinct, ..Activity::default() }, Curve::flat(misses as f64))
    };
    let run = |rounds, third: (Activity, Curve)| {
        let bench = Bench::new(4800, &[("a", weighing(100)), ("b", weighing(100)), ("c", weighing(100))]);
        let mut donor = Donor::new(rounds);
        bench.disks.iter().for_each(|&d| donor.set_thresholds(d, marks));
        let mut bench = bench.with(donor);
        // a quantum is 4800 / 48 = 100; b leaves 1500 unused
        let targets = bench.interval(&[seen(1000, 100, 1600), seen(100, 10, 100), third]);
        (targets, bench.last_events())
    };
    // c: many requests that hit: no action
    let idle_third = || seen(1000, 10, 1600);
    assert_eq!(run(1, idle_third()).0, [1700, 1500, 1600]);
    assert_eq!(run(4, idle_third()).0, [2000, 1200, 1600]);
    // c gives first where more remains
    assert_eq!(run(1, seen(100, 10, 50)).0, [1700, 1600, 1500]);
    // few requests, many misses: with much unused it gives, without it is told that size will not help
    assert_eq!(run(1, seen(100, 90, 90)).0, [1700, 1600, 1500]);
    let (targets, events) = run(1, seen(100, 90, 1500));
    assert_eq!(targets, [1700, 1500, 1600]);
    assert!(
        events.iter().any(|e| e.contains("more memory will not help c; another replacement policy may")),
        "{events:?}"
    );
    // two borrowers: most misses first, each a quantum a round
    assert_eq!(run(1, seen(1000, 200, 1600)).0, [1700, 1400, 1700]);
}

#[test]
fn donor_lets_a_hot_child_borrow_after_two_intervals_and_leaves_a_donor_its_floor() {
    let seen = |requests, misses, distinct| {
        (Activity { requests, misses, distinct, ..Activity::default() }, Curve::flat(misses as f64))
    };
    let floor = ShareSettings { floor: 1450, ..ShareSettings::default() };
    let bench = Bench::new(3200, &[("a", weighing(100)), ("b", floor)]);
    let mut donor = Donor::new(1);
    bench.disks.iter().for_each(|&d| donor.set_thresholds(d, Thresholds { requests: 750.0, misses: 75.0 }));
    let mut bench = bench.with(donor);
    // few misses, so not heavy; but it fills its 1600 of 3200, and a quantum is 100
    let mut interval = || bench.interval(&[seen(800, 50, 1590), seen(10, 1, 10)]);
    assert_eq!(interval(), [1600, 1600]);
    assert_eq!(interval(), [1700, 1500]);
    // 1,590 of 1,700 used: less than two quanta remain, but the floor is in the way
    assert_eq!(interval(), [1700, 1500]);
}

#[test]
fn marks_are_three_quarters_of_the_mean_of_the_busiest_quarter() {
    let intervals = [(100, 1.0), (400, 40.0), (200, 2.0), (300, 3.0), (100, 9.0), (200, 0.0), (380, 20.0), (1, 0.0)];
    assert_eq!(Thresholds::learned(intervals), Thresholds { requests: 292.5, misses: 22.5 });
}

#[test]
fn the_papers_rule_is_the_papers() {
    // (10 / 2) * (100 + 10) / (10 + 1)
    assert_eq!(expand_file(100, 10, Hint::Normal), 50);
    assert_eq!(expand_file(10, 10, Hint::Random), 9);
    assert_eq!(expand_file(100, 10, Hint::DontNeed), 0);
    assert_eq!(expand_file(100, 10, Hint::NoReuse), 0);
    assert_eq!(expand_file(u64::MAX, u64::MAX, Hint::Normal), 1);
}

#[test]
fn the_reaper_takes_from_the_idle_first_and_a_sequential_disk_does_not_grow() {
    let mut bench =
        Bench::new(4800, &[("busy", weighing(100)), ("idle", weighing(100)), ("sequential", weighing(100))])
            .with(Paper::default());
    let hitting = || even(2000, 4000, 100);
    let foreseen =
        || (Activity { requests: 2000, misses: 2000, read_ahead_hits: 1990, ..Activity::default() }, Curve::flat(0.0));
    // until busy and idle have filled the cache between them
    for _ in 0..10 {
        bench.interval(&[hitting(), hitting(), foreseen()]);
    }
    let full = bench.interval(&[hitting(), hitting(), foreseen()]);
    assert_eq!((full.iter().sum::<u64>(), full[2]), (4800, 100), "{full:?}");
    let after = bench.interval(&[hitting(), IDLE(), foreseen()]);
    assert!(after[0] > full[0] && after[1] < full[1], "{after:?}");
    assert!(
        bench.last_events().iter().any(|e| e.contains("has not been used for 1 intervals")),
        "{:?}",
        bench.last_events()
    );
}

#[test]
fn the_reaper_takes_first_from_what_was_idle_longest() {
    let disks = ["busy", "later", "longest"].map(|name| (name, weighing(100)));
    let mut bench = Bench::new(4800, &disks).with(Paper::default());
    let hitting = || even(2000, 4000, 100);
    for _ in 0..10 {
        bench.interval(&[hitting(), hitting(), hitting()]);
    }
    // no child borrows, so none gives
    let small = || even(10, 10, 0);
    let full = bench.interval(&[small(), small(), IDLE()]);
    assert_eq!(full.iter().sum::<u64>(), 4800);
    let after = bench.interval(&[hitting(), IDLE(), IDLE()]);
    assert!(after[0] > full[0] && after[1] == full[1] && after[2] < full[2], "{full:?} then {after:?}");
}
