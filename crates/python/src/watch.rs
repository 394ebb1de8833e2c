//! Interrupts of long work: Ctrl-C, and the caller's progress function.
//!
//! Owns how often both are looked at. Never ends the work itself: it says to stop, and keeps the exception to raise.
//! Invariant: the interpreter is held only while it looks.

use pyo3::prelude::*;
use std::time::{Duration, Instant};
use undercroft_study::sim::Go;

/// Time between two looks: short for a person, long for the work.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Decides now and then whether long work goes on.
pub(crate) struct Watch {
    /// Called with how many accesses are done.
    progress: Option<Py<PyAny>>,
    last: Instant,
    failed: Option<PyErr>,
}

impl Watch {
    /// Work that begins now.
    pub fn new(progress: Option<Py<PyAny>>) -> Self {
        Self { progress, last: Instant::now(), failed: None }
    }

    /// Whether to go on, after so many accesses.
    pub fn look(&mut self, accesses: u64) -> Go {
        if self.failed.is_some() {
            // work in several passes ends with the first
            return Go::Stop;
        }
        if self.last.elapsed() < LOOK_EVERY {
            return Go::On;
        }
        self.last = Instant::now();
        let looked = Python::attach(|py| {
            py.check_signals()?;
            self.progress.as_ref().map_or(Ok(()), |progress| progress.call1(py, (accesses,)).map(drop))
        });
        self.failed = looked.err();
        if self.failed.is_some() { Go::Stop } else { Go::On }
    }

    /// The exception that ended the work.
    ///
    /// # Errors
    /// That one: KeyboardInterrupt, or what `progress` raised.
    pub fn done(&mut self) -> PyResult<()> {
        self.failed.take().map_or(Ok(()), Err)
    }
}
