//! Block trace formats: streaming readers, one file each, and the writer of the format that the daemon records.
//!
//! Owns the bytes of a trace file. Never decides anything about caches.
//! Invariant: a damaged file gives an error that names the record, never a panic or a wrong access.
//!
//! ```
//! use undercroft_trace::{Format, Reader};
//! let lis = b"7 2 0 0\n3 1 0 1\n";
//! let blocks: Result<Vec<u64>, _> = Reader::new(&lis[..], "example.lis", Format::ArcLis)?.map(|a| Ok(a?.block)).collect();
//! assert_eq!(blocks?, [7, 8, 3]);
//! # Ok::<(), undercroft_trace::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod access;
mod compressed;
mod error;
mod format;
mod input;
mod reader;
pub mod recording;
pub mod synth;

pub use access::{Access, Kind};
pub use error::Error;
pub use format::Format;
pub use reader::Reader;
