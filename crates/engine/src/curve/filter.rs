//! Which blocks a sample holds: those whose hash is low enough.
//!
//! Owns the arithmetic between thresholds and rates. Invariant: a lower rate samples a subset of the blocks that a
//! higher one does.

/// Hashes that there are.
const HASHES: f64 = 18_446_744_073_709_551_616.0;

/// A block is sampled if its hash is at most this; so 1 in 2^64 is the lowest rate, and none is the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Threshold(pub u64);

impl Threshold {
    /// Every block.
    pub const ALL: Self = Self(u64::MAX);

    /// The threshold that samples about `rate` of the blocks; what is not in 0..=1 becomes the nearer end.
    pub fn of_rate(rate: f64) -> Self {
        // a cast saturates, and makes 0 of what is not a number
        Self(((rate * HASHES) as u64).saturating_sub(u64::from(rate < 1.0)))
    }

    /// The part of all blocks that is sampled.
    pub fn rate(self) -> f64 {
        (self.0 as f64 + 1.0) / HASHES
    }

    #[inline]
    pub fn admits(self, hash: u64) -> bool {
        hash <= self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::structures::table::HashKey;

    #[test]
    fn rates_and_thresholds_are_each_others_inverse() {
        for rate in [1.0, 0.75, 0.5, 1.0 / 64.0, 1e-6] {
            assert!((Threshold::of_rate(rate).rate() / rate - 1.0).abs() < 1e-9, "{rate}");
        }
        assert_eq!(Threshold::of_rate(1.0), Threshold::ALL);
        assert_eq!(Threshold::of_rate(7.0), Threshold::ALL);
        assert_eq!(Threshold::of_rate(0.0).0, 0);
        assert_eq!(Threshold::of_rate(-1.0).0, 0);
        assert_eq!(Threshold::of_rate(f64::NAN).0, 0);
    }

    #[test]
    fn sequential_and_strided_blocks_are_sampled_at_the_rate() {
        let key = HashKey::from_seed(3).derived();
        let threshold = Threshold::of_rate(1.0 / 32.0);
        for stride in [1u64, 8, 512, 1 << 20, 1 << 36] {
            let taken = (0..320_000u64).filter(|i| threshold.admits(key.hash(i.wrapping_mul(stride)))).count();
            // 10,000 expected with standard deviation 98: six of them
            assert!((9_400..=10_600).contains(&taken), "{taken} of 320000 at stride {stride}");
        }
    }
}
