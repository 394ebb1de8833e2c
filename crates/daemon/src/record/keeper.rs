//! The thread that keeps a recording going: takes notes from the workers, passes them on, and sees to the end.
//!
//! Owns the end of the recording and what is told of it. Never wakes a worker, and converts nothing while the recording
//! goes on; so it needs little processor time and may run at normal priority. Invariant: however the recording ends,
//! all taps are off before its last row is converted.

use super::encoder::{EncodeError, Encoder, NICE};
use super::gauges::{Gauges, Message};
use super::relay::{Relay, Stuck};
use super::{Order, Progress, Reason, Shared, lock};
use crate::worker::{Chunk, WorkerHandle};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use undercroft_cache::DiskId;
use undercroft_host::{idle, now_ns};
use undercroft_trace::recording::{DiskEnd, RecordedDisk};

/// Pause between two looks at what has come: no worker has to wake anybody.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a daemon that stops goes on converting.
pub const STOP_WITHIN: Duration = Duration::from_secs(10);
/// Messages that are converted between two words about it.
const TELL_EVERY: u32 = 16;

/// A disk that comes after the beginning.
pub struct LateDisk {
    pub(super) worker: usize,
    pub(super) id: DiskId,
    pub(super) number: u16,
    pub(super) about: RecordedDisk,
}

/// Where a worker's chunks go back to.
pub struct ChunkReturn {
    pub(super) worker: Arc<WorkerHandle>,
    pub(super) free: Sender<Chunk>,
}

/// See the head of the file.
pub struct Keeper {
    pub(super) order: Order,
    pub(super) shared: Arc<Shared>,
    pub(super) chunks: Receiver<Chunk>,
    pub(super) late: Receiver<LateDisk>,
    pub(super) returns: Vec<ChunkReturn>,
    /// Where each disk is: worker, id there, number.
    pub(super) places: Vec<(usize, DiskId, u16)>,
    pub(super) disks: usize,
    pub(super) relay: Relay,
    pub(super) gauges: Arc<Gauges>,
    pub(super) start_ns: u64,
    pub(super) began: Instant,
}

/// What a converter's thread gives back.
pub type Converted = (Encoder, Result<(), EncodeError>);

impl Keeper {
    /// Records until something ends it, and ends the file.
    pub fn run(mut self, converter: JoinHandle<Converted>) {
        let (reason, stuck) = loop {
            if let Err(stuck) = self.take() {
                let Stuck(reason, chunk) = *stuck;
                break (reason, Some(chunk));
            }
            self.tell(None);
            if let Some(reason) = self.over() {
                break (reason, None);
            }
            if converter.is_finished() {
                // The file cannot be written.
                break (Reason::DiskFull, None);
            }
            std::thread::park_timeout(PAUSE);
        };
        let ended_ns = now_ns().saturating_sub(self.start_ns);
        let ends = self.end_taps();
        // No worker wants anything back any more.
        stuck.into_iter().for_each(|c| self.relay.last(c));
        self.take_late();
        while let Ok(chunk) = self.chunks.try_recv() {
            self.take_late();
            self.relay.last(chunk);
        }
        self.tell(Some(reason));
        // Somebody waits for the file now, but guests still come first.
        let _ = rustix::process::setpriority_process(None, NICE);
        self.gauges.handed_over.store(true, Ordering::Relaxed);
        converter.thread().unpark();
        match self.gauges.tid.load(Ordering::Relaxed) {
            0 => {}
            tid => drop(idle::ordinary(tid)),
        }
        let done = match converter.join() {
            Ok((encoder, Ok(()))) => self.convert(encoder, reason, ended_ns, ends),
            Ok((_, Err(e))) => Err(e),
            Err(_) => Err(EncodeError::Thread),
        };
        self.say_end(reason, done);
    }

    /// Converts what waits, and ends the file; for a daemon that stops, as much as it has time for.
    pub(super) fn convert(
        &mut self,
        mut encoder: Encoder,
        mut reason: Reason,
        ended_ns: u64,
        ends: Vec<DiskEnd>,
    ) -> Result<(Reason, super::Tally), EncodeError> {
        let mut until = None;
        let mut n = 0;
        while encoder.step()? {
            if let Some(spool) = self.relay.spool() {
                spool.settle(true);
            }
            n += 1;
            if n % TELL_EVERY == 0 {
                self.tell(Some(reason));
            }
            if self.shared.hurry.load(Ordering::Relaxed)
                && Instant::now() >= *until.get_or_insert_with(|| Instant::now() + self.shared.grace)
                && self.relay.waiting() > 0
            {
                let rows = self.relay.waiting();
                tracing::warn!("the daemon stops: {rows} requests of the recording are dropped");
                encoder.give_up();
                reason = Reason::DaemonStopped;
            }
        }
        encoder.write_rest()?;
        reason = self.full().unwrap_or(reason);
        Ok((reason, encoder.finish(ended_ns, reason, ends)?))
    }

