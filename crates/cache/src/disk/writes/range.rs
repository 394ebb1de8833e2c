//! Discard, the disk's own write-zeroes, flush and status: operations without frames.
//!
//! Owns such requests from beginning to end. Never walks the blocks of a range that is larger than what may be cached,
//! nor more of it in an event than one should.
//! Invariant: cached blocks of a range are dropped when the disk has done its part, before the answer; until then
//! readers get the old ones.

use crate::disk::records::What;
use crate::disk::requests::{Drops, Rec};
use crate::disk::writes::losses::Since;
use crate::disk::{B, Cx, Disk};
use crate::fault_injection::{Bug, FaultInjection};
use crate::limits::{EVICTION_BYTES, LOOK_BYTES};
use crate::store::ram::Store;
use crate::types::{Effects, Extent, IoDone, IoError, IoKind, Op, ReqId, Request};
use undercroft_host::IoBuf;

/// Stands for the request that a flush of the disk's own is: no port has this number.
const OWN: ReqId = ReqId { port: u32::MAX, tag: 0 };

impl<P: FaultInjection> Disk<P> {
    /// Starts an operation over bytes `from..to` for a request.
    pub(in crate::disk) fn start_range<E: Effects>(
        &mut self,
        rec: u32,
        kind: IoKind,
        from: u64,
        to: u64,
        cx: &mut Cx<'_, E>,
    ) {
        self.requests[rec].pending += 1;
        self.submit(What::Range { rec, from, to }, kind, from, to - from, IoBuf::default(), cx);
    }

    /// Goes on with a discard that no earlier change overlaps.
    pub(in crate::disk) fn drive_discard<E: Effects>(&mut self, rec: u32, cx: &mut Cx<'_, E>) {
        let r = self.requests[rec];
        let end = r.end();
        if r.cursor >= end {
            if r.pending == 0 {
                self.finish_change(rec, cx);
            }
            return;
        }
        self.requests[rec].cursor = end;
        // A discard is a hint: what the disk cannot discard stays as it is.
        let from = r.req.offset.next_multiple_of(self.settings.align());
        let to = end / self.settings.align() * self.settings.align();
        if from >= to {
            return self.finish_change(rec, cx);
        }
        self.start_range(rec, IoKind::Discard, from, to, cx);
    }

    /// A discard or write-zeroes of bytes `from..to` is done, or failed: what they hold now is up to the disk.
    pub(in crate::disk) fn range_done<E: Effects>(
        &mut self,
        rec: u32,
        from: u64,
        to: u64,
        done: IoDone,
        cx: &mut Cx<'_, E>,
    ) {
        let discard = self.requests[rec].req.op == Op::Discard;
        let keep = self.faults.has(if discard { Bug::DiscardKeepsCache } else { Bug::ZeroesKeepCache });
        let mut error = done.result.err();
        if error == Some(IoError::Unsupported) {
            error = None;
            if !discard {
                // The disk promised what it cannot do: from now on zeroes are written.
                self.settings.write_zeroes_failed();
                self.requests[rec].cursor = from;
            }
        }
        let r = &mut self.requests[rec];
        r.error = r.error.or(error);
        if keep {
            return self.range_dropped(rec, from, to, cx.arena);
        }
        let slots = u64::from(self.residents.index().capacity());
        r.drops = if to.div_ceil(B) - from / B <= slots {
            Drops::Blocks(from / B)
        } else {
            Drops::Slots { next: 0, moves: self.residents.moves() }
        };
        self.drop_more(rec, cx);
    }

    /// Drops more of what is cached of a range that the disk has done, as far as the event's allowance goes; the change
    /// is over when all is dropped, so nothing of the range comes into the cache meanwhile.
    pub(in crate::disk) fn drop_more<E: Effects>(&mut self, rec: u32, cx: &mut Cx<'_, E>) {
        let r = self.requests[rec];
        // the part that `start_range` was given
        let from = r.req.offset.next_multiple_of(self.settings.align());
        let to = r.end() / self.settings.align() * self.settings.align();
        let (first, end) = (from / B, to.div_ceil(B));
        let lost = self.faults.has(Bug::DropsPassSlotsOver);
        let drops = match r.drops {
            Drops::Nothing => return,
            Drops::Blocks(next) => self.drop_by_number(next, end, cx),
            Drops::Slots { moves, .. } if moves != self.residents.moves() && !lost => {
                self.drop_by_slot(0, first, end, cx)
            }
            Drops::Slots { next, .. } => self.drop_by_slot(next, first, end, cx),
        };
        self.requests[rec].drops = drops;
        if drops != Drops::Nothing {
            return self.pause(rec, cx);
        }
        self.range_dropped(rec, from, to, cx.arena);
    }

