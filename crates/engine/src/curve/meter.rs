//! The meter of one disk, or of a container's part of one: counts its requests and estimates its miss-ratio curve.
//!
//! Owns the counts of an interval and all estimates of the curve, which share one hash and one comparison a request:
//! that of LRU and that of the policy as far as RAM reaches; and, where there is a store below, that of LRU as far as
//! both reach together, from a sample of its own, so that sizes of RAM are known as well as without it.
//! Never decides anything, and never reads a clock: the caller ends an interval.
//! Invariant: whatever a guest asks for, a request costs on average no more time than the options allow.

use super::correction::Correction;
use super::filter::Threshold;
use super::lru::{LruCurve, LruCurveOptions};
use super::points::Curve;
use super::policy::{PolicyCurve, PolicyCurveOptions, sizes_around};
use crate::policy::{PolicyKind, PolicySet};
use crate::structures::table::HashKey;

/// How a request for a block was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The block was there because it was asked for before.
    Hit,
    /// The block was there only because it had been read ahead, and this is its first use.
    Ahead,
    /// The block was not there.
    Miss,
}

/// What a [`Meter`] may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeterOptions {
    /// Of the curve for LRU; its largest size of interest is the meter's.
    pub lru: LruCurveOptions,
    /// Of the curve for the policy in use.
    pub policy: PolicyCurveOptions,
    /// Of the curve that reaches over two stores; its largest size of interest is what [`Meter::set_reach`] says.
    pub deep: LruCurveOptions,
    /// Requests in excess of the working set's misses, in parts of all requests: see [`Curve::working_set`].
    pub working_set_slack: f64,
}

impl Default for MeterOptions {
    /// The defaults of both curves, half of LRU's sample for the one over two stores, and a hundredth for the working
    /// set.
    fn default() -> Self {
        let (lru, policy) = (LruCurveOptions::default(), PolicyCurveOptions::default());
        let deep = LruCurveOptions { samples_max: lru.samples_max / 2, ..lru };
        Self { lru, policy, deep, working_set_slack: 0.01 }
    }
}

/// What one interval showed.
#[derive(Clone, Debug, PartialEq)]
pub struct Telemetry {
    /// Requests for blocks (R of the donor rule).
    pub requests: u64,
    /// Of these, the misses (M of the donor rule).
    pub misses: u64,
    /// Of these, the ones that were hits by read-ahead alone: no hit that space has earned.
    pub ahead: u64,
    /// Distinct blocks asked for, estimated (the donor rule's U is at most the share).
    pub distinct: u64,
    /// Misses by size for as many requests as the interval had. Read-ahead is not in it: what is read ahead in time and
    /// never asked for twice misses at every size. Smoothed: each interval weighs half as much as the one after it.
    pub curve: Curve,
    /// Whether the curve is that of the policy in use; if not it is LRU's, since the miniature caches are not warm yet.
    pub of_policy: bool,
    /// The working-set size in blocks, by the curve: see [`Curve::working_set`].
    pub working_set: u64,
    /// Misses of both stores together by the sum of their sizes, for LRU, for as many requests as the interval had; if
    /// [`Meter::set_reach`] has asked for it. An interval weighs half as much as one eight intervals later.
    pub deep: Option<Curve>,
}

/// Sampled requests that are worked off together.
const BATCH: usize = 64;
/// Intervals after which what the curve over two stores was made from weighs half: blocks of a large store are asked
/// for again after a long time, and a share of it moves slowly.
const DEEP_INTERVALS: u32 = 8;

/// See the head of the file.
pub struct Meter<K: PolicySet = PolicyKind> {
    key: HashKey,
    /// The higher of both estimates' thresholds.
    threshold: Threshold,
    /// Sampled requests that neither of them knows of yet: block and hash.
    waiting: Vec<(u64, u64)>,
    requests: u64,
    /// Requests of this interval that the estimates know of.
    told: u64,
    misses: u64,
    ahead: u64,
    working_set_slack: f64,
    share: u64,
    size_max: u64,
    lru: LruCurve,
    policy: PolicyCurve<K>,
    deep: Option<Box<LruCurve>>,
    deep_options: LruCurveOptions,
    /// Intervals since that was made to weigh half.
    deep_intervals: u32,
    correction: Correction,
    /// The client holds blocks itself, and the leaf only those that it holds no longer.
    exclusive: bool,
}

impl<K: PolicySet> Meter<K> {
    /// A meter for a leaf that has `share` blocks now and can have up to `size_max`, under `kind`. The daemon passes a
    /// key that guests cannot know.
    pub fn new(kind: K, share: u64, size_max: u64, options: MeterOptions, key: HashKey) -> Self {
        let key = key.derived();
        let lru = LruCurve::with_filter(LruCurveOptions { size_max, ..options.lru }, key);
        let policy = PolicyCurve::with_filter(kind, &sizes_around(share, size_max), options.policy, key);
        let working_set_slack = options.working_set_slack;
        let (requests, told, misses, ahead, threshold) = (0, 0, 0, 0, Threshold::ALL);
        let waiting = Vec::with_capacity(BATCH);
        let mut meter = Self {
            key,
            threshold,
            waiting,
            requests,
            told,
            misses,
            ahead,
            working_set_slack,
            share,
            size_max,
            lru,
            policy,
            deep: None,
            deep_options: options.deep,
            deep_intervals: 0,
            correction: Correction::new(share),
            exclusive: false,
        };
        meter.update_threshold();
        meter
    }

