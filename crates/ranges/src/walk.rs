//! The walk: from paths to every regular file below them, and from files to pieces of the disk.
//!
//! Owns which files count. Never follows a symbolic link, never leaves a path's own file system, counts a file with
//! several names once. A file that goes while it is looked for is no problem; one that may not be read is, and the walk
//! goes on.

use crate::RangesError;
use crate::device::{Sysfs, WholeDisk};
use crate::filesystem::refusal;
use crate::found::{ByteSpan, FilePiece, FoundRanges};
use rustix::fs::{Dir, FileType, Mode, OFlags, Stat, fstat, fstatfs, open};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use undercroft_host::{FileExtent, Place, file_extents};

/// Problems that are reported one by one; further ones are only counted.
const PROBLEMS_MAX: usize = 10;

/// Finds the pieces of all files at and below `paths`.
///
/// # Errors
/// A path is not there, is on a file system that cannot tell where files are, or on another disk than the first.
pub fn find(paths: &[PathBuf], sysfs: &Sysfs) -> Result<FoundRanges, RangesError> {
    let mut walk = Walk { found: FoundRanges::default(), seen: HashSet::new() };
    let mut first: Option<(&Path, WholeDisk)> = None;
    for path in paths {
        let (fd, stat) = start(path)?;
        let fs = fstatfs(&fd).map_err(|e| denied(path, e))?;
        if let Some((reason, remedy)) = refusal(path, fs.f_type as u64) {
            return Err(RangesError::path(path, reason, remedy));
        }
        let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        let disk = sysfs.disk(major, minor).map_err(|(reason, remedy)| RangesError::path(path, reason, remedy))?;
        if let Some((other, one)) = &first
            && one.name != disk.name
        {
            let reason = format!("it is on disk {}, but {} is on disk {}", disk.name, other.display(), one.name);
            return Err(RangesError::path(path, reason, "run this once for each disk"));
        }
        first.get_or_insert_with(|| (path, disk.clone()));
        walk.tree(path, fd, &stat, &disk)?;
    }
    walk.found.disk = first.map(|(_, disk)| disk);
    walk.found.pieces.sort_unstable();
    Ok(walk.found)
}

/// Opens a path that was named: links in it are followed, except for the last.
fn start(path: &Path) -> Result<(OwnedFd, Stat), RangesError> {
    let fd = open_to_look(path).map_err(|e| denied(path, e))?;
    let stat = fstat(&fd).map_err(|e| denied(path, e))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory | FileType::RegularFile => Ok((fd, stat)),
        _ => Err(RangesError::path(path, "it is neither a directory nor a regular file", "name directories and files")),
    }
}

fn open_to_look(path: &Path) -> Result<OwnedFd, Errno> {
    // NONBLOCK: a FIFO that took the place of a file must not hold us up.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    open(path, flags, Mode::empty())
}

fn denied(path: &Path, e: Errno) -> RangesError {
    let remedy = match e {
        Errno::NOENT => "name directories and files that are there",
        Errno::ACCESS | Errno::PERM => "run this as root, or as a user who may read it",
        Errno::LOOP => "it is a symbolic link: name what it points to",
        _ => "look at the kernel's log",
    };
    RangesError::path(path, std::io::Error::from(e).to_string(), remedy)
}

struct Walk {
    found: FoundRanges,
    /// Directories, and files with several names: device and inode.
    seen: HashSet<(u64, u64)>,
}

