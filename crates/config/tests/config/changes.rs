//! Plans that change while they run: shares and policies of the tree, disks that come and go, a file that is read
//! again.
//!
//! Owns changes and what they come to. Never starts a daemon.

use crate::place::{GIB, MIB, Place, set, set_bytes, spec, two_disks};
use proptest::prelude::*;
use std::fs;
use undercroft_config::keys::PAST_CONTAINERS_MAX;
use undercroft_config::{self as config, DiskSpec, Layout, LogLevel, Machine, Overrides, PlanChange, ServePlan};
use undercroft_config::{BaseDeduplication, NodeChange, PartPlan, Written};

#[test]
fn vms_and_containers_divide_before_their_disks() {
    let place = Place::new();
    let file = |more: &str| {
        format!(
            "[store]\nmemory=\"1GiB\"\n[[vm]]\nname=\"web\"\nweight=300\n{more}\
             [[vm.container]]\nname=\"shop\"\nweight=25\n\
             [[vm.disk]]\nname=\"a\"\nimage=\"a.raw\"\ncontainer=\"shop\"\n\
             [[vm.disk]]\nname=\"b\"\nimage=\"b.raw\"\nweight=75\n\
             [[vm]]\nname=\"db\"\n[[vm.disk]]\nname=\"c\"\nimage=\"c.raw\"\n"
        )
    };
    let shares = |plan: &ServePlan| plan.disks.iter().map(|d| d.share_bytes / MIB).collect::<Vec<_>>();
    let plan = place.good(&file(""));
    assert_eq!(shares(&plan), [192, 576, 256], "768MiB for the first VM, 25:75 within it");
    assert_eq!(shares(&place.good(&file("ceiling=\"512MiB\"\n"))), [128, 384, 512]);

    // A change by hand keeps what others have of their entitlement; what is free goes to who lacks most of his.
    let change = |weight: u64| NodeChange::default().with("weight", Written::Number(weight));
    let less = plan.with_node("web", &change(100)).unwrap();
    assert_eq!(shares(&less).iter().sum::<u64>(), 1024);
    assert!(less.disks[2].share_bytes >= 256 * MIB && less.disks[1].share_bytes >= 384 * MIB, "{:?}", shares(&less));
    for (node, change, needle) in [
        ("web", set_bytes("floor", 2 * GIB), "too little for floors"),
        ("web/shop", set_bytes("ceiling", MIB), "below its floor of 4MiB"),
        ("web", set_bytes("ceiling", MIB), "\"web\": its ceiling of 1MiB"),
        ("wbe", change(7), "did you mean \"web\"?"),
        ("host", change(7), "the host has no weight"),
    ] {
        let e = plan.with_node(node, &change).unwrap_err().to_string();
        assert!(e.contains(needle), "{needle}: {e}");
        assert!(!e.contains(&format!("\"{node}\": \"{node}\"")), "{e}");
    }
    for (text, needle) in [
        (file("floor=\"64MiB\"\nceiling=\"32MiB\"\n"), "its ceiling of 32MiB is below its floor of 64MiB"),
        (file("controller=\"magic\"\n"), "unknown controller \"magic\""),
        (file("weight_=1\n"), "unknown key \"weight_\""),
        ("[shares]\ninterval=\"1ms\"".to_string(), "interval must not be 1ms"),
        ("[[disk]]\nname=\"d\"\nimage=\"a.raw\"\ncontainer=\"x\"".to_string(), "it belongs to no VM"),
    ] {
        assert!(place.bad(&text).contains(needle), "{needle}: {}", place.bad(&text));
    }
}

