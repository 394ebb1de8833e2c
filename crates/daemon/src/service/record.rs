//! Recordings of the daemon: one at a time, and the last one's end.
//!
//! Owns which disks an order means. Never notes a request.

use super::pools::Together;
use super::shown;
use super::{ServedDisk, Service, pinning};
use crate::record::{self, Ready, Reason, Recorder, Watched};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use undercroft_api::record::Order;
use undercroft_api::record::RecordingStatus;
use undercroft_config::images::{self, Identity};
use undercroft_config::{ControlError, ControlErrorKind, DiskPlan, ServePlan};
use undercroft_engine::ExclusiveMode;
use undercroft_engine::locking::LockSettings;
use undercroft_host::Passed;
use undercroft_trace::recording::{RecordedDisk, RecordedLocks};

/// How long an order to end waits for the file, and between two looks at it.
const STOP_WAITS: Duration = Duration::from_secs(2);
const STOP_LOOKS: Duration = Duration::from_millis(5);

/// The recording under way, or the last one; and the file of one that is to begin.
#[derive(Default)]
pub(super) struct Recordings {
    last: Option<Recorder>,
    opening: Option<PathBuf>,
}

/// The right to begin a recording; ends when dropped.
struct Opening<'a>(&'a Service);

impl<'a> Opening<'a> {
    fn begin(service: &'a Service, path: &Path) -> Result<Self, ControlError> {
        let mut recorder = service.recorder.lock();
        let Recordings { last, opening } = &mut *recorder;
        if let Some(running) = last.as_ref().filter(|r| r.is_running()) {
            let error = format!("recording {} is under way, into {}", running.id, running.order.path.display());
            let remedy = format!("wait until it ends, or end it with DELETE /v1/recordings/{}", running.id);
            return Err(ControlError::new(ControlErrorKind::Conflict, error, remedy));
        }
        if let Some(other) = opening {
            let error = format!("a recording is about to begin: its file {} is not open yet", other.display());
            let remedy = "wait until it is; if that lasts, look at the storage below it";
            return Err(ControlError::new(ControlErrorKind::Conflict, error, remedy));
        }
        *opening = Some(path.to_path_buf());
        Ok(Self(service))
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.recorder.lock().opening = None;
    }
}

/// How blocks of it come to be locked, for a replay.
fn locks(plan: &DiskPlan, disk: &ServedDisk) -> RecordedLocks {
    let LockSettings { mode, budget_permille, keep_held, miss_entries, victim_blocks } = plan.settings.locking;
    let (mode, [pins, profile]) = (mode.name().to_owned(), pinning::named(disk).unwrap_or_default());
    RecordedLocks { mode, budget_permille, keep_held, miss_entries, victim_blocks, pins, profile }
}

fn about(plan: &DiskPlan, disk: &ServedDisk, together: &Together) -> Watched {
    let exclusive = match plan.settings.exclusive {
        ExclusiveMode::Off => "off".to_string(),
        mode => format!("{mode}"),
    };
    let about = RecordedDisk {
        name: plan.name.clone(),
        vm: plan.vm.clone(),
        container: plan.container.clone(),
        size_bytes: disk.info().geometry.size_bytes,
        align_bytes: disk.info().geometry.align,
        policy: plan.policy.name().to_string(),
        share_bytes: plan.share_bytes,
        readahead_bytes: u64::from(plan.settings.readahead_bytes),
        write_allocate: plan.write_allocate,
        exclusive,
        shares_content: disk.group().is_some() || disk.layer().is_some(),
        together_with: together.with(&plan.name).first().map(|first| first.disk.info().name.clone()),
        locks: locks(plan, disk),
        ..RecordedDisk::default()
    };
    Watched { worker: disk.worker_number(), id: disk.id(), about }
}

impl Service {
    /// Begins a recording, into the file that `passed` has if the order says so. The file may be where nothing answers:
    /// that keeps who asked, and further recordings.
    pub(super) fn begin_recording(&self, order: Order, passed: &Passed) -> Result<RecordingStatus, ControlError> {
        let opening = Opening::begin(self, &order.path)?;
        let plan = self.plan();
        // Before there is a file, and once more when the disks stand still.
        check_names(&order, &self.watched(&plan))?;
        let would_be = |device, inode| {
            // An image may wait, or be another one at its path than the one served.
            let images = plan.disks.iter().map(|d| &d.image);
            let mut found = images::look(images.clone()).into_iter().zip(images);
            let using = found.find(|(look, _)| look.chain.contains(&Identity::File(device, inode)));
            using.map(|(_, image)| image.location.clone())
        };
        let mut passed = if order.descriptor { passed.take() } else { Vec::new() }.into_iter().map(File::from);
        let file = match passed.next() {
            Some(file) => record::passed(file, &order.path, order.force, would_be)?,
            None if order.descriptor => return Err(nothing_passed()),
            None => record::create(&order.path, order.force, would_be)?,
        };
        let ready = Ready::new(order, file, passed.next(), plan.disks_bytes())?;
        // Disks neither come nor go meanwhile.
        let _change = self.change.lock();
        if self.is_stopping() {
            let error = "the daemon is stopping";
            return Err(ControlError::new(ControlErrorKind::Unavailable, error, "wait until it runs again"));
        }
        let mut watched = self.watched(&self.plan());
        check_names(ready.order(), &watched)?;
        watched.retain(|w| record::wants(ready.order(), &w.about));
        let mut recorder = self.recorder.lock();
        let id = recorder.last.as_ref().map_or(1, |r| r.id + 1);
        let started = Recorder::start(id, ready, &self.workers, watched)?;
        tracing::info!("recording into {}", started.order.path.display());
        let status = shown::recording_status(&started, false);
        recorder.last = Some(started);
        drop(recorder);
        drop(opening);
        Ok(status)
    }

