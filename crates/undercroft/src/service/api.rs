//! The service as the control API sees it: what it says about itself and how it is changed.
//!
//! Owns the translation between plans, workers and the API's words. Invariant: a change that fails leaves everything as
//! it was, or says in its error what it could not take back.

use super::{ServedDisk, Service, ServiceError, capacity_blocks, lock, read, shares, write};
use crate::backend::ImageFormat;
use crate::config::{DiskPlan, DiskSpec};
use crate::control::{
    CacheStatus, ControlError, ControlErrorKind, Daemon, DiskChange, DiskCounters, DiskLatency, DiskState, DiskStatus,
    FrontendKind, FrontendStatus, LatencySnapshot, ReloadReport, Status, StoreStatus,
};
use crate::frontend::{Peer, Protocol};
use crate::units::human_size;
use crate::worker::DiskReport;
use std::sync::Arc;

impl From<ServiceError> for ControlError {
    fn from(e: ServiceError) -> Self {
        let (kind, remedy) = match &e {
            ServiceError::Stopping => (ControlErrorKind::Unavailable, "wait until it runs again"),
            ServiceError::TooSmall { .. } => (ControlErrorKind::Invalid, "name a larger `size`"),
            _ => (ControlErrorKind::Failed, "correct that and try again; the disks served so far go on"),
        };
        ControlError::new(kind, e.to_string(), remedy)
    }
}

impl From<Peer> for FrontendStatus {
    fn from(p: Peer) -> Self {
        let kind = match p.protocol {
            Protocol::VhostUser => FrontendKind::VhostUser,
            Protocol::Nbd => FrontendKind::Nbd,
        };
        FrontendStatus { kind, peer: p.name }
    }
}

fn disk_status(disk: &ServedDisk, report: &DiskReport) -> DiskStatus {
    let (plan, info) = (disk.plan(), disk.info());
    let state = match (report.leaving || disk.is_detaching(), report.stalled_ops) {
        (true, _) => DiskState::Detaching,
        (false, 0) => DiskState::Serving,
        (false, _) => DiskState::Stalled,
    };
    let format = match plan.image.format {
        Some(ImageFormat::Raw) => "raw",
        Some(ImageFormat::Qcow2) => "qcow2",
        Some(ImageFormat::Nbd) => "nbd",
        // Found out when it was opened; the back end's description begins with it.
        None => report.backend.split([' ', ',']).next().unwrap_or("raw"),
    };
    DiskStatus {
        name: plan.name.clone(),
        vm: plan.vm.clone(),
        state,
        reason: (state == DiskState::Stalled)
            .then(|| format!("the image has not answered for {} operations", report.stalled_ops)),
        image: plan.image.location.clone(),
        format: format.to_string(),
        backend: report.backend.clone(),
        read_only: plan.image.read_only || info.geometry.read_only,
        size_bytes: info.geometry.size_bytes,
        socket: plan.socket.as_ref().map(|s| s.display().to_string()),
        nbd: plan.nbd,
        frontends: report.peers.iter().cloned().map(Into::into).collect(),
        cache: CacheStatus::new(plan.policy, plan.share_bytes, &report.stats),
        counters: DiskCounters::from(&report.stats),
        latency: DiskLatency {
            read_hit: LatencySnapshot::from(&report.latencies.read_hit),
            read_miss: LatencySnapshot::from(&report.latencies.read_miss),
            write: LatencySnapshot::from(&report.latencies.write),
        },
        stalled_ops: report.stalled_ops,
        inflight_requests: report.stats.inflight_requests,
        inflight_ops: report.stats.inflight_ops,
        poll_us: plan.poll.as_secs_f64() * 1e6,
        worker: disk.worker_number() as u32,
    }
}

impl Service {
    fn find(&self, name: &str) -> Result<Arc<ServedDisk>, ControlError> {
        let disks = self.disks();
        disks.iter().find(|d| d.info().name == name).cloned().ok_or_else(|| {
            let names: Vec<String> = disks.iter().map(|d| d.info().name.clone()).collect();
            ControlError::no_disk(name, names.iter().map(String::as_str))
        })
    }

    fn status_of(&self, disk: &ServedDisk) -> Result<DiskStatus, ControlError> {
        let report = disk.report().ok_or_else(|| {
            ControlError::new(
                ControlErrorKind::NotFound,
                format!("disk \"{}\" has just been detached", disk.info().name),
                "`undercroft status` lists the disks",
            )
        })?;
        Ok(disk_status(disk, &report))
    }

