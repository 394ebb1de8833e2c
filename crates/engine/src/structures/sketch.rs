//! How often blocks were asked for of late, roughly: a counting Bloom filter that ages.
//!
//! Owns one-byte counters that blocks share: a block has ten of them, and the smallest is its estimate, which is never
//! too low but for saturation and ageing. Ageing halves all counters. Never allocates after construction.
//! Invariant: memory is fixed, about 14.4 bytes for each entry it was made for, whatever is added.
//!
//! Size and number of hashes are those of libCacheSim 0.3.5 (a filter for an error of 0.001), whose counters have four
//! bytes; docs/decisions/0011 says what one byte changes, and why four bits would not do.

//!
//! A sketch is made larger or smaller where it is, counter by counter: a hash has its counter in proportion to their
//! number, so that of another sketch covers one or some of the old ones, and takes the largest of them.

use crate::structures::array::{Array, Release};
use crate::structures::table::HashKey;

/// Counters of one block: ceil(ln 2 * bits per entry), as for a Bloom filter with an error of 0.001.
const HASHES: u32 = 10;
/// Counters per thousand entries: -ln(0.001) / ln(2)^2 of them each.
const COUNTERS_PER_1000: u64 = 14_378;
/// Counters that are made, or merged, in the time of one unit.
const COUNTERS_PER_UNIT: usize = 8;
/// Counters that one addition halves while ageing is under way, so that no single call takes long.
const AGE_STEP: usize = 4096;

#[derive(Debug)]
pub(crate) struct Sketch {
    counters: Array<u8>,
    /// Counters from here on are still to be halved.
    aged: usize,
    key: HashKey,
    /// While the number of counters changes.
    stretch: Option<Stretch>,
}

/// How far a change of the number of counters has come.
#[derive(Debug)]
struct Stretch {
    from: usize,
    to: usize,
    /// Counters not below this are those of the sketch to be, if it is larger; if it is smaller, those below.
    border: usize,
    /// The counters are to be halved when this is over.
    ages: bool,
}

impl Stretch {
    fn has_crossed(&self, counter: usize) -> bool {
        (counter >= self.border) == (self.to > self.from)
    }
}

fn counters_for(entries: u32) -> usize {
    (u64::from(entries) * COUNTERS_PER_1000).div_ceil(1000).max(2 * u64::from(HASHES)) as usize
}

/// Where among `counters` counters a spread hash is.
#[inline]
fn place_among(spread: u32, counters: usize) -> usize {
    ((u64::from(spread) * counters as u64) >> 32) as usize
}

impl Sketch {
    /// A sketch with all estimates 0.
    pub fn new(entries: u32, key: HashKey) -> Self {
        let counters = counters_for(entries);
        // the key of the hash table, turned: a block that shares its home with others need not share counters
        Self { counters: Array::new(counters, 0, 0), aged: counters, key: key.derived(), stretch: None }
    }

    /// There may be `most` entries in time.
    pub fn reserve(&mut self, most: u32) {
        self.counters.reserve(counters_for(most));
    }

    /// Goes on to make this a sketch for another number of entries, which is always the same until it is one, for at
    /// most `left` units, which it counts down. Whether it is one. No estimate becomes too low by that.
    pub fn step(&mut self, entries: u32, left: &mut u32) -> bool {
        while self.aged < self.counters.len() && self.stretch.is_none() {
            if *left == 0 {
                return false;
            }
            *left = left.saturating_sub((AGE_STEP / COUNTERS_PER_UNIT / 8) as u32);
            self.age_on();
        }
        let (from, to) = (self.counters.len(), counters_for(entries));
        if self.stretch.is_none() {
            if from == to {
                return true;
            }
            let border = if to > from { to } else { 0 };
            self.stretch = Some(Stretch { from, to, border, ages: false });
        }
        let Some(stretch) = &mut self.stretch else { return true };
        let (from, to) = (stretch.from, stretch.to);
        let made = to.saturating_sub(self.counters.len()).min(*left as usize * COUNTERS_PER_UNIT);
        *left -= made.div_ceil(COUNTERS_PER_UNIT) as u32;
        self.counters.stretch_with(self.counters.len() + made, to, || 0);
        if self.counters.len() < to {
            return false;
        }
        let mut some = *left as usize * COUNTERS_PER_UNIT;
        let end = if to > from { 0 } else { to };
        while some > 0 && stretch.border != end {
            some -= 1;
            let at = if to > from { stretch.border - 1 } else { stretch.border };
            let covered = at * from / to..=((at + 1) * from - 1) / to;
            self.counters[at] = self.counters[covered].iter().copied().max().unwrap_or(0);
            stretch.border = if to > from { at } else { at + 1 };
        }
        *left = (some / COUNTERS_PER_UNIT) as u32;
        if stretch.border != end {
            return false;
        }
        let ages = stretch.ages;
        self.counters.cut(to);
        self.counters.fit();
        self.stretch = None;
        self.aged = to;
        if ages {
            self.age();
        }
        // what has been asked for meanwhile comes next
        counters_for(entries) == to
    }

