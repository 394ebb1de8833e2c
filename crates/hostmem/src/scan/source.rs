//! Where pages come from: a guest's private memory, its shared memory, a file's page cache.
//!
//! Owns the walk over one of them. Never reads a page that the kernel does not call present. Invariants: every page of
//! the source is counted once in a walk, as present, zero frame, swapped or absent; page numbers are relative to its
//! first.

use std::io;
use std::sync::Arc;
use undercroft_host::foreign::{
    Batch, CachedFile, Copied, Extent, KPageFlags, PAGE_BYTES, PageFlags, PageRun, Pagemap, Piece, Process, SharedFile,
    entry_frame,
};

/// Pages asked about at once: few, so that a page is not gone by the time it is read.
const LOOK_PAGES: u64 = 4096;
/// Pages in a huge page.
const HUGE_PAGES: u64 = 512;

/// What a walk has met so far, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walked {
    /// In memory, and of this source.
    pub present: u64,
    /// The kernel's shared frame of zeroes: costs nothing.
    pub zero_frames: u64,
    /// Swapped out; left there.
    pub swapped: u64,
    /// Without memory: holes, pages given back, pages of a file that are not cached.
    pub absent: u64,
    /// Present by the kernel's word, but not readable when it came to it.
    pub unreadable: u64,
}

impl Walked {
    /// All pages met.
    pub fn pages(&self) -> u64 {
        self.present + self.zero_frames + self.swapped + self.absent
    }

    /// Adds another walk's.
    pub fn add(&mut self, other: &Walked) {
        self.present += other.present;
        self.zero_frames += other.zero_frames;
        self.swapped += other.swapped;
        self.absent += other.absent;
        self.unreadable += other.unreadable;
    }
}

/// What is behind a source.
enum Kind {
    /// Pages of a process, by its page tables.
    Process { process: Arc<Process>, pagemap: Box<Pagemap>, frames: Option<Arc<KPageFlags>> },
    /// Pages of a memory file.
    Shared(Arc<SharedFile>),
    /// Pages of a file's page cache.
    Cached(Arc<CachedFile>),
}

/// One walk over pages.
pub struct Source {
    kind: Kind,
    range: PageRun,
    next: u64,
    walked: Walked,
    extents: Vec<Extent>,
}

impl Source {
    /// Pages `range` of a process's address space. With `frames`, huge frames of zeroes are told from others.
    ///
    /// # Errors
    /// The process's pagemap cannot be had.
    pub fn of_process(process: Arc<Process>, range: PageRun, frames: Option<Arc<KPageFlags>>) -> io::Result<Source> {
        let pagemap = Box::new(process.pagemap()?);
        Ok(Self::new(Kind::Process { process, pagemap, frames }, range))
    }

    /// Pages `range` of a memory file.
    pub fn of_shared(file: Arc<SharedFile>, range: PageRun) -> Source {
        Self::new(Kind::Shared(file), range)
    }

    /// The cached pages of a file.
    pub fn of_cached(file: Arc<CachedFile>) -> Source {
        let range = PageRun { first: 0, count: file.pages() };
        Self::new(Kind::Cached(file), range)
    }

    fn new(kind: Kind, range: PageRun) -> Source {
        Source { kind, range, next: range.first, walked: Walked::default(), extents: Vec::new() }
    }

    /// The process and its pages, if that is what is behind it.
    pub fn process(&self) -> Option<(&Arc<Process>, PageRun)> {
        match &self.kind {
            Kind::Process { process, .. } => Some((process, self.range)),
            _ => None,
        }
    }

    /// Its pages, by the numbers that `look` gives them.
    pub fn range(&self) -> PageRun {
        self.range
    }

    /// Pages in it, absent ones included.
    pub fn pages(&self) -> u64 {
        self.range.count
    }

    /// Pages the walk has passed.
    pub fn passed(&self) -> u64 {
        self.next.min(self.range.end()) - self.range.first
    }

    /// What the walk has met so far.
    pub fn walked(&self) -> Walked {
        self.walked
    }

    /// Starts again from the first page.
    pub fn restart(&mut self) {
        self.next = self.range.first;
        self.walked = Walked::default();
    }

