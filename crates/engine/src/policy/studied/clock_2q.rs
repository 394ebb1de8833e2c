//! Clock2Q+ (Zhai et al., "Clock2Q+: a simple and efficient replacement algorithm for metadata cache in VMware vSAN").
//!
//! Owns a small queue (a tenth of the slots) for newcomers, a main clock with one bit, and ghosts of what left the
//! small queue unproven. Unlike S3-FIFO, a hit that comes soon after the block itself does not prove it: accesses to
//! metadata come in bursts. Never reorders on a hit. Invariant: a slot's mark tells its queue.
//!
//! "Soon" is half the small queue, counted in newcomers, and nine tenths as many ghosts as slots: the parameters of
//! libCacheSim 0.3.5, whose rules these are.

use super::per_slot::PerSlot;
use crate::policy::{Policy, Search, Seen};
use crate::structures::ghosts::Ghosts;
use crate::structures::list::{List, NIL};
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

const REFERENCED: u8 = 1;
const IN_MAIN: u8 = 2;
const GHOST: usize = 0;

#[derive(Debug)]
pub(crate) struct Clock2QPlus {
    small_max: u32,
    main_max: u32,
    small: List,
    main: List,
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
            small: List::new(),
            main: List::new(),
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
            if places.marks[at as usize] & REFERENCED != 0 && search.spared() {
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
        let mut at = self.main.tail();
        while at != NIL {
            let next = places.links.newer(at);
            if !may_evict(at) {
                if search.refused() {
                    return None;
                }
                at = next;
            } else if places.marks[at as usize] & REFERENCED != 0 && search.spared() {
                places.marks[at as usize] = IN_MAIN;
                self.main.renew(&mut places.links, at);
                at = if next == NIL { at } else { next };
            } else {
                self.remove(places, at);
                return Some(at);
            }
        }
        None
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
        let mut search = Search::default();
        self.full = true;
        if self.main.len() > self.main_max || self.small.len() == 0 {
            self.victim_in_main(places, &may_evict, &mut search)
                .or_else(|| self.victim_in_small(places, keys, &may_evict, &mut search))
        } else {
            self.victim_in_small(places, keys, &may_evict, &mut search)
                .or_else(|| self.victim_in_main(places, &may_evict, &mut search))
        }
    }

    fn insert(&mut self, places: &mut Places, slot: Slot, _block: u64, seen: Seen) {
        if seen != Seen::Never || !self.full && self.small.len() >= self.small_max {
            places.marks[slot as usize] = IN_MAIN;
            self.main.push(&mut places.links, slot);
        } else {
            self.newcomers += 1;
            self.came.set(slot, self.newcomers);
            places.marks[slot as usize] = 0;
            self.small.push(&mut places.links, slot);
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
        self.ghosts.forget(block);
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
        self.set_targets(limit);
    }

    fn resize(&mut self, _places: &mut Places, capacity: u32, _keys: &[u64]) {
        self.set_targets(capacity);
        self.ghosts.resize(ghosts_max(capacity));
    }

    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        for mark in [0, REFERENCED] {
            for queue in [&self.small, &self.main] {
                let of_mark = queue.iter(&places.links).filter(|&s| places.marks[s as usize] & REFERENCED == mark);
                of_mark.for_each(&mut *visit);
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
        let in_main = |s: Slot| places.marks[s as usize] & IN_MAIN != 0;
        assert!(self.main.iter(&places.links).all(in_main), "a slot of main is marked as small");
        assert!(self.small.iter(&places.links).all(|s| !in_main(s)), "a slot of small is marked as main");
        self.ghosts.check();
    }
}
