//! Mounting a FUSE file system: the device, the mount itself, and the helper for those who may not mount.
//!
//! Owns no mount: who mounts also unmounts. Never talks to the kernel's end of a mount. Invariant: no call follows a
//! symbolic link at the place of the mount.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::ffi::CString;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Where the kernel's end of a mount is opened.
pub const FUSE_DEVICE: &str = "/dev/fuse";
/// The kind of file system, as `/proc/mounts` shows it.
const KIND: &str = "fuse.undercroft";
/// The programs that mount for users who may not, in the order in which they are tried.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];
/// Bytes of what such a program says that are kept.
const WORDS_MAX: u64 = 1024;

/// What a mount is to be like.
#[derive(Clone, Copy, Debug)]
pub struct FuseMount<'a> {
    /// What `/proc/mounts` shows as its source.
    pub source: &'a str,
    /// Whether the kernel refuses writes itself.
    pub read_only: bool,
    /// Whether other users may reach it, as far as its mode lets them.
    pub others: bool,
    /// Bytes of one read at most.
    pub read_bytes_max: usize,
}

/// Why a helper did not mount.
#[derive(Debug)]
pub enum HelperError {
    /// There is none.
    Missing,
    /// What it said.
    Refused(String),
    /// It could not be run, or talked to.
    Os(io::Error),
}

impl FuseMount<'_> {
    fn options(&self) -> String {
        let mut options = format!("default_permissions,max_read={}", self.read_bytes_max);
        if self.others {
            options.push_str(",allow_other");
        }
        options
    }
}

/// Opens the device: nonblocking, closed on exec.
///
/// # Errors
/// `NotFound` if there is none, `PermissionDenied` if this process may not use it, else what the kernel says.
pub fn open_fuse() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(FUSE_DEVICE, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?)
}

/// Mounts `device` over the regular file `at`, which has to be empty when it is looked at last.
///
/// # Errors
/// `PermissionDenied` if this process may not mount, `AlreadyExists` if it is no empty file any more, else what the
/// kernel says.
pub fn mount_fuse(device: &OwnedFd, at: &Path, mount: &FuseMount<'_>) -> io::Result<()> {
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    if mount.read_only {
        flags |= MountFlags::RDONLY;
    }
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let (fd, more) = (device.as_raw_fd(), mount.options());
    let (uid, gid) = (uid.as_raw(), gid.as_raw());
    let options = format!("fd={fd},rootmode=100000,user_id={uid},group_id={gid},{more}");
    let options = CString::new(options).map_err(io::Error::other)?;
    // mount(2) follows a symbolic link that somebody has put there meanwhile: not where the file is held.
    let file = rustix::fs::open(at, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let there = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(there.st_mode) != FileType::RegularFile || there.st_size != 0 {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let held = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::mount::mount(mount.source, held, KIND, flags, Some(options.as_c_str()))?)
}

/// Has the helper mount over the regular file `at`, for a process that may not; returns the device, nonblocking.
///
/// # Errors
/// See [`HelperError`].
pub fn mount_fuse_with_helper(at: &Path, mount: &FuseMount<'_>) -> Result<OwnedFd, HelperError> {
    let os = |e: Errno| HelperError::Os(e.into());
    let mut options = format!("fsname={},subtype=undercroft,nosuid,nodev,noexec,{}", mount.source, mount.options());
    if mount.read_only {
        options.push_str(",ro");
    }
    for helper in HELPERS {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(os)?;
        // The helper is told the number of the descriptor that it answers on: it is its standard input.
        let mut command = Command::new(helper);
        command.args(["-o", &options, "--"]).arg(at).env("_FUSE_COMMFD", "0");
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(HelperError::Os(e)),
        };
        // Ours goes with it: the end of the conversation is when the helper has ended.
        drop(command);
        let device = received(&ours);
        let mut words = Vec::new();
        if let Some(said) = child.stderr.take() {
            let _ = said.take(WORDS_MAX).read_to_end(&mut words);
        }
        let ended = child.wait().map_err(HelperError::Os)?;
        return match device {
            Some(device) if ended.success() => {
                let flags = rustix::fs::fcntl_getfl(&device).map_err(os)?;
                rustix::fs::fcntl_setfl(&device, flags | OFlags::NONBLOCK).map_err(os)?;
                Ok(device)
            }
            _ => Err(HelperError::Refused(String::from_utf8_lossy(&words).trim().replace('\n', "; "))),
        };
    }
    Err(HelperError::Missing)
}

