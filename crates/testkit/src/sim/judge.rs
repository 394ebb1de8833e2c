//! What must hold between disks that share frames, and what a run adds up.
//!
//! Owns no state. Never changes what it judges. Invariant: a violation ends the run with the words for it.

use super::Sim;
use std::collections::HashMap;
use undercroft_cache::fault_injection::FaultInjection;
use undercroft_cache::{DiskId, DiskStats};

impl<P: FaultInjection> Sim<P> {
    /// That the charges are what is in use, and that no disk has more than its share.
    pub(super) fn judge_shares(&mut self) {
        let mut charged = 0;
        let disks = self.world.sides.len() as u64;
        for d in 0..self.world.sides.len() {
            let s = self.core().stats(DiskId(d as u32));
            charged += s.charged_blocks;
            self.outcome.shared += s.shared_blocks;
            self.outcome.zeroes += s.zero_blocks;
            if s.cached_blocks > s.capacity_blocks && s.charged_blocks <= s.capacity_blocks {
                self.outcome.beyond += 1;
            }
        }
        self.judge_groups();
        let used = self.core().frames_used();
        let contents = self.core_options.contents;
        if contents && !(used..=used + 2 * disks).contains(&charged) {
            self.world.violate(format!("{charged} frames are charged, {used} are in use"));
        }
    }

    /// That no more frames are lent for I/O than disks have brought; notes whether the pool runs short.
    pub(super) fn judge_pool(&mut self) {
        let pool = self.core().io_pool();
        if pool.lent > pool.frames + pool.owed {
            self.world.violate(format!("more is lent than there is: {pool:?}"));
        }
        let o = &mut self.outcome;
        o.lent += u64::from(pool.lent > 0);
        o.short += u64::from(pool.lent > 0 && pool.lent + 1 >= pool.frames);
        o.owed += u64::from(pool.owed > 0);
    }

    /// That disks of two groups hold no frame in common, but for those of an image that both stand on.
    fn judge_groups(&mut self) {
        let mut held: HashMap<*const u8, usize> = HashMap::new();
        let mut foreign = None;
        let Self { core, world, .. } = self;
        let Some(core) = core.as_ref() else { return };
        for d in 0..world.sides.len() {
            core.for_each_cached(DiskId(d as u32), |block, bytes| {
                if bytes.iter().any(|&b| b != 0)
                    && let Some(other) = held.insert(bytes.as_ptr(), d)
                {
                    let (a, b) = (&world.sides[d], &world.sides[other]);
                    if a.group != b.group && (a.base.is_none() || b.base.is_none()) {
                        foreign = Some((block, d, other));
                    }
                }
            });
        }
        if let Some((block, d, other)) = foreign {
            self.world.violate(format!("block {block} of disk {d} is in a frame of disk {other}, of another group"));
        }
    }

    /// Adds up what is known of a guest; the counts end with it.
    pub(super) fn count_guest(&mut self, d: usize) {
        if let Some(r) = self.core().exclusive(DiskId(d as u32)) {
            self.outcome.promoted = self.outcome.promoted.max(r.stats.evictions_cached);
            self.outcome.early = self.outcome.early.max(r.stats.early);
        }
    }

    pub(super) fn count(&mut self, d: usize) {
        self.count_guest(d);
        let s: DiskStats = self.core().stats(DiskId(d as u32));
        let linked = self.core().ssd_stats_of(DiskId(d as u32)).map_or(0, |of| of.linked);
        let o = &mut self.outcome;
        o.hits += s.hit_blocks;
        o.misses += s.miss_blocks;
        o.joined += s.joined_blocks;
        o.stale += s.stale_fills;
        o.ahead += s.readahead_hit_blocks;
        o.evicted += s.evicted_blocks;
        o.failures += s.backend_errors;
        o.at_base += s.shared_hit_blocks;
        o.below += s.ssd_hit_blocks;
        o.late += s.ssd_late_blocks;
        o.linked += linked;
    }
}
