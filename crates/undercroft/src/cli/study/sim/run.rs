//! What `sim` and `compare` share: traces opened, counted, and run through caches until Ctrl-C ends that.
//!
//! Owns the passes over a trace and their progress. Never prints a result. Invariant: an interrupt or damage
//! ends a pass, and what it had counted until then is given back.

use super::args::SweepArgs;
use crate::cli::Failure;
use crate::cli::meter::Meter;
use crate::cli::study::reading::{bytes, note, warn};
use crate::cli::study::spool;
use std::fmt::Display;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use undercroft_config::Machine;
use undercroft_engine::PolicyKind;
use undercroft_study::sim::{
    Footprint, Go, Grid, Policies, Reference, Rule, SweepOptions, TraceRun, only_policies, sweep, without_repeats,
};
use undercroft_trace::{Access, BLOCK_BYTES, Progress, TraceReader};
use undercroft_units::{CacheSize, WrittenSize};

/// What a trace is called in results: its file's name.
pub fn name_of(path: &Path) -> String {
    if path == Path::new("-") {
        return "standard input".into();
    }
    path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned())
}

/// A trace that says at its end what of it was left out.
pub struct Told(TraceReader<'static>);

impl Told {
    /// The tenants seen so far, by number.
    pub fn tenants(&self) -> &[String] {
        self.0.tenants().names()
    }
}

impl Iterator for Told {
    type Item = Result<Access, undercroft_trace::TraceError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        warn(&self.0);
    }
}

fn reader(path: &Path, args: &SweepArgs, sized: bool) -> Result<TraceReader<'static>, Failure> {
    let options = args.read.of_blocks(args.block_size, args.jobs != Some(1), sized)?;
    spool::open(path, &options).map_err(|e| Failure::Said(e.to_string()))
}

/// Opens a trace, for its last pass: what was taken for what is told now, and at its end what was left out. Beside it,
/// how far it is read. `sized`: a size was given in bytes.
///
/// # Errors
/// Those of the reader.
pub fn open(path: &Path, args: &SweepArgs, sized: bool) -> Result<(Told, Progress), Failure> {
    let reader = reader(path, args, sized)?;
    note(&reader);
    let progress = reader.progress();
    Ok((Told(reader), progress))
}

/// The meter of one pass over a trace: by the accesses that there are in all, if that is known.
pub fn meter(what: String, total: Option<u64>, progress: Progress) -> Meter {
    total.map_or_else(|| Meter::new(vec![progress]), Meter::of_requests).named(what, "accesses")
}

/// Those of these policies that a disk of the daemon may have, which all have to be; `remedy` ends what is said of one
/// that is not.
///
/// # Errors
/// A disk may not have one of them.
pub fn served(policies: &[Policies], remedy: &str) -> Result<Vec<PolicyKind>, Failure> {
    let asked = only_policies(policies.iter().flat_map(|p| p.0.iter().copied()));
    let asked = without_repeats(asked.map_err(|e| Failure::Said(e.to_string()))?);
    match asked.iter().find(|policy| policy.served().is_none()) {
        None => Ok(asked.into_iter().filter_map(|policy| policy.served()).collect()),
        Some(study) => Err(Failure::Said(format!(
            "--policy {study}: no disk of the daemon may have it; take one of {}{remedy}",
            PolicyKind::ALL.map(PolicyKind::name).join(", ")
        ))),
    }
}

/// Bytes of a block, as was asked for.
///
/// # Errors
/// It makes no sense.
pub fn block_bytes(args: &SweepArgs) -> Result<u32, Failure> {
    Ok(bytes(args.block_size, "block-size")?.unwrap_or(BLOCK_BYTES))
}

/// A trace as caches take it.
pub type References = Box<dyn Iterator<Item = Result<Reference, undercroft_trace::TraceError>>>;

/// What is shown a trace before it is simulated: accesses, and whoever may end it.
type FirstPass<'a, T> = &'a mut dyn FnMut(References, &mut dyn FnMut(u64) -> Go) -> Option<T>;

