//! Disks become files, and cease to be files: mounts, and the ports behind them.
//!
//! Owns the mount of one disk and the file that it is mounted over. Never serves a request: the port does. Invariants:
//! nothing that holds data is hidden by a mount; a mount that a killed daemon left is taken away before another is
//! made; when a server is stopped or dropped, its file is no mount any more, unless it is another process's: one that
//! was left to the next (`passing`), or is not taken over yet.

use super::device::FuseDevice;
use super::hint::FileHint;
use super::passing::{FileKeeper, FileState, KeptFile};
use super::port::{FileLimits, FileTimes, FusePort, NewFile, Owner};
use super::rules::{FileRules, TRANSFER_BYTES_MAX};
use crate::budget::Budget;
use crate::reach::{Closed, detach_port};
use crate::socket::SocketPermissions;
use crate::{AnyPort, DiskInfo, MakePort, PortHost};
use rustix::io::Errno;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use undercroft_host::fuse::{self, FUSE_DEVICE, FuseMount, HelperError, Unmount};

/// Mounts of dead servers, one upon the other, that are taken away at most.
const STALE_MAX: usize = 64;

/// Why a disk did not become a file.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    /// The directory is missing.
    #[error("the directory of the file {path} does not exist: make it with `mkdir -p {}`", parent(path).display())]
    NoDirectory {
        /// The file.
        path: PathBuf,
    },
    /// Something else has that name.
    #[error("{0} exists and is not a file: move it away, or choose another path")]
    NotAFile(PathBuf),
    /// A mount would hide data.
    #[error(
        "the file {0} is not empty, and a disk there would hide what it holds: move it away, or choose another path"
    )]
    HasData(PathBuf),
    /// Something is mounted there.
    #[error(
        "something is mounted at {0} already: `findmnt {0}` says what; stop what serves it or `umount {0}`, or choose \
         another path"
    )]
    InUse(PathBuf),
    /// The kernel has no FUSE, or not here.
    #[error(
        "{FUSE_DEVICE} does not exist: load the module with `modprobe fuse`; a container needs `--device {FUSE_DEVICE}`"
    )]
    NoDevice,
    /// This process may not use the device.
    #[error(
        "{FUSE_DEVICE} may not be used by this process: its mode should be 0666; a container needs `--device \
         {FUSE_DEVICE}`, a systemd unit `DeviceAllow={FUSE_DEVICE} rw`"
    )]
    DeviceForbidden,
    /// This process may not mount, and there is no helper.
    #[error(
        "{0} cannot be mounted: only root (CAP_SYS_ADMIN) mounts, and there is no `fusermount3`; install it (Debian, \
         Fedora: the package fuse3), or run as root"
    )]
    NoHelper(PathBuf),
    /// The helper did not mount.
    #[error("{path} cannot be mounted: fusermount3 said: {words}")]
    Helper {
        /// The file.
        path: PathBuf,
        /// What it said.
        words: String,
    },
    /// The kernel refused.
    #[error("cannot {what} the file {path}: {source}")]
    Os {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// What another process has left is not what it was.
    #[error("the file {path}, which another process has served, cannot be gone on with: {why}")]
    NotTaken {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The kernel is too old.
    #[error(
        "the file {0} cannot be gone on with after a crash: the kernel does not ask again what was not answered, which \
         it does from Linux 6.9 on, and whoever waits for that would wait for ever"
    )]
    NotAskedAgain(PathBuf),
    /// The worker of the disk did not take the file.
    #[error("the file {0} is not served: the worker of its disk does not answer, or the disk is gone")]
    NoWorker(PathBuf),
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

/// What is said of a file besides its disk.
#[derive(Clone)]
pub struct FuseOptions {
    /// Its mode and group.
    pub access: SocketPermissions,
    /// The memory for data that all files and NBD connections share.
    pub budget: Arc<Budget>,
    /// Bounds.
    pub limits: FileLimits,
    /// Who keeps its descriptor for the next process, if somebody does.
    pub keeper: Option<Arc<dyn FileKeeper>>,
    /// The disk's hint, which the file has as an extended attribute.
    pub hint: Arc<FileHint>,
}

/// A mount, and the file below it.
#[derive(Debug)]
pub(super) struct Mounted {
    path: PathBuf,
    /// The file was made for it: device and inode.
    made: Option<(u64, u64)>,
    is_mounted: bool,
    /// The kernel's number of the mount.
    number: Option<u64>,
}

impl Mounted {
    /// What another process has mounted, as far as it is there still, from now on this one's.
    pub(super) fn found(state: &FileState) -> Self {
        let is_mounted = fuse::mounted_device(&state.path) == Some(state.device);
        Self { path: state.path.clone(), made: state.made, is_mounted, number: fuse::mount_number(&state.path) }
    }

    /// What another process has mounted, and unmounts.
    pub(super) fn of_another(state: &FileState) -> Self {
        Self { path: state.path.clone(), made: None, is_mounted: false, number: None }
    }

