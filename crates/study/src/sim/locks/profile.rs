//! The first run of a cache, without locks: how often each block was missed and hit, and the blocks that are locked
//! for it in the second.
//!
//! Owns these counts, for one cache. Never locks. Invariants: reads alone are counted, as in the daemon's table of
//! misses, because a write that misses makes nobody wait for the disk; of blocks with equally many the one with the
//! lower number comes first.

use super::arm::LockChoice;
use crate::sim::batch::Take;
use crate::sim::reference::Reference;
use rustc_hash::FxHashMap;
use undercroft_engine::{Access, HashKey, Index, Outcome, PolicyKind};

/// Reads of a block.
#[derive(Clone, Copy, Debug, Default)]
struct Reads {
    missed: u32,
    hit: u32,
}

/// A cache in its first run.
pub(super) struct FirstRun {
    index: Index,
    reads: FxHashMap<u64, Reads>,
}

impl FirstRun {
    /// Of a cache of `blocks`.
    pub fn new(policy: PolicyKind, blocks: u32) -> Self {
        Self { index: Index::new(policy, blocks), reads: FxHashMap::default() }
    }

    fn access(&mut self, reference: &Reference, counts: bool) {
        let access = if reference.write { Access::Write } else { Access::Read };
        let hit = matches!(self.index.access(reference.block, access, |_| true), Outcome::Hit(_));
        if counts && !reference.write {
            let reads = self.reads.entry(reference.block).or_default();
            let of = if hit { &mut reads.hit } else { &mut reads.missed };
            *of = of.saturating_add(1);
        }
    }

    /// What it says of the `most` blocks that are locked at most. What is chosen by chance depends on the seed.
    pub fn ranking(self, most: usize, seed: u64) -> Ranking {
        let key = HashKey::from_seed(seed);
        let first = |mut ranked: Vec<(u64, u64)>| -> Vec<u64> {
            ranked.sort_unstable();
            ranked.into_iter().take(most).map(|(_, block)| block).collect()
        };
        // The highest count has the lowest rank.
        let rank = |count: u32| u64::from(u32::MAX - count);
        let by = |count: fn(&Reads) -> u32| {
            let counted = self.reads.iter().filter(|(_, reads)| count(reads) > 0);
            first(counted.map(|(&block, reads)| (rank(count(reads)), block)).collect())
        };
        Ranking {
            missed: by(|reads| reads.missed),
            hit: by(|reads| reads.hit),
            random: first(self.reads.keys().map(|&block| (key.hash(block), block)).collect()),
        }
    }
}

impl Take for FirstRun {
    fn take(&mut self, batch: &[Reference], cold: usize) {
        batch.iter().enumerate().for_each(|(n, reference)| self.access(reference, n >= cold));
    }
}

/// Blocks in the order in which they are worth a lock, by a first run.
#[derive(Debug, Default)]
pub(super) struct Ranking {
    missed: Vec<u64>,
    hit: Vec<u64>,
    random: Vec<u64>,
}

impl Ranking {
    /// The first `count` of them, as far as there are so many.
    pub fn first(&self, choice: LockChoice, count: usize) -> &[u64] {
        let ranked = match choice {
            LockChoice::Static => &self.missed,
            LockChoice::Hits => &self.hit,
            LockChoice::Random => &self.random,
            LockChoice::Online => &[][..],
        };
        &ranked[..count.min(ranked.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_counted_and_ranked_and_the_warm_up_is_not() {
        let mut run = FirstRun::new(PolicyKind::Lru, 2);
        let read = [7, 7, 3, 4, 5, 3, 4, 5, 9, 9, 9].map(Reference::read);
        run.take(&read, 1);
        run.take(&[Reference::write(8), Reference::read(3)], 0);
        let ranking = run.ranking(3, 1);
        // 3 was missed three times, 4 and 5 twice, 9 once; 9 was hit twice and 7 once; 8 was not read.
        assert_eq!(ranking.first(LockChoice::Static, 9), [3, 4, 5]);
        assert_eq!(ranking.first(LockChoice::Static, 2), [3, 4]);
        assert_eq!(ranking.first(LockChoice::Hits, 9), [9, 7]);
        assert_eq!(ranking.first(LockChoice::Random, 9).len(), 3);
        assert!(ranking.first(LockChoice::Online, 9).is_empty());
    }

    #[test]
    fn chance_depends_on_the_seed_alone() {
        let ranking = |seed| {
            let mut run = FirstRun::new(PolicyKind::Fifo, 2);
            run.take(&(0..1000).map(Reference::read).collect::<Vec<_>>(), 0);
            run.ranking(20, seed).first(LockChoice::Random, 20).to_vec()
        };
        assert_eq!(ranking(1), ranking(1));
        assert_ne!(ranking(1), ranking(2));
        assert!(ranking(1).iter().any(|&block| block > 500), "those with low numbers are not all that there is");
    }
}
