//! Operations under way at the back end, and what they may use: frames, places, lists.
//!
//! Owns the names of operations and the use of the disk's allowance. Never waits, never says what becomes of a frame.
//! Invariants: an operation has all its frames when it begins, and gives them back when it ends; frames under way stay
//! within the allowance; an operation ends once; the table of operations has room for as many as the allowance lets
//! begin, now and once its split has reached its target.

use super::allowance::Allowance;
use super::records::{ReadOp, What};
use super::slab::Slab;
use crate::limits::{IO_BLOCKS_MAX, LONG_LISTS_MAX, SHORT_LIST_FRAMES, SHORT_LISTS_MAX};
use crate::store::ram::Store;
use crate::types::OpId;
use undercroft_host::{Frame, IoBuf};

/// An operation under way.
#[derive(Clone, Copy, Debug)]
struct OpRec {
    /// Unique among all operations of the disk's life; the upper half of its `OpId`.
    seq: u32,
    what: What,
}

/// Which part of the allowance an operation's frames come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Budget {
    /// For reads and writes that requests wait for; such operations are counted, too.
    Demand,
    /// For read-ahead, so that it never keeps a request waiting.
    Ahead,
}

/// See the head of the file.
#[derive(Debug)]
pub(super) struct Operations {
    slab: Slab<OpRec>,
    allowance: Allowance,
    /// Frames that the allowance for read-ahead is to have: it follows as those in use come free.
    ahead_target: usize,
    seq: u32,
    /// Frames under way of each budget; those of blocks read ahead that wait to be used are not among them.
    demand: usize,
    ahead: usize,
    /// Of those, what is in slots already, of operations that have not ended.
    installed: usize,
    /// Operations with frames of the demand budget.
    count: usize,
    /// What the pool has been told that the disk has of it.
    loan: usize,
    /// Empty lists for the frames of the next operations: short ones, and those for the largest.
    short: Vec<Vec<Frame>>,
    long: Vec<Vec<Frame>>,
}

impl Operations {
    pub(super) fn new(allowance: Allowance) -> Self {
        let slab = Slab::new(allowance.ops_of_any_kind());
        let ahead_target = allowance.ahead;
        let (short, long) = (Vec::new(), Vec::new());
        Self {
            slab,
            allowance,
            ahead_target,
            seq: 0,
            demand: 0,
            ahead: 0,
            installed: 0,
            count: 0,
            loan: 0,
            short,
            long,
        }
    }

    /// Bytes that `max` operations hold at most, lists not counted.
    pub(super) const fn bytes_max(max: usize) -> usize {
        Slab::<OpRec>::bytes_max(max)
    }

    /// Bytes that lists of `frames` frames under way, and empty ones, hold at most. A list of the long kind has more
    /// frames than a short one has room for, so that no frame is in a list of more than that many places for it.
    pub(super) const fn lists_bytes_max(frames: usize) -> usize {
        let short = SHORT_LISTS_MAX * (size_of::<Vec<Frame>>() + SHORT_LIST_FRAMES * size_of::<Frame>());
        let long = LONG_LISTS_MAX * (size_of::<Vec<Frame>>() + IO_BLOCKS_MAX * size_of::<Frame>());
        short + long + frames * SHORT_LIST_FRAMES * size_of::<Frame>()
    }

    /// Bytes of metadata held now.
    pub(super) fn memory_bytes(&self) -> usize {
        let heads = (self.short.capacity() + self.long.capacity()) * size_of::<Vec<Frame>>();
        let empty = self.short.len() * SHORT_LIST_FRAMES + self.long.len() * IO_BLOCKS_MAX;
        let under_way = self.frames() * SHORT_LIST_FRAMES;
        self.slab.memory_bytes() + heads + (empty + under_way) * size_of::<Frame>()
    }

    /// What the disk may have under way.
    pub(super) fn allowance(&self) -> &Allowance {
        &self.allowance
    }

    // ---- the allowance's two parts ----

    /// Frames that the allowance for read-ahead is to have.
    pub(super) fn ahead_target(&self) -> usize {
        self.ahead_target
    }

    /// Whether it has them.
    #[inline]
    pub(super) fn is_split_settled(&self) -> bool {
        self.ahead_target == self.allowance.ahead
    }

    /// From now on the allowance for read-ahead is to have `target` frames, for whose tables there is memory. Returns
    /// how many operations with frames for requests there may be then.
    pub(super) fn aim_ahead(&mut self, target: usize) -> usize {
        self.allowance.promise_more(self.allowance.more_bytes(target));
        self.ahead_target = target;
        let then = self.allowance.with_ahead(target);
        self.slab.allow(then.ops_of_any_kind());
        then.ops
    }

    /// Moves the allowance towards its target as far as frames are free, with `waiting` blocks read ahead; with `cut`,
    /// whether they are or not (a planted mistake).
    pub(super) fn move_ahead(&mut self, waiting: usize, cut: bool) {
        let (now, target) = (self.allowance.ahead, self.ahead_target);
        let reached = if target > now {
            now + (target - now).min(self.allowance.demand - self.demand)
        } else {
            target.max(if cut { 0 } else { self.ahead + waiting })
        };
        self.allowance.split(reached);
    }

    /// Operations under way.
    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    // ---- frames ----

    /// Frames that one more operation of the demand budget may have by the allowance; 0 if there are as many operations
    /// as may be.
    pub(super) fn room(&self) -> usize {
        if self.count >= self.allowance.ops {
            return 0;
        }
        self.allowance.demand - self.demand
    }

