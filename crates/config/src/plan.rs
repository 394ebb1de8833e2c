//! What to serve and how, with every default filled in: the only form of configuration that the daemon sees.
//!
//! Owns plain data. Never an `Option` that means "default". Invariants, once resolved: disk names are unique, so are
//! socket paths; the shares of all disks together fit into the memory of the store.

use super::goal::GoalPlan;
use super::stores::StoreChoice;
use crate::ImageSpec;
use crate::KsmPlan;
use crate::PressurePlan;
use crate::tls::TlsFiles;
use crate::tls::TlsMode;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use undercroft_engine::control::ControllerKind;
use undercroft_engine::shares::Hint;
use undercroft_engine::{ExclusiveMode, PolicyKind};
use undercroft_units::{Percent, Size, Time};

/// Everything `serve` needs, however it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServePlan {
    /// The configuration file, absolute; `None` for `serve --image`, which cannot reload.
    pub config_file: Option<PathBuf>,
    /// What the command line said instead of the file; holds over a reload too.
    pub overrides: Overrides,
    /// The RAM that caches.
    pub store: StorePlan,
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
    /// VMs and containers for which something is set, in the order of the configuration.
    pub nodes: Vec<NodePlan>,
    /// The disks, in the order of the configuration.
    pub disks: Vec<DiskPlan>,
}

/// How the store is divided while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharesPlan {
    /// Who divides, where no VM or container says otherwise.
    pub controller: ControllerKind,
    /// How often.
    pub interval: Duration,
}

/// What is set for a VM or a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlan {
    /// `VM` or `VM/CONTAINER`.
    pub name: String,
    /// Its part of what its siblings and it contend for.
    pub weight: u32,
    /// What it has whenever it wants it, in bytes.
    pub floor_bytes: u64,
    /// What it never has more of, in bytes.
    pub ceiling_bytes: Option<u64>,
    /// Who divides its share; as above it if `None`.
    pub controller: Option<ControllerKind>,
    /// What it is to reach.
    pub goal: Option<GoalPlan>,
    /// Replacement policy of what is below it and names none.
    pub policy: Option<PolicyKind>,
    /// Which stores what is below it may be in, where it names none.
    pub store: Option<StoreChoice>,
}

/// The scan of guests' memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanPlan {
    /// Whether there is one.
    pub enabled: bool,
    /// Processor time at most, of one core.
    pub cpu: Percent,
    /// Shortest time between two scans.
    pub period_min: Duration,
    /// Longest; at least the shortest.
    pub period_max: Duration,
    /// Whether the kernel is to note which pages of private memory are written to.
    pub track_writes: bool,
    /// Most that the index takes, in bytes.
    pub memory_bytes: u64,
    /// Where the process numbers of VMs stand that do not connect over vhost-user: VM and absolute path.
    pub pid_files: Vec<(String, PathBuf)>,
}

impl fmt::Display for ScanPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.enabled {
            return f.write_str("off");
        }
        let (min, max) = (Time::from(self.period_min), Time::from(self.period_max));
        write!(f, "every {min} to {max} at {} of a core, {} of memory", self.cpu, Size(self.memory_bytes))?;
        f.write_str(if self.track_writes { ", writes tracked" } else { "" })?;
        self.pid_files.iter().try_for_each(|(vm, path)| write!(f, ", {vm} by {}", path.display()))
    }
}

/// What the command line says instead of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// The control socket.
    pub control_socket: Option<PathBuf>,
    /// The level of logging.
    pub log_level: Option<LogLevel>,
    /// The format of logs.
    pub log_format: Option<LogFormat>,
}

/// The RAM that caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePlan {
    /// Hard ceiling in bytes, for data and metadata of all disks together.
    pub memory_bytes: u64,
    /// What of it is never given back when the machine is short of memory; at most `memory_bytes`.
    pub floor_bytes: u64,
    /// Whether equal content is held once.
    pub share: bool,
}

