//! The private memory that foreign pages are copied into before anybody looks at them.
//!
//! Owns one small shared-memory file that nobody else has, and its mapping. It is a file so that the kernel can copy
//! from a mapping of another file into it (`pwritev`): a fault there is an error code then, not a signal.
//! Invariant: pages `0 .. len` hold what was copied last, and `numbers` says which pages these are.

use super::PAGE_BYTES;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// Pages in a batch: 256 KiB, which a core's own cache holds between the copy and the hash.
pub const BATCH_PAGES: usize = 64;

/// Consecutive pages: of an address space, or of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageRun {
    /// Number of the first: address or offset over 4096.
    pub first: u64,
    /// How many.
    pub count: u64,
}

impl PageRun {
    /// One past the last page.
    pub fn end(self) -> u64 {
        self.first.saturating_add(self.count)
    }
}

/// Which part of every page is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// All of it.
    Whole,
    /// 64 bytes in the middle of the page: enough to choose pages by their content.
    Probe,
}

impl Piece {
    /// Bytes of a page that are copied.
    pub const fn bytes(self) -> usize {
        match self {
            Piece::Whole => PAGE_BYTES,
            Piece::Probe => 64,
        }
    }

    /// Where they begin in the page.
    pub(super) const fn offset(self) -> usize {
        match self {
            Piece::Whole => 0,
            Piece::Probe => PAGE_BYTES / 2,
        }
    }
}

/// What a copy could not do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Pages that could not be read; they are not in the batch.
    pub unreadable: u64,
}

/// Up to [`BATCH_PAGES`] copied pages.
pub struct Batch {
    file: File,
    base: NonNull<u8>,
    numbers: Vec<u64>,
    piece: Piece,
}

const BYTES: usize = BATCH_PAGES * PAGE_BYTES;

// SAFETY: the mapping belongs to this value alone, like a `Box<[u8]>`: neither its address nor its file is handed out
// but for the time of a system call.
unsafe impl Send for Batch {}

impl Batch {
    /// An empty one.
    ///
    /// # Errors
    /// What the kernel says: out of descriptors or memory.
    pub fn new() -> io::Result<Batch> {
        let fd = memfd_create("undercroft-scan", MemfdFlags::CLOEXEC)?;
        ftruncate(&fd, BYTES as u64)?;
        // SAFETY: a new mapping at an address that the kernel chooses, of a file that was just made `BYTES` long.
        let base =
            unsafe { mmap(std::ptr::null_mut(), BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &fd, 0)? };
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?;
        Ok(Batch { file: File::from(fd), base, numbers: Vec::with_capacity(BATCH_PAGES), piece: Piece::Whole })
    }

    /// Numbers of the pages, in the order of the copies.
    pub fn numbers(&self) -> &[u64] {
        &self.numbers
    }

    /// Copies in it.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Copy number `i`: a whole page, or the piece that was asked for.
    ///
    /// # Panics
    /// If there are not so many: a bug.
    pub fn copy(&self, i: usize) -> &[u8] {
        assert!(i < self.numbers.len(), "copy {i} of {}", self.numbers.len());
        let len = self.piece.bytes();
        // SAFETY: `i` is below BATCH_PAGES, so the bytes lie inside the mapping, which lives as long as `self`; nobody
        // else has the file, and the system calls that write to it need `&mut self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(i * len), len) }
    }

    /// Copy number `i`, of whole pages.
    ///
    /// # Panics
    /// If there are not so many, or only pieces of pages were copied: a bug.
    pub fn page(&self, i: usize) -> &[u8; PAGE_BYTES] {
        self.copy(i).try_into().expect("whole pages were copied")
    }

    /// Forgets everything, and prepares for copies of `piece`.
    pub(super) fn begin(&mut self, piece: Piece) {
        self.numbers.clear();
        self.piece = piece;
    }

    /// Copies that still fit.
    pub(super) fn room(&self) -> usize {
        BATCH_PAGES - self.numbers.len()
    }

    /// The memory behind the copies so far: where the next goes, for the kernel. Valid until `self` is dropped.
    pub(super) fn free_part(&mut self) -> libc::iovec {
        let used = self.numbers.len() * self.piece.bytes();
        // SAFETY: at most BATCH_PAGES copies of at most a page: inside the mapping, or one past its end.
        let at = unsafe { self.base.as_ptr().add(used) };
        libc::iovec { iov_base: at.cast(), iov_len: self.room() * self.piece.bytes() }
    }

    /// The same as bytes, for safe readers.
    pub(super) fn free_bytes(&mut self) -> &mut [u8] {
        let part = self.free_part();
        // SAFETY: `free_part` lies inside the mapping, and `&mut self` excludes every other reference to it.
        unsafe { std::slice::from_raw_parts_mut(part.iov_base.cast(), part.iov_len) }
    }

