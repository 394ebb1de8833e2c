//! The start of the SSD store: the regions of each worker are taken over, or made anew.
//!
//! Owns what may be made anew. Never judges what is in a region: the store does. Invariant: what another version or
//! size of the store made is written over only if the configuration allows it.

use super::void::VoidNames;
use crate::worker::Device;
use std::io;
use undercroft_backend::boot_id;
use undercroft_backend::ssd::{SsdDevices, SsdError, SsdRegion, random_id};
use undercroft_cache::NoFaults;
use undercroft_cache::ssd::{BootId, Format, NoRegion, Recovered, Region, Ssd, StoreId};
use undercroft_config::{SsdAdmission, SsdPlan};

/// The part of the store that one worker has.
pub(super) struct WorkerStore {
    pub(super) regions: Vec<Region<NoFaults>>,
    pub(super) devices: Vec<Device>,
    /// Names of the regions.
    pub(super) names: Vec<StoreId>,
    /// What reads and writes them.
    pub(super) engine: &'static str,
    /// Blocks that were taken over.
    pub(super) blocks: u64,
    /// See [`discards`].
    discards: bool,
}

impl WorkerStore {
    /// The store, as the plan has it.
    pub(super) fn into_ssd(self, plan: &SsdPlan, workers: usize) -> (Ssd, Vec<Device>) {
        let mut ssd = Ssd::new(self.regions);
        arrange(&mut ssd, plan, workers, self.discards);
        (ssd, self.devices)
    }

    /// What reads and writes the regions of a worker, and how.
    pub(super) fn backends(
        devices: &SsdDevices,
        regions: &[SsdRegion],
    ) -> Result<(Vec<Device>, &'static str), SsdError> {
        let (mut all, mut engine) = (Vec::new(), "io_uring");
        for (n, region) in regions.iter().enumerate() {
            let (backend, no_ring) =
                region.backend().map_err(|source| io_error(devices, n, "setting up I/O for it", source))?;
            if no_ring.is_some() {
                engine = "threads";
            }
            all.push(Device { backend, first: 0 });
        }
        Ok((all, engine))
    }
}

/// Whether free segments are discarded: of a file that would give up space that was reserved for it.
pub(super) fn discards(devices: &SsdDevices) -> bool {
    devices.info().all(|info| info.is_device)
}

/// Has a store do as the plan says.
pub(super) fn arrange(ssd: &mut Ssd, plan: &SsdPlan, workers: usize, discards: bool) {
    ssd.set_admission(match plan.admit {
        SsdAdmission::Measured => undercroft_cache::ssd::Admission::Measured,
        SsdAdmission::Second => undercroft_cache::ssd::Admission::Second,
        SsdAdmission::All => undercroft_cache::ssd::Admission::All,
        SsdAdmission::None => undercroft_cache::ssd::Admission::None,
    });
    ssd.set_discards(discards);
    ssd.set_budget(plan.writes_per_day_bytes.map(|bytes| bytes / workers.max(1) as u64));
}

/// The stores of all workers, each recovered on a thread of its own.
///
/// # Errors
/// The first thing that keeps one of them from being had.
pub(super) fn stores(
    devices: &SsdDevices,
    plan: &SsdPlan,
    workers: u32,
    void: &VoidNames,
) -> Result<Vec<WorkerStore>, SsdError> {
    let boot = this_boot().map_err(|source| io_error(devices, 0, "making a name for this start", source))?;
    std::thread::scope(|scope| {
        let one = |worker| scope.spawn(move || store(devices, plan, worker, void, boot));
        let threads: Vec<_> = (0..workers).map(one).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|p| std::panic::resume_unwind(p))).collect()
    })
}

/// The name of the time since the host was started; where the kernel does not tell, one that nobody has had.
fn this_boot() -> io::Result<BootId> {
    boot_id().map_or_else(random_id, Ok).map(BootId)
}

fn store(
    devices: &SsdDevices,
    plan: &SsdPlan,
    worker: u32,
    void: &VoidNames,
    boot: BootId,
) -> Result<WorkerStore, SsdError> {
    let discards = discards(devices);
    let mut store = WorkerStore {
        regions: Vec::new(),
        devices: Vec::new(),
        names: Vec::new(),
        engine: "io_uring",
        blocks: 0,
        discards,
    };
    let mut regions = devices.regions(worker);
    for (media, n) in regions.iter_mut().zip(0..) {
        let (region, blocks) = region(devices, plan, n, media, void, boot)?;
        store.blocks += blocks;
        store.names.push(region.store());
        store.regions.push(region);
    }
    (store.devices, store.engine) = WorkerStore::backends(devices, &regions)?;
    Ok(store)
}

/// A region and how many blocks were taken over.
fn region(
    devices: &SsdDevices,
    plan: &SsdPlan,
    n: usize,
    media: &mut SsdRegion,
    void: &VoidNames,
    boot: BootId,
) -> Result<(Region<NoFaults>, u64), SsdError> {
    let segment_bytes = plan.segment_bytes as u32;
    let io = |source| io_error(devices, n, "reading and writing it", source);
    if devices.made().is_none() {
        match Region::recover(media, segment_bytes, boot, NoFaults) {
            Ok((region, found)) if !void.has(region.store()) => {
                say_what_was_dropped(&devices.path(n), &found);
                return Ok((region, found.blocks));
            }
            // Nothing of it is worth anything.
            Ok(_) | Err(NoRegion::Foreign | NoRegion::Broken) => {}
            Err(NoRegion::Io(e)) => return Err(io(e)),
            Err(_) if plan.format => {}
            Err(why) => return Err(SsdError::Misfit { path: devices.path(n), why: why.to_string() }),
        }
    }
    let format = Format { store: StoreId(random_id().map_err(io)?), segment_bytes };
    match Region::format(media, format, boot, NoFaults) {
        Ok(region) => Ok((region, 0)),
        Err(NoRegion::Io(e)) => Err(io(e)),
        Err(why) => Err(SsdError::Misfit { path: devices.path(n), why: why.to_string() }),
    }
}

/// Why a region's blocks were not taken over, where that is nobody's intention.
fn say_what_was_dropped(path: &str, found: &Recovered) {
    if found.unreadable > 0 {
        tracing::warn!(path, "nothing in the SSD store is used: {} of its summaries cannot be read", found.unreadable);
    } else if found.is_broken {
        tracing::warn!(path, "nothing in the SSD store is used: a copy of its table is damaged");
    } else if found.is_of_another_boot {
        tracing::info!(
            path,
            "nothing in the SSD store is used: the host was started again before it was left in order"
        );
    }
}

fn io_error(devices: &SsdDevices, n: usize, doing: &'static str, source: io::Error) -> SsdError {
    SsdError::Io { path: devices.path(n), doing, source }
}
