//! Unix sockets to listen on: made, checked and removed in one place for every front end.
//!
//! Owns the file in the file system. Never accepts a connection, and never waits for another user.
//! Invariants: nobody can connect before permissions and group are set; a socket that somebody listens on is never
//! replaced; a file that we did not make is never removed, unless it is a socket that nobody listens on; the file of a
//! socket is removed while the socket still listens, so that nobody can have taken its place.

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes of a socket's path at most: `sun_path` without the final zero byte.
pub const PATH_BYTES_MAX: usize = 107;

/// Connections that the kernel holds ready for us to accept.
const BACKLOG: i32 = 128;

/// How often, and after what pause, we ask for the lock of a path before we go on without it.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Why a socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The kernel has no room for the path.
    #[error(
        "the socket path {path} is {len} bytes long, at most {PATH_BYTES_MAX} are possible: choose a shorter directory"
    )]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        len: usize,
    },
    /// The directory is missing.
    #[error("the directory of the socket {0} does not exist: create it first")]
    NoDirectory(PathBuf),
    /// Somebody listens there.
    #[error("the socket {0} is in use by another process: stop that process, or choose another path")]
    InUse(PathBuf),
    /// Something else has that name.
    #[error("{0} exists and is not a socket: move it away, or choose another path")]
    NotASocket(PathBuf),
    /// Only root may give files to groups in which it is not.
    #[error(
        "the socket {path} cannot be given to the group {gid}, in which this process is not: run it in that group (a \
         systemd unit: SupplementaryGroups={gid}), or choose a group in which it is"
    )]
    Group {
        /// The path.
        path: PathBuf,
        /// The group.
        gid: u32,
    },
    /// The kernel refused.
    #[error("cannot {what} the socket {path}: {source}")]
    Os {
        /// The path.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Who may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketPermissions {
    /// Permission bits of the file; writing is what connecting needs. The umask has no say in it.
    pub mode: u32,
    /// The group that owns the file; that of the process if `None`.
    pub gid: Option<u32>,
}

impl Default for SocketPermissions {
    /// Only our own user.
    fn default() -> Self {
        Self { mode: 0o600, gid: None }
    }
}

/// A listening socket, and the guard that removes its file.
#[derive(Debug)]
pub struct BoundSocket {
    /// To be dropped before the listener is closed; it stands first here because fields are dropped in this order.
    pub guard: SocketGuard,
    /// Blocking; close-on-exec.
    pub listener: UnixListener,
}

