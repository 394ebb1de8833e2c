//! Disks whose guest does not run here yet, or runs elsewhere now: their images are not open, so that another daemon
//! may have them, and are opened when their guest starts.
//!
//! Owns when the image of a served disk is opened and closed. Never touches a request. Invariants: from the moment in
//! which an image is closed to the one in which it is open again, nothing of the disk is cached or known; one thread at
//! a time opens or closes the image of a disk; requests that come meanwhile wait, and fail if the image cannot be had;
//! a guest goes on elsewhere only when its image is closed here, or cannot be within a time.
//!
//! Why and when: docs/decisions/0200.

use super::disk::{self, ServedDisk};
use super::warming::{Budget, begin_warming};
use super::{Service, lock};
use crate::worker::{GuestNews, NotExchanged};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use undercroft_api::DiskState;
use undercroft_api::hot_set::HotSet;
use undercroft_backend::{self as backend, Backend, Dormant, OpenError, OpenOptions};
use undercroft_config::{DiskPlan, ImageSpec};

/// How long a guest that starts waits for the image: whoever had it may have to close it first.
const OPEN_WAIT: Duration = Duration::from_secs(15);
/// How long a guest that goes on elsewhere waits until its image is closed; then it goes, and the log says so.
const CLOSE_WAIT: Duration = Duration::from_secs(15);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// How far a disk is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Its image is open.
    #[default]
    Open,
    /// It is closed, and nobody has asked for it.
    Away,
    /// A thread opens or closes it.
    Moving,
    /// It could not be opened; why.
    Refused(String),
}

#[derive(Default)]
struct State {
    stage: Stage,
    /// Whether the guest runs here, as far as is known: what `stage` is to follow.
    runs: bool,
    /// What is to be fetched when the image is open.
    warm: Option<(HotSet, Budget)>,
    /// Dropped when the guest may go on elsewhere.
    leaving: Option<Box<dyn Send>>,
}

/// Where the guest of a disk is.
#[derive(Default)]
pub(super) struct Residence(Mutex<State>);

impl Residence {
    /// That of a disk whose guest does not run here yet.
    pub(super) fn elsewhere() -> Self {
        Self(Mutex::new(State { stage: Stage::Away, ..State::default() }))
    }

    /// Whether the image is open.
    pub(super) fn is_open(&self) -> bool {
        lock(&self.0).stage == Stage::Open
    }

    /// What is shown of a disk whose image is not open.
    pub(super) fn shown(&self) -> Option<(DiskState, String)> {
        match &lock(&self.0).stage {
            Stage::Open => None,
            Stage::Away => {
                let why = "its guest does not run here, so its image is not open; it is opened when the guest starts";
                Some((DiskState::Dormant, why.to_owned()))
            }
            Stage::Moving => Some((DiskState::Dormant, "its image is being opened or closed".to_owned())),
            Stage::Refused(why) => Some((DiskState::Failed, why.clone())),
        }
    }

    /// Has this fetched when the image is open. Gives it back if that is so already.
    pub(super) fn warm_later(&self, set: HotSet, budget: Budget) -> Option<HotSet> {
        let mut state = lock(&self.0);
        if state.stage == Stage::Open {
            return Some(set);
        }
        state.warm = Some((set, budget));
        None
    }

    /// Notes what is heard of the guest. Whether it runs here, if somebody has to follow.
    fn note(&self, news: GuestNews) -> Option<bool> {
        let mut state = lock(&self.0);
        state.leaving = match news {
            GuestNews::Starts => None,
            GuestNews::Moves(until) => Some(until),
        };
        state.runs = state.leaving.is_none();
        let follows = match state.stage {
            Stage::Open => !state.runs,
            Stage::Away | Stage::Refused(_) => state.runs,
            Stage::Moving => return None,
        };
        if follows {
            state.stage = Stage::Moving;
            return Some(state.runs);
        }
        state.leaving = None;
        None
    }

    /// The guest may go on elsewhere.
    fn let_go(&self) {
        lock(&self.0).leaving = None;
    }

    /// A step has ended at `stage`. Whether there is another one to be done, since the guest came or went meanwhile.
    fn reached(&self, stage: Stage) -> bool {
        let mut state = lock(&self.0);
        let again = match stage {
            Stage::Open => !state.runs,
            Stage::Away => state.runs,
            Stage::Moving | Stage::Refused(_) => false,
        };
        state.stage = if again { Stage::Moving } else { stage };
        if !again {
            state.leaving = None;
        }
        again
    }

    fn runs(&self) -> bool {
        lock(&self.0).runs
    }
}

