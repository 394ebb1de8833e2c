//! Options that do not fit a trace, and columns of CSV files that cannot be told.
//!
//! Owns the messages. Invariant: each says what to write instead.

use crate::blocks::{DISK_TENANTS_MAX, RangeError};
use crate::tenants::TooManyTenants;

/// Why a trace cannot be read, written or merged as asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// A block or a key of no bytes.
    #[error("a block and a key have at least one byte")]
    NoBytes,
    /// Keys cannot be split into blocks.
    #[error(
        "a trace of format {0} has keys, which cannot be split into blocks; if a key is the number of a sector or a \
         page, say how large that is (--key-size)"
    )]
    KeysAreNotSplit(&'static str),
    /// Caches of bytes, and keys of many sizes.
    #[error(
        "caches of so many bytes cannot be filled with keys whose sizes differ, as those of this trace may; give sizes \
         in blocks or in percent, or say how large a block is that each key stands for (--block-size), or a piece of a \
         disk that a key numbers (--key-size)"
    )]
    KeysOfManySizes,
    /// A size of keys for a trace that has none.
    #[error("a trace of format {0} says where bytes are: its keys have no size to be told")]
    NoKeys(&'static str),
    /// The same for a recording.
    #[error("a recording says where bytes are: its keys have no size to be told")]
    RecordingHasNoKeys,
    /// A sample cannot be split otherwise.
    #[error(
        "the recording is a sample of its blocks, so that it cannot be split into blocks of another size; its own have \
         {0} bytes (--block-size {0})"
    )]
    SampleIsSplit(u32),
    /// The columns of a CSV file cannot be told.
    #[error(transparent)]
    Columns(#[from] ColumnsError),
    /// The format can only be read.
    #[error("traces of format {format} can be read, not written; those that can be are {written}")]
    NotWritten {
        /// The format asked for.
        format: &'static str,
        /// Those that can be written.
        written: String,
    },
    /// Parquet within a compressed file.
    #[error("Parquet is compressed within; leave the compression suffix out")]
    PackedParquet,
    /// Traces that do not go together.
    #[error(
        "{0} cannot be merged with the traces before it: one has keys and the other ranges of bytes, or their blocks \
         differ in size; give all one block size, and keys a size in bytes"
    )]
    Unmergeable(String),
    /// A key leaves no room for the tenant's number.
    #[error("{name}: {range}: merged with others, keys must be below 2^51, as the tenant stands above")]
    MergedKey {
        /// The trace.
        name: String,
        /// What is wrong with the request.
        range: RangeError,
    },
    /// More tenants than disks can be numbered.
    #[error("the traces have more than {DISK_TENANTS_MAX} tenants together")]
    MergedTenants,
    /// More tenants than there are numbers.
    #[error(transparent)]
    Tenants(#[from] TooManyTenants),
}

/// Why it is not known which column of a CSV file is what.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ColumnsError {
    /// The beginning has no line that could say it.
    #[error(
        "its first {0} bytes are comments and empty lines, and do not say which column is what; take them out, like \
         grep -v '^#' FILE | undercroft trace info --format csv -"
    )]
    NoLine(usize),
    /// Nothing says where or what.
    #[error(
        "its first line, \"{0}\", names neither offsets nor keys; say which column is what, like \
         time=1,offset=4,size=5,op=3 or time=1,key=2,size=3 (--columns)"
    )]
    NothingAddressed(String),
    /// The map numbers a column that there is not.
    #[error("its first line, \"{line}\", has {columns} columns, no column {asked}")]
    NoSuchNumber {
        /// The first line.
        line: String,
        /// Columns that it has.
        columns: usize,
        /// The column asked for.
        asked: usize,
    },
    /// The map names a column that there is not.
    #[error("its first line, \"{line}\", names no column {asked}")]
    NoSuchName {
        /// The first line.
        line: String,
        /// The column asked for.
        asked: String,
    },
    /// Two columns have names for the same thing.
    #[error("\"{one}\" and \"{other}\" in its first line may both be the {what}; say which is (--columns)")]
    Twice {
        /// A column's name.
        one: String,
        /// Another's.
        other: String,
        /// What both may be.
        what: &'static str,
    },
    /// Several columns without a name that is known.
    #[error(
        "its first line, \"{line}\", has {columns} columns and no names that are known; say which column is what: \
         --columns time=1,key=2,size=3 for keys that are numbers, text=2 for keys that are any text, offset=2 for \
         places on a disk"
    )]
    NoNames {
        /// The first line.
        line: String,
        /// Columns that it has.
        columns: usize,
    },
    /// One column, whose first line may be its name.
    #[error(
        "its first line, \"{0}\", may be a name or a key; say --columns key=1 if it is a name, text=1 if it is a key"
    )]
    NameOrKey(String),
    /// Keys that are text were given a size.
    #[error("its keys are text, which are no pieces of a disk; leave --key-size out")]
    TextHasNoSize,
}
