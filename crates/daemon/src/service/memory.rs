//! Memory around the cache: what the store gives back while the machine is short of it, and the kernel's merging of
//! pages.
//!
//! Owns the way from the watch over the machine's memory to the workers. Never decides how much the store may hold:
//! `pressure` does; nor what that is for each disk: `limits` does. Invariant: what is counted as given back is with the
//! kernel.

use super::{ServedDisk, Service, capacity_blocks, lock, write};
use crate::worker::WorkerHandle;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use undercroft_api::KsmStatus;
use undercroft_cache::PoolStats;
use undercroft_config::DiskPlan;
use undercroft_config::KsmPlan;
use undercroft_config::{ControlError, ControlErrorKind};
use undercroft_host::FRAME_BYTES;
use undercroft_hostmem::ksm::{Keeper, KsmError};
use undercroft_hostmem::pressure::{Holding, Store};
use undercroft_http::server::prepare_runtime_dir;
use undercroft_units::Size;

/// Pause between two steps of giving memory back, for the workers to serve in.
pub(super) const PAUSE: Duration = Duration::from_millis(4);
/// When nothing has gone for this long, what is left is under I/O; the ticks take it when that has ended.
const STUCK: Duration = Duration::from_secs(1);
/// Frames of a step at least: what takes a worker well below a millisecond.
const STEP_FRAMES_MIN: usize = 256;
/// Frames of a step at most, whatever was promised: what takes a worker some milliseconds.
pub(super) const STEP_FRAMES_MAX: usize = 16_384;

const FRAME: u64 = FRAME_BYTES as u64;

/// The kernel's merging of pages.
pub(super) struct KsmState {
    pub(super) keeper: Keeper,
    /// Why it is not managed although it is to be.
    pub(super) problem: Option<String>,
}

/// The disks of a service, for the watch; they go with the service.
pub(super) struct Disks(pub(super) Weak<Service>);

impl Store for Disks {
    fn holdings(&self) -> Vec<Holding> {
        self.0.upgrade().map(|s| s.holdings()).unwrap_or_default()
    }

    fn committed_bytes(&self) -> u64 {
        self.0.upgrade().map_or(0, |s| s.frames_bytes())
    }

    fn allow(&self) {
        // The watch is asked what: others tell the disks as well.
        if let Some(service) = self.0.upgrade() {
            service.limit_disks_anew();
        }
    }

    fn guests_may(&self, bytes: Option<u64>) {
        if let Some(service) = self.0.upgrade() {
            service.guests_may(bytes);
        }
    }

    fn give_back(&self, within: Duration) -> u64 {
        self.0.upgrade().map_or(0, |s| s.give_back(within))
    }

    fn unwatched(&self) {
        // A store that never gives memory back makes the kernel kill something, which may be a guest. As with a worker,
        // ending the process is the better failure.
        tracing::error!(
            "the watch over the machine's memory failed; the daemon ends so that a supervisor can start it"
        );
        crate::logging::flush();
        std::process::abort();
    }
}

/// What each of the disks that keep their blocks together pays for: an equal part, as the plan has it. Nothing if they
/// are gone.
fn charged_each(held: &PoolStats) -> Option<u64> {
    (held.disks > 0).then(|| held.charged_blocks.div_ceil(held.disks))
}

/// What a disk holds of its share when it has `cached` blocks: the share less the blocks that it could have and has
/// not.
pub(super) fn held_bytes(plan: &DiskPlan, cached_blocks: u64) -> u64 {
    let missing = u64::from(capacity_blocks(plan)).saturating_sub(cached_blocks);
    plan.share_bytes.saturating_sub(missing * FRAME)
}

impl Service {
    fn guests_may(&self, bytes: Option<u64>) {
        if self.guest_room.set(bytes) {
            for worker in self.workers.iter().filter(|w| !w.is_silent()) {
                let _ = worker.send(crate::worker::Worker::wake_ports);
            }
        }
    }

    fn holdings(&self) -> Vec<Holding> {
        let plan = self.plan();
        let by_name = plan.by_name();
        let holding = |disk: &Arc<ServedDisk>| {
            let p = by_name.get(disk.info().name.as_str())?;
            let id = disk.id();
            let held = disk.host().worker.call(move |w| w.core().pool_stats(id)).ok()?;
            Some(Holding { share_bytes: p.share_bytes, held_bytes: held_bytes(p, charged_each(&held)?) })
        };
        // One that is being detached is listed until its image is closed, when another may have its number already.
        self.disks().iter().filter(|d| !d.is_detaching()).filter_map(holding).collect()
    }

    fn frames_bytes(&self) -> u64 {
        let of = |w: &Arc<WorkerHandle>| w.frames_bytes().unwrap_or(0);
        self.workers.iter().map(of).sum()
    }

    /// Has the workers give back what is over, each in steps that take about `within` together: as large as it takes,
    /// by how long the last one took.
    fn give_back(&self, within: Duration) -> u64 {
        let before = self.frames_bytes();
        let begun = Instant::now();
        let step = |n: usize, frames: usize| self.workers[n].give_back(frames).unwrap_or(0);
        let mut left: Vec<usize> = (0..self.workers.len()).map(|n| step(n, 0)).collect();
        let (mut round, mut least, mut moved) = (PAUSE, left.iter().sum::<usize>(), begun);
        while left.iter().any(|l| *l > 0) && moved.elapsed() < STUCK && !*lock(&self.stop.0) {
            let started = Instant::now();
            let rest = within.saturating_sub(begun.elapsed()).max(round);
            let part = round.as_secs_f64() / rest.as_secs_f64();
            for n in (0..left.len()).filter(|n| left[*n] > 0).collect::<Vec<_>>() {
                let frames = (left[n] as f64 * part) as usize;
                left[n] = step(n, frames.clamp(STEP_FRAMES_MIN, STEP_FRAMES_MAX));
            }
            std::thread::sleep(PAUSE);
            round = started.elapsed();
            let now = left.iter().sum();
            if now < least {
                (least, moved) = (now, Instant::now());
            }
        }
        before.saturating_sub(self.frames_bytes())
    }

