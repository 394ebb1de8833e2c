//! Calls of the core that a daemon makes beside the data path: meters, scans of guests, memory given back, capacities.
//!
//! Owns what each must answer. Never changes what clients may see. Invariant: an answer is held against what can be
//! counted or hashed from outside.

use super::Sim;
use crate::coverage::Seen;
use std::collections::HashMap;
use undercroft_cache::fault_injection::FaultInjection;
use undercroft_cache::{AddDiskError, ContentHash, DiskId, DiskStats};
use undercroft_engine::ExclusiveMode;
use undercroft_engine::shares::Hint;

/// What a disk had counted when its meter began, or was read last.
pub(super) type Measured = Option<DiskStats>;

/// Calls after which memory must have been given back, with so many frames each.
const GIVE_BACK_CALLS: usize = 400;
const GIVE_BACK_FRAMES: u32 = 16;

impl<P: FaultInjection> Sim<P> {
    /// One of the calls.
    pub(super) fn call(&mut self, d: usize) {
        match self.extras.rng.below(12) {
            0 => self.measure(d),
            1..4 => self.read_meter(d),
            4 => {
                let scanned = !self.extras.rng.one_in(3);
                self.world.note(|| format!("disk {d} is scanned: {scanned}"));
                self.core().set_scanned(DiskId(d as u32), scanned);
                self.scanned[d] = scanned;
            }
            5..8 => self.cool(d),
            8..10 => self.give_back(d),
            _ => self.change_capacity(d),
        }
    }

    fn measure(&mut self, d: usize) {
        let id = DiskId(d as u32);
        let blocks = if self.extras.rng.one_in(3) { None } else { Some(self.extras.rng.between(1, 500)) };
        self.world.note(|| format!("disk {d} is measured up to {blocks:?}"));
        self.see(Seen::Measure, d);
        self.core().measure(id, blocks);
        for mate in self.mates(d) {
            self.measured[mate] = blocks.map(|_| self.core().stats(DiskId(mate as u32)));
        }
        if blocks.is_none() && self.core().telemetry(id).is_some() {
            self.world.violate(format!("disk {d} is measured and should not be"));
        }
    }

    /// What a meter saw is what the disk counted.
    pub(super) fn read_meter(&mut self, d: usize) {
        let id = DiskId(d as u32);
        let telemetry = self.core().telemetry(id);
        // Disks that keep their blocks together have one meter.
        let (mates, mut was, mut is) = (self.mates(d), (0, 0, 0), (0, 0, 0));
        let counted = |s: &DiskStats| {
            let misses = s.miss_blocks + s.joined_blocks;
            (s.hit_blocks + misses, misses, s.readahead_hit_blocks)
        };
        let add = |sum: &mut (u64, u64, u64), n: (u64, u64, u64)| {
            *sum = (sum.0 + n.0, sum.1 + n.1, sum.2 + n.2);
        };
        for &mate in &mates {
            add(&mut is, counted(&self.core().stats(DiskId(mate as u32))));
            add(&mut was, self.measured[mate].as_ref().map_or((0, 0, 0), counted));
        }
        match (&self.measured[d], &telemetry) {
            (None, None) => return,
            (Some(_), Some(t)) => {
                let counted = (is.0 - was.0, is.1 - was.1, is.2 - was.2);
                if (t.requests, t.misses, t.ahead) != counted {
                    let saw = (t.requests, t.misses, t.ahead);
                    self.world.violate(format!("disk {d} counted {counted:?}, its meter {saw:?}"));
                }
            }
            (asked, _) => {
                let asked = asked.is_some();
                self.world.violate(format!("disk {d} is measured: {asked}, and its meter says otherwise"));
            }
        }
        self.see(Seen::Measure, d);
        for mate in mates {
            self.measured[mate] = Some(self.core().stats(DiskId(mate as u32)));
        }
    }