/// The nearest policy counts: a disk's own, its container's, its VM's; and so does what is set live, until the file is
/// read again.
#[test]
fn policies_are_inherited_and_change_live() {
    let place = Place::new();
    let text = "[store]\nmemory=\"1GiB\"\n[[vm]]\nname=\"web\"\npolicy=\"lru\"\n\
         [[vm.container]]\nname=\"shop\"\npolicy=\"arc\"\n\
         [[vm.disk]]\nname=\"a\"\nimage=\"a.raw\"\ncontainer=\"shop\"\n\
         [[vm.disk]]\nname=\"b\"\nimage=\"b.raw\"\n\
         [[vm.disk]]\nname=\"c\"\nimage=\"c.raw\"\npolicy=\"fifo\"\n";
    let plan = place.good(text);
    let policies = |plan: &ServePlan| plan.disks.iter().map(|d| d.policy.name()).collect::<Vec<_>>();
    assert_eq!(policies(&plan), ["arc", "lru", "fifo"]);
    let to = |plan: &ServePlan, node: &str, policy: &str| plan.with_node(node, &set("policy", policy)).unwrap();
    let vm = to(&plan, "web", "sieve");
    assert_eq!(policies(&vm), ["arc", "sieve", "fifo"]);
    assert_eq!(vm.disks.iter().map(|d| d.share_bytes).sum::<u64>(), GIB, "shares stay");
    let container = to(&vm, "web/shop", "inherit");
    assert_eq!(policies(&container), ["sieve", "sieve", "fifo"]);
    let disk = to(&to(&container, "web:c", "inherit"), "b", "car");
    assert_eq!(policies(&disk), ["sieve", "car", "sieve"]);
    assert_eq!(policies(&to(&disk, "web", "inherit")), ["s3-fifo", "car", "s3-fifo"], "the default is left");
    // As with `set DISK --policy`; a disk that comes inherits, too.
    let own = vm.with_change("web:a", &set("policy", "clock")).unwrap();
    assert_eq!(policies(&to(&own, "web/shop", "lru")), ["clock", "sieve", "fifo"]);
    fs::write(place.at("d.raw"), [0; 4096]).unwrap();
    let more = DiskSpec { vm: Some("web".into()), ..spec(&place, "d", "d.raw") };
    assert_eq!(policies(&vm.with_disk(&more, &place.machine).unwrap()), ["arc", "sieve", "fifo", "sieve"]);
    // The file, read again, has the last word.
    let change = own.difference(&plan);
    assert_eq!(policies(&change.result.unwrap()), ["arc", "lru", "fifo"]);
    let host = plan.with_node("host", &set("policy", "inherit")).unwrap_err().to_string();
    assert!(host.contains("the host has no weight, floor, ceiling, goal, hint, policy or store"), "{host}");
}

/// What there is can be chosen on every node, live, too; what there is not is refused with what to do.
#[test]
fn stores_are_chosen_among_those_there_are() {
    let place = Place::new();
    let text = |vm: &str, container: &str, disk: &str| {
        format!(
            "[store]\nmemory=\"1GiB\"\n[[vm]]\nname=\"web\"\n{vm}\n[[vm.container]]\nname=\"shop\"\n{container}\n\
             [[vm.disk]]\nname=\"a\"\nimage=\"a.raw\"\ncontainer=\"shop\"\n{disk}\n"
        )
    };
    let ram = "store=\"ram\"";
    let plan = place.good(&text(ram, ram, ram));
    let store = |plan: &ServePlan, node: &str| plan.settings()[node].keys["store"].clone();
    for node in ["web", "web/shop", "web:a"] {
        assert_eq!(store(&plan, node), "ram", "{node}");
        let inherits = set("store", "inherit");
        let live = plan.with_node(node, &inherits).unwrap();
        assert_eq!(store(&live, node), "inherit", "{node}");
        assert_eq!(store(&live.difference(&plan).result.unwrap(), node), "ram", "{node}: the file has the last word");
    }
    for (vm, container, disk) in [("store=\"ssd\"", "", ""), ("", "store=\"both\"", ""), ("", "", "store=\"ssd\"")] {
        let problems = place.bad(&text(vm, container, disk));
        assert!(problems.contains("needs an SSD store, and this daemon has none"), "{problems}");
        assert!(problems.contains("say `ram`, or leave it out"), "{problems}");
    }
    assert!(place.bad(&text("store=\"rom\"", "", "")).contains("known are ram, ssd, both"));
    for (text, said) in [("both", "needs an SSD store"), ("disk", "unknown store \"disk\"")] {
        let refused = plan.with_node("web", &set("store", text)).unwrap_err().to_string();
        assert!(refused.contains(said), "{refused}");
    }
}

/// A value that is none of its key is refused with what to do, and nothing else is changed.
#[test]
fn values_set_by_hand_are_checked_as_those_of_the_file() {
    let place = Place::new();
    let plan = place.good(two_disks());
    for (key, text, says) in [
        ("policy", "lur", "did you mean \"lru\"?"),
        ("poll", "1s", "too long to burn a processor for; give at most 10ms"),
        ("weight", "0", "weight must not be 0; allowed is 1 to 10000"),
        ("hint", "often", "unknown hint \"often\"; known are normal, sequential"),
        ("readahead", "5MiB", "too far ahead; give at most 4MiB"),
        ("exclusive", "of", "did you mean \"off\"?"),
        ("goal", "fast", "\"fast\" is no goal; give `hit 90%`"),
        ("controller", "static", "nothing below it to divide its share among"),
    ] {
        let e = plan.with_node("d", &set(key, text)).unwrap_err().to_string();
        assert!(e.contains(says), "{key} {text}: {e}");
    }
    let changed = plan.with_node("d", &set("readahead", "0")).unwrap();
    let changed = changed.with_change("d", &set("exclusive", "off")).unwrap();
    let d = &changed.disks[0];
    assert_eq!((d.settings.readahead_bytes, d.settings.exclusive.name(), d.weight), (0, "off", 100));
    let told: Vec<String> = plan.keys_changed(&changed).iter().map(ToString::to_string).collect();
    assert_eq!(told, ["disk \"d\": readahead: 512KiB -> 0B", "disk \"d\": exclusive: auto -> off"]);
    // The file has the last word.
    let back = changed.difference(&plan);
    assert_eq!(back.result.unwrap(), plan);
    assert_eq!(back.changed.len(), 2);
}

