//! What ARC and CAR have in common: the ghosts B1 and B2 of their lists T1 and T2, and the target size of T1.
//!
//! Owns those ghosts and the target, `p`. Never looks at T1 or T2 but for the number of slots in T1.
//! Invariants: |T1| + |B1| <= c while B1 has any, |B1| + |B2| <= c after every insertion, 0 <= p <= c; after c has
//! become much smaller, the first two hold again some insertions or steps later.
//!
//! The papers delete from B1 or B2 before they make room; this file does so after the insertion, which comes to the
//! same while every eviction is for a miss, and holds the invariants also where blocks are removed and the cache
//! shrinks.

use crate::structures::array::Release;
use crate::structures::ghosts::Ghosts;
use crate::structures::table::HashKey;

/// The names of the ghost queues.
pub(super) const B1: usize = 0;
pub(super) const B2: usize = 1;

/// Ghosts that one call forgets at most.
const TRIM_MAX: u32 = 64;

/// See the head of the file.
#[derive(Debug)]
pub(super) struct Adaptive {
    capacity: u32,
    ghosts: Box<Ghosts>,
    /// Target size of T1; a real number, as in the papers.
    p: f64,
    /// There are more ghosts than the invariants allow: they go with the next insertions and steps.
    trims: bool,
}

impl Adaptive {
    pub fn new(capacity: u32, key: HashKey) -> Self {
        // one more: a victim is remembered just before the insertion trims
        Self { capacity, ghosts: Box::new(Ghosts::new(capacity + 1, key)), p: 0.0, trims: false }
    }

    /// The target size of T1.
    pub fn target(&self) -> f64 {
        self.p
    }

    /// The queue that `block` is a ghost in.
    pub fn queue_of(&self, block: u64) -> Option<usize> {
        self.ghosts.find(block)
    }

    /// Moves the target after a hit of `block` in B1 (it grows) or B2 (it shrinks), by the ghosts as they were before
    /// the hit, and forgets that ghost.
    pub fn adapt(&mut self, block: u64, queue: usize) {
        let (b1, b2) = (f64::from(self.ghosts.len(B1)), f64::from(self.ghosts.len(B2)));
        self.p = match queue {
            B1 => (self.p + (b2 / b1).max(1.0)).min(f64::from(self.capacity)),
            _ => (self.p - (b1 / b2).max(1.0)).max(0.0),
        };
        self.ghosts.forget(block);
    }

    /// A block was evicted, and is a ghost now; `t1` slots are left in T1.
    pub fn evicted(&mut self, queue: usize, block: u64, t1: u32) {
        self.ghosts.push(queue, block);
        // the insertion trims; where none follows, since the cache shrinks, this does
        self.trim(t1, self.capacity + 1);
    }

    /// A block was inserted; there are `t1` slots in T1 now.
    pub fn inserted(&mut self, t1: u32) {
        self.trims = self.trim(t1, self.capacity);
    }

    pub fn forget(&mut self, block: u64) {
        self.ghosts.forget(block);
    }

    /// Forgets ghosts until the invariants hold with `capacity`, but not too many at once. Whether some are left.
    fn trim(&mut self, t1: u32, capacity: u32) -> bool {
        let ghosts = &mut self.ghosts;
        for _ in 0..TRIM_MAX {
            let forgot = (t1 + ghosts.len(B1) > capacity && ghosts.forget_oldest(B1))
                || (ghosts.len(B1) + ghosts.len(B2) > capacity
                    && (ghosts.forget_oldest(B2) || ghosts.forget_oldest(B1)));
            if !forgot {
                return false;
            }
        }
        true
    }

    /// Another capacity; the memory for ghosts stays as it is.
    pub fn limit(&mut self, t1: u32, capacity: u32) {
        self.capacity = capacity;
        self.p = self.p.min(f64::from(capacity));
        self.trims = self.trim(t1, capacity);
    }

    /// Another capacity, and memory for as many ghosts, which comes and goes with [`Adaptive::step`].
    pub fn resize(&mut self, t1: u32, capacity: u32) {
        self.limit(t1, capacity);
        self.ghosts.begin(capacity + 1);
    }

    /// Goes on to forget ghosts and to make their table fit, for at most `left` units. Whether all is done.
    pub fn step(&mut self, t1: u32, left: &mut u32) -> bool {
        while self.trims {
            if *left == 0 {
                return false;
            }
            *left = left.saturating_sub(TRIM_MAX);
            self.trims = self.trim(t1, self.capacity);
        }
        self.ghosts.step(left)
    }

    pub fn reserve(&mut self, most: u32) {
        self.ghosts.reserve(most.saturating_add(1));
    }

    pub fn release(&mut self, by: &mut impl Release, bytes: &mut usize) {
        self.ghosts.release(by, bytes);
    }

    #[inline]
    pub fn read_ahead(&self, hashes: &[u64]) {
        self.ghosts.read_ahead(hashes);
    }

    pub fn memory_bytes(&self) -> usize {
        self.ghosts.memory_bytes()
    }

    /// Panics unless the invariants hold that do not need T1.
    pub fn check(&self) {
        self.ghosts.check();
        let ghosts = self.ghosts.len(B1) + self.ghosts.len(B2);
        assert!(self.trims || ghosts <= self.capacity + 1, "{ghosts} ghosts");
        assert!((0.0..=f64::from(self.capacity)).contains(&self.p), "p is {}", self.p);
    }
}
