//! The beginning and the end of a change: at its beginning reads of its blocks become stale, at its end the requests
//! go on that waited for it.
//!
//! Owns both ends of every change: write, write-zeroes, discard. Never writes. Invariants: a block is read from
//! the disk only while no active change covers it; a read that was under way when a change began is stale: requests
//! that had joined it get its data, and it is not published.

use crate::disk::reads::near::Near;
use crate::disk::{Cx, Disk};
use crate::fault_injection::{Bug, FaultInjection};
use crate::store::ram::Store;
use crate::types::Effects;

impl<P: FaultInjection> Disk<P> {
    /// A change begins: reads of its blocks under way become stale, and blocks read ahead are dropped.
    pub(in crate::disk) fn activate(&mut self, rec: u32, arena: &mut Store) {
        let (first, end) = self.changes.activate(rec);
        self.change_below(first, end, arena);
        self.leave_base(first, end);
        self.doubt(first, end, arena);
        self.make_stale(first, end, arena);
    }

    /// Takes blocks `first..end` out of the table of blocks near at hand.
    pub(in crate::disk) fn make_stale(&mut self, first: u64, end: u64, arena: &mut Store) {
        if self.near.is_empty() {
            return;
        }
        if end - first <= self.near.len() as u64 {
            for b in first..end {
                if let Some(near) = self.near.get(b) {
                    self.make_one_stale(b, near, arena);
                }
            }
        } else {
            for (b, near) in self.near.within(first, end) {
                self.make_one_stale(b, near, arena);
            }
        }
    }

    fn make_one_stale(&mut self, block: u64, near: Near, arena: &mut Store) {
        match near {
            Near::Reading { op, at } => {
                if self.faults.has(Bug::StaleFill) {
                    return;
                }
                let read = self.operations.read_mut(op);
                assert!(read.first + u64::from(at) == block, "the table of blocks near at hand is wrong");
                read.fresh &= !(1 << at);
                self.near.read_over(block);
                self.stats.stale_fills += 1;
            }
            Near::Ahead(_) => {
                if self.faults.has(Bug::AheadNotInvalidated) {
                    return;
                }
                if let Some(frame) = self.near.take_ahead(block) {
                    arena.put(frame);
                }
                self.stats.readahead_wasted_blocks += 1;
            }
        }
    }

    /// A change is over: reads that waited for it go first, then the changes that it held up; so neither starves.
    pub(in crate::disk) fn finish_change<E: Effects>(&mut self, rec: u32, cx: &mut Cx<'_, E>) {
        let (first, end) = self.changes.leave(rec);
        self.changed_below(first, end, cx.arena);
        self.finish(rec, cx);
        self.requests.unblock(first..end);
        self.changes.unblock(first, end, |rec| self.requests.begins(rec));
    }
}
