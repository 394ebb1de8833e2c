//! The file of a recording: created, taken over if it is empty, or passed along by a client; space is reserved before
//! it is written.
//!
//! Owns what may become of a path that a client names, or of a file that it passes. Never follows a link at the end of
//! a path, and never touches a file that holds something unless told to. Invariant: what was promised by `reserve` can
//! be written although the disk fills up.

use rustix::fs::{FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use undercroft_backend::{self as backend, NoDisks};
use undercroft_config::{ControlError, ControlErrorKind};

/// See the head of the file.
pub struct RecordFile {
    file: File,
    /// What is written, so far.
    bytes: u64,
    /// Up to where there is space.
    reserved: u64,
    /// Whether this file system can be asked for space.
    reserves: bool,
    /// No disk opens it meanwhile.
    _kept: NoDisks,
}

impl RecordFile {
    /// Sees to it that the file can have `bytes` bytes; false if its disk is too full for that.
    pub fn reserve(&mut self, bytes: u64) -> io::Result<bool> {
        if !self.reserves || bytes <= self.reserved {
            return Ok(true);
        }
        match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, self.reserved, bytes - self.reserved) {
            Ok(()) => {
                self.reserved = bytes;
                Ok(true)
            }
            Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Ok(false),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.reserves = false;
                Ok(true)
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Bytes up to which there is space.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Free bytes of its disk; 0 if that cannot be found out.
    pub fn free_bytes(&self) -> u64 {
        rustix::fs::fstatvfs(&self.file).map_or(0, |s| s.f_bavail.saturating_mul(s.f_frsize))
    }

    /// Gives back what was reserved and not used, and sees to it that the rest is on the disk.
    pub fn settle(file: &File) -> io::Result<()> {
        let length = file.metadata()?.len();
        file.set_len(length)?;
        file.sync_all()
    }

    /// Another handle, for the end.
    pub fn handle(&self) -> io::Result<File> {
        self.file.try_clone()
    }
}

impl Write for RecordFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        // A client that passed the file may move the position in it.
        let n = self.file.write_at(buf, self.bytes)?;
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The file of a path. A file that is the image of a disk, or behind one, becomes no recording; `would_be` says so of
/// disks that are not open, of a file by its device and inode. Waits for a file system that does not answer.
///
/// # Errors
/// `Invalid` if the path is not absolute or no plain file, `Conflict` if it holds something and `force` is not given,
/// `Failed` if it cannot be opened.
pub fn create(
    path: &Path,
    force: bool,
    would_be: impl Fn(u64, u64) -> Option<String>,
) -> Result<RecordFile, ControlError> {
    let shown = path.display();
    if !path.is_absolute() {
        let error = format!("the path {shown} is not absolute");
        return Err(ControlError::new(
            ControlErrorKind::Invalid,
            error,
            "the daemon has a directory of its own: begin with /",
        ));
    }
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mode = Mode::RUSR | Mode::WUSR;
    let opened = match rustix::fs::open(path, flags | OFlags::CREATE | OFlags::EXCL, mode) {
        Err(Errno::EXIST) => rustix::fs::open(path, flags, mode),
        other => other,
    };
    let file = File::from(opened.map_err(|e| {
        let remedy = match e {
            Errno::ACCESS | Errno::PERM | Errno::ROFS => {
                "name a directory that the daemon may write to (its unit file may allow few), or pass the file's \
                 descriptor along, as `undercroft record` does"
            }
            Errno::LOOP => "name the file itself, not a link to it",
            _ => "name a file in a directory that there is",
        };
        ControlError::new(ControlErrorKind::Failed, format!("the daemon cannot create {shown}: {e}"), remedy)
    })?);
    taken_over(file, path, force, would_be)
}

/// The file that a client has opened and passed along; `path` is what the client calls it. See [`create`]: the same
/// files are refused. Whether the daemon could have opened it does not matter.
///
/// # Errors
/// `Invalid` if it is no plain file, or cannot be written anywhere in it; else as [`create`].
pub fn passed(
    file: File,
    path: &Path,
    force: bool,
    would_be: impl Fn(u64, u64) -> Option<String>,
) -> Result<RecordFile, ControlError> {
    let flags = rustix::fs::fcntl_getfl(&file).unwrap_or(OFlags::PATH);
    let writable = matches!(flags & OFlags::RWMODE, OFlags::WRONLY | OFlags::RDWR);
    if !writable || flags.intersects(OFlags::APPEND | OFlags::PATH) {
        let error = format!("the descriptor that was passed along for {} is not open for writing", path.display());
        let remedy = "open the file with O_WRONLY or O_RDWR, and without O_APPEND";
        return Err(ControlError::new(ControlErrorKind::Invalid, error, remedy));
    }
    taken_over(file, path, force, would_be)
}

/// A file that is open for writing becomes a recording, if it may.
fn taken_over(
    file: File,
    path: &Path,
    force: bool,
    would_be: impl Fn(u64, u64) -> Option<String>,
) -> Result<RecordFile, ControlError> {
    let shown = path.display();
    let invalid =
        |what: &str, remedy: &str| ControlError::new(ControlErrorKind::Invalid, format!("{shown} {what}"), remedy);
    let failed = |e: io::Error| {
        ControlError::new(ControlErrorKind::Failed, format!("the daemon cannot use {shown}: {e}"), "name another file")
    };
    let stat = rustix::fs::fstat(&file).map_err(|e| failed(e.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(invalid("is no plain file", "name one, or a name that is free"));
    }
    if stat.st_size > 0 && !force {
        let error = format!("{shown} holds something already");
        return Err(ControlError::new(ControlErrorKind::Conflict, error, "name another file, or say force"));
    }
    let used = |by: String| invalid(&format!("is the image of a disk, or behind it ({by})"), "name another file");
    let (device, inode) = (stat.st_dev, stat.st_ino);
    let kept = backend::keep_from_disks(device, inode, &format!("the recording {shown}")).map_err(|e| used(e.by))?;
    if stat.st_size > 0 {
        if let Some(disk) = would_be(device, inode) {
            return Err(used(disk));
        }
        file.set_len(0).map_err(failed)?;
    }
    Ok(RecordFile { file, bytes: 0, reserved: 0, reserves: true, _kept: kept })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn none(_: u64, _: u64) -> Option<String> {
        None
    }

    fn refusal(path: &Path, force: bool) -> String {
        create(path, force, none).err().map(|e| e.to_string()).unwrap_or_default()
    }

    #[test]
    fn only_what_is_free_or_empty_is_taken_unless_forced() {
        let dir = tempfile::tempdir().unwrap();
        let (free, full, link) = (dir.path().join("free"), dir.path().join("full"), dir.path().join("link"));
        std::fs::write(&full, "of use").unwrap();
        std::os::unix::fs::symlink(&full, &link).unwrap();
        assert!(create(&free, false, none).is_ok() && free.exists());
        assert!(create(&free, false, none).is_ok(), "an empty file is as good as none");
        assert!(refusal(&full, false).contains("holds something"), "{}", refusal(&full, false));
        assert!(refusal(&link, true).contains("not a link"));
        assert!(refusal(dir.path(), true).contains("cannot create"));
        assert!(refusal(Path::new("relative"), true).contains("not absolute"));
        assert!(refusal(Path::new("/dev/null"), true).contains("no plain file"));
        let meta = std::fs::metadata(&full).unwrap();
        let used = |device, inode| (device, inode) == (meta.dev(), meta.ino());
        let refused = create(&full, true, |d, i| used(d, i).then(|| "top.qcow2".into())).err().unwrap().to_string();
        assert!(refused.contains("image of a disk") && refused.contains("top.qcow2"), "{refused}");
        let open = backend::keep_from_disks(meta.dev(), meta.ino(), "open.raw").unwrap();
        assert!(refusal(&full, true).contains("open.raw"), "{}", refusal(&full, true));
        drop(open);
        assert_eq!(std::fs::read(&full).unwrap(), b"of use", "what was refused is as it was");
        assert!(create(&full, true, none).is_ok());
        assert_eq!(std::fs::read(&full).unwrap(), b"");
    }

    #[test]
    fn a_file_that_was_passed_is_held_to_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let shown = Path::new("/nowhere/file");
        let open = |options: &mut std::fs::OpenOptions| options.create(true).open(&path).unwrap();
        let refusal = |file: File, force| passed(file, shown, force, none).err().map(|e| e.to_string()).unwrap();
        let mut recording = passed(open(File::options().write(true)), shown, false, none).unwrap();
        // Whoever passed it shares its position.
        let mut theirs = &recording.file;
        std::io::Seek::seek(&mut theirs, std::io::SeekFrom::Start(100)).unwrap();
        recording.write_all(b"of ").unwrap();
        recording.write_all(b"use").unwrap();
        drop(recording);
        assert_eq!(std::fs::read(&path).unwrap(), b"of use");
        let why = refusal(open(File::options().write(true)), false);
        assert!(why.contains("/nowhere/file holds something"), "{why}");
        for file in [open(File::options().append(true)), File::open(&path).unwrap()] {
            let why = refusal(file, true);
            assert!(why.contains("not open for writing") && why.contains("O_RDWR"), "{why}");
        }
        let known = rustix::fs::open(&path, OFlags::PATH, Mode::empty()).unwrap();
        assert!(refusal(known.into(), true).contains("not open for writing"));
        assert!(refusal(File::options().write(true).open("/dev/null").unwrap(), true).contains("no plain file"));
        let meta = std::fs::metadata(&path).unwrap();
        let open_disk = backend::keep_from_disks(meta.dev(), meta.ino(), "open.raw").unwrap();
        let why = refusal(open(File::options().write(true)), true);
        assert!(why.contains("open.raw"), "{why}");
        drop(open_disk);
        assert_eq!(std::fs::read(&path).unwrap(), b"of use", "what was refused is as it was");
        assert!(passed(open(File::options().read(true).write(true)), shown, true, none).is_ok());
        assert_eq!(std::fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn what_is_reserved_and_not_used_is_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut file = create(&path, false, none).unwrap();
        let handle = file.handle().unwrap();
        assert!(file.reserve(1 << 20).unwrap());
        file.write_all(b"little").unwrap();
        drop(file);
        RecordFile::settle(&handle).unwrap();
        let meta = std::fs::metadata(&path).unwrap();
        assert!(meta.len() == 6 && meta.blocks() * 512 <= 64 << 10, "{} bytes in {} blocks", meta.len(), meta.blocks());
    }
}
