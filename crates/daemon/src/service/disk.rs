//! One served disk: its image, its place on a worker, its vhost-user socket, its file, its block device.
//!
//! Owns the order of attaching and detaching. Never touches the data path. Invariant: a disk is reachable for guests
//! only between the end of `attach` and the beginning of `detach`, and its image is closed after its last operation.

use super::file_hints::file_hint;
use super::images::ImageFile;
use super::left_files::{LeftFiles, keeper, origin};
use super::obstacles;
use super::pinning::Pinning;
use super::residence::{self, Residence};
use super::ssd::Gone;
use super::warming::Round;
use super::{Service, ServiceError};
use crate::worker::{self, DiskHost, DiskReport, WorkerHandle};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};
use undercroft_api::ranges::DiskRanges;
use undercroft_backend::{self as backend, Backend, ImageFiles, ImageStamp, OpenError, OpenOptions};
use undercroft_cache::Geometry;
use undercroft_cache::{Base, DiskId, DiskOptions, GroupId, Io, IoKind, IoTarget, LayerId, OpId};
use undercroft_config::DiskPlan;
use undercroft_config::plan::BaseDeduplication;
use undercroft_frontend::DiskInfo;
use undercroft_frontend::budget::Budget;
use undercroft_frontend::fuse::{FileLimits, FuseOptions, FuseServer};
use undercroft_frontend::socket::SocketPermissions;
use undercroft_frontend::ublk::UblkServer;
use undercroft_frontend::vhost::{EventLoop, Trust, VhostOptions, VhostServer};
use undercroft_host::IoBuf;
use undercroft_hostmem::pressure::GuestRoom;
use undercroft_units::human_size;

/// How long a detach waits for operations under way before it says so and goes on in the background.
const DETACH_WAIT: Duration = Duration::from_secs(10);
/// How long opening waits for the lock of an image that no living process is known to hold.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// How long closing an image may take for its last flush.
const CLOSE_WAIT: Duration = Duration::from_secs(5);

/// A disk that is being served.
pub struct ServedDisk {
    info: DiskInfo,
    description: String,
    nbd: bool,
    host: Arc<DiskHost>,
    worker_number: usize,
    group: Option<GroupId>,
    layer: Option<LayerId>,
    vhost: Mutex<Option<VhostServer>>,
    file: Mutex<Option<FuseServer>>,
    pub(super) device: Mutex<Option<UblkServer>>,
    detaching: AtomicBool,
    /// The file that its image was opened from, if it is one.
    image_file: Option<ImageFile>,
    /// All files of the image, while it is open; they keep their locks until they are let go here, too.
    files: Mutex<Option<ImageFiles>>,
    /// Which of its worker's disks it is.
    life: Option<u64>,
    /// Who is told when it has gone, if there is an SSD store.
    told_when_gone: OnceLock<Weak<Service>>,
    /// What its worker said about it last.
    last: Mutex<Option<DiskReport>>,
    /// What containers have of it.
    ranges: Mutex<DiskRanges>,
    /// Where its guest is.
    residence: Residence,
    /// What it fetches of what was hot elsewhere.
    warming: Round,
    /// From whom it has lists of blocks that are locked.
    pinning: Pinning,
}

/// The rest of a detach, in the background.
#[derive(Debug)]
pub(super) struct Going(Receiver<()>);

/// Why an opened disk is not served, and what of it does not go: it keeps what it has of the store until then.
#[derive(Debug)]
pub(super) struct Unserved {
    pub(super) why: ServiceError,
    pub(super) left: Option<Going>,
}

impl From<ServiceError> for Unserved {
    fn from(why: ServiceError) -> Self {
        Self { why, left: None }
    }
}

impl Going {
    /// Waits until the disk is gone, or its worker.
    pub(super) fn wait(self) {
        let _ = self.0.recv();
    }
}

/// What front ends of a disk share with those of others.
pub(super) struct Ways<'a> {
    /// Has the vhost-user sockets of all disks.
    pub(super) event_loop: &'a Arc<EventLoop>,
    /// What copies to guests may take.
    pub(super) room: &'a Arc<GuestRoom>,
    /// The memory for data that NBD connections and files share.
    pub(super) budget: &'a Arc<Budget>,
    /// Files that a process before has left.
    pub(super) left: &'a LeftFiles,
    /// Set when another hint is asked for through a file.
    pub(super) hints_asked: &'a Arc<AtomicBool>,
    /// Below it, directories of files are made that are missing.
    pub(super) runtime_dir: PathBuf,
}

