//! Plans that change while they run: what differs, and what of it can be done live.
//!
//! Owns the arithmetic of reload and resize, so that the daemon only carries out. Never does anything itself.
//! Invariant: applying `difference(old, new)` to `old` keeps the shares within the memory at the end.

use super::goal::GoalPlan;
use super::keys::{SHARE_BYTES_MIN, WEIGHT_DEFAULT};
use super::plan::{DaemonPlan, DiskPlan, LogLevel, NodePlan, ServePlan, VmControl};
use super::shares::{self, Strict};
use super::stores::StoreChoice;
use crate::{ControlError, ControlErrorKind, DiskChange, NodeChange};
use std::collections::{BTreeMap, BTreeSet};
use undercroft_engine::PolicyKind;
use undercroft_engine::control::ControllerKind;
use undercroft_engine::shares::Hint;
use undercroft_units::Size;

/// What leads from one plan to another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanChange {
    /// Disks to detach, first of all.
    pub removed: Vec<String>,
    /// Disks to change live. Shrink before you grow: the shares fit into the memory only after all of them.
    pub changed: Vec<(String, DiskChange)>,
    /// Disks to attach, last.
    pub added: Vec<DiskPlan>,
    /// The new level of logging.
    pub log_level: Option<LogLevel>,
    /// `[ksm]`, if it differs.
    pub ksm: Option<crate::KsmPlan>,
    /// Whether `[pressure]` or the floor differs.
    pub pressure: bool,
    /// Whether `[shares]`, or what is set for VMs and containers, differs.
    pub shares: bool,
    /// What cannot be done live, in words: `daemon.workers: 2 -> 4`.
    pub needs_restart: Vec<String>,
    /// The plan that holds once all of it is done.
    pub result: Option<ServePlan>,
}

/// What is set for a node of the tree of shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSet {
    /// Its part of what its siblings and it contend for.
    pub weight: u32,
    /// What it has whenever it wants it, in bytes.
    pub floor_bytes: u64,
    /// What it never has more of, in bytes.
    pub ceiling_bytes: Option<u64>,
    /// Who divides its share, if that is set here.
    pub controller: Option<ControllerKind>,
    /// What it is to reach.
    pub goal: Option<GoalPlan>,
    /// The replacement policy that is set here.
    pub policy: Option<PolicyKind>,
    /// The stores that are set here.
    pub store: Option<StoreChoice>,
    /// A disk: how it will be used.
    pub hint: Option<Hint>,
    /// A disk: its share, if that is fixed.
    pub fixed_bytes: Option<u64>,
}

