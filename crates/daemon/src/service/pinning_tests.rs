//! Lists of blocks that are locked, of a service that serves small disks which nobody reads.
//!
//! Owns the files that it names. Never looks at what a cache does with them: the tests of the core do.

use super::Service;
use super::silent_tests::{two_vms, write_file};
use std::path::Path;
use std::sync::Arc;
use undercroft_api::hot_set::HotSet;
use undercroft_api::ranges::{RangeBody, RangeList, RangeListBody};
use undercroft_config::{ControlErrorKind, Machine, NodeChange, Overrides, Written, keys};
use undercroft_http::{Caller, Daemon};

const MIB: u64 = 1 << 20;

fn set(key: &'static str, text: &str) -> NodeChange {
    NodeChange::default().with(key, Written::parse(keys::settable(key).unwrap(), text).unwrap())
}

fn list(ranges: &[(u64, u64)]) -> HotSet {
    HotSet { size_bytes: MIB, ranges: ranges.to_vec() }
}

fn text(size_bytes: u64, ranges: &str) -> String {
    format!(r#"{{"size_bytes": {size_bytes}, "ranges": {ranges}}}"#)
}

/// A service whose disk `one:a` is locked by the profile `hot` of its folder, where a list of another disk is, too.
fn locked_by_profile(dir: &Path) -> Arc<Service> {
    let service = Service::start(two_vms(dir)).unwrap();
    std::fs::write(dir.join("hot"), text(MIB, "[[5, 1]]")).unwrap();
    std::fs::write(dir.join("other"), text(4096, "[[0, 1]]")).unwrap();
    let hot = Written::Text(dir.join("hot").display().to_string());
    let change = set("lock", "static").with("lock_profile", hot);
    service.change_node("one:a", change, None, &Caller::Signal).unwrap();
    service
}

#[test]
fn what_is_pinned_by_hand_is_taken_as_a_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(two_vms(dir.path())).unwrap();
    let by = Caller::Signal;
    let pins = service.set_pins("one:a", list(&[(3, 1), (0, 2)]), None, &by).unwrap();
    assert_eq!((&pins.ranges[..], pins.pinned_bytes), (&[(0, 2), (3, 1)][..], 3 << 12));
    assert_eq!((pins.origin.as_deref(), service.pins("two:b").unwrap().origin), (Some("hand"), None));
    let other = HotSet { size_bytes: 2 * MIB, ranges: vec![(0, 1)] };
    let e = service.set_pins("one:a", other, None, &by).unwrap_err();
    assert_eq!(e.kind, ControlErrorKind::Invalid);
    assert!(e.error.contains("of a disk of 2097152 bytes, and disk \"one:a\" has 1048576"), "{e}");
    service.change_node("one:a", set("lock_budget", "0.1%"), None, &by).unwrap();
    let e = service.set_pins("one:a", list(&[(0, 100)]), None, &by).unwrap_err();
    assert_eq!(e.kind, ControlErrorKind::Conflict);
    assert!(e.error.contains("come to 400KiB") && e.remedy.contains("set one:a --size"), "{e}");
    assert_eq!(service.pins("one:a").unwrap().ranges, pins.ranges);
    assert!(service.block("one:a", 3 << 12).unwrap().pinned_by.is_some());
    assert!(service.block("one:a", 2 << 12).unwrap().pinned_by.is_none());
    let e = service.block("one:a", MIB).unwrap_err();
    assert!(e.error.contains("ends after 1048576 bytes"), "{e}");
    let e = service.set_lock_profile("one:a", list(&[(0, 1)]), &by).unwrap_err();
    assert_eq!(e.kind, ControlErrorKind::Conflict);
    assert_eq!(service.set_pins("one:a", list(&[]), None, &by).unwrap().ranges, []);
    assert!(service.misses("one").unwrap().blocks.is_empty() && service.misses("nobody").is_err());
    service.shut_down();
}