impl Walk {
    /// A path that was named, and everything below it.
    fn tree(&mut self, path: &Path, fd: OwnedFd, stat: &Stat, disk: &WholeDisk) -> Result<(), RangesError> {
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
            return self.file(path, &fd, stat, disk);
        }
        let device = stat.st_dev;
        let mut waiting = vec![path.to_path_buf()];
        while let Some(dir) = waiting.pop() {
            let Some((fd, stat)) = self.look(&dir) else { continue };
            if stat.st_dev != device {
                self.found.mounts += 1;
                continue;
            }
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory || !self.seen.insert((device, stat.st_ino))
            {
                continue;
            }
            let entries = match Dir::new(fd) {
                Ok(entries) => entries,
                Err(e) => {
                    self.problem(&dir, e);
                    continue;
                }
            };
            for entry in entries {
                let entry = match entry {
                    Ok(entry) => entry,
                    Err(e) => {
                        self.problem(&dir, e);
                        break;
                    }
                };
                let name = entry.file_name().to_bytes();
                if name == b"." || name == b".." {
                    continue;
                }
                let at = dir.join(OsStr::from_bytes(name));
                match entry.file_type() {
                    FileType::Directory => waiting.push(at),
                    // Some file systems do not say in the directory what it is.
                    FileType::RegularFile | FileType::Unknown => {
                        let Some((fd, stat)) = self.look(&at) else { continue };
                        match FileType::from_raw_mode(stat.st_mode) {
                            FileType::RegularFile if stat.st_dev == device => self.file(&at, &fd, &stat, disk)?,
                            FileType::Directory => waiting.push(at),
                            _ => {}
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Opens what was found; `None` if it has gone, or is told as a problem.
    fn look(&mut self, path: &Path) -> Option<(OwnedFd, Stat)> {
        let opened = open_to_look(path).and_then(|fd| fstat(&fd).map(|stat| (fd, stat)));
        opened.map_err(|e| self.problem(path, e)).ok()
    }

    /// The pieces of one open file.
    fn file(&mut self, path: &Path, fd: &OwnedFd, stat: &Stat, disk: &WholeDisk) -> Result<(), RangesError> {
        if stat.st_nlink > 1 && !self.seen.insert((stat.st_dev, stat.st_ino)) {
            return Ok(());
        }
        let (mut pieces, file) = (Vec::new(), self.found.files.len());
        let told = file_extents(fd, |e| match piece(&e, disk) {
            Ok(span) => {
                pieces.push(FilePiece { span, file });
                self.found.shared += u64::from(e.shared);
            }
            Err(place) => {
                let left = self.found.left.entry(place).or_default();
                left.extents += 1;
                left.bytes += e.length;
            }
        });
        match told.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO)) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::NOTTY) => {
                let reason = "its file system cannot tell where files are (no FIEMAP)";
                return Err(RangesError::path(
                    path,
                    reason,
                    "put the container on ext4 or XFS, or on a disk of its own",
                ));
            }
            Err(e) => self.problem(path, e),
        }
        if !pieces.is_empty() {
            self.found.files.push(path.to_path_buf());
            self.found.pieces.append(&mut pieces);
        }
        Ok(())
    }

    fn problem(&mut self, path: &Path, e: Errno) {
        if e == Errno::NOENT || e == Errno::LOOP {
            // Gone, or replaced by a link, since its name was read.
            return;
        }
        self.found.unread += 1;
        if self.found.problems.len() < PROBLEMS_MAX {
            self.found.problems.push(format!("{}: {}", path.display(), std::io::Error::from(e)));
        }
    }
}

/// Where an extent is on the whole disk; otherwise why it is nowhere.
fn piece(e: &FileExtent, disk: &WholeDisk) -> Result<ByteSpan, Place> {
    if e.place != Place::Blocks {
        return Err(e.place);
    }
    let start = e.physical.checked_add(disk.start_bytes);
    let end = start.and_then(|s| s.checked_add(e.length)).filter(|end| *end <= disk.size_bytes);
    start.zip(end).filter(|(start, end)| start < end).map(|(start, end)| ByteSpan { start, end }).ok_or(Place::Blocks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    const KIB: usize = 1024;

    /// A directory on a real disk, and a /sys in which its device is the whole disk.
    fn place() -> Option<(tempfile::TempDir, tempfile::TempDir, Sysfs)> {
        let dir = std::env::var_os("UNDERCROFT_TEST_DIR").unwrap_or("/var/tmp".into());
        let (files, sys) = (tempfile::tempdir_in(dir).unwrap(), tempfile::tempdir().unwrap());
        let device = fs::metadata(files.path()).unwrap().dev();
        let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        fs::create_dir_all(sys.path().join("dev/block").join(&number)).unwrap();
        fs::write(sys.path().join("dev/block").join(&number).join("size"), format!("{}", 1u64 << 50)).unwrap();
        let sysfs = Sysfs::at(sys.path());
        fs::write(files.path().join("probe"), [1; 4 * KIB]).unwrap();
        if let Err(e) = find(&[files.path().join("probe")], &sysfs) {
            undercroft_skips::skip(format_args!("the tests' directory is on no disk whose files have places: {e}"));
            return None;
        }
        fs::remove_file(files.path().join("probe")).unwrap();
        Some((files, sys, sysfs))
    }

    fn bytes(found: &FoundRanges) -> u64 {
        found.spans().iter().map(|s| s.end - s.start).sum()
    }

    #[test]
    fn every_file_counts_once_and_links_do_not() {
        let Some((files, _sys, sysfs)) = place() else { return };
        let (root, outside) = (files.path().join("web"), files.path().join("outside"));
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(root.join("a/b/deep"), vec![1; 64 * KIB]).unwrap();
        fs::write(root.join("top"), vec![2; 32 * KIB]).unwrap();
        fs::write(root.join("empty"), []).unwrap();
        fs::hard_link(root.join("top"), root.join("a/top again")).unwrap();
        fs::write(outside.join("no"), vec![3; 128 * KIB]).unwrap();
        symlink(&outside, root.join("link")).unwrap();
        symlink(root.join("top"), root.join("file link")).unwrap();
        symlink(root.join("a"), root.join("a/b/loop")).unwrap();
        let found = find(&[root.clone(), root.join("a"), root.join("top")], &sysfs).unwrap();
        assert_eq!((found.files.len(), bytes(&found)), (2, 96 * KIB as u64), "{found:?}");
        assert_eq!((found.unread, found.mounts), (0, 0));
        let all = find(&[files.path().to_path_buf()], &sysfs).unwrap();
        assert_eq!(bytes(&all), 224 * KIB as u64);
        // No byte is told of two files.
        let pieces: Vec<_> = all.pieces.iter().map(|p| p.span).collect();
        assert!(pieces.windows(2).all(|w| w[0].end <= w[1].start), "{pieces:?}");
    }

    #[test]
    fn holes_and_what_was_never_written_are_no_ranges() {
        let Some((files, _sys, sysfs)) = place() else { return };
        let file = fs::File::create(files.path().join("file")).unwrap();
        file.set_len(1 << 20).unwrap();
        assert_eq!(bytes(&find(&[files.path().to_path_buf()], &sysfs).unwrap()), 0);
        let unwritten = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 1 << 18).is_ok();
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 8 * KIB], 1 << 19).unwrap();
        let found = find(&[files.path().to_path_buf()], &sysfs).unwrap();
        assert_eq!(bytes(&found), 8 * KIB as u64);
        if unwritten {
            assert_eq!(found.left[&Place::Unwritten].bytes, 1 << 18, "{found:?}");
            assert!(found.remarks()[0].contains("not written"));
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_path_and_remedy() {
        let Some((files, sys, sysfs)) = place() else { return };
        let link = files.path().join("link");
        symlink(files.path(), &link).unwrap();
        for (path, said) in [
            (files.path().join("nothing"), "that are there"),
            (link, "symbolic link"),
            (PathBuf::from("/dev/null"), "neither"),
            (PathBuf::from("/proc/self/status"), "no file system on a disk"),
        ] {
            let e = find(std::slice::from_ref(&path), &sysfs).expect_err(said).to_string();
            assert!(e.contains(said) && e.starts_with(path.to_str().unwrap()), "{e}");
        }
        fs::remove_dir_all(sys.path().join("dev")).unwrap();
        let e = find(&[files.path().to_path_buf()], &sysfs).unwrap_err().to_string();
        assert!(e.contains("no block device"), "{e}");
    }

    #[test]
    fn extents_past_the_end_of_the_disk_are_left_out() {
        let disk = WholeDisk { name: "vda".into(), serial: None, start_bytes: 1 << 20, size_bytes: 2 << 20 };
        let extent = |physical, length, place| FileExtent { logical: 0, physical, length, place, shared: false };
        let at = |e| piece(&e, &disk);
        assert_eq!(
            at(extent(4096, 8192, Place::Blocks)),
            Ok(ByteSpan { start: (1 << 20) + 4096, end: (1 << 20) + 12288 })
        );
        assert_eq!(at(extent(1 << 20, 1, Place::Blocks)), Err(Place::Blocks));
        assert_eq!(at(extent(u64::MAX, 1, Place::Blocks)), Err(Place::Blocks));
        assert_eq!(at(extent(0, 0, Place::Blocks)), Err(Place::Blocks));
        assert_eq!(at(extent(0, 1, Place::Inline)), Err(Place::Inline));
    }
}