    /// The hashes of what is cached are asked for, and what a guest may hold is told.
    fn cool(&mut self, d: usize) {
        let id = DiskId(d as u32);
        let key = self.core().content_key();
        let mut held = HashMap::new();
        self.core().for_each_cached(id, |block, bytes| {
            if let Ok(bytes) = bytes.try_into() {
                held.insert(block, key.hash(bytes));
            }
        });
        let (mut found, mut from) = (Vec::new(), Some(0));
        let most = self.extras.rng.between(1, 64) as u32;
        while let Some(at) = from {
            from = self.core().cached_hashes(id, at, most, &mut found);
        }
        if let Some((hash, block)) = found.iter().find(|(hash, block)| held.get(block) != Some(hash)) {
            let what = format!("block {block} of disk {d} is said to have hash {:x}, and has another", hash.get());
            return self.world.violate(what);
        }
        self.see(Seen::Cool, d);
        if self.extras.rng.one_in(2) {
            // A guest that holds other contents than these cools nothing.
            found = found.iter().filter_map(|(h, b)| Some((ContentHash::new(h.get() ^ 1)?, *b))).collect();
            let cooled = self.core().cool(id, &found);
            if cooled > 0 {
                self.world
                    .violate(format!("{cooled} blocks of disk {d} are the first to go for contents they have not"));
            }
        } else {
            let most = found.len() as u32;
            let cooled = self.core().cool(id, &found);
            let again = self.core().cool(id, &found);
            if cooled > most || again > 0 {
                self.world
                    .violate(format!("of {most} blocks of disk {d}, {cooled} and then {again} are the first to go"));
            }
            self.judge_scan(d, most, cooled);
        }
    }

    /// `found` blocks of disk `d` were found in its guest with the hashes that they are cached with, and `cooled` of
    /// them became the first to go, just now.
    ///
    /// The invariant: a disk that is not kept exclusive of its guest has a place for what goes first exactly if it is
    /// scanned, or its hint says that all it reads goes first. With the place, each block that was found stands in it
    /// now, if it is not on probation before it; without, none was moved. A locked block may stay where it is, so runs
    /// that lock blocks are not judged; nor are disks of a pool, whose blocks stand among those of others.
    fn judge_scan(&mut self, d: usize, found: u32, cooled: u32) {
        let id = DiskId(d as u32);
        if self.locks.is_some() || !self.core().pool(id).is_empty() {
            return;
        }
        let Some(report) = self.core().exclusive(id).filter(|r| r.mode == ExclusiveMode::Off) else { return };
        let [_, probation, cold] = report.tiers;
        if self.scanned[d] {
            if probation + cold < found {
                let low = probation + cold;
                self.world.violate(format!("of {found} blocks that a scan of disk {d} found, {low} are to go first"));
            }
            self.outcome.scanned += u64::from(found > 0);
        } else if self.hinted[d] == Hint::Normal && cooled > 0 {
            self.world.violate(format!("{cooled} blocks of disk {d}, which is not scanned, are the first to go"));
        }
    }

    /// Memory is given back to the last frame that is over.
    fn give_back(&mut self, d: usize) {
        self.world.note(|| "memory is given back".into());
        self.see(Seen::GiveBack, d);
        let mut left = usize::MAX;
        for _ in 0..GIVE_BACK_CALLS {
            left = self.core().give_back(GIVE_BACK_FRAMES);
            if left == 0 {
                break;
            }
        }
        if left > 0 {
            self.world.violate(format!("{left} frames are never given back"));
        }
        for d in 0..self.world.sides.len() {
            let s = self.core().stats(DiskId(d as u32));
            let all = self.core().pool_stats(DiskId(d as u32)).charged_blocks;
            if all > s.limit_blocks {
                self.world.violate(format!("disk {d} keeps more than its limit when all was given back: {s:?}"));
            }
        }
    }

    /// A capacity that fits is taken, and one that is refused changes nothing.
    fn change_capacity(&mut self, d: usize) {
        let id = DiskId(d as u32);
        let before = self.core().stats(id);
        let memory = self.core().memory();
        let blocks = match self.extras.rng.below(4) {
            0 => self.extras.rng.below(before.capacity_blocks + 1) as u32,
            1 => before.capacity_blocks as u32 + self.extras.rng.below(40) as u32,
            _ => before.capacity_blocks as u32 + self.extras.rng.below(3000) as u32,
        };
        self.world.note(|| format!("capacity of disk {d}: {blocks}"));
        self.see(Seen::Capacity, d);
        match self.core().set_capacity(id, blocks) {
            Ok(()) => {
                self.has_capacity(d, blocks);
                self.outcome.taken += u64::from(u64::from(blocks) > before.capacity_blocks);
            }
            Err(AddDiskError::NoMemory { .. }) if u64::from(blocks) > before.capacity_blocks => {
                self.outcome.refused += 1;
                if (self.core().stats(id), self.core().memory()) != (before, memory) {
                    self.world.violate(format!("a capacity of disk {d} that was refused changed something"));
                }
            }
            Err(e) => {
                self.world.violate(format!("a capacity of {blocks} for {} was refused: {e}", before.capacity_blocks))
            }
        }
    }
}
