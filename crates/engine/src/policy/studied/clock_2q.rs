//! Clock2Q+ (Zhai et al., "Clock2Q+: a simple and efficient replacement algorithm for metadata cache in VMware vSAN").
//!
//! Owns the sizes of the queues (`small_main`: a tenth of the slots for newcomers, a main clock with one bit), the
//! ghosts of what left the small queue unproven, and when each newcomer came. Unlike S3-FIFO, a hit that comes soon
//! after the block itself does not prove it: accesses to metadata come in bursts. Never reorders on a hit. Invariant: a
//! slot's mark counts one hit at most.
//!
//! "Soon" is half the small queue, counted in newcomers, and nine tenths as many ghosts as slots: the parameters of
//! libCacheSim 0.3.5, whose rules these are.

use super::per_slot::PerSlot;
use crate::policy::small_main::{IN_MAIN, SmallMain};
use crate::policy::{Policy, Seen};
use crate::structures::ghosts::Ghosts;
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

/// The one hit that a mark counts.
const REFERENCED: u8 = 1;
/// The one ghost queue in use.
const GHOST: usize = 0;

#[derive(Debug)]
pub(crate) struct Clock2QPlus {
    small_max: u32,
    main_max: u32,
    queues: SmallMain,
    ghosts: Ghosts,
    /// Which newcomer to the small queue a slot holds.
    came: PerSlot<u64>,
    newcomers: u64,
    /// Whether anything was ever evicted.
    full: bool,
}

fn ghosts_max(capacity: u32) -> u32 {
    (u64::from(capacity) * 9 / 10) as u32
}

impl Clock2QPlus {
    pub fn new(capacity: u32, key: HashKey) -> Self {
        let mut new = Self {
            small_max: 0,
            main_max: 0,
            queues: SmallMain::new(),
            ghosts: Ghosts::new(ghosts_max(capacity), key),
            came: PerSlot::new(capacity),
            newcomers: 0,
            full: false,
        };
        new.set_targets(capacity);
        new
    }

    fn set_targets(&mut self, capacity: u32) {
        self.small_max = (capacity / 10).max(1).min(capacity);
        self.main_max = capacity - self.small_max;
    }
}

impl Policy for Clock2QPlus {
    #[inline]
    fn touch(&mut self, places: &mut Places, slot: Slot, _block: u64) {
        let mark = &mut places.marks[slot as usize];
        // half the small queue, also if that is odd
        if *mark & IN_MAIN != 0 || 2 * (self.newcomers - self.came.get(slot)) >= u64::from(self.small_max) {
            *mark |= REFERENCED;
        }
    }

    fn miss(&mut self, block: u64) -> Seen {
        if self.ghosts.forget(block).is_some() { Seen::Once } else { Seen::Never }
    }

    fn victim(
        &mut self,
        places: &mut Places,
        keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        _seen: Seen,
    ) -> Option<Slot> {
        self.full = true;
        let taken = self.queues.take_victim(places, self.main_max, REFERENCED, &may_evict)?;
        if taken.of_small.is_some() {
            self.ghosts.push(GHOST, keys[taken.slot as usize]);
        }
        Some(taken.slot)
    }

    fn insert(&mut self, places: &mut Places, slot: Slot, _block: u64, seen: Seen) {
        if seen != Seen::Never || !self.full && self.queues.small_len() >= self.small_max {
            self.queues.push_main(places, slot);
        } else {
            self.newcomers += 1;
            self.came.set(slot, self.newcomers);
            self.queues.push_small(places, slot, 0);
        }
    }

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
        if self.queues.moved(places, from, to) & IN_MAIN == 0 {
            self.came.set(to, self.came.get(from));
        }
    }

    fn limit(&mut self, _places: &mut Places, limit: u32) {
        self.set_targets(limit);
    }

    fn resize(&mut self, _places: &mut Places, capacity: u32, _keys: &[u64]) {
        self.set_targets(capacity);
        self.ghosts.resize(ghosts_max(capacity));
    }

    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        self.queues.coldest_first(places, REFERENCED, visit);
    }

    fn memory_bytes(&self) -> usize {
        self.ghosts.memory_bytes() + self.came.memory_bytes()
    }

    fn check(&self, places: &Places, occupied: u32) {
        self.queues.check(places, occupied);
        self.ghosts.check();
    }
}
