//! Reads: hits are answered at once, misses are one operation for all requests that wait for it, and what was read is
//! cached if no change of it came between.
//!
//! Owns the life of a read. Never caches a block against the index's decision.
//! Invariant: every block of a read goes through the index once, in order, also if the request has to wait.

pub(super) mod ahead;
mod failed;
pub(super) mod fetch;
pub(super) mod near;
mod reach;
mod runs;
pub(super) mod waiters;

use crate::content::ContentHash;
use crate::disk::operations::Budget;
use crate::disk::records::{ReadOp, What};
use crate::disk::requests::Rec;
use crate::disk::ssd::Below;
use crate::disk::{B, Cx, Disk};
use crate::fault_injection::{Bug, FaultInjection};
use crate::limits::IO_BLOCKS_MAX;
use crate::store::ram::Store;
use crate::types::{Effects, Found, IoDone, IoError, IoKind, Request};
use near::Near;
use runs::RUN_MIN;
use undercroft_engine::residency::Class;
use undercroft_engine::{Access, Outcome, Served};
use undercroft_host::{Frame, IoBuf};
use waiters::{NONE, Waiter};

impl<P: FaultInjection> Disk<P> {
    /// Serves a read. If all of it is in RAM it is answered here, with nothing stored and nothing allocated.
    #[inline]
    pub(in crate::disk) fn read<E: Effects>(&mut self, req: Request, cx: &mut Cx<'_, E>) {
        let end = req.offset + req.len;
        let stop = end.min(req.offset.saturating_add(cx.left));
        let mut at = req.offset;
        let mut runs = req.len >= RUN_MIN as u64 * B && self.has_runs(cx.arena);
        while at < stop {
            let block = at / B;
            let whole = (stop - at).div_ceil(B).min((end - at) / B);
            if runs && whole >= RUN_MIN as u64 && at.is_multiple_of(B) {
                let served = self.read_run(&req, at, whole, cx);
                at += served * B;
                // A block that is not cached ends the run, and the read here; pages that are not seen are not asked for
                // again.
                runs = served > 0;
                continue;
            }
            let page = self.page_of(&req, block, cx);
            let outcome = self.residents.access(block, self.kind(page));
            if let Outcome::Hit(slot) = outcome
                && self.residents.page(slot).is_some()
            {
                if let Some(page) = page {
                    self.arrives(page, block, Class::Read, self.residents.hash(slot), Some(true), cx);
                } else if self.gave_up() {
                    self.passes(&req, block, Class::Read, cx);
                }
                self.measuring.hit(block, page.is_some(), || self.residents.part_of_slot(slot));
                self.residents.is_read(slot);
                let Some(frame) = self.residents.page(slot) else { unreachable!("just looked at") };
                let lo = (at - block * B) as usize;
                let hi = (end - block * B).min(B) as usize;
                cx.fx.copy_out(req.id, (at - req.offset) as usize, &frame.bytes()[lo..hi]);
                at = block * B + hi as u64;
                continue;
            }
            self.stats.hit_blocks += block - req.offset / B;
            return self.read_slowly(req, at, outcome, cx);
        }
        if at < end {
            return self.read_in_steps(req, at, cx);
        }
        self.stats.hit_blocks += (end - 1) / B - req.offset / B + 1;
        self.answer(req, Ok(()), cx);
        if self.streams.is_on() {
            self.note_stream(req.offset, end, false, cx);
        }
    }

    /// A long read has had its part of this event, up to the block at `at`, all of it from slots.
    #[cold]
    fn read_in_steps<E: Effects>(&mut self, req: Request, at: u64, cx: &mut Cx<'_, E>) {
        let hits = at / B - req.offset / B;
        self.stats.hit_blocks += hits;
        if self.requests.is_full() {
            return self.answer(req, Err(IoError::Io), cx);
        }
        let found = Found { hits: hits as u32, ..Found::default() };
        let cursor = if self.faults.has(Bug::PauseSkipsBlock) { at + B } else { at };
        let untold = self.streams.is_on();
        let mut rec = Rec::new(req);
        (rec.cursor, rec.touched, rec.found, rec.untold) = (cursor, at / B, found, untold);
        let rec = self.requests.insert(rec);
        self.pause(rec, cx);
    }

