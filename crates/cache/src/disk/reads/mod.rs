//! Reads: hits at once, misses as one operation for all who wait, published if no change came between.
//!
//! Owns the life of a read. Never caches a block against the index's decision.
//! Invariant: every block of a read goes through the index once, in order, also if the request has to wait.

pub(crate) mod ahead;
mod failed;
pub(crate) mod fetch;

use crate::content::ContentHash;
use crate::disk::records::{NONE, Near, Parked, ReadOp, Rec, Waiter, What};
use crate::disk::{B, Cx, Disk};
use crate::fault_injection::{Bug, FaultInjection};
use crate::limits::IO_BLOCKS_MAX;
use crate::store::ram::Store;
use crate::types::{Effects, Found, IoDone, IoError, IoKind, Request};
use undercroft_engine::residency::Class;
use undercroft_engine::{Access, Outcome, Served};
use undercroft_host::{Frame, IoBuf};

impl<P: FaultInjection> Disk<P> {
    /// Serves a read. If all of it is in RAM it is answered here, with nothing stored and nothing allocated.
    #[inline]
    pub(crate) fn read<E: Effects>(&mut self, req: Request, cx: &mut Cx<'_, E>) {
        let end = req.offset + req.len;
        let stop = end.min(req.offset.saturating_add(cx.left));
        let mut at = req.offset;
        while at < stop {
            let block = at / B;
            let page = self.page_of(&req, block, cx);
            let outcome = self.index.access(block, self.kind(page), |_| true);
            if let Outcome::Hit(slot) = outcome
                && self.frames[slot as usize].is_some()
            {
                if let Some(page) = page {
                    self.arrives(page, block, Class::Read, self.hash_in(slot), Some(true), cx);
                }
                if let Some(meter) = &mut self.meter {
                    match page {
                        Some(_) => meter.observe_taken(block, Served::Hit),
                        None => meter.observe(block, Served::Hit),
                    }
                }
                if let Some(parts) = &mut self.parts {
                    parts.served(self.index.part_of_slot(slot), block, Served::Hit);
                }
                let Some(frame) = &self.frames[slot as usize] else { unreachable!("just looked at") };
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
        if self.recs.is_full() {
            return self.answer(req, Err(IoError::Io), cx);
        }
        let found = Found { hits: hits as u32, ..Found::default() };
        let cursor = if self.plant.has(Bug::PauseSkipsBlock) { at + B } else { at };
        let untold = self.streams.is_on();
        let rec = self.recs.insert(Rec { cursor, touched: at / B, found, untold, ..Rec::new(req) });
        self.pause(rec, cx);
    }

    /// Goes on with a read that cannot be answered from slots alone; `outcome` is the index's word on the block at
    /// `at`.
    #[cold]
    fn read_slowly<E: Effects>(&mut self, req: Request, at: u64, outcome: Outcome, cx: &mut Cx<'_, E>) {
        if self.recs.is_full() {
            self.make_room(outcome, cx.arena);
            return self.answer(req, Err(IoError::Io), cx);
        }
        let misses = self.stats.miss_blocks + self.stats.readahead_hit_blocks + self.stats.joined_blocks;
        cx.left = cx.left.saturating_sub(at - req.offset);
        let block = at / B;
        let mut found = Found { hits: (block - req.offset / B) as u32, ..Found::default() };
        self.judge(block, outcome, &mut found, cx);
        let rec = self.recs.insert(Rec { cursor: at, touched: block + 1, found, ..Rec::new(req) });
        self.drive_read(rec, cx);
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
        let missed = self.stats.joined_blocks > joined && self.plant.has(Bug::MeterMissesJoined);
        if let Some(meter) = self.meter.as_mut().filter(|_| !missed) {
            meter.observe(block, served);
        }
        if let Some(parts) = &mut self.parts {
            parts.served(self.index.part_of_block(block), block, served);
        }
    }

    /// How the index is asked about a block that is read into `page` of the guest, if that is known: what the guest
    /// holds, or will not want again, is the first to go.
    #[inline]
    fn kind(&self, page: Option<u32>) -> Access {
        if page.is_some() || self.first_to_go { Access::Take } else { Access::Read }
    }

    fn count_read<E: Effects>(&mut self, block: u64, outcome: Outcome, cx: &mut Cx<'_, E>) -> Served {
        if let Outcome::Hit(slot) = outcome
            && self.frames[slot as usize].is_some()
        {
            self.stats.hit_blocks += 1;
            return Served::Hit;
        }
        match self.near.get(&block).copied() {
            Some(Near::Ahead(_)) => {
                self.stats.hit_blocks += 1;
                self.stats.readahead_hit_blocks += 1;
                self.streams.used();
                Served::Ahead
            }
            Some(Near::Reading { .. }) => {
                self.stats.joined_blocks += 1;
                Served::Miss
            }
            None if self.adopt(block, cx.arena) => {
                self.stats.hit_blocks += 1;
                self.stats.shared_hit_blocks += 1;
                Served::Hit
            }
            None => {
                self.stats.miss_blocks += 1;
                Served::Miss
            }
        }
    }

    /// Asks the index about `block` on behalf of a read under way, unless that has been done.
    fn touch<E: Effects>(&mut self, rec: u32, block: u64, cx: &mut Cx<'_, E>) {
        if block >= self.recs[rec].touched {
            let r = &mut self.recs[rec];
            r.touched = block + 1;
            let req = r.req;
            let page = self.page_of(&req, block, cx);
            let outcome = self.index.access(block, self.kind(page), |_| true);
            let mut found = self.recs[rec].found;
            self.judge(block, outcome, &mut found, cx);
            self.recs[rec].found = found;
        }
    }

    /// Goes on with a read from its cursor, as far as it can.
    pub(crate) fn drive_read<E: Effects>(&mut self, rec: u32, cx: &mut Cx<'_, E>) {
        loop {
            let r = self.recs[rec];
            let end = r.req.offset + r.req.len;
            if r.cursor >= end || r.error.is_some() {
                if r.pending > 0 {
                    // All of it is under way, or no more of it will be.
                    self.recs[rec].cursor = end;
                    return;
                }
                self.finish(rec, cx);
                if r.untold {
                    let missed = r.found.missed + r.found.ahead + r.found.joined > 0;
                    self.note_stream(r.req.offset, end, missed, cx);
                }
                return;
            }
            if r.pending >= self.allowance.window {
                self.recs[rec].parked = Parked::Window;
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
                self.recs[rec].cursor = next;
                continue;
            }
            if let Some(&Near::Reading { op, at }) = self.near.get(&block) {
                if self.waiters.is_full() {
                    return self.starve(rec);
                }
                if self.is_crowded(op) {
                    self.recs[rec].parked = Parked::Blocked;
                    self.blocked.push(rec);
                    return;
                }
                self.join(rec, op, at);
                self.recs[rec].cursor = next;
                continue;
            }
            if self.is_changing(block) {
                self.recs[rec].parked = Parked::Blocked;
                self.blocked.push(rec);
                return;
            }
            let room = self.room(rec).min(IO_BLOCKS_MAX as u64);
            if room == 0 {
                return self.starve(rec);
            }
            let last = (end - 1) / B;
            let mut count = 1;
            while count < room && block + count <= last {
                let b = block + count;
                self.touch(rec, b, cx);
                let at_hand = self.cached(b).is_some() || self.is_at_base(b, cx.arena);
                if at_hand || self.near.contains_key(&b) || self.is_changing(b) {
                    break;
                }
                count += 1;
            }
            self.start_read(block, count, Some(rec), cx);
            self.recs[rec].cursor = end.min((block + count) * B);
        }
    }

    fn is_changing(&self, block: u64) -> bool {
        let block = if self.plant.has(Bug::HighBlocksNotWaitedFor) { block & 0xffff_ffff } else { block };
        self.changes.active_in(block, block + 1) && !self.plant.has(Bug::ReadDuringWrite)
    }

    /// Whether a read of `block` needs no disk.
    fn is_at_hand(&self, block: u64, arena: &Store) -> bool {
        let ahead = matches!(self.near.get(&block), Some(Near::Ahead(_)));
        ahead || self.cached(block).is_some() || self.is_at_base(block, arena)
    }

    /// Copies the request's part of `block` out, if the block is in a slot or read ahead. A block read ahead moves to
    /// its slot now, if the index gave it one.
    fn copy_at_hand<E: Effects>(&mut self, rec: u32, block: u64, cx: &mut Cx<'_, E>) -> bool {
        let req = self.recs[rec].req;
        if let Some(slot) = self.index.peek(block)
            && self.frames[slot as usize].is_some()
        {
            self.arrives_for(&req, block, self.hash_in(slot), Some(true), cx);
            let Some(frame) = &self.frames[slot as usize] else { unreachable!("just looked at") };
            copy_part(cx.fx, &req, block, frame.bytes());
            return true;
        }
        let Some(&Near::Ahead(n)) = self.near.get(&block) else { return self.copy_from_base(rec, block, cx) };
        let frame = self.ring.take(n);
        self.near.remove(&block);
        self.ahead_used -= 1;
        self.arrives_for(&req, block, None, None, cx);
        copy_part(cx.fx, &req, block, frame.bytes());
        self.install(block, frame, cx);
        true
    }

    /// Copies the request's part of `block` out of a slot of another disk on the same base, where the index gave it
    /// none here.
    fn copy_from_base<E: Effects>(&mut self, rec: u32, block: u64, cx: &mut Cx<'_, E>) -> bool {
        let Some((domain, n)) = self.base_block(block).filter(|_| !self.near.contains_key(&block)) else {
            return false;
        };
        let Some(held) = cx.arena.again_base(domain, n) else { return false };
        let req = self.recs[rec].req;
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
            if let Some(meter) = &mut self.meter {
                meter.arrived(block);
            }
        }
    }

    /// Whether so many have joined a read that to copy what they want is all that one event should do.
    fn is_crowded(&self, op: u32) -> bool {
        matches!(&self.ops[op].what, What::Read(read) if u64::from(read.joined) * B >= self.step_bytes)
    }

    /// A read is over: those go on who had to wait, because many had joined it.
    #[cold]
    fn wake_crowd(&mut self, read: &ReadOp) {
        if self.plant.has(Bug::CrowdForgotten) {
            return;
        }
        let blocks = read.first..read.first + u64::from(read.count);
        self.wake_blocked(blocks.start, blocks.end);
    }

    /// Makes a request wait for block `at` of a read under way.
    fn join(&mut self, rec: u32, op: u32, at: u32) {
        if self.plant.has(Bug::LostJoin) {
            self.recs[rec].pending += 1;
            return;
        }
        let What::Read(read) = &mut self.ops[op].what else { unreachable!("only reads are near at hand") };
        read.wanted |= 1 << at;
        read.joined += 1;
        if read.tail != NONE {
            let w = &mut self.waiters[read.tail];
            if w.rec == rec && u32::from(w.first + w.count) == at {
                w.count += 1;
                return;
            }
        }
        self.recs[rec].pending += 1;
        let w = self.waiters.insert(Waiter { rec, first: at as u16, count: 1, own: false, next: NONE });
        match read.tail {
            NONE => read.head = w,
            tail => self.waiters[tail].next = w,
        }
        read.tail = w;
    }

    /// Reads blocks `first..first+count` for a request, or ahead of one. The caller has seen to the allowance.
    pub(crate) fn start_read<E: Effects>(&mut self, first: u64, count: u64, rec: Option<u32>, cx: &mut Cx<'_, E>) {
        let ahead = rec.is_none();
        if ahead {
            self.ahead_used += count as usize;
        } else {
            self.demand_used += count as usize;
            self.ops_used += 1;
        }
        let frames = self.take_frames(count, cx.arena);
        let left = if self.plant.has(Bug::ReadPastEnd) { u64::MAX } else { self.size - first * B };
        let len = (count * B).min(left);
        let all = u64::MAX >> (64 - count);
        let (mut head, mut wanted) = (NONE, 0);
        if let Some(rec) = rec {
            self.recs[rec].pending += 1;
            head = self.waiters.insert(Waiter { rec, first: 0, count: count as u16, own: true, next: NONE });
            wanted = all;
        }
        let read = ReadOp { first, count: count as u32, fresh: all, wanted, ahead, joined: 0, head, tail: head };
        let buf = IoBuf { frames, head: 0, len: len as u32 };
        let op = self.submit(What::Read(read), IoKind::Read, first * B, len, buf, cx);
        for at in 0..count as u32 {
            let other = self.near.insert(first + u64::from(at), Near::Reading { op, at });
            assert!(other.is_none(), "a block is read that is near at hand");
        }
    }

    /// A read has completed: those who wait get their data, then fresh blocks go to their slots.
    pub(crate) fn read_done<E: Effects>(&mut self, read: ReadOp, mut done: IoDone, cx: &mut Cx<'_, E>) {
        assert!(done.buf.frames.len() == read.count as usize, "a read came back without its frames");
        if !self.blocked.is_empty() {
            self.wake_crowd(&read);
        }
        if let Err(e) = done.result {
            return self.read_failed(read, done, e, cx);
        }
        let mut w = read.head;
        while w != NONE {
            let waiter = self.waiters.remove(w);
            w = waiter.next;
            self.serve(&waiter, read.first, read.first, &done.buf.frames, cx);
        }
        if !read.ahead {
            self.ops_used -= 1;
        }
        for (i, frame) in done.buf.frames.drain(..).enumerate() {
            let block = read.first + i as u64;
            if read.ahead {
                self.ahead_used -= 1;
            } else {
                self.demand_used -= 1;
            }
            if read.fresh & 1 << i == 0 {
                cx.arena.put(frame);
                continue;
            }
            self.near.remove(&block);
            if read.ahead && read.wanted & 1 << i == 0 && self.index.peek(block).is_none() {
                self.keep_ahead(block, frame, cx);
            } else {
                self.install(block, frame, cx);
            }
        }
        self.spare_list(done.buf.frames);
    }

    /// Copies out what a request waited for, of a read that began with block `first`. The first of `frames` is that of
    /// block `base`.
    pub(crate) fn serve<E: Effects>(
        &mut self,
        w: &Waiter,
        first: u64,
        base: u64,
        frames: &[Frame],
        cx: &mut Cx<'_, E>,
    ) {
        let req = self.recs[w.rec].req;
        let found = w.own.then_some(false);
        let first = first + u64::from(w.first);
        for block in first..first + u64::from(w.count) {
            self.arrives_for(&req, block, None, found, cx);
            copy_part(cx.fx, &req, block, frames[(block - base) as usize].bytes());
        }
        cx.left = cx.left.saturating_sub(u64::from(w.count) * B);
        self.settle_one(w.rec, None);
    }

    // ---- read-ahead ----

    /// Tells the streams about a read and reads ahead if one of them is proven.
    fn note_stream<E: Effects>(&mut self, from: u64, to: u64, missed: bool, cx: &mut Cx<'_, E>) {
        if let Some((first, end)) = self.streams.note(from, to, missed) {
            self.read_ahead(first, end, cx);
        }
    }

    #[cold]
    fn read_ahead<E: Effects>(&mut self, first: u64, end: u64, cx: &mut Cx<'_, E>) {
        let stop = end.min(self.size.div_ceil(B));
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
            let room = (self.allowance.ahead - self.ahead_used) as u64;
            let fits = count.min(room);
            if fits > 0 {
                self.start_read(b, fits, None, cx);
            }
            if fits < count {
                return self.streams.cut(end, b + fits);
            }
            b += count;
        }
    }

