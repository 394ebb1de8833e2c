//! The hash of a page's content, and of the piece of it that a sample is chosen by.
//!
//! Owns the keys of one scanner. Never hashes a guest's own memory, only copies. Invariant: nobody inside a guest can
//! make two contents have the same hash: keys are secret, drawn anew for every report; the daemon's is the one of its
//! cache.

use std::hash::{BuildHasher, RandomState};
use undercroft_cache::{ContentHash, ContentKey};
use undercroft_host::foreign::PAGE_BYTES;

/// Hashes pages.
#[derive(Clone, Debug)]
pub struct PageHash {
    key: ContentKey,
    probes: RandomState,
}

impl PageHash {
    /// With the key of a cache, to be compared with its hashes.
    pub(crate) fn with_key(key: ContentKey) -> Self {
        PageHash { key, probes: RandomState::new() }
    }

    /// With a key of its own.
    pub fn new() -> Self {
        Self::with_key(ContentKey::from_seed(RandomState::new().hash_one(0u64)))
    }

    /// The hash of a page.
    #[inline]
    pub fn of(&self, page: &[u8; PAGE_BYTES]) -> ContentHash {
        self.key.hash(page)
    }

    /// A hash of some bytes, evenly spread.
    pub(crate) fn of_probe(&self, bytes: &[u8]) -> u64 {
        self.probes.hash_one(bytes)
    }
}

impl Default for PageHash {
    fn default() -> Self {
        Self::new()
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
        let hash = PageHash::new();
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
        let hash = PageHash::with_key(ContentKey::from_seed(7));
        assert_eq!(hash.of(&[1; 4096]), ContentKey::from_seed(7).hash(&[1; 4096]));
        assert_eq!(hash.of_probe(&[1; 64]), hash.clone().of_probe(&[1; 64]));
    }
}
