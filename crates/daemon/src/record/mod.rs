//! Recording what guests ask for: from taps on the workers to a Parquet file.
//!
//! Owns a recording under way, and what there is to say about it. Never holds up a request: the workers note, a keeper
//! takes the notes away, a converter writes the file in time that nobody else wants, and what finds no place meanwhile
//! is counted. Invariant: however a recording ends, but for a daemon that is killed, its file has an end and can be
//! read.

mod encoder;
mod file;
mod gauges;
mod keeper;
mod relay;
mod spool;
#[cfg(test)]
mod tests;

pub use encoder::Tally;
pub use file::{create, passed};

use crate::worker::{CHUNKS, Chunk, Tap, WorkerHandle};
use encoder::Encoder;
use file::RecordFile;
use gauges::Gauges;
use keeper::{ChunkReturn, Keeper, LateDisk, STOP_WITHIN};
use relay::{Relay, SPARES};
use spool::Spool;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use undercroft_api::record::Order;
use undercroft_cache::DiskId;
use undercroft_config::{ControlError, ControlErrorKind};
use undercroft_host::{nameless, now_ns};
use undercroft_trace::recording::{
    DISKS_MAX, DiskEnd, RecordedDisk, RecordingHeader, RecordingWriter, Trailer, VERSION,
};

/// The smallest limit of a recording that has a spool: a smaller one would be full of what waits.
const SPOOLED_MIN: u64 = 64 << 20;

/// Why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// Somebody stopped it.
    Stopped = 1,
    /// Its time was up.
    Duration,
    /// The file is as large as it may be.
    MaxSize,
    /// The disk of the file is full.
    DiskFull,
    /// Who started it does not ask for it any more.
    ClientGone,
    /// The daemon stops.
    DaemonStopped,
}

impl Reason {
    /// Its name, in the file and in the API.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Stopped => "stopped",
            Reason::Duration => "duration",
            Reason::MaxSize => "max-size",
            Reason::DiskFull => "disk-full",
            Reason::ClientGone => "client-gone",
            Reason::DaemonStopped => "daemon-stopped",
        }
    }
}

/// How a recording stands.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// What has been written.
    pub tally: Tally,
    /// Rows of it that are not converted.
    pub waiting: u64,
    /// Bytes on the disk in which some of those wait.
    pub spool_bytes: u64,
    /// How long it has gone on, or did.
    pub elapsed: Duration,
    /// Why it takes no more requests, if it does not.
    pub ending: Option<&'static str>,
    /// The same, once its file is whole.
    pub ended: Option<&'static str>,
    /// Why the file is of no use, if it is not.
    pub failed: Option<String>,
}

/// What the threads of a recording share.
struct Shared {
    progress: Mutex<Progress>,
    /// When somebody asked for it last.
    heard: Mutex<Instant>,
    /// 0, or a [`Reason`] to end.
    stop: AtomicU8,
    /// The daemon stops: what is not converted within `grace` is dropped.
    hurry: AtomicBool,
    grace: Duration,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|p| p.into_inner())
}

/// A disk to record.
pub struct Watched {
    /// Which worker has it, from 0.
    pub worker: usize,
    /// Its id there.
    pub id: DiskId,
    /// What is known of it besides what its core knows.
    pub about: RecordedDisk,
}

/// A recording, under way or ended.
pub struct Recorder {
    /// Its number; rises with each.
    pub id: u64,
    /// What was asked for.
    pub order: Order,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Disks that come later, on their way to the file.
    more: Sender<LateDisk>,
    start_ns: u64,
    next_number: u16,
}

/// What a file says of itself before its first row.
fn header(store_bytes: u64, sample: u32) -> RecordingHeader {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    RecordingHeader {
        format: VERSION,
        version: env!("CARGO_PKG_VERSION").to_string(),
        started_unix_ns: since_1970.as_nanos() as u64,
        block_bytes: undercroft_host::FRAME_BYTES as u32,
        store_bytes,
        sample,
        disks: Vec::new(),
    }
}

/// The place where rows wait, if there can be one: beside the file, or what was passed along with that.
fn spool_for(order: &Order, passed: Option<File>, gauges: &Arc<Gauges>) -> Option<Spool> {
    let beside = || nameless(order.path.parent().unwrap_or(Path::new("/"))).ok();
    let file = || if order.descriptor { passed } else { beside() };
    let spool = (order.bytes_max >= SPOOLED_MIN).then(file).flatten();
    let spool = spool.and_then(|file| Spool::new(file, order.bytes_max, gauges.clone()));
    if spool.is_none() {
        tracing::info!("rows are converted at once: there is no place where they could wait");
    }
    spool
}