#[test]
fn a_change_that_fails_leaves_the_lists_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let (by, at) = (Caller::Signal, |name: &str| Written::Text(dir.path().join(name).display().to_string()));
    let service = locked_by_profile(dir.path());
    let is_named = || service.block("one:a", 5 << 12).unwrap().named_by_profile;
    assert!(is_named());
    service.set_pins("one:a", list(&[(7, 1)]), None, &by).unwrap();
    // The mode has changed by the time that the other file is found to be of another disk.
    let fails = set("lock", "online").with("lock_profile", Written::Nothing).with("pins", at("other"));
    let e = service.change_node("one:a", fails, None, &by).unwrap_err();
    assert!(e.error.contains("is of a disk of 4096 bytes"), "{e}");
    assert!(is_named(), "the profile is in force again");
    let now = service.pins("one:a").unwrap();
    assert_eq!((&now.ranges[..], now.origin.as_deref(), now.problem), (&[(7, 1)][..], Some("hand"), None));
    let locks = service.disk("one:a").unwrap().locks;
    assert_eq!((locks.mode.as_str(), locks.problem), ("static", None));
    // One that is of use takes the place of what was set by hand, and leaves nothing when it goes.
    service.change_node("one:a", set("pins", "none").with("pins", at("hot")), None, &by).unwrap();
    assert_eq!(service.pins("one:a").unwrap().ranges, [(5, 1)]);
    service.change_node("one:a", set("pins", "none"), None, &by).unwrap();
    assert_eq!(service.pins("one:a").unwrap().ranges, []);
    service.shut_down();
}

#[test]
fn a_reload_reads_the_lists_again() {
    let dir = tempfile::tempdir().unwrap();
    let hot = dir.path().join("hot");
    std::fs::write(&hot, text(MIB, "[[5, 1]]")).unwrap();
    let file = write_file(dir.path(), "pins=\"hot\"", "");
    let plan = undercroft_config::load(&file, &Machine::here(), &Overrides::default()).unwrap().accept().unwrap().0;
    let service = Service::start(plan).unwrap();
    let by = Caller::Signal;
    let pins = || service.pins("one:a").unwrap();
    assert_eq!((pins().ranges, pins().file), (vec![(5, 1)], Some(hot.display().to_string())));
    let unchanged = service.reload(false, &by).unwrap();
    assert!(unchanged.changed.is_empty() && unchanged.failed.is_empty(), "{unchanged:?}");
    service.set_pins("one:a", list(&[(7, 1)]), None, &by).unwrap();
    service.set_pins("two:b", list(&[(8, 1)]), None, &by).unwrap();
    assert_eq!(service.reload(false, &by).unwrap().changed, ["disk \"one:a\": pins read again"]);
    assert_eq!((pins().ranges, pins().origin.as_deref()), (vec![(5, 1)], Some("file")));
    assert_eq!(service.pins("two:b").unwrap().ranges, [(8, 1)], "the file says nothing of it");
    std::fs::write(&hot, "hello").unwrap();
    let failed = service.reload(false, &by).unwrap().failed;
    assert!(failed.len() == 1 && failed[0].contains("the pins stay as they are"), "{failed:?}");
    assert!(pins().ranges == [(5, 1)] && pins().problem.is_some_and(|why| why.contains("holds no list of blocks")));
    std::fs::write(&hot, text(MIB, "[[5, 1]]")).unwrap();
    service.reload(false, &by).unwrap();
    assert_eq!(pins().problem, None);
    service.shut_down();
}

#[test]
fn pins_that_were_past_the_budget_are_tried_again_when_the_share_has_grown() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("hot"), text(MIB, "[[5, 40]]")).unwrap();
    let file = write_file(dir.path(), "pins=\"hot\"\nsize=\"4MiB\"\nlock_budget=\"1%\"", "");
    let plan = undercroft_config::load(&file, &Machine::here(), &Overrides::default()).unwrap().accept().unwrap().0;
    let service = Service::start(plan).unwrap();
    let pins = || service.pins("one:a").unwrap();
    service.retry_pins();
    assert!(pins().ranges.is_empty() && pins().problem.is_some_and(|why| why.contains("come to 160KiB")));
    service.change_node("one:a", set("size", "32MiB"), None, &Caller::Signal).unwrap();
    assert!(pins().ranges.is_empty(), "a share that has grown reads no file");
    // A share grows in steps.
    for _ in 0..500 {
        service.retry_pins();
        if pins().problem.is_none() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!((pins().ranges, pins().problem), (vec![(5, 40)], None));
    assert_eq!(pins().origin.as_deref(), Some("file"));
    service.shut_down();
}