impl ServePlan {
    /// What must be done for this plan, which runs, to become `new`. Disks are matched by name; what cannot change live
    /// is reported and stays as it is.
    pub fn difference(&self, new: &ServePlan) -> PlanChange {
        let mut change = PlanChange::default();
        let mut result = self.clone();
        self.fixed_parts(new, &mut change.needs_restart);
        if self.daemon.log.level != new.daemon.log.level {
            change.log_level = Some(new.daemon.log.level);
            result.daemon.log.level = new.daemon.log.level;
        }
        result.daemon.poll = new.daemon.poll;
        if self.ksm != new.ksm {
            change.ksm = Some(new.ksm.clone());
            result.ksm = new.ksm.clone();
        }
        // The floor was checked against the new file's memory; what runs keeps the old.
        let floor_bytes = new.store.floor_bytes.min(self.store.memory_bytes);
        change.pressure = self.pressure != new.pressure || self.store.floor_bytes != floor_bytes;
        result.pressure = new.pressure.clone();
        result.store.floor_bytes = floor_bytes;
        change.shares = self.nodes != new.nodes || self.shares != new.shares;
        result.nodes.clone_from(&new.nodes);
        result.shares = new.shares.clone();
        result.disks.clear();
        for disk in &new.disks {
            let Some(old) = self.disks.iter().find(|d| d.name == disk.name) else {
                if disk.nbd && self.nbd.is_empty() {
                    change.needs_restart.push(format!("disk \"{}\": NBD export needs a listener", disk.name));
                    continue;
                }
                result.disks.push(disk.clone());
                continue;
            };
            let mut merged = old.clone();
            if old.parts.is_empty() {
                merged.share_bytes = disk.share_bytes;
                merged.share_fixed = disk.share_fixed;
            } else if disk.share_fixed {
                change.needs_restart.push(divided(&disk.name).error);
            }
            merged.weight = disk.weight;
            merged.floor_bytes = disk.floor_bytes;
            merged.ceiling_bytes = disk.ceiling_bytes;
            (merged.goal, merged.hint, merged.store) = (disk.goal, disk.hint, disk.store);
            merged.container.clone_from(&disk.container);
            (merged.policy, merged.own_policy) = (disk.policy, disk.own_policy);
            merged.poll = disk.poll;
            for key in stubborn(&merged, disk) {
                let what = format!("disk \"{}\": {key} (or detach and attach it)", disk.name);
                change.needs_restart.push(what);
            }
            result.disks.push(merged);
        }
        // The new file's shares were worked out for its own memory; what runs keeps the old.
        if let Err(misfit) = shares::divide_from(&mut result, &self.disks, Strict::OnHost) {
            change.needs_restart.push(format!("everything: {}", misfit.error));
            return PlanChange { needs_restart: change.needs_restart, ..PlanChange::default() };
        }
        change.removed = self.disks.iter().map(|d| &d.name).filter(|n| !has(&result, n)).cloned().collect();
        change.added = result.disks.iter().filter(|d| !has(self, &d.name)).cloned().collect();
        for old in &self.disks {
            let Some(new) = result.disks.iter().find(|d| d.name == old.name) else { continue };
            let differs = DiskChange {
                share_bytes: (old.share_bytes != new.share_bytes).then_some(new.share_bytes),
                policy: (old.policy != new.policy).then_some(new.policy),
                poll: (old.poll != new.poll).then_some(new.poll),
            };
            if differs != DiskChange::default() {
                change.changed.push((old.name.clone(), differs));
            }
        }
        // Shrinking ones first, so that carrying the list out in order never needs more than the memory.
        let grows = |name: &str, c: &DiskChange| {
            let old = self.disks.iter().find(|d| d.name == name).map_or(0, |d| d.share_bytes);
            c.share_bytes.is_some_and(|s| s > old)
        };
        change.changed.sort_by_key(|(name, c)| grows(name, c));
        change.result = Some(result);
        change
    }

    /// What differs outside the disks and needs a restart.
    fn fixed_parts(&self, new: &ServePlan, needs_restart: &mut Vec<String>) {
        let mut tell = |key: &str, old: String, new: String| {
            if old != new {
                needs_restart.push(format!("{key}: {old} -> {new}"));
            }
        };
        let (a, b) = (&self.daemon, &new.daemon);
        tell("store.memory", Size(self.store.memory_bytes).to_string(), Size(new.store.memory_bytes).to_string());
        tell("store.share", self.store.share.to_string(), new.store.share.to_string());
        tell("daemon.control", a.control_socket.display().to_string(), b.control_socket.display().to_string());
        tell("daemon.control_group", group(a.control_access.gid), group(b.control_access.gid));
        let vm_controls = |d: &DaemonPlan| {
            let one = |c: &VmControl| format!("{}: {} (group {})", c.vm, c.socket.display(), group(c.access.gid));
            let all: Vec<_> = d.vm_controls.iter().map(one).collect();
            if all.is_empty() { "none".to_string() } else { all.join(", ") }
        };
        tell("control sockets of VMs", vm_controls(a), vm_controls(b));
        tell("daemon.disk_group", group(a.disk_access.gid), group(b.disk_access.gid));
        tell("daemon.runtime_dir", a.runtime_dir.display().to_string(), b.runtime_dir.display().to_string());
        tell("daemon.workers", a.workers.to_string(), b.workers.to_string());
        tell("daemon.copy_cpu", a.copy_cpu_percent.to_string(), b.copy_cpu_percent.to_string());
        tell("daemon.check_captures", a.check_captures.to_string(), b.check_captures.to_string());
        let metrics = |m: Option<std::net::SocketAddr>| m.map_or("off".to_string(), |m| m.to_string());
        tell("daemon.metrics", metrics(a.metrics), metrics(b.metrics));
        tell("daemon.log_format", format!("{:?}", a.log.format), format!("{:?}", b.log.format));
        let listeners = |p: &ServePlan| {
            let all: Vec<_> = p.nbd.iter().map(ToString::to_string).collect();
            if all.is_empty() { "off".to_string() } else { all.join(", ") }
        };
        tell("nbd", listeners(self), listeners(new));
        tell("bounds of nbd", format!("{:?}", self.nbd_limits), format!("{:?}", new.nbd_limits));
        tell("scan", self.scan.to_string(), new.scan.to_string());
    }

