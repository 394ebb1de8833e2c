//! A second level below the first divided one, such as an SSD below memory; divided among the same tenants.
//!
//! Owns what reaches it, with the distances of that. Never decides. Invariant: one that holds what is handed down has
//! no block that the level above has.
//!
//! What reaches it depends on who divides the level above, so distances are measured in each run.

use super::above::Ask;
use super::distance::Distances;
use super::divided::{Answer, Divided, Place, ask, count};
use super::histogram::DistanceCounts;
use super::load::TenantLoad;
use super::row::LabRow;
use super::run::{Arm, ArmOptions};
use std::collections::HashSet;
use undercroft_engine::control::Thresholds;
use undercroft_engine::{AnyPolicyKind, Index};

/// The level below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Below {
    /// Blocks that it holds for all tenants.
    pub blocks: u32,
    /// Its policy.
    pub policy: AnyPolicyKind,
    /// Whether the level above hands down what it evicts, and this one holds that and nothing else: a block that is
    /// read goes up and is dropped. Otherwise it keeps what passes.
    pub demotes: bool,
}

/// Microseconds that a read of an SSD and one of a disk take, for goals in times.
const TIMES_US: (f64, f64) = (500.0, 8000.0);

impl Below {
    /// What there is to be divided.
    pub(super) fn place(self) -> Place {
        let Below { blocks: total, policy, demotes: of_victims } = self;
        Place { total, policy, of_victims, has_goals: false, times_us: TIMES_US }
    }

    /// What the level above wants of this one after `answer` to a request for `block`: blocks, in order.
    pub(super) fn asked(self, block: u64, answer: Answer) -> impl Iterator<Item = (u64, Ask)> {
        let read = (answer.hit == Some(false)).then_some((block, Ask::Read));
        let handed = answer.evicted.filter(|_| self.demotes).map(|block| (block, Ask::Take));
        read.into_iter().chain(handed)
    }
}

/// The level below while it runs.
pub(super) struct Lower {
    below: Below,
    level: Divided,
    distances: Vec<Distances>,
    /// Distinct blocks of each tenant in this interval.
    asked: Vec<HashSet<u64>>,
    /// What reached it in each phase, by tenant.
    pub phases: Vec<Vec<DistanceCounts>>,
}

impl Lower {
    pub fn new(
        below: Below,
        load: &TenantLoad,
        arm: &Arm,
        options: &ArmOptions,
        marks: &[Thresholds],
        gradual: bool,
    ) -> Self {
        let tenants = load.tenants.len();
        Self {
            below,
            level: Divided::new(load, below.place(), arm, options, marks, gradual),
            distances: vec![Distances::default(); tenants],
            asked: vec![HashSet::new(); tenants],
            phases: vec![vec![DistanceCounts::new(below.blocks.into()); tenants]; load.phases.len()],
        }
    }

    /// See [`Divided::begin`].
    pub fn begin(&mut self, sizes: Option<&[u64]>) {
        self.level.begin(sizes);
        self.asked.iter_mut().for_each(HashSet::clear);
    }

    /// One tick. What is over goes to nobody.
    pub fn tick(&mut self) {
        self.level.tick(|_, _| ());
    }

    /// The level above has given `answer` to a request for `block`.
    pub fn follow(&mut self, phase: usize, tenant: usize, block: u64, answer: Answer) {
        for (block, what) in self.below.asked(block, answer) {
            self.ask(phase, tenant, block, what);
        }
    }

    /// The level above has given up `block`, as its tenant has to have less.
    pub fn handed_down(&mut self, phase: usize, tenant: usize, block: u64) {
        self.follow(phase, tenant, block, Answer { hit: None, evicted: Some(block) });
    }

    fn ask(&mut self, phase: usize, tenant: usize, block: u64, what: Ask) {
        let distances = &mut self.distances[tenant];
        let distance = match what {
            Ask::Read if self.below.demotes => distances.take(block),
            Ask::Read | Ask::Take => distances.access(block),
        };
        if what == Ask::Read {
            self.asked[tenant].insert(block);
            self.phases[phase][tenant].add(distance);
        }
        self.level.ask(tenant, block, what, distance);
    }

    /// See [`Divided::count_in_use`].
    pub fn count_in_use(&mut self, ticks: u32) {
        self.level.count_in_use(ticks);
    }

    /// See [`Divided::end`].
    pub fn end(&mut self, phase: usize) {
        let distinct: Vec<u64> = self.asked.iter().map(|a| a.len() as u64).collect();
        self.level.end(phase, &distinct);
    }

    /// See [`Divided::finish`].
    pub fn finish(self, intervals: usize) -> (LabRow, Vec<Vec<DistanceCounts>>) {
        (self.level.finish(intervals), self.phases)
    }

    /// Panics if it holds what is handed down, and something that the level above has; for tests.
    #[cfg(test)]
    pub fn check(&self, upper: &Divided) {
        check_apart(self.below, self.level.held(), upper.held());
    }
}

/// See [`Lower::check`].
#[cfg(test)]
pub(super) fn check_apart<T: Eq + std::hash::Hash + std::fmt::Debug>(below: Below, lower: Vec<T>, upper: Vec<T>) {
    let upper: HashSet<T> = upper.into_iter().collect();
    let both: Vec<T> = lower.into_iter().filter(|b| upper.contains(b)).collect();
    assert!(!below.demotes || both.is_empty(), "in both levels: {both:?}");
}

/// Two levels with an index each that nobody divides.
pub(super) struct Pair {
    upper: Index<AnyPolicyKind>,
    of_victims: bool,
    lower: Option<(Below, Index<AnyPolicyKind>)>,
}

impl Pair {
    /// Empty ones, of these levels.
    pub fn new(upper: Place, below: Option<Below>) -> Self {
        let lower = below.map(|b| (b, Index::new(b.policy, b.blocks)));
        Self { upper: Index::new(upper.policy, upper.total), of_victims: upper.of_victims, lower }
    }

    /// Puts a request; whether each level hit that was asked for a block.
    pub fn ask(&mut self, block: u64, what: Ask) -> [Option<bool>; 2] {
        let answer = ask(&mut self.upper, block, what, self.of_victims);
        let mut hit_below = None;
        if let Some((below, index)) = &mut self.lower {
            for (block, what) in below.asked(block, answer) {
                hit_below = hit_below.or(ask(index, block, what, below.demotes).hit);
            }
        }
        [answer.hit, hit_below]
    }

    /// The blocks that each level holds.
    pub fn len(&self) -> [u32; 2] {
        [self.upper.len(), self.lower.as_ref().map_or(0, |(_, index)| index.len())]
    }

    /// See [`Lower::check`].
    #[cfg(test)]
    pub fn check(&self) {
        let held = |index: &Index<AnyPolicyKind>| index.iter().map(|(block, _)| block).collect();
        if let Some((below, lower)) = &self.lower {
            check_apart(*below, held(lower), held(&self.upper));
        }
    }
}

/// Counts what one request came to, in the row of a level or none.
pub(super) fn count_one(row: Option<&mut LabRow>, phase: usize, tenant: usize, hit: Option<bool>) {
    if let (Some(row), Some(hit)) = (row, hit) {
        count(row, phase, tenant, 1, u64::from(!hit));
    }
}
