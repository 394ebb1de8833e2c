//! The machine that a configuration is checked against: its memory, processors, user and groups.
//!
//! Owns a snapshot of these, taken once, so that the checks depend on nothing else. Never changes the machine.

use std::fs;
use std::path::{Path, PathBuf};
use undercroft_host::ControlGroup;

/// Facts about the machine and the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Bytes of RAM that the machine has.
    pub memory_bytes: u64,
    /// The smallest memory limit of the control groups that this process is in, in bytes, if there is one below that.
    pub limit_bytes: Option<u64>,
    /// Processors that this process may use.
    pub cpus: usize,
    /// Where sockets go by default.
    pub runtime_dir: PathBuf,
    /// Where relative paths start if there is no configuration file.
    pub current_dir: PathBuf,
    /// Names and numbers of groups.
    pub groups: Vec<(String, u32)>,
}

impl Machine {
    /// This machine, as this process sees it.
    pub fn here() -> Machine {
        let memory_bytes = memory_bytes();
        Machine {
            memory_bytes,
            limit_bytes: limit_bytes().filter(|l| *l < memory_bytes),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            runtime_dir: runtime_dir(),
            current_dir: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
            groups: fs::read_to_string("/etc/group").map(|t| groups(&t)).unwrap_or_default(),
        }
    }

    /// No machine: for checks of values that have nothing to do with one.
    pub(crate) fn nowhere() -> Machine {
        Machine {
            memory_bytes: u64::MAX,
            limit_bytes: None,
            cpus: 1,
            runtime_dir: PathBuf::from("/"),
            current_dir: PathBuf::from("/"),
            groups: Vec::new(),
        }
    }

    /// Bytes of RAM that this process may use at most, as things are now.
    pub fn usable_bytes(&self) -> u64 {
        self.limit_bytes.unwrap_or(self.memory_bytes)
    }

    /// The number of a group given by name or number.
    pub fn gid(&self, group: &str) -> Option<u32> {
        self.groups.iter().find(|(name, _)| name == group).map(|(_, gid)| *gid).or_else(|| group.parse().ok())
    }
}

/// What systemd made for the service (`RuntimeDirectory=`), if it did; else `/run/undercroft` for root, else
/// `$XDG_RUNTIME_DIR/undercroft`, else `/tmp/undercroft-UID`.
pub fn runtime_dir() -> PathBuf {
    let given = std::env::var("RUNTIME_DIRECTORY").unwrap_or_default();
    if let Some(first) = given.split(':').next().filter(|d| d.starts_with('/')) {
        return PathBuf::from(first);
    }
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return PathBuf::from("/run/undercroft");
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if Path::new(&dir).is_absolute() => Path::new(&dir).join("undercroft"),
        _ => PathBuf::from(format!("/tmp/undercroft-{}", uid.as_raw())),
    }
}

fn memory_bytes() -> u64 {
    total_of(&fs::read_to_string("/proc/meminfo").unwrap_or_default()).unwrap_or(u64::MAX)
}

fn limit_bytes() -> Option<u64> {
    ControlGroup::of_this_process(Path::new("/proc")).iter().filter_map(ControlGroup::limit_bytes).min()
}

fn total_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn groups(text: &str) -> Vec<(String, u32)> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            let gid = fields.nth(1)?.parse().ok()?;
            Some((name.to_string(), gid))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_read() {
        assert_eq!(total_of("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert_eq!(total_of("MemFree: 1 kB\n"), None);
        let g = groups("root:x:0:\nkvm:x:104:alice,bob\nbroken\n:::\n");
        assert_eq!(g, vec![("root".to_string(), 0), ("kvm".to_string(), 104)]);
        let m = Machine { groups: g, ..Machine::here() };
        assert_eq!((m.gid("kvm"), m.gid("42"), m.gid("nobody-here")), (Some(104), Some(42), None));
    }

    #[test]
    fn this_machine_has_memory_and_processors() {
        let m = Machine::here();
        assert!(m.memory_bytes > 1 << 20 && m.cpus > 0 && m.runtime_dir.is_absolute());
    }
}
