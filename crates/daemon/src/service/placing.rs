//! Chooses the worker of a disk, its trust group and its base image, and brings its share and settings to that worker.
//!
//! Owns the numbers of groups and bases, which never change. Never opens an image. Invariant: disks of one VM,
//! and disks that can hold frames in common, are on one worker.

use super::disk::{self, ServedDisk};
use super::pools::Together;
use super::{ROOM_WAIT, Service, ServiceError, capacity_blocks, lock, memory, shares};
use crate::worker::AddDiskError;
use std::sync::Arc;
use std::time::Instant;
use undercroft_cache::{GroupId, LayerId, SetPartsError};
use undercroft_config::plan::BaseDeduplication;
use undercroft_config::{DiskPlan, ServePlan};
use undercroft_units::human_size;

/// Numbers of trust groups and bases; they stay.
#[derive(Default)]
pub(super) struct SharingNumbers {
    /// Images below disks with those who hold their blocks in common.
    bases: Vec<(LayerId, Option<GroupId>)>,
    /// Names of trust groups.
    groups: Vec<String>,
}

impl Service {
    /// The number of a trust group; `None` if nothing is deduplicated.
    pub(super) fn group(&self, trust: &str) -> Option<GroupId> {
        if !self.plan().store.deduplicate {
            return None;
        }
        let groups = &mut self.sharing.lock().groups;
        let n = groups.iter().position(|g| g == trust).unwrap_or_else(|| {
            groups.push(trust.to_string());
            groups.len() - 1
        });
        Some(GroupId(n as u32))
    }

    /// The name of a trust group.
    pub(super) fn group_name(&self, group: GroupId) -> String {
        self.sharing.lock().groups.get(group.0 as usize).cloned().unwrap_or_default()
    }

    /// The number of an image for those who hold its blocks in common with a disk of `plan`, of group `group`.
    pub(super) fn base_for(&self, image: LayerId, plan: &DiskPlan, group: Option<GroupId>) -> LayerId {
        let own = (image, group.filter(|_| plan.deduplicate_base == BaseDeduplication::Group));
        let bases = &mut self.sharing.lock().bases;
        let n = bases.iter().position(|b| *b == own).unwrap_or_else(|| {
            bases.push(own);
            bases.len() - 1
        });
        LayerId(n as u64)
    }

    /// Waits until worker `n` has room for a disk: those that have been told to give need a moment for it.
    pub(super) fn make_room(&self, n: usize, plan: &DiskPlan, blocks: u32) -> Result<(), AddDiskError> {
        let (readahead_bytes, give_up) = (plan.settings.readahead_bytes, Instant::now() + ROOM_WAIT);
        loop {
            match self.workers[n].call(move |w| w.core().may_add(blocks, readahead_bytes)) {
                Ok(Err(e)) if Instant::now() >= give_up || *lock(&self.stop.0) => return Err(e.into()),
                Ok(Err(_)) => {}
                Ok(Ok(())) | Err(_) => return Ok(()),
            }
            let _ = self.workers[n].give_back(memory::STEP_FRAMES_MAX);
            std::thread::sleep(memory::PAUSE);
        }
    }

    /// Puts an opened disk on the worker of those of its VM, or of those that it can share with; otherwise on the one
    /// with the fewest disks.
    pub(super) fn put_on_worker(&self, mut opened: disk::Opened) -> Result<Arc<ServedDisk>, ServiceError> {
        let plan = opened.plan.clone();
        let plan = &plan;
        let blocks = capacity_blocks(plan);
        if blocks == 0 {
            return Err(ServiceError::TooSmall { disk: plan.name.clone(), share: human_size(plan.share_bytes) });
        }
        let mut load = vec![0usize; self.workers.len()];
        self.disks().iter().for_each(|d| load[d.worker_number()] += 1);
        let group = self.group(&plan.trust);
        if let Some(base) = &mut opened.base {
            base.layer = self.base_for(base.layer, plan, group);
        }
        let layer = opened.base.as_ref().map(|b| b.layer);
        let disks = self.disks();
        let like = |same: &dyn Fn(&ServedDisk) -> bool| disks.iter().find(|d| same(d)).map(|d| d.worker_number());
        // Disks of a VM may keep their blocks together, now or once nothing is set for them any more.
        let served = self.plan();
        let of_vm = |d: &ServedDisk| plan.vm.is_some() && served.find(&d.info().name).is_some_and(|p| p.vm == plan.vm);
        let together = like(&of_vm)
            .or_else(|| like(&|d| layer.is_some() && d.layer() == layer))
            .or_else(|| like(&|d| group.is_some() && d.group() == group));
        let answers = |n: &usize| !self.workers[*n].is_silent();
        let least = || (0..load.len()).filter(answers).min_by_key(|&n| load[n]);
        let n = together.filter(answers).or_else(least).unwrap_or(0);
        let no_room = |source| ServiceError::Attach { disk: plan.name.clone(), source };
        self.make_room(n, plan, blocks).map_err(no_room)?;
        Ok(Arc::new(ServedDisk::attach(opened, self.workers[n].clone(), n, blocks, group)?))
    }

