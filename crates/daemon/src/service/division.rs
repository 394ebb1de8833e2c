//! What operators see of shares and change about them: the tree, its events, one node.
//!
//! Owns the way from the manager's numbers to the API's. Never moves anything: `shares` does.

use super::Service;
use super::shares::BelowDisk;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use undercroft_api::{NextStatus, NodeChanged, NodeSsdStatus, NodeStatus, ShareEvent, SharesStatus};
use undercroft_config::{ControlError, NodeChange, UNIT_BYTES, keys};
use undercroft_engine::Curve;
use undercroft_engine::control::{Event, Words};
use undercroft_engine::curve::Benefit;
use undercroft_engine::shares::{BLOCKS_MAX, NodeId};
use undercroft_http::Caller;
use undercroft_units::human_size;

impl Service {
    /// What every node of the tree has.
    pub(super) fn shares_status(&self) -> SharesStatus {
        let mut versions = self.versions.lock();
        let plan = self.plan();
        versions.observe(&plan);
        let mut manager = self.shares.lock();
        // What is set is shown at once, also before it is acted upon.
        let _ = manager.follow(&plan);
        let layout = &manager.layout;
        let tree = layout.tree();
        let settings = tree.divide(|_| BLOCKS_MAX);
        let disks: BTreeMap<NodeId, &str> = layout.disks().map(|(name, id)| (id, name)).collect();
        let mut names: BTreeMap<NodeId, &str> = layout.groups().map(|(name, id)| (id, name)).collect();
        names.extend(&disks);
        names.insert(tree.root(), keys::HOST);
        let name_of = |id: NodeId| names.get(&id).copied().unwrap_or_default().to_string();
        let mut nodes = Vec::new();
        let leaves: BTreeMap<String, u64> = plan.disks.iter().flat_map(|d| d.leaves()).map(|l| (l.1, l.2)).collect();
        // A fixed size goes nowhere, whatever was decided before it was set.
        let fixed: BTreeSet<&str> = plan.disks.iter().filter(|d| d.share_fixed).map(|d| d.name.as_str()).collect();
        for id in tree.below(tree.root()) {
            let Ok(node) = tree.node(id) else { continue };
            let below: Vec<&str> = tree.below(id).into_iter().filter_map(|n| disks.get(&n).copied()).collect();
            let share = |d: &str| leaves.get(d).copied().unwrap_or(0);
            let target = |d: &str| match manager.targets.get(d) {
                Some(units) if !fixed.contains(d) => units * UNIT_BYTES,
                _ => share(d),
            };
            let measured: Vec<_> = below.iter().filter_map(|d| manager.measured.get(*d)).collect();
            let name = name_of(id);
            let curve = disks.get(&id).and_then(|d| manager.measured.get(*d));
            let both: Vec<&BelowDisk> = below.iter().filter_map(|d| manager.below.of(d)).collect();
            let set = versions.of(&name);
            nodes.push(NodeStatus {
                level: node.level().to_string().to_lowercase(),
                parent: node.parent().map(name_of),
                weight: node.settings().weight,
                floor_bytes: node.settings().floor * UNIT_BYTES,
                ceiling_bytes: node.settings().ceiling.map(|c| c * UNIT_BYTES),
                controller: set.as_ref().and_then(|s| s.controller.clone()),
                goal: set.as_ref().and_then(|s| s.goal.clone()),
                policy: set.as_ref().and_then(|s| s.policy.clone()),
                store: set.as_ref().and_then(|s| s.store.clone()),
                hint: disks.get(&id).and_then(|d| plan.find(d)).map(|d| d.settings.hint.to_string()),
                set_floor_bytes: set.as_ref().map_or(0, |s| s.floor_bytes),
                version: set.map_or(0, |s| s.version),
                entitled_bytes: settings.get(id).share * UNIT_BYTES,
                share_bytes: below.iter().map(|d| share(d)).sum(),
                target_bytes: below.iter().map(|d| target(d)).sum(),
                requests: measured.iter().map(|m| m.seen.requests).sum(),
                misses: measured.iter().map(|m| m.seen.misses).sum(),
                read_ahead_hits: measured.iter().map(|m| m.seen.read_ahead_hits).sum(),
                working_set_bytes: measured.iter().map(|m| m.working_set_bytes).sum(),
                curve: curve.map_or(Vec::new(), |m| in_bytes(&m.curve)),
                curve_of_policy: curve.is_some_and(|m| m.of_policy),
                next_ram: next(both.iter().map(|d| (d.next_ram, d.seconds))),
                next_ssd: next(both.iter().filter(|d| d.is_below()).map(|d| (d.next_below, d.seconds))),
                ssd: ssd_status(&both, disks.contains_key(&id)),
                name,
            });
        }
        SharesStatus {
            controller: plan.shares.controller.name().to_string(),
            interval_seconds: plan.shares.interval.as_secs_f64(),
            intervals: manager.ends.count(),
            moving: manager.moving,
            problem: manager.problem.clone(),
            nodes,
        }
    }

    /// One of them, by its full name.
    pub(super) fn node_status(&self, name: &str) -> Result<NodeStatus, ControlError> {
        let found = self.shares_status().nodes.into_iter().find(|n| n.name == name);
        found.ok_or_else(|| ControlError::no_node(name, []))
    }

