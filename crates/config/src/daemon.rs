//! `[daemon]` and the control sockets of VMs: the process around the cache, checked and filled in.
//!
//! Owns their rules. Never binds a socket. Invariant: no two sockets have one path.

use super::checks::{Checker, clip};
use super::fields::{Field, field, group, path, time};
use super::keys;
use super::overrides::{LogFormat, LogLevel, Overrides};
use super::spec::{DaemonSpec, VmSpec};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

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

/// What to do about metrics that others reach.
const METRICS_REMEDY: &str =
    "nothing there is encrypted or authenticated: keep it on a trusted network, or listen on 127.0.0.1";

/// Its keys.
pub(crate) const FIELDS: &[Field<DaemonPlan>] = &[
    field!(DaemonPlan, control, control_socket, path),
    field!(DaemonPlan, control_group, control_access, |a| group(a.gid)),
    field!(DaemonPlan, runtime_dir, runtime_dir, path),
    field!(DaemonPlan, disk_group, disk_access, |a| group(a.gid)),
    field!(DaemonPlan, workers, workers, |n| n.to_string()),
    field!(DaemonPlan, poll, poll, time),
    field!(DaemonPlan, copy_cpu, copy_cpu_percent, |n| n.to_string()),
    field!(DaemonPlan, check_captures, check_captures, |b| b.to_string()),
    field!(DaemonPlan, metrics, metrics, |m| m.map_or("off".to_string(), |m| m.to_string())),
    field!(DaemonPlan, log_level, log.level, |l| word(*l)),
    field!(DaemonPlan, log_format, log.format, |f| word(*f)),
];

/// A choice as it is written.
fn word<T: clap::ValueEnum>(choice: T) -> String {
    choice.to_possible_value().map_or(String::new(), |v| v.get_name().to_string())
}

impl Checker<'_> {
    pub(crate) fn daemon(&mut self, d: &DaemonSpec, vms: &[VmSpec], over: &Overrides) -> DaemonPlan {
        let at = |key: &str| d.lines.get(key).copied();
        let runtime_dir = match &d.runtime_dir {
            Some(path) => self.path(at("runtime_dir"), "daemon", "runtime_dir", path),
            None => self.machine.runtime_dir.clone(),
        };
        let (control_socket, explicit) = match (&over.control_socket, &d.control) {
            (Some(path), _) => (self.machine.current_dir.join(path), true),
            (None, Some(path)) => (self.path(at("control"), "daemon", "control", path), true),
            (None, None) => (runtime_dir.join("control.sock"), false),
        };
        self.socket("daemon", at("control"), "the control socket", &control_socket, explicit);
        let workers = self.bounded(at("workers"), "daemon", "workers", d.workers, 1, keys::WORKERS_MAX as u64);
        let level = self.choice(at("log_level"), "daemon", "log_level", &d.log_level);
        let format = self.choice(at("log_format"), "daemon", "log_format", &d.log_format);
        let copy_cpu = self.bounded(at("copy_cpu"), "daemon", "copy_cpu", d.copy_cpu, 0, 100);
        let metrics = d
            .metrics
            .as_ref()
            .and_then(|text| self.address(at("metrics"), "daemon", "metrics", text, "127.0.0.1:9464", METRICS_REMEDY));
        let access = |gid| SocketAccess { gid };
        DaemonPlan {
            control_socket,
            control_access: access(self.group(at("control_group"), "daemon", "control_group", &d.control_group)),
            vm_controls: vms.iter().filter_map(|vm| self.vm_control(vm)).collect(),
            runtime_dir,
            disk_access: access(self.group(at("disk_group"), "daemon", "disk_group", &d.disk_group)),
            workers: workers.map_or(self.machine.cpus.clamp(1, keys::WORKERS_DEFAULT_MAX), |n| n as usize),
            poll: self.poll(at("poll"), "daemon", d.poll).unwrap_or(keys::POLL_DEFAULT),
            copy_cpu_percent: copy_cpu.map_or(keys::COPY_CPU_PERCENT_DEFAULT, |n| n as u32),
            check_captures: d.check_captures.unwrap_or(false),
            log: LogPlan {
                level: over.log_level.or(level).unwrap_or(LogLevel::Info),
                format: over.log_format.or(format).unwrap_or(LogFormat::Text),
            },
            metrics,
        }
    }

    /// A VM's own control socket.
    fn vm_control(&mut self, spec: &VmSpec) -> Option<VmControl> {
        if spec.control_socket.is_none() && spec.control_group.is_none() {
            return None;
        }
        let place = format!("vm \"{}\"", clip(&spec.name));
        let at = |key: &str| spec.lines.get(key).copied();
        self.check_name(at("name"), &place, "VM", &spec.name);
        let gid = self.group(at("control_group"), &place, "control_group", &spec.control_group);
        let Some(path) = &spec.control_socket else {
            let remedy = "add control_socket = \"PATH\", or take control_group out";
            self.error(
                at("control_group"),
                &place,
                "control_group is for control_socket, which is missing".into(),
                remedy,
            );
            return None;
        };
        let socket = self.path(at("control_socket"), &place, "control_socket", path);
        let whose = format!("the control socket of VM \"{}\"", clip(&spec.name));
        self.socket(&place, at("control_socket"), &whose, &socket, true);
        Some(VmControl { vm: spec.name.clone(), socket, access: SocketAccess { gid } })
    }
}
