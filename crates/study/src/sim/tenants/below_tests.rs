//! Tenants that share two levels: against the simulator of hierarchies, and the laws of what is counted. That a level
//! which is handed blocks has none of the level above is checked in every run, by `drive` and `shared`.

use super::*;
use crate::sim::hierarchy::{Hierarchy, Keeps, LevelCounts, LevelOptions};
use crate::sim::reference::Reference;
use crate::sim::run::Go;
use proptest::prelude::*;
use undercroft_engine::control::{ControllerKind, Goal};
use undercroft_engine::{MeterOptions, PolicyKind};
use undercroft_trace::synth::Zipf;

fn tenant(name: &str, blocks: impl Iterator<Item = u64>) -> TenantTrace {
    TenantTrace { name: name.to_string(), references: blocks.map(Reference::read).collect() }
}

fn zipf(name: &str, blocks: u32, alpha: f64, seed: u64, n: usize) -> TenantTrace {
    tenant(name, Zipf::new(blocks, alpha, seed).take(n))
}

fn options(blocks: u32, policy: PolicyKind, demotes: bool) -> ArmOptions {
    ArmOptions { below: Some(Below { blocks, policy: policy.into(), demotes }), ..ArmOptions::default() }
}

const ARMS: [Arm; 7] = [
    Arm::Shared,
    Arm::Strict,
    Arm::Governed(ControllerKind::Static),
    Arm::Governed(ControllerKind::Utility),
    Arm::Governed(ControllerKind::Donor(4)),
    Arm::Governed(ControllerKind::Paper),
    Arm::KnownCurves,
];

/// A hierarchy's counts, of levels that are named by their sizes.
fn hierarchy(levels: &[(u32, PolicyKind, bool)], trace: &TenantTrace) -> Vec<LevelCounts> {
    let levels: Vec<LevelOptions> = levels
        .iter()
        .map(|&(blocks, policy, demoted)| {
            let keeps = if demoted { Keeps::Demoted } else { Keeps::Passing };
            LevelOptions { keeps, ..LevelOptions::new(blocks.to_string(), policy, blocks) }
        })
        .collect();
    let mut hierarchy = Hierarchy::new(&levels, None).expect("it goes together");
    trace.references.iter().for_each(|&r| {
        hierarchy.access(r);
    });
    hierarchy.counts()
}

/// Requests and misses of both levels.
fn counted(row: &LabRow) -> [u64; 4] {
    let below = row.below.as_ref().expect("two levels");
    [row.requests, row.misses, below.requests, below.misses]
}

#[test]
fn a_tenant_alone_on_two_levels_is_the_same_hierarchy() {
    let alone = zipf("alone", 8000, 0.8, 3, 60_000);
    // Intervals are so short that limits, which rise in steps, are never in the way.
    let trace = Trace::of_tenants(std::slice::from_ref(&alone), Clocks::Own, 600, 500).expect("it goes together");
    let policies = [PolicyKind::Lru, PolicyKind::Fifo, PolicyKind::Clock];
    for (demotes, upper, lower) in
        [false, true].into_iter().flat_map(|d| policies.into_iter().flat_map(move |u| policies.map(|l| (d, u, l))))
    {
        let c = hierarchy(&[(600, upper, false), (1500, lower, demotes)], &alone);
        let expected = [c[0].reads, c[0].read_misses, c[1].reads, c[1].read_misses];
        for arm in [Arm::Strict, Arm::Shared] {
            let row = run(&trace, &arm, &ArmOptions { policy: upper.into(), ..options(1500, lower, demotes) });
            assert_eq!(counted(&row), expected, "{} {upper} over {lower}, demotes {demotes}", arm.name());
            assert_eq!(row.disk_reads(), c[2].reads);
        }
    }
}

