//! What each disk may keep of what the store may hold now.
//!
//! Owns the translation of a number of bytes for the store into a number of blocks for each disk, and who was told
//! what. Never decides the number: `pressure` does. Invariant: once disks have given back what is over their limits,
//! they hold together no more than the number of bytes that the limits were made from.

use super::pools::Together;
use super::{Service, capacity_blocks};
use crate::worker::Asker;
use std::sync::Arc;
use undercroft_config::{DiskPlan, ServePlan};
use undercroft_host::FRAME_BYTES;
use undercroft_hostmem::pressure::{View, allowed_bytes};

/// Disks of a worker that are told their limits with one message: evicting what is over takes some of them a moment.
const LIMITS_AT_ONCE: usize = 64;
/// Part of the available memory by which it may fall before disks that sleep are told: what is available on a machine
/// is never the same twice.
const SLACK_PART: u64 = 16;

const FRAME: u64 = FRAME_BYTES as u64;

/// What the limits that disks were told last were made from.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// The plan, and how many disks were served.
    of: Option<(Arc<ServePlan>, usize)>,
    allowed_bytes: u64,
    floor_bytes: u64,
    /// By how much the store may grow, with some slack below what was said.
    room_bytes: Option<u64>,
}

impl Told {
    /// Takes note of what limits are to be made from now. Whether they would be as they were, for disks that hold what
    /// they held.
    fn stays(&mut self, plan: &Arc<ServePlan>, disks: usize, view: &View) -> bool {
        let room_stays = match (self.room_bytes, view.room_bytes) {
            (None, None) => true,
            (Some(told), Some(now)) => told <= now && now / (SLACK_PART + 4) <= told / SLACK_PART,
            _ => false,
        };
        let same_plan = self.of.as_ref().is_some_and(|(p, n)| Arc::ptr_eq(p, plan) && *n == disks);
        let stays =
            room_stays && same_plan && (self.allowed_bytes, self.floor_bytes) == (view.allowed_bytes, view.floor_bytes);
        if !stays {
            *self = Self {
                of: Some((plan.clone(), disks)),
                allowed_bytes: view.allowed_bytes,
                floor_bytes: view.floor_bytes,
                room_bytes: view.room_bytes.map(|room| room - room / SLACK_PART),
            };
        }
        stays
    }
}

/// Blocks that a disk may keep when the store may hold `total` bytes.
fn limit_blocks(plan: &DiskPlan, total: u64, floor: u64, ceiling: u64) -> u32 {
    if total >= ceiling {
        return u32::MAX;
    }
    // Its metadata and its operations stay, so all of what goes is blocks.
    let goes = plan.share_bytes - allowed_bytes(plan.share_bytes, total, floor, ceiling);
    capacity_blocks(plan).saturating_sub(u32::try_from(goes.div_ceil(FRAME)).unwrap_or(u32::MAX))
}

impl Service {
    /// Makes `plan` what is served, and tells the disks what they may hold of it now.
    pub(super) fn adopt(&self, plan: impl Into<Arc<ServePlan>>) {
        *super::write(&self.plan) = plan.into();
        self.limit_disks();
        self.tell_file_hints();
    }

    /// Tells every disk how many blocks it may keep now: of those it may have at all, no more than it has and its part
    /// of what the store may grow by.
    pub(super) fn limit_disks(&self) {
        self.limit(false);
    }

    /// The same, but only those disks for which it may be another number than the last time: all, or those of workers
    /// that have done something since. The machine's memory is looked at some times each second.
    pub(super) fn limit_disks_anew(&self) {
        self.limit(true);
    }

