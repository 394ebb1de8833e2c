//! Lists of files that are followed while a disk is served: at a reload, after a change by hand, and when a list fits
//! that did not.
//!
//! Owns what a disk had before a change, for when that is taken back. Never reads a file while disks are kept from
//! changes, unless it was named meanwhile. Invariant: a change that fails leaves both lists as they were, whoever had
//! set them.

use super::super::Service;
use super::super::disk::ServedDisk;
use super::{Lists, Origin, State, Taken, Which, follow_file, give, lists_now, lock, profile_of};
use std::path::PathBuf;
use std::sync::Arc;
use undercroft_cache::ByteRange;
use undercroft_config::{ControlError, DiskPlan, NodeChange, ServePlan, Written};

/// What a change by hand says of lists.
#[derive(Debug, Default)]
pub(in crate::service) struct ListChange {
    /// Those that it names, and may need.
    lists: Lists,
    /// Whether it names a file of pins, be it the one that there is.
    pins: bool,
    /// The same of a profile.
    profile: bool,
}

/// What a disk has before a change.
pub(in crate::service) struct Kept {
    disk: Arc<ServedDisk>,
    lists: [Vec<ByteRange>; 2],
    state: State,
}

impl Kept {
    /// Has the disk have that again. Its settings are as they were.
    pub(in crate::service) fn give_back(self) {
        let Self { disk, lists, state } = self;
        let done = lists_now(&disk).and_then(|now| {
            for ((which, was), is) in [Which::Pins, Which::Profile].into_iter().zip(lists).zip(now) {
                if was != is {
                    give(&disk, which, was, Taken::Again)?;
                }
            }
            Ok(())
        });
        *lock(&disk.pinning().0) = state;
        if let Err(e) = done {
            tracing::error!("{e}; what is locked of the disk is not as it was");
        }
    }
}

impl Service {
    /// What a change of a node says of lists, which are read. The caller does not hold `change` yet.
    pub(in crate::service) fn list_change(&self, name: &str, change: &NodeChange) -> ListChange {
        let named = change.values().filter(|(key, _)| matches!(*key, "pins" | "lock_profile"));
        let mut paths: Vec<PathBuf> = named
            .filter_map(|(_, value)| match value {
                Written::Text(text) => Some(PathBuf::from(text)),
                _ => None,
            })
            // Others are refused.
            .filter(|path| path.is_absolute())
            .collect();
        // What is not in force may be, after the change.
        if let Some(own) = self.plan().find(name)
            && self.disks().iter().any(|d| d.info().name == own.name && d.pinning().problem().is_some())
        {
            paths.extend(own.pins.clone());
        }
        ListChange {
            lists: Lists::read(paths),
            pins: change.touches(&["pins"]),
            profile: change.touches(&["lock_profile"]),
        }
    }

    /// What a disk has whose lists the change of the node `name` from `now` to `wanted` may change.
    ///
    /// # Errors
    /// Its worker does not answer.
    pub(in crate::service) fn keep_lists(
        &self,
        now: &ServePlan,
        wanted: &ServePlan,
        name: &str,
        change: &ListChange,
    ) -> Result<Option<Kept>, ControlError> {
        let Some((disk, ..)) = self.changed_locks(now, wanted, name, change) else { return Ok(None) };
        let lists = lists_now(&disk)?;
        let state = lock(&disk.pinning().0).clone();
        Ok(Some(Kept { disk, lists, state }))
    }

    /// Has all disks that are served have what the files of the plan say, which were read again. What has changed, and
    /// what cannot be, each in a sentence.
    pub(in crate::service) fn reread_lists(&self, plan: &ServePlan, lists: &Lists) -> (Vec<String>, Vec<String>) {
        let (by_name, mut changed, mut failed) = (plan.by_name(), Vec::new(), Vec::new());
        for disk in self.disks() {
            let name = &disk.info().name;
            let Some(own) = by_name.get(name.as_str()) else { continue };
            match follow_file(&disk, Which::Pins, own.pins.as_ref(), lists) {
                Ok(true) => changed.push(format!("disk \"{name}\": pins read again")),
                Ok(false) => {}
                Err(e) => failed.push(format!("{name}: {e}; the pins stay as they are")),
            }
            if let Err(e) = follow_file(&disk, Which::Profile, profile_of(own), lists) {
                failed.push(format!("{name}: {e}; the profile stays as it is"));
            }
        }
        (changed, failed)
    }

    /// Tries again to pin what could not be pinned: a share may have grown, or a file answer.
    pub(in crate::service) fn retry_pins(&self) {
        let disks = self.disks();
        let mut waiting = disks.iter().filter(|disk| disk.pinning().is_to_be_retried()).peekable();
        if waiting.peek().is_none() {
            return;
        }
        let plan = self.plan();
        let lists = Lists::read(waiting.filter_map(|disk| plan.find(&disk.info().name)?.pins.clone()));
        // Whoever changes disks goes first.
        let Some(_change) = self.change.try_lock() else { return };
        let plan = self.plan();
        for disk in self.disks().iter().filter(|disk| disk.pinning().is_to_be_retried()) {
            let file = plan.find(&disk.info().name).and_then(|own| own.pins.as_ref());
            let Some(file) = file.filter(|file| lists.has(file)) else { continue };
            if follow_file(disk, Which::Pins, Some(file), &lists).is_ok() {
                tracing::info!(disk = disk.info().name, "what its file pins is pinned now");
            }
        }
    }

    /// Has a disk have what the files say that were set for it by hand, when `now` became `reached`. Lists by hand stay
    /// unless their file was set.
    ///
    /// # Errors
    /// A file that was set cannot be used. Who takes the change back gives back what [`Service::keep_lists`] has kept.
    pub(in crate::service) fn follow_lists(
        &self,
        now: &ServePlan,
        reached: &ServePlan,
        name: &str,
        change: &ListChange,
    ) -> Result<(), ControlError> {
        let Some((disk, was, is)) = self.changed_locks(now, reached, name, change) else { return Ok(()) };
        let profile_differs =
            (profile_of(&was), was.is_locked_by_profile()) != (profile_of(&is), is.is_locked_by_profile());
        if change.profile || profile_differs {
            follow_file(&disk, Which::Profile, profile_of(&is), &change.lists)?;
        }
        if !is.is_locked_by_profile() {
            // The core has forgotten it.
            disk.pinning().took(Which::Profile, Origin::Nobody);
        }
        if change.pins || was.pins != is.pins {
            follow_file(&disk, Which::Pins, is.pins.as_ref(), &change.lists)?;
        } else if disk.pinning().problem().is_some() && !disk.pinning().is_by_hand() {
            // What was past the budget may fit into another one.
            _ = follow_file(&disk, Which::Pins, is.pins.as_ref(), &change.lists);
        }
        Ok(())
    }

    /// A disk that is served, as it was and is planned, if that differs in its locks, or a file of them was named.
    fn changed_locks(
        &self,
        before: &ServePlan,
        after: &ServePlan,
        name: &str,
        change: &ListChange,
    ) -> Option<(Arc<ServedDisk>, DiskPlan, DiskPlan)> {
        let of = |plan: &ServePlan| plan.disks.iter().find(|d| d.name == name).cloned();
        let (was, is) = (of(before)?, of(after)?);
        let disk = self.disks().into_iter().find(|d| d.info().name == name)?;
        (change.pins || change.profile || !was.has_locks_of(&is)).then_some((disk, was, is))
    }
}
