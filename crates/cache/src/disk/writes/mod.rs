//! Writes and zeroes: through to the disk first, then into the cache, then acknowledged.
//!
//! Owns the life of a write. Never acknowledges before the disk has the data; never changes a cached frame in place:
//! the new content is made in a fresh frame and takes the old one's place when the disk has it, so until then readers
//! get the old one.
//! Invariant: the data of a request is copied from its front end once, each byte.

mod activation;
pub(crate) mod changes;
pub(crate) mod losses;
mod merge;
mod range;
pub(super) mod segment;

use crate::disk::operations::Budget;
use crate::disk::records::{What, WriteOp};
use crate::disk::{B, Cx, Disk};
use crate::fault_injection::{Bug, FaultInjection};
use crate::limits::IO_BLOCKS_MAX;
use crate::types::{Effects, IoDone, IoError, IoKind, Op, Request};
use segment::Segment;
use undercroft_engine::Access;
use undercroft_host::{Frame, IoBuf};

/// How the part of a block that a write covers is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::disk) enum Part {
    /// It is all of the block.
    Whole,
    /// The block is cached: copied, changed, and written as far as the alignment asks.
    Overlay,
    /// The part is aligned: it is written alone, and the block stays out of the cache.
    Alone,
    /// The block must be read first.
    Merge,
}

impl<P: FaultInjection> Disk<P> {
    /// Takes a write, write-zeroes or discard: it waits for earlier ones that it overlaps.
    pub(in crate::disk) fn change<E: Effects>(&mut self, req: Request, cx: &mut Cx<'_, E>) {
        if req.op.is_durable() && self.losses.tell(req.id) {
            return self.answer(req, Err(IoError::Lost), cx);
        }
        if self.requests.is_full() {
            return self.answer(req, Err(IoError::Io), cx);
        }
        let rec = self.requests.insert_overlapped(req);
        let (first, end) = (req.offset / B, (req.offset + req.len).div_ceil(B));
        if self.changes.enter(first, end, rec, self.faults.has(Bug::NotSerialized)) {
            self.drive(rec, cx);
        }
    }

    /// Goes on with a write or zeroes from its cursor, as far as it can.
    pub(in crate::disk) fn drive_write<E: Effects>(&mut self, rec: u32, cx: &mut Cx<'_, E>) {
        loop {
            let r = self.requests[rec];
            let end = r.end();
            if r.cursor >= end || r.error.is_some() {
                // After an error the rest is left as it was.
                self.requests[rec].cursor = end;
                self.abandon(rec, cx);
                if r.pending == 0 {
                    self.finish_change(rec, cx);
                } else if self.faults.has(Bug::ReplyEarly)
                    && !r.answered
                    && (r.req.offset | r.req.len).is_multiple_of(B)
                {
                    self.requests[rec].answered = true;
                    self.answer(r.req, Ok(()), cx);
                }
                return;
            }
            if let Some(segment) = self.take_segment(rec) {
                if !self.fill(segment, cx) {
                    return self.pause(rec, cx);
                }
                continue;
            }
            if r.pending >= self.operations.allowance().window {
                self.requests.wait(rec);
                return;
            }
            if cx.left == 0 {
                return self.pause_in_line(rec, cx);
            }
            let mut limit = end;
            let by_disk = matches!(r.req.op, Op::WriteZeroes { .. }) && self.settings.can_write_zeroes();
            // Step by step: an edge that is merged and the rest may share a block; also where the disk has turned out
            // not to write zeroes while the edge was under way.
            if r.pending > 0 && (by_disk || !r.cursor.is_multiple_of(B)) {
                self.requests.wait(rec);
                return;
            }
            if let Op::WriteZeroes { unmap, fua } = r.req.op
                && by_disk
            {
                let up = r.cursor.next_multiple_of(self.settings.align());
                let down = end / self.settings.align() * self.settings.align();
                if r.cursor == up && down > up {
                    let fua = fua && !self.faults.has(Bug::FuaNotSent);
                    self.start_range(rec, IoKind::WriteZeroes { unmap, fua }, up, down, cx);
                    self.requests[rec].cursor = down;
                    continue;
                }
                if r.cursor < up {
                    limit = end.min(up);
                }
            }
            let room = self.room(rec, cx.arena).min(IO_BLOCKS_MAX as u64);
            if room == 0 {
                return self.starve(rec);
            }
            if !self.start_segment(rec, r.cursor, limit, room, cx) {
                return self.pause(rec, cx);
            }
        }
    }

    fn part(&self, block: u64, lo: u64, hi: u64) -> Part {
        if lo == 0 && hi >= self.settings.block_bytes(block) {
            Part::Whole
        } else if self.residents.cached(block).is_some() {
            Part::Overlay
        } else if lo.is_multiple_of(self.settings.align()) && hi.is_multiple_of(self.settings.align()) {
            Part::Alone
        } else {
            Part::Merge
        }
    }

