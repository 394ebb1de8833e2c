//! How a trace is to be read, where its file does not say.
//!
//! Owns the choices and their defaults; `csv_map` and `event` have what single formats need. Never reads a file.

pub use crate::csv_map::{Column, Csv, CsvMapError};
pub use crate::event::Event;
use crate::format::Format;
pub use crate::memory::{MemoryRecords, Modifies};

/// How a trace is read. The default is strict, and finds the format out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReaderOptions {
    /// The format; by default its content or its name tells it.
    pub format: Option<Format>,
    /// Split requests into blocks of so many bytes. By default 4096, what a recording says, and not at all for vscsi.
    pub block_bytes: Option<u32>,
    /// Formats of keys: a key is the number of a piece of so many bytes of a disk, so that objects can be split, too.
    pub key_bytes: Option<u32>,
    /// Formats of keys without `key_bytes`: `block_bytes` says what a key stands for, and changes nothing; by default
    /// it is refused, since keys cannot be split.
    pub keys_are_blocks: bool,
    /// Caches are counted in bytes: requests are split into blocks even where the default is one access for each, and
    /// keys whose sizes the trace records are refused, unless `block_bytes` or `key_bytes` says how large they are to
    /// be taken for.
    pub sized: bool,
    /// Leave out records that make no sense, and count them.
    pub lenient: bool,
    /// Decompress and decode on a thread of its own, ahead of whoever reads.
    pub ahead: bool,
    /// blkparse and blktrace: which event of a request counts.
    pub event: Event,
    /// Traces of memory: which records are read.
    pub memory: MemoryRecords,
    /// Where the columns of a CSV file are.
    pub csv: Csv,
}
