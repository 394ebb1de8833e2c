//! The controllers: what holds for all of them on anything, and what each says of itself in small cases.

mod goals;
mod moves;
mod rules;

use super::*;
use crate::curve::Curve;
use crate::shares::{Hint, Level, NodeId, ShareSettings, Tree};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A host with disks.
struct Bench {
    tree: Tree,
    governor: Governor,
    disks: Vec<NodeId>,
}

impl Bench {
    fn new(total: u64, disks: &[(&str, ShareSettings)]) -> Self {
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

fn weighing(weight: u32) -> ShareSettings {
    ShareSettings { weight, ..ShareSettings::default() }
}

fn hinted(hint: Hint) -> ShareSettings {
    ShareSettings { hint, ..ShareSettings::default() }
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
        disks in prop::collection::vec(
            (0usize..4, 1u32..1000, 0u64..50, prop::option::of(50u64..2000), 0usize..6),
            1..8,
        ),
        intervals in prop::collection::vec(prop::collection::vec(any_leaf(), 8), 1..6),
        gone in 0usize..8,
    ) {
        let kinds = [
            ControllerKind::Static,
            ControllerKind::Donor(4),
            ControllerKind::Utility,
            ControllerKind::Target,
            ControllerKind::Paper,
            ControllerKind::Utility,
        ];
        let mut tree = Tree::new("host", total);
        let mut governor = Governor::new();
        let mut groups = vec![tree.root()];
        for (i, &(weight, floor, ceiling, kind)) in vms.iter().enumerate() {
            let settings = ShareSettings { weight, floor, ceiling, ..ShareSettings::default() };
            if let Ok(vm) = tree.add(tree.root(), Level::Vm, &format!("vm{i}"), settings) {
                governor.set(vm, Some(kinds[kind]));
                groups.push(vm);
            }
        }
        governor.set(tree.root(), Some(kinds[vms[0].3]));
        let mut leaves = vec![];
        for (i, &(group, weight, floor, ceiling, hint)) in disks.iter().enumerate() {
            let settings = ShareSettings { weight, floor, ceiling, hint: Hint::ALL[hint] };
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
            let told = leaves.iter().zip(interval);
            let told: Vec<(NodeId, Activity, Curve)> = told.map(|(&node, (requests, misses, distinct, points))| {
                let misses = *misses.min(requests);
                let seen = Activity {
                    requests: *requests,
                    misses,
                    read_ahead_hits: misses / 3,
                    distinct: *distinct,
                    hit_us: 20.0,
                    miss_us: 500.0,
                    iops: 1000.0,
                    slow_misses: 0.5,
                };
                (node, seen, Curve::falling(points.iter().map(|&(s, m)| (s, f64::from(m)))))
            }).collect();
            let leaves: Vec<Leaf<'_>> = told
                .iter()
                .map(|(node, seen, curve)| Leaf {
                    node: *node,
                    held: before.get(node).copied().unwrap_or(0),
                    least: 0,
                    seen: *seen,
                    curve: Some(curve),
                })
                .collect();
            let targets = governor.interval(&tree, &leaves);
            prop_assert!(targets.iter().map(|t| t.1).sum::<u64>() <= tree.total());
            let short: Vec<NodeId> = tree.shortfalls().iter().flat_map(|s| tree.below(s.node).split_off(1)).collect();
            for id in tree.below(tree.root()) {
                let node = tree.node(id).expect("lives");
                prop_assert!(
                    governor.target(id) <= node.settings().ceiling.unwrap_or(u64::MAX),
                    "ceiling of {}",
                    node.name()
                );
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
                        prop_assert!(
                            governor.target(*node) >= settings.floor,
                            "floor of {}: {}",
                            in_tree.name(),
                            governor.target(*node)
                        );
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
                prop_assert!(
                    came <= total / 64 + 1 && left <= total / 64 + 1,
                    "{came} and {left} blocks of {total} untold"
                );
            }
            before = tree.below(tree.root()).into_iter().skip(1).map(|id| (id, governor.target(id))).collect();
        }
    }
}

/// A share that follows a curve by a block or two in each interval is no news; that it has moved by a hundredth is.
#[test]
fn small_steps_are_told_together() {
    let mut bench = Bench::new(100_000, &[("a", weighing(100)), ("b", weighing(100))]);
    bench.governor.set(bench.tree.root(), Some(ControllerKind::Static));
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
    let vms = ["v1", "v2"].map(|vm| tree.add(tree.root(), Level::Vm, vm, ShareSettings::default()).expect("fits"));
    let disks =
        vms.map(|vm| ["d1", "d2"].map(|d| tree.add(vm, Level::Disk, d, ShareSettings::default()).expect("fits")));
    governor.set(tree.root(), Some(ControllerKind::Static));
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