    /// This plan with a disk changed and all shares worked out afresh: what `Daemon::change_disk` should bring about.
    ///
    /// # Errors
    /// `NotFound`, or `Invalid` if the share is too small or does not fit beside the others.
    pub fn with_change(&self, name: &str, change: &DiskChange) -> Result<ServePlan, ControlError> {
        let mut plan = self.clone();
        let Some(disk) = plan.disks.iter_mut().find(|d| d.name == name) else {
            return Err(ControlError::no_disk(name, self.disks.iter().map(|d| d.name.as_str())));
        };
        if change.share_bytes.is_some() && !disk.parts.is_empty() {
            return Err(divided(name));
        }
        if let Some(bytes) = change.share_bytes {
            if bytes < SHARE_BYTES_MIN {
                let error = format!("disk \"{name}\": size {} is too little to cache in", Size(bytes));
                let remedy = format!("give at least {}", Size(SHARE_BYTES_MIN));
                return Err(ControlError::new(ControlErrorKind::Invalid, error, remedy));
            }
            disk.share_bytes = bytes;
            disk.share_fixed = true;
        }
        if let Some(policy) = change.policy {
            (disk.policy, disk.own_policy) = (policy, Some(policy));
        }
        disk.poll = change.poll.unwrap_or(disk.poll);
        if change.share_bytes.is_some() {
            shares::divide_from(&mut plan, &self.disks, Strict::OnHost).map_err(|m| {
                ControlError::new(ControlErrorKind::Invalid, format!("disk \"{name}\": {}", m.error), m.remedy)
            })?;
        }
        Ok(plan)
    }

