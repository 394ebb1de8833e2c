//! The SSD store goes to another process that serves from then on, or comes from one.
//!
//! Owns what is told besides the stores themselves: which disk uses which part. Never reads or writes a device: what
//! that says stays true. Invariants: a store that was taken over asks for nothing until this process is told to begin;
//! a disk uses what was told of it only if its image is what it was when the other process closed it.

use super::Opening;
use super::recovery::{self, WorkerStore};
use crate::handover::letters::{LeftSsd, LeftUse, OfferedSsd};
use crate::service::leaving::{Rest, kept_stamp};
use crate::service::{ServedDisk, Service};
use crate::worker::WorkerHandle;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use undercroft_backend::ImageFiles;
use undercroft_backend::ssd::{SetId, SsdDevices};
use undercroft_cache::ssd::{HANDOVER_FORM, Media, OwnerId, Ssd, SsdUse, Stamp};
use undercroft_cache::{KeptDisk, NoFaults};
use undercroft_config::SsdPlan;
use undercroft_host::{FRAME_BYTES, SharedMemory};

/// How long a store may take to come to rest while disks are served still, before they are to rest as well.
const AHEAD: Duration = Duration::from_millis(300);
/// Between two looks.
const STEP: Duration = Duration::from_millis(1);

/// What an offer says of the store that a plan names.
fn offered(plan: &SsdPlan) -> OfferedSsd {
    let SsdPlan { size_bytes, segment_bytes, .. } = *plan;
    OfferedSsd { form: HANDOVER_FORM, paths: plan.paths.clone(), size_bytes, segment_bytes }
}

/// Why a process with this plan cannot go on with a store that is offered.
pub(in super::super) fn refusal(of: &OfferedSsd, plan: &SsdPlan) -> Option<String> {
    let mine = offered(plan);
    if of.form != mine.form {
        let why = "what is in the SSD store cannot be told to this version of the program: restart the daemon, which \
                   keeps it";
        return Some(why.to_owned());
    }
    (*of != mine).then(|| {
        "the configuration names other files or sizes for the SSD store than are in service: restart the daemon"
            .to_owned()
    })
}

fn failed(why: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("SSD store: {why}"))
}

/// A store that is being made of what another process has told.
pub(in super::super) struct ComingSsd {
    making: JoinHandle<io::Result<Made>>,
    disks: Vec<LeftUse>,
}

/// The stores of all workers, with what they are on.
struct Made {
    stores: super::Stores,
    open: super::OpenDevices,
    blocks: u64,
}

/// Makes the stores of so many workers of what was `told` of each, on these open files.
fn made(
    plan: &SsdPlan,
    workers: usize,
    id: SetId,
    files: Vec<Vec<OwnedFd>>,
    told: Vec<SharedMemory>,
) -> io::Result<Made> {
    let devices = SsdDevices::passed(plan, workers as u32, id, files).map_err(failed)?;
    let (mut stores, mut names, mut blocks, mut engine) = (Vec::new(), Vec::new(), 0, "io_uring");
    for (told, worker) in told.iter().zip(0..) {
        let regions = devices.regions(worker);
        let sizes: Vec<_> = regions.iter().map(|r| (Media::bytes(r), plan.segment_bytes as u32)).collect();
        let mut ssd = Ssd::take_over(&told.take()?, &sizes, NoFaults).map_err(failed)?;
        recovery::arrange(&mut ssd, plan, workers, recovery::discards(&devices));
        names.extend(ssd.names());
        blocks += ssd.stats().iter().map(|s| s.blocks).sum::<u64>();
        let (backends, of) = WorkerStore::backends(&devices, &regions).map_err(failed)?;
        engine = of;
        stores.push((ssd, backends));
    }
    Ok(Made { stores, open: super::OpenDevices { devices, engine, names }, blocks })
}

impl Service {
    /// The store that is in service, to be offered.
    pub(in super::super) fn offered_ssd(&self) -> Option<OfferedSsd> {
        self.has_ssd().then(|| offered(&self.plan().ssd))
    }

    /// Has the store come to rest as far as it does while disks are served: what is written takes its time now, and not
    /// when nobody is served.
    pub(in super::super) fn begin_ssd_rest(&self) {
        if self.has_ssd() {
            let rest = |worker: &Arc<WorkerHandle>| worker.call(|w| w.core().ssd_mut().map(Ssd::rest));
            self.workers.iter().for_each(|worker| _ = rest(worker));
            let _ = self.await_ssd_rest(Instant::now() + AHEAD);
        }
    }

