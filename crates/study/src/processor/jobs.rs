//! Jobs of a queue, and what a core locks for them: nothing, blocks at random, the same for all cores for the whole
//! queue, or each core by its own job.
//!
//! Owns the strategies of chapter 4 of the thesis, and the hybrid that it leaves to others. Never simulates a cache but
//! to profile a job. Invariant: a job that fits a core's cache has nothing locked.

use super::LineReference;
use super::multicore::Machine;
use super::profile::Profile;
use super::shape::Shape;
use super::ways::{LockedWays, Order};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A program's references, as a job.
#[derive(Clone)]
pub struct Job {
    /// The program.
    pub name: String,
    /// In the order in which it makes them.
    pub references: Arc<[LineReference]>,
    /// Tasks that it consists of: its instructions, or its references where none were recorded.
    pub tasks: u64,
    /// Misses of its blocks in a run by itself, if it was profiled; a new program was not.
    pub misses: Option<Arc<Bami>>,
}

/// Block addresses and miss information: what a profiling run of one job in one core's caches found.
#[derive(Debug, Default)]
pub struct Bami {
    /// Of instructions, by misses, most first.
    pub instructions: Vec<(u64, u64)>,
    /// Of data.
    pub data: Vec<(u64, u64)>,
}

impl Bami {
    /// Of a job in the caches of one core.
    pub fn of(references: &[LineReference], machine: &Machine) -> Self {
        let (mut instructions, mut data) = (Profile::new(machine.instructions), Profile::new(machine.data));
        for reference in references {
            if reference.is_fetch() { instructions.access(*reference) } else { data.access(*reference) }
        }
        Self { instructions: instructions.by_misses(), data: data.by_misses() }
    }
}

/// How cores lock ways of their caches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Strategy {
    /// Not at all.
    None,
    /// Not at all, with the shared cache loaded by profile, as all others but [`Strategy::Random`] load it: what these
    /// have beside it is what locking brings.
    Loaded {
        /// As of [`Strategy::Random`].
        seed: u64,
    },
    /// Each core locks blocks of its job at random.
    Random {
        /// Ways that are locked, in percent of all.
        percent: f64,
        /// What the choice depends on.
        seed: u64,
    },
    /// The first core decides once for all, by the profiles of all jobs.
    Static {
        /// As of [`Strategy::Random`].
        percent: f64,
    },
    /// Each core decides by its job's profile.
    Dynamic {
        /// As of [`Strategy::Random`].
        percent: f64,
    },
    /// By job: at random for one without a profile, and otherwise as many ways as miss least in its profiling run,
    /// which may be none.
    Hybrid {
        /// As of [`Strategy::Random`].
        percent: f64,
        /// As of [`Strategy::Random`].
        seed: u64,
    },
}

/// What one core locks and loads for one job.
#[derive(Clone, Debug, Default)]
pub(super) struct Decision {
    pub instructions: LockedWays,
    pub data: LockedWays,
    /// What is loaded into the shared cache.
    pub shared: Vec<u64>,
}

impl Decision {
    /// Ways that it locks, in percent of those of the core.
    pub fn locked_percent(&self, machine: &Machine) -> f64 {
        let part = |locked: &LockedWays, shape: Shape| f64::from(locked.ways) / f64::from(shape.ways());
        50.0 * (part(&self.instructions, machine.instructions) + part(&self.data, machine.data))
    }
}

/// What is decided for the whole queue.
pub(super) struct Once {
    all: Decision,
}

/// What a strategy decides once.
pub(super) fn decide(machine: &Machine, queue: &[Job], strategy: Strategy) -> Once {
    let Strategy::Static { percent } = strategy else { return Once { all: Decision::default() } };
    let large = queue.iter().any(|job| !fits(job, machine));
    if !large {
        return Once { all: Decision::default() };
    }
    let mut sum = [FxHashMap::default(), FxHashMap::default()];
    for bami in queue.iter().filter_map(|job| job.misses.as_ref()) {
        for (sum, of) in sum.iter_mut().zip([&bami.instructions, &bami.data]) {
            of.iter().for_each(|(block, misses)| *sum.entry(*block).or_insert(0) += misses);
        }
    }
    let [instructions, data] = sum.map(ranked);
    let all = by_profile(machine, &Bami { instructions, data }, percent);
    Once { all: Decision { shared: Vec::new(), ..all } }
}

fn ranked(sum: FxHashMap<u64, u64>) -> Vec<(u64, u64)> {
    let mut ranked: Vec<_> = sum.into_iter().collect();
    ranked.sort_unstable_by(|(a, x), (b, y)| y.cmp(x).then(a.cmp(b)));
    ranked
}

