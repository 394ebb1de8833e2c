//! CLOCK-Pro (Jiang, Chen and Zhang, "CLOCK-Pro: An Effective Improvement of the CLOCK Replacement", USENIX ATC 2005):
//! LIRS as a clock.
//!
//! Owns one clock of hot blocks, cold blocks, and blocks that were evicted during their test period; and three hands.
//! The list's tail is where the hot hand stands, so that the hand moves by renewing what it passes, and its head is
//! where blocks enter. Never reorders on a hit. Invariants: the hands of cold and test are on nodes of the clock or
//! nowhere (then they begin at the tail); at most as many evicted blocks are in test as there are slots;
//! `1 <= cold_target <= capacity` unless there are no slots.
//!
//! As in the paper: a cold block that is asked for during its test becomes hot and gives cold blocks one slot more; one
//! whose test ends without that takes one away. The share of cold blocks to begin with, which the paper leaves open, is
//! a hundredth.

use crate::policy::{Policy, Search, Seen};
use crate::structures::list::{Links, List, NIL};
use crate::structures::places::Places;
use crate::structures::slots::{ChainedSlots, Slot};
use crate::structures::table::{Fill, HashKey};

/// Bits of a slot's state.
const HOT: u8 = 1;
const REFERENCED: u8 = 2;
const IN_TEST: u8 = 4;

#[derive(Debug)]
pub(crate) struct ClockPro {
    capacity: u32,
    /// Slots and ghosts: see `of_slot` and `of_ghost`.
    clock: List,
    links: Links,
    /// Slots that `links` has room for.
    room: u32,
    ghosts: ChainedSlots,
    hand_cold: u32,
    hand_test: u32,
    hot: u32,
    cold: u32,
    cold_target: u32,
}

/// The node of a slot, and that of a ghost.
fn of_slot(slot: Slot) -> u32 {
    2 * slot
}
fn of_ghost(ghost: u32) -> u32 {
    2 * ghost + 1
}

impl ClockPro {
    /// # Panics
    /// With 2^30 slots or more: nodes have 32-bit numbers.
    pub fn new(capacity: u32, key: HashKey) -> Self {
        assert!(capacity < 1 << 30, "CLOCK-Pro is for fewer than 2^30 slots");
        Self {
            capacity,
            clock: List::new(),
            links: Links::new(2 * (capacity as usize + 1)),
            room: capacity + 1,
            // one more: a victim is remembered before the test hand makes room
            ghosts: ChainedSlots::new(capacity + 1, Fill::TwoThirds, key),
            hand_cold: NIL,
            hand_test: NIL,
            hot: 0,
            cold: 0,
            cold_target: (capacity / 100).max(1).min(capacity),
        }
    }

    fn reach(&mut self, slot: Slot) {
        if slot >= self.room {
            self.room = slot + 1;
            self.links.resize(2 * self.room as usize);
        }
    }

    /// What comes after `node` on the clock.
    fn after(&self, node: u32) -> u32 {
        match self.links.newer(node) {
            NIL => self.clock.tail(),
            next => next,
        }
    }

    /// Hands that are on `node` go on.
    fn leave(&mut self, node: u32) {
        let next = self.after(node);
        let next = if next == node { NIL } else { next };
        for hand in [&mut self.hand_cold, &mut self.hand_test] {
            if *hand == node {
                *hand = next;
            }
        }
    }

    fn take_out(&mut self, node: u32) {
        self.leave(node);
        self.clock.remove(&mut self.links, node);
    }

    /// Moves `node` to where blocks enter.
    fn renew(&mut self, node: u32) {
        self.take_out(node);
        self.clock.push(&mut self.links, node);
    }

    fn free_ghost(&mut self, ghost: u32) {
        self.take_out(of_ghost(ghost));
        self.ghosts.free(ghost);
    }

    fn fewer_cold(&mut self) {
        self.cold_target = self.cold_target.saturating_sub(1).max(1).min(self.capacity);
    }

    fn more_cold(&mut self) {
        self.cold_target = (self.cold_target + 1).min(self.capacity);
    }