    pub(crate) fn may_read_ahead<E: Effects>(&self, block: u64, cx: &Cx<'_, E>) -> bool {
        self.index.peek(block).is_none()
            && !self.near.contains_key(&block)
            && !self.is_changing(block)
            && !self.is_at_base(block, cx.arena)
            // Nobody will ask for it.
            && !self.side.exclusive.as_ref().is_some_and(|e| e.residency().is_at_guest(block))
    }

    /// Drops old blocks read ahead that no stream is about to use, until `count` more fit or none such is left.
    fn shed_for<E: Effects>(&mut self, count: usize, cx: &mut Cx<'_, E>) {
        let mut wasted = 0;
        while self.allowance.ahead - self.ahead_used < count
            && self.ring.oldest().is_some_and(|(block, _)| !self.streams.wants(block))
        {
            self.drop_oldest_ahead(cx.arena);
            wasted += 1;
        }
        self.count_waste(wasted);
    }

    /// Drops blocks read ahead that have waited too long.
    pub(crate) fn expire_ahead<E: Effects>(&mut self, keep_ns: u64, cx: &mut Cx<'_, E>) {
        let mut wasted = 0;
        while self.ring.oldest().is_some_and(|(_, since)| cx.now_ns.saturating_sub(since) >= keep_ns) {
            self.drop_oldest_ahead(cx.arena);
            wasted += 1;
        }
        self.count_waste(wasted);
    }

    /// Drops the oldest block read ahead; whether there was one.
    pub(crate) fn drop_oldest_ahead(&mut self, arena: &mut Store) -> bool {
        let Some((block, frame)) = self.ring.pop() else { return false };
        self.near.remove(&block);
        self.ahead_used -= 1;
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
        if self.ring.is_full() {
            self.drop_oldest_ahead(cx.arena);
            self.count_waste(1);
        }
        let n = self.ring.push(block, frame, cx.now_ns);
        self.near.insert(block, Near::Ahead(n));
        self.ahead_used += 1;
    }
}

/// Copies out the part of `block` that the request asks for.
fn copy_part<E: Effects>(fx: &mut E, req: &Request, block: u64, bytes: &[u8]) {
    let start = block * B;
    let lo = req.offset.max(start);
    let hi = (req.offset + req.len).min(start + B);
    fx.copy_out(req.id, (lo - req.offset) as usize, &bytes[(lo - start) as usize..(hi - start) as usize]);
}