    /// This plan with something else set for a node of the tree of shares.
    ///
    /// # Errors
    /// `NotFound`, or `Invalid` if it does not fit.
    pub fn with_node(&self, name: &str, change: &NodeChange) -> Result<ServePlan, ControlError> {
        let invalid = |error: String, remedy: &str| ControlError::new(ControlErrorKind::Invalid, error, remedy);
        let (mut plan, groups) = (self.clone(), self.groups());
        if name == "host" {
            if (change.weight, change.floor_bytes, change.ceiling_bytes) != (None, None, None)
                || (change.goal, change.hint, change.policy, change.store) != (None, None, None, None)
            {
                let remedy = "give --controller only; `undercroft set --memory` changes what the store may hold";
                return Err(invalid(
                    "the host has no weight, floor, ceiling, goal, hint, policy or store".into(),
                    remedy,
                ));
            }
            plan.shares.controller = change.controller.flatten().unwrap_or_default();
            return Ok(plan);
        }
        let name = &self.node_name(name)?;
        let disk = self.disks.iter().find(|d| d.name == *name && !groups.contains(name)).map(|d| d.name.clone());
        // What is not named stays, or goes back to what holds where nothing is set.
        let rest = change.replace;
        if let Some(disk) = plan.disks.iter_mut().find(|d| Some(&d.name) == disk.as_ref()) {
            if change.controller.flatten().is_some() {
                let remedy = "set it for its container, its VM or the host";
                return Err(invalid(format!("disk \"{name}\" has nothing below it to divide its share among"), remedy));
            }
            disk.goal = change.goal.unwrap_or(if rest { None } else { disk.goal });
            disk.hint = change.hint.unwrap_or(if rest { Hint::Normal } else { disk.hint });
            disk.own_policy = change.policy.unwrap_or(if rest { None } else { disk.own_policy });
            disk.store = change.store.unwrap_or(if rest { None } else { disk.store });
            if (change.goal, change.hint, change.policy, change.store) != (None, None, None, None)
                && (change.weight, change.floor_bytes, change.ceiling_bytes) == (None, None, None)
                && !rest
            {
                plan.inherit_policies();
                return Ok(plan);
            }
            disk.weight = change.weight.unwrap_or(if rest { WEIGHT_DEFAULT } else { disk.weight });
            disk.floor_bytes = change.floor_bytes.unwrap_or(if rest { 0 } else { disk.floor_bytes });
            disk.ceiling_bytes = change.ceiling_bytes.unwrap_or(if rest { None } else { disk.ceiling_bytes });
            disk.share_fixed = false;
        } else {
            if change.hint.is_some() {
                return Err(invalid(format!("\"{name}\" is no disk, and hints are for disks"), "give its disks hints"));
            }
            let at = plan.nodes.iter().position(|n| n.name == *name).unwrap_or_else(|| {
                plan.nodes.push(NodePlan::new(name));
                plan.nodes.len() - 1
            });
            let had = if rest { NodePlan::new(name) } else { plan.nodes[at].clone() };
            let node = &mut plan.nodes[at];
            node.weight = change.weight.unwrap_or(had.weight);
            node.floor_bytes = change.floor_bytes.unwrap_or(had.floor_bytes);
            node.ceiling_bytes = change.ceiling_bytes.unwrap_or(had.ceiling_bytes);
            node.controller = change.controller.unwrap_or(had.controller);
            node.goal = change.goal.unwrap_or(had.goal);
            node.policy = change.policy.unwrap_or(had.policy);
            node.store = change.store.unwrap_or(had.store);
        }
        plan.inherit_policies();
        // What is set below other VMs, or below this one by somebody else, is no reason to refuse it.
        let strict = name.split_once(['/', ':']).map_or(Strict::OnHost, |(vm, _)| Strict::Within(vm));
        shares::divide_from(&mut plan, &self.disks, strict).map_err(|m| invalid(m.error, &m.remedy))?;
        Ok(plan)
    }

    /// The full name of a node: `host`, a VM, a container, or a disk in full or in short. VMs come before disks without
    /// one.
    ///
    /// # Errors
    /// `NotFound`, with the nearest name.
    pub fn node_name(&self, name: &str) -> Result<String, ControlError> {
        let groups = self.groups();
        if name == "host" || groups.contains(name) {
            return Ok(name.to_string());
        }
        self.find(name).map(|d| d.name.clone()).ok_or_else(|| {
            let known = groups.iter().map(String::as_str).chain(self.disks.iter().map(|d| d.name.as_str()));
            ControlError::no_node(name, known)
        })
    }

    /// What is set for every node, by full name; of a disk and a VM of one name, what is set for the VM.
    pub fn settings(&self) -> BTreeMap<String, NodeSet> {
        let of_disk = |d: &DiskPlan| NodeSet {
            weight: d.weight,
            floor_bytes: d.floor_bytes,
            ceiling_bytes: d.ceiling_bytes,
            controller: None,
            goal: d.goal,
            policy: d.own_policy,
            store: d.store,
            hint: Some(d.hint),
            fixed_bytes: d.share_fixed.then_some(d.share_bytes),
        };
        let of_group = |n: &NodePlan| NodeSet {
            weight: n.weight,
            floor_bytes: n.floor_bytes,
            ceiling_bytes: n.ceiling_bytes,
            controller: n.controller,
            goal: n.goal,
            policy: n.policy,
            store: n.store,
            hint: None,
            fixed_bytes: None,
        };
        let host = NodeSet { controller: Some(self.shares.controller), ..of_group(&NodePlan::new("host")) };
        let mut all: BTreeMap<_, _> = self.disks.iter().map(|d| (d.name.clone(), of_disk(d))).collect();
        all.extend(self.groups().into_iter().map(|name| {
            let set = self.nodes.iter().find(|n| n.name == name).map(of_group);
            let set = set.unwrap_or_else(|| of_group(&NodePlan::new(&name)));
            (name, set)
        }));
        all.insert("host".to_string(), host);
        all
    }

