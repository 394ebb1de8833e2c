//! The thread that writes a recording: takes chunks from the taps, puts answers to their rows, writes row groups.
//!
//! Owns the file and the end of the recording. Never wakes a worker or is waited for by one. Invariants: the rows of a
//! worker are written in their order; the file never grows past its limit, nor its disk past what it had promised.

use super::file::RecordFile;
use super::{Order, Progress, Reason, Shared, lock, trailer};
use crate::worker::{Chunk, WorkerHandle};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};
use undercroft_cache::DiskId;
use undercroft_host::now_ns;
use undercroft_trace::recording::{Disk, DiskEnd, Failure, GAPS_MAX, GROUP_ROWS, Gap, Op, Row, Writer};

/// Pause between two looks at what has come: no worker has to wake anybody.
const PAUSE: Duration = Duration::from_millis(20);
/// The niceness of the thread: a weight of 110, where a guest has 1024.
const NICE: i32 = 10;
/// Rows of a worker that wait for an answer, or stand behind one that does, at most; then they go without.
const WAITING_MAX: usize = 4 * GROUP_ROWS;
/// A row group smaller than this is not worth its header: the file is full.
const ROWS_MIN: usize = 64;

/// What has been written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests in the file, or about to be.
    pub rows: u64,
    /// Requests that should be and are not.
    pub dropped: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Blocks that reads found in RAM, read ahead or not.
    pub hit_blocks: u64,
    /// Blocks that reads asked for.
    pub read_blocks: u64,
}

/// A disk that comes after the beginning.
pub struct Late {
    pub(super) worker: usize,
    pub(super) id: DiskId,
    pub(super) number: u16,
    pub(super) about: Disk,
}

/// Where a worker's chunks go back to, and its rows that wait for answers.
struct Desk {
    worker: Arc<WorkerHandle>,
    free: Sender<Chunk>,
    /// The number of the first row that waits.
    first: u64,
    waiting: VecDeque<Row>,
}

/// See the head of the file.
pub(super) struct Scribe {
    order: Order,
    writer: Writer<RecordFile>,
    shared: Arc<Shared>,
    chunks: Receiver<Chunk>,
    late: Receiver<Late>,
    desks: Vec<Desk>,
    /// Where each disk is: worker, id there, number.
    places: Vec<(usize, DiskId, u16)>,
    /// Rows for the next row group.
    ready: Vec<Row>,
    gaps: Vec<Gap>,
    tally: Tally,
    start_ns: u64,
    began: Instant,
}

impl Scribe {
    #[allow(clippy::too_many_arguments)]
    pub(super) fn new(
        order: Order,
        writer: Writer<RecordFile>,
        shared: Arc<Shared>,
        chunks: Receiver<Chunk>,
        late: Receiver<Late>,
        desks: Vec<(Arc<WorkerHandle>, Sender<Chunk>)>,
        places: Vec<(usize, DiskId, u16)>,
        start_ns: u64,
    ) -> Self {
        let desk = |(worker, free)| Desk { worker, free, first: 0, waiting: VecDeque::new() };
        Self {
            order,
            writer,
            shared,
            chunks,
            late,
            desks: desks.into_iter().map(desk).collect(),
            places,
            ready: Vec::with_capacity(GROUP_ROWS),
            gaps: Vec::new(),
            tally: Tally::default(),
            start_ns,
            began: Instant::now(),
        }
    }

