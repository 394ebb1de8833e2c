//! Which images this process has open, so that no image is written by two disks, or written under a reader.
//!
//! Owns a table of claims for the whole process. Never opens anything. Invariant: an image in the table has either one
//! writer or any number of readers.

use super::OpenError;
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
    /// Location of the disk that came first.
    by: String,
    writer: bool,
    claims: usize,
}

fn table() -> MutexGuard<'static, BTreeMap<Image, Entry>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The disk that has a file open as its image or as one behind it, by its location.
pub(super) fn user_of(id: FileId) -> Option<String> {
    table().get(&Image::File(id)).map(|e| e.by.clone())
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
                table.insert(id.clone(), Entry { by: location.to_owned(), writer, claims: 1 });
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
    fn one_writer_or_many_readers() {
        let id = FileId::File { device: u64::MAX, inode: 1 };
        let claim = |writer| InUse::claim(id, "a.img", "disk one", writer);
        assert_eq!(user_of(id), None);
        let readers = (claim(false).unwrap(), claim(false).unwrap());
        assert_eq!(user_of(id).as_deref(), Some("disk one"));
        let e = claim(true).unwrap_err().to_string();
        assert!(e.contains("a.img") && e.contains("disk one"), "{e}");
        drop(readers.0);
        assert!(claim(true).is_err());
        drop(readers.1);
        let writer = claim(true).unwrap();
        assert!(claim(true).is_err());
        assert!(claim(false).is_err());
        drop(writer);
        claim(false).unwrap();
    }
}
