//! Runs a load under one arm, on one level of cache that is divided, or two.
//!
//! Owns the driving: requests, ticks and intervals, in order. Never decides. Invariant: the level below is asked for
//! what the one above misses, and for nothing else.

use super::above::Ask;
use super::below::{Below, Lower, Pair, count_one};
use super::divided::{Divided, Place, empty_row};
use super::histogram::DistanceCounts;
use super::load::TenantLoad;
use super::row::LabRow;
use super::trace::Trace;
use rustc_hash::FxHashMap;
use undercroft_engine::control::{Appetite, ControllerKind, Goal, Thresholds, UtilitySettings, lookahead};
use undercroft_engine::shares::ShareSettings;
use undercroft_engine::{AnyPolicyKind, Curve, MeterOptions, PolicyKind};

/// How the cache is divided.
#[derive(Clone, Debug, PartialEq)]
pub enum Arm {
    /// Not at all: one index for all tenants.
    Shared,
    /// By weight, strictly: space that a tenant leaves unused is not lent.
    Strict,
    /// A controller of the engine.
    Governed(ControllerKind),
    /// `utility` with these settings and without a guard.
    Utility(UtilitySettings),
    /// The donor rule without a guard, with marks from a run at equal shares, as its authors did.
    LiteralDonor(u32),
    /// The growth rule of the per-file page cache without a guard.
    LiteralPaper,
    /// Goals for the tenants, by place. A level below is divided by weight, with what is not demanded lent.
    Goals(Vec<Option<Goal>>),
    /// The curves of each phase are known when it begins, and limits change at once: the best known.
    KnownCurves,
}

impl Arm {
    /// What tables call it.
    pub fn name(&self) -> String {
        match self {
            Self::Shared => "one shared cache".into(),
            Self::Strict => "equal static shares".into(),
            Self::Governed(ControllerKind::Donor(rounds)) => format!("donor, {rounds} rounds"),
            Self::Governed(kind) => kind.name().into(),
            Self::Utility(_) => "utility, unguarded".into(),
            Self::LiteralDonor(rounds) => format!("donor, {rounds} rounds, unguarded"),
            Self::LiteralPaper => "paper, unguarded".into(),
            Self::Goals(_) => "target".into(),
            Self::KnownCurves => "curves known in advance".into(),
        }
    }
}

/// How it is run.
#[derive(Clone, Debug)]
pub struct ArmOptions {
    /// The policy of every index, but for those of a level below.
    pub policy: AnyPolicyKind,
    /// What is set for each tenant, by place; missing ones have defaults.
    pub settings: Vec<ShareSettings>,
    /// Ticks of the mover in an interval.
    pub ticks: u32,
    /// The factor by which the counts of distances are aged each interval.
    pub memory: f64,
    /// Curves come from the engine's meters, as the daemon's do. Otherwise they are those of exact stack distances:
    /// LRU's, whatever the policy.
    pub meters: Option<MeterOptions>,
    /// A second level below, divided by the same rule.
    pub below: Option<Below>,
}

impl Default for ArmOptions {
    fn default() -> Self {
        Self { policy: PolicyKind::Lru.into(), settings: vec![], ticks: 16, memory: 0.5, meters: None, below: None }
    }
}

/// Microseconds that a request takes, for goals in times: a copy from RAM, and a read of an SSD behind a network.
const TIMES_US: (f64, f64) = (20.0, 500.0);

/// What is divided first.
fn place(trace: &Trace, options: &ArmOptions) -> Place {
    let (total, of_victims) = (trace.load.total, trace.of_victims);
    Place { total, policy: options.policy, of_victims, has_goals: true, times_us: TIMES_US }
}

/// What each tenant is to have of the two levels, for each phase.
type Sizes = [Vec<Vec<u64>>; 2];

/// Runs the requests of a load under `arm`.
pub fn run(trace: &Trace, arm: &Arm, options: &ArmOptions) -> LabRow {
    match arm {
        Arm::Shared => shared(trace, options),
        Arm::KnownCurves => known(trace, options),
        arm => drive(trace, arm, options, None).0,
    }
}

/// Runs the requests under `arm`, or with `known` sizes; also what reached the level below in each phase, by tenant.
fn drive(trace: &Trace, arm: &Arm, options: &ArmOptions, known: Option<&Sizes>) -> (LabRow, Vec<Vec<DistanceCounts>>) {
    let load = &trace.load;
    let [marks, marks_below] = match arm {
        Arm::Governed(ControllerKind::Donor(_)) | Arm::LiteralDonor(_) => marks(trace, options),
        _ => [vec![], vec![]],
    };
    let gradual = known.is_none();
    let mut upper = Divided::new(load, place(trace, options), arm, options, &marks, gradual);
    let mut lower = options.below.map(|below| Lower::new(below, load, arm, options, &marks_below, gradual));
    let ticks = if gradual { options.ticks } else { 1 };
    for interval in &trace.intervals {
        let sizes = |level: usize| known.and_then(|k| k[level].get(interval.phase)).map(Vec::as_slice);
        upper.begin(sizes(0));
        if let Some(lower) = &mut lower {
            lower.begin(sizes(1));
        }
        for requests in interval.requests.chunks(interval.requests.len().div_ceil(ticks as usize).max(1)) {
            // The level below first: then it has room for what the one above gives up.
            if let Some(lower) = &mut lower {
                lower.tick();
            }
            upper.tick(|tenant, block| {
                if let Some(lower) = &mut lower {
                    lower.handed_down(interval.phase, tenant, block);
                }
            });
            for request in requests {
                let answer = upper.ask(request.tenant, request.block, request.ask, request.distance);
                if let Some(lower) = &mut lower {
                    lower.follow(interval.phase, request.tenant, request.block, answer);
                }
            }
            upper.count_in_use(ticks);
            if let Some(lower) = &mut lower {
                lower.count_in_use(ticks);
                #[cfg(test)]
                lower.check(&upper);
            }
        }
        upper.end(interval.phase, &interval.distinct);
        if let Some(lower) = &mut lower {
            lower.end(interval.phase);
        }
    }
    let intervals = trace.intervals.len();
    let mut row = upper.finish(intervals);
    let Some(lower) = lower else { return (row, vec![]) };
    let (below, reached) = lower.finish(intervals);
    row.below = Some(Box::new(below));
    (row, reached)
}

