//! How long it takes until a block is asked for again, in requests; and what follows from that: how many different
//! blocks a stretch of so many requests touches on average.
//!
//! Owns counts by reuse time, in the buckets of the engine's curves (1/64 of a time). Never knows blocks.
//! Invariant: a request is counted once: by its reuse time, or as the last for its block.

use undercroft_engine::curve::{bucket, last_of};

/// Reuse times and how often each occurred. Of a sample of requests, or of all.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReuseTimes {
    counts: Vec<f64>,
    /// Requests that were the last for their block, by how many requests from themselves on the trace had.
    last: Vec<f64>,
}

fn add(counts: &mut Vec<f64>, time: u64) {
    let bucket = bucket(time);
    if bucket >= counts.len() {
        counts.resize(bucket + 1, 0.0);
    }
    counts[bucket] += 1.0;
}

/// The middle of a bucket.
pub(crate) fn middle(bucket: usize) -> f64 {
    let before = bucket.checked_sub(1).map_or(-1.0, |b| last_of(b) as f64);
    (before + 1.0 + last_of(bucket) as f64) / 2.0
}

/// Average footprints of stretches of requests.
pub(crate) struct Footprints {
    /// Of as many requests as end a bucket.
    at_end: Vec<f64>,
}

impl ReuseTimes {
    /// A block was asked for again after `time` requests, at least 1.
    #[inline]
    pub fn add(&mut self, time: u64) {
        add(&mut self.counts, time);
    }

    /// The same with requests that were the last for their block, of which the trace had `left` from each on, itself
    /// included.
    pub fn with_last(&self, left: impl Iterator<Item = u64>) -> Self {
        let mut all = self.clone();
        left.for_each(|left| add(&mut all.last, left));
        all
    }

    /// Buckets that the counts reach.
    pub fn buckets(&self) -> usize {
        self.counts.len()
    }

    /// Requests by bucket of their reuse time, and the last ones of their blocks.
    pub fn survivors(&self) -> (&[f64], f64) {
        (&self.counts, self.last.iter().sum())
    }

    /// The average footprint of all stretches of w of a trace's `requests` requests, at the ends of so many buckets of
    /// w. A request stands for `weight` ones.
    ///
    /// A block is in a stretch if one of its requests is the last for it there: that of request i is if the stretch
    /// ends at i or later, and before the block's next. Counting stretches by requests is the footprint formula (Xiang,
    /// Ding, Luo and Bao, "HOTL", ASPLOS 2013) turned round. It needs the places of requests only near the ends of the
    /// trace, where those of one reuse time are taken to be spread evenly.
    pub fn footprints(&self, requests: u64, weight: f64, buckets: usize) -> Footprints {
        let n = requests as f64;
        let filled = |counts: &[f64]| -> Vec<(f64, f64)> {
            let full = counts.iter().enumerate().filter(|&(_, &count)| count > 0.0);
            full.map(|(bucket, &count)| (middle(bucket).min(n), count)).collect()
        };
        let (reused, last) = (filled(&self.counts), filled(&self.last));
        let mut highest = 0.0f64;
        let at_end = (0..buckets).map(|bucket| {
            let w = (last_of(bucket) as f64).min(n);
            let again: f64 = reused.iter().map(|&(time, count)| count * ends_after(w, time, n)).sum();
            let never: f64 = last
                .iter()
                .map(|&(left, count)| count * (w.min(left) - (w - (n + 1.0 - left)).max(0.0)).max(0.0))
                .sum();
            highest = highest.max((again + never) * weight / (n - w + 1.0));
            highest
        });
        Footprints { at_end: at_end.collect() }
    }
}

/// The stretches of w requests, of n in all, in which a request whose block comes again after `time` is the last for
/// it: on average over the requests that can have that time.
fn ends_after(w: f64, time: f64, n: f64) -> f64 {
    let (most, room) = (time.min(w), n - time);
    if room < 1.0 {
        // there is one such request, the first
        return (1.0 + most - w).max(0.0);
    }
    // of requests before w, stretches that would begin before the trace are missing: none ends before w
    let before = room.min(w);
    let ramp = (before - (w - most)).max(0.0);
    (ramp * ramp / 2.0 + (room - before) * most) / room
}

impl Footprints {
    /// Of what lies between two requests whose distance in time is in this bucket: from the shortest to the longest.
    pub fn between(&self, bucket: usize) -> (f64, f64) {
        let (end, before) = bucket.checked_sub(1).map_or((0, 0.0), |b| (last_of(b), self.at_end[b]));
        // a bucket of one time: exactly the requests before the last
        if end + 1 >= last_of(bucket) { (before, before) } else { (before, self.at_end[bucket]) }
    }

    /// The middle of that.
    pub fn typical(&self, bucket: usize) -> f64 {
        let (from, to) = self.between(bucket);
        (from + to) / 2.0
    }

    /// Of stretches of as many requests as end each bucket.
    pub fn at_ends(&self) -> &[f64] {
        &self.at_end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Holds the formula against all stretches of a trace of 4000 requests, of which every one is counted.
    fn verify(block: impl Fn(u64, u64) -> u64, stretches_of: &[u64], allowed: f64) {
        let mut x = 7u64;
        let blocks: Vec<u64> = (0..4000u64)
            .map(|i| {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                block(i, x >> 33)
            })
            .collect();
        let (mut times, mut before) = (ReuseTimes::default(), BTreeMap::new());
        for (i, &block) in blocks.iter().enumerate() {
            if let Some(last) = before.insert(block, i) {
                times.add((i - last) as u64);
            }
        }
        let times = times.with_last(before.values().map(|&i| (blocks.len() - i) as u64));
        let footprints = times.footprints(4000, 1.0, bucket(4000) + 1);
        for b in stretches_of.iter().map(|&w| bucket(w)) {
            let w = last_of(b) as usize;
            let stretches = blocks.windows(w).map(|s| s.iter().collect::<BTreeSet<_>>().len());
            let (sum, count) = stretches.fold((0, 0), |(sum, count), n| (sum + n, count + 1));
            let (is, should) = (footprints.at_ends()[b], sum as f64 / f64::from(count));
            assert!((is / should - 1.0).abs() < allowed, "{is:.2} blocks in {w} requests, really {should:.2}");
        }
    }

    #[test]
    fn footprints_are_those_of_all_stretches() {
        // popular blocks and rare ones, up to stretches that are almost the whole trace
        verify(|_, r| (r % 900).min(r / 7 % 900), &[1, 2, 5, 40, 100, 200, 500, 1000, 2000, 3000, 3600], 0.02);
        // halves that ask for other blocks: near the ends of the trace places matter, and they are not known
        let halves = |i: u64, r: u64| if i < 2000 { (r % 300).min(r / 7 % 300) } else { 200 + r % 500 };
        verify(halves, &[1, 2, 5, 40, 100, 200, 500, 1000], 0.04);
    }
}