    /// Begins to write from byte `from` on, at most to `limit` and `room` blocks, as one operation. False if its data
    /// takes another event to copy.
    fn start_segment<E: Effects>(&mut self, rec: u32, from: u64, limit: u64, room: u64, cx: &mut Cx<'_, E>) -> bool {
        let first = from / B;
        let lo = from - first * B;
        let head = self.part(first, lo, B.min(limit - first * B));
        if head == Part::Merge {
            let hi = B.min(limit - first * B);
            self.start_merge(rec, first, lo as u32, hi as u32, cx);
            cx.left = cx.left.saturating_sub(hi - lo);
            self.requests[rec].cursor = first * B + hi;
            return true;
        }
        let mut count = room.min((limit - 1) / B - first + 1);
        let mut tail = head;
        if count > 1 {
            let last = first + count - 1;
            tail = self.part(last, 0, B.min(limit - last * B));
            // In several events a cached block could go meanwhile: it is written by itself.
            let steps = limit.min((last + 1) * B) - from > cx.left;
            if steps && head == Part::Overlay {
                (count, tail) = (1, head);
            } else if tail == Part::Merge || steps && tail == Part::Overlay {
                count -= 1;
                // A block between the first and the last is whole.
                tail = if count == 1 { head } else { Part::Whole };
            }
        }
        let to = limit.min((first + count) * B);
        let frames = self.operations.take_frames(Budget::Demand, count, cx.arena);
        let whole = |p| matches!(p, Part::Whole | Part::Overlay);
        let write = WriteOp {
            rec,
            first,
            count: count as u32,
            installed: 0,
            head_whole: whole(head),
            tail_whole: whole(tail),
            epoch: self.epoch,
        };
        self.fill(Segment { write, from, to, head, tail, filled: 0, taken: 0, frames }, cx)
    }

    pub(in crate::disk) fn fua(&self, req: &Request) -> bool {
        let asked = matches!(req.op, Op::Write { fua: true } | Op::WriteZeroes { fua: true, .. });
        asked && !self.faults.has(Bug::FuaNotSent)
    }

    /// Tells the index about written blocks, in order. One whose whole content is known may get a slot. A bit of
    /// `taken` per block says that the guest holds it.
    pub(in crate::disk) fn note_writes<E: Effects>(
        &mut self,
        first: u64,
        count: u64,
        head_whole: bool,
        tail_whole: bool,
        taken: u64,
        cx: &mut Cx<'_, E>,
    ) {
        for i in 0..count {
            let whole = (i != 0 || head_whole) && (i + 1 != count || tail_whole);
            let allocate = whole && self.settings.options().write_allocate;
            if allocate || self.residents.slot(first + i).is_some() {
                let take = self.settings.first_to_go() || taken >> i & 1 != 0;
                let access = if take { Access::Take } else { Access::Write };
                let outcome = self.residents.access(first + i, access);
                self.make_room(outcome, cx.arena);
            }
        }
    }

    /// A segment is on the disk, or failed. Its blocks are installed as far as the event's allowance goes; the rest is
    /// another event's, and the change is over when all are.
    pub(in crate::disk) fn write_done<E: Effects>(&mut self, write: WriteOp, mut done: IoDone, cx: &mut Cx<'_, E>) {
        let WriteOp { rec, first, count, .. } = write;
        assert!(done.buf.frames.len() == count as usize, "a write came back without its frames");
        let failed = done.result.is_err() && !self.faults.has(Bug::PublishFailedWrite);
        let current = write.epoch == self.epoch || self.faults.has(Bug::WriteOutlivesInvalidate);
        let now = if failed { count } else { cx.left.div_ceil(B).clamp(1, u64::from(count)) as u32 };
        for (i, frame) in done.buf.frames.drain(..now as usize).enumerate() {
            let block = first + i as u64;
            let whole = (i != 0 || write.head_whole) && (i + 1 != count as usize || write.tail_whole);
            self.changed(block, whole && !failed && current, cx.arena);
            if failed || !whole || !current {
                cx.arena.put(frame);
                // Nothing is known about the block after a failure. Otherwise it was not cached when the segment
                // began, and could not become so since; but what is not certain is not kept.
                let keep_old = self.faults.has(Bug::FailedWriteKeepsOld);
                if (failed && !keep_old) || (!failed && self.residents.cached(block).is_some()) {
                    self.drop_block(block, cx.arena);
                }
            } else {
                self.install(block, frame, cx);
            }
        }
        cx.left = cx.left.saturating_sub(u64::from(now) * B);
        if now < count && !self.faults.has(Bug::RestOfWriteForgotten) {
            self.operations.installed(now as usize);
            let (first, installed) = (first + u64::from(now), write.installed + now);
            let rest = WriteOp { first, count: count - now, installed, head_whole: true, ..write };
            let (_, op) = self.operations.begin(What::Write(rest));
            let IoBuf { frames, head, len } = done.buf;
            let buf = IoBuf { frames, head: 0, len: len - (now * B as u32 - head) };
            return cx.fx.unfinished(IoDone { op, buf, ..done });
        }
        done.buf.frames.drain(..).for_each(|frame| cx.arena.put(frame));
        self.operations.spare_list(done.buf.frames);
        self.operations.release_installed(write.installed as usize, count as usize);
        self.requests.settle_one(rec, done.result.err());
    }
}

/// Brings the request's data for bytes `lo..hi` of `block` into its frame.
pub(in crate::disk) fn copy_in<E: Effects>(fx: &mut E, req: &Request, block: u64, lo: u64, hi: u64, frame: &mut Frame) {
    let to = &mut frame.bytes_mut()[lo as usize..hi as usize];
    if matches!(req.op, Op::WriteZeroes { .. }) {
        to.fill(0);
    } else {
        fx.copy_in(req.id, (block * B + lo - req.offset) as usize, to);
    }
}
