//! A set-associative cache of lines under LRU, or replaced by probability, some of which are locked, with a victim
//! buffer or without.
//!
//! Owns the lines of all sets in the order of their use. Never chooses what is locked. Invariants: a set has no more
//! lines than it has ways, and one way that is not locked at least, unless all of the cache is locked: then nothing
//! else ever has a line; a locked line stays.

use super::ratings::Ratings;
use super::shape::Shape;
use super::victim::{Room, VictimBuffer};
use super::{LineReference, LockSet};
use std::ops::Range;
use undercroft_engine::probability::ProbabilityRule;

const LOCKED: u8 = 1;
const DIRTY: u8 = 2;

/// How a cache is made.
#[derive(Clone, Debug, Default)]
pub struct CacheOptions {
    /// Blocks that are locked when they are first filled.
    pub locks: LockSet,
    /// They are there, and locked, before the first reference.
    pub preload: bool,
    /// Lines of a victim buffer, and where they come from.
    pub victim: Option<(u32, Room)>,
    /// Replacement by probability instead of LRU, and how many references the trace has.
    pub probability: Option<(ProbabilityRule, u64)>,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// References.
    pub references: u64,
    /// Those that neither the cache nor its victim buffer had.
    pub misses: u64,
    /// Those that the victim buffer had.
    pub victim_hits: u64,
    /// Changed lines that went.
    pub written_back: u64,
}

impl Counts {
    /// Misses in percent of the references; 0 without any.
    pub fn miss_percent(&self) -> f64 {
        100.0 * self.misses as f64 / self.references.max(1) as f64
    }
}

/// See the head of the file.
pub struct Cache {
    shape: Shape,
    /// Of each set, as many as the shape has ways: blocks, the one used last first, and what they are.
    blocks: Vec<u64>,
    flags: Vec<u8>,
    /// Lines of each set that are in use, and those that may be.
    used: Vec<u32>,
    ways: Vec<u32>,
    locks: LockSet,
    victim: Option<VictimBuffer>,
    ratings: Option<Box<Ratings>>,
    counts: Counts,
}

impl Cache {
    /// An empty cache, but for what is preloaded.
    pub fn new(shape: Shape, options: CacheOptions) -> Self {
        let (sets, lines) = (shape.sets() as usize, shape.lines() as usize);
        let mut ways = vec![shape.ways(); sets];
        let victim = options.victim.map(|(lines, room)| {
            let lines = if room == Room::Carved { carve(&mut ways, lines) } else { lines };
            VictimBuffer::new(lines as usize)
        });
        let (blocks, flags, used) = (vec![0; lines], vec![0; lines], vec![0; sets]);
        let counts = Counts::default();
        let ratings = options.probability.map(|(rule, references)| {
            let lines = u32::try_from(shape.lines()).unwrap_or(u32::MAX);
            Box::new(Ratings::new(rule, references, lines))
        });
        let mut cache = Self { shape, blocks, flags, used, ways, locks: options.locks, victim, ratings, counts };
        if options.preload {
            for block in cache.locks.blocks().to_vec() {
                cache.fill(block, 0);
            }
            cache.counts = Counts::default();
        }
        cache
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// A reference. Whether it hit.
    #[inline]
    pub fn access(&mut self, reference: LineReference) -> bool {
        self.counts.references += 1;
        let block = reference.block();
        if let Some(ratings) = &mut self.ratings {
            ratings.note(block);
        }
        let set = self.shape.set_of(block);
        let first = set * self.shape.ways() as usize;
        let dirty = if reference.is_store() { DIRTY } else { 0 };
        let lines = &self.blocks[first..first + self.used[set] as usize];
        match lines.iter().position(|b| *b == block) {
            Some(0) => {
                self.flags[first] |= dirty;
                true
            }
            Some(n) => {
                self.blocks[first..=first + n].rotate_right(1);
                self.flags[first..=first + n].rotate_right(1);
                self.flags[first] |= dirty;
                true
            }
            None => self.miss(block, dirty),
        }
    }

    fn miss(&mut self, block: u64, dirty: u8) -> bool {
        let found = self.victim.as_mut().and_then(|victim| victim.take(block));
        match found {
            Some(was_dirty) => {
                self.counts.victim_hits += 1;
                self.fill(block, dirty | if was_dirty { DIRTY } else { 0 });
                true
            }
            None => {
                self.counts.misses += 1;
                self.fill(block, dirty);
                false
            }
        }
    }

    /// Puts a block into its set, one of whose lines that are not locked goes if there is no room.
    fn fill(&mut self, block: u64, flags: u8) {
        if self.locks.is_whole() && !self.locks.has(block) {
            self.counts.written_back += u64::from(flags & DIRTY != 0);
            return;
        }
        let set = self.shape.set_of(block);
        let first = set * self.shape.ways() as usize;
        let used = self.used[set] as usize;
        let at = if used < self.ways[set] as usize {
            self.used[set] += 1;
            used
        } else {
            let at = self.first_to_go(first..first + used).expect("a set has a line that is not locked");
            self.evicted(self.blocks[first + at], self.flags[first + at] & DIRTY != 0);
            at
        };
        let locked = if self.locks.has(block) && self.may_lock(set) { LOCKED } else { 0 };
        let lines = first..=first + at;
        (self.blocks[first + at], self.flags[first + at]) = (block, flags | locked);
        self.blocks[lines.clone()].rotate_right(1);
        self.flags[lines].rotate_right(1);
    }

    /// Which of the lines in these places goes, counted from the first of them.
    fn first_to_go(&self, lines: Range<usize>) -> Option<usize> {
        let flags = &self.flags[lines.clone()];
        match &self.ratings {
            None => flags.iter().rposition(|f| f & LOCKED == 0),
            Some(ratings) => {
                let blocks = self.blocks[lines].iter().copied().enumerate();
                ratings.first_to_go(blocks.filter(|(n, _)| flags[*n] & LOCKED == 0))
            }
        }
    }

    /// Whether one more line of a set may be locked.
    fn may_lock(&self, set: usize) -> bool {
        if self.locks.is_whole() {
            return true;
        }
        let first = set * self.shape.ways() as usize;
        let lines = &self.flags[first..first + self.used[set] as usize];
        let locked = lines.iter().filter(|f| **f & LOCKED != 0).count() as u32;
        locked + 1 < self.ways[set]
    }

    fn evicted(&mut self, block: u64, dirty: bool) {
        let gone = match &mut self.victim {
            Some(victim) => victim.put(block, dirty),
            None => Some((block, dirty)),
        };
        self.counts.written_back += u64::from(gone.is_some_and(|(_, dirty)| dirty));
    }
}

/// Takes lines from sets in turn; each keeps one. How many there were.
fn carve(ways: &mut [u32], lines: u32) -> u32 {
    let mut taken = 0;
    while taken < lines {
        let before = taken;
        for way in ways.iter_mut().filter(|way| **way > 1) {
            if taken == lines {
                break;
            }
            *way -= 1;
            taken += 1;
        }
        if taken == before {
            break;
        }
    }
    taken
}
