//! The kernel's files about memory and its shortage, read.
//!
//! Owns their notation. Never opens a file. Invariant: any bytes give a value or nothing, never a panic.

use std::path::PathBuf;

/// `/proc/meminfo`, as far as it matters here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemInfo {
    /// RAM that the kernel manages.
    pub total_bytes: u64,
    /// RAM that holds nothing.
    pub free_bytes: u64,
    /// RAM that could be had without swapping, by the kernel's estimate.
    pub available_bytes: u64,
}

/// `/proc/meminfo`.
pub fn meminfo(text: &str) -> Option<MemInfo> {
    let bytes = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
    };
    let total_bytes = bytes("MemTotal")?;
    let at_most = |b: u64| b.min(total_bytes);
    Some(MemInfo {
        total_bytes,
        free_bytes: at_most(bytes("MemFree")?),
        available_bytes: at_most(bytes("MemAvailable")?),
    })
}

/// A pressure file (PSI): microseconds for which some task waited, since boot or since the group was made.
pub fn stalled_us(text: &str) -> Option<u64> {
    let some = text.lines().find_map(|l| l.strip_prefix("some "))?;
    some.split_ascii_whitespace().find_map(|w| w.strip_prefix("total="))?.parse().ok()
}

/// A file of `name value` lines: `memory.stat`, `memory.events`.
pub fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '))?.trim().parse().ok()
}

/// A limit: a number of bytes, or `max`. Version 1 writes a number no machine has instead.
pub fn limit(text: &str) -> Option<u64> {
    text.trim().parse::<u64>().ok().filter(|n| *n < 1 << 60)
}

/// Control groups of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnGroups {
    /// Its path in the one tree of version 2.
    pub v2: Option<String>,
    /// Its path in the tree of version 1 that has the memory controller.
    pub memory_v1: Option<String>,
}

/// `/proc/self/cgroup`.
pub fn own_groups(text: &str) -> OwnGroups {
    let mut groups = OwnGroups::default();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        // A path outside of the tree that this process sees begins with "/..".
        if !path.starts_with('/') || path.split('/').any(|p| p == "..") {
            continue;
        }
        if number == "0" && controllers.is_empty() {
            groups.v2 = Some(path.to_string());
        } else if controllers.split(',').any(|c| c == "memory") {
            groups.memory_v1 = Some(path.to_string());
        }
    }
    groups
}

/// Where a tree of control groups is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The directory.
    pub at: PathBuf,
    /// Which group of the tree the directory is: `/` but in containers.
    pub root: String,
}

/// Trees of control groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mounts {
    /// Version 2.
    pub v2: Option<Mount>,
    /// Version 1, with the memory controller.
    pub memory_v1: Option<Mount>,
}

/// `/proc/self/mountinfo`.
pub fn mounts(text: &str) -> Mounts {
    let mut mounts = Mounts::default();
    for line in text.lines() {
        let Some((head, tail)) = line.split_once(" - ") else { continue };
        let mut head = head.split(' ').skip(3);
        let (Some(root), Some(at)) = (head.next(), head.next()) else { continue };
        let mut tail = tail.split(' ');
        let (kind, options) = (tail.next().unwrap_or(""), tail.nth(1).unwrap_or(""));
        // The kernel writes a blank within a path as \040.
        let at = PathBuf::from(at.replace("\\040", " "));
        if !at.is_absolute() {
            continue;
        }
        let mount = Mount { at, root: root.to_string() };
        if kind == "cgroup2" {
            mounts.v2.get_or_insert(mount);
        } else if kind == "cgroup" && options.split(',').any(|o| o == "memory") {
            mounts.memory_v1.get_or_insert(mount);
        }
    }
    mounts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_memory_is_read() {
        let text =
            "MemTotal:       24681472 kB\nMemFree:         3505000 kB\nMemAvailable:   23441000 kB\nBuffers: 1 kB\n";
        let m = meminfo(text).unwrap();
        assert_eq!((m.total_bytes >> 10, m.free_bytes >> 10, m.available_bytes >> 10), (24681472, 3505000, 23441000));
        assert_eq!(meminfo("MemTotal: 1 kB\nMemFree: 1 kB\n"), None, "kernels before 3.14 have no MemAvailable");
        assert!(meminfo(&std::fs::read_to_string("/proc/meminfo").unwrap()).is_some());
    }

    #[test]
    fn stalls_are_read() {
        let text = "some avg10=0.00 avg60=0.12 avg300=0.00 total=3259233\nfull avg10=0.00 avg60=0.00 avg300=0.00 \
            total=1550226\n";
        assert_eq!((stalled_us(text), stalled_us("full total=3"), stalled_us("")), (Some(3259233), None, None));
    }

    #[test]
    fn files_of_groups_are_read() {
        let events = "low 0\nhigh 12\nmax 3\noom 0\n";
        assert_eq!((field(events, "high"), field(events, "max"), field(events, "hig")), (Some(12), Some(3), None));
        assert_eq!(
            (limit("max\n"), limit("1073741824\n"), limit("9223372036854771712\n")),
            (None, Some(1 << 30), None)
        );
        let hybrid = own_groups("9:name=systemd:/\n4:memory:/vm/a\n1:cpu,cpuacct:/x\n0::/init.scope\n");
        assert_eq!((hybrid.v2.as_deref(), hybrid.memory_v1.as_deref()), (Some("/init.scope"), Some("/vm/a")));
        assert_eq!(own_groups("0::/../../other\n"), OwnGroups::default());
    }

    #[test]
    fn trees_are_found() {
        let text = "\
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
42 31 0:39 /docker/1 /sys/fs/cgroup/uni\\040fied rw,relatime shared:5 - cgroup2 cgroup2 rw
22 1 0:5 / /proc rw - proc proc rw
";
        let m = mounts(text);
        assert_eq!(m.memory_v1.unwrap().at, PathBuf::from("/sys/fs/cgroup/memory"));
        let v2 = m.v2.unwrap();
        assert_eq!((v2.at, v2.root.as_str()), (PathBuf::from("/sys/fs/cgroup/uni fied"), "/docker/1"));
    }
}
