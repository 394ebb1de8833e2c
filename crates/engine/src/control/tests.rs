//! The controllers: what holds for all of them on anything, and what each says of itself in small cases.

use super::*;
use crate::curve::Curve;
use crate::shares::{Hint, Level, NodeId, Settings, Tree};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A host with disks.
struct Bench {
    tree: Tree,
    governor: Governor,
    disks: Vec<NodeId>,
}

impl Bench {
    fn new(total: u64, disks: &[(&str, Settings)]) -> Self {
        let mut tree = Tree::new("host", total);
        let root = tree.root();
        let disks = disks.iter().map(|(name, s)| tree.add(root, Level::Disk, name, *s).expect("fits")).collect();
        Self { tree, governor: Governor::new(), disks }
    }

    fn with(mut self, controller: impl Controller + 'static) -> Self {
        self.governor.install(self.tree.root(), Box::new(controller));
        self
    }

    /// One interval; targets of the disks in the order of `new`.
    fn interval(&mut self, seen: &[(Activity, Curve)]) -> Vec<u64> {
        let held: Vec<u64> = self.disks.iter().map(|&d| self.governor.target(d)).collect();
        let leaves: Vec<Leaf<'_>> = (0..seen.len())
            .map(|i| Leaf { node: self.disks[i], held: held[i], least: 0, seen: seen[i].0, curve: Some(&seen[i].1) })
            .collect();
        self.governor.interval(&self.tree, &leaves);
        self.disks.iter().map(|&d| self.governor.target(d)).collect()
    }

    fn last_events(&self) -> Vec<String> {
        let last = self.governor.events().since(0).map(|e| e.interval).max().unwrap_or(0);
        self.governor.events().since(0).filter(|e| e.interval == last).map(ToString::to_string).collect()
    }
}

fn weighing(weight: u32) -> Settings {
    Settings { weight, ..Settings::default() }
}

fn hinted(hint: Hint) -> Settings {
    Settings { hint, ..Settings::default() }
}

/// An interval of `requests`, of which all are missed without a block and `unavoidable` with `enough` blocks.
fn even(requests: u64, enough: u64, unavoidable: u64) -> (Activity, Curve) {
    let curve = Curve::falling([(0, requests as f64), (enough, unavoidable as f64)]);
    (Activity { requests, misses: unavoidable, distinct: enough, ..Activity::default() }, curve)
}

const IDLE: fn() -> (Activity, Curve) = || (Activity::default(), Curve::flat(0.0));

fn unguarded() -> Utility {
    Utility::default()
}

fn any_leaf() -> impl Strategy<Value = (u64, u64, u64, Vec<(u64, u32)>)> {
    (0u64..5000, 0u64..5000, 0u64..3000, prop::collection::vec((0u64..6000, 0u32..5000), 0..6))
}

