//! `undercroft lab blocks`: a block trace through caches some of whose blocks are locked.
//!
//! Owns which caches are simulated, and the passes over the trace: one that counts blocks, if sizes or halves need it,
//! a first run, if something is locked by one, and that of the caches. Never simulates: `undercroft_study::sim::locks`
//! does. Invariant: what was counted before an interrupt or damage is shown, and marked as not whole.

mod args;
mod report;

pub use args::BlocksArgs;

use self::args::FirstRunArg;
use self::report::{Known, LocksDocument, columns, table};
use crate::cli::Failure;
use crate::cli::output::{Out, complain};
use crate::cli::study::sim::args::SweepArgs;
use crate::cli::study::sim::{
    block_bytes, check_memory, check_requests, first_pass, footprint, meter, name_of, open, served,
};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use undercroft_engine::PolicyKind;
use undercroft_host::idle::thread_cpu_ns;
use undercroft_study::sim::locks::{LockStudy, LockingArm, LocksPass, LocksPlan, LocksSimulation};
use undercroft_study::sim::{Go, Reference, SimError, SweepOptions, without_repeats};
use undercroft_trace::BLOCK_BYTES;
use undercroft_units::{CacheSize, Size};

/// What is known of the trace before it is simulated.
#[derive(Clone, Copy, Default)]
struct Counted {
    footprint: Option<u64>,
    accesses: Option<u64>,
}

/// The passes over a trace.
struct Passes<'a> {
    args: &'a BlocksArgs,
    sweep: SweepArgs,
    /// A size was given in bytes.
    sized: bool,
    counted: Counted,
    stop: &'a AtomicBool,
}

/// Runs it.
///
/// # Errors
/// The trace cannot be read, or not to its end; the caches make no sense; or it was interrupted, after the results.
pub(super) fn run(args: &BlocksArgs, stop: &AtomicBool, out: &mut Out) -> Result<(), Failure> {
    let block_size = args.sweep.block_size.unwrap_or(Size(BLOCK_BYTES.into()));
    let sweep = SweepArgs { block_size: Some(block_size), ..args.sweep.clone() };
    let sized = args.size.iter().any(|size| matches!(size.size, CacheSize::Bytes(_)));
    let policies = served(&args.policy, "")?;
    let mut passes = Passes { args, sweep, sized, counted: Counted::default(), stop };
    let Some(counted) = passes.count()? else { return nothing_yet() };
    passes.counted = counted;
    let mut study = passes.study(&policies)?;
    let runs_first = study.first_runs() > 0;
    if runs_first && !passes.first_run(&mut study)? {
        return nothing_yet();
    }
    let began = Instant::now();
    let done = passes.simulate(&mut study)?;
    let known = Known {
        trace: name_of(&args.trace),
        block_bytes: block_size.0,
        footprint_blocks: passes.counted.footprint,
        first_run: runs_first.then(|| passes.first_run_over()),
        tried_on: if passes.is_halved() { "the second half" } else { "the whole trace" },
        seconds: began.elapsed().as_secs_f64(),
    };
    show(&LocksDocument::of(known, &done), &passes.sweep, out)?;
    match done.pass.broken {
        Some(e) => Err(Failure::Said(e.to_string())),
        None if done.pass.stopped => Err(Failure::Interrupted),
        None => Ok(()),
    }
}

fn nothing_yet() -> Result<(), Failure> {
    complain("undercroft: interrupted before the caches were run; there is nothing to show yet");
    Err(Failure::Interrupted)
}

fn show(document: &LocksDocument, sweep: &SweepArgs, out: &mut Out) -> Result<(), Failure> {
    if sweep.json {
        out.json(document)?;
    } else if sweep.csv {
        columns(document).csv(out)?;
    } else {
        out.write(&table(document))?;
    }
    out.flush()?;
    match &sweep.parquet {
        Some(path) => columns(document).parquet(path),
        None => Ok(()),
    }
}

fn said(e: &SimError) -> Failure {
    Failure::Said(e.to_string())
}

