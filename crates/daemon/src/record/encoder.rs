//! The converter of a recording: reads notes, puts answers to their rows, writes row groups.
//!
//! Owns the file. Never decides when a recording ends, but says when its file can take no more. Invariants: the rows of
//! a worker are written in their order; the file and the spool together never grow past the recording's limit, and the
//! file only into space that its disk has reserved for it; every row is in the file or counted as dropped.

use super::file::RecordFile;
use super::gauges::{Gauges, LateAnswer, Message};
use super::{Reason, spool, trailer};
use crate::worker::{Damaged, Head, Note, read_notes};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;
use undercroft_host::{AlignedBuffer, idle};
use undercroft_trace::recording::{
    DiskEnd, GAPS_MAX, GROUP_ROWS, Gap, RecordedFailure, RecordedOp, RecordingWriter, Row, WriteError,
};

/// Pause between two looks at what has come: nobody wakes it.
const PAUSE: Duration = Duration::from_millis(20);
/// The niceness of converting: a weight of 110, where a guest has 1024.
pub(super) const NICE: i32 = 10;
/// Rows of a worker that wait for an answer, or stand behind one that does, at most; then they go without.
const WAITING_MAX: usize = 4 * GROUP_ROWS;
/// A row group smaller than this is not worth its header: the file is full.
const ROWS_MIN: usize = 64;

/// Why a recording's file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// It cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Its disk refuses something.
    #[error(transparent)]
    File(#[from] io::Error),
    /// The spool cannot be read.
    #[error("rows that had to wait cannot be read: {0}")]
    Spool(io::Error),
    /// What was noted is not what is read back.
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// The converter is gone.
    #[error("the thread that writes it failed; look into the log")]
    Thread,
}

/// What has been written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests in the file, or about to be.
    pub rows: u64,
    /// Requests that are missing in the file.
    pub dropped: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Blocks that reads found in RAM, read ahead or not.
    pub hit_blocks: u64,
    /// Blocks that reads asked for.
    pub read_blocks: u64,
}

/// A worker's rows that wait for answers.
#[derive(Default)]
struct PendingRows {
    /// The number of the first one.
    first: u64,
    waiting: VecDeque<Row>,
}

/// See the head of the file.
pub struct Encoder {
    bytes_max: u64,
    writer: RecordingWriter<RecordFile>,
    messages: Receiver<Message>,
    gauges: Arc<Gauges>,
    spool: Option<Arc<File>>,
    pending: Vec<PendingRows>,
    /// Rows for the next row group.
    ready: Vec<Row>,
    gaps: Vec<Gap>,
    tally: Tally,
    /// Rows for which there was no room any more, and when the first one came.
    lost: u64,
    lost_ns: u64,
    full: bool,
    // Kept, so that a message allocates nothing.
    rows: Vec<Row>,
    buffer: Option<AlignedBuffer>,
}

impl Encoder {
    /// A converter into `writer`, for `workers` workers.
    pub fn new(
        bytes_max: u64,
        writer: RecordingWriter<RecordFile>,
        messages: Receiver<Message>,
        gauges: Arc<Gauges>,
        spool: Option<Arc<File>>,
        workers: usize,
    ) -> Self {
        let mut encoder = Self {
            bytes_max,
            writer,
            messages,
            gauges,
            spool,
            pending: (0..workers).map(|_| PendingRows::default()).collect(),
            ready: Vec::with_capacity(GROUP_ROWS),
            gaps: Vec::new(),
            tally: Tally::default(),
            lost: 0,
            lost_ns: u64::MAX,
            full: false,
            rows: Vec::new(),
            buffer: None,
        };
        encoder.claim();
        encoder
    }

    /// Converts messages until the keeper takes over, and returns the converter to it; with an error, the file is of no
    /// use.
    pub fn run(mut self) -> (Self, Result<(), EncodeError>) {
        // Both are for this thread alone. What has no place to wait must not wait long.
        let _ = rustix::process::setpriority_process(None, NICE);
        if self.spool.is_some() {
            idle::only_idle_time();
        }
        self.gauges.tid.store(idle::thread_id(), Ordering::Relaxed);
        while !self.gauges.handed_over.load(Ordering::Relaxed) {
            match self.step() {
                Ok(true) => {}
                Ok(false) => std::thread::park_timeout(PAUSE),
                Err(e) => return (self, Err(e)),
            }
        }
        (self, Ok(()))
    }

