//! What a disk does when something happens: a request comes, goes on or ends; an operation begins or ends.
//!
//! Owns the order in which an event is dealt with. Never sees another disk. Invariants: a request that is refused has
//! changed nothing; one that is accepted is answered once, when nothing of it is under way and its cursor (the first
//! byte that is not dealt with) is at its end.

use super::records::{ReadOp, What};
use super::requests::Drops;
use super::{B, Cx, Disk};
use crate::fault_injection::{Bug, FaultInjection};
use crate::limits::{EVICTION_BYTES, REQUEST_BYTES_MAX, SHRINK_BLOCKS_PER_EVENT};
use crate::store::ram::Store;
use crate::types::{Effects, Io, IoDone, IoError, IoKind, IoTarget, Op, Paused, Request};
use undercroft_host::IoBuf;

impl<P: FaultInjection> Disk<P> {
    /// Checks a request and starts it.
    #[inline]
    pub(crate) fn request<E: Effects>(&mut self, mut req: Request, cx: &mut Cx<'_, E>) {
        req.offset = req.offset.saturating_add(self.settings.lead());
        if let Err(e) = self.admit(&req) {
            return self.answer(req, Err(e), cx);
        }
        if !req.offset.is_multiple_of(B) && req.len >= B {
            self.note_offset(&req, cx);
        }
        match req.op {
            Op::Flush => self.pass_on(req, cx),
            _ if req.len == 0 => self.answer(req, Ok(()), cx),
            Op::Read => self.read(req, cx),
            Op::Write { .. } | Op::WriteZeroes { .. } => self.change(req, cx),
            Op::Discard if self.settings.options().can_discard => self.change(req, cx),
            Op::Discard => self.answer(req, Ok(()), cx),
            Op::Status => self.pass_on(req, cx),
        }
    }

    #[inline]
    pub(super) fn admit(&self, req: &Request) -> Result<(), IoError> {
        if self.settings.is_closing() {
            return Err(IoError::Shutdown);
        }
        let (reads, writes) = match req.op {
            Op::Flush => return Ok(()),
            Op::Read => (true, false),
            Op::Write { .. } => (true, true),
            Op::Discard | Op::WriteZeroes { .. } => (false, true),
            Op::Status => (false, false),
        };
        if writes && self.settings.options().read_only {
            return Err(IoError::ReadOnly);
        }
        if !self.settings.contains(req.offset, req.len) || (reads && req.len > u64::from(REQUEST_BYTES_MAX)) {
            return Err(IoError::Invalid);
        }
        Ok(())
    }

    /// What follows an event: requests that can go on do, and a shrinking disk shrinks a step.
    #[inline]
    pub(crate) fn go_on<E: Effects>(&mut self, cx: &mut Cx<'_, E>) {
        if self.requests.any_waits() {
            self.settle(cx);
        }
        if self.sharing.is_unsettled() && self.holds_in_common() {
            self.apply_limit(cx.arena);
        }
        // What a step of this event has left goes on in spare time.
        if self.is_resizing() && !self.shrinks {
            self.resize_step(SHRINK_BLOCKS_PER_EVENT, cx.arena);
        }
    }

    // ---- spare time ----

    /// Whether there is something to do once the replies are out.
    #[inline]
    pub(crate) fn wants_spare(&self) -> bool {
        self.side.wants_spare() || self.sharing.wants_spare() || self.shrinks
    }

    /// The same after a request, which may have moved pages of a guest whose memory is seen.
    #[inline]
    pub(crate) fn may_want_spare(&self) -> bool {
        self.side.is_seen() || self.wants_spare()
    }

    /// Whether so much of that has gathered that it should not wait for the end of a batch.
    #[inline]
    pub(crate) fn presses_for_spare(&self) -> bool {
        self.side.presses()
    }

    /// The disk is put on the core's list of those that want spare time; false if it stands there already.
    #[inline]
    pub(crate) fn enlist(&mut self) -> bool {
        !std::mem::replace(&mut self.spare_listed, true)
    }

    /// It was taken off that list.
    pub(crate) fn delist(&mut self) {
        self.spare_listed = false;
    }