    /// Goes on with a read that cannot be answered from slots alone; `outcome` is what the index said of the block at
    /// `at`.
    #[cold]
    fn read_slowly<E: Effects>(&mut self, req: Request, at: u64, outcome: Outcome, cx: &mut Cx<'_, E>) {
        if self.requests.is_full() {
            self.make_room(outcome, cx.arena);
            return self.answer(req, Err(IoError::Io), cx);
        }
        let misses = self.stats.miss_blocks + self.stats.readahead_hit_blocks + self.stats.joined_blocks;
        cx.left = cx.left.saturating_sub(at - req.offset);
        let block = at / B;
        let mut found = Found { hits: (block - req.offset / B) as u32, ..Found::default() };
        self.judge(block, outcome, &mut found, cx);
        let mut rec = Rec::new(req);
        (rec.cursor, rec.touched, rec.found) = (at, block + 1, found);
        let rec = self.requests.insert(rec);
        self.drive_read(rec, cx);
        self.note_loan(cx.arena);
        if self.streams.is_on() {
            let now = self.stats.miss_blocks + self.stats.readahead_hit_blocks + self.stats.joined_blocks;
            self.note_stream(req.offset, req.offset + req.len, now > misses, cx);
        }
    }

    /// Counts what the index said about a block that is read, and frees what it evicted.
    fn judge<E: Effects>(&mut self, block: u64, outcome: Outcome, found: &mut Found, cx: &mut Cx<'_, E>) {
        self.make_room(outcome, cx.arena);
        if outcome == Outcome::Bypass {
            self.stats.bypassed_blocks += 1;
        }
        let joined = self.stats.joined_blocks;
        let served = self.count_read(block, outcome, cx);
        match served {
            Served::Hit => found.hits += 1,
            Served::Ahead => found.ahead += 1,
            Served::Miss if self.stats.joined_blocks > joined => found.joined += 1,
            Served::Miss => found.missed += 1,
        }
        let missed = self.stats.joined_blocks > joined && self.faults.has(Bug::MeterMissesJoined);
        self.measuring.served(block, served, !missed, || self.residents.part_of_block(block));
    }

    /// How the index is asked about a block that is read into `page` of the guest, if that is known: what the guest
    /// holds, or will not want again, is the first to go.
    #[inline]
    fn kind(&self, page: Option<u32>) -> Access {
        if page.is_some() || self.settings.first_to_go() { Access::Take } else { Access::Read }
    }

    fn count_read<E: Effects>(&mut self, block: u64, outcome: Outcome, cx: &mut Cx<'_, E>) -> Served {
        if let Outcome::Hit(slot) = outcome
            && self.residents.page(slot).is_some()
        {
            self.stats.hit_blocks += 1;
            self.residents.is_read(slot);
            return Served::Hit;
        }
        match self.near.get(block) {
            Some(Near::Ahead(_)) => {
                self.stats.hit_blocks += 1;
                self.stats.readahead_hit_blocks += 1;
                self.streams.used();
                Served::Ahead
            }
            Some(Near::Reading { .. }) => {
                self.stats.joined_blocks += 1;
                self.locking.missed(block);
                Served::Miss
            }
            None if self.adopt(block, cx.arena) => {
                self.stats.hit_blocks += 1;
                self.stats.shared_hit_blocks += 1;
                Served::Hit
            }
            None => {
                self.stats.miss_blocks += 1;
                self.locking.missed(block);
                Served::Miss
            }
        }
    }

    /// Asks the index about `block` on behalf of a read under way, unless that has been done. Whether it has just shown
    /// that the block is neither cached nor near.
    fn touch<E: Effects>(&mut self, rec: u32, block: u64, cx: &mut Cx<'_, E>) -> bool {
        if block < self.requests[rec].touched {
            return false;
        }
        let r = &mut self.requests[rec];
        r.touched = block + 1;
        let (req, mut found) = (r.req, r.found);
        let page = self.page_of(&req, block, cx);
        let outcome = self.residents.access(block, self.kind(page));
        let missed = found.missed;
        self.judge(block, outcome, &mut found, cx);
        self.requests[rec].found = found;
        found.missed > missed
    }

