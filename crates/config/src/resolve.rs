//! Makes a plan of what was asked for: fills in defaults, and checks everything that can be checked early.
//!
//! Owns every rule that spans keys, files and the machine. Never opens an image for writing, makes nothing, and
//! changes nothing. Invariant: a plan that comes with no error keeps the invariants of `plan`.

use super::checks::{Checker, clip};
use super::error::{ControlError, ControlErrorKind};
use super::images::{self, Identity};
use super::keys;
use super::machine::Machine;
use super::nbd::NbdListen;
use super::nodes::DiskPlan;
use super::plan::ServePlan;
use super::problem::{Problem, Problems, Severity};
use super::shares::{self, Strict};
use super::spec::{DiskSpec, ServeSpec};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use undercroft_cache::limits::DISKS_MAX;

/// A plan and what is wrong with it. With an error among the problems the plan is only good for looking at.
#[derive(Clone, Debug)]
pub struct Resolution {
    /// The plan, as far as it could be made.
    pub plan: ServePlan,
    /// In the order of the file.
    pub problems: Vec<Problem>,
}

impl Resolution {
    /// The plan and its warnings, or all problems if one of them is an error.
    ///
    /// # Errors
    /// All problems.
    pub fn accept(self) -> Result<(ServePlan, Vec<Problem>), Problems> {
        self.accept_below(Severity::Disk)
    }

    /// The plan and its warnings, faults of single disks among them: those can wait, and the others be served.
    ///
    /// # Errors
    /// All problems, if one of them concerns more than a disk's image.
    pub fn accept_waiting(self) -> Result<(ServePlan, Vec<Problem>), Problems> {
        self.accept_below(Severity::Error)
    }

    fn accept_below(self, bad: Severity) -> Result<(ServePlan, Vec<Problem>), Problems> {
        if self.problems.iter().any(|p| p.severity >= bad) {
            return Err(Problems { file: self.plan.config_file, problems: self.problems });
        }
        Ok((self.plan, self.problems))
    }
}

/// Makes a plan. `earlier` are problems found while reading; they come first on each line.
pub fn resolve(spec: &ServeSpec, machine: &Machine, earlier: Vec<Problem>) -> Resolution {
    let mut base = machine.current_dir.clone();
    if let Some(dir) = spec.config_file.as_deref().and_then(Path::parent) {
        base.push(dir);
    }
    let mut resolver = Checker::new(machine, Some(base));
    resolver.problems = earlier;
    let mut plan = resolver.frame(spec);
    if spec.disks.len() > DISKS_MAX {
        let error = format!("there are {} disks, more than {DISKS_MAX}", spec.disks.len());
        resolver.error(None, "", error, "serve them from several daemons");
    }
    let vms = spec.vms.iter().map(|vm| (&vm.name, vm.lines.get("name").copied()));
    for (vm, line) in vms.chain(spec.disks.iter().filter_map(|d| Some((d.vm.as_ref()?, None)))) {
        resolver.vms.entry(vm.clone()).or_insert(line);
    }
    for disk in spec.disks.iter().take(DISKS_MAX) {
        let disk = resolver.disk(disk, &plan.daemon, plan.disks_bytes(), !plan.nbd.is_empty());
        plan.disks.push(disk);
    }
    plan.inherit_policies();
    if spec.disks.is_empty() && resolver.problems.is_empty() {
        let remedy = "add a [[disk]] with name and image, or attach disks with `undercroft attach`";
        resolver.warning(None, "", "no disk is configured".into(), remedy);
    }
    if !plan.nbd.is_empty() && !plan.disks.is_empty() && plan.disks.iter().all(|d| !d.nbd) {
        let line = spec.nbd.lines.get("unix").or(spec.nbd.lines.get("tcp")).copied();
        resolver.warning(line, "nbd", "no disk is exported".into(), "set nbd = true on the disks that should be");
    }
    resolver.listed_exports(spec, &plan);
    resolver.share(&mut plan, &[], Strict::Everywhere, spec.store.lines.get("memory").copied());
    resolver.images(&plan, spec.ssd.lines.get("paths").copied());
    resolver.read_lists();
    let mut problems = resolver.problems;
    problems.sort_by_key(|p| p.line.unwrap_or(usize::MAX));
    Resolution { plan, problems }
}

