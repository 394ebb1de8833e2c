//! Traces as batches of requests, for `undercroft curve` and `undercroft partition`.
//!
//! Owns the reading: batches, progress, Ctrl-C. Never keeps a trace. Invariant: an error names the file; a batch that was cut
//! short by Ctrl-C is handed on like any other.

use super::Failure;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use undercroft_curves::Batch;
use undercroft_trace::{Format, Kind, Reader};

/// Requests of a batch: some milliseconds of work.
const BATCH: usize = 1 << 16;

/// What reads traces, from several threads at once.
pub struct Input {
    stop: Arc<AtomicBool>,
    bar: ProgressBar,
    format: Option<Format>,
}

impl Input {
    /// From now on Ctrl-C ends the reading, and a second one the program.
    ///
    /// # Errors
    /// Signals cannot be caught.
    pub fn new(format: Option<Format>) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            let caught = signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone())
                .and_then(|_| signal_hook::flag::register(signal, stop.clone()));
            caught.map_err(|e| Failure::Said(format!("cannot catch Ctrl-C: {e}")))?;
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{spinner} {human_pos} requests read, {per_sec}, {elapsed}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.enable_steady_tick(Duration::from_millis(100));
        Ok(Self { stop, bar, format })
    }

    /// Whether Ctrl-C was pressed.
    pub fn interrupted(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Hands the whole trace to `each`, batch by batch, or as much as is read before Ctrl-C.
    ///
    /// # Errors
    /// What is wrong with the trace, in words.
    pub fn read(&self, path: &Path, mut each: impl FnMut(&Batch)) -> Result<(), String> {
        let opened = match self.format {
            Some(format) => Reader::open_as(path, format),
            None => Reader::open(path),
        };
        let mut reader = opened.map_err(|e| e.to_string())?;
        let mut batch = Batch::default();
        let mut ended = false;
        while !ended && !self.interrupted() {
            batch.clear();
            for access in reader.by_ref().take(BATCH) {
                let access = access.map_err(|e| e.to_string())?;
                batch.push(access.block, access.kind == Kind::Write, access.time_ns);
            }
            ended = batch.blocks.len() < BATCH;
            self.bar.inc(batch.blocks.len() as u64);
            each(&batch);
        }
        Ok(())
    }

    /// Takes the progress away.
    pub fn done(&self) {
        self.bar.finish_and_clear();
    }
}