    /// Goes on with a read from its cursor, as far as it can.
    pub(in crate::disk) fn drive_read<E: Effects>(&mut self, rec: u32, cx: &mut Cx<'_, E>) {
        loop {
            let r = self.requests[rec];
            let end = r.end();
            if r.cursor >= end || r.error.is_some() {
                if r.pending > 0 {
                    // All of it is under way, or no more of it will be.
                    self.requests[rec].cursor = end;
                    return;
                }
                self.finish(rec, cx);
                if r.untold {
                    let missed = r.found.missed + r.found.ahead + r.found.joined > 0;
                    self.note_stream(r.req.offset, end, missed, cx);
                }
                return;
            }
            if r.pending >= self.operations.allowance().window {
                self.requests.wait(rec);
                return;
            }
            let block = r.cursor / B;
            let next = end.min((block + 1) * B);
            // To ask the disk for more copies nothing.
            if cx.left == 0 && self.is_at_hand(block, cx.arena) {
                return self.pause(rec, cx);
            }
            self.touch(rec, block, cx);
            if self.copy_at_hand(rec, block, cx) {
                cx.left = cx.left.saturating_sub(next - r.cursor);
                self.requests[rec].cursor = next;
                continue;
            }
            if let Some(Near::Reading { op, at }) = self.near.get(block) {
                if self.waiters.is_full() {
                    return self.starve(rec);
                }
                if self.is_crowded(op) {
                    return self.requests.block(rec);
                }
                self.join(rec, op, at);
                self.requests[rec].cursor = next;
                continue;
            }
            if self.is_changing(block) {
                return self.requests.block(rec);
            }
            let room = self.room(rec, cx.arena).min(IO_BLOCKS_MAX as u64);
            if room == 0 {
                return self.starve(rec);
            }
            let last = (end - 1) / B;
            let place = self.below(block, cx.arena);
            let most = if place.is_memory() { 1 } else { room };
            let mut count = 1;
            while count < most && block + count <= last {
                let b = block + count;
                let far = self.touch(rec, b, cx);
                let near = !far && (self.residents.cached(b).is_some() || self.near.contains(b));
                if near || self.is_at_base(b, cx.arena) || self.is_changing(b) {
                    break;
                }
                if !place.goes_on(count, &self.below(b, cx.arena)) {
                    break;
                }
                count += 1;
            }
            match place {
                Below::Image => self.start_read(block, count, Some(rec), cx),
                _ => self.read_below(block, count, Some(rec), place, cx),
            }
            self.requests[rec].cursor = end.min((block + count) * B);
        }
    }

    fn is_changing(&self, block: u64) -> bool {
        let block = if self.faults.has(Bug::HighBlocksNotWaitedFor) { block & 0xffff_ffff } else { block };
        self.changes.active_in(block, block + 1) && !self.faults.has(Bug::ReadDuringWrite)
    }

    /// Whether a read of `block` needs no disk.
    fn is_at_hand(&self, block: u64, arena: &Store) -> bool {
        let ahead = matches!(self.near.get(block), Some(Near::Ahead(_)));
        ahead || self.residents.cached(block).is_some() || self.is_at_base(block, arena)
    }

    /// Copies the request's part of `block` out, if the block is in a slot or read ahead. A block read ahead moves to
    /// its slot now, if the index gave it one.
    fn copy_at_hand<E: Effects>(&mut self, rec: u32, block: u64, cx: &mut Cx<'_, E>) -> bool {
        let req = self.requests[rec].req;
        if let Some(slot) = self.residents.slot(block)
            && self.residents.page(slot).is_some()
        {
            self.arrives_for(&req, block, self.residents.hash(slot), Some(true), cx);
            let Some(frame) = self.residents.page(slot) else { unreachable!("just looked at") };
            copy_part(cx.fx, &req, block, frame.bytes());
            return true;
        }
        let Some(frame) = self.near.take_ahead(block) else { return self.copy_from_base(rec, block, cx) };
        self.arrives_for(&req, block, None, None, cx);
        copy_part(cx.fx, &req, block, frame.bytes());
        self.install(block, frame, cx);
        true
    }

    /// Copies the request's part of `block` out of a slot of another disk on the same base, where the index gave it
    /// none here.
    fn copy_from_base<E: Effects>(&mut self, rec: u32, block: u64, cx: &mut Cx<'_, E>) -> bool {
        let Some((domain, n)) = self.base_block(block).filter(|_| !self.near.contains(block)) else {
            return false;
        };
        let Some(held) = cx.arena.again_base(domain, n) else { return false };
        let req = self.requests[rec].req;
        self.arrives_for(&req, block, None, Some(true), cx);
        copy_part(cx.fx, &req, block, held.bytes());
        cx.arena.release(held);
        true
    }

    /// The request's part of `block` is about to be copied out.
    #[inline]
    fn arrives_for<E: Effects>(
        &mut self,
        req: &Request,
        block: u64,
        tag: Option<ContentHash>,
        found: Option<bool>,
        cx: &mut Cx<'_, E>,
    ) {
        if let Some(page) = self.page_of(req, block, cx) {
            self.arrives(page, block, Class::Read, tag, found, cx);
            // It was counted when it was asked for, before it was known to come.
            self.measuring.arrived(block);
        } else if self.gave_up() {
            self.passes(req, block, Class::Read, cx);
        }
    }

