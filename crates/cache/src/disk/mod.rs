//! One disk of a core: what is cached, what is under way, and who waits for what.
//!
//! Owns all state of the disk and the rules that fill.rs (reads), write.rs and range.rs build on. Never looks at
//! another disk; takes frames from the core's arena only within its own allowance.
//!
//! Invariants, beside those of the parts:
//! 1. A frame sits in a slot only if its bytes are what the disk holds, or held when a change of the block began that
//!    is still active.
//! 2. A block is read from the disk only while no active change covers it. A read that was under way when a change
//!    began is stale: those who waited for it get it, nobody else does.
//! 3. Nothing waits while it holds frames. An operation has all its frames when it is submitted, and gives them back
//!    when it completes; so whoever waits for frames gets them.
//! 4. `pending` of a request is the number of operations it owns plus the reads it has joined; it is answered when
//!    that is 0 and its cursor is at its end, once.

mod admission;
pub(crate) mod allowance;
mod check;
mod guest;
pub(crate) mod parts;
mod reads;
mod records;
pub(crate) mod sharing;
mod slab;
mod slots;
mod writes;

use crate::disk::allowance::{Allowance, block_bytes, hash_buckets};
use crate::disk::guest::GuestSide;
use crate::disk::parts::DiskParts;
use crate::disk::reads::ahead::{AheadRing, Streams};
use crate::disk::reads::fetch::Fetch;
use crate::disk::records::{NEAR_ENTRY_BYTES, Near, NearHash, NearTable, OpRec, Parked, Rec, Waiter, What};
use crate::disk::sharing::Sharing;
use crate::disk::slab::Slab;
use crate::disk::writes::changes::Changes;
use crate::disk::writes::losses::Losses;
use crate::disk::writes::segment::Segment;
use crate::fault_injection::{Bug, FaultInjection};
use crate::limits::{IO_BLOCKS_MAX, SPARE_LISTS_MAX};
use crate::store::ram::Store;
use crate::types::{
    CoreOptions, DiskId, DiskOptions, DiskStats, Effects, Io, IoDone, IoError, IoKind, Op, OpId, Paused, Request,
};
use std::collections::VecDeque;
use std::mem::size_of;
use undercroft_engine::shares::Hint;
use undercroft_engine::{ExclusiveMode, HashKey, Index, Meter};
use undercroft_host::{FRAME_BYTES, Frame, Held, IoBuf};

/// Bytes of a block.
pub(crate) const B: u64 = FRAME_BYTES as u64;

/// Bytes of a disk's own record.
pub(crate) const DISK_BYTES: usize = 2304;

/// What a disk's methods need of the core while they run.
pub(crate) struct Cx<'a, E> {
    pub fx: &'a mut E,
    pub arena: &'a mut Store,
    pub now_ns: u64,
    /// Bytes that the event may still copy for requests; the one that finds 0 here pauses.
    pub left: u64,
}

/// One disk of a core; see the head of the file.
///
/// What a hit reads comes first, in as few lines of the processor's cache as it takes: with a thousand disks each has
/// left it when its next request comes.
#[repr(C, align(64))]
pub(crate) struct Disk<P> {
    pub id: DiskId,
    pub closing: bool,
    /// Stands on the core's list of those with something to do once the replies are out.
    pub spare_listed: bool,
    pub contents: bool,
    /// Blocks that are too many are to go once the replies are out.
    pub shrinks: bool,
    pub can_write_zeroes: bool,
    /// Bytes that can be reached: the size, cut to the alignment.
    pub size: u64,
    pub options: DiskOptions,
    /// The frame of each slot, if its block is here.
    pub frames: Vec<Option<Held>>,
    /// What its requests are worth at other sizes, if somebody wants to know.
    pub meter: Option<Box<Meter>>,
    /// What its parts have and did, if it has any.
    pub parts: Option<Box<DiskParts>>,
    /// The capacity asked for.
    pub blocks: u32,
    /// The capacity that is paid for: more than that while the disk shrinks.
    pub paid: u32,
    /// The slots for it; the index follows step by step when it shrinks.
    pub target: u32,
    pub resident: u32,
    /// Requests to go on with before the event is over.
    pub ready: VecDeque<u32>,
    /// Requests that wait for frames, in order of arrival.
    pub starved: VecDeque<u32>,
    /// What it shares, and with whom.
    pub sharing: Sharing,
    /// The guest's side.
    pub side: GuestSide,
    pub index: Index,
    pub stats: DiskStats,
    pub streams: Streams,