impl Passes<'_> {
    /// Goes through the trace once, if sizes are parts of it or it is to be halved; `None` if interrupted.
    fn count(&self) -> Result<Option<Counted>, Failure> {
        let of_blocks = self.args.size.iter().any(|size| size.size.needs_footprint());
        let known = self.sweep.footprint;
        if !self.is_halved() && (!of_blocks || known.is_some()) {
            return Ok(Some(Counted { footprint: known, accesses: self.sweep.limit }));
        }
        let Some(found) = footprint(&self.args.trace, &self.sweep, self.sized, self.stop)? else { return Ok(None) };
        if found.accesses == 0 {
            // Empty, or damaged where it begins: no size follows from that.
            let broken = open(&self.args.trace, &self.sweep, self.sized)?.0.next().and_then(Result::err);
            check_requests(&self.args.trace, 0, 0, broken.as_ref())?;
        }
        Ok(Some(Counted { footprint: known.or(Some(found.blocks())), accesses: Some(found.accesses) }))
    }

    fn is_halved(&self) -> bool {
        self.args.first_run == FirstRunArg::FirstHalf
    }

    /// What the first run is made over, for people.
    fn first_run_over(&self) -> String {
        match &self.args.other {
            Some(other) => name_of(other),
            None if self.is_halved() => "the first half".into(),
            None => "the whole trace".into(),
        }
    }

    /// Accesses at the beginning of the trace that the caches are not run through.
    fn skipped(&self) -> u64 {
        self.counted.accesses.filter(|_| self.is_halved()).map_or(0, |accesses| accesses / 2)
    }

    /// Every policy at every size, without locks and then in every way that was asked for.
    fn study(&self, policies: &[PolicyKind]) -> Result<LockStudy, Failure> {
        let arms = without_repeats(std::iter::once(LockingArm::NONE).chain(self.args.lock.iter().copied()));
        let block_bytes = block_bytes(&self.sweep)?;
        let mut plans = vec![];
        for size in &self.args.size {
            let blocks = size.size.slots(block_bytes, self.counted.footprint);
            let blocks = blocks.map_err(|e| Failure::Said(format!("--size {}: {e}", size.text)))?;
            for &policy in policies {
                let plan = |&arm: &LockingArm| LocksPlan {
                    size: size.text.clone(),
                    block_bytes: block_bytes.into(),
                    ..LocksPlan::new(policy, blocks, arm)
                };
                plans.extend(arms.iter().map(plan));
            }
        }
        let study = LockStudy::new(plans).map_err(|e| said(&e))?.with_seed(self.args.seed);
        if let Some(other) = self.args.other.as_ref().filter(|_| study.first_runs() == 0) {
            return Err(Failure::Said(format!(
                "--other {}: nothing of --lock needs a first run; leave it out, or lock something by one, such as \
                 static:10%",
                other.display()
            )));
        }
        // Of another trace, it is not known of how many blocks that is: as many as this one has.
        let footprint = self.counted.footprint.map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX));
        check_memory(study.slots(footprint).into_iter())?;
        Ok(study)
    }

    fn options(&self, limit: Option<u64>) -> SweepOptions {
        let jobs = self.sweep.jobs.map(usize::from);
        SweepOptions { jobs, warm_up: self.sweep.warm_up, limit, ..SweepOptions::default() }
    }

    /// Learns what is worth a lock; false if interrupted.
    fn first_run(&self, study: &mut LockStudy) -> Result<bool, Failure> {
        let path = self.args.other.as_ref().unwrap_or(&self.args.trace);
        let limit = if self.is_halved() { Some(self.skipped()) } else { self.sweep.limit };
        let options = self.options(limit);
        let passed = first_pass(path, &self.sweep, self.sized, self.stop, "a first run", &mut |trace, watch| {
            Some(study.profile(trace, &options, watch))
        })?;
        let Some(passed) = passed else { return Ok(false) };
        let LocksPass { accesses, stopped, broken } = passed.map_err(|e| said(&e))?;
        if stopped {
            return Ok(false);
        }
        if self.args.other.is_some() {
            check_requests(path, accesses, self.sweep.warm_up, broken.as_ref())?;
            // Where the trace itself is damaged, the caches come to the same place.
            if let Some(e) = broken {
                return Err(said(&e));
            }
        }
        Ok(true)
    }

    fn simulate(&self, study: &mut LockStudy) -> Result<LocksSimulation, Failure> {
        let path: &Path = &self.args.trace;
        let skipped = self.skipped();
        let less = |accesses: Option<u64>| accesses.map(|n| n.saturating_sub(skipped));
        let (limit, total) = (less(self.sweep.limit), less(self.counted.accesses));
        let (trace, progress) = open(path, &self.sweep, self.sized)?;
        let trace =
            trace.map(|access| access.map(Reference::from)).skip(usize::try_from(skipped).unwrap_or(usize::MAX));
        let mut meter = meter(format!("locks on {}", name_of(path)), total, progress);
        let done = study.run(trace, thread_cpu_ns, &self.options(limit), &mut |accesses| {
            meter.at(accesses);
            if self.stop.load(Ordering::Relaxed) { Go::Stop } else { Go::On }
        });
        drop(meter);
        let done = done.map_err(|e| said(&e))?;
        if !done.pass.stopped {
            check_requests(path, done.pass.accesses, self.sweep.warm_up, done.pass.broken.as_ref())?;
            if done.results.first().is_some_and(|first| first.counts.reads == 0) {
                return Err(Failure::Said(format!(
                    "the trace {} has no reads that count, and locks save nothing but these",
                    path.display()
                )));
            }
        }
        Ok(done)
    }
}
