//! One run of the deterministic simulation: a core, some disks, many clients, and everything that can go wrong.
//!
//! Owns the order of events, all of it drawn from the seed. Never uses time, threads or entropy.
//! Invariant: the same seed, steps and bug give the same run; so a failure replays.
//!
//! A run draws a configuration (disks with their sizes, alignments, faults; policies, capacities, budgets; how busy
//! the clients are), then steps: a request begins, an operation executes, a completion is delivered, or something
//! rarer happens (see `rare`). Now and then everything is brought to rest, and all that must hold then is checked.

mod calls;
mod clients;
mod extras;
mod guests;
mod judge;
mod locks;
mod parts;
mod pools;
mod rare;
mod rest;
mod setup;
mod ssd;
mod successor;

use crate::coverage::{Seen, While};
pub use crate::outcome::Outcome;
use crate::rng::Rng;
use crate::violation::{PlanFailed, RunFailed, Violation};
use crate::world::{SimSide, World};
use calls::Measured;
use extras::Extras;
use ssd::SsdRun;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use undercroft_cache::fault_injection::{Bug, FaultInjection, NoFaults, Planted};
use undercroft_cache::ssd::Ssd;
use undercroft_cache::{Core, CoreOptions, DiskId, DiskOptions, Event};
use undercroft_engine::PartRange;
use undercroft_engine::shares::Hint;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Fixes everything.
    pub seed: u64,
    /// Events.
    pub steps: u64,
    /// A bug to plant in the core.
    pub bug: Option<Bug>,
}

/// Runs a plan.
///
/// # Errors
/// What went wrong, with the step and the last events before it.
pub fn run(plan: Plan) -> Result<Outcome, PlanFailed> {
    let seed = plan.seed;
    once(plan, false).map_err(|first| match once(plan, true) {
        // Once more, with notes: the same seed goes the same way.
        Err(again) => PlanFailed::Again { seed, first, again },
        Ok(_) => PlanFailed::Once { seed, first },
    })
}

/// Whether a plan finds anything wrong; quieter than [`run`].
pub fn finds(plan: Plan) -> Option<RunFailed> {
    once(plan, false).err()
}

thread_local! {
    /// Whether this thread is in a run: a failed assertion there is reported with its seed, not by the panic hook.
    static IN_RUN: Cell<bool> = const { Cell::new(false) };
}

/// Keeps assertions that fail within runs from being printed, and leaves all others to the hook that was there.
fn quieten() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IN_RUN.with(Cell::get) {
                others(info);
            }
        }));
    });
}

fn once(plan: Plan, with_log: bool) -> Result<Outcome, RunFailed> {
    match plan.bug {
        None => once_with(plan, NoFaults, with_log),
        Some(bug) => once_with(plan, Planted(bug), with_log),
    }
}

fn once_with<P: FaultInjection>(plan: Plan, faults: P, with_log: bool) -> Result<Outcome, RunFailed> {
    let mut step = 0;
    let mut log = Vec::new();
    quieten();
    IN_RUN.with(|r| r.set(true));
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut sim = Sim::new(plan.seed, faults, with_log);
        // Dropped also when an assertion fails, so the notes are passed out as they are made.
        while step < plan.steps && sim.world.violation.is_none() {
            step += 1;
            sim.step();
            if with_log && let Some(notes) = &mut sim.world.log {
                log.append(notes);
                let old = log.len().saturating_sub(200);
                log.drain(..old);
            }
        }
        if sim.world.violation.is_none() {
            sim.rest();
        }
        if with_log && let Some(notes) = &mut sim.world.log {
            log.append(notes);
        }
        sim.end()
    }));
    IN_RUN.with(|r| r.set(false));
    let what = match result {
        Ok(Ok(outcome)) => return Ok(outcome),
        Ok(Err(what)) => what,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
            Violation::from(format!("assertion: {}", text.unwrap_or_default()))
        }
    };
    Err(RunFailed { step, what, log })
}

pub(crate) struct Sim<P: FaultInjection> {
    pub(crate) rng: Rng,
    core: Option<Core<P>>,
    faults: P,
    core_options: CoreOptions,
    pub(crate) disk_options: Vec<DiskOptions>,
    pub(crate) world: World,
    /// Requests under way at most.
    busy: usize,
    now_ns: u64,
    /// Per disk: the step until which it stalls.
    stalled: Vec<u64>,
    /// Per disk: whether it is being removed.
    leaving: Vec<bool>,
    /// Per disk: the ranges of its parts.
    pub(crate) ranges: Vec<Vec<PartRange>>,
    steps: u64,
    pub(crate) outcome: Outcome,
    /// Without power cuts, writes and writes are what matters; some runs have none.
    crashes: bool,
    shares: bool,
    hints: bool,
    multi_block: u64,
    mostly_reads: bool,
    /// Whether hashes collide.
    weak: bool,
    extras: Extras,
    /// The SSD store below the core, in runs that have one.
    ssd: Option<SsdRun>,
    /// Other processes go on with what is cached, in some runs. With numbers of its own, so that other runs are as they
    /// were.
    succession: Option<Rng>,
    /// Per disk: its hint, whether its guest is scanned, and since when it is measured.
    hinted: Vec<Hint>,
    scanned: Vec<bool>,
    measured: Vec<Measured>,
    /// Blocks are locked, in some runs.
    locks: Option<locks::Locks>,
}

