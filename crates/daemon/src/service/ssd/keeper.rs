//! Beside the workers: who may have how much of the SSD store, which disks are at rest, and stores that are void.
//!
//! Owns a thread. Never holds a worker up: it asks between turns, and reads files here. Invariant: a stamp that a store
//! is given is that of an image of which no change was under way from before the stamp was taken until the store had
//! it, and all of which a flush had made durable before.

use super::super::locks::Held;
use super::super::{ServedDisk, Service};
use super::{SsdState, shown};
use crate::worker::{Asker, Worker};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use undercroft_backend::{ImageFiles, ImageStamp};
use undercroft_cache::ssd::{GivenUp, Identity, OutOfService, OwnerId, OwnerStats, Quiet, Ssd, Stamp};
use undercroft_cache::{DiskId, Durability};
use undercroft_config::{ServePlan, StoreChoice};

/// Between two looks.
const STEP: Duration = Duration::from_millis(500);
/// How long a disk has to be without changes until that is written down.
const REST_AFTER: Duration = Duration::from_secs(5);
/// After how long it is tried again, or looked at whether it was done.
const REST_AGAIN: Duration = Duration::from_secs(60);
/// How long a disk that goes is waited for until what the store has of it is written down.
const LEAVE_WAIT: Duration = Duration::from_secs(2);
/// How long the times of its image are waited for to settle.
const SETTLE_WAIT: Duration = Duration::from_secs(1);
/// Between two looks at one that goes.
const LEAVE_STEP: Duration = Duration::from_millis(5);

/// What the thread remembers from one look to the next.
#[derive(Default)]
struct Memory {
    /// Blocks that disks were told to have: by worker and life.
    shares: HashMap<(usize, u64), u64>,
    /// How far each disk is that the store has blocks of.
    disks: HashMap<(usize, u64), Resting>,
    /// When base images in the store are to be written down, or tried again.
    bases: HashMap<(usize, OwnerId), Instant>,
    /// When each worker is to be asked again though it had nothing to do; `None` if there is no need.
    again: Vec<Option<Instant>>,
    /// What was said to be out of service.
    said: HashMap<(usize, usize), OutOfService>,
}

impl Memory {
    /// Forgets disks that the worker has no more.
    fn forget_gone(&mut self, worker: usize, news: &News) {
        let is_there =
            |(of, life): &(usize, u64)| *of != worker || news.disks.iter().flatten().any(|t| t.life == *life);
        self.shares.retain(|disk, _| is_there(disk));
        self.disks.retain(|disk, _| is_there(disk));
    }
}

/// A disk of which the store has something.
struct Resting {
    /// Changes that had begun.
    since: u64,
    /// Whether the store has written down, in this run, that they were the last.
    is_written: bool,
    /// When it is to be told so next.
    due: Instant,
}

/// What a worker says of one of its disks.
struct Told {
    /// Which of the worker's disks it is.
    life: u64,
    /// Changes that have begun, if none is under way.
    since: Option<u64>,
    /// Whether the store calls its blocks clean, if it has any.
    is_clean: Option<bool>,
    /// Its base, if the store has blocks of that which are not written down as those of an image in a known state.
    unwritten_base: Option<OwnerId>,
}

/// What a worker says of its store.
struct News {
    /// Each disk that was asked for.
    disks: Vec<Option<Told>>,
    given_up: Vec<GivenUp>,
    out_of_service: Vec<Option<OutOfService>>,
}

fn news(w: &mut Worker, ids: &[DiskId]) -> Option<News> {
    let of = |w: &mut Worker, id: DiskId| {
        let stats = w.core().ssd_stats_of(id)?;
        let is_clean = (stats.blocks > 0).then_some(stats.is_clean);
        let is_unwritten = |stats: OwnerStats| stats.blocks > 0 && !stats.is_clean;
        let base = w.core().ssd_base_of(id);
        let unwritten_base = base.filter(|b| w.core().ssd().is_some_and(|ssd| is_unwritten(ssd.owner_stats(*b))));
        Some(Told { life: w.life(id)?, since: w.core().quiet_since(id), is_clean, unwritten_base })
    };
    let disks = ids.iter().map(|id| of(w, *id)).collect();
    let ssd = w.core().ssd_mut()?;
    let stats = ssd.stats();
    Some(News {
        disks,
        given_up: std::iter::from_fn(|| ssd.given_up()).collect(),
        out_of_service: stats.iter().map(|s| s.out_of_service).collect(),
    })
}

