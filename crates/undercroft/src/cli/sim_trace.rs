//! What `sim` and `compare` share: traces opened, counted, and run through caches under a bar that Ctrl-C ends.
//!
//! Owns the passes over a trace, progress, and the interrupt. Never prints a result. Invariant: an interrupt or damage
//! ends a pass, and what it had counted until then is given back.

use super::Failure;
use super::sim_args::SweepArgs;
use crate::config::Machine;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use undercroft_sim::{Footprint, Go, Grid, Reference, Rule, SimSize, SweepOptions, TraceRun, sweep};
use undercroft_trace::Reader;

/// The bar shows itself for what takes longer than this.
const BAR_AFTER: Duration = Duration::from_secs(2);

/// Set by Ctrl-C; the second one ends the program at once.
///
/// # Errors
/// The signal cannot be caught.
pub fn interrupt() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let caught = signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()));
        caught.map_err(|e| Failure::Said(format!("cannot catch Ctrl-C: {e}")))?;
    }
    Ok(stop)
}

/// A bar over one pass.
pub struct Bar {
    bar: ProgressBar,
    began: Instant,
    shown: bool,
    total: Option<u64>,
    what: String,
}

impl Bar {
    /// A bar that nobody sees yet; `total` accesses are ahead, if that is known.
    pub fn new(what: String, total: Option<u64>) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Self { bar, began: Instant::now(), shown: false, total, what }
    }

    /// So many accesses are done.
    pub fn at(&mut self, accesses: u64) {
        if !self.shown && self.began.elapsed() >= BAR_AFTER {
            self.shown = true;
            let template = match self.total {
                Some(_) => "{wide_bar} {percent:>3}% {human_pos} accesses, {per_sec}, {eta} left, {msg}",
                None => "{spinner} {human_pos} accesses, {per_sec}, {elapsed} so far, {msg}",
            };
            self.bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            if let Some(total) = self.total {
                self.bar.set_length(total);
            }
            self.bar.set_message(self.what.clone());
        }
        self.bar.set_position(accesses);
    }

    /// It is done.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// What a trace is called in results: its file's name.
pub fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned())
}

/// Opens a trace.
///
/// # Errors
/// Those of the reader.
pub fn open(path: &Path) -> Result<impl Iterator<Item = Result<Reference, undercroft_trace::Error>> + use<>, Failure> {
    let reader = Reader::open(path).map_err(|e| Failure::Said(e.to_string()))?;
    Ok(reader.map(|a| a.map(Reference::from)))
}

/// Bytes of a block, as was asked for.
///
/// # Errors
/// It makes no sense.
pub fn block_bytes(args: &SweepArgs) -> Result<u32, Failure> {
    let bytes = u32::try_from(args.block_size.0).ok().filter(|&b| b > 0);
    bytes.ok_or_else(|| Failure::Said(format!("--block-size {} is not from 1B to 4GiB", args.block_size)))
}

/// A trace as caches take it.
pub type References = Box<dyn Iterator<Item = Result<Reference, undercroft_trace::Error>>>;

/// What is shown a trace before it is simulated: accesses, and whoever may end it.
type FirstPass<'a, T> = &'a mut dyn FnMut(References, &mut dyn FnMut(u64) -> Go) -> Option<T>;

/// Goes through a trace once to learn something; `None` if interrupted.
///
/// # Errors
/// The trace cannot be opened, or cannot be read twice: `otherwise` says what to do then.
pub fn first_pass<T>(
    path: &Path,
    args: &SweepArgs,
    stop: &AtomicBool,
    (what, otherwise): (&str, &str),
    learn: FirstPass<'_, T>,
) -> Result<Option<T>, Failure> {
    // What is not there at all is told by whoever opens it.
    if path.exists() && !path.is_file() {
        return Err(Failure::Said(format!(
            "{} can be read only once, so there is no first pass for {what}; {otherwise}",
            path.display()
        )));
    }
    let mut bar = Bar::new(format!("{what} of {}", name_of(path)), args.limit);
    let learned = learn(Box::new(open(path)?), &mut |accesses| {
        bar.at(accesses);
        if stop.load(Ordering::Relaxed) { Go::Stop } else { Go::On }
    });
    bar.end();
    Ok(learned)
}

/// Counts the distinct blocks of a trace; `None` if interrupted.
///
/// # Errors
/// The trace cannot be opened, or cannot be read twice.
pub fn footprint(path: &Path, args: &SweepArgs, stop: &AtomicBool) -> Result<Option<Footprint>, Failure> {
    let said = ("the distinct blocks", "give them with --footprint, or give sizes in bytes or blocks");
    first_pass(path, args, stop, said, &mut |trace, watch| Footprint::of(trace, args.limit, watch))
}

/// Runs a trace through every policy at every size; `None` if interrupted before there was anything to show.
///
/// # Errors
/// The trace cannot be opened, or the caches cannot be had.
pub fn run_trace(
    path: &Path,
    policies: &[Rule],
    sizes: &[SimSize],
    args: &SweepArgs,
    stop: &AtomicBool,
) -> Result<Option<TraceRun>, Failure> {
    let name = name_of(path);
    let grid = Grid { policies, sizes, block_bytes: block_bytes(args)? };
    let (mut known, mut total) = (args.footprint, args.limit);
    if known.is_none() && grid.needs_footprint() {
        let Some(counted) = footprint(path, args, stop)? else { return Ok(None) };
        (known, total) = (Some(counted.blocks()), Some(counted.accesses));
    }
    let cells = grid.cells(known).map_err(|e| Failure::Said(e.to_string()))?;
    check_memory(cells.iter().map(|c| c.blocks))?;
    let options = SweepOptions {
        jobs: args.jobs.map(usize::from),
        warm_up: args.warm_up,
        limit: args.limit,
        memory_bytes: Some(Machine::here().memory_bytes),
    };
    let mut bar = Bar::new(format!("{} caches on {name}", cells.len()), total);
    let began = Instant::now();
    let done = sweep(open(path)?, cells, &options, &mut |accesses| {
        bar.at(accesses);
        if stop.load(Ordering::Relaxed) { Go::Stop } else { Go::On }
    });
    bar.end();
    let done = done.map_err(|e| Failure::Said(e.to_string()))?;
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

/// Refuses caches whose tables this machine cannot hold, before it swaps or the kernel kills.
///
/// # Errors
/// They are too large together.
pub fn check_memory(blocks: impl Iterator<Item = u32>) -> Result<(), Failure> {
    undercroft_sim::check_memory(blocks, Machine::here().memory_bytes).map_err(|e| Failure::Said(e.to_string()))
}
