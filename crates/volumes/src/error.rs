//! Why something could not be mounted, unmounted, made or removed.
//!
//! Owns the shape. Never acts. Invariant: no error is without a remedy.

use std::io;
use undercroft_api::client::ClientError;

/// Why it was not done.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// Something is in the way.
    #[error("{error}; {remedy}")]
    Refused {
        /// What is wrong; names the thing.
        error: String,
        /// What to do about it.
        remedy: String,
    },
    /// No good answer from the daemon.
    #[error(transparent)]
    Daemon(#[from] ClientError),
    /// Somebody asked to stop, and what was begun has been undone.
    #[error("interrupted; nothing is left of it")]
    Interrupted,
}

impl VolumeError {
    pub(crate) fn new(error: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Refused { error: error.into(), remedy: remedy.into() }
    }

    /// For `map_err`: what cannot be done, of which the kernel says why.
    pub(crate) fn os(what: String) -> impl FnOnce(io::Error) -> Self {
        move |e| {
            let remedy = match e.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "make room there, and try again",
                io::ErrorKind::FileTooLarge => "ask for less: the file system there has no file of that size",
                io::ErrorKind::PermissionDenied => "run it as root",
                io::ErrorKind::ReadOnlyFilesystem => "choose a place that can be written",
                _ => "see what the kernel's log says (`dmesg`), and try again",
            };
            Self::new(format!("cannot {what}: {e}"), remedy)
        }
    }
}