    /// Whether so many have joined a read that to copy what they want is all that one event should do.
    fn is_crowded(&mut self, op: u32) -> bool {
        u64::from(self.operations.read_mut(op).joined) * B >= self.step_bytes
    }

    /// A read is over: those go on who had to wait, because many had joined it.
    #[cold]
    fn wake_crowd(&mut self, read: &ReadOp) {
        if !self.faults.has(Bug::CrowdForgotten) {
            self.requests.unblock(read.first..read.first + u64::from(read.count));
        }
    }

    /// Makes a request wait for block `at` of a read under way.
    fn join(&mut self, rec: u32, op: u32, at: u32) {
        if self.faults.has(Bug::LostJoin) {
            self.requests[rec].pending += 1;
            return;
        }
        if self.waiters.join(self.operations.read_mut(op), rec, at) {
            self.requests[rec].pending += 1;
        }
    }

    /// Reads blocks `first..first+count` for a request, or ahead of one. The caller has asked how many may be
    /// read.
    pub(in crate::disk) fn start_read<E: Effects>(
        &mut self,
        first: u64,
        count: u64,
        rec: Option<u32>,
        cx: &mut Cx<'_, E>,
    ) {
        let ahead = rec.is_none();
        let budget = if ahead { Budget::Ahead } else { Budget::Demand };
        let frames = self.operations.take_frames(budget, count, cx.arena);
        let left = if self.faults.has(Bug::ReadPastEnd) { u64::MAX } else { self.settings.size() - first * B };
        let len = (count * B).min(left);
        let read = ReadOp { since_ns: cx.now_ns, ..self.read_for(first, count, rec) };
        let buf = IoBuf { frames, head: 0, len: len as u32 };
        let op = self.submit(What::Read(read), IoKind::Read, first * B, len, buf, cx);
        self.near.reading(op, first, count as u32);
    }

    /// The record of a read of `count` blocks from the image for a request, or ahead of one.
    pub(in crate::disk) fn read_for(&mut self, first: u64, count: u64, rec: Option<u32>) -> ReadOp {
        let (all, ahead) = (u64::MAX >> (64 - count), rec.is_none());
        let (mut head, mut wanted) = (NONE, 0);
        if let Some(rec) = rec {
            self.requests[rec].pending += 1;
            head = self.waiters.begin(rec, count);
            wanted = all;
        }
        let count = count as u32;
        let (stored, apart, since_ns, joined, tail) = (None, false, 0, 0, head);
        ReadOp { first, count, fresh: all, wanted, stored, apart, since_ns, ahead, joined, head, tail }
    }

    /// A read has completed: those who wait get their data, then fresh blocks go to their slots.
    pub(in crate::disk) fn read_done<E: Effects>(&mut self, read: ReadOp, mut done: IoDone, cx: &mut Cx<'_, E>) {
        assert!(done.buf.frames.len() == read.count as usize, "a read came back without its frames");
        if self.requests.any_blocked() {
            self.wake_crowd(&read);
        }
        if let Err(e) = done.result {
            return self.read_failed(read, done, e, cx);
        }
        let mut head = read.head;
        while let Some(waiter) = self.waiters.pop(&mut head) {
            self.serve(&waiter, read.first, read.first, &done.buf.frames, cx);
        }
        let budget = if read.ahead { Budget::Ahead } else { Budget::Demand };
        let early = self.faults.has(Bug::PlacedBeforeTime);
        if early {
            self.operations.release(budget, read.count as usize);
        }
        for (i, frame) in done.buf.frames.drain(..).enumerate() {
            let block = read.first + i as u64;
            self.place_read(&read, block, frame, cx);
            // Not before: the pool would lend meanwhile what these frames take.
            if !early {
                self.operations.placed(budget);
            }
        }
        if !early {
            self.operations.release(budget, 0);
        }
        self.operations.spare_list(done.buf.frames);
    }

    /// A block that was read goes to its slot, or waits to be used.
    fn place_read<E: Effects>(&mut self, read: &ReadOp, block: u64, frame: Frame, cx: &mut Cx<'_, E>) {
        let bit = 1 << (block - read.first);
        if read.fresh & bit == 0 {
            return cx.arena.put(frame);
        }
        self.near.read_over(block);
        let is_unused = read.ahead && read.wanted & bit == 0 && self.residents.slot(block).is_none();
        match (is_unused, read.apart && self.base_block(block).is_some()) {
            (false, apart) => self.install_as(block, frame, apart, cx),
            (true, false) => self.keep_ahead(block, frame, cx),
            // Where it would come from would be forgotten.
            (true, true) => cx.arena.put(frame),
        }
    }

