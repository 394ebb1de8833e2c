//! Sums of products over a block under a secret key: the first half of a keyed hash, as fast as the block can be read.
//!
//! Owns the key and the function, NH (Black, Halevi, Krawczyk, Krovetz and Rogaway, "UMAC", CRYPTO 1999). Never gives
//! out a hash: sums show something of their key, so whoever uses them passes them through a pseudo-random function and
//! keeps what comes. Invariant: for any two blocks that differ, chosen without the key, both sums are equal under one
//! key in 2^64 at most, whichever instructions computed them.
//!
//! Each sum is made of 32-bit words: of all pairs of neighbours, both plus a word of the key, the products. The second
//! sum has the same key shifted by eight words, as the paper allows for any shift by whole pairs.

use crate::frame::FRAME_BYTES;

/// Words of 32 bits of a block.
const WORDS: usize = FRAME_BYTES / 4;
/// Words by which the key of the second sum is shifted.
const SHIFT: usize = 8;

/// A secret key.
#[derive(Clone)]
pub struct SumKey([u32; WORDS + SHIFT]);

impl std::fmt::Debug for SumKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SumKey")
    }
}

impl SumKey {
    /// A key of what `next` gives, which must be as good as random.
    pub fn new(next: impl FnMut() -> u32) -> Self {
        let mut next = next;
        Self(std::array::from_fn(|_| next()))
    }

    /// The two sums of a block.
    #[inline]
    #[must_use]
    pub fn sums(&self, block: &[u8; FRAME_BYTES]) -> [u64; 2] {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has the instructions that the function is compiled for.
            return unsafe { self.with_avx2(block) };
        }
        self.portable(block)
    }

    fn portable(&self, block: &[u8; FRAME_BYTES]) -> [u64; 2] {
        let word = |n: usize| u32::from_le_bytes([block[4 * n], block[4 * n + 1], block[4 * n + 2], block[4 * n + 3]]);
        let mut sums = [0u64; 2];
        for n in (0..WORDS).step_by(2) {
            for (sum, shift) in sums.iter_mut().zip([0, SHIFT]) {
                let (x, y) = (word(n).wrapping_add(self.0[n + shift]), word(n + 1).wrapping_add(self.0[n + 1 + shift]));
                *sum = sum.wrapping_add(u64::from(x) * u64::from(y));
            }
        }
        sums
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[target_feature(enable = "avx2")]
    fn with_avx2(&self, block: &[u8; FRAME_BYTES]) -> [u64; 2] {
        use std::arch::x86_64::{
            __m256i, _mm256_add_epi32, _mm256_add_epi64, _mm256_loadu_si256, _mm256_mul_epu32, _mm256_setzero_si256,
            _mm256_srli_epi64, _mm256_storeu_si256,
        };
        const BYTES: usize = size_of::<__m256i>();
        const { assert!(BYTES == 4 * SHIFT && FRAME_BYTES.is_multiple_of(2 * BYTES)) };
        let (words, keys) = (block.as_ptr().cast::<__m256i>(), self.0.as_ptr().cast::<__m256i>());
        let add = |sum: __m256i, x: __m256i, key: __m256i| {
            let both = _mm256_add_epi32(x, key);
            _mm256_add_epi64(sum, _mm256_mul_epu32(both, _mm256_srli_epi64::<32>(both)))
        };
        // Two of each, so that additions need not wait for each other.
        let mut sums = [[_mm256_setzero_si256(); 2]; 2];
        for n in (0..FRAME_BYTES / BYTES).step_by(2) {
            // SAFETY: a block has `FRAME_BYTES / BYTES` vectors and the key one more, `n + 2` at most; unaligned loads
            // need no alignment.
            let (x, key) = unsafe {
                let x = [words.add(n), words.add(n + 1)].map(|p| _mm256_loadu_si256(p));
                (x, [keys.add(n), keys.add(n + 1), keys.add(n + 2)].map(|p| _mm256_loadu_si256(p)))
            };
            for lane in 0..2 {
                sums[0][lane] = add(sums[0][lane], x[lane], key[lane]);
                sums[1][lane] = add(sums[1][lane], x[lane], key[lane + 1]);
            }
        }
        sums.map(|[even, odd]| {
            let mut parts = [0u64; BYTES / 8];
            // SAFETY: `parts` has room for one vector; unaligned stores need no alignment.
            unsafe { _mm256_storeu_si256(parts.as_mut_ptr().cast(), _mm256_add_epi64(even, odd)) };
            parts.iter().fold(0u64, |sum, part| sum.wrapping_add(*part))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudo-random numbers (splitmix64).
    fn random(state: &mut u64) -> u32 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as u32
    }

    fn noise(state: &mut u64) -> [u8; FRAME_BYTES] {
        std::array::from_fn(|_| random(state) as u8)
    }

    #[test]
    fn all_instructions_give_the_same_sums() {
        let mut state = 1;
        for n in 0..64 {
            let key = SumKey::new(|| random(&mut state));
            let block = match n {
                0 => [0; FRAME_BYTES],
                1 => [0xff; FRAME_BYTES],
                _ => noise(&mut state),
            };
            assert_eq!(key.sums(&block), key.portable(&block));
        }
    }

    /// Words that are worked out by hand: only the first pair is not zero, and the key is.
    #[test]
    fn a_sum_is_what_the_paper_says() {
        let key = SumKey::new(|| 0);
        let mut block = [0; FRAME_BYTES];
        block[..8].copy_from_slice(&[3, 0, 0, 0x80, 5, 0, 0, 0]);
        assert_eq!(key.sums(&block), [0x8000_0003 * 5; 2]);
        let mut words = (0..).map(|n| if n == 8 { u32::MAX } else { 0 });
        let key = SumKey::new(|| words.next().unwrap_or(0));
        // The second sum has word 8 of the key beside the first word of the block; sums of words wrap.
        assert_eq!(key.sums(&block), [0x8000_0003 * 5, 0x8000_0002 * 5]);
    }

    #[test]
    fn every_bit_of_a_block_counts_in_both_sums() {
        let mut state = 2;
        let key = SumKey::new(|| random(&mut state));
        let mut block = noise(&mut state);
        let [a, b] = key.sums(&block);
        for bit in 0..8 * FRAME_BYTES {
            block[bit / 8] ^= 1 << (bit % 8);
            let [c, d] = key.sums(&block);
            assert!(a != c && b != d, "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