    /// From now on it is another process's.
    pub(super) fn leave(&mut self) {
        (self.made, self.is_mounted) = (None, false);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Somebody may have unmounted it, and mounted something else.
        let is_ours = self.is_mounted && fuse::mount_number(&self.path) == self.number;
        if is_ours && let Err(e) = fuse::unmount_fuse(&self.path, Unmount::Lazily) {
            let path = self.path.display();
            return tracing::error!("cannot unmount {path}: {e}; `umount -l {path}` does");
        }
        // A mount that is not ours may have nobody who answers.
        if let Some(made) = self.made
            && fuse::mounted_device(&self.path).is_none()
            && let Ok(there) = fs::symlink_metadata(&self.path)
            && there.is_file()
            && (there.dev(), there.ino(), there.len()) == (made.0, made.1, 0)
        {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// What a file is begun with that was taken over.
pub(super) struct Waiting {
    pub(super) device: OwnedFd,
    pub(super) info: DiskInfo,
    pub(super) options: FuseOptions,
}

/// A disk that is a file.
pub struct FuseServer {
    pub(super) host: Arc<dyn PortHost>,
    pub(super) port: u32,
    pub(super) closed: Closed,
    pub(super) mounted: Mounted,
    pub(super) state: FileState,
    /// Who keeps its descriptor for the next process.
    pub(super) kept: Option<Arc<dyn KeptFile>>,
    /// It was taken over, and this process has not begun.
    pub(super) waits: Option<Waiting>,
    /// What it says of the disk's hint.
    pub(super) hint: Arc<FileHint>,
}

impl FuseServer {
    /// Makes `info`'s disk the file at `path`, which must not exist or be empty.
    ///
    /// # Errors
    /// See [`FuseError`]. Nothing is left behind.
    pub fn start(
        path: &Path,
        info: &DiskInfo,
        host: Arc<dyn PortHost>,
        options: FuseOptions,
    ) -> Result<FuseServer, FuseError> {
        let mut mounted = prepare(path)?;
        let mount = FuseMount {
            source: &format!("undercroft:{}", info.name),
            read_only: info.geometry.read_only,
            others: others(&options),
            read_bytes_max: TRANSFER_BYTES_MAX,
        };
        let device = mount_at(path, &mount)?;
        (mounted.is_mounted, mounted.number) = (true, fuse::mount_number(path));
        let state = FileState {
            disk: info.name.clone(),
            path: path.to_owned(),
            made: mounted.made,
            device: fuse::mounted_device(path).unwrap_or(0),
            size_bytes: FileRules::new(&info.geometry, 1).size_bytes,
            read_only: mount.read_only,
            others: mount.others,
            transfer_bytes: TRANSFER_BYTES_MAX as u64,
            rest: None,
        };
        let kept = options.keeper.as_ref().and_then(|keeper| keeper.keep(device.as_fd(), &state));
        let hint = options.hint.clone();
        let made = port_of(path, info, options, device, kept.clone(), None);
        let port = made.map(|(make, closed)| (host.attach(make), closed)).and_then(|port| match port {
            (u32::MAX, _) => Err(FuseError::NoWorker(path.to_owned())),
            port => Ok(port),
        });
        let (port, closed) = port.inspect_err(|_| kept.iter().for_each(|kept| kept.forget()))?;
        tracing::info!(disk = info.name, "the disk is the file {}", path.display());
        Ok(FuseServer { host, port, closed, mounted, state, kept, waits: None, hint })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.mounted.path
    }

    /// The disk's hint, as its extended attribute.
    pub fn hint(&self) -> &FileHint {
        &self.hint
    }

    /// Whether the mount is there still: somebody may have unmounted it.
    pub fn is_mounted(&self) -> bool {
        self.mounted.is_mounted && fuse::mount_number(self.path()) == self.mounted.number
    }

    /// Somebody has unmounted it: from now on it is not looked for.
    pub fn forget_mount(&mut self) {
        self.mounted.is_mounted = false;
    }

    /// Unmounts the file, unless somebody has it open; the port stays.
    ///
    /// # Errors
    /// `ResourceBusy` if somebody has; else what the kernel says. It is mounted still.
    pub fn unmount_unused(&mut self) -> io::Result<()> {
        if self.is_mounted() {
            fuse::unmount_fuse(self.path(), Unmount::Unused)?;
        }
        self.forget_mount();
        Ok(())
    }

    /// Takes the file away and returns when its requests under way are finished.
    pub fn stop(self) {
        // Nobody opens it any more; who has it open is answered until the port is gone.
        drop(self.mounted);
        // One that somebody has unmounted is gone by itself.
        detach_port(&*self.host, self.port, &self.closed);
    }
}

/// Whether other users may reach it, as far as its mode lets them.
pub(super) fn others(options: &FuseOptions) -> bool {
    rustix::process::geteuid().is_root() || options.access.gid.is_some()
}

/// What makes the port of a file.
pub(super) fn port_of(
    path: &Path,
    info: &DiskInfo,
    options: FuseOptions,
    device: OwnedFd,
    kept: Option<Arc<dyn KeptFile>>,
    times: Option<FileTimes>,
) -> Result<(MakePort, Closed), FuseError> {
    let os = |source| FuseError::Os { path: path.to_owned(), what: "serve", source };
    let device = FuseDevice::new(device, kept).map_err(os)?;
    let closed = device.closed().clone();
    let account = Some(options.budget.open(&info.name).map_err(os)?);
    let readable = if info.geometry.read_only { 0o440 } else { 0o660 };
    let owner = Owner {
        mode: options.access.mode & readable,
        uid: rustix::process::geteuid().as_raw(),
        gid: options.access.gid.unwrap_or_else(|| rustix::process::getegid().as_raw()),
    };
    let rules = FileRules::new(&info.geometry, options.limits.requests_max);
    let (disk, limits, path, hint) = (info.disk, options.limits, path.display().to_string(), options.hint);
    let make = move |port| {
        let new = NewFile { port, disk, rules, owner, limits, path, device, account, times, hint };
        AnyPort::plain(FusePort::new(new))
    };
    Ok((Box::new(make), closed))
}

/// Makes the path a file that can be mounted over: empty, and no mount.
fn prepare(path: &Path) -> Result<Mounted, FuseError> {
    let os = |what| move |source| FuseError::Os { path: path.to_owned(), what, source };
    for _ in 0..STALE_MAX {
        match fuse::is_mounted(path) {
            Ok(true) => return Err(FuseError::InUse(path.to_owned())),
            Ok(false) => {
                may_hide(path).map_err(os("look at"))??;
                return Ok(Mounted { path: path.to_owned(), made: None, is_mounted: false, number: None });
            }
            // Its server is dead: it was killed, or it crashed.
            Err(e) if is_stale(&e) => {
                tracing::info!("a mount at {} that a dead server has left is taken away", path.display());
                fuse::unmount_fuse(path, Unmount::Lazily).map_err(os("unmount what a dead server has left at"))?;
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => match made(path) {
                Ok(mounted) => return Ok(mounted),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    return Err(FuseError::NoDirectory { path: path.to_owned() });
                }
                Err(e) => return Err(os("make")(e)),
            },
            Err(e) => return Err(os("look at")(e)),
        }
    }
    Err(FuseError::InUse(path.to_owned()))
}

fn made(path: &Path) -> io::Result<Mounted> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let there = file.metadata()?;
    Ok(Mounted { path: path.to_owned(), made: Some((there.dev(), there.ino())), is_mounted: false, number: None })
}

fn is_stale(e: &io::Error) -> bool {
    let number = Errno::from_io_error(e);
    matches!(number, Some(Errno::NOTCONN | Errno::CONNABORTED))
}

/// Opens the device that a mount needs.
fn open_device() -> Result<OwnedFd, FuseError> {
    fuse::open_fuse().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => FuseError::NoDevice,
        io::ErrorKind::PermissionDenied => FuseError::DeviceForbidden,
        _ if matches!(Errno::from_io_error(&e), Some(Errno::NXIO | Errno::NODEV)) => FuseError::NoDevice,
        _ => FuseError::Os { path: FUSE_DEVICE.into(), what: "open", source: e },
    })
}

