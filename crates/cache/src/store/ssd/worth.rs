//! What blocks of each class of evictions are worth on the SSD: how many of them are asked for again, and how soon.
//!
//! Owns the counts of one disk, and which part of each class is to be admitted so that most blocks are found there.
//! Never sees a block, never allocates. Invariant: what was counted weighs half after twice as many evictions as the
//! disk may have blocks there, however long that takes.
//!
//! Let `l` be the evictions of a class for each one of the region, `F(t)` the part of them that is asked for again
//! within `t` evictions, and `f` the part that is admitted. If a block stays for `t`, the blocks that are there are
//! the sum of `f * l * (t less what went before)`, which gives `t` for the room that there is; `f * l * F(t)` are
//! found, and what is not found has to be written. That is the model of a list in the order of the last eviction; the
//! store is a queue of segments, which finds a little less.

use super::types::{CLASSES, Class};

/// Ages are told apart in quarters of powers of two.
const AGES: usize = 60;
/// All blocks of a class.
pub(super) const ALL: u8 = 128;
/// Parts of a class that may be admitted, of `ALL`: of a loop that is larger than the store, what fits is kept.
const PARTS: [u8; 6] = [0, 8, 16, 32, 64, ALL];
/// A block that is written has to be found so often.
const LEAST_FOUND: f32 = 0.05;
/// So many samples of a class count as not asked for, since few say little.
const DOUBT: f32 = 8.0;
/// Of a class with fewer samples nothing is known.
const LEAST_KNOWN: f32 = 8.0;
/// What is found of a class may fall short of this part of what is expected...
const EXPECTED: f32 = 0.6;
/// ... until so many samples are missing, or a part of those of the room.
const MISSING: f32 = 8.0;
const MISSING_PART: f32 = 1.0 / 64.0;
/// Another choice has to be better by this part.
const BETTER: f32 = 0.02;

/// The place of an age in the counts.
fn place(age: u16) -> usize {
    let octave = age.checked_ilog2().unwrap_or(0);
    if octave < 2 {
        return usize::from(age);
    }
    (4 * (octave - 1) + (u32::from(age) >> (octave - 2) & 3)) as usize
}

/// The lowest age of a place.
fn lowest(place: usize) -> f32 {
    if place < 4 { place as f32 } else { ((4 + place % 4) << (place / 4 - 1)) as f32 }
}

/// Samples that had to go from the table, by their ages: how long anything can be known of a block.
pub(super) struct Gone {
    counts: [f32; AGES],
    samples: f32,
}

impl Gone {
    pub fn new() -> Self {
        Self { counts: [0.0; AGES], samples: 0.0 }
    }

    /// A sample came, into a table of so many.
    pub fn comes(&mut self, room: u64) {
        self.samples += 1.0;
        if self.samples > 4.0 * room as f32 {
            self.samples /= 2.0;
            self.counts.iter_mut().for_each(|n| *n /= 2.0);
        }
    }

    /// One went.
    pub fn goes(&mut self, age: u16) {
        self.counts[place(age)] += 1.0;
    }
}

/// What was counted of a disk.
pub(super) struct Record {
    /// Samples of each class, and by their ages those that were asked for again.
    samples: [f32; CLASSES],
    found: [[f32; AGES]; CLASSES],
    /// Samples of the whole region meanwhile.
    of_region: f32,
    seen_of_region: u64,
    /// One of 2^this blocks is sampled.
    shift: u32,
    /// Blocks that the disk may have.
    room: u64,
    /// Samples until the next choice.
    wait: f32,
    /// What is admitted of each class, of `ALL`.
    parts: [u8; CLASSES],
    /// Of each class, what is expected to be found of a block, and how much less was found lately.
    expected: [f32; CLASSES],
    missing: [f32; CLASSES],
}

/// What is admitted of a class of which nothing is known.
fn unknown(class: usize) -> u8 {
    if Class::ALL[class].is_first() { 0 } else { ALL }
}

impl Record {
    /// Of a region that has sampled `seen_of_region` evictions so far; one of 2^`shift` blocks is sampled.
    pub fn new(seen_of_region: u64, shift: u32) -> Self {
        Self {
            shift,
            samples: [0.0; CLASSES],
            found: [[0.0; AGES]; CLASSES],
            of_region: 0.0,
            seen_of_region,
            room: 0,
            wait: 0.0,
            parts: std::array::from_fn(unknown),
            expected: [0.0; CLASSES],
            missing: [0.0; CLASSES],
        }
    }

    pub fn set_room(&mut self, blocks: u64) {
        self.room = blocks;
    }

    /// What is admitted of a class, of `ALL`: nothing of one whose new blocks are not asked for as the former were. A
    /// scan is found out by that long before the counts tell.
    pub fn part(&self, class: Class) -> u8 {
        let is_let_down = class.is_first() && self.missing[class as usize] > self.patience();
        if is_let_down { 0 } else { self.parts[class as usize] }
    }

    /// Samples of a class that may be missing.
    fn patience(&self) -> f32 {
        (self.sampled_room() * MISSING_PART).max(MISSING)
    }

    /// Samples that there are of the blocks that the disk may have.
    fn sampled_room(&self) -> f32 {
        (self.room >> self.shift) as f32
    }

    /// A sampled block, which stands for `weight`, was asked for again at this age.
    pub fn found(&mut self, class: Class, weight: u64, age: u16) {
        self.found[class as usize][place(age)] += weight as f32;
        let missing = &mut self.missing[class as usize];
        *missing = (*missing - weight as f32).max(0.0);
    }

