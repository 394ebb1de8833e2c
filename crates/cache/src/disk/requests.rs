//! Requests under way, and the queues that they wait in.
//!
//! Owns the records of requests, and who is next. Never serves a request, never answers one.
//! Invariants: a request is in at most one queue, the one for what it waits for; requests that wait for frames get them
//! in order of arrival, but for the one that is being served, which keeps its place if it pauses; `pending` of a
//! request is the number of operations it owns plus the reads it has joined, and its record is removed only when that
//! is 0.

use super::B;
use super::reads::waiters::NONE;
use super::slab::Slab;
use crate::types::{Found, IoError, Op, Request};
use std::collections::VecDeque;
use std::ops::{Index, IndexMut, Range};

/// A request under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rec {
    pub req: Request,
    /// The next byte of the disk to deal with; everything before is done or under way.
    pub cursor: u64,
    /// Reads: blocks below this have been through the index.
    pub touched: u64,
    /// Reads: how those were found.
    pub found: Found,
    /// Operations owned and reads joined.
    pub pending: u32,
    parked: Parked,
    pub error: Option<IoError>,
    /// A read whose stream is told of it at its end: it paused before it was known whether it finds everything.
    pub untold: bool,
    /// A write: its segment that is being filled, while it is paused; else [`NONE`].
    pub segment: u32,
    /// A discard or write-zeroes that the disk has done: how far what is cached of its range has been dropped.
    pub drops: Drops,
    /// Nobody waits for an answer: it is a flush of the disk's own, or a planted bug has answered it already.
    pub answered: bool,
}

/// How far what is cached of a range has been dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drops {
    /// Nothing is to be dropped.
    Nothing,
    /// The blocks of the range are looked up; this one is next.
    Blocks(u64),
    /// The slots are looked through; this one is next. Blocks had changed their slots so often when the first was.
    Slots { next: u32, moves: u32 },
}

impl Rec {
    /// A request that has just come.
    pub(super) fn new(req: Request) -> Self {
        Self {
            req,
            cursor: req.offset,
            touched: 0,
            found: Found::default(),
            pending: 0,
            parked: Parked::No,
            error: None,
            untold: false,
            segment: NONE,
            drops: Drops::Nothing,
            answered: false,
        }
    }

    /// The byte after its range.
    pub(super) fn end(&self) -> u64 {
        self.req.offset + self.req.len
    }
}

/// What a request waits for, besides its own operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parked {
    /// Nothing.
    No,
    /// Its place in the queue of those that can go on.
    Ready,
    /// For one of its operations to end, because it has as many as it may, or goes step by step.
    Window,
    /// For frames, or a place in a table.
    Starved,
    /// A read: for the change that is active at its cursor, or for the read of its block that many have joined.
    Blocked,
    /// A change: for earlier ones that it overlaps.
    Overlapped,
    /// To be resumed: its event has copied enough.
    Paused,
}

/// See the head of the file. What a hit reads comes first.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Requests {
    /// Those to go on with before the event is over.
    ready: VecDeque<u32>,
    /// Those that wait for frames, in order of arrival.
    starved: VecDeque<u32>,
    /// The one of those that is being served: it alone may pass the others.
    served: Option<u32>,
    /// One that paused while it was being served: it has not taken its frames yet, and nobody is served before it.
    held: Option<u32>,
    /// Reads that wait for a change to end, or for a read of their block that many have joined.
    blocked: Vec<u32>,
    recs: Slab<Rec>,
}

impl Requests {
    /// At most `max` requests.
    pub(super) fn new(max: usize) -> Self {
        Self {
            ready: VecDeque::new(),
            starved: VecDeque::new(),
            served: None,
            held: None,
            blocked: Vec::new(),
            recs: Slab::new(max),
        }
    }

    /// Bytes that `max` requests and their queues hold at most.
    pub(super) const fn bytes_max(max: usize) -> usize {
        Slab::<Rec>::bytes_max(max) + 3 * 2 * max * size_of::<u32>()
    }

    /// Bytes held now.
    pub(super) fn memory_bytes(&self) -> usize {
        let queues = self.ready.capacity() + self.starved.capacity() + self.blocked.capacity();
        self.recs.memory_bytes() + queues * size_of::<u32>()
    }

    /// Requests under way.
    pub(super) fn len(&self) -> usize {
        self.recs.len()
    }

    /// Whether there is no room for one more.
    pub(super) fn is_full(&self) -> bool {
        self.recs.is_full()
    }

    /// Whether a flush is under way, of a port or the disk's own. Looks through all requests.
    pub(super) fn is_flushing(&self) -> bool {
        self.recs.iter().any(|(_, rec)| rec.req.op == Op::Flush)
    }

    /// Takes a request up; there is room for it.
    pub(super) fn insert(&mut self, rec: Rec) -> u32 {
        self.recs.insert(rec)
    }

    /// Takes a change up that may have to wait for earlier ones that it overlaps.
    pub(super) fn insert_overlapped(&mut self, req: Request) -> u32 {
        self.recs.insert(Rec { parked: Parked::Overlapped, ..Rec::new(req) })
    }

