//! The log of memory that we have written, for a front end that migrates its guest: one bit for each page of 4 KiB.
//!
//! Owns the mapping of the log and the order of writes and marks. Never clears a bit, and never trusts what the log
//! holds: it is the front end's. Invariants: a page is marked after it was written, so that whoever clears the mark and
//! then copies the page copies what was written; a mark outside of the log is left out, and a log that does not reach
//! to the end of the guest's memory is refused.
//!
//! Why after: the front end clears a bit in one atomic exchange and copies the page then. If the bit were set first, it
//! could be cleared, and the page copied, before the write, which nobody would ever copy. The bit is set by an atomic
//! OR whatever it was before, even if it is set already: a look at it could be answered before our write is visible,
//! and the bit be cleared between both. Marks are there before the used entry that tells of them is published, and
//! those of the used ring before the queue is said to be at rest, so before the front end looks at the log for the last
//! time. See docs/decisions/0200.

use super::limits::LOG_SLACK_MAX;
use super::memory::{GuestMap, MemoryWindow, PAGE_BYTES};
use crate::faults::{PortBug, PortFaults, StoreSite};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use undercroft_host::Guarded;
use vhost::vhost_user::message::VhostUserLog;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

/// Pages of one byte of the log.
const PAGES_PER_BYTE: u64 = 8;

/// A log that a front end has handed over.
#[derive(Clone, Debug)]
pub struct DirtyLog {
    window: MemoryWindow,
}

/// What is done in the order that [`written`] knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The guest's memory is written.
    Write,
    /// It is marked.
    Mark,
}

/// Has `step` write memory of the guest, and then mark it. `unmarked` is the bug of leaving the mark out.
#[inline]
pub(super) fn written<F: PortFaults>(unmarked: PortBug, mut step: impl FnMut(Step)) {
    let early = F::has(PortBug::MarkedBeforeWritten);
    if early {
        step(Step::Mark);
        F::meanwhile();
    }
    step(Step::Write);
    F::meanwhile();
    if !early && !F::has(unmarked) {
        step(Step::Mark);
    }
}

impl DirtyLog {
    /// Bytes of a log for the memory of `map`.
    pub fn bytes_for(map: &GuestMap) -> u64 {
        map.end().div_ceil(PAGE_BYTES).div_ceil(PAGES_PER_BYTE)
    }

    /// Maps the log that a front end hands over for the memory of `map`, and keeps `place` as long as it is mapped.
    ///
    /// # Errors
    /// It is too small for the memory or much larger, or the file ends before it, or cannot be mapped.
    pub fn open(
        said: &VhostUserLog,
        file: File,
        map: &GuestMap,
        place: impl Send + Sync + 'static,
    ) -> io::Result<DirtyLog> {
        let needed = Self::bytes_for(map);
        if said.mmap_size < needed {
            return Err(invalid("the log of dirty memory is too small for the guest's memory"));
        }
        let end = said.mmap_offset.checked_add(said.mmap_size);
        let file_bytes = file.metadata()?.len();
        if said.mmap_size == 0 || end.is_none_or(|end| file_bytes < end) {
            return Err(invalid("the file of the log of dirty memory is too short for it"));
        }
        if file_bytes > needed.saturating_add(LOG_SLACK_MAX) {
            return Err(invalid("the log of dirty memory is much larger than the guest's memory needs"));
        }
        let bytes = said.mmap_size as usize;
        let region = MmapRegion::from_file(FileOffset::new(file, said.mmap_offset), bytes).map_err(io::Error::other)?;
        let mapping = Arc::new(Guarded::new(region)?.holding(place));
        let window = MemoryWindow::new(mapping, 0, bytes).ok_or_else(|| invalid("the log is not wholly mapped"))?;
        Ok(DirtyLog { window })
    }

    /// Whether it reaches to the end of the memory of `map`.
    pub fn covers(&self, map: &GuestMap) -> bool {
        Self::bytes_for(map) <= self.window.len() as u64
    }

