//! The running daemon: workers, disks and listeners joined, from a plan to an orderly stop.
//!
//! Owns who serves what. Never touches a request. Invariants: `plan` says what is served now; the shares of all disks
//! fit into the store at any time (a change shrinks before it grows); one change at a time; what failed half-way is
//! taken back; a disk that cannot be served keeps no other from being.

mod api;
mod arriving;
mod blocks;
mod devices;
mod disk;
mod division;
mod error;
mod exports;
mod file_hints;
mod files;
mod going;
mod images;
mod keeping;
mod laps;
mod leaving;
mod left_files;
mod limits;
mod locks;
mod memory;
pub mod obstacles;
mod pinning;
mod placing;
mod pools;
mod ranges;
mod record;
mod reload;
mod residence;
mod scan;
mod shares;
pub mod shown;
mod ssd;
mod start;
mod status;
mod versions;
mod waiting;
mod warming;

pub use disk::ServedDisk;
pub use error::ServiceError;

use crate::worker::WorkerHandle;
use disk::Unserved;
use locks::Ordered;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use undercroft_cache::{ContentKey, CoreOptions, IoNeeds, blocks_per_disk_max};
use undercroft_config::{ControlError, DiskPlan, ServePlan};
use undercroft_frontend::budget::Budget;
use undercroft_frontend::nbd::NbdServer;
use undercroft_frontend::vhost::EventLoop;
use undercroft_hostmem::pressure::{GuestRoom, Watch};
use undercroft_hostmem::scan::scanner::Scanner;

/// Disks that are named one by one in the log when everything listens.
const DISKS_SAID_MAX: usize = 16;
/// The same of VMs that have a control socket of their own.
const CONTROLS_SAID_MAX: usize = 16;
/// Images opened at a time at most when the daemon starts.
const OPENERS_MAX: usize = 16;
/// How long a stop waits for a change under way, one that opens an image that does not answer say.
const CHANGE_WAIT: Duration = Duration::from_secs(10);
/// How long a disk that comes waits for others to give up what is its share now.
const ROOM_WAIT: Duration = Duration::from_secs(20);

/// Listeners and threads that run beside the workers.
#[derive(Default)]
struct Running {
    nbd: Vec<NbdServer>,
    /// The scanner of guests' memory, if there is one.
    scanner: Option<Scanner>,
    /// The thread that moves shares.
    shares: Option<JoinHandle<()>>,
    /// The thread that looks after the SSD store.
    ssd: Option<JoinHandle<()>>,
}

/// The running daemon. The order of its locks is in `locks`.
pub(crate) struct Service {
    plan: RwLock<Arc<ServePlan>>,
    /// The key of all hashes of contents.
    content_key: ContentKey,
    /// What is known of a process that may follow.
    successor: leaving::Successor,
    /// Files that a process before has left.
    left_files: left_files::LeftFiles,
    /// Set when another hint is asked for through a file.
    hints_asked: Arc<AtomicBool>,
    workers: Vec<Arc<WorkerHandle>>,
    /// The workers of disks that have not come yet, in the process before.
    places: Mutex<HashMap<String, usize>>,
    disks: RwLock<Vec<Arc<ServedDisk>>>,
    /// Disks of the plan that are not served, because something of theirs cannot be had yet.
    waiting: Ordered<Vec<Arc<waiting::WaitingDisk>>>,
    /// Itself, for threads that may outlive it.
    me: Weak<Service>,
    sharing: Ordered<placing::SharingNumbers>,
    /// Memory for the data of all NBD connections, and of disks that are files.
    nbd_budget: Arc<Budget>,
    change: Ordered<()>,
    /// Decides what the store may hold while the machine is short of memory.
    watch: Watch,
    /// What copies to guests may take of our control group.
    guest_room: Arc<GuestRoom>,
    /// Has the sockets of all disks.
    event_loop: Arc<EventLoop>,
    /// What disks were told to hold at most.
    limits: Ordered<limits::Told>,
    ksm: Ordered<memory::KsmState>,
    ssd: Ordered<ssd::SsdState>,
    shares: Ordered<shares::ShareManager>,
    versions: Ordered<versions::Versions>,
    running: Ordered<Running>,
    recorder: Ordered<record::Recordings>,
    stop: (Mutex<bool>, Condvar),
    started: Instant,
}

