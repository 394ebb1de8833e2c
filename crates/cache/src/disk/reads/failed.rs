//! Reads that failed: a request that needs every byte of the failed operation fails, and for each of the others only
//! its own part is read again.
//!
//! Owns what happens after a read operation fails. Never caches what it reads, never takes more frames than the failed
//! operation has: parts are read one after the other, in its frames, so no request waits for memory. Invariant: a
//! request fails only if an operation failed of which it needs every byte, its offset and length rounded to the disk's
//! alignment; so a bad sector fails the requests that need this sector, and read-ahead fails nobody.

use super::waiters::{NONE, Waiter};
use crate::disk::operations::Budget;
use crate::disk::records::{Again, ReadOp, What};
use crate::disk::{B, Cx, Disk};
use crate::fault_injection::{Bug, FaultInjection};
use crate::types::{Effects, IoDone, IoError, IoKind};
use undercroft_host::{Frame, IoBuf};

impl<P: FaultInjection> Disk<P> {
    /// A read has failed: its blocks leave the table of near blocks, and each request that waits fails or has its part
    /// read again.
    #[cold]
    pub(in crate::disk) fn read_failed<E: Effects>(
        &mut self,
        read: ReadOp,
        done: IoDone,
        e: IoError,
        cx: &mut Cx<'_, E>,
    ) {
        for i in (0..u64::from(read.count)).filter(|i| read.fresh & 1 << i != 0) {
            let block = read.first + i;
            self.near.read_over(block);
            // A slot without a block in it is of no use to anybody.
            if self.residents.cached(block).is_none() {
                self.drop_block(block, cx.arena);
            }
        }
        let from = read.first * B;
        let to = (from + u64::from(read.count) * B).min(self.settings.size());
        let again = Again { first: read.first, from, to, count: read.count, ahead: read.ahead, head: read.head };
        self.split(again, e, done.buf.frames, cx);
    }

    /// A part has been read again, or has failed again.
    #[cold]
    pub(in crate::disk) fn again_done<E: Effects>(&mut self, mut again: Again, done: IoDone, cx: &mut Cx<'_, E>) {
        assert!(done.buf.frames.len() == again.count as usize, "a read came back without its frames");
        let frames = done.buf.frames;
        if let Err(e) = done.result {
            return self.split(again, e, frames, cx);
        }
        let Again { from, to, .. } = again;
        self.take_waiters(&mut again, |disk, w, first| {
            let (lo, hi) = disk.needs(w, first);
            if lo < from || hi > to {
                return false;
            }
            disk.serve(w, first, from / B, &frames, cx);
            if disk.faults.has(Bug::CopiedAgain) {
                disk.requests[w.rec].pending += 1;
                disk.serve(w, first, from / B, &frames, cx);
            }
            true
        });
        self.go_on_again(again, frames, cx);
    }

    /// Bytes `from..to` of the disk could not be read: who needs all of them fails, the others go on.
    fn split<E: Effects>(&mut self, mut again: Again, e: IoError, frames: Vec<Frame>, cx: &mut Cx<'_, E>) {
        let Again { from, to, .. } = again;
        self.take_waiters(&mut again, |disk, w, first| {
            let (lo, hi) = disk.needs(w, first);
            if (lo > from || hi < to) && !disk.faults.has(Bug::JoinedFailToo) {
                return false;
            }
            disk.requests.settle_one(w.rec, Some(e));
            true
        });
        self.go_on_again(again, frames, cx);
    }

    /// Reads what the next of those who wait needs; without any, the frames are free.
    fn go_on_again<E: Effects>(&mut self, mut again: Again, frames: Vec<Frame>, cx: &mut Cx<'_, E>) {
        if again.head == NONE {
            let budget = if again.ahead { Budget::Ahead } else { Budget::Demand };
            self.operations.release(budget, again.count as usize);
            return self.operations.free(IoBuf { frames, head: 0, len: 0 }, cx.arena);
        }
        let next = self.waiters.get(again.head);
        (again.from, again.to) = self.needs(&next, again.first);
        let len = again.to - again.from;
        let buf = IoBuf { frames, head: (again.from % B) as u32, len: len as u32 };
        self.submit(What::Again(again), IoKind::Read, again.from, len, buf, cx);
    }

    /// The bytes of the disk that a request waits for, as the disk can read them.
    fn needs(&self, w: &Waiter, first: u64) -> (u64, u64) {
        let req = &self.requests[w.rec].req;
        let start = (first + u64::from(w.first)) * B;
        let end = start + u64::from(w.count) * B;
        let (lo, hi) = (start.max(req.offset), end.min(req.offset + req.len));
        (lo / self.settings.align() * self.settings.align(), hi.next_multiple_of(self.settings.align()))
    }

    /// Goes through those who wait, and takes away those of whom `is_done` says that they do not any more.
    fn take_waiters(&mut self, again: &mut Again, mut is_done: impl FnMut(&mut Self, &Waiter, u64) -> bool) {
        let (mut at, mut last) = (again.head, NONE);
        while at != NONE {
            let w = self.waiters.get(at);
            if is_done(self, &w, again.first) {
                self.waiters.unlink(&mut again.head, last, at);
            } else {
                last = at;
            }
            at = w.next;
        }
    }
}
