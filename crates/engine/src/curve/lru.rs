//! The miss curve of LRU at every size, from the stack distances of sampled blocks.
//!
//! Owns the sample: the blocks whose hash is low enough, in the order in which they were last asked for; and the
//! histogram of the sizes that requests needed to hit. Never holds more blocks than it was made for.
//! Invariant: every block of the sample is below the threshold; the number of live positions is that of the blocks.
//!
//! SHARDS (Waldspurger, Park, Garthwaite and Ahmad, "Efficient MRC Construction with SHARDS", FAST 2015), the variant
//! of fixed size: when the sample is full the threshold falls. A request sampled at rate R stands for 1/R requests and
//! a distance of d sampled blocks for d/R blocks; that gives each count the weight that the paper's rescaling gives it.
//! The paper adjusts for a sample with too many or too few requests: the difference is taken for hits of popular blocks
//! and goes to the first bucket. Here it is divided between hits and misses (see `Weight::misses_of`), because where no
//! block is popular that adjustment makes errors of its own.
//!
//! A paper's trace ends, a disk's requests do not, so there is one thing more. Blocks deeper than any size of interest,
//! or idle for so long that they cannot matter, leave; and when the sample has become small the threshold rises again.
//! Of blocks that only the higher threshold admits nothing is known at first: until everything from before has left,
//! their first requests say nothing, and what was last asked for before the rise counts at the old rate.

use super::filter::Threshold;
use super::histogram::{Histogram, Weight};
use super::points::Curve;
use super::recency::Recency;
use crate::structures::slots::Slots;
use crate::structures::table::{Fill, HashKey};
use std::collections::VecDeque;

/// What an [`LruCurve`] may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LruCurveOptions {
    /// The part of all blocks that is sampled at most, 0..=1: what bounds the time. 1 makes the curve exact while the
    /// sample is not full.
    pub rate_max: f64,
    /// Blocks sampled at most, at least 64: what bounds the memory, at 32 bytes each.
    pub samples_max: u32,
    /// The largest size of interest, in blocks: beyond it every request counts as a miss.
    pub size_max: u64,
}

impl Default for LruCurveOptions {
    /// 1 in 48, 8192 blocks, all sizes.
    fn default() -> Self {
        Self { rate_max: 1.0 / 48.0, samples_max: 8192, size_max: u64::MAX }
    }
}

/// Fewest blocks that a sample has room for.
const SAMPLES_MIN: u32 = 64;
/// What a full sample multiplies its rate by.
const FALL: f64 = 0.75;
/// A block that was not asked for during this many requests for each block of the largest size of interest leaves: if
/// all blocks of so large a cache were asked for as rarely, they would bring 1/64 of the hits.
const IDLE_REQUESTS_PER_BLOCK: u64 = 64;
/// Boundaries in time that are remembered between now and the oldest position.
const EPOCHS: u64 = 16;
/// Bytes that a block of the sample takes at most.
const SAMPLE_BYTES_MAX: usize = 32;
/// Bytes of the sample's tables besides, whatever their size.
const FIXED_BYTES_MAX: usize = 1024;
/// No position: the slot is free.
const FREE: u32 = u32::MAX;

/// See the head of the file. Its memory grows with the sample, up to a bound.
pub struct LruCurve {
    options: LruCurveOptions,
    key: HashKey,
    threshold: Threshold,
    /// What `rate` would say, since it is asked for at each sampled request.
    blocks_per_sample: f64,
    /// The rise of the threshold whose consequences are not yet over.
    rise: Option<Rise>,
    slots: Slots,
    /// The position of the block in each slot, or `FREE`.
    at: Vec<u32>,
    /// How often the block in each slot was asked for, halved with all else.
    asked: Vec<u32>,
    recency: Recency,
    histogram: Histogram,
    /// Weight of the requests that no size of interest would have made hits.
    missed: Weight,
    /// Requests before the last [`LruCurve::decay`], halved as often as their weights.
    past: f64,
    /// Requests since.
    requests: u64,
    /// Requests ever, and the positions that stood at some of the times, oldest first.
    clock: u64,
    epochs: VecDeque<(u64, u32)>,
    /// The first position of this interval, and the blocks asked for in it.
    interval_from: u32,
    distinct: f64,
}

/// The threshold rose: blocks above `before` are known only from position `from` on.
struct Rise {
    before: Threshold,
    from: u32,
    clock: u64,
}

impl LruCurve {
    /// An empty sample. The key decides which blocks are sampled: guests choose block numbers, and one that knew the
    /// key could keep them out.
    pub fn new(options: LruCurveOptions, key: HashKey) -> Self {
        Self::with_filter(options, key.derived())
    }

