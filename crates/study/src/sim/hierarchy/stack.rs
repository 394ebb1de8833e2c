//! Levels that see blocks and nothing else: passing or demoted, with any write policy.
//!
//! Owns which blocks are dirty where. Invariants: a block that is dirty in a level is cached there; a block of a level
//! that keeps what is demoted is not in the level right above.

use super::{DeviceStep, Keeps, LevelCounts, LevelOptions, Writes};
use rustc_hash::FxHashSet;
use undercroft_engine::{Access, AnyPolicyKind, Index, Outcome};

struct Level {
    index: Index<AnyPolicyKind>,
    exclusive: bool,
    writes: Writes,
    counts: LevelCounts,
    dirty: FxHashSet<u64>,
}

/// Caches below each other that see block numbers only.
pub(super) struct Stack {
    levels: Vec<Level>,
    disk: LevelCounts,
    /// Devices above the first level here.
    above: usize,
}

impl Stack {
    pub fn new(levels: &[LevelOptions], above: usize) -> Self {
        let level = |l: &LevelOptions| Level {
            index: Index::new(l.policy, l.blocks),
            exclusive: l.keeps == Keeps::Demoted,
            writes: l.writes,
            counts: LevelCounts::default(),
            dirty: FxHashSet::default(),
        };
        let mut levels: Vec<Level> = levels.iter().map(level).collect();
        if above == 0
            && let Some(first) = levels.first_mut()
        {
            first.exclusive = false;
        }
        Self { levels, disk: LevelCounts::default(), above }
    }

    fn step(&self, i: usize, write: bool, awaited: bool, steps: &mut Vec<DeviceStep>) {
        steps.push(DeviceStep { device: self.above + i, write, awaited });
    }

    /// Whether level `i` takes what the level above evicts.
    pub fn takes_demoted(&self, i: usize) -> bool {
        self.levels.get(i).is_some_and(|l| l.exclusive)
    }

    /// The level above `i` reads a block that it does not have.
    pub fn read(&mut self, i: usize, block: u64, steps: &mut Vec<DeviceStep>) {
        let Some(level) = self.levels.get_mut(i) else {
            self.disk.reads += 1;
            self.disk.read_misses += 1;
            return self.step(i, false, true, steps);
        };
        level.counts.reads += 1;
        if level.exclusive {
            // Not `remove` at once: of an absent block that would drop what the policy remembers.
            if level.index.peek(block).is_none() {
                level.counts.read_misses += 1;
                return self.read(i + 1, block, steps);
            }
            level.index.remove(block);
            let dirty = level.dirty.remove(&block);
            self.step(i, false, true, steps);
            if dirty {
                // The level above takes it as clean.
                self.write(i + 1, block, false, true, steps);
            }
            return;
        }
        match level.index.access(block, Access::Read, |_| true) {
            Outcome::Hit(_) => self.step(i, false, true, steps),
            Outcome::Fill { evicted, .. } => {
                level.counts.read_misses += 1;
                self.read(i + 1, block, steps);
                self.step(i, true, false, steps);
                self.evicted(i, evicted, steps);
            }
            Outcome::Bypass => {
                level.counts.read_misses += 1;
                self.read(i + 1, block, steps);
                self.hand_down(i, block, false, steps);
            }
        }
    }

    /// A block lost its place in level `i`.
    fn evicted(&mut self, i: usize, evicted: Option<(u64, u32)>, steps: &mut Vec<DeviceStep>) {
        let Some((block, _)) = evicted else { return };
        let level = &mut self.levels[i];
        level.counts.evictions += 1;
        let dirty = level.dirty.remove(&block);
        self.hand_down(i, block, dirty, steps);
    }

    /// Level `i` does not keep a block any more, or never did.
    fn hand_down(&mut self, i: usize, block: u64, dirty: bool, steps: &mut Vec<DeviceStep>) {
        if self.takes_demoted(i + 1) {
            self.demote(i + 1, block, dirty, steps);
        } else if dirty {
            self.write(i + 1, block, false, false, steps);
        }
    }

