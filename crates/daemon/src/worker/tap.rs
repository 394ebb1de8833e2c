//! Where a worker notes its requests while a recording is on: two words each, in buffers that a keeper takes away.
//!
//! Owns the buffer at hand and which requests still have no answer. Never waits for the keeper, and allocates nothing
//! for a hit: where no buffer is free, requests are counted instead of noted. Invariant: rows of a worker are numbered
//! from 0 in the order in which the core dealt with the requests; every row that goes out without an answer is followed
//! by one, unless the recording ends first.

use super::notes::{self, Asked, NOTE_WORDS, WAITS};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::mpsc::{Receiver, Sender};
use undercroft_cache::{DiskId, Found, IoError, Op, ReqId, Request};
use undercroft_host::{ALIGNED_WORDS, AlignedBuffer, FRAME_BYTES};
use undercroft_trace::recording::{self, RecordedFailure, Row, in_sample};

/// Chunks of a worker: what may be on the way to the keeper, with what is being filled.
pub const CHUNKS: usize = 64;
/// Words after which a chunk takes no row more: each may be followed by one end before the next.
const FULL: usize = ALIGNED_WORDS - 2 * NOTE_WORDS;

/// What there is to know of a chunk's notes.
#[derive(Default)]
pub struct Head {
    /// Which worker's.
    pub worker: u32,
    /// Words of its buffer that are written.
    pub words: usize,
    /// Nanoseconds from the start of the recording to which the times of the notes are relative.
    pub base_ns: u64,
    /// The number of its first row, and how many it has.
    pub first: u64,
    /// See `first`.
    pub rows: u64,
    /// Answers for which there was no room on the buffer, by the numbers of their rows.
    pub ends: Vec<(u64, End)>,
    /// Requests that were counted instead of noted, after the last row; and when the first and the last came.
    pub dropped: u64,
    /// See `dropped`.
    pub dropped_ns: (u64, u64),
}

/// Notes on their way.
#[derive(Default)]
pub struct Chunk {
    /// What there is to know of them.
    pub head: Head,
    /// Where they are: see `notes`.
    pub buffer: AlignedBuffer,
}

/// How a request ended whose blocks were not all found, or that was not answered at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Nanoseconds to the reply, if that did not come at once.
    pub latency_ns: Option<u64>,
    /// How the blocks of a read were found.
    pub found: Found,
    /// Why it failed, if it did.
    pub failure: Option<RecordedFailure>,
}

impl End {
    /// Fills the answer into its row.
    pub fn fill(&self, row: &mut Row) {
        row.latency_ns = self.latency_ns;
        row.failure = self.failure;
        (row.hit_blocks, row.ahead_blocks) = (self.found.hits, self.found.ahead);
        (row.joined_blocks, row.miss_blocks) = (self.found.joined, self.found.missed);
    }
}

