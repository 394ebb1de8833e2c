//! LIRS: low inter-reference recency set (Jiang and Zhang, "LIRS: An Efficient Low Inter-reference Recency Set
//! Replacement Policy to Improve Buffer Cache Performance", SIGMETRICS 2002).
//!
//! Owns the stack S (blocks by recency: LIR, HIR that are cached, HIR that are not), the queue Q of cached HIR blocks,
//! and what is known of those that are not cached. Never lets a HIR block stand at the bottom of S.
//! Invariants: every slot is LIR and in S, or HIR and in Q (and perhaps in S); at the bottom of S is an LIR block.
//!
//! A hundredth of the slots is for HIR blocks, as in the paper. The paper does not bound S; here, as in libCacheSim
//! 0.3.5, S holds at most twice as many blocks as there are slots: the first to be forgotten is what was evicted first.

use crate::policy::{Policy, Search, Seen};
use crate::structures::list::{Links, List, NIL};
use crate::structures::places::Places;
use crate::structures::slots::{ChainedSlots, Slot};
use crate::structures::table::{Fill, HashKey};

/// Bits of a slot's state.
const LIR: u8 = 1;
const IN_S: u8 = 2;

#[derive(Debug)]
pub(crate) struct Lirs {
    capacity: u32,
    /// LIR blocks at most.
    lir_max: u32,
    lir: u32,
    /// The stack: its nodes are slots and ghosts, see `of_slot` and `of_ghost`. The newest is the top.
    s: List,
    s_links: Links,
    /// The slots that are in Q, linked through the places they all have.
    q: List,
    ghosts: ChainedSlots,
    /// The ghosts by the time of their eviction.
    ghost_order: List,
    ghost_links: Links,
    /// Slots that `s_links` has room for.
    room: u32,
}

/// The node of a slot, and that of a ghost: side by side, so that both can grow.
fn of_slot(slot: Slot) -> u32 {
    2 * slot
}
fn of_ghost(ghost: u32) -> u32 {
    2 * ghost + 1
}

fn hir_max(capacity: u32) -> u32 {
    (capacity / 100).max(1).min(capacity)
}

/// With all LIR blocks there, S reaches twice the capacity when there are so many.
fn ghosts_max(capacity: u32) -> u32 {
    capacity + hir_max(capacity)
}

impl Lirs {
    /// # Panics
    /// With 2^30 slots or more: nodes have 32-bit numbers.
    pub fn new(capacity: u32, key: HashKey) -> Self {
        assert!(capacity < 1 << 30, "LIRS is for fewer than 2^30 slots");
        let ghosts = ghosts_max(capacity);
        Self {
            capacity,
            lir_max: capacity - hir_max(capacity),
            lir: 0,
            s: List::new(),
            s_links: Links::new(2 * ghosts as usize),
            q: List::new(),
            ghosts: ChainedSlots::new(ghosts, Fill::TwoThirds, key),
            ghost_order: List::new(),
            ghost_links: Links::new(ghosts as usize),
            room: ghosts,
        }
    }

    /// Makes room for the node of `slot`, which may be of a disk larger than this part of it.
    fn reach(&mut self, slot: Slot) {
        if slot >= self.room {
            self.room = slot + 1;
            self.s_links.resize(2 * self.room as usize);
        }
    }

    fn free_ghost(&mut self, ghost: u32) {
        self.s.remove(&mut self.s_links, of_ghost(ghost));
        self.ghost_order.remove(&mut self.ghost_links, ghost);
        self.ghosts.free(ghost);
    }

    /// Takes from the bottom of S what is not LIR.
    fn prune(&mut self, places: &mut Places) {
        loop {
            let node = self.s.tail();
            if node == NIL {
                return;
            }
            if node % 2 == 1 {
                self.free_ghost(node / 2);
            } else if places.marks[(node / 2) as usize] & LIR == 0 {
                places.marks[(node / 2) as usize] = 0;
                self.s.remove(&mut self.s_links, node);
            } else {
                return;
            }
        }
    }

    /// The bottom of S becomes HIR and goes to Q, until there are at most `lir_max` LIR blocks.
    fn demote(&mut self, places: &mut Places, lir_max: u32) {
        while self.lir > lir_max {
            let node = self.s.tail();
            self.s.remove(&mut self.s_links, node);
            places.marks[(node / 2) as usize] = 0;
            self.q.push(&mut places.links, node / 2);
            self.lir -= 1;
            self.prune(places);
        }
    }

    /// A HIR block that was asked for while it is in S becomes LIR.
    fn promote(&mut self, places: &mut Places, slot: Slot) {
        self.q.remove(&mut places.links, slot);
        self.s.renew(&mut self.s_links, of_slot(slot));
        places.marks[slot as usize] = LIR | IN_S;
        self.lir += 1;
        self.prune(places);
        self.demote(places, self.lir_max);
    }

    /// Forgets ghosts until S is not longer than it may be.
    fn limit_s(&mut self) {
        while self.s.len() > 2 * self.capacity && self.ghost_order.len() > 0 {
            self.free_ghost(self.ghost_order.tail());
        }
    }

    fn forget_all(&mut self) {
        while self.ghost_order.len() > 0 {
            self.free_ghost(self.ghost_order.tail());
        }
    }

    /// The first in Q that may go; else the LIR block nearest to the bottom of S.
    fn candidate(&self, places: &Places, may_evict: &impl Fn(Slot) -> bool) -> Option<Slot> {
        let mut search = Search::default();
        let lir = |&node: &u32| node % 2 == 0 && places.marks[(node / 2) as usize] & LIR != 0;
        let in_s = self.s.iter(&self.s_links).filter(lir).map(|node| node / 2);
        for slot in self.q.iter(&places.links).chain(in_s) {
            if may_evict(slot) {
                return Some(slot);
            }
            if search.refused() {
                return None;
            }
        }
        None
    }
}