/// What was set by hand is again as it was, whatever of a change fails, and who had set it.
#[test]
fn a_change_that_fails_gives_lists_by_hand_back() {
    let dir = tempfile::tempdir().unwrap();
    let (by, at) = (Caller::Signal, |name: &str| Written::Text(dir.path().join(name).display().to_string()));
    let service = locked_by_profile(dir.path());
    service.set_lock_profile("one:a", list(&[(9, 1)]), &by).unwrap();
    service.set_pins("one:a", list(&[(7, 1)]), None, &by).unwrap();
    let is_as_it_was = |named: u64, what: &str| {
        let pins = service.pins("one:a").unwrap();
        let by_hand = (&[(7, 1)][..], Some("hand"), None);
        assert_eq!((&pins.ranges[..], pins.origin.as_deref(), pins.problem), by_hand, "{what}");
        let by_profile: Vec<u64> =
            (0..256).filter(|n| service.block("one:a", n << 12).unwrap().named_by_profile).collect();
        assert_eq!(by_profile, [named], "{what}");
    };
    is_as_it_was(9, "before");
    service.change_node("one:a", NodeChange::default().with("pins", at("other")), None, &by).unwrap_err();
    is_as_it_was(9, "the profile is that by hand, not that of its file");
    // Without a file: the mode has forgotten the profile before the pins are found to be of another disk.
    service.change_node("one:a", set("lock_profile", "none"), None, &by).unwrap();
    service.set_lock_profile("one:a", list(&[(4, 1)]), &by).unwrap();
    let fails = set("lock", "online").with("pins", at("other"));
    service.change_node("one:a", fails, None, &by).unwrap_err();
    is_as_it_was(4, "the profile is in force again");
    // A file that may be used has taken the place of the pins before something else fails.
    let now = service.plan();
    let change = NodeChange::default().with("pins", at("hot"));
    let of_lists = service.list_change("one:a", &change);
    let wanted = now.with_node("one:a", &change).unwrap();
    let kept = service.keep_lists(&now, &wanted, "one:a", &of_lists).unwrap().unwrap();
    service.follow_lists(&now, &wanted, "one:a", &of_lists).unwrap();
    assert_eq!(service.pins("one:a").unwrap().origin.as_deref(), Some("file"));
    kept.give_back();
    is_as_it_was(4, "the pins by hand are");
    service.shut_down();
}

#[test]
fn a_file_that_is_set_again_is_read_again_and_takes_the_place_of_what_was_set_by_hand() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(two_vms(dir.path())).unwrap();
    let (by, hot) = (Caller::Signal, dir.path().join("hot"));
    let change = || NodeChange::default().with("pins", Written::Text(hot.display().to_string()));
    std::fs::write(&hot, text(MIB, "[[5, 1]]")).unwrap();
    service.change_node("one:a", change(), None, &by).unwrap();
    service.set_pins("one:a", list(&[(7, 1)]), None, &by).unwrap();
    service.change_node("one:a", change(), None, &by).unwrap();
    let pins = service.pins("one:a").unwrap();
    assert_eq!((&pins.ranges[..], pins.origin.as_deref()), (&[(5, 1)][..], Some("file")));
    std::fs::write(&hot, text(MIB, "[[6, 1]]")).unwrap();
    service.change_node("one:a", change(), None, &by).unwrap();
    assert_eq!(service.pins("one:a").unwrap().ranges, [(6, 1)]);
    service.shut_down();
}

#[test]
fn pins_that_others_have_changed_are_not_overwritten_by_who_names_their_version() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(two_vms(dir.path())).unwrap();
    let by = Caller::Signal;
    let seen = service.pins("one:a").unwrap().version;
    let first = service.set_pins("one:a", list(&[(7, 1)]), Some(vec![seen]), &by).unwrap();
    assert_ne!(first.version, seen);
    assert_eq!(service.pins("one:a").unwrap().version, first.version);
    let e = service.set_pins("one:a", list(&[(8, 1)]), Some(vec![seen]), &by).unwrap_err();
    assert_eq!(e.kind, ControlErrorKind::Stale);
    assert!(e.error.contains("has changed meanwhile") && e.remedy.contains("try again"), "{e}");
    assert_eq!(service.pins("one:a").unwrap().ranges, [(7, 1)]);
    service.set_pins("one:a", list(&[(8, 1)]), Some(vec![1, first.version]), &by).unwrap();
    service.shut_down();
}

