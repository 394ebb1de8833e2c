//! What can go wrong in a simulation.
//!
//! Owns the messages. Invariant: each says what was wrong with which input, and what to do.

/// Why there is no result, or not the whole one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The trace cannot be read on.
    #[error(transparent)]
    Trace(#[from] undercroft_trace::Error),
    /// A cache would have more blocks than an index can have.
    #[error("a cache of {blocks} blocks is larger than the {max} that can be simulated; give a smaller size")]
    TooLarge {
        /// Blocks asked for.
        blocks: u64,
        /// The most there can be.
        max: u32,
    },
    /// The threads could not be started.
    #[error("{jobs} threads cannot be started: {why}; try fewer with --jobs")]
    Threads {
        /// How many.
        jobs: usize,
        /// What the system said.
        why: String,
    },
    /// The options contradict each other or make no sense.
    #[error("{0}")]
    Options(String),
}
