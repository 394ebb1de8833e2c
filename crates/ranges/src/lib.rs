//! Where a container's files are on the virtual disk: asked inside the guest, printed in the form that the API takes.
//!
//! Owns the walk through directories, the way from a file system to the whole disk, and what is printed. Never writes
//! to a file or a device, never follows a symbolic link, and never leaves the file system of a path it was given.
//! Invariant: a range is only printed if the kernel said that a file's bytes are there, on the disk that is named.
#![forbid(unsafe_code)]

pub mod arguments;
mod device;
mod filesystem;
mod found;
mod run;
mod walk;

pub use device::{Sysfs, WholeDisk};
pub use found::{ByteSpan, FilePiece, FoundRanges, Left, spans};
pub use run::{Form, RangesOptions, WalkOutcome, check_names, run};
pub use walk::find;

use std::path::PathBuf;

/// Ranges of one disk that the API takes at most.
pub const RANGES_MAX: usize = 65_536;

/// Why nothing can be printed. Names the path and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum RangesError {
    /// Used wrongly.
    #[error("{0}")]
    Usage(String),
    /// A path that was named cannot be looked at.
    #[error("{path}: {reason}; {remedy}")]
    Path {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
        /// What to do.
        remedy: String,
    },
    /// The output is gone or full.
    #[error("the output cannot be written: {0}")]
    Output(#[from] std::io::Error),
}

impl RangesError {
    fn path(path: impl Into<PathBuf>, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Path { path: path.into(), reason: reason.into(), remedy: remedy.into() }
    }
}
