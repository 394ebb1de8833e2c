//! From what was asked for to what will be done: defaults filled in, everything checked that can be checked early.
//!
//! Owns every rule that spans keys, files and the machine. Never opens an image for writing, makes nothing, and
//! changes nothing. Invariant: a plan that comes with no error keeps the invariants of `plan`.

mod disk;

use super::images::{self, Identity};
use super::keys::{self, nearest};
use super::machine::Machine;
use super::plan::{
    DaemonPlan, DiskPlan, LogFormat, LogLevel, LogPlan, NbdListen, ScanPlan, ServePlan, SocketAccess, StorePlan,
};
use super::problem::{Problem, Problems, Severity};
use super::shares::{self, Strict};
use super::spec::{DiskSpec, ServeSpec};
use crate::ImageFormat;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use undercroft_cache::limits::DISKS_MAX;
use undercroft_units::{Size, Time};

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
    let mut resolver = Resolver::new(machine, Some(base));
    resolver.problems = earlier;
    let mut plan = resolver.frame(spec);
    if spec.disks.len() > DISKS_MAX {
        let error = format!("there are {} disks, more than {DISKS_MAX}", spec.disks.len());
        resolver.error(None, "", error, "serve them from several daemons");
    }
    for disk in spec.disks.iter().take(DISKS_MAX) {
        let disk = resolver.disk(disk, &plan.daemon, plan.store.memory_bytes, !plan.nbd.is_empty());
        plan.disks.push(disk);
    }
    plan.inherit_policies();
    if spec.disks.is_empty() && resolver.problems.is_empty() {
        let remedy = "add a [[disk]] with name and image, or attach disks with POST /v1/disks";
        resolver.warning(None, "", "no disk is configured".into(), remedy);
    }
    if !plan.nbd.is_empty() && !plan.disks.is_empty() && plan.disks.iter().all(|d| !d.nbd) {
        let line = spec.lines.get("unix").or(spec.lines.get("tcp")).copied();
        resolver.warning(line, "nbd", "no disk is exported".into(), "set nbd = true on the disks that should be");
    }
    resolver.listed_exports(spec, &plan);
    resolver.share(&mut plan, &[], Strict::Everywhere, spec.lines.get("memory").copied());
    resolver.images(&plan.disks);
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
        let mut resolver = Resolver::new(machine, None);
        resolver.sockets.insert(self.daemon.control_socket.clone(), ("the control socket".to_string(), None));
        for c in &self.daemon.vm_controls {
            resolver.sockets.insert(c.socket.clone(), (format!("the control socket of VM \"{}\"", c.vm), None));
        }
        for (disk, i) in self.disks.iter().zip(0..) {
            resolver.names.insert(disk.name.clone(), None);
            resolver.taken.insert(i, None);
            if let Some(socket) = &disk.socket {
                resolver.sockets.insert(socket.clone(), (format!("disk \"{}\"", disk.name), None));
            }
        }
        for listen in &self.nbd {
            if let NbdListen::Unix(path) = &listen.at {
                resolver.sockets.insert(path.clone(), ("the NBD listener".to_string(), None));
            }
        }
        let mut plan = self.clone();
        let disk = resolver.disk(spec, &plan.daemon, plan.store.memory_bytes, !plan.nbd.is_empty());
        plan.disks.push(disk);
        plan.inherit_policies();
        if plan.disks.len() > DISKS_MAX {
            resolver.error(None, "", format!("there are {DISKS_MAX} disks already"), "detach one first");
        }
        let strict = spec.vm.as_deref().map_or(Strict::OnHost, Strict::Within);
        resolver.share(&mut plan, &self.disks, strict, None);
        resolver.images(&plan.disks);
        if resolver.problems.iter().any(|p| p.severity >= Severity::Disk) {
            return Err(Problems { file: None, problems: resolver.problems });
        }
        Ok(plan)
    }
}

