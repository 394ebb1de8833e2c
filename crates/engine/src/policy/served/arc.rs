//! ARC: adaptive replacement cache (Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003,
//! figure 4).
//!
//! Owns T1 (blocks accessed once of late), T2 (more than once), their ghosts B1 and B2, and the target size `p` of T1.
//! Never keeps more ghosts than there are slots.
//! Invariants: |T1| + |B1| <= c while B1 has any, |B1| + |B2| <= c after every insertion, 0 <= p <= c; after c has
//! become much smaller, the first two hold again some insertions or steps later.
//!
//! The paper deletes from B1 or B2 before it makes room; this file does so after the insertion, which comes to the same
//! while every eviction is for a miss, and holds the invariants also where blocks are removed and the cache shrinks.

use crate::policy::{Policy, Search, Seen, oldest};
use crate::structures::array::Release;
use crate::structures::ghosts::Ghosts;
use crate::structures::list::List;
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

/// The names of the ghost queues.
pub(super) const B1: usize = 0;
pub(super) const B2: usize = 1;

/// The mark of a slot in T2.
const IN_T2: u8 = 1;

#[derive(Debug)]
pub(crate) struct Arc {
    capacity: u32,
    t1: List,
    t2: List,
    ghosts: Box<Ghosts>,
    /// Target size of T1; a real number, as in the paper.
    p: f64,
    /// There are more ghosts than the invariants allow: they go with the next insertions and steps.
    trims: bool,
}

/// Ghosts that one call forgets at most.
const TRIM_MAX: u32 = 64;

/// `p` after a hit in B1 (the target grows) or B2 (it shrinks), with the ghosts as they were before the hit.
pub(super) fn adapted(p: f64, capacity: u32, ghosts: &Ghosts, hit: usize) -> f64 {
    let (b1, b2) = (f64::from(ghosts.len(B1)), f64::from(ghosts.len(B2)));
    match hit {
        B1 => (p + (b2 / b1).max(1.0)).min(f64::from(capacity)),
        _ => (p - (b1 / b2).max(1.0)).max(0.0),
    }
}

/// Forgets ghosts until the invariants hold, but not too many at once. Whether some are left to forget.
pub(super) fn trim(ghosts: &mut Ghosts, t1: u32, capacity: u32) -> bool {
    for _ in 0..TRIM_MAX {
        let forgot = (t1 + ghosts.len(B1) > capacity && ghosts.forget_oldest(B1))
            || (ghosts.len(B1) + ghosts.len(B2) > capacity && (ghosts.forget_oldest(B2) || ghosts.forget_oldest(B1)));
        if !forgot {
            return false;
        }
    }
    true
}

/// Goes on to forget ghosts and to make their table fit, for at most `left` units. Whether it does.
pub(super) fn step(ghosts: &mut Ghosts, t1: u32, capacity: u32, trims: &mut bool, left: &mut u32) -> bool {
    while *trims {
        if *left == 0 {
            return false;
        }
        *left = left.saturating_sub(TRIM_MAX);
        *trims = trim(ghosts, t1, capacity);
    }
    ghosts.step(left)
}

impl Arc {
    pub fn new(capacity: u32, key: HashKey) -> Self {
        Self {
            capacity,
            t1: List::new(),
            t2: List::new(),
            // one more: a victim is remembered just before the insertion trims
            ghosts: Box::new(Ghosts::new(capacity + 1, key)),
            p: 0.0,
            trims: false,
        }
    }
}

impl Policy for Arc {
    #[inline]
    fn touch(&mut self, places: &mut Places, slot: Slot, _block: u64) {
        if places.marks[slot as usize] == IN_T2 {
            self.t2.renew(&mut places.links, slot);
        } else {
            self.t1.remove(&mut places.links, slot);
            self.t2.push(&mut places.links, slot);
            places.marks[slot as usize] = IN_T2;
        }
    }

    fn miss(&mut self, block: u64) -> Seen {
        let Some(queue) = self.ghosts.find(block) else { return Seen::Never };
        self.p = adapted(self.p, self.capacity, &self.ghosts, queue);
        self.ghosts.forget(block);
        if queue == B1 { Seen::Once } else { Seen::Often }
    }