    /// Copies out what a request waited for, of a read that began with block `first`. The first of `frames` is that of
    /// block `base`.
    pub(in crate::disk) fn serve<E: Effects>(
        &mut self,
        w: &Waiter,
        first: u64,
        base: u64,
        frames: &[Frame],
        cx: &mut Cx<'_, E>,
    ) {
        let req = self.requests[w.rec].req;
        let found = w.own.then_some(false);
        let first = first + u64::from(w.first);
        for block in first..first + u64::from(w.count) {
            self.arrives_for(&req, block, None, found, cx);
            copy_part(cx.fx, &req, block, frames[(block - base) as usize].bytes());
        }
        cx.left = cx.left.saturating_sub(u64::from(w.count) * B);
        self.requests.settle_one(w.rec, None);
    }

    // ---- read-ahead ----

    /// Tells the streams about a read and reads ahead if one of them is proven.
    fn note_stream<E: Effects>(&mut self, from: u64, to: u64, missed: bool, cx: &mut Cx<'_, E>) {
        if let Some((first, end)) = self.streams.note(from, to, missed) {
            self.read_ahead(first, end, cx);
            self.note_loan(cx.arena);
        }
    }

    #[cold]
    fn read_ahead<E: Effects>(&mut self, first: u64, end: u64, cx: &mut Cx<'_, E>) {
        let stop = end.min(self.settings.blocks());
        let mut b = first;
        while b < stop {
            let mut count = 0;
            while b + count < stop && count < IO_BLOCKS_MAX as u64 && self.may_read_ahead(b + count, cx) {
                count += 1;
            }
            if count == 0 {
                b += 1;
                continue;
            }
            self.shed_for(count as usize, cx);
            let room = self.ahead_room(cx.arena) as u64;
            let fits = count.min(room);
            if fits > 0 {
                self.read_each(b, fits, cx);
            }
            if fits < count {
                return self.streams.cut(end, b + fits);
            }
            b += count;
        }
    }

    pub(in crate::disk) fn may_read_ahead<E: Effects>(&self, block: u64, cx: &Cx<'_, E>) -> bool {
        self.residents.slot(block).is_none()
            && !self.near.contains(block)
            && !self.is_changing(block)
            && !self.is_at_base(block, cx.arena)
            // The guest will not ask for what it holds.
            && !self.side.is_at_guest(block, cx.arena)
    }

    /// Drops old blocks read ahead that no stream is about to use, until `count` more fit or none such is left.
    fn shed_for<E: Effects>(&mut self, count: usize, cx: &mut Cx<'_, E>) {
        let mut wasted = 0;
        while self.ahead_room(cx.arena) < count
            && self.near.oldest_ahead().is_some_and(|(block, _)| !self.streams.wants(block))
        {
            self.drop_oldest_ahead(cx.arena);
            wasted += 1;
        }
        self.count_waste(wasted);
    }

    /// Drops blocks read ahead that have waited too long.
    pub(crate) fn expire_ahead<E: Effects>(&mut self, keep_ns: u64, cx: &mut Cx<'_, E>) {
        let mut wasted = 0;
        while self.near.oldest_ahead().is_some_and(|(_, since)| cx.now_ns.saturating_sub(since) >= keep_ns) {
            self.drop_oldest_ahead(cx.arena);
            wasted += 1;
        }
        self.count_waste(wasted);
    }

    /// Drops the oldest block read ahead; whether there was one.
    pub(super) fn drop_oldest_ahead(&mut self, arena: &mut Store) -> bool {
        let Some(frame) = self.near.pop_ahead() else { return false };
        arena.put(frame);
        true
    }

    fn count_waste(&mut self, blocks: u64) {
        if blocks > 0 {
            self.stats.readahead_wasted_blocks += blocks;
            self.streams.wasted();
        }
    }

    /// Keeps a block that was read ahead until a guest reads it.
    fn keep_ahead<E: Effects>(&mut self, block: u64, frame: Frame, cx: &mut Cx<'_, E>) {
        if self.near.is_ring_full() {
            self.drop_oldest_ahead(cx.arena);
            self.count_waste(1);
        }
        self.near.keep_ahead(block, frame, cx.now_ns);
    }
}

/// Copies out the part of `block` that the request asks for.
fn copy_part<E: Effects>(fx: &mut E, req: &Request, block: u64, bytes: &[u8]) {
    let start = block * B;
    let lo = req.offset.max(start);
    let hi = (req.offset + req.len).min(start + B);
    fx.copy_out(req.id, (lo - req.offset) as usize, &bytes[(lo - start) as usize..(hi - start) as usize]);
}
