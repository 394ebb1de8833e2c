//! What stands on this host against a disk's being a file or a block device, looked at without making either.
//!
//! Owns the looking. Never changes anything. Invariant: what is no obstacle here may still fail when it is made; what
//! is one would fail.

use super::ServiceError;
use std::path::Path;
use undercroft_config::DiskPlan;
use undercroft_frontend::fuse::{self, FuseError};
use undercroft_frontend::ublk::{self, UblkError};

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// What is in the way, and what to do about it.
    pub error: String,
    /// The key of the disk that asks for what cannot be.
    pub key: &'static str,
    /// It is in the way of this user, and perhaps of no other.
    pub is_of_user: bool,
}

/// What is in the way of a disk of the plan of a daemon with that runtime directory, which the daemon makes if it is
/// missing.
pub fn obstacles(plan: &DiskPlan, runtime_dir: &Path) -> Vec<Obstacle> {
    let made = |path: &Path| path.parent().is_some_and(|dir| dir.starts_with(runtime_dir));
    let file = plan.file.as_deref().and_then(|path| {
        let error = fuse::probe().and_then(|()| fuse::look(path)).err()?;
        let is_of_user = matches!(error, FuseError::DeviceForbidden | FuseError::Os { .. });
        let will_do = matches!(error, FuseError::NoDirectory { .. }) && made(path);
        (!will_do).then(|| Obstacle { error: error.to_string(), key: "fuse", is_of_user })
    });
    let device = plan.device.as_deref().and_then(|path| {
        let error = ublk::probe().and_then(|()| ublk::look(path)).err()?;
        let is_of_user = matches!(error, UblkError::NotPermitted | UblkError::Link { .. });
        let will_do = matches!(error, UblkError::NoDirectory { .. }) && made(path);
        (!will_do).then(|| Obstacle { error: error.to_string(), key: "ublk", is_of_user })
    });
    file.into_iter().chain(device).collect()
}

/// Whether this host has the driver that a disk of the plan needs: asked before its image is opened, for the answer is
/// the same each time it is tried again. A file may go on with what another process has left, without any driver.
pub(super) fn probe(plan: &DiskPlan) -> Result<(), ServiceError> {
    if plan.device.is_some() {
        ublk::probe().map_err(|source| ServiceError::Ublk { disk: plan.name.clone(), source })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::plan_for_tests::plan_in;
    use super::*;

    #[test]
    fn what_is_in_the_way_is_said_and_nothing_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let taken = dir.path().join("taken");
        std::fs::write(&taken, "mine").unwrap();
        let mut disk = plan_in(dir.path(), &["a"]).disks.remove(0);
        assert_eq!(obstacles(&disk, dir.path()), []);
        let key_of = |disk: &DiskPlan, runtime: &Path| {
            obstacles(disk, runtime).into_iter().map(|o| (o.key, o.error)).collect::<Vec<_>>()
        };
        disk.file = Some(taken.clone());
        let found = key_of(&disk, dir.path());
        assert!(matches!(&found[..], [("fuse", _)]), "{found:?}");
        assert_eq!(std::fs::read(&taken).unwrap(), b"mine");
        disk.file = None;
        disk.device = Some(taken);
        let found = key_of(&disk, dir.path());
        assert!(matches!(&found[..], [("ublk", _)]), "{found:?}");
        if Path::new("/dev/fuse").exists() {
            disk.device = None;
            let missing = dir.path().join("run/no/file");
            disk.file = Some(missing.clone());
            assert_eq!(obstacles(&disk, &dir.path().join("run")), [], "the daemon makes it");
            let found = key_of(&disk, Path::new("/run/other"));
            assert!(matches!(&found[..], [("fuse", why)] if why.contains("mkdir -p")), "{found:?}");
            assert!(!missing.parent().unwrap().exists());
        }
    }
}