    /// The next present pages, for `copy`; `None` at the end. May be empty before the end.
    ///
    /// # Errors
    /// What the kernel says; `NotFound` if the process has ended.
    pub fn look(&mut self) -> io::Result<Option<Vec<PageRun>>> {
        let end = self.range.end();
        if self.next >= end {
            return Ok(None);
        }
        let ask = PageRun { first: self.next, count: (end - self.next).min(LOOK_PAGES) };
        self.extents.clear();
        let seen = match &mut self.kind {
            Kind::Process { process, pagemap, .. } => {
                let seen = pagemap.extents(ask, &mut self.extents)?;
                // The pagemap of a process that has ended is empty, not gone.
                if !process.lives() {
                    return Err(io::ErrorKind::NotFound.into());
                }
                seen
            }
            Kind::Shared(file) => file.extents(ask, &mut self.extents)?,
            Kind::Cached(file) => file.extents(ask, &mut self.extents)?,
        };
        let seen = seen.clamp(ask.first + 1, ask.end());
        let mut runs = Vec::new();
        let mut listed = 0;
        for extent in &self.extents {
            let count = extent.run.count;
            listed += count;
            if extent.flags.has(PageFlags::SWAPPED) {
                self.walked.swapped += count;
            } else if extent.flags.has(PageFlags::ZERO_FRAME) || self.is_huge_zero(extent) {
                self.walked.zero_frames += count;
            } else {
                self.walked.present += count;
                runs.push(extent.run);
            }
        }
        self.walked.absent += (seen - ask.first).saturating_sub(listed);
        self.next = seen;
        Ok(Some(runs))
    }

    /// Whether an extent of huge pages is the kernel's huge frame of zeroes, which older kernels do not mark.
    fn is_huge_zero(&self, extent: &Extent) -> bool {
        let Kind::Process { pagemap, frames: Some(frames), .. } = &self.kind else { return false };
        if !extent.flags.has(PageFlags::HUGE) || extent.flags.has(PageFlags::FILE) {
            return false;
        }
        let mut at = extent.run.first;
        while at < extent.run.end() {
            let entry = pagemap.entries(PageRun { first: at, count: 1 }).unwrap_or_default();
            let frame = entry.first().copied().and_then(entry_frame);
            if !frame.is_some_and(|f| frames.of(f).is_zero()) {
                return false;
            }
            at = (at / HUGE_PAGES + 1) * HUGE_PAGES;
        }
        true
    }

    /// Copies pages from the front of `runs`, as `look` returned them, and takes them off.
    ///
    /// # Errors
    /// What the kernel says; `NotFound` if the process has ended.
    pub fn copy(&mut self, runs: &mut Vec<PageRun>, piece: Piece, batch: &mut Batch) -> io::Result<Copied> {
        let copied = match &self.kind {
            Kind::Process { process, .. } => process.copy(runs, piece, batch),
            Kind::Shared(file) => file.copy(runs, piece, batch),
            Kind::Cached(file) => file.copy(runs, piece, batch),
        }?;
        self.walked.unreadable += copied.unreadable;
        Ok(copied)
    }

    /// The number of a page within the source, of those in a batch.
    pub fn number(&self, page: u64) -> u64 {
        page - self.range.first
    }

    /// Bytes of it, absent pages included.
    pub fn bytes(&self) -> u64 {
        self.range.count.saturating_mul(PAGE_BYTES as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    #[test]
    fn every_page_of_a_memory_file_is_counted_once() {
        let file = File::from(rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        let pages = 3 * LOOK_PAGES + 17;
        file.set_len(pages * PAGE_BYTES as u64).unwrap();
        for n in [0u64, 1, 100, LOOK_PAGES - 1, LOOK_PAGES, pages - 1] {
            file.write_all_at(&[1], n * PAGE_BYTES as u64).unwrap();
        }
        let shared = Arc::new(SharedFile::new(file).unwrap().unwrap());
        // From page 1 on: the first is not of this source.
        let mut source = Source::of_shared(shared, PageRun { first: 1, count: pages - 1 });
        for _ in 0..2 {
            let mut batch = Batch::new().unwrap();
            let mut numbers = Vec::new();
            while let Some(mut runs) = source.look().unwrap() {
                while !runs.is_empty() {
                    source.copy(&mut runs, Piece::Whole, &mut batch).unwrap();
                    numbers.extend(batch.numbers().iter().map(|n| source.number(*n)));
                }
            }
            assert_eq!(numbers, [0, 99, LOOK_PAGES - 2, LOOK_PAGES - 1, pages - 2]);
            let want = Walked { present: 5, absent: pages - 6, ..Walked::default() };
            assert_eq!((source.walked(), source.passed()), (want, pages - 1));
            source.restart();
        }
    }
}
