//! Why a file or device cannot be used for the SSD store: one message per reason, each naming it and the remedy.
//!
//! Owns the wording. Never decides. Invariant: no message needs another line of the log to be understood.

use std::io;
use std::path::Path;
use thiserror::Error;
use undercroft_units::human_size;

/// Why a file or device cannot be used for the SSD store.
#[derive(Debug, Error)]
pub enum SsdError {
    /// Neither a file nor a block device.
    #[error("{path}: it is {what}; name a file, which is made if it is missing, or a block device")]
    Kind {
        /// As configured.
        path: String,
        /// What it is.
        what: String,
    },
    /// Its file system goes through the page cache.
    #[error("{path}: its file system has no direct I/O; put it on ext4, XFS or a block device (tmpfs has none)")]
    NotDirect {
        /// As configured.
        path: String,
    },
    /// Another program has it.
    #[error("{path}: it is in use{by}; each daemon needs files and devices of its own for its SSD store")]
    InUse {
        /// As configured.
        path: String,
        /// ` by undercroft (pid 12)`, ` by disk "a"`, or nothing.
        by: String,
    },
    /// Something is on it that is not ours.
    #[error(
        "{path}: it holds something that is no SSD store of Undercroft ({what}), and is not written over; name \
         another, or, if nothing on it is needed, {remedy}"
    )]
    Foreign {
        /// As configured.
        path: String,
        /// Where, in words.
        what: &'static str,
        /// How it is emptied.
        remedy: String,
    },
    /// A store that is not the one that is configured.
    #[error(
        "{path}: its SSD store does not fit: {why}; set `format = true` in [ssd] to make the store anew, or put \
         back what was"
    )]
    Misfit {
        /// As configured.
        path: String,
        /// What differs.
        why: String,
    },
    /// No room in the file system.
    #[error(
        "{path}: No space for {} on its file system; make room, or make `size` in [ssd] smaller",
        human_size(*bytes)
    )]
    NoSpace {
        /// As configured.
        path: String,
        /// Bytes that were to be reserved.
        bytes: u64,
    },
    /// What the store takes of memory was not set aside: the size could not be read before, or was another.
    #[error(
        "{path}: the tables of the store take {} of memory, and {} were set aside in store.memory when the \
         configuration was read; restart the daemon, or give `size` in [ssd]", human_size(*bytes),
        human_size(*given_bytes)
    )]
    NoMemory {
        /// The first of them, as configured.
        path: String,
        /// Bytes that all of them take.
        bytes: u64,
        /// Bytes that were set aside.
        given_bytes: u64,
    },
    /// The device, or what each worker would have of it, is too small.
    #[error(
        "{path}: {} are too few for {workers} workers and segments of {}; give it at least {}, or have fewer \
         workers or smaller segments", human_size(*bytes), human_size(*segment_bytes), human_size(*least_bytes)
    )]
    TooSmall {
        /// As configured.
        path: String,
        /// Bytes that there are.
        bytes: u64,
        /// Bytes that are needed.
        least_bytes: u64,
        /// Workers, each of which has a part.
        workers: u32,
        /// Bytes of a segment.
        segment_bytes: u64,
    },
    /// Anything else the system says.
    #[error("{path}: {doing}: {source}")]
    Io {
        /// As configured.
        path: String,
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl SsdError {
    /// The error for something that failed at `path`.
    pub(super) fn io(path: &Path, doing: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Io { path: path.display().to_string(), doing, source: source.into() }
    }
}
