//! Numbers for states of images that nobody writes: the same number means the same bytes, so that disks on one image
//! can hold its blocks once.
//!
//! Owns the numbers, for the whole process. Never opens anything: whoever asks holds the files open, claimed for
//! reading and locked against writers. Invariant: a number stands for the same files, opened in the same formats,
//! unchanged by size and times of change since.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};
use undercroft_cache::LayerId;
use undercroft_host::{DiskFile, FileId};

/// One file of a chain, in one state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileState {
    id: FileId,
    size_bytes: u64,
    /// Last change of the content and of the inode, in seconds and nanoseconds.
    times: [(i64, i64); 2],
    /// Whether it is read as qcow2.
    qcow2: bool,
}

impl FileState {
    /// The state of an open file; `None` for a block device, whose state nothing tells.
    pub(super) fn of(file: &DiskFile, qcow2: bool) -> io::Result<Option<Self>> {
        if file.is_device {
            return Ok(None);
        }
        let stat = rustix::fs::fstat(&**file.file)?;
        let times = [(stat.st_mtime, stat.st_mtime_nsec as i64), (stat.st_ctime, stat.st_ctime_nsec as i64)];
        Ok(Some(Self { id: file.id, size_bytes: file.size_bytes, times, qcow2 }))
    }
}

static KNOWN: Mutex<BTreeMap<Vec<FileState>, u64>> = Mutex::new(BTreeMap::new());

/// The number of a chain, its top first.
pub(super) fn number(chain: &[FileState]) -> LayerId {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let next = known.len() as u64;
    LayerId(*known.entry(chain.to_vec()).or_insert(next))
}

#[cfg(test)]
mod tests {
    use super::*;
    use undercroft_host::Direct;

    #[test]
    fn one_number_for_one_state_of_one_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.raw");
        std::fs::write(&path, [1; 8192]).unwrap();
        let state = |qcow2| FileState::of(&DiskFile::open(&path, true, Direct::No).unwrap().0, qcow2).unwrap().unwrap();
        let before = number(&[state(false)]);
        assert_eq!(number(&[state(false)]), before);
        assert_ne!(number(&[state(true)]), before, "the same file in another format");
        assert_ne!(number(&[state(false), state(false)]), before);
        std::fs::write(&path, [2; 8192]).unwrap();
        let earlier = std::time::SystemTime::UNIX_EPOCH;
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(earlier).unwrap();
        assert_ne!(number(&[state(false)]), before, "it has changed meanwhile");
    }
}