    /// Whether its memory was taken away.
    pub(super) fn is_broken(&self) -> bool {
        self.window.is_broken()
    }

    /// Marks the pages of `len` bytes at guest address `guest`, which have been written.
    #[inline]
    pub fn mark<F: PortFaults>(&self, guest: u64, len: u64) {
        let Some(last) = len.checked_sub(1).and_then(|more| guest.checked_add(more)) else { return };
        let (first, last) = (guest / PAGE_BYTES, last / PAGE_BYTES);
        F::store(StoreSite::DirtyMark);
        let log = self.window.slice();
        let mut page = first;
        while page <= last {
            let (byte, bit) = (page / PAGES_PER_BYTE, page % PAGES_PER_BYTE);
            let count = (PAGES_PER_BYTE - bit).min(last - page + 1);
            let bits = (0xff_u8 >> (PAGES_PER_BYTE - count)) << bit;
            // Memory that the guest has had and that the log does not reach: the front end migrates it no more.
            let Ok(word) = log.get_atomic_ref::<AtomicU8>(byte as usize) else { return };
            word.fetch_or(bits, Ordering::SeqCst);
            page += count;
        }
    }

    /// Marks all of the guest's memory: something of it may have been written without a mark.
    pub(super) fn mark_all<F: PortFaults>(&self, map: &GuestMap) {
        map.regions().iter().for_each(|r| self.mark::<F>(r.guest, r.len));
    }
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use super::super::memory::MemoryRegion;
    use super::*;
    use crate::faults::NoPortFaults;
    use std::os::unix::fs::FileExt;

    const REGIONS: [(u64, u64); 3] = [(0, 0xa_0000), (0x10_0000, 0x2_1000), (0x12_1000, 0x7000)];

