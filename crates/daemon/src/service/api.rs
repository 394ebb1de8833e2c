//! The service as the control API sees it: what it says about itself and how it is changed.
//!
//! Owns the translation between plans, workers and the API's words. Invariant: a change that fails leaves everything as
//! it was, or says in its error what it could not take back.

use super::reload::log_reload;
use super::{Service, disk, pinning};
use std::sync::Arc;
use undercroft_api::hot_set::{HotSet, Warming};
use undercroft_api::ranges::RangeList;
use undercroft_api::record::Order;
use undercroft_api::{
    BlockStatus, DiskStatus, KsmStatus, MissesStatus, NodeChanged, NodeStatus, PinsStatus, ProfileTaken, RangesStatus,
    RangesTaken, RecordingStatus, ReloadReport, ShareEvent, SharesStatus, SsdStatus, Status, StoreStatus,
};
use undercroft_config::{ControlError, ControlErrorKind, DiskPlan, DiskSpec, Machine, NodeChange, ServePlan};
use undercroft_host::Passed;
use undercroft_http::{Caller, Daemon};
use undercroft_units::Size;

impl Daemon for Service {
    fn status(&self) -> Status {
        self.whole_status()
    }

    fn disk(&self, name: &str) -> Result<DiskStatus, ControlError> {
        if let Some(waiting) = self.waiting(name) {
            return self.waiting_status(&waiting);
        }
        self.status_of(&*self.find(name)?)
    }

    fn change_disk(&self, name: &str, change: NodeChange, by: &Caller) -> Result<DiskStatus, ControlError> {
        let of_lists = self.list_change(name, &change);
        let _change = self.change.lock();
        if self.waiting(name).is_none() {
            self.find(name)?;
        }
        let now = self.plan();
        let plan = now.with_change(name, &change)?;
        self.reach(&now, plan, name, &of_lists, by)?;
        self.disk(name)
    }

    fn shares(&self) -> SharesStatus {
        self.shares_status()
    }

    fn node(&self, name: &str) -> Result<NodeStatus, ControlError> {
        self.node_status(&self.plan().node_name(name)?)
    }

    fn share_events(&self, name: &str, within: Option<&str>) -> Result<Vec<ShareEvent>, ControlError> {
        self.events_of(name, within)
    }

    fn change_node(
        &self,
        name: &str,
        change: NodeChange,
        expected: Option<Vec<u64>>,
        by: &Caller,
    ) -> Result<NodeChanged, ControlError> {
        self.set_node(name, &change, expected, by)
    }

    fn ranges(&self, disk: &str) -> Result<RangesStatus, ControlError> {
        self.ranges_of(disk)
    }

    fn set_ranges(&self, list: RangeList, by: &Caller) -> Result<RangesTaken, ControlError> {
        let taken = self.take_ranges(&list)?;
        let RangesTaken { disk, container, ranges, bytes, previous_ranges, previous_bytes } = &taken;
        let (from, to) = (Size(*previous_bytes), Size(*bytes));
        let change = format!("{previous_ranges} ({from}) -> {ranges} ({to})");
        tracing::info!("changed by {by}: disk \"{disk}\": ranges of container \"{container}\": {change}");
        Ok(taken)
    }

    fn set_memory(&self, bytes: u64, by: &Caller) -> Result<StoreStatus, ControlError> {
        let before = self.watch.view().most_bytes;
        self.set_most(bytes)?;
        let (from, to) = (Size(before), Size(self.watch.view().most_bytes));
        tracing::info!("changed by {by}: the store may hold {from} -> {to}");
        Ok(Daemon::status(self).store)
    }

    fn manage_ksm(&self, manage: bool, unmerge: bool, by: &Caller) -> Result<KsmStatus, ControlError> {
        let _change = self.change.lock();
        let before = self.switch_ksm(manage, unmerge)?;
        tracing::info!("changed by {by}: ksm.manage: {before} -> {manage}{}", if unmerge { ", unmerged" } else { "" });
        Ok(self.ksm_status())
    }

    fn ssd(&self) -> Result<SsdStatus, ControlError> {
        self.wanted_ssd()
    }

    fn set_ssd(&self, in_service: bool, by: &Caller) -> Result<SsdStatus, ControlError> {
        let _change = self.change.lock();
        let status = self.switch_ssd(in_service)?;
        tracing::info!(
            "changed by {by}: the SSD store is {}",
            if in_service { "in service" } else { "out of service" }
        );
        Ok(status)
    }

    fn drop_ssd(&self, disk: Option<&str>, by: &Caller) -> Result<u64, ControlError> {
        let _change = self.change.lock();
        let dropped = self.drop_from_ssd(disk)?;
        tracing::info!(
            "asked by {by}: {} of {} dropped from the SSD store",
            Size(dropped),
            disk.unwrap_or("all disks")
        );
        Ok(dropped)
    }

    fn add_disk(&self, spec: DiskSpec, by: &Caller) -> Result<DiskStatus, ControlError> {
        let now = self.plan();
        let plan = now.with_disk(&spec, &Machine::here())?;
        // An image that does not answer keeps who asks for it, and nobody who wants to change something else.
        let mut opened = disk::open(added(&now, &plan)?.clone(), plan.store.deduplicate)?;
        let lists = pinning::check(&opened)?;
        let _change = self.change.lock();
        let before = self.plan();
        // What was changed meanwhile counts.
        let plan = if Arc::ptr_eq(&before, &now) { plan } else { before.with_disk(&spec, &Machine::here())? };
        opened.plan = added(&before, &plan)?.clone();
        let (name, location) = (opened.plan.name.clone(), opened.plan.image.location.clone());
        let served = self.attach(plan, opened, &lists)?;
        self.hurry_shares();
        tracing::info!("changed by {by}: disk \"{name}\" attached, image {location}");
        self.status_of(&served)
    }

