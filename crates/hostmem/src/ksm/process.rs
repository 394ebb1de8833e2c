//! QEMU processes of this machine and what of their guests' RAM can be merged, and is.
//!
//! Owns the walk over /proc. Never stops or changes a process. Invariant: a process that ends while it is looked at, or
//! may not be looked at, leaves the list whole.

use super::parse::{self, Ram};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, BufReader, Read};
use std::path::Path;

/// Longest small file of a process that is read, in bytes.
const TEXT_BYTES_MAX: u64 = 64 * 1024;
/// Bytes of a page, where the kernel counts pages: this program runs on machines with pages of this size only.
const PAGE_BYTES: i64 = undercroft_host::FRAME_BYTES as i64;

/// The RAM of one guest, as its QEMU process has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KsmGuest {
    /// Process id of QEMU.
    pub pid: u32,
    /// Name of the guest (`-name`), else the program's.
    pub name: String,
    /// Private RAM that is marked for merging: what the kernel may merge.
    pub mergeable_bytes: u64,
    /// Of that, present in memory now.
    pub mergeable_present_bytes: u64,
    /// Private RAM without that mark (`mem-merge=off`).
    pub unmarked_bytes: u64,
    /// Private RAM of huge pages, which are never merged.
    pub huge_bytes: u64,
    /// RAM shared with other processes, which is never merged.
    pub shared_bytes: u64,
    /// What shared RAM is: `/memfd:memory-backend-memfd`.
    pub shared_with: Vec<String>,
    /// Pages of it that are merged, in bytes (Linux 5.19).
    pub merged_bytes: Option<u64>,
    /// Pages of it that are the kernel's zero page by merging, in bytes (Linux 6.6).
    pub zero_bytes: Option<u64>,
    /// Bytes saved less bytes of bookkeeping (Linux 6.1).
    pub profit_bytes: Option<i64>,
    /// Why some of this is missing, if it is.
    pub unknown: Option<String>,
}

/// All QEMU system emulators below `proc` (`/proc`, or a directory that stands for it), by process id. `progress` is
/// called with each before it is looked at: reading the mappings of a large guest can take seconds.
///
/// # Errors
/// If there is no such directory.
pub fn guests(proc: &Path, mut progress: impl FnMut(u32)) -> io::Result<Vec<KsmGuest>> {
    let mut list = Vec::new();
    let entries = fs::read_dir(proc)?;
    let mut pids: Vec<u32> =
        entries.flatten().filter_map(|e| e.file_name().to_str().and_then(|n| n.parse().ok())).collect();
    pids.sort_unstable();
    for pid in pids {
        let dir = proc.join(pid.to_string());
        if is_emulator(&dir) {
            progress(pid);
            list.extend(look_at(&dir, pid));
        }
    }
    Ok(list)
}

