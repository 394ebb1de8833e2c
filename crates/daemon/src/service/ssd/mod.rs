//! The SSD store as the service has it: its files and devices, in service or not, and what is told of them.
//!
//! Owns them from when they are opened until they are closed. Never knows what is in them: the workers' stores do.
//! Invariant: a store that cannot be had keeps no disk from being served.

mod keeper;
mod passing;
mod recovery;
mod shown;
mod void;

pub(super) use keeper::{Gone, begin};
pub(super) use passing::{ComingSsd, refusal};

use super::disk::Opened;
use super::locks::{Ordered, Rank};
use super::{ServedDisk, Service};
use crate::handover::letters::LeftUse;
use crate::worker::{self, Device, WorkerHandle};
use keeper::{identity_of, stamp_of};
use recovery::WorkerStore;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use undercroft_api::{SsdCounters, SsdDeviceStatus, SsdStatus};
use undercroft_backend::ImageFiles;
use undercroft_backend::ssd::{SsdDevices, SsdError, random_id};
use undercroft_cache::ssd::{Identity, Kept, Known, OwnerId, Ssd, Stamp, StoreId};
use undercroft_config::{BaseDeduplication, ControlError, ControlErrorKind, ServePlan, SsdPlan};
use undercroft_host::FRAME_BYTES;
use void::VoidNames;

/// What a daemon without an SSD store says.
const NOT_CONFIGURED: &str = "this daemon has no SSD store";
/// What to do about it.
const CONFIGURE: &str = "add [ssd] with paths and size to the configuration, and start the daemon again";
/// How long operations under way keep devices from being closed, and a stop from being an orderly one.
const CLOSE_WAIT: Duration = Duration::from_secs(10);
/// How long files and devices that are in use are waited for: the kernel takes a moment to let go of those of a daemon
/// that was killed, whose rings it ends first.
const RELEASE_WAIT: Duration = Duration::from_millis(1500);
/// Between two looks at them.
const CLOSE_STEP: Duration = Duration::from_millis(5);

/// Files and devices that are open, or why they are not.
pub(super) struct SsdState {
    open: Opening,
    /// Stores of this daemon, past ones too, that are not to be believed any more.
    void: VoidNames,
    /// What disks counted that are gone.
    gone: SsdCounters,
    /// Disks that have gone while the daemon stops: by worker, what the store has of each, and how its image is.
    leaving: Vec<(usize, OwnerId, Stamp)>,
    /// What another process has told of disks that have not come yet.
    told: HashMap<String, LeftUse>,
}

/// Whether they are open.
enum Opening {
    Open(OpenDevices),
    /// They are not; why.
    Closed(String),
}

impl Opening {
    fn devices(&self) -> Option<&OpenDevices> {
        match self {
            Self::Open(devices) => Some(devices),
            Self::Closed(_) => None,
        }
    }

    fn why_closed(&self) -> Option<String> {
        match self {
            Self::Open(_) => None,
            Self::Closed(why) => Some(why.clone()),
        }
    }
}