impl<P: FaultInjection> Sim<P> {
    pub(crate) fn core(&mut self) -> &mut Core<P> {
        self.core.as_mut().expect("a core, but in the middle of a crash")
    }

    fn apply(&mut self, event: Event) {
        let now = self.now_ns;
        let Self { core, world, .. } = self;
        let core = core.as_mut().expect("a core");
        core.apply(event, now, world);
        // Nothing wakes a request but an operation of its disk, or a paused one that goes on: without any, all are
        // answered.
        // A device that fails is to be recorded first, and large changes are noted in spare time.
        let failed = |ssd: &Ssd| ssd.stats().iter().any(|s| s.out_of_service.is_some()) || ssd.has_more_to_drop();
        let devices = world.devices.iter().any(|d| d.under_way() > 0) || core.ssd().is_some_and(failed);
        let waits = |(d, s): (usize, &SimSide)| {
            s.pending > 0
                && !devices
                && s.disk.under_way() == 0
                && world.paused.iter().all(|p| p.paused.disk.0 as usize != d)
        };
        if let Some(d) = world.sides.iter().enumerate().position(waits) {
            let waits = world.requests.values().find(|p| p.req.disk.0 as usize == d).map(|p| p.req);
            world.violate(format!("nothing of disk {d} is under way, and {waits:?} waits"));
        }
    }

    /// Counts an event of a disk, with the conditions that the disk is in.
    pub(crate) fn see(&mut self, what: Seen, d: usize) {
        self.note_conditions(d);
        self.world.see(what, d);
    }

    /// Notes what only the core knows of a disk.
    fn note_conditions(&mut self, d: usize) {
        let s = self.core().stats(DiskId(d as u32));
        let (parts, hint) = (!self.ranges[d].is_empty(), self.hinted[d]);
        let (scanned, measured) = (self.scanned[d], self.measured[d].is_some());
        let c = &mut self.world.sides[d].conditions;
        c.set(While::Parts, parts);
        c.set(While::Over, s.charged_blocks > s.limit_blocks);
        c.set(While::Limited, s.limit_blocks < s.capacity_blocks);
        c.set(While::Fetching, hint == Hint::WillNeed);
        c.set(While::Scanned, scanned);
        c.set(While::Measured, measured);
    }

    fn step(&mut self) {
        self.steps += 1;
        self.world.tick();
        if self.shares {
            self.judge_parts();
        }
        if self.steps.is_multiple_of(8) {
            let d = (self.steps / 8) as usize % self.world.sides.len();
            self.note_conditions(d);
        }
        self.now_ns += self.rng.below(2_000_000);
        if !self.world.paused.is_empty() && self.rng.one_in(2) {
            self.resume();
        }
        // What cannot be done gives way to what comes after it.
        let _ = match self.rng.below(1000) {
            0..350 => self.request() || self.execute() || self.deliver(),
            350..660 => self.execute() || self.deliver() || self.request(),
            660..940 => self.deliver() || self.execute() || self.request(),
            940..965 => self.spare(),
            965..985 => self.guest_lives(),
            _ => self.rare(),
        };
        self.extra();
        self.change_live();
        self.change_pools();
        self.change_locks();
        self.tell_late();
        self.step_ssd();
        self.succeed();
        if (self.extras.opaque || self.extras.offsets.is_some()) && self.steps.is_multiple_of(16) {
            // A page is copied only once the content of its block has been hashed.
            self.spare();
        }
        let m = self.core().memory();
        if m.frames_bytes + m.metadata_bytes > m.ceiling_bytes || m.promised_bytes > m.ceiling_bytes {
            self.world.violate(format!("over the ceiling: {m:?}"));
        }
        self.judge_pool();
        if self.steps.is_multiple_of(64) {
            self.judge_pages();
            self.count_offsets();
            self.judge_tries();
        }
        if self.steps.is_multiple_of(256) {
            self.core().check();
            self.world.forget_failures();
        }
    }

    fn any_disk(&mut self) -> usize {
        self.rng.below(self.world.sides.len() as u64) as usize
    }

    fn running_disk(&mut self) -> Option<usize> {
        let d = self.any_disk();
        (self.stalled[d] <= self.steps).then_some(d)
    }

    fn execute(&mut self) -> bool {
        let Some(d) = self.running_disk() else { return false };
        self.world.sides[d].disk.execute(&mut self.rng)
    }

    fn deliver(&mut self) -> bool {
        let Some(d) = self.running_disk() else { return false };
        let now = self.world.tick();
        let Some(done) = self.world.sides[d].disk.deliver(&mut self.rng, now) else { return false };
        self.world.note(|| format!("deliver {:?} {:?}", done.op, done.result));
        self.world.delivered(&done);
        self.apply(Event::IoDone(done));
        self.leave(d);
        true
    }
}
