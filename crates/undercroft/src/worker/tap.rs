//! Where a worker notes its requests while a recording is on: a row each, in chunks that a writer takes away.
//!
//! Owns the chunk at hand and which requests still have no answer. Never waits for the writer, and allocates nothing
//! for a hit: where no chunk is free, requests are counted instead of noted. Invariant: rows of a worker are numbered
//! from 0 in the order in which the core dealt with the requests; every row that goes out without an answer is followed
//! by one, unless the recording ends first.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender};
use undercroft_cache::{DiskId, Found, IoError, Op, ReqId, Request};
use undercroft_host::FRAME_BYTES;
use undercroft_trace::recording::{self, Failure, Row, in_sample};

/// Rows of a chunk.
pub const CHUNK_ROWS: usize = 1024;
/// Chunks of a worker: what may be on the way to the writer, with what is being filled.
pub const CHUNKS: usize = 128;

/// Rows on their way to the writer.
#[derive(Default)]
pub struct Chunk {
    /// Which worker's.
    pub worker: u32,
    /// The rows; one without an answer so far says [`Failure::Unanswered`].
    pub rows: Vec<Row>,
    /// The answers to rows that went before, by their numbers.
    pub ends: Vec<(u64, End)>,
    /// Requests that were counted instead of noted, after the last row; and when the first and the last came.
    pub dropped: u64,
    /// See `dropped`.
    pub dropped_ns: (u64, u64),
}

/// How a request ended that was not answered at once.
#[derive(Clone, Copy, Debug)]
pub struct End {
    latency_ns: u64,
    found: Found,
    failure: Option<Failure>,
}

impl End {
    /// Fills the answer into its row.
    pub fn fill(&self, row: &mut Row) {
        row.latency_ns = Some(self.latency_ns);
        row.failure = self.failure;
        set_found(row, self.found);
    }
}

fn set_found(row: &mut Row, found: Found) {
    (row.hit_blocks, row.ahead_blocks) = (found.hits, found.ahead);
    (row.joined_blocks, row.miss_blocks) = (found.joined, found.missed);
}

/// The request that the core deals with.
#[derive(Clone, Copy)]
struct Current {
    req: ReqId,
    answered: bool,
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
    /// The number of its first row.
    first: u64,
    to: Sender<Chunk>,
    free: Receiver<Chunk>,
    /// Numbers of disks in the recording, by their ids here.
    disks: Vec<Option<u16>>,
    sample: u32,
    start_ns: u64,
    current: Option<Current>,
    waiting: HashMap<ReqId, Waiting>,
}

impl Tap {
    /// A tap of worker `worker` for a recording that began at `start_ns`; chunks go to `to` and come back empty, as
    /// [`Tap::chunk`] makes them, through `free`.
    pub fn new(worker: u32, start_ns: u64, sample: u32, to: Sender<Chunk>, free: Receiver<Chunk>) -> Self {
        Self {
            chunk: Self::chunk(worker),
            first: 0,
            to,
            free,
            disks: Vec::new(),
            sample,
            start_ns,
            current: None,
            waiting: HashMap::new(),
        }
    }

