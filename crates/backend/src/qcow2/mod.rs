//! qcow2 images with their backing chains, through the imago crate on threads of their own.
//!
//! Owns the open chain. Never lets damage in an image reach the worker: the first write waits until the tables are
//! verified (`gate`), and an operation that makes imago panic fails and takes the disk out of service. Invariant:
//! operations that zero or discard run alone; see `Image::serve`.

mod chain;
mod examine;
mod gate;
mod header;
mod own;
mod references;
mod snapshots;
mod verify;

pub use examine::{Examined, examine};
pub use header::{Header, Refusal, bytes_needed, check_l1, parse};
pub use own::own_clusters;
pub use verify::{Failure, Verified, verify};

use super::failures::{FailureLog, io_error};
use super::{Backend, Geometry, ImageFiles, ImageSpec, OpenError};
use gate::Gate;
use imago::io_buffers::{IoVector, IoVectorMut};
use imago::{FormatAccess, Mapping, ShallowMapping, Storage};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use undercroft_cache::{Base, Extent, Io, IoDone, IoError, IoKind, limits};
use undercroft_host::{DiskFile, Fence, FencedFile, OpenFile, ThreadPool, Work, with_bounded_stack};

/// Operations of one disk that are carried out at a time.
const THREADS: usize = 8;
/// Extents that one answer to `Status` has at most.
const EXTENTS_MAX: usize = 256;
/// Smallest unit in which guests address a disk.
const SECTOR: u64 = 512;

/// A qcow2 image.
pub struct Qcow2 {
    pool: ThreadPool<Image>,
    /// Operations that change the image, until it is known whether it may be changed.
    waiting: VecDeque<Io>,
    /// Verifying is under way.
    verifying: bool,
    geometry: Geometry,
    depth: usize,
    direct: bool,
    base: Option<Base>,
}

impl Qcow2 {
    /// Opens the image in `file`.
    pub(super) fn open(spec: &ImageSpec, file: DiskFile, not_direct: Option<String>) -> Result<Self, OpenError> {
        let chain::Chain { access, header, file, fence, direct, depth, claims, base, files } =
            chain::open(spec, file, not_direct.as_deref())?;
        let geometry = geometry(spec, &header, access.req_align() as u64)?;
        let image = Image {
            access: RwLock::new(Some(access)),
            allocating: RwLock::new(()),
            changed: AtomicU64::new(0),
            written: AtomicU64::new(0),
            file: Arc::clone(&file.file),
            fence: Arc::clone(&fence),
            location: spec.location.clone(),
            geometry: geometry.clone(),
            cluster_bytes: header.cluster_bytes,
            gate: (!spec.read_only).then(|| Gate::new(&spec.location, file, header, fence)),
            out_of_service: AtomicBool::new(false),
            owes: AtomicBool::new(false),
            failures: Mutex::new(FailureLog::default()),
            files,
            _claims: claims,
        };
        let failed =
            |source| OpenError::Io { image: spec.location.clone(), doing: "setting up I/O for the image", source };
        let pool = ThreadPool::new("qcow2", THREADS, image).map_err(failed)?;
        Ok(Self { pool, waiting: VecDeque::new(), verifying: false, geometry, depth, direct, base })
    }

    /// Whether an operation has to wait until the image is verified.
    fn must_wait(&self, kind: IoKind) -> bool {
        let changes = matches!(kind, IoKind::Write { .. } | IoKind::WriteZeroes { .. } | IoKind::Discard);
        changes && self.pool.work().gate.as_ref().is_some_and(|g| self.verifying || !g.is_decided())
    }
}

/// What a qcow2 image in `file` is like, without a lock; see [`super::probe`]. Only the header is read, of which
/// nothing that counts here changes while somebody writes to the image.
pub(super) fn probe(spec: &ImageSpec, file: &DiskFile) -> Result<Geometry, OpenError> {
    geometry(spec, &chain::read_header(&spec.location, file)?, u64::from(file.align))
}