    /// The same for a caller that hashes blocks with `key` already.
    pub(super) fn with_filter(options: LruCurveOptions, key: HashKey) -> Self {
        let options = LruCurveOptions { samples_max: options.samples_max.clamp(SAMPLES_MIN, 1 << 30), ..options };
        let threshold = Threshold::of_rate(options.rate_max);
        Self {
            options,
            key,
            threshold,
            blocks_per_sample: 1.0 / threshold.rate(),
            rise: None,
            slots: Slots::new(SAMPLES_MIN, Fill::Half, key.derived()),
            at: vec![FREE; SAMPLES_MIN as usize],
            asked: vec![0; SAMPLES_MIN as usize],
            recency: Recency::new(SAMPLES_MIN * 2),
            histogram: Histogram::default(),
            missed: Weight::default(),
            past: 0.0,
            requests: 0,
            clock: 0,
            epochs: VecDeque::with_capacity(2 * EPOCHS as usize),
            interval_from: 0,
            distinct: 0.0,
        }
    }

    /// One request for `block`.
    #[inline]
    pub fn observe(&mut self, block: u64) {
        self.requests += 1;
        let hash = self.key.hash(block);
        if self.threshold.admits(hash) {
            self.sampled(block);
        }
    }

    /// The highest hash that is sampled now.
    #[inline]
    pub(super) fn threshold(&self) -> Threshold {
        self.threshold
    }

    /// Counts requests whose blocks the caller has filtered.
    pub(super) fn count(&mut self, requests: u64) {
        self.requests += requests;
    }

    /// A request for a block of the sample.
    pub(super) fn sampled(&mut self, block: u64) {
        if self.recency.is_used_up() {
            self.tidy();
        }
        let hash = self.slots.hash(block);
        match self.slots.find(block, hash) {
            Some(slot) => {
                let at = self.at[slot as usize];
                self.asked[slot as usize] = self.asked[slot as usize].saturating_add(1);
                self.record(at, self.asked[slot as usize]);
                self.renew(slot);
            }
            None => self.newcomer(block, hash),
        }
    }

    /// A request for a block of the sample by a client that holds it itself from now on, until [`LruCurve::left`]: it
    /// needs no room here for so long.
    pub(super) fn taken(&mut self, block: u64) {
        match self.slots.find(block, self.slots.hash(block)) {
            Some(slot) => {
                self.record(self.at[slot as usize], 1);
                self.leave(slot);
            }
            None => self.count_newcomer(block),
        }
    }

    /// Whoever took a block of the sample has it no longer: from now on it is as if it had just been asked for.
    pub(super) fn left(&mut self, block: u64) {
        if self.recency.is_used_up() {
            self.tidy();
        }
        let hash = self.slots.hash(block);
        match self.slots.find(block, hash) {
            Some(slot) => self.renew(slot),
            None => self.enter(block, hash),
        }
    }

    /// A block of the sample is held by the client that writes it, as after [`LruCurve::taken`], without having been
    /// asked for.
    pub(super) fn withdrawn(&mut self, block: u64) {
        if let Some(slot) = self.slots.find(block, self.slots.hash(block)) {
            self.leave(slot);
        }
    }

    /// Forgets all blocks and all that was counted.
    pub(super) fn forget(&mut self) {
        *self = Self::with_filter(self.options, self.key);
    }

    /// Blocks for each sampled one, among those last asked for at `at`.
    fn blocks_per_sample_at(&self, at: u32) -> f64 {
        match &self.rise {
            Some(rise) if at < rise.from => 1.0 / rise.before.rate(),
            _ => self.blocks_per_sample,
        }
    }

    /// Counts the request number `asked` for a block that was last asked for at `at`.
    fn record(&mut self, at: u32, asked: u32) {
        let newer = f64::from(self.recency.live() - self.recency.older_than(at) - 1);
        let weight = self.blocks_per_sample_at(at);
        let blocks = match &self.rise {
            Some(rise) if at < rise.from => {
                let known = f64::from(self.recency.live() - self.recency.older_than(rise.from));
                known * self.blocks_per_sample + (newer - known) * weight
            }
            _ => newer * weight,
        };
        let size = (blocks as u64).saturating_add(1);
        let weight = Weight { requests: weight, popular: weight * f64::from(asked) };
        if size <= self.options.size_max {
            self.histogram.add(size, weight);
        } else {
            self.missed.add(weight);
        }
        if at < self.interval_from {
            self.distinct += self.blocks_per_sample;
        }
    }

    #[cold]
    fn newcomer(&mut self, block: u64, hash: u64) {
        self.count_newcomer(block);
        self.enter(block, hash);
    }