/// Opens what a disk needs to be there while its guest runs elsewhere: the size of its image.
pub(super) fn look(plan: &DiskPlan) -> Result<Box<dyn Backend>, OpenError> {
    let geometry = backend::probe(&plan.image, &OpenOptions::default())?;
    dormant(geometry, None, plan)
}

fn dormant(
    geometry: undercroft_cache::Geometry,
    refusal: Option<String>,
    plan: &DiskPlan,
) -> Result<Box<dyn Backend>, OpenError> {
    let failed = |source| OpenError::Io { image: plan.image.location.clone(), doing: "preparing to open it", source };
    Ok(Box::new(Dormant::new(geometry, refusal).map_err(failed)?))
}

/// Follows the guest of `disk` from now on.
pub(super) fn watch(service: &Weak<Service>, disk: &Arc<ServedDisk>) {
    let (service, its, id) = (service.clone(), Arc::downgrade(disk), disk.id());
    if !disk.residence().is_open() {
        // Nothing is fetched unasked while it is not open.
        let _ = disk.host().worker.wait_for(move |w| w.core().want_nothing(id));
    }
    disk.host().on_guest(move |news| {
        let Some(disk) = its.upgrade() else { return };
        let Some(runs) = disk.residence().note(news) else { return };
        let service = service.clone();
        let follow = {
            let disk = Arc::clone(&disk);
            move || follow(&service, &disk, runs)
        };
        if let Err(e) = std::thread::Builder::new().name("undercroft-move".into()).spawn(follow) {
            tracing::error!(
                disk = disk.info().name,
                "its image cannot be opened or closed: there can be no thread: {e}"
            );
            disk.residence().reached(if runs {
                Stage::Refused("there was no thread to open it".into())
            } else {
                Stage::Open
            });
        }
    });
}

/// Opens and closes the image until it is as the guest needs it, or the disk is gone.
fn follow(service: &Weak<Service>, disk: &Arc<ServedDisk>, mut runs: bool) {
    loop {
        let Some(plan) = service.upgrade().and_then(|s| s.plan().find(&disk.info().name).cloned()) else {
            return disk.residence().let_go();
        };
        let stage = if runs { open(service, disk, &plan) } else { close(disk, &plan) };
        let Some(stage) = stage else { return disk.residence().let_go() };
        let is_open = stage == Stage::Open;
        if !disk.residence().reached(stage) {
            if is_open {
                show_file(service, disk, &plan);
            }
            return;
        }
        runs = disk.residence().runs();
    }
}

/// Makes it a file and a block device again, if it is to be one: there is none while its image is not open.
fn show_file(service: &Weak<Service>, disk: &Arc<ServedDisk>, plan: &DiskPlan) {
    let Some(service) = service.upgrade() else { return };
    let access = service.plan().daemon.disk_access;
    if let Err(e) = disk.make_file(plan, access, &service.ways()) {
        tracing::error!("its guest is served, but it is no file: {e}");
    }
    if let Err(e) = disk.make_device(plan, &service.ways()) {
        tracing::error!("its guest is served, but it is no block device: {e}");
    }
}

/// Opens the image, which others may still have for a moment.
fn open(service: &Weak<Service>, disk: &Arc<ServedDisk>, plan: &DiskPlan) -> Option<Stage> {
    let name = &disk.info().name;
    let why = match open_within(&plan.image, Instant::now() + OPEN_WAIT) {
        Err(e) => e.to_string(),
        Ok(mut image) => match backend::differs(&disk.info().geometry, image.geometry()) {
            Some(why) => why,
            None => {
                let (base, files, what) = (image.take_base(), image.files(), image.describe());
                match put(disk, image) {
                    Ok(()) => {
                        disk.set_files(files);
                        tracing::info!(disk = name, backend = what, "its guest runs here: image opened");
                        if let Some(service) = service.upgrade() {
                            service.set_base_of(disk, plan, base);
                        }
                        let warm = lock(&disk.residence().0).warm.take();
                        warm.into_iter().for_each(|(set, budget)| begin_warming(disk, set, budget));
                        return Some(Stage::Open);
                    }
                    Err(NotPut::Gone) => return None,
                    Err(NotPut::Unwatched(e)) => format!("its descriptor cannot be watched: {e}"),
                }
            }
        },
    };
    let failed = "its guest has started here, but its image cannot be had";
    let why = format!("{failed}: {why}; requests fail until it starts anew");
    tracing::error!(disk = name, "{why}");
    let refusing = dormant(disk.info().geometry.clone(), Some(why.clone()), plan);
    match refusing.map(|refusing| put(disk, refusing)) {
        Ok(Err(NotPut::Gone)) => return None,
        Ok(Ok(())) => {}
        _ => tracing::error!(disk = name, "its requests wait: there is no descriptor for it"),
    }
    Some(Stage::Refused(why))
}

