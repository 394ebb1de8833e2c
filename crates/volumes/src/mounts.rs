//! What is mounted where, as the kernel says; and mounting a file system of a device, and unmounting.
//!
//! Owns the reading of `/proc/self/mountinfo`. Never follows a symbolic link at the place of a mount. Invariant: any
//! text that the kernel might give is read without a panic; a line that is none is left out.

use crate::VolumeError;
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount, unmount,
};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Bytes of the kernel's words that are shown.
const WORDS_MAX: usize = 1024;

/// Options that are the mount's own; all others are the file system's.
const OF_MOUNTS: [(&str, MountAttrFlags); 8] = [
    ("ro", MountAttrFlags::MOUNT_ATTR_RDONLY),
    ("nosuid", MountAttrFlags::MOUNT_ATTR_NOSUID),
    ("nodev", MountAttrFlags::MOUNT_ATTR_NODEV),
    ("noexec", MountAttrFlags::MOUNT_ATTR_NOEXEC),
    ("noatime", MountAttrFlags::MOUNT_ATTR_NOATIME),
    ("nodiratime", MountAttrFlags::MOUNT_ATTR_NODIRATIME),
    ("strictatime", MountAttrFlags::MOUNT_ATTR_STRICTATIME),
    ("relatime", MountAttrFlags::empty()),
];

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountEntry {
    /// Where.
    pub(crate) at: PathBuf,
    /// The kind of file system.
    pub(crate) kind: String,
    /// What it is of.
    pub(crate) source: String,
}

/// All mounts of this process's namespace, in the order in which they were made.
pub(crate) fn all() -> Result<Vec<MountEntry>, VolumeError> {
    let text = fs::read("/proc/self/mountinfo").map_err(VolumeError::os("read /proc/self/mountinfo".into()))?;
    Ok(parse(&text))
}

/// What is mounted at a path, uppermost.
pub(crate) fn top(at: &Path) -> Result<Option<MountEntry>, VolumeError> {
    Ok(all()?.into_iter().rfind(|m| m.at == at))
}

fn parse(text: &[u8]) -> Vec<MountEntry> {
    text.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    // As many optional fields as there are, then a hyphen.
    let end = fields.iter().skip(6).position(|f| *f == b"-")? + 6;
    let text = |n: usize| Some(String::from_utf8_lossy(&plain(fields.get(n)?)).into_owned());
    Some(MountEntry {
        at: OsString::from_vec(plain(fields.get(4)?)).into(),
        kind: text(end + 1)?,
        source: text(end + 2)?,
    })
}

/// A field, in which blanks and their like are written as a backslash and three octal digits.
fn plain(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|d| first == b'\\' && d.iter().all(|b| (b'0'..=b'7').contains(b)));
        match digits {
            Some(d) => {
                bytes.push(d.iter().fold(0u8, |n, b| n.wrapping_mul(8).wrapping_add(b - b'0')));
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    bytes
}

/// The place that a path means, without a look at what is mounted there: that may answer no more.
pub(crate) fn place(dir: &Path) -> Result<PathBuf, VolumeError> {
    let whole = std::path::absolute(dir).map_err(VolumeError::os(format!("tell where {} is", dir.display())))?;
    let found = match (whole.parent(), whole.file_name()) {
        (Some(parent), Some(name)) => fs::canonicalize(parent).map(|p| p.join(name)),
        _ => fs::canonicalize(&whole),
    };
    found.map_err(|e| VolumeError::new(format!("{} cannot be reached: {e}", dir.display()), "correct the path"))
}

/// A file system that is to be mounted.
pub(crate) struct Mounting<'a> {
    pub(crate) device: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) read_only: bool,
    pub(crate) options: &'a [String],
}

