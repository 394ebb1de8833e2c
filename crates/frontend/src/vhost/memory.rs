//! Guest memory: the regions a front end shares, and how guest addresses are found in them.
//!
//! Owns the mappings. Never makes a Rust reference to guest memory: every access is a bounds-checked volatile slice.
//! Invariant: regions overlap neither in guest addresses nor in the front end's; a [`GuestSpan`] made by a map lies
//! inside one of that map's regions, and a map never changes (a new memory table is a new map).

use super::limits::REGIONS_MAX;
use std::sync::Arc;
use undercroft_host::Guarded;
use vm_memory::{MmapRegion, VolatileMemory, VolatileSlice};

/// A piece of guest memory inside one region of one [`GuestMap`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestSpan {
    /// Offset of the first byte in the region.
    pub offset: u64,
    /// Index of the region in its map.
    pub region: u32,
    /// Bytes; never 0 in a chain.
    pub len: u32,
}

/// One mapped region.
#[derive(Clone, Debug)]
pub struct MemoryRegion {
    /// Its first guest physical address: what descriptors contain.
    pub guest: u64,
    /// Its first address in the front end's process: what the messages that place rings contain.
    pub user: u64,
    /// Bytes.
    pub len: u64,
    /// The memory. Whoever shares it can take it away at any time; then it reads as zeroes and is broken.
    pub mapping: Arc<Guarded>,
}

impl MemoryRegion {
    /// Whole pages in it; none if its pages are not the guest's.
    fn pages(&self) -> u64 {
        if self.guest.is_multiple_of(PAGE_BYTES) { self.len / PAGE_BYTES } else { 0 }
    }
}

/// Why a memory table is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MapError {
    #[error("memory region at guest address {0:#x} overlaps another one")]
    Overlap(u64),
    #[error("memory region at guest address {0:#x} is empty, reaches past the address space or is not wholly mapped")]
    Extent(u64),
    #[error("more than {REGIONS_MAX} memory regions")]
    TooMany,
    #[error("there is no memory region of {1} bytes at guest address {0:#x} to remove")]
    Missing(u64, u64),
}

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;

/// The memory of a guest, as one front end last described it.
#[derive(Clone, Debug, Default)]
pub struct GuestMap {
    /// Sorted by guest address.
    regions: Vec<MemoryRegion>,
    /// For each region the number of its first page, and in the end how many pages there are: pages are numbered
    /// without gaps, in the order of their addresses.
    first_pages: Vec<u32>,
}

impl GuestMap {
    /// This map and one region more.
    pub fn with(&self, region: MemoryRegion) -> Result<GuestMap, MapError> {
        if self.regions.len() >= REGIONS_MAX {
            return Err(MapError::TooMany);
        }
        let (Some(guest_end), Some(user_end)) =
            (region.guest.checked_add(region.len), region.user.checked_add(region.len))
        else {
            return Err(MapError::Extent(region.guest));
        };
        if region.len == 0 || region.len > region.mapping.len() as u64 {
            return Err(MapError::Extent(region.guest));
        }
        let overlaps = |r: &MemoryRegion| {
            (r.guest < guest_end && region.guest < r.guest + r.len)
                || (r.user < user_end && region.user < r.user + r.len)
        };
        if self.regions.iter().any(overlaps) {
            return Err(MapError::Overlap(region.guest));
        }
        let mut regions = self.regions.clone();
        let at = regions.partition_point(|r| r.guest < region.guest);
        regions.insert(at, region);
        Ok(GuestMap::of(regions))
    }

    /// This map and one region less.
    pub fn without(&self, guest: u64, user: u64, len: u64) -> Result<GuestMap, MapError> {
        let mut regions = self.regions.clone();
        let at = regions
            .iter()
            .position(|r| r.guest == guest && r.user == user && r.len == len)
            .ok_or(MapError::Missing(guest, len))?;
        regions.remove(at);
        Ok(GuestMap::of(regions))
    }

