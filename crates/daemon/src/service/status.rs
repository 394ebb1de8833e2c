//! What the service says of itself and its disks.
//!
//! Owns the gathering of it. Never changes anything. Invariant: consistent per disk, not across disks.

use super::images::ImageFile;
use super::{ServedDisk, Service, ServiceError, shown};
use crate::worker::DiskReport;
use std::collections::HashMap;
use std::sync::Arc;
use undercroft_api::{
    CacheStatus, DiskLatency, DiskState, DiskStatus, ExclusiveStatus, FrontendKind, FrontendStatus, NbdDataStatus,
    SharingDomainStatus, Status, StoreStatus,
};
use undercroft_cache::{DiskId, Shared};
use undercroft_config::{ControlError, ControlErrorKind, DiskPlan, ServePlan};
use undercroft_frontend::{Peer, Protocol};
use undercroft_host::FRAME_BYTES;

fn frontend_status(p: Peer) -> FrontendStatus {
    let kind = match p.protocol {
        Protocol::VhostUser => FrontendKind::VhostUser,
        Protocol::Nbd => FrontendKind::Nbd,
        Protocol::Fuse => FrontendKind::Fuse,
        Protocol::Ublk => FrontendKind::Ublk,
    };
    FrontendStatus { kind, peer: p.name }
}

/// Names of the disks that a disk keeps its blocks together with.
fn pool_names(disk: &ServedDisk, report: &DiskReport, names: &Names) -> Vec<String> {
    report.pool.iter().filter_map(|&id| names.get(&(disk.worker_number(), id)).cloned()).collect()
}

/// Names of disks by their workers and ids.
type Names = HashMap<(usize, DiskId), String>;

fn names_of(disks: &[Arc<ServedDisk>]) -> Names {
    disks.iter().map(|d| ((d.worker_number(), d.id()), d.info().name.clone())).collect()
}

