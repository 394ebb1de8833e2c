//! Configuration files, good and bad: what they mean, and that every problem names the thing and the remedy.
//!
//! Owns tables of files. Uses real files and images in a temporary directory.

mod changes;
mod kept;
mod locks;
mod place;
mod pools;
mod pressure;
mod refused;
mod ssd;
mod standing;

use place::{GIB, MIB, Place};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use undercroft_config::{self as config, BaseDeduplication, LogFormat, LogLevel, NbdListen, Overrides, Severity};
use undercroft_engine::PolicyKind;

#[test]
fn a_full_file_means_what_it_says() {
    let place = Place::new();
    let plan = place.good(
        r#"
        [store]
        memory = "2GiB"
        [daemon]
        control = "ctl.sock"
        control_group = "adm"
        disk_group = 104
        runtime_dir = "/run/elsewhere"
        workers = 3
        poll = "100us"
        metrics = "127.0.0.1:9464"
        log_level = "debug"
        log_format = "json"
        [nbd]
        unix = "nbd.sock"
        tcp = "127.0.0.1:10809"
        [[vm]]
        name = "web"
        [[vm.disk]]
        name = "root"
        image = "a.raw"
        format = "raw"
        socket = "web.sock"
        nbd = true
        policy = "ARC"
        size = "512MiB"
        readahead = "1MiB"
        write_allocate = false
        serial = "ROOT 1"
        queues = 8
        queue_size = 1024
        poll = "0"
        [[vm.disk]]
        name = "data"
        image = "nbd+unix:///x?socket=/run/up.sock"
        weight = 300
        [[disk]]
        name = "plain"
        image = "b.raw"
        read_only = true
        vhost_user = false
        nbd = true
        "#,
    );
    assert_eq!(plan.config_file, Some(place.at("undercroft.toml")));
    assert_eq!(plan.store.memory_bytes, 2 * GIB);
    let d = &plan.daemon;
    assert_eq!(d.control_socket, place.at("ctl.sock"));
    assert_eq!((d.control_access.gid, d.control_access.mode()), (Some(4), 0o660));
    assert_eq!(d.disk_access.gid, Some(104));
    assert_eq!((d.workers, d.poll), (3, Duration::from_micros(100)));
    assert_eq!((d.log.level, d.log.format), (LogLevel::Debug, LogFormat::Json));
    assert_eq!(d.metrics, Some("127.0.0.1:9464".parse().unwrap()));
    let tcp = NbdListen::Tcp("127.0.0.1:10809".parse().unwrap());
    let places: Vec<_> = plan.nbd.iter().map(|l| l.at.clone()).collect();
    assert_eq!(places, [NbdListen::Unix(place.at("nbd.sock")), tcp]);

    let [root, data, plain] = &plan.disks[..] else { panic!("three disks") };
    assert_eq!((root.name.as_str(), root.vm.as_deref()), ("web:root", Some("web")));
    assert_eq!(root.image.location, place.at("a.raw").to_str().unwrap());
    assert_eq!(root.socket, Some(place.at("web.sock")));
    assert_eq!((root.policy, root.share_bytes, root.share_fixed), (PolicyKind::Arc, 512 * MIB, true));
    assert_eq!((root.settings.readahead_bytes, root.write_allocate), (MIB as u32, false));
    assert_eq!((root.serial.as_str(), root.queues, root.queue_size), ("ROOT 1", 8, 1024));
    assert_eq!((root.poll, root.nbd), (Duration::ZERO, true));
    // The VM and the disk beside it have half each, and the VM's other disk what the one of a fixed size leaves.
    assert_eq!((data.share_bytes, plain.share_bytes), (512 * MIB, GIB));
    assert_eq!(data.image.location, "nbd+unix:///x?socket=/run/up.sock");
    assert_eq!(data.socket, Some(PathBuf::from("/run/elsewhere/web-data.sock")));
    assert_eq!((data.poll, data.serial.as_str()), (Duration::from_micros(100), "web-data"));
    assert_eq!((plain.name.as_str(), plain.vm.as_deref(), &plain.socket), ("plain", None, &None));
    assert!(plain.image.read_only);
}

#[test]
fn an_empty_file_is_all_defaults() {
    let place = Place::new();
    let (plan, warnings) = place.resolve("").accept().unwrap();
    assert_eq!(plan.store.memory_bytes, GIB);
    assert_eq!(plan.daemon.control_socket, place.at("run/control.sock"));
    assert_eq!((plan.daemon.workers, plan.daemon.control_access.mode()), (6, 0o600));
    assert!(plan.nbd.is_empty() && plan.daemon.metrics.is_none(), "no listener unless asked");
    assert!(warnings[0].error.contains("no disk is configured"));
    assert!(warnings[0].remedy.contains("`undercroft attach`"), "a command, not a call of the API");
}