    fn drop_by_number<E>(&mut self, mut next: u64, end: u64, cx: &mut Cx<'_, E>) -> Drops {
        while next < end && cx.left > 0 {
            let dropped = self.residents.slot(next).is_some();
            self.drop_block(next, cx.arena);
            cx.left = cx.left.saturating_sub(if dropped { EVICTION_BYTES } else { LOOK_BYTES });
            next += 1;
        }
        if next < end { Drops::Blocks(next) } else { Drops::Nothing }
    }

    fn drop_by_slot<E>(&mut self, mut next: u32, first: u64, end: u64, cx: &mut Cx<'_, E>) -> Drops {
        let slots = self.residents.index().capacity();
        while next < slots && cx.left > 0 {
            let block = self.residents.index().block_of(next).filter(|block| (first..end).contains(block));
            cx.left = cx.left.saturating_sub(if block.is_some() { EVICTION_BYTES } else { LOOK_BYTES });
            if let Some(block) = block {
                self.drop_block(block, cx.arena);
            }
            next += 1;
        }
        if next < slots { Drops::Slots { next, moves: self.residents.moves() } } else { Drops::Nothing }
    }

    /// Nothing is cached of the range any more: the request goes on.
    fn range_dropped(&mut self, rec: u32, from: u64, to: u64, arena: &mut Store) {
        self.doubt(from / B, to.div_ceil(B), arena);
        self.requests.settle_one(rec, None);
    }

    /// Passes a flush or a status request on at once: every write acknowledged before is complete on the disk.
    pub(in crate::disk) fn pass_on<E: Effects>(&mut self, req: Request, cx: &mut Cx<'_, E>) {
        if req.op == Op::Flush && self.losses.tell(req.id) {
            return self.answer(req, Err(IoError::Lost), cx);
        }
        if req.op == Op::Flush && self.faults.has(Bug::FlushNotSent) {
            return self.answer(req, Ok(()), cx);
        }
        if self.requests.is_full() {
            return self.answer(req, Err(IoError::Io), cx);
        }
        self.begin_plain(req, cx);
    }

    /// Flushes the disk though no port has asked for it, unless a flush is under way, or there is no room for one.
    #[cold]
    pub(crate) fn make_durable<E: Effects>(&mut self, cx: &mut Cx<'_, E>) {
        if self.settings.is_closing() || self.requests.is_full() || self.requests.is_flushing() {
            return;
        }
        let rec = self.begin_plain(Request { id: OWN, disk: self.id(), op: Op::Flush, offset: 0, len: 0 }, cx);
        self.requests[rec].answered = true;
    }

    /// Begins a flush or a status request; there is room for it.
    fn begin_plain<E: Effects>(&mut self, req: Request, cx: &mut Cx<'_, E>) -> u32 {
        let rec = self.requests.insert(Rec::new(req));
        self.requests[rec].pending = 1;
        let (kind, offset, len) = match req.op {
            // A flush has no range, whatever the request says.
            Op::Flush => (IoKind::Flush, 0, 0),
            _ => (IoKind::Status, req.offset, req.len),
        };
        let (since, quiet) = (self.losses.since(), cx.arena.tier().and_then(|tier| tier.quiet_since(self.id())));
        self.submit(What::Plain { rec, since, quiet }, kind, offset, len, IoBuf::default(), cx);
        rec
    }

    /// A flush or a status request has been answered by the disk.
    pub(in crate::disk) fn plain_done<E: Effects>(
        &mut self,
        rec: u32,
        since: Since,
        quiet: Option<u64>,
        done: IoDone,
        cx: &mut Cx<'_, E>,
    ) {
        let req = self.requests[rec].req;
        let mut error = done.result.err();
        if req.op == Op::Flush {
            let vouches = if req.id == OWN {
                self.losses.own_flush_ended(since, error, !self.faults.has(Bug::LossNotTold))
            } else {
                error = self.losses.flush_ended(req.id, since, error);
                error.is_none()
            };
            if vouches && let Some(tier) = cx.arena.tier_mut() {
                tier.vouch(self.settings.id(), quiet);
            }
        }
        if req.op == Op::Status {
            let guess = self.faults.has(Bug::StatusGuesses);
            let whole = [Extent { len: req.len, hole: guess, zero: guess }];
            match error {
                // A disk that cannot tell has everything allocated.
                Some(IoError::Unsupported) => {
                    error = None;
                    cx.fx.extents(req.id, &whole);
                }
                None if done.extents.is_empty() => cx.fx.extents(req.id, &whole),
                None => cx.fx.extents(req.id, &done.extents),
                Some(_) => {}
            }
        }
        self.requests.settle_one(rec, error);
    }
}