    pub align: u64,
    /// Bytes that one event copies: [`CoreOptions::step_bytes`].
    pub step_bytes: u64,
    pub allowance: Allowance,
    pub plant: P,
    pub hash_seed: u64,
    /// The hash of each slot's content, if contents are known at all; 0 if this one is not.
    pub hashes: Vec<u64>,
    /// Bytes of the core's ceiling that one block of capacity takes.
    pub block_bytes_promised: u64,
    /// Blocks of the capacity whose memory the table of guest pages has, and the map of the base.
    pub overhead: u32,
    /// Frames that the disk may keep for now, if fewer than its capacity: memory is short elsewhere.
    pub limit: u32,
    /// How it will be used, as far as somebody knows.
    pub hint: Hint,
    /// What is read or written is the first to go, by that hint.
    pub first_to_go: bool,
    /// How far what will be needed has been fetched.
    pub fetch: Fetch,

    pub recs: Slab<Rec>,
    pub ops: Slab<OpRec>,
    pub waiters: Slab<Waiter>,
    /// Segments of writes that paused while they were filled.
    pub segments: Slab<Segment>,
    pub near: NearTable,
    pub changes: Changes,
    pub ring: AheadRing,

    /// The one of those that wait for frames that is being served: it alone may pass the others.
    pub served: Option<u32>,
    /// Reads that wait for a change to end, or for a read of their block that many have joined.
    pub blocked: Vec<u32>,
    pub spare_lists: Vec<Vec<Frame>>,

    pub demand_used: usize,
    pub ahead_used: usize,
    /// Frames that the allowance for read-ahead is to have: it follows as those in use come free.
    pub ahead_target: usize,
    /// Read-ahead is not what the disk came with.
    pub ahead_changed: bool,
    pub ops_used: usize,
    pub seq: u32,
    /// Counts invalidations: what was submitted before one is not published after it.
    pub epoch: u32,
    /// What was lost of what was acknowledged, and who knows.
    pub losses: Losses,
}

/// Lines of the processor's cache from the start of a disk's record to the tags of its streams: what a hit reads and
/// counts.
pub(crate) const HOT_LINES: usize = std::mem::offset_of!(Disk<crate::fault_injection::NoFaults>, streams) / 64 + 2;

