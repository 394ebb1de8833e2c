//! Whether an image may be written to: its tables are verified before the first write, on a thread of the disk.
//!
//! Owns the verdict, the marks in the header that go with it, and the fence that enforces it. Never serves a request.
//! Invariant: nothing is written to the image before its tables have passed; once they have not, nothing ever is, but
//! the mark that says so, which is QEMU's (decision 0136).

use super::header::{CORRUPT, Header};
use super::verify::{Failure, verify};
use crate::detect;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use undercroft_host::{DiskFile, FRAME_BYTES, Fence};

/// Verifying for this long is worth a line in the log; and another each time it has passed again.
const SAY_AFTER: Duration = Duration::from_secs(2);
/// Where a header has its incompatible features.
const FEATURES: usize = 72;
/// Where it has the features that are cleared by who does not know them.
const AUTOCLEAR: usize = 88;

/// What is known of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// Nothing yet.
    Open,
    /// It is being verified: tables read, of how many.
    Verifying(u64, u64),
    /// It may be written to.
    Sound,
    /// It must not be written to; why.
    Refused(String),
}

/// The way to an image's first write.
#[derive(Debug)]
pub(super) struct Gate {
    location: String,
    file: DiskFile,
    header: Header,
    fence: Arc<Fence>,
    verdict: Mutex<Verdict>,
    /// The verdict is final; and that the image is sound. To look at without the lock.
    decided: AtomicBool,
    sound: AtomicBool,
    /// The disk is being closed: what is under way ends.
    closing: AtomicBool,
}

impl Gate {
    /// The gate of the image in `file`, which nobody else writes to.
    pub fn new(location: &str, file: DiskFile, header: Header, fence: Arc<Fence>) -> Self {
        Self {
            location: location.to_owned(),
            file,
            header,
            fence,
            verdict: Mutex::new(Verdict::Open),
            decided: AtomicBool::new(false),
            sound: AtomicBool::new(false),
            closing: AtomicBool::new(false),
        }
    }

    fn verdict(&self) -> Verdict {
        self.verdict.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, verdict: Verdict) {
        self.sound.store(verdict == Verdict::Sound, Ordering::Release);
        self.decided.store(matches!(verdict, Verdict::Sound | Verdict::Refused(_)), Ordering::Release);
        *self.verdict.lock().unwrap_or_else(PoisonError::into_inner) = verdict;
    }

    /// Ends a verification under way.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// Whether it is known that the image may, or may not, be written to.
    pub fn is_decided(&self) -> bool {
        self.decided.load(Ordering::Acquire)
    }

    /// Fails unless the image may be written to.
    pub fn pass(&self) -> io::Result<()> {
        if self.sound.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.verdict() {
            Verdict::Refused(why) => Err(io::Error::new(io::ErrorKind::InvalidData, why)),
            _ => Err(io::Error::other("the image's tables could not be verified")),
        }
    }

    /// Why writes are refused, if they are.
    pub fn refusal(&self) -> Option<String> {
        match self.verdict() {
            Verdict::Refused(why) => Some(why),
            _ => None,
        }
    }

    /// How far verifying is, in percent, if it is under way.
    pub fn percent(&self) -> Option<u64> {
        match self.verdict() {
            Verdict::Verifying(done, of) => Some(done * 100 / of.max(1)),
            _ => None,
        }
    }

    /// Verifies the image, and lets writes through if it is sound.
    pub fn verify(&self) {
        let (start, mut said) = (Instant::now(), SAY_AFTER);
        self.set(Verdict::Verifying(0, 1));
        let progress = |done: u64, of: u64| {
            self.set(Verdict::Verifying(done, of));
            if start.elapsed() >= said {
                said = start.elapsed() * 2;
                tracing::info!(
                    image = self.location,
                    "verifying the tables before the first write: {done} of {of} read"
                );
            }
            !self.closing.load(Ordering::Acquire)
        };
        let read = |offset, bytes| detect::read(&self.file, offset, bytes);
        match verify(&self.header, self.file.size_bytes, read, progress) {
            Ok(found) => match self.clear_features() {
                Ok(()) => {
                    tracing::debug!(image = self.location, clusters = found.clusters, "the tables are sound");
                    self.fence.allow_writes();
                    self.set(Verdict::Sound);
                }
                Err(e) => self.refuse(&format!("its header cannot be written: {e}"), "", false),
            },
            Err(Failure::Inconsistent(what)) => self.damaged(&what),
            Err(Failure::Beyond(what)) => {
                let remedy = "; let qemu-nbd open it and name the disk `nbd+unix:///?socket=PATH`, or convert it";
                self.refuse(&format!("it cannot be verified: {what}"), remedy, false);
            }
            // The disk goes, or the file cannot be read now: the next write tries again.
            Err(Failure::Stopped) => self.set(Verdict::Open),
            Err(Failure::Io(e)) => {
                tracing::warn!(image = self.location, "verifying the tables before the first write failed: {e}");
                self.set(Verdict::Open);
            }
        }
    }

    /// Closes the image to writes for good, because it is damaged, and marks it corrupt as QEMU does.
    pub fn damaged(&self, what: &str) {
        self.refuse(&format!("the image is damaged: {what}"), "; run `qemu-img check -r all` on a copy of it", true);
    }

    fn refuse(&self, what: &str, remedy: &str, mark: bool) {
        self.fence.stop_writes();
        // Version 2 has no such mark; nor has QEMU for it.
        let marked = if mark && self.header.version >= 3 && !self.header.corrupt {
            match self.edit_header(|h| h[FEATURES + 7] |= CORRUPT as u8) {
                Ok(()) => " and the image is marked corrupt, so it opens only read-only until it is repaired",
                Err(e) => {
                    tracing::error!(image = self.location, "marking the image as corrupt failed: {e}");
                    ""
                }
            }
        } else {
            ""
        };
        let why = format!("writes are refused, reads go on{marked}: {what}{remedy}");
        tracing::error!(image = self.location, "{why}");
        self.set(Verdict::Refused(why));
    }

    /// Clears the features that do not survive a write by who does not know them: QEMU's bitmaps.
    fn clear_features(&self) -> io::Result<()> {
        if !self.header.autoclear {
            return Ok(());
        }
        self.edit_header(|h| h[AUTOCLEAR..AUTOCLEAR + 8].fill(0))
    }

    /// Changes the header of version 3, durably.
    fn edit_header(&self, change: impl FnOnce(&mut [u8])) -> io::Result<()> {
        let unit = (self.file.align as usize).max(512);
        let now = detect::read(&self.file, 0, unit)?;
        if now.get(..8) != Some(b"QFI\xfb\0\0\0\x03") || now.len() < 104 {
            return Err(io::Error::other("it is no qcow2 image of version 3 any more"));
        }
        // Length and memory as direct I/O needs them; a shorter file is filled up with zeroes.
        let mut memory = vec![0u8; unit + FRAME_BYTES];
        let at = memory.as_ptr().align_offset(FRAME_BYTES);
        let block = &mut memory[at..at + unit];
        block[..now.len()].copy_from_slice(&now);
        change(block);
        self.file.file.write_all_at(block, 0)?;
        Ok(rustix::fs::fdatasync(&**self.file.file)?)
    }
}
