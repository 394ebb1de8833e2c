//! Hashing of block numbers, for sampling, sets and estimates: SplitMix64's finalizer (Steele, Lea and Flood 2014).
//!
//! Owns the function. Invariant: the same number gives the same hash everywhere, forever: samples depend on it.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// Mixes a number so that each bit of the result depends on each bit of it.
#[inline]
pub fn mixed(x: u64) -> u64 {
    finished(x.wrapping_add(0x9e37_79b9_7f4a_7c15))
}

/// The finalizer alone: 0 stays 0.
#[inline]
pub fn finished(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The number that stands for a key that is text: eight bytes after the other, then the length. Of a million keys, two
/// have one number with a probability of about 3 in 100 million.
pub(crate) fn of_text(text: &[u8]) -> u64 {
    let number = |chunk: &[u8]| chunk.iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
    mixed(text.chunks(8).fold(0, |hash, chunk| mixed(hash ^ number(chunk))) ^ text.len() as u64)
}

/// Hashes numbers for the standard collections.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Numbers(u64);

impl Hasher for Numbers {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(u64::from(b)));
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = mixed(self.0 ^ n);
    }
}

/// A set of block numbers.
pub(crate) type NumberSet = HashSet<u64, BuildHasherDefault<Numbers>>;
/// A map from block numbers.
pub(crate) type NumberMap<T> = HashMap<u64, T, BuildHasherDefault<Numbers>>;