    /// Counts a request for a block that is not in the sample.
    fn count_newcomer(&mut self, block: u64) {
        self.distinct += self.blocks_per_sample;
        let weight = match &self.rise {
            // whether it was asked for before the rise cannot be known
            Some(rise) if !rise.before.admits(self.key.hash(block)) => 0.0,
            Some(rise) => 1.0 / rise.before.rate(),
            None => self.blocks_per_sample,
        };
        self.missed.add(Weight { requests: weight, popular: weight });
    }

    /// Takes a block into the sample, as the youngest.
    fn enter(&mut self, block: u64, hash: u64) {
        if self.slots.is_full() {
            self.make_room();
            if !self.threshold.admits(self.key.hash(block)) {
                return;
            }
        }
        let slot = self.slots.insert(block, hash);
        self.at[slot as usize] = self.recency.push();
        self.asked[slot as usize] = 1;
    }

    /// Lets the oldest go or grows or, as the last resort, lowers the threshold until a slot is free.
    fn make_room(&mut self) {
        self.tidy();
        let capacity = self.slots.capacity();
        if self.slots.len() <= capacity - capacity / 8 {
            return;
        }
        if capacity < self.options.samples_max {
            let more = (capacity * 2).min(self.options.samples_max);
            self.slots.grow(more);
            self.at.resize(more as usize, FREE);
            self.asked.resize(more as usize, 0);
            self.recency.make_dense(self.recency.live(), more * 2);
            return;
        }
        while self.slots.len() > capacity - capacity / 8 {
            self.set_threshold(Threshold::of_rate(self.threshold.rate() * FALL));
            for slot in 0..capacity {
                let block = self.slots.keys()[slot as usize];
                if self.at[slot as usize] != FREE && !self.threshold.admits(self.key.hash(block)) {
                    self.leave(slot);
                }
            }
        }
    }

    fn set_threshold(&mut self, threshold: Threshold) {
        self.threshold = threshold;
        self.blocks_per_sample = 1.0 / threshold.rate();
        self.rise.take_if(|rise| threshold <= rise.before);
    }

    /// The block in `slot` is the youngest.
    fn renew(&mut self, slot: u32) {
        self.recency.remove(self.at[slot as usize]);
        self.at[slot as usize] = self.recency.push();
    }

    fn leave(&mut self, slot: u32) {
        self.recency.remove(std::mem::replace(&mut self.at[slot as usize], FREE));
        self.slots.free(slot);
    }

    /// Requests without which a block leaves.
    fn idle_max(&self) -> u64 {
        self.options.size_max.saturating_mul(IDLE_REQUESTS_PER_BLOCK)
    }

    /// Lets blocks go that are too deep or were idle for too long, and makes positions dense. In proportion to the
    /// sample; positions last for as many sampled requests as the sample has room for.
    fn tidy(&mut self) {
        let live = self.recency.live();
        self.recency.sum_up();
        // by the rate of today: after a rise, too many are kept for a while
        let deepest = self.options.size_max as f64 * self.threshold.rate() + 1.0;
        let too_deep = live.saturating_sub(deepest as u32);
        let idle_since = self.clock.saturating_sub(self.idle_max());
        while self.epochs.get(1).is_some_and(|&(clock, _)| clock <= idle_since) {
            self.epochs.pop_front();
        }
        let idle = match self.epochs.front() {
            Some(&(clock, at)) if clock <= idle_since => self.recency.rank(at),
            _ => 0,
        };
        let gone = too_deep.max(idle);

        let Self { slots, at, recency, .. } = self;
        for slot in 0..at.len() as u32 {
            let position = &mut at[slot as usize];
            if *position == FREE {
                continue;
            }
            let older = recency.rank(*position);
            if older < gone {
                *position = FREE;
                slots.free(slot);
            } else {
                *position = older - gone;
            }
        }
        let moved = |position: u32| recency.rank(position).saturating_sub(gone);
        self.interval_from = moved(self.interval_from);
        if let Some(rise) = &mut self.rise {
            rise.from = moved(rise.from);
        }
        self.epochs.iter_mut().for_each(|(_, position)| *position = moved(*position));
        recency.make_dense(live - gone, self.slots.capacity() * 2);
    }