#[test]
fn a_tenant_alone_on_two_levels_below_its_own_cache_is_the_same_hierarchy() {
    let alone = zipf("alone", 8000, 0.8, 3, 60_000);
    for (hands_down, demotes) in [(false, false), (false, true), (true, false), (true, true)] {
        let above = Above { blocks: 400, policy: PolicyKind::Lru.into(), hands_down };
        let (trace, counts) = Trace::of_tenants_below(std::slice::from_ref(&alone), &[above], Clocks::Own, 600, 500)
            .expect("it goes together");
        let lru = PolicyKind::Lru;
        let c = hierarchy(&[(400, lru, false), (600, lru, hands_down), (1500, lru, demotes)], &alone);
        for arm in [Arm::Strict, Arm::Shared] {
            let row = run(&trace, &arm, &options(1500, lru, demotes));
            let expected = [c[1].reads, c[1].read_misses, c[2].reads, c[2].read_misses];
            assert_eq!(counted(&row), expected, "{} hands down {hands_down}, demotes {demotes}", arm.name());
            let [_, misses, below, disk] = counted(&row);
            let hits = counts[0].hits + (row.requests - misses) + (below - disk);
            assert_eq!((hits + disk, disk), (60_000, c[3].reads), "every access is served by one of four");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn what_is_missed_above_is_asked_for_below_and_a_level_more_changes_nothing_above(
        demotes in any::<bool>(), own in prop::option::of((1u32..40, any::<bool>())),
        upper in 4u32..80, lower in 4u32..120,
        policies in prop::sample::subsequence(PolicyKind::ALL.to_vec(), 2), interval in 20usize..400,
        loads in prop::collection::vec((20u32..200, 1usize..900, 0u64..9), 1..4), metered in any::<bool>(),
    ) {
        let tenants: Vec<TenantTrace> = loads.iter().enumerate()
            .map(|(i, &(blocks, n, seed))| zipf(&format!("t{i}"), blocks, 0.7, seed, n))
            .collect();
        let caches: Vec<Above> = own.iter().flat_map(|&(blocks, hands_down)| {
            tenants.iter().map(move |_| Above { blocks, policy: PolicyKind::Lru.into(), hands_down })
        }).collect();
        let trace = match &caches[..] {
            [] => Trace::of_tenants(&tenants, Clocks::Own, upper, interval),
            caches => Trace::of_tenants_below(&tenants, caches, Clocks::Own, upper, interval).map(|t| t.0),
        }.expect("it goes together");
        for arm in ARMS {
            let meters = metered.then(MeterOptions::default);
            let two = ArmOptions { policy: policies[0].into(), meters, ..options(lower, policies[1], demotes) };
            let row = run(&trace, &arm, &two);
            let one = run(&trace, &arm, &ArmOptions { below: None, ..two });
            let below = row.below.clone().expect("two levels");
            prop_assert_eq!(&LabRow { below: None, ..row.clone() }, &one, "the level above knows nothing of it");
            prop_assert_eq!(row.misses, below.requests);
            for (above, below) in row.tenants.iter().zip(&below.tenants) {
                prop_assert_eq!((above.misses, &above.name), (below.requests, &below.name));
                prop_assert!(below.misses <= below.requests);
            }
            prop_assert_eq!(below.tenants.iter().map(|t| t.misses).sum::<u64>(), row.disk_reads());
            prop_assert_eq!(below.misses_by_interval.iter().sum::<u64>(), below.misses);
            prop_assert_eq!(row.targets.len(), below.targets.len());
            for targets in &below.targets {
                prop_assert!(targets.iter().sum::<u64>() <= u64::from(lower));
            }
        }
    }
}

/// One that goes round in what fits into the level above, one that goes round in what fits into the one below, and one
/// that reads everything once.
fn three() -> Vec<TenantTrace> {
    let round = |blocks: u64| (0..100_000u64).map(move |i| i % blocks);
    vec![tenant("small", round(300)), tenant("large", round(1500)), tenant("once", 0..100_000)]
}

#[test]
fn controllers_divide_the_level_below_by_what_reaches_it() {
    let trace = Trace::of_tenants(&three(), Clocks::Own, 400, 3000).expect("it goes together");
    for demotes in [false, true] {
        let of = |arm| run(&trace, &arm, &options(1800, PolicyKind::Lru, demotes));
        let [strict, utility, best] = [Arm::Strict, Arm::Governed(ControllerKind::Utility), Arm::KnownCurves].map(of);
        // Strict: a third of the 1800 is too little for 1500, a third of the 400 for 300.
        let disk = |row: &LabRow, t: usize| row.below.as_ref().expect("two levels").tenants[t].misses;
        assert_eq!(disk(&strict, 1), 100_000, "demotes {demotes}");
        assert!(disk(&utility, 1) < 20_000, "{} demotes {demotes}", disk(&utility, 1));
        // Known in advance, each is read once.
        let best_below = best.below.as_ref().expect("two levels");
        assert_eq!((best.tenants[0].misses, disk(&best, 1)), (300, 1500), "demotes {demotes}");
        assert!(best.targets[0][0] >= 300 && best_below.targets[0][1] >= 1500 - best.targets[0][1]);
        let (best, utility, strict) = (best.disk_reads(), utility.disk_reads(), strict.disk_reads());
        assert!(best <= utility && utility < strict * 8 / 10, "{best}, {utility}, {strict}");
    }
}

#[test]
fn what_is_handed_down_saves_what_would_be_in_both() {
    let two = ["a", "b"].map(|name| zipf(name, 3000, 0.8, 5, 60_000));
    let trace = Trace::of_tenants(&two, Clocks::Own, 1000, 1000).expect("it goes together");
    for arm in ARMS {
        let [keeps, demotes] =
            [false, true].map(|d| run(&trace, &arm, &options(1000, PolicyKind::Lru, d)).disk_reads());
        assert!(demotes * 10 < keeps * 9, "{}: {demotes} of {keeps}", arm.name());
    }
}

#[test]
fn threads_and_goals_know_two_levels() {
    let trace = Trace::of_tenants(&three(), Clocks::Own, 400, 3000).expect("it goes together");
    let arms = ARMS.map(|arm| (arm, options(1800, PolicyKind::Lru, true)));
    let of = |jobs| run_all(&trace, &arms, Some(jobs), &|| Go::On).expect("it runs");
    assert_eq!(of(1), of(2));
    let goals = Arm::Goals(vec![Some(Goal::HitRatio(0.9)), None, None]);
    let row = run(&trace, &goals, &options(1800, PolicyKind::Lru, true));
    assert_eq!(row.below.as_ref().map(|below| below.arm.as_str()), Some("target"));
    assert!(row.targets.last().expect("intervals")[0] >= 300);
}

#[test]
fn what_a_tenant_has_to_give_up_goes_down_too() {
    // Tenant a goes round in 40 blocks, alone; then b does, in 40 of its own and more often, and takes the whole level
    // above. Below there is room for what a has to give up: nothing is read from the disk twice.
    let round = |rate| TenantActivity { rate, mix: vec![(1000, BlockPattern::Loop { first: 0, blocks: 40 })] };
    let phase = |a, b| Phase { name: "", intervals: 3, activities: vec![round(a), round(b)] };
    let tenants = ["a", "b"].map(Into::into).to_vec();
    let phases = vec![phase(400, 0), phase(100, 900)];
    let trace = Trace::new(TenantLoad { name: "in turn".into(), total: 40, tenants, phases, bursts: false });
    let [keeps, demotes] =
        [false, true].map(|d| run(&trace, &Arm::KnownCurves, &options(40, PolicyKind::Lru, d)).disk_reads());
    assert_eq!(demotes, 80);
    assert!(keeps >= demotes);
}

#[test]
fn distances_below_tell_the_misses_of_lru_at_every_size() {
    use super::above::Ask;
    use super::below::Lower;
    use super::divided::{Divided, Place};
    let alone = zipf("alone", 400, 0.7, 3, 5000);
    let trace = Trace::of_tenants(std::slice::from_ref(&alone), Clocks::Own, 64, 5000).expect("it goes together");
    for (demotes, size) in [false, true].into_iter().flat_map(|d| [0, 10, 50, 100, 128].map(|size| (d, size))) {
        let options = options(128, PolicyKind::Lru, demotes);
        let (policy, times_us) = (PolicyKind::Lru.into(), (1.0, 2.0));
        let place = Place { total: 64, policy, of_victims: false, has_goals: true, times_us };
        let below = options.below.expect("two levels");
        let mut upper = Divided::new(&trace.load, place, &Arm::KnownCurves, &options, &[], false);
        let mut lower = Lower::new(below, &trace.load, &Arm::KnownCurves, &options, &[], false);
        upper.begin(Some(&[64]));
        lower.begin(Some(&[size]));
        lower.tick();
        upper.tick(|_, _| ());
        for reference in &alone.references {
            let answer = upper.ask(0, reference.block, Ask::Read, None);
            lower.follow(0, 0, reference.block, answer);
        }
        lower.end(0);
        let (row, reached) = lower.finish(1);
        assert_eq!(reached[0][0].curve().misses_at(size), row.misses as f64, "{size} blocks, demotes {demotes}");
    }
}
