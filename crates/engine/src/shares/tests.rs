//! The tree and its division: what holds for every tree, and what the rule says in small ones.

use super::*;
use proptest::prelude::*;

fn settings(weight: u32, floor: u64, ceiling: Option<u64>) -> ShareSettings {
    ShareSettings { weight, floor, ceiling, ..ShareSettings::default() }
}

fn weighing(weight: u32) -> ShareSettings {
    settings(weight, 0, None)
}

/// The derivative cloud of the paper: two VMs 33:67 with 2 and 3 containers of a disk each.
fn cloud(total: u64) -> Tree {
    let mut tree = Tree::new("host", total);
    for (vm, weight, containers) in
        [("vm1", 33, &[("c1", 100), ("c2", 100)][..]), ("vm2", 67, &[("c1", 25), ("c2", 75), ("c3", 100)])]
    {
        let vm = tree.add(tree.root(), Level::Vm, vm, weighing(weight)).expect("fits");
        for &(name, weight) in containers {
            let container = tree.add(vm, Level::Container, name, weighing(weight)).expect("fits");
            tree.add(container, Level::Disk, "disk", ShareSettings::default()).expect("fits");
        }
    }
    tree
}

fn at(tree: &Tree, path: &str) -> NodeId {
    tree.find(path).unwrap_or_else(|| panic!("{path} is in the tree"))
}

/// Any tree with settings that the tree takes, and a demand for each disk.
#[derive(Clone, Debug)]
struct Plan {
    total: u64,
    /// Parent (modulo the nodes so far), level, weight, floor, ceiling, demand.
    nodes: Vec<(usize, u8, u32, u64, Option<u64>, u64)>,
}

fn plan() -> impl Strategy<Value = Plan> {
    let node = (
        0usize..64,
        0u8..3,
        prop_oneof![Just(100u32), 1u32..=10_000],
        prop_oneof![Just(0u64), 0u64..400],
        prop_oneof![2 => Just(None), 1 => (0u64..3000).prop_map(Some)],
        prop_oneof![Just(0u64), Just(BLOCKS_MAX), 0u64..2000],
    );
    (0u64..5000, prop::collection::vec(node, 1..40)).prop_map(|(total, nodes)| Plan { total, nodes })
}

/// The tree of a plan (what the tree refuses is left out) and the demands by path.
fn planted(plan: &Plan) -> (Tree, std::collections::BTreeMap<NodeId, u64>) {
    let mut tree = Tree::new("host", plan.total);
    let mut nodes = vec![tree.root()];
    let mut demands = std::collections::BTreeMap::new();
    for (i, &(parent, level, weight, floor, ceiling, demand)) in plan.nodes.iter().enumerate() {
        let level = [Level::Vm, Level::Container, Level::Disk][level as usize];
        if let Ok(id) =
            tree.add(nodes[parent % nodes.len()], level, &format!("n{i:02}"), settings(weight, floor, ceiling))
        {
            nodes.push(id);
            demands.insert(id, demand);
        }
    }
    (tree, demands)
}