impl Service {
    /// What front ends of a disk share with those of others.
    fn ways(&self) -> disk::Ways<'_> {
        disk::Ways {
            event_loop: &self.event_loop,
            room: &self.guest_room,
            budget: &self.nbd_budget,
            left: &self.left_files,
            hints_asked: &self.hints_asked,
            runtime_dir: self.plan().daemon.runtime_dir.clone(),
        }
    }

    /// The disks served now, in order.
    pub fn disks(&self) -> Vec<Arc<ServedDisk>> {
        read(&self.disks).clone()
    }

    /// Attaches a disk of `plan`, which is what is served now and this disk. The caller holds `change`, and has opened
    /// the image, and read its lists, before.
    fn attach(
        &self,
        plan: ServePlan,
        mut opened: disk::Opened,
        lists: &pinning::Lists,
    ) -> Result<Arc<ServedDisk>, ControlError> {
        if self.is_stopping() {
            return Err(ServiceError::Stopping.into());
        }
        // The others make room before this one comes.
        let plan = self.apply(plan, |_| false)?;
        let name = opened.plan.name.clone();
        if let Some(&own) = plan.by_name().get(name.as_str()) {
            opened.plan.clone_from(own);
        }
        match self.serve_opened(opened, &plan) {
            Ok(served) => {
                write(&self.disks).push(served.clone());
                self.join_pools(&plan);
                if let Some(&own) = plan.by_name().get(name.as_str()) {
                    pinning::begin(&served, own, lists);
                }
                self.adopt(plan);
                Ok(served)
            }
            Err(Unserved { why, left }) => {
                match left {
                    Some(going) => self.let_go(&plan, &name, going),
                    None => self.settle(ServePlan::clone(&self.plan())),
                }
                Err(why.into())
            }
        }
    }

    /// Detaches a disk; `plan` is what is served without it. False if it is finished in the background: then the others
    /// get what it has when it is gone.
    fn detach(&self, plan: ServePlan, disk: &Arc<ServedDisk>) -> bool {
        let going = disk.detach();
        write(&self.disks).retain(|d| !Arc::ptr_eq(d, disk));
        let Some(going) = going else {
            // What it had is with the kernel before disks on other workers have it.
            self.release_given();
            self.settle(plan);
            return true;
        };
        self.let_go(&self.plan(), &disk.info().name, going);
        false
    }

    /// What is served now, and how.
    fn plan(&self) -> Arc<ServePlan> {
        Arc::clone(&read(&self.plan))
    }

    /// Says in the log where guests, clients, owners of VMs and Prometheus (at `metrics`) connect, once everything
    /// listens; of many disks, or VMs with a control socket, only how many there are.
    pub fn say_ready(&self, metrics: Option<SocketAddr>) {
        let plan = self.plan();
        let disks = self.disks();
        for disk in disks.iter().filter(|_| disks.len() <= DISKS_SAID_MAX) {
            let name = &disk.info().name;
            let Some(planned) = plan.find(name) else { continue };
            match &planned.socket {
                Some(socket) => tracing::info!(disk = name, "guests connect at {}", socket.display()),
                None if planned.file.is_some() || planned.device.is_some() => {}
                None => tracing::info!(disk = name, "no vhost-user socket, NBD alone"),
            }
        }
        for server in &self.running.lock().nbd {
            tracing::info!("NBD clients connect at {}", server.local_addr());
        }
        let owners = &plan.daemon.vm_controls;
        if owners.len() > CONTROLS_SAID_MAX {
            tracing::info!("{} VMs have control sockets of their own", owners.len());
        } else {
            owners.iter().for_each(|c| tracing::info!(vm = c.vm, "its control socket is {}", c.socket.display()));
        }
        if let Some(address) = metrics {
            tracing::info!("metrics are at http://{address}/metrics");
        }
        tracing::info!("ready: {}; control socket {}", self.summary(), plan.daemon.control_socket.display());
    }

    /// Begins an orderly stop; `wait` returns.
    pub fn request_stop(&self) {
        *lock(&self.stop.0) = true;
        self.stop.1.notify_all();
    }

    /// Whether somebody has requested a stop.
    pub fn is_stopping(&self) -> bool {
        *lock(&self.stop.0)
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
        let Running { nbd, scanner, shares, ssd } = std::mem::take(&mut *self.running.lock());
        drop(scanner);
        for thread in [shares, ssd].into_iter().flatten() {
            let _ = thread.join();
        }
        let change = self.change.lock_within(CHANGE_WAIT);
        if change.is_none() {
            tracing::error!("a change of what is served is still under way after {CHANGE_WAIT:?}; stopping without it");
        }
        self.forget_waiting(|_| true);
        self.watch.stop();
        self.ksm.lock().keeper.release(false);
        std::thread::scope(|s| nbd.into_iter().for_each(|server| _ = s.spawn(|| server.stop())));
        if change.is_some() {
            self.leave_files();
            self.leave_devices();
        }
        if change.is_some() && self.leave_to_the_next_start() {
            return;
        }
        let disks = std::mem::take(&mut *write(&self.disks));
        let mut all = true;
        std::thread::scope(|s| {
            let threads: Vec<_> = disks.iter().map(|d| s.spawn(|| d.detach())).collect();
            for t in threads {
                all &= t.join().is_ok_and(|going| going.is_none());
            }
        });
        if all {
            self.end_ssd();
            self.workers.iter().for_each(|w| w.stop());
        } else {
            tracing::error!(
                "some images do not answer; stopping without them. Writes that were not acknowledged may be lost"
            );
        }
    }
}

/// Blocks that a disk's share holds, besides their metadata and its operations under way.
fn capacity_blocks(plan: &DiskPlan) -> u32 {
    blocks_per_disk_max(&CoreOptions::new(plan.share_bytes), 1, io_needs(plan))
}

/// What decides how much of its share a disk's operations take.
fn io_needs(plan: &DiskPlan) -> IoNeeds {
    IoNeeds { readahead_bytes: plan.settings.readahead_bytes, disks: plan.io_disks }
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

#[cfg(test)]
mod going_tests;
#[cfg(test)]
mod pinning_tests;
#[cfg(test)]
mod plan_for_tests;
#[cfg(test)]
mod silent_tests;
