//! What can go wrong in a simulation.
//!
//! Owns the messages. Invariant: each says what was wrong with which input, and what to do.

use undercroft_units::SlotsError;

/// Why there is no result, or not the whole one.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The trace cannot be read on.
    #[error(transparent)]
    Trace(#[from] undercroft_trace::TraceError),
    /// A cache would have more blocks than an index can have, or its size needs what is not known.
    #[error(transparent)]
    Slots(#[from] SlotsError),
    /// A cache would have more blocks than one under its policy can have.
    #[error("a cache of {blocks} blocks is larger than the {most} that one of {policy} can have; give a smaller size")]
    Policy {
        /// The policy.
        policy: &'static str,
        /// Blocks asked for.
        blocks: u64,
        /// Blocks at most.
        most: u32,
    },
    /// The same of one of several sizes.
    #[error("{size}: {source}")]
    Size {
        /// The size as it was written.
        size: String,
        /// What is wrong with it.
        source: SlotsError,
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
