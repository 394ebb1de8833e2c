//! `lock` and the keys beside it, in files and by hand.
//!
//! Owns nothing. Invariant: whatever is refused is refused with what to do.

use crate::place::{Place, set, two_disks};
use std::fs;
use undercroft_config::{ControlErrorKind, DiskPlan};
use undercroft_engine::locking::{LockMode, LockSettings};

/// A file of one disk with these keys.
fn disk(more: &str) -> String {
    format!("[store]\nmemory=\"1GiB\"\n[[disk]]\nname=\"d\"\nimage=\"a.raw\"\n{more}\n")
}

fn pins_in(place: &Place, name: &str) -> String {
    fs::write(place.at(name), r#"{"size_bytes": 4096, "ranges": [[0, 1]]}"#).unwrap();
    place.at(name).display().to_string()
}

fn locks(plan: &DiskPlan) -> LockSettings {
    plan.settings.locking
}

#[test]
fn what_is_said_is_planned_and_what_is_not_has_its_default() {
    let place = Place::new();
    let d = place.good(&disk("")).disks[0].clone();
    let default = LockSettings {
        mode: LockMode::Off,
        budget_permille: 250,
        keep_held: false,
        miss_entries: 20,
        victim_blocks: 0,
    };
    assert_eq!((locks(&d), &d.pins, &d.lock_profile), (default, &None, &None));
    pins_in(&place, "hot");
    let d = place.good(&disk(
        "lock=\"static\"\nlock_budget=\"12.5%\"\nlock_held=true\nmiss_table=0\nvictim_buffer=4096\npins=\"hot\"\n\
         lock_profile=\"hot\"",
    ));
    let d = &d.disks[0];
    let said = LockSettings {
        mode: LockMode::Static,
        budget_permille: 125,
        keep_held: true,
        miss_entries: 0,
        victim_blocks: 4096,
    };
    assert_eq!(locks(d), said);
    let hot = Some(place.at("hot"));
    assert_eq!((&d.pins, &d.lock_profile), (&hot, &hot), "paths are those beside the file");
    for (text, permille) in [("\"0.1%\"", 1), ("\"90%\"", 900), ("30", 300)] {
        let plan = place.good(&disk(&format!("lock_budget={text}")));
        assert_eq!(locks(&plan.disks[0]).budget_permille, permille, "{text}");
    }
}

#[test]
fn every_mistake_is_named_with_its_line_and_remedy() {
    let place = Place::new();
    pins_in(&place, "hot");
    fs::write(place.at("text"), "hello").unwrap();
    for (more, says) in [
        ("lock=\"onlin\"", "lock: unknown mode \"onlin\"; did you mean \"online\"? known are off, static, online"),
        ("lock_budget=\"0.09%\"", "lock_budget must not be 0.09%; give 0.1% to 90%"),
        ("lock_budget=\"91%\"", "lock_budget must not be 91%; give 0.1% to 90%"),
        ("lock_budget=\"much\"", "lock_budget: \"much\" is not a percentage"),
        ("lock_held=\"yes\"", "\"lock_held\" must be true or false"),
        ("miss_table=4097", "miss_table must not be 4097; allowed is 0 to 4096"),
        ("victim_buffer=4097", "victim_buffer must not be 4097; allowed is 0 to 4096"),
        ("lock_budgt=\"5%\"", "did you mean \"lock_budget\"?"),
        ("pins=\"gone\"", "gone cannot be read"),
        ("pins=\"text\"", "text holds no list of blocks"),
        ("lock_profile=\"hot\"", "a lock_profile, which is for lock = \"static\" alone; set lock = \"static\" as well"),
        ("lock=\"online\"\nlock_profile=\"hot\"", "take lock_profile away"),
        ("lock=\"static\"\nlock_profile=\"gone\"", "lock_profile: the list of blocks"),
    ] {
        let said = place.bad(&disk(more));
        let line = 5 + more.lines().count();
        assert!(said.contains(says), "{more}: {said}");
        assert!(said.contains(&format!(":{line}: error: ")), "{more}: {said}");
        assert_eq!(said.lines().count(), 1, "{more}: {said}");
    }
}

/// Storage that is not there yet keeps no disk from being served: its pins are missed, and that is told.
#[test]
fn a_list_that_cannot_be_read_keeps_nobody_from_being_served() {
    let place = Place::new();
    let resolved = place.resolve(&disk("pins=\"gone\""));
    assert!(resolved.clone().accept().is_err());
    let (plan, problems) = resolved.accept_waiting().unwrap();
    assert_eq!((plan.disks[0].pins.clone(), problems.len()), (Some(place.at("gone")), 1));
}

#[test]
fn locks_change_by_hand_and_the_file_has_the_last_word() {
    let place = Place::new();
    let plan = place.good(two_disks());
    let pins = pins_in(&place, "hot");
    let mut live = plan.clone();
    for (key, text) in [
        ("lock", "static"),
        ("lock_budget", "50%"),
        ("lock_held", "true"),
        ("miss_table", "100"),
        ("victim_buffer", "8"),
        ("pins", pins.as_str()),
        ("lock_profile", pins.as_str()),
    ] {
        live = live.with_node("d", &set(key, text)).unwrap();
        assert_eq!(live.settings()["d"].keys[key], text, "{key} is shown as it is written");
    }
    let said = LockSettings {
        mode: LockMode::Static,
        budget_permille: 500,
        keep_held: true,
        miss_entries: 100,
        victim_blocks: 8,
    };
    assert_eq!(locks(&live.disks[0]), said);
    assert_eq!(locks(&live.disks[1]), locks(&plan.disks[1]), "the other disk is as it was");
    assert!(!live.disks[0].has_locks_of(&plan.disks[0]) && live.disks[1].has_locks_of(&plan.disks[1]));
    let back = live.difference(&plan);
    assert_eq!((back.changed.len(), back.needs_restart.len()), (7, 0), "{back:?}");
    assert_eq!(back.result.unwrap(), plan);
    let none = live.with_change("d", &set("pins", "none")).unwrap();
    assert_eq!(none.disks[0].pins, None);
}

#[test]
fn a_profile_and_a_mode_that_do_not_go_together_are_refused_by_hand() {
    let place = Place::new();
    let plan = place.good(two_disks());
    let pins = pins_in(&place, "hot");
    let e = plan.with_node("d", &set("lock_profile", &pins)).unwrap_err();
    assert_eq!(e.kind, ControlErrorKind::Conflict);
    assert!(e.to_string().contains("disk \"d\"") && e.to_string().contains("lock = \"static\""), "{e}");
    let both = set("lock", "static").with(
        "lock_profile",
        undercroft_config::Written::parse(undercroft_config::keys::settable("lock_profile").unwrap(), &pins).unwrap(),
    );
    let plan = plan.with_node("d", &both).unwrap();
    assert!(plan.with_node("d", &set("lock", "online")).unwrap_err().error.contains("lock_profile"));
    let plan = plan.with_node("d", &set("lock_profile", "none")).unwrap();
    assert!(plan.with_node("d", &set("lock", "online")).is_ok());
    for (key, text, says) in [
        ("lock", "of", "did you mean \"off\"?"),
        ("lock_budget", "95%", "give 0.1% to 90%"),
        ("miss_table", "5000", "allowed is 0 to 4096"),
        ("pins", "relative", "is a relative path"),
        ("pins", "/nowhere/hot", "cannot be read"),
    ] {
        let e = plan.with_node("d", &set(key, text)).unwrap_err().to_string();
        assert!(e.contains(says), "{key} {text}: {e}");
    }
    let e = plan.with_node("host", &set("lock", "off")).unwrap_err().to_string();
    assert!(e.contains("the host has no"), "{e}");
}
