//! Levels that are told how ranges of blocks are used, and share the ranges out among themselves.
//!
//! Owns which range has how much of which level. Invariants: what the ranges have of a level is at most its size; a block
//! is in one level at most.
//!
//! After Karma (Yadgar, Factor and Schuster, FAST 2007): ranges take the space in the order of what a block of them gains, from the
//! first level down; each has its part to itself, replaced as suits its use; a range on two levels is kept exclusive by
//! demotion. Unlike there, the hints hold for the whole trace, so nothing is shared out anew.

use super::hints::{Hints, Pattern};
use super::{LevelCounts, LevelOptions, Step};
use rustc_hash::FxHashMap;
use undercroft_engine::{Access, Index, Outcome, PolicyKind};

/// What a range has of one level.
struct Part {
    level: usize,
    index: Index,
}

/// See the head of the file.
pub(super) struct Hinted {
    hints: Hints,
    /// The parts of each range that has any, the client's level first.
    parts: FxHashMap<u64, Vec<Part>>,
    counts: Vec<LevelCounts>,
}

impl Hinted {
    pub fn new(levels: &[LevelOptions], hints: &Hints) -> Self {
        let mut parts: FxHashMap<u64, Vec<Part>> = FxHashMap::default();
        let mut room: Vec<u64> = levels.iter().map(|l| l.blocks.into()).collect();
        let mut level = 0;
        for (range, hint) in hints.by_gain() {
            let policy = if hint.pattern() == Pattern::Loop { PolicyKind::Mru } else { PolicyKind::Lru };
            let mut wanted = hint.blocks;
            while wanted > 0 && level < room.len() {
                let takes = wanted.min(room[level]);
                if takes > 0 {
                    // no more than the level has, whose size fits
                    let index = Index::new(policy, takes as u32);
                    parts.entry(range).or_default().push(Part { level, index });
                }
                (wanted, room[level]) = (wanted - takes, room[level] - takes);
                level += usize::from(room[level] == 0);
            }
        }
        Self { hints: hints.clone(), parts, counts: vec![LevelCounts::default(); levels.len() + 1] }
    }

    /// One access of the client.
    pub fn access(&mut self, block: u64, write: bool, steps: &mut Vec<Step>) {
        let disk = self.counts.len() - 1;
        let range = self.hints.range_of(block);
        let mut none = vec![];
        let parts = self.parts.get_mut(&range).unwrap_or(&mut none);
        let found = parts.iter().position(|p| p.index.peek(block).is_some());
        let device = found.map_or(disk, |n| parts[n].level);
        for (level, counts) in self.counts.iter_mut().enumerate() {
            let missed = u64::from(level < device || level == disk);
            if write {
                // on to the disk, through all of them
                counts.writes += 1;
                counts.write_misses += u64::from(level != device || level == disk);
            } else if level <= device {
                counts.reads += 1;
                counts.read_misses += missed;
            }
        }
        let mut step = |device, write, awaited| steps.push(Step { device, write, awaited });
        if write {
            step(disk, true, true);
        } else {
            step(device, false, true);
        }
        if parts.is_empty() {
            return;
        }
        // It goes to the first part; what that gives up goes down to the next.
        if let Some(n) = found.filter(|&n| n > 0) {
            parts[n].index.remove(block);
        }
        let mut handed = block;
        for (n, part) in parts.iter_mut().enumerate() {
            let access = if write { Access::Write } else { Access::Read };
            let outcome = part.index.access(handed, access, |_| true);
            let counts = &mut self.counts[part.level];
            counts.demotions += u64::from(n > 0);
            if write || !matches!(outcome, Outcome::Hit(_)) {
                step(part.level, true, false);
            }
            match outcome {
                Outcome::Fill { evicted: Some((evicted, _)), .. } => {
                    counts.evictions += 1;
                    handed = evicted;
                }
                // what is not kept here is handed on as it is
                Outcome::Bypass => {}
                Outcome::Fill { evicted: None, .. } | Outcome::Hit(_) => break,
            }
        }
    }

    pub fn counts(&self) -> Vec<LevelCounts> {
        self.counts.clone()
    }

    #[cfg(test)]
    pub fn held(&self) -> Vec<Vec<u64>> {
        let mut held = vec![vec![]; self.counts.len() - 1];
        for part in self.parts.values().flatten() {
            part.index.check();
            held[part.level].extend(part.index.iter().map(|(block, _)| block));
        }
        held.iter_mut().for_each(|blocks| blocks.sort_unstable());
        held
    }
}
