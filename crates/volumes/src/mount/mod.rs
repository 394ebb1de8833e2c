//! A disk mounted at a directory: file, loop device, file system and mount in one step, and all of it undone.
//!
//! Owns the order of these. Never mounts a disk twice, nor one that a guest uses. Invariants: what a step has made is
//! undone when a later one fails, by destructors where it can be; the loop device goes by itself with its last user;
//! the lock of the file is the loop device's as long as that lives, so that nobody makes a second one of it.

mod loops;
mod undo;

pub(crate) use loops::is_dead;
pub use undo::{Unmounted, unmount};

use crate::VolumeError;
use crate::daemon::{DaemonLink, file_for};
use crate::filesystem::{self, FsKind, Holds};
use crate::mounts::{self, MountEntry, Mounting};
use loops::{LoopOf, loop_name};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstatfs};
use rustix::io::Errno;
use serde::Serialize;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use undercroft_api::client::ClientError;
use undercroft_api::{DiskState, DiskStatus, FrontendKind};
use undercroft_host::loop_device::{LOOP_CONTROL, LoopDevice, LoopError};

/// What the kernel calls FUSE (`FUSE_SUPER_MAGIC`).
const FUSE: i64 = 0x6573_5546;

/// What is to be mounted.
#[derive(Clone, Copy, Debug)]
pub struct MountRequest<'a> {
    /// Full name of the disk.
    pub disk: &'a str,
    /// The directory: empty, and no mount.
    pub dir: &'a Path,
    /// The file system to make, if the disk is empty.
    pub mkfs: Option<FsKind>,
    /// Whether nothing is to be written.
    pub read_only: bool,
    /// Options of the mount and the file system, each a word or several with commas between them.
    pub options: &'a [String],
}

/// What was mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mounted {
    /// Full name of the disk.
    pub disk: String,
    /// Where.
    pub dir: PathBuf,
    /// The loop device.
    pub device: String,
    /// The kind of file system.
    pub kind: String,
    /// The file that the disk is.
    pub file: PathBuf,
    /// Whether the file system was made.
    pub made: bool,
}

/// Mounts a disk.
///
/// # Errors
/// See [`VolumeError`]. Nothing is left behind; a file system that was made stays.
pub fn mount(daemon: &DaemonLink, want: &MountRequest<'_>, stop: &AtomicBool) -> Result<Mounted, VolumeError> {
    if !rustix::process::geteuid().is_root() {
        return Err(VolumeError::new("only root may mount", "run it as root, with `sudo`"));
    }
    let (dir, held) = free_directory(want.dir)?;
    let disk = daemon.disk(want.disk)?;
    is_free(&disk, want)?;
    let file = served_file(daemon, &disk)?;
    go_on(stop)?;
    let mounted = on_file(want, &disk, file.path(), (&dir, &held), stop)?;
    file.keep();
    Ok(mounted)
}

fn go_on(stop: &AtomicBool) -> Result<(), VolumeError> {
    if stop.load(Ordering::Relaxed) { Err(VolumeError::Interrupted) } else { Ok(()) }
}

/// The directory, held open, if a mount there hides nothing.
fn free_directory(dir: &Path) -> Result<(PathBuf, OwnedFd), VolumeError> {
    let shown = dir.display();
    let occupied = |m: &MountEntry, at: &Path| {
        let remedy = if matches!(loops::of(&m.source), Ok(LoopOf::Ours(_) | LoopOf::Dead(_))) {
            format!("`undercroft umount {}` undoes it", at.display())
        } else {
            "choose another directory, or unmount that".to_owned()
        };
        VolumeError::new(format!("{shown} is a mount point already: {} of {}", m.kind, m.source), remedy)
    };
    // Before anything asks the file system there, which may be dead.
    let at = mounts::place(dir)?;
    if let Some(m) = mounts::top(&at)? {
        return Err(occupied(&m, &at));
    }
    let whole = fs::canonicalize(dir).map_err(|e| {
        let remedy =
            if e.kind() == io::ErrorKind::NotFound { format!("`mkdir -p {shown}`") } else { "correct it".into() };
        VolumeError::new(format!("the directory {shown} cannot be reached: {e}"), remedy)
    })?;
    if let Some(m) = mounts::top(&whole)? {
        return Err(occupied(&m, &whole));
    }
    let held = mounts::hold(&whole).map_err(|e| match Errno::from_io_error(&e) {
        Some(Errno::NOTDIR) => VolumeError::new(format!("{shown} is no directory"), "give an empty directory"),
        _ => VolumeError::os(format!("open {shown}"))(e),
    })?;
    let mut entries = fs::read_dir(&whole).map_err(VolumeError::os(format!("read {shown}")))?;
    if entries.next().is_some() {
        return Err(VolumeError::new(
            format!("{shown} is not empty, and a mount there would hide what it holds"),
            "give an empty directory",
        ));
    }
    Ok((whole, held))
}

