//! A permutation of block numbers, keyed by owner: by it a block's place in the index says which block it is.
//!
//! Owns the function and its inverse. Never hashes content. Invariant: for one key, different blocks below 2^40 have
//! different images, so that bucket and remainder together are the block, exactly.

use super::types::BLOCKS_MAX;

/// Bits of a block number.
const BITS: u32 = BLOCKS_MAX.trailing_zeros();
const MASK: u64 = BLOCKS_MAX - 1;
/// Odd, so that multiplication modulo 2^40 can be undone.
const FACTORS: [u64; 2] = [0xb5_1d_8b_4f_65, 0x6c_8e_94_44_f3];

/// The number that undoes the multiplication by `odd` modulo 2^64 (Newton's iteration).
const fn inverse(odd: u64) -> u64 {
    let mut x = odd;
    let mut n = 0;
    while n < 6 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
        n += 1;
    }
    x
}

/// Mixes 64 bits (the end of splitmix64).
pub(super) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The image of a block; a number below 2^40 again.
#[inline]
pub(super) fn permute(key: u64, block: u64) -> u64 {
    let mut x = (block ^ key) & MASK;
    for factor in FACTORS {
        x = x.wrapping_mul(factor) & MASK;
        // By half of the bits or more: doing it twice undoes it.
        x ^= x >> (BITS / 2 + 1);
    }
    x.wrapping_mul(FACTORS[0]) & MASK
}

/// The block that an image is of.
pub(super) fn restore(key: u64, image: u64) -> u64 {
    let mut x = image.wrapping_mul(const { inverse(FACTORS[0]) }) & MASK;
    for factor in [const { inverse(FACTORS[1]) }, const { inverse(FACTORS[0]) }] {
        x ^= x >> (BITS / 2 + 1);
        x = x.wrapping_mul(factor) & MASK;
    }
    (x ^ key) & MASK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_is_restored_from_its_image() {
        for n in 0..200_000u64 {
            let (key, block) = (mix(n / 1000), if n % 2 == 0 { n } else { mix(n) & MASK });
            let image = permute(key, block);
            assert!(image <= MASK);
            assert_eq!(restore(key, image), block);
        }
    }

    #[test]
    fn neighbours_are_spread_over_all_buckets() {
        for key in [0, 7, mix(3)] {
            let mut buckets = [0u32; 256];
            (0..256 * 64).for_each(|block| buckets[(permute(key, block) >> (BITS - 8)) as usize] += 1);
            assert!(buckets.iter().all(|n| (24..=120).contains(n)), "{buckets:?}");
        }
    }
}