fn failed(order: &Order, why: &str) -> ControlError {
    let error = format!("cannot record into {}: {why}", order.path.display());
    ControlError::new(ControlErrorKind::Failed, error, "look at the disk of that file, or name another")
}

/// What a recording needs of the disk that its file is on, before it begins.
pub struct Ready {
    order: Order,
    writer: RecordingWriter<RecordFile>,
    spool: Option<Spool>,
    gauges: Arc<Gauges>,
}

impl Ready {
    /// Begins the file and the place where rows wait: in `spool`, if whoever passed the file has passed one. Waits for
    /// a file system that does not answer.
    ///
    /// # Errors
    /// The file cannot be written, or its disk is full.
    pub fn new(order: Order, file: RecordFile, spool: Option<File>, store_bytes: u64) -> Result<Self, ControlError> {
        let header = header(store_bytes, order.sample.max(1));
        let mut writer = RecordingWriter::new(file, header).map_err(|e| failed(&order, &e.to_string()))?;
        let end_bytes = writer.bytes_bound(0);
        if !writer.file_mut().reserve(end_bytes).map_err(|e| failed(&order, &e.to_string()))? {
            return Err(failed(&order, "its disk is full"));
        }
        let gauges = Arc::new(Gauges::default());
        let spool = spool_for(&order, spool, &gauges);
        Ok(Self { order, writer, spool, gauges })
    }

    /// What was asked for.
    pub fn order(&self) -> &Order {
        &self.order
    }
}

impl Recorder {
    /// Begins: the taps of `workers`, then the threads.
    ///
    /// # Errors
    /// There can be no thread.
    pub fn start(
        id: u64,
        ready: Ready,
        workers: &[Arc<WorkerHandle>],
        watched: Vec<Watched>,
    ) -> Result<Self, ControlError> {
        let Ready { order, mut writer, spool, gauges } = ready;
        let start_ns = now_ns();
        let (to, chunks) = channel();
        let (more, late) = channel();
        let mut returns = Vec::new();
        let mut places = Vec::new();
        for (n, worker) in workers.iter().enumerate() {
            let (tap, free_chunks) = tap_of(n, start_ns, &order, &to);
            let own: Vec<(DiskId, u16)> =
                watched.iter().enumerate().filter(|(_, w)| w.worker == n).map(|(i, w)| (w.id, i as u16)).collect();
            places.extend(own.iter().map(|&(id, number)| (n, id, number)));
            let told = worker.call(move |w| begin(w, tap, own)).unwrap_or_default();
            returns.push((worker.clone(), free_chunks, told));
        }
        let mut now: Vec<Option<(u64, u64)>> = vec![None; watched.len()];
        returns
            .iter_mut()
            .flat_map(|(_, _, told)| told.drain(..))
            .for_each(|(at, stands)| now[usize::from(at)] = Some(stands));
        let count = watched.len() as u16;
        for (w, now) in watched.into_iter().zip(now) {
            let (capacity_blocks, cached_blocks) = now.unwrap_or_default();
            // There are fewer disks in a daemon than a recording takes.
            let _ = writer.add_disk(RecordedDisk { capacity_blocks, cached_blocks, ..w.about });
        }
        let shared = Arc::new(Shared::new(STOP_WITHIN));
        let (sender, messages) = keeper::messages();
        let file = spool.as_ref().map(Spool::file);
        let encoder = Encoder::new(order.bytes_max, writer, messages, gauges.clone(), file, workers.len());
        let keeper = Keeper {
            order: order.clone(),
            shared: shared.clone(),
            chunks,
            late,
            returns: returns.into_iter().map(|(worker, free, _)| ChunkReturn { worker, free }).collect(),
            places,
            disks: usize::from(count),
            relay: Relay::new(sender, gauges.clone(), spool, SPARES),
            gauges,
            start_ns,
            began: Instant::now(),
        };
        let spawn = || {
            let named = |name: &str| std::thread::Builder::new().name(name.into());
            let converter = named("undercroft-conv").spawn(move || encoder.run())?;
            named("undercroft-rec").spawn(move || keeper.run(converter))
        };
        let thread = spawn().map_err(|e| {
            for w in workers {
                let _ = w.send(|w| w.end_record());
            }
            failed(&order, &e.to_string())
        })?;
        Ok(Self { id, order, shared, thread: Some(thread), more, start_ns, next_number: count })
    }