    /// Converts one message; false if there is none.
    pub fn step(&mut self) -> Result<bool, EncodeError> {
        let message = match self.messages.try_recv() {
            Ok(message) => message,
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => return Ok(false),
        };
        if self.full {
            self.lose(message);
            return Ok(true);
        }
        let (rows, ..) = message.counts();
        match message {
            Message::Disk(disk) => drop(self.writer.add_disk(disk)?),
            Message::Here(chunk) => {
                self.take(&chunk.head, &chunk.buffer)?;
                self.gauges.give_back(chunk.buffer);
            }
            Message::There(head, slot) => {
                let mut buffer = self.buffer.take().unwrap_or_default();
                let read = self.spool.as_ref().map(|file| spool::read(file, slot, head.words, &mut buffer));
                read.transpose().map_err(EncodeError::Spool)?;
                self.gauges.slots_done.fetch_add(1, Ordering::Release);
                self.take(&head, &buffer)?;
                self.buffer = Some(buffer);
            }
        }
        // Those that are ready are few, and those that wait for answers cannot be written yet.
        self.gauges.rows_done.fetch_add(rows, Ordering::Relaxed);
        self.tell();
        Ok(true)
    }

    /// Drops all messages that are not read yet, and counts their rows. Rows that have been read are still written.
    pub fn give_up(&mut self) {
        while let Ok(message) = self.messages.try_recv() {
            self.lose(message);
        }
    }

    /// Counts the rows of a message as dropped.
    fn lose(&mut self, message: Message) {
        let (rows, dropped, from_ns) = message.counts();
        self.lost += rows + dropped;
        self.lost_ns = self.lost_ns.min(from_ns);
        self.gauges.rows_done.fetch_add(rows, Ordering::Relaxed);
        match message {
            // The file names it all the same. There are fewer disks in a daemon than a recording takes.
            Message::Disk(disk) => drop(self.writer.add_disk(disk)),
            Message::Here(chunk) => self.gauges.give_back(chunk.buffer),
            Message::There(..) => _ = self.gauges.slots_done.fetch_add(1, Ordering::Release),
        }
    }

    /// Says what the reads found so far.
    fn tell(&self) {
        Gauges::set(&self.gauges.hit_blocks, self.tally.hit_blocks);
        Gauges::set(&self.gauges.read_blocks, self.tally.read_blocks);
    }

    /// Says how large the file may become before the next word of it: by the row group at hand and one more. Takes
    /// space for the next row group from its disk before notes that wait can fill that: what waits would all be lost.
    fn claim(&mut self) {
        Gauges::set(&self.gauges.file_bytes, self.writer.bytes());
        Gauges::set(&self.gauges.claimed_bytes, self.writer.bytes_bound(2 * GROUP_ROWS));
        let mut rows = GROUP_ROWS;
        // The other half is for notes that wait: a row takes a fraction of its bound.
        let most = self.bytes_max.min(self.writer.file_mut().reserved() + self.writer.file_mut().free_bytes() / 2);
        while rows >= ROWS_MIN {
            let bytes = self.writer.bytes_bound(rows);
            // An error is for whoever writes.
            if bytes <= most && self.writer.file_mut().reserve(bytes).unwrap_or(true) {
                break;
            }
            rows /= 2;
        }
    }

    /// Takes a worker's notes; writes a row group if there is enough for one.
    fn take(&mut self, head: &Head, buffer: &AlignedBuffer) -> Result<(), EncodeError> {
        self.read(head, buffer)?;
        if self.ready.len() >= GROUP_ROWS {
            self.write(GROUP_ROWS)?;
        }
        Ok(())
    }

