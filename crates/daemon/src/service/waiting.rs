//! Disks that cannot be served, because of their image, memory or socket: they wait and are tried again, while the
//! others are served. Those that a reload brings begin here, too, so that opening them keeps nobody.
//!
//! Owns the list of them and the pace of trying. Never serves: a disk that opens becomes one of the service's.
//! Invariants: a disk waits or is served: both for the moment in which it goes from one list to the other, so that who
//! looks at this list first finds it in one of them; its share stays its own meanwhile; it has neither a socket nor an
//! export, so that a guest sees no disk rather than one that fails. What a try has left on a worker has that share:
//! until it is gone there is no other try.

use super::disk::{Going, Unserved};
use super::shown;
use super::{ServedDisk, Service, disk, lock, pinning, write};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use undercroft_api::DiskStatus;
use undercroft_config::DiskPlan;
use undercroft_config::{ControlError, ControlErrorKind};

/// Pause before the second try.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What is said of a disk that could not be served the first time.
const WAITS: &str = "the disk waits, and is tried again until it opens";

/// How the trying goes.
#[derive(Debug)]
struct Trying {
    why: String,
    tries: u32,
    next: Instant,
    /// Whether the last try has left something on a worker that does not go.
    left: bool,
    /// Bytes that this has, once nobody wants the disk any more.
    goes: Option<u64>,
    /// Nobody wants it any more.
    over: bool,
    served: bool,
}

impl Trying {
    fn begin() -> Self {
        Self { why: String::new(), tries: 0, next: Instant::now(), left: false, goes: None, over: false, served: false }
    }
}

/// What came of the first try.
pub(super) enum FirstTry {
    /// It is served.
    Served,
    /// Why not; it is tried again.
    Failed(String),
    /// It lasts longer than whoever asks would wait.
    NotYet,
    /// Nobody wants the disk any more.
    Unwanted,
}

/// A disk that waits.
#[derive(Debug)]
pub(super) struct WaitingDisk {
    name: String,
    trying: Mutex<Trying>,
    changed: Condvar,
}

impl WaitingDisk {
    /// Why it waits and when it is tried again, in words.
    fn reason(&self) -> String {
        let trying = lock(&self.trying);
        if trying.tries == 0 {
            return "its image is being opened".to_owned();
        }
        if trying.left {
            let until = "what the last try opened is closed, for which its image has to answer";
            return format!("{} (it is tried again when {until})", trying.why);
        }
        let seconds = trying.next.saturating_duration_since(Instant::now()).as_secs_f64().ceil();
        let times = if trying.tries == 1 { "once".to_string() } else { format!("{} times", trying.tries) };
        format!("{} (tried {times}, again in {seconds} s)", trying.why)
    }

    /// Notes that it did not work. Whether that is news.
    fn failed(&self, why: String) -> bool {
        let mut trying = lock(&self.trying);
        trying.tries = trying.tries.saturating_add(1);
        trying.next = Instant::now() + pause(trying.tries);
        let news = trying.why != why;
        trying.why = why;
        self.changed.notify_all();
        news
    }

    /// Whether a try has left something on a worker that has the disk's share.
    pub(super) fn has_left(&self) -> bool {
        lock(&self.trying).left
    }

    /// Notes that this has so many bytes, and that nobody wants the disk.
    pub(super) fn leaves(&self, bytes: u64) {
        lock(&self.trying).goes = Some(bytes);
    }

    /// Notes that this is gone. What it had, if nobody wants the disk any more.
    pub(super) fn nothing_left(&self) -> Option<u64> {
        let mut trying = lock(&self.trying);
        trying.left = false;
        trying.goes.take()
    }

    /// Says why it is not served, and `what` comes of that; only if it is news.
    fn said(&self, why: &str, what: &str) {
        if self.failed(why.to_owned()) {
            tracing::error!(disk = self.name, "{why}; {what}");
        } else {
            tracing::debug!(disk = self.name, "{why}; it waits still");
        }
    }