    /// Evicts at most `step` blocks of those that are too many, or takes as long for tables that become larger or
    /// smaller; returns how many, or how long.
    pub(crate) fn shrink_step(&mut self, step: u32, arena: &mut Store) -> u32 {
        let went = self.resize_step(step, arena);
        // Where nothing may go, the next event or tick tries again.
        self.shrinks = match self.excess() {
            0 => self.residents.index().is_moving() || self.slots() != self.slots_wanted(),
            _ => went > 0,
        };
        went
    }

    /// The same in spare time, as far as what the event may do goes.
    pub(crate) fn shrink_in_spare_time<E>(&mut self, cx: &mut Cx<'_, E>) {
        if self.shrinks && cx.left > 0 {
            let step = (cx.left / EVICTION_BYTES).clamp(1, u64::from(SHRINK_BLOCKS_PER_EVENT)) as u32;
            cx.left = cx.left.saturating_sub(u64::from(self.shrink_step(step, cx.arena)) * EVICTION_BYTES);
        }
    }

    // ---- requests ----

    /// Frames that request `rec` may take now for one operation: 0 if those left are too few to be worth one, or others
    /// wait in front of it.
    pub(super) fn room(&self, rec: u32, arena: &Store) -> u64 {
        if !self.requests.is_first_in_line(rec) || self.waiters.is_full() {
            return 0;
        }
        let room = self.demand_room(arena);
        if room < self.worth(rec) { 0 } else { room }
    }

    /// Frames that are worth an operation of request `rec`: all that it can use, or a small part of what the disk may
    /// have; so many are free at the latest when nothing else is under way. An operation that begins with what another
    /// has given back is never longer than that one, so without a least length all of them would become as short as
    /// the shortest that there was.
    fn worth(&self, rec: u32) -> u64 {
        let r = &self.requests[rec];
        let wanted = r.end().div_ceil(B).saturating_sub(r.cursor / B);
        if self.faults.has(Bug::WaitsForTooMuch) {
            return wanted;
        }
        let allowance = self.operations.allowance();
        wanted.min((allowance.guaranteed / 2).min(allowance.demand / 8) as u64)
    }

    /// Puts a request to wait for frames.
    pub(super) fn starve(&mut self, rec: u32) {
        self.requests.starve(rec, self.faults.has(Bug::LastComeFirstServed));
    }

    /// Lets a request wait that has been served in part, because the event has copied as much as one should.
    #[cold]
    pub(super) fn pause<E: Effects>(&mut self, rec: u32, cx: &mut Cx<'_, E>) {
        self.requests.pause(rec);
        cx.fx.paused(self.requests[rec].req.id, Paused { disk: self.settings.id(), rec });
    }

    /// The same of one that has not taken its frames yet: whoever waits for frames behind it does not pass.
    #[cold]
    pub(super) fn pause_in_line<E: Effects>(&mut self, rec: u32, cx: &mut Cx<'_, E>) {
        self.pause(rec, cx);
        if !self.faults.has(Bug::PausedLosesPlace) {
            self.requests.pause_in_line(rec);
        }
    }

    /// Whether request `rec` waits to be resumed.
    pub(crate) fn is_paused(&self, rec: u32) -> bool {
        self.requests.is_paused(rec)
    }

    /// Answers a request and forgets it.
    pub(super) fn finish<E: Effects>(&mut self, rec: u32, cx: &mut Cx<'_, E>) {
        let r = self.requests.remove(rec);
        if !r.answered {
            if r.req.op == Op::Read {
                cx.fx.found(r.req.id, r.found);
            }
            self.answer(r.req, r.error.map_or(Ok(()), Err), cx);
        }
    }

    /// Counts and answers a request.
    #[inline]
    pub(super) fn answer<E: Effects>(&mut self, req: Request, result: Result<(), IoError>, cx: &mut Cx<'_, E>) {
        let s = &mut self.stats;
        // The length of a request that was refused may be anything.
        let bytes = if result.is_ok() { req.len } else { 0 };
        if result.is_ok() && req.op.changes_unflushed() {
            self.losses.wrote(req.id.port);
        }
        match req.op {
            Op::Read => {
                s.reads += 1;
                s.read_bytes += bytes;
            }
            Op::Write { .. } => {
                s.writes += 1;
                s.write_bytes += bytes;
            }
            Op::Flush => s.flushes += 1,
            Op::Discard => s.discards += 1,
            Op::WriteZeroes { .. } => s.write_zeroes += 1,
            Op::Status => {}
        }
        s.errors += u64::from(result.is_err());
        cx.fx.reply(req.id, result);
        if result == Err(IoError::Lost) && cx.fx.unheard(req.id) {
            self.losses.unheard(req.id);
        }
    }

