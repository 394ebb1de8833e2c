//! What the simulation does with parts of disks: ranges set, changed and taken away, shares moved, and what must hold.
//!
//! Owns the model of which part a block belongs to: a list, searched from its beginning. Never uses time or entropy.
//! Invariant: a list that the core refuses changes nothing, and one that it takes is in force at once.

use super::Sim;
use crate::coverage::Seen;
use undercroft_cache::fault_injection::FaultInjection;
use undercroft_cache::{AddDiskError, DiskId, SetPartsError};
use undercroft_engine::{PartId, PartRange, PartSetting, PartsError, PolicyKind};
use undercroft_host::FRAME_BYTES;

/// Numbers of parts that are used: some next to each other, one far away.
const NUMBERS: [u8; 4] = [1, 2, 3, 40];

impl<P: FaultInjection> Sim<P> {
    /// Parts come, change or go, or their shares move.
    pub(crate) fn change_parts(&mut self, d: usize) {
        self.see(Seen::Parts, d);
        self.go_apart(d);
        match self.rng.below(10) {
            0..4 => self.set_parts(d),
            4..8 => self.move_part_share(d),
            8 => {
                self.world.note(|| format!("disk {d} has no parts"));
                self.core().clear_parts(DiskId(d as u32));
                self.ranges[d].clear();
            }
            _ => {
                let part = PartId(*self.rng.pick(&NUMBERS));
                let kind = *self.rng.pick(&PolicyKind::ALL);
                self.world.note(|| format!("policy of part {} of disk {d}: {kind}", part.0));
                let had = self.ranges[d].iter().any(|r| r.part == part);
                if !self.core().set_part_policy(DiskId(d as u32), part, kind) && had {
                    self.world.violate(format!("part {} of disk {d} is not there", part.0));
                }
            }
        }
    }

    fn blocks_of(&self, d: usize) -> u64 {
        let g = &self.world.sides[d].disk.geometry;
        (g.size / g.align * g.align).div_ceil(FRAME_BYTES as u64)
    }

    fn set_parts(&mut self, d: usize) {
        let id = DiskId(d as u32);
        let blocks = self.blocks_of(d);
        let mut ranges = Vec::new();
        let (mut at, parts) = (0, self.rng.between(1, NUMBERS.len() as u64));
        while at < blocks && ranges.len() < 12 {
            let first = at + self.rng.below(blocks / 4 + 1);
            let most = blocks.saturating_sub(first);
            if most == 0 {
                break;
            }
            let part = PartId(NUMBERS[self.rng.below(parts) as usize]);
            let range = PartRange { first, blocks: self.rng.between(1, most.min(blocks / 3 + 1)), part };
            at = range.first + range.blocks;
            ranges.push(range);
        }
        let mut settings = Vec::new();
        let capacity = self.disk_options[d].capacity_blocks;
        for part in ranges.iter().map(|r| r.part) {
            if settings.iter().all(|s: &PartSetting| s.part != part) {
                let share_blocks = self.rng.below(u64::from(capacity) / parts + 1) as u32;
                settings.push(PartSetting { part, policy: *self.rng.pick(&PolicyKind::ALL), share_blocks });
            }
        }
        let refused = match self.rng.below(12) {
            0 => {
                ranges.clear();
                true
            }
            1 if !ranges.is_empty() => {
                let again = PartRange { blocks: 1, ..*self.rng.pick(&ranges) };
                ranges.push(again);
                true
            }
            2 if !ranges.is_empty() => {
                let last = ranges.len() - 1;
                ranges[last].blocks += blocks;
                true
            }
            3 if !settings.is_empty() => {
                settings[0].share_blocks = capacity + 1;
                true
            }
            _ => ranges.is_empty(),
        };
        if self.rng.one_in(2) {
            ranges.reverse();
        }
        let before = self.core().part_stats(id);
        self.world.note(|| format!("parts of disk {d}: {ranges:?} {settings:?}"));
        match self.core().set_parts(id, &ranges, &settings) {
            Ok(()) if refused => self.world.violate(format!("parts that make no sense were taken: {ranges:?}")),
            Ok(()) => self.ranges[d] = ranges,
            Err(SetPartsError::NoRoom { needed_blocks, disk_blocks }) if needed_blocks > disk_blocks => {}
            Err(SetPartsError::Parts(_)) if refused => {
                if self.core().part_stats(id) != before {
                    self.world.violate(format!("parts of disk {d} that were refused changed something"));
                }
            }
            Err(e) => self.world.violate(format!("parts were refused: {e}")),
        }
        self.core().check();
    }

