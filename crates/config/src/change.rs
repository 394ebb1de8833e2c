//! Plans that change while they run: what differs, and what of it can be done live.
//!
//! Owns the arithmetic of reload and of changes by hand, so that the daemon only carries out. Never does anything
//! itself, and never names a key that needs no rule of its own: the tables of the sections do.
//! Invariant: applying `difference(old, new)` to `old` keeps the shares within the memory at the end.

use super::checks::Checker;
use super::daemon::{DaemonPlan, VmControl};
use super::error::{ControlError, ControlErrorKind};
use super::fields::{Differences, Field, KeyChange, group, set_by_hand};
use super::keys::{self, SHARE_BYTES_MIN, Section, WEIGHT_DEFAULT};
use super::ksm::KsmPlan;
use super::live::{NodeChange, NodeSet};
use super::machine::Machine;
use super::nodes::{self, DiskPlan, NodePlan};
use super::overrides::LogLevel;
use super::plan::ServePlan;
use super::problem::Problems;
use super::shares::{self, Misfit, Strict};
use super::spec::{DiskSpec, NodeSpec, SharesSpec};
use std::collections::{BTreeMap, BTreeSet};
use undercroft_engine::control::ControllerKind;
use undercroft_units::Size;

/// Keys that move the shares of others, too.
const SHARES_MOVE: [&str; 4] = ["size", "weight", "floor", "ceiling"];

/// What leads from one plan to another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanChange {
    /// Disks to detach, first of all.
    pub removed: Vec<String>,
    /// Keys that change live, each with what it was.
    pub changed: Vec<KeyChange>,
    /// Disks to attach, last.
    pub added: Vec<DiskPlan>,
    /// The new level of logging.
    pub log_level: Option<LogLevel>,
    /// `[ksm]`, if it differs.
    pub ksm: Option<KsmPlan>,
    /// Whether `[pressure]` or the floor differs.
    pub pressure: bool,
    /// What cannot be done live, in words: `daemon.workers: 2 -> 4`.
    pub needs_restart: Vec<String>,
    /// The plan that holds once all of it is done.
    pub result: Option<ServePlan>,
}

impl ServePlan {
    /// What must be done for this plan, which runs, to become `new`. Disks are matched by name; what cannot change live
    /// is reported and stays as it is.
    pub fn difference(&self, new: &ServePlan) -> PlanChange {
        let mut result = self.clone();
        let mut all = Differences::default();
        self.sections(new, &mut result, &mut all);
        result.nodes.clone_from(&new.nodes);
        result.trusts.clone_from(&new.trusts);
        self.nodes_differ(new, &mut all);
        result.disks.clear();
        for disk in &new.disks {
            let Some(old) = self.disks.iter().find(|d| d.name == disk.name) else {
                if disk.nbd && self.nbd.is_empty() {
                    all.needs_restart.push(format!("disk \"{}\": NBD export needs a listener", disk.name));
                    continue;
                }
                result.disks.push(disk.clone());
                continue;
            };
            result.disks.push(merged(old, disk, &mut all));
        }
        for kept in self.disks.iter().filter(|d| d.kept && !has(new, &d.name)) {
            if let Some(vm) = new.vms().find(|vm| *vm == kept.name) {
                let what = format!("everything: disk \"{vm}\" is kept, and a VM of the file has its name");
                return PlanChange { needs_restart: vec![what], ..PlanChange::default() };
            }
            result.disks.push(kept.clone());
        }
        result.inherit_policies();
        // The new file's shares were worked out for its own memory; what runs keeps the old.
        if let Err(misfit) = shares::divide_from(&mut result, &self.disks, Strict::OnHost) {
            all.needs_restart.push(format!("everything: {}", misfit.error));
            return PlanChange { needs_restart: all.needs_restart, ..PlanChange::default() };
        }
        PlanChange {
            removed: self.disks.iter().map(|d| &d.name).filter(|n| !has(&result, n)).cloned().collect(),
            added: result.disks.iter().filter(|d| !has(self, &d.name)).cloned().collect(),
            log_level: (self.daemon.log.level != result.daemon.log.level).then_some(result.daemon.log.level),
            ksm: (self.ksm != result.ksm).then(|| result.ksm.clone()),
            pressure: self.pressure != result.pressure || self.store.floor_bytes != result.store.floor_bytes,
            changed: all.done,
            needs_restart: all.needs_restart,
            result: Some(result),
        }
    }