    fn of(regions: Vec<MemoryRegion>) -> GuestMap {
        let mut next = 0u32;
        let mut first_pages = Vec::with_capacity(regions.len() + 1);
        for r in &regions {
            first_pages.push(next);
            // Pages past 2^32 - 1, more than 16 TiB, have no number.
            next = next.saturating_add(u32::try_from(r.pages()).unwrap_or(u32::MAX));
        }
        first_pages.push(next);
        GuestMap { regions, first_pages }
    }

    /// Pages in all.
    pub fn pages(&self) -> u32 {
        self.first_pages.last().copied().unwrap_or(0)
    }

    /// The number of the page that bytes `at .. at + 4096` of a span are, if they are one whole page.
    #[inline]
    pub fn page(&self, span: GuestSpan, at: usize) -> Option<u32> {
        let offset = span.offset + at as u64;
        let region = &self.regions[span.region as usize];
        let whole = at as u64 + PAGE_BYTES <= u64::from(span.len) && offset.is_multiple_of(PAGE_BYTES);
        let number = offset / PAGE_BYTES;
        if !whole || number >= region.pages() {
            return None;
        }
        self.first_pages[span.region as usize].checked_add(number as u32).filter(|&n| n < self.pages())
    }

    /// As [`GuestMap::page`], and how many whole pages of the span follow each other from there on.
    #[inline]
    pub(super) fn page_run(&self, span: GuestSpan, at: usize) -> Option<(u32, u32)> {
        let first = self.page(span, at)?;
        let of_span = (u64::from(span.len) - at as u64) / PAGE_BYTES;
        let of_region = self.regions[span.region as usize].pages() - (span.offset + at as u64) / PAGE_BYTES;
        Some((first, of_span.min(of_region).min(u64::from(self.pages() - first)) as u32))
    }

    /// Copies page number `page` for a use of our own, which takes no huge page for it. False if there is none.
    pub fn copy_page(&self, page: u32, to: &mut [u8; PAGE_BYTES as usize]) -> bool {
        let Some((region, offset)) = self.place(page) else { return false };
        region.mapping.copy(offset as usize, &mut to[..])
    }

    /// The region of a page, and the offset of the page in it.
    #[inline]
    fn place(&self, page: u32) -> Option<(&MemoryRegion, u64)> {
        if page >= self.pages() {
            return None;
        }
        // Empty regions share the number of the next one, which is the last of them.
        let at = self.first_pages.partition_point(|&first| first <= page) - 1;
        let region = self.regions.get(at)?;
        let offset = u64::from(page - self.first_pages[at]) * PAGE_BYTES;
        (offset + PAGE_BYTES <= region.len).then_some((region, offset))
    }

    /// Looks whether some of the memory behind it is missing: never touched, or given back since. One system call for
    /// each file.
    pub(crate) fn look_for_holes(&self) -> bool {
        let (mut seen, mut holes) = (None, false);
        for region in &self.regions {
            let file = region.mapping.file();
            match seen {
                // Regions of one file follow each other, as a rule.
                Some((number, full)) if file.is_some() && file == number => region.mapping.see(full),
                _ => seen = Some((file, region.mapping.look())),
            }
            holes |= !region.mapping.is_full();
        }
        holes
    }

    /// Whether a page is not in memory: to read it would take memory for it, or bring it back from swap.
    pub(crate) fn is_absent(&self, page: u32) -> bool {
        self.place(page).is_some_and(|(region, offset)| {
            !region.mapping.is_full() && region.mapping.absent_bytes(offset as usize, PAGE_BYTES as usize) > 0
        })
    }

    /// Bytes of the pages of `spans` that are not in memory.
    pub fn absent_bytes(&self, spans: &[GuestSpan]) -> u64 {
        let absent = |s: &GuestSpan| {
            let region = &self.regions[s.region as usize];
            if region.mapping.is_full() { 0 } else { region.mapping.absent_bytes(s.offset as usize, s.len as usize) }
        };
        spans.iter().map(absent).sum()
    }

