//! The hash of a page's content.
//!
//! Owns the key, which is drawn anew for every scanner: nobody inside a guest can make two contents meet. Never sees a byte
//! that is still a guest's. Invariant: 0 is never a hash, so that it can stand for "unknown".

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU64;

/// Hashes pages.
#[derive(Clone, Debug)]
pub struct PageHash {
    seed: u64,
}

impl Default for PageHash {
    fn default() -> Self {
        Self::new()
    }
}

impl PageHash {
    /// With a key of its own.
    pub fn new() -> Self {
        PageHash { seed: RandomState::new().hash_one(0u64) }
    }

    /// With a known key, for tests that must be repeated.
    pub fn with_seed(seed: u64) -> Self {
        PageHash { seed }
    }

    /// The hash of some bytes.
    #[inline]
    pub fn of(&self, bytes: &[u8]) -> NonZeroU64 {
        NonZeroU64::new(xxhash_rust::xxh3::xxh3_64_with_seed(bytes, self.seed)).unwrap_or(NonZeroU64::MIN)
    }
}

/// Whether all bytes are 0.
#[inline]
pub fn is_zero(bytes: &[u8]) -> bool {
    // Most pages that are not zero say so at the first or the last line.
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return true };
    if *first | *last != 0 {
        return false;
    }
    let (wide, rest) = bytes.as_chunks::<64>();
    wide.iter().all(|line| line.iter().fold(0, |a, b| a | b) == 0) && rest.iter().all(|b| *b == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_anywhere_is_seen() {
        let mut page = [0u8; 4096];
        assert!(is_zero(&page) && is_zero(&[]) && is_zero(&[0; 3]));
        let hash = PageHash::with_seed(1);
        let zero = hash.of(&page);
        for at in 0..4096 {
            page[at] = 1;
            assert!(!is_zero(&page), "byte {at}");
            assert_ne!(hash.of(&page), zero, "byte {at}");
            page[at] = 0;
        }
        assert!(!is_zero(&[0, 0, 1]));
    }

    #[test]
    fn keys_differ() {
        assert_ne!(PageHash::new().of(&[1; 4096]), PageHash::new().of(&[1; 4096]));
        assert_eq!(PageHash::with_seed(7).of(&[1; 4096]), PageHash::with_seed(7).of(&[1; 4096]));
    }
}
