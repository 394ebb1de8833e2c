//! `undercroft upgrade`: everything that is served goes to a new process of the program, whose guests and clients stay
//! connected.
//!
//! Owns the order on the side that leaves. Never touches a request. Invariants: until the new process has said that it
//! is ready to begin, it serves nobody, and whatever it does not manage is undone here: its process is ended first,
//! then all goes on; once it is told to begin, this process does nothing any more but end.
//!
//! Why in this order: docs/decisions/0203.

use super::disk::{self, ServedDisk};
use super::laps::Laps;
use super::{CHANGE_WAIT, Service, ServiceError, pinning, scan};
use crate::handover::channel::Channel;
use crate::handover::letters::{self, Begin, FORM, Left, LeftPins, LeftSession, LeftUntold, Offer, Prepared, Ready};
use crate::systemd;
use crate::worker::LaidDown;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use undercroft_backend::{self as backend, Backend, Dormant, ImageFiles, ImageStamp, OpenOptions};
use undercroft_cache::{DiskId, KeptDisk, KeptList, Lost};
use undercroft_config::{ControlError, ControlErrorKind};
use undercroft_frontend::socket::keep_files;
use undercroft_frontend::vhost::LentDevice;
use undercroft_http::Caller;

/// How long the new process may take to get ready, while all goes on.
const PREPARE_WAIT: Duration = Duration::from_secs(60);
/// How long requests under way may take to be answered; nothing is served meanwhile.
const REST_WAIT: Duration = Duration::from_secs(2);
/// How long the new process may take to open the images and to be ready to serve.
const READY_WAIT: Duration = Duration::from_secs(20);
/// How long the images may take to be open again if it does not manage.
const REOPEN_WAIT: Duration = Duration::from_secs(30);
/// How long the times of an image's files are waited for to be past: 20 ms where a file system counts nanoseconds.
const SETTLE_WAIT: Duration = Duration::from_millis(60);
/// Between two looks whether everything has come to rest.
const PAUSE: Duration = Duration::from_millis(1);

/// What is known of a process that may follow.
#[derive(Default)]
pub(super) struct Successor {
    /// The program, as it was called: what stands there later is the next version.
    program: OnceLock<PathBuf>,
    /// The listeners of control.
    listeners: OnceLock<Vec<(String, OwnedFd)>>,
}

/// A process that was started to follow, and is ended if it does not.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        // Images and memory are this process's again when it is gone, and not before.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A disk that nobody serves at the moment.
pub(super) struct Resting {
    pub(super) disk: Arc<ServedDisk>,
    lent: Option<LentDevice>,
}

/// Everything that is at rest.
#[derive(Default)]
pub(super) struct Rest {
    pub(super) disks: Vec<Resting>,
    /// Workers whose frames are frozen, by number, and their disks.
    frozen: Vec<(usize, Vec<DiskId>)>,
    pub(super) snapshot: KeptList,
    /// Disks of which the last flush failed: whoever flushes them here is to be told.
    lost: Vec<Arc<ServedDisk>>,
    /// What it took so far.
    laps: Laps,
}

impl Rest {
    /// Disks of which the last flush failed.
    pub(super) fn lost(&self) -> &[Arc<ServedDisk>] {
        &self.lost
    }

    /// # Errors
    /// The last flush of a disk failed: another process could not tell those who wrote.
    fn is_durable(&self) -> io::Result<()> {
        self.lost.first().map_or(Ok(()), |disk| {
            let name = &disk.info().name;
            Err(io::Error::other(format!("what was written to disk \"{name}\" cannot be made durable: {NotDurable}")))
        })
    }
}

fn failed(what: &str, why: impl std::fmt::Display) -> ControlError {
    let remedy = "everything is served on by the process that did before; see its log";
    ControlError::new(ControlErrorKind::Failed, format!("{what}: {why}"), remedy)
}

fn refused(why: String, remedy: &str) -> ControlError {
    ControlError::new(ControlErrorKind::Conflict, why, remedy)
}

