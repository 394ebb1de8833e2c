//! Which pages of a process are in memory: the `PAGEMAP_SCAN` call (Linux 6.7), or the entries of `/proc/PID/pagemap`.
//!
//! Owns the descriptor, which stays with the address space it was opened for, even if the process number is reused.
//! Never reads a page. Invariant: extents come in order, do not overlap, and lie inside the range asked for; what they
//! do not cover has no memory.

use super::batch::last_errno;
use super::{PAGE_BYTES, PageRun};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::{BitOr, BitOrAssign};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// What is known of a page, in the kernel's bits (`linux/fs.h`, `PAGE_IS_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageFlags(u64);

impl PageFlags {
    /// Nothing.
    pub const NONE: PageFlags = PageFlags(0);
    /// Belongs to a file or to shared memory.
    pub const FILE: PageFlags = PageFlags(1 << 2);
    /// In memory.
    pub const PRESENT: PageFlags = PageFlags(1 << 3);
    /// Swapped out.
    pub const SWAPPED: PageFlags = PageFlags(1 << 4);
    /// The kernel's shared page of zeroes: nobody's memory.
    pub const ZERO_FRAME: PageFlags = PageFlags(1 << 5);
    /// Part of a huge page.
    pub const HUGE: PageFlags = PageFlags(1 << 6);
    /// Written to since the last [`super::Process::forget_changes`].
    pub const SOFT_DIRTY: PageFlags = PageFlags(1 << 7);

    /// Whether all of `other` is among these.
    pub fn has(self, other: PageFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for PageFlags {
    type Output = PageFlags;
    fn bitor(self, other: PageFlags) -> PageFlags {
        PageFlags(self.0 | other.0)
    }
}

impl BitOrAssign for PageFlags {
    fn bitor_assign(&mut self, other: PageFlags) {
        self.0 |= other.0;
    }
}

/// Consecutive pages of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The pages.
    pub run: PageRun,
    /// Their kind: `PRESENT` or `SWAPPED`, and what else is known.
    pub flags: PageFlags,
}

/// What an entry of a pagemap file says.
pub fn entry_flags(entry: u64) -> PageFlags {
    let mut flags = PageFlags::NONE;
    for (bit, flag) in
        [(63, PageFlags::PRESENT), (62, PageFlags::SWAPPED), (61, PageFlags::FILE), (55, PageFlags::SOFT_DIRTY)]
    {
        if entry >> bit & 1 == 1 {
            flags |= flag;
        }
    }
    flags
}

/// The page frame an entry names; `None` if it is not in memory, or hidden for want of `CAP_SYS_ADMIN`.
pub fn entry_frame(entry: u64) -> Option<u64> {
    let frame = entry & ((1 << 55) - 1);
    (entry >> 63 == 1 && frame != 0).then_some(frame)
}

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610_u32 as libc::Ioctl;
/// Regions asked for at once.
const REGIONS: usize = 512;
/// Entries read at once without `PAGEMAP_SCAN`.
const ENTRIES: usize = 4096;

/// How this kernel is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// `PAGEMAP_SCAN`, with soft-dirty bits.
    Scan,
    /// `PAGEMAP_SCAN` of a kernel that does not know them there.
    ScanWithoutDirty,
    /// The file's entries.
    Entries,
}

/// The pagemap of one process.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
    way: Way,
    regions: Vec<Region>,
}

impl Pagemap {
    /// Takes an opened `/proc/PID/pagemap`.
    pub(super) fn new(file: File) -> Pagemap {
        Pagemap { file, way: Way::Scan, regions: vec![Region::default(); REGIONS] }
    }

    /// Does without `PAGEMAP_SCAN`, as on a kernel before Linux 6.7.
    #[cfg(test)]
    fn without_scan(mut self) -> Pagemap {
        self.way = Way::Entries;
        self
    }