    /// Frames of the demand budget under way.
    pub(super) fn demand(&self) -> usize {
        self.demand
    }

    /// What the pool has been told that the disk has of it, in frames.
    pub(super) fn loan(&self) -> usize {
        self.loan
    }

    /// The pool has been told.
    pub(super) fn set_loan(&mut self, loan: usize) {
        self.loan = loan;
    }

    /// Frames of read-ahead under way.
    pub(super) fn ahead(&self) -> usize {
        self.ahead
    }

    /// Frames under way, read-ahead included.
    pub(super) fn frames(&self) -> usize {
        self.demand + self.ahead - self.installed
    }

    /// Takes `n` frames for one operation; the caller has checked the allowance.
    pub(super) fn take_frames(&mut self, from: Budget, n: u64, arena: &mut Store) -> Vec<Frame> {
        match from {
            Budget::Demand => {
                self.demand += n as usize;
                self.count += 1;
            }
            Budget::Ahead => self.ahead += n as usize,
        }
        let (lists, room) = match n as usize > SHORT_LIST_FRAMES {
            true => (&mut self.long, IO_BLOCKS_MAX),
            false => (&mut self.short, SHORT_LIST_FRAMES),
        };
        let mut list = lists.pop().unwrap_or_else(|| Vec::with_capacity(room));
        let all = arena.take_for_io(n as usize, &mut list);
        assert!(all, "the ceiling covers what disks are guaranteed and the pool");
        list
    }

    /// The `n` frames of one operation are not under way any more; the caller decides what becomes of them.
    pub(super) fn release(&mut self, from: Budget, n: usize) {
        match from {
            Budget::Demand => {
                self.demand -= n;
                self.count -= 1;
            }
            Budget::Ahead => self.ahead -= n,
        }
    }

    /// A frame of an operation that has ended has its place elsewhere; the last ones are given back by
    /// [`Operations::release`].
    pub(super) fn placed(&mut self, from: Budget) {
        match from {
            Budget::Demand => self.demand -= 1,
            Budget::Ahead => self.ahead -= 1,
        }
    }

    /// `n` frames of one operation of the demand budget are in slots. Their room is given back when the operation ends:
    /// whoever waits for some would begin a small operation with it.
    pub(super) fn installed(&mut self, n: usize) {
        self.installed += n;
    }

    /// The operation has ended: its last `rest` frames are not under way any more, `installed` were not before.
    pub(super) fn release_installed(&mut self, installed: usize, rest: usize) {
        self.installed -= installed;
        self.release(Budget::Demand, installed + rest);
    }

    /// Gives an operation's list back for the next one.
    pub(super) fn spare_list(&mut self, list: Vec<Frame>) {
        debug_assert!(list.is_empty());
        let (lists, most) = match list.capacity() {
            SHORT_LIST_FRAMES => (&mut self.short, SHORT_LISTS_MAX),
            IO_BLOCKS_MAX => (&mut self.long, LONG_LISTS_MAX),
            _ => return,
        };
        if lists.capacity() == 0 {
            lists.reserve_exact(most);
        }
        if lists.len() < most {
            lists.push(list);
        }
    }

    /// Frees all frames of a buffer.
    pub(super) fn free(&mut self, mut buf: IoBuf, arena: &mut Store) {
        for f in buf.frames.drain(..) {
            arena.put(f);
        }
        self.spare_list(buf.frames);
    }

    // ---- operations ----

    /// An operation begins; returns its place, and its name for the back end.
    pub(super) fn begin(&mut self, what: What) -> (u32, OpId) {
        self.seq = self.seq.wrapping_add(1);
        let seq = self.seq;
        let op = self.slab.insert(OpRec { seq, what });
        (op, OpId(u64::from(seq) << 32 | u64::from(op)))
    }

    /// An operation has ended; returns what to do.
    ///
    /// # Panics
    /// If there is no such operation: a back end reported it twice, or invented it.
    pub(super) fn end(&mut self, id: OpId) -> What {
        let op = id.0 as u32;
        let known = self.slab.get(op).is_some_and(|o| o.seq == (id.0 >> 32) as u32);
        assert!(known, "a back end reported an operation that is not under way");
        self.slab.remove(op).what
    }

    /// A read of the SSD store that began before `before_ns`, if there is one.
    pub(super) fn late_read(&self, before_ns: u64) -> Option<u32> {
        let late = |op: &OpRec| match op.what {
            What::Read(ReadOp { stored: Some(_), since_ns, .. }) => since_ns < before_ns,
            _ => false,
        };
        self.slab.iter().find(|(_, op)| late(op)).map(|(at, _)| at)
    }

    /// When the operation at a place ends, this is to be done instead.
    pub(super) fn give_up(&mut self, op: u32, what: What) {
        self.slab[op].what = what;
    }

    /// The read at a place.
    pub(super) fn read_mut(&mut self, op: u32) -> &mut ReadOp {
        let What::Read(read) = &mut self.slab[op].what else { unreachable!("only reads are near at hand") };
        read
    }

    /// Checks the invariants, with `waiting` blocks read ahead; for tests.
    pub(super) fn check(&self, waiting: usize) {
        assert!(self.demand <= self.allowance.demand, "more frames under way than allowed");
        assert!(self.ahead + waiting <= self.allowance.ahead, "more frames read ahead than allowed");
    }

    /// Checks an idle disk; for tests.
    pub(super) fn check_idle(&self) {
        assert!(self.demand == 0 && self.count == 0 && self.installed == 0, "an idle disk has frames under way");
        assert!(self.ahead == 0, "an idle disk is reading");
    }
}
