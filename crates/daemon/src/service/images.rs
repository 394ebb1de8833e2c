//! Finds image files that are deleted or replaced while they are served, and says so; they are served on.
//!
//! Owns what each path named when its image was opened. Never opens or changes anything. Invariant: a disk whose file
//! is gone goes on with the file that it holds open; that is said once in the log, and in its status for as long as it
//! lasts.

use super::Service;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Pause between two looks.
const PAUSE: Duration = Duration::from_secs(5);

/// What tells one file from another: device and inode, or the number of a device.
type Identity = (u64, u64);

/// The file that an image was opened from.
#[derive(Debug)]
pub(super) struct ImageFile {
    path: PathBuf,
    identity: Identity,
    gone: AtomicBool,
}

fn identity(path: &std::path::Path) -> std::io::Result<Identity> {
    let meta = fs::metadata(path)?;
    let device = meta.file_type().is_block_device() || meta.file_type().is_char_device();
    Ok(if device { (u64::MAX, meta.rdev()) } else { (meta.dev(), meta.ino()) })
}

impl ImageFile {
    /// What `location` names now; `None` if it is no file.
    pub(super) fn at(location: &str) -> Option<Self> {
        let path = PathBuf::from(location);
        let identity = identity(&path).ok()?;
        Some(Self { path, identity, gone: AtomicBool::new(false) })
    }

    /// Whether the path named another file, or none, when it was last looked at: in words.
    pub(super) fn reason(&self) -> Option<String> {
        self.gone.load(Ordering::Relaxed).then(|| {
            format!(
                "the file at {} has been deleted or replaced; the disk goes on with the one that is open, which is \
                 lost when it is detached or the daemon ends: copy the disk from inside the guest or over NBD",
                self.path.display()
            )
        })
    }

    /// Looks again; says what has changed.
    fn look(&self, disk: &str) {
        let gone = match identity(&self.path) {
            Ok(now) => now != self.identity,
            Err(e) => e.kind() == std::io::ErrorKind::NotFound,
        };
        if self.gone.swap(gone, Ordering::Relaxed) != gone {
            match self.reason() {
                Some(reason) => tracing::error!(disk, "{reason}"),
                None => tracing::info!(disk, "its image is where it was again"),
            }
        }
    }
}

impl Service {
    /// Starts the thread that looks at image files; it ends with the service.
    pub(super) fn begin_looking_at_images(self: &Arc<Self>) {
        let service: Weak<Self> = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("undercroft-files".into()).spawn(move || {
            while let Some(service) = service.upgrade() {
                if service.wait(PAUSE) {
                    return;
                }
                // A file system that does not answer keeps this thread alone waiting.
                for disk in service.disks() {
                    if let Some(file) = disk.image_file() {
                        file.look(&disk.info().name);
                    }
                }
            }
        });
        if let Err(e) = thread {
            tracing::error!("images that are deleted go unnoticed: there can be no thread that looks: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deleted_replaced_and_back() {
        let dir = tempfile::tempdir().unwrap();
        let (path, aside) = (dir.path().join("a.raw"), dir.path().join("b.raw"));
        fs::write(&path, "first").unwrap();
        let file = ImageFile::at(path.to_str().unwrap()).unwrap();
        let state = || {
            file.look("a");
            file.reason().is_some()
        };
        assert!(!state());
        fs::write(&path, "changed in place").unwrap();
        assert!(!state(), "the same file with other bytes");
        fs::rename(&path, &aside).unwrap();
        assert!(state(), "moved away");
        fs::write(&path, "second").unwrap();
        assert!(state(), "replaced");
        fs::rename(&aside, &path).unwrap();
        assert!(!state(), "back");
        assert!(ImageFile::at("nbd://localhost/a").is_none());
    }
}
