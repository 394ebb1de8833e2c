//! How many requests needed a cache of how many blocks, in a bounded number of buckets.
//!
//! Owns weights by bucket: sizes below [`LINEAR`] have one each, above that every doubling has as many buckets as half
//! of them. Never forgets but by halving. Invariant: a bucket is narrower than 1/64 of the sizes in it.

/// Sizes with a bucket of their own; a power of two.
const LINEAR: u64 = 128;
/// Buckets of one doubling.
const PER_DOUBLING: u64 = LINEAR / 2;

#[derive(Clone, Debug, Default)]
pub(super) struct Histogram {
    /// Grows to the largest size seen.
    weights: Vec<f64>,
}

/// The bucket of a size.
fn bucket(size: u64) -> usize {
    if size < LINEAR {
        return size as usize;
    }
    let doubling = (size / PER_DOUBLING).ilog2();
    (u64::from(doubling) * PER_DOUBLING + (size >> doubling)) as usize
}

/// The largest size in a bucket.
fn last_of(bucket: usize) -> u64 {
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
    /// Adds `weight` requests that hit in a cache of `size` blocks or more.
    #[inline]
    pub fn add(&mut self, size: u64, weight: f64) {
        let bucket = bucket(size);
        if bucket >= self.weights.len() {
            self.weights.resize(bucket + 1, 0.0);
        }
        self.weights[bucket] += weight;
    }

    /// Halves all weights.
    pub fn halve(&mut self) {
        self.weights.iter_mut().for_each(|w| *w /= 2.0);
    }

    /// The ends of non-empty buckets, falling: the size before the bucket, its last size, and its weight.
    pub fn falling(&self) -> impl Iterator<Item = (u64, u64, f64)> + '_ {
        let full = self.weights.iter().enumerate().rev().filter(|&(_, &weight)| weight > 0.0);
        full.map(|(b, &weight)| (if b == 0 { 0 } else { last_of(b - 1) }, last_of(b), weight))
    }

    pub fn memory_bytes(&self) -> usize {
        self.weights.capacity() * size_of::<f64>()
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