/// What an image with this header is like, in a file with this alignment.
fn geometry(spec: &ImageSpec, header: &Header, align: u64) -> Result<Geometry, OpenError> {
    let size = header.size_bytes;
    if !size.is_multiple_of(SECTOR) {
        let rounded = size.next_multiple_of(SECTOR);
        return Err(OpenError::OddSize { image: spec.location.clone(), size, unit: SECTOR as u32, rounded });
    }
    // imago takes any alignment, but what is smaller than the storage's unit goes through a copy.
    let align = align.max(SECTOR);
    let align = if align <= 4096 && size.is_multiple_of(align) { align } else { SECTOR };
    // Version 2 cannot mark clusters as zero.
    let can_zero = !spec.read_only && header.version >= 3;
    Ok(Geometry {
        size_bytes: size,
        align: align as u32,
        read_only: spec.read_only,
        can_discard: can_zero,
        can_write_zeroes: can_zero,
    })
}

impl Backend for Qcow2 {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&mut self, io: Io) {
        if self.must_wait(io.kind) {
            // Here and not on the pool's threads, which would all wait, and no read would be served.
            self.waiting.push_back(io);
            if !self.verifying {
                self.verifying = true;
                self.pool.submit(Job::Verify);
            }
            return;
        }
        self.pool.submit(Job::Serve(io));
    }

    fn kick(&mut self) {}

    fn poll(&mut self, done: &mut Vec<IoDone>) -> bool {
        let mut verified = false;
        let more = self.pool.poll(limits::BATCH, &mut |d| match d {
            Done::Served(d) => done.push(d),
            Done::Verified => verified = true,
        });
        if verified {
            self.verifying = false;
            // Whatever came of it: an operation that may not be carried out fails.
            self.waiting.drain(..).for_each(|io| self.pool.submit(Job::Serve(io)));
        }
        more
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.pool.as_fd()
    }

    fn describe(&self) -> String {
        let how = if self.direct { "O_DIRECT" } else { "page cache" };
        let images = if self.depth == 1 { String::new() } else { format!(", chain of {} images", self.depth) };
        let verifying = match self.pool.work().gate.as_ref().and_then(Gate::percent) {
            Some(percent) => format!(", verifying its tables: {percent} %"),
            None => String::new(),
        };
        format!("qcow2 (threads, {how}{images}{verifying})")
    }

    fn inflight(&self) -> usize {
        self.pool.inflight() - usize::from(self.verifying) + self.waiting.len()
    }

    fn refusal(&self) -> Option<String> {
        let image = self.pool.work();
        if image.out_of_service.load(Ordering::Acquire) {
            return Some("all requests fail: the image's tables make no sense; run `qemu-img check` on it".to_owned());
        }
        image.gate.as_ref().and_then(Gate::refusal).or_else(|| {
            let owes = "writes and flushes fail, reads go on: a table of the image could not be written; each write \
                        and flush tries it again: see to the disk below, or to its free space";
            image.fence.owes().then(|| owes.to_owned())
        })
    }

    fn files(&self) -> Option<ImageFiles> {
        self.pool.work().files.clone()
    }

    fn take_base(&mut self) -> Option<Base> {
        self.base.take()
    }
}

impl Drop for Qcow2 {
    fn drop(&mut self) {
        if let Some(gate) = &self.pool.work().gate {
            gate.close();
        }
        // Like all that a pool has left: its frames may outlive their arena.
        self.waiting.drain(..).for_each(std::mem::forget);
    }
}

/// What the threads do.
enum Job {
    Serve(Io),
    /// Find out whether the image may be written to.
    Verify,
}

/// What comes of it.
enum Done {
    Served(IoDone),
    Verified,
}

/// The open chain, shared by the threads.
struct Image {
    /// There until `drop`.
    access: RwLock<Option<FormatAccess<FencedFile>>>,
    /// Held for reading by writes that allocate, for writing while tables are written back. Taken after `access`.
    allocating: RwLock<()>,
    /// Changes of tables in memory so far, each counted before it is acknowledged.
    changed: AtomicU64,
    /// How many of them are in the file at least.
    written: AtomicU64,
    /// The top image's file, for `fdatasync`.
    file: Arc<OpenFile>,
    /// What imago may do to it.
    fence: Arc<Fence>,
    /// Whether it may be written to; nothing if it is open for reading only.
    gate: Option<Gate>,
    location: String,
    geometry: Geometry,
    cluster_bytes: u64,
    /// imago panicked: nothing is known about its tables in memory any more.
    out_of_service: AtomicBool,
    /// The log says that a table could not be written.
    owes: AtomicBool,
    failures: Mutex<FailureLog>,
    /// All files of the chain.
    files: Option<ImageFiles>,
    /// Released last.
    _claims: Vec<chain::Claimed>,
}

