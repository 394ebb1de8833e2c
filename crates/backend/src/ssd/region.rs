//! What one worker has of one file or device of the SSD store.
//!
//! Owns the way from bytes of the region to bytes of the device. Never touches a byte outside of its region, and knows
//! nothing of what is in it. Two ways lead there: calls that wait, for the time before anything is served, and an engine
//! for the worker. Invariant: every operation that an engine takes comes back once, with its buffer.

use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use undercroft_host::{
    ALIGNED_BYTES, Action, AlignedBuffer, DiskFile, Engine, EngineChoice, FRAME_BYTES, FileOp, IoBuf,
};

/// A region.
#[derive(Clone, Debug)]
pub struct SsdRegion {
    file: DiskFile,
    start: u64,
    bytes: u64,
}

impl SsdRegion {
    /// `bytes` of `file` from `start` on; both are multiples of a block.
    pub(super) fn new(file: DiskFile, start: u64, bytes: u64) -> Self {
        Self { file, start, bytes }
    }

    /// Its size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads whole blocks.
    ///
    /// # Errors
    /// `InvalidInput` if a place or a length is not of whole blocks within the region; else what the device says.
    pub fn read_at(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        self.check(offset, to.len())?;
        let mut buffer = AlignedBuffer::default();
        let mut at = self.start + offset;
        for part in to.chunks_mut(ALIGNED_BYTES) {
            let aligned = &mut buffer.bytes_mut()[..part.len()];
            self.file.file.read_exact_at(aligned, at)?;
            part.copy_from_slice(aligned);
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Writes whole blocks. They are durable after [`SsdRegion::flush`].
    ///
    /// # Errors
    /// As [`SsdRegion::read_at`].
    pub fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.check(offset, from.len())?;
        let mut buffer = AlignedBuffer::default();
        let mut at = self.start + offset;
        for part in from.chunks(ALIGNED_BYTES) {
            let aligned = &mut buffer.bytes_mut()[..part.len()];
            aligned.copy_from_slice(part);
            self.file.file.write_all_at(aligned, at)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Makes durable what was written.
    ///
    /// # Errors
    /// What the device says: nothing is known then of what was written since the flush before.
    pub fn flush(&self) -> io::Result<()> {
        self.file.file.sync_data()
    }

    /// An engine for a worker. The second value says why it is not io_uring, if so.
    ///
    /// # Errors
    /// What the kernel says: out of descriptors or memory.
    pub fn engine(&self) -> io::Result<(SsdEngine, Option<String>)> {
        let (engine, no_ring) = Engine::new(self.file.file.clone(), EngineChoice::Auto)?;
        Ok((SsdEngine { engine, region: self.clone() }, no_ring))
    }

    fn check(&self, offset: u64, len: usize) -> io::Result<()> {
        let block = FRAME_BYTES as u64;
        let len = len as u64;
        let is_within = offset.checked_add(len).is_some_and(|end| end <= self.bytes);
        if is_within && offset.is_multiple_of(block) && len.is_multiple_of(block) {
            return Ok(());
        }
        let why = format!("bytes {offset} and {len} behind are no blocks of a region of {} bytes", self.bytes);
        Err(io::Error::new(io::ErrorKind::InvalidInput, why))
    }
}

/// What a region is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SsdAction {
    /// Fills the buffer.
    Read,
    /// Writes the buffer.
    Write,
    /// Makes durable what has been written.
    Flush,
    /// Says that the bytes are not needed any more. A hint: that the device cannot is no error.
    Discard,
}

/// A finished operation.
#[derive(Debug)]
pub struct SsdDone {
    /// As submitted.
    pub id: u64,
    /// The buffer, back.
    pub buf: IoBuf,
    /// Whether all of it was done.
    pub result: Result<(), Errno>,
}

/// What an operation in the engine is.
#[derive(Debug)]
struct Token {
    id: u64,
    action: SsdAction,
    /// Decided before it started.
    verdict: Result<(), Errno>,
}

/// The operations of one worker on its region.
pub struct SsdEngine {
    engine: Engine<Token>,
    region: SsdRegion,
}

impl SsdEngine {
    /// Takes an operation over; it starts at the next `kick`. `len` is that of `buf` for reads and writes. One that
    /// would leave the region comes back as `EINVAL`.
    pub fn submit(&mut self, id: u64, action: SsdAction, offset: u64, len: u64, buf: IoBuf) {
        let is_within = usize::try_from(len).is_ok_and(|len| self.region.check(offset, len).is_ok());
        let has_buffer = !matches!(action, SsdAction::Read | SsdAction::Write) || len == u64::from(buf.len);
        let fits = action == SsdAction::Flush || is_within && has_buffer && len > 0;
        let verdict = if fits { Ok(()) } else { Err(Errno::INVAL) };
        let what = match action {
            _ if !fits => Action::Nothing,
            SsdAction::Read => Action::Read,
            SsdAction::Write => Action::Write { dsync: false },
            SsdAction::Flush => Action::Sync,
            SsdAction::Discard if self.region.file.is_device => Action::DeviceDiscard,
            SsdAction::Discard => Action::PunchHole,
        };
        let offset = self.region.start.saturating_add(offset);
        self.engine.submit(FileOp { token: Token { id, action, verdict }, action: what, offset, len, buf });
    }

    /// Starts what was submitted.
    pub fn kick(&mut self) {
        self.engine.kick();
    }

    /// Hands over at most `max` finished operations; true if there may be more.
    pub fn poll(&mut self, max: usize, mut done: impl FnMut(SsdDone)) -> bool {
        self.engine.poll(max, |d| {
            let result = match (d.token.verdict, d.result) {
                (Ok(()), Err(Errno::OPNOTSUPP)) if d.token.action == SsdAction::Discard => Ok(()),
                (verdict, result) => verdict.and(result),
            };
            done(SsdDone { id: d.token.id, buf: d.buf, result });
        })
    }

    /// Operations submitted and not yet handed over.
    pub fn inflight(&self) -> usize {
        self.engine.inflight()
    }

    /// `io_uring` or `threads`.
    pub fn name(&self) -> &'static str {
        self.engine.name()
    }
}

/// Readable (level-triggered) when `poll` has something.
impl AsFd for SsdEngine {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.engine.as_fd()
    }
}
