//! Blocks written in part that are not cached: read first, then written in the same frame.
//!
//! Owns the reading. Never writes a byte that the disk need not get: the part is rounded to the disk's alignment.
//! Invariant: a block that cannot be read is written all the same if the units of alignment that the part begins and
//! ends in can be; it is not cached then, since the rest of it is not known.

use crate::disk::operations::Budget;
use crate::disk::records::{Edge, Merge, What, WriteOp};
use crate::disk::writes::copy_in;
use crate::disk::{B, Cx, Disk};
use crate::fault_injection::{Bug, FaultInjection};
use crate::types::{Effects, IoDone, IoKind};
use undercroft_host::{Frame, IoBuf};

impl<P: FaultInjection> Disk<P> {
    /// Reads a block that is to be written in part, into the frame it will be written from.
    pub(in crate::disk) fn start_merge<E: Effects>(
        &mut self,
        rec: u32,
        block: u64,
        lo: u32,
        hi: u32,
        cx: &mut Cx<'_, E>,
    ) {
        let frames = self.operations.take_frames(Budget::Demand, 1, cx.arena);
        self.requests[rec].pending += 1;
        let merge = Merge { rec, block, lo, hi, edge: Edge::Whole, epoch: self.epoch };
        self.read_for_merge(merge, frames, cx);
    }

    fn read_for_merge<E: Effects>(&mut self, merge: Merge, frames: Vec<Frame>, cx: &mut Cx<'_, E>) {
        let (from, len) = match merge.edge {
            Edge::Whole => (0, self.settings.block_bytes(merge.block)),
            Edge::Head => (self.head_of(&merge), self.settings.align()),
            Edge::Tail => (self.tail_of(&merge), self.settings.align()),
        };
        let merge = Merge { epoch: self.epoch, ..merge };
        let buf = IoBuf { frames, head: from as u32, len: len as u32 };
        self.submit(What::Merge(merge), IoKind::Read, merge.block * B + from, len, buf, cx);
    }

    /// Where in the block the unit begins that the part begins in, and the one that it ends in.
    fn head_of(&self, merge: &Merge) -> u64 {
        u64::from(merge.lo) / self.settings.align() * self.settings.align()
    }

    fn tail_of(&self, merge: &Merge) -> u64 {
        u64::from(merge.hi - 1) / self.settings.align() * self.settings.align()
    }

    /// What is to be read next for a write whose block could not be read as a whole; nothing if all has been, `Whole`
    /// if less would not do.
    fn next_edge(&self, merge: &Merge) -> Option<Edge> {
        let (head, tail) = (self.head_of(merge), self.tail_of(merge));
        let head_cut = u64::from(merge.lo) != head;
        let tail_cut = u64::from(merge.hi) != tail + self.settings.align();
        match merge.edge {
            Edge::Whole if self.settings.align() >= self.settings.block_bytes(merge.block) => Some(Edge::Whole),
            Edge::Whole if head_cut || head == tail => Some(Edge::Head),
            Edge::Whole => Some(Edge::Tail),
            Edge::Head if tail_cut && head != tail => Some(Edge::Tail),
            Edge::Head | Edge::Tail => None,
        }
    }

    /// The block under a partial write has been read, or what is needed of it: the write follows.
    pub(in crate::disk) fn merge_done<E: Effects>(&mut self, merge: Merge, done: IoDone, cx: &mut Cx<'_, E>) {
        if let Err(e) = done.result {
            let next = self.next_edge(&merge).filter(|_| merge.edge == Edge::Whole);
            if let Some(edge) = next.filter(|&n| n != Edge::Whole && !self.faults.has(Bug::MergeNeedsAll)) {
                return self.read_for_merge(Merge { edge, ..merge }, done.buf.frames, cx);
            }
            self.operations.release(Budget::Demand, 1);
            self.operations.free(done.buf, cx.arena);
            return self.requests.settle_one(merge.rec, Some(e));
        }
        let mut frames = done.buf.frames;
        assert!(frames.len() == 1, "a read came back without its frame");
        let Merge { rec, block, lo, hi, edge, epoch } = merge;
        if epoch != self.epoch && !self.faults.has(Bug::MergeOfOldContent) {
            // The disk may have been exchanged since.
            return self.read_for_merge(Merge { edge: Edge::Whole, ..merge }, frames, cx);
        }
        if let Some(edge) = self.next_edge(&merge).filter(|_| edge == Edge::Head) {
            return self.read_for_merge(Merge { edge, ..merge }, frames, cx);
        }
        let req = self.requests[rec].req;
        copy_in(cx.fx, &req, block, u64::from(lo), u64::from(hi), &mut frames[0]);
        let whole = edge == Edge::Whole;
        self.note_writes(block, 1, whole, whole, 0, cx);
        let lo = u64::from(lo) / self.settings.align() * self.settings.align();
        let hi = u64::from(hi).next_multiple_of(self.settings.align());
        let write = WriteOp {
            rec,
            first: block,
            count: 1,
            installed: 0,
            head_whole: whole,
            tail_whole: whole,
            epoch: self.epoch,
        };
        let buf = IoBuf { frames, head: lo as u32, len: (hi - lo) as u32 };
        let kind = IoKind::Write { fua: self.fua(&req) };
        self.submit(What::Write(write), kind, block * B + lo, hi - lo, buf, cx);
    }
}