#[test]
fn all_problems_are_named_in_one_run() {
    let place = Place::new();
    let said = place.bad(
        "[store]\nmemory = 12MB\n[daemon]\nworkers = 0\n[[disk]]\nname = \"d\"\nimage = \"no.raw\"\npolcy = \"lru\"\n\
         policy = \"x\"\n[[disk]]\nname = \"d\"\nimage = \"a.raw\"\nsize = \"1XB\"\n",
    );
    let lines: Vec<_> = said.lines().map(|l| l.split(':').nth(1).unwrap()).collect();
    assert_eq!(lines, ["2", "4", "7", "8", "9", "11", "13"], "{said}");
}

#[test]
fn a_named_group_keeps_its_bases_to_itself_unless_it_says_otherwise() {
    let place = Place::new();
    let disk = |name: &str, image: &str, more: &str| {
        format!("name = \"{name}\"\nimage = \"{}\"\nformat = \"raw\"\n{more}\n", place.at(image).display())
    };
    let plan = place.good(
        &[
            "[store]\nmemory = \"1GiB\"\n[[vm]]\nname = \"web\"\ntrust = \"red\"\n[[vm.disk]]\n",
            &disk("of-the-vm", "a.raw", ""),
            "[[disk]]\n",
            &disk("nothing", "b.raw", ""),
            "[[disk]]\n",
            &disk("named", "c.raw", "trust = \"blue\""),
        ]
        .concat(),
    );
    let of = |plan: &config::ServePlan, name: &str| plan.find(name).unwrap().deduplicate_base;
    assert_eq!(of(&plan, "web:of-the-vm"), BaseDeduplication::Group);
    assert_eq!(of(&plan, "nothing"), BaseDeduplication::Everybody);
    assert_eq!(of(&plan, "named"), BaseDeduplication::Group);
    for (said, means) in [("true", BaseDeduplication::Everybody), ("false", BaseDeduplication::Nobody)] {
        for trust in ["", "trust = \"blue\""] {
            let keys = format!("deduplicate_base = {said}\n{trust}");
            let plan = place.good(&format!("[[disk]]\n{}", disk("d", "a.raw", &keys)));
            assert_eq!(of(&plan, "d"), means, "{said} {trust}");
        }
    }
}

#[test]
fn two_read_only_disks_may_share_an_image() {
    let place = Place::new();
    let plan = place.good(
        "[[disk]]\nname=\"d\"\nimage=\"a.raw\"\nread_only=true\n[[disk]]\nname=\"e\"\nimage=\"a.raw\"\nread_only=true",
    );
    assert_eq!(plan.disks.len(), 2);
}

#[test]
fn what_is_risky_is_warned_of() {
    let place = Place::new();
    for (text, needle) in [
        ("[daemon]\nmetrics = \"0.0.0.0:9464\"", "can be reached from other machines"),
        ("[nbd]\ntcp = \"0.0.0.0:10809\"", "can be reached from other machines"),
        ("[nbd]\nunix = \"n.sock\"\n[[disk]]\nname=\"d\"\nimage=\"a.raw\"", "no disk is exported"),
        ("[store]\nmemory = \"7900MiB\"", "nearly all of the machine's 8GiB"),
        ("[[disk]]\nname=\"d\"\nimage=\"a.raw\"\nsize=\"64MiB\"\nweight=3", "its weight means nothing"),
    ] {
        let (_, warnings) = place.resolve(text).accept().expect(text);
        let found = warnings.iter().any(|w| w.error.contains(needle) && w.severity == Severity::Warning);
        assert!(found, "{needle}: {warnings:?}");
    }
}

/// A limit is no reason to stay down: it may be another one by the time that the daemon is started again.
#[test]
fn a_store_larger_than_the_limit_of_a_control_group_is_warned_of() {
    let mut place = Place::new();
    place.machine.limit_bytes = Some(320 * MIB);
    let said = |text: &str| {
        let (plan, warnings) = place.resolve(text).accept().expect(text);
        let said = warnings.iter().filter(|w| w.error.contains("a control group limits this process to 320MiB"));
        (plan.store.memory_bytes, said.count())
    };
    assert_eq!(said("[store]\nmemory = \"1GiB\""), (GIB, 1));
    assert_eq!(said("[store]\nmemory = \"300MiB\""), (300 * MIB, 1), "nearly all of it");
    assert_eq!(said("[store]\nmemory = \"280MiB\""), (280 * MIB, 0));
    assert_eq!(said(""), (80 * MIB, 0), "a quarter of what there is");
}

