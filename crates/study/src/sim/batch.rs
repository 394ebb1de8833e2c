//! A trace in batches, read ahead while simulations take them in parallel.
//!
//! Owns the buffers, the threads and the end of a run. Never looks into a simulation. Invariant: each simulation takes
//! every reference, in order.

use crate::sim::error::SimError;
use crate::sim::reference::Reference;
use crate::sim::run::{Go, SweepOptions};
use rayon::prelude::*;

/// References of a batch: large enough that handing it out costs nothing, small enough for a second-level cache.
pub(crate) const BATCH: usize = 1 << 15;

/// Something that a trace is run through.
pub(crate) trait Take: Send {
    /// Takes references; the first `cold` of them warm it up and are not counted.
    fn take(&mut self, batch: &[Reference], cold: usize);
}

/// How a run ended.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// References read, warm-up included.
    pub accesses: u64,
    /// Whether it was ended before the trace was.
    pub stopped: bool,
    /// Why the trace could not be read to its end.
    pub broken: Option<SimError>,
}

/// Reads the next batch; false at the end of the trace. What was read before an error is in the batch.
fn fill(
    trace: &mut impl Iterator<Item = Result<Reference, undercroft_trace::TraceError>>,
    batch: &mut Vec<Reference>,
    at_most: u64,
) -> Result<bool, SimError> {
    batch.clear();
    let most = usize::try_from(at_most).unwrap_or(usize::MAX).min(BATCH);
    while batch.len() < most {
        match trace.next() {
            Some(Ok(reference)) => batch.push(reference),
            Some(Err(e)) => return Err(e.into()),
            None => return Ok(false),
        }
    }
    Ok(most > 0)
}

/// The threads for `jobs`: so many, or one for each processor; none for one job, which the caller does.
pub(crate) fn threads(jobs: Option<usize>) -> Result<Option<rayon::ThreadPool>, SimError> {
    if jobs == Some(1) {
        return Ok(None);
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(jobs.unwrap_or(0)).build();
    pool.map(Some).map_err(|e| SimError::Threads { jobs: jobs.unwrap_or(0), why: e.to_string() })
}

/// Runs a trace through everything in `all`: the caller's thread reads the next batch while the others take the one
/// before. `watch` is told how many references have been taken, after each batch.
pub(crate) fn drive<T: Take>(
    mut trace: impl Iterator<Item = Result<Reference, undercroft_trace::TraceError>>,
    all: &mut [T],
    options: &SweepOptions,
    watch: &mut dyn FnMut(u64) -> Go,
) -> Result<Ended, SimError> {
    let pool = threads(options.jobs)?;
    let mut left = options.limit.unwrap_or(u64::MAX);
    let (mut now, mut next) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
    let mut ended = Ended::default();
    let mut more = fill(&mut trace, &mut now, left);
    loop {
        left -= now.len() as u64;
        let go_on = more.unwrap_or_else(|e| {
            ended.broken = Some(e);
            false
        });
        // The warm-up may end within a batch.
        let cold = options.warm_up.saturating_sub(ended.accesses).min(now.len() as u64) as usize;
        let mut read_on = || if go_on { fill(&mut trace, &mut next, left) } else { Ok(false) };
        more = match &pool {
            Some(pool) => pool.in_place_scope(|scope| {
                scope.spawn(|_| all.par_iter_mut().for_each(|one| one.take(&now, cold)));
                read_on()
            }),
            None => {
                all.iter_mut().for_each(|one| one.take(&now, cold));
                read_on()
            }
        };
        ended.accesses += now.len() as u64;
        if !go_on {
            return Ok(ended);
        }
        if watch(ended.accesses) == Go::Stop {
            ended.stopped = true;
            return Ok(ended);
        }
        std::mem::swap(&mut now, &mut next);
    }
}
