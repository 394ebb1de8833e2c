//! A process that takes over from another one: it makes ready while that one serves, goes on with what it leaves, and
//! begins when it is told to.
//!
//! Owns the order on the side that comes. Never touches a request. Invariants: nobody's queues run before the other
//! process has said that it serves no more; if anything that it served cannot be, this one ends, and the other goes on;
//! what is cached is used only if the image is what it was when that was listed.

use super::laps::Laps;
use super::leaving::kept_stamp;
use super::pinning;
use super::ssd::{ComingSsd, refusal as ssd_refusal};
use super::{ServedDisk, Service, ServiceError};
use crate::handover::channel::Channel;
use crate::handover::letters::{self, Begin, FORM, Left, LeftPins, LeftUntold, Offer, Prepared, Ready};
use crate::worker::WorkerHandle;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use undercroft_backend::ImageFiles;
use undercroft_cache::{ByteRange, KeptDisk, KeptList};
use undercroft_config::{DiskPlan, ServePlan};
use undercroft_frontend::socket::{forget_passed, keep_files, pass_listener};
use undercroft_frontend::vhost::{Established, Starter};
use undercroft_host::SharedMemory;

/// How long the other process may take for its next letter.
const WAIT: Duration = Duration::from_secs(120);

/// What has come of another process, and what of it is not in use yet.
pub(crate) struct Arrival {
    /// `None` if that has ended.
    channel: Option<Channel>,
    /// What that process served.
    disks: Vec<(String, u64)>,
    /// The worker of each.
    places: HashMap<String, usize>,
    snapshot: Option<KeptList>,
    /// Connections of front ends, and what establishes their sessions.
    sessions: HashMap<String, (OwnedFd, Established)>,
    starters: Vec<(Arc<ServedDisk>, Starter)>,
    /// Its SSD store, as far as this process has made it its own.
    ssd: Option<ComingSsd>,
    /// Of disks that have lost something: who is to be told.
    untold: Vec<LeftUntold>,
    /// What was pinned there by hand.
    pins: Vec<LeftPins>,
    problem: Option<String>,
    /// What it took since the other process has told all: nobody serves meanwhile.
    laps: Laps,
}

fn soon() -> Instant {
    Instant::now() + WAIT
}

impl Service {
    /// Makes ready to take over from the process at the other end of the standard input.
    ///
    /// # Errors
    /// Nobody is there, or this process cannot serve what it serves.
    pub(crate) fn arrive(plan: ServePlan) -> io::Result<(Arc<Self>, Arrival)> {
        let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let channel = Channel::new(socket)?;
        let (offer, _, memories): (Offer, _, _) = letters::receive(&channel, soon())?;
        let refusal = refusal(&offer, &plan);
        if refusal.is_none() {
            let same = offer.memory_bytes == plan.disks_bytes()
                && offer.workers == plan.daemon.workers.max(1)
                && offer.version == env!("CARGO_PKG_VERSION")
                && memories.len() == offer.workers
                && plan.store.keep;
            let memories = if same { memories } else { Vec::new() };
            let memories = memories.into_iter().map(SharedMemory::from_passed).collect::<io::Result<Vec<_>>>()?;
            let service = Self::without_disks(plan, memories, offer.ssd.is_some())?;
            letters::send(&channel, &Prepared { refusal: None }, Vec::new(), Vec::new(), soon())?;
            let names = offer.disks.iter().map(|(name, _)| name.clone());
            let places = names.zip(offer.places).collect();
            let (disks, sessions, starters) = (offer.disks, HashMap::new(), Vec::new());
            let channel = Some(channel);
            let (snapshot, ssd, problem, laps) = (None, None, None, Laps::default());
            let (untold, pins) = (Vec::new(), Vec::new());
            let mut arrival =
                Arrival { channel, disks, places, snapshot, sessions, starters, ssd, untold, pins, problem, laps };
            arrival.take(same, &service)?;
            return Ok((service, arrival));
        }
        letters::send(&channel, &Prepared { refusal: refusal.clone() }, Vec::new(), Vec::new(), soon())?;
        Err(io::Error::other(refusal.unwrap_or_default()))
    }
}

