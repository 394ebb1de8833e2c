//! Traces from pipes that a command reads more than once: kept in a file without a name, and read from there.
//!
//! Owns what was kept, for as long as the program runs. Never keeps a plain file. Invariant: after [`keep`], every
//! [`open`] of a pipe begins where the pipe did.

use crate::cli::Failure;
use crate::cli::output::complain;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use undercroft_trace::{ReaderOptions, Spool, TraceError, TraceReader};
use undercroft_units::human_size;

/// Bytes of a pipe, as they come, that are kept at most.
const BYTES_MAX: u64 = 64 << 30;

static KEPT: Mutex<BTreeMap<PathBuf, Arc<Spool>>> = Mutex::new(BTreeMap::new());

fn kept() -> MutexGuard<'static, BTreeMap<PathBuf, Arc<Spool>>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Before the first of several passes: keeps what can be read only once, all of it or what comes before `stop`, and
/// says where.
///
/// # Errors
/// It cannot be read or kept.
pub fn keep(path: &Path, stop: &AtomicBool) -> Result<(), Failure> {
    if !Spool::is_needed(path) || kept().contains_key(path) {
        return Ok(());
    }
    let directory = std::env::temp_dir();
    let go_on = &mut |_| !stop.load(Ordering::Relaxed);
    let spool = Spool::of(path, &directory, BYTES_MAX, go_on).map_err(|e| Failure::Said(e.to_string()))?;
    let name = if path == Path::new("-") { "standard input".into() } else { path.display().to_string() };
    complain(&format!(
        "undercroft: {name} is read twice, so its {} are kept in {} meanwhile (TMPDIR says where; at most {})",
        human_size(spool.bytes()),
        directory.display(),
        human_size(BYTES_MAX)
    ));
    kept().insert(path.to_owned(), Arc::new(spool));
    Ok(())
}

/// Opens a trace, from what was kept of it if it was.
///
/// # Errors
/// Those of the reader.
pub fn open(path: &Path, options: &ReaderOptions) -> Result<TraceReader<'static>, TraceError> {
    let spool = kept().get(path).cloned();
    spool.map_or_else(|| TraceReader::open_with(path, options), |spool| spool.reader(options))
}