    /// The test of a block ends, if it is in one.
    fn end_test(&mut self, places: &mut Places, node: u32) {
        if node % 2 == 1 {
            self.free_ghost(node / 2);
            self.fewer_cold();
            return;
        }
        let mark = &mut places.marks[(node / 2) as usize];
        if *mark & IN_TEST != 0 {
            *mark &= !IN_TEST;
            if *mark & REFERENCED == 0 {
                self.fewer_cold();
            }
        }
    }

    /// Hot blocks that were not asked for become cold until there are at most `hot_max`.
    fn run_hot(&mut self, places: &mut Places, hot_max: u32) {
        while self.hot > hot_max {
            let node = self.clock.tail();
            if node % 2 == 1 {
                self.end_test(places, node);
                continue;
            }
            let mark = &mut places.marks[(node / 2) as usize];
            if *mark & HOT == 0 {
                self.end_test(places, node);
            } else if *mark & REFERENCED != 0 {
                *mark = HOT;
            } else {
                *mark = 0;
                self.hot -= 1;
                self.cold += 1;
            }
            // the hand passes: hands of cold and test stay where they are on the ring
            self.clock.renew(&mut self.links, node);
        }
    }

    /// Tests end until no more evicted blocks are in one than there are slots.
    fn run_test(&mut self, places: &mut Places) {
        while self.ghosts.len() > self.capacity {
            let node = if self.hand_test == NIL { self.clock.tail() } else { self.hand_test };
            self.hand_test = self.after(node);
            if node % 2 == 1 || places.marks[(node / 2) as usize] & HOT == 0 {
                self.end_test(places, node);
            }
        }
    }

    fn hot_max(&self) -> u32 {
        self.capacity - self.cold_target
    }

    /// A cold block under the hand was asked for.
    fn reward(&mut self, places: &mut Places, slot: Slot) {
        let in_test = places.marks[slot as usize] & IN_TEST != 0;
        self.renew(of_slot(slot));
        if in_test {
            places.marks[slot as usize] = HOT;
            self.cold -= 1;
            self.hot += 1;
            self.more_cold();
            self.run_hot(places, self.hot_max());
        } else {
            places.marks[slot as usize] = IN_TEST;
        }
    }

    /// A cold block leaves, or stays on the clock by number if it is in its test.
    fn evict(&mut self, places: &mut Places, slot: Slot, block: u64) {
        let in_test = places.marks[slot as usize] & IN_TEST != 0;
        places.marks[slot as usize] = 0;
        self.cold -= 1;
        let node = of_slot(slot);
        self.hand_cold = self.after(node);
        if !in_test {
            self.take_out(node);
            return;
        }
        let ghost = self.ghosts.insert(block, self.ghosts.hash(block));
        self.clock.replace(&mut self.links, node, of_ghost(ghost));
        for hand in [&mut self.hand_cold, &mut self.hand_test] {
            if *hand == node {
                *hand = of_ghost(ghost);
            }
        }
        self.run_test(places);
    }
}

impl Policy for ClockPro {
    #[inline]
    fn touch(&mut self, places: &mut Places, slot: Slot, _block: u64) {
        places.marks[slot as usize] |= REFERENCED;
    }

    fn miss(&mut self, block: u64) -> Seen {
        match self.ghosts.find(block, self.ghosts.hash(block)) {
            None => Seen::Never,
            Some(ghost) => {
                self.free_ghost(ghost);
                self.more_cold();
                Seen::Once
            }
        }
    }

    fn victim(
        &mut self,
        places: &mut Places,
        keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        _seen: Seen,
    ) -> Option<Slot> {
        let mut search = Search::default();
        loop {
            if self.cold == 0 {
                if self.hot == 0 {
                    return None;
                }
                self.run_hot(places, self.hot - 1);
            }
            let node = if self.hand_cold == NIL { self.clock.tail() } else { self.hand_cold };
            self.hand_cold = node;
            let slot = node / 2;
            if node % 2 == 1 || places.marks[slot as usize] & HOT != 0 {
                self.hand_cold = self.after(node);
            } else if !may_evict(slot) {
                self.hand_cold = self.after(node);
                // hot blocks may be free to go where no cold one is
                if search.refused() {
                    return None;
                }
                if self.hot > 0 {
                    self.run_hot(places, self.hot - 1);
                }
            } else if places.marks[slot as usize] & REFERENCED != 0 {
                self.reward(places, slot);
            } else {
                self.evict(places, slot, keys[slot as usize]);
                return Some(slot);
            }
        }
    }

