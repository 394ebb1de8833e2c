//! Histograms of latency: a fixed array, eight buckets to a power of two.
//!
//! Owns counting. Never allocates, locks, or reads a clock: `record` is one index computation and two additions, fit
//! for the hit path. Invariant: `count` is the sum of the buckets, and a quantile is within 12.5 % above the true
//! value. The log-linear cut is that of HdrHistogram (Tene, 2012). Why simulations have another one: decision 0166.

/// Buckets to each power of two, as a power of two.
const SUB_BITS: u32 = 3;
const SUB: usize = 1 << SUB_BITS;
/// Latencies from 2^36 ns (68.7 s) on share the last bucket.
const TOP_BITS: u32 = 36;
/// Number of buckets.
pub const BUCKETS: usize = SUB + (TOP_BITS - SUB_BITS) as usize * SUB + 1;

/// Counts of latencies, in nanoseconds. 2.2 KiB; cloned to hand it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; BUCKETS],
    sum_ns: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// An empty one.
    pub const fn new() -> Self {
        Histogram { buckets: [0; BUCKETS], sum_ns: 0, max_ns: 0 }
    }

    /// Counts one latency in nanoseconds.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.record_n(ns, 1);
    }

    /// Counts `n` latencies of the same length in nanoseconds: a batch whose requests were answered together.
    #[inline]
    pub(crate) fn record_n(&mut self, ns: u64, n: u64) {
        if n == 0 {
            return;
        }
        self.buckets[bucket_of(ns)] += n;
        self.sum_ns = self.sum_ns.saturating_add(ns.saturating_mul(n));
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Whether nothing was recorded since `earlier`, a state of the same histogram.
    pub(crate) fn is_as(&self, earlier: &Histogram) -> bool {
        // A latency of 0 ns changes its bucket alone, which is the first.
        self.sum_ns == earlier.sum_ns && self.buckets[0] == earlier.buckets[0]
    }

    /// What was recorded since `earlier`, a state of the same histogram. The largest is not known, only its bucket.
    #[must_use]
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let mut new = Histogram::new();
        for (i, (now, then)) in self.buckets.iter().zip(&earlier.buckets).enumerate() {
            new.buckets[i] = now.saturating_sub(*then);
            if new.buckets[i] > 0 {
                new.max_ns = bucket_max_ns(i).min(self.max_ns);
            }
        }
        new.sum_ns = self.sum_ns.saturating_sub(earlier.sum_ns);
        new
    }

    /// Mean of all of them, in nanoseconds; 0 if nothing was recorded.
    pub fn mean_ns(&self) -> f64 {
        let count = self.count();
        if count == 0 { 0.0 } else { self.sum_ns as f64 / count as f64 }
    }

    /// The part that took longer than `ns`, 0 to 1, by buckets: a bucket that `ns` lies in counts as not longer.
    pub(crate) fn part_above(&self, ns: u64) -> f64 {
        let count = self.count();
        let above: u64 =
            self.filled().filter(|&(max, _)| max > ns && bucket_of(max) != bucket_of(ns)).map(|(_, n)| n).sum();
        if count == 0 { 0.0 } else { above as f64 / count as f64 }
    }

    /// How many latencies have been recorded.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Sum of all of them, in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The largest, in nanoseconds; exact.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The latency in nanoseconds that a share `q` (0 to 1) of all stays at or below: the upper end of its bucket, but
    /// never above the largest recorded; 0 if nothing was recorded.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        let count = self.count();
        if count == 0 {
            return 0;
        }
        let rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as u64).clamp(1, count);
        let mut seen = 0;
        for (i, n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return bucket_max_ns(i).min(self.max_ns);
            }
        }
        self.max_ns
    }

    /// The buckets that are not empty: (largest latency of the bucket in nanoseconds, count). The last bucket of all
    /// has no upper end: `u64::MAX`.
    pub fn filled(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.buckets.iter().enumerate().filter(|(_, n)| **n > 0).map(|(i, n)| (bucket_max_ns(i), *n))
    }
}

#[inline]
fn bucket_of(ns: u64) -> usize {
    if ns < SUB as u64 {
        return ns as usize;
    }
    let top = ns.ilog2();
    if top >= TOP_BITS {
        return BUCKETS - 1;
    }
    let sub = (ns >> (top - SUB_BITS)) as usize & (SUB - 1);
    SUB + (top - SUB_BITS) as usize * SUB + sub
}