    fn say_end(&self, reason: Reason, done: Result<(Reason, super::Tally), EncodeError>) {
        let path = self.order.path.display();
        let (reason, tally, failed) = match done {
            Ok((reason, tally)) => (reason, tally, None),
            Err(e) => (reason, self.progress(Some(reason)).tally, Some(e.to_string())),
        };
        match &failed {
            Some(e) => tracing::error!("the recording into {path} is of no use: {e}"),
            None => tracing::info!(
                rows = tally.rows,
                dropped = tally.dropped,
                reason = reason.name(),
                "recording into {path} ended"
            ),
        }
        let name = Some(reason.name());
        let elapsed = lock(&self.shared.progress).elapsed;
        *lock(&self.shared.progress) =
            Progress { tally, elapsed, ending: name, ended: name, failed, ..Progress::default() };
    }

    fn progress(&self, ending: Option<Reason>) -> Progress {
        let (rows, dropped) = self.relay.counts();
        let look = |gauge: &std::sync::atomic::AtomicU64| gauge.load(Ordering::Relaxed);
        let g = &self.gauges;
        let tally = super::Tally {
            rows,
            dropped,
            bytes: look(&g.file_bytes),
            hit_blocks: look(&g.hit_blocks),
            read_blocks: look(&g.read_blocks),
        };
        Progress {
            tally,
            waiting: self.relay.waiting(),
            spool_bytes: look(&g.spool_bytes),
            elapsed: self.began.elapsed(),
            ending: ending.map(Reason::name),
            ended: None,
            failed: None,
        }
    }

    /// Says how it stands. What is over takes no more time.
    fn tell(&self, ending: Option<Reason>) {
        let mut now = self.progress(ending);
        let mut told = lock(&self.shared.progress);
        if told.ending.is_some() {
            now.elapsed = told.elapsed;
        }
        *told = now;
    }

    fn full(&self) -> Option<Reason> {
        let full = self.gauges.full.load(Ordering::Relaxed);
        [Reason::MaxSize, Reason::DiskFull].into_iter().find(|&r| r as u8 == full)
    }

    /// Whether somebody or something has ended it.
    fn over(&self) -> Option<Reason> {
        let asked = [Reason::Stopped, Reason::DaemonStopped];
        let stop = self.shared.stop.load(Ordering::Relaxed);
        if let Some(reason) = asked.into_iter().find(|&r| r as u8 == stop).or(self.full()) {
            return Some(reason);
        }
        if self.order.duration.is_some_and(|d| self.began.elapsed() >= d) {
            return Some(Reason::Duration);
        }
        let heard = *lock(&self.shared.heard);
        self.order.lease.is_some_and(|l| heard.elapsed() >= l).then_some(Reason::ClientGone)
    }

    /// Takes what has come and passes it on.
    fn take(&mut self) -> Result<(), Box<Stuck>> {
        self.take_late();
        while self.relay.look() {
            let Ok(chunk) = self.chunks.try_recv() else { break };
            // A disk was sent before its rows.
            self.take_late();
            let worker = chunk.head.worker as usize;
            let empty = self.relay.pass(chunk)?;
            let _ = self.returns[worker].free.send(empty);
        }
        Ok(())
    }

    fn take_late(&mut self) {
        while let Ok(late) = self.late.try_recv() {
            self.places.push((late.worker, late.id, late.number));
            self.disks += 1;
            self.relay.disk(late.about);
        }
    }

    /// Takes the taps off and asks how the disks stand; what they had noted is on its way after that.
    fn end_taps(&self) -> Vec<DiskEnd> {
        let mut ends = vec![DiskEnd { detached: true, ..DiskEnd::default() }; self.disks];
        for (n, free_chunks) in self.returns.iter().enumerate() {
            let own: Vec<_> = self.places.iter().filter(|p| p.0 == n).map(|&(_, id, number)| (id, number)).collect();
            let told = free_chunks.worker.call(move |w| {
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

/// A channel to the converter.
pub fn messages() -> (Sender<Message>, Receiver<Message>) {
    std::sync::mpsc::channel()
}