    /// Its name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// What came of the first try, if that is known by `end`.
    pub(super) fn first_try(&self, end: Instant) -> FirstTry {
        let mut trying = lock(&self.trying);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match &*trying {
                t if t.served => return FirstTry::Served,
                t if t.tries > 0 => return FirstTry::Failed(t.why.clone()),
                t if t.over => return FirstTry::Unwanted,
                _ if left.is_zero() => return FirstTry::NotYet,
                _ => trying = self.changed.wait_timeout(trying, left).unwrap_or_else(|p| p.into_inner()).0,
            }
        }
    }

    /// It waits no longer.
    fn done(&self, served: bool) {
        let mut trying = lock(&self.trying);
        trying.served = served;
        trying.over = true;
        self.changed.notify_all();
    }

    /// Waits until it is to be tried again. False if it is not to be.
    fn is_due(&self) -> bool {
        let mut trying = lock(&self.trying);
        loop {
            let left = trying.next.saturating_duration_since(Instant::now());
            if trying.over || left.is_zero() {
                return !trying.over;
            }
            trying = self.changed.wait_timeout(trying, left).unwrap_or_else(|p| p.into_inner()).0;
        }
    }

    fn end(&self) {
        lock(&self.trying).over = true;
        self.changed.notify_all();
    }
}

/// The pause after the `tries`th failure.
fn pause(tries: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << tries.saturating_sub(1).min(10)).min(LONGEST_PAUSE)
}

impl Service {
    /// Lets a disk of the plan wait, because of what came of a try, and tries it again from time to time.
    pub(super) fn let_wait(&self, plan: &DiskPlan, unserved: Unserved) -> Arc<WaitingDisk> {
        let Unserved { why, left } = unserved;
        tracing::error!(disk = plan.name, "{why}; {WAITS}");
        let next = Instant::now() + FIRST_PAUSE;
        let trying = Trying { why: why.to_string(), tries: 1, next, left: left.is_some(), ..Trying::begin() };
        self.begin_trying(plan, trying, left)
    }

    /// Opens and serves a disk of the plan, without keeping anybody; if that fails, it waits.
    pub(super) fn let_come(&self, plan: &DiskPlan) -> Arc<WaitingDisk> {
        self.begin_trying(plan, Trying::begin(), None)
    }

    fn begin_trying(&self, plan: &DiskPlan, trying: Trying, mut left: Option<Going>) -> Arc<WaitingDisk> {
        let waiting =
            Arc::new(WaitingDisk { name: plan.name.clone(), trying: Mutex::new(trying), changed: Condvar::new() });
        self.waiting.lock().push(waiting.clone());
        let (service, its) = (self.me.clone(), waiting.clone());
        let thread = std::thread::Builder::new().name("undercroft-open".into()).spawn(move || {
            loop {
                if let Some(going) = left.take() {
                    going.wait();
                    let Some(service) = service.upgrade() else { return };
                    service.left_is_gone(&its);
                }
                if !its.is_due() {
                    return;
                }
                let Some(service) = service.upgrade() else { return };
                let first = lock(&its.trying).tries == 0;
                match service.try_again(&its) {
                    Ok(served) => return its.done(served),
                    Err(unserved) => {
                        left = unserved.left;
                        its.said(&unserved.why.to_string(), if first { WAITS } else { "it waits" });
                    }
                }
            }
        });
        if let Err(e) = thread {
            waiting.failed(format!("there can be no thread to open it: {e}"));
            tracing::error!(
                disk = plan.name,
                "it is not tried again: there can be no thread for it: {e}; reload to try"
            );
        }
        waiting
    }

    /// Opens and serves a disk that waits. False if nobody wants it any more.
    fn try_again(&self, waiting: &Arc<WaitingDisk>) -> Result<bool, Unserved> {
        let deduplicate = self.plan().store.deduplicate;
        let Some(plan) = self.plan().find(&waiting.name).cloned() else { return Ok(false) };
        // This may take long, and others may want to change disks meanwhile.
        let lists = pinning::Lists::of([&plan]);
        let mut opened = disk::open(plan, deduplicate)?;
        let _change = self.change.lock();
        let now = self.plan();
        let Some(plan) = now.find(&waiting.name).filter(|_| !lock(&waiting.trying).over) else { return Ok(false) };
        if self.is_stopping() {
            return Ok(false);
        }
        opened.plan = plan.clone();
        let served = self.serve_opened(opened, &now).inspect_err(|unserved| {
            lock(&waiting.trying).left = unserved.left.is_some();
        })?;
        // In the order of the plan, whichever opens first.
        let place = now.disks.iter().position(|d| d.name == waiting.name);
        let mut disks = write(&self.disks);
        let at = disks.partition_point(|d| now.disks.iter().position(|p| p.name == d.info().name) < place);
        disks.insert(at, served.clone());
        drop(disks);
        // Not before: who looks meanwhile would find it nowhere.
        self.waiting.lock().retain(|w| !Arc::ptr_eq(w, waiting));
        self.join_pools(&now);
        pinning::begin(&served, plan, &lists);
        self.adopt(now);
        if lock(&waiting.trying).tries > 0 {
            tracing::info!(disk = waiting.name, "it waits no longer");
        }
        Ok(true)
    }

