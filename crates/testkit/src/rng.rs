//! Pseudo-random numbers from a seed (splitmix64; Steele, Lea and Flood, OOPSLA 2014).
//!
//! Owns one 64-bit state. Never reads entropy. Invariant: the same seed gives the same numbers on every machine.

pub use crate::mixing::mix;
use crate::mixing::plain_pattern;

/// The source of all choices of a run.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Numbers that `seed` fixes.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed ^ 0x5eed_cafe_f00d_d00d))
    }

    /// The next 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `n`, which is not 0.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// A number in `lo..=hi`.
    pub fn between(&mut self, lo: u64, hi: u64) -> u64 {
        lo + self.below(hi - lo + 1)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of `items`.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}

/// Fills `to` with what write number `write` puts at byte `pos` of a disk and after: every byte depends on both, so
/// data of another write, or of another place, shows. But for numbers of alike contents: see `alike`.
pub fn fill_pattern(write: u64, pos: u64, to: &mut [u8]) {
    if write >= crate::alike::ALIKE {
        crate::alike::fill(write, pos, to);
    } else {
        plain_pattern(write, pos, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_the_same_however_it_is_cut() {
        let mut whole = vec![0; 100];
        fill_pattern(7, 1003, &mut whole);
        let mut parts = vec![0; 100];
        let (a, b) = parts.split_at_mut(33);
        fill_pattern(7, 1003, a);
        fill_pattern(7, 1036, b);
        assert_eq!(whole, parts);
        let mut other = vec![0; 100];
        fill_pattern(8, 1003, &mut other);
        let same = whole.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(same < 10, "{same} of 100 bytes do not tell two writes apart");
    }
}