impl Once {
    /// What each core of a batch does.
    pub fn of_batch(&self, machine: &Machine, batch: &[Job], strategy: Strategy) -> Vec<Decision> {
        let one = |job: &Job| match strategy {
            Strategy::None => Decision::default(),
            Strategy::Loaded { seed } if job.misses.is_none() => {
                Decision { shared: at_random(machine, job, 0.0, seed).shared, ..Decision::default() }
            }
            Strategy::Loaded { .. } => Decision { shared: loaded(machine, job), ..Decision::default() },
            Strategy::Random { percent, seed } => at_random(machine, job, percent, seed),
            // Its own profile says what is loaded into the shared cache.
            Strategy::Static { .. } => Decision { shared: loaded(machine, job), ..self.all.clone() },
            Strategy::Dynamic { percent } => dynamic(machine, job, percent),
            Strategy::Hybrid { percent, seed } if job.misses.is_none() => at_random(machine, job, percent, seed),
            Strategy::Hybrid { percent, .. } => best(machine, job, percent),
        };
        batch.iter().map(one).collect()
    }
}

/// Whether all that a job touches fits a core's caches.
fn fits(job: &Job, machine: &Machine) -> bool {
    let Some(bami) = &job.misses else { return false };
    bami.instructions.len() as u64 <= machine.instructions.lines() && bami.data.len() as u64 <= machine.data.lines()
}

fn dynamic(machine: &Machine, job: &Job, percent: f64) -> Decision {
    match &job.misses {
        Some(bami) if !fits(job, machine) => {
            Decision { shared: loaded(machine, job), ..by_profile(machine, bami, percent) }
        }
        _ => Decision { shared: loaded(machine, job), ..Decision::default() },
    }
}

/// Of no locks and locks of up to `percent`, what its own profiling run says misses least.
fn best(machine: &Machine, job: &Job, percent: f64) -> Decision {
    let Some(bami) = &job.misses else { return Decision::default() };
    let plain = Decision { shared: loaded(machine, job), ..Decision::default() };
    let steps = (1..=machine.data.ways()).map(|ways| 100.0 * f64::from(ways) / f64::from(machine.data.ways()));
    let tried = steps
        .take_while(|p| *p <= percent)
        .map(|p| Decision { shared: loaded(machine, job), ..by_profile(machine, bami, p) });
    let misses = |d: &Decision| super::multicore::own_miss_count(machine, job, d);
    std::iter::once(plain).chain(tried).min_by_key(misses).expect("one at least")
}

fn ways_of(shape: Shape, percent: f64) -> u32 {
    ((percent / 100.0 * f64::from(shape.ways())).round() as u32).min(shape.ways() - 1)
}

fn by_profile(machine: &Machine, bami: &Bami, percent: f64) -> Decision {
    let of = |ranked: &[(u64, u64)], shape: Shape| LockedWays {
        ways: ways_of(shape, percent),
        lines: ranked.iter().map(|(block, _)| *block).collect(),
        order: Order::Misses(Arc::new(ranked.iter().copied().collect())),
    };
    Decision {
        instructions: of(&bami.instructions, machine.instructions),
        data: of(&bami.data, machine.data),
        shared: Vec::new(),
    }
}

fn at_random(machine: &Machine, job: &Job, percent: f64, seed: u64) -> Decision {
    let mut blocks = [Vec::new(), Vec::new()];
    let mut seen = rustc_hash::FxHashSet::default();
    for reference in job.references.iter() {
        if seen.insert((reference.is_fetch(), reference.block())) {
            blocks[usize::from(!reference.is_fetch())].push(reference.block());
        }
    }
    let [instructions, data] = blocks.map(|blocks| super::arms::shuffled(blocks.into_iter(), seed));
    let order = Order::Random(seed);
    let of = |lines: &[u64], shape| LockedWays {
        ways: ways_of(shape, percent),
        lines: lines.to_vec(),
        order: order.clone(),
    };
    let shift = shared_shift(machine);
    let shared = instructions.iter().chain(&data).map(|block| block >> shift).collect();
    Decision { instructions: of(&instructions, machine.instructions), data: of(&data, machine.data), shared }
}

/// What numbers of lines of the cores' caches are shifted by to be those of the shared cache, whose lines may be
/// longer.
fn shared_shift(machine: &Machine) -> u32 {
    (machine.shared.line_bytes() / machine.data.line_bytes()).max(1).trailing_zeros()
}

/// What is loaded into the shared cache for a job: its blocks by their misses.
fn loaded(machine: &Machine, job: &Job) -> Vec<u64> {
    let shift = shared_shift(machine);
    let Some(bami) = &job.misses else { return Vec::new() };
    bami.instructions.iter().chain(&bami.data).map(|(block, _)| block >> shift).collect()
}
