//! The name of a block's content: a keyed hash of its bytes, by which equal contents are found.
//!
//! Owns the key and the function: NH sums of the block (`host/src/sums.rs`), and HighwayHash (Alakuijala, Cox and
//! Wassenberg, 2016), a pseudo-random function, of the sums. Never hashes memory that a guest can write at the same
//! time: callers copy first. Invariant: equal content has equal hashes under one key; without the key nobody can make
//! two contents collide on purpose. Contents chosen without the key have equal sums once in 2^64 times, whatever they
//! are, and a hash shows nothing of the sums (decision 0198). Nothing is shared because of a hash alone: bytes are
//! compared as well.

use highway::{HighwayHash, HighwayHasher, Key};
use std::num::NonZeroU64;
use std::sync::Arc;
use undercroft_host::{FRAME_BYTES, SumKey};

/// The name of a block's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentHash(NonZeroU64);

impl ContentHash {
    /// The number.
    pub fn get(self) -> u64 {
        self.0.get()
    }

    /// The hash that [`ContentHash::get`] gave; `None` for 0, which no hash is.
    pub fn new(hash: u64) -> Option<Self> {
        NonZeroU64::new(hash).map(Self)
    }
}

/// The secret key of content hashes. Hashes can be compared only if they were made with the same key.
#[derive(Clone, Debug)]
pub struct ContentKey {
    key: [u64; 4],
    /// Made from `key`; 4 KiB, held once.
    sums: Arc<SumKey>,
    mask: u64,
}

impl ContentKey {
    /// A key made from `seed`, which must be random in a daemon.
    pub fn from_seed(seed: u64) -> Self {
        let mut state = seed;
        let mut next = || {
            // splitmix64 (Steele, Lea and Flood, OOPSLA 2014)
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        let key = [next(), next(), next(), next()];
        let mut words = 0u64;
        let sums = SumKey::new(|| {
            words += 1;
            HighwayHasher::new(Key(key)).hash64(&words.to_le_bytes()) as u32
        });
        Self { key, sums: Arc::new(sums), mask: u64::MAX }
    }

    /// The same with only `bits` bits left of every hash, so that collisions happen: for tests.
    pub fn weakened(self, bits: u32) -> Self {
        Self { mask: u64::MAX.checked_shr(64 - bits.clamp(1, 64)).unwrap_or(u64::MAX), ..self }
    }

    /// The hash of one block.
    #[inline]
    pub fn hash(&self, bytes: &[u8; FRAME_BYTES]) -> ContentHash {
        let [first, second] = self.sums.sums(bytes).map(u64::to_le_bytes);
        let mut sums = [0; 16];
        sums[..8].copy_from_slice(&first);
        sums[8..].copy_from_slice(&second);
        // Sums are 16 bytes, and what makes the key is 8: no word of the key is the hash of a block.
        let hash = HighwayHasher::new(Key(self.key)).hash64(&sums) & self.mask;
        // 0 stands for "not known". Its replacement differs in the high bits too: residency does not keep the lowest.
        ContentHash(NonZeroU64::new(hash).unwrap_or(NonZeroU64::MAX))
    }
}

/// Whether a block is nothing but zeroes.
#[inline]
pub fn is_zeroes(bytes: &[u8; FRAME_BYTES]) -> bool {
    // most blocks show otherwise in their first bytes
    bytes[..16] == [0; 16] && bytes.iter().all(|&b| b == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_follow_content_and_key() {
        let (a, b) = (ContentKey::from_seed(1), ContentKey::from_seed(2));
        let mut page = [7u8; FRAME_BYTES];
        let before = a.hash(&page);
        assert_ne!(before, b.hash(&page));
        page[4095] ^= 1;
        assert_ne!(a.hash(&page), before);
        page[4095] ^= 1;
        assert_eq!(a.hash(&page), before);
        assert_eq!(ContentHash::new(before.get()), Some(before));
    }

    #[test]
    fn a_weakened_key_collides() {
        let key = ContentKey::from_seed(1).weakened(2);
        let mut seen = [false; 4];
        for n in 0..=255u8 {
            let h = key.hash(&[n; FRAME_BYTES]).get();
            seen[(h & 3) as usize] = true;
            assert!(h <= 3 || h == u64::MAX);
        }
        assert!(seen[1] && seen[2] && seen[3]);
    }

    #[test]
    fn zeroes_are_told_from_almost_zeroes() {
        let mut page = [0u8; FRAME_BYTES];
        assert!(is_zeroes(&page));
        page[4000] = 1;
        assert!(!is_zeroes(&page));
    }
}