/// What has to be known to open the image of a plan and put it on a worker.
pub(super) struct Opened {
    pub(super) plan: DiskPlan,
    pub(super) backend: Box<dyn Backend>,
    /// The image below it that nobody writes, if that is to be shared.
    pub(super) base: Option<Base>,
    /// The file that it was opened from, if it is one.
    file: Option<ImageFile>,
}

/// Opens the image of a disk; with `deduplicate`, what it stands on is looked at.
pub(super) fn open(plan: DiskPlan, deduplicate: bool) -> Result<Opened, ServiceError> {
    obstacles::probe(&plan)?;
    // A daemon that was killed holds its locks until the kernel has torn its rings down, a moment after the process is
    // gone: its successor must not fail because it came at once.
    let give_up = Instant::now() + LOCK_WAIT;
    if plan.incoming {
        let look = residence::look(&plan);
        let backend = look.map_err(|source| ServiceError::Open { disk: plan.name.clone(), source })?;
        tracing::info!(disk = plan.name, image = plan.image.location, "its image is opened when its guest starts");
        let file = ImageFile::at(&plan.image.location);
        return Ok(Opened { plan, backend, base: None, file });
    }
    let mut backend = loop {
        match backend::open(&plan.image, &OpenOptions::default()) {
            Err(OpenError::InUse { by, .. }) if by.is_empty() && Instant::now() < give_up => {
                std::thread::sleep(Duration::from_millis(50));
            }
            result => break result.map_err(|source| ServiceError::Open { disk: plan.name.clone(), source })?,
        }
    };
    tracing::info!(disk = plan.name, image = plan.image.location, backend = backend.describe(), "image opened");
    let base = backend.take_base().filter(|_| deduplicate && plan.deduplicate_base != BaseDeduplication::Nobody);
    let file = ImageFile::at(&plan.image.location);
    Ok(Opened { plan, backend, base, file })
}

/// How the core is to treat a disk.
fn options(plan: &DiskPlan, geometry: &Geometry, capacity_blocks: u32, group: Option<GroupId>) -> DiskOptions {
    DiskOptions {
        read_only: plan.image.read_only || geometry.read_only,
        write_allocate: plan.write_allocate,
        io_disks: plan.io_disks,
        group,
        ..DiskOptions::new(geometry, plan.policy, capacity_blocks).with(&plan.settings)
    }
}

impl ServedDisk {
    /// Puts an opened image on a worker, with `capacity_blocks` of cache; no guest can reach it yet.
    pub(super) fn attach(
        opened: Opened,
        worker: Arc<WorkerHandle>,
        worker_number: usize,
        capacity_blocks: u32,
        group: Option<GroupId>,
    ) -> Result<Self, ServiceError> {
        let Opened { plan, backend, base, file } = opened;
        let files = backend.files();
        let mut layer = base.as_ref().map(|b| b.layer);
        let geometry = backend.geometry().clone();
        let description = match &plan.vm {
            Some(vm) => format!("{} of {vm}", human_size(geometry.size_bytes)),
            None => human_size(geometry.size_bytes),
        };
        let residence = if backend.is_open() { Residence::default() } else { Residence::elsewhere() };
        let options = options(&plan, &geometry, capacity_blocks, group);
        let (name, settings, poll_ns) = (plan.name.clone(), plan.settings, plan.poll.as_nanos() as u64);
        let (id, life) = worker
            .call(move |w| {
                let id = w.add_disk(name, backend, options, poll_ns)?;
                w.core().set(id, &settings);
                Ok((id, w.life(id)))
            })
            .map_err(|e| silent(e, worker_number))?
            .map_err(|source| ServiceError::Attach { disk: plan.name.clone(), source })?;
        if let Some(base) = base
            && !worker.call(move |w| w.core().set_base(id, base)).unwrap_or(false)
        {
            layer = None;
            tracing::info!(
                disk = plan.name,
                "its share of the store is too small for a map of its own clusters, so blocks of its base are not \
                 shared by where they come from; a larger `size` lifts that"
            );
        }
        let info = DiskInfo { name: plan.name.clone(), disk: id, geometry, serial: plan.serial.clone() };
        let ranges = DiskRanges::new(&plan.name, info.geometry.size_bytes);
        let host = Arc::new(DiskHost::new(worker, id));
        let served = Self {
            info,
            description,
            nbd: plan.nbd,
            host,
            worker_number,
            group,
            layer,
            vhost: Mutex::new(None),
            file: Mutex::new(None),
            device: Mutex::new(None),
            detaching: AtomicBool::new(false),
            image_file: file,
            files: Mutex::new(files),
            life,
            told_when_gone: OnceLock::new(),
            last: Mutex::default(),
            ranges: Mutex::new(ranges),
            residence,
            warming: Round::default(),
            pinning: Pinning::default(),
        };
        // So that there is something to say about it from now on.
        served.report();
        Ok(served)
    }

