//! The SSD store as the service has it: its files and devices, in service or not, and what is told of them.
//!
//! Owns them from when they are opened until they are closed. Never knows what is in them: the workers' stores do.
//! Invariant: a store that cannot be had keeps no disk from being served.

use super::locks::{Ordered, Rank};
use super::{Service, ServiceError};
use undercroft_api::{SsdDeviceStatus, SsdStatus};
use undercroft_backend::ssd::{SsdDevices, SsdError};
use undercroft_config::{ControlError, ControlErrorKind, ServePlan};
use undercroft_host::FRAME_BYTES;

/// Files and devices that are open, or why they are not.
pub(super) struct SsdState(Result<OpenDevices, String>);

/// What a daemon without an SSD store says.
const NOT_CONFIGURED: &str = "this daemon has no SSD store";
/// What to do about it.
const CONFIGURE: &str = "add [ssd] with paths and size to the configuration, and start the daemon again";

/// Open files and devices.
struct OpenDevices {
    devices: SsdDevices,
    /// What reads and writes them.
    engine: &'static str,
}

impl SsdState {
    /// Opens what the plan names. What cannot be had is said, and the daemon serves without.
    pub(super) fn begin(plan: &ServePlan) -> Ordered<Self> {
        let state = match open(plan) {
            _ if !plan.ssd.is_wanted() => Err(NOT_CONFIGURED.to_owned()),
            Ok(open) => {
                log_open(&open.devices);
                Ok(open)
            }
            Err(e) => {
                tracing::error!("the SSD store is out of service, and disks are served without it: {e}");
                Err(e.to_string())
            }
        };
        Ordered::new(Rank::Ssd, Self(state))
    }

    fn status(&self, plan: &ServePlan) -> SsdStatus {
        let open = self.0.as_ref().ok();
        let device = |open: &OpenDevices| {
            let devices = open.devices.info().map(|info| SsdDeviceStatus {
                path: info.path,
                is_device: info.is_device,
                size_bytes: info.used_bytes,
                region_bytes: info.region_bytes,
                regions_in_service: plan.daemon.workers as u32,
                engine: open.engine.to_owned(),
            });
            devices.collect()
        };
        let closed = || {
            plan.ssd
                .paths
                .iter()
                .map(|path| SsdDeviceStatus { path: path.display().to_string(), ..SsdDeviceStatus::default() })
        };
        SsdStatus {
            in_service: open.is_some(),
            reason: self.0.as_ref().err().cloned(),
            made: open.and_then(|o| o.devices.made()).map(str::to_owned),
            devices: open.map_or_else(|| closed().collect(), device),
            admit: plan.ssd.admit.name().to_owned(),
            writes_per_day_bytes: plan.ssd.writes_per_day_bytes,
            ..SsdStatus::default()
        }
    }
}

/// Opens files and devices, and reads from each region once.
fn open(plan: &ServePlan) -> Result<OpenDevices, SsdError> {
    let workers = plan.daemon.workers.max(1) as u32;
    let devices = SsdDevices::open(&plan.ssd, workers)?;
    let mut engine = "io_uring";
    for worker in 0..workers {
        let regions = devices.regions(worker);
        for (region, info) in regions.iter().zip(devices.info()) {
            let failed = |doing| {
                let path = info.path.clone();
                move |source| SsdError::Io { path, doing, source }
            };
            region.read_at(0, &mut [0; FRAME_BYTES]).map_err(failed("reading from it"))?;
            if region.backend().map_err(failed("setting up I/O for it"))?.1.is_some() {
                engine = "threads";
            }
        }
    }
    Ok(OpenDevices { devices, engine })
}

fn log_open(devices: &SsdDevices) {
    for info in devices.info() {
        let (path, bytes) = (info.path, undercroft_units::human_size(info.used_bytes));
        match devices.made() {
            Some(why) => tracing::info!(path, "SSD store made, {bytes}: {why}"),
            None => tracing::info!(path, "SSD store open, {bytes}"),
        }
    }
}

impl Service {
    /// The SSD store; nothing if none is configured.
    pub(super) fn ssd_status(&self, plan: &ServePlan) -> Option<SsdStatus> {
        plan.ssd.is_wanted().then(|| self.ssd.lock().status(plan))
    }

    /// The same for who asked for it by name.
    pub(super) fn wanted_ssd(&self) -> Result<SsdStatus, ControlError> {
        let not_found = || ControlError::new(ControlErrorKind::NotFound, NOT_CONFIGURED, CONFIGURE);
        self.ssd_status(&self.plan()).ok_or_else(not_found)
    }

    /// Opens the files and devices again, or closes them. The caller holds `change`.
    pub(super) fn switch_ssd(&self, in_service: bool) -> Result<SsdStatus, ControlError> {
        let before = self.wanted_ssd()?;
        if before.in_service == in_service {
            return Ok(before);
        }
        let plan = self.plan();
        let mut state = self.ssd.lock();
        if in_service {
            let opened = open(&plan).map_err(|e| {
                let remedy = "see to what it says, then `undercroft ssd start` again";
                ControlError::new(ControlErrorKind::Failed, e.to_string(), remedy)
            })?;
            log_open(&opened.devices);
            state.0 = Ok(opened);
        } else {
            state.0 = Err("an operator took it out of service".to_owned());
        }
        Ok(state.status(&plan))
    }

    /// Closes the files and devices for good, once no worker uses them.
    pub(super) fn close_ssd(&self) {
        self.ssd.lock().0 = Err(ServiceError::Stopping.to_string());
    }

    /// Drops what the store holds of a disk, or of all.
    pub(super) fn drop_from_ssd(&self, disk: Option<&str>) -> Result<u64, ControlError> {
        let status = self.wanted_ssd()?;
        if let Some(name) = disk {
            self.find(name)?;
        }
        if !status.in_service {
            let why = status.reason.unwrap_or_default();
            let error = format!("the SSD store is out of service: {why}");
            return Err(ControlError::new(ControlErrorKind::Conflict, error, "`undercroft ssd start` first"));
        }
        Ok(status.cached_bytes)
    }
}
