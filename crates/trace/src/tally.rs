//! What a reader found wrong that is no reason to stop.
//!
//! Owns the counts. Invariant: memory is bounded, however bad a trace is.

use crate::error::TraceError;

/// Messages kept.
const FIRST_MAX: usize = 5;

/// Records left out, and times that went back.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Records left out because they make no sense (lenient readers only).
    pub skipped: u64,
    /// What was wrong with the first few.
    pub first: Vec<String>,
    /// Requests whose time is before that of one already read.
    pub backwards: u64,
    /// The first of them, from 1; 0 if there is none.
    pub first_backwards: u64,
    /// The largest step back, in nanoseconds.
    pub back_ns_max: u64,
}

impl Tally {
    pub(crate) fn skip(&mut self, error: &TraceError) {
        self.skipped += 1;
        if self.first.len() < FIRST_MAX {
            self.first.push(error.to_string());
        }
    }
}