/// Why this process cannot take over what is offered.
fn refusal(offer: &Offer, plan: &ServePlan) -> Option<String> {
    if offer.form != FORM {
        return Some("the two versions of the program do not understand each other: restart the daemon".into());
    }
    if let Some(why) = offer.ssd.as_ref().and_then(|ssd| ssd_refusal(ssd, &plan.ssd)) {
        return Some(why);
    }
    if offer.ssd.is_some() && offer.workers != plan.daemon.workers.max(1) {
        return Some("the SSD store was made for another number of workers: restart the daemon".into());
    }
    let missing = offer.disks.iter().find(|(name, _)| plan.find(name).is_none());
    missing.map(|(name, _)| {
        format!("disk \"{name}\" is served, but is not in the configuration: add it to the file, or detach it")
    })
}

/// Why what was cached of a disk is not used.
fn why_not(of: &KeptDisk, disk: &ServedDisk) -> Option<&'static str> {
    if of.size_bytes != disk.info().geometry.size_bytes || of.worker != disk.worker_number() as u64 {
        return Some("it is another disk now");
    }
    // What they said after they were locked, and before this process touched them.
    let found = disk.files().as_ref().and_then(ImageFiles::found);
    let is_same = of.image.is_none_or(|image| found.as_ref().map(kept_stamp) == Some(image));
    (!is_same).then_some("its image has changed meanwhile")
}

/// Gives the disks of a worker what was cached of them.
fn restore_on(worker: &WorkerHandle, disks: Vec<(Arc<ServedDisk>, KeptDisk)>) {
    for (disk, of) in disks {
        let (id, all) = (disk.id(), of.kept.blocks.len());
        let restored = worker.wait_for(move |w| w.core().restore(id, &of.kept)).unwrap_or(0);
        tracing::info!(disk = disk.info().name, "{restored} of {all} blocks that were cached are");
    }
    let _ = worker.wait_for(|w| w.core().settle_frames());
}

impl Arrival {
    /// Of a process that has ended, and has left what it cached to the service manager.
    pub(super) fn from_manager(snapshot: KeptList) -> Self {
        let (disks, sessions, starters) = (Vec::new(), HashMap::new(), Vec::new());
        let places = snapshot.disks.iter().map(|d| (d.name.clone(), d.worker as usize)).collect();
        let (snapshot, ssd, problem, laps) = (Some(snapshot), None, None, Laps::default());
        let (channel, untold, pins) = (None, Vec::new(), Vec::new());
        Self { channel, disks, places, snapshot, sessions, starters, ssd, untold, pins, problem, laps }
    }

    /// Whether the other process is there, and goes on if this one does not.
    pub(super) fn is_watched(&self) -> bool {
        self.channel.is_some()
    }

    /// The workers that disks had in the other process.
    pub(super) fn places(&mut self) -> HashMap<String, usize> {
        std::mem::take(&mut self.places)
    }

