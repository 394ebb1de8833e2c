//! Tests of the controllers that move blocks by what they save, and of the guard on them.

use super::*;
use crate::control::fixed::Fixed;

/// Intervals for which a silent disk demands what it had.
const PATIENCE_AT_LEAST: u32 = 2;

#[test]
fn static_lends_what_is_not_demanded_and_takes_it_back() {
    let mut bench = Bench::new(900, &[("a", weighing(200)), ("b", weighing(100))]);
    bench.governor.set(bench.tree.root(), Some(ControllerKind::Static));
    let wants_all = || even(1000, 5000, 10);
    assert_eq!(bench.interval(&[wants_all(), wants_all()]), [600, 300]);
    let lent = bench.interval(&[even(100, 50, 0), wants_all()]);
    assert!(lent[0] == 50 && lent[1] == 850, "{lent:?}");
    assert_eq!(bench.last_events().len(), 1, "one move");
    assert_eq!(bench.interval(&[wants_all(), wants_all()]), [600, 300]);
    // strict partitions do not
    let mut strict = Bench::new(900, &[("a", weighing(200)), ("b", weighing(100))]).with(Fixed { strict: true });
    assert_eq!(strict.interval(&[IDLE(), wants_all()]), [600, 300]);
}

#[test]
fn a_silent_disk_keeps_its_part_for_two_intervals_and_lends_it_by_quarters_then() {
    let mut bench = Bench::new(1000, &[("a", weighing(100)), ("b", weighing(100))]).with(Fixed { strict: false });
    let busy = || even(1000, 5000, 10);
    // it demands no more than it had before
    for _ in 0..2 {
        assert_eq!(bench.interval(&[busy(), busy()]), [500, 500]);
    }
    for kept in [500, 500, 375, 281, 210] {
        assert_eq!(bench.interval(&[IDLE(), busy()]), [kept, 1000 - kept]);
    }
    assert_eq!(bench.interval(&[busy(), busy()]), [500, 500], "and has it back at once");
    // what it did not demand while it was busy is lent as before
    assert_eq!(bench.interval(&[even(100, 200, 0), busy()]), [200, 800]);
    assert_eq!(bench.interval(&[IDLE(), busy()]), [200, 800]);
}

#[test]
fn what_rests_stays_for_as_long_as_nobody_asks() {
    for kind in ControllerKind::ALL {
        let mut bench = Bench::new(1000, &[("a", weighing(300)), ("b", weighing(100)), ("c", weighing(100))]);
        bench.governor.set(bench.tree.root(), Some(kind));
        assert!(!bench.governor.rests(), "{kind}: before the first interval");
        let idle = || [IDLE(), IDLE(), IDLE()];
        for round in 1..4 {
            for n in 0..20 {
                bench.interval(&[even(1000 + 90 * n, 400 * round, 0), even(3000, 700, 100 * n), IDLE()]);
                assert!(!bench.governor.rests(), "{kind}: two are busy");
            }
            let mut waited = 0;
            while !bench.governor.rests() {
                bench.interval(&idle());
                waited += 1;
                assert!(waited < 100, "{kind} never rests");
            }
            assert!(waited > PATIENCE_AT_LEAST, "{kind}: what fell silent is remembered for {waited} intervals");
            let targets: Vec<u64> = bench.disks.iter().map(|&d| bench.governor.target(d)).collect();
            for n in 0..100 {
                assert_eq!(bench.interval(&idle()), targets, "{kind}: {n} intervals later");
                assert!(bench.governor.rests());
            }
        }
    }
}

#[test]
fn intervals_that_pass_are_counted() {
    let mut bench = Bench::new(1000, &[("a", weighing(100)), ("b", weighing(100))]).with(unguarded());
    bench.interval(&[even(1000, 2000, 0), even(3000, 1000, 1000)]);
    bench.governor.pass();
    bench.interval(&[even(3000, 1000, 1000), even(1000, 2000, 0)]);
    let told: Vec<u64> = bench.governor.events().since(0).map(|e| e.interval).collect();
    assert!(told.contains(&0) && told.contains(&2) && !told.contains(&1), "{told:?}");
}

#[test]
fn utility_moves_blocks_to_where_they_save_most_and_says_so() {
    let mut bench = Bench::new(1000, &[("db", weighing(100)), ("web", weighing(100))]).with(unguarded());
    // a thousand blocks save web 2 misses each, and db as much as half a miss each
    let seen = || [even(1000, 2000, 0), even(3000, 1000, 1000)];
    assert_eq!(bench.interval(&seen()), [31, 969], "but for the part that db keeps, and the half that moves at once");
    let events = bench.last_events();
    assert!(events.iter().any(|e| e.starts_with("web gets")), "{events:?}");
    bench.interval(&seen());
    let mut other = Bench::new(1000, &[("db", weighing(100)), ("web", weighing(100))]).with(unguarded());
    other.interval(&[even(1000, 1000, 0), even(1000, 1000, 0)]);
    other.interval(&seen());
    let events = other.last_events();
    let [event] = &events[..] else { panic!("{events:?}") };
    assert!(event.starts_with("web gets 469 blocks from db: "), "{event}");
    assert!(event.contains("web misses 938 times less an interval with it, and db 234 times more"), "{event}");
    assert!(event.ends_with("expected: 704 misses fewer an interval"), "{event}");
}

