//! The running daemon: workers, disks and listeners joined, from a plan to an orderly stop.
//!
//! Owns who serves what. Never touches a request. Invariants: `plan` says what is served now; the shares of all disks
//! fit into the store at any time (a change shrinks before it grows); one change at a time; what failed half-way is
//! taken back; a disk that cannot be served keeps no other from being.

mod api;
mod disk;
mod division;
mod exports;
mod images;
mod memory;
mod ranges;
mod record;
mod scan;
mod shares;
pub mod shown;
mod versions;
mod waiting;

pub use disk::ServedDisk;

use crate::record::Recorder;
use crate::worker::{AddDiskError, CALL_WAIT, WorkerHandle, WorkerOptions};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use undercroft_backend::{self as backend, OpenError};
use undercroft_cache::{CoreOptions, GroupId, LayerId, blocks_per_disk_max};
use undercroft_config::plan::BaseSharing;
use undercroft_config::tls;
use undercroft_config::{DiskPlan, ServePlan};
use undercroft_frontend::nbd::{Budget, NbdError, NbdServer, NbdServerOptions};
use undercroft_frontend::vhost::VhostError;
use undercroft_hostmem::ksm::{Keeper, Ksm};
use undercroft_hostmem::pressure::{GuestRoom, Roots, Watch};
use undercroft_hostmem::scan::scanner::Scanner;
use undercroft_units::human_size;

/// Why the daemon cannot serve something.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// An image does not open.
    #[error("disk \"{disk}\": {source}")]
    Open {
        /// Which disk.
        disk: String,
        /// Why.
        source: OpenError,
    },
    /// A worker has no room.
    #[error("disk \"{disk}\": {source}")]
    Attach {
        /// Which disk.
        disk: String,
        /// Why.
        source: AddDiskError,
    },
    /// A vhost-user socket cannot be had.
    #[error("disk \"{disk}\": {source}")]
    Vhost {
        /// Which disk.
        disk: String,
        /// Why.
        source: VhostError,
    },
    /// An NBD listener cannot be had.
    #[error("NBD listener {listen}: {source}")]
    Nbd {
        /// Which listener.
        listen: String,
        /// Why.
        source: Box<NbdError>,
    },
    /// The share is too small to cache anything.
    #[error(
        "disk \"{disk}\": its share of {share} holds no cache at all; give it a larger `size`, or the store more `memory`"
    )]
    TooSmall {
        /// Which disk.
        disk: String,
        /// Its share.
        share: String,
    },
    /// A worker thread cannot be started.
    #[error("cannot start a worker: {0}; the store's memory may be larger than this process may map (see `ulimit -v`)")]
    Worker(std::io::Error),
    /// Something holds a worker up: memory of a guest that does not come, as a rule.
    #[error("worker w{worker} has not answered for {} s; its disks wait, those of other workers go on", CALL_WAIT.as_secs())]
    Silent {
        /// Which, from 0.
        worker: usize,
    },
    /// The daemon is stopping.
    #[error("the daemon is stopping")]
    Stopping,
}

/// Disks that are named one by one in the log when everything listens.
const DISKS_SAID_MAX: usize = 16;
/// Images opened at a time at most when the daemon starts.
const OPENERS_MAX: usize = 16;
/// How long a disk that comes waits for others to give up what is its share now.
const ROOM_WAIT: Duration = Duration::from_secs(20);

/// The running daemon.
pub struct Service {
    plan: RwLock<ServePlan>,
    workers: Vec<Arc<WorkerHandle>>,
    disks: RwLock<Vec<Arc<ServedDisk>>>,
    /// Disks of the plan that are not served, because something of theirs cannot be had yet.
    waiting: Mutex<Vec<Arc<waiting::WaitingDisk>>>,
    /// Itself, for threads that may outlive it.
    me: Weak<Service>,
    /// Images below disks with those who hold their blocks in common, by number; they stay.
    bases: Mutex<Vec<(LayerId, Option<GroupId>)>>,
    /// Names of trust groups by number; they stay.
    groups: Mutex<Vec<String>>,
    nbd: Mutex<Vec<NbdServer>>,
    /// Memory for the data of all NBD connections.
    nbd_budget: Arc<Budget>,
    /// Held while disks come, go or change.
    change: Mutex<()>,
    /// Decides what the store may hold while the machine is short of memory.
    watch: Watch,
    /// What copies to guests may take of our control group.
    guest_room: Arc<GuestRoom>,
    /// Held while disks are told what they may hold.
    limits: Mutex<()>,
    ksm: Mutex<Keeper>,
    /// Why KSM is not managed although it is to be.
    ksm_problem: Mutex<Option<String>>,
    /// Decides how the store is divided, and moves it.
    manager: Mutex<shares::ShareManager>,
    /// Of what is set for each node. Taken before `plan` is read for it, so that it never sees an older one than
    /// before.
    versions: Mutex<versions::Versions>,
    /// The thread that it runs on.
    share_thread: Mutex<Option<JoinHandle<()>>>,
    /// The recording under way, or the last one.
    recorder: Mutex<Option<Recorder>>,
    /// The scanner of guests' memory, if there is one.
    scanner: Mutex<Option<Scanner>>,
    stop: (Mutex<bool>, Condvar),
    started: Instant,
}

