//! The control groups whose memory limits hold for this process: its own, and all above it.
//!
//! Owns the search for them and their numbers, in both versions of control groups, and the notation of the kernel's
//! files about them. Never changes a group. Invariants: a group that cannot be read is as good as none; any bytes in
//! those files give a value or nothing, never a panic.

use std::fs;
use std::path::{Path, PathBuf};

/// A file is not read beyond this, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 16;

/// Which interface a group has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A tree for each controller.
    V1,
    /// One tree.
    V2,
}

/// A control group that this process is in, directly or through groups below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlGroup {
    /// Its directory.
    pub dir: PathBuf,
    /// Its interface.
    pub version: Version,
}

/// What a group has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMemory {
    /// The limit in bytes.
    pub limit_bytes: u64,
    /// What could still be had below it, in bytes, page cache that can go included: not what is mapped, programs that
    /// run above all.
    pub available_bytes: u64,
    /// Shared memory charged to it, in bytes.
    pub shared_bytes: u64,
}

impl ControlGroup {
    /// The groups of this process that can have a memory limit, its own first and then those above it, as the files
    /// below `proc` tell. Whether one has a limit can change at any time.
    pub fn of_this_process(proc: &Path) -> Vec<ControlGroup> {
        let text = |name: &str| small(&proc.join("self").join(name)).unwrap_or_default();
        let (own, mounts) = (own_groups(&text("cgroup")), mounts(&text("mountinfo")));
        let mut groups = Vec::new();
        for (path, mount, version) in [(own.v2, mounts.v2, Version::V2), (own.memory_v1, mounts.memory_v1, Version::V1)]
        {
            let (Some(path), Some(mount)) = (path, mount) else { continue };
            // In a container the mount shows a part of the tree only.
            let below = Path::new(&path).strip_prefix(&mount.root).unwrap_or(Path::new(""));
            let dirs =
                below.ancestors().map(|b| if b.as_os_str().is_empty() { mount.at.clone() } else { mount.at.join(b) });
            groups.extend(dirs.map(|dir| ControlGroup { dir, version }));
        }
        groups
    }

    fn read(&self, file: &str) -> Option<String> {
        small(&self.dir.join(file))
    }

    /// Its memory limit in bytes. Of version 2 the smaller one of `memory.max` and `memory.high`.
    pub fn limit_bytes(&self) -> Option<u64> {
        let limit = |file| limit(&self.read(file)?);
        match self.version {
            Version::V1 => limit("memory.limit_in_bytes"),
            Version::V2 => limit("memory.max").into_iter().chain(limit("memory.high")).min(),
        }
    }

    /// What it has left, if it has a limit.
    pub fn memory(&self) -> Option<GroupMemory> {
        let limit_bytes = self.limit_bytes()?;
        let (used, cache, mapped, shared) = match self.version {
            Version::V1 => ("memory.usage_in_bytes", "total_inactive_file", "total_mapped_file", "total_shmem"),
            Version::V2 => ("memory.current", "inactive_file", "file_mapped", "shmem"),
        };
        let used: u64 = self.read(used)?.trim().parse().ok()?;
        let stat = self.read("memory.stat").unwrap_or_default();
        let shared_bytes = field(&stat, shared).unwrap_or(0);
        // What is mapped counts shared memory too.
        let mapped = field(&stat, mapped).unwrap_or(0).saturating_sub(shared_bytes);
        let cache = field(&stat, cache).unwrap_or(0).saturating_sub(mapped);
        let available_bytes = limit_bytes.saturating_sub(used.saturating_sub(cache));
        Some(GroupMemory { limit_bytes, available_bytes, shared_bytes })
    }

    /// How often it ran into its limit (version 2).
    pub fn hits(&self) -> Option<u64> {
        let events = self.read("memory.events")?;
        Some(field(&events, "high")?.saturating_add(field(&events, "max")?))
    }
}

fn small(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut text = String::new();
    fs::File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The value of a name in a file of `name value` lines: `memory.stat`, `memory.events`.
pub fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '))?.trim().parse().ok()
}

/// Reads a limit: a number of bytes, or `max`. Version 1 writes a number no machine has instead.
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

/// Reads `/proc/self/cgroup`. No path leads out of its tree.
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