pub(super) struct Resolver<'m> {
    pub(super) machine: &'m Machine,
    /// Where relative paths start; without one they are refused.
    base: Option<PathBuf>,
    problems: Vec<Problem>,
    /// Full names of disks, with their lines.
    names: HashMap<String, Option<usize>>,
    /// Lines of images, by position of the disk; a disk that is there cannot be missing any more.
    taken: BTreeMap<usize, Option<usize>>,
    /// Paths of sockets: whose, and on which line.
    sockets: HashMap<PathBuf, (String, Option<usize>)>,
}

impl<'m> Resolver<'m> {
    fn new(machine: &'m Machine, base: Option<PathBuf>) -> Self {
        Resolver {
            machine,
            base,
            problems: Vec::new(),
            names: HashMap::new(),
            taken: BTreeMap::new(),
            sockets: HashMap::new(),
        }
    }

    pub(super) fn error(&mut self, line: Option<usize>, place: &str, error: String, remedy: impl Into<String>) {
        let (place, remedy) = (place.to_string(), remedy.into());
        self.problems.push(Problem { severity: Severity::Error, line, place, error, remedy });
    }

    pub(super) fn warning(&mut self, line: Option<usize>, place: &str, error: String, remedy: impl Into<String>) {
        let (place, remedy) = (place.to_string(), remedy.into());
        self.problems.push(Problem { severity: Severity::Warning, line, place, error, remedy });
    }

    /// A disk cannot be served as things stand.
    fn disk_fault(&mut self, line: Option<usize>, place: &str, error: String, remedy: impl Into<String>) {
        let (place, remedy) = (place.to_string(), remedy.into());
        self.problems.push(Problem { severity: Severity::Disk, line, place, error, remedy });
    }

    /// Everything but the disks.
    fn frame(&mut self, spec: &ServeSpec) -> ServePlan {
        let memory_bytes = self.memory(spec);
        let d = &spec.daemon;
        let at = |key: &str| d.lines.get(key).copied();
        let runtime_dir = match &d.runtime_dir {
            Some(path) => self.path(at("runtime_dir"), "daemon", "runtime_dir", path),
            None => self.machine.runtime_dir.clone(),
        };
        let over = &spec.overrides;
        let (control_socket, explicit) = match (&over.control_socket, &d.control) {
            (Some(path), _) => (self.machine.current_dir.join(path), true),
            (None, Some(path)) => (self.path(at("control"), "daemon", "control", path), true),
            (None, None) => (runtime_dir.join("control.sock"), false),
        };
        self.socket("daemon", at("control"), "the control socket", &control_socket, explicit);
        let (nbd, nbd_limits) = self.nbd(spec);
        let workers = self.bounded(at("workers"), "daemon", "workers", d.workers, 1, keys::WORKERS_MAX as u64);
        let level = self.choice(at("log_level"), "daemon", "log_level", &d.log_level);
        let format = self.choice(at("log_format"), "daemon", "log_format", &d.log_format);
        let mut daemon = DaemonPlan {
            control_socket,
            control_access: self.group(at("control_group"), "daemon", "control_group", &d.control_group),
            vm_controls: Vec::new(),
            runtime_dir,
            disk_access: self.group(at("disk_group"), "daemon", "disk_group", &d.disk_group),
            workers: workers.map_or(self.machine.cpus.clamp(1, keys::WORKERS_DEFAULT_MAX), |n| n as usize),
            poll: self.poll(at("poll"), "daemon", d.poll).unwrap_or(keys::POLL_DEFAULT),
            copy_cpu_percent: self
                .bounded(at("copy_cpu"), "daemon", "copy_cpu", d.copy_cpu, 0, 100)
                .map_or(keys::COPY_CPU_PERCENT_DEFAULT, |n| n as u32),
            check_captures: d.check_captures.unwrap_or(false),
            log: LogPlan {
                level: over.log_level.or(level).unwrap_or(LogLevel::Info),
                format: over.log_format.or(format).unwrap_or(LogFormat::Text),
            },
            metrics: d.metrics.as_ref().and_then(|text| {
                self.address(at("metrics"), "daemon", "metrics", text, "127.0.0.1:9464", METRICS_REMEDY)
            }),
        };
        daemon.vm_controls = spec.vm_controls.iter().filter_map(|c| self.vm_control(c)).collect();
        let config_file = spec.config_file.as_ref().map(|p| self.machine.current_dir.join(p));
        let overrides = over.clone();
        let floor_bytes = self.floor(spec, memory_bytes);
        let store = StorePlan { memory_bytes, floor_bytes, share: spec.share.unwrap_or(true) };
        let (pressure, ksm) = (self.pressure(&spec.pressure), self.ksm(&spec.ksm));
        let scan = self.scan(spec);
        let (shares, nodes) = (self.shares(&spec.shares), spec.nodes.iter().map(|n| self.node(n)).collect());
        ServePlan {
            config_file,
            overrides,
            store,
            pressure,
            ksm,
            daemon,
            nbd,
            nbd_limits,
            scan,
            shares,
            nodes,
            disks: Vec::new(),
        }
    }

