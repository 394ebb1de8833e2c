//! Lengths of time, counted: how many there were, their mean, and how long a share of them took at most.
//!
//! Owns the resolution, three digits, for simulations and the benchmark's driver. (The daemon's, in
//! `daemon/latency.rs`, is another: it must neither allocate nor be large on the path of a hit, and its buckets are
//! those of the metrics; decision 0166.) Never reads a clock. Invariant: a quantile is at most 0.1 % above the value
//! recorded; the mean and the longest are exact.

use hdrhistogram::Histogram;

/// The longest that is told apart: 36 years.
const NS_MAX: u64 = 1 << 60;
/// Digits of a quantile.
const DIGITS: u8 = 3;

/// Counts of lengths of time. Allocates when it is made, and never afterwards.
#[derive(Clone, Debug)]
pub struct LatencyCounts {
    counts: Histogram<u64>,
    sum_ns: u128,
    max_ns: u64,
}

impl Default for LatencyCounts {
    fn default() -> Self {
        let counts = Histogram::new_with_bounds(1, NS_MAX, DIGITS).expect("bounds that are constants");
        LatencyCounts { counts, sum_ns: 0, max_ns: 0 }
    }
}

impl LatencyCounts {
    /// Counts one length, in nanoseconds.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.counts.saturating_record(ns.max(1));
        self.sum_ns += u128::from(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    /// Their mean in nanoseconds; 0 if there were none.
    pub fn mean_ns(&self) -> f64 {
        self.sum_ns as f64 / self.count().max(1) as f64
    }

    /// What a share `q` (0 to 1) of them took at most, in nanoseconds, to three digits; 0 if there were none.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        if self.counts.is_empty() { 0 } else { self.counts.value_at_quantile(q) }
    }

    /// The longest, in nanoseconds; exact.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_known_series_has_its_mean_and_its_quantiles() {
        let mut all = LatencyCounts::default();
        assert_eq!((all.count(), all.quantile_ns(0.5), all.mean_ns(), all.max_ns()), (0, 0, 0.0, 0));
        (1..=1000u64).for_each(|us| all.record(us * 1000));
        assert_eq!((all.count(), all.mean_ns(), all.max_ns()), (1000, 500_500.0, 1_000_000));
        assert!((500_000..=500_500).contains(&all.quantile_ns(0.5)), "{}", all.quantile_ns(0.5));
        assert!((990_000..=990_990).contains(&all.quantile_ns(0.99)), "{}", all.quantile_ns(0.99));
        assert!((1_000_000..=1_001_000).contains(&all.quantile_ns(1.0)), "{}", all.quantile_ns(1.0));
    }

    proptest! {
        #[test]
        fn a_value_is_read_back_to_three_digits(ns in 1u64..NS_MAX) {
            let mut all = LatencyCounts::default();
            all.record(ns);
            let found = all.quantile_ns(0.5);
            prop_assert!(
                found >= ns && u128::from(found - ns) * 1000 <= u128::from(ns),
                "{} is read back as {}",
                ns,
                found
            );
            prop_assert_eq!(all.max_ns(), ns);
        }
    }
}