    /// Waits until all of it is at rest.
    fn await_ssd_rest(&self, give_up: Instant) -> io::Result<()> {
        for worker in &self.workers {
            let step = |w: &mut crate::worker::Worker| {
                w.serve_ssd();
                w.core().ssd().is_none_or(Ssd::is_at_rest)
            };
            while !worker.call(step).map_err(failed)? {
                if Instant::now() >= give_up {
                    return Err(failed("operations on it do not end"));
                }
                std::thread::sleep(STEP);
            }
        }
        Ok(())
    }

    /// The store, which has come to rest or is about to, for another process: its letter, and what goes with it.
    /// Nothing without one.
    pub(in super::super) fn tell_ssd(
        &self,
        rest: &Rest,
        give_up: Instant,
    ) -> io::Result<Option<(LeftSsd, Vec<OwnedFd>)>> {
        if !self.has_ssd() {
            return Ok(None);
        }
        self.await_ssd_rest(give_up)?;
        let mut descriptors = Vec::new();
        for worker in &self.workers {
            let told = worker.call(|w| w.core().ssd().and_then(Ssd::hand_over)).map_err(failed)?;
            let told = told.ok_or_else(|| failed("a part of it is not at rest"))?;
            descriptors.push(SharedMemory::with(&told)?.as_fd().try_clone_to_owned()?);
        }
        let state = self.ssd.lock();
        let Some(open) = state.open.devices() else { return Ok(None) };
        let mut devices = Vec::new();
        for of in open.devices.descriptors() {
            devices.push(of.len());
            for one in of {
                descriptors.push(one.try_clone_to_owned()?);
            }
        }
        let id = open.devices.id();
        drop(state);
        let disks = rest.disks.iter().filter_map(|d| {
            let name = &d.disk.info().name;
            // Of one that is not listed it is not known how its image is.
            let listed = rest.snapshot.disks.iter().find(|k| k.name == *name)?;
            let (id, worker) = (d.disk.id(), d.disk.worker_number());
            let SsdUse { owner, base, share } = self.workers[worker].call(move |w| w.core().ssd_use_of(id)).ok()??;
            let image = listed.image.map(|image| image.to_vec());
            let (disk, owner, base) = (name.clone(), owner.0, base.map(|base| base.0));
            Some(LeftUse { disk, worker, owner, base, share, image })
        });
        Ok(Some((LeftSsd { id, devices, disks: disks.collect() }, descriptors)))
    }

    /// The store goes on here after all.
    pub(in super::super) fn go_on_with_ssd(&self) {
        let state = self.ssd.lock();
        let Some(open) = state.open.devices() else { return };
        if let Err(e) = open.devices.claim() {
            tracing::error!("the SSD store is used by this process and somebody else: {e}");
        }
        drop(state);
        for worker in &self.workers {
            let _ = worker.call(|w| {
                w.core().ssd_mut().map(Ssd::go_on);
                w.serve_ssd();
            });
        }
    }

    /// Begins to make a store of what another process has told of its own, in place of opening it: on a thread of its
    /// own, since nobody is served meanwhile.
    pub(in super::super) fn make_ssd(
        &self,
        left: LeftSsd,
        from: &mut dyn Iterator<Item = OwnedFd>,
    ) -> io::Result<ComingSsd> {
        let missing = || failed("a descriptor is missing");
        let mut told = Vec::new();
        for _ in &self.workers {
            told.push(SharedMemory::from_passed(from.next().ok_or_else(missing)?)?);
        }
        let files: Vec<Vec<OwnedFd>> = left.devices.iter().map(|n| from.take(*n).collect()).collect();
        if files.iter().zip(&left.devices).any(|(files, n)| files.len() != *n) {
            return Err(missing());
        }
        let (plan, workers, id) = (self.plan().ssd.clone(), self.workers.len(), left.id);
        let make = move || made(&plan, workers, id, files, told);
        let making = std::thread::Builder::new().name("ssd".into()).spawn(make)?;
        Ok(ComingSsd { making, disks: left.disks })
    }

