//! The running daemon: workers, disks and listeners joined, from a plan to an orderly stop.
//!
//! Owns who serves what. Never touches a request. Invariants: the shares of all disks fit into the store at any time (a
//! change shrinks before it grows); one change at a time; what failed half-way is taken back.

mod api;
mod disk;
mod exports;
mod shares;

pub use disk::ServedDisk;
pub use shares::divide;

use crate::backend::OpenError;
use crate::config::{DiskPlan, ServePlan};
use crate::frontend::nbd::{NbdError, NbdOptions, NbdServer};
use crate::frontend::vhost::VhostError;
use crate::worker::{AddDiskError, WorkerHandle, WorkerOptions};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock};
use std::time::{Duration, Instant};
use undercroft_cache::{Core, CoreOptions};

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
        source: NbdError,
    },
    /// The share is too small to cache anything.
    #[error("disk \"{disk}\": its share of {share} holds no cache at all (its I/O alone needs {need}); give it a larger `size`, or the store more `memory`")]
    TooSmall {
        /// Which disk.
        disk: String,
        /// Its share.
        share: String,
        /// What it needs at least.
        need: String,
    },
    /// A worker thread cannot be started.
    #[error("cannot start a worker: {0}; the store's memory may be larger than this process may map (see `ulimit -v`)")]
    Worker(std::io::Error),
    /// The daemon is stopping.
    #[error("the daemon is stopping")]
    Stopping,
}

/// The running daemon.
pub struct Service {
    plan: RwLock<ServePlan>,
    workers: Vec<Arc<WorkerHandle>>,
    disks: RwLock<Vec<Arc<ServedDisk>>>,
    nbd: Mutex<Vec<NbdServer>>,
    /// Held while disks come, go or change.
    change: Mutex<()>,
    stop: (Mutex<bool>, Condvar),
    started: Instant,
}

