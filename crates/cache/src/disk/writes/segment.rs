//! Segments of writes: what one operation carries, copied from the front end in steps, submitted when it is whole.
//!
//! Owns the copying. Never decides what a segment covers: the module above does. Invariants: a segment that needs
//! several events holds nothing but the request's own bytes, so that it does not matter what becomes of cached blocks
//! meanwhile; it waits for nothing but to be resumed, so that its frames are never held for another's.

use super::{Part, copy_in};
use crate::disk::operations::Budget;
use crate::disk::reads::waiters::NONE;
use crate::disk::records::{What, WriteOp};
use crate::disk::{B, Cx, Disk};
use crate::fault_injection::{Bug, FaultInjection};
use crate::types::{Effects, IoKind, Op, Request};
use undercroft_engine::residency::Class;
use undercroft_host::{Frame, IoBuf};

/// Data of a request on its way into the frames that it is written from.
#[derive(Debug)]
pub(in crate::disk) struct Segment {
    /// The operation that it will be.
    pub write: WriteOp,
    /// Bytes of the disk that are the request's.
    pub from: u64,
    pub to: u64,
    /// How the first and the last block are written.
    pub head: Part,
    pub tail: Part,
    /// Blocks whose data is in their frames.
    pub filled: u32,
    /// Bit per block: the guest holds it.
    pub taken: u64,
    pub frames: Vec<Frame>,
}

impl<P: FaultInjection> Disk<P> {
    /// Copies data of the request into the segment, as much as the event may, and starts the operation when all is
    /// there. False if that takes another event.
    pub(in crate::disk) fn fill<E: Effects>(&mut self, mut s: Segment, cx: &mut Cx<'_, E>) -> bool {
        let WriteOp { rec, first, count, .. } = s.write;
        let req = self.requests[rec].req;
        let before = s.filled;
        while s.filled < count {
            if cx.left == 0 {
                self.note_filled(&s, before, cx);
                self.requests[rec].segment = self.segments.insert(s);
                return false;
            }
            let block = first + u64::from(s.filled);
            let (lo, hi) = (s.from.max(block * B) - block * B, s.to.min((block + 1) * B) - block * B);
            let part = match s.filled {
                0 => s.head,
                n if n + 1 == count => s.tail,
                _ => Part::Whole,
            };
            let frame = &mut s.frames[s.filled as usize];
            if part == Part::Overlay {
                self.copy_around(block, lo as usize, hi as usize, frame);
            }
            copy_in(cx.fx, &req, block, lo, hi, frame);
            if let Some(page) = self.page_written(&req, block, cx) {
                s.taken |= 1 << s.filled;
                self.arrives(page, block, Class::Write, None, Some(false), cx);
                self.measuring.arrived(block);
            } else if self.gave_up() && !matches!(req.op, Op::WriteZeroes { .. }) {
                self.passes(&req, block, Class::Write, cx);
            }
            cx.left = cx.left.saturating_sub(hi - lo);
            s.filled += 1;
        }
        self.note_filled(&s, before, cx);
        self.submit_segment(s, &req, cx);
        true
    }

    /// Tells the index about the blocks that this event has filled, from the one at place `from` on.
    fn note_filled<E: Effects>(&mut self, s: &Segment, from: u32, cx: &mut Cx<'_, E>) {
        let WriteOp { first, count, head_whole, tail_whole, .. } = s.write;
        let (head, tail) = (from != 0 || head_whole, s.filled != count || tail_whole);
        let blocks = u64::from(s.filled.saturating_sub(from));
        self.note_writes(first + u64::from(from), blocks, head, tail, s.taken >> from, cx);
    }

    fn submit_segment<E: Effects>(&mut self, s: Segment, req: &Request, cx: &mut Cx<'_, E>) {
        let Segment { write, from, to, head, tail, frames, .. } = s;
        // What goes to the disk besides the request's bytes is what the disk holds already.
        let start = if head == Part::Overlay { from / self.settings.align() * self.settings.align() } else { from };
        let stop = if tail == Part::Overlay { to.next_multiple_of(self.settings.align()) } else { to };
        let buf = IoBuf { frames, head: (start - write.first * B) as u32, len: (stop - start) as u32 };
        self.requests[write.rec].pending += 1;
        self.requests[write.rec].cursor = to;
        let kind = IoKind::Write { fua: self.fua(req) };
        self.submit(What::Write(write), kind, start, stop - start, buf, cx);
    }

    /// The segment of a request that paused while it was filled, to go on with.
    pub(in crate::disk) fn take_segment(&mut self, rec: u32) -> Option<Segment> {
        let at = std::mem::replace(&mut self.requests[rec].segment, NONE);
        if at == NONE {
            return None;
        }
        let mut s = self.segments.remove(at);
        if self.faults.has(Bug::PieceForgotten) && s.filled + 1 < s.write.count {
            s.filled += 1;
        }
        if self.faults.has(Bug::PieceTakenAgain) {
            s.filled -= 1;
        }
        Some(s)
    }

    /// Gives the frames of a segment back that will not be written, because its request has failed elsewhere.
    #[cold]
    pub(in crate::disk) fn abandon<E: Effects>(&mut self, rec: u32, cx: &mut Cx<'_, E>) {
        let Some(s) = self.take_segment(rec) else { return };
        for block in s.write.first..s.write.first + u64::from(s.filled) {
            // The guest's page holds what the disk does not.
            self.changed(block, false, cx.arena);
            // A slot that was given to it, and will not get its content.
            if self.residents.cached(block).is_none() {
                self.drop_block(block, cx.arena);
            }
        }
        if !self.faults.has(Bug::AbandonedCounts) {
            self.operations.release(Budget::Demand, s.write.count as usize);
        }
        self.operations.free(IoBuf { frames: s.frames, head: 0, len: 0 }, cx.arena);
    }

    /// Copies all of a cached block but `lo..hi` into `frame`.
    fn copy_around(&self, block: u64, lo: usize, hi: usize, frame: &mut Frame) {
        let old = self.residents.cached(block).expect("looked up before").bytes();
        let new = frame.bytes_mut();
        new[..lo].copy_from_slice(&old[..lo]);
        let hi = if self.faults.has(Bug::PartialOffByOne) { (hi + 1).min(old.len()) } else { hi };
        new[hi..].copy_from_slice(&old[hi..]);
    }

    /// The guest page that all of `block` is written from.
    fn page_written<E: Effects>(&self, req: &Request, block: u64, cx: &mut Cx<'_, E>) -> Option<u32> {
        if matches!(req.op, Op::WriteZeroes { .. }) { None } else { self.page_of(req, block, cx) }
    }
}