/// A goal is for those whose share `target` divides: their container, their VM or the host says so.
#[test]
fn a_goal_that_nobody_looks_at_is_refused() {
    let place = Place::new();
    let plan = place.good(
        "[[vm]]\nname=\"web\"\n[[vm.container]]\nname=\"shop\"\ncontroller=\"target\"\n\
         [[vm.disk]]\nname=\"a\"\nimage=\"a.raw\"\ncontainer=\"shop\"\n[[vm.disk]]\nname=\"b\"\nimage=\"b.raw\"\n\
         [[disk]]\nname=\"c\"\nimage=\"c.raw\"\n",
    );
    let goal = set("goal", "hit 90%");
    for (node, whole, remedy) in [
        ("web", "the host is divided by `utility`", "`undercroft set host --controller target`"),
        ("web/shop", "\"web\" is divided by `utility`", "`undercroft set web --controller target`"),
        ("web:b", "\"web\" is divided by `utility`", "`undercroft set web --controller target`"),
        ("c", "the host is divided by `utility`", "`undercroft set host --controller target`"),
    ] {
        let e = plan.with_node(node, &goal).unwrap_err();
        assert_eq!(e.kind, config::ControlErrorKind::Conflict);
        assert!(e.error.contains(whole) && e.remedy.contains(remedy), "{node}: {e}");
    }
    assert!(plan.with_node("web:a", &goal).is_ok(), "its container is divided by goals");
    let host = plan.with_node("host", &set("controller", "target")).unwrap();
    assert!(["web", "web/shop", "web:b", "c"].iter().all(|node| host.with_node(node, &goal).is_ok()), "by inheritance");
    assert!(plan.with_node("web", &set("goal", "none")).is_ok(), "none is always taken");
}

/// Whoever runs the host is not bound by floors that somebody else has set below a VM; whoever sets those is.
#[test]
fn floors_below_a_vm_do_not_bind_the_host() {
    let place = Place::new();
    let plan = place.good(
        "[store]\nmemory=\"1GiB\"\n[[vm]]\nname=\"web\"\n\
         [[vm.container]]\nname=\"shop\"\nfloor=\"300MiB\"\n\
         [[vm.disk]]\nname=\"a\"\nimage=\"a.raw\"\ncontainer=\"shop\"\nfloor=\"200MiB\"\n\
         [[vm.disk]]\nname=\"b\"\nimage=\"b.raw\"\nweight=10000\nfloor=\"100MiB\"\n\
         [[vm]]\nname=\"db\"\n[[vm.disk]]\nname=\"c\"\nimage=\"c.raw\"\n",
    );
    let with = |plan: &ServePlan, node: &str, change: NodeChange| plan.with_node(node, &change);
    let ceiling = |bytes: u64| set_bytes("ceiling", bytes);
    let floor = |bytes: u64| set_bytes("floor", bytes);
    let floor_of = |plan: &ServePlan, node: &str| {
        let mut layout = Layout::default();
        layout.follow(plan).unwrap();
        let id = layout.find(node).unwrap();
        layout.tree().node(id).unwrap().settings().floor * 4096 / MIB
    };
    // What fits of 64 MiB after the 4 MiB that each disk needs; the first by name has it.
    let small = with(&plan, "web", ceiling(64 * MIB)).unwrap();
    assert_eq!([floor_of(&small, "web/shop"), floor_of(&small, "web:a"), floor_of(&small, "web:b")], [60, 60, 4]);
    assert!(small.disks[..2].iter().all(|d| d.share_bytes >= 4 * MIB), "{:?}", small.disks);
    // Nothing that was set is lost: with the ceiling gone it is all there again.
    let back = with(&small, "web", set("ceiling", "none")).unwrap();
    assert_eq!(["web/shop", "web:a", "web:b"].map(|n| floor_of(&back, n)), [300, 200, 100]);
    // The host's changes all happen: weights, other VMs, other disks.
    let light = with(&plan, "db", set("weight", "10000")).unwrap();
    fs::write(place.at("d.raw"), [0; 4096]).unwrap();
    let added = light.with_disk(&spec(&place, "d", "d.raw"), &place.machine).unwrap();
    assert!(added.without_disk("d").is_ok());
    assert!(added.disks.iter().all(|d| d.share_bytes >= 4 * MIB));
    // But who sets a floor below the VM is held to what the VM has, and the VM to what its disks need.
    for (plan, node, change, needle) in [
        (&plan, "web/shop", floor(600 * MIB), "\"web\" has 512MiB"),
        (&small, "web:b", floor(16 * MIB), "\"web\""),
        (&plan, "web", ceiling(6 * MIB), "below its floor of 8MiB"),
        (&plan, "web", floor(2 * GIB), "too little for floors"),
    ] {
        let e = with(plan, node, change).unwrap_err().to_string();
        assert!(e.contains(needle), "{needle}: {e}");
    }
}