impl Service {
    /// Opens every image, starts the workers, then the front ends. Nothing is left behind if it fails.
    ///
    /// # Errors
    /// Everything that is wrong with any disk, not only the first.
    pub fn start(plan: ServePlan) -> Result<Arc<Self>, Vec<ServiceError>> {
        let mut errors = Vec::new();
        let mut opened = Vec::new();
        for disk in &plan.disks {
            match disk::open(disk.clone()) {
                Ok(o) => opened.push(o),
                Err(e) => errors.push(e),
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let one = |e: ServiceError| vec![e];
        let mut workers = Vec::new();
        for n in 0..plan.daemon.workers.max(1) {
            let options = WorkerOptions {
                name: format!("undercroft-w{n}"),
                core: CoreOptions { memory_bytes: plan.store.memory_bytes, ..CoreOptions::default() },
            };
            workers.push(WorkerHandle::start(options).map_err(|e| one(ServiceError::Worker(e)))?);
        }
        let shares = divide(plan.store.memory_bytes, &plan.disks);
        let (nbd, daemon) = (plan.nbd.clone(), plan.daemon.clone());
        let service = Arc::new(Self {
            plan: RwLock::new(plan),
            workers,
            disks: RwLock::default(),
            nbd: Mutex::default(),
            change: Mutex::default(),
            stop: (Mutex::new(false), Condvar::new()),
            started: Instant::now(),
        });
        for (mut o, share) in opened.into_iter().zip(shares) {
            o.plan.share_bytes = share;
            match service.put_on_worker(o) {
                Ok(disk) => write(&service.disks).push(disk),
                Err(e) => errors.push(e),
            }
        }
        for disk in service.disks() {
            errors.extend(disk.listen(daemon.disk_access.mode(), daemon.disk_access.gid).err());
        }
        for listen in &nbd {
            match service.listen_nbd(listen) {
                Ok(server) => lock(&service.nbd).push(server),
                Err(e) => errors.push(e),
            }
        }
        if errors.is_empty() {
            return Ok(service);
        }
        service.shut_down();
        Err(errors)
    }

    fn listen_nbd(self: &Arc<Self>, listen: &crate::config::NbdListen) -> Result<NbdServer, ServiceError> {
        let access = read(&self.plan).daemon.disk_access;
        let options = NbdOptions { socket_mode: access.mode(), socket_gid: access.gid, ..NbdOptions::default() };
        let exports = Arc::new(exports::ServedExports(Arc::downgrade(self)));
        NbdServer::start(exports::listen_of(listen), exports, options)
            .map_err(|source| ServiceError::Nbd { listen: listen.to_string(), source })
    }

    /// The disks served now, in order.
    pub fn disks(&self) -> Vec<Arc<ServedDisk>> {
        read(&self.disks).clone()
    }

    /// Puts an opened disk on the worker with the fewest disks.
    fn put_on_worker(&self, opened: disk::Opened) -> Result<Arc<ServedDisk>, ServiceError> {
        let blocks = capacity_blocks(&opened.plan)?;
        let mut load = vec![0usize; self.workers.len()];
        self.disks().iter().for_each(|d| load[d.worker_number()] += 1);
        let n = (0..load.len()).min_by_key(|&n| load[n]).unwrap_or(0);
        Ok(Arc::new(ServedDisk::attach(opened, self.workers[n].clone(), n, blocks)?))
    }

    /// Attaches one more disk while others are served.
    fn attach(&self, plan: DiskPlan) -> Result<Arc<ServedDisk>, ServiceError> {
        let opened = disk::open(plan.clone())?;
        let mut plans: Vec<DiskPlan> = self.disks().iter().map(|d| d.plan()).collect();
        plans.push(plan);
        let shares = divide(read(&self.plan).store.memory_bytes, &plans);
        // The others shrink before this one comes.
        self.give_shares(&shares[..shares.len() - 1]);
        let opened = disk::Opened { plan: DiskPlan { share_bytes: shares[shares.len() - 1], ..opened.plan }, ..opened };
        let access = read(&self.plan).daemon.disk_access;
        let result = self.put_on_worker(opened).and_then(|d| match d.listen(access.mode(), access.gid) {
            Ok(()) => Ok(d),
            Err(e) => {
                d.detach();
                Err(e)
            }
        });
        match result {
            Ok(disk) => {
                write(&self.disks).push(disk.clone());
                Ok(disk)
            }
            Err(e) => {
                self.share_out();
                Err(e)
            }
        }
    }

    /// Detaches a disk and gives its space to the others. False if it is finished in the background.
    fn detach(&self, disk: &Arc<ServedDisk>) -> bool {
        let done = disk.detach();
        write(&self.disks).retain(|d| !Arc::ptr_eq(d, disk));
        if done {
            self.share_out();
        }
        done
    }

    /// Works the shares out afresh and applies them.
    fn share_out(&self) {
        let plans: Vec<DiskPlan> = self.disks().iter().map(|d| d.plan()).collect();
        self.give_shares(&divide(read(&self.plan).store.memory_bytes, &plans));
    }

    /// Applies new shares, to disks in order: those that shrink first, so that the sum never passes the store.
    fn give_shares(&self, shares: &[u64]) {
        let disks = self.disks();
        let mut changes: Vec<(&Arc<ServedDisk>, u64)> =
            disks.iter().zip(shares.iter().copied()).filter(|(d, s)| d.plan().share_bytes != *s).collect();
        changes.sort_by_key(|(d, s)| *s > d.plan().share_bytes);
        for (disk, share) in changes {
            disk.update_plan(|p| p.share_bytes = share);
            let blocks = capacity_blocks(&disk.plan()).unwrap_or(0);
            let id = disk.id();
            let result = disk.host().worker.call(move |w| w.core().set_capacity(id, blocks));
            if let Ok(Err(e)) = result {
                tracing::error!(disk = disk.info().name, "cannot change its share: {e}");
            }
        }
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
        let _change = lock(&self.change);
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
            tracing::error!("some images do not answer; stopping without them. Writes that were not acknowledged may be lost");
        }
    }
}

/// Blocks that a disk's share holds, besides its metadata and its I/O under way.
fn capacity_blocks(plan: &DiskPlan) -> Result<u32, ServiceError> {
    let blocks = Core::capacity_blocks_max(plan.share_bytes, 1);
    if blocks == 0 {
        return Err(ServiceError::TooSmall {
            disk: plan.name.clone(),
            share: crate::units::human_size(plan.share_bytes),
            need: crate::units::human_size(Core::share_bytes_min()),
        });
    }
    Ok(blocks)
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