    /// The places of a block's counters: double hashing, so that two numbers make ten.
    #[inline]
    fn places(&self, block: u64) -> impl Iterator<Item = usize> + use<> {
        let counters = self.counters.len();
        self.spread(block).map(move |spread| place_among(spread, counters))
    }

    /// The same while their number changes.
    #[cold]
    fn places_between(&self, block: u64, stretch: &Stretch) -> [usize; HASHES as usize] {
        let mut places = [0; HASHES as usize];
        for (place, spread) in places.iter_mut().zip(self.spread(block)) {
            let then = place_among(spread, stretch.to);
            *place = if stretch.has_crossed(then) { then } else { place_among(spread, stretch.from) };
        }
        places
    }

    #[inline]
    fn spread(&self, block: u64) -> impl Iterator<Item = u32> + use<> {
        let hash = self.key.hash(block);
        let (start, step) = (hash as u32, (hash >> 32) as u32 | 1);
        (0..HASHES).map(move |i| start.wrapping_add(step.wrapping_mul(i)))
    }

    /// How often `block` was added since it was not too long ago.
    #[inline]
    pub fn estimate(&self, block: u64) -> u8 {
        let least = |least: u8, at: usize| least.min(self.counters[at]);
        match &self.stretch {
            None => self.places(block).fold(u8::MAX, least),
            Some(stretch) => self.places_between(block, stretch).into_iter().fold(u8::MAX, least),
        }
    }

    /// Counts one request for `block`.
    #[inline]
    pub fn add(&mut self, block: u64) {
        if let Some(stretch) = &self.stretch {
            for at in self.places_between(block, stretch) {
                self.counters[at] = self.counters[at].saturating_add(1);
            }
            return;
        }
        for at in self.places(block) {
            self.counters[at] = self.counters[at].saturating_add(1);
        }
        if self.aged < self.counters.len() {
            self.age_on();
        }
    }

    /// Begins to halve all counters; later additions carry it on.
    pub fn age(&mut self) {
        if let Some(stretch) = &mut self.stretch {
            stretch.ages = true;
            return;
        }
        self.aged = 0;
        self.age_on();
    }

    fn age_on(&mut self) {
        let end = (self.aged + AGE_STEP).min(self.counters.len());
        self.counters[self.aged..end].iter_mut().for_each(|c| *c >>= 1);
        self.aged = end;
    }

    /// Gives back memory that is not needed any more, at most so many bytes; those are counted off.
    pub fn release(&mut self, by: &mut impl Release, bytes: &mut usize) {
        self.counters.release(by, bytes);
    }

    pub fn memory_bytes(&self) -> usize {
        self.counters.memory_bytes()
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

    /// Whatever is added or halved while its number of counters changes, a sketch never estimates too low.
    #[test]
    fn a_sketch_that_changes_its_size_forgets_nothing() {
        for (from, to) in [(1000, 1250), (1000, 1003), (1000, 500), (1000, 990), (1000, 8000), (8000, 10)] {
            let mut sketch = Sketch::new(from, HashKey::from_seed(3));
            let mut counts = [0u8; 300];
            for (block, count) in counts.iter_mut().enumerate() {
                *count = block as u8 % 20;
                (0..*count).for_each(|_| sketch.add(block as u64));
            }
            let mut steps = 0u64;
            while !sketch.step(to, &mut 7) {
                sketch.add(steps % 300);
                counts[(steps % 300) as usize] = counts[(steps % 300) as usize].saturating_add(1);
                steps += 1;
                let low = (0..300).find(|&b| sketch.estimate(b) < counts[b as usize]);
                assert_eq!(low, None, "an estimate is too low after {steps} steps from {from} to {to}");
            }
            assert!(steps > 1);
            assert_eq!(sketch.counters.len(), counters_for(to));
            assert_eq!(sketch.memory_bytes(), counters_for(to));
            assert!((0..300).all(|b| sketch.estimate(b) >= counts[b as usize]));
            if to >= 500 {
                let known = (1000..2000).filter(|&b| sketch.estimate(b) > 0).count();
                assert!(known <= 100, "{known} of 1000 strangers are known from {from} to {to}");
            }
        }
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
