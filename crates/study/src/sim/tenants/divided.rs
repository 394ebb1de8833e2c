//! One level of cache divided among tenants, as a daemon would: tick by tick limits follow targets, interval by
//! interval a controller decides from telemetry.
//!
//! Owns the indexes of the tenants and what is counted of them. Never decides: tree, controllers, mover and index are
//! the engine's; and never knows what is above or below. Invariant: what the indexes hold together is never above the
//! total.

use super::above::Ask;
use super::histogram::DistanceCounts;
use super::load::TenantLoad;
use super::row::{LabRow, Part};
use super::run::{Arm, ArmOptions};
use undercroft_engine::control::{
    Activity, ControllerKind, Donor, Fixed, Governor, Guarded, Leaf, Mover, Paper, Position, Target, Thresholds,
    Utility,
};
use undercroft_engine::shares::{Level, NodeId, ShareSettings, Tree};
use undercroft_engine::{Access, AnyPolicyKind, Curve, HashKey, Index, Meter, Outcome, Served};

/// What there is to be divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Blocks.
    pub total: u32,
    /// The policy of every index.
    pub policy: AnyPolicyKind,
    /// Whether it holds what it is handed, and nothing else.
    pub of_victims: bool,
    /// Whether goals are reached here; otherwise shares are by weight where there are some.
    pub has_goals: bool,
    /// Microseconds that a hit and a miss take, for goals in times.
    pub times_us: (f64, f64),
}

/// What became of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// Whether it hit, if it was a read.
    pub hit: Option<bool>,
    /// The block that has no place here any more, or got none.
    pub evicted: Option<u64>,
}

/// Puts a request for what the index calls `block`. A cache of victims gives away what it is asked for.
pub(super) fn ask(index: &mut Index<AnyPolicyKind>, block: u64, ask: Ask, of_victims: bool) -> Answer {
    if ask == Ask::Read && of_victims {
        // Not `remove` at once: of an absent block that would drop what the policy remembers.
        let hit = index.peek(block).is_some() && index.remove(block).is_some();
        return Answer { hit: Some(hit), evicted: None };
    }
    let (hit, evicted) = match index.access(block, Access::Read, |_| true) {
        Outcome::Hit(_) => (true, None),
        Outcome::Fill { evicted, .. } => (false, evicted.map(|(block, _)| block)),
        Outcome::Bypass => (false, Some(block)),
    };
    Answer { hit: (ask == Ask::Read).then_some(hit), evicted }
}

/// One tenant.
struct Tenant {
    node: NodeId,
    index: Index<AnyPolicyKind>,
    recent: DistanceCounts,
    meter: Option<Meter<AnyPolicyKind>>,
    /// What it did in this interval.
    seen: Activity,
    histogram: DistanceCounts,
}

/// A cache that is divided among tenants while a load runs.
pub(super) struct Divided {
    place: Place,
    tree: Tree,
    governor: Governor,
    mover: Mover,
    /// Limits follow targets step by step; otherwise at once, and nobody decides but the caller.
    gradual: bool,
    memory: f64,
    tenants: Vec<Tenant>,
    targets: Vec<u64>,
    in_use: f64,
    row: LabRow,
}

/// Adds a tenant to the tree of shares. There it has its own name, or another where it cannot: what tenants of traces
/// are called is anything, a path or nothing among it, which a node may not be called.
fn add(tree: &mut Tree, name: &str, settings: ShareSettings) -> NodeId {
    let (root, others) = (tree.root(), tree.below(tree.root()).len());
    let by_number = (others..=2 * others).map(|n| format!("tenant {n}"));
    let mut names = std::iter::once(name.to_owned()).chain(by_number);
    let added = names.find_map(|name| tree.add(root, Level::Disk, &name, settings).ok());
    added.expect("the settings of an experiment fit")
}

