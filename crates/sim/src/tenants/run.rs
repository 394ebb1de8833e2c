//! Runs a load under one arm, as a daemon would: tick by tick limits follow targets, interval by interval a controller decides
//! from telemetry.
//!
//! Owns the driving and the counting. Never decides. Invariant: what the indexes hold together is never above the total.

use super::above::Ask;
use super::load::Load;
use super::row::{LabRow, Part};
use super::trace::{Request, Trace};
use undercroft_engine::control::{
    Activity, Appetite, Donor, Fixed, Goal, Governor, Guarded, Kind, Leaf, Mover, Paper, Position, Target, Thresholds,
    Utility, UtilitySettings, lookahead,
};
use undercroft_engine::shares::{Level, NodeId, Settings, Tree};
use undercroft_engine::{Access, Curve, HashKey, Index, Meter, MeterOptions, Outcome, PolicyKind, Served};

/// Who divides the cache.
#[derive(Clone, Debug, PartialEq)]
pub enum Arm {
    /// Nobody: one index for all.
    Shared,
    /// Weights, and nobody gets what another leaves.
    Strict,
    /// A controller of the engine.
    Governed(Kind),
    /// `utility` with these settings and without a guard.
    Utility(UtilitySettings),
    /// The donor rule without a guard, with marks from a run at equal shares, as its authors did.
    LiteralDonor(u32),
    /// The growth rule of the per-file page cache without a guard.
    LiteralPaper,
    /// Goals for the tenants, by place.
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
            Self::Governed(Kind::Donor(rounds)) => format!("donor, {rounds} rounds"),
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
pub struct Options {
    /// The policy of every index.
    pub policy: PolicyKind,
    /// What is set for each tenant, by place; missing ones have defaults.
    pub settings: Vec<Settings>,
    /// Ticks of the mover in an interval.
    pub ticks: u32,
    /// What of the distances seen so far still counts an interval later.
    pub memory: f64,
    /// Curves come from the engine's meters, as the daemon's do. Otherwise they are those of exact stack distances: LRU's, whatever
    /// the policy.
    pub meters: Option<MeterOptions>,
}

impl Default for Options {
    fn default() -> Self {
        Self { policy: PolicyKind::Lru, settings: vec![], ticks: 16, memory: 0.5, meters: None }
    }
}

/// Sizes at which a curve has a point.
const POINTS: u64 = 128;
/// What a request takes, for goals in times: a copy from RAM, and a read of an SSD behind a network.
const HIT_US: f64 = 20.0;
/// See [`HIT_US`].
const MISS_US: f64 = 500.0;

/// Accesses by stack distance, in steps of a part of the total.
#[derive(Clone, Debug)]
struct Histogram {
    step: u64,
    /// Accesses by distance; the last: none of these.
    counts: Vec<f64>,
}

impl Histogram {
    fn new(total: u64) -> Self {
        Self { step: total.div_ceil(POINTS).max(1), counts: vec![0.0; POINTS as usize + 1] }
    }

    fn add(&mut self, distance: Option<u64>) {
        let at = distance.map_or(POINTS, |d| (d / self.step).min(POINTS));
        self.counts[at as usize] += 1.0;
    }

    fn merge(&mut self, keep: f64, other: &Self, factor: f64) {
        for (own, new) in self.counts.iter_mut().zip(&other.counts) {
            *own = *own * keep + new * factor;
        }
    }

