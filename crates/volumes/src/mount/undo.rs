//! What `mount` did, undone: also when the daemon is gone, and what is mounted answers with errors.
//!
//! Owns the order. Never takes away what somebody else has mounted, nor a file that was one before. Invariant: a file
//! system that works is unmounted as any other, so that all that was written is in the image; only one whose disk does
//! not answer any more is let go whether somebody uses it or not.

use super::loops::{self, LoopOf, MARK};
use crate::VolumeError;
use crate::daemon::{DaemonLink, file_for, is_made_for_mount};
use crate::mounts::{self, MountEntry, unmount_at};
use rustix::io::Errno;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use undercroft_host::fuse::{self, Unmount};

/// How often, and after what pause, it is looked whether a loop device has gone.
pub(super) const TRIES: u32 = 100;
pub(super) const PAUSE: Duration = Duration::from_millis(50);
/// Dead mounts at one place that are taken away at most.
const STALE_MAX: u32 = 64;

/// What was unmounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unmounted {
    /// Where it was.
    pub dir: PathBuf,
    /// Full name of the disk; of one whose daemon is gone it may not be known any more.
    pub disk: Option<String>,
    /// The loop device.
    pub device: String,
    /// Whether the disk answered no more: what had not been written is lost.
    pub was_dead: bool,
    /// Whether somebody has it open or mounted elsewhere still; the loop device goes with that.
    pub remains: bool,
}

/// Unmounts what [`super::mount`] has mounted at `dir`, with `lazy` also while somebody uses it.
///
/// # Errors
/// See [`VolumeError`]; then it is mounted still.
pub fn unmount(daemon: &DaemonLink, dir: &Path, lazy: bool) -> Result<Unmounted, VolumeError> {
    let (at, entry) = mounted_at(dir)?;
    let device = entry.source;
    let of = ours(&device, &at)?;
    let disk = match &of {
        LoopOf::Ours(name) => Some(loops::disk_of(name)),
        LoopOf::Dead(disk) => disk.clone(),
        LoopOf::Nothing | LoopOf::Other => None,
    };
    let was_dead = loops::is_dead(&device);
    let result = match unmount_at(&at, lazy) {
        // What answers no more is used by nobody to any good.
        Err(Errno::BUSY) if was_dead => unmount_at(&at, true),
        result => result,
    };
    result.map_err(|e| match e {
        Errno::BUSY => VolumeError::new(
            format!("{} is in use", at.display()),
            format!("`fuser -vm {0}` says by whom; `undercroft umount --lazy {0}` lets them keep it", at.display()),
        ),
        Errno::PERM => VolumeError::new("only root may unmount", "run it as root, with `sudo`"),
        e => VolumeError::os(format!("unmount {}", at.display()))(e.into()),
    })?;
    let remains = !has_gone(&device, &of, if lazy || was_dead { 1 } else { TRIES });
    if let Some(disk) = disk.as_ref().filter(|_| !remains || was_dead) {
        take_file_away(daemon, disk);
    }
    Ok(Unmounted { dir: at, disk, device, was_dead, remains })
}

/// What is mounted at a directory, which may be dead.
fn mounted_at(dir: &Path) -> Result<(PathBuf, MountEntry), VolumeError> {
    let at = mounts::place(dir)?;
    if let Some(entry) = mounts::top(&at)? {
        return Ok((at, entry));
    }
    let none =
        || VolumeError::new(format!("nothing is mounted at {}", dir.display()), "`findmnt` lists what is mounted");
    // Through a symbolic link, perhaps.
    let at = fs::canonicalize(dir).map_err(|_| none())?;
    let entry = mounts::top(&at)?.ok_or_else(none)?;
    Ok((at, entry))
}

/// What a loop device is of, if that is one of ours.
fn ours(device: &str, at: &Path) -> Result<LoopOf, VolumeError> {
    match loops::of(device).map_err(VolumeError::os(format!("look at {device}")))? {
        of @ (LoopOf::Ours(_) | LoopOf::Dead(_)) => Ok(of),
        LoopOf::Nothing | LoopOf::Other => Err(VolumeError::new(
            format!("what is mounted at {} ({device}) was not mounted by `undercroft mount`", at.display()),
            format!("`umount {}`", at.display()),
        )),
    }
}

/// Waits until a loop device is free, or another one's.
fn has_gone(device: &str, was: &LoopOf, tries: u32) -> bool {
    for n in 0..tries {
        match loops::of(device) {
            Ok(LoopOf::Dead(_)) => {}
            Ok(now) if now == *was => {}
            _ => return true,
        }
        if n + 1 < tries {
            std::thread::sleep(PAUSE);
        }
    }
    false
}

/// Makes a disk no file any more that was made one for a mount; where its daemon is gone, what that has left.
fn take_file_away(daemon: &DaemonLink, disk: &str) {
    if let Ok(status) = daemon.status() {
        let path = file_for(&status, disk);
        let has_it = |file: &Option<String>| file.as_deref().is_some_and(|f| Path::new(f) == path);
        if status.disks.iter().any(|d| d.name == disk && has_it(&d.file)) {
            if let Err(e) = daemon.set_file(disk, None) {
                tracing::warn!("disk \"{disk}\" stays the file {}: {e}", path.display());
            }
            return;
        }
    }
    let source = format!("{MARK}{disk}");
    let all = mounts::all().unwrap_or_default();
    for stale in all.iter().filter(|m| m.source == source && is_made_for_mount(&m.at)) {
        for _ in 0..STALE_MAX {
            // An error is what a mount says whose server is dead.
            if fuse::is_mounted(&stale.at).is_ok() || fuse::unmount_fuse(&stale.at, Unmount::Lazily).is_err() {
                break;
            }
        }
        // The empty file that was made to be mounted over.
        if fs::symlink_metadata(&stale.at).is_ok_and(|m| m.is_file() && m.len() == 0)
            && fuse::is_mounted(&stale.at).is_ok_and(|mounted| !mounted)
        {
            let _ = fs::remove_file(&stale.at);
        }
    }
}
