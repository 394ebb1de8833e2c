//! The configuration read again, and what is said of changes: by a reload, by hand.
//!
//! Owns the order of a reload: what goes, what changes, what comes. Never decides what can change live: `config` does.
//! Invariant: every change is a line of the log.

use super::locks::Held;
use super::pinning::Lists;
use super::waiting::FirstTry;
use super::{Service, ServiceError};
use std::sync::Arc;
use std::time::{Duration, Instant};
use undercroft_api::ReloadReport;
use undercroft_config::{ControlError, ControlErrorKind, DiskPlan, KeyChange, PlanChange, ServePlan};
use undercroft_http::Caller;

/// How long the report waits for disks that come: a little more than connecting to an NBD server may take.
const OPEN_WAIT: Duration = Duration::from_secs(15);
/// How often the file is looked at anew because something else was changed meanwhile, before others have to wait.
const PLANS_MAX: u32 = 5;
/// Disks that an error names at most.
const NAMED_MAX: usize = 20;

/// What the file wants.
struct Planned {
    /// What is served now, without disks that wait.
    now: ServePlan,
    /// What is to be served.
    result: ServePlan,
    change: PlanChange,
    /// The lists that its disks name.
    lists: Lists,
}

impl Service {
    /// Reads the file again, and does what can be done live. New disks are opened at the same time, each by a thread of
    /// its own, while other changes go on: the report tells of those that opened in time.
    pub(super) fn follow_file(&self, detach_most: bool) -> Result<ReloadReport, ControlError> {
        let (held, planned) = self.planned_by_file()?;
        let Planned { now, result, change, lists } = planned;
        if change.result.is_none() {
            // Not a part of it holds: what is served, what waits and what was set by hand stay.
            return Ok(ReloadReport { needs_restart: change.needs_restart, ..ReloadReport::default() });
        }
        if !detach_most {
            check_detached(&change.removed, now.disks.len())?;
        }
        let mut report = ReloadReport { needs_restart: change.needs_restart.clone(), ..ReloadReport::default() };
        self.detach_removed(&change.removed, &mut report)?;
        // What tries have left behind of disks that wait goes, too; those disks begin anew, as all that wait do.
        self.all_waiting().iter().filter(|w| w.has_left()).for_each(|w| self.let_go_waiting(w));
        let wanted = result.beside_going(&self.plan());
        // Those that stay take their new shares, so that there is room for those that come.
        let reached = wanted.and_then(|wanted| Ok((self.apply(wanted.clone(), |_| false)?, wanted)));
        let (result, wanted) = match reached {
            Ok(reached) => reached,
            // Nothing else of the file is done: those that wait still do, and a reload tries all of it again.
            Err(e) => {
                report.failed.push(format!("the rest of the file: {e}"));
                return Ok(report);
            }
        };
        self.forget_waiting(|_| true);
        self.report_changes(&change, &wanted, &result, &mut report);
        self.follow_sections(&change, &result, &mut report);
        let (reread, unread) = self.reread_lists(&result, &lists);
        report.changed.extend(reread);
        report.failed.extend(unread);
        self.adopt(result);
        self.left_files.sort_out(&self.plan());
        self.hurry_shares();
        let coming: Vec<_> = change.added.iter().map(|disk| self.let_come(disk)).collect();
        drop(held);
        let end = Instant::now() + OPEN_WAIT;
        for disk in coming {
            match disk.first_try(end) {
                FirstTry::Served => report.added.push(disk.name().to_owned()),
                FirstTry::Failed(why) => {
                    report.failed.push(format!("{why}; the disk waits, and is tried again until it opens"));
                }
                FirstTry::NotYet => report.failed.push(format!(
                    "{}: its image is not open after {OPEN_WAIT:?}; the disk waits until it is",
                    disk.name()
                )),
                FirstTry::Unwanted => {
                    report.failed.push(format!("{}: not attached: it was taken away meanwhile", disk.name()));
                }
            }
        }
        Ok(report)
    }

    /// What the file changes, and the right to make changes. The file, its lists and images are looked at without that,
    /// because they may keep us; if something else was changed meanwhile, again.
    fn planned_by_file(&self) -> Result<(Held<'_, ()>, Planned), ControlError> {
        for _ in 0..PLANS_MAX {
            let (seen, planned) = (self.plan(), self.plan_of_file()?);
            let held = self.change.lock();
            let same =
                self.disks_not_waiting(&self.plan()).map(|d| &d.name).eq(planned.now.disks.iter().map(|d| &d.name));
            if same && Arc::ptr_eq(&seen, &self.plan()) {
                return Ok((held, planned));
            }
        }
        let held = self.change.lock();
        Ok((held, self.plan_of_file()?))
    }

    fn plan_of_file(&self) -> Result<Planned, ControlError> {
        let plan = self.plan();
        // Disks that wait begin anew: their image may be another one now.
        let mut now = ServePlan::clone(&plan);
        now.disks = self.disks_not_waiting(&plan).cloned().collect();
        let (result, change) = now.reread()?;
        let lists = Lists::of(&result.disks);
        Ok(Planned { now, result, change, lists })
    }