    /// A sampled block, which stands for `weight`, left RAM, the region's `seen`th; ages are counted in `unit`s of
    /// evictions.
    pub fn left(&mut self, class: Class, weight: u64, seen: u64, unit: u32, gone: &Gone) {
        self.samples[class as usize] += weight as f32;
        let missing = self.missing[class as usize] + weight as f32 * EXPECTED * self.expected[class as usize];
        self.missing[class as usize] = missing.min(2.0 * self.patience());
        self.of_region += (seen - self.seen_of_region) as f32;
        self.seen_of_region = seen;
        let room = self.sampled_room();
        if self.samples.iter().sum::<f32>() > (2.0 * room).max(256.0) {
            self.samples.iter_mut().chain(self.found.as_flattened_mut()).for_each(|n| *n /= 2.0);
            self.of_region /= 2.0;
        }
        self.wait -= weight as f32;
        if self.wait < 0.0 {
            self.wait = (room / 32.0).max(16.0);
            self.choose(gone, unit);
        }
    }

    fn choose(&mut self, gone: &Gone, unit: u32) {
        let model = Model::of(self, gone, unit);
        let now = model.worth(&self.parts);
        let (mut best, mut most) = (self.parts, now);
        for mut parts in [self.parts, [ALL; CLASSES]] {
            let mut worth = model.worth(&parts);
            for class in (0..CLASSES).cycle().take(3 * CLASSES) {
                for part in PARTS {
                    let mut other = parts;
                    other[class] = part;
                    let of_other = model.worth(&other);
                    if of_other > worth {
                        (parts, worth) = (other, of_other);
                    }
                }
            }
            if worth > most {
                (best, most) = (parts, worth);
            }
        }
        if most > now + BETTER * now.abs() + 1e-4 {
            self.parts = best;
        }
        self.expected = model.expected(&self.parts);
        for (class, part) in self.parts.iter_mut().enumerate() {
            if self.samples[class] < LEAST_KNOWN {
                *part = unknown(class);
            }
        }
    }
}

/// The curves of a disk's classes, at the lowest age of each place and behind the last.
struct Model {
    /// Evictions for each one of the region.
    rate: [f32; CLASSES],
    /// The part that is asked for again before.
    found: [[f32; AGES + 1]; CLASSES],
    /// How long a block waits for that, at most so long.
    wait: [[f32; AGES + 1]; CLASSES],
    /// The room, in units of evictions.
    room: f32,
}

impl Model {
    fn of(record: &Record, gone: &Gone, unit: u32) -> Self {
        let mut model = Self {
            rate: record.samples.map(|n| n / record.of_region.max(1.0)),
            found: [[0.0; AGES + 1]; CLASSES],
            wait: [[0.0; AGES + 1]; CLASSES],
            room: record.room as f32 / unit as f32,
        };
        for class in 0..CLASSES {
            model.draw(class, &record.found[class], record.samples[class], gone);
        }
        model
    }

    /// The curve of a class, by the estimate of Kaplan and Meier (1958): of the blocks that are waited for still.
    fn draw(&mut self, class: usize, found: &[f32; AGES], samples: f32, gone: &Gone) {
        let (mut left, mut lost) = (1.0, 0.0);
        let mut waiting = samples + DOUBT;
        for (n, found) in found.iter().enumerate() {
            let known = waiting - lost * samples;
            let part = if known > samples / 8.0 { (found / known).min(1.0) } else { 0.0 };
            let after = left * (1.0 - part);
            self.found[class][n + 1] = 1.0 - after;
            let width = lowest(n + 1) - lowest(n);
            self.wait[class][n + 1] = self.wait[class][n] + width * (left + after) / 2.0;
            left = after;
            waiting -= found;
            lost += gone.counts[n] / gone.samples.max(1.0);
        }
    }

    /// What is found, less what writing costs, for each eviction of the region.
    fn worth(&self, parts: &[u8; CLASSES]) -> f32 {
        let weights = self.weights(parts);
        let (low, high, part) = self.stay(&weights);
        let found = sum(&weights, &self.found, low) * (1.0 - part) + sum(&weights, &self.found, high) * part;
        found - LEAST_FOUND * (weights.iter().sum::<f32>() - found)
    }

    /// Of each class, the part of its blocks that is found.
    fn expected(&self, parts: &[u8; CLASSES]) -> [f32; CLASSES] {
        let (low, high, part) = self.stay(&self.weights(parts));
        self.found.map(|curve| curve[low] * (1.0 - part) + curve[high] * part)
    }

    fn weights(&self, parts: &[u8; CLASSES]) -> [f32; CLASSES] {
        std::array::from_fn(|n| self.rate[n] * f32::from(parts[n]) / f32::from(ALL))
    }

    /// How long a block stays: between which two ages the room is full, and where between them.
    fn stay(&self, weights: &[f32; CLASSES]) -> (usize, usize, f32) {
        let (mut low, mut high) = (0, AGES);
        if sum(weights, &self.wait, AGES) <= self.room {
            return (AGES, AGES, 1.0);
        }
        while high - low > 1 {
            let middle = (low + high) / 2;
            if sum(weights, &self.wait, middle) > self.room { high = middle } else { low = middle }
        }
        let (below, above) = (sum(weights, &self.wait, low), sum(weights, &self.wait, high));
        (low, high, (self.room - below) / (above - below))
    }
}

/// Curves at one place, each with its weight.
fn sum(weights: &[f32; CLASSES], curves: &[[f32; AGES + 1]; CLASSES], at: usize) -> f32 {
    weights.iter().zip(curves).map(|(weight, curve)| weight * curve[at]).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_in_the_order_of_ages() {
        let all: Vec<usize> = (0..=u16::MAX).map(place).collect();
        assert!(all.is_sorted() && all[65_535] == AGES - 1);
        for (age, n) in all.iter().enumerate() {
            assert!((lowest(*n)..lowest(n + 1)).contains(&(age as f32)), "{age} is in place {n}");
        }
    }
}
