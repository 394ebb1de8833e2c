//! What a loop device is of: one of our disks, a disk whose daemon is gone, or something of somebody else.
//!
//! Owns the names by which our loop devices are known again. Never makes or ends one. Invariant: a device whose file
//! answers no more is told as dead, whatever else the kernel says of it then: nothing.

use crate::mounts::{self, MountEntry};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::path::Path;
use undercroft_host::loop_device::{LOOP_NAME_BYTES_MAX, look_at, loop_info};

/// Before the disk's name in what a loop device says its file is called, and in the source of a disk's own mount.
pub(super) const MARK: &str = "undercroft:";

/// What a loop device is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LoopOf {
    /// Nothing: it is free.
    Nothing,
    /// One of our disks, by the name of the loop device's file.
    Ours(String),
    /// A disk whose daemon is gone; its name, if the mount of its file is there still.
    Dead(Option<String>),
    /// Something else.
    Other,
}

/// What the loop device `device` is of.
pub(super) fn of(device: &str) -> io::Result<LoopOf> {
    if !device.starts_with("/dev/loop") {
        return Ok(LoopOf::Other);
    }
    match loop_info(device) {
        Ok(None) => Ok(LoopOf::Nothing),
        Ok(Some(info)) if info.name.starts_with(MARK) => Ok(LoopOf::Ours(info.name)),
        Ok(Some(_)) => Ok(LoopOf::Other),
        // The driver asks the file for its number, and FUSE has nobody to ask.
        Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::NOTCONN | Errno::CONNABORTED)) => {
            Ok(dead(&backing_file(device), &mounts::all().unwrap_or_default()))
        }
        Err(e) => Err(e),
    }
}

/// Whether a device answers no more: it reads past its cache what nobody serves. What else may go wrong says nothing.
pub(crate) fn is_dead(device: &str) -> bool {
    let errors = [Errno::IO, Errno::NOTCONN, Errno::NXIO, Errno::NODEV];
    look_at(device).is_err_and(|e| Errno::from_io_error(&e).is_some_and(|e| errors.contains(&e)))
}

/// The file of a loop device, as the kernel shows it: `/` for one of a mount that was let go.
fn backing_file(device: &str) -> String {
    let name = device.trim_start_matches("/dev/");
    fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).unwrap_or_default().trim_end().to_owned()
}

/// What a loop device is of whose file, `file`, has nobody who serves it.
fn dead(file: &str, all: &[MountEntry]) -> LoopOf {
    let mount = all.iter().rfind(|m| m.at == Path::new(file));
    match mount {
        Some(m) if m.source.starts_with(MARK) => LoopOf::Dead(m.source.strip_prefix(MARK).map(str::to_owned)),
        Some(_) if file != "/" => LoopOf::Other,
        // Whose it was nobody knows any more.
        _ => LoopOf::Dead(None),
    }
}

/// What a loop device of a disk says its file is called; the kernel cuts it.
pub(super) fn loop_name(disk: &str) -> String {
    let mut name = format!("{MARK}{disk}");
    name.truncate(LOOP_NAME_BYTES_MAX);
    name
}

/// The disk of a loop device that says this of its file. Of a long name, one of those that are files has the rest.
pub(super) fn disk_of(name: &str) -> String {
    let disk = name.strip_prefix(MARK).unwrap_or(name);
    if name.len() < LOOP_NAME_BYTES_MAX {
        return disk.to_owned();
    }
    let all = mounts::all().unwrap_or_default();
    let whole = all.iter().filter_map(|m| m.source.strip_prefix(MARK)).find(|disk| loop_name(disk) == name);
    whole.unwrap_or(disk).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_device_is_known_by_the_mount_of_its_file() {
        let entry =
            |at: &str, kind: &str, source: &str| MountEntry { at: at.into(), kind: kind.into(), source: source.into() };
        let all = [
            entry("/", "ext4", "/dev/vda"),
            entry("/run/u/mounted/web:a", "fuse.undercroft", "undercroft:web:a"),
            entry("/srv/theirs", "fuse", "/dev/fuse"),
        ];
        assert_eq!(dead("/run/u/mounted/web:a", &all), LoopOf::Dead(Some("web:a".into())));
        assert_eq!(dead("/", &all), LoopOf::Dead(None));
        assert_eq!(dead("", &all), LoopOf::Dead(None));
        assert_eq!(dead("/srv/theirs", &all), LoopOf::Other);
        assert_eq!(of("/dev/vda").unwrap(), LoopOf::Other);
    }

    #[test]
    fn a_name_is_cut_where_the_kernel_cuts_it() {
        let long = format!("{}:{}", "v".repeat(64), "d".repeat(64));
        assert_eq!(loop_name(&long).len(), LOOP_NAME_BYTES_MAX);
        assert_eq!(disk_of(&loop_name("web:a")), "web:a");
        assert!(long.starts_with(&disk_of(&loop_name(&long))));
    }
}