    /// What differs outside of nodes and disks; what of it can change live is taken over into `result`.
    fn sections(&self, new: &ServePlan, result: &mut ServePlan, all: &mut Differences) {
        // The floor was checked against the new file's memory; what runs keeps the old.
        let mut store = new.store.clone();
        store.floor_bytes = store.floor_bytes.min(self.store.memory_bytes);
        all.take_over(&keys::STORE, super::store::FIELDS, "store.", &mut result.store, &store);
        all.take_over(&keys::SSD, super::ssd::FIELDS, "ssd.", &mut result.ssd, &new.ssd);
        all.take_over(&keys::SHARES, nodes::SHARES, "shares.", &mut result.shares, &new.shares);
        all.take_over(&keys::PRESSURE, super::pressure::FIELDS, "pressure.", &mut result.pressure, &new.pressure);
        all.take_over(&keys::KSM, super::ksm::FIELDS, "ksm.", &mut result.ksm, &new.ksm);
        all.take_over(&keys::DAEMON, super::daemon::FIELDS, "daemon.", &mut result.daemon, &new.daemon);
        all.take_over(&keys::SCAN, super::scan::FIELDS, "scan.", &mut result.scan, &new.scan);
        let list = |texts: Vec<String>, none: &str| if texts.is_empty() { none.to_string() } else { texts.join(", ") };
        let vm_controls = |d: &DaemonPlan| {
            let one = |c: &VmControl| format!("{}: {} (group {})", c.vm, c.socket.display(), group(c.access.gid));
            list(d.vm_controls.iter().map(one).collect(), "none")
        };
        all.tell("control sockets of VMs", vm_controls(&self.daemon), vm_controls(&new.daemon));
        let pid_files = |p: &ServePlan| {
            list(p.scan.pid_files.iter().map(|(vm, path)| format!("{vm}: {}", path.display())).collect(), "none")
        };
        all.tell("pid_file of VMs", pid_files(self), pid_files(new));
        let listeners = |p: &ServePlan| list(p.nbd.iter().map(ToString::to_string).collect(), "off");
        all.tell("nbd", listeners(self), listeners(new));
        all.tell("bounds of nbd", format!("{:?}", self.nbd_limits), format!("{:?}", new.nbd_limits));
    }

    /// Keys that have another value in `new`, a plan that this one became by a change by hand.
    pub fn keys_changed(&self, new: &ServePlan) -> Vec<KeyChange> {
        let mut all = Differences::by_hand();
        self.sections(new, &mut self.clone(), &mut all);
        self.nodes_differ(new, &mut all);
        for disk in &new.disks {
            if let Some(old) = self.disks.iter().find(|d| d.name == disk.name) {
                merged(old, disk, &mut all);
            }
        }
        all.done
    }

    /// What is set otherwise for VMs and containers.
    fn nodes_differ(&self, new: &ServePlan, all: &mut Differences) {
        let names: BTreeSet<&String> = self.nodes.iter().chain(&new.nodes).map(|n| &n.name).collect();
        for name in names {
            let of = |plan: &ServePlan| plan.nodes.iter().find(|n| n.name == *name).cloned();
            let [mut old, new] = [of(self), of(new)].map(|n| n.unwrap_or_else(|| NodePlan::new(name)));
            all.take_over(&keys::VM, nodes::NODE, &place_of_group(name), &mut old, &new);
        }
    }

    /// This plan with a disk changed and all shares worked out afresh: what `Daemon::change_disk` should bring about.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if a value is none of its key, or a share is too small or does not fit beside the others.
    pub fn with_change(&self, name: &str, change: &NodeChange) -> Result<ServePlan, ControlError> {
        if !has(self, name) {
            return Err(ControlError::no_disk(name, self.disks.iter().map(|d| d.name.as_str())));
        }
        self.with_disk_changed(name, change)
    }

