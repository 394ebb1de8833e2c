//! The choice of S4-FIFO's knobs: miniature caches try the configurations that the paper's authors found to be enough
//! for nearly all of their traces.
//!
//! Owns one miniature for each configuration, all fed the same sample of blocks, and the verdict. Never sees what the
//! cache itself hits; never changes the knobs for a gain that may be chance; does not exist where the cache is too
//! small for miniatures that say something. Only construction allocates. Invariants: whether a block is sampled depends
//! on its number and the key alone; the miniatures together have at most half as many slots as the cache.
//!
//! The configurations are the paper's; so is a choice that is made rarely and for the whole cache. How it is made is
//! ours: the paper's authors train a model on thousands of traces to tell the best configuration from histograms of
//! hits. That model is not used here. Miniature simulation: Waldspurger et al., USENIX ATC 2017.

use super::s4queues::{Knobs, Queues};
use crate::policy::{self, Policy, Seen};
use crate::structures::places::Places;
use crate::structures::slots::ChainedSlots;
use crate::structures::table::{Fill, HashKey};

const fn knobs(small: u32, proven: u8, ghost_hits: u8, ghosts: u32) -> Knobs {
    Knobs { small, proven, ghost_hits, ghosts, skip: 0 }
}

/// The representative configurations of the authors' analysis (`cacheMon/osdi26-s4-fifo`, `train_xgb_18class.py`),
/// which names no skip ratio.
pub(crate) const CONFIGURATIONS: [Knobs; 18] = [
    knobs(20, 1, 0, 300),
    knobs(5, 1, 0, 90),
    knobs(50, 1, 0, 90),
    knobs(20, 1, 0, 90),
    knobs(5, 2, 0, 600),
    knobs(10, 2, 1, 300),
    knobs(30, 2, 0, 300),
    knobs(5, 2, 0, 300),
    Knobs::DEFAULT,
    knobs(70, 1, 1, 90),
    knobs(20, 1, 1, 90),
    knobs(5, 1, 1, 90),
    knobs(30, 1, 0, 600),
    knobs(20, 2, 0, 90),
    knobs(90, 2, 0, 300),
    knobs(10, 2, 0, 600),
    knobs(30, 2, 1, 300),
    knobs(5, 2, 0, 90),
];
/// The one to begin with.
pub(super) const FIRST: usize = 8;

/// The miniatures together have one slot for so many of the cache's.
const SLOTS_PART: u32 = 2;
/// Slots of each miniature, at least and at most.
const SLOTS_MIN: u32 = 64;
const SLOTS_MAX: u32 = 2048;
/// Misses, for each of its slots, of the miniature in use after which the choice is made anew.
const WINDOW_PER_SLOT: u32 = 4;
/// Windows at first that do not count: the largest ghost queues have to fill.
const GRACE_WINDOWS: u32 = 2;
/// What was counted before weighs so much after each window.
const KEPT: f64 = 0.75;
/// A better configuration misses less by this part of what is counted, and by more than chance makes likely: by so many
/// square roots of it; and it is the same one after two windows in a row.
const GAIN: f64 = 0.01;
const DEVIATIONS: f64 = 2.0;

/// A cache of a sample of the blocks.
#[derive(Debug)]
struct Miniature {
    slots: ChainedSlots,
    places: Places,
    queues: Queues,
    /// Misses of this window, and those of the ones before as they weigh now.
    misses: u32,
    weighed: f64,
}

/// See the head of the file.
#[derive(Debug)]
pub(super) struct Choice {
    /// By configuration.
    miniatures: Vec<Miniature>,
    in_use: usize,
    key: HashKey,
    /// A block is sampled if its hash is at most this.
    threshold: u64,
    /// Slots of the cache that the miniatures were made for.
    capacity: u32,
    /// Slots of each miniature that may be occupied.
    limit: u32,
    /// Misses of the one in use that make a window.
    window: u32,
    /// Windows to come that do not count.
    grace: u32,
    /// The one that was better than the one in use after the last window.
    better: Option<usize>,
}

impl Miniature {
    fn new(knobs: Knobs, slots: u32, key: HashKey) -> Self {
        Self {
            slots: ChainedSlots::new(slots, Fill::Half, key),
            places: Places::new(slots),
            queues: Queues::new(knobs, slots, key),
            misses: 0,
            weighed: 0.0,
        }
    }

