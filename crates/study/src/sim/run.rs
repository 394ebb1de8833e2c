//! Options that all simulations of traces have, and the answer by which a caller ends one.
//!
//! Owns these. Never runs anything.

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Go {
    /// Yes.
    On,
    /// No: what has been done so far is the result.
    Stop,
}

/// How a sweep is run.
#[derive(Clone, Debug, Default)]
pub struct SweepOptions {
    /// Threads; all processors if not given.
    pub jobs: Option<usize>,
    /// Accesses at the beginning that fill caches and are not counted.
    pub warm_up: u64,
    /// Accesses after which the trace ends, warm-up included; all if not given.
    pub limit: Option<u64>,
    /// Bytes of memory that there are: OPT, which keeps the trace, is refused what is too long for them.
    pub memory_bytes: Option<u64>,
}
