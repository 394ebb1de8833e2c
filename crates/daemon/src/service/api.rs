//! The service as the control API sees it: what it says about itself and how it is changed.
//!
//! Owns the translation between plans, workers and the API's words. Invariant: a change that fails leaves everything as
//! it was, or says in its error what it could not take back.

use super::images::ImageFile;
use super::shown;
use super::{ServedDisk, Service, ServiceError, lock};
use crate::http::Daemon;
use crate::worker::DiskReport;
use std::sync::Arc;
use undercroft_api::ranges::RangeList;
use undercroft_api::record::Order;
use undercroft_api::{
    DiskLatency, DiskState, DiskStatus, ExclusiveStatus, FrontendKind, FrontendStatus, KsmStatus, NbdDataStatus,
    NodeChanged, NodeStatus, RangesStatus, RangesTaken, RecordingStatus, ReloadReport, ShareEvent, SharesStatus,
    SharingDomainStatus, Status, StoreStatus,
};
use undercroft_cache::Shared;
use undercroft_config::ImageFormat;
use undercroft_config::{ControlError, ControlErrorKind, DiskChange, NodeChange};
use undercroft_config::{DiskPlan, DiskSpec, Machine, ServePlan};
use undercroft_frontend::{Peer, Protocol};
use undercroft_host::FRAME_BYTES;

/// Disks that an error names at most.
const NAMED_MAX: usize = 20;

impl From<ServiceError> for ControlError {
    fn from(e: ServiceError) -> Self {
        let (kind, remedy) = match &e {
            ServiceError::Stopping => (ControlErrorKind::Unavailable, "wait until it runs again"),
            ServiceError::Silent { .. } => (
                ControlErrorKind::Unavailable,
                "see which of its disks has trust_memory = true, and what serves that guest's memory; \
                 end that guest, or restart the daemon",
            ),
            ServiceError::TooSmall { .. } => (ControlErrorKind::Invalid, "name a larger `size`"),
            _ => (ControlErrorKind::Failed, "correct that and try again; the disks served so far go on"),
        };
        ControlError::new(kind, e.to_string(), remedy)
    }
}

fn frontend_status(p: Peer) -> FrontendStatus {
    let kind = match p.protocol {
        Protocol::VhostUser => FrontendKind::VhostUser,
        Protocol::Nbd => FrontendKind::Nbd,
    };
    FrontendStatus { kind, peer: p.name }
}

fn disk_status(disk: &ServedDisk, plan: &DiskPlan, report: &DiskReport) -> DiskStatus {
    let trust = disk.group().map(|_| plan.trust.clone());
    let info = disk.info();
    let state = match (report.leaving || disk.is_detaching(), report.stalled_ops) {
        (true, _) => DiskState::Detaching,
        (false, _) if report.refusal.is_some() => DiskState::Failed,
        (false, 0) if !report.silent && report.waits.is_none() => DiskState::Serving,
        (false, _) => DiskState::Stalled,
    };
    let reason = if report.silent {
        ServiceError::Silent { worker: disk.worker_number() }.to_string()
    } else if let (0, Some(why)) = (report.stalled_ops, report.waits) {
        format!("requests wait: {why}")
    } else {
        format!("the image has not answered for {} operations", report.stalled_ops)
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
        reason: match state {
            DiskState::Failed => report.refusal.clone(),
            DiskState::Stalled => Some(reason),
            _ => disk.image_file().and_then(ImageFile::reason),
        },
        image: plan.image.location.clone(),
        format: format.to_string(),
        backend: report.backend.clone(),
        read_only: plan.image.read_only || info.geometry.read_only,
        size_bytes: info.geometry.size_bytes,
        socket: plan.socket.as_ref().map(|s| s.display().to_string()),
        nbd: plan.nbd,
        frontends: report.peers.iter().cloned().map(frontend_status).collect(),
        cache: shown::cache_status(plan.policy, plan.share_bytes, &report.stats),
        exclusive: ExclusiveStatus {
            captures_compared: report.compared.blocks,
            captures_wrong: report.compared.wrong,
            ..shown::exclusive_status(&report.exclusive)
        },
        sharing: shown::sharing_status(trust, disk.layer().is_some(), &report.stats),
        counters: shown::counters(&report.stats),
        latency: DiskLatency {
            read_hit: shown::latency(&report.latencies.read_hit),
            read_miss: shown::latency(&report.latencies.read_miss),
            write: shown::latency(&report.latencies.write),
        },
        stalled_ops: report.stalled_ops,
        inflight_requests: report.stats.inflight_requests,
        inflight_ops: report.stats.inflight_ops,
        queues: plan.queues,
        queue_size: plan.queue_size,
        poll_us: plan.poll.as_secs_f64() * 1e6,
        worker: disk.worker_number() as u32,
    }
}