    fn memfd(bytes: u64) -> File {
        let fd = rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, bytes).unwrap();
        File::from(fd)
    }

    fn map() -> GuestMap {
        REGIONS.into_iter().fold(GuestMap::default(), |map, (guest, len)| {
            let mapping = MmapRegion::new(len as usize).unwrap();
            let mapping = Arc::new(Guarded::new(mapping).unwrap());
            map.with(MemoryRegion { guest, user: 0x7000_0000 + guest, len, mapping }).unwrap()
        })
    }

    fn open(bytes: u64, said: VhostUserLog) -> io::Result<DirtyLog> {
        DirtyLog::open(&said, memfd(bytes), &map(), ())
    }

    #[test]
    fn bits_are_set_for_exactly_the_pages_written() {
        let map = map();
        let bytes = DirtyLog::bytes_for(&map);
        assert_eq!(bytes, 0x128_u64.div_ceil(8));
        let mut state = 7u64;
        for _ in 0..2000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let guest = (state >> 20) % 0x12_8000;
            let len = [1, 2, 20, 512, 4095, 4096, 4097, 0x9000, 0x4_0000][(state >> 60) as usize % 9];
            let len = (len as u64).min(0x12_8000 - guest);
            let file = memfd(bytes);
            let log = DirtyLog::open(&VhostUserLog::new(bytes, 0), file.try_clone().unwrap(), &map, ()).unwrap();
            log.mark::<NoPortFaults>(guest, len);
            let mut said = vec![0; bytes as usize];
            file.read_exact_at(&mut said, 0).unwrap();
            for page in 0..bytes * 8 {
                let written = guest < (page + 1) * 4096 && page * 4096 < guest + len;
                let marked = said[page as usize / 8] >> (page % 8) & 1 == 1;
                assert_eq!(marked, written, "page {page} after {len} bytes at {guest:#x}");
            }
        }
    }

    #[test]
    fn nothing_is_written_past_the_end_and_no_number_overflows() {
        let bytes = DirtyLog::bytes_for(&map());
        let file = memfd(0x2000);
        let said = VhostUserLog::new(bytes, 0x1000);
        let log = DirtyLog::open(&said, file.try_clone().unwrap(), &map(), ()).unwrap();
        for (guest, len) in [(u64::MAX, 1), (u64::MAX, 2), (u64::MAX - 4096, 4096), (1 << 40, 1), (0x12_7fff, 0x9000)] {
            log.mark::<NoPortFaults>(guest, len);
        }
        log.mark::<NoPortFaults>(0x1000, 0);
        let mut all = vec![0; 0x2000];
        file.read_exact_at(&mut all, 0).unwrap();
        // The rest of the log's last byte, too: the log has room for whole bytes.
        assert_eq!(all.iter().map(|b| b.count_ones()).sum::<u32>(), 1, "the last page alone");
        assert_eq!(all[0x1000 + 0x127 / 8], 1 << (0x127 % 8));
    }

    #[test]
    fn marks_of_others_are_kept() {
        let bytes = DirtyLog::bytes_for(&map());
        let file = memfd(bytes);
        let log = DirtyLog::open(&VhostUserLog::new(bytes, 0), file.try_clone().unwrap(), &map(), ()).unwrap();
        file.write_all_at(&[0b1000_0001], 2).unwrap();
        log.mark::<NoPortFaults>(18 * 4096, 4096);
        let mut byte = [0];
        file.read_exact_at(&mut byte, 2).unwrap();
        assert_eq!(byte[0], 0b1000_0101);
    }

    #[test]
    fn logs_that_lie_about_their_size_are_refused() {
        let bytes = DirtyLog::bytes_for(&map());
        let why =
            |file: u64, size: u64, offset: u64| open(file, VhostUserLog::new(size, offset)).unwrap_err().to_string();
        assert!(open(bytes, VhostUserLog::new(bytes, 0)).is_ok());
        assert!(why(bytes - 1, bytes - 1, 0).contains("too small for the guest"));
        assert!(why(bytes - 1, bytes, 0).contains("too short"), "the file was cut before");
        assert!(why(bytes, bytes + 1, 0).contains("too short"));
        assert!(why(bytes, bytes, 4096).contains("too short"));
        assert!(why(bytes, bytes, u64::MAX - 10).contains("too short"), "the end wraps");
        assert!(why(0x4000, u64::MAX, 0).contains("too short"));
        assert!(open(0x4000, VhostUserLog::new(bytes, 100)).is_err(), "no mapping begins inside a page");
        assert!(open(bytes + LOG_SLACK_MAX, VhostUserLog::new(bytes, 0)).is_ok());
        assert!(why(bytes + LOG_SLACK_MAX + 1, bytes, 0).contains("much larger"));
    }

    #[test]
    fn what_is_no_memory_or_is_taken_away_does_no_harm() {
        let bytes = DirtyLog::bytes_for(&map());
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let said = VhostUserLog::new(bytes, 0);
        assert!(DirtyLog::open(&said, File::from(event), &map(), ()).is_err());
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        assert!(DirtyLog::open(&said, File::from(pipe), &map(), ()).is_err());
        let file = memfd(0x2000);
        let log = DirtyLog::open(&VhostUserLog::new(0x2000, 0), file.try_clone().unwrap(), &map(), ()).unwrap();
        rustix::fs::ftruncate(&file, 0).unwrap();
        log.mark::<NoPortFaults>(0, 0x12_8000);
        assert!(log.is_broken(), "noticed, and no signal ends the process");
    }

    #[test]
    fn memory_that_grows_past_the_log_is_not_covered() {
        let bytes = DirtyLog::bytes_for(&map());
        let log = open(bytes, VhostUserLog::new(bytes, 0)).unwrap();
        assert!(log.covers(&map()) && log.covers(&GuestMap::default()));
        let mapping = Arc::new(Guarded::new(MmapRegion::new(0x1000).unwrap()).unwrap());
        let more = MemoryRegion { guest: 0x12_8000, user: 0x100, len: 0x1000, mapping };
        let more = map().with(more).unwrap();
        assert!(!log.covers(&more));
    }
}
