//! What a program asks a cache for: one line, to read it, to write it, or to execute it.
//!
//! Owns how that is kept in a word. Never cuts an access at borders of lines: the reader of the trace does, and makes
//! one reference to each.

use undercroft_trace::{Access, AccessKind};

/// One reference to one line: its number, and what is done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineReference(u64);

const STORE: u64 = 1 << 63;
const FETCH: u64 = 1 << 62;

impl LineReference {
    /// A load of a line.
    ///
    /// # Panics
    /// In debug builds, for a number of 2^62 or more: addresses have 64 bits, and lines more than one byte.
    #[inline]
    pub fn load(block: u64) -> Self {
        debug_assert!(block < FETCH);
        Self(block)
    }

    /// A store to it.
    #[inline]
    pub fn store(block: u64) -> Self {
        Self(Self::load(block).0 | STORE)
    }

    /// A fetch of instructions.
    #[inline]
    pub fn fetch(block: u64) -> Self {
        Self(Self::load(block).0 | FETCH)
    }

    /// The number of the line.
    #[inline]
    pub fn block(self) -> u64 {
        self.0 & (FETCH - 1)
    }

    /// Whether it is changed.
    #[inline]
    pub(super) fn is_store(self) -> bool {
        self.0 & STORE != 0
    }

    /// Whether it is executed.
    #[inline]
    pub fn is_fetch(self) -> bool {
        self.0 & FETCH != 0
    }
}

/// An access of a trace that is split into lines ([`undercroft_trace::ReaderOptions::block_bytes`]), and whose format
/// knows memory: which of its records are read, [`undercroft_trace::options::MemoryRecords`] says.
impl From<Access> for LineReference {
    fn from(access: Access) -> Self {
        match access.kind {
            AccessKind::Write => Self::store(access.block),
            AccessKind::Fetch => Self::fetch(access.block),
            AccessKind::Read | AccessKind::Unknown => Self::load(access.block),
        }
    }
}