#[test]
fn what_may_fit_later_is_tried_again_also_after_nobody_has_answered_but_not_in_place_of_pins_by_hand() {
    use super::pinning::Pinning;
    let e = |kind| undercroft_config::ControlError::new(kind, "why", "what to do");
    let pinning = Pinning::default();
    pinning.pins_failed(&e(ControlErrorKind::Conflict));
    pinning.pins_failed(&e(ControlErrorKind::Unavailable));
    assert!(pinning.is_to_be_retried(), "a worker that was silent once");
    pinning.pins_failed(&e(ControlErrorKind::Invalid));
    assert!(!pinning.is_to_be_retried());
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("hot"), text(MIB, "[[5, 40]]")).unwrap();
    let file = write_file(dir.path(), "pins=\"hot\"\nsize=\"4MiB\"\nlock_budget=\"1%\"", "");
    let plan = undercroft_config::load(&file, &Machine::here(), &Overrides::default()).unwrap().accept().unwrap().0;
    let service = Service::start(plan).unwrap();
    let by = Caller::Signal;
    service.set_pins("one:a", list(&[(7, 1)]), None, &by).unwrap();
    assert_eq!(service.reload(false, &by).unwrap().failed.len(), 1);
    service.change_node("one:a", set("size", "32MiB"), None, &by).unwrap();
    service.retry_pins();
    let pins = service.pins("one:a").unwrap();
    assert_eq!((&pins.ranges[..], pins.origin.as_deref()), (&[(7, 1)][..], Some("hand")));
    service.shut_down();
}

/// One that another process had pinned by hand, under a budget that was set by hand there.
#[test]
fn pins_that_are_taken_over_may_be_past_the_budget() {
    use undercroft_cache::ByteRange;
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(two_vms(dir.path())).unwrap();
    service.change_node("one:a", set("lock_budget", "0.1%"), None, &Caller::Signal).unwrap();
    let plan = service.plan();
    let (disk, own) = (service.disks().remove(0), plan.find("one:a").unwrap());
    let ranges = |blocks: u64| Some(vec![ByteRange { offset: 0, bytes: blocks << 12 }]);
    super::pinning::take_over(&disk, own, ranges(100), ranges(3));
    let pins = service.pins("one:a").unwrap();
    assert_eq!((&pins.ranges[..], pins.origin.as_deref()), (&[(0, 100)][..], Some("hand")));
    assert!(pins.pinned_bytes > pins.budget_bytes, "{pins:?}");
    assert!(!disk.pinning().is_profile_by_hand(), "a profile is for one mode");
    service.shut_down();
}

#[test]
fn a_disk_that_waits_tells_what_is_set_of_its_locks() {
    let dir = tempfile::tempdir().unwrap();
    let plan = two_vms(dir.path());
    let told = |plan: &undercroft_config::DiskPlan| super::shown::waiting_disk(plan, "why".into()).locks;
    assert_eq!(told(&plan.disks[0]).mode, "off");
}

/// Blocks of a disk that a container has by ranges, as a node of the tree, and as a part of its container.
#[test]
fn of_a_container_only_its_own_blocks_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(two_vms(dir.path())).unwrap();
    let ranges = vec![RangeBody { offset_bytes: 0, length_bytes: 8192 }];
    let shop = RangeListBody { disk: "one:a".into(), container: "shop".into(), ranges };
    service.set_ranges(RangeList::new(shop).unwrap(), &Caller::Signal).unwrap();
    for node in ["one:a[shop]", "one/shop", "one:a", "one"] {
        let misses = service.misses(node).unwrap();
        assert_eq!((misses.blocks.len(), misses.miss_table), (0, 20), "{node}");
    }
    assert!(service.misses("one:a[shap]").is_err());
    service.shut_down();
}
