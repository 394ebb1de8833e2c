//! An image file as the imago crate sees it, with a fence around what imago may do to it.
//!
//! Owns what a qcow2 image is protected from whatever its library does: no write before the image's tables were checked
//! (`Fence::allow_writes`), no change of the header but of the pointer to the refcount table, no recursion until the
//! stack overflows, no table in the file before its refcount (`order`). Never decides whether an image is sound.
//! Invariant: outside of bytes 48 to 60, the first cluster of the file is never changed through a fenced file.

mod order;
mod refcount;

pub use order::Layout;

use imago::file::File;
use imago::io_buffers::{IoBuffer, IoVector, IoVectorMut};
use imago::storage::drivers::CommonStorageHelper;
use imago::storage::{PreallocateMode, Storage};
use order::{Order, Trouble};
use std::cell::Cell;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of the header that imago may change: offset and size of the refcount table, which moves when it grows.
const REFTABLE_POINTER: std::ops::Range<usize> = 48..60;
/// Bytes of the stack that an operation may use before imago allocates: ordinary ones stay below, but imago's allocator
/// calls itself without end on some damaged images. A thread of the standard library has 2 MiB.
const STACK_BYTES_MAX: usize = 128 << 10;

thread_local! {
    /// Where on the stack the operation under way began; 0 if nobody watches.
    static STACK_START: Cell<usize> = const { Cell::new(0) };
}

/// What a fenced file may be used for.
#[derive(Debug)]
pub struct Fence {
    /// Bytes of the first cluster.
    cluster_bytes: u64,
    /// Bytes at the start of the file that imago sees changed: where, and which bits are hidden.
    hidden: Vec<(u64, u8)>,
    writes: AtomicBool,
    tripped: AtomicBool,
    /// The order of its tables; nothing if none are written.
    order: Option<Order>,
}

impl Fence {
    /// A fence that lets nothing be written yet. imago sees the byte at each place of `hidden` without the bits given.
    pub fn new(cluster_bytes: u64, hidden: Vec<(u64, u8)>) -> Arc<Self> {
        Arc::new(Self::with(cluster_bytes, hidden, None))
    }

    /// A fence that also keeps tables in order, for an image with this layout and these bytes as its L1 table.
    pub fn in_order(cluster_bytes: u64, hidden: Vec<(u64, u8)>, layout: &Layout, l1: &[u8]) -> Arc<Self> {
        Arc::new(Self::with(cluster_bytes, hidden, Some(Order::new(cluster_bytes, layout, l1))))
    }

    fn with(cluster_bytes: u64, hidden: Vec<(u64, u8)>, order: Option<Order>) -> Self {
        let (writes, tripped) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { cluster_bytes, hidden, writes, tripped, order }
    }

    /// Whether a write to this range of the disk makes imago create an L2 table. It may put that where data was that
    /// the file still names, so all its tables must have been written back before, and nobody may free a cluster
    /// meanwhile.
    pub fn lacks_table(&self, offset: u64, len: u64) -> bool {
        self.order.as_ref().is_some_and(|o| o.lacks_table(offset, len))
    }

    /// Whether an entry of a table could not be written. Nothing else is until it is there: each write, and each flush,
    /// tries it first, and fails if that does.
    pub fn owes(&self) -> bool {
        self.order.as_ref().is_some_and(Order::owes)
    }

    /// Lets writes through from now on.
    pub fn allow_writes(&self) {
        self.writes.store(true, Ordering::Release);
    }

    /// Lets no write through from now on.
    pub fn stop_writes(&self) {
        self.writes.store(false, Ordering::Release);
    }

    /// Whether something was tried that no sound image leads to.
    pub fn tripped(&self) -> bool {
        self.tripped.load(Ordering::Acquire)
    }

    fn trip(&self, what: &str) -> io::Error {
        self.tripped.store(true, Ordering::Release);
        self.stop_writes();
        io::Error::other(format!("the image is damaged: {what} was prevented; run `qemu-img check -r all` on it"))
    }

    fn failed(&self, trouble: Trouble) -> io::Error {
        match trouble {
            Trouble::Io(e) => e,
            Trouble::Senseless(what) => self.trip(what),
        }
    }

    /// Whether a change of `offset..offset + len` may be made; `Ok(true)` if the header's bytes need a look.
    fn admit(&self, offset: u64, len: u64) -> io::Result<bool> {
        if !self.writes.load(Ordering::Acquire) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the image's tables have not been checked"));
        }
        Ok(len > 0 && offset < self.cluster_bytes)
    }
}

/// Runs one operation of imago with an eye on the stack: a recursion that does not end becomes a panic, which the
/// caller catches, instead of the end of the process.
pub fn with_bounded_stack<R>(operation: impl FnOnce() -> R) -> R {
    struct Reset(usize);
    impl Drop for Reset {
        fn drop(&mut self) {
            STACK_START.set(self.0);
        }
    }
    let mark = 0u8;
    let _reset = Reset(STACK_START.replace(std::ptr::from_ref(&mark).addr()));
    operation()
}

/// Panics if the operation under way has used more of the stack than any sound image needs.
fn look_at_stack() {
    let here = 0u8;
    let start = STACK_START.get();
    let used = start.abs_diff(std::ptr::from_ref(&here).addr());
    assert!(start == 0 || used <= STACK_BYTES_MAX, "imago calls itself without end: the image's tables make no sense");
}

/// A file behind a fence.
#[derive(Debug)]
pub struct FencedFile<S: Storage = File> {
    inner: S,
    fence: Arc<Fence>,
}

impl<S: Storage> FencedFile<S> {
    /// Puts a file behind a fence.
    pub fn new(inner: S, fence: Arc<Fence>) -> Self {
        Self { inner, fence }
    }