/// Refuses a reload that would detach all of `served` disks, or most of them: a file that was emptied or cut short does
/// that.
fn check_detached(removed: &[String], served: usize) -> Result<(), ControlError> {
    if removed.is_empty() || removed.len() < served && removed.len() * 2 <= served {
        return Ok(());
    }
    let named: Vec<&str> = removed.iter().take(NAMED_MAX).map(String::as_str).collect();
    let more = match removed.len() - named.len() {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    Err(ControlError::new(
        ControlErrorKind::Conflict,
        format!(
            "the file no longer has {} of the {served} disks that are served: {}{more}; nothing was changed",
            removed.len(),
            named.join(", ")
        ),
        "put them back into the file, or run `undercroft reload --yes` to detach them",
    ))
}

impl Service {
    pub(super) fn find(&self, name: &str) -> Result<Arc<ServedDisk>, ControlError> {
        let disks = self.disks();
        disks.iter().find(|d| d.info().name == name).cloned().ok_or_else(|| {
            if let Some(waiting) = self.waiting(name) {
                return self.waits(&waiting);
            }
            let names: Vec<String> = disks.iter().map(|d| d.info().name.clone()).collect();
            ControlError::no_disk(name, names.iter().map(String::as_str))
        })
    }

    /// Who holds content in common.
    fn domains(&self) -> Vec<SharingDomainStatus> {
        let (disks, mut all) = (self.disks(), Vec::new());
        for (n, worker) in self.workers.iter().enumerate() {
            for c in worker.call(|w| w.core().domains()).unwrap_or_default() {
                let is_in = |d: &&Arc<ServedDisk>| d.worker_number() == n && c.disks.contains(&d.id());
                let (kind, name) = match c.what {
                    Shared::Group(g) => ("trust", Some(self.group_name(g))),
                    Shared::Layer(_) => ("base", None),
                };
                all.push(SharingDomainStatus {
                    kind: kind.to_string(),
                    name,
                    disks: disks.iter().filter(is_in).map(|d| d.info().name.clone()).collect(),
                    shared_bytes: c.shared_blocks * FRAME_BYTES as u64,
                    held_bytes: c.shared_frames * FRAME_BYTES as u64,
                });
            }
        }
        all
    }

    fn status_of(&self, disk: &ServedDisk) -> Result<DiskStatus, ControlError> {
        let (report, plan) = (disk.report(), self.plan());
        let both = report.as_ref().zip(plan.find(&disk.info().name));
        let (report, plan) = both.ok_or_else(|| {
            ControlError::new(
                ControlErrorKind::NotFound,
                format!("disk \"{}\" has just been detached", disk.info().name),
                "`undercroft status` lists the disks",
            )
        })?;
        Ok(disk_status(disk, plan, report))
    }
}

impl Daemon for Service {
    fn status(&self) -> Status {
        let plan = self.plan();
        let view = self.watch.view();
        let mut store = StoreStatus {
            memory_bytes: plan.store.memory_bytes,
            floor_bytes: view.floor_bytes,
            limit_bytes: view.most_bytes,
            allowed_bytes: view.allowed_bytes,
            ..StoreStatus::default()
        };
        let mut disks = Vec::new();
        for disk in self.disks() {
            let (Some(report), Some(p)) = (disk.report(), plan.find(&disk.info().name)) else { continue };
            store.saved_bytes += report.stats.cached_blocks * FRAME_BYTES as u64;
            disks.push(disk_status(&disk, p, &report));
        }
        disks.extend(self.all_waiting().iter().filter_map(|w| self.waiting_status(w).ok()));
        let place = |name: &str| plan.disks.iter().position(|d| d.name == name);
        disks.sort_by_key(|d| place(&d.name));
        let mut copying_ns = 0;
        // No share moves from one worker to the next while they are asked.
        let still = lock(&self.manager);
        for worker in &self.workers {
            let ask = |w: &mut crate::worker::Worker| (w.core().memory(), w.core().frames_used(), w.copying_ns());
            let Ok((memory, frames, ns)) = worker.call(ask) else { continue };
            copying_ns += ns;
            store.data_bytes += frames * FRAME_BYTES as u64;
            store.metadata_bytes += memory.metadata_bytes;
            store.io_bytes += memory.frames_bytes;
        }
        drop(still);
        // Of what is cached, that which takes no memory.
        store.saved_bytes = store.saved_bytes.saturating_sub(store.data_bytes);
        // What frames hold besides cached blocks is under way, or kept ready for that.
        store.io_bytes = store.io_bytes.saturating_sub(store.data_bytes);
        let nbd_listeners = self.nbd_listeners(&plan);
        Status {
            version: env!("CARGO_PKG_VERSION").to_string(),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            config_file: plan.config_file.as_ref().map(|p| p.display().to_string()),
            workers: self.workers.len() as u32,
            copying_seconds: copying_ns as f64 / 1e9,
            nbd: nbd_listeners.iter().map(|l| l.address.clone()).collect(),
            nbd_listeners,
            nbd_data: NbdDataStatus {
                used_bytes: self.nbd_budget.used_bytes() as u64,
                max_bytes: self.nbd_budget.bytes_max() as u64,
                slow_closed: self.nbd_budget.ended(),
            },
            store,
            pressure: shown::pressure_status(&view),
            ksm: self.ksm_status(),
            scan: lock(&self.scanner).as_ref().map(|p| shown::scan_status(&plan.scan, &p.report())),
            log: shown::log_status(),
            sharing: self.domains(),
            disks,
        }
    }

    fn disk(&self, name: &str) -> Result<DiskStatus, ControlError> {
        if let Some(waiting) = self.waiting(name) {
            return self.waiting_status(&waiting);
        }
        self.status_of(&*self.find(name)?)
    }

    fn change_disk(&self, name: &str, change: DiskChange) -> Result<DiskStatus, ControlError> {
        let _change = lock(&self.change);
        if self.waiting(name).is_none() {
            self.find(name)?;
        }
        let plan = self.plan().with_change(name, &change)?;
        self.apply(&plan);
        self.adopt(plan);
        self.disk(name)
    }

    fn shares(&self) -> SharesStatus {
        self.shares_status()
    }

    fn node(&self, name: &str) -> Result<NodeStatus, ControlError> {
        self.node_status(&self.plan().node_name(name)?)
    }

    fn share_events(&self, name: &str, within: Option<&str>) -> Result<Vec<ShareEvent>, ControlError> {
        self.events_of(name, within)
    }

    fn change_node(
        &self,
        name: &str,
        change: NodeChange,
        expected: Option<Vec<u64>>,
    ) -> Result<NodeChanged, ControlError> {
        self.set_node(name, &change, expected)
    }

    fn ranges(&self, disk: &str) -> Result<RangesStatus, ControlError> {
        self.ranges_of(disk)
    }

    fn set_ranges(&self, list: RangeList) -> Result<RangesTaken, ControlError> {
        self.take_ranges(&list)
    }

    fn set_memory(&self, bytes: u64) -> Result<StoreStatus, ControlError> {
        self.set_most(bytes)?;
        Ok(Daemon::status(self).store)
    }

    fn manage_ksm(&self, manage: bool, unmerge: bool) -> Result<KsmStatus, ControlError> {
        let _change = lock(&self.change);
        self.switch_ksm(manage, unmerge)?;
        Ok(self.ksm_status())
    }

    fn add_disk(&self, spec: DiskSpec) -> Result<DiskStatus, ControlError> {
        let _change = lock(&self.change);
        let now = self.plan();
        let plan = now.with_disk(&spec, &Machine::here())?;
        let added = plan.disks.iter().find(|d| now.find(&d.name).is_none());
        let disk = added.ok_or_else(|| {
            ControlError::new(
                ControlErrorKind::Conflict,
                "there is a disk of that name already",
                "detach it first, or give this one another name",
            )
        })?;
        let served = self.attach(&plan, disk)?;
        self.status_of(&served)
    }

    fn remove_disk(&self, name: &str) -> Result<(), ControlError> {
        let _change = lock(&self.change);
        if self.waiting(name).is_some() {
            let plan = self.plan().without_disk(name)?;
            self.forget_waiting(|w| w == name);
            self.apply(&plan);
            self.adopt(plan);
            return Ok(());
        }
        let disk = self.find(name)?;
        if self.detach(&self.plan().without_disk(name)?, &disk) {
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

    fn reload(&self, detach_most: bool) -> Result<ReloadReport, ControlError> {
        let _change = lock(&self.change);
        // Disks that wait begin anew: their image may be another one now.
        let mut now = self.plan();
        now.disks.retain(|d| self.waiting(&d.name).is_none());
        let (result, change) = now.reread()?;
        if !detach_most {
            check_detached(&change.removed, now.disks.len())?;
        }
        self.forget_waiting(|_| true);
        let mut report = ReloadReport { needs_restart: change.needs_restart, ..ReloadReport::default() };
        for name in change.removed {
            let disk = self.find(&name)?;
            let without = self.plan().without_disk(&name)?;
            if !self.detach(&without, &disk) {
                report.failed.push(format!("{name}: its image does not answer; it goes when it does"));
            }
            report.removed.push(name);
        }
        // Those that stay take their new shares; room for those that come is made now.
        let stay = ServePlan {
            disks: result.disks.iter().filter(|d| now.find(&d.name).is_some()).cloned().collect(),
            ..result.clone()
        };
        self.apply(&stay);
        self.adopt(stay);
        report.changed = change.changed.into_iter().map(|(name, _)| name).collect();
        for disk in change.added {
            let mut plan = self.plan();
            plan.disks.push(disk.clone());
            match self.attach(&plan, &disk) {
                Ok(_) => report.added.push(disk.name),
                Err(e) => {
                    self.apply(&plan);
                    self.adopt(plan);
                    self.let_wait(&disk, &e);
                    report.failed.push(format!("{e}; the disk waits, and is tried again until it opens"));
                }
            }
        }
        if self.renew_nbd_keys(&mut report.failed) {
            report.changed.push("[[nbd.listen]] certificates".into());
        }
        if let Some(plan) = change.ksm {
            report.changed.push("[ksm]".into());
            let set = self.set_ksm(&plan);
            report.failed.extend(set.err().map(|e| format!("[ksm]: {e}")));
        }
        if change.pressure {
            report.changed.push("[pressure]".into());
            self.watch.set_plan(result.pressure.clone(), result.store.floor_bytes);
        }
        // What was set by hand ends here, as it does for the disks.
        self.watch.set_most(result.store.memory_bytes);
        if let Some(level) = change.log_level {
            crate::logging::set_level(level);
        }
        Ok(report)
    }

    fn record(&self, order: Order) -> Result<RecordingStatus, ControlError> {
        self.begin_recording(order)
    }

    fn recordings(&self) -> Vec<RecordingStatus> {
        self.all_recordings()
    }

    fn recording(&self, id: u64) -> Result<RecordingStatus, ControlError> {
        self.one_recording(id)
    }

    fn end_recording(&self, id: u64) -> Result<RecordingStatus, ControlError> {
        self.stop_recording(id)
    }

    fn stop(&self) {
        self.request_stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_has_lost_most_disks_is_refused_by_name() {
        let names = |n: usize| (0..n).map(|i| format!("d{i}")).collect::<Vec<_>>();
        for (removed, served) in [(0, 0), (0, 4), (1, 2), (2, 4), (50, 100)] {
            assert!(check_detached(&names(removed), served).is_ok(), "{removed} of {served}");
        }
        for (removed, served) in [(1, 1), (2, 2), (2, 3), (51, 100), (100, 100)] {
            let e = check_detached(&names(removed), served).unwrap_err();
            assert_eq!(e.kind, ControlErrorKind::Conflict);
            assert!(e.error.contains("d0") && e.remedy.contains("--yes"), "{} of {served}: {}", removed, e.error);
        }
        assert!(check_detached(&names(100), 100).unwrap_err().error.contains("d19 and 80 more"));
    }
}