    /// This plan with something else set for a node of the tree of shares.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if a value is none of its key, or it does not fit; `Conflict` if it is of no use there.
    pub fn with_node(&self, name: &str, change: &NodeChange) -> Result<ServePlan, ControlError> {
        let groups = self.groups();
        if name == keys::HOST {
            return self.with_host(change);
        }
        let name = &self.node_name(name)?;
        if !groups.contains(name) && has(self, name) {
            return self.with_disk_changed(name, change);
        }
        if change.touches(&["hint"]) {
            return Err(invalid(format!("\"{name}\" is no disk, and hints are for disks"), "give its disks hints"));
        }
        if let Some(key) = change.keys().find(|k| keys::VM.key(k).is_none()) {
            return Err(invalid(format!("\"{name}\" is no disk, and {key} is for disks"), "set it for its disks"));
        }
        let mut plan = self.clone();
        let at = plan.place_of_node(name);
        let mut spec = NodeSpec { name: name.clone(), ..NodeSpec::default() };
        change.values().for_each(|(key, value)| _ = spec.put(key, value));
        let checked = checked(self.ssd.is_wanted(), |c| c.node(&spec))?;
        copy(&keys::VM, nodes::NODE, change, &mut plan.nodes[at], &checked);
        self.goal_is_of_use(&plan, name, change)?;
        plan.inherit_policies();
        self.divided_for(name, plan)
    }