#[test]
fn utility_does_not_move_for_noise_nor_all_at_once() {
    let equal = || even(1000, 1000, 0);
    let mut bench = Bench::new(1000, &[("a", weighing(100)), ("b", weighing(100))]).with(unguarded());
    let begun = bench.interval(&[equal(), equal()]);
    assert_eq!(begun, [500, 500]);
    // 0.5 % of all misses
    assert_eq!(bench.interval(&[equal(), even(1010, 1000, 0)]), begun);
    let settings = UtilitySettings { pace: 0.1, ..UtilitySettings::default() };
    let mut slow = Bench::new(1000, &[("a", weighing(100)), ("b", weighing(100))]).with(Utility::new(settings));
    slow.interval(&[equal(), equal()]);
    assert_eq!(slow.interval(&[equal(), even(9000, 1000, 0)]), [400, 600]);
}

#[test]
fn a_miss_of_a_heavier_node_counts_for_more() {
    let mut bench = Bench::new(1000, &[("a", weighing(300)), ("b", weighing(100))]).with(unguarded());
    let targets = bench.interval(&[even(1000, 1000, 0), even(2000, 1000, 0)]);
    assert!(targets[0] > 900, "{targets:?}");
}

#[test]
fn the_guard_lets_nobody_move_before_it_would_have_paid_nor_lend_what_comes_back_at_once() {
    let mut bench = Bench::new(1000, &[("a", weighing(100)), ("b", weighing(100))]);
    bench.governor.set(bench.tree.root(), Some(ControllerKind::Utility));
    // each for four intervals in turn could use all; but in that time it would hardly have read what it gave up again
    let busy = || even(400, 1000, 0);
    for _ in 0..5 {
        bench.interval(&[busy(), busy()]);
    }
    for i in 0..64 {
        let targets = bench.interval(&if i % 8 < 4 { [busy(), IDLE()] } else { [IDLE(), busy()] });
        // once it has seen the other come back
        assert!(i < 24 || targets == [500, 500], "interval {i}: {targets:?}");
    }
    // from now on both demand all, and for one of them it is worth far more
    let mut taken = 0;
    for _ in 0..30 {
        taken = bench.interval(&[even(5000, 1000, 0), even(100, 1000, 0)])[0];
    }
    assert!(taken > 900, "{taken}");
    assert!(bench.governor.events().since(0).any(|e| matches!(e.reason, Reason::Resumed { .. })));
}

#[test]
fn misses_that_read_ahead_foresaw_are_worth_nothing() {
    let mut bench = Bench::new(1000, &[("a", weighing(100)), ("b", weighing(100))]).with(unguarded());
    let (seen, curve) = even(3000, 1000, 0);
    let foreseen = Activity { misses: 3000, read_ahead_hits: 3000, ..seen };
    let targets = bench.interval(&[(foreseen, curve), even(1000, 1000, 0)]);
    assert!(targets[1] > 900, "{targets:?}");
}

#[test]
fn hints_decide_about_growth() {
    let seen = || even(1000, 1000, 0);
    let share = |hint: Hint, seen: (Activity, Curve)| {
        let mut bench = Bench::new(1000, &[("a", hinted(hint)), ("b", weighing(100))]).with(unguarded());
        bench.interval(&[even(500, 1000, 0), even(500, 1000, 0)]);
        bench.interval(&[seen.clone(), even(500, 1000, 0)]);
        bench.interval(&[seen, even(500, 1000, 0)])[0]
    };
    assert!(share(Hint::Normal, seen()) > 900);
    assert!(share(Hint::Random, seen()) > 900);
    for none in [Hint::Sequential, Hint::NoReuse] {
        assert!(share(none, seen()) < 100, "{none}");
    }
    assert_eq!(share(Hint::DontNeed, seen()), 0);
    // its entitlement is there before it asks
    assert_eq!(share(Hint::WillNeed, IDLE()), 500);
}

#[test]
fn a_curve_that_is_wrong_is_found_out() {
    let mut bench = Bench::new(2000, &[("a", weighing(100)), ("b", weighing(100))]).with(Target::default());
    bench.governor.set_goal(bench.disks[0], Some(Goal::HitRatio(0.8)));
    let mut size = 0;
    for _ in 0..40 {
        // the curve promises that 500 blocks are enough; it takes 1000
        let misses = 1000 - size.min(1000);
        let (seen, curve) = even(1000, 500, 0);
        let curve = Curve::falling(curve.points().iter().copied().chain([(1500, 0.0)]));
        size = bench.interval(&[(Activity { misses, ..seen }, curve), IDLE()])[0];
    }
    assert!((760..=840).contains(&size), "{size} blocks for a hit ratio of 80 %, which takes 800");
}