    /// Takes it, when it is made, and has the disks that are here use it. It is at rest until
    /// [`Service::go_on_with_ssd`].
    pub(in super::super) fn take_ssd(&self, coming: ComingSsd) -> io::Result<()> {
        let Made { stores, open, blocks } = coming.making.join().map_err(|_| failed("it cannot be made"))??;
        super::give(&self.workers, stores).map_err(failed)?;
        let bytes = undercroft_units::human_size(blocks * FRAME_BYTES as u64);
        tracing::info!("SSD store: goes on with {bytes} of the process before");
        let mut state = self.ssd.lock();
        state.open = Opening::Open(open);
        state.told = coming.disks.into_iter().map(|of| (of.disk.clone(), of)).collect();
        drop(state);
        self.disks().iter().for_each(|disk| self.use_ssd(disk, true));
        Ok(())
    }

    /// Has a disk, which nobody reaches yet, use the store as it did in another process. False if that did not use it,
    /// or the image is another one now.
    pub(super) fn adopt_from_other(&self, disk: &ServedDisk) -> bool {
        let Some(told) = self.ssd.lock().told.remove(&disk.info().name) else { return false };
        let found = disk.files().as_ref().and_then(ImageFiles::found).as_ref().map(kept_stamp);
        let is_same = told.image.is_none_or(|image| found.is_some_and(|found| image == found));
        if !is_same || told.worker != disk.worker_number() {
            let why = if is_same { "it is on another worker" } else { "its image has changed meanwhile" };
            tracing::warn!(disk = told.disk, "what the SSD store has of it is not used: {why}");
            return false;
        }
        let (id, base) = (disk.id(), told.base.map(OwnerId));
        let as_before = SsdUse { owner: OwnerId(told.owner), base: None, share: told.share };
        let blocks = disk.info().geometry.size_bytes.div_ceil(FRAME_BYTES as u64);
        let adopted = disk.host().worker.call(move |w| {
            let core = w.core();
            let is_whole = core.ssd().and_then(|ssd| ssd.known(as_before.owner)).is_some_and(|k| k.blocks == blocks);
            is_whole && core.adopt_ssd(id, &as_before)
        });
        if adopted != Ok(true) {
            tracing::warn!(disk = told.disk, "what the SSD store has of it is not used: it is another disk now");
            return false;
        }
        let known = base.and_then(|base| Some((base, self.known_base(disk)?)));
        let has_base = known.is_some_and(|(base, known)| {
            disk.host().worker.call(move |w| w.core().adopt_ssd_base(id, base, &known)) == Ok(true)
        });
        if !has_base {
            self.use_ssd_for_base(disk);
        }
        true
    }

    /// All disks are here that will come: what was told of others goes.
    pub(in super::super) fn settle_ssd(&self) {
        self.ssd.lock().told.clear();
        self.workers.iter().for_each(|worker| _ = worker.call(|w| w.core().settle_ssd()));
    }

    /// An orderly stop of the store with all disks at rest, whose images are closed: what is on the devices is good for
    /// the next start.
    pub(in super::super) fn end_ssd_at_rest(&self, rest: &Rest) {
        if !self.has_ssd() {
            return;
        }
        for d in &rest.disks {
            let (id, worker) = (d.disk.id(), d.disk.worker_number());
            let listed = rest.snapshot.disks.iter().find(|k| k.name == d.disk.info().name);
            let Some(image) = listed.and_then(|listed| listed.image) else { continue };
            let told = self.workers[worker].call(move |w| {
                let used = w.core().ssd_use_of(id)?;
                // Nobody changes a base.
                let below = used.base.and_then(|base| Some((base, w.core().ssd()?.known(base)?.stamp?)));
                Some((used.owner, below))
            });
            let Ok(Some((owner, below))) = told else { continue };
            let own = Some((owner, stamp_of_kept(&image)));
            let leaving = own.into_iter().chain(below).map(|(owner, stamp)| (worker, owner, stamp));
            self.ssd.lock().leaving.extend(leaving);
        }
        self.end_ssd();
    }
}

/// The stamp of an image, from what is listed of it.
fn stamp_of_kept(image: &[u8; KeptDisk::IMAGE_BYTES]) -> Stamp {
    let mut bytes = [0; 64];
    bytes[..16].copy_from_slice(&image[16..]);
    Stamp(bytes)
}