    /// The place of a node for which something is set; of one that no file has, it is the last, since these stand in
    /// the order in which they were set.
    fn place_of_node(&mut self, name: &str) -> usize {
        let had = self.nodes.iter().position(|n| n.name == name);
        if let Some(at) = had.filter(|&at| !self.nodes[at].by_hand) {
            return at;
        }
        let new = || NodePlan { by_hand: true, ..NodePlan::new(name) };
        let node = had.map_or_else(new, |at| self.nodes.remove(at));
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// This plan with another controller on the host.
    fn with_host(&self, change: &NodeChange) -> Result<ServePlan, ControlError> {
        if change.keys().any(|key| key != "controller") {
            let remedy = "give --controller only; `undercroft set --memory` changes what the store may hold";
            return Err(invalid("the host has no weight, floor, ceiling, goal, hint, policy or store".into(), remedy));
        }
        let mut plan = self.clone();
        let mut spec = SharesSpec::default();
        change.values().for_each(|(key, value)| _ = spec.put(key, value));
        let wanted = checked(self.ssd.is_wanted(), |c| c.shares(&spec))?;
        if change.touches(&["controller"]) || change.replace {
            plan.shares.controller = wanted.controller;
        }
        Ok(plan)
    }

    fn with_disk_changed(&self, name: &str, change: &NodeChange) -> Result<ServePlan, ControlError> {
        let mut plan = self.clone();
        let Some(disk) = plan.disks.iter_mut().find(|d| d.name == name) else {
            return Err(ControlError::no_disk(name, self.disks.iter().map(|d| d.name.as_str())));
        };
        if change.values().any(|(key, value)| key == "controller" && value != super::written::Written::Nothing) {
            let remedy = "set it for its container, its VM or the host";
            return Err(invalid(format!("disk \"{name}\" has nothing below it to divide its share among"), remedy));
        }
        let sized = change.touches(&["size"]);
        let keeps_size = change.keeps_size() && disk.share_fixed;
        if keeps_size && change.touches(&SHARES_MOVE) {
            return Err(ControlError::new(
                ControlErrorKind::Forbidden,
                format!("\"{name}\" has a size, which weight, floor and ceiling would take the place of"),
                "ask whoever runs the host, who has set it, to set one of those instead",
            ));
        }
        if sized && !disk.parts.is_empty() {
            return Err(divided(name));
        }
        let mut spec = DiskSpec::default();
        change.values().for_each(|(key, value)| _ = spec.put(key, value));
        if let Some(bytes) = spec.size.filter(|s| s.0 < SHARE_BYTES_MIN) {
            let error = format!("disk \"{name}\": size {bytes} is too little to cache in");
            return Err(invalid(error, &format!("give at least {}", Size(SHARE_BYTES_MIN))));
        }
        let (place, poll) = (format!("disk \"{name}\""), self.daemon.poll);
        let mut checked = checked(self.ssd.is_wanted(), |c| c.disk_settings(&spec, &place, poll))?;
        if change.touches(&["fuse"]) {
            checked.file = self.file_by_hand(disk, &spec)?;
            disk.file_by_hand = true;
        }
        copy(&keys::DISK, nodes::DISK, change, disk, &checked);
        if let Some(misuse) = disk.misused_profile() {
            let error = format!("disk \"{name}\": {}", misuse.error);
            let remedy = match change.keeps_size() {
                // Files are as little theirs to set as sizes are.
                true => "leave lock = \"static\", or ask whoever runs the host to take lock_profile away".to_owned(),
                false => misuse.remedy,
            };
            return Err(ControlError::new(ControlErrorKind::Conflict, error, remedy));
        }
        let moves = change.replace || change.touches(&SHARES_MOVE);
        if moves && !sized && !keeps_size {
            disk.share_fixed = false;
        }
        self.goal_is_of_use(&plan, name, change)?;
        plan.inherit_policies();
        if moves || change.touches(&["store"]) { self.divided_for(name, plan) } else { Ok(plan) }
    }

    /// `plan`, its shares worked out after a change of `name`.
    fn divided_for(&self, name: &str, mut plan: ServePlan) -> Result<ServePlan, ControlError> {
        // What is set below other VMs, or below this one by somebody else, is no reason to refuse it.
        let strict = name.split_once(['/', ':']).map_or(Strict::OnHost, |(vm, _)| Strict::Within(vm));
        shares::divide_from(&mut plan, &self.disks, strict).map_err(|m| {
            let named = format!("\"{name}\": ");
            let error = m.error.strip_prefix(&named).unwrap_or(&m.error);
            invalid(format!("{named}{error}"), &m.remedy)
        })?;
        Ok(plan)
    }

    /// Refuses a goal for a node whose share is divided by somebody who looks at none.
    fn goal_is_of_use(&self, plan: &ServePlan, name: &str, change: &NodeChange) -> Result<(), ControlError> {
        if !change.values().any(|(key, value)| key == "goal" && value != super::written::Written::Nothing) {
            return Ok(());
        }
        let (whole, controller) = plan.divider_of(name);
        if controller == ControllerKind::Target {
            return Ok(());
        }
        let error = format!(
            "a goal is of no use to \"{name}\": the share of {whole} is divided by `{controller}`, and only `target` \
             looks at goals"
        );
        let node = if whole == "the host" { "host" } else { whole.trim_matches('"') };
        let remedy = format!("`undercroft set {node} --controller target` first");
        Err(ControlError::new(ControlErrorKind::Conflict, error, remedy))
    }

    /// What a node has its share of, in words, and by whom that is divided.
    fn divider_of(&self, name: &str) -> (String, ControllerKind) {
        let of = |name: &str| self.nodes.iter().find(|n| n.name == name).and_then(|n| n.controller);
        let disk = self.disks.iter().find(|d| d.name == name && !self.groups().contains(name));
        let vm = disk.map_or_else(|| name.split_once('/').map(|(vm, _)| vm), |d| d.vm.as_deref());
        let container = disk.and_then(|d| Some(format!("{}/{}", d.vm.as_ref()?, d.container.as_ref()?)));
        let above = [container.as_deref(), vm];
        let whole = above.into_iter().flatten().next().map_or("the host".to_string(), |n| format!("\"{n}\""));
        let set = above.into_iter().flatten().find_map(of);
        (whole, set.unwrap_or(self.shares.controller))
    }

    /// The full name of a node: `host`, a VM, a container, or a disk in full or in short.
    ///
    /// # Errors
    /// `NotFound`, with the nearest name.
    pub fn node_name(&self, name: &str) -> Result<String, ControlError> {
        let groups = self.groups();
        if name == keys::HOST || groups.contains(name) {
            return Ok(name.to_string());
        }
        self.find(name).map(|d| d.name.clone()).ok_or_else(|| {
            let known = groups.iter().map(String::as_str).chain(self.disks.iter().map(|d| d.name.as_str()));
            ControlError::no_node(name, known)
        })
    }

    /// What is set for every node, by full name.
    pub fn settings(&self) -> BTreeMap<String, NodeSet> {
        let of_disk = |d: &DiskPlan| NodeSet {
            weight: d.weight,
            floor_bytes: d.floor_bytes,
            ceiling_bytes: d.ceiling_bytes,
            fixed_bytes: d.share_fixed.then_some(d.share_bytes),
            keys: set_by_hand(&keys::DISK, nodes::DISK, d).into_iter().collect(),
        };
        let of_group = |n: &NodePlan| NodeSet {
            weight: n.weight,
            floor_bytes: n.floor_bytes,
            ceiling_bytes: n.ceiling_bytes,
            fixed_bytes: None,
            keys: set_by_hand(&keys::VM, nodes::NODE, n).into_iter().collect(),
        };
        let mut host = NodeSet { weight: WEIGHT_DEFAULT, ..NodeSet::default() };
        host.keys.extend(set_by_hand(&keys::SHARES, nodes::SHARES, &self.shares));
        let mut all: BTreeMap<_, _> = self.disks.iter().map(|d| (d.name.clone(), of_disk(d))).collect();
        all.extend(self.groups().into_iter().map(|name| {
            let set = self.nodes.iter().find(|n| n.name == name).map(of_group);
            let set = set.unwrap_or_else(|| of_group(&NodePlan::new(&name)));
            (name, set)
        }));
        all.insert(keys::HOST.to_string(), host);
        all
    }

    /// VMs and containers, those for which nothing is set included.
    fn groups(&self) -> BTreeSet<String> {
        self.nodes.iter().map(|n| n.name.clone()).chain(self.groups_of_disks()).collect()
    }

    /// VMs and containers that have something.
    fn groups_of_disks(&self) -> impl Iterator<Item = String> {
        let of_disk = |d: &DiskPlan| {
            let vm = d.vm.clone();
            let container = vm.as_ref().zip(d.container.as_ref()).map(|(vm, c)| format!("{vm}/{c}"));
            let parts = vm.iter().flat_map(|vm| d.parts.iter().map(move |p| format!("{vm}/{}", p.container)));
            let parts: Vec<String> = parts.collect();
            vm.into_iter().chain(container).chain(parts)
        };
        self.disks.iter().flat_map(of_disk)
    }

    /// Forgets what was set by hand for containers that have nothing any more and are in no file. Of a VM that has
    /// disks the last [`keys::PAST_CONTAINERS_MAX`] for which something was set are kept, because a list of ranges may
    /// be empty for a while; no more, because names of containers are whatever those who send ranges call them, so that
    /// settings of past ones would add up without a limit.
    pub fn forget_past_containers(&mut self) {
        let there: BTreeSet<String> = self.groups_of_disks().collect();
        let mut past: BTreeMap<String, usize> = BTreeMap::new();
        let mut is_kept = |node: &NodePlan| {
            let Some((vm, _)) = node.name.split_once('/') else { return true };
            if !node.by_hand || there.contains(&node.name) {
                return true;
            }
            let later = past.entry(vm.to_owned()).or_default();
            *later += 1;
            *later <= keys::PAST_CONTAINERS_MAX && there.contains(vm)
        };
        self.nodes.reverse();
        self.nodes.retain(|node| is_kept(node));
        self.nodes.reverse();
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
        plan.forget_past_containers();
        shares::divide_from(&mut plan, &self.disks, Strict::OnHost)
            .map_err(|m| ControlError::new(ControlErrorKind::Failed, m.error, m.remedy))?;
        Ok(plan)
    }

    /// This plan without a disk whose image does not answer: what it has is for nobody else, until it has gone and this
    /// is told to [`ServePlan::with_gone`].
    #[must_use]
    pub fn with_going(&self, name: &str) -> ServePlan {
        let mut plan = self.clone();
        let Some(at) = plan.disks.iter().position(|d| d.name == name) else { return plan };
        plan.going_bytes += plan.disks.remove(at).share_bytes;
        plan.forget_past_containers();
        // Where the others' floors do not fit into what is left, their shares stay what they are.
        let _ = shares::divide_from(&mut plan, &self.disks, Strict::OnHost);
        plan
    }

    /// This plan once a disk has gone that had `bytes`: they are for the others.
    #[must_use]
    pub fn with_gone(&self, bytes: u64) -> ServePlan {
        let mut plan = self.clone();
        plan.going_bytes = plan.going_bytes.saturating_sub(bytes);
        let _ = shares::divide_from(&mut plan, &self.disks, Strict::OnHost);
        plan
    }

    /// This plan, made before disks began to go that are gone from `now`: in the room that these leave.
    ///
    /// # Errors
    /// `Conflict` if it does not fit there.
    pub fn beside_going(mut self, now: &ServePlan) -> Result<ServePlan, ControlError> {
        if self.going_bytes != now.going_bytes {
            self.going_bytes = now.going_bytes;
            shares::divide_from(&mut self, &now.disks, Strict::OnHost)
                .map_err(|m| ControlError::new(ControlErrorKind::Conflict, m.error, m.remedy))?;
        }
        Ok(self)
    }

    /// This plan where disks of `standing` cannot be changed: they are as they are in `now`, which is served, and have
    /// what they have there; the others have what that leaves.
    ///
    /// # Errors
    /// That is too little for a disk that comes, or for a size that is to be another one.
    pub fn around(mut self, now: &ServePlan, standing: &BTreeSet<String>) -> Result<ServePlan, Misfit> {
        let before = now.by_name();
        for disk in self.disks.iter_mut().filter(|d| standing.contains(&d.name)) {
            if let Some(&was) = before.get(disk.name.as_str()) {
                disk.clone_from(was);
            }
        }
        shares::divide_around(&mut self, &now.disks, Strict::OnHost, standing)?;
        Ok(self)
    }

    /// Whether a disk is the same in `other`, but for what it has of the store.
    pub fn has_alike(&self, other: &ServePlan, name: &str) -> bool {
        let of = |plan: &ServePlan| {
            let mut disk = plan.disks.iter().find(|d| d.name == name)?.clone();
            let policies: Vec<_> = disk.parts.iter().map(|part| plan.part_policy(&disk, part)).collect();
            let size = disk.share_fixed.then_some(disk.share_bytes);
            disk.set_leaves(&vec![0; 1 + disk.parts.len()]);
            Some((disk, size, policies))
        };
        of(self) == of(other)
    }
}

/// A disk that runs, as far as it can become another live.
fn merged(old: &DiskPlan, new: &DiskPlan, all: &mut Differences) -> DiskPlan {
    let mut merged = old.clone();
    let mut new = new.clone();
    if !old.parts.is_empty() {
        if new.share_fixed {
            all.needs_restart.push(divided(&new.name).error);
        }
        (new.share_fixed, new.share_bytes) = (old.share_fixed, old.share_bytes);
        // No list of ranges could take away what its containers have: one that belongs to a container takes none.
        if let Some(container) = new.container.take() {
            all.needs_restart.push(format!(
                "disk \"{}\" is divided among containers by ranges, so that it cannot belong to \"{container}\" as a \
                 whole: take the ranges away first",
                new.name
            ));
        }
    }
    // What was made a file by hand may be in use, and the file says nothing of it.
    merged.file_by_hand = old.file_by_hand && new.file.is_none();
    if merged.file_by_hand {
        new.file.clone_from(&old.file);
    }
    merged.kept = new.kept;
    all.take_over(&keys::DISK, nodes::DISK, &format!("disk \"{}\": ", new.name), &mut merged, &new);
    merged
}

/// How messages call a VM or a container, before a key of it.
fn place_of_group(name: &str) -> String {
    let kind = if name.contains('/') { "container" } else { "vm" };
    format!("{kind} \"{name}\": ")
}

/// Takes over what a change names; with `replace`, all that a node has set by hand.
fn copy<P>(section: &Section, fields: &[Field<P>], change: &NodeChange, to: &mut P, from: &P) {
    let of_nodes = |key: &str| key == "hint" || keys::VM.key(key).is_some();
    let settable = |key: &str| section.key(key).is_some_and(|k| k.live.by_hand().is_some());
    for field in fields.iter().filter(|f| settable(f.key)) {
        if change.touches(&[field.key]) || change.replace && of_nodes(field.key) {
            (field.copy)(to, from);
        }
    }
}

/// What a check makes of values that were set by hand.
fn checked<T>(has_ssd: bool, check: impl FnOnce(&mut Checker<'_>) -> T) -> Result<T, ControlError> {
    let machine = Machine::nowhere();
    let mut checker = Checker::new(&machine, None);
    checker.has_ssd = has_ssd;
    let value = check(&mut checker);
    checker.read_lists();
    match checker.problems.is_empty() {
        true => Ok(value),
        false => Err(Problems { file: None, problems: checker.problems }.into()),
    }
}

fn invalid(error: String, remedy: &str) -> ControlError {
    ControlError::new(ControlErrorKind::Invalid, error, remedy)
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
