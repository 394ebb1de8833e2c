//! Which image a disk uses, below all names: the same file reached twice, or a backing file written under an overlay.
//!
//! Owns the answer to "would two disks disturb each other?". Reads at most a qcow2 header, never guest data, and writes
//! nothing. Invariant: a header, however damaged, gives an answer after a bounded number of small reads.

mod looks;

pub use looks::{Fault, LOOK_WAIT, Look, look};

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Backing files that are followed at most.
const CHAIN_MAX: usize = 64;
/// Longest name of a backing file, by the qcow2 specification.
const BACKING_NAME_BYTES_MAX: u32 = 1023;
const QCOW2_MAGIC: [u8; 4] = *b"QFI\xfb";

/// What an image is, whatever it is called.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Identity {
    /// A file: device and inode.
    File(u64, u64),
    /// A block device: its number.
    Device(u64),
    /// An NBD server: its URI, as written but for the default port.
    Uri(String),
    /// A file that does not answer: its path.
    Silent(String),
}

/// Whether a location names an NBD server rather than a file: `SCHEME://`.
pub fn scheme(location: &str) -> Option<&str> {
    let (scheme, _) = location.split_once("://")?;
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '+' || c == '-' || c == '.';
    (!scheme.is_empty() && scheme.chars().all(plain)).then_some(scheme)
}

/// What a path is.
///
/// # Errors
/// Those of `stat`; `InvalidInput` if it is neither a file nor a block device.
pub fn identity(path: &Path) -> io::Result<Identity> {
    let meta = fs::metadata(path)?;
    if meta.file_type().is_block_device() {
        Ok(Identity::Device(meta.rdev()))
    } else if meta.file_type().is_file() {
        Ok(Identity::File(meta.dev(), meta.ino()))
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a file nor a block device"))
    }
}

/// The image itself, then the backing files below it as far as they can be found. `raw` stops at the image. Waits for a
/// file system that does not answer; [`look`] does not.
fn chain(location: &str, raw: bool) -> Vec<Identity> {
    if scheme(location).is_some() {
        return vec![Identity::Uri(location.replacen(":10809/", "/", 1))];
    }
    let mut found = Vec::new();
    let mut next = Some(PathBuf::from(location));
    while let Some(path) = next.take() {
        let Ok(id) = identity(&path) else { break };
        if found.len() >= CHAIN_MAX || found.contains(&id) {
            break;
        }
        found.push(id);
        if !raw {
            next = backing_file(&path).ok().flatten();
        }
    }
    found
}

/// The backing file that a qcow2 header names, if it is a file; the path is made from the image's directory.
fn backing_file(path: &Path) -> io::Result<Option<PathBuf>> {
    let file = File::open(path)?;
    let mut header = [0; 20];
    file.read_exact_at(&mut header, 0)?;
    let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let offset = (u64::from(word(8)) << 32) | u64::from(word(12));
    let len = word(16);
    if header[..4] != QCOW2_MAGIC || offset == 0 || len == 0 || len > BACKING_NAME_BYTES_MAX {
        return Ok(None);
    }
    let mut name = vec![0; len as usize];
    file.read_exact_at(&mut name, offset)?;
    let Ok(name) = String::from_utf8(name) else { return Ok(None) };
    if scheme(&name).is_some() || name.starts_with("json:") {
        return Ok(None);
    }
    let name = name.strip_prefix("file:").unwrap_or(&name);
    Ok(Some(path.parent().unwrap_or(Path::new("/")).join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A qcow2 header that names a backing file.
    pub fn overlay(path: &Path, backing: &str) {
        let mut bytes = vec![0u8; 512];
        bytes[..4].copy_from_slice(&QCOW2_MAGIC);
        bytes[4..8].copy_from_slice(&3u32.to_be_bytes());
        bytes[8..16].copy_from_slice(&256u64.to_be_bytes());
        bytes[16..20].copy_from_slice(&(backing.len() as u32).to_be_bytes());
        bytes[256..256 + backing.len()].copy_from_slice(backing.as_bytes());
        fs::write(path, bytes).unwrap();
    }

    #[test]
    fn one_file_has_one_identity_under_all_its_names() {
        let dir = tempfile::tempdir().unwrap();
        let a = dir.path().join("a.raw");
        fs::write(&a, "x").unwrap();
        fs::hard_link(&a, dir.path().join("hard")).unwrap();
        std::os::unix::fs::symlink(&a, dir.path().join("soft")).unwrap();
        fs::write(dir.path().join("b.raw"), "x").unwrap();
        let id = |n: &str| identity(&dir.path().join(n)).unwrap();
        assert_eq!(id("a.raw"), id("hard"));
        assert_eq!(id("a.raw"), id("soft"));
        assert_ne!(id("a.raw"), id("b.raw"));
        assert!(identity(dir.path()).is_err());
        assert!(identity(Path::new("/dev/null")).is_err());
    }

    #[test]
    fn backing_files_are_followed_and_loops_end() {
        let dir = tempfile::tempdir().unwrap();
        let at = |n: &str| dir.path().join(n);
        fs::write(at("base"), [0; 512]).unwrap();
        overlay(&at("mid"), "base");
        overlay(&at("top"), at("mid").to_str().unwrap());
        overlay(&at("ring"), "ring");
        overlay(&at("dangling"), "nowhere");
        let chain_of = |n: &str| chain(at(n).to_str().unwrap(), false);
        assert_eq!(chain_of("top"), ["top", "mid", "base"].map(|n| identity(&at(n)).unwrap()));
        assert_eq!(chain(at("top").to_str().unwrap(), true).len(), 1);
        assert_eq!(chain_of("ring").len(), 1);
        assert_eq!(chain_of("dangling").len(), 1);
        assert!(chain_of("missing").is_empty());
    }

    #[test]
    fn damaged_headers_end_the_chain() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("bad");
        for (offset, len) in [(u64::MAX, 10u32), (256, u32::MAX), (256, 1024), (500, 900), (0, 10)] {
            overlay(&at, "base");
            let mut bytes = fs::read(&at).unwrap();
            bytes[8..16].copy_from_slice(&offset.to_be_bytes());
            bytes[16..20].copy_from_slice(&len.to_be_bytes());
            fs::write(&at, bytes).unwrap();
            assert_eq!(chain(at.to_str().unwrap(), false).len(), 1);
        }
        fs::write(&at, b"QFI\xfb").unwrap();
        assert_eq!(chain(at.to_str().unwrap(), false).len(), 1);
    }

    #[test]
    fn schemes_are_told_from_paths() {
        assert_eq!(scheme("nbd://host/x"), Some("nbd"));
        assert_eq!(scheme("nbd+unix:///x?socket=/s"), Some("nbd+unix"));
        assert_eq!(scheme("/path/with://slashes"), None);
        assert_eq!(scheme("disk.qcow2"), None);
    }
}