/// The process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonPlan {
    /// The control socket.
    pub control_socket: PathBuf,
    /// Who may use the control socket.
    pub control_access: SocketAccess,
    /// Control sockets of single VMs.
    pub vm_controls: Vec<VmControl>,
    /// Where sockets go that have no path of their own; to be created if missing.
    pub runtime_dir: PathBuf,
    /// Who may use the sockets of disks (vhost-user, and NBD over unix).
    pub disk_access: SocketAccess,
    /// Worker threads; at least 1.
    pub workers: usize,
    /// Bound of polling for disks that have none of their own.
    pub poll: Duration,
    /// Percent of one processor that each worker may spend on copying and hashing guest memory.
    pub copy_cpu_percent: u32,
    /// Whether pages kept from guests are compared with their images first.
    pub check_captures: bool,
    /// Logging.
    pub log: LogPlan,
    /// Where `/metrics` is served over TCP besides the control socket; off unless asked for.
    pub metrics: Option<SocketAddr>,
}

/// A control socket on which only what is below one VM can be seen and changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmControl {
    /// The VM.
    pub vm: String,
    /// Where it listens.
    pub socket: PathBuf,
    /// Who may use it.
    pub access: SocketAccess,
}

/// Owner and mode of a socket file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketAccess {
    /// Group to give it to; the mode is 0660 then and 0600 otherwise.
    pub gid: Option<u32>,
}

impl SocketAccess {
    /// The mode of the socket file.
    pub fn mode(self) -> u32 {
        if self.gid.is_some() { 0o660 } else { 0o600 }
    }
}

/// Logging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPlan {
    /// The least important level to log.
    pub level: LogLevel,
    /// How lines look.
    pub format: LogFormat,
}

/// Importance of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum LogLevel {
    /// What failed.
    Error,
    /// What will hurt.
    Warn,
    /// What starts, stops and changes.
    Info,
    /// What helps to find a fault.
    Debug,
    /// Everything.
    Trace,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people; without times and levels where the journal adds its own.
    Text,
    /// One JSON object a line.
    Json,
}

/// Where NBD clients connect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NbdListen {
    /// A unix socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}

/// A listener of NBD clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdListener {
    /// Where.
    pub at: NbdListen,
    /// What can be reached there: names of disks or of VMs; everything if `None`.
    pub exports: Option<Vec<String>>,
    /// Whether clients may, or must, encrypt.
    pub tls: TlsMode,
    /// With what; given unless `tls` is off.
    pub files: Option<TlsFiles>,
    /// Connections at most.
    pub connections: usize,
    /// Connections to one export at most.
    pub per_export: usize,
}

impl NbdListener {
    /// Whether a disk can be reached there, if it is exported.
    pub fn has(&self, disk: &str) -> bool {
        self.exports.as_ref().is_none_or(|names| lists(names, disk))
    }
}

impl fmt::Display for NbdListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} connections, {} per export", self.at, self.connections, self.per_export)?;
        if let Some(names) = &self.exports {
            write!(f, ", exports {}", names.join(" "))?;
        }
        if let Some(files) = &self.files {
            let mode = if self.tls == TlsMode::Require { "require" } else { "offer" };
            write!(f, ", tls {mode} with {} and {}", files.cert.display(), files.key.display())?;
            for (key, file) in [("authorities", &files.client_ca), ("revoked", &files.client_crl)] {
                if let Some(file) = file {
                    write!(f, ", {key} {}", file.display())?;
                }
            }
        }
        f.write_str(")")
    }
}

/// Bounds of all NBD clients together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdLimits {
    /// Bytes of data of requests under way.
    pub memory_bytes: u64,
    /// How long a client may be slow while others wait for that memory.
    pub slow_after: Duration,
    /// Handshakes under way on a listener.
    pub handshakes: usize,
    /// How long a handshake may take.
    pub handshake_timeout: Duration,
}

impl fmt::Display for NbdListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NbdListen::Unix(path) => write!(f, "unix:{}", path.display()),
            NbdListen::Tcp(addr) => write!(f, "tcp:{addr}"),
        }
    }
}