    fn read(&mut self, head: &Head, buffer: &AlignedBuffer) -> Result<(), EncodeError> {
        let pending = &mut self.pending[head.worker as usize];
        let rows = &mut self.rows;
        rows.clear();
        let answer = |rows: &mut Vec<Row>, waiting: &mut VecDeque<Row>, (row, end): LateAnswer| {
            // Rows that have waited too long are written already.
            let row = match row.checked_sub(head.first) {
                Some(at) => rows.get_mut(at as usize),
                None => row.checked_sub(pending.first).and_then(|at| waiting.get_mut(at as usize)),
            };
            if let Some(row) = row {
                end.fill(row);
            }
        };
        for note in read_notes(buffer.words().get(..head.words).unwrap_or_default(), head.base_ns) {
            match note? {
                Note::Row(row) => rows.push(row),
                Note::End(row, end) => answer(rows, &mut pending.waiting, (row, end)),
            }
        }
        head.ends.iter().for_each(|&late| answer(rows, &mut pending.waiting, late));
        let disks = self.writer.header().disks.len();
        if rows.len() as u64 != head.rows || rows.iter().any(|r| usize::from(r.disk) >= disks) {
            return Err(Damaged.into());
        }
        let answered = |r: &Row| r.failure != Some(RecordedFailure::Unanswered);
        while pending.waiting.front().is_some_and(|r| answered(r) || pending.waiting.len() > WAITING_MAX) {
            let Some(row) = pending.waiting.pop_front() else { break };
            pending.first += 1;
            count(&row, &mut self.tally);
            self.ready.push(row);
        }
        let whole =
            if pending.waiting.is_empty() { rows.iter().position(|r| !answered(r)).unwrap_or(rows.len()) } else { 0 };
        let (now, later) = rows.split_at(whole);
        pending.first += now.len() as u64;
        now.iter().for_each(|r| count(r, &mut self.tally));
        self.ready.extend_from_slice(now);
        pending.waiting.extend(later);
        if head.dropped > 0 {
            self.tally.dropped += head.dropped;
            let (from_ns, to_ns) = head.dropped_ns;
            self.note_gap(Gap { worker: head.worker, from_ns, to_ns, dropped: head.dropped });
        }
        Ok(())
    }

    fn note_gap(&mut self, gap: Gap) {
        if self.gaps.len() < GAPS_MAX {
            self.gaps.push(gap);
        } else if let Some(last) = self.gaps.last_mut() {
            (last.from_ns, last.to_ns) = (last.from_ns.min(gap.from_ns), last.to_ns.max(gap.to_ns));
            (last.worker, last.dropped) = (u32::MAX, last.dropped + gap.dropped);
        }
    }

    /// Writes the first `most` of the rows that are ready, or as many as there is room for; if that is none, the file
    /// is full.
    fn write(&mut self, most: usize) -> Result<(), EncodeError> {
        let mut rows = self.ready.len().min(most);
        let least = rows.min(ROWS_MIN);
        self.claim();
        // What a row may take is several times what it does, so the last row groups become smaller and smaller.
        loop {
            let bytes = self.writer.bytes_bound(rows);
            let full = if bytes + self.gauges.spool_bytes.load(Ordering::SeqCst) > self.bytes_max {
                Reason::MaxSize
            } else if !self.writer.file_mut().reserve(bytes)? {
                Reason::DiskFull
            } else {
                break;
            };
            rows /= 2;
            if rows < least {
                self.full = true;
                self.gauges.full.store(full as u8, Ordering::Relaxed);
                return Ok(());
            }
        }
        self.writer.write(&self.ready[..rows])?;
        self.ready.drain(..rows);
        self.claim();
        Ok(())
    }

    /// Takes the rows that wait for answers as they are, and writes all there are.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_rest(&mut self) -> Result<(), EncodeError> {
        for pending in &mut self.pending {
            let rows = std::mem::take(&mut pending.waiting);
            rows.iter().for_each(|r| count(r, &mut self.tally));
            self.ready.extend(rows);
        }
        while !self.full && !self.ready.is_empty() {
            self.write(GROUP_ROWS)?;
        }
        Ok(())
    }

    /// Ends the file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(mut self, ended_ns: u64, reason: Reason, mut ends: Vec<DiskEnd>) -> Result<Tally, EncodeError> {
        if let (Some(first), Some(last)) = (self.ready.first(), self.ready.last()) {
            self.lost += self.ready.len() as u64;
            self.lost_ns = self.lost_ns.min(first.time_ns).min(last.time_ns);
        }
        if self.lost > 0 {
            self.tally.dropped += self.lost;
            let (from_ns, dropped) = (self.lost_ns.min(ended_ns), self.lost);
            self.note_gap(Gap { worker: u32::MAX, from_ns, to_ns: ended_ns, dropped });
        }
        let Self { writer, gaps, mut tally, .. } = self;
        tally.rows = writer.rows();
        let handle = writer.file().handle()?;
        ends.resize(writer.header().disks.len(), DiskEnd { detached: true, ..DiskEnd::default() });
        let end = trailer(ended_ns, reason, tally.dropped, gaps, ends);
        tally.bytes = writer.finish(end)?;
        RecordFile::settle(&handle)?;
        Ok(tally)
    }
}

fn count(row: &Row, tally: &mut Tally) {
    if row.op == RecordedOp::Read {
        let hits = u64::from(row.hit_blocks) + u64::from(row.ahead_blocks);
        tally.hit_blocks += hits;
        tally.read_blocks += hits + u64::from(row.joined_blocks) + u64::from(row.miss_blocks);
    }
}
