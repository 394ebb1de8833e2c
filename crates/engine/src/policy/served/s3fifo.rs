//! S3-FIFO: three static FIFO queues (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023).
//!
//! Owns the small queue (a tenth of the slots) for newcomers, the main queue (a clock with a count of up to 3) for
//! what proved itself, and the ghosts of what left the small queue unproven. Never reorders on a hit.
//! Invariant: a slot's count is 0 unless it is occupied.
//!
//! Parameters as in libCacheSim 0.3.5: two hits move a block from small to main, as many ghosts as nine tenths of the
//! slots, and while the cache still fills up newcomers go to the main queue once the small one is full.

use crate::policy::{Policy, Search, Seen};
use crate::structures::ghosts::Ghosts;
use crate::structures::list::{List, NIL};
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

/// A slot's state: the number of hits, saturating, and whether it is in the main queue.
pub(crate) const HITS: u8 = 3;
pub(crate) const IN_MAIN: u8 = 4;
/// Hits in the small queue that make a block worth keeping.
const PROVEN: u8 = 2;
/// The one ghost queue in use.
const GHOST: usize = 0;

#[derive(Debug)]
pub(crate) struct S3Fifo {
    capacity: u32,
    small: List,
    main: List,
    ghosts: Ghosts,
    /// Whether the insertion to come had to make room: the cache is full.
    made_room: bool,
}

fn small_target(capacity: u32) -> u32 {
    (capacity / 10).max(1)
}

fn ghost_target(capacity: u32) -> u32 {
    (u64::from(capacity) * 9 / 10) as u32
}

/// The oldest of a main queue whose count has run down; those before it lose one and go round.
pub(crate) fn run_down(
    main: &mut List,
    places: &mut Places,
    may_evict: &impl Fn(Slot) -> bool,
    search: &mut Search,
) -> Option<Slot> {
    let mut at = main.tail();
    while at != NIL {
        let next = places.links.newer(at);
        if !may_evict(at) {
            if search.refused() {
                return None;
            }
            at = next;
        } else if places.marks[at as usize] & HITS != 0 && search.spared() {
            places.marks[at as usize] -= 1;
            main.renew(&mut places.links, at);
            at = if next == NIL { at } else { next };
        } else {
            return Some(at);
        }
    }
    None
}

impl S3Fifo {
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
            if places.marks[at as usize] & HITS >= PROVEN && search.spared() {
                self.small.remove(&mut places.links, at);
                self.main.push(&mut places.links, at);
                places.marks[at as usize] = IN_MAIN;
            } else if may_evict(at) {
                self.remove(places, at);
                self.ghosts.push(GHOST, keys[at as usize]);
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

impl S3Fifo {
    pub fn new(capacity: u32, key: HashKey) -> Self {
        Self {
            capacity,
            small: List::new(),
            main: List::new(),
            ghosts: Ghosts::new(ghost_target(capacity), key),
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
        let mut search = Search::default();
        self.made_room = true;
        let main_target = self.capacity - small_target(self.capacity).min(self.capacity);
        if self.main.len() > main_target || self.small.len() == 0 {
            self.victim_in_main(places, &may_evict, &mut search)
                .or_else(|| self.victim_in_small(places, keys, &may_evict, &mut search))
        } else {
            self.victim_in_small(places, keys, &may_evict, &mut search)
                .or_else(|| self.victim_in_main(places, &may_evict, &mut search))
        }
    }

    fn insert(&mut self, places: &mut Places, slot: Slot, _block: u64, seen: Seen) {
        let filling_up = !self.made_room && self.small.len() >= small_target(self.capacity);
        if seen != Seen::Never || filling_up {
            self.main.push(&mut places.links, slot);
            places.marks[slot as usize] = IN_MAIN;
        } else {
            self.small.push(&mut places.links, slot);
            places.marks[slot as usize] = 0;
        }
    }

    fn remove(&mut self, places: &mut Places, slot: Slot) {
        let state = std::mem::take(&mut places.marks[slot as usize]);
        if state & IN_MAIN != 0 { &mut self.main } else { &mut self.small }.remove(&mut places.links, slot);
    }

    #[inline]
    fn ahead(&self, _places: &Places, _slots: &[Slot], hashes: &[u64]) {
        self.ghosts.read_ahead(hashes);
    }

    fn forget(&mut self, block: u64) {
        self.ghosts.forget(block);
    }

    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        let state = std::mem::take(&mut places.marks[from as usize]);
        places.marks[to as usize] = state;
        if state & IN_MAIN != 0 { &mut self.main } else { &mut self.small }.replace(&mut places.links, from, to);
    }

    fn limit(&mut self, _places: &mut Places, limit: u32) {
        self.capacity = limit;
    }

    fn resize(&mut self, _places: &mut Places, capacity: u32, _keys: &[u64]) {
        self.capacity = capacity;
        self.ghosts.resize(ghost_target(capacity));
    }

    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        let state = |s: Slot| places.marks[s as usize];
        // proven blocks of the small queue leave it for the main queue, behind the others there
        self.small.iter(&places.links).filter(|&s| state(s) < PROVEN).for_each(&mut *visit);
        for hits in 0..=HITS {
            self.main.iter(&places.links).filter(|&s| state(s) & HITS == hits).for_each(&mut *visit);
            if hits == 0 {
                self.small.iter(&places.links).filter(|&s| state(s) >= PROVEN).for_each(&mut *visit);
            }
        }
    }

    fn memory_bytes(&self) -> usize {
        self.ghosts.memory_bytes()
    }

    fn check(&self, places: &Places, occupied: u32) {
        self.small.check(&places.links);
        self.main.check(&places.links);
        assert_eq!(self.small.len() + self.main.len(), occupied, "slots in both queues");
        let in_main = |s: Slot| places.marks[s as usize] & IN_MAIN != 0;
        assert!(self.main.iter(&places.links).all(in_main), "a slot of main is marked as small");
        assert!(self.small.iter(&places.links).all(|s| !in_main(s)), "a slot of small is marked as main");
        self.ghosts.check();
    }
}