impl Work for Image {
    type Job = Job;
    type Done = Done;

    fn carry_out(&self, job: Job) -> Done {
        match job {
            Job::Serve(io) => Done::Served(self.carry_out_io(io)),
            Job::Verify => {
                if let Some(gate) = &self.gate
                    && catch_unwind(AssertUnwindSafe(|| gate.verify())).is_err()
                {
                    gate.damaged("its tables make no sense");
                }
                Done::Verified
            }
        }
    }

    fn refuse(&self, job: Job, why: &io::Error) -> Done {
        let Job::Serve(io) = job else { return Done::Verified };
        self.note(io.kind, io.offset, io.len, why);
        Done::Served(IoDone { op: io.op, disk: io.disk, buf: io.buf, result: Err(IoError::Io), extents: Vec::new() })
    }
}

impl Image {
    fn carry_out_io(&self, io: Io) -> IoDone {
        let Io { op, disk, kind, offset, len, mut buf, .. } = io;
        let mut extents = Vec::new();
        let mut result = self.admit(kind, offset, len, u64::from(buf.len));
        if result.is_ok() {
            let mut serve = || self.serve(kind, offset, len, &mut buf, &mut extents);
            let served = catch_unwind(AssertUnwindSafe(|| with_bounded_stack(&mut serve)));
            let sense = served.is_ok() && !self.fence.tripped();
            if !sense && !self.out_of_service.swap(true, Ordering::AcqRel) {
                // Nothing is known about imago's tables in memory any more: the disk is out of service from now on.
                self.fence.stop_writes();
                if let Some(gate) = &self.gate {
                    gate.damaged("its tables make no sense");
                }
            }
            self.tell_what_is_owed();
            let served = served.unwrap_or_else(|_| Err(io::Error::other("the image's tables make no sense")));
            result = served.map_err(|e| {
                self.note(kind, offset, len, &e);
                Errno::from_io_error(&e).map_or(IoError::Io, io_error)
            });
        }
        IoDone { op, disk, buf, result, extents }
    }

    /// Logs that a table could not be written, and that it was after all.
    fn tell_what_is_owed(&self) {
        let owes = self.fence.owes();
        if owes == self.owes.load(Ordering::Acquire) || self.owes.swap(owes, Ordering::AcqRel) == owes {
            return;
        }
        if owes {
            tracing::error!(
                image = self.location,
                "a table of the image could not be written: until that succeeds, writes and flushes fail and nothing \
                 is reported as durable, reads go on; see to the disk below, or to its free space: each write and \
                 flush tries it again"
            );
        } else {
            tracing::info!(image = self.location, "the table that could not be written is in the image now");
        }
    }

    fn note(&self, kind: IoKind, offset: u64, len: u64, why: &io::Error) {
        let mut log = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        log.note(&self.location, kind, offset, len, why);
    }

    /// Checks an operation before imago sees it.
    fn admit(&self, kind: IoKind, offset: u64, len: u64, buf_len: u64) -> Result<(), IoError> {
        let g = &self.geometry;
        if self.out_of_service.load(Ordering::Acquire) {
            return Err(IoError::Io);
        }
        if offset.checked_add(len).is_none_or(|end| end > g.size_bytes) {
            return Err(IoError::Invalid);
        }
        match kind {
            IoKind::Flush | IoKind::Status => Ok(()),
            IoKind::Read if len != buf_len => Err(IoError::Invalid),
            IoKind::Read => Ok(()),
            _ if g.read_only => Err(IoError::ReadOnly),
            IoKind::Write { .. } if len != buf_len => Err(IoError::Invalid),
            IoKind::Write { .. } => Ok(()),
            IoKind::Discard | IoKind::WriteZeroes { .. } if !g.can_write_zeroes => Err(IoError::Unsupported),
            IoKind::Discard | IoKind::WriteZeroes { .. } => Ok(()),
        }
    }