/// Whether nobody else writes the disk.
fn is_free(disk: &DiskStatus, want: &MountRequest<'_>) -> Result<(), VolumeError> {
    let name = &disk.name;
    if disk.state != DiskState::Serving {
        let why = disk.reason.as_deref().unwrap_or("it does not serve");
        return Err(VolumeError::new(format!("disk \"{name}\": {why}"), "`undercroft status` says how it is"));
    }
    let guest = disk.frontends.iter().find(|f| f.kind != FrontendKind::Fuse);
    if let Some(guest) = guest.filter(|_| !disk.read_only) {
        return Err(VolumeError::new(
            format!("disk \"{name}\" is in use ({}), and a file system that two write is destroyed", guest.peer),
            "stop that guest or client first, or mount the disk in the guest",
        ));
    }
    if disk.read_only && want.mkfs.is_some() {
        return Err(VolumeError::new(
            format!("disk \"{name}\" is read-only, so that no file system can be made on it"),
            "take --mkfs away, or attach the disk without --read-only",
        ));
    }
    Ok(())
}

/// The file that a disk is; what was made of it here is undone with it, unless it is kept.
struct ServedFile<'a> {
    daemon: &'a DaemonLink,
    disk: &'a str,
    path: PathBuf,
    made: bool,
}

impl ServedFile<'_> {
    fn path(&self) -> &Path {
        &self.path
    }

    fn keep(mut self) {
        self.made = false;
    }
}

impl Drop for ServedFile<'_> {
    fn drop(&mut self) {
        // The loop device may need a moment until it has closed the file.
        for _ in 0..undo::TRIES {
            if !self.made || !matches!(self.daemon.set_file(self.disk, None), Err(ClientError::Refused(_))) {
                return;
            }
            std::thread::sleep(undo::PAUSE);
        }
    }
}

fn served_file<'a>(daemon: &'a DaemonLink, disk: &'a DiskStatus) -> Result<ServedFile<'a>, VolumeError> {
    let name = &disk.name;
    if let Some(path) = &disk.file {
        return Ok(ServedFile { daemon, disk: name, path: path.into(), made: false });
    }
    let path = file_for(&daemon.status()?, name);
    daemon.set_file(name, Some(&path))?;
    Ok(ServedFile { daemon, disk: name, path, made: true })
}

/// Opens the file and locks it.
fn claimed(path: &Path, disk: &DiskStatus, read_only: bool) -> Result<File, VolumeError> {
    let shown = path.display();
    let elsewhere = || {
        VolumeError::new(
            format!("the file {shown} of disk \"{}\" is not there for this process", disk.name),
            "the daemon may have a mount namespace of its own (docs/attach/files.md), or the file was unmounted: \
             `undercroft set DISK --fuse PATH` makes it again",
        )
    };
    let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let file: File = match rustix::fs::open(path, access | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(fd) => fd.into(),
        Err(Errno::NOENT) => return Err(elsewhere()),
        Err(e) => return Err(VolumeError::os(format!("open the file {shown}"))(e.into())),
    };
    let kind = fstatfs(&file).map_err(|e| VolumeError::os(format!("look at {shown}"))(e.into()))?;
    let size = file.metadata().map_err(VolumeError::os(format!("look at {shown}")))?.len();
    #[allow(clippy::unnecessary_cast, reason = "its width is the machine's")]
    if kind.f_type as i64 != FUSE || size != disk.size_bytes {
        return Err(elsewhere());
    }
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(VolumeError::new(
            format!("disk \"{}\" is mounted already, or about to be{}", disk.name, where_mounted(&disk.name)),
            "use that, or `undercroft umount` it first",
        )),
        Err(e) => Err(VolumeError::os(format!("lock the file {shown}"))(e.into())),
    }
}