/// What the store is told of an image in that state.
pub(super) fn stamp_of(image: &ImageStamp) -> Stamp {
    let mut bytes = [0; 64];
    bytes[..16].copy_from_slice(&image.state);
    Stamp(bytes)
}

/// Which image it is, in the store's words.
pub(super) fn identity_of(image: &ImageStamp) -> Identity {
    let mut bytes = [0; 64];
    bytes[..16].copy_from_slice(&image.identity);
    Identity(bytes)
}

/// Starts the thread. It ends with the service.
pub(in super::super) fn begin(service: Weak<Service>) -> std::io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name("undercroft-ssd".into()).spawn(move || {
        let mut memory = Memory::default();
        while let Some(service) = service.upgrade() {
            if service.wait(STEP) {
                return;
            }
            service.look_at_ssd(&mut memory);
        }
    })
}

impl Service {
    /// One look at all workers.
    fn look_at_ssd(&self, memory: &mut Memory) {
        let (plan, disks) = (self.plan(), self.disks());
        memory.again.resize(self.workers.len(), Some(Instant::now()));
        for (n, worker) in self.workers.iter().enumerate() {
            let worked = worker.take_has_worked(Asker::Ssd);
            let own: Vec<&Arc<ServedDisk>> =
                disks.iter().filter(|d| d.worker_number() == n && !d.is_detaching()).collect();
            let is_due = memory.again[n].is_some_and(|again| again <= Instant::now());
            if worker.is_silent() || !is_due && !worked && are_told(memory, n, &own) {
                continue;
            }
            let ids: Vec<DiskId> = own.iter().map(|d| d.id()).collect();
            let Ok(Some(news)) = worker.call(move |w| news(w, &ids)) else { continue };
            memory.forget_gone(n, &news);
            self.record_void(n, &news.given_up);
            say_out_of_service(memory, n, &news.out_of_service);
            self.share_ssd(memory, n, &plan, &own, &news);
            let again = [self.rest_disks(memory, n, &own, &news), self.rest_bases(memory, n, &own, &news)];
            memory.again[n] = again.into_iter().flatten().min();
        }
    }

    /// Tells a worker's store what its disks are to have of it now.
    fn share_ssd(&self, memory: &mut Memory, worker: usize, plan: &ServePlan, disks: &[&Arc<ServedDisk>], news: &News) {
        let by_name = plan.by_name();
        let wanted = |d: &Arc<ServedDisk>| plan.store_of(by_name.get(d.info().name.as_str())?);
        let manager = self.shares.lock();
        for (disk, told) in disks.iter().zip(&news.disks) {
            let Some(Told { life, .. }) = told else { continue };
            let share = match wanted(disk) {
                Some(StoreChoice::Ram) => Some(0),
                // A disk that has just come waits for the end of the interval.
                _ => manager.below.of(&disk.info().name).and_then(|below| below.share),
            };
            let Some(share) = share else { continue };
            if memory.shares.insert((worker, *life), share) != Some(share) {
                let id = disk.id();
                let _ = self.workers[worker].send(move |w| w.core().set_ssd_share(id, share));
            }
        }
    }

    /// Has what the store has of disks written down that were not changed for a while. When to look again, if nothing
    /// happens until then.
    fn rest_disks(
        &self,
        memory: &mut Memory,
        worker: usize,
        disks: &[&Arc<ServedDisk>],
        news: &News,
    ) -> Option<Instant> {
        let now = Instant::now();
        let mut again = None;
        for (disk, told) in disks.iter().zip(&news.disks) {
            let Some(Told { life, since, is_clean: Some(is_clean), .. }) = told else { continue };
            let Some(since) = *since else {
                again = Some(now);
                continue;
            };
            let new = || Resting { since, is_written: false, due: now + REST_AFTER };
            let resting = memory.disks.entry((worker, *life)).or_insert_with(new);
            if resting.since != since {
                *resting = new();
            }
            if *is_clean && resting.is_written {
                continue;
            }
            if resting.due <= now {
                let (is_written, again) = self.rest_disk(worker, disk, since);
                (resting.is_written, resting.due) = (is_written, now + again);
            }
            again = again.map_or(Some(resting.due), |before: Instant| Some(before.min(resting.due)));
        }
        again
    }