#[test]
fn unreadable_files_say_so() {
    let place = Place::new();
    let load = |p: &Path| config::load(p, &place.machine, &Overrides::default()).unwrap_err().to_string();
    assert!(load(&place.at("none.toml")).contains("serve --image IMAGE"));
    assert!(load(place.dir.path()).contains("the configuration cannot be read"));
    fs::write(place.at("bin"), b"ok = 1\n\xff").unwrap();
    assert!(load(&place.at("bin")).contains("byte 7 of the configuration is no UTF-8"));
    let big = fs::File::create(place.at("big")).unwrap();
    big.set_len(5 * MIB).unwrap();
    assert!(load(&place.at("big")).contains("longer than 4MiB"));
}

#[test]
fn the_example_is_good_with_every_line_uncommented() {
    let place = Place::new();
    let example = include_str!("../../../../dist/undercroft.toml");
    let whole: String = example
        .lines()
        .map(|l| match l.strip_prefix('#') {
            Some(code) if code.starts_with(|c: char| c.is_ascii_lowercase() || c == '[') => code,
            _ => l,
        })
        .map(|l| format!("{l}\n"))
        .collect();
    let whole = whole
        .replace("/var/lib/libvirt/images/web.qcow2", place.at("a.raw").to_str().unwrap())
        .replace("/dev/vg0/web-data", place.at("b.raw").to_str().unwrap())
        .replace("/var/lib/undercroft", place.dir.path().to_str().unwrap())
        .replace("/run/undercroft", place.dir.path().to_str().unwrap());
    fs::write(place.at("web.pins"), "{\"size_bytes\": 4096, \"ranges\": [[0, 1]]}").unwrap();
    let plan = place.good(&whole);
    assert_eq!(plan.disks.len(), 3);
    assert!(plan.disks.iter().any(|d| d.pins == Some(place.at("web.pins"))), "its pins were uncommented");
    assert!(whole.contains("\n[nbd]\n") && plan.nbd.len() == 3, "the example was uncommented");
    // Its values are the defaults where it says so.
    let defaults = place.resolve("").plan;
    assert_eq!(
        (plan.store, plan.daemon.poll, plan.daemon.log),
        (defaults.store, defaults.daemon.poll, defaults.daemon.log)
    );
}

#[test]
fn what_a_vm_and_a_container_say_holds_for_disks_that_say_nothing() {
    let place = Place::new();
    let disk = |name: &str, image: &str, more: &str| {
        let image = place.at(image);
        format!("[[vm.disk]]\nname = \"{name}\"\nimage = \"{}\"\nformat = \"raw\"\n{more}\n", image.display())
    };
    let text = [
        "[store]\nmemory = \"1GiB\"\n[shares]\ncontroller = \"target\"\n".to_string(),
        "[[vm]]\nname = \"web\"\npolicy = \"arc\"\ngoal = \"p99 2ms\"\n".to_string(),
        "[[vm.container]]\nname = \"shop\"\npolicy = \"sieve\"\ngoal = \"hit 90.5%\"\n".to_string(),
        disk("own", "a.raw", "policy = \"lru\"\nhint = \"noreuse\""),
        disk("shop", "b.raw", "container = \"shop\"\ngoal = \"iops 300\""),
        disk("mail", "c.raw", "container = \"mail\""),
    ];
    let plan = place.good(&text.concat());
    let shown = |name: &str| {
        let d = plan.find(name).unwrap();
        (d.policy.name(), d.settings.hint.name(), d.goal.map(|g| g.to_string()))
    };
    assert_eq!(shown("own"), ("lru", "noreuse", None));
    assert_eq!(shown("shop"), ("sieve", "normal", Some("iops 300".into())));
    assert_eq!(shown("mail"), ("arc", "normal", None));
    let goals: Vec<_> = plan.nodes.iter().map(|n| (n.name.as_str(), n.goal.map(|g| g.to_string()))).collect();
    assert_eq!(goals, [("web", Some("p99 2ms".into())), ("web/shop", Some("hit 90.5%".into()))]);
    let bad = text.concat().replace("\"sieve\"", "\"seive\"").replace("p99 2ms", "p99 2 ms").replace("noreuse", "once");
    let problems = place.bad(&bad);
    for said in ["did you mean \"sieve\"?", "give `hit 90%`", "unknown hint \"once\""] {
        assert!(problems.contains(said), "{said}: {problems}");
    }
}