    /// Records until something ends it, and ends the file.
    pub(super) fn run(mut self) {
        // Guests come first: where there are too few processors it gets a tenth of what one of them gets.
        let _ = rustix::process::setpriority_process(None, NICE);
        let (reason, mut failed) = loop {
            match self.take() {
                Ok(None) => {}
                Ok(Some(full)) => break (full, None),
                Err(e) => break (Reason::DiskFull, Some(e)),
            }
            self.tell(None, None);
            if let Some(reason) = self.over() {
                break (reason, None);
            }
            std::thread::park_timeout(PAUSE);
        };
        // Somebody waits for the end. Only root may go up again.
        let _ = rustix::process::setpriority_process(None, 0);
        let ended_ns = now_ns().saturating_sub(self.start_ns);
        let ends = self.end_taps();
        let mut reason = reason;
        if failed.is_none() {
            match self.take_rest() {
                Ok(None) => {}
                // It was over anyway; what does not fit is counted.
                Ok(Some(full)) => reason = full,
                Err(e) => failed = Some(e),
            }
        }
        let path = self.order.path.display().to_string();
        if let (Some(first), Some(last)) = (self.ready.first(), self.ready.last()) {
            let dropped = self.ready.len() as u64;
            self.tally.dropped += dropped;
            let (from_ns, to_ns) = (first.time_ns.min(last.time_ns), ended_ns);
            self.note_gap(Gap { worker: u32::MAX, from_ns, to_ns, dropped });
        }
        let Self { writer, gaps, mut tally, shared, began, .. } = self;
        tally.rows = writer.rows();
        let handle = writer.file().handle();
        if failed.is_none() {
            let mut ends = ends;
            ends.resize(writer.header().disks.len(), DiskEnd { detached: true, ..DiskEnd::default() });
            let end = trailer(ended_ns, reason, tally.dropped, gaps, ends);
            let settled = writer.finish(end).map_err(|e| e.to_string()).and_then(|bytes| {
                tally.bytes = bytes;
                handle.and_then(|f| RecordFile::settle(&f)).map_err(|e| e.to_string())
            });
            failed = settled.err();
        }
        match &failed {
            Some(e) => tracing::error!("the recording into {path} is of no use: {e}"),
            None => tracing::info!(
                rows = tally.rows,
                dropped = tally.dropped,
                reason = reason.name(),
                "recording into {path} ended"
            ),
        }
        let elapsed = began.elapsed();
        *lock(&shared.progress) = Progress { tally, elapsed, ended: Some(reason.name()), failed };
    }

    /// Says how it stands.
    fn tell(&self, ended: Option<&'static str>, failed: Option<String>) {
        let mut tally = self.tally;
        tally.rows = self.writer.rows() + self.ready.len() as u64;
        tally.bytes = self.writer.bytes();
        *lock(&self.shared.progress) = Progress { tally, elapsed: self.began.elapsed(), ended, failed };
    }

    /// Whether somebody or something has ended it.
    fn over(&self) -> Option<Reason> {
        let asked = [Reason::Stopped, Reason::DaemonStopped];
        let stop = self.shared.stop.load(Ordering::Relaxed);
        if let Some(reason) = asked.into_iter().find(|&r| r as u8 == stop) {
            return Some(reason);
        }
        if self.order.duration.is_some_and(|d| self.began.elapsed() >= d) {
            return Some(Reason::Duration);
        }
        let heard = *lock(&self.shared.heard);
        self.order.lease.is_some_and(|l| heard.elapsed() >= l).then_some(Reason::ClientGone)
    }

    /// Takes what has come. `Some` if the file can take no more.
    fn take(&mut self) -> Result<Option<Reason>, String> {
        self.take_late()?;
        while let Ok(chunk) = self.chunks.try_recv() {
            // A disk was sent before its rows.
            self.take_late()?;
            self.take_chunk(chunk);
            if self.ready.len() >= GROUP_ROWS
                && let Some(full) = self.write(GROUP_ROWS)?
            {
                return Ok(Some(full));
            }
        }
        Ok(None)
    }