/// A small file of a process; empty if it is gone or may not be read.
fn text(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(TEXT_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn is_emulator(dir: &Path) -> bool {
    // The link says more, but only its owner may read it; the kernel cuts `comm` at 15 bytes.
    let exe = fs::read_link(dir.join("exe")).ok();
    let exe = exe.as_deref().and_then(Path::file_name).map(|n| n.to_string_lossy().into_owned());
    let name =
        exe.unwrap_or_else(|| String::from_utf8_lossy(&text(&dir.join("comm")).unwrap_or_default()).into_owned());
    let name = name.trim().trim_end_matches(" (deleted)");
    name.starts_with("qemu-system-") || name == "qemu-kvm" || name == "kvm"
}

fn look_at(dir: &Path, pid: u32) -> Option<KsmGuest> {
    let command = text(&dir.join("cmdline")).unwrap_or_default();
    let mut guest = KsmGuest { pid, name: name_of(&command), ..KsmGuest::default() };
    match fs::File::open(dir.join("smaps")).and_then(|f| parse::smaps(BufReader::with_capacity(1 << 16, f))) {
        Ok(ram) => fill(&mut guest, ram),
        // Ended meanwhile: nothing to list.
        Err(e)
            if e.kind() == io::ErrorKind::NotFound
                || e.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) =>
        {
            return None;
        }
        Err(e) => {
            guest.unknown = Some(format!("its memory map cannot be read ({e}): this needs root, or CAP_SYS_PTRACE"))
        }
    }
    let pages = |n: Option<i64>| n.and_then(|n| u64::try_from(n.checked_mul(PAGE_BYTES)?).ok());
    if let Ok(stat) = text(&dir.join("ksm_stat")) {
        let stat = parse::ksm_stat(&String::from_utf8_lossy(&stat));
        let get = |name: &str| stat.get(name).and_then(|v| parse::number(v));
        guest.merged_bytes = pages(get("ksm_merging_pages"));
        guest.zero_bytes = pages(get("ksm_zero_pages"));
        guest.profit_bytes = get("ksm_process_profit");
    }
    if guest.merged_bytes.is_none() {
        let own = text(&dir.join("ksm_merging_pages")).ok();
        guest.merged_bytes = pages(own.and_then(|t| parse::number(&String::from_utf8_lossy(&t))));
    }
    Some(guest)
}

fn fill(guest: &mut KsmGuest, ram: Ram) {
    guest.mergeable_bytes = ram.mergeable_bytes;
    guest.mergeable_present_bytes = ram.mergeable_present_bytes;
    guest.unmarked_bytes = ram.unmarked_bytes;
    guest.huge_bytes = ram.huge_bytes;
    guest.shared_bytes = ram.shared_bytes;
    guest.shared_with = ram.backing;
}

/// What follows `-name`, up to a comma and without `guest=`; else the last part of the program's path.
fn name_of(command: &[u8]) -> String {
    let words: Vec<_> = command.split(|b| *b == 0).map(String::from_utf8_lossy).collect();
    let given = words.iter().position(|w| w == "-name" || w == "--name").and_then(|at| words.get(at + 1));
    let name = match given {
        Some(given) => {
            let first = given.split(',').next().unwrap_or("");
            first.strip_prefix("guest=").unwrap_or(first).to_string()
        }
        None => words.first().and_then(|w| w.rsplit('/').next()).unwrap_or("").to_string(),
    };
    // It goes to a terminal.
    name.chars().filter(|c| !c.is_control()).take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Processes as their files look, taken from QEMU 7.2 on Linux 6.18.
    fn processes() -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        let smaps = [
            include_bytes!("../../tests/ksm/smaps-private").as_slice(),
            include_bytes!("../../tests/ksm/smaps-shared"),
        ];
        for (pid, smaps) in [(101, smaps[0]), (102, smaps[1])] {
            let dir = proc.path().join(pid.to_string());
            fs::create_dir(&dir).unwrap();
            symlink("/usr/bin/qemu-system-x86_64", dir.join("exe")).unwrap();
            fs::write(dir.join("cmdline"), "/usr/bin/qemu-system-x86_64\0-name\0guest=web,debug-threads=on\0").unwrap();
            fs::write(dir.join("smaps"), smaps).unwrap();
            fs::write(
                dir.join("ksm_stat"),
                "ksm_rmap_items 30\nksm_zero_pages 2\nksm_merging_pages 7\nksm_process_profit -96\n",
            )
            .unwrap();
        }
        for (pid, comm) in [(103, "qemu-nbd\n"), (104, "bash\n"), (105, "qemu-system-aar\n")] {
            let dir = proc.path().join(pid.to_string());
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("comm"), comm).unwrap();
        }
        fs::create_dir(proc.path().join("105/smaps")).unwrap();
        fs::write(proc.path().join("version"), "Linux").unwrap();
        proc
    }

    #[test]
    fn emulators_are_listed_with_what_can_be_merged() {
        let proc = processes();
        let mut seen = vec![];
        let list = guests(proc.path(), |pid| seen.push(pid)).unwrap();
        assert_eq!(seen, [101, 102, 105]);
        let [private, shared, closed] = list.as_slice() else { panic!("{list:?}") };
        assert_eq!(
            (private.name.as_str(), private.merged_bytes, private.zero_bytes),
            ("web", Some(7 * 4096), Some(2 * 4096))
        );
        assert_eq!((private.profit_bytes, private.shared_bytes), (Some(-96), 0));
        assert!(private.mergeable_bytes >= 64 << 20 && shared.shared_bytes == 64 << 20);
        assert_eq!(shared.shared_with, ["/memfd:memory-backend-memfd"]);
        assert!(closed.unknown.as_deref().unwrap().contains("CAP_SYS_PTRACE"), "{closed:?}");
    }

    #[test]
    fn names_come_from_the_command_line_and_carry_no_control_characters() {
        for (command, name) in [
            ("qemu\0-name\0web", "web"),
            ("qemu\0-name\0guest=a b,process=x", "a b"),
            ("/usr/bin/qemu-kvm\0-m\x0064", "qemu-kvm"),
            ("qemu\0-name\0\u{1b}[2Jx", "[2Jx"),
            ("qemu\0-name", "qemu"),
            ("", ""),
        ] {
            assert_eq!(name_of(command.as_bytes()), name, "{command:?}");
        }
    }
}