fn disk_status(disk: &ServedDisk, plan: &DiskPlan, report: &DiskReport, names: &Names) -> DiskStatus {
    let trust = disk.group().map(|_| plan.trust.clone());
    let info = disk.info();
    let away = disk.residence().shown();
    let state = match (report.leaving || disk.is_detaching(), report.stalled_ops) {
        (true, _) => DiskState::Detaching,
        (false, _) if away.is_some() => away.as_ref().map_or(DiskState::Dormant, |(state, _)| *state),
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
    // Where none is given it was found out when the image was opened; the back end's description begins with it.
    let found = || report.backend.split([' ', ',']).next().unwrap_or("raw");
    let format = plan.image.format.map_or_else(found, |f| f.name());
    DiskStatus {
        name: plan.name.clone(),
        vm: plan.vm.clone(),
        state,
        reason: match state {
            _ if away.is_some() => away.map(|(_, why)| why),
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
        file: plan.file.as_ref().map(|f| f.display().to_string()),
        device: plan.device.as_ref().map(|d| d.display().to_string()),
        frontends: report.peers.iter().cloned().map(frontend_status).collect(),
        cache: CacheStatus {
            pool: pool_names(disk, report, names),
            ..shown::cache_status(plan.policy, plan.share_bytes, &report.stats)
        },
        exclusive: ExclusiveStatus {
            captures_compared: report.compared.blocks,
            captures_wrong: report.compared.wrong,
            ..shown::exclusive_status(&report.exclusive)
        },
        locks: shown::lock_status(&report.locks, disk.pinning().problem()),
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

impl Service {
    pub(super) fn find(&self, name: &str) -> Result<Arc<ServedDisk>, ControlError> {
        let waiting = self.waiting(name);
        let disks = self.disks();
        disks.iter().find(|d| d.info().name == name).cloned().ok_or_else(|| {
            if let Some(waiting) = waiting {
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

    pub(super) fn status_of(&self, disk: &ServedDisk) -> Result<DiskStatus, ControlError> {
        let (report, plan) = (disk.report(), self.plan());
        let both = report.as_ref().zip(plan.find(&disk.info().name));
        let (report, plan) = both.ok_or_else(|| {
            ControlError::new(
                ControlErrorKind::NotFound,
                format!("disk \"{}\" has just been detached", disk.info().name),
                "`undercroft status` lists the disks",
            )
        })?;
        Ok(disk_status(disk, plan, report, &names_of(&self.disks())))
    }

    /// Everything, for `status` and metrics.
    pub(super) fn whole_status(&self) -> Status {
        let plan = self.plan();
        let (mut disks, mut saved_bytes) = (Vec::new(), 0);
        // First, so that one that comes meanwhile is in one of the lists.
        let mut waiting = self.all_waiting();
        let served = self.disks();
        waiting.retain(|w| served.iter().all(|d| d.info().name != w.name()));
        let names = names_of(&served);
        for disk in served {
            let (Some(report), Some(p)) = (disk.report(), plan.find(&disk.info().name)) else { continue };
            saved_bytes += report.stats.cached_blocks * FRAME_BYTES as u64;
            disks.push(disk_status(&disk, p, &report, &names));
        }
        disks.extend(waiting.iter().filter_map(|w| self.waiting_status(w).ok()));
        let place = |name: &str| plan.disks.iter().position(|d| d.name == name);
        disks.sort_by_key(|d| place(&d.name));
        let (store, copying_ns) = self.store_status(&plan, saved_bytes);
        let (nbd, scan) = {
            let running = self.running.lock();
            let nbd = running.nbd.iter().map(|s| s.local_addr().to_string()).collect();
            (nbd, running.scanner.as_ref().map(|p| shown::scan_status(&plan.scan, &p.report())))
        };
        Status {
            version: env!("CARGO_PKG_VERSION").to_string(),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            config_file: plan.config_file.as_ref().map(|p| p.display().to_string()),
            runtime_dir: plan.daemon.runtime_dir.display().to_string(),
            workers: self.workers.len() as u32,
            copying_seconds: copying_ns as f64 / 1e9,
            nbd,
            nbd_listeners: self.nbd_listeners(&plan),
            nbd_data: NbdDataStatus {
                used_bytes: self.nbd_budget.used_bytes() as u64,
                max_bytes: self.nbd_budget.bytes_max() as u64,
                slow_closed: self.nbd_budget.ended(),
            },
            store,
            ssd: self.ssd_status(&plan),
            pressure: shown::pressure_status(&self.watch.view()),
            ksm: self.ksm_status(),
            scan,
            log: shown::log_status(),
            sharing: self.domains(),
            disks,
        }
    }

    /// What the store holds, and what copying contents has taken; `saved_bytes` are what all disks together have
    /// cached.
    fn store_status(&self, plan: &ServePlan, saved_bytes: u64) -> (StoreStatus, u64) {
        let (view, aside) = (self.watch.view(), plan.ssd.memory_bytes);
        let mut store = StoreStatus {
            memory_bytes: plan.store.memory_bytes,
            floor_bytes: view.floor_bytes + aside,
            limit_bytes: view.most_bytes + aside,
            allowed_bytes: view.allowed_bytes + aside,
            saved_bytes,
            ..StoreStatus::default()
        };
        let mut copying_ns = 0;
        // No share moves from one worker to the next while they are asked.
        let still = self.shares.lock();
        for worker in &self.workers {
            let ask = |w: &mut crate::worker::Worker| {
                let ssd_bytes = w.core().ssd().map_or(0, |ssd| ssd.stats().iter().map(|s| s.memory).sum::<u64>());
                (w.core().memory(), w.core().frames_used(), w.copying_ns(), ssd_bytes)
            };
            let Ok((memory, frames, ns, ssd_bytes)) = worker.call(ask) else { continue };
            copying_ns += ns;
            store.data_bytes += frames * FRAME_BYTES as u64;
            store.metadata_bytes += memory.metadata_bytes + ssd_bytes;
            store.io_bytes += memory.frames_bytes;
        }
        drop(still);
        // Of what is cached, that which takes no memory.
        store.saved_bytes = store.saved_bytes.saturating_sub(store.data_bytes);
        // What frames hold besides cached blocks is under way, or kept ready for that.
        store.io_bytes = store.io_bytes.saturating_sub(store.data_bytes);
        (store, copying_ns)
    }
}