proptest! {
    /// Any tree, any telemetry, any controller at any node, nodes that come and go: parts sum to no more than the
    /// whole, ceilings hold, floors hold for those who demand them, and the events tell every difference.
    #[test]
    fn every_controller_keeps_the_accounts(
        total in 0u64..8000,
        vms in prop::collection::vec((1u32..1000, 0u64..200, prop::option::of(200u64..4000), 0usize..6), 1..4),
        disks in prop::collection::vec((0usize..4, 1u32..1000, 0u64..50, prop::option::of(50u64..2000), 0usize..6), 1..8),
        intervals in prop::collection::vec(prop::collection::vec(any_leaf(), 8), 1..6),
        gone in 0usize..8,
    ) {
        let kinds = [Kind::Static, Kind::Donor(4), Kind::Utility, Kind::Target, Kind::Paper, Kind::Utility];
        let mut tree = Tree::new("host", total);
        let mut governor = Governor::new();
        let mut groups = vec![tree.root()];
        for (i, &(weight, floor, ceiling, kind)) in vms.iter().enumerate() {
            let settings = Settings { weight, floor, ceiling, ..Settings::default() };
            if let Ok(vm) = tree.add(tree.root(), Level::Vm, &format!("vm{i}"), settings) {
                governor.set(vm, Some(kinds[kind]));
                groups.push(vm);
            }
        }
        governor.set(tree.root(), Some(kinds[vms[0].3]));
        let mut leaves = vec![];
        for (i, &(group, weight, floor, ceiling, hint)) in disks.iter().enumerate() {
            let settings = Settings { weight, floor, ceiling, hint: Hint::ALL[hint], ..Settings::default() };
            if let Ok(disk) = tree.add(groups[group % groups.len()], Level::Disk, &format!("d{i}"), settings) {
                let goals = [None, Some(Goal::HitRatio(0.5)), Some(Goal::P99LatencyUs(100.0)), Some(Goal::Iops(9e9))];
                governor.set_goal(disk, goals[i % 4]);
                leaves.push(disk);
            }
        }
        let mut before: BTreeMap<NodeId, u64> = BTreeMap::new();
        let mut moved: BTreeMap<NodeId, i64> = BTreeMap::new();
        let mut sequence = 0;
        for (n, interval) in intervals.iter().enumerate() {
            if n == 2 && gone < leaves.len() {
                tree.remove(leaves[gone]).expect("lives");
            }
            if n == 3 {
                tree.set_total(total / 2);
            }
            let told: Vec<(NodeId, Activity, Curve)> = leaves.iter().zip(interval).map(|(&node, (requests, misses, distinct, points))| {
                let misses = *misses.min(requests);
                let seen = Activity { requests: *requests, misses, read_ahead_hits: misses / 3, distinct: *distinct, hit_us: 20.0, miss_us: 500.0, iops: 1000.0, slow_misses: 0.5 };
                (node, seen, Curve::falling(points.iter().map(|&(s, m)| (s, f64::from(m)))))
            }).collect();
            let leaves: Vec<Leaf<'_>> = told.iter().map(|(node, seen, curve)| Leaf { node: *node, held: before.get(node).copied().unwrap_or(0), least: 0, seen: *seen, curve: Some(curve) }).collect();
            let targets = governor.interval(&tree, &leaves);
            prop_assert!(targets.iter().map(|t| t.1).sum::<u64>() <= tree.total());
            let short: Vec<NodeId> = tree.shortfalls().iter().flat_map(|s| tree.below(s.node).split_off(1)).collect();
            for id in tree.below(tree.root()) {
                let node = tree.node(id).expect("lives");
                prop_assert!(governor.target(id) <= node.settings().ceiling.unwrap_or(u64::MAX), "ceiling of {}", node.name());
                let below: u64 = node.children().iter().map(|&c| governor.target(c)).sum();
                prop_assert!(node.children().is_empty() || below <= governor.target(id));
            }
            // floors of VMs with disks that want them; below, what a VM has is enough unless told otherwise
            if short.is_empty() {
                for (leaf, (node, seen, curve)) in leaves.iter().zip(&told) {
                    let Ok(in_tree) = tree.node(leaf.node) else { continue };
                    let settings = in_tree.settings();
                    let wants = seen.requests > 0 && curve.misses_at(0) > 0.0 && settings.hint == Hint::Normal;
                    if wants && curve.misses_at(settings.floor) > curve.misses_at(u64::MAX) * 1.01 + 1.0 {
                        prop_assert!(governor.target(*node) >= settings.floor, "floor of {}: {}", in_tree.name(), governor.target(*node));
                    }
                }
            }
            for event in governor.events().since(sequence) {
                if let Some(from) = &event.from {
                    *moved.entry(from.node).or_default() -= event.blocks as i64;
                }
                if let Some(to) = &event.to {
                    *moved.entry(to.node).or_default() += event.blocks as i64;
                }
                prop_assert!(!event.to_string().is_empty());
            }
            sequence = governor.events().next_sequence();
            for id in tree.below(tree.root()).into_iter().skip(1) {
                let (came, left) = governor.untold(id);
                let told = moved.get(&id).copied().unwrap_or(0) + came as i64 - left as i64;
                prop_assert_eq!(told, governor.target(id) as i64, "{}", tree.path(id).expect("lives"));
                prop_assert!(came <= total / 64 + 1 && left <= total / 64 + 1, "{came} and {left} blocks of {total} untold");
            }
            before = tree.below(tree.root()).into_iter().skip(1).map(|id| (id, governor.target(id))).collect();
        }
    }
}