    /// Goes on with a request.
    pub(crate) fn drive<E: Effects>(&mut self, rec: u32, cx: &mut Cx<'_, E>) {
        let begins = self.requests.unpark(rec);
        let is_held = self.requests.serve_held(rec);
        match self.requests[rec].req.op {
            Op::Read => self.drive_read(rec, cx),
            _ if self.requests[rec].drops != Drops::Nothing => self.drop_more(rec, cx),
            Op::Write { .. } | Op::WriteZeroes { .. } => {
                if begins {
                    self.activate(rec, cx.arena);
                }
                self.drive_write(rec, cx);
            }
            Op::Discard => {
                if begins {
                    self.activate(rec, cx.arena);
                }
                self.drive_discard(rec, cx);
            }
            Op::Flush | Op::Status => self.finish(rec, cx),
        }
        if is_held {
            self.requests.served();
        }
        self.note_loan(cx.arena);
    }

    /// Goes on with everything that an event has set free.
    pub(super) fn settle<E: Effects>(&mut self, cx: &mut Cx<'_, E>) {
        loop {
            while let Some(rec) = self.requests.next_ready() {
                self.drive(rec, cx);
            }
            let Some(rec) = self.requests.serve_next() else { break };
            let moved = self.room(rec, cx.arena) > 0;
            if moved {
                self.drive(rec, cx);
            } else {
                self.starve(rec);
            }
            self.requests.served();
            if !moved {
                break;
            }
        }
    }

    // ---- operations ----

    /// Submits an operation.
    pub(super) fn submit<E: Effects>(
        &mut self,
        what: What,
        kind: IoKind,
        offset: u64,
        len: u64,
        buf: IoBuf,
        cx: &mut Cx<'_, E>,
    ) -> u32 {
        let (offset, len, buf) = self.onto_disk(kind, offset, len, buf);
        match kind {
            IoKind::Read => {
                self.stats.backend_reads += 1;
                self.stats.backend_read_bytes += len;
            }
            IoKind::Write { .. } => {
                self.stats.backend_writes += 1;
                self.stats.backend_write_bytes += len;
            }
            _ => {}
        }
        let (op, id) = self.operations.begin(what);
        self.send(Io { op: id, disk: self.settings.id(), target: IoTarget::Image, kind, offset, len, buf }, cx);
        op
    }

    /// An operation has completed.
    ///
    /// # Panics
    /// If there is no such operation: a back end reported it twice, or invented it.
    pub(crate) fn done<E: Effects>(&mut self, done: IoDone, cx: &mut Cx<'_, E>) {
        let what = self.operations.end(done.op);
        if done.result.is_err() && !what.is_below() {
            self.stats.backend_errors += 1;
        }
        match what {
            What::Read(read @ ReadOp { stored: Some(stored), .. }) => {
                self.read_below_done(done.op.0 as u32, read, stored, done, cx);
            }
            What::Read(read) => {
                // A recording that is replayed may have any times.
                let took_ns = cx.now_ns.saturating_sub(read.since_ns);
                self.stats.backend_read_ns = self.stats.backend_read_ns.saturating_add(took_ns);
                self.read_done(read, done, cx);
            }
            What::Late { count, ahead } => self.late_done(count, ahead, done, cx),
            What::Again(again) => self.again_done(again, done, cx),
            What::Write(write) => self.write_done(write, done, cx),
            What::Merge(merge) => self.merge_done(merge, done, cx),
            What::Range { rec, from, to } => self.range_done(rec, from, to, done, cx),
            What::Plain { rec, since, quiet } => self.plain_done(rec, since, quiet, done, cx),
        }
        self.note_loan(cx.arena);
    }
}