    /// Opens the vhost-user socket, if the plan has one, and makes it a file and a block device, if it is to be one.
    pub(super) fn listen(
        &self,
        plan: &DiskPlan,
        access: undercroft_config::SocketAccess,
        ways: &Ways<'_>,
    ) -> Result<(), ServiceError> {
        if let Some(socket) = &plan.socket {
            self.listen_vhost(plan, socket, access, ways)?;
        }
        self.make_file(plan, access, ways)?;
        self.make_device(plan, ways)
    }

    /// Makes it a file, if it is to be one, is none yet, and its image is open: else it is made when that is opened.
    pub(super) fn make_file(
        &self,
        plan: &DiskPlan,
        access: undercroft_config::SocketAccess,
        ways: &Ways<'_>,
    ) -> Result<(), ServiceError> {
        let Some(path) = &plan.file else { return Ok(()) };
        let mut file = self.file();
        if file.is_some() || self.is_detaching() || !self.residence.is_open() {
            return Ok(());
        }
        let fuse = |source| ServiceError::Fuse { disk: self.info.name.clone(), source };
        let options = file_options(plan, access, ways);
        *file = ways.left.go_on(self, path, &options).map_err(fuse)?;
        if file.is_none() && !ways.left.is_watched() {
            *file = Some(self.mount_file(path, plan, access, ways)?);
        }
        Ok(())
    }

    /// Mounts it as a file, beside what it is already.
    pub(super) fn mount_file(
        &self,
        path: &Path,
        plan: &DiskPlan,
        access: undercroft_config::SocketAccess,
        ways: &Ways<'_>,
    ) -> Result<FuseServer, ServiceError> {
        if let Some(dir) = path.parent().filter(|dir| dir.starts_with(&ways.runtime_dir)) {
            // It may be gone since the last boot. If it cannot be made, the server says that it is missing.
            let _ = std::fs::create_dir_all(dir);
        }
        FuseServer::start(path, &self.info, self.host.clone(), file_options(plan, access, ways))
            .map_err(|source| ServiceError::Fuse { disk: self.info.name.clone(), source })
    }

    /// The file that it is.
    pub(super) fn file(&self) -> MutexGuard<'_, Option<FuseServer>> {
        self.file.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Takes its file away, if it is one, and returns when what was under way there is finished.
    pub(super) fn end_file(&self) {
        let file = self.file().take();
        file.into_iter().for_each(FuseServer::stop);
    }

    fn listen_vhost(
        &self,
        plan: &DiskPlan,
        socket: &Path,
        access: undercroft_config::SocketAccess,
        ways: &Ways<'_>,
    ) -> Result<(), ServiceError> {
        let trust = if plan.trust_memory { Trust::Anything } else { Trust::Memory };
        let options = VhostOptions {
            queues: plan.queues,
            queue_size: plan.queue_size,
            access: socket_access(access),
            trust,
            room: Arc::clone(ways.room),
        };
        let server = VhostServer::start(ways.event_loop, socket, self.info.clone(), self.host.clone(), options)
            .map_err(|source| ServiceError::Vhost { disk: plan.name.clone(), source })?;
        *self.vhost() = Some(server);
        Ok(())
    }