impl ServePlan {
    /// This plan with one more disk, all shares worked out afresh: what `Daemon::add_disk` should bring about.
    ///
    /// # Errors
    /// Everything that is wrong with the disk, by itself or beside the others.
    pub fn with_disk(&self, spec: &DiskSpec, machine: &Machine) -> Result<ServePlan, Problems> {
        let mut resolver = self.booked(machine);
        let mut plan = self.clone();
        // What a VM says of its disks holds for those that come later, too.
        let of_vm = spec.vm.as_ref().and_then(|vm| self.trusts.get(vm));
        let spec = &DiskSpec { trust: spec.trust.as_ref().or(of_vm).cloned(), ..spec.clone() };
        let disk = resolver.disk(spec, &plan.daemon, plan.disks_bytes(), !plan.nbd.is_empty());
        plan.disks.push(disk);
        plan.inherit_policies();
        if plan.disks.len() > DISKS_MAX {
            resolver.error(None, "", format!("there are {DISKS_MAX} disks already"), "detach one first");
        }
        let strict = spec.vm.as_deref().map_or(Strict::OnHost, Strict::Within);
        resolver.share(&mut plan, &self.disks, strict, None);
        resolver.images(&plan, None);
        resolver.read_lists();
        if resolver.problems.iter().any(|p| p.severity >= Severity::Disk) {
            return Err(Problems { file: None, problems: resolver.problems });
        }
        Ok(plan)
    }

    /// The file that a disk of this plan is to be by hand.
    ///
    /// # Errors
    /// `Invalid` if it cannot be there, or another has it; `Conflict` if nobody would reach the disk any more.
    pub(crate) fn file_by_hand(&self, disk: &DiskPlan, spec: &DiskSpec) -> Result<Option<PathBuf>, ControlError> {
        if spec.fuse.is_none() && disk.socket.is_none() && disk.device.is_none() && !disk.nbd {
            let name = &disk.name;
            return Err(ControlError::new(
                ControlErrorKind::Conflict,
                format!("disk \"{name}\" would have no vhost-user socket, no NBD export, no file and no block device"),
                format!("`undercroft detach {name}` takes the disk away"),
            ));
        }
        let machine = Machine::nowhere();
        let mut checker = self.booked(&machine);
        if let Some(own) = &disk.file {
            checker.sockets.remove(own);
        }
        let file = checker.disk_file(spec, &format!("disk \"{}\"", disk.name), &self.daemon);
        match checker.problems.is_empty() {
            true => Ok(file),
            false => Err(Problems { file: None, problems: checker.problems }.into()),
        }
    }

    /// A check of something that is to stand beside all that there is.
    fn booked<'m>(&self, machine: &'m Machine) -> Checker<'m> {
        let mut resolver = Checker::new(machine, None);
        resolver.has_ssd = self.ssd.is_wanted();
        resolver.sockets.insert(self.daemon.control_socket.clone(), ("the control socket".to_string(), None));
        for c in &self.daemon.vm_controls {
            resolver.sockets.insert(c.socket.clone(), (format!("the control socket of VM \"{}\"", c.vm), None));
        }
        resolver.vms.extend(self.vms().map(|vm| (vm.to_owned(), None)));
        for (disk, i) in self.disks.iter().zip(0..) {
            resolver.names.insert(disk.name.clone(), None);
            resolver.taken.insert(i, None);
            for path in disk.socket.iter().chain(&disk.file).chain(&disk.device) {
                resolver.sockets.insert(path.clone(), (format!("disk \"{}\"", disk.name), None));
            }
        }
        for listen in &self.nbd {
            if let NbdListen::Unix(path) = &listen.at {
                resolver.sockets.insert(path.clone(), ("the NBD listener".to_string(), None));
            }
        }
        resolver
    }
}