    fn move_part_share(&mut self, d: usize) {
        let id = DiskId(d as u32);
        let mut shares = Vec::new();
        for s in self.core().part_stats(id) {
            let step = self.rng.below(s.share_blocks / 4 + 4);
            match self.rng.below(4) {
                0 => shares.push((s.part, (s.share_blocks + step) as u32)),
                1 => shares.push((s.part, s.share_blocks.saturating_sub(step) as u32)),
                _ => {}
            }
        }
        let unknown = self.rng.one_in(20);
        if unknown {
            shares.push((PartId(99), 1));
        }
        self.world.note(|| format!("shares of parts of disk {d}: {shares:?}"));
        match self.core().set_part_shares(id, &shares) {
            Ok(()) if !unknown => {
                let stats = self.core().part_stats(id);
                if let Some(s) =
                    stats.iter().find(|s| shares.iter().any(|n| n.0 == s.part && u64::from(n.1) != s.share_blocks))
                {
                    self.world.violate(format!("part {} has another share than it was given", s.part.0));
                }
                self.disk_options[d].capacity_blocks = self.core().stats(id).capacity_blocks as u32;
            }
            Err(SetPartsError::Parts(PartsError::UnknownPart(PartId(99)))) if unknown => {}
            Err(SetPartsError::Disk(AddDiskError::NoMemory { needed_bytes, left_bytes }))
                if needed_bytes > left_bytes && !unknown => {}
            other => self.world.violate(format!("shares of parts were not taken as they should: {other:?}")),
        }
    }

    /// What holds at every moment: parts are their disk.
    pub(crate) fn judge_parts(&mut self) {
        for d in 0..self.ranges.len() {
            let id = DiskId(d as u32);
            let parts = self.core().part_stats(id);
            let has = !self.ranges[d].is_empty();
            if parts.is_empty() && !has {
                continue;
            }
            let s = self.core().stats(id);
            let sum = |f: fn(&undercroft_cache::PartStats) -> u64| parts.iter().map(f).sum::<u64>();
            let parts_are = (sum(|p| p.cached_blocks), sum(|p| p.charged_blocks), sum(|p| p.share_blocks));
            let disk_is = (s.cached_blocks, s.charged_blocks, s.capacity_blocks);
            if parts_are != disk_is || !has {
                self.world.violate(format!("parts of disk {d} have {parts_are:?}, the disk has {disk_is:?}"));
            }
            if sum(|p| p.hit_blocks) != s.hit_blocks || sum(|p| p.miss_blocks) != s.miss_blocks + s.joined_blocks {
                self.world.violate(format!("what parts of disk {d} did is not what it did: {parts:?}"));
            }
        }
    }

    /// What holds when everything that is over has gone: no part is above its limit, and each block is the part's that
    /// the list says.
    pub(crate) fn judge_parts_at_rest(&mut self) {
        for d in 0..self.ranges.len() {
            let id = DiskId(d as u32);
            let parts = self.core().part_stats(id);
            if let Some(p) = parts.iter().find(|p| p.cached_blocks > p.limit_blocks) {
                self.world.violate(format!("at rest, part {} of disk {d} is above its limit: {parts:?}", p.part.0));
            }
            self.outcome.parted += u64::from(parts.iter().filter(|p| p.cached_blocks > 0).count() > 1);
            let ranges = self.ranges[d].clone();
            let blocks = self.blocks_of(d);
            // Of a disk that is too large to look at every block of it, those where something begins or ends.
            let edges = ranges.iter().flat_map(|r| {
                let end = r.first + r.blocks;
                [r.first.saturating_sub(1), r.first, end - 1, end.min(blocks - 1)]
            });
            let edges: Vec<u64> = edges.chain([0, blocks - 1]).collect();
            let all = 0..if blocks <= 4096 { blocks } else { 0 };
            let wrong = all.chain(edges).find(|&block| {
                let of = ranges.iter().find(|r| (r.first..r.first + r.blocks).contains(&block));
                self.core().part_of(id, block) != of.map_or(PartId(0), |r| r.part)
            });
            if let Some(block) = wrong {
                self.world.violate(format!("block {block} of disk {d} is taken for another part's"));
            }
        }
    }
}