impl Service {
    /// Notes what a process that follows needs: the program's path while it is still what runs, and the listeners of
    /// control.
    pub(crate) fn may_be_followed(&self, listeners: Vec<(String, OwnedFd)>) {
        if let Ok(program) = std::env::current_exe() {
            let _ = self.successor.program.set(program);
        }
        let _ = self.successor.listeners.set(listeners);
    }

    /// Has a new process of the program serve from now on. Returns only if that fails; then all is served here as
    /// before, some of it perhaps from the images.
    pub(super) fn hand_over(&self, by: &Caller) -> ControlError {
        let Some(_change) = self.change.lock_within(CHANGE_WAIT) else {
            return refused("something that is served is just being changed".into(), "try it again");
        };
        if let Err(e) = self.can_leave() {
            return e;
        }
        tracing::info!("asked by {by}: a new process is to serve");
        let (channel, started) = match self.start_successor() {
            Ok(started) => started,
            Err(e) => return failed("the new process was not started", e),
        };
        if let Err(e) = self.offer(&channel) {
            drop(started);
            return failed("the new process cannot serve in place of this one", e);
        }
        self.end_recordings();
        self.begin_ssd_rest();
        let mut rest = Rest::default();
        let done = self.come_to_rest(&mut rest).and_then(|()| rest.is_durable());
        let done = done.and_then(|()| self.pass_on(&channel, &mut rest));
        match done {
            Ok(()) => {
                tracing::info!(
                    "process {} serves from now on; nobody was served for {:?} ({})",
                    started.0.id(),
                    rest.laps.elapsed(),
                    rest.laps
                );
                systemd::main_process(started.0.id());
                crate::logging::flush();
                // Nothing of what ends here may be tidied up: it is all the other's.
                std::process::exit(0);
            }
            Err(e) => {
                drop(started);
                let begun = self.go_on(rest);
                let e = failed("the new process does not serve", e);
                tracing::error!("{e}; this one went on after {:?}", begun.elapsed());
                e
            }
        }
    }

    /// Whether everything that is served can go to another process.
    fn can_leave(&self) -> Result<(), ControlError> {
        if self.is_stopping() {
            return Err(ServiceError::Stopping.into());
        }
        let plan = self.plan();
        for d in self.disks() {
            let name = &d.info().name;
            let comes = plan.find(name).is_some_and(|p| p.incoming);
            if !d.residence().is_open() && !comes {
                let why = format!("the guest of disk \"{name}\" is not here, or just comes or goes");
                return Err(refused(why, "wait until it is there, or detach the disk"));
            }
        }
        Ok(())
    }

    fn start_successor(&self) -> io::Result<(Channel, Started)> {
        let program =
            self.successor.program.get().ok_or_else(|| io::Error::other("the program's path is not known"))?;
        let (ours, theirs) = UnixStream::pair()?;
        let mut words: Vec<_> = std::env::args_os().skip(1).collect();
        if !words.iter().any(|w| w == "--take-over") {
            words.push("--take-over".into());
        }
        let child = Command::new(program).args(words).stdin(Stdio::from(OwnedFd::from(theirs))).spawn();
        let child = child.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", program.display())))?;
        Ok((Channel::new(ours)?, Started(child)))
    }

    /// Offers everything to the new process, which makes ready for it.
    fn offer(&self, to: &Channel) -> io::Result<()> {
        let give_up = Instant::now() + PREPARE_WAIT;
        let mut memories = Vec::new();
        for worker in &self.workers {
            let memory = worker.call(|w| w.core().frames_memory()).map_err(io::Error::other)?;
            if let Some(memory) = memory {
                memories.push(memory.as_fd().try_clone_to_owned()?);
            }
        }
        let offer = Offer {
            form: FORM,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            memory_bytes: self.plan().disks_bytes(),
            workers: self.workers.len(),
            disks: self.disks().iter().map(|d| (d.info().name.clone(), d.info().geometry.size_bytes)).collect(),
            places: self.disks().iter().map(|d| d.worker_number()).collect(),
            ssd: self.offered_ssd(),
        };
        letters::send(to, &offer, Vec::new(), memories, give_up)?;
        let (Prepared { refusal }, _, _) = letters::receive(to, give_up)?;
        refusal.map_or(Ok(()), |why| Err(io::Error::other(why)))
    }