impl Mounting<'_> {
    /// Mounts it at a directory that is held open.
    pub(crate) fn at(&self, dir: BorrowedFd<'_>) -> Result<(), VolumeError> {
        let kind = self.kind;
        let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).map_err(|e| match e {
            Errno::NODEV => VolumeError::new(
                format!("this kernel has no file system \"{kind}\""),
                format!("load its module: `modprobe {kind}`"),
            ),
            Errno::PERM => VolumeError::new("this process may not mount", "run it as root (CAP_SYS_ADMIN)"),
            e => VolumeError::os(format!("mount {kind}"))(e.into()),
        })?;
        let attributes = self.configure(&context).map_err(|e| self.refused(&context, e))?;
        let made = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes);
        let made = made.map_err(|e| self.refused(&context, e))?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(made.as_fd(), c"", dir, c"", flags).map_err(|e| self.refused(&context, e))
    }

    /// Says what is wanted, and has the kernel read the file system.
    fn configure(&self, context: &OwnedFd) -> Result<MountAttrFlags, Errno> {
        let fs = context.as_fd();
        fsconfig_set_string(fs, "source", self.device)?;
        let mut attributes = MountAttrFlags::empty();
        if self.read_only {
            attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY;
            fsconfig_set_flag(fs, "ro")?;
        }
        for option in self.options.iter().flat_map(|o| o.split(',')).filter(|o| !o.is_empty()) {
            if let Some((_, attribute)) = OF_MOUNTS.iter().find(|(name, _)| *name == option) {
                attributes |= *attribute;
                if option == "ro" {
                    fsconfig_set_flag(fs, "ro")?;
                }
            } else if let Some((key, value)) = option.split_once('=') {
                fsconfig_set_string(fs, key, value)?;
            } else {
                fsconfig_set_flag(fs, option)?;
            }
        }
        fsconfig_create(fs)?;
        Ok(attributes)
    }

    /// Why the kernel refused, in its own words where it has any.
    fn refused(&self, context: &OwnedFd, e: Errno) -> VolumeError {
        let mut words = Vec::new();
        let mut room = [0u8; WORDS_MAX];
        while let Ok(n) = rustix::io::read(context, &mut room)
            && n > 0
            && words.len() < WORDS_MAX
        {
            let text = String::from_utf8_lossy(&room[..n]).trim().to_owned();
            words.extend_from_slice(text.get(2..).unwrap_or_default().as_bytes());
            words.extend_from_slice(b"; ");
        }
        let words = String::from_utf8_lossy(&words);
        let words = words.trim_end_matches("; ");
        let why = if words.is_empty() { io::Error::from(e).to_string() } else { words.to_owned() };
        let remedy = match e {
            Errno::PERM | Errno::ACCESS => "run it as root (CAP_SYS_ADMIN)",
            Errno::INVAL => "correct the options, or see what `dmesg` says of the file system",
            Errno::ROFS => "mount it with --read-only",
            _ => "see what `dmesg` says of the file system; its own program for repairs may help",
        };
        VolumeError::new(format!("{} cannot be mounted as {}: {why}", self.device, self.kind), remedy)
    }
}

/// Unmounts what is at `at`; lazily if `lazily`: whoever uses it keeps it.
pub(crate) fn unmount_at(at: &Path, lazily: bool) -> Result<(), Errno> {
    let lazy = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    unmount(at, lazy | UnmountFlags::NOFOLLOW)
}

/// Opens a directory to be mounted at.
pub(crate) fn hold(dir: &Path) -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, dir, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let text = b"25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
            90 25 7:3 / /srv/a\\040b\\134c rw - xfs /dev/loop3 rw,attr2\n\
            91 25 0:50 / /run/x rw shared:2 master:3 - fuse.undercroft undercroft:web:data rw\nno line\n\n";
        let read = parse(text);
        assert_eq!(read.len(), 3);
        assert_eq!(read[1].at, Path::new("/srv/a b\\c"));
        assert_eq!((read[1].kind.as_str(), read[1].source.as_str()), ("xfs", "/dev/loop3"));
        assert_eq!(read[2].source, "undercroft:web:data");
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        proptest::proptest!(|(bytes: Vec<u8>)| { parse(&bytes); });
        proptest::proptest!(|(text in "[0-9 \\\\/:-]{0,80}")| { parse(text.as_bytes()); });
        assert_eq!(plain(b"\\777\\04\\"), [0xff, b'\\', b'0', b'4', b'\\']);
    }

    #[test]
    fn a_path_is_told_without_a_look_at_its_end() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        assert_eq!(place(&dir.path().join("link/not-there")).unwrap(), root.join("not-there"));
        assert!(place(&dir.path().join("no/x")).is_err());
        assert_eq!(place(Path::new("/")).unwrap(), Path::new("/"));
    }
}
