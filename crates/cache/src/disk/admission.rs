//! What happens to a request first: it is checked, and goes its way; and what follows every event of a disk.
//!
//! Owns the order in which an event is dealt with. Never sees another disk. Invariant: a request that is refused has
//! changed nothing.

use super::{Cx, Disk};
use crate::fault_injection::FaultInjection;
use crate::limits::{EVICTION_BYTES, REQUEST_BYTES_MAX, SHRINK_BLOCKS_PER_EVENT};
use crate::store::ram::Store;
use crate::types::{Effects, IoError, Op, Request};

impl<P: FaultInjection> Disk<P> {
    /// Checks a request and starts it.
    #[inline]
    pub(crate) fn request<E: Effects>(&mut self, req: Request, cx: &mut Cx<'_, E>) {
        if let Err(e) = self.admit(&req) {
            return self.answer(req, Err(e), cx);
        }
        match req.op {
            Op::Flush => self.pass_on(req, cx),
            _ if req.len == 0 => self.answer(req, Ok(()), cx),
            Op::Read => self.read(req, cx),
            Op::Write { .. } | Op::WriteZeroes { .. } => self.change(req, cx),
            Op::Discard if self.options.can_discard => self.change(req, cx),
            Op::Discard => self.answer(req, Ok(()), cx),
            Op::Status => self.pass_on(req, cx),
        }
    }

    #[inline]
    pub(crate) fn admit(&self, req: &Request) -> Result<(), IoError> {
        if self.closing {
            return Err(IoError::Shutdown);
        }
        let (reads, writes) = match req.op {
            Op::Flush => return Ok(()),
            Op::Read => (true, false),
            Op::Write { .. } => (true, true),
            Op::Discard | Op::WriteZeroes { .. } => (false, true),
            Op::Status => (false, false),
        };
        if writes && self.options.read_only {
            return Err(IoError::ReadOnly);
        }
        if !self.contains(req.offset, req.len) || (reads && req.len > u64::from(REQUEST_BYTES_MAX)) {
            return Err(IoError::Invalid);
        }
        Ok(())
    }

    /// What follows an event: whoever can go on does, and a shrinking disk shrinks a step.
    #[inline]
    pub(crate) fn go_on<E: Effects>(&mut self, cx: &mut Cx<'_, E>) {
        if !self.ready.is_empty() || !self.starved.is_empty() {
            self.settle(cx);
        }
        if self.sharing.moved && self.sharing.is_on() {
            self.apply_limit(cx.arena);
        }
        if self.is_resizing() {
            self.resize_step(SHRINK_BLOCKS_PER_EVENT, cx.arena);
        }
    }

    /// Whether there is something to do once the replies are out.
    #[inline]
    pub(crate) fn wants_spare(&self) -> bool {
        self.side.wants_spare() || self.sharing.wants_spare() || self.shrinks
    }

    /// Evicts at most `step` blocks of those that are too many; returns how many went.
    pub(crate) fn shrink_step(&mut self, step: u32, arena: &mut Store) -> u32 {
        let before = self.index.len();
        self.resize_step(step, arena);
        let went = before.saturating_sub(self.index.len());
        // Where nothing may go, the next event or tick tries again.
        self.shrinks = went > 0 && self.excess() > 0;
        went
    }

    /// The same in spare time, as far as what the event may do goes.
    pub(crate) fn shrink_in_spare_time<E>(&mut self, cx: &mut Cx<'_, E>) {
        let step = (cx.left / EVICTION_BYTES).min(u64::from(SHRINK_BLOCKS_PER_EVENT)) as u32;
        if self.shrinks && step > 0 {
            cx.left -= u64::from(self.shrink_step(step, cx.arena)) * EVICTION_BYTES;
        }
    }
}