    /// Has everything come to rest, and closes the images. What is at rest stands in `rest`, whatever comes of it.
    pub(super) fn come_to_rest(&self, rest: &mut Rest) -> io::Result<()> {
        let give_up = Instant::now() + REST_WAIT;
        // It looks at frames, and asks the workers.
        drop(self.running.lock().scanner.take());
        self.running.lock().nbd.iter().for_each(|server| server.pause(true));
        rest.disks = self.disks().into_iter().map(|disk| Resting { disk, lent: None }).collect();
        for d in &rest.disks {
            let id = d.disk.id();
            let quiet = d.disk.host().worker.call(move |w| {
                w.shut_clients(id);
                w.core().want_nothing(id);
            });
            quiet.map_err(io::Error::other)?;
        }
        for d in &mut rest.disks {
            let vhost = d.disk.vhost();
            let lent = vhost.as_ref().map(|v| v.lend(give_up)).transpose();
            let name = &d.disk.info().name;
            d.lent = lent.map_err(|e| io::Error::other(format!("disk \"{name}\": {e}")))?;
        }
        self.rest_files(&self.disks(), give_up)?;
        self.rest_devices(&self.disks(), give_up)?;
        rest.laps.end("requests");
        rest.snapshot.memory_bytes = self.plan().disks_bytes();
        rest.snapshot.workers = self.workers.len() as u64;
        for n in 0..self.workers.len() {
            self.lay_down(n, rest, give_up)?;
        }
        Ok(())
    }

    /// Takes the images from worker `n`, lists what is cached of them, and closes them.
    fn lay_down(&self, n: usize, rest: &mut Rest, give_up: Instant) -> io::Result<()> {
        let disks: Vec<_> = rest.disks.iter().map(|d| &d.disk).filter(|d| d.worker_number() == n).cloned().collect();
        let dormant = |d: &Arc<ServedDisk>| {
            let next: Box<dyn Backend> = Box::new(Dormant::new(d.info().geometry.clone(), None)?);
            Ok((d.id(), next))
        };
        let mut next = disks.iter().map(dormant).collect::<io::Result<Vec<_>>>()?;
        let laid_down = loop {
            let now = std::mem::take(&mut next);
            match self.workers[n].call(move |w| w.lay_down(now)).map_err(io::Error::other)? {
                Ok(laid_down) => break laid_down,
                Err(_) if Instant::now() >= give_up => return Err(io::Error::other("an image does not answer")),
                Err(back) => next = back,
            }
            std::thread::sleep(PAUSE);
        };
        rest.laps.end("list of what is cached");
        rest.frozen.push((n, disks.iter().map(|d| d.id()).collect()));
        std::thread::scope(|s| {
            let closed = laid_down.into_iter().zip(&disks).map(|(of, d)| s.spawn(move || close(of, d)));
            let closed: Vec<_> = closed.collect();
            for (closed, disk) in closed.into_iter().zip(&disks) {
                match closed.join() {
                    Ok(Ok(kept)) => rest.snapshot.disks.extend(kept),
                    Ok(Err(NotDurable)) | Err(_) => rest.lost.push(disk.clone()),
                }
            }
        });
        rest.laps.end("closing images");
        Ok(())
    }