/// Why the store is not taken into service, or out of it.
#[derive(Debug, thiserror::Error)]
pub(super) enum SwitchError {
    /// A file or device.
    #[error(transparent)]
    Device(#[from] SsdError),
    /// A worker does not answer.
    #[error(transparent)]
    Worker(#[from] worker::Gone),
    /// A worker cannot use its devices.
    #[error(transparent)]
    Attach(#[from] worker::AddDiskError),
    /// A worker cannot use them again.
    #[error("a worker cannot use its part: {0}")]
    Return(std::io::Error),
    /// The record of what is void.
    #[error("it cannot be recorded that its content is void: {0}")]
    Record(std::io::Error),
    /// Operations do not end.
    #[error("operations of worker {0} on it are still under way")]
    Busy(usize),
}

/// Open files and devices.
struct OpenDevices {
    devices: SsdDevices,
    /// What reads and writes them.
    engine: &'static str,
    /// Names of the regions.
    names: Vec<StoreId>,
}

/// The stores of all workers, until these have them.
pub(super) type Stores = Vec<(Ssd, Vec<Device>)>;

impl SsdState {
    /// Opens what the plan names, and takes over what is there: a store for each worker. What cannot be had is said,
    /// and the daemon serves without. With `is_told`, another process has it in service, and will tell of it.
    pub(super) fn begin(plan: &ServePlan, is_told: bool) -> (Ordered<Self>, Stores) {
        let void = VoidNames::load(&plan.daemon.runtime_dir);
        let mut stores = Vec::new();
        let open = match (plan.ssd.is_wanted() && !is_told).then(|| open(plan, &void)) {
            None if is_told => Opening::Closed("another process has it".to_owned()),
            None => Opening::Closed(NOT_CONFIGURED.to_owned()),
            Some(Ok((open, found))) => {
                let workers = found.len();
                stores.extend(found.into_iter().map(|store| store.into_ssd(&plan.ssd, workers)));
                Opening::Open(open)
            }
            Some(Err(e)) => {
                tracing::error!("the SSD store is out of service, and disks are served without it: {e}");
                Opening::Closed(e.to_string())
            }
        };
        let state = Self { open, void, gone: SsdCounters::default(), leaving: Vec::new(), told: HashMap::new() };
        (Ordered::new(Rank::Ssd, state), stores)
    }

    /// All that is known without asking a worker.
    fn status(&self, plan: &SsdPlan) -> SsdStatus {
        let closed = plan
            .paths
            .iter()
            .map(|path| SsdDeviceStatus { path: path.display().to_string(), ..SsdDeviceStatus::default() });
        let opened = |open: &OpenDevices| {
            let devices = open.devices.info().map(|info| SsdDeviceStatus {
                path: info.path,
                is_device: info.is_device,
                size_bytes: info.used_bytes,
                region_bytes: info.region_bytes,
                regions_in_service: 0,
                engine: open.engine.to_owned(),
            });
            devices.collect()
        };
        let open = self.open.devices();
        SsdStatus {
            in_service: open.is_some(),
            reason: self.open.why_closed(),
            made: open.and_then(|o| o.devices.made()).map(str::to_owned),
            devices: open.map_or_else(|| closed.collect(), opened),
            admit: plan.admit.name().to_owned(),
            writes_per_day_bytes: plan.writes_per_day_bytes,
            memory_reserved_bytes: plan.memory_bytes,
            counters: self.gone,
            ..SsdStatus::default()
        }
    }
}

/// Opens files and devices, and recovers the regions of each worker.
fn open(plan: &ServePlan, void: &VoidNames) -> Result<(OpenDevices, Vec<WorkerStore>), SsdError> {
    let workers = plan.daemon.workers.max(1) as u32;
    let until = Instant::now() + RELEASE_WAIT;
    let devices = loop {
        match SsdDevices::open(&plan.ssd, workers) {
            Err(SsdError::InUse { .. }) if Instant::now() < until => std::thread::sleep(CLOSE_STEP),
            opened => break opened?,
        }
    };
    let begun = Instant::now();
    let stores = recovery::stores(&devices, &plan.ssd, workers, void)?;
    let names = stores.iter().flat_map(|s| s.names.iter().copied()).collect();
    let engine = stores.first().map_or("io_uring", |s| s.engine);
    log_open(&devices);
    let bytes = stores.iter().map(|s| s.blocks).sum::<u64>() * FRAME_BYTES as u64;
    if devices.made().is_none() {
        let (bytes, ms) = (undercroft_units::human_size(bytes), begun.elapsed().as_millis());
        tracing::info!("SSD store: {bytes} found in {ms} ms, of images that have not changed");
    }
    Ok((OpenDevices { devices, engine, names }, stores))
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

/// What the store is told of the image of a disk, as it was found when it was opened.
fn known(files: Option<&ImageFiles>, size_bytes: u64) -> Option<Known> {
    let found = files.and_then(ImageFiles::found);
    let identity = match &found {
        Some(image) => identity_of(image),
        // Nobody has had it, and nobody will.
        None => {
            let mut bytes = [0xff; 64];
            bytes[..16].copy_from_slice(&random_id().ok()?);
            Identity(bytes)
        }
    };
    let blocks = size_bytes.div_ceil(FRAME_BYTES as u64);
    Some(Known { identity, stamp: found.as_ref().map(stamp_of), blocks })
}

/// Gives each worker its part of the store, before it has a disk.
pub(super) fn give(workers: &[Arc<WorkerHandle>], stores: Stores) -> Result<(), SwitchError> {
    for (worker, (ssd, devices)) in workers.iter().zip(stores) {
        worker.call(move |w| w.set_ssd(ssd, devices))??;
    }
    Ok(())
}

/// Gives a worker its part of the store while it serves disks.
fn give_again(worker: &Arc<WorkerHandle>, store: WorkerStore, plan: &ServePlan) -> Result<(), SwitchError> {
    if worker.call(|w| w.core().ssd().is_none())? {
        // It could not be had when the daemon started.
        return give(std::slice::from_ref(worker), vec![store.into_ssd(&plan.ssd, plan.daemon.workers)]);
    }
    let (regions, devices) = (store.regions, store.devices);
    worker.call(move |w| w.return_ssd(regions, devices))?.map_err(SwitchError::Return)
}

impl Service {
    /// From now on, blocks of the disk may be in the store; if it `comes` just now, those that are there, too. Of one
    /// that was served without the store, these may be what was there before it was changed.
    pub(super) fn use_ssd(&self, disk: &ServedDisk, comes: bool) {
        if comes && self.adopt_from_other(disk) {
            return;
        }
        let (id, name) = (disk.id(), &disk.info().name);
        let Some(mut known) = known(disk.files().as_ref(), disk.info().geometry.size_bytes) else { return };
        if !comes {
            known.stamp = None;
        }
        match disk.host().worker.call(move |w| w.core().use_ssd(id, &known)) {
            Ok(Ok(Some(Kept::Blocks(blocks)))) => {
                let bytes = undercroft_units::human_size(blocks * FRAME_BYTES as u64);
                tracing::info!(disk = name, "{bytes} of it are in the SSD store");
            }
            Ok(Ok(Some(Kept::Dropped(why)))) => {
                tracing::info!(disk = name, "what the SSD store had of it is dropped: {why:?}");
            }
            Ok(Err(e)) => tracing::warn!(disk = name, "it is served without the SSD store: {e}"),
            _ => {}
        }
        self.use_ssd_for_base(disk);
    }

    /// Has what the disk's base image has in the store be there once for all disks that share the base. Nothing if the
    /// disk shares none, or does not use the store.
    pub(super) fn use_ssd_for_base(&self, disk: &ServedDisk) {
        let (id, name) = (disk.id(), &disk.info().name);
        let Some(known) = self.known_base(disk) else { return };
        match disk.host().worker.call(move |w| w.core().use_ssd_for_base(id, &known)) {
            Ok(Ok(Some(Kept::Blocks(blocks)))) => {
                let bytes = undercroft_units::human_size(blocks * FRAME_BYTES as u64);
                tracing::info!(disk = name, "{bytes} of its base image are in the SSD store");
            }
            Ok(Err(e)) => tracing::warn!(disk = name, "its base image is not in the SSD store: {e}"),
            _ => {}
        }
    }

    /// What the store is told of the disk's base image.
    fn known_base(&self, disk: &ServedDisk) -> Option<Known> {
        let found = self.base_files(disk)?.found()?;
        // Blocks of a base have numbers of 32 bits; its size is part of what its files say.
        Some(Known { identity: identity_of(&found), stamp: Some(stamp_of(&found)), blocks: 1 << 32 })
    }

    /// Which worker's part of the store has most of an image, if any has.
    pub(super) fn place_in_ssd(&self, image: &Opened) -> Option<usize> {
        if !self.has_ssd() {
            return None;
        }
        let identity = identity_of(&image.backend.files()?.found()?);
        let has = |worker: &Arc<WorkerHandle>| worker.call(move |w| w.core().ssd().map(|ssd| ssd.kept_of(&identity)));
        let kept = self.workers.iter().map(|worker| has(worker).ok().flatten().unwrap_or(0));
        let (blocks, n) = kept.zip(0..).max_by_key(|(blocks, n)| (*blocks, std::cmp::Reverse(*n)))?;
        (blocks > 0).then_some(n)
    }

    /// The files of the disk's base image, as those know it who share it with the disk.
    fn base_files(&self, disk: &ServedDisk) -> Option<ImageFiles> {
        let plan = self.plan();
        let of = plan.find(&disk.info().name)?;
        let group = disk.group().filter(|_| of.deduplicate_base == BaseDeduplication::Group);
        let of = group.map_or(String::new(), |group| self.group_name(group));
        Some(disk.files()?.base(&format!("base of {of}")))
    }

    /// Whether an SSD store is in service.
    pub(super) fn has_ssd(&self) -> bool {
        self.ssd.lock().open.devices().is_some()
    }

    /// The SSD store; nothing if none is configured.
    pub(super) fn ssd_status(&self, plan: &ServePlan) -> Option<SsdStatus> {
        plan.ssd.is_wanted().then(|| {
            let mut status = self.ssd.lock().status(&plan.ssd);
            if status.in_service {
                self.add_workers(&mut status);
            }
            status
        })
    }

    fn add_workers(&self, status: &mut SsdStatus) {
        let disks = self.disks();
        for (n, worker) in self.workers.iter().enumerate() {
            let own: Vec<_> = disks.iter().filter(|d| d.worker_number() == n).collect();
            let ids: Vec<_> = own.iter().map(|d| d.id()).collect();
            let asked = worker.call(move |w| {
                let owners: Vec<_> = ids.iter().map(|id| w.core().ssd_stats_of(*id)).collect();
                let bases: BTreeSet<_> = ids.iter().filter_map(|id| w.core().ssd_base_of(*id)).collect();
                let ssd = w.core().ssd()?;
                let bases: Vec<_> = bases.into_iter().map(|base| ssd.owner_stats(base)).collect();
                Some((ssd.stats(), owners, bases))
            });
            let Ok(Some((devices, owners, bases))) = asked else { continue };
            shown::add(status, n, &devices);
            bases.iter().for_each(|base| shown::count(&mut status.counters, base));
            for (disk, owner) in own.iter().zip(&owners).filter_map(|(disk, owner)| Some((disk, owner.as_ref()?))) {
                shown::count(&mut status.counters, owner);
                status.disks.push(shown::disk(&disk.info().name, owner));
            }
        }
        status.disks.sort_by(|a, b| a.disk.cmp(&b.disk));
        let manager = self.shares.lock();
        for disk in &mut status.disks {
            let target = manager.below.of(&disk.disk).filter(|below| below.is_below()).map(|below| below.target);
            disk.target_bytes = target.map_or(disk.share_bytes, |blocks| blocks * FRAME_BYTES as u64);
        }
    }

    /// The same for who asked for it by name.
    pub(super) fn wanted_ssd(&self) -> Result<SsdStatus, ControlError> {
        let not_found = || ControlError::new(ControlErrorKind::NotFound, NOT_CONFIGURED, CONFIGURE);
        self.ssd_status(&self.plan()).ok_or_else(not_found)
    }

    /// Takes the store into service again, or out of it. The caller holds `change`.
    pub(super) fn switch_ssd(&self, in_service: bool) -> Result<SsdStatus, ControlError> {
        if self.wanted_ssd()?.in_service != in_service {
            let switched = if in_service { self.start_ssd() } else { self.stop_ssd() };
            let remedy = "see to what it says, then try it again";
            switched.map_err(|e| ControlError::new(ControlErrorKind::Failed, e.to_string(), remedy))?;
        }
        self.wanted_ssd()
    }

    fn start_ssd(&self) -> Result<(), SwitchError> {
        let plan = self.plan();
        let mut state = self.ssd.lock();
        let (opened, stores) = open(&plan, &state.void)?;
        let given: Result<Vec<()>, SwitchError> =
            self.workers.iter().zip(stores).map(|(worker, store)| give_again(worker, store, &plan)).collect();
        if let Err(e) = given {
            // Those that have theirs give it up again: it is all of them or none.
            self.workers.iter().for_each(|worker| _ = worker.call(|w| w.leave_ssd()));
            let _ = state.void.add(opened.names);
            return Err(e);
        }
        state.open = Opening::Open(opened);
        drop(state);
        // Those that came while there was none.
        for disk in self.disks() {
            let id = disk.id();
            if disk.host().worker.call(move |w| w.core().ssd_stats_of(id).is_none()) == Ok(true) {
                self.use_ssd(&disk, false);
            }
        }
        Ok(())
    }

    /// What is on the devices is void from now on: disks go on changing.
    fn stop_ssd(&self) -> Result<(), SwitchError> {
        let mut state = self.ssd.lock();
        let names = state.open.devices().map(|open| open.names.clone()).unwrap_or_default();
        state.void.add(names).map_err(SwitchError::Record)?;
        let until = Instant::now() + CLOSE_WAIT;
        for (n, worker) in self.workers.iter().enumerate() {
            while !worker.call(|w| w.leave_ssd())? {
                if Instant::now() >= until {
                    return Err(SwitchError::Busy(n));
                }
                std::thread::sleep(CLOSE_STEP);
            }
        }
        state.open = Opening::Closed("an operator took it out of service".to_owned());
        Ok(())
    }

    /// An orderly stop of the store, once all disks have gone: what is on the devices is good for the next start.
    pub(super) fn end_ssd(&self) {
        let leaving = std::mem::take(&mut self.ssd.lock().leaving);
        let until = Instant::now() + CLOSE_WAIT;
        for (n, worker) in self.workers.iter().enumerate() {
            let stamps: Vec<_> = leaving.iter().filter(|(of, ..)| *of == n).map(|(_, o, s)| (*o, *s)).collect();
            let _ = worker.call(move |w| {
                if let Some(ssd) = w.core().ssd_mut() {
                    ssd.stop(&stamps);
                }
            });
            let step = |w: &mut crate::worker::Worker| {
                w.serve_ssd();
                w.core().ssd().is_none_or(Ssd::is_stopped)
            };
            while worker.call(step) == Ok(false) {
                if Instant::now() >= until {
                    tracing::error!("the SSD store does not answer; what it holds is lost");
                    return;
                }
                std::thread::sleep(CLOSE_STEP);
            }
        }
    }

    /// Drops what the store holds of a disk, or of all.
    pub(super) fn drop_from_ssd(&self, disk: Option<&str>) -> Result<u64, ControlError> {
        let status = self.wanted_ssd()?;
        let disks = match disk {
            Some(name) => vec![self.find(name)?],
            None => self.disks(),
        };
        if !status.in_service {
            let error = format!("the SSD store is out of service: {}", status.reason.unwrap_or_default());
            return Err(ControlError::new(ControlErrorKind::Conflict, error, "`undercroft ssd start` first"));
        }
        let mut blocks = 0;
        for disk in disks {
            let id = disk.id();
            let dropped = disk.host().worker.call(move |w| {
                let before = w.core().ssd_stats_of(id).map_or(0, |stats| stats.blocks);
                w.core().drop_ssd(id);
                w.serve_ssd();
                before
            });
            blocks += dropped.unwrap_or(0);
        }
        Ok(blocks * FRAME_BYTES as u64)
    }
}
