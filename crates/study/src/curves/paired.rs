//! The LRU curve from two samples: requests, which say how many hits there are, and blocks, which say at what distance.
//!
//! Owns both samples and what ties them together. Never stores a request of the trace that is in neither.
//! Invariant: memory follows the two samples.
//!
//! SHARDS takes both from one sample of blocks. Its distances are good: they count blocks, and no block counts more
//! than another. Its counts of requests are not, where few blocks have many of them: at a rate of 1 % the hottest block
//! of a Zipf load is in the sample or not, and with it a fourteenth of all requests; SHARDS-adj corrects the sum and
//! not the shape. So here
//!
//! - requests come from an even sample in time (see `watch`), each weighing the same;
//! - a request's distance is counted in a spatial sample of blocks, as by SHARDS (FAST 2015), at the same rate;
//! - how many blocks a stretch of w requests touches on average is known from both samples, by the footprint formula
//!   (Xiang et al., ASPLOS 2013), and much better from the sample of requests: their ratio corrects each distance (a
//!   ratio estimator, Cochran, Sampling Techniques, chapter 6);
//! - how much the distances of one reuse time really differ, beyond what counting in a small sample makes them differ,
//!   says how far a counted distance is to be believed against the average (empirical Bayes: Efron and Morris, JASA
//!   1973). Where they do not, as under independent requests, the result is that of AET; where they do, as in loops,
//!   that of SHARDS.

use crate::curves::bars::{Sideways, Vertical};
use crate::curves::reuse::{ReuseTimes, middle};
use crate::curves::table::{Table, Value};
use crate::curves::watch::Watch;
use std::collections::BTreeMap;
use undercroft_engine::HashKey;
use undercroft_engine::curve::{Curve, Recency, bucket, last_of};

/// Positions of the spatial sample at first.
const POSITIONS_MIN: u32 = 1 << 14;
/// Positions for each sampled block after making dense.
const POSITIONS_PER_BLOCK: u32 = 4;
/// Buckets of reuse times that share one judgement on how much their distances differ: those of a doubling.
const BUCKETS_JUDGED: usize = 64;

/// The curve of a trace by a sample of requests and a sample of blocks.
pub struct Paired {
    key: HashKey,
    /// A block is sampled if its hash is at most this.
    threshold: u64,
    rate: f64,
    /// The position of each sampled block, and the time at each position.
    table: Table<u32>,
    recency: Recency,
    times: Vec<u64>,
    /// Of the sampled blocks.
    block_reuse: ReuseTimes,
    /// Of the sampled requests.
    request_reuse: ReuseTimes,
    watch: Watch,
    /// Sampled requests by the buckets of their reuse time and of the sampled blocks that were asked for meanwhile.
    seen: BTreeMap<(u32, u32), u64>,
}

impl Paired {
    /// Samples this part of the blocks, and of the requests (0 < rate <= 1); `seed` decides which.
    pub fn new(rate: f64, seed: u64) -> Self {
        let key = HashKey::from_seed(seed);
        let rate = rate.clamp(1e-9, 1.0);
        Self {
            key,
            threshold: (rate * 2f64.powi(64)) as u64,
            rate,
            table: Table::new(key.derived()),
            recency: Recency::new(POSITIONS_MIN),
            times: vec![],
            block_reuse: ReuseTimes::default(),
            request_reuse: ReuseTimes::default(),
            watch: Watch::new(rate, key),
            seen: BTreeMap::new(),
        }
    }

    /// Requests in order.
    pub fn observe(&mut self, blocks: &[u64]) {
        for &block in blocks {
            let hash = self.key.hash(block);
            if let Some(watched) = self.watch.request(block, hash) {
                let time = self.watch.time() - watched.time;
                let between = self.recency.live() - self.recency.older_than(watched.mark);
                self.request_reuse.add(time);
                *self.seen.entry((bucket(time) as u32, bucket(u64::from(between)) as u32)).or_default() += 1;
            }
            if hash <= self.threshold {
                self.sampled(block);
            }
            if self.watch.is_picked() {
                self.watch.watch(block, hash, self.recency.next());
            }
        }
    }

    #[cold]
    fn sampled(&mut self, block: u64) {
        if self.recency.is_used_up() {
            self.make_dense();
        }
        self.table.reserve(1);
        let home = self.table.home(block);
        let position = self.table.entry(block, home);
        if !position.is_vacant() {
            self.block_reuse.add(self.watch.time() - self.times[*position as usize]);
            self.recency.remove(*position);
        }
        *position = self.recency.push();
        self.times.push(self.watch.time());
    }

    #[cold]
    fn make_dense(&mut self) {
        self.recency.sum_up();
        let live = self.recency.live();
        let mut times = vec![0; live as usize];
        for position in self.table.values_mut() {
            let rank = self.recency.rank(*position);
            times[rank as usize] = self.times[*position as usize];
            *position = rank;
        }
        self.times = times;
        for mark in self.watch.marks() {
            *mark = self.recency.rank(*mark);
        }
        let positions = live.saturating_mul(POSITIONS_PER_BLOCK).clamp(POSITIONS_MIN, u32::MAX - 1023);
        self.recency.make_dense(live, positions);
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        self.watch.time()
    }