    /// One request for `block`, and how it was served.
    #[inline]
    pub fn observe(&mut self, block: u64, served: Served) {
        self.requests += 1;
        self.misses += u64::from(served == Served::Miss);
        self.ahead += u64::from(served == Served::Ahead);
        let hash = self.key.hash(block);
        if self.threshold.admits(hash) {
            self.sampled(block, hash);
        }
    }

    /// As [`Meter::observe`], for a guest that holds the block from now on; [`Meter::left`] says when it does no
    /// longer.
    #[inline]
    pub fn observe_taken(&mut self, block: u64, served: Served) {
        if !self.exclusive {
            return self.observe(block, served);
        }
        self.requests += 1;
        self.misses += u64::from(served == Served::Miss);
        self.ahead += u64::from(served == Served::Ahead);
        self.departures(block, LruCurve::taken);
    }

    /// The guest holds `block` from now on, whatever it was counted as before: it was read from the disk, or written.
    #[inline]
    pub fn arrived(&mut self, block: u64) {
        if self.exclusive {
            self.departures(block, LruCurve::withdrawn);
        }
    }

    /// The guest that took `block` holds it no longer.
    #[inline]
    pub fn left(&mut self, block: u64) {
        if self.exclusive {
            self.departures(block, LruCurve::left);
        }
    }

    /// Tells the sample of departed blocks of a change, if it concerns a block of it.
    #[inline]
    fn departures(&mut self, block: u64, tell: fn(&mut LruCurve, u64)) {
        let hash = self.key.hash(block);
        if self.threshold.admits(hash) {
            // in order, and working them off may have lowered the threshold
            self.work_off();
            for curve in std::iter::once(&mut self.lru).chain(self.deep.as_deref_mut()) {
                if curve.threshold().admits(hash) {
                    tell(curve, block);
                }
            }
            self.update_threshold();
        }
    }

    /// Whether the leaf is kept exclusive of a guest. Then its curve is that of blocks that the guest does not hold, by
    /// how many others it has let go since: an LRU cache of victims hits if these are fewer than its blocks. Of the
    /// policy in use nothing is simulated, since what is kept is decided elsewhere. What was measured the other way is
    /// forgotten.
    pub fn set_exclusive(&mut self, exclusive: bool) {
        if exclusive != self.exclusive {
            self.exclusive = exclusive;
            self.tell();
            self.lru.forget();
            self.deep.iter_mut().for_each(|deep| deep.forget());
            self.correction = Correction::new(self.share);
            self.set_sizes();
        }
    }

    /// Keeps a sampled request until there are enough of them.
    #[cold]
    fn sampled(&mut self, block: u64, hash: u64) {
        self.waiting.push((block, hash));
        if self.waiting.len() == BATCH {
            self.work_off();
        }
    }

    /// Tells both estimates of the sampled requests, one structure after the other: so each finds its code and data in
    /// the processor's caches for all requests but the first.
    #[inline(never)]
    fn work_off(&mut self) {
        for &(block, hash) in &self.waiting {
            if self.lru.threshold().admits(hash) {
                self.lru.sampled(block);
            }
        }
        self.policy.sampled(&self.waiting);
        if let Some(deep) = &mut self.deep {
            for &(block, hash) in &self.waiting {
                if deep.threshold().admits(hash) {
                    deep.sampled(block);
                }
            }
        }
        self.waiting.clear();
        self.update_threshold();
    }

    fn update_threshold(&mut self) {
        self.threshold = self.highest();
    }

    /// The highest of the estimates' thresholds.
    fn highest(&self) -> Threshold {
        let others = self.policy.threshold().into_iter().chain(self.deep.as_ref().map(|deep| deep.threshold()));
        others.fold(self.lru.threshold(), |highest, t| highest.max(t))
    }

    /// Tells the estimates of all requests that they do not know of yet. How many there were they cannot count, since
    /// they see only what they sample.
    fn tell(&mut self) {
        self.work_off();
        let news = self.requests - std::mem::replace(&mut self.told, self.requests);
        self.lru.count(news);
        self.policy.count(news);
        self.deep.iter_mut().for_each(|deep| deep.count(news));
    }