    fn take_late(&mut self) -> Result<(), String> {
        while let Ok(late) = self.late.try_recv() {
            self.places.push((late.worker, late.id, late.number));
            self.writer.add_disk(late.about).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// Takes what came at the end, whether answered or not.
    fn take_rest(&mut self) -> Result<Option<Reason>, String> {
        let mut full = self.take()?;
        for desk in &mut self.desks {
            let rows = std::mem::take(&mut desk.waiting);
            rows.iter().for_each(|r| count(r, &mut self.tally));
            self.ready.extend(rows);
        }
        while full.is_none() && !self.ready.is_empty() {
            full = self.write(GROUP_ROWS)?;
        }
        // What came later than the file was full.
        while let Ok(chunk) = self.chunks.try_recv() {
            self.tally.dropped += chunk.dropped;
            self.ready.extend(chunk.rows);
        }
        Ok(full)
    }

    fn take_chunk(&mut self, mut chunk: Chunk) {
        let worker = chunk.worker;
        let desk = &mut self.desks[worker as usize];
        for (row, end) in chunk.ends.drain(..) {
            // Rows that have waited too long are written already.
            if let Some(row) = row.checked_sub(desk.first).and_then(|at| desk.waiting.get_mut(at as usize)) {
                end.fill(row);
            }
        }
        let answered = |r: &Row| r.failure != Some(Failure::Unanswered);
        while desk.waiting.front().is_some_and(|r| answered(r) || desk.waiting.len() > WAITING_MAX) {
            let Some(row) = desk.waiting.pop_front() else { break };
            desk.first += 1;
            count(&row, &mut self.tally);
            self.ready.push(row);
        }
        let whole = if desk.waiting.is_empty() {
            chunk.rows.iter().position(|r| !answered(r)).unwrap_or(chunk.rows.len())
        } else {
            0
        };
        let (now, later) = chunk.rows.split_at(whole);
        desk.first += now.len() as u64;
        now.iter().for_each(|r| count(r, &mut self.tally));
        self.ready.extend_from_slice(now);
        desk.waiting.extend(later);
        if chunk.dropped > 0 {
            self.tally.dropped += chunk.dropped;
            let (from_ns, to_ns) = chunk.dropped_ns;
            self.note_gap(Gap { worker, from_ns, to_ns, dropped: chunk.dropped });
        }
        chunk.rows.clear();
        chunk.dropped = 0;
        let _ = self.desks[worker as usize].free.send(chunk);
    }

    fn note_gap(&mut self, gap: Gap) {
        if self.gaps.len() < GAPS_MAX {
            self.gaps.push(gap);
        } else if let Some(last) = self.gaps.last_mut() {
            (last.from_ns, last.to_ns) = (last.from_ns.min(gap.from_ns), last.to_ns.max(gap.to_ns));
            (last.worker, last.dropped) = (u32::MAX, last.dropped + gap.dropped);
        }
    }

    /// Writes the first `most` of the rows that are ready, or as many as there is room for; `Some` if that is none.
    fn write(&mut self, most: usize) -> Result<Option<Reason>, String> {
        let mut rows = self.ready.len().min(most);
        let least = rows.min(ROWS_MIN);
        // What a row may take is several times what it does, so the last row groups become smaller and smaller.
        loop {
            let bytes = self.writer.bytes_bound(rows);
            let full = if bytes > self.order.bytes_max {
                Reason::MaxSize
            } else if !self.writer.file_mut().reserve(bytes).map_err(|e| e.to_string())? {
                Reason::DiskFull
            } else {
                break;
            };
            rows /= 2;
            if rows < least {
                return Ok(Some(full));
            }
        }
        self.writer.write(&self.ready[..rows]).map_err(|e| e.to_string())?;
        self.ready.drain(..rows);
        Ok(None)
    }

    /// Takes the taps off and asks how the disks stand; what they had noted is on its way after that.
    fn end_taps(&self) -> Vec<DiskEnd> {
        let mut ends = vec![DiskEnd { detached: true, ..DiskEnd::default() }; self.writer.header().disks.len()];
        for (n, desk) in self.desks.iter().enumerate() {
            let own: Vec<_> = self.places.iter().filter(|p| p.0 == n).map(|&(_, id, number)| (id, number)).collect();
            let told = desk.worker.call(move |w| {
                let watches =
                    |w: &mut crate::worker::Worker, id, number| w.tap().is_some_and(|t| t.watches(id, number));
                let own: Vec<_> = own.into_iter().filter(|&(id, number)| watches(w, id, number)).collect();
                w.end_record();
                let stand = |(id, number)| Some((number, w.core().policy(id)?.name().to_string(), w.core().stats(id)));
                own.into_iter().filter_map(stand).collect::<Vec<_>>()
            });
            for (number, policy, stats) in told.unwrap_or_default() {
                if let Some(end) = ends.get_mut(usize::from(number)) {
                    let (capacity_blocks, cached_blocks) = (stats.capacity_blocks, stats.cached_blocks);
                    *end = DiskEnd { detached: false, policy, capacity_blocks, cached_blocks };
                }
            }
        }
        ends
    }
}

fn count(row: &Row, tally: &mut Tally) {
    if row.op == Op::Read {
        let hits = u64::from(row.hit_blocks) + u64::from(row.ahead_blocks);
        tally.hit_blocks += hits;
        tally.read_blocks += hits + u64::from(row.joined_blocks) + u64::from(row.miss_blocks);
    }
}
