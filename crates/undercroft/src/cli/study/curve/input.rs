//! Traces as batches of requests, for `undercroft curve` and `undercroft partition`.
//!
//! Owns the reading: batches, progress, Ctrl-C. Never keeps a trace. Invariant: an error names the file; a batch that
//! was cut short by Ctrl-C is handed on like any other.

use crate::cli::Failure;
use crate::cli::interrupt::interrupt;
use crate::cli::meter::Meter;
use crate::cli::study::reading::{note, warn};
use crate::cli::study::spool;
use std::collections::BTreeSet;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use undercroft_study::curves::RequestBatch;
use undercroft_trace::{AccessKind, ReaderOptions};

/// Requests of a batch: some milliseconds of work.
const BATCH: usize = 1 << 16;

/// What reads traces, from several threads at once.
pub struct Input {
    stop: Arc<AtomicBool>,
    meter: Mutex<Meter>,
    options: ReaderOptions,
    /// Traces whose warnings were told: some are read twice.
    told: Mutex<BTreeSet<PathBuf>>,
    /// And those of which it was told what was taken for what.
    noted: Mutex<BTreeSet<PathBuf>>,
}

impl Input {
    /// From now on Ctrl-C ends the reading of these traces, each so many times, and a second one the program.
    ///
    /// # Errors
    /// Signals cannot be caught.
    pub fn new(options: ReaderOptions, traces: &[PathBuf], passes: u64) -> Result<Self, Failure> {
        let stop = interrupt()?;
        if passes > 1 {
            traces.iter().try_for_each(|path| spool::keep(path, &stop))?;
        }
        let length = |path: &PathBuf| path.metadata().ok().filter(Metadata::is_file).map(|m| m.len() * passes);
        let meter = Mutex::new(Meter::of_bytes(traces.iter().map(length).sum()));
        Ok(Self { stop, meter, options, told: Mutex::default(), noted: Mutex::default() })
    }

    /// Whether Ctrl-C was pressed.
    pub fn interrupted(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Hands the whole trace to `each`, or as much as is read before Ctrl-C: of each piece of it a batch for each
    /// tenant, by number, or a single one. Returns the tenants' names.
    ///
    /// # Errors
    /// The trace cannot be read, or not to its end.
    pub fn read_parts(
        &self,
        path: &Path,
        per_tenant: bool,
        mut each: impl FnMut(&[RequestBatch]),
    ) -> Result<Vec<String>, undercroft_trace::TraceError> {
        let mut reader = spool::open(path, &self.options)?;
        if lock(&self.noted).insert(path.to_owned()) {
            lock(&self.meter).suspend(|| note(&reader));
        }
        lock(&self.meter).follow(reader.progress());
        let mut parts = vec![RequestBatch::default()];
        let mut accesses = Vec::with_capacity(BATCH + undercroft_trace::BATCH);
        let mut ended = false;
        while !ended && !self.interrupted() {
            parts.iter_mut().for_each(RequestBatch::clear);
            accesses.clear();
            while !ended && accesses.len() < BATCH {
                ended = reader.next_batch(&mut accesses)? == 0;
            }
            for access in &accesses {
                let part = if per_tenant { usize::from(access.tenant) } else { 0 };
                if part >= parts.len() {
                    parts.resize_with(part + 1, RequestBatch::default);
                }
                parts[part].push(access.block, access.kind == AccessKind::Write, access.time_ns);
            }
            lock(&self.meter).read(accesses.len() as u64);
            each(&parts);
        }
        if lock(&self.told).insert(path.to_owned()) {
            lock(&self.meter).suspend(|| warn(&reader));
        }
        Ok(reader.tenants().names().to_vec())
    }

    /// Takes the progress away.
    pub fn done(&self) {
        lock(&self.meter).hide();
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}
