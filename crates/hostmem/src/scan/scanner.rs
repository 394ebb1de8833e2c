//! The scan's thread: passes over the memory of the daemon's guests, and what they tell the cache.
//!
//! Owns the thread, the index and the rhythm. Never reads a byte in place, never holds up a worker: what it finds goes
//! to the cache in small batches, between two turns of the worker. Invariants: the thread's processor time stays under
//! its ceiling; a pass that fails for one guest goes on with the next; a stop is noticed within one batch and one
//! sleep.

mod pass;

use self::pass::Scan;
use super::control::{Limits, Memory, ScanControl};
use super::hash::PageHash;
use super::index::ContentIndex;
use super::source::{Source, Walked};
use super::throttle::Throttle;
use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use undercroft_cache::{ContentHash, ContentKey};
use undercroft_host::foreign::{Batch, PageRun};
use undercroft_host::idle;
use undercroft_host::{now_ns, set_thread_name};

/// Hashes told to the cache at once: what a worker looks up in a few tens of microseconds.
pub const TELL_MAX: usize = 256;

/// How to scan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Ceiling of processor time, in percent of one core.
    pub cpu_percent: f64,
    /// When to scan.
    pub limits: Limits,
    /// Most that the index may hold, in bytes.
    pub index_bytes: usize,
}

/// A guest, as found at the beginning of a pass.
pub struct ScanGuest<D> {
    /// For messages.
    pub name: String,
    /// Its memory.
    pub ram: Vec<Source>,
    /// The disks that it may hold blocks of.
    pub disks: Vec<D>,
    /// For each piece of `ram` the pages that may have changed since the pass before, in order, if the kernel knows.
    pub changed: Option<Vec<Vec<PageRun>>>,
}

/// What a cache did with contents that a guest holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Blocks of the disk with one of these contents.
    pub blocks: u64,
    /// Of those, blocks that were not known to be held twice, and now are.
    pub cooled: u64,
}

/// The daemon, as the scan sees it.
pub trait Cache: Send {
    /// What names a disk.
    type Disk: Clone + Send;

    /// The guests of now, and what is wrong with those that cannot be scanned, in words.
    fn guests(&mut self) -> (Vec<ScanGuest<Self::Disk>>, Vec<String>);

    /// The state of the cache's memory.
    fn memory(&mut self) -> Memory;

    /// A guest with this disk holds these contents, at most [`TELL_MAX`]. `None` if the disk is gone.
    fn held_by_guest(&mut self, disk: &Self::Disk, contents: &[ContentHash]) -> Option<Told>;
}

/// What the scan has done since it started, and how it stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScanReport {
    /// Passes finished.
    pub passes: u64,
    /// Guests in the last pass.
    pub guests: u64,
    /// Pages met, by what became of them.
    pub walked: Walked,
    /// Pages of zeroes.
    pub zero_pages: u64,
    /// Pages whose content had not changed since the pass before.
    pub unchanged_pages: u64,
    /// Pages equal to one met earlier in the same pass.
    pub equal_pages: u64,
    /// Of those, found by looking ahead.
    pub lookahead_hits: u64,
    /// Look-aheads that found nothing.
    pub lookahead_misses: u64,
    /// Contents that the index had no room for.
    pub unindexed: u64,
    /// Pages not read because the kernel knows that they have not changed.
    pub unread_pages: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Blocks of disks found in guests, once for every pass.
    pub found_blocks: u64,
    /// Blocks that became the first to go.
    pub cooled_blocks: u64,
    /// Processor time used, nanoseconds.
    pub cpu_ns: u64,
    /// How long the last pass took, nanoseconds.
    pub pass_ns: u64,
    /// Time between passes as of now, nanoseconds.
    pub period_ns: u64,
    /// What could not be scanned in the last pass.
    pub problems: Vec<String>,
}

#[derive(Default)]
struct Shared {
    report: Mutex<ScanReport>,
    stopping: (Mutex<bool>, Condvar),
    /// The thread's number once it runs; 0 before.
    tid: AtomicI32,
}

/// A running scan.
pub struct Scanner {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Scanner {
    /// Starts the thread. `key` is the cache's.
    ///
    /// # Errors
    /// The kernel refuses the thread or the batch's memory.
    pub fn start(cache: impl Cache + 'static, key: ContentKey, settings: Settings) -> io::Result<Scanner> {
        let shared = Arc::new(Shared::default());
        let mut scan = Scan {
            cache,
            hash: PageHash::with_key(key),
            index: ContentIndex::new(settings.index_bytes),
            throttle: Throttle::new(settings.cpu_percent),
            control: ScanControl::new(settings.limits, now_ns()),
            batch: Batch::new()?,
            shared: shared.clone(),
            cpu_ns: 0,
            said: Vec::new(),
            read: Vec::new(),
            begun: 0,
        };
        let thread = std::thread::Builder::new().name("undercroft-scan".into()).spawn(move || {
            set_thread_name("undercroft-scan");
            scan.begin();
            scan.run();
        })?;
        Ok(Scanner { shared, thread: Mutex::new(Some(thread)) })
    }

    /// What it has done.
    pub fn report(&self) -> ScanReport {
        lock(&self.shared.report).clone()
    }

    /// Stops it, and waits until it has. It has an ordinary priority for what is left to do, so that a machine whose
    /// processors are all busy does not keep it from ending.
    pub fn stop(&self) {
        *lock(&self.shared.stopping.0) = true;
        self.shared.stopping.1.notify_all();
        // The scan itself may be the last to let go of what owns it.
        if let Some(thread) = lock(&self.thread).take()
            && thread.thread().id() != std::thread::current().id()
        {
            let tid = self.shared.tid.load(Ordering::Relaxed);
            if tid != 0 {
                idle::ordinary(tid);
            }
            let _ = thread.join();
        }
    }
}

impl Drop for Scanner {
    fn drop(&mut self) {
        self.stop();
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|p| p.into_inner())
}

#[cfg(test)]
mod tests;
