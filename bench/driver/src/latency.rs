//! A histogram of latencies with bounded error.
//!
//! Owns its counts; never allocates after it was made. Invariant: a value read back is at most 1/64 (1.6 %) above
//! the value recorded. The buckets are those of HdrHistogram: powers of two, each cut into equal parts.

const PARTS_LOG2: u32 = 6;
const PARTS: usize = 1 << PARTS_LOG2;
const BUCKETS: usize = PARTS * (64 - PARTS_LOG2 as usize + 1);

/// Counts of latencies in nanoseconds.
#[derive(Clone, Debug)]
pub struct Latencies {
    counts: Box<[u64]>,
    total: u64,
    sum_ns: u128,
    max_ns: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Latencies { counts: vec![0; BUCKETS].into_boxed_slice(), total: 0, sum_ns: 0, max_ns: 0 }
    }
}

fn bucket(ns: u64) -> usize {
    if ns < PARTS as u64 {
        return ns as usize;
    }
    let power = 63 - ns.leading_zeros();
    let part = (ns >> (power - PARTS_LOG2)) as usize - PARTS;
    (power - PARTS_LOG2 + 1) as usize * PARTS + part
}

/// The largest value that falls in a bucket.
fn upper(bucket: usize) -> u64 {
    if bucket < PARTS {
        return bucket as u64;
    }
    let shift = (bucket / PARTS - 1) as u32;
    let low = ((PARTS + bucket % PARTS) as u128) << shift;
    u64::try_from(low + (1u128 << shift) - 1).unwrap_or(u64::MAX)
}

impl Latencies {
    /// Counts one operation.
    pub fn record(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.total += 1;
        self.sum_ns += u128::from(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Operations counted.
    pub fn count(&self) -> u64 {
        self.total
    }

    /// The latency in microseconds that a share `q` of the operations did not exceed; 0 if there were none.
    pub fn quantile_us(&self, q: f64) -> f64 {
        let rank = ((self.total as f64 * q).ceil() as u64).max(1);
        let mut seen = 0;
        for (b, n) in self.counts.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return upper(b).min(self.max_ns) as f64 / 1000.0;
            }
        }
        0.0
    }

    /// Mean in microseconds; 0 if there were none.
    pub fn mean_us(&self) -> f64 {
        if self.total == 0 { 0.0 } else { self.sum_ns as f64 / self.total as f64 / 1000.0 }
    }

    /// The longest, in microseconds.
    pub fn max_us(&self) -> f64 {
        self.max_ns as f64 / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_falls_in_a_bucket_that_reaches_just_over_it() {
        for power in 0..64u32 {
            for near in [-1i128, 0, 1, 17] {
                let value = (1i128 << power) + near;
                let Ok(value) = u64::try_from(value) else { continue };
                let top = upper(bucket(value));
                assert!(top >= value, "{value} is above its bucket's end {top}");
                assert!(u128::from(top - value) * 64 <= u128::from(value), "{value} is read back as {top}");
            }
        }
        assert!(bucket(u64::MAX) < BUCKETS);
    }

    #[test]
    fn quantiles_of_a_known_series() {
        let mut l = Latencies::default();
        (1..=1000u64).for_each(|i| l.record(i * 1000));
        assert!((l.quantile_us(0.5) / 500.0 - 1.0).abs() < 0.02);
        assert!((l.quantile_us(0.99) / 990.0 - 1.0).abs() < 0.02);
        assert_eq!(l.quantile_us(1.0), 1000.0);
        assert_eq!(l.mean_us(), 500.5);
        assert_eq!(Latencies::default().quantile_us(0.5), 0.0);
    }
}
