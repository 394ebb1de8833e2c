//! Disk images as the kernel sees them: opening without the page cache, size, alignment, holes, discard.
//!
//! Owns an open file or block device. Never reads or writes an image's content, but for one probe read at its start.
//! Invariant: a `DiskFile` that says `direct` bypasses the page cache for every transfer aligned to `align`.

use crate::operation::Region;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, SeekFrom, StatxFlags, makedev};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Regions that one look-up returns at most.
const REGIONS_MAX: usize = 256;

/// What a file is, so that two names of one image are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileId {
    /// A regular file: device and inode.
    File {
        /// Device that the file system is on.
        device: u64,
        /// Inode number.
        inode: u64,
    },
    /// A block device, whatever node names it.
    Device {
        /// Device number.
        number: u64,
    },
}

/// An open file that lets go of its locks when the last user drops it. Closing it would do so too, but io_uring closes
/// its files only some time after the ring is gone, and the next to open the image would find it locked.
#[derive(Debug)]
pub struct OpenFile {
    file: File,
    locked: AtomicBool,
}

impl From<File> for OpenFile {
    fn from(file: File) -> Self {
        Self { file, locked: AtomicBool::new(false) }
    }
}

impl Deref for OpenFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if *self.locked.get_mut() {
            // Should it fail, closing unlocks as well.
            let _ = ofd_lock(&self.file, libc::F_OFD_SETLK, libc::F_UNLCK, USES, 2 * (UNSHARES - USES));
        }
    }
}

/// An open image: a regular file or a block device.
#[derive(Clone, Debug)]
pub struct DiskFile {
    /// The open file.
    pub file: Arc<OpenFile>,
    /// Which file it is.
    pub id: FileId,
    /// Size in bytes when it was opened.
    pub size_bytes: u64,
    /// Whether it is a block device.
    pub is_device: bool,
    /// Whether transfers bypass the page cache (`O_DIRECT`).
    pub direct: bool,
    /// Alignment of offsets, lengths and memory that transfers need, in bytes: 1 if not `direct`.
    pub align: u32,
}

/// Whether to bypass the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direct {
    /// With `O_DIRECT`; through the page cache where the file system cannot.
    Prefer,
    /// Through the page cache.
    No,
}

impl DiskFile {
    /// Opens an image. The second value says why it is not direct, if that was preferred.
    ///
    /// # Errors
    /// What `open` says (not found, no permission, read-only file system), or `InvalidInput` if it is neither a
    /// regular file nor a block device.
    pub fn open(path: &Path, read_only: bool, direct: Direct) -> io::Result<(Self, Option<String>)> {
        // O_NONBLOCK: a named pipe is refused below instead of blocking here. It means nothing for files and disks.
        let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let plain = rustix::fs::open(path, flags, Mode::empty())?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&plain)?.st_mode);
        if !matches!(kind, FileType::RegularFile | FileType::BlockDevice) {
            let what = match kind {
                FileType::Directory => "a directory",
                FileType::CharacterDevice => "a character device",
                FileType::Fifo => "a named pipe",
                FileType::Socket => "a socket",
                _ => "of an unknown kind",
            };
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("it is {what}, neither a regular file nor a block device"),
            ));
        }
        if direct == Direct::Prefer {
            match rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()) {
                Ok(fd) => match alignment(&fd, kind == FileType::BlockDevice) {
                    Some(align) => return Ok((Self::new(fd, kind, true, align)?, None)),
                    None => return Ok((Self::new(plain, kind, false, 1)?, Some(NOT_DIRECT.to_owned()))),
                },
                Err(Errno::INVAL) => return Ok((Self::new(plain, kind, false, 1)?, Some(NOT_DIRECT.to_owned()))),
                Err(e) => return Err(e.into()),
            }
        }
        Ok((Self::new(plain, kind, false, 1)?, None))
    }

    /// A file that another process has opened, with the locks that it has. They are let go of only when the last of all
    /// processes closes it, unless this one has [`claim`]ed it, too.
    ///
    /// # Errors
    /// What the kernel says, or `InvalidInput` if it is not one that bypasses the page cache.
    pub fn passed(fd: OwnedFd) -> io::Result<Self> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
        let is_kind = matches!(kind, FileType::RegularFile | FileType::BlockDevice);
        let is_direct = rustix::fs::fcntl_getfl(&fd)?.contains(OFlags::DIRECT);
        let align = alignment(&fd, kind == FileType::BlockDevice).filter(|_| is_kind && is_direct);
        let align = align.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, NOT_DIRECT))?;
        Self::new(fd, kind, true, align)
    }

    fn new(fd: OwnedFd, kind: FileType, direct: bool, align: u32) -> io::Result<Self> {
        let st = rustix::fs::fstat(&fd)?;
        let is_device = kind == FileType::BlockDevice;
        let id = if is_device {
            FileId::Device { number: st.st_rdev }
        } else {
            FileId::File { device: st.st_dev, inode: st.st_ino }
        };
        // The size of a device is where its end is; fstat says 0.
        let size_bytes = rustix::fs::seek(&fd, SeekFrom::End(0))?;
        Ok(Self { file: Arc::new(File::from(fd).into()), id, size_bytes, is_device, direct, align })
    }
}

