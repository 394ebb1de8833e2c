//! The control group whose memory limit holds for this process, if there is one.
//!
//! Owns the search for it and its numbers, of both versions of control groups. Never changes a group. Invariant: a
//! group that cannot be read is as good as none.

use super::parse;
use std::fs;
use std::path::{Path, PathBuf};

/// Which interface it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A tree for each controller.
    V1,
    /// One tree.
    V2,
}

/// A group with a limit: this process's own, or the nearest one above it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
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
    /// What could still be had below it, in bytes, page cache that can go included.
    pub available_bytes: u64,
    /// Shared memory charged to it, in bytes.
    pub shared_bytes: u64,
}

impl Group {
    /// The group that limits this process to less than `machine_bytes`, as the files below `proc` tell.
    pub fn find(proc: &Path, machine_bytes: u64) -> Option<Group> {
        let own = parse::own_groups(&fs::read_to_string(proc.join("self/cgroup")).ok()?);
        let mounts = parse::mounts(&fs::read_to_string(proc.join("self/mountinfo")).ok()?);
        let pairs = [(own.v2, mounts.v2, Version::V2), (own.memory_v1, mounts.memory_v1, Version::V1)];
        pairs.into_iter().find_map(|(path, mount, version)| {
            let (path, mount) = (path?, mount?);
            // In a container the mount shows a part of the tree only.
            let below = path.strip_prefix(mount.root.trim_end_matches('/')).unwrap_or("");
            let mut dir = mount.at.join(below.trim_start_matches('/'));
            while dir.starts_with(&mount.at) {
                let group = Group { dir: dir.clone(), version };
                if group.limit().is_some_and(|l| l < machine_bytes) {
                    return Some(group);
                }
                dir.pop();
            }
            None
        })
    }

    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.dir.join(file)).ok()
    }

    fn limit(&self) -> Option<u64> {
        let limit = |file| parse::limit(&self.read(file)?);
        match self.version {
            Version::V1 => limit("memory.limit_in_bytes"),
            Version::V2 => limit("memory.max").into_iter().chain(limit("memory.high")).min(),
        }
    }

    /// What it has left.
    pub fn memory(&self) -> Option<GroupMemory> {
        let limit_bytes = self.limit()?;
        let (used, cache, shared) = match self.version {
            Version::V1 => ("memory.usage_in_bytes", "total_inactive_file", "total_shmem"),
            Version::V2 => ("memory.current", "inactive_file", "shmem"),
        };
        let used: u64 = self.read(used)?.trim().parse().ok()?;
        let stat = self.read("memory.stat").unwrap_or_default();
        let cache = parse::field(&stat, cache).unwrap_or(0);
        let shared_bytes = parse::field(&stat, shared).unwrap_or(0);
        let available_bytes = limit_bytes.saturating_sub(used.saturating_sub(cache));
        Some(GroupMemory { limit_bytes, available_bytes, shared_bytes })
    }

    /// How often it ran into its limit (version 2).
    pub fn hits(&self) -> Option<u64> {
        let events = self.read("memory.events")?;
        Some(parse::field(&events, "high")?.saturating_add(parse::field(&events, "max")?))
    }
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

    #[test]
    fn the_nearest_limit_counts_and_page_cache_can_go() {
        let dir = tempfile::tempdir().unwrap();
        let proc = machine(dir.path(), "0::/system.slice/undercroft.service\n");
        let slice = dir.path().join("v2/system.slice");
        fs::write(slice.join("undercroft.service/memory.max"), "max\n").unwrap();
        assert_eq!(Group::find(&proc, 1 << 40), None);
        fs::write(slice.join("memory.max"), "1000000\n").unwrap();
        fs::write(slice.join("memory.high"), "800000\n").unwrap();
        fs::write(slice.join("memory.current"), "700000\n").unwrap();
        fs::write(slice.join("memory.stat"), "anon 1\ninactive_file 50000\nshmem 8192\n").unwrap();
        fs::write(slice.join("memory.events"), "low 0\nhigh 3\nmax 1\noom 0\n").unwrap();
        let group = Group::find(&proc, 1 << 40).unwrap();
        assert_eq!((&group.dir, group.version), (&slice, Version::V2));
        assert_eq!(
            group.memory(),
            Some(GroupMemory { limit_bytes: 800_000, available_bytes: 150_000, shared_bytes: 8192 })
        );
        assert_eq!(group.hits(), Some(4));
        assert_eq!(Group::find(&proc, 500_000), None, "a limit above what the machine has limits nothing");
    }

    #[test]
    fn version_1_counts_where_version_2_has_no_memory_controller() {
        let dir = tempfile::tempdir().unwrap();
        let proc = machine(dir.path(), "4:memory:/vm\n0::/system.slice\n");
        let vm = dir.path().join("v1/vm");
        fs::write(vm.join("memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        assert_eq!(Group::find(&proc, 1 << 40), None);
        fs::write(vm.join("memory.limit_in_bytes"), "1000000\n").unwrap();
        fs::write(vm.join("memory.usage_in_bytes"), "900000\n").unwrap();
        fs::write(vm.join("memory.stat"), "inactive_file 7\ntotal_inactive_file 100000\n").unwrap();
        let group = Group::find(&proc, 1 << 40).unwrap();
        assert_eq!((group.version, group.memory().unwrap().available_bytes), (Version::V1, 200_000));
    }
}
