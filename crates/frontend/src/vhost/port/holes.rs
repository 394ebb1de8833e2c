//! Whether pages of the guest's memory may be missing: never touched, or given back since, as a balloon does.
//!
//! Owns what the last look at the memory's files has shown, and how much has been accessed since. Never touches the
//! memory. Invariant: no more than [`LOOK_BYTES`], or one longer request, are accessed between two looks; that is the
//! most memory that we take for pages which went missing meanwhile.

use super::super::memory::GuestMap;

/// Bytes accessed between two looks: one system call is nothing beside copying so much.
const LOOK_BYTES: u64 = 1 << 20;

/// What is known of holes in one guest's memory.
#[derive(Debug, Default)]
pub(super) struct Holes {
    /// There are some.
    any: bool,
    /// Bytes that may be accessed before the next look.
    left: u64,
}

impl Holes {
    /// `bytes` of the memory of `map` are about to be accessed: whether pages may be missing, so that each has to be
    /// asked for.
    #[inline]
    pub(super) fn matter(&mut self, map: &GuestMap, bytes: u64) -> bool {
        if self.left < bytes {
            self.look(map);
        }
        self.left = self.left.saturating_sub(bytes);
        self.any
    }

    #[cold]
    fn look(&mut self, map: &GuestMap) {
        self.any = map.look_for_holes();
        self.left = LOOK_BYTES;
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::memory::MemoryRegion;
    use super::*;
    use std::fs::File;
    use std::sync::Arc;
    use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

    const PAGES: usize = 16;

    #[test]
    fn memory_given_back_is_noticed_before_much_more_is_accessed() {
        let fd = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, (PAGES << 12) as u64).unwrap();
        let file = File::from(fd);
        let region = |pages: std::ops::Range<usize>| {
            let place = FileOffset::new(file.try_clone().unwrap(), (pages.start << 12) as u64);
            let mapping = MmapRegion::from_file(place, pages.len() << 12).unwrap();
            let mapping = Arc::new(undercroft_host::Guarded::new(mapping).unwrap());
            let (guest, len) = ((pages.start << 12) as u64, (pages.len() << 12) as u64);
            MemoryRegion { guest, user: guest, len, mapping }
        };
        // One file in two regions, as QEMU shares memory of more than 2 GiB.
        let map = GuestMap::default().with(region(0..PAGES / 2)).unwrap().with(region(PAGES / 2..PAGES)).unwrap();
        let mut holes = Holes::default();
        assert!(holes.matter(&map, 4096), "nobody has touched it");
        for region in map.regions() {
            (0..PAGES / 2).for_each(|n| region.mapping.as_volatile_slice().write_obj(1u8, n << 12).unwrap());
        }
        let (mut holes, page) = (Holes::default(), PAGES as u32 - 2);
        assert!(!holes.matter(&map, 4096) && !map.is_absent(page));
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, hole, u64::from(page) << 12, 4096).unwrap();
        let mut seen = 0;
        while !holes.matter(&map, 4096) {
            seen += 4096;
        }
        assert!(seen <= LOOK_BYTES, "{seen}");
        assert!(map.is_absent(page) && !map.is_absent(page - 1) && !map.is_absent(0));
        map.regions()[1].mapping.as_volatile_slice().write_obj(1u8, (page as usize - PAGES / 2) << 12).unwrap();
        let looks = (0..=LOOK_BYTES / 4096).filter(|_| !holes.matter(&map, 4096)).count();
        assert!(looks > 0, "full again");
    }
}