    /// Its vhost-user socket, if it has one.
    pub(super) fn vhost(&self) -> MutexGuard<'_, Option<VhostServer>> {
        self.vhost.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// What containers have of it.
    pub(super) fn ranges(&self) -> MutexGuard<'_, DiskRanges> {
        self.ranges.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Where its guest is.
    pub(super) fn residence(&self) -> &Residence {
        &self.residence
    }

    /// What it fetches of what was hot elsewhere.
    pub(super) fn warming(&self) -> &Round {
        &self.warming
    }

    /// From whom it has lists of blocks that are locked.
    pub(super) fn pinning(&self) -> &Pinning {
        &self.pinning
    }

    /// The file that its image was opened from.
    pub(super) fn image_file(&self) -> Option<&ImageFile> {
        self.image_file.as_ref()
    }

    /// All files of its image, if it is open and they can tell whether somebody changed them.
    pub(super) fn files(&self) -> Option<ImageFiles> {
        self.files.lock().unwrap_or_else(|p| p.into_inner()).clone()
    }

    /// Lets go of these files, because the image is to be closed.
    pub(super) fn take_files(&self) -> Option<ImageFiles> {
        self.files.lock().unwrap_or_else(|p| p.into_inner()).take()
    }

    /// The image is open again, with these.
    pub(super) fn set_files(&self, files: Option<ImageFiles>) {
        *self.files.lock().unwrap_or_else(|p| p.into_inner()) = files;
    }

    /// What they say now.
    pub(super) fn stamp(&self) -> Option<ImageStamp> {
        self.files()?.stamp().ok()?
    }

    /// Which of its worker's disks it is.
    pub(super) fn life(&self) -> Option<u64> {
        self.life
    }

    /// Has the service told when it has gone, of which blocks are in the SSD store.
    pub(super) fn tell_when_gone(&self, service: Weak<Service>) {
        let _ = self.told_when_gone.set(service);
    }

    /// Its trust group, if it shares.
    pub(super) fn group(&self) -> Option<GroupId> {
        self.group
    }

    /// The image that it stands on, if blocks of that are shared.
    pub(super) fn layer(&self) -> Option<LayerId> {
        self.layer
    }

    /// What NBD clients read about it.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Whether NBD clients see it.
    pub(crate) fn is_exported(&self) -> bool {
        self.nbd && !self.is_detaching() && self.residence.is_open()
    }

    /// What front ends tell their peers.
    pub fn info(&self) -> &DiskInfo {
        &self.info
    }

    /// The way to its worker.
    pub fn host(&self) -> &Arc<DiskHost> {
        &self.host
    }

    /// Its id in the core of its worker.
    pub fn id(&self) -> DiskId {
        self.info.disk
    }

    /// Which worker owns it, from 0.
    pub(crate) fn worker_number(&self) -> usize {
        self.worker_number
    }

    /// Whether it is going.
    pub(crate) fn is_detaching(&self) -> bool {
        self.detaching.load(Ordering::Relaxed)
    }

    /// What its worker says about it; `None` once it is gone. A worker that does not answer is held to what it said
    /// last.
    pub fn report(&self) -> Option<DiskReport> {
        let id = self.id();
        let mut last = self.last.lock().unwrap_or_else(|p| p.into_inner());
        match self.host.worker.call(move |w| w.report(id)) {
            Ok(Some(report)) => *last = Some(report.clone()),
            Err(worker::Gone::Silent) => return last.clone().map(|r| DiskReport { silent: true, ..r }),
            _ => *last = None,
        }
        last.clone()
    }