proptest! {
    #[test]
    fn parts_sum_to_the_whole_and_floors_and_ceilings_hold(plan in plan()) {
        let (tree, demands) = planted(&plan);
        let division = tree.divide(|id| demands[&id]);
        let shares: u64 = tree.leaves().iter().map(|&id| division.get(id).share).sum();
        prop_assert!(shares <= plan.total);
        // a node added above may have taken what floors below were promised from; those are told
        let told: Vec<NodeId> = tree.shortfalls().iter().flat_map(|s| tree.below(s.node).split_off(1)).collect();
        for (id, share) in division.iter() {
            let node = tree.node(id).expect("lives");
            prop_assert!(share.share <= node.settings().ceiling.unwrap_or(u64::MAX), "ceiling of {}", node.name());
            prop_assert!(share.share >= share.demand.min(share.entitled), "{}: {share:?}", node.name());
            if !told.contains(&id) {
                prop_assert!(
                    share.share >= share.demand.min(node.settings().floor),
                    "floor of {}: {share:?}",
                    node.name()
                );
                prop_assert!(share.entitled >= node.settings().floor, "floor of {}: {share:?}", node.name());
            }
            prop_assert_eq!(share.share + share.lent(), share.entitled + share.borrowed());
            let below: u64 = node.children().iter().map(|&c| division.get(c).share).sum();
            let entitled: u64 = node.children().iter().map(|&c| division.get(c).entitled).sum();
            if node.level() != Level::Disk {
                prop_assert_eq!(below, if share.share > 0 { share.share } else { 0 });
                prop_assert!(entitled <= share.entitled);
            }
        }
        // nothing is left that some disk could take
        if shares < plan.total {
            for leaf in tree.leaves() {
                let mut way = vec![leaf];
                while let Some(above) = tree.node(way[way.len() - 1]).expect("lives").parent() {
                    way.push(above);
                }
                let full = way.iter().any(|&id| {
                    tree.node(id).expect("lives").settings().ceiling.is_some_and(|c| division.get(id).share >= c)
                });
                prop_assert!(full, "{} could have more", tree.path(leaf).expect("lives"));
            }
        }
    }

    #[test]
    fn a_larger_total_never_gives_anybody_less(plan in plan(), more in 1u64..50) {
        let (mut tree, demands) = planted(&plan);
        let before = tree.divide(|id| demands[&id]);
        tree.set_total(plan.total + more);
        let after = tree.divide(|id| demands[&id]);
        for (id, share) in before.iter() {
            prop_assert!(after.get(id).share >= share.share);
            prop_assert!(after.get(id).entitled >= share.entitled);
        }
    }

    #[test]
    fn who_demands_less_never_takes_from_others(plan in plan(), which in 0usize..40, less in 0u64..2000) {
        let (tree, mut demands) = planted(&plan);
        let Some(&leaf) = tree.leaves().get(which) else { return Ok(()) };
        let before = tree.divide(|id| demands[&id]);
        let demand = demands.get_mut(&leaf).expect("has a demand");
        *demand = (*demand).min(less);
        let after = tree.divide(|id| demands[&id]);
        for other in tree.leaves() {
            if other != leaf && before.get(other).share <= before.get(other).demand {
                prop_assert!(after.get(other).share >= before.get(other).share);
            }
        }
    }

    #[test]
    fn the_order_in_which_nodes_came_does_not_show(
        total in 0u64..5000,
        weights in prop::collection::vec(1u32..=10_000, 1..12),
    ) {
        let build = |reverse: bool| {
            let mut order: Vec<usize> = (0..weights.len()).collect();
            if reverse {
                order.reverse();
            }
            let mut tree = Tree::new("host", total);
            // one that comes and goes leaves no trace
            let guest = tree.add(tree.root(), Level::Vm, "passing", ShareSettings::default()).expect("fits");
            for i in order {
                tree.add(tree.root(), Level::Disk, &format!("d{i}"), weighing(weights[i])).expect("fits");
            }
            tree.remove(guest).expect("was there");
            let division = tree.divide(|_| BLOCKS_MAX);
            tree.leaves().iter().map(|&id| (tree.path(id).expect("lives"), division.get(id))).collect::<Vec<_>>()
        };
        prop_assert_eq!(build(false), build(true));
    }

    #[test]
    fn a_refused_change_changes_nothing(
        plan in plan(),
        which in 0usize..40,
        weight in 0u32..20_000,
        floor in 0u64..6000,
        ceiling in prop::option::of(0u64..6000),
    ) {
        let (mut tree, demands) = planted(&plan);
        let nodes = tree.below(tree.root());
        let id = nodes[which % nodes.len()];
        let before = *tree.node(id).expect("lives").settings();
        let asked = settings(weight, floor, ceiling);
        match tree.change(id, asked) {
            Ok(()) => prop_assert_eq!(tree.node(id).expect("lives").settings(), &asked),
            Err(_) => prop_assert_eq!(tree.node(id).expect("lives").settings(), &before),
        }
        // and the accounting holds whatever was taken
        let division = tree.divide(|id| demands[&id]);
        prop_assert!(tree.leaves().iter().map(|&id| division.get(id).share).sum::<u64>() <= plan.total);
    }
}

#[test]
fn weights_hold_at_both_levels_when_all_demand_everything() {
    let tree = cloud(100_000);
    let division = tree.divide(|_| BLOCKS_MAX);
    for (path, share) in [
        ("vm1", 33_000),
        ("vm2", 67_000),
        ("vm1/c1/disk", 16_500),
        ("vm2/c1/disk", 8_375),
        ("vm2/c2/disk", 25_125),
        ("vm2/c3/disk", 33_500),
    ] {
        let got = division.get(at(&tree, path));
        assert!(got.share.abs_diff(share) <= 1, "{path}: {got:?}");
        assert_eq!((got.entitled, got.lent(), got.borrowed()), (got.share, 0, 0), "{path}");
    }
}