    #[inline]
    fn access(&mut self, block: u64, limit: u32) {
        let Self { slots, places, queues, .. } = self;
        let hash = slots.hash(block);
        if let Some(slot) = slots.find(block, hash) {
            return queues.touch(places, slot, block);
        }
        self.misses += 1;
        // a limit that fell is reached step by step
        if slots.len() > limit
            && let Some(slot) = queues.victim(places, slots.keys(), |_| true, Seen::Never)
        {
            slots.free(slot);
        }
        policy::miss(slots, places, queues, block, hash, limit, |_| true);
    }
}

fn scaled(n: u64, by: u32, of: u32) -> u64 {
    (u128::from(n) * u128::from(by) / u128::from(of)) as u64
}

impl Choice {
    /// `None` where the cache is too small.
    pub fn new(capacity: u32, in_use: usize, key: HashKey) -> Option<Box<Self>> {
        let slots = (capacity / SLOTS_PART / CONFIGURATIONS.len() as u32).min(SLOTS_MAX);
        if slots < SLOTS_MIN {
            return None;
        }
        let filter = key.derived();
        // not the key of the filter: what is sampled has low hashes by it, and all homes would be one
        let key = filter.derived();
        Some(Box::new(Self {
            miniatures: CONFIGURATIONS.iter().map(|&knobs| Miniature::new(knobs, slots, key)).collect(),
            in_use,
            key: filter,
            threshold: scaled(u64::MAX, slots, capacity),
            capacity,
            limit: slots,
            window: slots * WINDOW_PER_SLOT,
            grace: GRACE_WINDOWS,
            better: None,
        }))
    }

    /// A block is asked for; the configuration to go over to, if there is a better one.
    #[inline]
    pub fn observe(&mut self, block: u64) -> Option<Knobs> {
        if self.key.hash(block) > self.threshold {
            return None;
        }
        self.sampled(block)
    }

    fn sampled(&mut self, block: u64) -> Option<Knobs> {
        self.miniatures.iter_mut().for_each(|m| m.access(block, self.limit));
        if self.miniatures[self.in_use].misses < self.window {
            return None;
        }
        for m in &mut self.miniatures {
            let misses = f64::from(std::mem::take(&mut m.misses));
            m.weighed = if self.grace > 0 { 0.0 } else { m.weighed * KEPT + misses };
        }
        if self.grace > 0 {
            self.grace -= 1;
            return None;
        }
        self.judge()
    }

    fn judge(&mut self) -> Option<Knobs> {
        let weighed = |n: usize| self.miniatures[n].weighed;
        let best = (0..CONFIGURATIONS.len()).min_by(|&a, &b| weighed(a).total_cmp(&weighed(b)))?;
        let now = weighed(self.in_use);
        let is_better = now - weighed(best) > (now * GAIN).max(now.sqrt() * DEVIATIONS);
        let before = std::mem::replace(&mut self.better, is_better.then_some(best));
        if !is_better || before != Some(best) {
            return None;
        }
        self.better = None;
        self.in_use = best;
        Some(CONFIGURATIONS[best])
    }

    pub fn set_limit(&mut self, limit: u32) {
        let slots = self.miniatures[self.in_use].slots.capacity();
        self.limit = (scaled(limit.into(), slots, self.capacity) as u32).clamp(1, slots);
    }

    /// The configuration in use, by its place in the list.
    pub fn in_use(&self) -> usize {
        self.in_use
    }

    pub fn memory_bytes(&self) -> usize {
        let held = |m: &Miniature| m.slots.memory_bytes() + m.places.memory_bytes() + m.queues.memory_bytes();
        size_of::<Self>()
            + self.miniatures.capacity() * size_of::<Miniature>()
            + self.miniatures.iter().map(held).sum::<usize>()
    }

    pub fn check(&self, capacity: u32) {
        let slots: u32 = self.miniatures.iter().map(|m| m.slots.capacity()).sum();
        assert!(slots <= capacity / SLOTS_PART, "the miniatures have {slots} slots beside a cache of {capacity}");
        for m in &self.miniatures {
            m.slots.check();
            m.queues.check(&m.places, m.slots.len());
            for (block, _) in m.slots.iter() {
                assert!(self.key.hash(block) <= self.threshold, "block {block} is not to be sampled");
            }
        }
    }
}
