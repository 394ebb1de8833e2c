//! What the kernel knows of a page frame: `/proc/kpageflags`.
//!
//! Owns the descriptor. Never guesses: without `CAP_SYS_ADMIN` there is none. Invariant: an answer is of the moment; a
//! frame may be another's by the time it is used.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Flags of a frame (`linux/kernel-page-flags.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameFlags(pub u64);

impl FrameFlags {
    /// Memory without a file.
    pub fn is_anonymous(self) -> bool {
        self.0 >> 12 & 1 == 1
    }

    /// Part of a huge page, of either kind.
    pub fn is_huge(self) -> bool {
        self.0 & (1 << 17 | 1 << 22) != 0
    }

    /// The shared page of zeroes.
    pub fn is_zero(self) -> bool {
        self.0 >> 24 & 1 == 1
    }
}

/// The file.
#[derive(Debug)]
pub struct KPageFlags(File);

impl KPageFlags {
    /// Opens it.
    ///
    /// # Errors
    /// `PermissionDenied` for anyone but root; `NotFound` if the kernel was built without it.
    pub fn open() -> io::Result<KPageFlags> {
        Ok(KPageFlags(File::open("/proc/kpageflags")?))
    }

    /// The flags of a frame; none past the end of memory.
    pub fn of(&self, frame: u64) -> FrameFlags {
        let mut bytes = [0; 8];
        let at = frame.saturating_mul(8);
        match self.0.read_at(&mut bytes, at) {
            Ok(8) => FrameFlags(u64::from_ne_bytes(bytes)),
            _ => FrameFlags::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_those_of_the_kernel() {
        assert!(FrameFlags(1 << 24).is_zero() && FrameFlags(1 << 12).is_anonymous());
        assert!(FrameFlags(1 << 22).is_huge() && FrameFlags(1 << 17).is_huge() && !FrameFlags(1 << 18).is_huge());
    }

    #[test]
    #[cfg(not(miri))]
    fn past_the_end_of_memory_there_is_nothing() {
        let Ok(flags) = KPageFlags::open() else {
            return undercroft_skips::skip("only root may read /proc/kpageflags");
        };
        assert_eq!(flags.of(u64::MAX), FrameFlags::default());
        assert_eq!(flags.of(u64::MAX / 64), FrameFlags::default());
    }
}
