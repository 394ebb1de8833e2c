//! What `sim` and `compare` share: traces opened, counted, and run through caches under a bar that Ctrl-C ends.
//!
//! Owns the passes over a trace, progress, and the interrupt. Never prints a result. Invariant: an interrupt or damage
//! ends a pass, and what it had counted until then is given back.

use super::Failure;
use super::sim_args::{SimSize, SweepArgs};
use crate::config::Machine;
use crate::units::human_size;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use undercroft_engine::PolicyKind;
use undercroft_sim::{Cell, Counts, Footprint, Go, Reference, SweepOptions, sweep};
use undercroft_trace::Reader;

/// The bar shows itself for what takes longer than this.
const BAR_AFTER: Duration = Duration::from_secs(2);
/// Accesses between two looks at the interrupt while blocks are counted.
const LOOK_EVERY: u64 = 1 << 15;
/// Bytes that a block of a simulated cache takes at most, with what policies remember of absent ones.
const BYTES_PER_BLOCK: u64 = 64;

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
pub fn open(path: &Path) -> Result<impl Iterator<Item = Result<Reference, undercroft_trace::Error>>, Failure> {
    let reader = Reader::open(path).map_err(|e| Failure::Said(e.to_string()))?;
    Ok(reader.map(|a| a.map(Reference::from)))
}

/// The results of one cell.
pub struct CellRow {
    /// Its policy.
    pub policy: PolicyKind,
    /// Its size as it was asked for.
    pub size: String,
    /// Its size.
    pub blocks: u32,
    /// What was counted.
    pub counts: Counts,
}

/// What became of one trace.
pub struct TraceRun {
    /// Its name.
    pub name: String,
    /// Distinct blocks, if they were counted or given.
    pub footprint: Option<u64>,
    /// Accesses read, warm-up included.
    pub accesses: u64,
    /// Seconds of the pass through the caches.
    pub seconds: f64,
    /// Whether the whole trace was read, or as much as was asked for.
    pub complete: bool,
    /// Why it was not, if it is damaged.
    pub broken: Option<String>,
    /// For each size, in the order they were asked for, each policy.
    pub rows: Vec<CellRow>,
}

/// Bytes of a block, as was asked for.
///
/// # Errors
/// It makes no sense.
pub fn block_bytes(args: &SweepArgs) -> Result<u32, Failure> {
    let bytes = u32::try_from(args.block_size.0).ok().filter(|&b| b > 0);
    bytes.ok_or_else(|| Failure::Said(format!("--block-size {} is not from 1B to 4GiB", args.block_size)))
}

/// Counts the distinct blocks of a trace; `None` if interrupted.
///
/// # Errors
/// The trace cannot be opened, or cannot be read twice.
pub fn footprint(path: &Path, args: &SweepArgs, stop: &AtomicBool) -> Result<Option<Footprint>, Failure> {
    // What is not there at all is told by whoever opens it.
    if path.exists() && !path.is_file() {
        return Err(Failure::Said(format!(
            "{} can be read only once, so its distinct blocks cannot be counted first; give them with --footprint, or \
             give sizes in bytes or blocks",
            path.display()
        )));
    }
    let mut bar = Bar::new(format!("counting the blocks of {}", name_of(path)), args.limit);
    let mut footprint = Footprint::default();
    for reference in open(path)?.take(args.limit.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX))) {
        // Damage ends the second pass at the same place, and is told then.
        let Ok(reference) = reference else { break };
        footprint.see(reference.block);
        if footprint.accesses % LOOK_EVERY == 0 {
            bar.at(footprint.accesses);
            if stop.load(Ordering::Relaxed) {
                bar.end();
                return Ok(None);
            }
        }
    }
    bar.end();
    Ok(Some(footprint))
}

/// Runs a trace through every policy at every size; `None` if interrupted before there was anything to show.
///
/// # Errors
/// The trace cannot be opened, or the caches cannot be had.
pub fn run_trace(
    path: &Path,
    policies: &[PolicyKind],
    sizes: &[SimSize],
    args: &SweepArgs,
    stop: &AtomicBool,
) -> Result<Option<TraceRun>, Failure> {
    let name = name_of(path);
    let block_bytes = block_bytes(args)?;
    let (mut known, mut total) = (args.footprint, args.limit);
    if known.is_none() && sizes.iter().any(|s| s.size.needs_footprint()) {
        let Some(counted) = footprint(path, args, stop)? else { return Ok(None) };
        (known, total) = (Some(counted.blocks()), Some(counted.accesses));
    }
    let mut cells = vec![];
    for size in sizes {
        let blocks = size.size.blocks(block_bytes, known).map_err(|e| Failure::Said(format!("{}: {e}", size.text)))?;
        cells.extend(policies.iter().map(|&policy| Cell::new(policy, size.size, blocks)));
    }
    check_memory(cells.iter().map(|c| c.blocks))?;
    let options = SweepOptions { jobs: args.jobs.map(usize::from), warm_up: args.warm_up, limit: args.limit };
    let mut bar = Bar::new(format!("{} caches on {name}", cells.len()), total);
    let began = Instant::now();
    let done = sweep(open(path)?, cells, &options, &mut |accesses| {
        bar.at(accesses);
        if stop.load(Ordering::Relaxed) { Go::Stop } else { Go::On }
    });
    bar.end();
    let done = done.map_err(|e| Failure::Said(e.to_string()))?;
    let texts = sizes.iter().flat_map(|s| policies.iter().map(move |_| s.text.clone()));
    let rows = done.results.iter().zip(texts).map(|(r, size)| CellRow {
        policy: r.cell.policy,
        size,
        blocks: r.cell.blocks,
        counts: r.counts,
    });
    Ok(Some(TraceRun {
        name,
        footprint: known,
        accesses: done.accesses,
        seconds: began.elapsed().as_secs_f64(),
        complete: !done.stopped && done.broken.is_none(),
        broken: done.broken.map(|e| e.to_string()),
        rows: rows.collect(),
    }))
}

/// Refuses caches whose tables this machine cannot hold, before it swaps or the kernel kills.
///
/// # Errors
/// They are too large together.
pub fn check_memory(blocks: impl Iterator<Item = u32>) -> Result<(), Failure> {
    let (mut caches, mut needed) = (0, 0u64);
    for n in blocks {
        caches += 1;
        needed += u64::from(n) * BYTES_PER_BLOCK;
    }
    let there = Machine::here().memory_bytes;
    if needed > there {
        return Err(Failure::Said(format!(
            "{caches} caches take {} of memory together, and there is {}; give smaller sizes, or fewer policies and \
             sizes at a time",
            human_size(needed),
            human_size(there)
        )));
    }
    Ok(())
}