    /// What moved to, from and within a node, oldest first; of all nodes for `host`. With `within`, only of what was
    /// divided in that VM.
    pub(super) fn events_of(&self, name: &str, within: Option<&str>) -> Result<Vec<ShareEvent>, ControlError> {
        let plan = self.plan();
        let manager = self.shares.lock();
        let full = plan.find(name).map_or(name, |d| d.name.as_str());
        let ram = |e| told(e, manager.ends.ago(e.interval), false);
        let below = || manager.below.events(full, within).into_iter().map(|(e, ago)| told(e, ago, true));
        let events = manager.governor.events();
        if name == keys::HOST {
            return Ok(in_order(events.since(0).map(ram).chain(below()).collect()));
        }
        let layout = &manager.layout;
        let Some(id) = layout.find(name).or_else(|| layout.disk(full)) else {
            let known = layout.groups().chain(layout.disks()).map(|(name, _)| name);
            return Err(ControlError::no_node(name, known));
        };
        let tree = layout.tree();
        let inside = within.map(|vm| layout.find(vm).map_or(Vec::new(), |vm| tree.below(vm)));
        let of_it = |e: &&Event| inside.as_ref().is_none_or(|nodes| nodes.contains(&e.node.node));
        Ok(in_order(events.about(id).filter(of_it).map(ram).chain(below()).collect()))
    }

    /// Changes what is set for a node, if it is of one of the versions that are expected.
    pub(super) fn set_node(
        &self,
        name: &str,
        change: &NodeChange,
        expected: Option<Vec<u64>>,
        by: &Caller,
    ) -> Result<NodeChanged, ControlError> {
        let of_lists = self.list_change(name, change);
        // Nobody else changes, attaches or reloads until this is done, and the answer is of what was done here.
        let _change = self.change.lock();
        let now = self.plan();
        let name = now.node_name(name)?;
        let previous = {
            let mut versions = self.versions.lock();
            versions.observe(&now);
            versions.of(&name).unwrap_or_default()
        };
        if let Some(expected) = expected.filter(|e| !e.contains(&previous.version)) {
            return Err(ControlError::stale(&name, &expected, previous));
        }
        self.reach(&now, now.with_node(&name, change)?, &name, &of_lists, by)?;
        Ok(NodeChanged { node: self.node_status(&name)?, previous })
    }
}

/// An event, as operators see it; `ssd` if it is of the SSD store.
fn told(e: &Event, ago: Option<Duration>, ssd: bool) -> ShareEvent {
    let Words { decided, seen, expected } = e.words(&|units| human_size(units * UNIT_BYTES));
    let promised = expected.as_ref().map_or(String::new(), |e| format!("; expected: {e}"));
    let store = if ssd { "SSD store: " } else { "" };
    ShareEvent {
        sequence: e.sequence,
        interval: e.interval,
        ssd,
        node: e.node.name.to_string(),
        from: e.from.as_ref().map(|p| p.name.to_string()),
        to: e.to.as_ref().map(|p| p.name.to_string()),
        bytes: e.blocks * UNIT_BYTES,
        seconds_ago: ago.map(|t| t.as_secs()),
        text: format!("{store}{decided}: {seen}{promised}"),
        decided,
        seen,
        expected,
    }
}

/// The oldest first; those of which nobody knows any more when they were are older than others.
fn in_order(mut events: Vec<ShareEvent>) -> Vec<ShareEvent> {
    events.sort_by_key(|e| Reverse(e.seconds_ago.unwrap_or(u64::MAX)));
    events
}

/// What a tenth more for each of these disks would bring together.
fn next(disks: impl Iterator<Item = ((u64, Benefit), f64)>) -> Option<NextStatus> {
    let mut sum = NextStatus::default();
    for ((blocks, benefit), seconds) in disks.filter(|((blocks, _), _)| *blocks > 0) {
        sum.bytes += blocks * UNIT_BYTES;
        sum.ram_hits_per_second += benefit.ram_hits / seconds;
        sum.image_reads_saved_per_second += benefit.image_reads / seconds;
        let ms = benefit.saved_us.map(|us| us / 1e3 / seconds);
        sum.saved_ms_per_second = sum.saved_ms_per_second.map_or(ms, |before| Some(before + ms.unwrap_or(0.0)));
    }
    (sum.bytes > 0).then_some(sum)
}

/// What disks have of the SSD store; nothing if none of them uses it.
fn ssd_status(disks: &[&BelowDisk], is_disk: bool) -> Option<NodeSsdStatus> {
    let mut sum = NodeSsdStatus::default();
    let own: Vec<_> = disks.iter().filter(|d| d.is_below()).collect();
    for disk in &own {
        let (hits, misses) = disk.hits_and_misses();
        sum.share_bytes += disk.share.unwrap_or(0) * UNIT_BYTES;
        sum.target_bytes += disk.target * UNIT_BYTES;
        sum.cached_bytes += disk.cached() * UNIT_BYTES;
        sum.hits += hits;
        sum.misses += misses;
    }
    let curve = own.first().filter(|_| is_disk).and_then(|d| d.both.as_ref());
    sum.curve = curve.map_or(Vec::new(), in_bytes);
    (!own.is_empty()).then_some(sum)
}

fn in_bytes(curve: &Curve) -> Vec<(u64, f64)> {
    curve.points().iter().map(|&(units, misses)| (units * UNIT_BYTES, misses)).collect()
}
