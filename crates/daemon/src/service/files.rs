//! Disks that become files by hand, and cease to be files, while they are served.
//!
//! Owns the order in which that is done beside the rest of a change. Never takes a file away that somebody has open.
//! Invariant: a change is done as a whole or not at all: what was mounted for one that fails is unmounted again.

use super::disk::ServedDisk;
use super::pinning::{Kept, ListChange};
use super::reload::log_changes;
use super::{Service, ServiceError};
use std::sync::Arc;
use undercroft_config::{ControlError, ControlErrorKind, ServePlan};
use undercroft_frontend::fuse::FuseServer;
use undercroft_http::Caller;

/// A disk that is to be another file than it is, or none, with the new one, which is mounted already.
struct Filing {
    disk: Arc<ServedDisk>,
    new: Option<FuseServer>,
}

impl Service {
    /// Brings about `plan`, which `now` became by a change of the node `name` by hand; of lists of blocks that says
    /// `of_lists`. The caller holds `change`.
    ///
    /// # Errors
    /// Nothing has changed.
    pub(super) fn reach(
        &self,
        now: &ServePlan,
        plan: ServePlan,
        name: &str,
        of_lists: &ListChange,
        by: &Caller,
    ) -> Result<(), ControlError> {
        let kept = self.keep_lists(now, &plan, name, of_lists)?;
        let give_back = || kept.into_iter().for_each(Kept::give_back);
        let filing = self.begin_filing(&plan, name)?;
        let reached = match self.apply(plan, |d| d.is_of(name)) {
            Ok(reached) => reached,
            Err(e) => {
                filing.and_then(|f| f.new).into_iter().for_each(FuseServer::stop);
                give_back();
                return Err(e);
            }
        };
        let listed = self.follow_lists(now, &reached, name, of_lists);
        let done = match (listed, filing) {
            (Ok(()), filing) => filing.map_or(Ok(()), Filing::finish),
            (Err(e), filing) => {
                filing.and_then(|f| f.new).into_iter().for_each(FuseServer::stop);
                Err(e)
            }
        };
        if let Err(e) = done {
            self.settle(now.clone());
            give_back();
            return Err(e);
        }
        log_changes(now, &reached, by);
        self.adopt(reached);
        self.hurry_shares();
        self.catch_up(name);
        Ok(())
    }

    /// Mounts the file that a disk is to be in `plan`, if it is served and is another file, or none.
    fn begin_filing(&self, plan: &ServePlan, name: &str) -> Result<Option<Filing>, ServiceError> {
        let Some(wanted) = plan.disks.iter().find(|d| d.name == name) else { return Ok(None) };
        let Some(disk) = self.disks().into_iter().find(|d| d.info().name == name) else { return Ok(None) };
        if !disk.residence().is_open() {
            // Its guest runs elsewhere: it is made a file when that comes.
            return Ok(None);
        }
        let stays = match (disk.file().as_mut(), &wanted.file) {
            (None, None) => true,
            (Some(file), Some(path)) if file.path() == path => {
                let stays = !wanted.file_by_hand || file.is_mounted();
                if !stays {
                    // Somebody has unmounted it. What is mounted there next is not this one, whatever its number.
                    file.forget_mount();
                }
                stays
            }
            _ => false,
        };
        if stays {
            return Ok(None);
        }
        let make = |path| disk.mount_file(path, wanted, plan.daemon.disk_access, &self.ways());
        let new = wanted.file.as_deref().map(make).transpose()?;
        Ok(Some(Filing { disk, new }))
    }

    /// Makes a disk a file whose guest has come meanwhile, and that found no word of it in the plan.
    fn catch_up(&self, name: &str) {
        let plan = self.plan();
        let Some(wanted) = plan.disks.iter().find(|d| d.name == name && d.file.is_some()) else { return };
        let Some(disk) = self.disks().into_iter().find(|d| d.info().name == name) else { return };
        if let Err(e) = disk.make_file(wanted, plan.daemon.disk_access, &self.ways()) {
            tracing::error!("disk \"{name}\" is no file: {e}");
        }
    }
}

impl Filing {
    /// Takes the former file away, and puts the new one in its place.
    fn finish(self) -> Result<(), ControlError> {
        let Self { disk, new } = self;
        let mut file = disk.file();
        if let Some(old) = file.as_mut()
            && let Err(e) = old.unmount_unused()
        {
            new.into_iter().for_each(FuseServer::stop);
            let path = old.path().display();
            return Err(ControlError::new(
                ControlErrorKind::Conflict,
                format!("disk \"{}\": the file {path} cannot be taken away: {e}", disk.info().name),
                format!("`losetup -j {path}` and `fuser -v {path}` say who has it open: end that first"),
            ));
        }
        let old = std::mem::replace(&mut *file, new);
        drop(file);
        old.into_iter().for_each(FuseServer::stop);
        Ok(())
    }
}
