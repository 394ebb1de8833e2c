//! S3-FIFO: three static FIFO queues (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023).
//!
//! Owns the sizes of the queues (a tenth of the slots for newcomers, the rest for what proved itself: `small_main`),
//! the count of hits, and the ghosts of what left the small queue unproven. Never reorders on a hit. Invariant: a
//! slot's count is 0 unless it is occupied.
//!
//! Parameters as in libCacheSim 0.3.5: two hits move a block from small to main, as many ghosts as nine tenths of the
//! slots, and while the cache still fills up newcomers go to the main queue once the small one is full.

use crate::policy::small_main::{HITS, SmallMain};
use crate::policy::{Policy, Seen};
use crate::structures::array::Release;
use crate::structures::ghosts::Ghosts;
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

/// Hits in the small queue that make a block worth keeping.
const PROVEN: u8 = 2;
/// The one ghost queue in use.
const GHOST: usize = 0;

#[derive(Debug)]
pub(crate) struct S3Fifo {
    capacity: u32,
    queues: SmallMain,
    ghosts: Box<Ghosts>,
    /// Whether the insertion to come had to make room: the cache is full.
    made_room: bool,
}

fn small_target(capacity: u32) -> u32 {
    (capacity / 10).max(1)
}

fn ghost_target(capacity: u32) -> u32 {
    (u64::from(capacity) * 9 / 10) as u32
}

impl S3Fifo {
    pub fn new(capacity: u32, key: HashKey) -> Self {
        Self {
            capacity,
            queues: SmallMain::new(),
            ghosts: Box::new(Ghosts::new(ghost_target(capacity), key)),
            made_room: false,
        }
    }
}

impl Policy for S3Fifo {
    #[inline]
    fn touch(&mut self, places: &mut Places, slot: Slot, _block: u64) {
        let state = &mut places.marks[slot as usize];
        if *state & HITS != HITS {
            *state += 1;
        }
    }

    #[inline]
    fn miss(&mut self, block: u64) -> Seen {
        self.made_room = false;
        if self.ghosts.forget(block).is_some() { Seen::Once } else { Seen::Never }
    }

    fn victim(
        &mut self,
        places: &mut Places,
        keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        _seen: Seen,
    ) -> Option<Slot> {
        self.made_room = true;
        let main_target = self.capacity - small_target(self.capacity).min(self.capacity);
        let taken = self.queues.take_victim(places, main_target, PROVEN, &may_evict)?;
        if taken.of_small.is_some() {
            self.ghosts.push(GHOST, keys[taken.slot as usize]);
        }
        Some(taken.slot)
    }

    #[inline]
    fn insert(&mut self, places: &mut Places, slot: Slot, _block: u64, seen: Seen) {
        let filling_up = !self.made_room && self.queues.small_len() >= small_target(self.capacity);
        if seen != Seen::Never || filling_up {
            self.queues.push_main(places, slot);
        } else {
            self.queues.push_small(places, slot, 0);
        }
    }

    #[inline]
    fn remove(&mut self, places: &mut Places, slot: Slot) {
        self.queues.remove(places, slot);
    }

    #[inline]
    fn ahead(&self, _places: &Places, _slots: &[Slot], hashes: &[u64]) {
        self.ghosts.read_ahead(hashes);
    }

    fn forget(&mut self, block: u64) {
        self.ghosts.forget(block);
    }

    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        self.queues.moved(places, from, to);
    }

    fn limit(&mut self, _places: &mut Places, limit: u32) {
        self.capacity = limit;
    }

    fn resize(&mut self, _places: &mut Places, capacity: u32, _keys: &[u64]) {
        self.capacity = capacity;
        self.ghosts.begin(ghost_target(capacity));
    }

    fn step(&mut self, _places: &mut Places, left: &mut u32) -> bool {
        self.ghosts.step(left)
    }

    fn reserve(&mut self, most: u32) {
        self.ghosts.reserve(ghost_target(most));
    }

    fn release(&mut self, by: &mut impl Release, bytes: &mut usize) {
        self.ghosts.release(by, bytes);
    }

    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        self.queues.coldest_first(places, PROVEN, visit);
    }

    fn memory_bytes(&self) -> usize {
        self.ghosts.memory_bytes()
    }

    fn check(&self, places: &Places, occupied: u32) {
        self.queues.check(places, occupied);
        self.ghosts.check();
    }
}
