//! How many requests needed a cache of how many blocks, in a bounded number of buckets.
//!
//! Owns weights by bucket: sizes below [`LINEAR`] have one each, above that every doubling has as many buckets as half
//! of them. Never forgets but by halving. Invariant: a bucket is narrower than 1/64 of the sizes in it.

/// Sizes with a bucket of their own; a power of two.
const LINEAR: u64 = 128;
/// Buckets of one doubling.
const PER_DOUBLING: u64 = LINEAR / 2;

/// Requests, counted twice: each as it is, and each as often as its block was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Weight {
    pub requests: f64,
    /// By the popularity of their blocks: see `LruCurve::curve`.
    pub popular: f64,
}

impl Weight {
    pub fn add(&mut self, other: Weight) {
        self.requests += other.requests;
        self.popular += other.popular;
    }

    pub fn halve(&mut self) {
        self.requests /= 2.0;
        self.popular /= 2.0;
    }

    /// Misses of `all` requests (their exact number), where these were estimated to miss and `sampled` to be asked for,
    /// from a sample of one block in `blocks_per_sample`.
    ///
    /// A sample that has too many requests has too many of the misses, too, by as much as popular blocks miss: the
    /// regression estimator of survey sampling (Cochran, Sampling Techniques, chapter 7), with the slope that makes the
    /// error of a sample of whole blocks smallest, the sum of misses times requests over that of requests squared.
    /// Where requests are missing beyond twice the standard deviation that blocks like those in the sample explain,
    /// they are of blocks more popular than any of those, and hits: the adjustment of SHARDS.
    pub fn misses_of(self, sampled: Weight, all: f64, blocks_per_sample: f64) -> f64 {
        if sampled.popular <= 0.0 {
            return self.requests;
        }
        // a block asked for n times adds 1 + 2 + ... + n to `popular`: half of n squared
        let deviation = (2.0 * sampled.popular * (blocks_per_sample - 1.0).max(0.0)).sqrt();
        self.requests + self.popular / sampled.popular * (all - sampled.requests).min(2.0 * deviation)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Histogram {
    /// Grows to the largest size seen.
    weights: Vec<Weight>,
}

/// The number of the bucket of a size. Sizes below 128 have a bucket each; above, a bucket is narrower than 1/64 of
/// them.
pub fn bucket(size: u64) -> usize {
    if size < LINEAR {
        return size as usize;
    }
    let doubling = (size / PER_DOUBLING).ilog2();
    (u64::from(doubling) * PER_DOUBLING + (size >> doubling)) as usize
}

/// The largest size in a bucket.
pub fn last_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < LINEAR {
        return bucket;
    }
    let doubling = bucket / PER_DOUBLING - 1;
    let within = bucket - doubling * PER_DOUBLING;
    // the last bucket of all ends at the largest number
    (((u128::from(within) + 1) << doubling) - 1).min(u128::from(u64::MAX)) as u64
}

impl Histogram {
    /// Adds requests that hit in a cache of `size` blocks or more.
    #[inline]
    pub fn add(&mut self, size: u64, weight: Weight) {
        let bucket = bucket(size);
        if bucket >= self.weights.len() {
            let len = (bucket + 1).next_multiple_of(PER_DOUBLING as usize);
            self.weights.reserve_exact(len - self.weights.len());
            self.weights.resize(len, Weight::default());
        }
        self.weights[bucket].add(weight);
    }

    /// Halves all weights.
    pub fn halve(&mut self) {
        self.weights.iter_mut().for_each(Weight::halve);
    }

    /// The ends of non-empty buckets, falling: the size before the bucket, its last size, and its weight.
    pub fn falling(&self) -> impl Iterator<Item = (u64, u64, Weight)> + '_ {
        let full = self.weights.iter().enumerate().rev().filter(|&(_, weight)| weight.requests > 0.0);
        full.map(|(b, &weight)| (if b == 0 { 0 } else { last_of(b - 1) }, last_of(b), weight))
    }

    /// Bytes of memory held once sizes up to `size_max` were added.
    pub fn bytes_max(size_max: u64) -> usize {
        (bucket(size_max) + 1).next_multiple_of(PER_DOUBLING as usize) * size_of::<Weight>()
    }

    pub fn memory_bytes(&self) -> usize {
        self.weights.capacity() * size_of::<Weight>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_tile_the_sizes_and_are_narrow() {
        let mut first = 0;
        let mut at = 0;
        loop {
            let last = last_of(at);
            assert_eq!((bucket(first), bucket(last)), (at, at), "bucket {at}: {first}..={last}");
            assert!((last - first) as f64 <= first as f64 / 64.0, "bucket {at}: {first}..={last}");
            if last == u64::MAX {
                break;
            }
            (first, at) = (last + 1, at + 1);
        }
        assert!(at < 4000, "{at} buckets");
    }
}