    fn limit(&self, only_news: bool) {
        let mut told = self.limits.lock();
        let (plan, view) = (self.plan(), self.watch.view());
        let stays = told.stays(&plan, super::read(&self.disks).len(), &view) && only_news;
        let asleep: Vec<bool> = self.workers.iter().map(|w| stays && !w.take_has_worked(Asker::Limits)).collect();
        if asleep.iter().all(|&sleeps| sleeps) {
            return;
        }
        let disks = self.disks();
        let together = Together::new(&plan, &disks);
        let room = told.room_bytes.map(|bytes| bytes / FRAME / disks.len().max(1) as u64);
        let by_name = plan.by_name();
        let mut limits = vec![Vec::new(); self.workers.len()];
        for disk in disks.iter().filter(|d| !asleep[d.worker_number()]) {
            let Some(p) = by_name.get(disk.info().name.as_str()) else { continue };
            let limit = |p: &DiskPlan| limit_blocks(p, view.allowed_bytes, view.floor_bytes, plan.disks_bytes());
            limits[disk.worker_number()].push((disk.id(), together.sum(&plan, p, limit)));
        }
        for (worker, limits) in self.workers.iter().zip(limits) {
            for some in limits.chunks(LIMITS_AT_ONCE) {
                let some = some.to_vec();
                // Only sent: a worker that is busy for a moment does not keep the others from shrinking.
                let _ = worker.send(move |w| {
                    let core = w.core();
                    for (id, blocks) in some {
                        let held = core.pool_stats(id);
                        let most = |n: u64| held.charged_blocks.saturating_add(n.saturating_mul(held.disks));
                        let bound = room.map(|n| u32::try_from(most(n)).unwrap_or(u32::MAX));
                        core.set_limit(id, bound.map_or(blocks, |bound| blocks.min(bound)));
                    }
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::held_bytes;
    use super::super::plan_for_tests::plan;
    use super::*;
    use proptest::prelude::*;
    use undercroft_hostmem::pressure::{Holding, held_above};

    fn disk(share_bytes: u64) -> DiskPlan {
        DiskPlan { share_bytes, ..plan(&["a"]).disks.remove(0) }
    }

    #[test]
    fn limits_stay_while_nothing_but_a_little_memory_comes_and_goes() {
        let plan = Arc::new(plan(&["a"]));
        let view = |room, allowed_bytes| View { room_bytes: room, allowed_bytes, ..View::default() };
        let mut told = Told::default();
        assert!(!told.stays(&plan, 3, &view(Some(1600), 7)), "nothing was told");
        assert_eq!(told.room_bytes, Some(1500), "without slack the next look would tell all again");
        for room in [1600, 1500, 1550, 1700] {
            assert!(told.stays(&plan, 3, &view(Some(room), 7)), "{room}");
        }
        assert_eq!(told.room_bytes, Some(1500));
        assert!(!told.stays(&plan, 3, &view(Some(1499), 7)), "less than what disks were told there is");
        assert!(!told.stays(&plan, 3, &view(Some(2000), 7)), "much more has become free");
        assert!(!told.stays(&plan, 3, &view(Some(2000), 6)), "the store may hold less");
        assert!(!told.stays(&plan, 4, &view(Some(2000), 6)), "a disk has come");
        assert!(!told.stays(&Arc::new(ServePlan::clone(&plan)), 4, &view(Some(2000), 6)), "another plan");
        assert!(!told.stays(&plan, 4, &view(None, 6)) && told.stays(&plan, 4, &view(None, 6)));
        assert!(!told.stays(&plan, 4, &view(Some(2000), 6)));
    }

    proptest! {
        #[test]
        fn a_disk_that_keeps_its_limit_holds_what_it_is_allowed(
            share in (4u64 << 20)..1 << 36, floor in 0u64..=100, total in 0u64..=100,
        ) {
            let ceiling = share + (64 << 20);
            let (floor, total) = (ceiling / 100 * floor, ceiling / 100 * total);
            let plan = disk(share);
            let blocks = limit_blocks(&plan, total, floor, ceiling);
            prop_assert!(blocks <= capacity_blocks(&plan) || total >= ceiling);
            let held =
                |cached: u64| vec![Holding { share_bytes: share, held_bytes: held_bytes(&plan, cached) }];
            if blocks > 0 {
                prop_assert_eq!(held_above(&held(blocks.into()), total, floor, ceiling), 0, "too much is kept");
            }
            if blocks < capacity_blocks(&plan) {
                prop_assert!(
                    held_above(&held(u64::from(blocks) + 1), total, floor, ceiling) > 0,
                    "a block more would fit"
                );
            }
        }
    }
}