/// Whether this process can use FUSE here.
///
/// # Errors
/// The kernel has none, or it is not for this process to use.
pub fn probe() -> Result<(), FuseError> {
    open_device().map(drop)
}

/// Whether a disk may be a file at `path`: nothing is there, or an empty file, or a mount, of which only who makes the
/// file can say whether it is one that a dead server has left.
///
/// # Errors
/// Something else is there, or its directory is not.
pub fn look(path: &Path) -> Result<(), FuseError> {
    let os = |source| FuseError::Os { path: path.to_owned(), what: "look at", source };
    match fuse::is_mounted(path) {
        Ok(true) => Ok(()),
        Ok(false) => may_hide(path).map_err(os)?,
        Err(e) if is_stale(&e) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound && parent(path).is_dir() => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(FuseError::NoDirectory { path: path.to_owned() }),
        Err(e) => Err(os(e)),
    }
}

/// Whether a mount may hide what is there.
fn may_hide(path: &Path) -> io::Result<Result<(), FuseError>> {
    let there = fs::symlink_metadata(path)?;
    Ok(match there.len() {
        _ if !there.is_file() => Err(FuseError::NotAFile(path.to_owned())),
        0 => Ok(()),
        _ => Err(FuseError::HasData(path.to_owned())),
    })
}

/// Mounts, as root by itself and otherwise with the helper.
fn mount_at(path: &Path, mount: &FuseMount<'_>) -> Result<OwnedFd, FuseError> {
    let os = |what| move |source| FuseError::Os { path: path.to_owned(), what, source };
    let device = open_device()?;
    match fuse::mount_fuse(&device, path, mount) {
        Ok(()) => Ok(device),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            fuse::mount_fuse_with_helper(path, mount).map_err(|e| match e {
                HelperError::Missing => FuseError::NoHelper(path.to_owned()),
                HelperError::Refused(words) => FuseError::Helper { path: path.to_owned(), words },
                HelperError::Os(e) => os("have fusermount3 mount")(e),
            })
        }
        Err(e) => Err(os("mount a disk over")(e)),
    }
}
