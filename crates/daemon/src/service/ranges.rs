//! What containers have of the disks that are served.
//!
//! Owns the way from a list to the parts of a disk in the core, and to leaves of the tree of shares. Never divides:
//! `shares` does. Invariants: a disk's ranges go with it, and a disk that is attached anew has none; the plan's parts,
//! the core's and the ranges are of the same containers.

use super::Service;
use super::disk::silent;
use super::shares::part_blocks;
use undercroft_api::ranges::RangeList;
use undercroft_api::{RangesStatus, RangesTaken};
use undercroft_config::plan::PartPlan;
use undercroft_config::shares::{Strict, divide_from};
use undercroft_config::{ControlError, ControlErrorKind, DiskPlan, ServePlan};
use undercroft_engine::{PartId, PartRange, PartSetting};

impl Service {
    /// What containers have of a disk.
    pub(super) fn ranges_of(&self, name: &str) -> Result<RangesStatus, ControlError> {
        let disk = self.find(name)?;
        let ranges = disk.ranges();
        Ok(RangesStatus::new(&disk.info().name, &ranges))
    }

    /// Takes a list, whole or not at all: what the container has of the disk is a part of it from now on, with a share
    /// and a policy of its own. What is cached stays, as far as the new shares allow.
    pub(super) fn take_ranges(&self, list: &RangeList) -> Result<RangesTaken, ControlError> {
        // No disk comes or goes meanwhile.
        let _change = self.change.lock();
        let disk = self.find(list.disk())?;
        let before = self.plan();
        let mut plan = ServePlan::clone(&before);
        let name = disk.info().name.clone();
        let Some(p) = plan.disks.iter_mut().find(|d| d.name == name) else {
            return Err(ControlError::no_node(&name, []));
        };
        may_be_divided(p)?;
        let mut ranges = disk.ranges();
        let taken = RangesTaken::new(list, &ranges);
        let mut wanted = ranges.clone();
        wanted.put(list)?;
        let parts = wanted.parts();
        name_parts(p, parts.containers());
        plan.forget_past_containers();
        divide_from(&mut plan, &before.disks, Strict::OnHost)
            .map_err(|m| ControlError::new(ControlErrorKind::Conflict, m.error, m.remedy))?;
        let Some(p) = plan.find(&name).cloned() else { return Err(ControlError::no_node(&name, [])) };
        let number = |container: usize| {
            let name = parts.containers().get(container);
            p.parts.iter().find(|part| Some(&part.container) == name).map(|part| PartId(part.number))
        };
        let runs: Vec<PartRange> = parts
            .runs()
            .iter()
            .filter_map(|r| Some(PartRange { first: r.first, blocks: r.blocks, part: number(r.container)? }))
            .collect();
        // With parts it keeps its blocks apart.
        self.join_pools(&plan);
        let (id, policies): (_, Vec<_>) = (disk.id(), p.parts.iter().map(|part| plan.part_policy(&p, part)).collect());
        let set = disk.host().worker.call(move |w| {
            let core = w.core();
            if p.parts.is_empty() {
                core.clear_parts(id);
                return Ok(());
            }
            // As the plan has them, but no more than the disk has now: what is missing follows.
            let shares = part_blocks(core, id, &p);
            let all: u64 = shares.iter().map(|s| u64::from(s.1)).sum();
            let now = core.stats(id).capacity_blocks.min(all);
            let part = |blocks: u32| (u64::from(blocks) * now / all.max(1)) as u32;
            let settings: Vec<PartSetting> = shares[1..]
                .iter()
                .zip(policies)
                .map(|(&(id, blocks), policy)| PartSetting { part: id, policy, share_blocks: part(blocks) })
                .collect();
            core.set_parts(id, &runs, &settings)?;
            // Each part is measured by itself from now on.
            core.measure(id, None);
            Ok::<_, undercroft_cache::SetPartsError>(())
        });
        let refused = match set {
            Ok(Ok(())) => None,
            Ok(Err(e)) => Some(conflict(format!("disk \"{name}\": {e}"), "nothing has been changed")),
            Err(e) => Some(silent(e, disk.worker_number()).into()),
        };
        if let Some(refused) = refused {
            self.join_pools(&before);
            return Err(refused);
        }
        *ranges = wanted;
        drop(ranges);
        self.settle(plan);
        self.hurry_shares();
        Ok(taken)
    }
}

fn conflict(error: String, remedy: &str) -> ControlError {
    ControlError::new(ControlErrorKind::Conflict, error, remedy)
}

/// Whether containers can have parts of a disk.
fn may_be_divided(disk: &DiskPlan) -> Result<(), ControlError> {
    let name = &disk.name;
    if let Some(whole) = &disk.container {
        return Err(conflict(
            format!("disk \"{name}\" belongs to container \"{whole}\" as a whole"),
            "take `container` away from the disk in the configuration, then divide it by ranges",
        ));
    }
    if disk.vm.is_none() {
        return Err(conflict(
            format!("disk \"{name}\" belongs to no VM, and containers are parts of VMs"),
            "configure it as [[vm.disk]] below its [[vm]], then divide it by ranges",
        ));
    }
    if disk.share_fixed {
        return Err(conflict(
            format!("disk \"{name}\" has a fixed size, so that nothing can be divided among its ranges"),
            "give it a floor and a ceiling instead: `undercroft set NAME --floor SIZE --ceiling SIZE`",
        ));
    }
    Ok(())
}

/// Gives a disk a part for each of `containers`; they keep their numbers, by which the core knows them.
fn name_parts(disk: &mut DiskPlan, containers: &[String]) {
    let had = std::mem::take(&mut disk.parts);
    let mut free = (1..=u8::MAX).filter(|n| had.iter().all(|h| h.number != *n));
    for container in containers {
        let known = had.iter().find(|h| h.container == *container).cloned();
        let part =
            known.or_else(|| Some(PartPlan { container: container.clone(), number: free.next()?, share_bytes: 0 }));
        disk.parts.extend(part);
    }
    disk.parts.sort_by_key(|p| p.number);
}