/// One disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskPlan {
    /// Its name everywhere: `VM:DISK`, or the bare name of a disk without a VM. Also its NBD export name.
    pub name: String,
    /// The VM it belongs to.
    pub vm: Option<String>,
    /// The image. A location that is a path is absolute.
    pub image: ImageSpec,
    /// The vhost-user socket; none if the disk is served over NBD only.
    pub socket: Option<PathBuf>,
    /// Whether the NBD listeners export it.
    pub nbd: bool,
    /// The replacement policy: its own, or that of the nearest above it that has one.
    pub policy: PolicyKind,
    /// The policy that is set for itself.
    pub own_policy: Option<PolicyKind>,
    /// Bytes of the store that it may use, its metadata included.
    pub share_bytes: u64,
    /// Whether `share_bytes` was asked for (`size`); if not, it follows from `weight` and changes when disks come and
    /// go.
    pub share_fixed: bool,
    /// Its part of what its siblings and it contend for.
    pub weight: u32,
    /// What it has whenever it wants it, in bytes.
    pub floor_bytes: u64,
    /// What it never has more of, in bytes.
    pub ceiling_bytes: Option<u64>,
    /// What containers have of it by ranges of blocks, which the API sets; their shares are in `share_bytes`.
    pub parts: Vec<PartPlan>,
    /// What it is to reach.
    pub goal: Option<GoalPlan>,
    /// How it will be used.
    pub hint: Hint,
    /// Which stores its blocks may be in, if that is set for itself.
    pub store: Option<StoreChoice>,
    /// The container of its VM that it belongs to.
    pub container: Option<String>,
    /// Read-ahead at most, in bytes; 0 is off.
    pub readahead_bytes: u32,
    /// Whether a written block that was not cached becomes cached.
    pub write_allocate: bool,
    /// How the cache is kept exclusive of the guest's.
    pub exclusive: ExclusiveMode,
    /// The trust group: one that was named, or `vm:NAME`, or `disk:NAME`.
    pub trust: String,
    /// With whom it holds blocks of an image that nobody writes in common.
    pub share_base: BaseSharing,
    /// Whether guest memory may lie in any file, access to which may then wait.
    pub trust_memory: bool,
    /// Serial number that the guest sees: at most 20 bytes of printable ASCII.
    pub serial: String,
    /// Queues of the vhost-user device, 1 to 64.
    pub queues: u16,
    /// Entries of each queue: a power of two, 2 to 1024.
    pub queue_size: u16,
    /// How long a worker polls for the next request at most before it sleeps; zero is off.
    pub poll: Duration,
}

/// Which disks on one image that nobody writes hold its blocks in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseSharing {
    /// None: `share_base = false`.
    Nobody,
    /// Those of its trust group: the group was named, and nothing was said about bases.
    Group,
    /// All that have this: `share_base = true`, or neither that nor a group was named.
    Everybody,
}

/// What one container has of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartPlan {
    /// The container, without its VM.
    pub container: String,
    /// Its number on the disk, 1 to 255; it keeps it.
    pub number: u8,
    /// Bytes of the store that it may use.
    pub share_bytes: u64,
}

impl DiskPlan {
    /// Its own part of its share: what its containers leave.
    pub(crate) fn rest_bytes(&self) -> u64 {
        self.share_bytes.saturating_sub(self.parts.iter().map(|p| p.share_bytes).sum())
    }

    /// What has a share here, the disk itself first: number, name as a node, bytes.
    pub fn leaves(&self) -> impl Iterator<Item = (u8, String, u64)> + '_ {
        let part = |p: &PartPlan| (p.number, format!("{}[{}]", self.name, p.container), p.share_bytes);
        std::iter::once((0, self.name.clone(), self.rest_bytes())).chain(self.parts.iter().map(part))
    }

    /// Gives shares in bytes, in the order of [`DiskPlan::leaves`].
    pub fn set_leaves(&mut self, bytes: &[u64]) {
        self.share_bytes = bytes.iter().sum();
        for (part, &share) in self.parts.iter_mut().zip(&bytes[1..]) {
            part.share_bytes = share;
        }
    }
}

impl NodePlan {
    /// A VM or a container for which nothing is set.
    pub fn new(name: &str) -> Self {
        let weight = super::keys::WEIGHT_DEFAULT;
        Self {
            name: name.to_string(),
            weight,
            floor_bytes: 0,
            ceiling_bytes: None,
            controller: None,
            goal: None,
            policy: None,
            store: None,
        }
    }
}

impl ServePlan {
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

    /// The disk of that full name; or the only one whose name within its VM it is.
    pub fn find(&self, name: &str) -> Option<&DiskPlan> {
        let mut short = self.disks.iter().filter(|d| d.name.split_once(':').is_some_and(|(_, n)| n == name));
        self.disks.iter().find(|d| d.name == name).or_else(|| short.next().filter(|_| short.next().is_none()))
    }
}

/// Whether an export is among `names`: of exports, or of VMs, whose disks are `VM:DISK`.
pub fn lists(names: &[String], export: &str) -> bool {
    names.iter().any(|n| export.strip_prefix(&**n).is_some_and(|rest| rest.is_empty() || rest.starts_with(':')))
}
