//! Shared memory of guests: memfd and tmpfs files, read through `pread`.
//!
//! Owns one descriptor. Never maps the memory to read it: a read of a hole gives zeroes and allocates nothing, a fault
//! would. Invariant: `extents` names only pages that are allocated and in memory.

use super::batch::{Batch, Copied, PageRun, Piece, parts, take};
use super::cached::View;
use super::{Extent, PAGE_BYTES, PageFlags};
use rustix::fs::{FileType, SeekFrom, fstat, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// Magic numbers of `statfs`.
const TMPFS: i64 = 0x0102_1994;
const HUGETLBFS: i64 = 0x9584_58f6;
/// Pages asked about at once.
const LOOK_PAGES: u64 = 16_384;

/// A file of shared memory.
#[derive(Debug)]
pub struct SharedFile {
    file: File,
    pages: u64,
    huge: bool,
    identity: (u64, u64),
}

impl SharedFile {
    /// Takes a file; `None` if it is no memory file (memfd, tmpfs, hugetlbfs). Opens it anew where that is allowed, so
    /// that the position in it is our own.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(file: File) -> io::Result<Option<SharedFile>> {
        let kind = rustix::fs::fstatfs(&file)?.f_type;
        let st = fstat(&file)?;
        if (kind != TMPFS && kind != HUGETLBFS) || FileType::from_raw_mode(st.st_mode) != FileType::RegularFile {
            return Ok(None);
        }
        let file = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or(file);
        let pages = u64::try_from(st.st_size).unwrap_or(0) / PAGE_BYTES as u64;
        Ok(Some(SharedFile { file, pages, huge: kind == HUGETLBFS, identity: (st.st_dev, st.st_ino) }))
    }

    /// Whole pages in it.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Device and inode: the same for everybody who has it.
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Whether it is of huge pages: of those the kernel does not say here which are allocated.
    pub fn is_huge(&self) -> bool {
        self.huge
    }

    /// Appends to `out` the pages of `range` that are allocated and in memory; pages swapped out are marked so. Returns
    /// the page up to which it looked, at least one past `range.first`.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn extents(&self, range: PageRun, out: &mut Vec<Extent>) -> io::Result<u64> {
        let page = PAGE_BYTES as u64;
        let end = range.end().min(self.pages);
        if range.first >= end {
            return Ok(range.end());
        }
        let data = match seek(&self.file, SeekFrom::Data(range.first * page)) {
            Ok(at) => at / page,
            // Only holes from here on.
            Err(Errno::NXIO) => return Ok(range.end()),
            Err(e) => return Err(e.into()),
        };
        if data >= end {
            return Ok(range.end());
        }
        let run = PageRun { first: data, count: (end - data).min(LOOK_PAGES) };
        if self.huge {
            out.push(Extent { run, flags: PageFlags::PRESENT | PageFlags::HUGE });
            return Ok(run.end());
        }
        // Pages may be allocated and swapped out; reading them would bring them in. Looking for the next hole instead
        // would walk to it, however far it is, in every call.
        let mut missing = Vec::new();
        View::new(&self.file, run)?.resident(|there, run| {
            if there {
                out.push(Extent { run, flags: PageFlags::PRESENT | PageFlags::FILE });
            } else {
                missing.push(run);
            }
        })?;
        for run in missing {
            // The first page with data in what is not in memory: from there on it is swapped out.
            let data = seek(&self.file, SeekFrom::Data(run.first * page)).map_or(u64::MAX, |at| at / page);
            if data < run.end() {
                let run = PageRun { first: data, count: run.end() - data };
                out.push(Extent { run, flags: PageFlags::SWAPPED | PageFlags::FILE });
            }
        }
        Ok(run.end())
    }

    /// Copies pages from the front of `runs` (page numbers of the file) into `batch`, as many as fit, and takes them
    /// off. What was made a hole meanwhile reads as zeroes.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn copy(&self, runs: &mut Vec<PageRun>, piece: Piece, batch: &mut Batch) -> io::Result<Copied> {
        batch.begin(piece);
        let mut copied = Copied::default();
        while batch.room() > 0 && !runs.is_empty() {
            let Some(&(at, len)) = parts(runs, piece, batch.room()).first() else { break };
            match self.file.read_at(&mut batch.free_bytes()[..len], at) {
                Ok(n) if n >= piece.bytes() => take(runs, (n / piece.bytes()) as u64, |run| batch.note(run)),
                // The file was cut, or the memory is broken.
                Ok(_) => take(runs, 1, |_| copied.unreadable += 1),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.raw_os_error().is_some_and(|e| e == libc::EIO || e == libc::EHWPOISON) => {
                    take(runs, 1, |_| copied.unreadable += 1);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(copied)
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
    use std::os::unix::fs::MetadataExt;

    fn memfd(pages: u64, filled: &[u64]) -> File {
        let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, pages * PAGE_BYTES as u64).unwrap();
        for n in filled {
            file.write_all_at(&[(*n as u8).wrapping_add(1); PAGE_BYTES], n * PAGE_BYTES as u64).unwrap();
        }
        file
    }

    fn extents(file: &SharedFile) -> Vec<PageRun> {
        let (mut out, mut at) = (Vec::new(), 0);
        while at < file.pages() {
            let next = file.extents(PageRun { first: at, count: file.pages() - at }, &mut out).unwrap();
            assert!(next > at);
            at = next;
        }
        assert!(out.iter().all(|e| e.flags.has(PageFlags::PRESENT)));
        out.iter().map(|e| e.run).collect()
    }

    #[test]
    fn holes_are_neither_named_nor_allocated() {
        let pages = 3 * LOOK_PAGES;
        let raw = memfd(pages, &[0, 1, 2, 40, LOOK_PAGES + 5, pages - 1]);
        let before = raw.metadata().unwrap().blocks();
        let file = SharedFile::new(raw.try_clone().unwrap()).unwrap().unwrap();
        let runs = extents(&file);
        let named: Vec<u64> = runs.iter().flat_map(|r| r.first..r.end()).collect();
        assert_eq!(named, [0, 1, 2, 40, LOOK_PAGES + 5, pages - 1]);
        let mut batch = Batch::new().unwrap();
        // Even a page that was punched out between the look and the read stays a hole.
        let page = PAGE_BYTES as u64;
        fallocate(&raw, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 40 * page, page).unwrap();
        let mut todo = runs.clone();
        while !todo.is_empty() {
            assert_eq!(file.copy(&mut todo, Piece::Whole, &mut batch).unwrap(), Copied::default());
        }
        assert_eq!(batch.numbers(), named);
        assert_eq!((batch.copy(1)[9], batch.copy(3)[9]), (2, 0));
        assert_eq!(raw.metadata().unwrap().blocks(), before - page / 512);
    }

    #[test]
    fn a_file_cut_short_meanwhile_is_skipped() {
        let raw = memfd(8, &[0, 1, 2, 3, 4, 5, 6, 7]);
        let file = SharedFile::new(raw.try_clone().unwrap()).unwrap().unwrap();
        ftruncate(&raw, 3 * PAGE_BYTES as u64).unwrap();
        let (mut todo, mut batch) = (vec![PageRun { first: 0, count: 8 }], Batch::new().unwrap());
        let copied = file.copy(&mut todo, Piece::Whole, &mut batch).unwrap();
        assert_eq!((copied.unreadable, batch.len()), (5, 3));
    }

    #[test]
    fn other_files_are_not_shared_memory() {
        assert!(SharedFile::new(File::open("/proc/self/exe").unwrap()).unwrap().is_none());
        assert!(SharedFile::new(File::open("/dev/null").unwrap()).unwrap().is_none());
    }
}