/// The largest latency that falls into bucket `i`.
fn bucket_max_ns(i: usize) -> u64 {
    if i < SUB {
        return i as u64;
    }
    if i >= BUCKETS - 1 {
        return u64::MAX;
    }
    let power = (i - SUB) / SUB;
    let sub = (i - SUB) % SUB;
    ((SUB + sub + 1) as u64) * (1 << power) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_bucket_begins_where_the_one_before_ends() {
        for i in 0..BUCKETS - 1 {
            let max = bucket_max_ns(i);
            assert_eq!(bucket_of(max), i, "upper end of bucket {i}");
            assert_eq!(bucket_of(max + 1), i + 1, "lower end of bucket {}", i + 1);
        }
        assert_eq!(bucket_max_ns(BUCKETS - 2) + 1, 1 << TOP_BITS);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn powers_of_two_are_ends_of_buckets() {
        // The Prometheus export relies on it: cumulative counts at powers of two are exact.
        for k in SUB_BITS..=TOP_BITS {
            let below = bucket_of((1 << k) - 1);
            assert_eq!(bucket_max_ns(below), (1 << k) - 1);
        }
    }

    #[test]
    fn quantiles_and_sums() {
        let mut h = Histogram::new();
        assert_eq!((h.count(), h.quantile_ns(0.5), h.max_ns()), (0, 0, 0));
        for us in 1..=1000u64 {
            h.record(us * 1000);
        }
        assert_eq!(h.count(), 1000);
        assert_eq!(h.sum_ns(), 500_500_000);
        assert_eq!(h.max_ns(), 1_000_000);
        let p50 = h.quantile_ns(0.5);
        assert!((500_000..=562_500).contains(&p50), "{p50}");
        assert_eq!(h.quantile_ns(1.0), 1_000_000);
        assert!(h.quantile_ns(0.0) >= 1000);
    }

    #[test]
    fn what_came_since_and_how_much_of_it_took_longer() {
        let mut h = Histogram::new();
        h.record_n(50_000_000, 3);
        let then = h.clone();
        h.record_n(100_000, 90);
        h.record_n(4_000_000, 10);
        let new = h.since(&then);
        assert_eq!((new.count(), new.sum_ns()), (100, 49_000_000));
        assert_eq!(new.mean_ns(), 490_000.0);
        assert!((4_000_000..4_600_000).contains(&new.max_ns()), "{}", new.max_ns());
        assert_eq!((new.part_above(1_000_000), new.part_above(10_000), new.part_above(5_000_000)), (0.1, 1.0, 0.0));
        let none = h.since(&h);
        assert_eq!((none.mean_ns(), none.part_above(0)), (0.0, 0.0));
    }

    #[test]
    fn a_batch_counts_as_its_requests() {
        let (mut one_by_one, mut batch) = (Histogram::new(), Histogram::new());
        (0..7).for_each(|_| one_by_one.record(1234));
        batch.record_n(1234, 7);
        batch.record_n(9999, 0);
        assert_eq!(one_by_one, batch);
    }

    proptest! {
        #[test]
        fn quantiles_are_close_from_above(
            mut v in proptest::collection::vec(0u64..1 << 36, 1..300),
            q in 0.0f64..=1.0,
        ) {
            let mut h = Histogram::new();
            v.iter().for_each(|x| h.record(*x));
            v.sort_unstable();
            let rank = ((q * v.len() as f64).ceil() as usize).clamp(1, v.len());
            let exact = v[rank - 1];
            let got = h.quantile_ns(q);
            prop_assert!(got >= exact && got as f64 <= exact as f64 * 1.125 + 1.0, "exact {} got {}", exact, got);
        }

        #[test]
        fn merging_is_recording_both(a in proptest::collection::vec(any::<u64>(), 0..50),
                                     b in proptest::collection::vec(any::<u64>(), 0..50)) {
            let of = |v: &[u64]| { let mut h = Histogram::new(); v.iter().for_each(|x| h.record(*x)); h };
            let mut merged = of(&a);
            merged.merge(&of(&b));
            let both: Vec<u64> = a.iter().chain(&b).copied().collect();
            prop_assert_eq!(merged.filled().map(|(_, n)| n).sum::<u64>(), both.len() as u64);
            prop_assert_eq!(merged, of(&both));
        }
    }
}
