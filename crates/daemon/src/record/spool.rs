//! The spool: a file without a name, beside the recording, in which notes wait until the converter has time for them.
//!
//! Owns that file and which of its slots are free. Never reads it (the converter does), and never grows without space:
//! that is asked for first. Invariants: a slot is written again only after the converter is done with it; what the file
//! takes from its disk is `Gauges::spool_bytes`, at most what the recording's limit leaves beside its own file.

use super::Reason;
use super::gauges::Gauges;
use rustix::fs::{Advice, FallocateFlags, FileType, OFlags};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use undercroft_host::{ALIGNED_BYTES, AlignedBuffer};

/// Free slots that keep their space, to be written again; those beyond are given back.
const KEPT: usize = 16;
/// Writes are in units of so many bytes.
const UNIT: usize = 4096;

/// See the head of the file.
pub struct Spool {
    file: Arc<File>,
    /// Whether it bypasses the page cache.
    direct: bool,
    /// Bytes that it and the recording's file may have together.
    bytes_max: u64,
    gauges: Arc<Gauges>,
    /// Slots there are.
    slots: u64,
    /// Free ones with space, and without.
    free: Vec<u64>,
    holes: Vec<u64>,
    /// Those that wait for the converter, in its order; and how many it was done with at the last look.
    waiting: VecDeque<u64>,
    done: u64,
}

/// Reads a slot. For the converter.
///
/// # Errors
/// What reading says.
pub fn read(file: &File, slot: u64, words: usize, to: &mut AlignedBuffer) -> io::Result<()> {
    file.read_exact_at(&mut to.bytes_mut()[..length_of(words)], slot * ALIGNED_BYTES as u64)
}

/// Bytes that so many words take in a slot.
fn length_of(words: usize) -> usize {
    (words * size_of::<u64>()).next_multiple_of(UNIT).min(ALIGNED_BYTES)
}

impl Spool {
    /// A spool in `file`, if that can be one: it is empty, to be read and written, and on a file system that can
    /// promise space and take it back.
    pub fn new(file: File, bytes_max: u64, gauges: Arc<Gauges>) -> Option<Self> {
        let (flags, stat) = (rustix::fs::fcntl_getfl(&file).ok()?, rustix::fs::fstat(&file).ok()?);
        let written_where_asked = flags & (OFlags::RWMODE | OFlags::APPEND | OFlags::PATH) == OFlags::RDWR;
        let plain = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !(written_where_asked && plain && stat.st_size == 0) {
            return None;
        }
        let one = ALIGNED_BYTES as u64;
        let able = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, one).is_ok()
            && rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, one).is_ok();
        let spool = Self {
            file: Arc::new(file),
            direct: flags.contains(OFlags::DIRECT),
            bytes_max,
            gauges,
            slots: 0,
            free: Vec::new(),
            holes: Vec::new(),
            waiting: VecDeque::new(),
            done: 0,
        };
        able.then_some(spool)
    }

    /// The file, for whoever reads it.
    pub fn file(&self) -> Arc<File> {
        self.file.clone()
    }

    /// Slots that wait for the converter.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Writes the first `words` of a buffer; returns the slot. `Err` says why the recording has to end here.
    pub fn put(&mut self, buffer: &AlignedBuffer, words: usize) -> Result<u64, Reason> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => self.more()?,
        };
        let at = slot * ALIGNED_BYTES as u64;
        let length = length_of(words);
        if let Err(e) = self.file.write_all_at(&buffer.bytes()[..length], at) {
            self.free.push(slot);
            tracing::warn!("the recording ends: rows cannot wait on its disk: {e}");
            return Err(Reason::DiskFull);
        }
        if !self.direct {
            // Begins to write it out, and lets go of what has been written before.
            let _ = rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed);
        }
        self.waiting.push_back(slot);
        Ok(slot)
    }

    /// One slot more, with its space.
    fn more(&mut self) -> Result<u64, Reason> {
        let one = ALIGNED_BYTES as u64;
        // Before looking at what the file claims, which does the same the other way round: one of the two sees the
        // other.
        let here = self.gauges.spool_bytes.fetch_add(one, Ordering::SeqCst) + one;
        let back = || self.gauges.spool_bytes.fetch_sub(one, Ordering::SeqCst);
        if here + self.gauges.claimed_bytes.load(Ordering::SeqCst) > self.bytes_max {
            back();
            return Err(Reason::MaxSize);
        }
        let slot = self.holes.last().copied().unwrap_or(self.slots);
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), slot * one, one) {
            Ok(()) => {}
            Err(e) => {
                back();
                if !matches!(e, Errno::NOSPC | Errno::DQUOT | Errno::FBIG) {
                    tracing::warn!("the recording ends: rows cannot wait on its disk: {e}");
                }
                return Err(Reason::DiskFull);
            }
        }
        if self.holes.pop().is_none() {
            self.slots += 1;
        }
        Ok(slot)
    }

    /// Takes back the slots that the converter is done with, and gives back the space of all but `KEPT`, or of `all`.
    pub fn settle(&mut self, all: bool) {
        let done = self.gauges.slots_done.load(Ordering::Acquire);
        for _ in self.done..done {
            self.free.extend(self.waiting.pop_front());
        }
        self.done = done;
        if self.waiting.is_empty() && (all || self.slots > KEPT as u64) {
            // Nothing is in it. Should it fail, the space comes back with the file.
            let _ = self.file.set_len(0);
            (self.slots, self.free, self.holes) = (0, Vec::new(), Vec::new());
            self.gauges.spool_bytes.store(0, Ordering::SeqCst);
        }
        let kept = if all { 0 } else { KEPT };
        while self.free.len() > kept {
            let Some(slot) = self.free.pop() else { break };
            let (at, one) = (slot * ALIGNED_BYTES as u64, ALIGNED_BYTES as u64);
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if rustix::fs::fallocate(&self.file, hole, at, one).is_err() {
                self.free.push(slot);
                break;
            }
            self.gauges.spool_bytes.fetch_sub(one, Ordering::SeqCst);
            self.holes.push(slot);
        }
    }
}