#[test]
fn an_idle_share_is_lent_to_the_sibling_first_then_to_cousins_and_comes_back_on_demand() {
    let tree = cloud(100_000);
    let idle = at(&tree, "vm2/c2/disk");
    let (sibling, cousin) = (at(&tree, "vm2/c1/disk"), at(&tree, "vm1/c1/disk"));

    // the siblings take it all: 67,000 by 25 to 100; the other VM sees nothing of it
    let lent = tree.divide(|id| if id == idle { 0 } else { BLOCKS_MAX });
    assert_eq!(lent.get(idle).lent(), 25_125);
    assert_eq!(lent.get(sibling).share, 13_400);
    assert_eq!(lent.get(cousin).borrowed(), 0);

    // a sibling that has enough leaves the rest to the other sibling, and only what both leave goes up
    let some = tree.divide(|id| match id {
        id if id == idle => 0,
        id if id == sibling => 10_000,
        id if id == at(&tree, "vm2/c3/disk") => 50_000,
        _ => BLOCKS_MAX,
    });
    assert_eq!(some.get(sibling).share, 10_000);
    assert_eq!(some.get(at(&tree, "vm2")).lent(), 7_000);
    assert_eq!(some.get(cousin).borrowed(), 3_500);

    let back = tree.divide(|_| BLOCKS_MAX);
    assert_eq!((back.get(idle).share, back.get(idle).lent()), (25_125, 0));
}

#[test]
fn what_nobody_demands_is_there_by_weight() {
    let tree = cloud(100_000);
    let division = tree.divide(|_| 0);
    for (id, share) in division.iter() {
        assert_eq!(share.share, share.entitled, "{}", tree.path(id).expect("lives"));
    }
}

#[test]
fn a_floor_is_kept_against_any_weight_and_lent_while_not_demanded() {
    let mut tree = Tree::new("host", 1000);
    let small = tree.add(tree.root(), Level::Disk, "small", settings(1, 400, None)).expect("fits");
    let large = tree.add(tree.root(), Level::Disk, "large", weighing(10_000)).expect("fits");
    assert_eq!(tree.divide(|_| 1000).get(small).share, 400);
    assert_eq!(tree.divide(|id| if id == small { 30 } else { 1000 }).get(large).share, 970);
}

#[test]
fn what_does_not_fit_is_refused_with_the_node_and_a_way_out() {
    let mut tree = Tree::new("host", 1000);
    let vm = tree.add(tree.root(), Level::Vm, "vm", settings(100, 0, Some(600))).expect("fits");
    tree.add(tree.root(), Level::Vm, "other", weighing(300)).expect("fits");
    tree.add(vm, Level::Disk, "a", settings(1, 200, None)).expect("fits");
    let refused = |tree: &mut Tree, parent, level, name, with, words: &[&str]| {
        let error = tree.add(parent, level, name, with).expect_err(name).to_string();
        assert!(words.iter().all(|w| error.contains(w)), "{error}");
    };
    // vm is entitled to 250 of 1000, 200 of which are promised
    refused(&mut tree, vm, Level::Disk, "b", settings(1, 51, None), &["`b`", "`vm`", "250", "at most 50"]);
    refused(&mut tree, vm, Level::Disk, "b", settings(1, 401, None), &["`vm`", "ceiling of 600", "at most 400"]);
    refused(&mut tree, vm, Level::Disk, "b", settings(1, 10, Some(9)), &["`b`", "raise the ceiling"]);
    refused(&mut tree, vm, Level::Disk, "b", weighing(0), &["`b`", "1 to 10000"]);
    refused(&mut tree, vm, Level::Disk, "a", weighing(1), &["`a`", "`vm`", "another name"]);
    refused(&mut tree, vm, Level::Vm, "c", weighing(1), &["`c`", "cannot be below `vm`"]);
    refused(&mut tree, vm, Level::Disk, "a/b", weighing(1), &["`a/b`"]);
    tree.add(vm, Level::Disk, "b", settings(1, 50, None)).expect("fits exactly");

    // a change above is always allowed; what does not fit any more is told, and kept by weight
    tree.change(vm, settings(100, 0, Some(100))).expect("never refused for what is below");
    assert_eq!(tree.shortfalls(), [Shortfall { node: vm, floors: 250, entitled: 100 }]);
    let division = tree.divide(|_| BLOCKS_MAX);
    assert_eq!([at(&tree, "vm/a"), at(&tree, "vm/b")].map(|id| division.get(id).share), [50, 50]);
}

#[test]
fn a_node_that_is_gone_is_unknown_even_where_another_took_its_place() {
    let mut tree = Tree::new("host", 1000);
    let vm = tree.add(tree.root(), Level::Vm, "vm", ShareSettings::default()).expect("fits");
    let disk = tree.add(vm, Level::Disk, "disk", ShareSettings::default()).expect("fits");
    assert_eq!(tree.remove(vm), Ok(vec![vm, disk]));
    let again = tree.add(tree.root(), Level::Vm, "vm", ShareSettings::default()).expect("fits");
    assert_ne!(again, vm);
    assert_eq!(tree.change(vm, weighing(5)), Err(TreeError::Unknown { node: vm }));
    assert_eq!(tree.divide(|_| 0).get(vm), Share::default());
    assert_eq!(tree.remove(tree.root()), Err(TreeError::Host));
    assert_eq!((tree.len(), tree.find("vm")), (2, Some(again)));
}