impl Policy for Lirs {
    #[inline]
    fn touch(&mut self, places: &mut Places, slot: Slot, _block: u64) {
        let node = of_slot(slot);
        match places.marks[slot as usize] {
            0 => {
                places.marks[slot as usize] = IN_S;
                self.s.push(&mut self.s_links, node);
                self.q.renew(&mut places.links, slot);
                // without any LIR block nothing stays in S
                self.prune(places);
                self.limit_s();
            }
            IN_S => self.promote(places, slot),
            _ if self.s.tail() == node => {
                self.s.renew(&mut self.s_links, node);
                self.prune(places);
            }
            _ => self.s.renew(&mut self.s_links, node),
        }
    }

    fn miss(&mut self, block: u64) -> Seen {
        match self.ghosts.find(block, self.ghosts.hash(block)) {
            None => Seen::Never,
            Some(ghost) => {
                self.free_ghost(ghost);
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
        let slot = self.candidate(places, &may_evict)?;
        if places.marks[slot as usize] != IN_S {
            self.remove(places, slot);
            return Some(slot);
        }
        // its place in S stays: to come back from there is to become LIR
        places.marks[slot as usize] = 0;
        self.q.remove(&mut places.links, slot);
        if self.ghosts.is_full() {
            self.free_ghost(self.ghost_order.tail());
        }
        let block = keys[slot as usize];
        let ghost = self.ghosts.insert(block, self.ghosts.hash(block));
        self.ghost_order.push(&mut self.ghost_links, ghost);
        self.s.replace(&mut self.s_links, of_slot(slot), of_ghost(ghost));
        Some(slot)
    }

    fn insert(&mut self, places: &mut Places, slot: Slot, _block: u64, seen: Seen) {
        self.reach(slot);
        let again = seen != Seen::Never && self.lir_max > 0;
        if again {
            self.demote(places, self.lir_max - 1);
        }
        if again || self.lir < self.lir_max {
            self.lir += 1;
            places.marks[slot as usize] = LIR | IN_S;
            self.s.push(&mut self.s_links, of_slot(slot));
        } else {
            self.q.push(&mut places.links, slot);
            places.marks[slot as usize] = IN_S;
            self.s.push(&mut self.s_links, of_slot(slot));
            // without any LIR block nothing stays in S
            self.prune(places);
        }
        self.limit_s();
    }

    fn remove(&mut self, places: &mut Places, slot: Slot) {
        let mark = std::mem::take(&mut places.marks[slot as usize]);
        if mark & IN_S != 0 {
            self.s.remove(&mut self.s_links, of_slot(slot));
        }
        if mark & LIR != 0 {
            self.lir -= 1;
            self.prune(places);
        } else {
            self.q.remove(&mut places.links, slot);
        }
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
        let mark = std::mem::take(&mut places.marks[from as usize]);
        places.marks[to as usize] = mark;
        if mark & IN_S != 0 {
            self.s.replace(&mut self.s_links, of_slot(from), of_slot(to));
        }
        if mark & LIR == 0 {
            self.q.replace(&mut places.links, from, to);
        }
    }

    fn limit(&mut self, places: &mut Places, limit: u32) {
        self.capacity = limit;
        self.lir_max = limit - hir_max(limit);
        self.demote(places, self.lir_max);
        self.limit_s();
    }

    /// Blocks that are not cached are forgotten.
    fn resize(&mut self, places: &mut Places, capacity: u32, _keys: &[u64]) {
        assert!(capacity < 1 << 30, "LIRS is for fewer than 2^30 slots");
        self.forget_all();
        let ghosts = ghosts_max(capacity);
        self.ghosts = ChainedSlots::new(ghosts, Fill::TwoThirds, self.ghosts.hash_key());
        self.ghost_links = Links::new(ghosts as usize);
        self.reach(ghosts);
        self.limit(places, capacity);
    }

    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        self.q.iter(&places.links).for_each(&mut *visit);
        let slots = self.s.iter(&self.s_links).filter(|node| node % 2 == 0).map(|node| node / 2);
        slots.filter(|&s| places.marks[s as usize] & LIR != 0).for_each(visit);
    }

    fn memory_bytes(&self) -> usize {
        self.s_links.memory_bytes() + self.ghosts.memory_bytes() + self.ghost_links.memory_bytes()
    }

    fn check(&self, places: &Places, occupied: u32) {
        self.s.check(&self.s_links);
        self.q.check(&places.links);
        self.ghosts.check();
        self.ghost_order.check(&self.ghost_links);
        assert_eq!(self.q.len() + self.lir, occupied, "slots in Q and LIR slots");
        assert!(self.lir <= self.lir_max, "LIR blocks");
        assert_eq!(self.ghost_order.len(), self.ghosts.len(), "ghosts");
        assert!(self.q.iter(&places.links).all(|s| places.marks[s as usize] & LIR == 0), "a LIR block is in Q");
        let mark = |node: u32| places.marks[(node / 2) as usize];
        let (mut lir, mut ghosts) = (0, 0);
        for node in self.s.iter(&self.s_links) {
            if node % 2 == 1 {
                ghosts += 1;
            } else {
                assert!(mark(node) & IN_S != 0, "a slot in S is not marked so");
                lir += u32::from(mark(node) & LIR != 0);
            }
        }
        assert_eq!((lir, ghosts), (self.lir, self.ghosts.len()), "LIR blocks and ghosts in S");
        let bottom = self.s.tail();
        assert!(
            bottom == NIL || bottom.is_multiple_of(2) && mark(bottom) & LIR != 0,
            "a HIR block is at the bottom of S"
        );
    }
}