    fn watched(&self, plan: &ServePlan) -> Vec<Watched> {
        let disks = self.disks();
        let together = Together::new(plan, &disks);
        let planned = disks.iter().filter_map(|disk| Some((plan.find(&disk.info().name)?, disk)));
        planned.map(|(p, disk)| about(p, disk, &together)).collect()
    }

    /// A disk has come: it is recorded too, if it is wanted.
    pub(super) fn record_too(&self, plan: &DiskPlan, disk: &Arc<ServedDisk>) {
        if let Some(recorder) = self.recorder.lock().last.as_mut() {
            // Whom it will keep its blocks together with is not known yet.
            recorder.watch(&disk.host().worker, about(plan, disk, &Together::default()));
        }
    }

    /// The recording there is, or was last.
    pub(super) fn all_recordings(&self) -> Vec<RecordingStatus> {
        self.recorder.lock().last.iter().map(|r| shown::recording_status(r, false)).collect()
    }

    /// One recording; its lease is renewed.
    pub(super) fn one_recording(&self, id: u64) -> Result<RecordingStatus, ControlError> {
        let recorder = self.recorder.lock();
        let found = recorder.last.as_ref().filter(|r| r.id == id).map(|r| shown::recording_status(r, true));
        found.ok_or_else(|| ControlError::no_recording(id))
    }

    /// Ends a recording; returns when its file is whole, or says after a while that it is not.
    pub(super) fn stop_recording(&self, id: u64) -> Result<RecordingStatus, ControlError> {
        let since = Instant::now();
        loop {
            {
                let mut recorder = self.recorder.lock();
                let recorder =
                    recorder.last.as_mut().filter(|r| r.id == id).ok_or_else(|| ControlError::no_recording(id))?;
                recorder.ask_to_end(Reason::Stopped);
                if recorder.is_over() || since.elapsed() >= STOP_WAITS {
                    return Ok(shown::recording_status(recorder, true));
                }
            }
            // Without the lock: disks come and go meanwhile.
            std::thread::sleep(STOP_LOOKS);
        }
    }

    /// Ends what is under way, because the daemon stops; what cannot be written into the file soon is dropped.
    pub(super) fn end_recordings(&self) {
        if let Some(recorder) = self.recorder.lock().last.as_mut() {
            recorder.end(Reason::DaemonStopped);
        }
    }
}

fn nothing_passed() -> ControlError {
    ControlError::new(
        ControlErrorKind::Invalid,
        "no descriptor has come along with the request",
        "send the file's descriptor (SCM_RIGHTS) with the first byte of the request, or leave `descriptor` out and \
         name a path that the daemon may write to; if one was sent, a security module may keep the daemon from \
         taking it",
    )
}

/// Every name of an order has to mean something.
fn check_names(order: &Order, watched: &[Watched]) -> Result<(), ControlError> {
    for name in &order.disks {
        let one = Order { disks: vec![name.clone()], vms: Vec::new(), ..order.clone() };
        let mut found = watched.iter().filter(|w| record::wants(&one, &w.about)).map(|w| &w.about.name);
        match (found.next(), found.next()) {
            (None, _) => return Err(ControlError::no_disk(name, watched.iter().map(|w| w.about.name.as_str()))),
            (Some(a), Some(b)) if a != name && b != name => {
                let error = format!("several disks are called \"{name}\", {a} and {b} among them");
                return Err(ControlError::new(ControlErrorKind::Invalid, error, "give the full name: VM:DISK"));
            }
            _ => {}
        }
    }
    let vms = || watched.iter().filter_map(|w| w.about.vm.as_deref());
    match order.vms.iter().find(|vm| !vms().any(|known| known == vm.as_str())) {
        Some(vm) => Err(ControlError::no_vm(vm, vms())),
        None => Ok(()),
    }
}