    /// Finishes what is under way, closes the front ends, then the image. Nothing is returned once that is done; if the
    /// image does not answer, it is finished in the background, which can be waited for.
    pub(super) fn detach(&self) -> Option<Going> {
        self.detaching.store(true, Ordering::Relaxed);
        residence::give_up(self);
        // While requests are served: what the page cache holds of it comes yet.
        self.end_device();
        let name = self.info.name.clone();
        let service = self.told_when_gone.get().cloned();
        let gone = self.life.map(|life| Gone {
            worker: self.worker_number,
            life,
            files: self.take_files(),
            is_durable: false,
        });
        let vhost = self.vhost.lock().ok().and_then(|mut v| v.take());
        let file = self.file().take();
        let (tx, rx) = channel();
        let id = self.id();
        // New requests are refused first, so that a busy guest cannot keep its disk here.
        if self.host.worker.send(move |w| w.remove_disk(id, tx)).is_err() {
            return None;
        }
        let stopper = std::thread::spawn(move || {
            // First, so that nobody opens a file whose disk is gone.
            file.into_iter().for_each(FuseServer::stop);
            vhost.into_iter().for_each(|v| v.stop());
        });
        // Closing an image may write its tables, and waits for it as well.
        let (finished, is_finished) = channel();
        std::thread::spawn(move || {
            if let Ok(backend) = rx.recv() {
                let is_durable = close(backend, &name);
                let service = service.and_then(|s| s.upgrade());
                if let (Some(service), Some(mut gone)) = (&service, gone) {
                    gone.is_durable = is_durable;
                    service.leave_ssd(&gone);
                    // Its image can be had by the next one from here on.
                    drop(gone);
                }
                tracing::info!(disk = name, "detached");
                let _ = finished.send(());
            }
        });
        let done = is_finished.recv_timeout(DETACH_WAIT) != Err(RecvTimeoutError::Timeout);
        if !done {
            tracing::warn!(
                disk = self.info.name,
                "requests are still under way, or the image is still being closed, after {DETACH_WAIT:?}; it is \
                 detached when its image answers"
            );
        }
        if done {
            let _ = stopper.join();
        }
        (!done).then_some(Going(is_finished))
    }
}

fn file_options(plan: &DiskPlan, access: undercroft_config::SocketAccess, ways: &Ways<'_>) -> FuseOptions {
    FuseOptions {
        access: socket_access(access),
        budget: Arc::clone(ways.budget),
        limits: FileLimits::default(),
        keeper: keeper(origin(plan)),
        hint: file_hint(plan, ways.hints_asked),
    }
}

/// Why a worker did nothing of what it was asked.
pub(super) fn silent(e: worker::Gone, worker: usize) -> ServiceError {
    match e {
        worker::Gone::Ended => ServiceError::Stopping,
        worker::Gone::Silent => ServiceError::Silent { worker },
    }
}

/// The access to a disk's sockets, in the front ends' words.
pub(super) fn socket_access(access: undercroft_config::SocketAccess) -> SocketPermissions {
    SocketPermissions { mode: access.mode(), gid: access.gid }
}

/// Makes what was written durable, then closes the image. False if that is not certain.
#[must_use]
pub(super) fn close(mut backend: Box<dyn Backend>, name: &str) -> bool {
    let mut is_durable = true;
    if !backend.geometry().read_only && backend.is_open() {
        let flush = Io {
            op: OpId(u64::MAX),
            disk: DiskId(u32::MAX),
            target: IoTarget::Image,
            kind: IoKind::Flush,
            offset: 0,
            len: 0,
            buf: IoBuf::default(),
        };
        backend.submit(flush);
        backend.kick();
        let (mut done, give_up) = (Vec::new(), Instant::now() + CLOSE_WAIT);
        while backend.inflight() > 0 && Instant::now() < give_up {
            backend.poll(&mut done);
            if done.is_empty() {
                wait_readable(&*backend, Duration::from_millis(100));
            }
        }
        let result = done.first().map(|d| d.result);
        is_durable = result == Some(Ok(())) && backend.take_lost().is_none();
        match result {
            Some(Ok(())) => {}
            Some(Err(e)) => tracing::error!(disk = name, "the last flush failed: {e}; unflushed writes may be lost"),
            None => tracing::error!(disk = name, "the last flush got no answer; unflushed writes may be lost"),
        }
    }
    drop(backend);
    is_durable
}

fn wait_readable(backend: &dyn Backend, timeout: Duration) {
    let Ok(mut epoll) = undercroft_host::Epoll::new() else { return std::thread::sleep(timeout) };
    let fd = backend.wake_fd();
    if epoll.add(fd.as_fd(), 0, undercroft_host::Interest::Read, undercroft_host::Trigger::Level).is_ok() {
        let _ = epoll.wait(Some(timeout.as_nanos() as u64)).map(Iterator::count);
    }
}
