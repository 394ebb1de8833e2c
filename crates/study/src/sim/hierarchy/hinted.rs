//! Levels that are told how ranges of blocks are used, and divide their space among the ranges accordingly.
//!
//! Owns how much of which level each range has. Never finds out how ranges are used: hints say so (see `hints`).
//! Invariants: the parts of all ranges of a level sum to at most its size; a block is in one level at most.
//!
//! After Karma (Yadgar, Factor and Schuster, FAST 2007): ranges take the space in the order of what a block of them
//! gains, from the first level down; each has its part to itself, replaced as suits its use; a range on two levels is
//! kept exclusive by demotion. When other hints are given, everything is shared out anew at once: see
//! [`Hinted::share_out_anew`]. There, a range gives up its blocks one by one, as others need the space.

use super::hints::{HintWindow, Hints, RangeUse};
use super::{DeviceStep, LevelCounts, LevelOptions};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use undercroft_engine::{Access, AnyPolicyKind, Index, Outcome, PolicyKind, StudiedPolicyKind};

/// What a range has of one level.
struct Part {
    level: usize,
    index: Index<AnyPolicyKind>,
}

/// The parts of each range that has any, the client's level first.
type Parts = FxHashMap<u64, Vec<Part>>;

/// Caches below each other whose space is divided among ranges of blocks.
pub(super) struct Hinted {
    hints: Arc<Hints>,
    /// Blocks of each level.
    sizes: Vec<u64>,
    parts: Parts,
    counts: Vec<LevelCounts>,
    /// Accesses so far.
    accesses: u64,
}

impl Hinted {
    pub fn new(levels: &[LevelOptions], hints: Arc<Hints>) -> Self {
        let sizes: Vec<u64> = levels.iter().map(|l| l.blocks.into()).collect();
        let parts = shared_out(&hints.windows()[0], &sizes).into_iter().collect();
        Self { hints, sizes, parts, counts: vec![LevelCounts::default(); levels.len() + 1], accesses: 0 }
    }

    /// One access of the client.
    pub fn access(&mut self, block: u64, write: bool, steps: &mut Vec<DeviceStep>) {
        if self.accesses > 0 {
            self.share_out_anew(steps);
        }
        self.accesses += 1;
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
        let mut step = |device, write, awaited| steps.push(DeviceStep { device, write, awaited });
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

    /// If hints of the next accesses are given now: of what a range has of a level it keeps what fits into its new part
    /// of that level; the first to go by the new part's policy goes. That is handed down to the range's parts below as
    /// far as those have room, and dropped otherwise. Nothing goes up.
    fn share_out_anew(&mut self, steps: &mut Vec<DeviceStep>) {
        let Some(window) = self.hints.given_at(self.accesses) else { return };
        let mut before = std::mem::take(&mut self.parts);
        // In the order of the new hints, so that what devices do does not depend on a table's order.
        for (range, mut parts) in shared_out(window, &self.sizes) {
            let mut had = before.remove(&range).unwrap_or_default().into_iter().peekable();
            let mut given_up: Vec<u64> = vec![];
            let mut new = parts.iter_mut().peekable();
            for level in 0..self.sizes.len() {
                let own = had.next_if(|p| p.level == level).map_or(vec![], |p| oldest_first(p.index));
                let gone = match new.next_if(|p| p.level == level) {
                    None => own,
                    Some(part) => {
                        let (kept, gone) = fitting(&own, &part.index);
                        fill(&mut part.index, kept);
                        let (handed, left) = fitting(&given_up, &part.index);
                        fill(&mut part.index, handed);
                        self.counts[level].demotions += handed.len() as u64;
                        steps.extend(handed.iter().map(|_| DeviceStep { device: level, write: true, awaited: false }));
                        given_up = left.to_vec();
                        gone.to_vec()
                    }
                };
                self.counts[level].evictions += gone.len() as u64;
                // what was further down was used longer ago
                given_up = [gone, given_up].concat();
            }
            self.parts.insert(range, parts);
        }
        for part in before.into_values().flatten() {
            self.counts[part.level].evictions += u64::from(part.index.len());
        }
    }

    pub fn counts(&self) -> Vec<LevelCounts> {
        self.counts.clone()
    }

    #[cfg(test)]
    pub fn held(&self) -> Vec<Vec<u64>> {
        let mut held = vec![vec![]; self.counts.len() - 1];
        for (range, part) in self.parts.iter().flat_map(|(range, parts)| parts.iter().map(move |p| (range, p))) {
            part.index.check();
            held[part.level].extend(part.index.iter().map(|(block, _)| block));
            assert!(part.index.iter().all(|(block, _)| self.hints.range_of(block) == *range), "of another range");
        }
        for (level, &size) in self.sizes.iter().enumerate() {
            let parts = self.parts.values().flatten().filter(|p| p.level == level);
            assert!(
                parts.map(|p| u64::from(p.index.capacity())).sum::<u64>() <= size,
                "more is shared out than there is"
            );
        }
        held.iter_mut().for_each(|blocks| blocks.sort_unstable());
        held
    }
}

/// Empty parts of levels of `sizes` blocks, by what is told: ranges in the order of what a block of them gains.
fn shared_out(window: &HintWindow, sizes: &[u64]) -> Vec<(u64, Vec<Part>)> {
    let mut room = sizes.to_vec();
    let mut level = 0;
    let mut all = vec![];
    for (range, hint) in window.by_gain() {
        let is_loop = hint.pattern() == RangeUse::Loop;
        let policy: AnyPolicyKind = if is_loop { StudiedPolicyKind::Mru.into() } else { PolicyKind::Lru.into() };
        let mut wanted = hint.blocks;
        let mut parts = vec![];
        while wanted > 0 && level < room.len() {
            let takes = wanted.min(room[level]);
            if takes > 0 {
                // no more than the level has, whose size fits
                parts.push(Part { level, index: Index::new(policy, takes as u32) });
            }
            (wanted, room[level]) = (wanted - takes, room[level] - takes);
            level += usize::from(room[level] == 0);
        }
        if !parts.is_empty() {
            all.push((range, parts));
        }
    }
    all
}

/// The blocks of a part, the one last used at the end.
fn oldest_first(mut index: Index<AnyPolicyKind>) -> Vec<u64> {
    let mut blocks: Vec<u64> = std::iter::from_fn(|| index.evict(|_| true)).map(|(block, _)| block).collect();
    if index.kind() == StudiedPolicyKind::Mru {
        blocks.reverse();
    }
    blocks
}

/// Of `blocks`, the oldest first, those that fit into what is free of a part, and those that go.
fn fitting<'a>(blocks: &'a [u64], part: &Index<AnyPolicyKind>) -> (&'a [u64], &'a [u64]) {
    let fit = blocks.len().min((part.capacity() - part.len()) as usize);
    if part.kind() == StudiedPolicyKind::Mru {
        blocks.split_at(fit)
    } else {
        let (gone, kept) = blocks.split_at(blocks.len() - fit);
        (kept, gone)
    }
}

fn fill(part: &mut Index<AnyPolicyKind>, blocks: &[u64]) {
    for &block in blocks {
        part.access(block, Access::Read, |_| true);
    }
}