    /// VMs and containers, those for which nothing is set included.
    fn groups(&self) -> BTreeSet<String> {
        let of_disk = |d: &DiskPlan| {
            let vm = d.vm.clone();
            let container = vm.as_ref().zip(d.container.as_ref()).map(|(vm, c)| format!("{vm}/{c}"));
            let parts = vm.iter().flat_map(|vm| d.parts.iter().map(move |p| format!("{vm}/{}", p.container)));
            let parts: Vec<String> = parts.collect();
            vm.into_iter().chain(container).chain(parts)
        };
        self.nodes.iter().map(|n| n.name.clone()).chain(self.disks.iter().flat_map(of_disk)).collect()
    }

    /// This plan without a disk, its share given to those without a fixed one.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn without_disk(&self, name: &str) -> Result<ServePlan, ControlError> {
        if !has(self, name) {
            return Err(ControlError::no_disk(name, self.disks.iter().map(|d| d.name.as_str())));
        }
        let mut plan = self.clone();
        plan.disks.retain(|d| d.name != name);
        shares::divide_from(&mut plan, &self.disks, Strict::OnHost)
            .map_err(|m| ControlError::new(ControlErrorKind::Failed, m.error, m.remedy))?;
        Ok(plan)
    }
}

/// What is divided by ranges cannot have a fixed size.
fn divided(name: &str) -> ControlError {
    ControlError::new(
        ControlErrorKind::Conflict,
        format!("disk \"{name}\" is divided among containers by ranges, so that its size cannot be fixed"),
        "give it and its containers floors and ceilings, or take the ranges away first",
    )
}

fn has(plan: &ServePlan, name: &str) -> bool {
    plan.disks.iter().any(|d| d.name == name)
}

fn group(gid: Option<u32>) -> String {
    gid.map_or("none".to_string(), |g| g.to_string())
}

/// Keys in which two plans for a disk differ although they cannot change live.
fn stubborn(running: &DiskPlan, wanted: &DiskPlan) -> Vec<&'static str> {
    // Without `..`, so that a new key does not compile until it is decided here whether it can change live.
    let DiskPlan {
        name: _,
        vm: _,
        image,
        socket,
        nbd,
        policy: _,
        own_policy: _,
        share_bytes: _,
        share_fixed: _,
        weight: _,
        floor_bytes: _,
        ceiling_bytes: _,
        container: _,
        parts: _,
        goal: _,
        hint: _,
        store: _,
        readahead_bytes,
        write_allocate,
        exclusive,
        trust,
        share_base,
        trust_memory,
        serial,
        queues,
        queue_size,
        poll: _,
    } = running;
    let mut keys = Vec::new();
    let mut check = |key, same: bool| {
        if !same {
            keys.push(key);
        }
    };
    check("image", image.location == wanted.image.location);
    check("format", image.format == wanted.image.format);
    check("read_only", image.read_only == wanted.image.read_only);
    check("socket", *socket == wanted.socket);
    check("nbd", *nbd == wanted.nbd);
    check("readahead", *readahead_bytes == wanted.readahead_bytes);
    check("write_allocate", *write_allocate == wanted.write_allocate);
    check("exclusive", *exclusive == wanted.exclusive);
    check("trust", *trust == wanted.trust);
    check("share_base", *share_base == wanted.share_base);
    check("trust_memory", *trust_memory == wanted.trust_memory);
    check("serial", *serial == wanted.serial);
    check("queues", *queues == wanted.queues);
    check("queue_size", *queue_size == wanted.queue_size);
    keys
}
