//! What an operator sets of a disk and changes while it serves, beside its policy and its share.
//!
//! Owns the list of these settings, so that one more passes from the configuration to the core without anybody between
//! naming it. Never does what a setting asks for: the parts of a disk do. Invariant: a disk that was added with some
//! settings and one that was given them later end up the same, once what was under way has ended.

use super::Core;
use crate::fault_injection::FaultInjection;
use crate::types::{DiskId, DiskOptions};
use undercroft_engine::ExclusiveMode;
use undercroft_engine::locking::LockSettings;
use undercroft_engine::shares::Hint;

/// What is set of a disk; see the head of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskSettings {
    /// How it will be used.
    pub hint: Hint,
    /// Read-ahead for proven sequential streams: bytes ahead at most; 0 turns it off.
    pub readahead_bytes: u32,
    /// How the cache is kept exclusive of the guest's.
    pub exclusive: ExclusiveMode,
    /// How blocks of it come to be locked, its miss table and its victim buffer.
    pub locking: LockSettings,
}

impl DiskOptions {
    /// The same with what of `set` memory is promised for when the disk is added. [`Core::set`] sees to the rest.
    pub fn with(self, set: &DiskSettings) -> Self {
        Self { readahead_bytes: set.readahead_bytes, exclusive: set.exclusive, ..self }
    }
}

impl<P: FaultInjection> Core<P> {
    /// Gives the disk these settings, while it runs; what is as it was stays untouched. Call it before its share is
    /// set: what they take comes out of that.
    pub fn set(&mut self, id: DiskId, set: &DiskSettings) {
        self.set_hint(id, set.hint);
        self.set_readahead(id, set.readahead_bytes);
        self.set_exclusive(id, set.exclusive);
        self.set_locking(id, set.locking);
    }
}