    /// Level `i` is handed a block that the level above has evicted.
    pub fn demote(&mut self, i: usize, block: u64, dirty: bool, steps: &mut Vec<DeviceStep>) {
        let level = &mut self.levels[i];
        level.counts.demotions += 1;
        let outcome = level.index.access(block, Access::Write, |_| true);
        if outcome == Outcome::Bypass {
            return self.hand_down(i, block, dirty, steps);
        }
        let keeps_dirty = dirty && level.writes == Writes::Back;
        if keeps_dirty {
            level.dirty.insert(block);
        }
        self.step(i, true, false, steps);
        if let Outcome::Fill { evicted, .. } = outcome {
            self.evicted(i, evicted, steps);
        }
        if dirty && !keeps_dirty {
            self.write(i + 1, block, false, true, steps);
        }
    }

    /// A level above has a block in another way: exclusive levels from `i` on give theirs up. The level
    /// below them, if what one of them had was dirty.
    fn take_out(&mut self, mut i: usize, block: u64) -> Option<usize> {
        let mut dirty = false;
        while self.takes_demoted(i) {
            let level = &mut self.levels[i];
            level.index.remove(block);
            dirty |= level.dirty.remove(&block);
            i += 1;
        }
        dirty.then_some(i)
    }

    /// The level above the first one here has got a block from elsewhere.
    pub fn taken_above(&mut self, block: u64, steps: &mut Vec<DeviceStep>) {
        if let Some(below) = self.take_out(0, block) {
            self.write(below, block, false, true, steps);
        }
    }

    /// The level above `i`, or the client, writes a block; `held` says whether some level above keeps it.
    pub fn write(&mut self, i: usize, block: u64, awaited: bool, held: bool, steps: &mut Vec<DeviceStep>) {
        let Some(level) = self.levels.get_mut(i) else {
            self.disk.writes += 1;
            self.disk.write_misses += 1;
            return self.step(i, true, awaited, steps);
        };
        level.counts.writes += 1;
        if level.exclusive && held || level.writes == Writes::Around {
            // What is cached is old now, and what only this level had is not worth writing any more.
            let cached = level.index.remove(block).is_some();
            level.dirty.remove(&block);
            level.counts.write_misses += u64::from(!cached);
            return self.write(i + 1, block, awaited, held, steps);
        }
        let back = level.writes == Writes::Back;
        let outcome = level.index.access(block, Access::Write, |_| true);
        level.counts.write_misses += u64::from(!matches!(outcome, Outcome::Hit(_)));
        if outcome == Outcome::Bypass {
            self.write(i + 1, block, awaited, held, steps);
            return;
        }
        let evicted = if let Outcome::Fill { evicted, .. } = outcome { evicted } else { None };
        if back {
            level.dirty.insert(block);
        }
        self.step(i, true, awaited, steps);
        if !back {
            self.write(i + 1, block, awaited, true, steps);
        } else {
            // It is here now: exclusive levels below must not keep what is old besides.
            self.take_out(i + 1, block);
        }
        // At last, so that what the block had below makes room for the one that goes.
        self.evicted(i, evicted, steps);
    }

    pub fn flush(&mut self, steps: &mut Vec<DeviceStep>) {
        for i in 0..self.levels.len() {
            let mut dirty: Vec<u64> = self.levels[i].dirty.drain().collect();
            dirty.sort_unstable();
            for block in dirty {
                self.write(i + 1, block, false, true, steps);
            }
        }
    }

    pub fn counts(&self) -> Vec<LevelCounts> {
        self.levels.iter().map(|l| l.counts).chain([self.disk]).collect()
    }

    #[cfg(test)]
    pub fn held(&self) -> Vec<Vec<u64>> {
        let sorted = |l: &Level| {
            l.index.check();
            let mut blocks: Vec<u64> = l.index.iter().map(|(block, _)| block).collect();
            blocks.sort_unstable();
            assert!(l.dirty.iter().all(|b| blocks.binary_search(b).is_ok()), "a block is dirty and not cached");
            blocks
        };
        self.levels.iter().map(sorted).collect()
    }
}