    fn scan(&mut self, spec: &ServeSpec) -> ScanPlan {
        let s = &spec.scan;
        let at = |key: &str| s.lines.get(key).copied();
        let enabled = s.enabled.unwrap_or(false);
        if !enabled && s.enabled.is_none() && !s.lines.is_empty() {
            let remedy = "add enabled = true, or take the section out";
            self.warning(s.lines.values().min().copied(), "scan", "it is not enabled".into(), remedy);
        }
        let [least, most] = keys::SCAN_PERIODS;
        let mut period = |key: &'static str, time: Option<Time>, otherwise| {
            let Some(time) = time else { return otherwise };
            if (least..=most).contains(&time.duration()) {
                return time.duration();
            }
            let remedy = format!("give {} to 1440min", Time::from(least));
            self.error(at(key), "scan", format!("{key} must not be {time}"), remedy);
            otherwise
        };
        let period_min = period("period_min", s.period_min, keys::SCAN_PERIOD_MIN_DEFAULT);
        let period_max = period("period_max", s.period_max, keys::SCAN_PERIOD_MAX_DEFAULT.max(period_min));
        if period_max < period_min {
            let error = format!("period_max is shorter than period_min, {}", Time::from(period_min));
            self.error(at("period_max"), "scan", error, "make it longer, or period_min shorter");
        }
        let Size(memory_bytes) = s.memory.unwrap_or(Size(keys::SCAN_MEMORY_DEFAULT));
        if memory_bytes < keys::SCAN_MEMORY_MIN {
            let error = format!("memory is {}, too little for an index", Size(memory_bytes));
            self.error(at("memory"), "scan", error, format!("give at least {}", Size(keys::SCAN_MEMORY_MIN)));
        }
        let mut pid_files = Vec::new();
        for (vm, path, line) in &spec.pid_files {
            let place = format!("vm \"{}\"", clip(vm));
            let path = self.path(*line, &place, "pid_file", path);
            if !enabled {
                let remedy = "add [scan] with enabled = true, or take pid_file out";
                self.warning(*line, &place, "pid_file is for [scan], which is not enabled".into(), remedy);
            }
            pid_files.push((vm.clone(), path));
        }
        let track_writes = s.track_writes.unwrap_or(false);
        let cpu = s.cpu.unwrap_or(keys::SCAN_CPU_DEFAULT);
        ScanPlan { enabled, cpu, period_min, period_max, track_writes, memory_bytes, pid_files }
    }

    fn memory(&mut self, spec: &ServeSpec) -> u64 {
        let line = spec.lines.get("memory").copied();
        let machine_bytes = self.machine.memory_bytes;
        let Size(bytes) = spec.memory.unwrap_or_else(|| keys::memory_default(machine_bytes));
        let roughly = undercroft_units::human_size(machine_bytes);
        if bytes < keys::MEMORY_BYTES_MIN {
            let error = format!("memory is {}, too little to serve from", Size(bytes));
            self.error(line, "store", error, format!("give at least {}", Size(keys::MEMORY_BYTES_MIN)));
        } else if bytes > machine_bytes {
            let error = format!("memory is {}, but this machine has {roughly} to give", Size(bytes));
            let remedy = format!("give less; leave room for the guests: {}", keys::memory_default(machine_bytes));
            self.error(line, "store", error, remedy);
        } else if bytes > machine_bytes / 10 * 9 {
            let error = format!("memory is {}, nearly all of the machine's {roughly}", Size(bytes));
            self.warning(line, "store", error, "leave room for the guests and the kernel");
        }
        bytes
    }

    pub(super) fn group(
        &mut self,
        line: Option<usize>,
        place: &str,
        key: &'static str,
        group: &Option<String>,
    ) -> SocketAccess {
        let gid = group.as_ref().and_then(|name| {
            let gid = self.machine.gid(name);
            if gid.is_none() {
                let near = nearest(name, self.machine.groups.iter().map(|(n, _)| n.as_str())).map(str::to_string);
                let remedy = match near {
                    Some(near) => format!("did you mean \"{near}\"? `getent group` lists them"),
                    None => "make it with `groupadd --system`, or name one that `getent group` lists".to_string(),
                };
                let error = format!("{key}: there is no group \"{}\"", clip(name));
                self.error(line, place, error, remedy);
            }
            gid
        });
        SocketAccess { gid }
    }

    pub(super) fn choice<T: clap::ValueEnum>(
        &mut self,
        line: Option<usize>,
        place: &str,
        key: &str,
        text: &Option<String>,
    ) -> Option<T> {
        let text = text.as_ref()?;
        let chosen = T::from_str(text, true).ok();
        if chosen.is_none() {
            let known: Vec<_> = T::value_variants().iter().filter_map(T::to_possible_value).collect();
            let known: Vec<&str> = known.iter().map(|v| v.get_name()).collect();
            let remedy = match nearest(text, known.iter().copied()) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => format!("known are {}", known.join(", ")),
            };
            self.error(line, place, format!("{key}: unknown value \"{}\"", clip(text)), remedy);
        }
        chosen
    }

    pub(super) fn bounded(
        &mut self,
        line: Option<usize>,
        place: &str,
        key: &str,
        value: Option<u64>,
        min: u64,
        max: u64,
    ) -> Option<u64> {
        let value = value?;
        if !(min..=max).contains(&value) {
            self.error(line, place, format!("{key} must not be {value}"), format!("allowed is {min} to {max}"));
            return None;
        }
        Some(value)
    }

    fn poll(&mut self, line: Option<usize>, place: &str, poll: Option<Time>) -> Option<std::time::Duration> {
        let time = poll?;
        if time.duration() > keys::POLL_MAX {
            let remedy = format!("give at most {}; 50us suits most hosts, 0 turns it off", Time::from(keys::POLL_MAX));
            self.error(line, place, format!("poll is {time}, too long to burn a processor for"), remedy);
            return None;
        }
        Some(time.duration())
    }

    /// An IP address with a port. `open` is what to do about one that other machines reach; empty if that is well.
    pub(super) fn address(
        &mut self,
        line: Option<usize>,
        place: &str,
        key: &str,
        text: &str,
        example: &str,
        open: &str,
    ) -> Option<SocketAddr> {
        match text.parse::<SocketAddr>() {
            Ok(addr) => {
                if !addr.ip().is_loopback() && !open.is_empty() {
                    let error = format!("{key} = \"{addr}\" can be reached from other machines");
                    self.warning(line, place, error, open);
                }
                Some(addr)
            }
            Err(_) => {
                let error = format!("{key}: \"{}\" is not an IP address with a port", clip(text));
                self.error(line, place, error, format!("write it like {key} = \"{example}\""));
                None
            }
        }
    }

    /// Makes a path absolute.
    pub(super) fn path(&mut self, line: Option<usize>, place: &str, key: &str, path: &Path) -> PathBuf {
        if path.as_os_str().is_empty() {
            self.error(line, place, format!("{key} is empty"), "give a path, or leave the key out");
        } else if path.as_os_str().as_bytes().contains(&0) {
            self.error(line, place, format!("{key} contains a NUL character"), "take it out");
        }
        match &self.base {
            Some(base) => base.join(path),
            None if path.is_absolute() => path.to_path_buf(),
            None => {
                let error = format!("{key} = \"{}\" is a relative path", clip(&path.display().to_string()));
                self.error(line, place, error, "give it from the root: the daemon has no directory of its own");
                path.to_path_buf()
            }
        }
    }

    /// Checks the path of a socket and books it. `explicit` tells whether somebody wrote that path.
    pub(super) fn socket(&mut self, place: &str, line: Option<usize>, whose: &str, path: &Path, explicit: bool) {
        let shown = path.display();
        let len = path.as_os_str().as_bytes().len();
        if len > keys::SOCKET_PATH_BYTES_MAX {
            let error = format!("the path of the socket is {len} bytes long: {shown}");
            let key = if place.starts_with("nbd") {
                "unix"
            } else if place == "daemon" {
                "control"
            } else if place.starts_with("vm ") {
                "control_socket"
            } else {
                "socket"
            };
            let remedy = format!("the system allows {}: set {key} to a shorter path", keys::SOCKET_PATH_BYTES_MAX);
            self.error(line, place, error, remedy);
            return;
        }
        if let Some((other, other_line)) = self.sockets.get(path) {
            let on_line = other_line.map_or(String::new(), |l| format!(" (line {l})"));
            let error = format!("the socket {shown} is that of {other}{on_line} too");
            self.error(line, place, error, "set socket to a path of its own");
            return;
        }
        self.sockets.insert(path.to_path_buf(), (whose.to_string(), line));
        match fs::symlink_metadata(path) {
            Ok(meta) if !meta.file_type().is_socket() => {
                let error = format!("{shown} is there already and is no socket");
                self.error(line, place, error, "choose another path, or move that file away");
            }
            Err(_) if explicit => {
                let parent = path.parent().unwrap_or(Path::new("/"));
                if !parent.is_dir() {
                    let error = format!("the directory of the socket {shown} does not exist");
                    self.error(line, place, error, format!("make it with `mkdir -p {}`", parent.display()));
                }
            }
            _ => {}
        }
    }

    fn share(&mut self, plan: &mut ServePlan, before: &[DiskPlan], strict: Strict<'_>, line: Option<usize>) {
        // A memory too small, or a single size past it, has been named already: the sum would only say it again.
        let memory_bytes = plan.store.memory_bytes;
        let too_small = memory_bytes < keys::MEMORY_BYTES_MIN;
        if too_small || plan.disks.iter().any(|d| d.share_fixed && d.share_bytes > memory_bytes) {
            return;
        }
        if let Err(misfit) = shares::divide_from(plan, before, strict) {
            self.error(line, "store", misfit.error, misfit.remedy);
        }
    }

    /// No image that is written may be used by any other disk, as its image or below it: that disk would go on serving
    /// what it had cached before.
    fn images(&mut self, disks: &[DiskPlan]) {
        let chains: Vec<Vec<Identity>> =
            disks.iter().map(|d| images::chain(&d.image.location, d.image.format == Some(ImageFormat::Raw))).collect();
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

/// What of a text fits into a message.
/// What to do about metrics that others reach.
const METRICS_REMEDY: &str =
    "nothing there is encrypted or authenticated: keep it on a trusted network, or listen on 127.0.0.1";

pub(super) fn clip(text: &str) -> String {
    if text.chars().count() <= 120 {
        return text.escape_debug().to_string();
    }
    let head: String = text.chars().take(100).collect();
    format!("{}...", head.escape_debug())
}