impl<P: FaultInjection> Disk<P> {
    pub(crate) fn new(
        id: DiskId,
        options: DiskOptions,
        allowance: Allowance,
        core: &CoreOptions,
        sharing: Sharing,
        plant: P,
    ) -> Self {
        let hash_seed = core.hash_seed;
        let mode = if core.contents { options.exclusive } else { ExclusiveMode::Off };
        let capacity = options.capacity_blocks;
        let mut frames = Vec::new();
        frames.reserve_exact(capacity as usize);
        frames.resize_with(capacity as usize, || None);
        let align = u64::from(options.align);
        Self {
            id,
            size: options.size_bytes / align * align,
            align,
            step_bytes: core.step_bytes,
            can_write_zeroes: options.can_write_zeroes,
            plant,
            index: Index::with_hash_key(options.policy, capacity, HashKey::from_seed(hash_seed)),
            hash_seed,
            frames,
            hashes: vec![0; if core.contents { capacity as usize } else { 0 }],
            contents: core.contents,
            block_bytes_promised: block_bytes(core),
            meter: None,
            parts: None,
            side: GuestSide::new(core.content_key, mode),
            sharing,
            overhead: 0,
            resident: 0,
            blocks: capacity,
            paid: capacity,
            target: capacity,
            limit: u32::MAX,
            hint: Hint::Normal,
            first_to_go: false,
            fetch: Fetch::NONE,
            recs: Slab::new(allowance.requests),
            ops: Slab::new(allowance.ops_of_any_kind()),
            waiters: Slab::new(allowance.waiters),
            segments: Slab::new(allowance.ops),
            near: NearTable::with_capacity_and_hasher(2 * allowance.near_blocks(), NearHash::new(hash_seed)),
            changes: Changes::default(),
            streams: Streams::new(options.readahead_bytes, allowance.ahead),
            ring: AheadRing::new(allowance.ahead),
            ready: VecDeque::new(),
            starved: VecDeque::new(),
            served: None,
            blocked: Vec::new(),
            spare_lists: Vec::new(),
            demand_used: 0,
            ahead_used: 0,
            ahead_target: allowance.ahead,
            ahead_changed: false,
            ops_used: 0,
            seq: 0,
            epoch: 0,
            losses: Losses::default(),
            closing: false,
            spare_listed: false,
            shrinks: false,
            stats: DiskStats::default(),
            allowance,
            options,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.recs.len() == 0 && self.ops.len() == 0
    }

    /// Bytes of metadata held now.
    pub(crate) fn metadata_bytes(&self) -> usize {
        let queues = self.ready.capacity() + self.starved.capacity() + self.blocked.capacity();
        let lists = self.spare_lists.len() + self.ops_used + self.allowance.ahead.min(self.ahead_used);
        size_of::<Self>()
            + self.index.memory_bytes()
            + self.frames.capacity() * size_of::<Option<Held>>()
            + self.recs.memory_bytes()
            + self.ops.memory_bytes()
            + self.waiters.memory_bytes()
            + self.segments.memory_bytes()
            + self.changes.memory_bytes()
            + self.ring.memory_bytes()
            + self.hashes.capacity() * size_of::<u64>()
            + self.side.memory_bytes()
            + self.meter.as_ref().map_or(0, |m| m.memory_bytes())
            + self.parts.as_ref().map_or(0, |p| p.memory_bytes())
            + self.sharing.memory_bytes()
            + self.losses.memory_bytes()
            + hash_buckets(2 * self.allowance.near_blocks()) * NEAR_ENTRY_BYTES
            + queues * size_of::<u32>()
            + lists * IO_BLOCKS_MAX * size_of::<Frame>()
    }

    /// The counters, with the gauges of this moment.
    pub(crate) fn stats(&self) -> DiskStats {
        DiskStats {
            cached_blocks: u64::from(self.resident),
            capacity_blocks: u64::from(self.blocks),
            limit_blocks: u64::from(self.limit.min(self.blocks)),
            inflight_requests: self.recs.len() as u64,
            inflight_ops: self.ops.len() as u64,
            ..self.stats
        }
    }

    /// Bytes of `block` that exist: the last one may be partial.
    #[inline]
    pub(crate) fn block_bytes(&self, block: u64) -> u64 {
        B.min(self.size - block * B)
    }

    // ---- frames ----

    /// Frames that request `rec` may take now for one operation: 0 if none are left, or others wait in front of it.
    pub(crate) fn room(&self, rec: u32) -> u64 {
        let in_turn = self.starved.is_empty() || self.served == Some(rec);
        if !in_turn || self.ops_used >= self.allowance.ops || self.waiters.is_full() {
            return 0;
        }
        (self.allowance.demand - self.demand_used) as u64
    }

    /// An empty list for the frames of an operation.
    pub(crate) fn list(&mut self) -> Vec<Frame> {
        self.spare_lists.pop().unwrap_or_else(|| Vec::with_capacity(IO_BLOCKS_MAX))
    }

    /// Takes `n` frames for an operation; the caller has seen to the allowance.
    pub(crate) fn take_frames(&mut self, n: u64, arena: &mut Store) -> Vec<Frame> {
        let mut list = self.list();
        list.extend((0..n).map(|_| arena.take().expect("the ceiling covers every disk's allowance")));
        list
    }

    /// Gives an operation's list back for the next one.
    pub(crate) fn spare_list(&mut self, list: Vec<Frame>) {
        debug_assert!(list.is_empty());
        if self.spare_lists.len() < SPARE_LISTS_MAX && list.capacity() == IO_BLOCKS_MAX {
            self.spare_lists.push(list);
        }
    }

    /// Frees all frames of a buffer.
    pub(crate) fn free(&mut self, mut buf: IoBuf, arena: &mut Store) {
        for f in buf.frames.drain(..) {
            arena.put(f);
        }
        self.spare_list(buf.frames);
    }

    // ---- operations ----

    /// Submits an operation.
    pub(crate) fn submit<E: Effects>(
        &mut self,
        what: What,
        kind: IoKind,
        offset: u64,
        len: u64,
        buf: IoBuf,
        cx: &mut Cx<'_, E>,
    ) -> u32 {
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
        self.seq = self.seq.wrapping_add(1);
        let seq = self.seq;
        let op = self.ops.insert(OpRec { seq, what });
        let id = OpId(u64::from(seq) << 32 | u64::from(op));
        cx.fx.submit(Io { op: id, disk: self.id, kind, offset, len, buf });
        op
    }

    /// An operation has completed.
    ///
    /// # Panics
    /// If there is no such operation: a back end reported it twice, or invented it.
    pub(crate) fn done<E: Effects>(&mut self, done: IoDone, cx: &mut Cx<'_, E>) {
        let i = done.op.0 as u32;
        let known = self.ops.get(i).is_some_and(|o| o.seq == (done.op.0 >> 32) as u32);
        assert!(known, "a back end reported an operation that is not under way");
        let op = self.ops.remove(i);
        if done.result.is_err() {
            self.stats.backend_errors += 1;
        }
        match op.what {
            What::Read(read) => self.read_done(read, done, cx),
            What::Again(again) => self.again_done(again, done, cx),
            What::Write(write) => self.write_done(write, done, cx),
            What::Merge(merge) => self.merge_done(merge, done, cx),
            What::Range { rec, from, to } => self.range_done(rec, from, to, done, cx),
            What::Plain { rec, since } => self.plain_done(rec, since, done, cx),
        }
    }

    // ---- requests ----

    /// One of the operations that request `rec` waits for has ended.
    pub(crate) fn settle_one(&mut self, rec: u32, error: Option<IoError>) {
        let r = &mut self.recs[rec];
        r.pending -= 1;
        r.error = r.error.or(error);
        // One that waits for frames or for a change is driven when its turn comes, and sees then how it stands.
        if r.parked == Parked::Window || (r.parked == Parked::No && r.pending == 0) {
            r.parked = Parked::Ready;
            self.ready.push_back(rec);
        }
    }

    /// Puts a request to wait for frames: behind the others, or in front again if it was being served.
    pub(crate) fn starve(&mut self, rec: u32) {
        self.recs[rec].parked = Parked::Starved;
        if self.served == Some(rec) || self.plant.has(Bug::LastComeFirstServed) {
            self.starved.push_front(rec);
        } else {
            self.starved.push_back(rec);
        }
    }

    /// Lets a request wait that has been served in part, because the event has copied as much as one should.
    #[cold]
    pub(crate) fn pause<E: Effects>(&mut self, rec: u32, cx: &mut Cx<'_, E>) {
        self.recs[rec].parked = Parked::Paused;
        cx.fx.paused(self.recs[rec].req.id, Paused { disk: self.id, rec });
    }

    /// Whether request `rec` waits to be resumed.
    pub(crate) fn is_paused(&self, rec: u32) -> bool {
        self.recs.get(rec).is_some_and(|r| r.parked == Parked::Paused)
    }

    /// Answers a request and forgets it.
    pub(crate) fn finish<E: Effects>(&mut self, rec: u32, cx: &mut Cx<'_, E>) {
        let r = self.recs.remove(rec);
        assert!(r.pending == 0, "a request was answered with operations under way");
        if !r.answered {
            if r.req.op == Op::Read {
                cx.fx.found(r.req.id, r.found);
            }
            self.answer(r.req, r.error.map_or(Ok(()), Err), cx);
        }
    }

    /// Counts and answers a request.
    #[inline]
    pub(crate) fn answer<E: Effects>(&mut self, req: Request, result: Result<(), IoError>, cx: &mut Cx<'_, E>) {
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
    }

    /// Goes on with a request.
    pub(crate) fn drive<E: Effects>(&mut self, rec: u32, cx: &mut Cx<'_, E>) {
        let r = &mut self.recs[rec];
        let was = std::mem::replace(&mut r.parked, Parked::No);
        match r.req.op {
            Op::Read => self.drive_read(rec, cx),
            Op::Write { .. } | Op::WriteZeroes { .. } => {
                if was == Parked::Turn {
                    self.activate(rec, cx.arena);
                }
                self.drive_write(rec, cx);
            }
            Op::Discard => {
                if was == Parked::Turn {
                    self.activate(rec, cx.arena);
                }
                self.drive_discard(rec, cx);
            }
            Op::Flush | Op::Status => self.finish(rec, cx),
        }
    }

    /// Goes on with everything that an event has set free.
    pub(crate) fn settle<E: Effects>(&mut self, cx: &mut Cx<'_, E>) {
        loop {
            while let Some(rec) = self.ready.pop_front() {
                self.drive(rec, cx);
            }
            let Some(rec) = self.starved.pop_front() else { break };
            self.served = Some(rec);
            let moved = self.room(rec) > 0;
            if moved {
                self.drive(rec, cx);
            } else {
                self.starve(rec);
            }
            self.served = None;
            if !moved {
                break;
            }
        }
    }

    // ---- changes ----

    /// A change begins: reads of its blocks under way become stale, and blocks read ahead are dropped.
    pub(crate) fn activate(&mut self, rec: u32, arena: &mut Store) {
        let (first, end) = self.changes.activate(rec);
        self.leave_base(first, end);
        self.doubt(first, end);
        self.make_stale(first, end, arena);
    }

    /// Takes blocks `first..end` out of the table of blocks near at hand.
    pub(crate) fn make_stale(&mut self, first: u64, end: u64, arena: &mut Store) {
        if self.near.is_empty() {
            return;
        }
        if end - first <= self.near.len() as u64 {
            for b in first..end {
                if let Some(&near) = self.near.get(&b) {
                    self.make_one_stale(b, near, arena);
                }
            }
        } else {
            let hit: Vec<(u64, Near)> =
                self.near.iter().filter(|(b, _)| (first..end).contains(b)).map(|(&b, &n)| (b, n)).collect();
            for (b, near) in hit {
                self.make_one_stale(b, near, arena);
            }
        }
    }

    fn make_one_stale(&mut self, block: u64, near: Near, arena: &mut Store) {
        match near {
            Near::Reading { op, at } => {
                if self.plant.has(Bug::StaleFill) {
                    return;
                }
                let What::Read(read) = &mut self.ops[op].what else { unreachable!("only reads are near at hand") };
                assert!(read.first + u64::from(at) == block, "the table of blocks near at hand is wrong");
                read.fresh &= !(1 << at);
                self.stats.stale_fills += 1;
            }
            Near::Ahead(n) => {
                if self.plant.has(Bug::AheadNotInvalidated) {
                    return;
                }
                let frame = self.ring.take(n);
                self.ahead_used -= 1;
                arena.put(frame);
                self.stats.readahead_wasted_blocks += 1;
            }
        }
        self.near.remove(&block);
    }

    /// A change is over: reads that waited for it go first, then the changes that it held up; so neither starves.
    pub(crate) fn finish_change<E: Effects>(&mut self, rec: u32, cx: &mut Cx<'_, E>) {
        let (first, end) = self.changes.leave(rec);
        self.finish(rec, cx);
        self.wake_blocked(first, end);
        self.changes.unblock(first, end, &mut self.ready);
    }

    /// Reads go on that wait for something to end at one of blocks `first..end`.
    pub(crate) fn wake_blocked(&mut self, first: u64, end: u64) {
        let Self { recs, blocked, ready, .. } = self;
        blocked.retain(|&r| {
            let wakes = (first..end).contains(&(recs[r].cursor / B));
            if wakes {
                recs[r].parked = Parked::Ready;
                ready.push_back(r);
            }
            !wakes
        });
    }
}

const _: () =
    assert!(size_of::<Disk<crate::fault_injection::NoFaults>>() <= DISK_BYTES, "the ceiling counts a disk as smaller");