impl Divided {
    /// Empty, for the tenants of `load`. `marks`: of each tenant, for the donor rule; `gradual`: see there.
    pub fn new(
        load: &TenantLoad,
        place: Place,
        arm: &Arm,
        options: &ArmOptions,
        marks: &[Thresholds],
        gradual: bool,
    ) -> Self {
        let total = u64::from(place.total);
        let mut tree = Tree::new("host", total);
        let mut governor = Governor::new();
        let root = tree.root();
        let tenants: Vec<Tenant> = (0..load.tenants.len())
            .map(|i| {
                let settings = options.settings.get(i).copied().unwrap_or_default();
                let node = add(&mut tree, &load.tenants[i], settings);
                let mut index = Index::new(place.policy, place.total);
                index.set_limit(0);
                let meter = options.meters.map(|meters| {
                    let share = total / load.tenants.len() as u64;
                    let mut meter = Meter::new(place.policy, share, total, meters, HashKey::from_seed(i as u64));
                    meter.set_exclusive(place.of_victims);
                    meter
                });
                let (recent, histogram) = (DistanceCounts::new(total), DistanceCounts::new(total));
                Tenant { node, index, recent, meter, seen: Activity::default(), histogram }
            })
            .collect();
        let donor = |rounds| {
            let mut donor = Donor::new(rounds);
            for (tenant, marks) in tenants.iter().zip(marks) {
                donor.set_thresholds(tenant.node, *marks);
            }
            donor
        };
        match arm {
            Arm::Shared | Arm::KnownCurves => {}
            Arm::Strict => governor.install(root, Box::new(Fixed { strict: true })),
            Arm::Governed(ControllerKind::Donor(rounds)) => {
                governor.install(root, Box::new(Guarded::earning(donor(*rounds))));
            }
            Arm::LiteralDonor(rounds) => governor.install(root, Box::new(donor(*rounds))),
            Arm::LiteralPaper => governor.install(root, Box::new(Paper::default())),
            Arm::Governed(kind) => governor.set(root, Some(*kind)),
            Arm::Utility(settings) => governor.install(root, Box::new(Utility::new(*settings))),
            Arm::Goals(_) if !place.has_goals => governor.set(root, Some(ControllerKind::Static)),
            Arm::Goals(goals) => {
                governor.install(root, Box::new(Target::default()));
                for (tenant, goal) in tenants.iter().zip(goals) {
                    governor.set_goal(tenant.node, *goal);
                }
            }
        }
        let blocks_per_tick = if gradual { u64::from(place.total.div_ceil(options.ticks)) } else { u64::MAX };
        let row = empty_row(load, arm, place);
        let (mover, memory, targets) = (Mover { blocks_per_tick }, options.memory, vec![]);
        Self { place, tree, governor, mover, gradual, memory, tenants, targets, in_use: 0.0, row }
    }

    /// An interval begins. `sizes`: what each tenant is to have, if that does not come from a controller.
    pub fn begin(&mut self, sizes: Option<&[u64]>) {
        if self.targets.is_empty() {
            // nothing is known yet
            let decided: Vec<u64> = self.governor.interval(&self.tree, &[]).into_iter().map(|t| t.1).collect();
            self.targets = self.by_tenant(&decided);
        }
        if let Some(sizes) = sizes {
            self.targets = sizes.to_vec();
        }
        for tenant in &mut self.tenants {
            tenant.seen = Activity::default();
            tenant.histogram.clear();
        }
    }

    /// One tick: `evicted` is told the tenants and blocks that are over: as many as a step of the mover, or all at
    /// once.
    pub fn tick(&mut self, mut evicted: impl FnMut(usize, u64)) {
        // the best known changes hands at once: what one gives another takes in the same tick
        for _ in 0..if self.gradual { 1 } else { 2 } {
            let tenants = self.tenants.iter().zip(&self.targets);
            let mut positions: Vec<Position> = tenants
                .map(|(t, &target)| Position {
                    limit: u64::from(t.index.limit()),
                    held: u64::from(t.index.len()),
                    target,
                })
                .collect();
            self.mover.tick(self.tree.total(), &mut positions);
            for (t, (tenant, position)) in self.tenants.iter_mut().zip(&positions).enumerate() {
                self.row.moved_blocks += position.limit.saturating_sub(u64::from(tenant.index.limit()));
                tenant.index.set_limit(position.limit as u32);
                while u64::from(tenant.index.len()) > position.limit {
                    let (block, _) = tenant.index.evict(|_| true).expect("nothing is under I/O");
                    evicted(t, block);
                }
            }
            let held: u64 = self.tenants.iter().map(|t| u64::from(t.index.len().max(t.index.limit()))).sum();
            assert!(held <= self.tree.total(), "more is promised than there is");
        }
    }

    /// One request of a tenant.
    pub fn ask(&mut self, tenant: usize, block: u64, what: Ask, distance: Option<u64>) -> Answer {
        let tenant = &mut self.tenants[tenant];
        let answer = ask(&mut tenant.index, block, what, self.place.of_victims);
        match (answer.hit, &mut tenant.meter) {
            (None, Some(meter)) => meter.left(block),
            (None, None) => {}
            (Some(hit), meter) => {
                tenant.seen.requests += 1;
                tenant.seen.misses += u64::from(!hit);
                match meter {
                    Some(meter) => meter.observe_taken(block, if hit { Served::Hit } else { Served::Miss }),
                    None => tenant.histogram.add(distance),
                }
            }
        }
        answer
    }