    /// Appends to `out` what there is in `range`, present or swapped out; returns the page up to which it looked, at
    /// least one past `range.first`. Call again from there until that is `range.end()`.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn extents(&mut self, range: PageRun, out: &mut Vec<Extent>) -> io::Result<u64> {
        if range.count == 0 {
            return Ok(range.first);
        }
        loop {
            match self.way {
                Way::Entries => return self.by_entries(range, out),
                way => match self.by_scan(range, way == Way::Scan, out) {
                    Ok(next) => return Ok(next),
                    Err(Errno::INTR | Errno::AGAIN) => {}
                    Err(Errno::INVAL) if way == Way::Scan => self.way = Way::ScanWithoutDirty,
                    // Kernels before 6.7 have no ioctl on this file at all.
                    Err(Errno::INVAL | Errno::NOTTY | Errno::NOSYS) => self.way = Way::Entries,
                    Err(e) => return Err(e.into()),
                },
            }
        }
    }

    fn by_scan(&mut self, range: PageRun, dirty: bool, out: &mut Vec<Extent>) -> Result<u64, Errno> {
        let page = PAGE_BYTES as u64;
        let there = PageFlags::PRESENT | PageFlags::SWAPPED;
        let mut wanted = there | PageFlags::FILE | PageFlags::ZERO_FRAME | PageFlags::HUGE;
        if dirty {
            wanted |= PageFlags::SOFT_DIRTY;
        }
        let mut arg = ScanArg {
            size: std::mem::size_of::<ScanArg>() as u64,
            start: range.first.saturating_mul(page),
            end: range.end().saturating_mul(page),
            vec: self.regions.as_mut_ptr() as u64,
            vec_len: self.regions.len() as u64,
            category_anyof_mask: there.0,
            return_mask: wanted.0,
            ..ScanArg::default()
        };
        // SAFETY: `arg` is a `pm_scan_arg` of the size it names; the kernel writes to it and at most `vec_len` regions
        // to `vec`, which `self` keeps. No flag is set that would change the other process.
        let n = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, std::ptr::from_mut(&mut arg)) };
        let n = usize::try_from(n).map_err(|_| last_errno())?.min(self.regions.len());
        let mut from = range.first;
        for r in &self.regions[..n] {
            let (first, end) = ((r.start / page).max(from), (r.end / page).min(range.end()));
            if first < end {
                out.push(Extent { run: PageRun { first, count: end - first }, flags: PageFlags(r.categories) });
                from = end;
            }
        }
        // A kernel that says it looked no further than where it began has nothing more.
        let next = (arg.walk_end / page).clamp(from, range.end());
        Ok(if next <= range.first { range.end() } else { next })
    }

    fn by_entries(&self, range: PageRun, out: &mut Vec<Extent>) -> io::Result<u64> {
        let entries = self.entries(PageRun { first: range.first, count: range.count.min(ENTRIES as u64) })?;
        if entries.is_empty() {
            // The end of the address space.
            return Ok(range.end());
        }
        let next = range.first + entries.len() as u64;
        for (number, entry) in (range.first..).zip(entries) {
            let flags = entry_flags(entry);
            if !flags.has(PageFlags::PRESENT) && !flags.has(PageFlags::SWAPPED) {
                continue;
            }
            match out.last_mut() {
                Some(last) if last.flags == flags && last.run.end() == number => last.run.count += 1,
                _ => out.push(Extent { run: PageRun { first: number, count: 1 }, flags }),
            }
        }
        Ok(next)
    }

    /// The raw entries of `range`; fewer where the address space ends.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn entries(&self, range: PageRun) -> io::Result<Vec<u64>> {
        let count = usize::try_from(range.count).unwrap_or(usize::MAX).min(ENTRIES);
        let mut bytes = vec![0u8; count * 8];
        let at = range.first.saturating_mul(8);
        let n = self.file.read_at(&mut bytes, at)?;
        Ok(bytes[..n].as_chunks::<8>().0.iter().map(|c| u64::from_ne_bytes(*c)).collect())
    }
}