#[test]
fn a_vm_can_have_a_control_socket_of_its_own() {
    let place = Place::new();
    let disk = "[[vm.disk]]\nname=\"a\"\nimage=\"a.raw\"\n";
    let plan = place.good(&format!("[[vm]]\nname=\"web\"\ncontrol_socket=\"web.sock\"\ncontrol_group=\"kvm\"\n{disk}"));
    let [control] = &plan.daemon.vm_controls[..] else { panic!("{:?}", plan.daemon) };
    assert_eq!((control.vm.as_str(), &control.socket), ("web", &place.at("web.sock")));
    assert_eq!((control.access.gid, control.access.mode()), (Some(104), 0o660));
    for (keys, needle) in [
        ("control_group=\"kvm\"", "control_group is for control_socket, which is missing"),
        ("control_socket=\"web.sock\"\ncontrol_group=\"kvn\"", "did you mean \"kvm\"?"),
        ("control_socket=\"nowhere/web.sock\"", "does not exist"),
        ("control_socket=\"a.raw\"", "is no socket"),
        ("control_socket=\"control.sock\"", "is that of the control socket"),
    ] {
        let text = format!("[daemon]\ncontrol=\"control.sock\"\n[[vm]]\nname=\"web\"\n{keys}\n{disk}");
        assert!(place.bad(&text).contains(needle), "{needle}: {}", place.bad(&text));
    }
    // It is bound when the daemon starts: another one is told.
    let without = place.good(&format!("[[vm]]\nname=\"web\"\n{disk}"));
    let told = plan.difference(&without).needs_restart;
    assert!(told.iter().any(|t| t.contains("control sockets of VMs") && t.contains("web.sock")), "{told:?}");
}

#[test]
fn a_disk_that_comes_later_is_checked_against_those_there_are() {
    let place = Place::new();
    let plan = place.good(two_disks());
    let with = |s: DiskSpec| plan.with_disk(&s, &place.machine).map_err(|e| e.to_string());
    let more = with(DiskSpec { weight: Some(200), ..spec(&place, "f", "c.raw") }).unwrap();
    assert_eq!(more.disks.iter().map(|d| d.share_bytes / MIB).collect::<Vec<_>>(), [256, 256, 512]);
    for (spec, needle) in [
        (spec(&place, "d", "c.raw"), "there is a disk of that name already"),
        (spec(&place, "f", "b.raw"), "is that of disk \"e\" too, and both write it"),
        (DiskSpec { read_only: Some(true), ..spec(&place, "f", "a.raw") }, "one of them writes it"),
        (DiskSpec { image: "c.raw".into(), ..spec(&place, "f", "c.raw") }, "is a relative path"),
        (DiskSpec { size: Some(undercroft_units::Size(GIB)), ..spec(&place, "f", "c.raw") }, "leave 0B"),
        (DiskSpec { socket: Some(place.at("run/e.sock")), ..spec(&place, "f", "c.raw") }, "is that of disk \"e\" too"),
        (DiskSpec { nbd: Some(true), ..spec(&place, "f", "c.raw") }, "no NBD listener"),
        (spec(&place, "f", "none.raw"), "does not exist"),
    ] {
        let e = with(spec).unwrap_err();
        assert!(e.contains(needle), "{needle}: {e}");
    }
}

/// Whoever names one of them would mean it and change the other: what is set for VMs, and what is set for disks, is
/// looked for in another order.
#[test]
fn a_disk_without_a_vm_never_has_the_name_of_a_vm() {
    let place = Place::new();
    let web = "[[vm]]\nname=\"web\"\n[[vm.disk]]\nname=\"root\"\nimage=\"a.raw\"\n";
    let disk = |name: &str| format!("[[disk]]\nname=\"{name}\"\nimage=\"b.raw\"\n");
    let plan = place.good(&format!("{web}{}", disk("db")));
    let with = |plan: &ServePlan, s: DiskSpec| plan.with_disk(&s, &place.machine).map_err(|e| e.to_string());
    let of = |vm: &str| DiskSpec { vm: Some(vm.into()), ..spec(&place, "more", "c.raw") };
    let e = with(&plan, spec(&place, "web", "c.raw")).unwrap_err();
    assert!(e.contains("disk \"web\": VM \"web\" has that name") && e.contains("give the disk another name"), "{e}");
    let e = with(&plan, of("db")).unwrap_err();
    assert!(e.contains("disk \"db:more\": disk \"db\", which is of no VM, has the name of its VM"), "{e}");
    assert!(e.contains("give the VM another name"), "{e}");
    // A name within a VM is nobody else's, and neither is that of a container.
    fs::write(place.at("d.raw"), [0; 4096]).unwrap();
    let shop = DiskSpec { container: Some("shop".into()), ..of("web") };
    let plan = with(&with(&plan, shop).unwrap(), spec(&place, "shop", "d.raw")).unwrap();
    fs::write(place.at("e.raw"), [0; 4096]).unwrap();
    let plan = with(&plan, spec(&place, "root", "e.raw")).unwrap();
    // A VM keeps its name where nothing but a setting, a control socket or a pid file is left of it.
    let set_for = plan.with_node("web", &set("weight", "200")).unwrap();
    let left = set_for.without_disk("web:root").unwrap().without_disk("web:more").unwrap();
    assert!(with(&left, spec(&place, "web", "a.raw")).unwrap_err().contains("VM \"web\" has that name"));
    for key in ["control_socket=\"web.sock\"", "pid_file=\"web.pid\""] {
        let plan = place.good(&format!("[scan]\nenabled=true\n[[vm]]\nname=\"web\"\n{key}\n{}", disk("db")));
        let e = with(&plan, spec(&place, "web", "c.raw")).unwrap_err();
        assert!(e.contains("VM \"web\" has that name"), "{key}: {e}");
    }
    let gone = place.good(web).without_disk("web:root").unwrap();
    assert!(with(&gone, spec(&place, "web", "c.raw")).is_ok(), "nothing is left of the VM");
    // A file that is read again is refused as a whole.
    assert!(place.bad(&format!("{web}{}", disk("web"))).contains("VM \"web\" on line 2 has that name"));
}