    /// Counts what is in use at the end of one of an interval's `ticks`.
    pub fn count_in_use(&mut self, ticks: u32) {
        self.in_use += self.tenants.iter().map(|t| f64::from(t.index.len())).sum::<f64>()
            / f64::from(self.place.total.max(1))
            / f64::from(ticks);
    }

    /// An interval of `phase` ends, in which each tenant asked for so many distinct blocks.
    pub fn end(&mut self, phase: usize, distinct: &[u64]) {
        let (hit_us, miss_us) = self.place.times_us;
        for (t, (tenant, &distinct)) in self.tenants.iter_mut().zip(distinct).enumerate() {
            let seen = &mut tenant.seen;
            seen.distinct = distinct;
            let missed = seen.misses as f64 / seen.requests.max(1) as f64;
            (seen.hit_us, seen.miss_us) = (hit_us, miss_us);
            // one request in flight
            seen.iops = 1e6 / (hit_us + missed * (miss_us - hit_us));
            seen.slow_misses = 1.0;
            tenant.recent.merge(self.memory, &tenant.histogram, 1.0 - self.memory);
            count(&mut self.row, phase, t, seen.requests, seen.misses);
        }
        self.row.misses_by_interval.push(self.tenants.iter().map(|t| t.seen.misses).sum());
        let ratio = |t: &Tenant| 1.0 - t.seen.misses as f64 / t.seen.requests.max(1) as f64;
        self.row.hit_ratios.push(self.tenants.iter().map(ratio).collect());
        self.row.targets.push(self.targets.clone());
        if self.gradual {
            let decided = self.decide();
            self.targets = self.by_tenant(&decided);
        }
    }

    /// What the controller decides of what was seen, in the order of the tree.
    fn decide(&mut self) -> Vec<u64> {
        let curve = |t: &mut Tenant| match &mut t.meter {
            Some(meter) => {
                meter.set_share(u64::from(t.index.limit()));
                meter.interval().curve
            }
            None => t.recent.curve(),
        };
        let curves: Vec<Curve> = self.tenants.iter_mut().map(curve).collect();
        let leaves: Vec<Leaf<'_>> = self
            .tenants
            .iter()
            .zip(&curves)
            .map(|(t, curve)| Leaf {
                least: 0,
                node: t.node,
                held: u64::from(t.index.len()),
                seen: t.seen,
                curve: Some(curve),
            })
            .collect();
        self.governor.interval(&self.tree, &leaves).into_iter().map(|t| t.1).collect()
    }

    /// Targets in the order of the tree (by name) in the order of the tenants.
    fn by_tenant(&self, targets: &[u64]) -> Vec<u64> {
        let leaves = self.tree.leaves();
        let at = |node| leaves.iter().position(|&leaf| leaf == node).expect("every tenant is a leaf");
        self.tenants.iter().map(|t| targets[at(t.node)]).collect()
    }

    /// The results, after so many intervals.
    pub fn finish(mut self, intervals: usize) -> LabRow {
        self.row.utilisation = self.in_use / intervals as f64;
        self.row
    }

    /// Every block that a tenant has here, for tests.
    #[cfg(test)]
    pub fn held(&self) -> Vec<(usize, u64)> {
        let of =
            |(t, tenant): (usize, &Tenant)| tenant.index.iter().map(move |(block, _)| (t, block)).collect::<Vec<_>>();
        self.tenants.iter().enumerate().flat_map(of).collect()
    }
}

/// A row in which nothing has been counted.
pub(super) fn empty_row(load: &TenantLoad, arm: &Arm, place: Place) -> LabRow {
    let part = |name| Part { name, ..Part::default() };
    LabRow {
        load: load.name.clone(),
        arm: arm.name(),
        policy: place.policy.name(),
        total_blocks: place.total,
        requests: 0,
        misses: 0,
        phases: load.phases.iter().map(|p| part(p.name.into())).collect(),
        tenants: load.tenants.iter().cloned().map(part).collect(),
        moved_blocks: 0,
        utilisation: 0.0,
        targets: vec![],
        misses_by_interval: vec![],
        hit_ratios: vec![],
        below: None,
    }
}

/// Counts requests of a tenant in a row.
pub(super) fn count(row: &mut LabRow, phase: usize, tenant: usize, requests: u64, misses: u64) {
    row.requests += requests;
    row.misses += misses;
    for part in [&mut row.phases[phase], &mut row.tenants[tenant]] {
        part.requests += requests;
        part.misses += misses;
    }
}
