//! Independent requests with Zipf popularity.
//!
//! Request `i` (from 0) draws `u = (splitmix64(seed + (i + 1) * 0x9E3779B97F4A7C15) >> 11) * 2^-53` and takes the key
//! whose cumulative weight `1 / rank^alpha` first exceeds `u`; ranks, and keys, count from 1.
//! Sums are taken in the order of ranks, so that the result is the same to the last bit as with a plain cumulative sum.

/// An endless iterator of keys.
#[derive(Clone, Debug)]
pub struct Zipf {
    cumulative: Vec<f64>,
    /// For each of 2^`GUIDE_BITS` equal parts of [0, 1): the first index of `cumulative` that a `u` in it can choose.
    guide: Vec<u32>,
    seed: u64,
    drawn: u64,
}

const GUIDE_BITS: u32 = 16;

impl Zipf {
    /// `keys` from 1 to 2^32 - 1; `alpha` of 0 is uniform, 1 is the classic law.
    ///
    /// # Panics
    /// If there are no keys.
    pub fn new(keys: u32, alpha: f64, seed: u64) -> Self {
        assert!(keys > 0, "a Zipf trace needs at least one key");
        let mut sum = 0.0;
        let mut cumulative: Vec<f64> = (1..=keys)
            .map(|rank| {
                sum += 1.0 / if alpha == 1.0 { f64::from(rank) } else { f64::from(rank).powf(alpha) };
                sum
            })
            .collect();
        cumulative.iter_mut().for_each(|c| *c /= sum);
        let mut at = 0;
        let guide = (0..1u32 << GUIDE_BITS)
            .map(|part| {
                let u = f64::from(part) / f64::from(1u32 << GUIDE_BITS);
                while at + 1 < cumulative.len() && cumulative[at] <= u {
                    at += 1;
                }
                at as u32
            })
            .collect();
        Self { cumulative, guide, seed, drawn: 0 }
    }
}

impl Iterator for Zipf {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.drawn = self.drawn.wrapping_add(1);
        let mut z = self.seed.wrapping_add(self.drawn.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        let u = (z >> 11) as f64 * (0.5f64).powi(53);
        let part = (z >> (64 - GUIDE_BITS)) as usize;
        let from = self.guide[part] as usize;
        let to = self.guide.get(part + 1).map_or(self.cumulative.len(), |&g| g as usize + 1);
        let index = from + self.cumulative[from..to].partition_point(|&c| c <= u);
        Some(index.min(self.cumulative.len() - 1) as u64 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The guide only shortens the search: the same keys come out of a search over everything.
    #[test]
    fn the_guide_changes_nothing() {
        for (keys, alpha) in [(1, 1.0), (2, 1.0), (1000, 0.0), (1000, 0.8), (100_000, 1.2)] {
            let zipf = Zipf::new(keys, alpha, 7);
            let all = zipf.cumulative.clone();
            for (i, key) in zipf.clone().take(20_000).enumerate() {
                let mut z = 7u64.wrapping_add((i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
                z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                z ^= z >> 31;
                let u = (z >> 11) as f64 * (0.5f64).powi(53);
                let expected = all.partition_point(|&c| c <= u).min(all.len() - 1) as u64 + 1;
                assert_eq!(key, expected, "{keys} keys, alpha {alpha}, request {i}");
            }
        }
    }

    /// The trace that the reference counts name: 1,000,000 keys, 20,000,000 requests, exponent 1, seed 42. How many
    /// distinct keys it has is known; the golden counts of the engine hold the rest to it.
    #[test]
    fn the_reference_trace_has_its_distinct_keys() {
        let mut seen = vec![false; 1_000_001];
        Zipf::new(1_000_000, 1.0, 42).take(20_000_000).for_each(|key| seen[key as usize] = true);
        assert_eq!(seen.iter().filter(|&&s| s).count(), 914_769);
    }
}
