//! Requests under way: their tags, and where their data lies in guest memory.
//!
//! Owns the slots and the guest maps that they refer to. Never touches a ring. Invariants: a tag names one slot until
//! it is given back; the map that a slot's spans belong to stays mapped until then, whatever the front end does.

use super::memory::{GuestMap, GuestSpan};
use crate::filled::Filled;
use std::sync::Arc;
use undercroft_cache::IoError;
use vm_memory::VolatileSlice;

/// What a request under way needs; reused, so that its vector is allocated once.
#[derive(Debug)]
pub struct Slot {
    /// Where the data goes to or comes from, in order.
    pub spans: Vec<GuestSpan>,
    /// Where the status goes.
    pub status: GuestSpan,
    /// Bytes written into the chain if all goes well, with the status.
    pub written: u32,
    /// The request that this is a part of.
    pub parent: Option<u32>,
    /// Parts still under way.
    pub parts: u16,
    /// The first failure of a part.
    pub failed: Option<IoError>,
    /// The chain.
    pub head: u16,
    /// The queue it came from.
    pub queue: u16,
    /// The session it came in.
    pub session: u32,
    /// Index of its map in [`Maps`].
    pub map: u32,
    /// What has come of its data, if it is a read.
    pub filled: Filled,
    /// Where the last copy ended: a span and the data offset of its first byte.
    cursor: (u32, usize),
}

impl Slot {
    fn new() -> Slot {
        Slot {
            spans: Vec::new(),
            status: GuestSpan::default(),
            written: 0,
            parent: None,
            parts: 0,
            failed: None,
            head: 0,
            queue: 0,
            session: 0,
            map: 0,
            filled: Filled::new(),
            cursor: (0, 0),
        }
    }

    /// Hands the pieces of guest memory that hold bytes `at .. at + len` of the request's data to `f`, each with its
    /// offset from `at`.
    ///
    /// # Panics
    /// If the request has less data: a bug of the caller.
    #[inline]
    pub fn pieces(&mut self, map: &GuestMap, at: usize, len: usize, mut f: impl FnMut(usize, VolatileSlice<'_>)) {
        if let [span] = self.spans.as_slice() {
            f(0, map.slice(*span, at, len));
            return;
        }
        self.each_piece(at, len, |done, span, skip, here| f(done, map.slice(span, skip, here)));
    }

    /// Hands the same pieces to `f` as guest addresses and bytes of them.
    pub fn addresses(&mut self, map: &GuestMap, at: usize, len: usize, mut f: impl FnMut(u64, usize)) {
        self.each_piece(at, len, |_, span, skip, here| f(map.guest_address(span, skip), here));
    }

    /// Hands the pieces to `f`: the offset of each from `at`, its span, where it begins in that, and its bytes.
    #[inline]
    fn each_piece(&mut self, at: usize, len: usize, mut f: impl FnMut(usize, GuestSpan, usize, usize)) {
        let (mut index, mut start) = if at >= self.cursor.1 { self.cursor } else { (0, 0) };
        let mut done = 0;
        while done < len {
            let span = self.spans[index as usize];
            let skip = at + done - start;
            if skip >= span.len as usize {
                index += 1;
                start += span.len as usize;
                continue;
            }
            let here = (span.len as usize - skip).min(len - done);
            f(done, span, skip, here);
            done += here;
        }
        self.cursor = (index, start);
    }

    /// The span that holds bytes `at ..` of the request's data, and how far into it they are.
    #[inline]
    pub fn place(&mut self, at: usize) -> Option<(GuestSpan, usize)> {
        let (mut index, mut start) = if at >= self.cursor.1 { self.cursor } else { (0, 0) };
        loop {
            let span = *self.spans.get(index as usize)?;
            if at - start < span.len as usize {
                self.cursor = (index, start);
                return Some((span, at - start));
            }
            index += 1;
            start += span.len as usize;
        }
    }

    /// Whether the slot's own data is exactly `len` bytes.
    pub fn holds(&self, len: u32) -> bool {
        self.spans.iter().map(|s| u64::from(s.len)).sum::<u64>() == u64::from(len)
    }
}

/// The slots, by tag. They are made when first needed and kept.
#[derive(Debug)]
pub struct Slots {
    list: Vec<Slot>,
    free: Vec<u32>,
    limit: usize,
}

impl Slots {
    pub fn new(limit: usize) -> Slots {
        Slots { list: Vec::new(), free: Vec::new(), limit }
    }

    /// Slots that can still be taken.
    #[inline]
    pub fn available(&self) -> usize {
        self.free.len() + self.limit - self.list.len()
    }