    /// Lets the kernel copy `from` (mapped memory, which may vanish meanwhile) behind the copies so far.
    ///
    /// # Errors
    /// `EFAULT` if not even the first byte could be read.
    pub(super) fn pull(&mut self, from: &[libc::iovec]) -> Result<usize, Errno> {
        let at = self.numbers.len() * self.piece.bytes();
        // SAFETY: the kernel reads from `from`, and answers EFAULT where that is not mapped; it writes to our own file,
        // whose mapping nobody refers to, by `&mut self`.
        let n = unsafe { libc::pwritev(self.file.as_raw_fd(), from.as_ptr(), from.len() as i32, at as i64) };
        usize::try_from(n).map_err(|_| last_errno())
    }

    /// Notes that the next pages of `run` have been copied.
    pub(super) fn note(&mut self, run: PageRun) {
        assert!(run.count as usize <= self.room(), "more pages than a batch holds");
        self.numbers.extend(run.first..run.end());
    }
}

/// The error of the system call that has just failed.
pub(super) fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; no reference to it outlives `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), BYTES) };
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Batch({} of {:?})", self.numbers.len(), self.piece)
    }
}

/// The parts of `runs` that a system call is to copy next, as (address or offset, bytes), at most `room` pages and as
/// many parts as the kernel takes: whole runs, or a piece of each page.
pub(super) fn parts(runs: &[PageRun], piece: Piece, room: usize) -> Vec<(u64, usize)> {
    const PARTS_MAX: usize = 1024;
    let mut parts = Vec::new();
    let mut room = room as u64;
    for run in runs {
        let count = run.count.min(room);
        room -= count;
        match piece {
            Piece::Whole if count > 0 => parts.push((run.first * PAGE_BYTES as u64, count as usize * PAGE_BYTES)),
            Piece::Whole => {}
            Piece::Probe => {
                let at = |n: u64| (n * PAGE_BYTES as u64 + piece.offset() as u64, piece.bytes());
                parts.extend((run.first..run.first + count).map(at));
            }
        }
        if room == 0 || parts.len() >= PARTS_MAX {
            break;
        }
    }
    parts.truncate(PARTS_MAX);
    parts
}

/// Takes the first `n` pages off `runs` and hands them to `each` as runs.
pub(super) fn take(runs: &mut Vec<PageRun>, mut n: u64, mut each: impl FnMut(PageRun)) {
    let mut done = 0;
    for run in runs.iter_mut() {
        let here = run.count.min(n);
        if here > 0 {
            each(PageRun { first: run.first, count: here });
        }
        run.first += here;
        run.count -= here;
        n -= here;
        if run.count > 0 {
            break;
        }
        done += 1;
    }
    runs.drain(..done);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_taken_off_the_front() {
        let mut runs = vec![PageRun { first: 10, count: 2 }, PageRun { first: 20, count: 3 }];
        let mut taken = Vec::new();
        take(&mut runs, 3, |r| taken.push(r));
        assert_eq!(taken, [PageRun { first: 10, count: 2 }, PageRun { first: 20, count: 1 }]);
        assert_eq!(runs, [PageRun { first: 21, count: 2 }]);
        take(&mut runs, 99, |_| {});
        assert!(runs.is_empty());
    }

    #[test]
    fn parts_never_pass_the_room() {
        let runs = [PageRun { first: 1, count: 2 }, PageRun { first: 9, count: 200 }];
        assert_eq!(parts(&runs, Piece::Whole, 3), [(4096, 8192), (9 * 4096, 4096)]);
        assert_eq!(parts(&runs, Piece::Probe, 3), [(4096 + 2048, 64), (2 * 4096 + 2048, 64), (9 * 4096 + 2048, 64)]);
        assert!(parts(&runs, Piece::Whole, 0).is_empty());
    }

    #[test]
    fn the_kernel_answers_an_error_where_memory_is_missing() {
        let mut batch = Batch::new().unwrap();
        batch.begin(Piece::Whole);
        let nowhere = libc::iovec { iov_base: 8192 as *mut libc::c_void, iov_len: PAGE_BYTES };
        assert_eq!(batch.pull(&[nowhere]), Err(Errno::FAULT));
        let mut page = vec![7u8; PAGE_BYTES];
        let there = libc::iovec { iov_base: page.as_mut_ptr().cast(), iov_len: PAGE_BYTES };
        assert_eq!(batch.pull(&[there]), Ok(PAGE_BYTES));
        batch.note(PageRun { first: 5, count: 1 });
        assert_eq!((batch.numbers(), batch.copy(0)), (&[5u64][..], &page[..]));
    }
}