/// One index for all tenants, at each level.
fn shared(trace: &Trace, options: &ArmOptions) -> LabRow {
    let load = &trace.load;
    let place = place(trace, options);
    let mut row = empty_row(load, &Arm::Shared, place);
    let mut below = options.below.map(|b| empty_row(load, &Arm::Shared, b.place()));
    let mut pair = Pair::new(place, options.below);
    let mut in_use = [0.0; 2];
    let mut missed = [0; 2];
    // A block's number may have all 64 bits, so a tenant's has no room beside it.
    let mut numbers: FxHashMap<(usize, u64), u64> = FxHashMap::default();
    for interval in &trace.intervals {
        for request in &interval.requests {
            let t = request.tenant;
            let next = numbers.len() as u64;
            let block = *numbers.entry((t, request.block)).or_insert(next);
            let [hit, hit_below] = pair.ask(block, request.ask);
            count_one(Some(&mut row), interval.phase, t, hit);
            count_one(below.as_mut(), interval.phase, t, hit_below);
        }
        #[cfg(test)]
        pair.check();
        for (i, row) in std::iter::once(&mut row).chain(&mut below).enumerate() {
            row.misses_by_interval.push(row.misses - missed[i]);
            missed[i] = row.misses;
            in_use[i] += f64::from(pair.len()[i]) / f64::from(row.total_blocks.max(1));
            row.utilisation = in_use[i] / trace.intervals.len() as f64;
        }
    }
    row.below = below.map(Box::new);
    row
}

/// Limits by the exact curves of each phase. Those of a level below are of what reaches it with these limits above.
fn known(trace: &Trace, options: &ArmOptions) -> LabRow {
    let load = &trace.load;
    let mut phases = vec![vec![DistanceCounts::new(u64::from(load.total)); load.tenants.len()]; load.phases.len()];
    for interval in &trace.intervals {
        for request in interval.requests.iter().filter(|r| r.ask == Ask::Read) {
            phases[interval.phase][request.tenant].add(request.distance);
        }
    }
    let nothing = vec![vec![0; load.tenants.len()]; load.phases.len()];
    let mut sizes = [best_sizes(&phases, load.total), nothing];
    if let Some(below) = options.below {
        let (_, reached) = drive(trace, &Arm::KnownCurves, options, Some(&sizes));
        sizes[1] = best_sizes(&reached, below.blocks);
    }
    drive(trace, &Arm::KnownCurves, options, Some(&sizes)).0
}

/// For each phase the sizes that save most by the curves of the tenants.
fn best_sizes(phases: &[Vec<DistanceCounts>], total: u32) -> Vec<Vec<u64>> {
    let total = u64::from(total);
    let sizes = phases.iter().map(|tenants| {
        let curves: Vec<Curve> = tenants.iter().map(DistanceCounts::curve).collect();
        let parties: Vec<Appetite<'_>> =
            curves.iter().map(|curve| Appetite { weight: 1, from: 0, room: total, curve }).collect();
        lookahead(total, &parties)
    });
    sizes.collect()
}

/// Marks for the donor rule at each level, from a run at equal shares, as its authors did.
fn marks(trace: &Trace, options: &ArmOptions) -> [Vec<Thresholds>; 2] {
    let TenantLoad { tenants, total, .. } = &trace.load;
    let n = tenants.len();
    let upper = Place { total: total / n as u32, ..place(trace, options) };
    let below = options.below.map(|b| Below { blocks: b.blocks / n as u32, ..b });
    let mut pairs: Vec<Pair> = (0..n).map(|_| Pair::new(upper, below)).collect();
    let mut seen: [Vec<Vec<(u64, f64)>>; 2] = [vec![vec![]; n], vec![vec![]; n]];
    for interval in &trace.intervals {
        let mut counts = [vec![(0, 0.0); n], vec![(0, 0.0); n]];
        for request in &interval.requests {
            let hits = pairs[request.tenant].ask(request.block, request.ask);
            for (counts, hit) in counts.iter_mut().zip(hits) {
                let Some(hit) = hit else { continue };
                counts[request.tenant].0 += 1;
                counts[request.tenant].1 += f64::from(u8::from(!hit));
            }
        }
        for (seen, counts) in seen.iter_mut().zip(counts) {
            seen.iter_mut().zip(counts).for_each(|(all, one)| all.push(one));
        }
    }
    seen.map(|level| level.into_iter().map(Thresholds::learned).collect())
}