    /// Ends the interval and returns what was measured in it. After an interval without requests the curve has the
    /// shape of the last one, scaled to no requests. Takes time in proportion to the sample (some ten microseconds) and
    /// to the points of the curve.
    pub fn interval(&mut self) -> Telemetry {
        self.tell();
        let of_policy = self.policy.is_ready() && !self.exclusive;
        self.correction.interval(self.requests, self.misses + self.ahead);
        let curve = self.curve();
        let curve = self.correction.apply(curve, self.share, self.lru.samples()).scaled_to(self.requests as f64);
        let telemetry = Telemetry {
            requests: self.requests,
            misses: self.misses,
            ahead: self.ahead,
            distinct: (self.lru.distinct().round() as u64).min(self.requests),
            working_set: curve.working_set(self.working_set_slack),
            curve,
            of_policy,
            deep: self.deep.as_ref().map(|deep| deep.curve().scaled_to(self.requests as f64)),
        };
        (self.requests, self.told, self.misses, self.ahead) = (0, 0, 0, 0);
        self.lru.decay();
        self.policy.decay();
        self.deep_intervals += 1;
        if self.deep_intervals >= DEEP_INTERVALS {
            self.deep.iter_mut().for_each(|deep| deep.decay());
            self.deep_intervals = 0;
        }
        self.update_threshold();
        telemetry
    }

    /// The policy's curve within its sizes, and LRU's shape, made to meet it, outside; LRU's alone while the policy's
    /// is not ready.
    fn curve(&self) -> Curve {
        let lru = self.lru.curve();
        if self.exclusive || !self.policy.is_ready() {
            return lru;
        }
        let policy = self.policy.curve().scaled_to(lru.requests());
        let inside = &policy.points()[1..];
        let (Some(&first), Some(&last)) = (inside.first(), inside.last()) else { return lru };
        let (at_first, at_last) = (lru.misses_at(first.0), lru.misses_at(last.0));
        // hits below the first size and misses above the last one: both then stay within the requests
        let requests = lru.requests();
        let below = |misses: f64| {
            let hits = requests - at_first;
            requests - if hits > 0.0 { (requests - misses) * (requests - first.1) / hits } else { 0.0 }
        };
        let above = |misses: f64| if at_last > 0.0 { misses * last.1 / at_last } else { last.1 };
        let outside = lru.points().iter().filter_map(|&(size, misses)| match size {
            size if size < first.0 => Some((size, below(misses))),
            size if size > last.0 => Some((size, above(misses))),
            _ => None,
        });
        Curve::new(requests, outside.chain(inside.iter().copied()))
    }

    /// The leaf has `share` blocks now: the sizes at which the policy is simulated follow. Cheap while they stay.
    pub fn set_share(&mut self, share: u64) {
        if share != self.share {
            self.correction.moved(self.share, share);
            self.share = share;
            self.set_sizes();
        }
    }

    /// The leaf can have up to `size_max` blocks.
    pub fn set_size_max(&mut self, size_max: u64) {
        if size_max != self.size_max {
            self.size_max = size_max;
            self.lru.set_size_max(size_max);
            self.set_sizes();
        }
    }

    /// The leaf has a store below its own: from now on it is also measured what both together would miss, up to so many
    /// blocks; `None` ends that. What was measured of it is kept while it goes on.
    pub fn set_reach(&mut self, blocks: Option<u64>) {
        self.tell();
        match (blocks, &mut self.deep) {
            (Some(blocks), Some(deep)) => deep.set_size_max(blocks),
            (Some(size_max), None) => {
                let options = LruCurveOptions { size_max, ..self.deep_options };
                self.deep = Some(Box::new(LruCurve::with_filter(options, self.key)));
                self.deep_intervals = 0;
            }
            (None, _) => self.deep = None,
        }
        self.update_threshold();
    }

    fn set_sizes(&mut self) {
        let sizes = if self.exclusive { vec![] } else { sizes_around(self.share, self.size_max) };
        self.tell();
        self.policy.set_sizes(&sizes);
        self.update_threshold();
    }

    /// The leaf has another policy now.
    pub fn set_policy(&mut self, kind: K) {
        self.tell();
        self.policy.set_policy(kind);
    }

    /// The curve for LRU, as it stood at the last [`Meter::interval`].
    pub fn lru(&self) -> &LruCurve {
        &self.lru
    }

    /// The curve for the policy in use, as it stood at the last [`Meter::interval`].
    pub fn policy(&self) -> &PolicyCurve<K> {
        &self.policy
    }

    /// Bytes of memory that it may come to hold, as long as share, sizes and policy stay.
    pub fn memory_bytes_max(&self) -> usize {
        let curves = || std::iter::once(&self.lru).chain(self.deep.as_deref());
        let now: usize = curves().map(LruCurve::memory_bytes).sum();
        self.memory_bytes() - now + curves().map(LruCurve::memory_bytes_max).sum::<usize>()
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() - size_of::<LruCurve>() - size_of::<PolicyCurve>()
            + self.waiting.capacity() * size_of::<(u64, u64)>()
            + self.lru.memory_bytes()
            + self.policy.memory_bytes()
            + self.deep.as_ref().map_or(0, |deep| deep.memory_bytes())
    }

    /// Checks the invariants; for tests. Panics with what is broken.
    pub fn check(&self) {
        self.lru.check();
        self.policy.check();
        self.deep.iter().for_each(|deep| deep.check());
        assert_eq!(self.threshold, self.highest(), "the meter asks whom a block concerns");
    }
}