/// A share that follows a curve by a block or two in each interval is no news; that it has moved by a hundredth is.
#[test]
fn small_steps_are_told_together() {
    let mut bench = Bench::new(100_000, &[("a", weighing(100)), ("b", weighing(100))]);
    bench.governor.set(bench.tree.root(), Some(Kind::Static));
    let before = bench.interval(&[even(1000, 40_000, 0), even(1000, 200_000, 0)])[1];
    let first = bench.governor.events().next_sequence();
    for step in 1..=500 {
        bench.interval(&[even(1000, 40_000 - 4 * step, 0), even(1000, 200_000, 0)]);
    }
    let told: Vec<u64> = bench.governor.events().since(first).map(|e| e.blocks).collect();
    let moved: u64 = told.iter().sum::<u64>() + bench.governor.untold(bench.disks[1]).0;
    assert_eq!(moved, bench.governor.target(bench.disks[1]) - before);
    assert!(moved > 1900, "{moved}");
    assert!((3..=6).contains(&told.len()), "{told:?}");
}

#[test]
fn static_lends_what_is_not_demanded_and_takes_it_back() {
    let mut bench = Bench::new(900, &[("a", weighing(200)), ("b", weighing(100))]);
    bench.governor.set(bench.tree.root(), Some(Kind::Static));
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
    bench.governor.set(bench.tree.root(), Some(Kind::Utility));
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
    let floor = Settings { floor: 1450, ..Settings::default() };
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
        events.iter().any(|e| e.contains("takes a 800 blocks, and all goals together 1600 where there are 900")),
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
    // nobody asks, so nobody gives
    let small = || even(10, 10, 0);
    let full = bench.interval(&[small(), small(), IDLE()]);
    assert_eq!(full.iter().sum::<u64>(), 4800);
    let after = bench.interval(&[hitting(), IDLE(), IDLE()]);
    assert!(after[0] > full[0] && after[1] == full[1] && after[2] < full[2], "{full:?} then {after:?}");
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
fn the_log_is_bounded_and_tells_what_was_lost() {
    let mut events = Events::new(3);
    let party = Party { node: Tree::new("host", 1).root(), name: "host".into() };
    for interval in 0..5 {
        let node = party.clone();
        events.add(Event { sequence: 0, interval, node, from: None, to: None, blocks: 0, reason: Reason::Fitted });
    }
    assert_eq!(events.since(0).map(|e| e.sequence).collect::<Vec<_>>(), [2, 3, 4]);
    assert_eq!((events.since(4).count(), events.next_sequence()), (1, 5));
    assert_eq!(events.about(party.node).count(), 3);
}

#[test]
fn each_node_has_its_own_controller_or_that_of_the_node_above() {
    let mut tree = Tree::new("host", 1200);
    let mut governor = Governor::new();
    let vms = ["v1", "v2"].map(|vm| tree.add(tree.root(), Level::Vm, vm, Settings::default()).expect("fits"));
    let disks = vms.map(|vm| ["d1", "d2"].map(|d| tree.add(vm, Level::Disk, d, Settings::default()).expect("fits")));
    governor.set(tree.root(), Some(Kind::Static));
    governor.install(vms[1], Box::new(unguarded()));
    let (many, few) = (even(4000, 4000, 0), even(1000, 4000, 0));
    for _ in 0..5 {
        let leaves: Vec<Leaf<'_>> = disks
            .iter()
            .flat_map(|d| [(d[0], &many), (d[1], &few)])
            .map(|(node, (seen, curve))| Leaf { node, held: 0, least: 0, seen: *seen, curve: Some(curve) })
            .collect();
        governor.interval(&tree, &leaves);
    }
    assert_eq!(vms.map(|vm| governor.target(vm)), [600, 600], "by weight between the VMs");
    assert_eq!(disks[0].map(|d| governor.target(d)), [300, 300], "and within the first");
    assert!(governor.target(disks[1][0]) > 500, "by utility within the second");
}