    /// Makes the disks that are served now have the shares and settings of `plan`: those that shrink first, so
    /// that the sum never passes the store.
    pub(super) fn apply(&self, plan: &ServePlan) {
        self.join_pools(plan);
        let now = self.plan();
        let disks = self.disks();
        let (together, before) = (Together::new(plan, &disks), Together::new(&now, &disks));
        let share = |p: &DiskPlan| together.share_bytes(plan, p);
        let share_now = |p: &DiskPlan| {
            // Of disks that have come together, or are apart now: what each had.
            let same = before.with(&p.name).len() == together.with(&p.name).len();
            let had = |name: &str| now.find(name).map_or(0, |d| d.share_bytes);
            match now.find(&p.name) {
                Some(was) if same => before.share_bytes(&now, was),
                _ => together.with(&p.name).iter().map(|m| had(&plan.disks[m.at].name)).sum::<u64>().max(had(&p.name)),
            }
        };
        let wanted = disks.iter().filter_map(|d| Some((d, plan.find(&d.info().name)?)));
        let (mut growing, others): (Vec<_>, Vec<_>) = wanted.partition(|(_, p)| share(p) > share_now(p));
        let given = others.iter().any(|(_, p)| share(p) < share_now(p));
        // One that could not have it the last time waits as well.
        let deadline = Instant::now() + ROOM_WAIT;
        for (disk, p) in others {
            match Self::change(plan, &together, disk, p) {
                Err(refused) if waits(&refused) => growing.push((disk, p)),
                Err(refused) => unchanged(p, &refused),
                Ok(()) => {}
            }
        }
        if given {
            // Also for a disk that is not here yet.
            self.release_given();
        }
        growing.iter().for_each(|(disk, p)| self.grow(plan, &together, disk, p, deadline));
    }

    /// Makes a disk have more, once those on its worker that have been told to give have given: blocks go, and tables
    /// become smaller, step by step.
    fn grow(&self, plan: &ServePlan, together: &Together, disk: &ServedDisk, p: &DiskPlan, deadline: Instant) {
        while let Err(refused) = Self::change(plan, together, disk, p) {
            if !waits(&refused) || Instant::now() >= deadline || *lock(&self.stop.0) {
                return unchanged(p, &refused);
            }
            let _ = disk.host().worker.give_back(memory::STEP_FRAMES_MAX);
            std::thread::sleep(memory::PAUSE);
        }
    }

    /// Makes a disk have the share and the settings of `plan`, where it is `p`; the share with those that it keeps its
    /// blocks together with. A worker that is gone has nothing to change any more.
    fn change(plan: &ServePlan, together: &Together, disk: &ServedDisk, p: &DiskPlan) -> Result<(), SetPartsError> {
        let (id, blocks) = (disk.id(), together.capacity_blocks(plan, p));
        let share_bytes = together.share_bytes(plan, p);
        let parted = p.clone();
        let policies: Vec<_> = p.parts.iter().map(|part| (part.number, plan.part_policy(p, part))).collect();
        let (policy, settings, poll_ns) = (p.policy, p.settings, p.poll.as_nanos() as u64);
        let changed = disk.host().worker.call(move |w| {
            w.set_poll(id, poll_ns);
            if w.core().policy(id) != Some(policy) {
                w.core().set_policy(id, policy);
            }
            // Before its share: what they take comes out of it.
            w.core().set(id, &settings);
            if parted.parts.is_empty() {
                // What its operations may take stays what it was when it came: a smaller share has fewer blocks for
                // that.
                let blocks = blocks.min(w.core().blocks_for(id, share_bytes));
                return w.core().set_capacity(id, blocks).map_err(SetPartsError::Disk);
            }
            for now in w.core().part_stats(id) {
                if let Some(&(_, policy)) = policies.iter().find(|(n, kind)| *n == now.part.0 && *kind != now.policy) {
                    w.core().set_part_policy(id, now.part, policy);
                }
            }
            let shares = shares::part_blocks(w.core(), id, &parted);
            w.core().set_part_shares(id, &shares)
        });
        changed.unwrap_or(Ok(()))
    }
}

/// Whether what is refused may be had when others have given.
fn waits(refused: &SetPartsError) -> bool {
    matches!(refused, SetPartsError::Disk(undercroft_cache::AddDiskError::NoMemory { .. }))
}

fn unchanged(p: &DiskPlan, refused: &SetPartsError) {
    tracing::error!(disk = p.name, "cannot change its share: {refused}");
}
