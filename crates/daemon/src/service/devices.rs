//! Disks that are block devices of this host, from their first process to their last.
//!
//! Owns when a device is made, gone on with, left and taken away. Never serves a request. Invariants: a device that
//! the next process is to go on with is neither stopped nor taken away; while another process serves or goes on, none
//! is made here; what was left and no disk is any more is taken away, but not before disks may have been attached
//! again.
//!
//! Nothing is told from process to process: the kernel keeps whose a device is, and who uses it waits meanwhile.

use super::disk::{ServedDisk, Ways};
use super::left_files::until_at_rest;
use super::{Service, ServiceError};
use crate::systemd;
use std::io;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};
use undercroft_config::DiskPlan;
use undercroft_frontend::ublk::{self, DeviceLimits, Mark, UblkOptions, UblkServer};

/// How long requests under way may take to be answered before a device is left without.
const REST_WAIT: Duration = Duration::from_secs(2);
/// How long disks may take that were attached by hand, until somebody attaches them again: who uses them waits.
const ATTACH_WAIT: Duration = Duration::from_secs(15);

impl ServedDisk {
    /// Makes it a block device, if it is to be one, is none yet, and its image is open: else it is made when that is
    /// opened, or when no other process serves it any more.
    pub(super) fn make_device(&self, plan: &DiskPlan, ways: &Ways<'_>) -> Result<(), ServiceError> {
        let Some(path) = &plan.device else { return Ok(()) };
        let mut device = self.device();
        if device.is_some() || self.is_detaching() || !self.residence().is_open() || ways.left.is_watched() {
            return Ok(());
        }
        if let Some(dir) = path.parent().filter(|dir| dir.starts_with(&ways.runtime_dir)) {
            // It may be gone since the last boot. If it cannot be made, the server says that it is missing.
            let _ = std::fs::create_dir_all(dir);
        }
        let options = UblkOptions {
            mark: Mark::new(&ways.runtime_dir, &self.info().name),
            budget: Arc::clone(ways.budget),
            limits: DeviceLimits::default(),
        };
        let made = UblkServer::start(path, self.info(), self.host().clone(), &options);
        *device = Some(made.map_err(|source| ServiceError::Ublk { disk: self.info().name.clone(), source })?);
        Ok(())
    }

    /// The block device that it is.
    pub(super) fn device(&self) -> MutexGuard<'_, Option<UblkServer>> {
        self.device.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Takes its device away, if it is one, and returns when what was under way there is finished.
    pub(super) fn end_device(&self) {
        let device = self.device().take();
        device.into_iter().for_each(UblkServer::stop);
    }
}

impl Service {
    /// Has all devices come to rest; those that do not until `give_up` are an error.
    pub(super) fn rest_devices(&self, disks: &[Arc<ServedDisk>], give_up: Instant) -> io::Result<()> {
        disks.iter().for_each(|d| d.device().iter().for_each(|device| device.rest(true)));
        until_at_rest(disks, give_up, "block device", |d| d.device().as_ref().is_none_or(UblkServer::is_at_rest))
    }

    /// Leaves the devices to the next start, if there is a service manager: it does not say whether it stops the daemon
    /// for good, and a file system on a device would lose what it has not written.
    pub(super) fn leave_devices(&self) {
        if !systemd::can_keep() {
            return;
        }
        let has_one = |d: &Arc<ServedDisk>| !d.host().worker.is_silent() && d.device().is_some();
        let disks: Vec<_> = self.disks().into_iter().filter(has_one).collect();
        if let Err(e) = self.rest_devices(&disks, Instant::now() + REST_WAIT) {
            tracing::warn!("{e}; the next process is asked them again");
        }
        for disk in disks {
            let device = disk.device().take();
            device.into_iter().for_each(UblkServer::leave);
        }
    }

    /// The other process serves no more: its devices are gone on with.
    pub(super) fn begin_devices(&self) {
        let plan = self.plan();
        for disk in self.disks() {
            let Some(own) = plan.find(&disk.info().name) else { continue };
            if let Err(e) = disk.make_device(own, &self.ways()) {
                tracing::error!("it is no block device: {e}");
            }
        }
        self.expect_devices();
    }

    /// Takes away, after a while, what a process before has left and no disk is any more.
    pub(super) fn expect_devices(&self) {
        if !ublk::are_there() {
            return;
        }
        let service = self.me.clone();
        let sweep = move || {
            std::thread::sleep(ATTACH_WAIT);
            let Some(service) = service.upgrade() else { return };
            let _change = service.change.lock();
            if service.is_stopping() {
                return;
            }
            let plan = service.plan();
            let mark = |name: &str| Mark::new(&plan.daemon.runtime_dir, name);
            let wanted: Vec<_> = plan.disks.iter().filter(|d| d.device.is_some()).map(|d| mark(&d.name)).collect();
            ublk::sweep(mark(""), &wanted);
        };
        if let Err(e) = std::thread::Builder::new().name("left-devices".into()).spawn(sweep) {
            tracing::error!("devices that no disk is are not taken away: there can be no thread for it: {e}");
        }
    }
}