    /// An empty chunk. Its memory has been written once, so that the worker never waits for the kernel to find it.
    pub fn chunk(worker: u32) -> Chunk {
        let nothing = Row {
            time_ns: 0,
            disk: 0,
            client: 0,
            op: recording::Op::Flush,
            offset_bytes: 0,
            length_bytes: 0,
            hit_blocks: 0,
            ahead_blocks: 0,
            joined_blocks: 0,
            miss_blocks: 0,
            latency_ns: Some(1),
            failure: None,
        };
        let mut rows = vec![nothing; CHUNK_ROWS];
        rows.clear();
        Chunk { worker, rows, ..Chunk::default() }
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
    pub fn watches(&self, disk: DiskId, number: u16) -> bool {
        self.disks.get(disk.0 as usize).copied().flatten() == Some(number)
    }

    /// The disk is gone; its id may be used again.
    pub(super) fn forget(&mut self, disk: DiskId) {
        if let Some(number) = self.disks.get_mut(disk.0 as usize) {
            *number = None;
        }
    }

    /// A request is about to be put to the core.
    #[inline]
    pub(super) fn begin(&mut self, r: &Request, now_ns: u64) {
        self.current = None;
        let Some(Some(disk)) = self.disks.get(r.disk.0 as usize).copied() else { return };
        let op = match r.op {
            Op::Read => recording::Op::Read,
            Op::Write { .. } => recording::Op::Write,
            Op::Flush => recording::Op::Flush,
            Op::Discard => recording::Op::Discard,
            Op::WriteZeroes { .. } => recording::Op::WriteZeroes,
            Op::Status => return,
        };
        let mut row = Row {
            time_ns: now_ns.saturating_sub(self.start_ns),
            disk,
            client: r.id.port,
            op,
            offset_bytes: r.offset,
            length_bytes: r.len,
            hit_blocks: 0,
            ahead_blocks: 0,
            joined_blocks: 0,
            miss_blocks: 0,
            latency_ns: None,
            failure: None,
        };
        let (block, blocks) = row.blocks(FRAME_BYTES as u32);
        if self.sample > 1 && blocks > 0 && !self.sampled(block, blocks) {
            return;
        }
        if self.chunk.rows.len() == CHUNK_ROWS && !self.turn_over() {
            return self.drop_one(row.time_ns);
        }
        if op == recording::Op::Read {
            row.hit_blocks = blocks as u32;
        }
        self.chunk.rows.push(row);
        self.current = Some(Current { req: r.id, answered: false });
    }

    #[cold]
    fn sampled(&self, block: u64, blocks: u64) -> bool {
        // Ends soon, however long the range is: one of so many blocks is in the sample.
        (block..block + blocks).any(|b| in_sample(b, self.sample))
    }

    #[cold]
    fn drop_one(&mut self, time_ns: u64) {
        let chunk = &mut self.chunk;
        if chunk.dropped == 0 {
            chunk.dropped_ns.0 = time_ns;
        }
        chunk.dropped += 1;
        chunk.dropped_ns.1 = time_ns;
    }

    /// How the blocks of a read were found, if not all in RAM.
    pub(super) fn found(&mut self, req: ReqId, found: Found) {
        if self.current.is_some_and(|c| c.req == req && !c.answered) {
            if let Some(row) = self.chunk.rows.last_mut() {
                set_found(row, found);
            }
        } else if let Some(waiting) = self.waiting.get_mut(&req) {
            waiting.found = found;
        }
    }

    /// A request has its answer.
    #[inline]
    pub(super) fn replied(&mut self, req: ReqId, result: Result<(), IoError>, now_ns: u64) {
        match &mut self.current {
            Some(current) if current.req == req && !current.answered => {
                current.answered = true;
                if let Err(e) = result {
                    self.refused(e);
                }
            }
            _ => self.replied_late(req, result, now_ns),
        }
    }

    #[cold]
    fn refused(&mut self, e: IoError) {
        if let Some(row) = self.chunk.rows.last_mut() {
            row.failure = Some(failure(e));
            set_found(row, Found::default());
        }
    }

    #[cold]
    fn replied_late(&mut self, req: ReqId, result: Result<(), IoError>, now_ns: u64) {
        let Some(waiting) = self.waiting.remove(&req) else { return };
        let end = End {
            latency_ns: now_ns.saturating_sub(waiting.came_ns),
            found: waiting.found,
            failure: result.err().map(failure),
        };
        match waiting.row.checked_sub(self.first) {
            Some(at) => end.fill(&mut self.chunk.rows[at as usize]),
            None => self.chunk.ends.push((waiting.row, end)),
        }
    }

    /// The core has dealt with the request; if it has no answer yet, that is to come.
    #[inline]
    pub(super) fn applied(&mut self) {
        if let Some(current) = self.current.take()
            && !current.answered
        {
            self.wait_for(current.req);
        }
    }

    #[cold]
    fn wait_for(&mut self, req: ReqId) {
        let row = self.first + self.chunk.rows.len() as u64 - 1;
        if let Some(last) = self.chunk.rows.last_mut() {
            set_found(last, Found::default());
            last.failure = Some(Failure::Unanswered);
            let waiting = Waiting { row, came_ns: self.start_ns + last.time_ns, found: Found::default() };
            self.waiting.insert(req, waiting);
        }
    }

    /// Sends what there is to the writer, if there is anything and a chunk to go on with.
    pub(super) fn hand_over(&mut self) {
        if !self.chunk.rows.is_empty() || !self.chunk.ends.is_empty() || self.chunk.dropped > 0 {
            self.turn_over();
        }
    }

    /// Sends the last chunk.
    pub(super) fn finish(self) {
        let _ = self.to.send(self.chunk);
    }

    /// Sends the chunk away and takes an empty one; false if there is none.
    #[cold]
    fn turn_over(&mut self) -> bool {
        let Ok(next) = self.free.try_recv() else { return false };
        self.first += self.chunk.rows.len() as u64;
        // A writer that is gone wants nothing any more.
        let _ = self.to.send(std::mem::replace(&mut self.chunk, next));
        true
    }
}

fn failure(e: IoError) -> Failure {
    match e {
        IoError::Io => Failure::Io,
        IoError::NoSpace => Failure::NoSpace,
        IoError::Invalid => Failure::Invalid,
        IoError::ReadOnly => Failure::ReadOnly,
        IoError::Unsupported => Failure::Unsupported,
        IoError::Shutdown => Failure::Shutdown,
    }
}