    /// A disk that came after the recording began; nothing if it is not wanted, or the recording is over.
    pub fn watch(&mut self, worker: &Arc<WorkerHandle>, watched: Watched) {
        if !self.is_running() || !wants(&self.order, &watched.about) {
            return;
        }
        let (number, id) = (self.next_number, watched.id);
        if usize::from(number) >= DISKS_MAX {
            // Notes have no room for more, nor has the file.
            return tracing::warn!(
                "\"{}\" is not recorded: a recording has {DISKS_MAX} disks at most",
                watched.about.name
            );
        }
        let since_ns = now_ns().saturating_sub(self.start_ns);
        let stats = worker.call(move |w| w.core().stats(id)).unwrap_or_default();
        let (capacity_blocks, cached_blocks) = (stats.capacity_blocks, stats.cached_blocks);
        // The writer has to know it before its first row comes.
        let about = RecordedDisk { since_ns, capacity_blocks, cached_blocks, ..watched.about };
        if self.more.send(LateDisk { worker: watched.worker, id, number, about }).is_ok() {
            self.next_number += 1;
            let _ = worker.send(move |w| {
                if let Some(tap) = w.tap() {
                    tap.watch(id, number);
                }
            });
        }
    }

    /// Whether it goes on.
    pub(crate) fn is_running(&self) -> bool {
        lock(&self.shared.progress).ended.is_none()
    }

    /// How it stands; `heard` renews its lease.
    pub fn progress(&self, heard: bool) -> Progress {
        if heard {
            *lock(&self.shared.heard) = Instant::now();
        }
        lock(&self.shared.progress).clone()
    }

    /// Takes no more requests; the file becomes whole by and by. If the daemon stops, soon.
    pub(crate) fn ask_to_end(&self, reason: Reason) {
        if reason == Reason::DaemonStopped {
            self.shared.hurry.store(true, Ordering::Relaxed);
        }
        let _ = self.shared.stop.compare_exchange(0, reason as u8, Ordering::Relaxed, Ordering::Relaxed);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// Ends it and waits until its file is whole.
    pub fn end(&mut self, reason: Reason) {
        self.ask_to_end(reason);
        self.join(reason);
    }

    /// Whether its file is as whole as it will be; if a thread has failed, that becomes known here.
    pub fn is_over(&mut self) -> bool {
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            self.join(Reason::Stopped);
        }
        !self.is_running()
    }

    fn join(&mut self, reason: Reason) {
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            let mut progress = lock(&self.shared.progress);
            progress.ended.get_or_insert(reason.name());
            progress.failed.get_or_insert_with(|| "the thread that keeps it failed; look into the log".into());
        }
    }
}

impl Shared {
    fn new(grace: Duration) -> Self {
        Shared {
            progress: Mutex::default(),
            heard: Mutex::new(Instant::now()),
            stop: AtomicU8::new(0),
            hurry: AtomicBool::new(false),
            grace,
        }
    }
}

/// Whether a disk is to be recorded.
pub fn wants(order: &Order, disk: &RecordedDisk) -> bool {
    let all = order.disks.is_empty() && order.vms.is_empty();
    let short = disk.name.split_once(':').map(|(_, short)| short);
    let by_name = order.disks.iter().any(|d| *d == disk.name || Some(d.as_str()) == short);
    all || by_name || disk.vm.as_ref().is_some_and(|vm| order.vms.contains(vm))
}

/// A tap, and where its empty chunks go.
fn tap_of(worker: usize, start_ns: u64, order: &Order, to: &Sender<Chunk>) -> (Tap, Sender<Chunk>) {
    let (free_chunks, free): (Sender<Chunk>, Receiver<Chunk>) = channel();
    (1..CHUNKS).for_each(|_| drop(free_chunks.send(Chunk::default())));
    (Tap::new(worker as u32, start_ns, order.sample.max(1), to.clone(), free), free_chunks)
}

/// Puts a tap on a worker; returns how its disks stand at that moment: blocks that they may cache, and do.
fn begin(w: &mut crate::worker::Worker, mut tap: Tap, disks: Vec<(DiskId, u16)>) -> Vec<(u16, (u64, u64))> {
    let mut told = Vec::with_capacity(disks.len());
    for (id, number) in disks {
        let stats = w.core().stats(id);
        told.push((number, (stats.capacity_blocks, stats.cached_blocks)));
        tap.watch(id, number);
    }
    w.record(tap);
    told
}

/// The end of a file whose recording could say nothing more about its disks.
fn trailer(
    ended_ns: u64,
    reason: Reason,
    dropped: u64,
    gaps: Vec<undercroft_trace::recording::Gap>,
    disks: Vec<DiskEnd>,
) -> Trailer {
    Trailer { ended_ns, reason: reason.name().to_string(), dropped, gaps, disks, ..Trailer::default() }
}