    fn other(&self) -> io::Result<&Channel> {
        self.channel.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Takes what the other process leaves, which serves nobody any more.
    fn take(&mut self, keeps: bool, service: &Service) -> io::Result<()> {
        let (left, list, fds): (Left, _, _) = letters::receive(self.other()?, soon())?;
        self.laps = Laps::default();
        keep_files(true);
        let mut fds = fds.into_iter();
        let short = || io::Error::other("a descriptor is missing");
        for place in left.listeners {
            pass_listener(place, fds.next().ok_or_else(short)?);
        }
        for session in left.sessions {
            let mut own: Vec<OwnedFd> = fds.by_ref().take(session.descriptors).collect();
            if own.len() != session.descriptors || own.is_empty() {
                return Err(short());
            }
            let connection = own.remove(0);
            let established = Established::read(&session.numbers, own).map_err(io::Error::other)?;
            self.sessions.insert(session.disk, (connection, established));
        }
        if let Some(ssd) = left.ssd {
            self.ssd = Some(service.make_ssd(ssd, &mut fds)?);
        }
        service.expect_files(left.files, &mut fds)?;
        (self.untold, self.pins) = (left.untold, left.pins);
        match KeptList::decode(&list) {
            Ok(snapshot) if keeps => self.snapshot = Some(snapshot),
            Ok(_) => tracing::info!("what was cached is not: the store is another, or `keep` is not set"),
            Err(e) => tracing::warn!("what was cached is not used: {e}"),
        }
        self.laps.end("list of what is cached");
        Ok(())
    }

    /// Gives the disks, which nobody reaches yet, what was cached of them, in memory and then on SSDs. All other memory
    /// is free then. They learn who is to be told that something was lost.
    pub(super) fn restore(&mut self, service: &Service) {
        self.laps.end("opening images");
        let mut kept: HashMap<String, KeptDisk> =
            self.snapshot.take().into_iter().flat_map(|s| s.disks).map(|d| (d.name.clone(), d)).collect();
        let mut of_workers: Vec<_> = service.workers.iter().map(|_| Vec::new()).collect();
        for disk in service.disks() {
            let Some(of) = kept.remove(&disk.info().name) else { continue };
            match why_not(&of, &disk) {
                Some(why) => tracing::warn!(disk = of.name, "what was cached of it is not used: {why}"),
                None => of_workers[disk.worker_number()].push((disk, of)),
            }
        }
        // Side by side: nobody is served meanwhile.
        std::thread::scope(|scope| {
            for (worker, disks) in service.workers.iter().zip(of_workers) {
                scope.spawn(move || restore_on(worker, disks));
            }
        });
        self.laps.end("what is cached");
        if let Some(Err(e)) = self.ssd.take().map(|ssd| service.take_ssd(ssd)) {
            self.problem = Some(e.to_string());
        }
        self.laps.end("SSD store");
        for LeftUntold { disk, ports } in self.untold.drain(..) {
            let Some(disk) = service.disks().into_iter().find(|d| d.info().name == disk) else { continue };
            let id = disk.id();
            let _ = disk.host().worker.wait_for(move |w| w.core().owe(id, ports));
        }
    }

    /// Pins of a disk what was pinned by hand in the other process, in place of what its file says; and has its profile
    /// name what it named.
    pub(super) fn pin(&mut self, disk: &ServedDisk, plan: &DiskPlan) {
        if let Some(at) = self.pins.iter().position(|p| p.disk == disk.info().name) {
            let LeftPins { pins, profile, .. } = self.pins.swap_remove(at);
            let ranges = |all: Vec<(u64, u64)>| -> Vec<ByteRange> {
                all.into_iter().map(|(offset, bytes)| ByteRange { offset, bytes }).collect()
            };
            pinning::take_over(disk, plan, pins.map(ranges), profile.map(ranges));
        }
    }

    /// Has a disk that listens take over the front end that was connected to it.
    pub(super) fn adopt(&mut self, disk: &Arc<ServedDisk>) {
        let name = &disk.info().name;
        let Some((connection, established)) = self.sessions.remove(name) else { return };
        match disk.vhost().as_ref().map(|v| v.adopt(connection, established)) {
            Some(Ok(starter)) => self.starters.push((disk.clone(), starter)),
            Some(Err(e)) => self.problem = Some(format!("disk \"{name}\": its front end cannot be taken over: {e}")),
            None => self.problem = Some(format!("disk \"{name}\" has no vhost-user socket any more")),
        }
    }

    /// Opens the images and serves them, but for who is connected.
    ///
    /// # Errors
    /// Something that was served cannot be.
    pub(crate) fn serve(&mut self, service: &Arc<Service>) -> Result<(), Vec<ServiceError>> {
        service.serve_on(self)?;
        forget_passed();
        let served = service.disks();
        let is_served = |(name, size): &&(String, u64)| {
            served.iter().any(|d| d.info().name == *name && d.info().geometry.size_bytes == *size)
        };
        if let Some((name, _)) = self.disks.iter().find(|d| !is_served(d)) {
            self.problem = Some(format!("disk \"{name}\" cannot be served"));
        }
        self.problem = service.files_problem().or(self.problem.take());
        Ok(())
    }

    /// Tells the other process that all is ready, and begins when that one says so.
    ///
    /// # Errors
    /// Something that it served cannot be, or it says something else.
    pub(crate) fn begin(mut self, service: &Service) -> io::Result<()> {
        if let Some(problem) = self.problem.take() {
            return Err(io::Error::other(problem));
        }
        self.laps.end("sessions");
        tracing::info!("ready to take over after {:?} ({})", self.laps.elapsed(), self.laps);
        letters::send(self.other()?, &Ready { form: FORM }, Vec::new(), Vec::new(), soon())?;
        let (Begin { .. }, _, _) = letters::receive(self.other()?, soon())?;
        keep_files(false);
        service.go_on_with_ssd();
        for (disk, starter) in self.starters {
            if let Some(vhost) = &*disk.vhost() {
                vhost.begin(starter);
            }
        }
        service.begin_files();
        service.begin_devices();
        // Last: whoever of these is to be told of a loss has come, and is not taken for a client that comes now.
        service.running.lock().nbd.iter().for_each(|server| server.pause(false));
        Ok(())
    }
}
