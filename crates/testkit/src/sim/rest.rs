//! Everything comes to rest, and what must hold then is checked; the end of a run.
//!
//! Owns no state. Never begins anything. Invariant: at rest nothing is under way, and what is cached is what the disk
//! holds.

use super::Sim;
use crate::outcome::Outcome;
use crate::violation::Violation;
use undercroft_cache::fault_injection::FaultInjection;
use undercroft_cache::{DiskId, Event};
use undercroft_engine::shares::Hint;

/// Steps of one disk after which it must have nothing more to do, when no request comes.
const OPERATIONS_MAX: u64 = 100_000;

impl<P: FaultInjection> Sim<P> {
    /// Every disk does what it was told, and what follows from it.
    pub(super) fn finish_operations(&mut self) {
        for _ in 0..OPERATIONS_MAX {
            (0..self.world.sides.len()).for_each(|d| self.finish_operations_of(d));
            self.finish_devices();
            if self.world.sides.iter().any(|side| side.disk.under_way() > 0) {
                continue;
            }
            if self.world.violation.is_some() || !self.resume() {
                return;
            }
        }
        self.world.violate("a request is paused again and again".to_owned());
    }

    fn finish_operations_of(&mut self, d: usize) {
        self.stalled[d] = 0;
        let mut left = OPERATIONS_MAX;
        while self.world.sides[d].disk.under_way() > 0 && self.world.violation.is_none() {
            left -= 1;
            if left == 0 {
                return self.world.violate(format!("disk {d} does not come to rest"));
            }
            self.world.sides[d].disk.execute(&mut self.rng);
            let now = self.world.tick();
            if let Some(done) = self.world.sides[d].disk.deliver(&mut self.rng, now) {
                self.world.note(|| format!("deliver {:?} {:?}", done.op, done.result));
                self.world.delivered(&done);
                self.apply(Event::IoDone(done));
            }
        }
    }

    /// Lets everything under way end, then checks what must hold when nothing is.
    pub(super) fn rest(&mut self) {
        self.world.note(|| "rest".into());
        self.finish_operations();
        if self.world.violation.is_some() {
            return;
        }
        if let Some(p) = self.world.requests.values().next() {
            let what = format!("{:?} was never answered", p.req);
            return self.world.violate(what);
        }
        if self.shares {
            // What is over goes by now.
            (0..3).for_each(|_| self.apply(Event::Tick));
            // Hints may have begun to fetch.
            self.finish_operations();
            self.judge_parts_at_rest();
            self.judge_hints_at_rest();
        }
        self.core().check();
        self.judge_pages();
        for d in 0..self.world.sides.len() {
            let id = DiskId(d as u32);
            let Self { core, world, .. } = self;
            let Some(core) = core.as_ref() else { return };
            let s = core.stats(id);
            if !core.is_idle(id) || s.inflight_requests != 0 || s.inflight_ops != 0 {
                world.violate(format!("disk {d} is not idle at rest: {s:?}"));
            }
            let disk = &world.sides[d].disk;
            let mut bad = None;
            core.for_each_cached(id, |block, bytes| {
                let place = core.place_of(id, block);
                let same = disk.space().pieces(place, bytes.len() as u64).all(|p| {
                    let cached = &bytes[(p.at - place) as usize..][..p.len as usize];
                    match p.medium {
                        Some(at) => disk.medium().get(at as usize..(at + p.len) as usize) == Some(cached),
                        None => cached.iter().all(|&b| b == 0),
                    }
                });
                if !same {
                    bad = Some(block);
                }
            });
            if let Some(block) = bad {
                world.violate(format!("at rest, block {block} of disk {d} is not cached as it is on the disk"));
            }
        }
        self.judge_shares();
        self.judge_displaced();
        self.judge_locks_at_rest();
        for d in 0..self.world.sides.len() {
            self.leave(d);
        }
    }

    /// Of a disk that is said not to be needed nothing is kept that costs anything, unless it shares what others keep.
    fn judge_hints_at_rest(&mut self) {
        for d in 0..self.hinted.len() {
            let id = DiskId(d as u32);
            if self.hinted[d] != Hint::DontNeed || !self.core().pool(id).is_empty() {
                continue;
            }
            // A bounded number goes at a time.
            let mut charged = self.core().stats(id).charged_blocks;
            while charged > 0 && self.world.violation.is_none() {
                self.apply(Event::Tick);
                let before = std::mem::replace(&mut charged, self.core().stats(id).charged_blocks);
                if charged >= before {
                    self.world.violate(format!("at rest, {charged} blocks of disk {d} are kept, which is not needed"));
                }
            }
        }
    }

    /// An SSD store knows blocks by their numbers, so that of a disk which counts them from elsewhere it has none.
    fn judge_displaced(&mut self) {
        for d in 0..self.world.sides.len() {
            let id = DiskId(d as u32);
            let displaced = self.core().exclusive(id).is_some_and(|report| report.block_offset != 0);
            let stored = self.core().ssd_stats_of(id).map_or(0, |stats| stats.blocks);
            if displaced && stored > 0 {
                self.world
                    .violate(format!("the SSD store has {stored} blocks of disk {d}, which counts from elsewhere"));
            }
        }
    }

    pub(super) fn end(mut self) -> Result<Outcome, Violation> {
        self.crash_ssd(false);
        for d in 0..self.world.sides.len() {
            self.count(d);
            for buf in self.world.sides[d].disk.crash(false, &mut self.rng) {
                self.core().reclaim(buf);
            }
        }
        self.outcome.answers = self.world.answers;
        self.outcome.captures = self.world.captures;
        self.outcome.captures_across = self.world.captures_across;
        self.outcome.steps = self.steps;
        self.outcome.slowest = self.world.slowest;
        self.outcome.coverage = self.world.coverage;
        self.world.sides.iter().for_each(|s| self.outcome.faults.failed(&s.disk.failures_of));
        match self.world.violation.take() {
            Some(what) => Err(what),
            None => Ok(self.outcome),
        }
    }
}