    /// Forgets a request that is to be answered.
    pub(super) fn remove(&mut self, rec: u32) -> Rec {
        let r = self.recs.remove(rec);
        assert!(r.pending == 0, "a request was answered with operations under way");
        r
    }

    // ---- waiting ----

    /// One of the operations that the request waits for has ended.
    pub(super) fn settle_one(&mut self, rec: u32, error: Option<IoError>) {
        let r = &mut self.recs[rec];
        r.pending -= 1;
        r.error = r.error.or(error);
        // One that waits for frames or for a change is driven once it has them, and sees then how it stands.
        if r.parked == Parked::Window || (r.parked == Parked::No && r.pending == 0) {
            r.parked = Parked::Ready;
            self.ready.push_back(rec);
        }
    }

    /// The request waits for one of its operations to end.
    pub(super) fn wait(&mut self, rec: u32) {
        self.recs[rec].parked = Parked::Window;
    }

    /// The request waits to be resumed.
    pub(super) fn pause(&mut self, rec: u32) {
        self.recs[rec].parked = Parked::Paused;
    }

    /// The same; one that is being served keeps its place until then.
    pub(super) fn pause_in_line(&mut self, rec: u32) {
        self.pause(rec);
        if self.served == Some(rec) {
            self.held = Some(rec);
        }
    }

    /// Whether the request waits to be resumed.
    pub(super) fn is_paused(&self, rec: u32) -> bool {
        self.recs.get(rec).is_some_and(|r| r.parked == Parked::Paused)
    }

    /// The request, a read, waits for the change that is active at its cursor, or for the read of its block.
    pub(super) fn block(&mut self, rec: u32) {
        self.recs[rec].parked = Parked::Blocked;
        self.blocked.push(rec);
    }

    /// A change or a read of these blocks is over: reads that waited for it go on.
    pub(super) fn unblock(&mut self, blocks: Range<u64>) {
        let Self { recs, blocked, ready, .. } = self;
        blocked.retain(|&r| {
            let wakes = blocks.contains(&(recs[r].cursor / B));
            if wakes {
                recs[r].parked = Parked::Ready;
                ready.push_back(r);
            }
            !wakes
        });
    }

    /// Whether a read waits for a change or another read.
    pub(super) fn any_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// No earlier change overlaps a change any more.
    pub(super) fn begins(&mut self, rec: u32) {
        self.ready.push_back(rec);
    }

    /// The request waits for frames: behind the others, or in front again if it was being served. With `first`, a
    /// planted bug, in front in any case.
    pub(super) fn starve(&mut self, rec: u32, first: bool) {
        self.recs[rec].parked = Parked::Starved;
        if self.served == Some(rec) || first {
            self.starved.push_front(rec);
        } else {
            self.starved.push_back(rec);
        }
    }

    /// Whether nobody waits for frames in front of the request.
    pub(super) fn is_first_in_line(&self, rec: u32) -> bool {
        self.starved.is_empty() && self.held.is_none() || self.served == Some(rec)
    }

    // ---- going on ----

    /// Whether some can go on, or wait for frames.
    #[inline]
    pub(super) fn any_waits(&self) -> bool {
        !self.ready.is_empty() || !self.starved.is_empty()
    }

    /// The request goes on. Whether it is a change that only begins.
    pub(super) fn unpark(&mut self, rec: u32) -> bool {
        std::mem::replace(&mut self.recs[rec].parked, Parked::No) == Parked::Overlapped
    }

    /// One that has kept its place is being served again, until [`Requests::served`]: whether the request is that.
    pub(super) fn serve_held(&mut self, rec: u32) -> bool {
        let is_held = self.held == Some(rec);
        if is_held {
            self.served = self.held.take();
        }
        is_held
    }

    /// The next one that can go on.
    pub(super) fn next_ready(&mut self) -> Option<u32> {
        self.ready.pop_front()
    }

    /// The first of those that wait for frames: it is being served until [`Requests::served`]. None while one that has
    /// paused keeps its place.
    pub(super) fn serve_next(&mut self) -> Option<u32> {
        if self.held.is_some() {
            return None;
        }
        let rec = self.starved.pop_front()?;
        self.served = Some(rec);
        Some(rec)
    }

    /// The one that was being served has been.
    pub(super) fn served(&mut self) {
        self.served = None;
    }

    /// Checks that nobody stands in a queue of an idle disk; for tests.
    pub(super) fn check_idle(&self) {
        assert!(self.blocked.is_empty() && self.starved.is_empty() && self.ready.is_empty() && self.held.is_none());
    }
}

impl Index<u32> for Requests {
    type Output = Rec;
    #[inline]
    fn index(&self, rec: u32) -> &Rec {
        &self.recs[rec]
    }
}

impl IndexMut<u32> for Requests {
    #[inline]
    fn index_mut(&mut self, rec: u32) -> &mut Rec {
        &mut self.recs[rec]
    }
}