/// Goes through a trace once to learn something; `None` if interrupted. A pipe is kept in a file for the next pass.
///
/// # Errors
/// The trace cannot be opened, or cannot be kept.
pub fn first_pass<T>(
    path: &Path,
    args: &SweepArgs,
    sized: bool,
    stop: &AtomicBool,
    what: &str,
    learn: FirstPass<'_, T>,
) -> Result<Option<T>, Failure> {
    spool::keep(path, stop)?;
    let reader = reader(path, args, sized)?;
    let mut meter = meter(format!("{what} of {}", name_of(path)), args.limit, reader.progress());
    Ok(learn(Box::new(reader.map(|a| a.map(Reference::from))), &mut |accesses| {
        meter.at(accesses);
        if stop.load(Ordering::Relaxed) { Go::Stop } else { Go::On }
    }))
}

/// Counts the distinct blocks of a trace; `None` if interrupted.
///
/// # Errors
/// Those of [`first_pass`].
pub fn footprint(path: &Path, args: &SweepArgs, sized: bool, stop: &AtomicBool) -> Result<Option<Footprint>, Failure> {
    let limit = args.limit;
    first_pass(path, args, sized, stop, "the distinct blocks", &mut |trace, watch| Footprint::of(trace, limit, watch))
}

/// Runs a trace through every policy at every size; `None` if interrupted before there was anything to show.
///
/// # Errors
/// The trace cannot be opened, or the caches cannot be had.
pub fn run_trace(
    path: &Path,
    policies: &[Rule],
    sizes: &[WrittenSize],
    args: &SweepArgs,
    stop: &AtomicBool,
) -> Result<Option<TraceRun>, Failure> {
    let name = name_of(path);
    let grid = Grid { policies, sizes, block_bytes: block_bytes(args)? };
    let sized = sizes.iter().any(|s| matches!(s.size, CacheSize::Bytes(_)));
    let (mut known, mut total) = (args.footprint, args.limit);
    if known.is_none() && grid.needs_footprint() {
        let Some(counted) = footprint(path, args, sized, stop)? else { return Ok(None) };
        (known, total) = (Some(counted.blocks()), Some(counted.accesses));
    }
    let cells = grid.cells(known).map_err(|e| Failure::Said(e.to_string()))?;
    check_memory(cells.iter().map(|c| c.blocks))?;
    let options = SweepOptions {
        jobs: args.jobs.map(usize::from),
        warm_up: args.warm_up,
        limit: args.limit,
        memory_bytes: Some(Machine::here().usable_bytes()),
    };
    let (trace, progress) = open(path, args, sized)?;
    let mut meter = meter(format!("{} caches on {name}", cells.len()), total, progress);
    let began = Instant::now();
    let done = sweep(trace.map(|a| a.map(Reference::from)), cells, &options, &mut |accesses| {
        meter.at(accesses);
        if stop.load(Ordering::Relaxed) { Go::Stop } else { Go::On }
    });
    drop(meter);
    let done = done.map_err(|e| Failure::Said(e.to_string()))?;
    if !done.stopped {
        check_requests(path, done.accesses, args.warm_up, done.broken.as_ref())?;
    }
    Ok(Some(TraceRun {
        name,
        footprint: known,
        accesses: done.accesses,
        seconds: began.elapsed().as_secs_f64(),
        complete: !done.stopped && done.broken.is_none(),
        broken: done.broken.map(|e| e.to_string()),
        rows: grid.rows(&done.results),
    }))
}

/// Refuses a trace of which nothing could be counted, as it is empty, `broken` at its beginning, or no longer than the
/// `warm_up`: no miss ratio is that of nothing.
///
/// # Errors
/// It is one.
pub fn check_requests(path: &Path, accesses: u64, warm_up: u64, broken: Option<&impl Display>) -> Result<(), Failure> {
    match broken {
        _ if accesses > warm_up => Ok(()),
        Some(e) => Err(Failure::Said(e.to_string())),
        None if accesses == 0 => Err(Failure::Said(format!("the trace {} has no requests", path.display()))),
        None => Err(Failure::Said(format!(
            "nothing is counted of the trace {}: {accesses} accesses were read, and the first {warm_up} fill the \
             caches; give a smaller --warm-up",
            path.display()
        ))),
    }
}

/// Refuses caches whose tables this machine cannot hold, before it swaps or the kernel kills.
///
/// # Errors
/// They are too large together.
pub fn check_memory(blocks: impl Iterator<Item = u32>) -> Result<(), Failure> {
    undercroft_study::sim::check_memory(blocks, Machine::here().usable_bytes())
        .map_err(|e| Failure::Said(e.to_string()))
}