    /// The guest address after its last byte; 0 if there is none.
    pub(crate) fn end(&self) -> u64 {
        // Regions do not overlap, so the last one ends last.
        self.regions.last().map_or(0, |r| r.guest + r.len)
    }

    /// The guest address of byte `at` of a span.
    #[inline]
    pub(crate) fn guest_address(&self, span: GuestSpan, at: usize) -> u64 {
        self.regions[span.region as usize].guest + span.offset + at as u64
    }

    /// Whether some of it was taken away: what was read lately may be zeroes that nobody wrote.
    pub fn is_broken(&self) -> bool {
        self.regions.iter().any(|r| r.mapping.is_broken())
    }

    /// Whether there is no memory at all.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// The regions, sorted by guest address.
    pub fn regions(&self) -> &[MemoryRegion] {
        &self.regions
    }

    /// Index of the region that holds guest address `guest`; `hint` is tried first, and becomes the answer.
    #[inline]
    fn find(&self, guest: u64, hint: &mut u32) -> Option<usize> {
        if let Some(r) = self.regions.get(*hint as usize)
            && guest.wrapping_sub(r.guest) < r.len
        {
            return Some(*hint as usize);
        }
        let at = self.regions.partition_point(|r| r.guest <= guest).checked_sub(1)?;
        (guest - self.regions[at].guest < self.regions[at].len).then(|| {
            *hint = at as u32;
            at
        })
    }

    /// The span of `len` bytes at `guest` if it lies inside one region.
    #[inline]
    pub(crate) fn locate(&self, guest: u64, len: u32, hint: &mut u32) -> Option<GuestSpan> {
        let at = self.find(guest, hint)?;
        let r = &self.regions[at];
        let offset = guest - r.guest;
        (u64::from(len) <= r.len - offset).then_some(GuestSpan { offset, region: at as u32, len })
    }

    /// Hands the spans of `len` bytes at `guest` to `push`, in order: several if the range crosses regions that touch.
    /// False if some of it is not memory, or if `push` said false.
    #[inline]
    pub(crate) fn locate_all(
        &self,
        guest: u64,
        len: u32,
        hint: &mut u32,
        mut push: impl FnMut(GuestSpan) -> bool,
    ) -> bool {
        if let Some(span) = self.locate(guest, len, hint) {
            return push(span);
        }
        let (mut guest, mut left) = (guest, u64::from(len));
        while left > 0 {
            let Some(at) = self.find(guest, hint) else { return false };
            let r = &self.regions[at];
            let offset = guest - r.guest;
            let here = left.min(r.len - offset);
            if !push(GuestSpan { offset, region: at as u32, len: here as u32 }) {
                return false;
            }
            left -= here;
            // Cannot wrap: the end of a region is inside the address space.
            guest += here;
        }
        true
    }

    /// Bytes `at .. at + len` of `span`.
    ///
    /// # Panics
    /// If they are not inside the span, or the span is another map's: a bug.
    #[inline]
    pub fn slice(&self, span: GuestSpan, at: usize, len: usize) -> VolatileSlice<'_, ()> {
        assert!(at <= span.len as usize && len <= span.len as usize - at, "access past the end of a span");
        let mapping: &MmapRegion<()> = &self.regions[span.region as usize].mapping;
        mapping.get_slice(span.offset as usize + at, len).expect("a span lies inside its region")
    }

    /// Writes the one byte of `span`.
    #[inline]
    pub(crate) fn put_byte(&self, span: GuestSpan, byte: u8) {
        self.slice(span, 0, 1).get_ref::<u8>(0).expect("a slice of one byte has it").store(byte);
    }

    /// The window of `len` bytes at address `user` of the front end, aligned to `align` (a power of two).
    pub fn window(&self, user: u64, len: usize, align: usize) -> Option<MemoryWindow> {
        let r = self.regions.iter().find(|r| user.wrapping_sub(r.user) < r.len)?;
        let offset = user - r.user;
        if len as u64 > r.len - offset || !offset.is_multiple_of(align as u64) {
            return None;
        }
        Some(MemoryWindow { mapping: Arc::clone(&r.mapping), offset: offset as usize, len })
    }
}

