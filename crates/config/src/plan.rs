//! What to serve and how, with every default filled in: the only form of configuration that the daemon sees.
//!
//! Owns the whole of it; each section owns its part. Never an `Option` that means "default". Invariants, once resolved:
//! disk names are unique, so are socket paths; no disk without a VM has a VM's name; the shares of all disks together,
//! and what disks that are going have, fit into the memory of the store.

pub use super::daemon::{DaemonPlan, LogPlan, SocketAccess, VmControl};
pub use super::ksm::KsmPlan;
pub use super::nbd::{NbdLimits, NbdListen, NbdListener, lists};
pub use super::nodes::{BaseDeduplication, DiskPlan, NodePlan, PartPlan, SharesPlan};
pub use super::overrides::{LogFormat, LogLevel, Overrides};
pub use super::pressure::PressurePlan;
pub use super::scan::ScanPlan;
pub use super::ssd::{SsdAdmission, SsdPlan};
pub use super::store::StorePlan;
use super::stores::StoreChoice;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use undercroft_engine::PolicyKind;

/// Everything `serve` needs, however it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServePlan {
    /// The configuration file, absolute; `None` for `serve --image`, which cannot reload.
    pub config_file: Option<PathBuf>,
    /// What the command line said instead of the file; holds over a reload too.
    pub overrides: Overrides,
    /// The RAM that caches.
    pub store: StorePlan,
    /// The SSD store, if there is one.
    pub ssd: SsdPlan,
    /// When memory is given back.
    pub pressure: PressurePlan,
    /// What the kernel is set to for merging guests' RAM.
    pub ksm: KsmPlan,
    /// The process around it.
    pub daemon: DaemonPlan,
    /// Where NBD clients connect; none unless asked for.
    pub nbd: Vec<NbdListener>,
    /// Bounds of all NBD clients together.
    pub nbd_limits: NbdLimits,
    /// The scan of guests' memory.
    pub scan: ScanPlan,
    /// How the store is divided while it runs.
    pub shares: SharesPlan,
    /// Trust groups that VMs name for those of their disks that name none, by VM.
    pub trusts: BTreeMap<String, String>,
    /// VMs and containers for which something is set, in the order of the configuration.
    pub nodes: Vec<NodePlan>,
    /// The disks, in the order of the configuration.
    pub disks: Vec<DiskPlan>,
    /// Bytes of the store that disks have which were detached, but whose images do not answer: they are for nobody else
    /// until these disks are gone.
    pub going_bytes: u64,
}

impl ServePlan {
    /// Bytes of the memory that are for disks: all but what is set aside for the SSD store.
    pub fn disks_bytes(&self) -> u64 {
        self.store.memory_bytes.saturating_sub(self.ssd.memory_bytes)
    }

    /// What of that is never given back when the machine is short of memory; what is set aside never is.
    pub fn disks_floor_bytes(&self) -> u64 {
        self.store.floor_bytes.saturating_sub(self.ssd.memory_bytes)
    }

    /// Bytes of the store that the disks can be given.
    pub fn room_bytes(&self) -> u64 {
        self.disks_bytes().saturating_sub(self.going_bytes)
    }

    /// The same tree for a store below RAM that has so many bytes, and for the disks that `has` names: weights,
    /// controllers and hints are as they are; sizes, floors, ceilings and goals are of RAM, and so is what containers
    /// have of a disk.
    #[must_use]
    pub fn below(&self, bytes: u64, has: impl Fn(&DiskPlan) -> bool) -> ServePlan {
        let mut plan = self.clone();
        plan.disks.retain(|d| has(d) && self.store_of(d) != Some(StoreChoice::Ram));
        for disk in &mut plan.disks {
            (disk.share_fixed, disk.floor_bytes, disk.ceiling_bytes, disk.store) = (false, 0, None, None);
            disk.parts.clear();
        }
        for node in &mut plan.nodes {
            (node.floor_bytes, node.ceiling_bytes, node.store) = (0, None, None);
        }
        (plan.store.memory_bytes, plan.ssd.memory_bytes, plan.going_bytes) = (bytes, 0, 0);
        plan
    }

    /// VMs by name, those of which there is no more than a setting, a control socket or a pid file included; some more
    /// than once.
    pub(super) fn vms(&self) -> impl Iterator<Item = &str> {
        let set = self.nodes.iter().map(|n| n.name.as_str()).filter(|n| !n.contains('/'));
        let controls = self.daemon.vm_controls.iter().map(|c| c.vm.as_str());
        let pid_files = self.scan.pid_files.iter().map(|(vm, _)| vm.as_str());
        self.disks.iter().filter_map(|d| d.vm.as_deref()).chain(set).chain(controls).chain(pid_files)
    }

    /// Gives disks that have no policy of their own that of their container, their VM, or the default.
    pub(super) fn inherit_policies(&mut self) {
        let nodes = &self.nodes;
        let of = |name: &str| nodes.iter().find(|n| n.name == name).and_then(|n| n.policy);
        for disk in &mut self.disks {
            let above = || {
                let vm = disk.vm.as_deref()?;
                let container = disk.container.as_ref().and_then(|c| of(&format!("{vm}/{c}")));
                container.or_else(|| of(vm))
            };
            disk.policy = disk.own_policy.or_else(above).unwrap_or(super::keys::POLICY_DEFAULT);
        }
    }

    /// The replacement policy of what a container has of a disk by ranges: the container's, or the disk's.
    pub fn part_policy(&self, disk: &DiskPlan, part: &PartPlan) -> PolicyKind {
        let name = disk.vm.as_ref().map(|vm| format!("{vm}/{}", part.container));
        let node = self.nodes.iter().find(|n| Some(&n.name) == name.as_ref());
        node.and_then(|n| n.policy).unwrap_or(disk.policy)
    }

    /// Which stores blocks of a disk may be in: what is set for it, or for the nearest above it; all there are if
    /// nothing is.
    pub fn store_of(&self, disk: &DiskPlan) -> Option<StoreChoice> {
        let of = |name: String| self.nodes.iter().find(|n| n.name == name).and_then(|n| n.store);
        let vm = || disk.vm.clone();
        let container = || Some(format!("{}/{}", vm()?, disk.container.as_ref()?));
        disk.store.or_else(|| of(container()?)).or_else(|| of(vm()?))
    }

    /// The disks by their full names, for whoever asks for many.
    pub fn by_name(&self) -> HashMap<&str, &DiskPlan> {
        self.disks.iter().map(|d| (d.name.as_str(), d)).collect()
    }

    /// The disk of that full name; or the only one whose name within its VM it is.
    pub fn find(&self, name: &str) -> Option<&DiskPlan> {
        let mut short = self.disks.iter().filter(|d| d.name.split_once(':').is_some_and(|(_, n)| n == name));
        self.disks.iter().find(|d| d.name == name).or_else(|| short.next().filter(|_| short.next().is_none()))
    }
}