/// Removes the file of a socket when dropped, if it still is the one that was made. That can be told only while the
/// socket listens: afterwards another process may replace the file between the look and the removal, or have been given
/// the same inode.
#[derive(Debug)]
pub struct SocketGuard {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketGuard {
    /// The path, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketGuard {
    fn drop(&mut self) {
        if KEEP_FILES.load(Ordering::Acquire) {
            return;
        }
        if let Ok(m) = fs::symlink_metadata(&self.path)
            && (m.dev(), m.ino()) == (self.device, self.inode)
        {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listeners of another process that has handed them over, by where they listen.
static PASSED: Mutex<BTreeMap<String, OwnedFd>> = Mutex::new(BTreeMap::new());

/// Whether files of sockets stay although this process listens no more.
static KEEP_FILES: AtomicBool = AtomicBool::new(false);

/// From now on no file of a socket is removed, whatever ends: another process has the listener, too. Or, again.
pub fn keep_files(keep: bool) {
    KEEP_FILES.store(keep, Ordering::Release);
}

fn passed() -> MutexGuard<'static, BTreeMap<String, OwnedFd>> {
    PASSED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has whoever is to listen at `place` take over a listener of another process instead of making one: a path, or what
/// [`tcp_place`] says.
pub fn pass_listener(place: String, listener: OwnedFd) {
    passed().insert(place, listener);
}

/// Drops the listeners that nobody took over.
pub fn forget_passed() {
    drop(std::mem::take(&mut *passed()));
}

/// What a TCP listener is called, by the address that was asked for.
pub fn tcp_place(address: SocketAddr) -> String {
    format!("tcp:{address}")
}

/// Listens at a TCP address.
///
/// # Errors
/// What the kernel says.
pub fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    match passed().remove(&tcp_place(address)) {
        Some(listener) => Ok(TcpListener::from(listener)),
        None => TcpListener::bind(address),
    }
}

/// Listens on with a socket that another process had at `path`.
fn go_on(listener: OwnedFd, path: &Path, access: SocketPermissions) -> Result<BoundSocket, Errno> {
    let guard = permit(path, access)?;
    // Once more, so that who connects is told of this process.
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(BoundSocket { guard, listener: UnixListener::from(listener) })
}

/// Makes a unix stream socket at `path` and listens on it. A socket file that nobody listens on is replaced.
///
/// # Errors
/// See [`SocketError`]. Nothing is left behind.
pub fn bind_unix(path: &Path, access: SocketPermissions) -> Result<BoundSocket, SocketError> {
    let os = |what| move |e: Errno| SocketError::Os { path: path.to_owned(), what, source: e.into() };
    let len = path.as_os_str().len();
    if len > PATH_BYTES_MAX {
        return Err(SocketError::TooLong { path: path.to_owned(), len });
    }
    if let Some(listener) = passed().remove(&*path.to_string_lossy()) {
        return go_on(listener, path, access).map_err(os("go on with"));
    }
    let address = SocketAddrUnix::new(path).map_err(os("name"))?;
    // Two daemons that both find the same stale file must not both replace it: one would remove the other's live
    // socket. The lock covers looking, removing, binding and listening.
    let _lock = PathLock::take(path);
    let fd = stream_socket(SocketFlags::CLOEXEC).map_err(os("create"))?;
    // The file gets the mode of the socket's own inode (less the umask), so that it is never wider than it should be.
    let _ = rustix::fs::fchmod(&fd, Mode::from_raw_mode(access.mode & 0o600));
    match rustix::net::bind(&fd, &address) {
        Ok(()) => {}
        Err(Errno::ADDRINUSE) => {
            remove_stale(path, &address)?;
            rustix::net::bind(&fd, &address).map_err(|e| match e {
                Errno::ADDRINUSE => SocketError::InUse(path.to_owned()),
                e => os("bind")(e),
            })?;
        }
        Err(Errno::NOENT) => return Err(SocketError::NoDirectory(path.to_owned())),
        Err(e) => return Err(os("bind")(e)),
    }
    let guard = permit(path, access).map_err(|e| match access.gid {
        Some(gid) if e == Errno::PERM => SocketError::Group { path: path.to_owned(), gid },
        _ => os("set the permissions of")(e),
    })?;
    rustix::net::listen(&fd, BACKLOG).map_err(os("listen on"))?;
    Ok(BoundSocket { guard, listener: UnixListener::from(fd) })
}

fn stream_socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// The right to make a socket at a path, among processes of our user. It is the advisory lock of a file beside the
/// socket that only our user can open: a directory that others may read, they may lock as well.
#[derive(Debug)]
struct PathLock {
    path: PathBuf,
    /// The kernel lifts the lock when this is closed.
    _file: OwnedFd,
}

impl PathLock {
    /// Takes it; `None` if it cannot be had here, or another process of our user sits on it.
    fn take(socket: &Path) -> Option<Self> {
        let mut name = std::ffi::OsString::from(".");
        name.push(socket.file_name()?);
        name.push(".lock");
        let path = socket.with_file_name(name);
        for _ in 0..LOCK_TRIES {
            let file = Self::open(&path)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if is_at(&file, &path) => return Some(Self { path, _file: file }),
                // Whoever had it has removed the file meanwhile: that lock is worth nothing.
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
                Err(_) => return None,
            }
        }
        None
    }

    /// Opens the file, or makes it; `None` if what is there could be opened by others too.
    fn open(path: &Path) -> Option<OwnedFd> {
        // Not blocking, in case it is somebody's pipe.
        let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        let ours = stat.st_uid == rustix::process::geteuid().as_raw()
            && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && stat.st_mode & 0o077 == 0;
        ours.then_some(file)
    }
}

impl Drop for PathLock {
    /// Removes the file while the lock is held: who waits for it finds that out and makes another.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether an open file is the one at `path`.
fn is_at(file: &OwnedFd, path: &Path) -> bool {
    rustix::fs::fstat(file)
        .is_ok_and(|open| fs::symlink_metadata(path).is_ok_and(|m| (m.dev(), m.ino()) == (open.st_dev, open.st_ino)))
}

/// Removes the file at `path` if it is a socket that nobody listens on.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), SocketError> {
    let os = |what| move |e: io::Error| SocketError::Os { path: path.to_owned(), what, source: e };
    match fs::symlink_metadata(path) {
        Ok(m) if m.file_type().is_socket() => {}
        Ok(_) => return Err(SocketError::NotASocket(path.to_owned())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(os("look at")(e)),
    }
    let probe = stream_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).map_err(|e| os("probe")(e.into()))?;
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(os("replace the stale")(e)),
            _ => Ok(()),
        },
        Err(Errno::NOENT) => Ok(()),
        // A full backlog (EAGAIN) or another type of socket (EPROTOTYPE) has an owner, too.
        Ok(()) | Err(Errno::WOULDBLOCK | Errno::INPROGRESS | Errno::PROTOTYPE) => {
            Err(SocketError::InUse(path.to_owned()))
        }
        Err(e) => Err(os("probe")(e.into())),
    }
}