    /// Tells the new process what there is to go on with, and has it begin.
    fn pass_on(&self, channel: &Channel, rest: &mut Rest) -> io::Result<()> {
        let give_up = Instant::now() + READY_WAIT;
        keep_files(true);
        let (mut left, mut listeners, mut fds) = (Left::default(), Vec::new(), Vec::new());
        for (place, listener) in self.successor.listeners.get().into_iter().flatten() {
            listeners.push((place.clone(), listener.try_clone()?));
        }
        for server in &self.running.lock().nbd {
            listeners.extend(server.passable()?);
        }
        for d in &mut rest.disks {
            let (Some(lent), Some(vhost)) = (&mut d.lent, &*d.disk.vhost()) else { continue };
            let (listener, front) = lent.tell()?;
            listeners.push((vhost.path().to_string_lossy().into_owned(), listener));
            if let Some((connection, established)) = front {
                let (numbers, descriptors) = established.tell();
                let count = 1 + descriptors.len();
                left.sessions.push(LeftSession { disk: d.disk.info().name.clone(), numbers, descriptors: count });
                fds.push(connection);
                fds.extend(descriptors);
            }
        }
        if let Some((ssd, descriptors)) = self.tell_ssd(rest, Instant::now() + REST_WAIT)? {
            left.ssd = Some(ssd);
            fds.extend(descriptors);
            rest.laps.end("SSD store");
        }
        left.files = self.tell_files(&mut fds)?;
        left.untold = self.tell_untold(rest)?;
        left.pins = tell_pins(rest)?;
        let (places, mut all): (Vec<_>, Vec<_>) = listeners.into_iter().unzip();
        left.listeners = places;
        all.extend(fds);
        letters::send(channel, &left, rest.snapshot.encode(), all, give_up)?;
        rest.laps.end("telling");
        let (Ready { form }, _, _) = letters::receive(channel, give_up)?;
        rest.laps.end("the new process");
        // From here on it serves, or it has ended and guests reconnect: never both processes.
        letters::send(channel, &Begin { form }, Vec::new(), Vec::new(), give_up)
    }

    /// Who is still to be told that something was lost. One call for each worker: nobody is served meanwhile.
    fn tell_untold(&self, rest: &Rest) -> io::Result<Vec<LeftUntold>> {
        let mut untold = Vec::new();
        for (n, worker) in self.workers.iter().enumerate() {
            let disks: Vec<_> = rest.disks.iter().map(|d| &d.disk).filter(|d| d.worker_number() == n).collect();
            let ids: Vec<_> = disks.iter().map(|d| d.id()).collect();
            let ports = worker.call(move |w| w.untold(&ids));
            let ports = ports.map_err(io::Error::other)?;
            let of = disks.iter().zip(ports).filter(|(_, ports)| *ports > 0);
            untold.extend(of.map(|(disk, ports)| LeftUntold { disk: disk.info().name.clone(), ports }));
        }
        Ok(untold)
    }

    /// Goes on with everything that has come to rest. Since when nobody was served.
    pub(super) fn go_on(&self, rest: Rest) -> Laps {
        keep_files(false);
        self.go_on_with_ssd();
        for (_, listener) in self.successor.listeners.get().into_iter().flatten() {
            // Again the process that those who connect are told of.
            let _ = rustix::net::listen(listener, 128);
        }
        // Before images are open again, which tells what disks have of their bases.
        for disk in rest.lost {
            let (id, bytes) = (disk.id(), disk.info().geometry.size_bytes);
            let lost = Lost { ranges: std::iter::once(0..bytes).collect(), unflushed: true };
            let _ = disk.host().worker.wait_for(move |w| w.lose(id, lost));
        }
        for (n, disks) in rest.frozen {
            let ids = disks.clone();
            let _ = self.workers[n].wait_for(move |w| w.take_frames_back(&ids));
            for d in rest.disks.iter().filter(|d| disks.contains(&d.disk.id()) && d.disk.worker_number() == n) {
                self.open_again(&d.disk);
            }
        }
        for Resting { disk, lent } in rest.disks {
            let id = disk.id();
            if let Some(plan) = self.plan().find(&disk.info().name) {
                let settings = plan.settings;
                let _ = disk.host().worker.wait_for(move |w| w.core().set(id, &settings));
            }
            if let (Some(lent), Some(vhost)) = (lent, &*disk.vhost()) {
                vhost.take_back(lent);
            }
            disk.file().iter().for_each(|file| file.rest(false));
            disk.device().iter().for_each(|device| device.rest(false));
        }
        let mut running = self.running.lock();
        running.nbd.iter().for_each(|server| server.pause(false));
        if let Some(me) = self.me.upgrade().filter(|me| !me.is_stopping()) {
            running.scanner = scan::start(&me, self.content_key.clone());
        }
        rest.laps
    }