/// Spreads the numbers of requests under way, which are the front ends' own and no secret: each is there once.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u32(u32::from(b)));
    }
    fn write_u32(&mut self, n: u32) {
        self.0 = (self.0.rotate_left(29) ^ u64::from(n)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

/// A request whose answer is still to come.
struct Waiting {
    row: u64,
    came_ns: u64,
    found: Found,
}

/// See the head of the file.
pub struct Tap {
    chunk: Chunk,
    /// The next row's number.
    next: u64,
    /// The second word of the last row.
    last: usize,
    to: Sender<Chunk>,
    free: Receiver<Chunk>,
    /// Chunks that have come back: the last one is next, for it is the likeliest to be in the processor's cache.
    empty: Vec<Chunk>,
    /// Numbers of disks in the recording, by their ids here.
    disks: Vec<Option<u16>>,
    sample: u32,
    start_ns: u64,
    waiting: HashMap<ReqId, Waiting, BuildHasherDefault<Spread>>,
}

impl Tap {
    /// A tap of worker `worker` for a recording that began at `start_ns`; chunks go to `to` and come back through
    /// `free`, whatever is in them.
    pub fn new(worker: u32, start_ns: u64, sample: u32, to: Sender<Chunk>, free: Receiver<Chunk>) -> Self {
        let head = Head { worker, ..Head::default() };
        Self {
            chunk: Chunk { head, buffer: AlignedBuffer::default() },
            next: 0,
            last: 0,
            to,
            free,
            empty: Vec::with_capacity(CHUNKS),
            disks: Vec::new(),
            sample,
            start_ns,
            waiting: HashMap::default(),
        }
    }

    /// Requests to `disk` are noted from now on, as those of number `number`.
    pub fn watch(&mut self, disk: DiskId, number: u16) {
        let at = disk.0 as usize;
        if self.disks.len() <= at {
            self.disks.resize(at + 1, None);
        }
        self.disks[at] = Some(number);
    }

    /// Whether requests to `disk` are noted as those of number `number`.
    pub(crate) fn watches(&self, disk: DiskId, number: u16) -> bool {
        self.disks.get(disk.0 as usize).copied().flatten() == Some(number)
    }

    /// The disk is gone; its id may be used again.
    pub(crate) fn forget(&mut self, disk: DiskId) {
        if let Some(number) = self.disks.get_mut(disk.0 as usize) {
            *number = None;
        }
    }

    /// A request is about to be put to the core; whether it is noted.
    #[inline]
    pub(crate) fn begin(&mut self, r: &Request, now_ns: u64) -> bool {
        let Some(Some(disk)) = self.disks.get(r.disk.0 as usize).copied() else { return false };
        let op = match r.op {
            Op::Read => recording::RecordedOp::Read,
            Op::Write { .. } => recording::RecordedOp::Write,
            Op::Flush => recording::RecordedOp::Flush,
            Op::Discard => recording::RecordedOp::Discard,
            Op::WriteZeroes { .. } => recording::RecordedOp::WriteZeroes,
            Op::Status => return false,
        };
        let time_ns = now_ns.saturating_sub(self.start_ns);
        if self.sample > 1 && !self.sampled(r) {
            return false;
        }
        if self.chunk.head.words > FULL && !self.turn_over(now_ns) {
            self.drop_one(time_ns);
            return false;
        }
        let asked = Asked { disk, client: r.id.port, op, offset_bytes: r.offset, length_bytes: r.len };
        let Chunk { head, buffer } = &mut self.chunk;
        self.last = head.words + 1;
        head.words = notes::put_row(buffer, head.words, head.base_ns, time_ns.wrapping_sub(head.base_ns), &asked);
        self.next += 1;
        true
    }

    #[cold]
    fn sampled(&self, r: &Request) -> bool {
        let block = r.offset / FRAME_BYTES as u64;
        // Ends soon, however long the range is: one of so many blocks is in the sample.
        r.len == 0
            || (block..=r.offset.saturating_add(r.len - 1) / FRAME_BYTES as u64).any(|b| in_sample(b, self.sample))
    }

    #[cold]
    fn drop_one(&mut self, time_ns: u64) {
        let head = &mut self.chunk.head;
        if head.dropped == 0 {
            head.dropped_ns.0 = time_ns;
        }
        head.dropped += 1;
        head.dropped_ns.1 = time_ns;
    }

    /// How the blocks of the last row were found, if not all in RAM: it has no answer yet.
    #[cold]
    pub(crate) fn found(&mut self, found: Found) {
        self.put_end(self.next - 1, End { latency_ns: None, found, failure: None });
    }

    /// The same for a row that waits.
    #[cold]
    pub(crate) fn found_late(&mut self, req: ReqId, found: Found) {
        if let Some(waiting) = self.waiting.get_mut(&req) {
            waiting.found = found;
        }
    }

    /// The request of the last row failed at once.
    #[cold]
    pub(crate) fn refused(&mut self, e: IoError) {
        self.put_end(self.next - 1, End { latency_ns: None, found: Found::default(), failure: Some(failure(e)) });
    }

    /// A request has its answer that was not answered at once.
    #[cold]
    pub(crate) fn replied_late(&mut self, req: ReqId, result: Result<(), IoError>, now_ns: u64) {
        let Some(waiting) = self.waiting.remove(&req) else { return };
        let latency_ns = Some(now_ns.saturating_sub(waiting.came_ns));
        self.put_end(waiting.row, End { latency_ns, found: waiting.found, failure: result.err().map(failure) });
    }

    fn put_end(&mut self, row: u64, end: End) {
        let Chunk { head, buffer } = &mut self.chunk;
        if head.words + NOTE_WORDS <= ALIGNED_WORDS {
            head.words = notes::put_end(buffer, head.words, row, &end);
        } else {
            // While a request is dealt with, its chunk stays; and no answer is ever dropped.
            head.ends.push((row, end));
        }
    }

    /// The core has dealt with the request of the last row, and its answer is still to come.
    #[cold]
    pub(crate) fn wait_for(&mut self, req: ReqId, now_ns: u64) {
        self.chunk.buffer.words_mut()[self.last] |= WAITS;
        self.waiting.insert(req, Waiting { row: self.next - 1, came_ns: now_ns, found: Found::default() });
    }

    /// Sends what there is to the keeper, if there is anything and a chunk to go on with.
    pub(crate) fn hand_over(&mut self, now_ns: u64) {
        let head = &self.chunk.head;
        if head.words > 0 || !head.ends.is_empty() || head.dropped > 0 {
            self.turn_over(now_ns);
        }
    }

    /// Sends the last chunk.
    pub(crate) fn finish(mut self) {
        self.chunk.head.rows = self.next - self.chunk.head.first;
        let _ = self.to.send(self.chunk);
    }

    /// Sends the chunk away and takes an empty one; false if there is none.
    #[cold]
    fn turn_over(&mut self, now_ns: u64) -> bool {
        self.empty.extend(self.free.try_iter());
        let Some(mut next) = self.empty.pop() else { return false };
        let worker = self.chunk.head.worker;
        self.chunk.head.rows = self.next - self.chunk.head.first;
        let base_ns = now_ns.saturating_sub(self.start_ns);
        next.head = Head { worker, base_ns, first: self.next, ..Head::default() };
        // A keeper that is gone wants nothing any more.
        let _ = self.to.send(std::mem::replace(&mut self.chunk, next));
        true
    }
}

fn failure(e: IoError) -> RecordedFailure {
    match e {
        IoError::Io | IoError::Lost => RecordedFailure::Io,
        IoError::NoSpace => RecordedFailure::NoSpace,
        IoError::Invalid => RecordedFailure::Invalid,
        IoError::ReadOnly => RecordedFailure::ReadOnly,
        IoError::Unsupported => RecordedFailure::Unsupported,
        IoError::Shutdown => RecordedFailure::Shutdown,
    }
}
