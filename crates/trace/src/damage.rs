//! What is wrong with one record of a trace.
//!
//! Owns the messages; the error that holds one names the file and the place. Never names one format: a new format finds
//! its message here, or says what is special about it with [`Damage::Malformed`]. Invariant: each message shows what
//! stood there, and what could stand there where that is not plain.

use crate::blocks::RangeError;
use crate::tenants::TooManyTenants;

/// Why a record makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// A field that should be a number is something else.
    #[error("the {field} is \"{found}\", not a number")]
    NotANumber {
        /// What the field is called.
        field: &'static str,
        /// What it holds.
        found: String,
    },
    /// A field is a number that does not fit.
    #[error("the {field} is \"{found}\", too large: it does not fit 64 bits")]
    TooLarge {
        /// What the field is called.
        field: &'static str,
        /// What it holds.
        found: String,
    },
    /// The key in a CSV file is no number.
    #[error("{0}; if keys are any text, say which column has them, like text=2 (--columns)")]
    KeyNotANumber(Box<Damage>),
    /// What is done is not one of the operations that the format has.
    #[error("the operation is \"{found}\", neither {known}")]
    Operation {
        /// What stands there.
        found: String,
        /// The operations there are.
        known: &'static str,
    },
    /// Something is not one of those that the format has.
    #[error("\"{found}\" is no {kind}")]
    Unknown {
        /// What stands there.
        found: String,
        /// What it should be.
        kind: &'static str,
    },
    /// The record, or the file, begins otherwise.
    #[error("it begins with {found}, not with {expected}")]
    Beginning {
        /// Its beginning, in quotes if it is text.
        found: String,
        /// What should stand there.
        expected: &'static str,
    },
    /// A line has fewer columns than its format.
    #[error("\"{found}\" has less than {columns} columns; expected are {names}")]
    FewColumns {
        /// The line.
        found: String,
        /// How many columns the format has.
        columns: usize,
        /// Their names.
        names: &'static str,
    },
    /// A line has fewer columns than the map of columns names.
    #[error("\"{0}\" has too few columns")]
    TooFewColumns(String),
    /// The file has a version of its format that cannot be read.
    #[error("it has version {found} of {format}; {known} can be read")]
    Version {
        /// The version.
        found: u64,
        /// The format.
        format: &'static str,
        /// Versions that can be read.
        known: &'static str,
    },
    /// A number of sectors comes to more bytes than can be counted.
    #[error("the {field} of {sectors} sectors is past the end of any disk")]
    SectorsPastEnd {
        /// What the field is called.
        field: &'static str,
        /// What it holds.
        sectors: u64,
    },
    /// A sector's first byte cannot be counted.
    #[error("sector {0} is past the end of any disk")]
    SectorPastEnd(u64),
    /// The piece of a disk that a key numbers cannot be.
    #[error("key {0} is past any disk's end")]
    KeyPastEnd(u64),
    /// A number comes to more of its unit than can be counted.
    #[error("the {field} of {found} is past what can be counted")]
    Uncountable {
        /// What the field is called.
        field: &'static str,
        /// What it holds.
        found: u64,
    },
    /// A size is negative or absurd.
    #[error("a size of {0} bytes makes no sense")]
    Size(i64),
    /// A request names more keys than any can.
    #[error("{0} keys in one request are too many")]
    TooManyKeys(u64),
    /// The range is more than a disk has.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// There are more tenants than can be numbered.
    #[error(transparent)]
    Tenants(#[from] TooManyTenants),
    /// A line does not end.
    #[error("the line is longer than {0} bytes")]
    LongLine(usize),
    /// The file ends within the record.
    #[error("the file ends after {there} of the record's {whole} bytes")]
    Cut {
        /// Bytes of it that are there.
        there: usize,
        /// Bytes that it has.
        whole: usize,
    },
    /// What only one format can say of its records: a whole sentence.
    #[error("{0}")]
    Malformed(&'static str),
    /// The record makes no sense as what it was read as, and the file looks like something else.
    #[error("{damage}; it is read as {read_as}, but looks like {like}")]
    OtherFormat {
        /// What is wrong with the record.
        damage: Box<Damage>,
        /// The format by which it is read.
        read_as: &'static str,
        /// The format that the beginning of the file looks like.
        like: &'static str,
    },
}
