//! The page cache of a file: which of its pages are in memory, and copies of those.
//!
//! Owns a descriptor, and mappings of windows of the file for the time of a call. Never reads through the mapping
//! itself (the kernel copies, so that a file cut short is an error and not a signal), and never lets the kernel read
//! ahead. Invariant: only pages that `mincore` has just called resident are touched.

use super::batch::{Batch, Copied, PageRun, Piece, last_errno, parts, take};
use super::{Extent, PAGE_BYTES, PageFlags};
use rustix::fs::{Advice, FileType, SeekFrom, fadvise, fstat, seek};
use rustix::io::Errno;
use rustix::mm::{Advice as MapAdvice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// Pages of a file that are mapped and asked about at once: 64 MiB.
pub const WINDOW_PAGES: u64 = 16_384;

/// `cachestat`, the same number on every architecture (Linux 6.5).
const SYS_CACHESTAT: libc::c_long = 451;

/// A window of a file, mapped for asking about it and for the kernel to copy from.
pub(super) struct View {
    base: *mut libc::c_void,
    run: PageRun,
}

impl View {
    /// Maps pages `run` of `file`.
    pub(super) fn new(file: &File, run: PageRun) -> io::Result<View> {
        let page = PAGE_BYTES as u64;
        let len = usize::try_from(run.count * page).map_err(|_| Errno::INVAL)?;
        // SAFETY: a new read-only mapping at an address that the kernel chooses; it is never read through, see `copy`.
        let base = unsafe {
            let base = mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, run.first * page)?;
            // No read-ahead, should a page be dropped between the question and the copy.
            let _ = madvise(base, len, MapAdvice::Random);
            base
        };
        Ok(View { base, run })
    }

    /// Tells `each` which of the pages are in memory, as runs.
    pub(super) fn resident(&self, mut each: impl FnMut(bool, PageRun)) -> io::Result<()> {
        let mut states = vec![0u8; self.run.count as usize];
        // SAFETY: the range is the mapping's; the kernel writes a byte for each of its pages to `states`.
        let r = unsafe { libc::mincore(self.base, states.len() * PAGE_BYTES, states.as_mut_ptr()) };
        if r != 0 {
            return Err(last_errno().into());
        }
        let mut first = self.run.first;
        for same in states.chunk_by(|a, b| a & 1 == b & 1) {
            let run = PageRun { first, count: same.len() as u64 };
            each(same[0] & 1 == 1, run);
            first = run.end();
        }
        Ok(())
    }

    fn address(&self, page_offset: u64) -> *mut libc::c_void {
        let at = page_offset - self.run.first * PAGE_BYTES as u64;
        self.base.wrapping_byte_add(at as usize)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, which nothing refers to.
        let _ = unsafe { munmap(self.base, self.run.count as usize * PAGE_BYTES) };
    }
}

/// A file, or a block device, whose cached pages are of interest.
#[derive(Debug)]
pub struct CachedFile {
    file: File,
    pages: u64,
    identity: (u64, u64),
}

impl CachedFile {
    /// Takes a file that was opened for this, and gives the kernel advice on that descriptor. `None` if it is neither a
    /// regular file nor a block device.
    ///
    /// # Errors
    /// What the kernel says; `PermissionDenied` if the kernel would not tell us which pages are in memory: it does for
    /// files that we own or may write to, and otherwise calls every page resident.
    pub fn new(file: File) -> io::Result<Option<CachedFile>> {
        let st = fstat(&file)?;
        let device = match FileType::from_raw_mode(st.st_mode) {
            FileType::RegularFile => false,
            FileType::BlockDevice => true,
            _ => return Ok(None),
        };
        if !may_ask(&file) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let bytes = seek(&file, SeekFrom::End(0))?;
        let _ = fadvise(&file, 0, None, Advice::Random);
        let _ = fadvise(&file, 0, None, Advice::NoReuse);
        let identity = if device { (u64::MAX, st.st_rdev) } else { (st.st_dev, st.st_ino) };
        // A last part of a page counts: it is a page in memory as any.
        Ok(Some(CachedFile { file, pages: bytes.div_ceil(PAGE_BYTES as u64), identity }))
    }

    /// Its pages, the last one perhaps not whole.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Device and inode, or a mark and the number of the block device: the same under all its names.
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// How many pages of it are in memory, by `cachestat`; `None` on kernels before Linux 6.5 and where it is not
    /// allowed.
    pub fn count_cached(&self) -> Option<u64> {
        #[repr(C)]
        struct Range {
            offset: u64,
            len: u64,
        }
        // Of `struct cachestat`: nr_cache, nr_dirty, nr_writeback, nr_evicted, nr_recently_evicted.
        let (range, mut stat) = (Range { offset: 0, len: 0 }, [0u64; 5]);
        // SAFETY: the kernel reads a range (of length 0: to the end) and writes five u64; both are ours.
        let r =
            unsafe { libc::syscall(SYS_CACHESTAT, self.file.as_raw_fd(), &raw const range, stat.as_mut_ptr(), 0u32) };
        (r == 0).then_some(stat[0])
    }