    /// Carries an operation out.
    ///
    /// Reads, writes and flushes run together. What zeroes or discards runs alone: imago rounds a range of zeroes up
    /// to whole clusters if the rest of them reads as zeroes, and a write to that rest meanwhile would be lost; and a
    /// discard takes away clusters that a read under way may be reading from. What makes imago create an L2 table runs
    /// alone, too; see `with_tables`.
    fn serve(
        &self,
        kind: IoKind,
        offset: u64,
        len: u64,
        buf: &mut undercroft_host::IoBuf,
        extents: &mut Vec<Extent>,
    ) -> io::Result<()> {
        if let (IoKind::Write { .. } | IoKind::Discard | IoKind::WriteZeroes { .. }, Some(gate)) = (kind, &self.gate) {
            gate.pass()?;
        }
        if let IoKind::Discard | IoKind::WriteZeroes { .. } = kind {
            let mut access = self.access.write().unwrap_or_else(PoisonError::into_inner);
            let access = access.as_mut().ok_or(io::ErrorKind::NotConnected)?;
            return match kind {
                IoKind::WriteZeroes { unmap, fua } => {
                    self.with_tables(access, offset, len, |access, offset, len| {
                        if unmap { access.discard_to_zero(offset, len) } else { access.write_zeroes(offset, len) }
                    })?;
                    if fua { self.sync(access) } else { self.write_back(access) }
                }
                _ => {
                    // A hint: what is not a whole cluster stays, instead of being filled with zeroes.
                    let start = offset.next_multiple_of(self.cluster_bytes);
                    let end = if offset + len == self.geometry.size_bytes {
                        offset + len
                    } else {
                        (offset + len) / self.cluster_bytes * self.cluster_bytes
                    };
                    let discard = FormatAccess::discard_to_zero;
                    if start < end { self.with_tables(access, start, end - start, discard) } else { Ok(()) }
                }
            };
        }
        let creates = matches!(kind, IoKind::Write { .. }) && self.fence.lacks_table(offset, len);
        let mut allocates = creates;
        if creates {
            self.write_alone(offset, len, buf)?;
        }
        let access = self.access.read().unwrap_or_else(PoisonError::into_inner);
        let access = access.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        match kind {
            IoKind::Read => {
                self.check_mappings(access, offset, len)?;
                let pieces: Vec<IoSliceMut<'_>> = buf.pieces_mut().map(IoSliceMut::new).collect();
                access.readv(IoVectorMut::from(pieces), offset)
            }
            IoKind::Write { fua } => {
                if !creates {
                    allocates = self.allocates(access, offset, len)?;
                    let _beside = allocates.then(|| self.allocating.read().unwrap_or_else(PoisonError::into_inner));
                    let pieces: Vec<IoSlice<'_>> = buf.pieces().map(IoSlice::new).collect();
                    access.writev(IoVector::from(pieces), offset)?;
                }
                match (fua, allocates) {
                    (true, _) => self.sync(access),
                    (false, true) => self.write_back(access),
                    (false, false) => Ok(()),
                }
            }
            IoKind::Flush if self.geometry.read_only => Ok(()),
            IoKind::Flush => self.sync(access),
            _ => self.status(access, offset, len, extents),
        }
    }

    /// Writes with nothing else under way.
    fn write_alone(&self, offset: u64, len: u64, buf: &undercroft_host::IoBuf) -> io::Result<()> {
        let mut access = self.access.write().unwrap_or_else(PoisonError::into_inner);
        let access = access.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let pieces: Vec<IoSlice<'_>> = buf.pieces().map(IoSlice::new).collect();
        let mut rest = IoVector::from(pieces);
        self.with_tables(access, offset, len, |access, offset, len| {
            let (now, later) = std::mem::take(&mut rest).split_at(len);
            rest = later;
            access.writev(now, offset)
        })
    }

