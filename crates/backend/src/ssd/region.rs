//! What one worker has of one file or device of the SSD store.
//!
//! Owns the way from bytes of the region to bytes of the device. Never touches a byte outside of its region, and knows
//! nothing of what is in it. Two ways lead there: calls that wait, for the time before anything is served, and a back
//! end for the worker. Invariant: every operation that a back end takes comes back once, with its buffer.

use crate::failures::{FailureLog, io_error};
use crate::{Backend, Geometry};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use undercroft_cache::ssd::Media;
use undercroft_cache::{DiskId, Io, IoDone, IoError, IoKind, OpId, limits};
use undercroft_host::{
    ALIGNED_BYTES, Action, AlignedBuffer, DiskFile, Engine, EngineChoice, FRAME_BYTES, FileDone, FileOp,
};

/// Reads that are asked for at a time, each by a thread.
const READERS: usize = 8;

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

    /// A back end for a worker: offsets are those of the region, and an operation that would leave it is refused. The
    /// second value says why it is not io_uring, if so.
    ///
    /// # Errors
    /// What the kernel says: out of descriptors or memory.
    pub fn backend(&self) -> io::Result<(Box<dyn Backend>, Option<String>)> {
        let (engine, no_ring) = Engine::new(self.file.file.clone(), EngineChoice::Auto)?;
        let geometry = Geometry {
            size_bytes: self.bytes,
            align: FRAME_BYTES as u32,
            read_only: false,
            can_discard: true,
            can_write_zeroes: false,
        };
        let backend = RegionBackend { engine, region: self.clone(), geometry, failures: FailureLog::default() };
        Ok((Box::new(backend), no_ring))
    }

    fn read(&self, offset: u64, to: &mut [u8], buffer: &mut AlignedBuffer) -> io::Result<()> {
        self.check(offset, to.len())?;
        let mut at = self.start + offset;
        for part in to.chunks_mut(ALIGNED_BYTES) {
            let aligned = &mut buffer.bytes_mut()[..part.len()];
            self.file.file.read_exact_at(aligned, at)?;
            part.copy_from_slice(aligned);
            at += part.len() as u64;
        }
        Ok(())
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

/// For the time before anything is served, and after: calls that wait. Lengths and places are of whole blocks.
impl Media for SsdRegion {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        self.read(offset, to, &mut AlignedBuffer::default())
    }

    fn read_many(&mut self, offsets: &[u64], to: &mut [u8]) -> Vec<bool> {
        let len = (to.len() / offsets.len().max(1)).max(1);
        let each = offsets.len().div_ceil(READERS).max(1);
        let region = &*self;
        let read = |offsets: &[u64], to: &mut [u8]| {
            let mut buffer = AlignedBuffer::default();
            let pieces = offsets.iter().zip(to.chunks_exact_mut(len));
            pieces.map(|(offset, piece)| region.read(*offset, piece, &mut buffer).is_ok()).collect::<Vec<_>>()
        };
        let done: Vec<Option<Vec<bool>>> = std::thread::scope(|scope| {
            let parts = offsets.chunks(each).zip(to.chunks_mut(each * len));
            let threads: Vec<_> = parts
                .map(|(offsets, to)| {
                    let thread = std::thread::Builder::new().name("undercroft-ssd".to_owned());
                    thread.spawn_scoped(scope, move || read(offsets, to))
                })
                .collect();
            threads.into_iter().map(|thread| thread.ok().and_then(|t| t.join().ok())).collect()
        });
        // For those there was no thread.
        let parts = done.into_iter().zip(offsets.chunks(each).zip(to.chunks_mut(each * len)));
        parts.flat_map(|(done, (offsets, to))| done.unwrap_or_else(|| read(offsets, to))).collect()
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> io::Result<()> {
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

    fn flush(&mut self) -> io::Result<()> {
        self.file.file.sync_data()
    }
}

/// The operations of one worker on its region.
struct RegionBackend {
    engine: Engine<Token>,
    region: SsdRegion,
    geometry: Geometry,
    failures: FailureLog,
}

/// What an operation in the engine belongs to.
#[derive(Debug)]
struct Token {
    op: OpId,
    disk: DiskId,
    kind: IoKind,
    offset: u64,
    len: u64,
    /// Why it was not begun.
    refused: Option<IoError>,
}

impl RegionBackend {
    /// What the engine is to do, or why nothing.
    fn action(&self, io: &Io) -> Result<Action, IoError> {
        let is_within = usize::try_from(io.len).is_ok_and(|len| self.region.check(io.offset, len).is_ok());
        match io.kind {
            IoKind::Flush => Ok(Action::Sync),
            _ if !is_within || io.len == 0 => Err(IoError::Invalid),
            IoKind::Read | IoKind::Write { .. } if io.len != u64::from(io.buf.len) => Err(IoError::Invalid),
            IoKind::Read => Ok(Action::Read),
            IoKind::Write { fua } => Ok(Action::Write { dsync: fua }),
            IoKind::Discard if self.region.file.is_device => Ok(Action::DeviceDiscard),
            IoKind::Discard => Ok(Action::PunchHole),
            IoKind::WriteZeroes { .. } | IoKind::Status => Err(IoError::Unsupported),
        }
    }
}

fn finish(done: FileDone<Token>, failures: &mut FailureLog) -> IoDone {
    let t = done.token;
    let result = match (t.refused, done.result) {
        (Some(why), _) => Err(why),
        // A hint.
        (None, Err(Errno::OPNOTSUPP)) if t.kind == IoKind::Discard => Ok(()),
        (None, Err(e)) => {
            failures.note("the SSD store", t.kind, t.offset, t.len, io::Error::from(e));
            Err(io_error(e))
        }
        (None, Ok(())) => Ok(()),
    };
    IoDone { op: t.op, disk: t.disk, buf: done.buf, result, extents: Vec::new() }
}

impl Backend for RegionBackend {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&mut self, io: Io) {
        let (action, refused) = match self.action(&io) {
            Ok(action) => (action, None),
            Err(why) => (Action::Nothing, Some(why)),
        };
        let Io { op, disk, kind, offset, len, buf, .. } = io;
        let token = Token { op, disk, kind, offset, len, refused };
        let offset = self.region.start.saturating_add(offset);
        self.engine.submit(FileOp { token, action, offset, len, buf });
    }

    fn kick(&mut self) {
        self.engine.kick();
    }

    fn set_shared(&mut self, shared: bool) {
        self.engine.set_shared(shared);
    }

    fn holds_back(&self) -> bool {
        self.engine.holds_back()
    }

    fn poll(&mut self, done: &mut Vec<IoDone>) -> bool {
        let Self { engine, failures, .. } = self;
        engine.poll(limits::BATCH, |d| done.push(finish(d, failures)))
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.engine.as_fd()
    }

    fn describe(&self) -> String {
        self.engine.name().to_owned()
    }

    fn inflight(&self) -> usize {
        self.engine.inflight()
    }
}