/// A VM's group is that of all its disks that name none, whenever they come: others would learn by the time of reads
/// what a disk that was attached has of a common base.
#[test]
fn a_disk_that_comes_to_a_vm_is_of_the_trust_group_of_the_vm() {
    let place = Place::new();
    let file = |trust: &str| {
        format!(
            "[[vm]]\nname=\"web\"\ntrust=\"{trust}\"\n[[vm.disk]]\nname=\"root\"\nimage=\"a.raw\"\n\
             [[vm]]\nname=\"db\"\n"
        )
    };
    let plan = place.good(&file("red"));
    let more = |plan: &ServePlan, vm: &str, trust: Option<&str>| {
        let of = DiskSpec { vm: Some(vm.into()), trust: trust.map(str::to_owned), ..spec(&place, "more", "c.raw") };
        let disk = plan.with_disk(&of, &place.machine).unwrap().disks.pop().unwrap();
        (disk.trust, disk.deduplicate_base)
    };
    let of_group = |name: &str| (name.to_owned(), BaseDeduplication::Group);
    assert_eq!((plan.disks[0].trust.clone(), plan.disks[0].deduplicate_base), of_group("red"));
    assert_eq!(more(&plan, "web", None), of_group("red"));
    assert_eq!(more(&plan, "web", Some("own")), of_group("own"));
    assert_eq!(more(&plan, "db", None), ("vm:db".to_owned(), BaseDeduplication::Everybody));
    // A reload says it of the disks that there are, and has it for those that come.
    let change = plan.difference(&place.good(&file("blue")));
    assert!(change.needs_restart[0].contains("disk \"web:root\": trust: red -> blue"), "{:?}", change.needs_restart);
    assert_eq!(more(&change.result.unwrap(), "web", None), of_group("blue"));
}

/// A list of ranges may be empty for a while: a container that is made anew has no files. What is set for it stays, of
/// the last ones that had something.
#[test]
fn what_is_set_for_containers_without_ranges_stays_for_the_last_of_them() {
    let place = Place::new();
    let mut plan = place.good(
        "[store]\nmemory=\"1GiB\"\n[[vm]]\nname=\"web\"\n[[vm.container]]\nname=\"filed\"\nweight=7\n\
         [[vm.disk]]\nname=\"root\"\nimage=\"a.raw\"\n[[vm]]\nname=\"db\"\n[[vm.disk]]\nname=\"c\"\nimage=\"c.raw\"\n",
    );
    let part = |n: usize| PartPlan { container: format!("c{n}"), number: 1, share_bytes: 0 };
    let weight = |plan: &ServePlan, node: &str| plan.nodes.iter().find(|n| n.name == node).map(|n| n.weight);
    let has_ranges = |plan: &mut ServePlan, n: Option<usize>| {
        plan.disks[0].parts = n.map(part).into_iter().collect();
        plan.forget_past_containers();
    };
    has_ranges(&mut plan, Some(0));
    plan = plan.with_node("web/c0", &set("weight", "200")).unwrap();
    has_ranges(&mut plan, None);
    assert_eq!(weight(&plan, "web/c0"), Some(200), "it comes back");
    assert!(plan.with_node("web/c0", &set("weight", "300")).is_ok(), "and can be changed until then");
    // Names of containers are the guest's, so that only so many are remembered: the last that were set.
    let most = PAST_CONTAINERS_MAX;
    for n in 1..=most + 3 {
        has_ranges(&mut plan, Some(n));
        plan = plan.with_node(&format!("web/c{n}"), &set("weight", "200")).unwrap();
        if n == most {
            plan = plan.with_node("web/c0", &set("weight", "200")).unwrap();
        }
    }
    has_ranges(&mut plan, None);
    let kept = plan.nodes.iter().filter(|n| n.by_hand).map(|n| n.name.as_str()).collect::<Vec<_>>();
    assert_eq!(kept.len(), most, "{kept:?}");
    assert!(weight(&plan, "web/c0").is_some() && weight(&plan, &format!("web/c{}", most + 3)).is_some(), "{kept:?}");
    assert!((1..5).all(|n| weight(&plan, &format!("web/c{n}")).is_none()), "{kept:?}");
    // One that has ranges is no past one, and neither is one that a file names.
    has_ranges(&mut plan, Some(most));
    assert!(weight(&plan, &format!("web/c{most}")).is_some());
    // They go with the last disk that could give them anything.
    let gone = plan.without_disk("web:root").unwrap();
    assert_eq!(gone.nodes.iter().map(|n| (n.name.as_str(), n.weight)).collect::<Vec<_>>(), [("web/filed", 7)]);
}