    /// Ends an interval: all that was counted so far weighs half from now on. If nothing was counted since the last
    /// call nothing happens.
    pub fn decay(&mut self) {
        if self.requests == 0 {
            return;
        }
        self.clock += self.requests;
        self.past = (self.past + self.requests as f64) / 2.0;
        self.missed.halve();
        self.asked.iter_mut().for_each(|asked| *asked = asked.div_ceil(2));
        self.histogram.halve();
        self.requests = 0;
        self.distinct = 0.0;

        let newest = self.epochs.back().map_or(0, |&(clock, _)| clock);
        if self.clock - newest >= (self.idle_max() / EPOCHS).max(1) {
            if self.epochs.len() as u64 == 2 * EPOCHS {
                // the largest size of interest has grown: every second boundary will do
                let mut keep = false;
                self.epochs.retain(|_| {
                    keep = !keep;
                    keep
                });
            }
            self.epochs.push_back((self.clock, self.recency.next()));
        }
        self.tidy();
        self.interval_from = self.recency.next();
        let idle_max = self.idle_max();
        self.rise.take_if(|rise| self.clock - rise.clock >= idle_max);
        self.rise_if_small();
    }

    fn rise_if_small(&mut self) {
        let (len, max) = (self.slots.len(), self.options.samples_max);
        let before = self.threshold;
        let top = Threshold::of_rate(self.options.rate_max);
        if self.rise.is_some() || len >= max / 4 || before >= top {
            return;
        }
        let wanted = before.rate() * f64::from(max / 2) / f64::from(len.max(1));
        self.set_threshold(Threshold::of_rate(wanted).min(top));
        self.rise = Some(Rise { before, from: self.recency.next(), clock: self.clock });
    }

    /// Another largest size of interest. Growing shows sizes that were not seen before as they are met.
    pub fn set_size_max(&mut self, blocks: u64) {
        self.options.size_max = blocks;
    }

    /// The curve of all requests so far, the earlier intervals' weighing less each; in requests of that weight.
    /// Takes time in proportion to the buckets, at most a few thousand.
    pub fn curve(&self) -> Curve {
        let all = self.past + self.requests as f64;
        let mut sampled = self.missed;
        self.histogram.falling().for_each(|(.., weight)| sampled.add(weight));
        let mut above = self.missed;
        let mut least = above.misses_of(sampled, all, self.blocks_per_sample).max(0.0);
        let mut points = vec![];
        for (before, last, weight) in self.histogram.falling() {
            points.push((last, least));
            above.add(weight);
            // LRU never misses more in more space, whatever the sample says
            least = above.misses_of(sampled, all, self.blocks_per_sample).max(least);
            points.push((before, least));
        }
        if points.last().is_none_or(|&(size, _)| size > 1) {
            points.push((1, least));
        }
        Curve::new(all, points)
    }

    /// An estimate of the distinct blocks asked for since the last [`LruCurve::decay`].
    pub fn distinct(&self) -> f64 {
        self.distinct
    }

    /// The part of all blocks that is sampled now.
    pub fn rate(&self) -> f64 {
        self.threshold.rate()
    }

    /// Blocks in the sample.
    pub fn samples(&self) -> u32 {
        self.slots.len()
    }

    /// Bytes of memory held: at most 32 for each of the sampled blocks there may be, and 64 KiB.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.slots.memory_bytes()
            + (self.at.capacity() + self.asked.capacity()) * size_of::<u32>()
            + self.recency.memory_bytes()
            + self.histogram.memory_bytes()
            + self.epochs.capacity() * size_of::<(u64, u32)>()
    }

    /// Blocks that the sample may come to have room for: as many as the largest size of interest has in it, twice as
    /// many as long as that does not do, like in `make_room`.
    fn samples_room_max(&self) -> u32 {
        let deepest = self.options.size_max as f64 * Threshold::of_rate(self.options.rate_max).rate() + 1.0;
        let mut room = SAMPLES_MIN;
        while room < self.options.samples_max && deepest > f64::from(room - room / 8) {
            room = room.saturating_mul(2);
        }
        room.min(self.options.samples_max).max(self.slots.capacity())
    }

    /// Bytes of memory that it may come to hold, as long as its options stay: what whoever gives it memory gives, so
    /// that nothing else has to go when the sample grows.
    pub fn memory_bytes_max(&self) -> usize {
        let most = size_of::<Self>() - size_of::<Slots>()
            + self.samples_room_max() as usize * SAMPLE_BYTES_MAX
            + FIXED_BYTES_MAX
            + Histogram::bytes_max(self.options.size_max)
            + self.epochs.capacity() * size_of::<(u64, u32)>();
        most.max(self.memory_bytes())
    }

    /// Checks the invariants; for tests. Panics with what is broken.
    pub fn check(&self) {
        self.slots.check();
        assert_eq!(self.recency.live(), self.slots.len(), "each block of the sample has a position");
        for (block, slot) in self.slots.iter() {
            assert!(self.threshold.admits(self.key.hash(block)), "block {block} is not to be sampled");
            assert!(self.at[slot as usize] < self.recency.next(), "block {block} has a position");
        }
    }
}