    fn remove_disk(&self, name: &str, by: &Caller) -> Result<(), ControlError> {
        let _change = self.change.lock();
        if let Some(waiting) = self.waiting(name) {
            if waiting.has_left() {
                self.let_go_waiting(&waiting);
            } else {
                let plan = self.plan().without_disk(name)?;
                self.forget_waiting(|w| w == name);
                self.settle(plan);
            }
            self.left_files.forget(name);
            tracing::info!("changed by {by}: disk \"{name}\" detached, which waited");
            return Ok(());
        }
        let disk = self.find(name)?;
        tracing::info!("changed by {by}: disk \"{name}\" is to be detached");
        if self.detach(self.plan().without_disk(name)?, &disk) {
            return Ok(());
        }
        Err(ControlError::new(
            ControlErrorKind::Unavailable,
            format!("the image of disk \"{name}\" does not answer; the disk refuses requests and goes when it does"),
            "look at the storage below it",
        ))
    }

    fn drop_cache(&self, name: &str) -> Result<u64, ControlError> {
        let disk = self.find(name)?;
        let before = self.status_of(&disk)?.cache.cached_bytes;
        let id = disk.id();
        let dropped = disk.host().worker.call(move |w| w.core().drop_cache(id));
        dropped.map_err(|e| disk::silent(e, disk.worker_number()))?;
        Ok(before.saturating_sub(self.status_of(&disk)?.cache.cached_bytes))
    }

    fn hot_set(&self, name: &str) -> Result<HotSet, ControlError> {
        self.hot_set_of(name)
    }

    fn warm(&self, name: &str, set: HotSet, budget_bytes: Option<u64>, by: &Caller) -> Result<Warming, ControlError> {
        let warming = self.warm_disk(name, set, budget_bytes)?;
        tracing::info!("asked by {by}: disk \"{name}\" fetches {} that were hot elsewhere", Size(warming.wanted_bytes));
        Ok(warming)
    }

    fn pins(&self, name: &str) -> Result<PinsStatus, ControlError> {
        self.pins_of(name)
    }

    fn set_pins(
        &self,
        name: &str,
        list: HotSet,
        expected: Option<Vec<u64>>,
        by: &Caller,
    ) -> Result<PinsStatus, ControlError> {
        self.pin_disk(name, list, expected, by)
    }

    fn set_lock_profile(&self, name: &str, list: HotSet, by: &Caller) -> Result<ProfileTaken, ControlError> {
        self.set_profile(name, list, by)
    }

    fn block(&self, name: &str, byte: u64) -> Result<BlockStatus, ControlError> {
        self.block_of(name, byte)
    }

    fn misses(&self, node: &str) -> Result<MissesStatus, ControlError> {
        self.misses_of(node)
    }

    fn reload(&self, detach_most: bool, by: &Caller) -> Result<ReloadReport, ControlError> {
        let report = self.follow_file(detach_most)?;
        log_reload(&report, by);
        Ok(report)
    }

    fn record(&self, order: Order, passed: &Passed) -> Result<RecordingStatus, ControlError> {
        self.begin_recording(order, passed)
    }

    fn recordings(&self) -> Vec<RecordingStatus> {
        self.all_recordings()
    }

    fn recording(&self, id: u64) -> Result<RecordingStatus, ControlError> {
        self.one_recording(id)
    }

    fn end_recording(&self, id: u64) -> Result<RecordingStatus, ControlError> {
        self.stop_recording(id)
    }

    fn upgrade(&self, by: &Caller) -> ControlError {
        self.hand_over(by)
    }

    fn stop(&self, by: &Caller) {
        tracing::info!("asked to stop by {by}");
        self.request_stop();
    }
}

/// The disk of `plan` that is not in `before`.
fn added<'a>(before: &ServePlan, plan: &'a ServePlan) -> Result<&'a DiskPlan, ControlError> {
    let had = before.by_name();
    plan.disks.iter().find(|d| !had.contains_key(d.name.as_str())).ok_or_else(|| {
        ControlError::new(
            ControlErrorKind::Conflict,
            "there is a disk of that name already",
            "detach it first, or give this one another name",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::silent_tests::two_vms;
    use super::*;

    #[test]
    fn a_disk_may_have_a_name_that_another_has_within_its_vm() {
        let dir = tempfile::tempdir().unwrap();
        let service = Service::start(two_vms(dir.path())).unwrap();
        let image = dir.path().join("a.raw").display().to_string();
        let spec = DiskSpec { name: "a".into(), image, read_only: Some(true), ..DiskSpec::default() };
        let spec = DiskSpec { socket: Some(dir.path().join("other.sock")), ..spec };
        let attached = service.add_disk(spec.clone(), &Caller::Signal).unwrap();
        assert_eq!((attached.name.as_str(), attached.vm), ("a", None));
        let e = service.add_disk(spec, &Caller::Signal).unwrap_err();
        assert!(e.error.contains("there is a disk of that name already"), "{e}");
        service.shut_down();
    }
}
