//! How often blocks were asked for of late, roughly: a counting Bloom filter that ages.
//!
//! Owns one-byte counters that blocks share: a block has ten of them, and the smallest is its estimate, which is never
//! too low but for saturation and ageing. Ageing halves all counters. Never allocates after construction.
//! Invariant: memory is fixed, about 14.4 bytes for each entry it was made for, whatever is added.
//!
//! Size and number of hashes are those of libCacheSim 0.3.5 (a filter for an error of 0.001), whose counters have four
//! bytes; docs/decisions/0011 says what one byte changes, and why four bits would not do.

use crate::structures::table::HashKey;

/// Counters of one block: ceil(ln 2 * bits per entry), as for a Bloom filter with an error of 0.001.
const HASHES: u32 = 10;
/// Counters per thousand entries: -ln(0.001) / ln(2)^2 of them each.
const COUNTERS_PER_1000: u64 = 14_378;
/// Counters that one addition halves while ageing is under way, so that no single call takes long.
const AGE_STEP: usize = 4096;

#[derive(Debug)]
pub(crate) struct Sketch {
    counters: Vec<u8>,
    /// Counters from here on are still to be halved.
    aged: usize,
    key: HashKey,
}

fn counters_for(entries: u32) -> usize {
    (u64::from(entries) * COUNTERS_PER_1000).div_ceil(1000).max(2 * u64::from(HASHES)) as usize
}

impl Sketch {
    /// A sketch with all estimates 0.
    pub fn new(entries: u32, key: HashKey) -> Self {
        let counters = counters_for(entries);
        // the key of the hash table, turned: a block that shares its home with others need not share counters
        Self { counters: vec![0; counters], aged: counters, key: key.derived() }
    }

    /// An empty sketch of the same kind for another number of entries.
    pub fn resized(&self, entries: u32) -> Self {
        let counters = counters_for(entries);
        Self { counters: vec![0; counters], aged: counters, key: self.key }
    }

    /// The places of a block's counters: double hashing, so that two numbers make ten.
    #[inline]
    fn places(&self, block: u64) -> impl Iterator<Item = usize> + use<> {
        let hash = self.key.hash(block);
        let (start, step) = (hash as u32, (hash >> 32) as u32 | 1);
        let counters = self.counters.len() as u64;
        (0..HASHES).map(move |i| {
            let spread = start.wrapping_add(step.wrapping_mul(i));
            ((u64::from(spread) * counters) >> 32) as usize
        })
    }

    /// How often `block` was added since it was not too long ago.
    #[inline]
    pub fn estimate(&self, block: u64) -> u8 {
        self.places(block).fold(u8::MAX, |least, at| least.min(self.counters[at]))
    }

    /// Counts one request for `block`.
    #[inline]
    pub fn add(&mut self, block: u64) {
        for at in self.places(block) {
            self.counters[at] = self.counters[at].saturating_add(1);
        }
        if self.aged < self.counters.len() {
            self.age_on();
        }
    }

    /// Makes the estimate of `block` at least `estimate`.
    pub fn raise(&mut self, block: u64, estimate: u8) {
        for at in self.places(block) {
            self.counters[at] = self.counters[at].max(estimate);
        }
    }

    /// Begins to halve all counters; later additions carry it on.
    pub fn age(&mut self) {
        self.aged = 0;
        self.age_on();
    }

    fn age_on(&mut self) {
        let end = (self.aged + AGE_STEP).min(self.counters.len());
        self.counters[self.aged..end].iter_mut().for_each(|c| *c >>= 1);
        self.aged = end;
    }

    pub fn memory_bytes(&self) -> usize {
        self.counters.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_never_too_low_and_rarely_too_high() {
        let mut sketch = Sketch::new(1000, HashKey::from_seed(3));
        for block in 0..500u64 {
            (0..block % 20).for_each(|_| sketch.add(block));
        }
        let too_high = (0..500).filter(|&b| u64::from(sketch.estimate(b)) > b % 20).count();
        assert!((0..500).all(|b| u64::from(sketch.estimate(b)) >= b % 20), "an estimate is too low");
        assert!(too_high <= 10, "{too_high} of 500 estimates are too high at half the entries");
        assert!((500..1000).filter(|&b| sketch.estimate(b) > 0).count() <= 10, "strangers are known");
    }

    #[test]
    fn counters_saturate() {
        let mut sketch = Sketch::new(10, HashKey::from_seed(3));
        (0..1000).for_each(|_| sketch.add(7));
        assert_eq!(sketch.estimate(7), u8::MAX);
    }

    #[test]
    fn ageing_halves_everything_in_steps() {
        // three steps and a bit
        let mut sketch = Sketch::new(900, HashKey::from_seed(3));
        assert!(sketch.counters.len() > 3 * AGE_STEP);
        sketch.counters.fill(100);
        sketch.age();
        assert_eq!(sketch.counters.iter().filter(|&&c| c == 100).count(), sketch.counters.len() - AGE_STEP);
        (0..3).for_each(|_| sketch.add(1));
        assert!(sketch.counters.iter().all(|&c| (50..=53).contains(&c)), "each is halved once");
        sketch.add(2);
        assert!(sketch.counters.iter().all(|&c| c >= 50), "none is halved twice");
    }
}