/// A disk that belongs to a container takes no lists of ranges: what those that it had gave would stay for good.
#[test]
fn a_disk_that_is_divided_by_ranges_belongs_to_no_container_until_they_are_gone() {
    let place = Place::new();
    let file = |more: &str| {
        place.good(&format!(
            "[store]\nmemory=\"1GiB\"\n[[vm]]\nname=\"web\"\n[[vm.disk]]\nname=\"root\"\nimage=\"a.raw\"\n{more}"
        ))
    };
    let mut plan = file("");
    let parts = vec![PartPlan { container: "shop".into(), number: 1, share_bytes: 0 }];
    plan.disks[0].parts = parts.clone();
    let change = plan.difference(&file("weight=300\ncontainer=\"mail\"\n"));
    let told = change.needs_restart.join("; ");
    assert!(told.contains("cannot belong to \"mail\" as a whole: take the ranges away first"), "{told}");
    let result = change.result.expect("the rest is done");
    let disk = &result.disks[0];
    assert_eq!((disk.container.as_deref(), disk.weight, disk.parts.len()), (None, 300, 1));
    // Without ranges it is as any other key.
    plan.disks[0].parts.clear();
    let change = plan.difference(&file("container=\"mail\"\n"));
    assert_eq!(change.needs_restart, Vec::<String>::new());
    assert_eq!(change.result.unwrap().disks[0].container.as_deref(), Some("mail"));
}

#[test]
fn a_changed_size_leaves_room_for_the_others_or_is_refused() {
    let place = Place::new();
    let plan = place.good(two_disks());
    let change = |bytes| set_bytes("size", bytes);
    let changed = plan.with_change("d", &change(256 * MIB)).unwrap();
    assert_eq!(changed.disks.iter().map(|d| d.share_bytes / MIB).collect::<Vec<_>>(), [256, 768]);
    for (name, bytes, needle) in [
        ("d", 2 * GIB, "add up to 2GiB, but memory is 1GiB"),
        ("d", GIB, "too little for disk \"e\""),
        ("d", 1, "too little to cache in"),
        ("E", GIB, "did you mean \"e\"?"),
        ("zzz", GIB, "there is no disk \"zzz\"; `undercroft status` lists the disks"),
    ] {
        let e = plan.with_change(name, &change(bytes)).unwrap_err().to_string();
        assert!(e.contains(needle), "{needle}: {e}");
    }
    let gone = plan.without_disk("e").unwrap();
    assert_eq!((gone.disks.len(), gone.disks[0].share_bytes), (1, GIB));
}