const NOT_DIRECT: &str = "its file system has no direct I/O";

/// The alignment that direct I/O on `fd` needs; `None` if it has none, or one past 4096.
fn alignment(fd: &OwnedFd, is_device: bool) -> Option<u32> {
    if let Some((memory, offset)) = statx_dio_align(fd) {
        let align = memory.max(offset);
        return (offset > 0 && align.is_power_of_two() && align <= 4096).then_some(align);
    }
    if is_device && let Ok(bytes) = rustix::fs::ioctl_blksszget(fd) {
        return (bytes.is_power_of_two() && bytes <= 4096).then_some(bytes);
    }
    // Older kernels do not say. A read at an odd multiple of 512, into memory at another, tells.
    let file = File::from(fd.try_clone().ok()?);
    let mut memory = vec![0u8; 3 * 4096];
    let page = memory.as_ptr().align_offset(4096);
    [512u32, 4096].into_iter().find(|&align| {
        let at = page + align as usize;
        file.read_at(&mut memory[at..at + align as usize], u64::from(align)).is_ok()
    })
}

/// Alignment of memory and of offsets for direct I/O, if the kernel says (Linux 6.1 and newer).
fn statx_dio_align(fd: &OwnedFd) -> Option<(u32, u32)> {
    // SAFETY: all zeroes is a valid `statx`, which has only integers.
    let mut st: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: an empty path with AT_EMPTY_PATH names `fd`, which is open; `st` is written by the kernel.
    let r = unsafe {
        libc::statx(
            fd.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            std::ptr::from_mut(&mut st),
        )
    };
    (r == 0 && st.stx_mask & libc::STATX_DIOALIGN != 0).then_some((st.stx_dio_mem_align, st.stx_dio_offset_align))
}

/// `BLKDISCARD`: the device need not keep the range.
pub(crate) fn device_discard(file: &File, offset: u64, len: u64) -> Result<(), Errno> {
    const BLKDISCARD: libc::Ioctl = 0x1277;
    let range = [offset, len];
    // SAFETY: BLKDISCARD reads two u64 at the pointer, which `range` has.
    let r = unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD, range.as_ptr()) };
    if r == 0 { Ok(()) } else { Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)) }
}

/// The allocation of bytes `offset..offset + len`: at least one region, at most 256, which may end early. A file
/// system that does not know calls everything allocated.
pub(crate) fn map_regions(file: &File, offset: u64, len: u64) -> Result<Vec<Region>, Errno> {
    let end = offset.saturating_add(len);
    let mut regions = Vec::new();
    let mut at = offset;
    while at < end && regions.len() < REGIONS_MAX {
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(p) => p.clamp(at, end),
            Err(Errno::NXIO) => end, // no data from here on
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(e) => return Err(e),
        };
        if data > at {
            regions.push(Region { len: data - at, hole: true });
            at = data;
            continue;
        }
        let hole = match rustix::fs::seek(file, SeekFrom::Hole(at)) {
            Ok(p) => p.min(end),
            Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP) => end,
            Err(e) => return Err(e),
        };
        if hole <= at {
            // The file changed between the two calls: the rest counts as allocated.
            regions.push(Region { len: end - at, hole: false });
            break;
        }
        regions.push(Region { len: hole - at, hole: false });
        at = hole;
    }
    Ok(regions)
}

/// What became of an attempt to claim an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It is claimed until the last user of the open file drops it.
    Held,
    /// The file system has no such locks: nothing protects the image from other programs.
    NoLocks,
    /// Another program uses it in a way that does not go with ours; who, where that can be found out.
    Taken(Vec<String>),
}

// QEMU's protocol (block/file-posix.c): a read lock on byte 100 + n says "I use permission n", one on 200 + n "I do not
// share permission n". Everybody locks first and looks second, so that of two at least one sees the other.
const USES: i64 = 100;
const UNSHARES: i64 = 200;
const READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;

/// Claims an image so that no QEMU, `qemu-img`, `qemu-nbd` or other daemon of ours writes to it meanwhile, or, if we
/// write, opens it at all without saying that it shares. `grows`: we may also change the file's size.
///
/// # Errors
/// What the kernel says, other than that locks are not supported.
pub fn claim(file: &DiskFile, read_only: bool, grows: bool) -> io::Result<Claim> {
    let mut uses = vec![READ];
    if !read_only {
        uses.push(WRITE);
    }
    if grows && !read_only {
        uses.push(RESIZE);
    }
    let unshares = [WRITE, RESIZE];
    let locks = uses.iter().map(|n| USES + n).chain(unshares.iter().map(|n| UNSHARES + n));
    file.file.locked.store(true, Ordering::Relaxed);
    for at in locks {
        match ofd_lock(&file.file, libc::F_OFD_SETLK, libc::F_RDLCK, at, 1) {
            Ok(_) => {}
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOLCK)) => {
                return Ok(Claim::NoLocks);
            }
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
                return Ok(Claim::Taken(users(file)));
            }
            Err(e) => return Err(e),
        }
    }
    let conflicts = uses.iter().map(|n| UNSHARES + n).chain(unshares.iter().map(|n| USES + n));
    for at in conflicts {
        if ofd_lock(&file.file, libc::F_OFD_GETLK, libc::F_WRLCK, at, 1)? != libc::F_UNLCK {
            return Ok(Claim::Taken(users(file)));
        }
    }
    Ok(Claim::Held)
}