/// A stretch of shared memory that is accessed for long: a part of a ring, or a log of requests under way.
#[derive(Clone, Debug)]
pub struct MemoryWindow {
    mapping: Arc<Guarded>,
    offset: usize,
    len: usize,
}

impl MemoryWindow {
    /// Bytes `offset .. offset + len` of a mapping.
    pub fn new(mapping: Arc<Guarded>, offset: usize, len: usize) -> Option<MemoryWindow> {
        let end = offset.checked_add(len)?;
        (end <= mapping.len()).then_some(MemoryWindow { mapping, offset, len })
    }

    /// Bytes in it.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether the memory was taken away.
    pub fn is_broken(&self) -> bool {
        self.mapping.is_broken()
    }

    /// The memory.
    #[inline]
    pub fn slice(&self) -> VolatileSlice<'_, ()> {
        let mapping: &MmapRegion<()> = &self.mapping;
        mapping.get_slice(self.offset, self.len).expect("a window lies inside its mapping")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(guest: u64, user: u64, len: usize) -> MemoryRegion {
        MemoryRegion {
            guest,
            user,
            len: len as u64,
            mapping: Arc::new(Guarded::new(MmapRegion::new(len).unwrap()).unwrap()),
        }
    }

    /// Two regions that touch, one that does not.
    fn map() -> GuestMap {
        let map = GuestMap::default().with(region(0x10_0000, 0x7000_0000, 0x1000)).unwrap();
        let map = map.with(region(0x10_1000, 0x7100_0000, 0x1000)).unwrap();
        map.with(region(0, 0x7200_0000, 0x1000)).unwrap()
    }

    #[test]
    fn a_span_is_found_only_inside_one_region() {
        let (map, mut hint) = (map(), 7);
        assert_eq!(map.locate(0x10_0ff0, 16, &mut hint), Some(GuestSpan { offset: 0xff0, region: 1, len: 16 }));
        assert_eq!(map.locate(0x10_0ff0, 17, &mut hint), None);
        assert_eq!(map.locate(0xfff, 1, &mut hint), Some(GuestSpan { offset: 0xfff, region: 0, len: 1 }));
        assert_eq!(map.locate(0x1000, 1, &mut hint), None);
        assert_eq!(map.locate(u64::MAX, 1, &mut hint), None);
        assert_eq!(map.locate(u64::MAX, u32::MAX, &mut hint), None);
    }

    #[test]
    fn a_range_across_touching_regions_becomes_two_spans() {
        let (map, mut hint) = (map(), 0);
        let mut spans = Vec::new();
        assert!(map.locate_all(0x10_0f00, 0x200, &mut hint, |s| {
            spans.push(s);
            true
        }));
        let want = [GuestSpan { offset: 0xf00, region: 1, len: 0x100 }, GuestSpan { offset: 0, region: 2, len: 0x100 }];
        assert_eq!(spans, want);
        assert!(!map.locate_all(0xf00, 0x200, &mut hint, |_| true), "the hole after the first region is not memory");
        assert!(!map.locate_all(0x10_1f00, u32::MAX, &mut hint, |_| true));
    }

    #[test]
    fn overlapping_and_endless_regions_are_refused() {
        let map = map();
        let refused = |r: MemoryRegion| map.with(r).unwrap_err();
        assert_eq!(refused(region(0x10_0fff, 0x100, 0x1000)), MapError::Overlap(0x10_0fff));
        assert_eq!(refused(region(0x20_0000, 0x7000_0800, 0x1000)), MapError::Overlap(0x20_0000));
        assert_eq!(refused(region(u64::MAX - 10, 0x100, 0x1000)), MapError::Extent(u64::MAX - 10));
        let mut short = region(0x20_0000, 0x100, 0x1000);
        short.len = 0x1001;
        assert_eq!(refused(short), MapError::Extent(0x20_0000));
    }

