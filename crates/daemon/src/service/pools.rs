//! Disks of a VM that keep their blocks together, as they are served: which stand on one worker, and what they have
//! between them.
//!
//! Owns the way from the pools of a plan to those of the cores. Never decides which disks belong together: `config`
//! does. Invariant: the share of a pool is the sum of the shares that the plan has for its disks.

use super::{ServedDisk, Service, capacity_blocks};
use crate::worker::Gone;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use undercroft_cache::DiskId;
use undercroft_config::{DiskPlan, ServePlan};

/// A disk of a pool, and its place in the plan.
pub(super) struct Mate {
    pub(super) disk: Arc<ServedDisk>,
    pub(super) at: usize,
}

/// The pools that can be: disks of a pool of the plan that stand on one worker.
#[derive(Default)]
pub(super) struct Together {
    pools: Vec<Vec<Mate>>,
    of: HashMap<String, usize>,
}

impl Together {
    pub(super) fn new(plan: &ServePlan, disks: &[Arc<ServedDisk>]) -> Self {
        let pools = plan.pools();
        let places: HashMap<&str, usize> = plan.disks.iter().enumerate().map(|(at, p)| (p.name.as_str(), at)).collect();
        let mut by_worker: HashMap<(usize, usize), Vec<Mate>> = HashMap::new();
        for disk in disks.iter().filter(|d| !d.is_detaching()) {
            let Some(&at) = places.get(disk.info().name.as_str()) else { continue };
            if let Some(&first) = pools.with(at).first() {
                by_worker.entry((first, disk.worker_number())).or_default().push(Mate { disk: disk.clone(), at });
            }
        }
        let pools: Vec<Vec<Mate>> = by_worker.into_values().filter(|mates| mates.len() > 1).collect();
        let names = |(n, mates): (usize, &Vec<Mate>)| {
            mates.iter().map(move |m| (m.disk.info().name.clone(), n)).collect::<Vec<_>>()
        };
        let of = pools.iter().enumerate().flat_map(names).collect();
        Self { pools, of }
    }

    /// The disks that keep their blocks together with the one of this name, it among them; empty if it keeps them
    /// apart.
    pub(super) fn with(&self, name: &str) -> &[Mate] {
        self.of.get(name).map_or(&[], |&n| &self.pools[n])
    }

    fn plans<'a>(&'a self, plan: &'a ServePlan, disk: &'a DiskPlan) -> impl Iterator<Item = &'a DiskPlan> {
        let mates = self.with(&disk.name);
        let alone = mates.is_empty().then_some(disk);
        mates.iter().map(|m| &plan.disks[m.at]).chain(alone)
    }

    /// Bytes of the store that the disk has, with those that it keeps its blocks together with.
    pub(super) fn share_bytes(&self, plan: &ServePlan, disk: &DiskPlan) -> u64 {
        self.plans(plan, disk).map(|p| p.share_bytes).sum()
    }

    /// Blocks that they may keep at most in that.
    pub(super) fn capacity_blocks(&self, plan: &ServePlan, disk: &DiskPlan) -> u32 {
        self.plans(plan, disk).fold(0, |sum, p| sum.saturating_add(capacity_blocks(p)))
    }

    /// The sum of what `number` says of each; `u32::MAX` if it says that of one.
    pub(super) fn sum(&self, plan: &ServePlan, disk: &DiskPlan, number: impl Fn(&DiskPlan) -> u32) -> u32 {
        self.plans(plan, disk).fold(0, |sum, p| sum.saturating_add(number(p)))
    }
}

impl Service {
    /// Has the disks that are served keep their blocks together as `plan` says. Workers that do not answer are
    /// returned.
    pub(super) fn join_pools(&self, plan: &ServePlan) -> BTreeSet<usize> {
        let (disks, mut silent) = (self.disks(), BTreeSet::new());
        let (together, by_name) = (Together::new(plan, &disks), plan.by_name());
        for (n, worker) in self.workers.iter().enumerate() {
            let own = disks.iter().filter(|d| d.worker_number() == n && !d.is_detaching());
            let wanted: Vec<(DiskId, Option<DiskId>, u32)> = own
                .filter_map(|d| {
                    let p = by_name.get(d.info().name.as_str())?;
                    let first = together.with(&p.name).first().map(|m| m.disk.id());
                    Some((d.id(), first, capacity_blocks(p)))
                })
                .collect();
            if wanted.is_empty() {
                continue;
            }
            let done = worker.call(move |w| {
                let core = w.core();
                let leave = |&(id, first, blocks): &(DiskId, Option<DiskId>, u32)| match first {
                    None if !core.pool(id).is_empty() => core.leave_pool(id, blocks),
                    _ => Ok(()),
                };
                let left: Result<Vec<()>, _> = wanted.iter().map(leave).collect();
                let join = |&(id, first, _): &(DiskId, Option<DiskId>, u32)| match first {
                    Some(first) if first != id => core.join_pool(id, first),
                    _ => Ok(()),
                };
                left.and_then(|_| wanted.iter().map(join).collect::<Result<Vec<()>, _>>())
            });
            match done {
                Ok(Ok(_)) | Err(Gone::Ended) => {}
                Ok(Err(e)) => tracing::error!(worker = n, "disks of a VM keep their blocks apart: {e}"),
                Err(Gone::Silent) => _ = silent.insert(n),
            }
        }
        silent
    }
}