    /// Changes a range with nothing else under way; where L2 tables are missing, in parts that have one each.
    ///
    /// imago puts a new table anywhere that is free by its refcounts in memory, and writes it at once: also where data
    /// was whose mapping the file still has, replaced or discarded in memory only. If the process ended then, that data
    /// would be gone although it was durable. So before each new table what is in memory is written back, and nothing
    /// frees a cluster in between.
    fn with_tables(
        &self,
        access: &mut FormatAccess<FencedFile>,
        mut offset: u64,
        len: u64,
        mut change: impl FnMut(&mut FormatAccess<FencedFile>, u64, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        if !self.fence.lacks_table(offset, len) {
            return change(access, offset, len);
        }
        let (end, span) = (offset + len, self.cluster_bytes / 8 * self.cluster_bytes);
        while offset < end {
            let n = (offset / span + 1).saturating_mul(span).min(end) - offset;
            if self.fence.lacks_table(offset, n) {
                access.flush()?;
            }
            change(access, offset, n)?;
            offset += n;
        }
        Ok(())
    }

    /// Whether a write to a range allocates clusters. That it does not holds until something zeroes or discards.
    fn allocates(&self, access: &FormatAccess<FencedFile>, mut offset: u64, mut len: u64) -> io::Result<bool> {
        while len > 0 {
            match access.get_shallow_mapping(offset, len)? {
                (ShallowMapping::Raw { writable: true, .. }, n) if n > 0 => (offset, len) = (offset + n, len - n),
                _ => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Fails if a part of the range is mapped past the end of its file, where imago would read zeroes.
    fn check_mappings(&self, access: &FormatAccess<FencedFile>, mut offset: u64, mut len: u64) -> io::Result<()> {
        while len > 0 {
            let (mapping, n) = access.get_mapping(offset, len)?;
            if let Mapping::Raw { storage, offset: at, .. } = mapping
                && at >= storage.size()?.next_multiple_of(self.cluster_bytes)
            {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the image is damaged: the data is said to be past the end of the file; try `qemu-img check`",
                ));
            }
            if n == 0 {
                break;
            }
            (offset, len) = (offset + n.min(len), len.saturating_sub(n));
        }
        Ok(())
    }

    /// Makes all that was written durable: data and tables.
    ///
    /// imago writes refcounts back, and then the tables that name the clusters. What is allocated in between would be
    /// named in the file before it counts as in use there, until the next flush; so nothing is.
    fn sync(&self, access: &FormatAccess<FencedFile>) -> io::Result<()> {
        {
            let _apart = self.allocating.write().unwrap_or_else(PoisonError::into_inner);
            self.flush(access)?;
        }
        Ok(rustix::fs::fdatasync(&**self.file)?)
    }

    /// Writes the tables back that were changed by what is about to be acknowledged: a guest goes on when this process
    /// is killed, and reads what it has written whether it was flushed or not. Those who come while somebody writes
    /// them share the next time.
    fn write_back(&self, access: &FormatAccess<FencedFile>) -> io::Result<()> {
        let mine = self.changed.fetch_add(1, Ordering::AcqRel) + 1;
        let _apart = self.allocating.write().unwrap_or_else(PoisonError::into_inner);
        if self.written.load(Ordering::Acquire) >= mine {
            return Ok(());
        }
        self.flush(access)
    }

    /// Writes all tables back. The caller holds `allocating`.
    fn flush(&self, access: &FormatAccess<FencedFile>) -> io::Result<()> {
        let changed = self.changed.load(Ordering::Acquire);
        access.flush()?;
        self.written.fetch_max(changed, Ordering::AcqRel);
        Ok(())
    }

    /// The allocation of a range.
    fn status(
        &self,
        access: &FormatAccess<FencedFile>,
        mut offset: u64,
        mut len: u64,
        extents: &mut Vec<Extent>,
    ) -> io::Result<()> {
        while len > 0 && extents.len() < EXTENTS_MAX {
            let (mapping, n) = access.get_mapping(offset, len)?;
            let n = n.min(len);
            if n == 0 {
                break;
            }
            let zero = matches!(mapping, Mapping::Zero { .. });
            match extents.last_mut() {
                Some(last) if last.zero == zero => last.len += n,
                _ => extents.push(Extent { len: n, hole: zero, zero }),
            }
            (offset, len) = (offset + n, len - n);
        }
        if extents.is_empty() {
            extents.push(Extent { len, hole: false, zero: false });
        }
        Ok(())
    }
}

impl Drop for Image {
    /// Writes the tables back. What the guest was told is durable has been written before.
    fn drop(&mut self) {
        let Some(access) = self.access.get_mut().unwrap_or_else(PoisonError::into_inner).take() else { return };
        if *self.out_of_service.get_mut() {
            std::mem::forget(access); // its tables in memory must not reach the file
            return;
        }
        let closed = catch_unwind(AssertUnwindSafe(|| -> io::Result<()> {
            if self.gate.as_ref().is_some_and(|g| g.pass().is_ok()) {
                self.sync(&access)?;
            }
            drop(access);
            Ok(())
        }));
        let failed = match closed {
            Ok(Ok(())) => return,
            Ok(Err(e)) => e.to_string(),
            Err(_) => "its tables make no sense".to_owned(),
        };
        tracing::error!(image = self.location, "closing the image failed: {failed}; run `qemu-img check` on it");
    }
}
