//! Which images this process has open, so that no image is written by two disks, or written under a reader.
//!
//! Owns a table of claims for the whole process. Never opens anything. Invariant: an image in the table has either one
//! writer or any number of readers; or it is no image, and no disk has it.

use super::{OpenError, UsedBy};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use undercroft_host::FileId;

static OPEN: Mutex<BTreeMap<Image, Entry>> = Mutex::new(BTreeMap::new());

/// What tells one image from another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Image {
    /// A file or a block device.
    File(FileId),
    /// An export of an NBD server, by its location.
    Export(String),
}

impl From<FileId> for Image {
    fn from(id: FileId) -> Self {
        Self::File(id)
    }
}

struct Entry {
    /// Location of the disk that came first, or whose file it is, in words.
    by: String,
    /// Whether disks have it.
    of_disks: bool,
    writer: bool,
    claims: usize,
}

fn table() -> MutexGuard<'static, BTreeMap<Image, Entry>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to use one image in one way; ends when dropped.
#[derive(Debug)]
pub(super) struct InUse(Image);

impl InUse {
    /// Claims the image `id` for the disk at `location`.
    pub(super) fn claim(id: impl Into<Image>, image: &str, location: &str, writer: bool) -> Result<Self, OpenError> {
        let (mut table, id) = (table(), id.into());
        match table.get_mut(&id) {
            None => {
                table.insert(id.clone(), Entry { by: location.to_owned(), of_disks: true, writer, claims: 1 });
            }
            Some(e) if !e.of_disks => {
                return Err(OpenError::NotForDisks { image: image.to_owned(), by: e.by.clone() });
            }
            Some(e) if !writer && !e.writer => e.claims += 1,
            Some(e) => {
                let remedy = if writer && !e.writer {
                    "it is read there (perhaps as the backing image of a clone): writing to it would change that disk; \
                     make a clone: `qemu-img create -f qcow2 -b IMAGE -F FORMAT CLONE`"
                } else if writer {
                    "two disks that write to one image destroy it; remove one, or make a clone for it: `qemu-img \
                     create -f qcow2 -b IMAGE -F FORMAT CLONE`"
                } else {
                    "it is written there, so what is read here could be stale; open it read-only there too"
                };
                return Err(OpenError::InUseHere { image: image.to_owned(), other: e.by.clone(), remedy });
            }
        }
        Ok(Self(id))
    }

    /// Claims a file that is not to be an image, as its only user; or says whose it is.
    pub(super) fn take(id: FileId, by: &str) -> Result<Self, UsedBy> {
        let (mut table, id) = (table(), Image::File(id));
        if let Some(e) = table.get(&id) {
            return Err(UsedBy { by: e.by.clone() });
        }
        table.insert(id.clone(), Entry { by: by.to_owned(), of_disks: false, writer: true, claims: 1 });
        Ok(Self(id))
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut table = table();
        if let Some(e) = table.get_mut(&self.0) {
            e.claims -= 1;
            if e.claims == 0 {
                table.remove(&self.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_writer_or_many_readers_or_no_disk() {
        let id = FileId::File { device: u64::MAX, inode: 1 };
        let claim = |writer| InUse::claim(id, "a.img", "disk one", writer);
        drop(InUse::take(id, "a recording").unwrap());
        let readers = (claim(false).unwrap(), claim(false).unwrap());
        assert_eq!(InUse::take(id, "a recording").unwrap_err().by, "disk one");
        let e = claim(true).unwrap_err().to_string();
        assert!(e.contains("a.img") && e.contains("disk one"), "{e}");
        drop(readers.0);
        assert!(claim(true).is_err());
        drop(readers.1);
        let writer = claim(true).unwrap();
        assert!(claim(true).is_err());
        assert!(claim(false).is_err());
        drop(writer);
        let taken = InUse::take(id, "a recording").unwrap();
        assert_eq!(InUse::take(id, "another").unwrap_err().by, "a recording");
        for writer in [false, true] {
            let e = claim(writer).unwrap_err().to_string();
            assert!(e.contains("a.img") && e.contains("belongs to a recording"), "{e}");
        }
        drop(taken);
        claim(false).unwrap();
    }
}