/// Opens an image, and waits until `give_up` for whoever has it.
fn open_within(image: &ImageSpec, give_up: Instant) -> Result<Box<dyn Backend>, OpenError> {
    loop {
        match backend::open(image, &OpenOptions::default()) {
            Err(OpenError::InUse { .. } | OpenError::InUseHere { .. }) if Instant::now() < give_up => {
                std::thread::sleep(PAUSE);
            }
            result => return result,
        }
    }
}

/// Why a back end did not take a disk over.
enum NotPut {
    /// The disk is gone.
    Gone,
    /// The kernel refuses.
    Unwatched(std::io::Error),
}

/// Puts `next` in the place of a back end that has nothing under way.
fn put(disk: &ServedDisk, mut next: Box<dyn Backend>) -> Result<(), NotPut> {
    let id = disk.id();
    loop {
        // What is not needed any more is closed here, and not on the worker.
        match disk.host().worker.wait_for(move |w| w.exchange(id, next)) {
            Ok(Ok(_last)) => return Ok(()),
            // What was refused is about to be answered.
            Ok(Err(NotExchanged::Busy(back))) => next = back,
            Ok(Err(NotExchanged::Unwatched(e))) => return Err(NotPut::Unwatched(e)),
            Ok(Err(NotExchanged::Gone(image))) => {
                drop(image);
                return Err(NotPut::Gone);
            }
            Err(_) => return Err(NotPut::Gone),
        }
        std::thread::sleep(PAUSE);
    }
}

/// Closes the image of a guest that has gone, once nothing is under way.
fn close(disk: &Arc<ServedDisk>, plan: &DiskPlan) -> Option<Stage> {
    let (name, id) = (&disk.info().name, disk.id());
    let worker = &disk.host().worker;
    let mut say_at = Instant::now() + CLOSE_WAIT;
    disk.end_file();
    disk.end_device();
    let _ = worker.wait_for(move |w| {
        w.shut_clients(id);
        // What is fetched unasked would keep it from coming to rest.
        w.core().want_nothing(id);
    });
    while !disk.residence().runs() {
        let why = match dormant(disk.info().geometry.clone(), None, plan) {
            Err(e) => e.to_string(),
            Ok(next) => {
                let exchanged = worker.wait_for(move |w| {
                    if !w.is_at_rest(id) {
                        return Err(NotExchanged::Busy(next));
                    }
                    let hot = w.core().hottest(id, undercroft_api::hot_set::RANGES_MAX);
                    Ok((w.exchange(id, next)?, hot))
                });
                match exchanged {
                    Ok(Ok((last, hot))) => {
                        let hot = HotSet::new(disk.info().geometry.size_bytes, hot);
                        lock(&disk.residence().0).warm = Some((hot, Budget::Room));
                        // They would keep the image locked.
                        drop(disk.take_files());
                        if !disk::close(last, name) {
                            tracing::error!(disk = name, "where its guest goes nobody knows of what it may have lost");
                        }
                        tracing::info!(disk = name, "its guest has gone: image closed, nothing of it is cached");
                        return Some(Stage::Away);
                    }
                    Ok(Err(NotExchanged::Busy(_))) => "operations are still under way".to_owned(),
                    Ok(Err(NotExchanged::Unwatched(e))) => e.to_string(),
                    Ok(Err(NotExchanged::Gone(_))) | Err(_) => return None,
                }
            }
        };
        if Instant::now() >= say_at {
            disk.residence().let_go();
            say_at += CLOSE_WAIT * 4;
            tracing::error!(
                disk = name,
                "its guest has gone, but its image cannot be closed, so that no other daemon can have it: {why}"
            );
        }
        std::thread::sleep(PAUSE);
    }
    // It has come back before anything was closed.
    let settings = plan.settings;
    let _ = worker.wait_for(move |w| w.core().set(id, &settings));
    Some(Stage::Open)
}

/// Has what waits for the image fail, if that is not open: the disk goes.
pub(super) fn give_up(disk: &ServedDisk) {
    if disk.residence().is_open() {
        return;
    }
    let (id, refusing) = (disk.id(), Dormant::new(disk.info().geometry.clone(), Some("the disk is detached".into())));
    if let Ok(refusing) = refusing {
        // Not waited for: a worker that is held up must not keep who detaches. One whose image is just being opened
        // gets that next.
        let _ = disk.host().worker.send(move |w| {
            if w.is_dormant(id) {
                drop(w.exchange(id, Box::new(refusing)));
            }
        });
    }
}