    /// Appends to `out` the pages of `range` that are in memory; returns the page up to which it looked, at least one
    /// past `range.first`.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn extents(&self, range: PageRun, out: &mut Vec<Extent>) -> io::Result<u64> {
        let end = range.end().min(self.pages);
        if range.first >= end {
            return Ok(range.end());
        }
        let run = PageRun { first: range.first, count: (end - range.first).min(WINDOW_PAGES) };
        View::new(&self.file, run)?.resident(|there, run| {
            if there {
                out.push(Extent { run, flags: PageFlags::PRESENT | PageFlags::FILE });
            }
        })?;
        Ok(run.end())
    }

    /// Copies pages from the front of `runs` (page numbers of the file, as `extents` named them) into `batch`, as many
    /// as fit and lie in one window, and takes them off.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn copy(&self, runs: &mut Vec<PageRun>, piece: Piece, batch: &mut Batch) -> io::Result<Copied> {
        batch.begin(piece);
        let mut copied = Copied::default();
        let Some(first) = runs.first().map(|r| r.first) else { return Ok(copied) };
        let window = PageRun { first, count: self.pages.saturating_sub(first).min(WINDOW_PAGES) };
        if window.count == 0 {
            take(runs, 1, |_| copied.unreadable += 1);
            return Ok(copied);
        }
        let view = View::new(&self.file, window)?;
        while batch.room() > 0 {
            let room = batch.room() as u64;
            let fits = |r: &&PageRun| r.first >= first && r.first + r.count.min(room) <= window.end();
            let here = runs.iter().take_while(fits).count();
            if here == 0 {
                // The rest is for the next call, unless the file ends before the very first.
                if batch.is_empty() && !runs.is_empty() {
                    take(runs, 1, |_| copied.unreadable += 1);
                }
                break;
            }
            let iov = |(at, len): (u64, usize)| libc::iovec { iov_base: view.address(at), iov_len: len };
            let from: Vec<libc::iovec> = parts(&runs[..here], piece, batch.room()).into_iter().map(iov).collect();
            match batch.pull(&from) {
                Ok(n) if n >= piece.bytes() => take(runs, (n / piece.bytes()) as u64, |run| batch.note(run)),
                Ok(_) | Err(Errno::FAULT) => take(runs, 1, |_| copied.unreadable += 1),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(copied)
    }
}

/// The kernel's own rule for `mincore` (`can_do_mincore`): the owner, who may write, or who may do what owners may.
fn may_ask(file: &File) -> bool {
    let me = rustix::process::geteuid().as_raw();
    if file.metadata().is_ok_and(|meta| meta.uid() == me) {
        return true;
    }
    match rustix::fs::access(format!("/proc/self/fd/{}", file.as_raw_fd()), rustix::fs::Access::WRITE_OK) {
        Ok(()) => true,
        // A read-only file system or a running program keeps root from writing, not from asking.
        Err(e) => me == 0 && (e == Errno::ROFS || e == Errno::TXTBSY || e == Errno::PERM),
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// A file of `pages` pages of which only `cached` are in memory, if the file system can drop pages.
    fn file(pages: u64, cached: &[u64]) -> (tempfile::NamedTempFile, CachedFile) {
        let temp = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        for n in 0..pages {
            temp.as_file().write_all_at(&[n as u8 + 1; PAGE_BYTES], n * PAGE_BYTES as u64).unwrap();
        }
        temp.as_file().sync_all().unwrap();
        fadvise(temp.as_file(), 0, None, Advice::DontNeed).unwrap();
        fadvise(temp.as_file(), 0, None, Advice::Random).unwrap();
        for n in cached {
            temp.as_file().read_at(&mut [0; 1], n * PAGE_BYTES as u64).unwrap();
        }
        let cached = CachedFile::new(File::open(temp.path()).unwrap()).unwrap().unwrap();
        (temp, cached)
    }

    fn resident(file: &CachedFile) -> Vec<u64> {
        let mut out = Vec::new();
        let mut at = 0;
        while at < file.pages() {
            at = file.extents(PageRun { first: at, count: file.pages() - at }, &mut out).unwrap();
        }
        out.iter().flat_map(|e| e.run.first..e.run.end()).collect()
    }

    #[test]
    fn only_resident_pages_are_named_and_copying_makes_no_other_resident() {
        let (_temp, file) = file(200, &[3, 4, 5, 70, 199]);
        assert_eq!(resident(&file), [3, 4, 5, 70, 199]);
        match file.count_cached() {
            Some(n) => assert_eq!(n, 5),
            None => undercroft_skips::skip("this kernel has no cachestat (Linux 6.5), or does not permit it"),
        }
        for piece in [Piece::Whole, Piece::Probe] {
            let mut out = Vec::new();
            file.extents(PageRun { first: 0, count: 200 }, &mut out).unwrap();
            let mut runs: Vec<PageRun> = out.iter().map(|e| e.run).collect();
            let mut batch = Batch::new().unwrap();
            assert_eq!(file.copy(&mut runs, piece, &mut batch).unwrap(), Copied::default());
            assert_eq!(batch.numbers(), [3, 4, 5, 70, 199]);
            for (i, n) in batch.numbers().iter().enumerate() {
                assert!(batch.copy(i).iter().all(|b| u64::from(*b) == n + 1), "page {n}");
            }
            assert_eq!(resident(&file), [3, 4, 5, 70, 199], "after copies of {piece:?}");
        }
    }

    #[test]
    fn a_file_cut_short_meanwhile_is_an_error_and_no_signal() {
        let (temp, file) = file(8, &[0, 1, 2, 3, 4, 5, 6, 7]);
        temp.as_file().set_len(2 * PAGE_BYTES as u64).unwrap();
        let (mut runs, mut batch) = (vec![PageRun { first: 0, count: 8 }], Batch::new().unwrap());
        let copied = file.copy(&mut runs, Piece::Whole, &mut batch).unwrap();
        assert_eq!((copied.unreadable, batch.numbers()), (6, &[0u64, 1][..]));
    }

    #[test]
    fn what_has_no_page_cache_is_refused() {
        assert!(CachedFile::new(File::open("/dev/null").unwrap()).unwrap().is_none());
        assert!(CachedFile::new(File::open("/").unwrap()).unwrap().is_none());
    }
}
