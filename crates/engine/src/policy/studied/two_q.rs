//! 2Q, the full version (Johnson and Shasha, "2Q: A Low Overhead High Performance Buffer Management Replacement
//! Algorithm", VLDB 1994).
//!
//! Owns A1in (newcomers, first in first out), Am (LRU, of what came back), and A1out, the ghosts of what left A1in.
//! Never reacts to a hit in A1in: those are the correlated accesses that follow a first one.
//! Invariant: a slot is marked exactly if it is in Am.
//!
//! A quarter of the slots for A1in and half as many ghosts as slots, as the paper advises and libCacheSim 0.3.5 has it.

use crate::policy::{Policy, Search, Seen, oldest};
use crate::structures::ghosts::Ghosts;
use crate::structures::list::List;
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

const IN_AM: u8 = 1;
/// The one ghost queue in use.
const GHOST: usize = 0;

#[derive(Debug)]
pub(crate) struct TwoQ {
    /// Slots of A1in.
    target: u32,
    a1in: List,
    am: List,
    a1out: Ghosts,
}

impl TwoQ {
    pub fn new(capacity: u32, key: HashKey) -> Self {
        Self { target: capacity / 4, a1in: List::new(), am: List::new(), a1out: Ghosts::new(capacity / 2, key) }
    }
}

impl Policy for TwoQ {
    #[inline]
    fn touch(&mut self, places: &mut Places, slot: Slot, _block: u64) {
        if places.marks[slot as usize] == IN_AM {
            self.am.renew(&mut places.links, slot);
        }
    }

    fn miss(&mut self, block: u64) -> Seen {
        if self.a1out.forget(block).is_some() { Seen::Once } else { Seen::Never }
    }

    fn victim(
        &mut self,
        places: &mut Places,
        keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        _seen: Seen,
    ) -> Option<Slot> {
        let mut search = Search::default();
        let from_am = self.am.len() > 0 && self.a1in.len() <= self.target;
        let (first, second) = if from_am { (&self.am, &self.a1in) } else { (&self.a1in, &self.am) };
        let slot = oldest(first, &places.links, &may_evict, &mut search)
            .or_else(|| oldest(second, &places.links, &may_evict, &mut search))?;
        if places.marks[slot as usize] != IN_AM {
            self.a1out.push(GHOST, keys[slot as usize]);
        }
        self.remove(places, slot);
        Some(slot)
    }

    fn insert(&mut self, places: &mut Places, slot: Slot, _block: u64, seen: Seen) {
        let again = seen != Seen::Never;
        places.marks[slot as usize] = if again { IN_AM } else { 0 };
        if again { &mut self.am } else { &mut self.a1in }.push(&mut places.links, slot);
    }

    fn remove(&mut self, places: &mut Places, slot: Slot) {
        let mark = std::mem::take(&mut places.marks[slot as usize]);
        if mark == IN_AM { &mut self.am } else { &mut self.a1in }.remove(&mut places.links, slot);
    }

    #[inline]
    fn ahead(&self, _places: &Places, _slots: &[Slot], hashes: &[u64]) {
        self.a1out.read_ahead(hashes);
    }

    fn forget(&mut self, block: u64) {
        self.a1out.forget(block);
    }

    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        let mark = std::mem::take(&mut places.marks[from as usize]);
        places.marks[to as usize] = mark;
        if mark == IN_AM { &mut self.am } else { &mut self.a1in }.replace(&mut places.links, from, to);
    }

    fn limit(&mut self, _places: &mut Places, limit: u32) {
        self.target = limit / 4;
    }

    fn resize(&mut self, _places: &mut Places, capacity: u32, _keys: &[u64]) {
        self.target = capacity / 4;
        self.a1out.resize(capacity / 2);
    }

    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        self.a1in.iter(&places.links).chain(self.am.iter(&places.links)).for_each(visit);
    }

    fn memory_bytes(&self) -> usize {
        self.a1out.memory_bytes()
    }

    fn check(&self, places: &Places, occupied: u32) {
        self.a1in.check(&places.links);
        self.am.check(&places.links);
        assert_eq!(self.a1in.len() + self.am.len(), occupied, "slots in A1in and Am");
        assert!(self.a1in.iter(&places.links).all(|s| places.marks[s as usize] == 0), "a slot of A1in is marked");
        assert!(self.am.iter(&places.links).all(|s| places.marks[s as usize] == IN_AM), "a slot of Am is not marked");
        self.a1out.check();
    }
}