/// Whether this kernel notes which pages were written to (`CONFIG_MEM_SOFT_DIRTY`): a page that was just written says
/// so.
pub fn soft_dirty_is_built_in() -> bool {
    let page = Box::new([1u8; 2 * PAGE_BYTES]);
    std::hint::black_box(&page);
    let number = page.as_ptr() as u64 / PAGE_BYTES as u64;
    let Ok(file) = File::open("/proc/self/pagemap") else { return false };
    let entries = Pagemap::new(file).entries(PageRun { first: number, count: 1 });
    entries.is_ok_and(|e| e.first().is_some_and(|e| entry_flags(*e).has(PageFlags::SOFT_DIRTY)))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// 64 pages of which some are touched, and their first page number.
    fn memory(touched: &[usize]) -> (vm::Area, u64) {
        let mut area = vm::Area::new(64);
        touched.iter().for_each(|&n| area.bytes()[n * PAGE_BYTES] = 1);
        let first = area.bytes().as_ptr() as u64 / PAGE_BYTES as u64;
        (area, first)
    }

    /// An anonymous mapping of its own, not of the allocator.
    mod vm {
        use super::PAGE_BYTES;
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

        pub struct Area(*mut u8, usize);

        impl Area {
            pub fn new(pages: usize) -> Area {
                let len = pages * PAGE_BYTES;
                let prot = ProtFlags::READ | ProtFlags::WRITE;
                // SAFETY: a new mapping at an address that the kernel chooses, and advice on it.
                let at = unsafe {
                    let at = mmap_anonymous(std::ptr::null_mut(), len, prot, MapFlags::PRIVATE).unwrap();
                    let _ = madvise(at, len, Advice::LinuxNoHugepage);
                    at
                };
                Area(at.cast(), len)
            }

            pub fn bytes(&mut self) -> &mut [u8] {
                // SAFETY: the mapping is `self`'s alone.
                unsafe { std::slice::from_raw_parts_mut(self.0, self.1) }
            }
        }

        impl Drop for Area {
            fn drop(&mut self) {
                // SAFETY: as in `bytes`.
                unsafe { munmap(self.0.cast(), self.1).unwrap() };
            }
        }
    }

    fn all(map: &mut Pagemap, range: PageRun) -> Vec<Extent> {
        let (mut out, mut at) = (Vec::new(), range.first);
        while at < range.end() {
            let next = map.extents(PageRun { first: at, count: range.end() - at }, &mut out).unwrap();
            assert!(next > at);
            at = next;
        }
        out
    }

    #[test]
    fn both_ways_find_what_was_touched_and_nothing_else() {
        let (_area, first) = memory(&[0, 1, 2, 10, 63]);
        let range = PageRun { first, count: 64 };
        let open = || Pagemap::new(File::open("/proc/self/pagemap").unwrap());
        for mut map in [open(), open().without_scan()] {
            let found = all(&mut map, range);
            let pages: Vec<u64> = found.iter().flat_map(|e| e.run.first - first..e.run.end() - first).collect();
            assert_eq!(pages, [0, 1, 2, 10, 63], "{map:?}");
            assert!(found.iter().all(|e| e.flags.has(PageFlags::PRESENT)));
            assert!(found.iter().all(|e| !e.flags.has(PageFlags::FILE) && !e.flags.has(PageFlags::SWAPPED)));
        }
    }

    #[test]
    fn a_page_that_was_only_read_is_the_shared_zero_frame() {
        let (mut area, first) = memory(&[]);
        assert_eq!(std::hint::black_box(area.bytes()[5 * PAGE_BYTES]), 0);
        let mut map = Pagemap::new(File::open("/proc/self/pagemap").unwrap());
        let found = all(&mut map, PageRun { first, count: 64 });
        if map.way != Way::Entries {
            assert_eq!(found.len(), 1);
            assert!(found[0].flags.has(PageFlags::ZERO_FRAME), "{found:?}");
        }
    }

    #[test]
    fn entries_mean_what_the_kernel_documents() {
        assert_eq!(entry_flags(0), PageFlags::NONE);
        assert_eq!(entry_flags(1 << 63 | 1 << 61 | 77), PageFlags::PRESENT | PageFlags::FILE);
        assert_eq!(entry_flags(1 << 62 | 1 << 55), PageFlags::SWAPPED | PageFlags::SOFT_DIRTY);
        assert_eq!(entry_frame(1 << 63 | 1 << 55 | 77), Some(77));
        assert_eq!(entry_frame(1 << 62 | 77), None);
        assert_eq!(entry_frame(1 << 63), None, "hidden");
    }

    #[test]
    fn ranges_at_the_ends_of_the_address_space_end() {
        let open = || Pagemap::new(File::open("/proc/self/pagemap").unwrap());
        for mut map in [open(), open().without_scan()] {
            for range in [PageRun { first: 0, count: 4 }, PageRun { first: 1 << 35, count: 1 << 20 }] {
                // Refused or empty, but never without end.
                let mut out = Vec::new();
                if let Ok(next) = map.extents(range, &mut out) {
                    assert!(next > range.first && out.is_empty(), "{map:?}");
                }
            }
        }
    }
}