    fn curve(&self) -> Curve {
        let mut misses = self.counts.iter().sum::<f64>();
        Curve::falling((0..=POINTS).map(|i| {
            let point = (i * self.step, misses);
            misses = (misses - self.counts[i as usize]).max(0.0);
            point
        }))
    }
}

/// One tenant.
struct Tenant {
    node: NodeId,
    index: Index,
    recent: Histogram,
    meter: Option<Meter>,
}

/// Runs the requests of a load under `arm`.
pub fn run(trace: &Trace, arm: &Arm, options: &Options) -> LabRow {
    let load = &trace.load;
    if *arm == Arm::Shared {
        return shared(trace, options);
    }
    let mut tree = Tree::new("host", u64::from(load.total));
    let mut governor = Governor::new();
    let root = tree.root();
    let mut tenants: Vec<Tenant> = (0..load.tenants.len())
        .map(|i| {
            let settings = options.settings.get(i).copied().unwrap_or_default();
            let node =
                tree.add(root, Level::Disk, &load.tenants[i], settings).expect("the settings of an experiment fit");
            let mut index = Index::new(options.policy, load.total);
            index.set_limit(0);
            let meter = options.meters.map(|meters| {
                let share = tree.total() / load.tenants.len() as u64;
                let mut meter = Meter::new(options.policy, share, tree.total(), meters, HashKey::from_seed(i as u64));
                meter.set_exclusive(trace.of_victims);
                meter
            });
            Tenant { node, index, recent: Histogram::new(tree.total()), meter }
        })
        .collect();
    match arm {
        Arm::Shared | Arm::KnownCurves => {}
        Arm::Strict => governor.install(root, Box::new(Fixed { strict: true })),
        Arm::Governed(Kind::Donor(rounds)) => {
            governor.install(root, Box::new(Guarded::earning(donor(trace, options, &tenants, *rounds))));
        }
        Arm::LiteralDonor(rounds) => {
            governor.install(root, Box::new(donor(trace, options, &tenants, *rounds)));
        }
        Arm::LiteralPaper => governor.install(root, Box::new(Paper::default())),
        Arm::Governed(kind) => governor.set(root, Some(*kind)),
        Arm::Utility(settings) => governor.install(root, Box::new(Utility::new(*settings))),
        Arm::Goals(goals) => {
            governor.install(root, Box::new(Target::default()));
            for (tenant, goal) in tenants.iter().zip(goals) {
                governor.set_goal(tenant.node, *goal);
            }
        }
    }
    let known = if *arm == Arm::KnownCurves { known_sizes(trace) } else { vec![] };

    let mover = Mover { blocks_per_tick: u64::from(load.total.div_ceil(options.ticks)) };
    let mut row = row(load, arm, options);
    let mut targets = vec![];
    let mut in_use = 0.0;
    for (i, interval) in trace.intervals.iter().enumerate() {
        if i == 0 {
            // nothing is known yet
            targets = governor.interval(&tree, &[]).into_iter().map(|t| t.1).collect();
            targets = by_tenant(&tree, &tenants, &targets);
        }
        if let Some(sizes) = known.get(interval.phase) {
            targets.clone_from(sizes);
        }
        let mut seen = vec![Activity::default(); tenants.len()];
        let mut histograms: Vec<Histogram> = tenants.iter().map(|_| Histogram::new(tree.total())).collect();
        let ticks = if known.is_empty() { options.ticks } else { 1 };
        for requests in interval.requests.chunks(interval.requests.len().div_ceil(ticks as usize).max(1)) {
            let mover = if known.is_empty() { mover } else { Mover { blocks_per_tick: u64::MAX } };
            row.moved_blocks += tick(&mover, &tree, &mut tenants, &targets, known.is_empty());
            for request in requests {
                let &Request { tenant: t, block, distance, .. } = request;
                let tenant = &mut tenants[t];
                let Some(hit) = ask(&mut tenant.index, block, request, trace.of_victims) else {
                    if let Some(meter) = &mut tenant.meter {
                        meter.left(block);
                    }
                    continue;
                };
                seen[t].requests += 1;
                seen[t].misses += u64::from(!hit);
                match &mut tenant.meter {
                    Some(meter) => meter.observe_taken(block, if hit { Served::Hit } else { Served::Miss }),
                    None => histograms[t].add(distance),
                }
            }
            in_use += tenants.iter().map(|t| f64::from(t.index.len())).sum::<f64>()
                / f64::from(load.total)
                / f64::from(ticks);
        }
        for t in 0..tenants.len() {
            seen[t].distinct = interval.distinct[t];
            let missed = seen[t].misses as f64 / seen[t].requests.max(1) as f64;
            (seen[t].hit_us, seen[t].miss_us) = (HIT_US, MISS_US);
            // one request in flight
            seen[t].iops = 1e6 / (HIT_US + missed * (MISS_US - HIT_US));
            seen[t].slow_misses = 1.0;
            tenants[t].recent.merge(options.memory, &histograms[t], 1.0 - options.memory);
            count(&mut row, interval.phase, t, &seen[t]);
        }
        row.misses_by_interval.push(seen.iter().map(|s| s.misses).sum());
        let ratio = |s: &Activity| 1.0 - s.misses as f64 / s.requests.max(1) as f64;
        row.hit_ratios.push(seen.iter().map(ratio).collect());
        row.targets.push(targets.clone());
        if known.is_empty() {
            let curves: Vec<Curve> = tenants
                .iter_mut()
                .map(|t| match &mut t.meter {
                    Some(meter) => {
                        meter.set_share(u64::from(t.index.limit()));
                        meter.interval().curve
                    }
                    None => t.recent.curve(),
                })
                .collect();
            let leaves: Vec<Leaf<'_>> = tenants
                .iter()
                .enumerate()
                .map(|(t, tenant)| Leaf {
                    least: 0,
                    node: tenant.node,
                    held: u64::from(tenant.index.len()),
                    seen: seen[t],
                    curve: Some(&curves[t]),
                })
                .collect();
            let decided: Vec<u64> = governor.interval(&tree, &leaves).into_iter().map(|t| t.1).collect();
            targets = by_tenant(&tree, &tenants, &decided);
        }
    }
    row.utilisation = in_use / trace.intervals.len() as f64;
    row
}

/// Puts a request for what the index calls `block`; whether it hit, if it was a read. A cache of victims gives away what it is asked for.
fn ask(index: &mut Index, block: u64, request: &Request, of_victims: bool) -> Option<bool> {
    let hit = match request.ask {
        // Not `remove` at once: of an absent block that would drop what the policy remembers.
        Ask::Read if of_victims => index.peek(block).is_some() && index.remove(block).is_some(),
        Ask::Read | Ask::Take => matches!(index.access(block, Access::Read, |_| true), Outcome::Hit(_)),
    };
    (request.ask == Ask::Read).then_some(hit)
}

/// Targets in the order of the tree (by name) in the order of the tenants.
fn by_tenant(tree: &Tree, tenants: &[Tenant], targets: &[u64]) -> Vec<u64> {
    let leaves = tree.leaves();
    let at = |node| leaves.iter().position(|&leaf| leaf == node).expect("every tenant is a leaf");
    tenants.iter().map(|t| targets[at(t.node)]).collect()
}

/// One tick; how many blocks changed hands. Evicts what is over: as many as a step of the mover, or all at once.
fn tick(mover: &Mover, tree: &Tree, tenants: &mut [Tenant], targets: &[u64], gradual: bool) -> u64 {
    let mut moved = 0;
    // the best known changes hands at once: what one gives another takes in the same tick
    for _ in 0..if gradual { 1 } else { 2 } {
        let mut positions: Vec<Position> = tenants
            .iter()
            .zip(targets)
            .map(|(t, &target)| Position { limit: u64::from(t.index.limit()), held: u64::from(t.index.len()), target })
            .collect();
        mover.tick(tree.total(), &mut positions);
        for (tenant, position) in tenants.iter_mut().zip(&positions) {
            moved += position.limit.saturating_sub(u64::from(tenant.index.limit()));
            tenant.index.set_limit(position.limit as u32);
            while u64::from(tenant.index.len()) > position.limit {
                tenant.index.evict(|_| true).expect("nothing is under I/O");
            }
        }
        let held: u64 = tenants.iter().map(|t| u64::from(t.index.len().max(t.index.limit()))).sum();
        assert!(held <= tree.total(), "more is promised than there is");
    }
    moved
}

fn row(load: &Load, arm: &Arm, options: &Options) -> LabRow {
    let part = |name| Part { name, ..Part::default() };
    LabRow {
        load: load.name.clone(),
        arm: arm.name(),
        policy: options.policy.name(),
        total_blocks: load.total,
        requests: 0,
        misses: 0,
        phases: load.phases.iter().map(|p| part(p.name.into())).collect(),
        tenants: load.tenants.iter().cloned().map(part).collect(),
        moved_blocks: 0,
        utilisation: 0.0,
        targets: vec![],
        misses_by_interval: vec![],
        hit_ratios: vec![],
    }
}

fn count(row: &mut LabRow, phase: usize, tenant: usize, seen: &Activity) {
    row.requests += seen.requests;
    row.misses += seen.misses;
    for part in [&mut row.phases[phase], &mut row.tenants[tenant]] {
        part.requests += seen.requests;
        part.misses += seen.misses;
    }
}

/// One index for all tenants.
fn shared(trace: &Trace, options: &Options) -> LabRow {
    let load = &trace.load;
    let mut row = row(load, &Arm::Shared, options);
    let mut index = Index::new(options.policy, load.total);
    let mut in_use = 0.0;
    for interval in &trace.intervals {
        let before = row.misses;
        for request in &interval.requests {
            let t = request.tenant;
            let block = (t as u64) << 48 | request.block;
            let Some(hit) = ask(&mut index, block, request, trace.of_victims) else { continue };
            count(
                &mut row,
                interval.phase,
                t,
                &Activity { requests: 1, misses: u64::from(!hit), ..Activity::default() },
            );
        }
        row.misses_by_interval.push(row.misses - before);
        in_use += f64::from(index.len()) / f64::from(load.total);
    }
    row.utilisation = in_use / trace.intervals.len() as f64;
    row
}

/// For each phase the sizes that save most by the exact curves of that phase.
fn known_sizes(trace: &Trace) -> Vec<Vec<u64>> {
    let load = &trace.load;
    let mut phases = vec![vec![Histogram::new(u64::from(load.total)); load.tenants.len()]; load.phases.len()];
    for interval in &trace.intervals {
        for request in interval.requests.iter().filter(|r| r.ask == Ask::Read) {
            phases[interval.phase][request.tenant].add(request.distance);
        }
    }
    let sizes = phases.iter().map(|tenants| {
        let curves: Vec<Curve> = tenants.iter().map(Histogram::curve).collect();
        let parties: Vec<Appetite<'_>> =
            curves.iter().map(|curve| Appetite { weight: 1, from: 0, room: u64::from(load.total), curve }).collect();
        lookahead(u64::from(load.total), &parties)
    });
    sizes.collect()
}

/// The donor rule with marks from a run at equal shares, as its authors did.
fn donor(trace: &Trace, options: &Options, tenants: &[Tenant], rounds: u32) -> Donor {
    let load = &trace.load;
    let share = load.total / load.tenants.len() as u32;
    let mut indexes: Vec<Index> = tenants.iter().map(|_| Index::new(options.policy, share)).collect();
    let mut seen: Vec<Vec<(u64, f64)>> = vec![vec![]; tenants.len()];
    for interval in &trace.intervals {
        let mut counts = vec![(0, 0.0); tenants.len()];
        for request in &interval.requests {
            let t = request.tenant;
            let Some(hit) = ask(&mut indexes[t], request.block, request, trace.of_victims) else { continue };
            counts[t].0 += 1;
            counts[t].1 += f64::from(u8::from(!hit));
        }
        for (all, one) in seen.iter_mut().zip(counts) {
            all.push(one);
        }
    }
    let mut donor = Donor::new(rounds);
    for (tenant, seen) in tenants.iter().zip(seen) {
        donor.set_thresholds(tenant.node, Thresholds::learned(seen));
    }
    donor
}
