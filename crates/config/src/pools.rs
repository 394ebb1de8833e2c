//! Which disks of a plan keep their blocks together: those of a VM for which nothing is set that would tell them apart.
//!
//! Owns the rule. Never looks at what is served. Invariant: a disk is of one pool at most, and a pool has two disks or
//! more, all with the same policy.

use super::keys::WEIGHT_DEFAULT;
use super::plan::{DiskPlan, ServePlan};
use std::collections::HashMap;
use undercroft_engine::shares::Hint;

/// The pools of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pools {
    /// Places of their disks in the plan, in its order.
    members: Vec<Vec<usize>>,
    /// The pool of each disk of the plan.
    of: Vec<Option<usize>>,
}

impl Pools {
    /// Places in the plan of the disks that keep their blocks together with the one at place `disk`, it among them;
    /// empty if it keeps them apart.
    pub fn with(&self, disk: usize) -> &[usize] {
        self.of.get(disk).copied().flatten().map_or(&[], |pool| &self.members[pool])
    }

    /// The pools.
    pub fn iter(&self) -> impl Iterator<Item = &[usize]> {
        self.members.iter().map(Vec::as_slice)
    }
}

impl DiskPlan {
    /// Whether nothing is set for the disk that the other disks of its VM have not: it has a part in what the VM has,
    /// and no share of its own.
    fn is_poolable(&self) -> bool {
        self.vm.is_some()
            && self.container.is_none()
            && self.parts.is_empty()
            && self.own_policy.is_none()
            && !self.share_fixed
            && self.weight == WEIGHT_DEFAULT
            && self.floor_bytes == 0
            && self.ceiling_bytes.is_none()
            && self.goal.is_none()
            && self.settings.hint == Hint::Normal
            && self.store.is_none()
    }
}

impl ServePlan {
    /// Which disks keep their blocks together. Goes through the disks once.
    pub fn pools(&self) -> Pools {
        let mut by_vm: HashMap<&str, Vec<usize>> = HashMap::new();
        for (at, disk) in self.disks.iter().enumerate().filter(|(_, d)| d.is_poolable()) {
            by_vm.entry(disk.vm.as_deref().unwrap_or_default()).or_default().push(at);
        }
        let mut members: Vec<Vec<usize>> = by_vm.into_values().filter(|disks| disks.len() > 1).collect();
        members.sort_unstable();
        let mut of = vec![None; self.disks.len()];
        for (pool, disks) in members.iter().enumerate() {
            disks.iter().for_each(|&at| of[at] = Some(pool));
        }
        Pools { members, of }
    }

    /// Notes with how many others each disk has what operations of one disk may have: with its pool, if it was not in
    /// `before`, and otherwise as it was there.
    pub(crate) fn note_io_disks(&mut self, before: &[DiskPlan]) {
        let before: HashMap<&str, u32> = before.iter().map(|d| (d.name.as_str(), d.io_disks)).collect();
        let pools = self.pools();
        for (at, disk) in self.disks.iter_mut().enumerate() {
            let now = || pools.with(at).len().max(1) as u32;
            disk.io_disks = before.get(disk.name.as_str()).copied().unwrap_or_else(now);
        }
    }
}
