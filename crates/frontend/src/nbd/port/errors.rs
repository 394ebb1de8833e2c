//! What failures are called on the wire: the protocol's numbers, and words for people.
//!
//! Owns the two tables. Never decides what fails. Invariant: each failure of the cache has a number that the protocol
//! allows for any command.

use super::super::wire::errno;
use undercroft_cache::IoError;

/// Words for people that go with an error.
pub(super) fn words(error: u32) -> &'static str {
    match error {
        errno::EPERM => "the disk is read-only",
        errno::EIO => "the disk failed",
        errno::ENOSPC => "past the end, or the disk is full",
        errno::EOVERFLOW => "more than 32 MiB at a time",
        errno::ENOTSUP => "not supported",
        errno::ESHUTDOWN => "the disk is going away",
        _ => "the request makes no sense here",
    }
}

/// The protocol's number for a failure.
pub(super) fn error_number(e: IoError) -> u32 {
    match e {
        IoError::Io | IoError::Lost => errno::EIO,
        IoError::NoSpace => errno::ENOSPC,
        // The protocol keeps ENOTSUP for fast zeroes, which were answered before.
        IoError::Invalid | IoError::Unsupported => errno::EINVAL,
        IoError::ReadOnly => errno::EPERM,
        IoError::Shutdown => errno::ESHUTDOWN,
    }
}
