//! The queues of S4-FIFO: S3-FIFO with five parameters, its knobs (see `s4fifo` for the paper).
//!
//! Owns the sizes of the small queue and the main one (`small_main`) and of the ghosts of what left the small queue
//! unproven, as the knobs say now. Never chooses the knobs, never reorders on a hit, never evicts because a knob
//! changed. Invariants: a mark is 0 unless the slot is occupied; a block in main carries no ghost hits; there is room
//! for as many ghosts as the knobs say.
//!
//! The rules are those of libCacheSim's S4FIFO (commit 06961b4). With the default knobs they are S3-FIFO's, decision
//! for decision.

use super::history::History;
use super::per_slot::PerSlot;
use crate::policy::small_main::{HITS, IN_MAIN, SmallMain};
use crate::policy::{Policy, Seen};
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

/// The part of a mark above that of `small_main`: hits on the block's ghosts, saturating.
const GHOST_HIT: u8 = 8;

/// The five knobs. Parts are in percent, so that sizes of queues are exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Knobs {
    /// The small queue, of the slots.
    pub small: u32,
    /// Hits in the small queue that make a block worth keeping, 1 to 3.
    pub proven: u8,
    /// Hits on its ghosts that a block needs, beyond the first, to go to main at once.
    pub ghost_hits: u8,
    /// As many ghosts, of the slots.
    pub ghosts: u32,
    /// The newest part of the small queue, in which hits do not count.
    pub skip: u32,
}

impl Knobs {
    /// Those of S3-FIFO.
    pub const DEFAULT: Self = Self { small: 10, proven: 2, ghost_hits: 0, ghosts: 90, skip: 0 };

    fn small_target(&self, capacity: u32) -> u32 {
        (part(capacity, self.small)).max(1)
    }
}

fn part(of: u32, percent: u32) -> u32 {
    (u64::from(of) * u64::from(percent) / 100) as u32
}

#[derive(Debug)]
pub(crate) struct Queues {
    knobs: Knobs,
    /// Slots that may be occupied.
    limit: u32,
    /// Slots that there are, which the number of ghosts goes by.
    capacity: u32,
    small_target: u32,
    /// Newcomers after which a block has left the part where hits do not count.
    skipped: u64,
    queues: SmallMain,
    /// Blocks that left the small queue, with the hits on their ghosts before.
    ghosts: History<u8>,
    /// Which newcomer to the small queue a slot of it holds.
    came: PerSlot<u64>,
    newcomers: u64,
    /// Hits on the ghosts of the block to be inserted, this one included.
    returned: u8,
    /// Whether the insertion to come had to make room: the cache is full.
    made_room: bool,
}

impl Queues {
    pub fn new(knobs: Knobs, capacity: u32, key: HashKey) -> Self {
        assert!((1..=HITS).contains(&knobs.proven), "a block proves itself by 1 to {HITS} hits");
        let mut new = Self {
            knobs,
            limit: capacity,
            capacity,
            small_target: 0,
            skipped: 0,
            queues: SmallMain::new(),
            ghosts: History::new(part(capacity, knobs.ghosts), key),
            came: PerSlot::new(capacity),
            newcomers: 0,
            returned: 0,
            made_room: false,
        };
        new.set_targets();
        new
    }

    fn set_targets(&mut self) {
        self.small_target = self.knobs.small_target(self.limit);
        self.skipped = u64::from(part(self.small_target, self.knobs.skip));
    }

    fn fit_ghosts(&mut self) {
        let ghosts = part(self.capacity, self.knobs.ghosts);
        if ghosts != self.ghosts.capacity() {
            self.ghosts.resize(ghosts);
        }
    }

    /// Of the small queue and the main one.
    #[cfg(test)]
    pub fn lengths(&self) -> (u32, u32) {
        (self.queues.small_len(), self.queues.main_len())
    }

    pub fn knobs(&self) -> Knobs {
        self.knobs
    }

    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Other knobs from now on. Blocks stay where they are: queues that are too long shrink as evictions come. Of the
    /// ghosts, the newest stay; that allocates.
    pub fn turn(&mut self, knobs: Knobs) {
        self.knobs = knobs;
        self.set_targets();
        self.fit_ghosts();
    }
}

impl Policy for Queues {
    #[inline]
    fn touch(&mut self, places: &mut Places, slot: Slot, _block: u64) {
        let mark = &mut places.marks[slot as usize];
        let counts = self.skipped == 0 || *mark & IN_MAIN != 0 || self.newcomers - self.came.get(slot) >= self.skipped;
        if counts && *mark & HITS != HITS {
            *mark += 1;
        }
    }

    fn miss(&mut self, block: u64) -> Seen {
        self.made_room = false;
        let before = self.ghosts.take(block);
        self.returned = before.map_or(0, |hits| (hits + 1).min(u8::MAX / GHOST_HIT));
        if before.is_some() { Seen::Once } else { Seen::Never }
    }

    fn victim(
        &mut self,
        places: &mut Places,
        keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        _seen: Seen,
    ) -> Option<Slot> {
        self.made_room = true;
        let main_target = self.limit - self.small_target.min(self.limit);
        let taken = self.queues.take_victim(places, main_target, self.knobs.proven, &may_evict)?;
        if let Some(mark) = taken.of_small {
            self.ghosts.push(keys[taken.slot as usize], mark / GHOST_HIT);
        }
        Some(taken.slot)
    }

    fn insert(&mut self, places: &mut Places, slot: Slot, _block: u64, seen: Seen) {
        let returned = match (std::mem::take(&mut self.returned), seen) {
            (_, Seen::Never) => 0,
            // it proved itself elsewhere
            (0, _) => u8::MAX,
            (hits, _) => hits,
        };
        let filling_up = !self.made_room && self.queues.small_len() >= self.small_target;
        if returned > self.knobs.ghost_hits || filling_up {
            self.queues.push_main(places, slot);
        } else {
            self.newcomers += 1;
            self.came.set(slot, self.newcomers);
            self.queues.push_small(places, slot, returned * GHOST_HIT);
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
        self.ghosts.take(block);
    }

    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        if self.queues.moved(places, from, to) & IN_MAIN == 0 {
            self.came.set(to, self.came.get(from));
        }
    }

    fn limit(&mut self, _places: &mut Places, limit: u32) {
        self.limit = limit;
        self.set_targets();
    }

    fn resize(&mut self, _places: &mut Places, capacity: u32, _keys: &[u64]) {
        (self.capacity, self.limit) = (capacity, capacity);
        self.set_targets();
        self.fit_ghosts();
    }

    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        self.queues.coldest_first(places, self.knobs.proven, visit);
    }

    fn memory_bytes(&self) -> usize {
        self.ghosts.memory_bytes() + self.came.memory_bytes()
    }

    fn check(&self, places: &Places, occupied: u32) {
        self.queues.check(places, occupied);
        // from the oldest on, each came later than the one before
        let came = |s: Slot| self.came.get(s);
        assert!(self.queues.small(places).map(came).is_sorted(), "the small queue is out of order");
        assert!(self.queues.small(places).all(|s| came(s) <= self.newcomers), "a slot is yet to come");
        assert_eq!(self.ghosts.capacity(), part(self.capacity, self.knobs.ghosts), "room for ghosts");
        self.ghosts.check();
    }
}