    /// Opens the image of a disk that was closed.
    fn open_again(&self, disk: &Arc<ServedDisk>) {
        let name = &disk.info().name;
        let Some(plan) = self.plan().find(name).cloned() else { return };
        if !disk.residence().is_open() {
            return;
        }
        let give_up = Instant::now() + REOPEN_WAIT;
        let image = loop {
            match backend::open(&plan.image, &OpenOptions::default()) {
                Err(_) if Instant::now() < give_up => std::thread::sleep(Duration::from_millis(20)),
                result => break result,
            }
        };
        let mut image = match image {
            Ok(image) => image,
            Err(e) => {
                tracing::error!(disk = name, "its image is not open any more: {e}; its requests wait until a restart");
                return;
            }
        };
        let (base, files, id) = (image.take_base(), image.files(), disk.id());
        match disk.host().worker.wait_for(move |w| w.exchange(id, image).map_err(|_| ())) {
            Ok(Ok(_dormant)) => {
                disk.set_files(files);
                self.set_base_of(disk, &plan, base);
            }
            _ => tracing::error!(disk = name, "its image is not open any more; its requests wait until a restart"),
        }
    }
}

/// What was pinned by hand, and named by a profile.
fn tell_pins(rest: &Rest) -> io::Result<Vec<LeftPins>> {
    let disks = rest.disks.iter().map(|d| &d.disk);
    let named = disks.filter(|disk| disk.pinning().is_by_hand() || disk.pinning().is_profile_by_hand());
    let of = |disk: &Arc<ServedDisk>| {
        let [pins, profile] = pinning::named(disk).map_err(io::Error::other)?;
        Ok(LeftPins {
            disk: disk.info().name.clone(),
            pins: disk.pinning().is_by_hand().then_some(pins),
            profile: disk.pinning().is_profile_by_hand().then_some(profile),
        })
    };
    named.map(of).collect()
}

/// What is written of an image in the list of what is cached.
pub(super) fn kept_stamp(stamp: &ImageStamp) -> [u8; KeptDisk::IMAGE_BYTES] {
    let mut bytes = [0; KeptDisk::IMAGE_BYTES];
    bytes[..16].copy_from_slice(&stamp.identity);
    bytes[16..].copy_from_slice(&stamp.state);
    bytes
}

/// What the files of a closed image say, as soon as a change that comes later would show in it.
fn at_rest(files: &ImageFiles) -> io::Result<Option<ImageStamp>> {
    let until = Instant::now() + SETTLE_WAIT;
    loop {
        match files.stamp()? {
            Some(stamp) if !stamp.settled && Instant::now() < until => std::thread::sleep(PAUSE),
            Some(stamp) if !stamp.settled => return Err(io::Error::other("the time of its last change is not past")),
            stamp => return Ok(stamp),
        }
    }
}

/// The last flush of an image failed, or was not answered.
struct NotDurable;

impl std::fmt::Display for NotDurable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("its last flush failed, or got no answer")
    }
}

/// Closes an image. What is cached of it, if that may be used later.
///
/// # Errors
/// What was written is not durable.
fn close(of: LaidDown, disk: &ServedDisk) -> Result<Option<KeptDisk>, NotDurable> {
    let name = disk.info().name.clone();
    let files = disk.take_files();
    // One that could not be taken from its worker was not flushed.
    let Some(backend) = of.backend else { return Err(NotDurable) };
    if !disk::close(backend, &name) {
        return Err(NotDurable);
    }
    // Closing a qcow2 image writes to it. The files keep the locks until it is known what they say.
    let image = match files.as_ref().map_or(Ok(None), at_rest) {
        Ok(stamp) => stamp.as_ref().map(kept_stamp),
        Err(e) => {
            tracing::warn!(disk = name, "what is cached of it does not stay: {e}");
            return Ok(None);
        }
    };
    let (size_bytes, worker) = (disk.info().geometry.size_bytes, disk.worker_number() as u64);
    Ok(Some(KeptDisk { name, size_bytes, worker, image, kept: of.kept }))
}
