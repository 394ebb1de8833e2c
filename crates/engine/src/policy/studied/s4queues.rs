//! The queues of S4-FIFO: S3-FIFO with five knobs (see `s4fifo` for the paper).
//!
//! Owns the small queue, the main queue, and the ghosts of what left the small queue unproven, each of the size that
//! the knobs say now. Never chooses the knobs, never reorders on a hit, never evicts because a knob turned. Invariants:
//! a mark is 0 unless the slot is occupied; a block in main carries no ghost hits; there is room for as many ghosts as
//! the knobs say.
//!
//! The rules are those of libCacheSim's S4FIFO (commit 06961b4). With the default knobs they are S3-FIFO's, decision
//! for decision.

use super::history::History;
use super::per_slot::PerSlot;
use crate::policy::served::s3fifo::{HITS, IN_MAIN, run_down};
use crate::policy::{Policy, Search, Seen};
use crate::structures::list::{List, NIL};
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

/// A slot's state is S3-FIFO's; above that, hits on its ghosts, saturating.
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
    small: List,
    main: List,
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
            small: List::new(),
            main: List::new(),
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
        (self.small.len(), self.main.len())
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

    /// The oldest of the small queue that is not proven, after the proven ones before it went to main.
    fn victim_in_small(
        &mut self,
        places: &mut Places,
        keys: &[u64],
        may_evict: &impl Fn(Slot) -> bool,
        search: &mut Search,
    ) -> Option<Slot> {
        let mut at = self.small.tail();
        while at != NIL {
            let next = places.links.newer(at);
            let mark = places.marks[at as usize];
            if mark & HITS >= self.knobs.proven && search.spared() {
                self.small.remove(&mut places.links, at);
                self.main.push(&mut places.links, at);
                places.marks[at as usize] = IN_MAIN;
            } else if may_evict(at) {
                self.remove(places, at);
                self.ghosts.push(keys[at as usize], mark / GHOST_HIT);
                return Some(at);
            } else if search.refused() {
                return None;
            }
            at = next;
        }
        None
    }

    fn victim_in_main(
        &mut self,
        places: &mut Places,
        may_evict: &impl Fn(Slot) -> bool,
        search: &mut Search,
    ) -> Option<Slot> {
        let slot = run_down(&mut self.main, places, may_evict, search)?;
        self.remove(places, slot);
        Some(slot)
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
        let mut search = Search::default();
        self.made_room = true;
        let main_target = self.limit - self.small_target.min(self.limit);
        if self.main.len() > main_target || self.small.len() == 0 {
            self.victim_in_main(places, &may_evict, &mut search)
                .or_else(|| self.victim_in_small(places, keys, &may_evict, &mut search))
        } else {
            self.victim_in_small(places, keys, &may_evict, &mut search)
                .or_else(|| self.victim_in_main(places, &may_evict, &mut search))
        }
    }

    fn insert(&mut self, places: &mut Places, slot: Slot, _block: u64, seen: Seen) {
        let returned = match (std::mem::take(&mut self.returned), seen) {
            (_, Seen::Never) => 0,
            // it proved itself elsewhere
            (0, _) => u8::MAX,
            (hits, _) => hits,
        };
        let filling_up = !self.made_room && self.small.len() >= self.small_target;
        if returned > self.knobs.ghost_hits || filling_up {
            self.main.push(&mut places.links, slot);
            places.marks[slot as usize] = IN_MAIN;
        } else {
            self.newcomers += 1;
            self.came.set(slot, self.newcomers);
            self.small.push(&mut places.links, slot);
            places.marks[slot as usize] = returned * GHOST_HIT;
        }
    }

    fn remove(&mut self, places: &mut Places, slot: Slot) {
        let mark = std::mem::take(&mut places.marks[slot as usize]);
        if mark & IN_MAIN != 0 { &mut self.main } else { &mut self.small }.remove(&mut places.links, slot);
    }

    #[inline]
    fn ahead(&self, _places: &Places, _slots: &[Slot], hashes: &[u64]) {
        self.ghosts.read_ahead(hashes);
    }

    fn forget(&mut self, block: u64) {
        self.ghosts.take(block);
    }

    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        let mark = std::mem::take(&mut places.marks[from as usize]);
        places.marks[to as usize] = mark;
        if mark & IN_MAIN != 0 {
            self.main.replace(&mut places.links, from, to);
        } else {
            self.small.replace(&mut places.links, from, to);
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
        let hits_of = |s: Slot| places.marks[s as usize] & HITS;
        let proven = |&s: &Slot| hits_of(s) >= self.knobs.proven;
        // proven blocks of the small queue leave it for the main queue, behind the others there
        self.small.iter(&places.links).filter(|s| !proven(s)).for_each(&mut *visit);
        for hits in 0..=HITS {
            self.main.iter(&places.links).filter(|&s| hits_of(s) == hits).for_each(&mut *visit);
            if hits == 0 {
                self.small.iter(&places.links).filter(proven).for_each(&mut *visit);
            }
        }
    }

    fn memory_bytes(&self) -> usize {
        self.ghosts.memory_bytes() + self.came.memory_bytes()
    }

    fn check(&self, places: &Places, occupied: u32) {
        self.small.check(&places.links);
        self.main.check(&places.links);
        assert_eq!(self.small.len() + self.main.len(), occupied, "slots in both queues");
        let mark = |s: Slot| places.marks[s as usize];
        assert!(self.main.iter(&places.links).all(|s| mark(s) & !HITS == IN_MAIN), "a mark of main is not of main");
        assert!(self.small.iter(&places.links).all(|s| mark(s) & IN_MAIN == 0), "a slot of small is marked as main");
        // from the oldest on, each came later than the one before
        assert!(
            self.small.iter(&places.links).map(|s| self.came.get(s)).is_sorted(),
            "the small queue is out of order"
        );
        assert!(self.small.iter(&places.links).all(|s| self.came.get(s) <= self.newcomers), "a slot is yet to come");
        assert_eq!(self.ghosts.capacity(), part(self.capacity, self.knobs.ghosts), "room for ghosts");
        self.ghosts.check();
    }
}
