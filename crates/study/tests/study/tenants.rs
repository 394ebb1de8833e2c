//! What the controllers save on loads of several tenants, by the daemon's own engine: the promised bounds, held on
//! every load.

use undercroft_engine::PolicyKind;
use undercroft_engine::control::{ControllerKind, Goal};
use undercroft_engine::shares::ShareSettings;
use undercroft_study::sim::tenants::{Arm, ArmOptions, Trace, loads, run};

fn misses(load: &Trace, arm: &Arm) -> u64 {
    run(load, arm, &ArmOptions::default()).misses
}

#[test]
fn utility_saves_45_percent_on_the_phased_load_and_is_within_5_percent_of_the_best_known() {
    let load = Trace::new(loads::phased());
    let equal = misses(&load, &Arm::Strict);
    let utility = misses(&load, &Arm::Governed(ControllerKind::Utility));
    let best = misses(&load, &Arm::KnownCurves).min(misses(&load, &Arm::Shared));
    println!("equal {equal}, utility {utility}, best known {best}");
    assert!(utility as f64 <= 0.55 * equal as f64, "{utility} of {equal}");
    assert!(utility as f64 <= 1.05 * best as f64, "{utility}, best known {best}");
}

#[test]
fn on_no_load_anybody_is_3_percent_worse_than_static_shares() {
    for load in loads::all() {
        let load = Trace::new(load);
        for policy in [PolicyKind::Lru, PolicyKind::S3Fifo] {
            let options = ArmOptions { policy: policy.into(), ..ArmOptions::default() };
            let misses = |arm| run(&load, &arm, &options).misses;
            let (equal, lent) = (misses(Arm::Strict), misses(Arm::Governed(ControllerKind::Static)));
            let check = |kind, of: u64| {
                let these = misses(Arm::Governed(kind));
                println!("{policy} {} {kind}: {these} of {of}", load.load.name);
                assert!(these as f64 <= 1.03 * of as f64, "{policy} {} {kind}: {these} of {of}", load.load.name);
            };
            check(ControllerKind::Static, equal);
            for kind in [ControllerKind::Utility, ControllerKind::Donor(4), ControllerKind::Paper] {
                check(kind, equal.min(lent));
            }
        }
    }
}

#[test]
fn donor_saves_more_with_four_rounds_than_with_one_and_less_than_utility() {
    let load = Trace::new(loads::phased());
    let [equal, one, four, utility] =
        [Arm::Strict, Arm::LiteralDonor(1), Arm::LiteralDonor(4), Arm::Governed(ControllerKind::Utility)]
            .map(|arm| misses(&load, &arm) as f64);
    println!("{:.1} % and {:.1} %", 100.0 * (1.0 - one / equal), 100.0 * (1.0 - four / equal));
    assert!(one < 0.85 * equal && four < 0.72 * equal && four < one && utility < four);
}

#[test]
fn a_low_locality_neighbour_costs_less_beside_static_shares_and_least_beside_dynamic_ones() {
    let load = Trace::new(loads::locality());
    let hit = |arm: Arm| run(&load, &arm, &ArmOptions::default()).tenants[1].hit_ratio();
    let (unified, fixed, dynamic) = (hit(Arm::Shared), hit(Arm::Strict), hit(Arm::Governed(ControllerKind::Utility)));
    println!("hit ratio of the tenant with locality: {unified:.3} {fixed:.3} {dynamic:.3}");
    assert!(unified < fixed && fixed < dynamic);
}

#[test]
fn goals_are_kept_within_5_percent_once_steady() {
    let load = Trace::new(loads::stream());
    for policy in [PolicyKind::Lru, PolicyKind::S3Fifo] {
        let options = ArmOptions { policy: policy.into(), ..ArmOptions::default() };
        let row = run(&load, &Arm::Goals(vec![None, Some(Goal::HitRatio(0.7)), Some(Goal::HitRatio(0.5))]), &options);
        for (tenant, goal) in [(1, 0.7), (2, 0.5)] {
            let steady = &row.hit_ratios[100..];
            for (i, of_ten) in steady.chunks(10).enumerate() {
                let mean = of_ten.iter().map(|tenants| tenants[tenant]).sum::<f64>() / of_ten.len() as f64;
                println!("{policy} {}: {mean:.3} for {goal}", row.tenants[tenant].name);
                assert!((mean / goal - 1.0).abs() <= 0.05, "{policy} {tenant} from interval {}: {mean}", 100 + 10 * i);
            }
        }
    }
}

#[test]
fn goals_that_cannot_all_be_kept_degrade_by_weight() {
    let load = Trace::new(loads::all_heavy());
    let weights = [300, 200, 100].map(|weight| ShareSettings { weight, ..ShareSettings::default() });
    let options = ArmOptions { settings: weights.to_vec(), ..ArmOptions::default() };
    let row = run(&load, &Arm::Goals(vec![Some(Goal::HitRatio(0.9)); 3]), &options);
    let last = &row.targets[row.targets.len() - 1];
    for (target, part) in last.iter().zip([3.0, 2.0, 1.0]) {
        assert!((*target as f64 / (f64::from(load.load.total) * part / 6.0) - 1.0).abs() < 0.02, "{last:?}");
    }
}

#[test]
fn a_run_is_the_same_every_time() {
    let load = Trace::new(loads::locality());
    let arm = Arm::Governed(ControllerKind::Utility);
    assert_eq!(run(&load, &arm, &ArmOptions::default()).json(), run(&load, &arm, &ArmOptions::default()).json());
}
