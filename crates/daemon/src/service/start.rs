//! How a daemon starts: images opened, workers started, then the front ends.
//!
//! Owns the order. Never serves a request. Invariant: what failed half-way is taken back.

use super::arriving::Arrival;
use super::disk::{self, Opened, Unserved};
use super::left_files::LeftFiles;
use super::locks::{Ordered, Rank};
use super::{OPENERS_MAX, Service, ServiceError, keeping, lock, memory, pinning, scan, ssd, write};
use crate::worker::{WorkerHandle, WorkerOptions};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::time::Instant;
use undercroft_backend as backend;
use undercroft_cache::{ContentKey, CoreOptions, FramesIn};
use undercroft_config::images::{Fault, look};
use undercroft_config::{DiskPlan, ServePlan};
use undercroft_frontend::budget::Budget;
use undercroft_frontend::vhost::EventLoop;
use undercroft_host::{SharedMemory, inherited};
use undercroft_hostmem::ksm::{Keeper, Ksm};
use undercroft_hostmem::pressure::{Roots, Watch};

/// What is opened and what waits, before anything is served.
#[derive(Default)]
struct Images {
    opened: Vec<Opened>,
    waiting: Vec<(DiskPlan, Unserved)>,
    /// Those that nobody waits for, because they do not answer.
    silent: Vec<DiskPlan>,
    errors: Vec<ServiceError>,
}

impl Service {
    /// Opens every image, starts the workers, then the front ends. A disk of a configuration file that cannot be served
    /// waits, and the others are; of images that were named on a command line, each must open. Nothing is left behind
    /// if it fails.
    ///
    /// # Errors
    /// What keeps everything from being served; everything that is wrong with any of the images of a command line.
    pub fn start(mut plan: ServePlan) -> Result<Arc<Self>, Vec<ServiceError>> {
        // Before the images are opened, which touches them.
        let mut kept = inherited();
        let left_files = LeftFiles::kept(&mut kept);
        left_files.amend(&mut plan);
        left_files.sort_out(&plan);
        let kept = keeping::found(kept, &plan);
        let images = Images::open(&plan);
        if !images.errors.is_empty() {
            return Err(images.errors);
        }
        let (memories, mut arrival) = kept.map_or((Vec::new(), None), |(memories, arrival)| (memories, Some(arrival)));
        let service = match Self::without_disks(plan.clone(), memories, false) {
            Err(e) if arrival.take().is_some() => {
                tracing::warn!("what was cached before the restart is not used: {e}");
                Self::without_disks(plan, Vec::new(), false)
            }
            result => result,
        };
        let service = service.map_err(|e| vec![ServiceError::Worker(e)])?;
        service.left_files.take_in(left_files);
        service.serve(images, arrival.as_mut())?;
        service.expect_disks();
        service.expect_devices();
        Ok(service)
    }

    /// Opens every image and serves, in place of the process that has told `arrival` what it leaves. Nothing is left
    /// behind if it fails.
    ///
    /// # Errors
    /// Everything that keeps it from serving what that one served.
    pub(super) fn serve_on(self: &Arc<Self>, arrival: &mut Arrival) -> Result<(), Vec<ServiceError>> {
        let images = Images::open(&self.plan());
        self.serve(images, Some(arrival))
    }

    fn serve(self: &Arc<Self>, mut images: Images, arrival: Option<&mut Arrival>) -> Result<(), Vec<ServiceError>> {
        let service = self;
        let may_wait = service.plan().config_file.is_some();
        // One key for all, so that contents can be compared across workers.
        let content_key = self.content_key.clone();
        let arrives = arrival.as_ref().is_some_and(|a| a.is_watched());
        service.place(&mut images, may_wait, arrival);
        for listen in &service.plan().nbd {
            match service.listen_nbd(listen) {
                Ok(server) => {
                    // Until the process that serves says that it does not any more.
                    server.pause(arrives);
                    service.running.lock().nbd.push(server);
                }
                Err(e) => images.errors.push(e),
            }
        }
        if !images.errors.is_empty() {
            if !arrives {
                service.shut_down();
            }
            return Err(images.errors);
        }
        service.begin(content_key);
        for (disk, unserved) in images.waiting {
            service.let_wait(&disk, unserved);
        }
        for disk in &images.silent {
            tracing::error!(disk = disk.name, "its image does not answer; the disk waits until it does");
            service.let_come(disk);
        }
        service.begin_looking_at_images();
        Ok(())
    }

