//! What can be wrong with a trace.
//!
//! Owns the messages. Invariant: each names the file, and where it applies the record and its offset.

use std::io;

/// Why a trace cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be opened.
    #[error("cannot open the trace {name}: {source}")]
    Open {
        /// The file.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// Reading or decompressing failed.
    #[error(
        "cannot read the trace {name} at byte {offset}: {source}; if it is compressed, test it with zstd -t or xz -t"
    )]
    Read {
        /// The file.
        name: String,
        /// Bytes read before (after decompression).
        offset: u64,
        /// What failed.
        source: io::Error,
    },
    /// A record makes no sense.
    #[error("the trace {name} is damaged: record {record} at byte {offset}: {what}")]
    Record {
        /// The file.
        name: String,
        /// Which record, from 1.
        record: u64,
        /// Where it begins (after decompression).
        offset: u64,
        /// What is wrong with it.
        what: String,
    },
    /// A recording is none, or is damaged.
    #[error("the recording {name} cannot be read: {what}")]
    Recording {
        /// The file.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// The name of the file says nothing about the format.
    #[error("the name {name} does not tell the trace's format; name it, one of: {known}")]
    UnknownFormat {
        /// The file.
        name: String,
        /// The formats there are.
        known: String,
    },
}
