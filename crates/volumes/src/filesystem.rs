//! File systems: what a disk holds, whether it is empty, and making one.
//!
//! Owns the calls of `blkid` and `mkfs`. Never makes a file system on a disk that holds a byte that is not zero.
//! Invariant: a program that runs when somebody asks to stop is let finish, so that no disk is left half made.

use crate::VolumeError;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes that are looked at at once.
const PIECE: usize = 1 << 20;
/// Bytes of what a program says that are kept.
const WORDS_MAX: u64 = 4096;
/// Where programs for file systems are, beside what `PATH` says.
const MORE_PLACES: &str = ":/usr/sbin:/sbin:/usr/local/sbin";

/// Kinds of file systems that are made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsKind {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
}

impl FsKind {
    /// All of them.
    pub const ALL: [FsKind; 2] = [FsKind::Ext4, FsKind::Xfs];

    /// Its name, as `mount` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    /// The program that makes it, how it is told not to free what is free already, and its package.
    fn maker(self) -> (&'static str, &'static [&'static str], &'static str) {
        match self {
            Self::Ext4 => ("mkfs.ext4", &["-q", "-F", "-E", "nodiscard"], "e2fsprogs"),
            Self::Xfs => ("mkfs.xfs", &["-q", "-K"], "xfsprogs"),
        }
    }

    /// Makes one on a device or a file, which has to be empty.
    pub(crate) fn make(self, on: &Path) -> Result<(), VolumeError> {
        let (program, words, package) = self.maker();
        let mut command = Command::new(program);
        command.args(words).arg(on);
        let (ok, said) = run(command, program, package)?;
        match ok {
            true => Ok(()),
            false => Err(VolumeError::new(
                format!("{program} failed on {}: {said}", on.display()),
                "see what it says; another kind of file system or a larger disk may do",
            )),
        }
    }
}

impl FromStr for FsKind {
    type Err = VolumeError;

    fn from_str(text: &str) -> Result<Self, VolumeError> {
        Self::ALL.into_iter().find(|k| k.name() == text).ok_or_else(|| {
            let shown: String = text.chars().take(40).collect();
            VolumeError::new(format!("no file system \"{shown}\" is made here"), "give ext4 or xfs")
        })
    }
}

/// What a device holds, by its signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// None that is known.
    Nothing,
    /// A file system of that kind.
    Filesystem(String),
    /// Something else, in words.
    Other(String),
}

/// Looks for signatures.
pub(crate) fn look(device: &Path) -> Result<Holds, VolumeError> {
    let mut command = Command::new("blkid");
    command.args(["-p", "-o", "export", "--"]).arg(device).env("LC_ALL", "C").stdout(Stdio::piped());
    let out =
        with_places(&mut command).stdin(Stdio::null()).output().map_err(|e| missing("blkid", "util-linux", &e))?;
    match out.status.code() {
        Some(0) => Ok(holds(&String::from_utf8_lossy(&out.stdout))),
        Some(2) => Ok(Holds::Nothing),
        Some(8) => Ok(Holds::Other("signatures of several kinds, so that it is not clear what it is".into())),
        _ => Err(VolumeError::new(
            format!("blkid failed on {}: {}", device.display(), String::from_utf8_lossy(&out.stderr).trim()),
            "try it by hand: `blkid -p DEVICE`",
        )),
    }
}

/// What `blkid -o export` says.
fn holds(text: &str) -> Holds {
    let of = |key: &str| text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix('='));
    match (of("TYPE"), of("USAGE"), of("PTTYPE")) {
        (Some(kind), None | Some("filesystem"), _) => Holds::Filesystem(kind.to_owned()),
        (Some(kind), Some(_), _) => Holds::Other(kind.to_owned()),
        (None, _, Some(table)) => Holds::Other(format!("a table of partitions ({table})")),
        _ => Holds::Other("something that blkid has no name for".into()),
    }
}

