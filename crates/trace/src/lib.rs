//! Block trace formats: streaming readers, one file each, writers, summaries, samples, merging and
//! synthetic loads.
//!
//! Owns the bytes of a trace file. Never decides anything about caches.
//! Invariant: a damaged file gives an error that names the record, never a panic or a wrong access.
//!
//! ```
//! use undercroft_trace::{Format, TraceReader};
//! let lis = b"7 2 0 0\n3 1 0 1\n";
//! let reader = TraceReader::new(&lis[..], "example.lis", Format::ArcLis)?;
//! let blocks: Result<Vec<u64>, _> = reader.map(|a| Ok(a?.block)).collect();
//! assert_eq!(blocks?, [7, 8, 3]);
//! # Ok::<(), undercroft_trace::TraceError>(())
//! ```
#![forbid(unsafe_code)]

mod access;
mod blocks;
mod compressed;
mod csv_map;
mod damage;
mod error;
mod event;
mod format;
mod hashed;
pub mod info;
mod input;
mod memory;
pub mod merge;
pub mod options;
mod options_error;
mod reader;
pub mod recording;
mod source;
mod spool;
mod summary;
pub mod synth;
mod tally;
mod tenants;
pub mod transfers;
pub mod write;

pub use access::{Access, AccessKind, TraceRequest};
pub use blocks::{BLOCK_BYTES, Blocks, RangeError, Unit};
pub use damage::Damage;
pub use error::{RecordingError, SpoolError, TraceError, UnfitRequest};
pub use format::{Format, NoSuchFormat};
pub use hashed::{finished, mixed};
pub use merge::Merge;
pub use options::ReaderOptions;
pub use options_error::{ColumnsError, OptionsError};
pub use reader::{BATCH, TraceReader};
pub use source::Progress;
pub use spool::Spool;
pub use summary::{Counts, Sample, Summary};
pub use tally::Tally;
pub use tenants::{Tenants, TooManyTenants};
pub use write::Writer;