impl Checker<'_> {
    /// Everything but the disks.
    fn frame(&mut self, spec: &ServeSpec) -> ServePlan {
        let store = self.store(&spec.store);
        let mut ssd = self.ssd(&spec.ssd);
        let daemon = self.daemon(&spec.daemon, &spec.vms, &spec.overrides);
        self.ssd_memory(spec.ssd.lines.get("size").copied(), &mut ssd, daemon.workers, store.memory_bytes);
        let (nbd, nbd_limits) = self.nbd(&spec.nbd);
        ServePlan {
            config_file: spec.config_file.as_ref().map(|p| self.machine.current_dir.join(p)),
            overrides: spec.overrides.clone(),
            store,
            ssd,
            pressure: self.pressure(&spec.pressure),
            ksm: self.ksm(&spec.ksm),
            daemon,
            nbd,
            nbd_limits,
            scan: self.scan(&spec.scan, &spec.vms),
            shares: self.shares(&spec.shares),
            trusts: spec.vms.iter().filter_map(|vm| Some((vm.name.clone(), vm.trust.clone()?))).collect(),
            nodes: spec.nodes.iter().map(|n| self.node(n)).collect(),
            disks: Vec::new(),
            going_bytes: 0,
        }
    }

    /// Looks for names of listeners that no disk has. They may come later, so that is no error.
    fn listed_exports(&mut self, spec: &ServeSpec, plan: &ServePlan) {
        let exported: Vec<&str> = plan.disks.iter().filter(|d| d.nbd).map(|d| &*d.name).collect();
        let vms = exported.iter().filter_map(|n| Some(n.split_once(':')?.0));
        let known: Vec<&str> = exported.iter().copied().chain(vms).collect();
        for (n, one) in spec.nbd.listen.iter().enumerate() {
            let names = one.exports.iter().flatten();
            for name in names.filter(|n| !known.contains(&n.as_str())) {
                let error = format!("no disk with nbd = true, and no VM with one, is called \"{}\"", clip(name));
                let remedy = match keys::nearest(name, known.iter().copied()) {
                    Some(near) => format!("did you mean \"{near}\"? It may also be attached later"),
                    None => "name one that there is, as VM, VM:DISK or DISK; it may also be attached later".to_string(),
                };
                let line = one.lines.get("exports").copied().or(one.line);
                self.warning(line, &format!("nbd.listen {}", n + 1), error, remedy);
            }
        }
    }

    fn share(&mut self, plan: &mut ServePlan, before: &[DiskPlan], strict: Strict<'_>, line: Option<usize>) {
        // A memory too small, or a single size past it, has been named already: the sum would only say it again.
        let memory_bytes = plan.disks_bytes();
        let too_small = memory_bytes < keys::MEMORY_BYTES_MIN;
        if too_small || plan.disks.iter().any(|d| d.share_fixed && d.share_bytes > memory_bytes) {
            return;
        }
        if let Err(misfit) = shares::divide_from(plan, before, strict) {
            self.error(line, "store", misfit.error, misfit.remedy);
        }
    }

    /// New images can be opened. No image that is written may be used by any other disk, as its image or below it: that
    /// disk would go on serving what it had cached before. What is found here is what can be said early; who opens an
    /// image makes sure of it. `line` is that of the paths of the SSD store.
    fn images(&mut self, plan: &ServePlan, line: Option<usize>) {
        let disks = &*plan.disks;
        let looks = images::look(disks.iter().map(|d| &d.image));
        let (chains, faults): (Vec<_>, Vec<_>) = looks.into_iter().map(|l| (l.chain, l.fault)).unzip();
        for (number, place) in std::mem::take(&mut self.new_images) {
            let line = self.taken.get(&number).copied().flatten();
            if let Some((disk, Some(fault))) = disks.get(number).zip(faults.get(number).cloned()) {
                self.image_fault(line, &place, &disk.image, fault);
            }
        }
        self.conflicts(disks, &chains);
        self.ssd_apart(line, &plan.ssd, disks, &chains);
    }

    fn conflicts(&mut self, disks: &[DiskPlan], chains: &[Vec<Identity>]) {
        let mut users: HashMap<&Identity, Vec<usize>> = HashMap::new();
        for (i, chain) in chains.iter().enumerate() {
            for id in chain {
                users.entry(id).or_default().push(i);
            }
        }
        let mut told = HashSet::new();
        for (writer, chain) in chains.iter().enumerate().filter(|(i, _)| !disks[*i].image.read_only) {
            let Some(top) = chain.first() else { continue };
            // One conflict a writer is enough to act on, and keeps the work linear.
            let Some(other) = users[top].iter().copied().find(|u| *u != writer) else { continue };
            let (first, second) = (writer.min(other), writer.max(other));
            if !told.insert((first, second)) {
                continue;
            }
            let image = &disks[writer].image.location;
            let (at, error, remedy) = if chains[other].first() != Some(top) {
                let error =
                    format!("its image {image} is a backing file of disk \"{}\", but is written", disks[other].name);
                let remedy = "set read_only = true here: an overlay breaks when what is below it changes";
                (writer, error, remedy)
            } else {
                let both = !disks[other].image.read_only;
                let whose = &disks[first].name;
                let who = if both { "both write it" } else { "one of them writes it" };
                let remedy =
                    "give each its own image (`qemu-img create -b` makes an overlay), or set read_only = true on both";
                (second, format!("its image {image} is that of disk \"{whose}\" too, and {who}"), remedy)
            };
            let line = self.taken.get(&at).copied().flatten();
            self.error(line, &format!("disk \"{}\"", disks[at].name), error, remedy);
        }
    }
}
