//! What a disk's operations may take: what it is guaranteed, and loans from the pool of its core.
//!
//! Owns the arithmetic of one disk's loan. Never takes a frame. Invariants: a loan is what a disk has under way beyond
//! what it is guaranteed, and noted with the pool after every event that changes it; requests, read-ahead and contents
//! that wait to be hashed are each guaranteed something, so that none of them waits for another's loans, and a request
//! that waits for frames waits for operations of its own disk.

use super::Disk;
use crate::fault_injection::{Bug, FaultInjection};
use crate::limits::LATER_MAX;
use crate::store::ram::Store;

/// A disk's loan stays within so many times what is free in the pool, where requests wait for it.
const DEMAND_TIMES: usize = 8;

/// The same for read-ahead and for contents that wait to be hashed: they leave something to requests.
const OTHERS_TIMES: usize = 1;

impl<P: FaultInjection> Disk<P> {
    /// Frames read ahead, under way or waiting to be used.
    fn ahead_used(&self) -> usize {
        self.operations.ahead() + self.near.ahead()
    }

    /// Frames under way beyond those guaranteed.
    fn loan(&self) -> usize {
        let each = self.operations.allowance().guaranteed;
        self.operations.demand().saturating_sub(each)
            + self.ahead_used().saturating_sub(each)
            + self.side.waits().saturating_sub(self.operations.allowance().later)
    }

    /// Frames that the disk may borrow now.
    fn pool_room(&self, times: usize, arena: &Store) -> usize {
        arena.pool().room(self.operations.loan(), self.loan(), times)
    }

    /// Frames that one more operation may have for which a request waits; 0 if there are as many as may be.
    pub(super) fn demand_room(&self, arena: &Store) -> u64 {
        let left = self.operations.room();
        let guaranteed = self.operations.allowance().guaranteed.saturating_sub(self.operations.demand());
        if left <= guaranteed || self.faults.has(Bug::LentBeyondPool) {
            return left as u64;
        }
        left.min(guaranteed + self.pool_room(DEMAND_TIMES, arena)) as u64
    }

    /// Blocks that may be read ahead beside those under way or waiting to be used.
    pub(super) fn ahead_room(&self, arena: &Store) -> usize {
        let allowance = self.operations.allowance();
        let (left, used) = (allowance.ahead - self.ahead_used(), self.ahead_used());
        let guaranteed = allowance.guaranteed.saturating_sub(used);
        if left <= guaranteed { left } else { left.min(guaranteed + self.pool_room(OTHERS_TIMES, arena)) }
    }

    /// Blocks of which the disk reads ahead at least as many at a time, where nothing is under way.
    pub(super) fn ahead_guaranteed(&self) -> usize {
        let allowance = self.operations.allowance();
        allowance.guaranteed.min(allowance.ahead / 2)
    }

    /// Whether one more content may wait to be hashed.
    pub(super) fn later_room(&self, arena: &Store) -> bool {
        let waits = self.side.waits();
        waits < self.operations.allowance().later || waits < LATER_MAX && self.pool_room(OTHERS_TIMES, arena) > 0
    }

    /// The disk comes to its core, and brings its part into the pool.
    pub(crate) fn come(&self, arena: &mut Store) {
        arena.set_pool_part(self.settings.id(), self.operations.allowance().pool_part(self.capacity_blocks()));
    }

    /// Tells the pool what the disk has of it now.
    pub(crate) fn note_loan(&mut self, arena: &mut Store) {
        let (before, now) = (self.operations.loan(), self.loan());
        let now = if self.faults.has(Bug::LoanKept) { now.max(before) } else { now };
        if before != now {
            arena.pool_mut().note(before, now);
            self.operations.set_loan(now);
        }
    }

    /// What the pool was told; for tests.
    ///
    /// # Panics
    /// If that is not what the disk has.
    pub(crate) fn check_loan(&self) -> usize {
        assert!(self.operations.loan() == self.loan(), "a disk has a loan that it was not given, or keeps one");
        self.loan()
    }
}
