//! `[scan]`: the scan of guests' memory, checked and filled in.
//!
//! Owns its rules. Never looks at a guest. Invariant: the longest period is at least the shortest.

use super::checks::{Checker, clip};
use super::fields::{Field, field, time};
use super::keys;
use super::spec::{ScanSpec, VmSpec};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use undercroft_units::{Percent, Size, Time};

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

/// Its keys.
pub(crate) const FIELDS: &[Field<ScanPlan>] = &[
    field!(ScanPlan, enabled, enabled, |b| b.to_string()),
    field!(ScanPlan, cpu, cpu, |p| p.to_string()),
    field!(ScanPlan, period_min, period_min, time),
    field!(ScanPlan, period_max, period_max, time),
    field!(ScanPlan, track_writes, track_writes, |b| b.to_string()),
    field!(ScanPlan, memory, memory_bytes, |b| Size(*b).to_string()),
];

impl Checker<'_> {
    pub(crate) fn scan(&mut self, s: &ScanSpec, vms: &[VmSpec]) -> ScanPlan {
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
        for (vm, path) in vms.iter().filter_map(|vm| Some((vm, vm.pid_file.as_ref()?))) {
            let (line, vm) = (vm.lines.get("pid_file").copied(), &vm.name);
            let place = format!("vm \"{}\"", clip(vm));
            let path = self.path(line, &place, "pid_file", path);
            if !enabled {
                let remedy = "add [scan] with enabled = true, or take pid_file out";
                self.warning(line, &place, "pid_file is for [scan], which is not enabled".into(), remedy);
            }
            pid_files.push((vm.clone(), path));
        }
        let track_writes = s.track_writes.unwrap_or(false);
        let cpu = s.cpu.unwrap_or(keys::SCAN_CPU_DEFAULT);
        ScanPlan { enabled, cpu, period_min, period_max, track_writes, memory_bytes, pid_files }
    }
}