    /// Applies what can change on a disk while it serves.
    fn apply_change(&self, disk: &Arc<ServedDisk>, change: &DiskChange) -> Result<(), ControlError> {
        let before = disk.plan();
        if let Some(share) = change.share_bytes {
            let asked = DiskPlan { share_bytes: share, share_fixed: true, ..before.clone() };
            capacity_blocks(&asked)?;
            let plans: Vec<DiskPlan> = self
                .disks()
                .iter()
                .map(|d| if Arc::ptr_eq(d, disk) { asked.clone() } else { d.plan() })
                .collect();
            let memory = read(&self.plan).store.memory_bytes;
            let fixed: u64 = plans.iter().filter(|p| p.share_fixed).map(|p| p.share_bytes).sum();
            if fixed > memory {
                return Err(ControlError::new(
                    ControlErrorKind::Invalid,
                    format!(
                        "{} for disk \"{}\" makes {} with the other disks, but the store has {}",
                        human_size(share),
                        before.name,
                        human_size(fixed),
                        human_size(memory)
                    ),
                    "shrink another disk first, or give the store more `memory`",
                ));
            }
            let shares = shares::divide(memory, &plans);
            for (p, s) in plans.iter().zip(&shares) {
                capacity_blocks(&DiskPlan { share_bytes: *s, ..p.clone() })?;
            }
            disk.update_plan(|p| p.share_fixed = true);
            self.give_shares(&shares);
        }
        let id = disk.id();
        if let Some(policy) = change.policy.filter(|p| *p != before.policy) {
            let _ = disk.host().worker.call(move |w| w.core().set_policy(id, policy));
            disk.update_plan(|p| p.policy = policy);
        }
        if let Some(poll) = change.poll {
            let _ = disk.host().worker.call(move |w| w.set_poll(id, poll.as_nanos() as u64));
            disk.update_plan(|p| p.poll = poll);
        }
        Ok(())
    }
}

impl Daemon for Service {
    fn status(&self) -> Status {
        let plan = read(&self.plan).clone();
        let mut store = StoreStatus { memory_bytes: plan.store.memory_bytes, ..StoreStatus::default() };
        let mut disks = Vec::new();
        for disk in self.disks() {
            let Some(report) = disk.report() else { continue };
            store.data_bytes += report.memory.data_bytes;
            store.metadata_bytes += report.memory.metadata_bytes;
            store.io_bytes += report.memory.io_bytes;
            disks.push(disk_status(&disk, &report));
        }
        Status {
            version: env!("CARGO_PKG_VERSION").to_string(),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            config_file: plan.config_file.as_ref().map(|p| p.display().to_string()),
            workers: self.workers.len() as u32,
            nbd: lock(&self.nbd).iter().map(|s| s.local_addr().to_string()).collect(),
            store,
            disks,
        }
    }

    fn disk(&self, name: &str) -> Result<DiskStatus, ControlError> {
        self.status_of(&*self.find(name)?)
    }

    fn change_disk(&self, name: &str, change: DiskChange) -> Result<DiskStatus, ControlError> {
        let _change = lock(&self.change);
        let disk = self.find(name)?;
        self.apply_change(&disk, &change)?;
        self.status_of(&disk)
    }

    fn add_disk(&self, spec: DiskSpec) -> Result<DiskStatus, ControlError> {
        let _change = lock(&self.change);
        let mut plan = read(&self.plan).clone();
        plan.disks = self.disks().iter().map(|d| d.plan()).collect();
        let disk = plan.plan_disk(spec)?;
        if plan.disks.iter().any(|d| d.name == disk.name) {
            return Err(ControlError::new(
                ControlErrorKind::Conflict,
                format!("there is a disk \"{}\" already", disk.name),
                "detach it first, or give this one another name",
            ));
        }
        let served = self.attach(disk)?;
        self.status_of(&served)
    }

    fn remove_disk(&self, name: &str) -> Result<(), ControlError> {
        let _change = lock(&self.change);
        let disk = self.find(name)?;
        if self.detach(&disk) {
            return Ok(());
        }
        Err(ControlError::new(
            ControlErrorKind::Unavailable,
            format!("the image of disk \"{name}\" does not answer; the disk refuses requests and goes when it does"),
            "look at the storage below it",
        ))
    }

    fn drop_cache(&self, name: &str) -> Result<u64, ControlError> {
        let disk = self.find(name)?;
        let before = self.status_of(&disk)?.cache.cached_bytes;
        let id = disk.id();
        let _ = disk.host().worker.call(move |w| w.core().invalidate(id));
        Ok(before.saturating_sub(self.status_of(&disk)?.cache.cached_bytes))
    }

    fn reload(&self) -> Result<ReloadReport, ControlError> {
        let _change = lock(&self.change);
        let mut running = read(&self.plan).clone();
        running.disks = self.disks().iter().map(|d| d.plan()).collect();
        let (wanted, difference) = running.reread()?;
        let mut report = ReloadReport { needs_restart: difference.needs_restart, ..ReloadReport::default() };
        for name in difference.removed {
            if let Ok(disk) = self.find(&name) {
                if self.detach(&disk) {
                    report.removed.push(name);
                } else {
                    report.failed.push(format!("{name}: its image does not answer; it goes when it does"));
                }
            }
        }
        for (name, change) in difference.changed {
            match self.find(&name).and_then(|d| self.apply_change(&d, &change)) {
                Ok(()) => report.changed.push(name),
                Err(e) => report.failed.push(format!("{name}: {e}")),
            }
        }
        for plan in difference.added {
            let name = plan.name.clone();
            match self.attach(plan) {
                Ok(_) => report.added.push(name),
                Err(e) => report.failed.push(format!("{name}: {e}")),
            }
        }
        write(&self.plan).disks = wanted.disks;
        Ok(report)
    }

    fn stop(&self) {
        self.request_stop();
    }
}