/// The descriptor that comes over a socket, if one does before its other end is closed.
fn received(socket: &OwnedFd) -> Option<OwnedFd> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
    let mut byte = [0u8; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut room = RecvAncillaryBuffer::new(&mut space);
    loop {
        match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut room, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(_) => return None,
            Ok(_) => break,
        }
    }
    room.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut passed) => passed.next(),
        _ => None,
    })
}

/// When to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// Whether it is used or not: those who use it keep it until they close it.
    Lazily,
    /// Only if nobody uses it.
    Unused,
}

/// Unmounts what is mounted at `at`.
///
/// # Errors
/// `ResourceBusy` if it is used and must not be; `PermissionDenied` if this process may not unmount and the helper does
/// not; else what the kernel says.
pub fn unmount_fuse(at: &Path, when: Unmount) -> io::Result<()> {
    let (flags, words): (_, &[&str]) = match when {
        Unmount::Lazily => (UnmountFlags::DETACH, &["-u", "-z", "-q", "--"]),
        Unmount::Unused => (UnmountFlags::empty(), &["-u", "-q", "--"]),
    };
    match rustix::mount::unmount(at, flags | UnmountFlags::NOFOLLOW) {
        Err(Errno::PERM) => {}
        result => return Ok(result?),
    }
    let run = |helper| {
        let mut command = Command::new(helper);
        command.args(words).arg(at);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()
    };
    match HELPERS.into_iter().map(run).find(Result::is_ok) {
        Some(Ok(status)) if status.success() => Ok(()),
        _ => Err(Errno::PERM.into()),
    }
}

/// `STATX_MNT_ID_UNIQUE`: a number that no later mount has (Linux 6.8).
const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// The kernel's number of the mount that is at `at`, without asking whoever serves it; `None` where it does not tell
/// (before Linux 5.8). Before Linux 6.8 a mount may have the number of one that is gone.
pub fn mount_number(at: &Path) -> Option<u64> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
    let look = rustix::fs::statx(CWD, at, flags, StatxFlags::MNT_ID | UNIQUE).ok()?;
    (look.stx_mask & (StatxFlags::MNT_ID | UNIQUE).bits() != 0).then_some(look.stx_mnt_id)
}

/// The number of the file system that is mounted at `at` (its device), without asking whoever serves it; `None` if
/// nothing is mounted there. No other file system has it while that one is in use, and it is the same in every mount
/// namespace.
pub fn mounted_device(at: &Path) -> Option<u64> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
    let look = rustix::fs::statx(CWD, at, flags, StatxFlags::TYPE).ok()?;
    let is_root = look.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    is_root.then(|| rustix::fs::makedev(look.stx_dev_major, look.stx_dev_minor))
}

/// Whether the kernel's end of a connection is there still: the file system is mounted, or in use.
pub fn is_connected(device: BorrowedFd<'_>) -> bool {
    let mut look = [PollFd::new(&device, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut look, Some(&now)).is_ok() && !look[0].revents().contains(PollFlags::ERR)
}

/// Whether something is mounted at `at`. The kernel's end of a mount whose server is gone says `NotConnected`.
///
/// # Errors
/// What the kernel says of the path.
pub fn is_mounted(at: &Path) -> io::Result<bool> {
    let at = CString::new(at.as_os_str().as_bytes()).map_err(io::Error::other)?;
    // The kernel answers for a dead server what it still knows, unless it is to ask.
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
    let look = rustix::fs::statx(CWD, at.as_c_str(), flags, StatxFlags::BASIC_STATS)?;
    Ok(look.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_mounted_at_a_fresh_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(!is_mounted(file.path()).unwrap());
        assert!(is_mounted(Path::new("/proc")).unwrap());
        assert!(mounted_device(Path::new("/proc")).is_some() && mounted_device(file.path()).is_none());
        assert_eq!(is_mounted(Path::new("/nowhere/at/all")).unwrap_err().kind(), io::ErrorKind::NotFound);
        for when in [Unmount::Lazily, Unmount::Unused] {
            assert!(unmount_fuse(file.path(), when).is_err(), "nothing is mounted there");
        }
    }
}