proptest! {
    /// Sizes that are no multiples of what shares are counted in: shares add up to the memory at most, from the file
    /// and by hand, and nobody has more than its size or misses a unit of it.
    #[test]
    fn shares_fit_whatever_the_sizes(a in 5_000_000u64..30_000_000, b in 5_000_000u64..30_000_000, more in 0u64..9999) {
        let place = Place::new();
        let memory = (70 << 20) + more;
        let plan = place.good(&format!(
            "[store]\nmemory={memory}\n[[disk]]\nname=\"a\"\nimage=\"a.raw\"\nsize={a}\n\
             [[disk]]\nname=\"b\"\nimage=\"b.raw\"\n[[disk]]\nname=\"c\"\nimage=\"c.raw\"\n",
        ));
        let by_hand = plan.with_change("b", &set_bytes("size", b)).unwrap();
        for (plan, sizes) in [(&plan, vec![a]), (&by_hand, vec![a, b])] {
            let shares: Vec<u64> = plan.disks.iter().map(|d| d.share_bytes).collect();
            prop_assert!(shares.iter().sum::<u64>() <= memory, "{:?} of {}", shares, memory);
            for (share, size) in shares.iter().zip(sizes) {
                prop_assert!(*share <= size && size < share + 4096, "{} of {}", share, size);
            }
        }
    }

    /// Whatever is changed by hand, in whatever order: the shares fit into the store, and a size that was set is had.
    #[test]
    fn shares_fit_after_every_change(changes in prop::collection::vec((0usize..3, 0u8..5, 1u64..900), 1..12)) {
        let place = Place::new();
        let mut plan = place.good(
            "[store]\nmemory=\"1GiB\"\n[[vm]]\nname=\"web\"\n[[vm.disk]]\nname=\"a\"\nimage=\"a.raw\"\n\
             [[vm.disk]]\nname=\"b\"\nimage=\"b.raw\"\n[[vm]]\nname=\"db\"\n[[vm.disk]]\nname=\"c\"\nimage=\"c.raw\"\n",
        );
        // By VM: a size that was set there. Whoever runs the host is not bound by floors below other VMs, so that one
        // may leave a disk of another VM less than its floor, and that one's changes are refused then. A weight takes
        // the place of the disk's size: its floor counts again, which its neighbour's size may have left no room for.
        let mut sized = [false; 2];
        let mut floored = [false; 3];
        for (disk, what, amount) in changes {
            let vm = disk / 2;
            let (name, bytes) = (["web:a", "web:b", "db:c"][disk], amount * MIB);
            let node = |change: NodeChange| plan.with_node(name, &change);
            let done = match what {
                0 | 1 => plan.with_change(name, &set_bytes("size", bytes)),
                2 => node(NodeChange::default().with("weight", Written::Number(amount))),
                3 => node(set_bytes("floor", bytes)),
                _ => node(set_bytes("ceiling", bytes)),
            };
            let may_uncover = sized[vm] && floored[disk];
            prop_assert!(done.is_ok() || what != 2 || sized[1 - vm] || may_uncover, "a weight always fits");
            let Ok(next) = done else { continue };
            sized[vm] |= what < 2;
            floored[disk] |= what == 3;
            let shares: Vec<u64> = next.disks.iter().map(|d| d.share_bytes).collect();
            prop_assert!(shares.iter().sum::<u64>() <= GIB, "{:?} after {} {} {}", shares, name, what, amount);
            if what < 2 {
                prop_assert_eq!(shares[disk], bytes);
            }
            plan = next;
        }
    }
}

#[test]
fn a_weight_in_place_of_a_size_brings_back_a_floor_which_must_fit() {
    let place = Place::new();
    let plan = place.good(
        "[store]\nmemory=\"1GiB\"\n[[vm]]\nname=\"web\"\n[[vm.disk]]\nname=\"a\"\nimage=\"a.raw\"\n\
         [[vm.disk]]\nname=\"b\"\nimage=\"b.raw\"\n[[vm]]\nname=\"db\"\n[[vm.disk]]\nname=\"c\"\nimage=\"c.raw\"\n",
    );
    let plan = plan.with_node("web:b", &set_bytes("floor", 5 * MIB)).unwrap();
    let plan = plan.with_change("web:b", &set_bytes("size", 4 * MIB)).unwrap();
    let plan = plan.with_change("web:a", &set_bytes("size", 508 * MIB)).unwrap();
    let e = plan.with_node("web:b", &NodeChange::default().with("weight", Written::Number(1))).unwrap_err();
    assert!(e.error.contains("too little for floors and sizes of 513MiB"), "{e}");
    let plan = plan.with_node("web:b", &set_bytes("floor", 4 * MIB)).unwrap();
    assert_eq!(plan.disks[1].share_bytes, 4 * MIB);
}

#[test]
fn a_reload_does_what_it_can_and_names_the_rest() {
    let place = Place::new();
    let old = place.good(two_disks());
    let new = place.good(
        "[store]\nmemory=\"2GiB\"\n[daemon]\nworkers=2\nlog_level=\"debug\"\n\
         [[disk]]\nname=\"d\"\nimage=\"a.raw\"\npolicy=\"arc\"\nsize=\"256MiB\"\nqueues=2\n\
         [[disk]]\nname=\"f\"\nimage=\"c.raw\"\n",
    );
    let change = old.difference(&new);
    assert_eq!(change.removed, ["e"]);
    assert_eq!(change.added.iter().map(|d| (d.name.as_str(), d.share_bytes / MIB)).collect::<Vec<_>>(), [("f", 768)]);
    let changed: Vec<String> = change.changed.iter().map(ToString::to_string).collect();
    let expected = [
        "store.floor: 256MiB -> 512MiB",
        "daemon.log_level: info -> debug",
        "disk \"d\": policy: inherit -> arc",
        "disk \"d\": size: by weight -> 256MiB",
    ];
    assert_eq!(changed, expected);
    assert_eq!(change.log_level, Some(LogLevel::Debug));
    let rest = change.needs_restart.join("\n");
    for needle in
        ["store.memory: 1GiB -> 2GiB", "daemon.workers: 6 -> 2", "disk \"d\": queues: 4 -> 2 (or detach and attach it)"]
    {
        assert!(rest.contains(needle), "{needle}: {rest}");
    }
    assert_eq!(change.needs_restart.len(), 3, "{rest}");
    // Once it is done, only what needs a restart is left.
    let result = change.result.unwrap();
    assert_eq!(result.store.memory_bytes, GIB);
    let again = result.difference(&new);
    let needs_restart = again.needs_restart.clone();
    let nothing = PlanChange { needs_restart, result: again.result.clone(), ..PlanChange::default() };
    assert_eq!(again, nothing);
}

