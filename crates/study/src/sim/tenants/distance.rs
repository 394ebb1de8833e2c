//! Exact LRU stack distances: how many distinct blocks were asked for since a block was last asked for.
//!
//! Owns the times of last accesses. Never approximates: it is what sampled curves are compared with, and stands in for
//! them. Invariant: an access is a hit in an LRU cache of `n` blocks exactly if its distance is below `n`.
//!
//! Bennett and Kruskal's method (1975): a Fenwick tree over time marks the last access of each block; marks after the
//! last access of a block are the distance. Time is compacted when the tree is full, so memory follows the number of
//! blocks.

use std::collections::HashMap;

/// Computes stack distances within one tenant.
#[derive(Clone, Debug)]
pub(crate) struct Distances {
    last: HashMap<u64, usize>,
    /// Fenwick tree over times 1..
    marks: Vec<u32>,
    now: usize,
}

/// Times that the tree has room for at first.
const TIMES: usize = 1 << 12;

impl Default for Distances {
    fn default() -> Self {
        Self { last: HashMap::new(), marks: vec![0; TIMES + 1], now: 0 }
    }
}

impl Distances {
    /// The distance of this access; `None`: the first of its block.
    pub fn access(&mut self, block: u64) -> Option<u64> {
        if self.now + 1 == self.marks.len() {
            self.compact();
        }
        self.now += 1;
        let before = self.last.insert(block, self.now);
        let distance = before.map(|then| {
            let after = self.sum(self.now) - self.sum(then);
            self.add(then, u32::MAX);
            u64::from(after)
        });
        self.add(self.now, 1);
        distance
    }

    /// As [`Distances::access`], of a block that leaves the stack with it: what is taken from a cache of victims.
    pub fn take(&mut self, block: u64) -> Option<u64> {
        let then = self.last.remove(&block)?;
        let after = self.sum(self.now) - self.sum(then);
        self.add(then, u32::MAX);
        Some(u64::from(after))
    }

    /// Adds modulo 2^32, so that `u32::MAX` takes one away.
    fn add(&mut self, mut at: usize, n: u32) {
        while at < self.marks.len() {
            self.marks[at] = self.marks[at].wrapping_add(n);
            at += at & at.wrapping_neg();
        }
    }

    fn sum(&self, mut at: usize) -> u32 {
        let mut sum = 0u32;
        while at > 0 {
            sum = sum.wrapping_add(self.marks[at]);
            at &= at - 1;
        }
        sum
    }

    /// Gives the blocks the times 1, 2 ... in the order of their last accesses.
    fn compact(&mut self) {
        let mut order: Vec<(usize, u64)> = self.last.iter().map(|(&block, &then)| (then, block)).collect();
        order.sort_unstable();
        let times = (order.len() * 2).max(TIMES);
        self.marks = vec![0; times + 1];
        self.now = order.len();
        for (i, &(_, block)) in order.iter().enumerate() {
            self.last.insert(block, i + 1);
            self.add(i + 1, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use undercroft_engine::{Access, Index, Outcome, PolicyKind};
    use undercroft_trace::synth::Zipf;

    #[test]
    fn distances_tell_the_misses_of_lru_at_every_size() {
        // Popular blocks, and now and then a scan of blocks that never come back.
        let popular = Zipf::new(500, 1.0, 42).take(20_000).enumerate();
        let scanned = |i: usize| if i % 3000 == 2999 { 1000 * i as u64..1000 * i as u64 + 900 } else { 0..0 };
        let blocks: Vec<u64> = popular.flat_map(|(i, block)| std::iter::once(block).chain(scanned(i))).collect();
        let mut distances = Distances::default();
        let all: Vec<Option<u64>> = blocks.iter().map(|&b| distances.access(b)).collect();
        for size in [1, 10, 100, 499, 2000] {
            let misses = all.iter().filter(|d| d.is_none_or(|d| d >= u64::from(size))).count();
            let mut index = Index::new(PolicyKind::Lru, size);
            let missed = |&&block: &&u64| !matches!(index.access(block, Access::Read, |_| true), Outcome::Hit(_));
            assert_eq!(misses, blocks.iter().filter(missed).count(), "{size} blocks");
        }
    }
}