    /// Has what the store has of a disk written down, which had `since` changes, once all of them are durable: what is
    /// not flushed may be gone later while the image's files say what they say now. Whether it was, and when to look
    /// again.
    fn rest_disk(&self, worker: usize, disk: &ServedDisk, since: u64) -> (bool, Duration) {
        if disk.stamp().is_none() {
            // Of an image of which nothing can be known, nothing is written down.
            return (false, REST_AGAIN);
        }
        let (id, worker) = (disk.id(), &self.workers[worker]);
        match worker.call(move |w| w.make_durable(id)) {
            Ok(Durability::Whole) => {}
            Ok(Durability::Unflushed | Durability::NotNow) => return (false, STEP),
            Ok(Durability::Never) | Err(_) => return (false, REST_AGAIN),
        }
        // After that, since to flush a qcow2 image may write to it.
        let Some(stamp) = disk.stamp() else { return (false, REST_AGAIN) };
        if !stamp.settled {
            return (false, REST_AFTER);
        }
        let written = worker.call(move |w| {
            let taken = w.core().rest_ssd(id, since, stamp_of(&stamp));
            w.serve_ssd();
            taken
        });
        (written == Ok(true), if written == Ok(false) { REST_AFTER } else { REST_AGAIN })
    }

    /// Has what the store has of base images written down, which nobody changes: once is enough. When to look again, if
    /// nothing happens until then.
    fn rest_bases(
        &self,
        memory: &mut Memory,
        worker: usize,
        disks: &[&Arc<ServedDisk>],
        news: &News,
    ) -> Option<Instant> {
        let now = Instant::now();
        let unwritten = disks.iter().zip(&news.disks).filter_map(|(d, told)| Some((d, told.as_ref()?.unwritten_base?)));
        let unwritten: HashMap<OwnerId, &Arc<ServedDisk>> = unwritten.map(|(disk, base)| (base, *disk)).collect();
        memory.bases.retain(|(of, base), _| *of != worker || unwritten.contains_key(base));
        for (base, disk) in &unwritten {
            let due = memory.bases.entry((worker, *base)).or_insert(now + REST_AFTER);
            if *due > now {
                continue;
            }
            let stamp = self.base_files(disk).and_then(|files| files.found());
            // Of an image of which nothing can be known, nothing is written down.
            *due = now + if stamp.is_some_and(|s| !s.settled) { REST_AFTER } else { REST_AGAIN };
            if let Some(stamp) = stamp.filter(|s| s.settled) {
                let base = *base;
                let _ = self.workers[worker].call(move |w| {
                    let _ = w.core().ssd_mut().map(|ssd| ssd.quiet(base, stamp_of(&stamp)));
                    w.serve_ssd();
                });
            }
        }
        memory.bases.iter().filter(|((of, _), _)| *of == worker).map(|(_, due)| *due).min()
    }

    /// Records stores whose devices cannot be told any more that disks are changed, then lets the changes go on.
    fn record_void(&self, worker: usize, given_up: &[GivenUp]) {
        if given_up.is_empty() {
            return;
        }
        let mut state: Held<'_, SsdState> = self.ssd.lock();
        if let Err(e) = state.void.add(given_up.iter().map(|g| g.store)) {
            // The stamps of the images still tell; and disks that wait for ever would be the greater harm.
            tracing::error!("that a part of the SSD store is void cannot be recorded in the runtime directory: {e}");
        }
        drop(state);
        let devices: Vec<u16> = given_up.iter().map(|g| g.device).collect();
        let _ = self.workers[worker].send(move |w| {
            if let Some(ssd) = w.core().ssd_mut() {
                devices.iter().for_each(|device| ssd.given_up_is_recorded(*device));
            }
            w.serve_ssd();
        });
    }

    /// A disk has gone, and its image is closed but for `files`: what the store has of it is written down, if it can
    /// be; while the daemon stops, all at once at the end.
    pub(in super::super) fn leave_ssd(&self, gone: &Gone) {
        let (worker, life) = (&self.workers[gone.worker], gone.life);
        let Ok(Some((owner, base))) = worker.call(move |w| w.take_parted(life)) else { return };
        // Nobody has changed the base.
        let below = gone.files.as_ref().and_then(|files| files.base("").found());
        let base = base.map(|base| (base, below.filter(|stamp| stamp.settled)));
        let forgotten = if gone.is_durable { None } else { self.forget_owner(gone.worker, owner) };
        let own = gone.is_durable.then(|| (owner, gone.stamp_at_rest()));
        let left = base.into_iter().chain(own).filter_map(|(owner, stamp)| self.leave_owner(gone.worker, owner, stamp));
        for stats in forgotten.into_iter().chain(left) {
            shown::count(&mut self.ssd.lock().gone, &stats);
        }
    }