/// Sets group and mode of the bound file, through a descriptor so that nobody can slip another file in.
fn permit(path: &Path, access: SocketPermissions) -> Result<SocketGuard, Errno> {
    let fd = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = rustix::fs::fstat(&fd)?;
    let guard = SocketGuard { path: path.to_owned(), device: stat.st_dev, inode: stat.st_ino };
    if let Some(gid) = access.gid {
        rustix::fs::chownat(&fd, "", None, Some(rustix::fs::Gid::from_raw(gid)), AtFlags::EMPTY_PATH)?;
    }
    // fchmod refuses descriptors opened with O_PATH; their link in /proc does not.
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    fs::set_permissions(link, fs::Permissions::from_mode(access.mode & 0o777))
        .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    Ok(guard)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixDatagram, UnixStream};

    fn mode_of(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn serves_with_the_mode_asked_for_and_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        for mode in [0o600, 0o660, 0o666, 0o200] {
            let path = dir.path().join("s");
            let bound = bind_unix(&path, SocketPermissions { mode, gid: None }).unwrap();
            assert_eq!(mode_of(&path), mode);
            let mut client = UnixStream::connect(&path).unwrap();
            let (mut served, _) = bound.listener.accept().unwrap();
            client.write_all(b"x").unwrap();
            let mut b = [0];
            served.read_exact(&mut b).unwrap();
            assert_eq!(&b, b"x");
            drop(bound);
            assert!(!path.exists());
        }
    }

    #[test]
    fn sets_the_group() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let own = fs::metadata(dir.path()).unwrap();
        // Root may give it to any group; others only to their own.
        let gid = if own.uid() == 0 { 65534 } else { own.gid() };
        let bound = bind_unix(&path, SocketPermissions { mode: 0o660, gid: Some(gid) }).unwrap();
        assert_eq!(fs::symlink_metadata(&path).unwrap().gid(), gid);
        assert_eq!(mode_of(&path), 0o660);
        drop(bound);
    }

    #[test]
    fn a_path_too_long_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let room = PATH_BYTES_MAX - dir.path().as_os_str().len() - 1;
        let longest = dir.path().join("s".repeat(room));
        drop(bind_unix(&longest, SocketPermissions::default()).unwrap());
        let path = dir.path().join("s".repeat(room + 1));
        let e = bind_unix(&path, SocketPermissions::default()).unwrap_err().to_string();
        assert!(e.contains("108 bytes") && e.contains("107") && e.contains("shorter"), "{e}");
    }

    #[test]
    fn a_stale_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let bound = bind_unix(&path, SocketPermissions::default()).unwrap();
        UnixStream::connect(&path).unwrap();
        drop(bound);
        assert!(!path.exists());
    }

    #[test]
    fn a_live_socket_is_left_alone_even_with_its_backlog_full() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let live = bind_unix(&path, SocketPermissions::default()).unwrap();
        let mut waiting = Vec::new();
        for n in 0..BACKLOG + 8 {
            let e = bind_unix(&path, SocketPermissions::default()).unwrap_err();
            assert!(matches!(e, SocketError::InUse(_)), "try {n}: {e}");
            let fd = stream_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).unwrap();
            let full = rustix::net::connect(&fd, &SocketAddrUnix::new(&path).unwrap()) == Err(Errno::AGAIN);
            waiting.push(fd);
            if full {
                break;
            }
        }
        assert!(path.exists());
        drop(live);
        // A datagram socket has an owner as well.
        let _gram = UnixDatagram::bind(&path).unwrap();
        assert!(matches!(bind_unix(&path, SocketPermissions::default()), Err(SocketError::InUse(_))));
    }

    #[test]
    fn files_of_others_are_never_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(bind_unix(&path, SocketPermissions::default()), Err(SocketError::NotASocket(_))));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::remove_file(&path).unwrap();
        // Not even through the guard, when the file was replaced behind our back.
        let bound = bind_unix(&path, SocketPermissions::default()).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        drop(bound);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        // Nor does a link lead us astray.
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &path).unwrap();
        assert!(matches!(bind_unix(&path, SocketPermissions::default()), Err(SocketError::NotASocket(_))));
    }

    #[test]
    fn a_missing_directory_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let e = bind_unix(&dir.path().join("no/s"), SocketPermissions::default()).unwrap_err();
        assert!(matches!(e, SocketError::NoDirectory(_)), "{e}");
    }

    #[test]
    fn of_many_at_once_exactly_one_wins() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        for _ in 0..20 {
            drop(UnixListener::bind(&path).unwrap());
            let results: Vec<_> = std::thread::scope(|s| {
                let tries: Vec<_> =
                    (0..8).map(|_| s.spawn(|| bind_unix(&path, SocketPermissions::default()))).collect();
                tries.into_iter().map(|t| t.join().unwrap()).collect()
            });
            assert_eq!(results.iter().filter(|r| r.is_ok()).count(), 1);
            UnixStream::connect(&path).unwrap();
        }
    }

    #[test]
    fn a_directory_that_others_lock_keeps_nobody_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        // As anybody can who may read the directory.
        let others = fs::File::open(dir.path()).unwrap();
        rustix::fs::flock(&others, FlockOperation::LockExclusive).unwrap();
        let held = PathLock::take(&path).expect("no lock of a directory is waited for");
        let file = dir.path().join(".s.lock");
        assert_eq!(mode_of(&file), 0o600);
        assert!(PathLock::take(&path).is_none(), "who holds it keeps out another of our user");
        drop(held);
        assert!(!file.exists());
        drop(bind_unix(&path, SocketPermissions::default()).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_lock_that_others_made_or_may_open_is_neither_waited_for_nor_touched() {
        let dir = tempfile::tempdir().unwrap();
        let (path, file) = (dir.path().join("s"), dir.path().join(".s.lock"));
        let refused = |what: &str| {
            assert!(PathLock::take(&path).is_none(), "{what}");
            assert!(fs::symlink_metadata(&file).is_ok(), "{what}");
            drop(bind_unix(&path, SocketPermissions::default()).unwrap());
            fs::remove_file(&file).unwrap();
        };
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        refused("a file that others may open");
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &file).unwrap();
        refused("a link");
        assert!(!dir.path().join("elsewhere").exists());
        rustix::fs::mknodat(rustix::fs::CWD, &file, FileType::Fifo, Mode::RUSR, 0).unwrap();
        refused("a pipe that nobody writes to");
        // What a process left that was killed is as good as a new one.
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(PathLock::take(&path).is_some());
    }

    #[test]
    fn a_sockets_file_is_gone_before_its_listener() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (bound_is, is_bound) = std::sync::mpsc::sync_channel::<()>(0);
        let (gone_is, is_gone) = std::sync::mpsc::sync_channel::<()>(0);
        let at = path.clone();
        let caller = std::thread::spawn(move || {
            let mut unheard = 0_usize;
            while is_bound.recv().is_ok() {
                loop {
                    match UnixStream::connect(&at) {
                        Err(e) if e.kind() == io::ErrorKind::NotFound => break,
                        // A file that is there after that, was there when nobody listened any more.
                        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                            unheard += usize::from(fs::symlink_metadata(&at).is_ok());
                        }
                        _ => {}
                    }
                }
                gone_is.send(()).unwrap();
            }
            unheard
        });
        for _ in 0..200 {
            let bound = bind_unix(&path, SocketPermissions::default()).unwrap();
            bound.listener.set_nonblocking(true).unwrap();
            bound_is.send(()).unwrap();
            // The caller may not wait for a place in the queue.
            while bound.listener.accept().is_err() {}
            drop(bound);
            is_gone.recv().unwrap();
        }
        drop(bound_is);
        assert_eq!(caller.join().unwrap(), 0, "calls found the file of a socket that did not listen any more");
    }
}