/// A disk that comes to a VM with a ceiling, while the host has room: its neighbours there give what it gets.
#[test]
fn a_disk_that_comes_stays_below_the_ceiling_of_its_vm() {
    let place = Place::new();
    let plan = place.good(
        "[store]\nmemory=\"1GiB\"\n[[vm]]\nname=\"web\"\nceiling=\"100MiB\"\n\
         [[vm.container]]\nname=\"shop\"\nceiling=\"60MiB\"\n\
         [[vm.disk]]\nname=\"a\"\nimage=\"a.raw\"\n[[vm]]\nname=\"db\"\nceiling=\"200MiB\"\n\
         [[vm.disk]]\nname=\"b\"\nimage=\"b.raw\"\n",
    );
    let shares = |plan: &ServePlan| plan.disks.iter().map(|d| d.share_bytes / MIB).collect::<Vec<_>>();
    assert_eq!(shares(&plan), [100, 200]);
    let vm = |s: DiskSpec| DiskSpec { vm: Some("web".into()), ..s };
    let more = plan.with_disk(&vm(spec(&place, "more", "c.raw")), &place.machine).unwrap();
    assert_eq!(shares(&more), [50, 200, 50]);
    fs::write(place.at("d.raw"), [0; 4096]).unwrap();
    let shop = DiskSpec { container: Some("shop".into()), ..vm(spec(&place, "last", "d.raw")) };
    let last = more.with_disk(&shop, &place.machine).unwrap();
    assert_eq!(shares(&last).iter().sum::<u64>(), 299, "{:?}", shares(&last));
    let low = last.with_node("web", &set("ceiling", "50MiB")).unwrap();
    let of_web: u64 = low.disks.iter().filter(|d| d.name.starts_with("web")).map(|d| d.share_bytes).sum();
    assert!(of_web <= 50 * MIB, "{:?}", shares(&low));
}

/// A size within a VM leaves its neighbours there their floors, though the host has room for it.
#[test]
fn a_size_by_hand_leaves_the_floors_of_its_vm() {
    let place = Place::new();
    let plan = place.good(
        "[store]\nmemory=\"1GiB\"\n[[vm]]\nname=\"web\"\nceiling=\"512MiB\"\n\
         [[vm.disk]]\nname=\"a\"\nimage=\"a.raw\"\n[[vm.disk]]\nname=\"b\"\nimage=\"b.raw\"\nfloor=\"300MiB\"\n\
         [[vm]]\nname=\"db\"\n[[vm.disk]]\nname=\"c\"\nimage=\"c.raw\"\n",
    );
    let sized = plan.with_change("web:a", &set("size", "200MiB")).unwrap();
    assert!(sized.disks[1].share_bytes >= 300 * MIB, "{:?}", sized.disks[1]);
    let e = plan.with_change("web:a", &set("size", "300MiB")).unwrap_err();
    assert!(e.error.contains("\"web\""), "{e}");
    assert!(e.error.contains("floor"), "{e}");
    // What others set below their own VMs is no reason, nor what the neighbour asks for less.
    let less = plan.with_node("b", &set("floor", "100MiB")).unwrap();
    assert!(less.with_change("web:a", &set("size", "300MiB")).is_ok());
    assert!(less.with_change("db:c", &set("size", "512MiB")).is_ok());
}

#[test]
fn the_file_is_read_again_with_the_overrides_of_the_command_line() {
    let place = Place::new();
    let file = place.at("undercroft.toml");
    fs::write(&file, format!("[daemon]\nruntime_dir={:?}\n", place.at("run"))).unwrap();
    let overrides = Overrides { control_socket: Some(place.at("mine.sock")), ..Overrides::default() };
    let (plan, _) = config::load(&file, &Machine::here(), &overrides).unwrap().accept().unwrap();
    assert_eq!(plan.daemon.control_socket, place.at("mine.sock"));
    let (same, change) = plan.reread().unwrap();
    assert_eq!((&same, change.needs_restart.is_empty()), (&plan, true));
    fs::write(&file, "[store]\nmemory = \"x\"").unwrap();
    assert!(plan.reread().unwrap_err().to_string().contains("\"x\" is not a size"));
    let from_images = ServePlan { config_file: None, ..plan };
    assert!(from_images.reread().unwrap_err().to_string().contains("no configuration file"));
}