/// Sets or tests a lock on `len` bytes; returns the type of lock that the kernel left in the argument.
fn ofd_lock(file: &File, command: libc::c_int, kind: libc::c_int, at: i64, len: i64) -> io::Result<libc::c_int> {
    // SAFETY: all zeroes is a valid `flock`, which has only integers. `l_pid` must be 0.
    let mut l: libc::flock = unsafe { std::mem::zeroed() };
    l.l_type = kind as libc::c_short;
    l.l_whence = libc::SEEK_SET as libc::c_short;
    l.l_start = at;
    l.l_len = len;
    // SAFETY: the descriptor is open, and the command takes a `flock`, which the kernel reads and may write.
    let r = unsafe { libc::fcntl(file.as_raw_fd(), command, std::ptr::from_mut(&mut l)) };
    if r == 0 { Ok(l.l_type.into()) } else { Err(io::Error::last_os_error()) }
}

/// Other processes that have the file open, as `name (pid 12)`; the kernel does not tell whose a lock of this kind is.
/// Only those that this process may look at are found.
fn users(file: &DiskFile) -> Vec<String> {
    let Ok(ours) = rustix::fs::fstat(file.file.as_fd()) else { return Vec::new() };
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let me = std::process::id();
    let mut found = Vec::new();
    for process in processes.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        if pid == me {
            continue;
        }
        let Ok(fds) = std::fs::read_dir(process.path().join("fd")) else { continue };
        let has_it = fds.flatten().any(|fd| {
            // Nobody is asked: among them may be files of a FUSE server that does not answer just now, ours say.
            let known = AtFlags::STATX_DONT_SYNC;
            rustix::fs::statx(CWD, fd.path(), known, StatxFlags::INO | StatxFlags::TYPE).is_ok_and(|st| {
                (makedev(st.stx_dev_major, st.stx_dev_minor), st.stx_ino) == (ours.st_dev, ours.st_ino)
                    || file.is_device
                        && makedev(st.stx_rdev_major, st.stx_rdev_minor) == ours.st_rdev
                        && FileType::from_raw_mode(st.stx_mode.into()) == FileType::BlockDevice
            })
        });
        if has_it {
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            found.push(format!("{} (pid {pid})", name.trim()));
        }
    }
    found
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::path::PathBuf;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str, bytes: u64) -> Self {
            let path = std::env::temp_dir().join(format!("undercroft-file-{}-{name}", std::process::id()));
            File::create(&path).unwrap().set_len(bytes).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn size_identity_and_alignment_are_found() {
        let s = Scratch::new("size", 1 << 20);
        let (f, why) = DiskFile::open(&s.0, false, Direct::Prefer).unwrap();
        assert_eq!(f.size_bytes, 1 << 20);
        assert_eq!(f.direct, why.is_none());
        if f.direct {
            let mut memory = vec![0u8; 2 * 4096];
            let at = memory.as_ptr().align_offset(4096);
            let n = f.align as usize;
            assert_eq!(f.file.read_at(&mut memory[at..at + n], n as u64).unwrap(), n, "the alignment found works");
        }
        let (g, _) = DiskFile::open(&s.0, true, Direct::No).unwrap();
        assert_eq!((g.id, g.align), (f.id, 1));
        assert!(g.file.write_at(b"x", 0).is_err(), "opened read-only");
    }

    #[test]
    fn what_is_no_disk_is_refused() {
        let e = DiskFile::open(&std::env::temp_dir(), true, Direct::Prefer).unwrap_err();
        assert!(e.to_string().contains("a directory"), "{e}");
        let e = DiskFile::open(Path::new("/dev/null"), true, Direct::No).unwrap_err();
        assert!(e.to_string().contains("a character device"), "{e}");
        let e = DiskFile::open(Path::new("/nowhere/at/all"), true, Direct::No).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_writer_excludes_everybody_and_readers_go_together() {
        let s = Scratch::new("locks", 4096);
        let open = |ro| DiskFile::open(&s.0, ro, Direct::No).unwrap().0;
        let writer = open(false);
        assert_eq!(claim(&writer, false, false).unwrap(), Claim::Held);
        let second = open(false);
        assert!(matches!(claim(&second, false, false).unwrap(), Claim::Taken(_)));
        drop(second);
        let reader = open(true);
        assert!(matches!(claim(&reader, true, false).unwrap(), Claim::Taken(_)));
        drop((writer, reader));
        let (a, b, w) = (open(true), open(true), open(false));
        assert_eq!(claim(&a, true, false).unwrap(), Claim::Held);
        assert_eq!(claim(&b, true, false).unwrap(), Claim::Held);
        assert!(matches!(claim(&w, false, true).unwrap(), Claim::Taken(_)));
    }
}