/// Reads `/proc/self/mountinfo`. Every directory is absolute.
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

    /// A machine with files of both versions below `dir`.
    fn machine(dir: &Path, cgroup: &str) -> PathBuf {
        let (proc, v2, v1) = (dir.join("proc"), dir.join("v2"), dir.join("v1"));
        fs::create_dir_all(proc.join("self")).unwrap();
        fs::create_dir_all(v2.join("system.slice/undercroft.service")).unwrap();
        fs::create_dir_all(v1.join("vm")).unwrap();
        fs::write(proc.join("self/cgroup"), cgroup).unwrap();
        let mounts = format!(
            "30 1 0:1 / {} rw - cgroup2 cgroup2 rw\n31 1 0:2 / {} rw - cgroup cgroup rw,memory\n",
            v2.display(),
            v1.display()
        );
        fs::write(proc.join("self/mountinfo"), mounts).unwrap();
        proc
    }

    fn limits(proc: &Path) -> Vec<Option<u64>> {
        ControlGroup::of_this_process(proc).iter().map(ControlGroup::limit_bytes).collect()
    }

    #[test]
    fn every_limit_on_the_way_up_is_found_and_page_cache_can_go() {
        let dir = tempfile::tempdir().unwrap();
        let proc = machine(dir.path(), "0::/system.slice/undercroft.service\n");
        let slice = dir.path().join("v2/system.slice");
        fs::write(slice.join("undercroft.service/memory.max"), "max\n").unwrap();
        let groups = ControlGroup::of_this_process(&proc);
        assert_eq!(groups[1], ControlGroup { dir: slice.clone(), version: Version::V2 });
        assert_eq!((groups.len(), &groups[2].dir), (3, &dir.path().join("v2")), "the root of the tree too");
        assert_eq!(limits(&proc), [None; 3]);
        fs::write(slice.join("memory.max"), "1000000\n").unwrap();
        fs::write(slice.join("memory.high"), "800000\n").unwrap();
        fs::write(slice.join("memory.current"), "700000\n").unwrap();
        fs::write(slice.join("memory.stat"), "anon 1\nfile_mapped 18192\ninactive_file 60000\nshmem 8192\n").unwrap();
        fs::write(slice.join("memory.events"), "low 0\nhigh 3\nmax 1\noom 0\n").unwrap();
        fs::write(slice.join("undercroft.service/memory.max"), "2000000\n").unwrap();
        assert_eq!(limits(&proc), [Some(2_000_000), Some(800_000), None]);
        assert_eq!(
            groups[1].memory(),
            Some(GroupMemory { limit_bytes: 800_000, available_bytes: 150_000, shared_bytes: 8192 })
        );
        assert_eq!((groups[1].hits(), groups[0].hits()), (Some(4), None));
    }

    #[test]
    fn version_1_counts_where_version_2_has_no_memory_controller() {
        let dir = tempfile::tempdir().unwrap();
        let proc = machine(dir.path(), "4:memory:/vm\n0::/system.slice\n");
        let vm = dir.path().join("v1/vm");
        fs::write(vm.join("memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        assert_eq!(limits(&proc), [None; 4], "two groups of each version");
        fs::write(vm.join("memory.limit_in_bytes"), "1000000\n").unwrap();
        fs::write(vm.join("memory.usage_in_bytes"), "900000\n").unwrap();
        fs::write(vm.join("memory.stat"), "inactive_file 7\ntotal_mapped_file 500\ntotal_inactive_file 100500\n")
            .unwrap();
        let groups = ControlGroup::of_this_process(&proc);
        assert_eq!(limits(&proc), [None, None, Some(1_000_000), None]);
        assert_eq!((groups[2].version, groups[2].memory().unwrap().available_bytes), (Version::V1, 200_000));
    }

    #[test]
    fn in_a_container_only_a_part_of_the_tree_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let proc = machine(dir.path(), "0::/docker/1/own\n");
        let at = dir.path().join("v2");
        fs::write(proc.join("self/mountinfo"), format!("30 1 0:1 /docker/1 {} rw - cgroup2 c rw\n", at.display()))
            .unwrap();
        let dirs = || ControlGroup::of_this_process(&proc).into_iter().map(|g| g.dir).collect::<Vec<_>>();
        assert_eq!(dirs(), [at.join("own"), at.clone()]);
        fs::write(proc.join("self/cgroup"), "0::/docker/1\n").unwrap();
        assert_eq!(dirs(), std::slice::from_ref(&at));
        fs::write(proc.join("self/cgroup"), "0::/docker/12/own\n").unwrap();
        assert_eq!(dirs(), [at], "another container's, seen from outside");
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
