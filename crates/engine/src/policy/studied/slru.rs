//! Segmented LRU (Karedla, Love and Wherry, "Caching Strategies to Improve Disk System Performance", IEEE Computer
//! 1994), with four segments of a quarter each.
//!
//! Owns the segments: a hit moves a block to the head of the next higher one, whose coldest block then comes down.
//! Never evicts from a segment while a lower one has a block.
//! Invariant: the mark of a slot is its segment; no segment but the lowest holds more than its share after a hit.
//!
//! Four segments, and newcomers to the lowest segment with room, are libCacheSim 0.3.5's choices; the paper has two.

use crate::policy::{Policy, Search, Seen, oldest};
use crate::structures::list::List;
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

const SEGMENTS: usize = 4;

#[derive(Debug)]
pub(crate) struct Slru {
    segments: [List; SEGMENTS],
    /// Slots of one segment.
    share: u32,
}

fn share(capacity: u32) -> u32 {
    capacity / SEGMENTS as u32
}

impl Slru {
    pub fn new(capacity: u32, _key: HashKey) -> Self {
        Self { segments: [const { List::new() }; SEGMENTS], share: share(capacity) }
    }

    fn shift(&mut self, places: &mut Places, slot: Slot, to: usize) {
        let mark = &mut places.marks[slot as usize];
        let from = std::mem::replace(mark, to as u8);
        self.segments[usize::from(from)].remove(&mut places.links, slot);
        self.segments[to].push(&mut places.links, slot);
    }

    /// The coldest of segments that are too long come down.
    fn settle(&mut self, places: &mut Places) {
        for segment in (1..SEGMENTS).rev() {
            while self.segments[segment].len() > self.share {
                self.shift(places, self.segments[segment].tail(), segment - 1);
            }
        }
    }
}

impl Policy for Slru {
    #[inline]
    fn touch(&mut self, places: &mut Places, slot: Slot, _block: u64) {
        let segment = usize::from(places.marks[slot as usize]);
        if segment == SEGMENTS - 1 {
            self.segments[segment].renew(&mut places.links, slot);
            return;
        }
        self.shift(places, slot, segment + 1);
        if self.segments[segment + 1].len() > self.share {
            self.shift(places, self.segments[segment + 1].tail(), segment);
        }
    }

    fn victim(
        &mut self,
        places: &mut Places,
        _keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        _seen: Seen,
    ) -> Option<Slot> {
        let mut search = Search::default();
        for segment in &mut self.segments {
            if let Some(slot) = oldest(segment, &places.links, &may_evict, &mut search) {
                segment.remove(&mut places.links, slot);
                places.marks[slot as usize] = 0;
                return Some(slot);
            }
            if search.is_over() {
                break;
            }
        }
        None
    }

    fn insert(&mut self, places: &mut Places, slot: Slot, _block: u64, _seen: Seen) {
        let to = self.segments.iter().position(|s| s.len() < self.share).unwrap_or(0);
        places.marks[slot as usize] = to as u8;
        self.segments[to].push(&mut places.links, slot);
    }

    fn remove(&mut self, places: &mut Places, slot: Slot) {
        let segment = std::mem::take(&mut places.marks[slot as usize]);
        self.segments[usize::from(segment)].remove(&mut places.links, slot);
    }

    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        let segment = std::mem::take(&mut places.marks[from as usize]);
        places.marks[to as usize] = segment;
        self.segments[usize::from(segment)].replace(&mut places.links, from, to);
    }

    fn limit(&mut self, places: &mut Places, limit: u32) {
        self.share = share(limit);
        self.settle(places);
    }

    fn resize(&mut self, places: &mut Places, capacity: u32, _keys: &[u64]) {
        self.limit(places, capacity);
    }

    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        self.segments.iter().for_each(|s| s.iter(&places.links).for_each(&mut *visit));
    }

    fn memory_bytes(&self) -> usize {
        0
    }

    fn check(&self, places: &Places, occupied: u32) {
        for (n, segment) in self.segments.iter().enumerate() {
            segment.check(&places.links);
            assert!(
                segment.iter(&places.links).all(|s| usize::from(places.marks[s as usize]) == n),
                "a mark is not its segment"
            );
            assert!(n == 0 || segment.len() <= self.share, "segment {n} is too long");
        }
        assert_eq!(self.segments.iter().map(List::len).sum::<u32>(), occupied, "slots in the segments");
    }
}
