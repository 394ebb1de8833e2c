//! What can be wrong with a trace.
//!
//! Owns the errors of the whole crate; `damage`, `options_error` and the modules that find the others own the details.
//! Invariant: each message names the file, and where it applies the record and its offset.

use crate::damage::Damage;
use crate::options_error::OptionsError;
use crate::tenants::TooManyTenants;
use parquet::errors::ParquetError;
use std::io;
use std::path::PathBuf;
use undercroft_units::human_size;

/// Why a trace cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
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
        "cannot read the trace {name} at byte {offset}: {source}; if it is compressed, test it with zstd -t, xz -t or \
         gzip -t"
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
        what: Damage,
    },
    /// A recording is none, or is damaged.
    #[error("the recording {name} cannot be read: {what}")]
    Recording {
        /// The file.
        name: String,
        /// What is wrong with it.
        what: RecordingError,
    },
    /// The name of the file says nothing about the format.
    #[error(
        "the name {name} does not tell the format of the trace, nor does its beginning; say which it is (--format): \
         {known}"
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
        what: OptionsError,
    },
    /// A pipe cannot be kept to be read again.
    #[error("{name} is read twice, and cannot be kept for that: {what}; write it to a file first")]
    Spool {
        /// The pipe.
        name: String,
        /// Why not.
        what: SpoolError,
    },
    /// What was asked for does not fit the trace.
    #[error("{what}")]
    Options {
        /// What is wrong, and what to do.
        what: OptionsError,
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
        what: UnfitRequest,
    },
}

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// It does not begin as Parquet does.
    #[error("it is no Parquet file")]
    NoParquet,
    /// It does not end as Parquet does.
    #[error("it ends early: it was cut short, or the daemon was killed while it recorded")]
    EndsEarly,
    /// The length of its end is damaged.
    #[error("its end of {0} bytes makes no sense")]
    End(u32),
    /// It is Parquet of somebody else.
    #[error("it is Parquet, but has no \"{0}\": only files of `undercroft record` can be read")]
    NotOurs(&'static str),
    /// What it should say at its end is missing.
    #[error("it has no \"{0}\"")]
    Unsaid(&'static str),
    /// What it says about itself is no JSON of ours.
    #[error("its \"{key}\": {source}")]
    Said {
        /// Which part of it.
        key: &'static str,
        /// What is wrong there.
        source: serde_json::Error,
    },
    /// A later format.
    #[error("it has version {found} of the format; this program reads {known}")]
    Version {
        /// Its version.
        found: u32,
        /// The version that can be read.
        known: u32,
    },
    /// Its own numbers contradict each other.
    #[error("what it says about itself does not fit together")]
    Contradiction,
    /// A column is missing or of another type.
    #[error("it has no column {0} of the right type")]
    Column(&'static str),
    /// A row group is damaged.
    #[error("row group {number}: {what}")]
    Group {
        /// Which one, from 0.
        number: usize,
        /// What is wrong with it.
        what: Box<RecordingError>,
    },
    /// The rows are not those that were written.
    #[error("its sum is wrong")]
    Sum,
    /// The library met bytes that it panicked at.
    #[error("it cannot be decoded")]
    Undecodable,
    /// What the library says.
    #[error(transparent)]
    Parquet(#[from] ParquetError),
    /// It would have to be kept in memory, and is too large for that.
    #[error("it is larger than 1 GiB and no plain file; unpack it to a file, which is read piece by piece")]
    TooLarge,
    /// It has more disks than there are numbers.
    #[error(transparent)]
    Tenants(#[from] TooManyTenants),
}

/// Why a pipe cannot be kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpoolError {
    /// The directory or its disk.
    #[error("cannot write in {}: {source}", directory.display())]
    Unwritable {
        /// Where it was to be kept.
        directory: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// More bytes than allowed.
    #[error("it is larger than the {} that are kept of a pipe", human_size(*.0))]
    TooLarge(u64),
}

/// Why a request cannot be written in a format.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnfitRequest {
    /// Seconds past 32 bits.
    #[error("its time is more than 136 years after the first; write csv or parquet")]
    Time,
    /// An object past 32 bits.
    #[error("an object of {0} bytes does not fit 32 bits; write lcs")]
    Object(u64),
    /// A block past 32 bits.
    #[error("block {0} does not fit 32 bits; write u64le")]
    Block(u64),
    /// A key that is no block.
    #[error("key {0} is no block of a disk; write oracle-general, lcs, csv or u64le")]
    Key(u64),
    /// What the recording's encoder says.
    #[error(transparent)]
    Recording(#[from] WriteError),
}

/// Why a recording cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// More disks than there are numbers.
    #[error("cannot write the recording: it has {0} disks, the most that a recording can have")]
    TooManyDisks(usize),
    /// The encoder or the file below it failed.
    #[error("cannot write the recording: {0}")]
    Parquet(#[from] ParquetError),
    /// What it says about itself could not be put into JSON.
    #[error("cannot write the recording: {0}")]
    Json(#[from] serde_json::Error),
    /// The last bytes could not be written.
    #[error("cannot write the recording: {0}")]
    Flush(io::Error),
}

impl WriteError {
    /// As an error of the file, whose kind is kept.
    pub(crate) fn into_io(self) -> io::Error {
        let kind = match &self {
            WriteError::Parquet(ParquetError::External(inner)) => {
                inner.downcast_ref::<io::Error>().map(io::Error::kind)
            }
            WriteError::Flush(source) => Some(source.kind()),
            _ => None,
        };
        match kind {
            Some(kind) => io::Error::new(kind, self),
            None => io::Error::other(self),
        }
    }
}