    fn disks_not_waiting<'a>(&self, plan: &'a ServePlan) -> impl Iterator<Item = &'a DiskPlan> {
        plan.disks.iter().filter(|d| self.waiting(&d.name).is_none())
    }

    fn detach_removed(&self, removed: &[String], report: &mut ReloadReport) -> Result<(), ControlError> {
        for name in removed {
            let disk = self.find(name)?;
            let without = self.plan().without_disk(name)?;
            if !self.detach(without, &disk) {
                report.failed.push(format!("{name}: its image does not answer; it goes when it does"));
            }
            report.removed.push(name.clone());
        }
        Ok(())
    }

    /// What has changed, and of which disks nothing has, because their workers could not be told: `reached` is what is
    /// served in place of what was `wanted`.
    fn report_changes(&self, change: &PlanChange, wanted: &ServePlan, reached: &ServePlan, report: &mut ReloadReport) {
        let disks = self.disks();
        let stays: Vec<_> = disks.iter().filter(|d| !reached.has_alike(wanted, &d.info().name)).collect();
        let done = |c: &&KeyChange| !stays.iter().any(|d| c.place == format!("disk \"{}\": ", d.info().name));
        report.changed = change.changed.iter().filter(done).map(ToString::to_string).collect();
        for disk in &stays {
            let silent = ServiceError::Silent { worker: disk.worker_number() };
            let name = &disk.info().name;
            report.failed.push(format!("{name}: {silent}. What the file changes of it is for the next reload"));
        }
    }

    /// What is not of disks.
    fn follow_sections(&self, change: &PlanChange, result: &ServePlan, report: &mut ReloadReport) {
        if self.renew_nbd_keys(&mut report.failed) {
            report.changed.push("[[nbd.listen]]: certificates read again".into());
        }
        if let Some(plan) = &change.ksm {
            let set = self.set_ksm(plan);
            report.failed.extend(set.err().map(|e| format!("[ksm]: {e}")));
        }
        if change.pressure {
            self.watch.set_plan(result.pressure.clone(), result.disks_floor_bytes());
        }
        // What was set by hand ends here, as it does for the disks.
        self.watch.set_most(result.disks_bytes());
        if let Some(level) = change.log_level {
            crate::logging::set_level(level);
        }
    }
}

/// Says what a change by hand changed: who, what, from what, to what.
pub(super) fn log_changes(from: &ServePlan, to: &ServePlan, by: &Caller) {
    let changes: Vec<String> = from.keys_changed(to).iter().map(ToString::to_string).collect();
    if !changes.is_empty() {
        tracing::info!("changed by {by}: {}", changes.join("; "));
    }
}

/// Says what a reload did, a line for each.
pub(super) fn log_reload(report: &ReloadReport, by: &Caller) {
    for (what, list) in [
        ("attached", &report.added),
        ("detached", &report.removed),
        ("changed", &report.changed),
        ("needs a restart", &report.needs_restart),
    ] {
        list.iter().for_each(|item| tracing::info!("reload: {what}: {item}"));
    }
    report.failed.iter().for_each(|item| tracing::error!("reload: failed: {item}"));
    tracing::info!("configuration reloaded, asked for by {by}");
}

/// Refuses a reload that would detach all of `served` disks, or most of them: a file that was emptied or cut short does
/// that.
fn check_detached(removed: &[String], served: usize) -> Result<(), ControlError> {
    if removed.is_empty() || removed.len() < served && removed.len() * 2 <= served {
        return Ok(());
    }
    let named: Vec<&str> = removed.iter().take(NAMED_MAX).map(String::as_str).collect();
    let more = match removed.len() - named.len() {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    Err(ControlError::new(
        ControlErrorKind::Conflict,
        format!(
            "the file no longer has {} of the {served} disks that are served: {}{more}; nothing was changed",
            removed.len(),
            named.join(", ")
        ),
        "put them back into the file, or run `undercroft reload --yes` to detach them",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_has_lost_most_disks_is_refused_by_name() {
        let names = |n: usize| (0..n).map(|i| format!("d{i}")).collect::<Vec<_>>();
        for (removed, served) in [(0, 0), (0, 4), (1, 2), (2, 4), (50, 100)] {
            assert!(check_detached(&names(removed), served).is_ok(), "{removed} of {served}");
        }
        for (removed, served) in [(1, 1), (2, 2), (2, 3), (51, 100), (100, 100)] {
            let e = check_detached(&names(removed), served).unwrap_err();
            assert_eq!(e.kind, ControlErrorKind::Conflict);
            assert!(e.error.contains("d0") && e.remedy.contains("--yes"), "{} of {served}: {}", removed, e.error);
        }
        assert!(check_detached(&names(100), 100).unwrap_err().error.contains("d19 and 80 more"));
    }
}