    /// Puts an opened disk on a worker, with its part of `plan`, and lets guests reach it.
    pub(super) fn serve_opened(
        &self,
        opened: disk::Opened,
        plan: &undercroft_config::ServePlan,
    ) -> Result<Arc<ServedDisk>, Unserved> {
        let own = opened.plan.clone();
        let served = self.put_on_worker(opened)?;
        // Before its first request can come.
        self.record_too(&own, &served);
        match served.listen(&own, plan.daemon.disk_access, &self.ways()) {
            Ok(()) => Ok(served),
            Err(why) => Err(Unserved { why, left: served.detach() }),
        }
    }

    /// The disk of that name that waits, if one does.
    pub(super) fn waiting(&self, name: &str) -> Option<Arc<WaitingDisk>> {
        self.waiting.lock().iter().find(|w| w.name == name).cloned()
    }

    /// Disks that wait no longer, because nobody wants them or all begin anew: all for which `which` says so.
    pub(super) fn forget_waiting(&self, which: impl Fn(&str) -> bool) {
        self.waiting.lock().retain(|w| {
            let goes = which(&w.name);
            if goes {
                w.end();
            }
            !goes
        });
    }

    /// How a disk that waits is.
    pub(super) fn waiting_status(&self, waiting: &WaitingDisk) -> Result<DiskStatus, ControlError> {
        let plan = self.plan();
        let p = plan.find(&waiting.name).ok_or_else(|| ControlError::no_disk(&waiting.name, std::iter::empty()))?;
        Ok(shown::waiting_disk(p, waiting.reason()))
    }

    /// Every disk that waits.
    pub(super) fn all_waiting(&self) -> Vec<Arc<WaitingDisk>> {
        self.waiting.lock().clone()
    }

    /// Why nothing can be done with a disk that waits.
    pub(super) fn waits(&self, waiting: &WaitingDisk) -> ControlError {
        ControlError::new(
            ControlErrorKind::Unavailable,
            format!("disk \"{}\" waits: {}", waiting.name, waiting.reason()),
            "make its image available, or detach the disk",
        )
    }

    /// In words, for the service manager: how many disks are served, and how many wait.
    pub fn summary(&self) -> String {
        let (served, waiting) = (self.disks().len(), self.waiting.lock().len());
        let disks = if served == 1 { "disk" } else { "disks" };
        match waiting {
            0 => format!("serving {served} {disks}"),
            n => format!("serving {served} {disks}, {n} waiting for their images"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::silent_tests::two_vms;
    use super::*;
    use undercroft_api::DiskState;

    /// Whoever looked at the moment when a disk went from one list to the other found it in neither: a monitor that
    /// raises an alarm for a disk that is gone.
    #[test]
    fn a_disk_that_comes_is_in_every_status() {
        for _ in 0..5 {
            let dir = tempfile::tempdir().unwrap();
            let plan = two_vms(dir.path());
            let service = Service::start(plan.without_disk("two:b").unwrap()).unwrap();
            let change = service.change.lock();
            service.adopt(plan.clone());
            service.let_come(plan.find("two:b").unwrap());
            drop(change);
            loop {
                let status = service.whole_status();
                let names: Vec<_> = status.disks.iter().map(|d| d.name.as_str()).collect();
                assert_eq!(names, ["one:a", "two:b"]);
                if status.disks[1].state == DiskState::Serving {
                    break;
                }
            }
        }
    }

    #[test]
    fn pauses_grow_to_a_minute() {
        let seconds: Vec<u64> = (1..10).map(|n| pause(n).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
    }
}