    /// An estimate of the different blocks so far.
    pub fn footprint(&self) -> f64 {
        self.table.len() as f64 / self.rate
    }

    /// The part of the blocks, and of the requests, that is sampled.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Blocks in the sample of blocks.
    pub fn samples(&self) -> u64 {
        self.table.len() as u64
    }

    /// The curve.
    pub fn curve(&self) -> Curve {
        self.curve_and_belief().0
    }

    /// What chance may have done.
    pub(crate) fn chance(&self) -> (Vertical, Sideways) {
        let belief = self.curve_and_belief().1;
        (Vertical::Picked(self.watch.picked()), Sideways::Counted { rate: self.rate, belief })
    }

    /// The curve, and by size how far distances that were counted are believed.
    fn curve_and_belief(&self) -> (Curve, Vec<(u64, f64)>) {
        let requests = self.requests() as f64;
        let picked = (self.watch.picked() as f64).max(1.0);
        let left = |time: u64| self.requests() + 1 - time;
        let of_requests = self.request_reuse.with_last(self.watch.watched().map(|w| left(w.time)));
        let of_blocks = self.block_reuse.with_last(self.table.values().map(|&at| left(self.times[at as usize])));
        let buckets = of_requests.buckets().max(of_blocks.buckets());
        let by_request = of_requests.footprints(self.requests(), requests / picked, buckets);
        let by_block = of_blocks.footprints(self.requests(), 1.0, buckets);

        let judged = self.judge(|time| by_block.typical(time));
        let mut hits = vec![];
        let mut beliefs: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
        for (&(time, between), &count) in &self.seen {
            let (from, to) = by_request.between(time as usize);
            let expected = by_block.typical(time as usize);
            let factor = if expected > 0.0 {
                let differ = judged.get(&(time as usize / BUCKETS_JUDGED)).copied().unwrap_or(0.0);
                // counted in so small a sample of blocks, distances differ by 1 / expected by chance alone
                let belief = differ / (differ + (1.0 - self.rate) / expected + 1e-12);
                // by doubling of the size: a few buckets of it are too few requests
                let sum = beliefs.entry((to.max(1.0) as u64).ilog2()).or_default();
                *sum = (sum.0 + belief * count as f64, sum.1 + count as f64);
                1.0 + belief * (middle(between as usize) / expected - 1.0)
            } else {
                1.0
            };
            spread(&mut hits, from * factor, to * factor, count as f64);
        }
        let mut misses = requests;
        let mut points = vec![];
        for (at, hits) in hits.into_iter().enumerate().filter(|&(_, hits)| hits > 0.0) {
            // level up to the bucket, and falling within it
            points.push((at.checked_sub(1).map_or(0, last_of), misses));
            misses = (misses - hits * requests / picked).max(0.0);
            points.push((last_of(at), misses));
        }
        let belief = beliefs.into_iter().map(|(at, (sum, count))| ((2u64 << at) - 1, sum / count)).collect();
        (Curve::new(requests, points), belief)
    }

    /// How much distances of about one reuse time differ, as a relative variance beyond chance, by doubling of the
    /// time.
    fn judge(&self, expected: impl Fn(usize) -> f64) -> BTreeMap<usize, f64> {
        let mut sums: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
        for (&(time, between), &count) in &self.seen {
            let expected = expected(time as usize);
            let beyond = (middle(between as usize) - expected).powi(2) - expected * (1.0 - self.rate);
            let sum = sums.entry(time as usize / BUCKETS_JUDGED).or_default();
            *sum = (sum.0 + beyond * count as f64, sum.1 + expected.powi(2) * count as f64);
        }
        sums.into_iter().map(|(at, (beyond, square))| (at, (beyond / square.max(1e-12)).max(0.0))).collect()
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
            + self.recency.memory_bytes()
            + self.times.capacity() * size_of::<u64>()
            + self.watch.memory_bytes()
            + self.seen.len() * 2 * size_of::<((u32, u32), u64)>()
    }
}

/// Adds requests whose distances are spread evenly from one to another to the hits by bucket of the size that they
/// need, which is one more than the distance.
fn spread(hits: &mut Vec<f64>, from: f64, to: f64, count: f64) {
    let (first, last) = (bucket(from as u64 + 1), bucket(to as u64 + 1));
    if last >= hits.len() {
        hits.resize(last + 1, 0.0);
    }
    if first == last {
        hits[first] += count;
        return;
    }
    for (at, hits) in hits.iter_mut().enumerate().take(last + 1).skip(first) {
        let (begin, end) = (last_of(at - 1) as f64, last_of(at) as f64);
        *hits += count * (to.min(end) - from.max(begin)) / (to - from);
    }
}