    /// Makes a change that is no write.
    fn beside(&self, offset: u64, len: u64, change: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        match &self.fence.order {
            Some(order) => {
                let range = offset..offset.saturating_add(len);
                order.beside(&self.inner, range, change).map_err(|t| self.fence.failed(t))
            }
            None => change(),
        }
    }

    /// What stands in the first cluster at `offset`, `len` bytes at most.
    fn header_now(&self, offset: u64, len: u64) -> io::Result<IoBuffer> {
        let mut now = IoBuffer::new(len as usize, self.inner.mem_align().max(1))?;
        // SAFETY: the range is that of a request of imago, which keeps to the file's alignment; so does the buffer.
        unsafe { self.inner.pure_readv((&mut now).into(), offset) }?;
        Ok(now)
    }

    /// Checks that a write leaves the header as it is.
    fn keeps_header(&self, bufv: &IoVector<'_>, offset: u64) -> io::Result<()> {
        let mut new = vec![0; bufv.len() as usize];
        bufv.copy_into_slice(&mut new);
        let now = self.header_now(offset, bufv.len())?;
        let header = (self.fence.cluster_bytes - offset).min(bufv.len()) as usize;
        let same = now.as_ref().into_slice()[..header].iter().zip(&new).enumerate();
        let changed = same.filter(|(_, (old, new))| old != new).map(|(i, _)| i + offset as usize);
        match changed.into_iter().find(|at| !REFTABLE_POINTER.contains(at)) {
            None => Ok(()),
            Some(_) => Err(self.fence.trip("a write over the header of the image")),
        }
    }
}

impl<S: Storage> fmt::Display for FencedFile<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.inner, f)
    }
}

impl<S: Storage> Storage for FencedFile<S> {
    fn mem_align(&self) -> usize {
        // imago asks in every call of its allocator that makes a refcount block.
        look_at_stack();
        self.inner.mem_align()
    }

    fn req_align(&self) -> usize {
        self.inner.req_align()
    }

    fn zero_align(&self) -> usize {
        self.inner.zero_align()
    }

    fn discard_align(&self) -> usize {
        self.inner.discard_align()
    }

    fn size(&self) -> io::Result<u64> {
        self.inner.size()
    }

    fn resolve_relative_path<P: AsRef<Path>>(&self, relative: P) -> io::Result<PathBuf> {
        self.inner.resolve_relative_path(relative)
    }

    fn get_filename(&self) -> Option<PathBuf> {
        self.inner.get_filename()
    }

    unsafe fn pure_readv(&self, mut bufv: IoVectorMut<'_>, offset: u64) -> io::Result<()> {
        let end = offset.saturating_add(bufv.len());
        if !self.fence.hidden.iter().any(|(at, _)| (offset..end).contains(at)) {
            // SAFETY: the caller's promises are passed on.
            return unsafe { self.inner.pure_readv(bufv, offset) };
        }
        let mut all = IoBuffer::new(bufv.len() as usize, self.inner.mem_align().max(1))?;
        // SAFETY: the same range, into a buffer of the file's alignment.
        unsafe { self.inner.pure_readv((&mut all).into(), offset) }?;
        let bytes = all.as_mut().into_slice();
        for (at, bits) in &self.fence.hidden {
            if let Some(byte) = at.checked_sub(offset).and_then(|i| bytes.get_mut(i as usize)) {
                *byte &= !bits;
            }
        }
        bufv.copy_from_slice(bytes);
        Ok(())
    }

    unsafe fn pure_writev(&self, bufv: IoVector<'_>, offset: u64) -> io::Result<()> {
        if self.fence.admit(offset, bufv.len())? {
            self.keeps_header(&bufv, offset)?;
        }
        match &self.fence.order {
            Some(order) => order.write(&self.inner, bufv, offset).map_err(|t| self.fence.failed(t)),
            // SAFETY: the caller's promises are passed on.
            None => unsafe { self.inner.pure_writev(bufv, offset) },
        }
    }

    unsafe fn pure_write_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        if self.fence.admit(offset, length)? {
            return Err(self.fence.trip("zeroing the header of the image"));
        }
        // SAFETY: the caller's promises are passed on.
        self.beside(offset, length, || unsafe { self.inner.pure_write_zeroes(offset, length) })
    }

    unsafe fn pure_write_allocated_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        if self.fence.admit(offset, length)? {
            return Err(self.fence.trip("zeroing the header of the image"));
        }
        // SAFETY: the caller's promises are passed on.
        self.beside(offset, length, || unsafe { self.inner.pure_write_allocated_zeroes(offset, length) })
    }

    unsafe fn pure_discard(&self, offset: u64, length: u64) -> io::Result<()> {
        if self.fence.admit(offset, length)? {
            return Err(self.fence.trip("discarding the header of the image"));
        }
        // SAFETY: the caller's promises are passed on.
        self.beside(offset, length, || unsafe { self.inner.pure_discard(offset, length) })
    }

    fn flush(&self) -> io::Result<()> {
        if let Some(order) = self.fence.order.as_ref().filter(|o| o.owes()) {
            order.pay(&self.inner).map_err(|t| self.fence.failed(t))?;
        }
        self.inner.flush()
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn settle_writes(&self) -> io::Result<()> {
        self.inner.settle_writes()
    }

    unsafe fn invalidate_cache(&self) -> io::Result<()> {
        // SAFETY: the caller's promises are passed on.
        unsafe { self.inner.invalidate_cache() }
    }

    fn get_storage_helper(&self) -> &CommonStorageHelper {
        self.inner.get_storage_helper()
    }

    fn resize(&self, new_size: u64, mode: PreallocateMode) -> io::Result<()> {
        self.fence.admit(u64::MAX, 0)?;
        self.inner.resize(new_size, mode)
    }
}