    /// A daemon with its workers, that serves nothing yet. The frames of its workers are in `memories`, if another
    /// process has left them; with `ssd_is_told`, another one tells of the SSD store later.
    pub(super) fn without_disks(
        plan: ServePlan,
        memories: Vec<SharedMemory>,
        ssd_is_told: bool,
    ) -> std::io::Result<Arc<Self>> {
        let core = CoreOptions::new(plan.disks_bytes());
        let mut memories = memories.into_iter();
        let mut workers = Vec::new();
        for n in 0..plan.daemon.workers.max(1) {
            let frames = match memories.next() {
                Some(memory) => FramesIn::Left(memory),
                None if plan.store.keep => FramesIn::Shared,
                None => FramesIn::Own,
            };
            workers.push(WorkerHandle::start(WorkerOptions {
                name: format!("undercroft-w{n}"),
                core: CoreOptions { frames, ..core.clone() },
                poll_ns_max: 0,
                copy_cpu_percent: plan.daemon.copy_cpu_percent,
                check_captures: plan.daemon.check_captures,
            })?);
        }
        let event_loop = EventLoop::start()?;
        let watch = Watch::new(plan.pressure.clone(), plan.disks_floor_bytes(), plan.disks_bytes())?;
        // After the images, which no store may be written over.
        let (ssd, stores) = ssd::SsdState::begin(&plan, ssd_is_told);
        if let Err(e) = ssd::give(&workers, stores) {
            tracing::error!("disks are served without the SSD store: {e}");
        }
        let keeper = Keeper::new(Ksm::here(), &plan.daemon.runtime_dir);
        let limits = plan.nbd_limits;
        let nbd_budget = Budget::new(usize::try_from(limits.memory_bytes).unwrap_or(usize::MAX), limits.slow_after);
        Ok(Arc::new_cyclic(|me| Self {
            plan: RwLock::new(Arc::new(plan)),
            content_key: core.content_key,
            successor: super::leaving::Successor::default(),
            left_files: LeftFiles::default(),
            hints_asked: Arc::default(),
            workers,
            places: Mutex::default(),
            disks: RwLock::default(),
            waiting: Ordered::new(Rank::Waiting, Vec::new()),
            me: me.clone(),
            sharing: Ordered::new(Rank::Sharing, Default::default()),
            nbd_budget,
            change: Ordered::new(Rank::Change, ()),
            watch,
            guest_room: Arc::default(),
            event_loop,
            limits: Ordered::new(Rank::Limits, super::limits::Told::default()),
            ksm: Ordered::new(Rank::Ksm, memory::KsmState { keeper, problem: None }),
            ssd,
            shares: Ordered::new(Rank::Shares, Default::default()),
            versions: Ordered::new(Rank::Versions, Default::default()),
            running: Ordered::new(Rank::Running, Default::default()),
            recorder: Ordered::new(Rank::Recorder, Default::default()),
            stop: (Mutex::new(false), Condvar::new()),
            started: Instant::now(),
        }))
    }

