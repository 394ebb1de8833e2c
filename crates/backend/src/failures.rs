//! Log lines about operations that fail: at most one a second for each disk, however many fail.
//!
//! Owns when a line is due. Never formats one that is not. Invariant: at most one line per second and disk.

use undercroft_cache::{IoError, IoKind};
use undercroft_host::now_ns;

const INTERVAL_NS: u64 = 1_000_000_000;

/// Decides which failures of one disk are logged.
#[derive(Debug, Default)]
pub(super) struct FailureLog {
    last_ns: u64,
    unlogged: u64,
}

impl FailureLog {
    /// Notes a failure of `kind` at `offset..offset + len` of `image`, and logs it if the last line is long enough ago.
    pub(super) fn note(&mut self, image: &str, kind: IoKind, offset: u64, len: u64, why: impl std::fmt::Display) {
        let now = now_ns();
        if self.last_ns != 0 && now - self.last_ns < INTERVAL_NS {
            self.unlogged += 1;
            return;
        }
        let doing = match kind {
            IoKind::Read => "read",
            IoKind::Write { .. } => "write",
            IoKind::Flush => "flush",
            IoKind::Discard => "discard",
            IoKind::WriteZeroes { .. } => "write of zeroes",
            IoKind::Status => "look-up of the allocation",
        };
        tracing::warn!(image, offset, len, failures_not_logged = self.unlogged, "{doing} failed: {why}");
        (self.last_ns, self.unlogged) = (now, 0);
    }
}

/// The error that a guest gets for what the system said.
pub(super) fn io_error(e: rustix::io::Errno) -> IoError {
    use rustix::io::Errno;
    match e {
        Errno::NOSPC | Errno::DQUOT => IoError::NoSpace,
        Errno::ROFS | Errno::BADF | Errno::PERM => IoError::ReadOnly,
        Errno::OPNOTSUPP => IoError::Unsupported,
        _ => IoError::Io,
    }
}
