//! A set-associative cache some of whose ways are locked, each with one line, and whose other lines go by LRU, by what
//! a profile says of them, or at random.
//!
//! Owns the lines. Never chooses what is locked. Invariants: a line in a locked way stays; of lines of equal rank the
//! one that was used longest ago goes.

use super::LineReference;
use super::shape::Shape;
use rustc_hash::FxHashMap;
use std::sync::Arc;

const DIRTY: u8 = 1;
const LOCKED: u8 = 2;

/// Which of the lines that are not locked goes.
#[derive(Clone, Debug, Default)]
pub(super) enum Order {
    /// The one that was used longest ago.
    #[default]
    Lru,
    /// The one with the fewest misses in a profile; of equal ones by LRU.
    Misses(Arc<FxHashMap<u64, u64>>),
    /// Any, by this seed.
    Random(u64),
}

/// What of a cache is locked, and in which order the rest goes.
#[derive(Clone, Debug, Default)]
pub(super) struct LockedWays {
    /// Ways of each set, from the first on.
    pub ways: u32,
    /// Lines that are in the cache before the first reference: in locked ways as far as their set has any, and then in
    /// others.
    pub lines: Vec<u64>,
    pub order: Order,
}

/// A miss, and the changed line that went for it.
pub(super) struct Missed {
    pub written_back: Option<u64>,
}

pub(super) struct WayCache {
    shape: Shape,
    blocks: Vec<u64>,
    flags: Vec<u8>,
    used: Vec<u32>,
    order: Order,
    /// The line that was used last, which is the first of its set.
    last: u64,
    misses: u64,
    written_back: u64,
}

/// No line has this number.
const NOTHING: u64 = u64::MAX;

impl WayCache {
    /// A cache that has what is to be locked in it.
    pub fn new(shape: Shape, locked: LockedWays) -> Self {
        let lines = shape.lines() as usize;
        let used = vec![0; shape.sets() as usize];
        let (blocks, flags, order) = (vec![0; lines], vec![0; lines], locked.order);
        let mut cache = Self { shape, blocks, flags, used, order, last: NOTHING, misses: 0, written_back: 0 };
        for block in locked.lines {
            let set = shape.set_of(block);
            if cache.used[set] < locked.ways.min(shape.ways() - 1) {
                cache.put(block, LOCKED);
            } else {
                cache.preload(block);
            }
        }
        cache
    }

    pub fn misses(&self) -> u64 {
        self.misses
    }

    pub fn written_back(&self) -> u64 {
        self.written_back
    }

    /// Has a line there, if its set has room or it is there already.
    pub fn preload(&mut self, block: u64) {
        let set = self.shape.set_of(block);
        let first = set * self.shape.ways() as usize;
        let used = self.used[set] as usize;
        if used < self.shape.ways() as usize && !self.blocks[first..first + used].contains(&block) {
            self.put(block, 0);
        }
    }

    fn put(&mut self, block: u64, flags: u8) {
        let set = self.shape.set_of(block);
        let at = set * self.shape.ways() as usize + self.used[set] as usize;
        (self.blocks[at], self.flags[at]) = (block, flags);
        self.used[set] += 1;
    }

    /// A reference; a miss, if it is one.
    #[inline]
    pub fn access(&mut self, reference: LineReference) -> Option<Missed> {
        let block = reference.block();
        let dirty = if reference.is_store() { DIRTY } else { 0 };
        // Most references are to the line of the one before.
        if block == self.last && dirty == 0 {
            return None;
        }
        self.last = block;
        let set = self.shape.set_of(block);
        let first = set * self.shape.ways() as usize;
        let used = self.used[set] as usize;
        if let Some(n) = self.blocks[first..first + used].iter().position(|b| *b == block) {
            if n > 0 {
                self.blocks[first..=first + n].rotate_right(1);
                self.flags[first..=first + n].rotate_right(1);
            }
            self.flags[first] |= dirty;
            return None;
        }
        Some(self.miss(block, dirty, set))
    }

    fn miss(&mut self, block: u64, dirty: u8, set: usize) -> Missed {
        self.misses += 1;
        let first = set * self.shape.ways() as usize;
        let used = self.used[set] as usize;
        let mut written_back = None;
        let at = if used < self.shape.ways() as usize {
            self.used[set] += 1;
            used
        } else {
            let at = self.victim(first, used);
            if self.flags[first + at] & DIRTY != 0 {
                self.written_back += 1;
                written_back = Some(self.blocks[first + at]);
            }
            at
        };
        (self.blocks[first + at], self.flags[first + at]) = (block, dirty);
        self.blocks[first..=first + at].rotate_right(1);
        self.flags[first..=first + at].rotate_right(1);
        Missed { written_back }
    }

    /// The place of the line that goes, among those of a set in the order of their use.
    fn victim(&mut self, first: usize, used: usize) -> usize {
        let (flags, blocks) = (&self.flags[first..first + used], &self.blocks[first..first + used]);
        let mut open = (0..used).rev().filter(|n| flags[*n] & LOCKED == 0);
        let victim = match &mut self.order {
            Order::Lru => open.next(),
            // Of equal ones the first, which was used longest ago.
            Order::Misses(by) => open.min_by_key(|n| by.get(&blocks[*n]).copied().unwrap_or(0)),
            Order::Random(state) => {
                let count = open.clone().count().max(1);
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                open.nth((undercroft_trace::finished(*state) % count as u64) as usize)
            }
        };
        victim.expect("a set has a way that is not locked")
    }
}