/// Where the first byte is that is not zero; only what the image has of the disk is read.
pub(crate) fn first_byte(disk: &File, size: u64, stop: &AtomicBool) -> Result<Option<u64>, VolumeError> {
    let os = |e| VolumeError::os("look whether the disk is empty".into())(e);
    let zeroes = vec![0u8; PIECE];
    let mut bytes = vec![0u8; PIECE];
    let mut at = 0;
    while at < size {
        let end = match seek(disk, SeekFrom::Data(at)) {
            Ok(data) => {
                at = data;
                seek(disk, SeekFrom::Hole(data)).map_err(|e| os(e.into()))?.min(size)
            }
            Err(Errno::NXIO) => return Ok(None),
            // No holes are known there.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => size,
            Err(e) => return Err(os(e.into())),
        };
        while at < end {
            if stop.load(Ordering::Relaxed) {
                return Err(VolumeError::Interrupted);
            }
            let n = usize::try_from(end - at).map_or(PIECE, |left| left.min(PIECE));
            disk.read_exact_at(&mut bytes[..n], at).map_err(os)?;
            if bytes[..n] != zeroes[..n] {
                let first = bytes.iter().position(|b| *b != 0).unwrap_or_default();
                return Ok(Some(at + first as u64));
            }
            at += n as u64;
        }
    }
    Ok(None)
}

/// Runs a program to its end: whether it succeeded, and what it said.
fn run(mut command: Command, program: &str, package: &str) -> Result<(bool, String), VolumeError> {
    // In a group of its own: Ctrl-C is for us, and it finishes.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = with_places(&mut command).spawn().map_err(|e| missing(program, package, &e))?;
    let mut words = Vec::new();
    if let Some(said) = child.stderr.take() {
        let _ = said.take(WORDS_MAX).read_to_end(&mut words);
    }
    let ended = child.wait().map_err(VolumeError::os(format!("wait for {program}")))?;
    Ok((ended.success(), String::from_utf8_lossy(&words).trim().replace('\n', "; ")))
}

fn with_places(command: &mut Command) -> &mut Command {
    let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin".into());
    command.env("PATH", path + MORE_PLACES)
}

fn missing(program: &str, package: &str, e: &std::io::Error) -> VolumeError {
    VolumeError::new(format!("{program} cannot be run: {e}"), format!("install it (the package {package})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, Write};

    #[test]
    fn what_blkid_says_is_understood() {
        assert_eq!(holds("DEVNAME=/dev/loop0\nTYPE=ext4\nUSAGE=filesystem\n"), Holds::Filesystem("ext4".into()));
        assert_eq!(holds("TYPE=LVM2_member\nUSAGE=raid\n"), Holds::Other("LVM2_member".into()));
        assert_eq!(holds("TYPE=crypto_LUKS\nUSAGE=crypto\n"), Holds::Other("crypto_LUKS".into()));
        assert!(matches!(holds("PTUUID=x\nPTTYPE=gpt\n"), Holds::Other(what) if what.contains("gpt")));
        assert!(matches!(holds(""), Holds::Other(_)));
    }

    #[test]
    fn one_byte_anywhere_is_found() {
        let go = AtomicBool::new(false);
        let size = 40 << 20;
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        assert_eq!(first_byte(&file, size, &go).unwrap(), None);
        for at in [0, 4095, (5 << 20) + 17, size - 1] {
            file.seek(std::io::SeekFrom::Start(at)).unwrap();
            file.write_all(&[1]).unwrap();
            assert_eq!(first_byte(&file, size, &go).unwrap(), Some(at));
            file.seek(std::io::SeekFrom::Start(at)).unwrap();
            file.write_all(&[0]).unwrap();
            assert_eq!(first_byte(&file, size, &go).unwrap(), None);
        }
        go.store(true, Ordering::Relaxed);
        assert!(matches!(first_byte(&file, size, &go), Err(VolumeError::Interrupted)));
    }
}