    /// Slots taken.
    #[inline]
    pub fn used(&self) -> usize {
        self.list.len() - self.free.len()
    }

    /// Takes a slot, cleared.
    ///
    /// # Panics
    /// If none is available.
    #[inline]
    pub fn take(&mut self) -> (u32, &mut Slot) {
        let tag = match self.free.pop() {
            Some(tag) => tag,
            None => {
                assert!(self.list.len() < self.limit, "no slot is available");
                self.list.push(Slot::new());
                self.list.len() as u32 - 1
            }
        };
        let slot = &mut self.list[tag as usize];
        slot.spans.clear();
        slot.parent = None;
        slot.parts = 0;
        slot.failed = None;
        slot.filled.clear();
        slot.cursor = (0, 0);
        (tag, slot)
    }

    #[inline]
    pub fn get(&mut self, tag: u32) -> &mut Slot {
        &mut self.list[tag as usize]
    }

    /// Gives a slot back.
    #[inline]
    pub fn put(&mut self, tag: u32) {
        debug_assert!(!self.free.contains(&tag), "a request was answered twice");
        self.free.push(tag);
    }
}

/// The guest maps in use: the newest, and older ones that requests under way still refer to.
#[derive(Debug)]
pub struct Maps {
    list: Vec<(Arc<GuestMap>, usize)>,
    current: usize,
}

impl Maps {
    pub fn new() -> Maps {
        Maps { list: vec![(Arc::default(), 0)], current: 0 }
    }

    /// Makes `map` the newest one.
    pub fn set(&mut self, map: Arc<GuestMap>) {
        if self.list[self.current].1 == 0 {
            self.list[self.current].0 = map;
        } else if let Some(free) = self.list.iter().position(|(_, holds)| *holds == 0) {
            self.list[free].0 = map;
            self.current = free;
        } else {
            self.list.push((map, 0));
            self.current = self.list.len() - 1;
        }
    }

    /// The newest map.
    #[inline]
    pub fn current(&self) -> &GuestMap {
        &self.list[self.current].0
    }

    /// Whether `map` is the newest one.
    #[inline]
    pub fn is_current(&self, map: u32) -> bool {
        map as usize == self.current
    }

    /// Keeps the newest map until `release` of the index returned.
    #[inline]
    pub fn hold(&mut self) -> u32 {
        self.list[self.current].1 += 1;
        self.current as u32
    }

    #[inline]
    pub fn get(&self, map: u32) -> &GuestMap {
        &self.list[map as usize].0
    }

    #[inline]
    pub fn release(&mut self, map: u32) {
        let (kept, holds) = &mut self.list[map as usize];
        *holds -= 1;
        if *holds == 0 && map as usize != self.current {
            *kept = Arc::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::MemoryRegion;
    use super::*;
    use vm_memory::MmapRegion;

    #[test]
    fn copies_find_their_pieces_in_any_order() {
        let mapping = Arc::new(undercroft_host::Guarded::new(MmapRegion::new(0x1000).unwrap()).unwrap());
        let map = GuestMap::default().with(MemoryRegion { guest: 0, user: 0, len: 0x1000, mapping }).unwrap();
        let mut slots = Slots::new(1);
        let (_, slot) = slots.take();
        let lens = [5u32, 1, 700, 64, 300];
        for (i, &len) in lens.iter().enumerate() {
            slot.spans.push(GuestSpan { offset: i as u64 * 0x320, region: 0, len });
        }
        let data: Vec<u8> = (0..1070u32).map(|i| (i * 7) as u8).collect();
        for (at, len) in [(700, 370), (0, 3), (3, 4), (7, 693)] {
            slot.pieces(&map, at, len, |done, to| to.copy_from(&data[at + done..at + done + to.len()]));
        }
        for (i, &len) in lens.iter().enumerate() {
            let mut got = vec![0; len as usize];
            map.slice(slot.spans[i], 0, len as usize).copy_to(&mut got);
            let from = lens[..i].iter().sum::<u32>() as usize;
            assert_eq!(got, data[from..from + len as usize], "span {i}");
        }
    }

    #[test]
    fn a_map_lives_as_long_as_a_request_refers_to_it() {
        let mut maps = Maps::new();
        let (a, b) = (Arc::new(GuestMap::default()), Arc::new(GuestMap::default()));
        maps.set(Arc::clone(&a));
        let held = maps.hold();
        maps.set(Arc::clone(&b));
        assert_eq!(Arc::strong_count(&a), 2, "kept for the request under way");
        maps.release(held);
        assert_eq!(Arc::strong_count(&a), 1, "let go with the last request");
        assert_eq!(Arc::strong_count(&b), 2);
    }
}
