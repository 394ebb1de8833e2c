//! The invariants of a disk that can be checked from inside; for tests.
//!
//! Owns no state. Never changes anything. Invariant: a disk that is sound passes, whatever is under way.

use super::Disk;
use crate::fault_injection::FaultInjection;

impl<P: FaultInjection> Disk<P> {
    /// Checks the disk's invariants; returns how many frames are with operations or read ahead.
    ///
    /// # Panics
    /// With what is broken.
    pub(crate) fn check(&self) -> usize {
        self.residents.check(self.settings.contents());
        self.check_rule();
        self.check_parts();
        self.near.check();
        let ahead = self.near.ahead();
        self.operations.check(ahead);
        if self.is_idle() {
            self.operations.check_idle();
            assert!(self.near.len() == ahead, "an idle disk is reading");
            assert!(self.waiters.len() == 0 && self.changes.is_empty(), "an idle disk has somebody waiting");
            self.requests.check_idle();
        }
        self.operations.frames() + ahead
    }
}
