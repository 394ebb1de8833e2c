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
        "cannot read the trace {name} at byte {offset}: {source}; if it is compressed, test it with zstd -t, xz -t or gzip -t"
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
    #[error(
        "the name {name} does not tell the format of the trace, nor does its beginning; say which it is (--format): {known}"
    )]
    UnknownFormat {
        /// The file.
        name: String,
        /// The formats there are.
        known: String,
    },
    /// The columns of a CSV file are not known, or do not fit what was asked for.
    #[error("cannot read the trace {name} as CSV: {what}")]
    Columns {
        /// The file.
        name: String,
        /// What cannot be told, and how to say it.
        what: String,
    },
    /// A pipe cannot be kept to be read again.
    #[error("{name} is read twice, and cannot be kept for that: {what}; write it to a file first")]
    Spool {
        /// The pipe.
        name: String,
        /// Why not.
        what: String,
    },
    /// What was asked for does not fit the trace.
    #[error("{what}")]
    Options {
        /// What is wrong, and what to do.
        what: String,
    },
    /// Not one record of a trace that was read leniently makes sense.
    #[error("no record of the trace {name} makes sense ({skipped} were left out); the first: {first}")]
    Nothing {
        /// The file.
        name: String,
        /// How many records there were.
        skipped: u64,
        /// What was wrong with the first.
        first: String,
    },
    /// A trace cannot be written.
    #[error("cannot write {name}: {source}")]
    Write {
        /// The file.
        name: String,
        /// What failed.
        source: io::Error,
    },
    /// A request does not fit the format that it is to be written in.
    #[error("cannot write request {request} to {name}: {what}")]
    Unfit {
        /// The file.
        name: String,
        /// Which request, from 1.
        request: u64,
        /// Why not, and what to do.
        what: String,
    },
}