    /// Puts what is opened on workers, then lets guests reach it.
    fn place(self: &Arc<Self>, images: &mut Images, may_wait: bool, mut arrival: Option<&mut Arrival>) {
        if let Some(arrival) = &mut arrival {
            *lock(&self.places) = arrival.places();
        }
        for o in std::mem::take(&mut images.opened) {
            let own = o.plan.clone();
            match self.put_on_worker(o) {
                Ok(disk) => write(&self.disks).push(disk),
                Err(e) => images.failed(own, e.into(), may_wait),
            }
        }
        let plan = self.plan();
        if let Some(arrival) = &mut arrival {
            arrival.restore(self);
        }
        self.settle_ssd();
        self.join_pools(&plan);
        let by_name = plan.by_name();
        let lists = pinning::Lists::of(&plan.disks);
        for disk in self.disks() {
            let Some(&own) = by_name.get(disk.info().name.as_str()) else { continue };
            pinning::begin(&disk, own, &lists);
            if let Some(arrival) = &mut arrival {
                arrival.pin(&disk, own);
            }
            let Err(why) = disk.listen(own, plan.daemon.disk_access, &self.ways()) else {
                if let Some(arrival) = &mut arrival {
                    arrival.adopt(&disk);
                }
                continue;
            };
            let mut unserved = Unserved::from(why);
            if may_wait {
                unserved.left = disk.detach();
                write(&self.disks).retain(|d| !Arc::ptr_eq(d, &disk));
            }
            images.failed(own.clone(), unserved, may_wait);
        }
    }

    /// Starts what runs beside the workers. What cannot is said, and the daemon serves without.
    fn begin(self: &Arc<Self>, content_key: ContentKey) {
        let store = Arc::new(memory::Disks(Arc::downgrade(self)));
        if let Err(e) = self.watch.start(store, Roots::default()) {
            tracing::error!("the machine's memory is not watched: there can be no thread for it: {e}");
        }
        self.begin_ksm();
        if let Err(e) = self.begin_shares() {
            tracing::error!("shares stay as they are: there can be no thread that moves them: {e}");
        }
        let scanner = scan::start(self, content_key);
        let keeper = self.plan().ssd.is_wanted().then(|| ssd::begin(self.me.clone()));
        if let Some(Err(e)) = &keeper {
            tracing::error!("nothing is admitted to the SSD store: there can be no thread for it: {e}");
        }
        let mut running = self.running.lock();
        running.scanner = scanner;
        running.ssd = keeper.and_then(Result::ok);
    }
}

impl Images {
    /// Opens those of a plan.
    fn open(plan: &ServePlan) -> Self {
        let may_wait = plan.config_file.is_some();
        let mut images = Self::default();
        for (disk, result) in plan.disks.iter().zip(open_all(plan, may_wait)) {
            match result {
                Some(Ok(o)) => images.opened.push(o),
                Some(Err(e)) => images.failed(disk.clone(), e.into(), may_wait),
                None => images.silent.push(disk.clone()),
            }
        }
        images
    }

    /// A disk cannot be served now.
    fn failed(&mut self, disk: DiskPlan, unserved: Unserved, may_wait: bool) {
        if may_wait {
            self.waiting.push((disk, unserved));
        } else {
            self.errors.push(unserved.why);
        }
    }
}

/// Opens the images of all disks of a plan: files in order, so that of two disks on one image the first has it; those
/// of NBD servers several at a time, so that one that does not answer keeps few others waiting. Where files may wait,
/// there is nothing for those that do not answer.
fn open_all(plan: &ServePlan, may_wait: bool) -> Vec<Option<Result<Opened, ServiceError>>> {
    let open = |disk: &DiskPlan| disk::open(disk.clone(), plan.store.deduplicate);
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
    let looks = if may_wait { look(plan.disks.iter().map(|d| &d.image)) } else { Vec::new() };
    let is_silent = |n: usize| looks.get(n).is_some_and(|l| l.fault == Some(Fault::Silent));
    let opened = results.into_iter().map(|r| r.into_inner().unwrap_or_else(|p| p.into_inner()));
    let open_file = |n: usize| (!is_silent(n)).then(|| open(&plan.disks[n]));
    opened.enumerate().map(|(n, result)| result.or_else(|| open_file(n))).collect()
}