    /// REPLACE.
    fn victim(
        &mut self,
        places: &mut Places,
        keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        seen: Seen,
    ) -> Option<Slot> {
        let t1 = f64::from(self.t1.len());
        let from_t1 = self.t2.len() == 0 || t1 > 0.0 && (t1 > self.p || (t1 == self.p && seen == Seen::Often));
        let mut search = Search::default();
        let (first, second) = if from_t1 { (&self.t1, &self.t2) } else { (&self.t2, &self.t1) };
        let slot = oldest(first, &places.links, &may_evict, &mut search)
            .or_else(|| oldest(second, &places.links, &may_evict, &mut search))?;
        let ghost = if places.marks[slot as usize] == IN_T2 { B2 } else { B1 };
        self.remove(places, slot);
        self.ghosts.push(ghost, keys[slot as usize]);
        // the insertion trims; where none follows, since the cache shrinks, this does
        trim(&mut self.ghosts, self.t1.len(), self.capacity + 1);
        Some(slot)
    }

    fn insert(&mut self, places: &mut Places, slot: Slot, _block: u64, seen: Seen) {
        let again = seen != Seen::Never;
        places.marks[slot as usize] = if again { IN_T2 } else { 0 };
        if again { &mut self.t2 } else { &mut self.t1 }.push(&mut places.links, slot);
        self.trims = trim(&mut self.ghosts, self.t1.len(), self.capacity);
    }

    fn remove(&mut self, places: &mut Places, slot: Slot) {
        let in_t2 = std::mem::take(&mut places.marks[slot as usize]);
        if in_t2 == IN_T2 { &mut self.t2 } else { &mut self.t1 }.remove(&mut places.links, slot);
    }

    #[inline]
    fn ahead(&self, _places: &Places, _slots: &[Slot], hashes: &[u64]) {
        self.ghosts.read_ahead(hashes);
    }

    fn forget(&mut self, block: u64) {
        self.ghosts.forget(block);
    }

    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        let in_t2 = std::mem::take(&mut places.marks[from as usize]);
        places.marks[to as usize] = in_t2;
        if in_t2 == IN_T2 { &mut self.t2 } else { &mut self.t1 }.replace(&mut places.links, from, to);
    }

    fn limit(&mut self, _places: &mut Places, limit: u32) {
        self.capacity = limit;
        self.p = self.p.min(f64::from(limit));
        self.trims = trim(&mut self.ghosts, self.t1.len(), limit);
    }

    fn resize(&mut self, _places: &mut Places, capacity: u32, _keys: &[u64]) {
        self.capacity = capacity;
        self.p = self.p.min(f64::from(capacity));
        self.trims = trim(&mut self.ghosts, self.t1.len(), capacity);
        self.ghosts.begin(capacity + 1);
    }

    fn step(&mut self, _places: &mut Places, left: &mut u32) -> bool {
        step(&mut self.ghosts, self.t1.len(), self.capacity, &mut self.trims, left)
    }

    fn reserve(&mut self, most: u32) {
        self.ghosts.reserve(most.saturating_add(1));
    }

    fn release(&mut self, by: &mut impl Release, bytes: &mut usize) {
        self.ghosts.release(by, bytes);
    }

    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        self.t1.iter(&places.links).chain(self.t2.iter(&places.links)).for_each(visit);
    }

    fn memory_bytes(&self) -> usize {
        self.ghosts.memory_bytes()
    }

    fn check(&self, places: &Places, occupied: u32) {
        self.t1.check(&places.links);
        self.t2.check(&places.links);
        assert_eq!(self.t1.len() + self.t2.len(), occupied, "slots in T1 and T2");
        assert!(self.t1.iter(&places.links).all(|s| places.marks[s as usize] == 0), "a slot of T1 is marked as of T2");
        assert!(
            self.t2.iter(&places.links).all(|s| places.marks[s as usize] == IN_T2),
            "a slot of T2 is marked as of T1"
        );
        self.ghosts.check();
        let ghosts = self.ghosts.len(B1) + self.ghosts.len(B2);
        assert!(self.trims || ghosts <= self.capacity + 1, "{ghosts} ghosts");
        assert!((0.0..=f64::from(self.capacity)).contains(&self.p), "p is {}", self.p);
    }
}
