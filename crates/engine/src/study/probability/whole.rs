//! Replacement by probability in a cache that is one set: caches of storage, where any block may be in any place.
//!
//! Owns the same counts as `misses`, and the cached blocks in orders by which the next to go is found without looking
//! at all of them. Never reads the future, but for how long the trace is. Invariant: each access hits or misses as in
//! `misses` with as many ways as lines.

use super::{Counts, ProbabilityRule, WINDOW_PARTS, halves, rating};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A count of accesses, when the last of them was, and the block. All of one order are of blocks with as many accesses
/// in the window, or of all blocks.
type Place = (u32, u64, u64);

/// See the head of the file.
pub struct WholeCache {
    rule: ProbabilityRule,
    lines: u32,
    window: u64,
    now: u64,
    counts: HashMap<u64, Counts>,
    /// Cached blocks by their last use.
    used: BTreeMap<u64, u64>,
    /// By accesses in the window: cached blocks by those since. Those without any in the window never go but by LRU.
    since: BTreeMap<u32, BTreeSet<Place>>,
    /// Cached blocks by their aged counts.
    aged: BTreeSet<Place>,
}

impl WholeCache {
    /// An empty cache of so many lines, for a trace of so many accesses.
    pub fn new(rule: ProbabilityRule, lines: u32, accesses: u64) -> Self {
        Self {
            rule,
            lines,
            window: accesses / WINDOW_PARTS,
            now: 0,
            counts: HashMap::new(),
            used: BTreeMap::new(),
            since: BTreeMap::new(),
            aged: BTreeSet::new(),
        }
    }

    /// Asks for a block. Whether it was there.
    pub fn access(&mut self, block: u64) -> bool {
        let past = self.now.saturating_sub(self.window);
        if self.now > self.window && halves(past, self.lines.max(1)) {
            self.halve();
        }
        let before = self.counts.get(&block).copied().unwrap_or_default();
        let hit = self.used.get(&before.last) == Some(&block);
        if hit {
            self.take_out(block, before);
        }
        let counts = before.after(self.now, self.now < self.window);
        self.counts.insert(block, counts);
        if !hit && self.used.len() >= self.lines as usize {
            let Some(gone) = self.first_to_go() else {
                self.now += 1;
                return false;
            };
            self.take_out(gone, self.counts[&gone]);
        }
        self.put_in(block, counts);
        self.now += 1;
        hit
    }

    fn first_to_go(&self) -> Option<u64> {
        let oldest = self.used.first_key_value().map(|(last, block)| (*last, *block));
        if self.now < self.window {
            return oldest.map(|(_, block)| block);
        }
        if self.rule == ProbabilityRule::Aged {
            return self.aged.first().map(|(_, _, block)| *block);
        }
        let rated = self
            .since
            .values()
            .filter_map(|of| of.first())
            .map(|(_, last, block)| (rating(self.rule, &self.counts[block], self.now, self.window), *last, *block));
        // The one that was used least recently stands for all that the rule does not tell apart.
        let rated = rated.chain(oldest.map(|(last, block)| (0.0, last, block)));
        rated.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))).map(|(_, _, block)| block)
    }

    fn put_in(&mut self, block: u64, c: Counts) {
        self.used.insert(c.last, block);
        match self.rule {
            ProbabilityRule::Literal if c.window > 0 => {
                self.since.entry(c.window).or_default().insert((c.since, c.last, block));
            }
            ProbabilityRule::Literal => {}
            ProbabilityRule::Aged => _ = self.aged.insert((c.aged, c.last, block)),
        }
    }

    fn take_out(&mut self, block: u64, c: Counts) {
        self.used.remove(&c.last);
        self.aged.remove(&(c.aged, c.last, block));
        if let Some(of) = self.since.get_mut(&c.window) {
            of.remove(&(c.since, c.last, block));
            if of.is_empty() {
                self.since.remove(&c.window);
            }
        }
    }

    fn halve(&mut self) {
        self.counts.values_mut().for_each(|c| c.aged /= 2);
        if self.rule == ProbabilityRule::Aged {
            let counts = &self.counts;
            self.aged = self.used.iter().map(|(last, block)| (counts[block].aged, *last, *block)).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Shape, misses};
    use super::*;
    use proptest::prelude::*;

    /// Misses of both, for a trace whose popular blocks change.
    fn both(blocks: &[u64], lines: u32, rule: ProbabilityRule) -> (u64, u64) {
        let mut cache = WholeCache::new(rule, lines, blocks.len() as u64);
        let missed = blocks.iter().filter(|block| !cache.access(**block)).count() as u64;
        (missed, misses(blocks, Shape { lines, ways: lines }, rule).expect("a shape"))
    }

    proptest! {
        #[test]
        fn it_does_what_one_set_does(blocks in prop::collection::vec(0u64..40, 0..500), lines in 1u32..20) {
            for rule in [ProbabilityRule::Literal, ProbabilityRule::Aged] {
                let (ours, set) = both(&blocks, lines, rule);
                prop_assert_eq!(ours, set, "{:?}", rule);
            }
        }
    }

    #[test]
    fn it_does_what_one_set_does_over_many_halvings() {
        let blocks: Vec<u64> = (0..20_000u64).map(|n| n / 5000 * 3 + n * n % 7 * (n % 3) + n % 2).collect();
        for lines in [1, 2, 5, 9] {
            for rule in [ProbabilityRule::Literal, ProbabilityRule::Aged] {
                let (ours, set) = both(&blocks, lines, rule);
                assert_eq!(ours, set, "{rule:?} {lines}");
            }
        }
    }

    #[test]
    fn without_lines_all_misses() {
        let mut cache = WholeCache::new(ProbabilityRule::Aged, 0, 3);
        assert_eq!([1, 1, 1].map(|block| cache.access(block)), [false; 3]);
    }
}
