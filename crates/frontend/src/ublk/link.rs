//! The name under which a device is found, whatever its number: a symbolic link.
//!
//! Owns the link. Never touches what is no link to a device of ublk. Invariant: at the end the link is gone, unless it
//! leads to another device by then.

use super::error::UblkError;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// What devices of ublk are called.
const PREFIX: &str = "/dev/ublkb";

/// Whether a device may have the name `path`: nothing has it, or a link to a device of ublk that was left.
///
/// # Errors
/// Something else has it, or its directory is not there.
pub fn look(path: &Path) -> Result<(), UblkError> {
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let parent = path.parent().unwrap_or(Path::new("/"));
            if parent.is_dir() { Ok(()) } else { Err(UblkError::NoDirectory { path: path.to_owned() }) }
        }
        Err(source) => Err(UblkError::Link { path: path.to_owned(), source }),
        Ok(_) if leads_to_ublk(path) => Ok(()),
        Ok(_) => Err(UblkError::Taken(path.to_owned())),
    }
}

fn leads_to_ublk(path: &Path) -> bool {
    fs::read_link(path).is_ok_and(|to| to.to_str().is_some_and(|to| to.starts_with(PREFIX)))
}

/// Makes it, in place of one that was left.
///
/// # Errors
/// See [`look`].
pub(super) fn make(path: &Path, device: &Path) -> Result<(), UblkError> {
    look(path)?;
    let failed = |source| UblkError::Link { path: path.to_owned(), source };
    if leads_to_ublk(path) {
        fs::remove_file(path).map_err(failed)?;
    }
    symlink(device, path).map_err(failed)
}

/// Takes it away, if it leads to that device.
pub(super) fn remove(path: &Path, device: &PathBuf) {
    if fs::read_link(path).is_ok_and(|to| to == *device) {
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_left_gives_way() {
        let dir = tempfile::tempdir().unwrap();
        let (path, first, second) = (dir.path().join("db"), PathBuf::from("/dev/ublkb7"), PathBuf::from("/dev/ublkb8"));
        make(&path, &first).unwrap();
        make(&path, &second).unwrap();
        assert_eq!(fs::read_link(&path).unwrap(), second);
        remove(&path, &first);
        assert!(leads_to_ublk(&path), "it leads elsewhere by now");
        remove(&path, &second);
        assert!(!leads_to_ublk(&path));
        fs::write(&path, "mine").unwrap();
        assert!(matches!(make(&path, &first), Err(UblkError::Taken(_))));
        remove(&path, &first);
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        fs::remove_file(&path).unwrap();
        symlink("/dev/vda", &path).unwrap();
        assert!(matches!(look(&path), Err(UblkError::Taken(_))));
        assert!(matches!(look(&dir.path().join("no/db")), Err(UblkError::NoDirectory { .. })));
    }
}