    fn insert(&mut self, places: &mut Places, slot: Slot, _block: u64, seen: Seen) {
        self.reach(slot);
        self.clock.push(&mut self.links, of_slot(slot));
        if seen != Seen::Never || self.hot < self.hot_max() && self.cold == 0 {
            places.marks[slot as usize] = HOT;
            self.hot += 1;
            self.run_hot(places, self.hot_max());
        } else {
            places.marks[slot as usize] = IN_TEST;
            self.cold += 1;
        }
    }

    fn remove(&mut self, places: &mut Places, slot: Slot) {
        let mark = std::mem::take(&mut places.marks[slot as usize]);
        *if mark & HOT != 0 { &mut self.hot } else { &mut self.cold } -= 1;
        self.take_out(of_slot(slot));
    }

    #[inline]
    fn ahead(&self, _places: &Places, _slots: &[Slot], hashes: &[u64]) {
        self.ghosts.read_ahead(hashes);
    }

    fn forget(&mut self, block: u64) {
        if let Some(ghost) = self.ghosts.find(block, self.ghosts.hash(block)) {
            self.free_ghost(ghost);
        }
    }

    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        self.reach(to);
        places.marks[to as usize] = std::mem::take(&mut places.marks[from as usize]);
        self.clock.replace(&mut self.links, of_slot(from), of_slot(to));
        for hand in [&mut self.hand_cold, &mut self.hand_test] {
            if *hand == of_slot(from) {
                *hand = of_slot(to);
            }
        }
    }

    fn limit(&mut self, places: &mut Places, limit: u32) {
        self.capacity = limit;
        self.cold_target = self.cold_target.max(1).min(limit);
        self.run_hot(places, self.hot_max());
        self.run_test(places);
    }

    /// Blocks that are not cached are forgotten.
    fn resize(&mut self, places: &mut Places, capacity: u32, _keys: &[u64]) {
        assert!(capacity < 1 << 30, "CLOCK-Pro is for fewer than 2^30 slots");
        let ghosts: Vec<u32> = self.ghosts.iter().map(|(_, ghost)| ghost).collect();
        ghosts.into_iter().for_each(|ghost| self.free_ghost(ghost));
        self.ghosts = ChainedSlots::new(capacity + 1, Fill::TwoThirds, self.ghosts.hash_key());
        self.reach(capacity);
        self.limit(places, capacity);
    }

    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        for marks in [0, REFERENCED, HOT, HOT | REFERENCED] {
            let slots = self.clock.iter(&self.links).filter(|node| node % 2 == 0).map(|node| node / 2);
            slots.filter(|&s| places.marks[s as usize] & !IN_TEST == marks).for_each(&mut *visit);
        }
    }

    fn memory_bytes(&self) -> usize {
        self.links.memory_bytes() + self.ghosts.memory_bytes()
    }

    fn check(&self, places: &Places, occupied: u32) {
        self.clock.check(&self.links);
        self.ghosts.check();
        assert_eq!(self.hot + self.cold, occupied, "hot and cold slots");
        assert!(self.ghosts.len() <= self.capacity, "evicted blocks in test");
        assert!(self.cold_target <= self.capacity, "the share of cold blocks");
        let (mut hot, mut cold, mut ghosts) = (0, 0, 0);
        for node in self.clock.iter(&self.links) {
            match node % 2 {
                1 => ghosts += 1,
                _ if places.marks[(node / 2) as usize] & HOT != 0 => hot += 1,
                _ => cold += 1,
            }
        }
        assert_eq!((hot, cold, ghosts), (self.hot, self.cold, self.ghosts.len()), "what is on the clock");
        for hand in [self.hand_cold, self.hand_test] {
            assert!(hand == NIL || self.clock.iter(&self.links).any(|node| node == hand), "a hand is off the clock");
        }
    }
}