/// Where a disk is mounted, for people.
fn where_mounted(disk: &str) -> String {
    let ours = LoopOf::Ours(loop_name(disk));
    let all = mounts::all().unwrap_or_default();
    let at = all.iter().find(|m| loops::of(&m.source).is_ok_and(|of| of == ours));
    at.map_or(String::new(), |m| format!(", at {}", m.at.display()))
}

fn on_file(
    want: &MountRequest<'_>,
    disk: &DiskStatus,
    path: &Path,
    (dir, held): (&Path, &OwnedFd),
    stop: &AtomicBool,
) -> Result<Mounted, VolumeError> {
    let read_only = want.read_only || disk.read_only;
    // Making a file system takes writing, whatever is to be mounted then.
    let file = claimed(path, disk, read_only && want.mkfs.is_none())?;
    let device =
        LoopDevice::attach(&file, &loop_name(&disk.name), read_only && want.mkfs.is_none()).map_err(no_loop)?;
    go_on(stop)?;
    let (kind, made) = file_system(want, disk, &file, &device, stop)?;
    go_on(stop)?;
    Mounting { device: device.path(), kind: &kind, read_only, options: want.options }.at(held.as_fd())?;
    let (device, dir) = (device.path().to_owned(), dir.to_owned());
    Ok(Mounted { disk: disk.name.clone(), dir, device, kind, file: path.to_owned(), made })
}

/// The kind of file system that is there, or has been made.
fn file_system(
    want: &MountRequest<'_>,
    disk: &DiskStatus,
    file: &File,
    device: &LoopDevice,
    stop: &AtomicBool,
) -> Result<(String, bool), VolumeError> {
    let name = &disk.name;
    match (filesystem::look(device.path().as_ref())?, want.mkfs) {
        (Holds::Filesystem(kind), None) => Ok((kind, false)),
        (Holds::Filesystem(kind), Some(wanted)) if kind == wanted.name() => Ok((kind, false)),
        (Holds::Filesystem(kind), Some(wanted)) => Err(VolumeError::new(
            format!("disk \"{name}\" holds {kind} already, and not {}", wanted.name()),
            "mount it without --mkfs; nothing was changed",
        )),
        (Holds::Other(what), _) => Err(VolumeError::new(
            format!("disk \"{name}\" holds {what}, and no file system by itself"),
            format!("make a loop device of it by hand (`losetup -P`); nothing was changed ({})", device.path()),
        )),
        (Holds::Nothing, None) => Err(VolumeError::new(
            format!("disk \"{name}\" holds no file system that is known"),
            "if it is empty, --mkfs ext4 makes one",
        )),
        (Holds::Nothing, Some(kind)) => {
            if let Some(at) = filesystem::first_byte(file, disk.size_bytes, stop)? {
                return Err(VolumeError::new(
                    format!("disk \"{name}\" holds no file system that is known, but it is not empty: byte {at}"),
                    "if nobody needs what it holds, empty it first: detach it, and make its image anew",
                ));
            }
            kind.make(device.path().as_ref())?;
            Ok((kind.name().to_owned(), true))
        }
    }
}

fn no_loop(e: LoopError) -> VolumeError {
    match e {
        LoopError::Control(e) if e.kind() == io::ErrorKind::NotFound => VolumeError::new(
            format!("there is no {LOOP_CONTROL}"),
            "load the module with `modprobe loop`; a container needs `--device /dev/loop-control` and loop devices",
        ),
        LoopError::Control(e) => VolumeError::os(format!("open {LOOP_CONTROL}"))(e),
        LoopError::Node { path, source } => VolumeError::new(
            format!("the loop device {path} cannot be opened: {source}"),
            "where no udev runs, in a container say, make its node: `mknod /dev/loopN b 7 N`",
        ),
        LoopError::Driver(e) => VolumeError::os("make a loop device".into())(e),
    }
}