    /// An owner goes of whose image it is not certain that it has what was written: its files say what they did when
    /// that was written down last, and what the store has of it is more than the image. Its numbers.
    fn forget_owner(&self, worker: usize, owner: OwnerId) -> Option<OwnerStats> {
        self.owner_goes(worker, owner, |ssd, owner| ssd.drop_owner(owner))
    }

    /// An owner goes in this way; its numbers.
    fn owner_goes(&self, worker: usize, owner: OwnerId, goes: fn(&mut Ssd, OwnerId)) -> Option<OwnerStats> {
        let left = self.workers[worker].call(move |w| {
            let ssd = w.core().ssd_mut()?;
            let stats = ssd.owner_stats(owner);
            goes(ssd, owner);
            w.serve_ssd();
            Some(stats)
        });
        left.ok().flatten()
    }

    /// An owner whose image has this stamp goes; its numbers, if it has gone.
    fn leave_owner(&self, worker: usize, owner: OwnerId, stamp: Option<ImageStamp>) -> Option<OwnerStats> {
        if let Some(stamp) = stamp.filter(|_| self.is_stopping()) {
            self.ssd.lock().leaving.push((worker, owner, stamp_of(&stamp)));
            return None;
        }
        let host = &self.workers[worker];
        let begun = host.call(move |w| {
            let begun = w.core().ssd_mut()?.quiet(owner, stamp_of(&stamp?)) == Quiet::Begun;
            w.serve_ssd();
            begun.then_some(())
        });
        let until = Instant::now() + LEAVE_WAIT;
        let is_clean = move |w: &mut Worker| w.core().ssd().is_none_or(|ssd| ssd.owner_stats(owner).is_clean);
        while matches!(begun, Ok(Some(()))) && Instant::now() < until && host.call(is_clean) == Ok(false) {
            std::thread::sleep(LEAVE_STEP);
        }
        self.owner_goes(worker, owner, |ssd, owner| ssd.detach(owner))
    }
}

/// A disk that has gone, as far as its blocks in the store are concerned.
pub(in super::super) struct Gone {
    /// Whose it was.
    pub(in super::super) worker: usize,
    /// Which of the worker's disks it was.
    pub(in super::super) life: u64,
    /// The files of its image, which this keeps locked.
    pub(in super::super) files: Option<ImageFiles>,
    /// What was written to it is on it: otherwise what its files say is not what the store has, now or when that was
    /// written down last.
    pub(in super::super) is_durable: bool,
}

impl Gone {
    /// The stamp of the image, once it has settled; `None` if it tells nothing, or does not settle soon.
    fn stamp_at_rest(&self) -> Option<ImageStamp> {
        let until = Instant::now() + SETTLE_WAIT;
        loop {
            let stamp = self.files.as_ref()?.stamp().ok()??;
            if stamp.settled || Instant::now() >= until {
                return Some(stamp).filter(|s| s.settled);
            }
            std::thread::sleep(LEAVE_STEP);
        }
    }
}

/// Whether each disk has been told what it may have.
fn are_told(memory: &Memory, worker: usize, disks: &[&Arc<ServedDisk>]) -> bool {
    disks.iter().all(|d| d.life().is_none_or(|life| memory.shares.contains_key(&(worker, life))))
}

/// Says once what has gone out of service.
fn say_out_of_service(memory: &mut Memory, worker: usize, devices: &[Option<OutOfService>]) {
    for (device, why) in devices.iter().enumerate() {
        match why {
            Some(why) => {
                if memory.said.insert((worker, device), *why) != Some(*why) && *why != OutOfService::Operator {
                    let words = shown::words(*why);
                    tracing::error!(
                        worker,
                        device,
                        "a device of the SSD store is out of service: {words}; images are read instead"
                    );
                }
            }
            None => _ = memory.said.remove(&(worker, device)),
        }
    }
}