    #[test]
    fn pages_are_numbered_without_gaps_and_copied_by_number() {
        let map = map();
        assert_eq!(map.pages(), 3);
        let span = |region, offset, len| GuestSpan { region, offset, len };
        assert_eq!(map.page(span(0, 0, 0x1000), 0), Some(0));
        assert_eq!(map.page(span(2, 0, 0x1000), 0), Some(2));
        assert_eq!(map.page(span(1, 0, 0xfff), 0), None, "not all of the page");
        assert_eq!(map.page(span(1, 8, 0xff8), 0), None, "not from its start");
        map.slice(span(1, 0, 0x1000), 0, 0x1000).copy_from(&[7u8; 0x1000]);
        let mut page = [0; 0x1000];
        assert!(map.copy_page(1, &mut page) && page == [7; 0x1000]);
        assert!(map.copy_page(2, &mut page) && page == [0; 0x1000]);
        assert!(!map.copy_page(3, &mut page) && !GuestMap::default().copy_page(0, &mut page));
        let odd = GuestMap::default().with(region(0x800, 0x100, 0x4000)).unwrap();
        assert_eq!((odd.pages(), odd.page(span(0, 0, 0x1000), 0)), (0, None), "pages of the map are not the guest's");
        let odd = odd.with(region(0x10_0000, 0x7000_0000, 0x2fff)).unwrap();
        assert_eq!((odd.pages(), odd.page(span(1, 0x1000, 0x1000), 0)), (2, Some(1)));
        assert_eq!(odd.page(span(1, 0, 0x2000), 0x1000), Some(1), "a later page of a longer span");
    }

    #[test]
    fn pages_that_follow_each_other_are_those_that_each_have_a_number() {
        let map = map().with(region(0x20_0000, 0x7300_0000, 0x5fff)).unwrap();
        for (region, offset) in [(0, 0), (2, 0), (3, 0), (3, 0x1000), (3, 0x800), (3, 0x4000)] {
            for len in [0xfff, 0x1000, 0x2800, 0x5000, 0x5fff].into_iter().filter(|len| offset + len <= 0x5fff) {
                let span = GuestSpan { region, offset, len: len as u32 };
                for at in (0..len as usize).step_by(0x400) {
                    let alone = (0..8).map_while(|n| map.page(span, at + n * 0x1000)).collect::<Vec<_>>();
                    let run = map.page_run(span, at).map_or(vec![], |(first, count)| (first..first + count).collect());
                    assert_eq!(run, alone, "{span:?} from {at}");
                }
            }
        }
    }

    #[test]
    fn only_the_very_same_region_can_be_removed() {
        let map = map();
        assert!(map.without(0x10_0000, 0x7000_0000, 0x800).is_err());
        assert!(map.without(0x10_0000, 0x7100_0000, 0x1000).is_err());
        let less = map.without(0x10_0000, 0x7000_0000, 0x1000).unwrap();
        assert_eq!(less.locate(0x10_0000, 1, &mut 0), None);
        assert!(less.locate(0x10_1000, 1, &mut 0).is_some());
    }

    #[test]
    fn windows_are_found_by_the_front_ends_addresses_and_aligned() {
        let map = map();
        assert!(map.window(0x7100_0010, 0xff0, 16).is_some());
        assert!(map.window(0x7100_0010, 0xff1, 16).is_none());
        assert!(map.window(0x7100_0008, 0x10, 16).is_none());
        assert!(map.window(0x10_0000, 0x10, 16).is_none(), "a guest address is not one of the front end's");
    }
}
