//! One simulated cache (a rule of eviction at one size), and its counts.
//!
//! Owns the counts and how they are added up. Never runs anything.

use crate::sim::rule::Rule;
use serde::Serialize;
use undercroft_units::CacheSize;

/// One cache to simulate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// What decides in it.
    pub rule: Rule,
    /// Its size as it was asked for.
    pub size: CacheSize,
    /// Its size.
    pub blocks: u32,
}

impl Cell {
    /// A cache of `blocks` blocks, which is what `size` comes to.
    pub fn new(rule: impl Into<Rule>, size: CacheSize, blocks: u32) -> Self {
        Self { rule: rule.into(), size, blocks }
    }
}

/// Accesses and misses of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheCounts {
    /// Blocks read.
    pub reads: u64,
    /// Blocks read that were not cached.
    pub read_misses: u64,
    /// Blocks written.
    pub writes: u64,
    /// Blocks written that were not cached.
    pub write_misses: u64,
}

impl CacheCounts {
    /// Accesses in all.
    pub fn accesses(&self) -> u64 {
        self.reads + self.writes
    }

    /// Misses in all.
    pub fn misses(&self) -> u64 {
        self.read_misses + self.write_misses
    }

    /// Misses of accesses; 0 where there were none.
    pub fn miss_ratio(&self) -> f64 {
        self.misses() as f64 / self.accesses().max(1) as f64
    }

    pub(crate) fn add(&mut self, other: &CacheCounts) {
        self.reads += other.reads;
        self.read_misses += other.read_misses;
        self.writes += other.writes;
        self.write_misses += other.write_misses;
    }

    pub(crate) fn count_run(&mut self, write: bool, accesses: u64, misses: u64) {
        let (all, missed) = match write {
            true => (&mut self.writes, &mut self.write_misses),
            false => (&mut self.reads, &mut self.read_misses),
        };
        *all += accesses;
        *missed += misses;
    }
}

/// The result of one cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CellResult {
    /// The cell.
    pub cell: Cell,
    /// What was counted.
    pub counts: CacheCounts,
}