impl Service {
    /// Opens every image, starts the workers, then the front ends. A disk of a configuration file that cannot be served
    /// waits, and the others are; of images that were named on a command line, each must open. Nothing is left behind
    /// if it fails.
    ///
    /// # Errors
    /// What keeps everything from being served; everything that is wrong with any of the images of a command line.
    pub fn start(plan: ServePlan) -> Result<Arc<Self>, Vec<ServiceError>> {
        let (mut errors, mut opened, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        let may_wait = plan.config_file.is_some();
        for (disk, result) in plan.disks.iter().zip(open_all(&plan)) {
            match result {
                Ok(o) => opened.push(o),
                Err(e) if may_wait => waiting.push((disk.clone(), e)),
                Err(e) => errors.push(e),
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let one = |e: ServiceError| vec![e];
        let mut workers = Vec::new();
        // One key for all, so that contents can be compared across workers.
        let core = CoreOptions::new(plan.store.memory_bytes);
        let content_key = core.content_key;
        for n in 0..plan.daemon.workers.max(1) {
            let options = WorkerOptions {
                name: format!("undercroft-w{n}"),
                core: core.clone(),
                poll_ns_max: 0,
                copy_cpu_percent: plan.daemon.copy_cpu_percent,
                check_captures: plan.daemon.check_captures,
            };
            workers.push(WorkerHandle::start(options).map_err(|e| one(ServiceError::Worker(e)))?);
        }
        let watch = Watch::new(plan.pressure.clone(), plan.store.floor_bytes, plan.store.memory_bytes);
        let watch = watch.map_err(|e| one(ServiceError::Worker(e)))?;
        let keeper = Keeper::new(Ksm::here(), &plan.daemon.runtime_dir);
        let (nbd, daemon, plan_disks) = (plan.nbd.clone(), plan.daemon.clone(), plan.disks.clone());
        let limits = plan.nbd_limits;
        let nbd_budget = Budget::new(usize::try_from(limits.memory_bytes).unwrap_or(usize::MAX), limits.slow_after);
        let service = Arc::new_cyclic(|me| Self {
            plan: RwLock::new(plan),
            workers,
            disks: RwLock::default(),
            waiting: Mutex::default(),
            me: me.clone(),
            bases: Mutex::default(),
            groups: Mutex::default(),
            nbd: Mutex::default(),
            nbd_budget,
            change: Mutex::default(),
            watch,
            guest_room: Arc::default(),
            limits: Mutex::default(),
            ksm: Mutex::new(keeper),
            ksm_problem: Mutex::default(),
            manager: Mutex::default(),
            versions: Mutex::default(),
            share_thread: Mutex::default(),
            recorder: Mutex::default(),
            scanner: Mutex::default(),
            stop: (Mutex::new(false), Condvar::new()),
            started: Instant::now(),
        });
        for o in opened {
            let own = o.plan.clone();
            match service.put_on_worker(o) {
                Ok(disk) => write(&service.disks).push(disk),
                Err(e) if may_wait => waiting.push((own, e)),
                Err(e) => errors.push(e),
            }
        }
        for disk in service.disks() {
            let Some(own) = plan_disks.iter().find(|p| p.name == disk.info().name) else { continue };
            match disk.listen(own, daemon.disk_access, &service.guest_room) {
                Ok(()) => {}
                Err(e) if may_wait => {
                    disk.detach();
                    write(&service.disks).retain(|d| !Arc::ptr_eq(d, &disk));
                    waiting.push((own.clone(), e));
                }
                Err(e) => errors.push(e),
            }
        }
        for listen in &nbd {
            match service.listen_nbd(listen) {
                Ok(server) => lock(&service.nbd).push(server),
                Err(e) => errors.push(e),
            }
        }
        if errors.is_empty() {
            let store = Arc::new(memory::Disks(Arc::downgrade(&service)));
            if let Err(e) = service.watch.start(store, Roots::default()) {
                tracing::error!("the machine's memory is not watched: there can be no thread for it: {e}");
            }
            service.begin_ksm();
            if let Err(e) = service.begin_shares() {
                tracing::error!("shares stay as they are: there can be no thread that moves them: {e}");
            }
            *lock(&service.scanner) = scan::start(&service, content_key);
            waiting.iter().for_each(|(disk, why)| service.let_wait(disk, why));
            service.begin_looking_at_images();
            return Ok(service);
        }
        service.shut_down();
        Err(errors)
    }

    fn listen_nbd(self: &Arc<Self>, listener: &undercroft_config::NbdListener) -> Result<NbdServer, ServiceError> {
        let access = disk::socket_access(self.plan().daemon.disk_access);
        let exports = exports::exports_of(listener, Arc::downgrade(self));
        let failed = |source| ServiceError::Nbd { listen: listener.at.to_string(), source: Box::new(source) };
        let keys = listener.files.as_ref().map(tls::load).transpose().map_err(|e| failed(e.into()))?;
        let limits = self.plan().nbd_limits;
        let options = NbdServerOptions {
            connections_max: listener.connections,
            connections_per_export_max: listener.per_export,
            handshakes_max: limits.handshakes,
            handshake_timeout: limits.handshake_timeout,
            budget: self.nbd_budget.clone(),
            tls: listener.tls,
            keys,
            ..NbdServerOptions::default()
        };
        NbdServer::start(exports::listen_of(&listener.at, access), exports, options).map_err(failed)
    }

    /// Reads the certificates of the listeners again, for clients that come from now on. What cannot be read is named,
    /// and stays as it was. Whether there are any.
    fn renew_nbd_keys(&self, failed: &mut Vec<String>) -> bool {
        let listeners = self.plan().nbd;
        let mut any = false;
        for (listener, server) in listeners.iter().zip(&*lock(&self.nbd)) {
            let Some(files) = &listener.files else { continue };
            any = true;
            match tls::load(files) {
                Ok(keys) => server.set_keys(keys),
                Err(e) => failed.push(format!("the certificates of {}: {e}; those read before stay", listener.at)),
            }
        }
        any
    }

    /// The disks served now, in order.
    pub fn disks(&self) -> Vec<Arc<ServedDisk>> {
        read(&self.disks).clone()
    }

    /// The number of a trust group; `None` if nothing is shared.
    fn group(&self, trust: &str) -> Option<GroupId> {
        if !self.plan().store.share {
            return None;
        }
        let mut groups = lock(&self.groups);
        let n = groups.iter().position(|g| g == trust).unwrap_or_else(|| {
            groups.push(trust.to_string());
            groups.len() - 1
        });
        Some(GroupId(n as u32))
    }

    /// The name of a trust group.
    fn group_name(&self, group: GroupId) -> String {
        lock(&self.groups).get(group.0 as usize).cloned().unwrap_or_default()
    }

    /// The number of an image for those who hold its blocks in common with a disk of `plan`, of group `group`.
    fn base_for(&self, image: LayerId, plan: &DiskPlan, group: Option<GroupId>) -> LayerId {
        let own = (image, group.filter(|_| plan.share_base == BaseSharing::Group));
        let mut bases = lock(&self.bases);
        let n = bases.iter().position(|b| *b == own).unwrap_or_else(|| {
            bases.push(own);
            bases.len() - 1
        });
        LayerId(n as u64)
    }

    /// Waits until worker `n` has room for a disk: those that have been told to give need a moment for it.
    fn make_room(&self, n: usize, plan: &DiskPlan, blocks: u32) -> Result<(), AddDiskError> {
        let (readahead_bytes, give_up) = (plan.readahead_bytes, Instant::now() + ROOM_WAIT);
        loop {
            match self.workers[n].call(move |w| w.core().may_add(blocks, readahead_bytes)) {
                Ok(Err(e)) if Instant::now() >= give_up || *lock(&self.stop.0) => return Err(e.into()),
                Ok(Err(_)) => {}
                Ok(Ok(())) | Err(_) => return Ok(()),
            }
            let _ = self.workers[n].give_back(memory::STEP_FRAMES_MAX);
            std::thread::sleep(memory::PAUSE);
        }
    }

    /// Puts an opened disk on the worker of those that it can share with; otherwise on the one with the fewest disks.
    fn put_on_worker(&self, mut opened: disk::Opened) -> Result<Arc<ServedDisk>, ServiceError> {
        let plan = opened.plan.clone();
        let plan = &plan;
        let blocks = capacity_blocks(plan);
        if blocks == 0 {
            return Err(ServiceError::TooSmall { disk: plan.name.clone(), share: human_size(plan.share_bytes) });
        }
        let mut load = vec![0usize; self.workers.len()];
        self.disks().iter().for_each(|d| load[d.worker_number()] += 1);
        let group = self.group(&plan.trust);
        if let Some(base) = &mut opened.base {
            base.layer = self.base_for(base.layer, plan, group);
        }
        let layer = opened.base.as_ref().map(|b| b.layer);
        let disks = self.disks();
        let like = |same: &dyn Fn(&ServedDisk) -> bool| disks.iter().find(|d| same(d)).map(|d| d.worker_number());
        let together = like(&|d| layer.is_some() && d.layer() == layer)
            .or_else(|| like(&|d| group.is_some() && d.group() == group));
        let answers = |n: &usize| !self.workers[*n].is_silent();
        let least = || (0..load.len()).filter(answers).min_by_key(|&n| load[n]);
        let n = together.filter(answers).or_else(least).unwrap_or(0);
        let no_room = |source| ServiceError::Attach { disk: plan.name.clone(), source };
        self.make_room(n, plan, blocks).map_err(no_room)?;
        Ok(Arc::new(ServedDisk::attach(opened, self.workers[n].clone(), n, blocks, group)?))
    }

    /// Attaches a disk of `plan`, which is what is served now and this disk.
    fn attach(&self, plan: &ServePlan, disk: &DiskPlan) -> Result<Arc<ServedDisk>, ServiceError> {
        let opened = disk::open(disk.clone(), plan.store.share)?;
        // The others make room before this one comes.
        self.apply(plan);
        match self.serve_opened(opened, plan) {
            Ok(served) => {
                write(&self.disks).push(served.clone());
                self.adopt(plan.clone());
                Ok(served)
            }
            Err(e) => {
                let before = self.plan();
                self.apply(&before);
                Err(e)
            }
        }
    }

    /// Detaches a disk; `plan` is what is served without it. False if it is finished in the background.
    fn detach(&self, plan: &ServePlan, disk: &Arc<ServedDisk>) -> bool {
        let done = disk.detach();
        write(&self.disks).retain(|d| !Arc::ptr_eq(d, disk));
        if done {
            self.apply(plan);
        }
        self.adopt(plan.clone());
        done
    }

    /// Makes the disks that are served now have the shares, policies and polling of `plan`: those that shrink first, so
    /// that the sum never passes the store.
    fn apply(&self, plan: &ServePlan) {
        let now = self.plan();
        let disks = self.disks();
        let share_now = |name: &str| now.find(name).map_or(0, |d| d.share_bytes);
        let wanted = disks.iter().filter_map(|d| Some((d, plan.find(&d.info().name)?)));
        let (growing, others): (Vec<_>, Vec<_>) = wanted.partition(|(_, p)| p.share_bytes > share_now(&p.name));
        let given = others.iter().any(|(_, p)| p.share_bytes < share_now(&p.name));
        others.iter().for_each(|(disk, p)| Self::change(plan, disk, p));
        if given {
            // Also for a disk that is not here yet.
            self.release_given();
        }
        growing.iter().for_each(|(disk, p)| Self::change(plan, disk, p));
    }

    /// Makes a disk have the share, policies and polling of `plan`, where it is `p`.
    fn change(plan: &ServePlan, disk: &ServedDisk, p: &DiskPlan) {
        let (id, blocks) = (disk.id(), capacity_blocks(p));
        let parted = p.clone();
        let policies: Vec<_> = p.parts.iter().map(|part| (part.number, plan.part_policy(p, part))).collect();
        let (policy, hint, poll_ns) = (p.policy, p.hint, p.poll.as_nanos() as u64);
        let result = disk.host().worker.call(move |w| {
            w.set_poll(id, poll_ns);
            if w.core().policy(id) != Some(policy) {
                w.core().set_policy(id, policy);
            }
            w.core().set_hint(id, hint);
            if parted.parts.is_empty() {
                // What its operations may take stays what it was when it came: a smaller share has fewer blocks for
                // that.
                let blocks = blocks.min(w.core().blocks_for(id, parted.share_bytes));
                return w.core().set_capacity(id, blocks).map_err(|e| e.to_string());
            }
            for now in w.core().part_stats(id) {
                if let Some(&(_, policy)) = policies.iter().find(|(n, kind)| *n == now.part.0 && *kind != now.policy) {
                    w.core().set_part_policy(id, now.part, policy);
                }
            }
            let shares = shares::part_blocks(w.core(), id, &parted);
            w.core().set_part_shares(id, &shares).map_err(|e| e.to_string())
        });
        if let Ok(Err(e)) = result {
            tracing::error!(disk = p.name, "cannot change its share: {e}");
        }
    }

    /// What is served now, and how.
    fn plan(&self) -> ServePlan {
        read(&self.plan).clone()
    }

    /// Says in the log where guests and clients connect, once everything listens; of many disks only how many there
    /// are.
    pub fn say_ready(&self) {
        let plan = self.plan();
        let disks = self.disks();
        for disk in disks.iter().filter(|_| disks.len() <= DISKS_SAID_MAX) {
            let name = &disk.info().name;
            let Some(planned) = plan.find(name) else { continue };
            match &planned.socket {
                Some(socket) => tracing::info!(disk = name, "guests connect at {}", socket.display()),
                None => tracing::info!(disk = name, "no vhost-user socket, NBD alone"),
            }
        }
        for server in lock(&self.nbd).iter() {
            tracing::info!("NBD clients connect at {}", server.local_addr());
        }
        tracing::info!("ready: {}; control socket {}", self.summary(), plan.daemon.control_socket.display());
    }

    /// Begins an orderly stop; `wait` returns.
    pub fn request_stop(&self) {
        *lock(&self.stop.0) = true;
        self.stop.1.notify_all();
    }

    /// Waits until somebody requests a stop, at most `timeout`. Whether somebody did.
    pub fn wait(&self, timeout: Duration) -> bool {
        let stop = lock(&self.stop.0);
        let (stop, _) = self.stop.1.wait_timeout_while(stop, timeout, |s| !*s).unwrap_or_else(|p| p.into_inner());
        *stop
    }

    /// Stops listening, finishes what is under way, closes every image and ends the workers.
    pub fn shut_down(&self) {
        self.request_stop();
        // While there are disks to be asked how they stand.
        self.end_recordings();
        // It asks the workers, so it goes before them.
        let scanner = lock(&self.scanner).take();
        drop(scanner);
        if let Some(thread) = lock(&self.share_thread).take() {
            let _ = thread.join();
        }
        let _change = lock(&self.change);
        self.forget_waiting(|_| true);
        self.watch.stop();
        lock(&self.ksm).release(false);
        for server in lock(&self.nbd).drain(..) {
            server.stop();
        }
        let disks = std::mem::take(&mut *write(&self.disks));
        let mut all = true;
        std::thread::scope(|s| {
            let threads: Vec<_> = disks.iter().map(|d| s.spawn(|| d.detach())).collect();
            for t in threads {
                all &= t.join().unwrap_or(false);
            }
        });
        if all {
            self.workers.iter().for_each(|w| w.stop());
        } else {
            tracing::error!(
                "some images do not answer; stopping without them. Writes that were not acknowledged may be lost"
            );
        }
    }
}

/// Opens the images of all disks of a plan: files in order, so that of two disks on one image the first has it; those
/// of NBD servers several at a time, so that one that does not answer keeps few others waiting.
fn open_all(plan: &ServePlan) -> Vec<Result<disk::Opened, ServiceError>> {
    let open = |disk: &DiskPlan| disk::open(disk.clone(), plan.store.share);
    let mut seen = BTreeSet::new();
    let mut is_remote = |d: &DiskPlan| backend::is_nbd(&d.image.location) && seen.insert(d.image.location.clone());
    let remote: Vec<usize> = (0..plan.disks.len()).filter(|&n| is_remote(&plan.disks[n])).collect();
    let results: Vec<Mutex<Option<_>>> = plan.disks.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for _ in 0..remote.len().min(OPENERS_MAX) {
            s.spawn(|| {
                while let Some(&n) = remote.get(next.fetch_add(1, Ordering::Relaxed)) {
                    *lock(&results[n]) = Some(open(&plan.disks[n]));
                }
            });
        }
    });
    let opened = results.into_iter().map(|r| r.into_inner().unwrap_or_else(|p| p.into_inner()));
    plan.disks.iter().zip(opened).map(|(disk, result)| result.unwrap_or_else(|| open(disk))).collect()
}

/// Blocks that a disk's share holds, besides their metadata and its operations under way.
fn capacity_blocks(plan: &DiskPlan) -> u32 {
    blocks_per_disk_max(&CoreOptions::new(plan.share_bytes), 1, plan.readahead_bytes)
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|p| p.into_inner())
}

fn read<T>(l: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    l.read().unwrap_or_else(|p| p.into_inner())
}

fn write<T>(l: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    l.write().unwrap_or_else(|p| p.into_inner())
}