    /// Waits until what disks have been told to give is with the kernel: workers know nothing of each other's memory,
    /// so nobody is told before that he may have it.
    pub(super) fn release_given(&self) {
        if self.workers.len() > 1 {
            self.give_back(Duration::ZERO);
        }
    }

    /// Has each worker give back at most `frames` frames of what is over. Whether there is more.
    pub(super) fn give_back_some(&self, frames: usize) -> bool {
        self.workers.iter().map(|w| w.give_back(frames).unwrap_or(0)).sum::<usize>() > 0
    }

    pub(super) fn set_most(&self, bytes: u64) -> Result<(), ControlError> {
        let plan = self.plan();
        let aside = plan.ssd.memory_bytes;
        let (ceiling, floor) = (plan.store.memory_bytes, self.watch.view().floor_bytes + aside);
        let invalid = |error: String, remedy: String| Err(ControlError::new(ControlErrorKind::Invalid, error, remedy));
        if bytes > ceiling {
            return invalid(
                format!("memory {} is more than the ceiling of {}", Size(bytes), Size(ceiling)),
                "set store.memory in the configuration file and restart: the ceiling is fixed when the daemon starts"
                    .into(),
            );
        }
        if bytes < floor {
            return invalid(
                format!("memory {} is less than the floor of {}", Size(bytes), Size(floor)),
                "give at least the floor, or set store.floor in the configuration file and reload".into(),
            );
        }
        self.watch.set_most(bytes - aside);
        self.limit_disks();
        Ok(())
    }

    /// Puts back what an earlier daemon left when it was killed; then sets KSM up if the plan says so.
    pub(super) fn begin_ksm(&self) {
        if let Err(e) = self.ksm.lock().keeper.recover() {
            tracing::error!("{e}");
        }
        let plan = self.plan().ksm.clone();
        if plan.manage
            && let Err(e) = self.set_ksm(&plan)
        {
            tracing::error!("{e}");
        }
    }

    /// Makes the kernel's settings those of `plan`, or puts back what was found.
    pub(super) fn set_ksm(&self, plan: &KsmPlan) -> Result<(), KsmError> {
        if plan.manage {
            // What cannot be made shows when the file of what was found cannot be written.
            let _ = prepare_runtime_dir(&self.plan().daemon.runtime_dir);
        }
        let mut ksm = self.ksm.lock();
        let result = ksm.keeper.manage(plan);
        ksm.problem = result.as_ref().err().map(ToString::to_string);
        result
    }

    /// Has KSM managed from now on, or no longer; whether it was before.
    pub(super) fn switch_ksm(&self, manage: bool, unmerge: bool) -> Result<bool, ControlError> {
        let before = self.ksm.lock().keeper.manages();
        let plan = KsmPlan { manage, ..self.plan().ksm.clone() };
        let failed = |e: KsmError| {
            ControlError::new(ControlErrorKind::Failed, e.to_string(), "`undercroft ksm status` shows what there is")
        };
        if manage {
            self.set_ksm(&plan).map_err(failed)?;
        } else {
            let mut ksm = self.ksm.lock();
            if !before {
                let error = "KSM is not managed by this daemon, so there is nothing to put back";
                let remedy =
                    "`undercroft ksm status` shows what it is set to; change that in /sys/kernel/mm/ksm by hand";
                return Err(ControlError::new(ControlErrorKind::Conflict, error, remedy));
            }
            ksm.keeper.release(unmerge);
            ksm.problem = None;
        }
        Arc::make_mut(&mut write(&self.plan)).ksm = plan;
        Ok(before)
    }

    pub(super) fn ksm_status(&self) -> KsmStatus {
        let ksm = self.ksm.lock();
        let keeper = &ksm.keeper;
        let problems = ksm.problem.clone().into_iter().chain(keeper.refused().iter().cloned()).collect();
        KsmStatus {
            available: keeper.ksm().exists(),
            managed: keeper.manages(),
            problems,
            settings: keeper.ksm().settings(),
            numbers: keeper.ksm().numbers(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan_for_tests::plan_in;
    use super::*;

    #[test]
    fn disks_that_keep_their_blocks_together_pay_in_equal_parts() {
        assert_eq!(charged_each(&PoolStats { disks: 3, charged_blocks: 10, ..PoolStats::default() }), Some(4));
        assert_eq!(charged_each(&PoolStats::default()), None, "a disk that its worker has let go of");
    }

    #[test]
    fn a_disk_that_is_still_being_detached_holds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let service = Service::start(plan_in(dir.path(), &["a", "b"])).unwrap();
        assert_eq!(service.holdings().len(), 2);
        // What closing an image that takes its time looks like: its worker has let go of the disk, and it is listed.
        assert!(service.disks()[0].detach().is_none());
        assert_eq!((service.disks().len(), service.holdings().len()), (2, 1));
        service.shut_down();
    }
}
