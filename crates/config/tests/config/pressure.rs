//! What files say of the memory around the cache: pressure, KSM, scans.
//!
//! Owns tables of files. Never starts a daemon.

use crate::place::{GIB, MIB, Place};
use std::fs;
use std::time::Duration;

#[test]
fn floor_pressure_and_ksm_are_planned_with_their_defaults() {
    use undercroft_config::{Advisor, KsmPlan};
    let place = Place::new();
    let disk = "[[disk]]\nname = \"a\"\nimage = \"a.raw\"\n";
    let plan = place.good(&format!("[store]\nmemory = \"1GiB\"\n{disk}"));
    assert_eq!(plan.store.floor_bytes, 256 * MIB);
    assert!(plan.pressure.watch && plan.pressure.available_min_bytes.is_none());
    assert_eq!((plan.pressure.give_within, plan.pressure.calm), (Duration::from_secs(2), Duration::from_secs(30)));
    assert_eq!(plan.ksm, KsmPlan { run: true, ..KsmPlan::default() });
    assert!(plan.ksm.wanted().is_empty(), "nothing unless asked for");
    let plan = place.good(&format!(
        r#"
        [store]
        memory = "1GiB"
        floor = "1GiB"
        [pressure]
        watch = false
        stall = "50ms"
        available_min = "2GiB"
        give_within = "1s"
        calm = "60s"
        regrow = "10min"
        [ksm]
        manage = true
        sleep = "50ms"
        advisor = "scan-time"
        advisor_target_scan_time = "3min"
        advisor_max_cpu = 20
        smart_scan = true
        {disk}"#
    ));
    assert_eq!((plan.store.floor_bytes, plan.pressure.available_min_bytes), (GIB, Some(2 * GIB)));
    assert_eq!((plan.pressure.stall, plan.pressure.regrow), (Duration::from_millis(50), Duration::from_secs(600)));
    assert_eq!(plan.ksm.advisor, Some(Advisor::ScanTime));
    let wanted: Vec<String> = plan.ksm.wanted().iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(
        wanted.join(" "),
        "smart_scan=1 advisor_mode=scan-time advisor_target_scan_time=180 advisor_max_cpu=20 sleep_millisecs=50 run=1"
    );
}

#[test]
fn bad_values_of_pressure_and_ksm_are_all_named() {
    let place = Place::new();
    let said = place.bad(
        r#"
[store]
memory = "1GiB"
floor = "2GiB"
[pressure]
stall = "2s"
available_min = "7GiB"
calm = "0"
[ksm]
manage = "yes"
pages_to_scan = 10
sleep = "1500us"
advisor = "scan-tmie"
advisor_max_cpu = 101
advisor_min_pages_to_scan = 20
advisor_max_pages_to_scan = 10
[[disk]]
name = "a"
image = "a.raw"
"#,
    );
    for needle in [
        ":4: error: store: floor is 2GiB, but the memory of the store is 1GiB",
        ":6: error: pressure: stall must not be 2s; allowed is 1ms to 1s",
        ":7: error: pressure: available_min is 7GiB, more than half of the machine's memory; give at most 4GiB",
        ":8: error: pressure: calm must not be 0",
        ":10: error: ksm: \"manage\" must be true or false, not a text",
        ":12: error: ksm: sleep is 1500us, which is no multiple of 1ms",
        "did you mean \"scan-time\"?",
        "advisor_max_cpu must not be 101; allowed is 1 to 100",
        "advisor_min_pages_to_scan is 20, more than advisor_max_pages_to_scan, 10",
    ] {
        assert!(said.contains(needle), "{needle}\nis missing in\n{said}");
    }
    let said =
        place.bad("[ksm]\npages_to_scan = 10\nadvisor = \"scan-time\"\n[[disk]]\nname = \"a\"\nimage = \"a.raw\"\n");
    assert!(said.contains("pages_to_scan is set, but the advisor sets it"), "{said}");
}

#[test]
fn pressure_and_ksm_change_live() {
    let place = Place::new();
    let disk = "[[disk]]\nname = \"a\"\nimage = \"a.raw\"\n";
    let old = place.good(&format!("[store]\nmemory = \"1GiB\"\n{disk}"));
    assert!(!old.difference(&old).pressure && old.difference(&old).ksm.is_none());
    let new = place.good(&format!("[store]\nmemory = \"1GiB\"\nfloor = \"1MiB\"\n[ksm]\nmanage = true\n{disk}"));
    let change = old.difference(&new);
    assert!(change.pressure && change.needs_restart.is_empty(), "{change:?}");
    assert_eq!(change.ksm.as_ref(), Some(&new.ksm));
    let result = change.result.unwrap();
    assert_eq!((result.store.floor_bytes, &result.ksm), (MIB, &new.ksm));
}

#[test]
fn a_scan_is_off_until_asked_for_and_its_mistakes_are_named() {
    let place = Place::new();
    fs::write(place.at("a.raw"), vec![0u8; 4096]).unwrap();
    let disk = "[[vm]]\nname = \"web\"\npid_file = \"web.pid\"\n[[vm.disk]]\nname = \"a\"\nimage = \"a.raw\"\nformat = \
        \"raw\"\n";
    let plain = place.good("[[disk]]\nname = \"a\"\nimage = \"a.raw\"\nformat = \"raw\"\n").scan;
    assert!(!plain.enabled && plain.to_string() == "off");
    let scan =
        "[scan]\nenabled = true\ncpu = \"2.5%\"\nperiod_min = \"1s\"\nperiod_max = \"2min\"\nmemory = \"8MiB\"\n";
    let plan = place.good(&format!("{scan}{disk}"));
    assert_eq!(plan.scan.cpu, undercroft_units::Percent(250));
    assert_eq!((plan.scan.period_min.as_secs(), plan.scan.period_max.as_secs()), (1, 120));
    assert_eq!(plan.scan.pid_files, [("web".to_string(), place.at("web.pid"))]);
    assert!(!plan.scan.track_writes);

    let bad = place.bad(&format!(
        "[scan]\nenabled = true\ncpu = \"0%\"\nperiod_min = \"5ms\"\nperiod_max = \"2000min\"\nmemory = \
         \"4KiB\"\n{disk}"
    ));
    for needle in [
        ":3: error: scan: cpu: \"0%\" is not a percentage; write it like 5%",
        ":4: error: scan: period_min must not be 5ms; give 1s to 1440min",
        ":5: error: scan: period_max must not be 120000s",
        ":6: error: scan: memory is 4KiB, too little for an index; give at least 1MiB",
    ] {
        assert!(bad.contains(needle), "{needle}\nin:\n{bad}");
    }
    let bad = place.bad(&format!("[scan]\nenabled = true\nperiod_min = \"60s\"\nperiod_max = \"30s\"\n{disk}"));
    assert!(bad.contains("period_max is shorter than period_min, 60s"), "{bad}");
    let (_, warnings) = place.resolve(disk).accept().unwrap();
    assert!(warnings.iter().any(|w| w.error.contains("pid_file is for [scan], which is not enabled")), "{warnings:?}");
}
