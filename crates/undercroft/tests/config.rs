//! Configuration files, good and bad: what they mean, and that every problem names the thing and the remedy.
//!
//! Owns tables of files. Uses real files and images in a temporary directory.

use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use undercroft::config::{
    self, DiskSpec, Layout, LogFormat, LogLevel, Machine, NbdListen, Overrides, PlanChange, ServePlan, Severity,
};
use undercroft::control::{DiskChange, NodeChange};
use undercroft_engine::PolicyKind;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A directory with images, and a machine of known size.
struct Place {
    dir: tempfile::TempDir,
    machine: Machine,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a.raw", "b.raw", "c.raw"] {
            fs::write(dir.path().join(name), [0; 4096]).unwrap();
        }
        let machine = Machine {
            memory_bytes: 8 * GIB,
            cpus: 6,
            runtime_dir: dir.path().join("run"),
            current_dir: PathBuf::from("/"),
            groups: vec![("kvm".into(), 104), ("adm".into(), 4)],
        };
        Place { dir, machine }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn resolve(&self, text: &str) -> config::Resolution {
        let file = self.at("undercroft.toml");
        fs::write(&file, text).unwrap();
        config::load(&file, &self.machine, &Overrides::default()).expect("the file is readable")
    }

    fn good(&self, text: &str) -> ServePlan {
        let (plan, warnings) = self.resolve(text).accept().unwrap_or_else(|e| panic!("{e}\nin:\n{text}"));
        assert!(warnings.is_empty(), "{warnings:?}\nin:\n{text}");
        plan
    }

    /// The problems of a bad file, one a line.
    fn bad(&self, text: &str) -> String {
        let e = self.resolve(text).accept().expect_err(text);
        for p in &e.problems {
            assert!(!p.error.is_empty() && !p.remedy.is_empty(), "{p:?}");
        }
        e.to_string()
    }
}

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
    assert_eq!(plan.nbd, [NbdListen::Unix(place.at("nbd.sock")), tcp]);

    let [root, data, plain] = &plan.disks[..] else { panic!("three disks") };
    assert_eq!((root.name.as_str(), root.vm.as_deref()), ("web:root", Some("web")));
    assert_eq!(root.image.location, place.at("a.raw").to_str().unwrap());
    assert_eq!(root.socket, Some(place.at("web.sock")));
    assert_eq!((root.policy, root.share_bytes, root.share_fixed), (PolicyKind::Arc, 512 * MIB, true));
    assert_eq!((root.readahead_bytes, root.write_allocate), (MIB as u32, false));
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
}

#[test]
fn every_bad_input_names_the_thing_and_the_remedy() {
    let disk = |more: &str| format!("[[disk]]\nname = \"d\"\nimage = \"a.raw\"\n{more}");
    let long = "x".repeat(110);
    let two =
        |one: &str, other: &str| format!("[[disk]]\nname=\"d\"\nimage=\"a.raw\"\n{one}\n[[disk]]\nname=\"e\"\n{other}");
    let table: Vec<(String, &[&str])> = vec![
        // Notation.
        ("[store]\nmemory = 512MiB".into(), &["toml:2: error", "this is not TOML", "memory = \"512MiB\""]),
        ("[store\n".into(), &[":1: error", "this is not TOML"]),
        ("[store]\nmemory = \"1GiB\"\nmemory = \"2GiB\"".into(), &[":3: error", "duplicate key"]),
        ("[stor]\nmemory = 1".into(), &["unknown key \"stor\" in the file", "did you mean \"store\"?"]),
        ("[store]\nmemroy = \"1GiB\"".into(), &[":2: error: store: unknown key \"memroy\"", "\"memory\"?"]),
        (disk("sise = \"1GiB\""), &[":4: error: disk \"d\": unknown key \"sise\"", "did you mean \"size\"?"]),
        (disk("memory = \"1GiB\""), &["unknown key \"memory\"", "it belongs into [store]"]),
        (disk("wombat = 1"), &["unknown key \"wombat\"", "known keys are name, image"]),
        ("disk = 3".into(), &["\"disk\" must be a list of tables", "[[disk]]"]),
        ("[vm]\nname = \"a\"".into(), &["\"vm\" is one table", "[[vm]] in double brackets"]),
        ("[[vm]]\nname = \"v\"\n[vm.disk]\nname = \"a\"".into(), &["[[vm.disk]] in double brackets"]),
        ("[[vm]]\n".into(), &["vm 1: it has no name", "add name"]),
        ("[[disk]]\nname = \"d\"".into(), &["disk \"d\": it has no image", "add image"]),
        ("[[disk]]\nimage = \"a.raw\"".into(), &["it has no name", "below [[disk]]"]),
        (disk("read_only = \"yes\""), &["\"read_only\" must be true or false, not a text", "read_only = true"]),
        (disk("policy = 3"), &["\"policy\" must be a text, not a number"]),
        (disk("queues = 2.5"), &["\"queues\" must be a whole number, not a number with a fraction"]),
        (disk("queues = -1"), &["\"queues\" must not be -1", "allowed is 1 to 64"]),
        // Sizes and times.
        ("[store]\nmemory = \"512M\"".into(), &["\"512M\" is ambiguous", "512MiB (powers of 1024) or 512MB"]),
        ("[store]\nmemory = \"lots\"".into(), &["memory: \"lots\" is not a size", "512MiB"]),
        ("[store]\nmemory = true".into(), &["\"memory\" must be a size, not true or false", "\"512MiB\""]),
        ("[store]\nmemory = -5".into(), &["memory: \"-5\" is not a size"]),
        (disk("poll = \"50\""), &["poll: \"50\" has no unit", "50us"]),
        (disk("poll = \"1s\""), &["poll is 1s, too long", "at most 10ms"]),
        // Limits.
        ("[store]\nmemory = \"1MiB\"".into(), &["memory is 1MiB, too little", "at least 8MiB"]),
        ("[store]\nmemory = \"9GiB\"".into(), &["memory is 9GiB, but this machine has 8GiB", "give less"]),
        (disk("size = \"2GiB\""), &["disk \"d\": size is 2GiB, but the memory of the store is 1GiB", "smaller"]),
        (disk("size = \"1KiB\""), &["size is 1KiB, too little", "at least 4MiB"]),
        (
            two("size = \"600MiB\"", "image = \"b.raw\"\nsize = \"600MiB\""),
            &["the sizes of the disks add up to 1200MiB, but memory is 1GiB", "memory larger"],
        ),
        (
            two("size = \"1GiB\"", "image = \"b.raw\""),
            &["leave 0B of 1GiB memory, too little for disk \"e\"", "at least 4MiB"],
        ),
        (disk("weight = 0"), &["weight must not be 0", "1 to 10000"]),
        (disk("queues = 65"), &["queues must not be 65", "1 to 64"]),
        (disk("queue_size = 100"), &["queue_size must not be 100", "power of two from 2 to 1024"]),
        (disk("readahead = \"1GiB\""), &["readahead is 1GiB", "at most 4MiB"]),
        (disk("serial = \"much too long for a serial\""), &["cannot be a serial number", "1 to 20 printable"]),
        (disk("serial = \"ü\""), &["cannot be a serial number", "ASCII"]),
        ("[daemon]\nworkers = 0".into(), &["workers must not be 0", "1 to 256"]),
        // Words.
        (disk("policy = \"lur\""), &["unknown policy \"lur\"", "did you mean \"lru\"?", "w-tinylfu"]),
        (disk("format = \"qcow\""), &["unknown format \"qcow\"", "did you mean \"qcow2\"?"]),
        (disk("format = \"vmdk\""), &["unknown format \"vmdk\"", "qemu-nbd"]),
        ("[daemon]\nlog_level = \"wran\"".into(), &["log_level: unknown value \"wran\"", "\"warn\"?"]),
        ("[daemon]\nlog_format = \"xml\"".into(), &["unknown value \"xml\"", "known are text, json"]),
        ("[daemon]\ndisk_group = \"kvmm\"".into(), &["no group \"kvmm\"", "did you mean \"kvm\"?"]),
        (
            "[daemon]\nmetrics = \"localhost:1\"".into(),
            &["metrics: \"localhost:1\" is not an IP address", "127.0.0.1:9464"],
        ),
        ("[nbd]\ntcp = \"10809\"".into(), &["tcp: \"10809\" is not an IP address with a port", "127.0.0.1:10809"]),
        // Names.
        (
            "[[disk]]\nname = \"a/b\"\nimage = \"a.raw\"".into(),
            &["\"a/b\" cannot be the name of a disk", "use letters"],
        ),
        (format!("[[disk]]\nname = \"{long}\"\nimage = \"a.raw\""), &["cannot be the name of a disk", "at most 64"]),
        ("[[disk]]\nname = \"\"\nimage = \"a.raw\"".into(), &["\"\" cannot be the name of a disk"]),
        (
            "[[disk]]\nname=\"d\"\nimage=\"a.raw\"\n[[disk]]\nname=\"d\"\nimage=\"b.raw\"".into(),
            &[":5: error: disk \"d\": there is a disk of that name on line 2 already", "another name"],
        ),
        (
            "[[vm]]\nname=\"v\"\n[[vm]]\nname=\"v\"".into(),
            &[":4: error: vm \"v\": there is a VM of that name on line 2 already"],
        ),
        // Sockets.
        (disk(&format!("socket = \"/tmp/{long}\"")), &["is 115 bytes long", "allows 107", "shorter path"]),
        (disk("socket = \"nowhere/x.sock\""), &["directory of the socket", "does not exist", "mkdir -p"]),
        (disk("socket = \"b.raw\""), &["b.raw is there already and is no socket", "another path"]),
        (
            two("socket = \"s\"", "image=\"b.raw\"\nsocket = \"s\""),
            &["is that of disk \"d\" (line 4) too", "a path of its own"],
        ),
        ("[daemon]\ncontrol = \"s\"\n[nbd]\nunix = \"s\"".into(), &["s is that of the control socket (line 2) too"]),
        (disk("socket = \"\""), &["socket is empty", "leave the key out"]),
        (disk("vhost_user = false"), &["neither a vhost-user socket nor an NBD export", "nbd = true"]),
        (disk("vhost_user = false\nsocket = \"s\""), &["it has a socket, but vhost_user = false"]),
        (disk("nbd = true"), &["no NBD listener", "add [nbd]"]),
        // Images.
        (
            "[[disk]]\nname = \"d\"\nimage = \"no.qcow2\"".into(),
            &["no.qcow2 does not exist", "qemu-img create -f qcow2", "no.qcow2 20G"],
        ),
        ("[[disk]]\nname = \"d\"\nimage = \".\"".into(), &["neither a file nor a block device", "NBD URI"]),
        ("[[disk]]\nname = \"d\"\nimage = \"/dev/null\"".into(), &["/dev/null is neither a file nor a block device"]),
        ("[[disk]]\nname = \"d\"\nimage = \"a.raw/x\"".into(), &["cannot be reached"]),
        ("[[disk]]\nname = \"d\"\nimage = \"http://h/x\"".into(), &["the scheme \"http\" is not known", "nbd://HOST"]),
        ("[[disk]]\nname = \"d\"\nimage = \"nbd+unix:///x\"".into(), &["names no socket", "?socket=PATH"]),
        (
            "[[disk]]\nname = \"d\"\nimage = \"nbd://h/x\"\nformat = \"raw\"".into(),
            &["is an NBD server, but format says otherwise", "leave format out"],
        ),
        (disk("format = \"nbd\""), &["format is nbd, but the image", "is no URI"]),
        (two("", "image = \"a.raw\""), &["is that of disk \"d\" too, and both write it", "qemu-img create -b"]),
        (
            two("", "image = \"./a.raw\"\nread_only = true"),
            &["too, and one of them writes it", "read_only = true on both"],
        ),
        (
            two("", "image = \"overlay\""),
            &[":3: error: disk \"d\"", "is a backing file of disk \"e\"", "read_only = true here"],
        ),
    ];
    let place = Place::new();
    let made = std::process::Command::new("sh")
        .current_dir(place.dir.path())
        // A qcow2 header: magic, version 3, backing name at 24, 5 bytes long.
        .args(["-c", r"printf 'QFI\373\0\0\0\3\0\0\0\0\0\0\0\30\0\0\0\5....a.raw' > overlay"])
        .status();
    assert!(made.unwrap().success());
    for (text, needles) in table {
        let said = place.bad(&text);
        for needle in needles {
            assert!(said.contains(needle), "\"{needle}\" is missing in:\n{said}\nof:\n{text}");
        }
    }
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
    let example = include_str!("../../../dist/undercroft.toml");
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
        .replace("/run/undercroft", place.dir.path().to_str().unwrap());
    let plan = place.good(&whole);
    assert_eq!(plan.disks.len(), 3);
    assert!(whole.contains("\n[nbd]\n") && plan.nbd.len() == 2, "the example was uncommented");
    // Its values are the defaults where it says so.
    let defaults = place.resolve("").plan;
    assert_eq!(
        (plan.store, plan.daemon.poll, plan.daemon.log),
        (defaults.store, defaults.daemon.poll, defaults.daemon.log)
    );
}

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
    let change = |weight| NodeChange { weight: Some(weight), ..NodeChange::default() };
    let less = plan.with_node("web", &change(100)).unwrap();
    assert_eq!(shares(&less).iter().sum::<u64>(), 1024);
    assert!(less.disks[2].share_bytes >= 256 * MIB && less.disks[1].share_bytes >= 384 * MIB, "{:?}", shares(&less));
    for (node, change, needle) in [
        ("web", NodeChange { floor_bytes: Some(2 * GIB), ..NodeChange::default() }, "too little for floors"),
        ("web/shop", NodeChange { ceiling_bytes: Some(Some(MIB)), ..NodeChange::default() }, "below its floor of 4MiB"),
        ("wbe", change(7), "did you mean \"web\"?"),
        ("host", change(7), "the host has no weight"),
    ] {
        let e = plan.with_node(node, &change).unwrap_err().to_string();
        assert!(e.contains(needle), "{needle}: {e}");
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

/// The nearest policy counts: a disk's own, its container's, its VM's; and so does what is set live, until the file is read again.
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
    let set = |plan: &ServePlan, node: &str, policy: Option<PolicyKind>| {
        plan.with_node(node, &NodeChange { policy: Some(policy), ..NodeChange::default() }).unwrap()
    };
    let vm = set(&plan, "web", Some(PolicyKind::Sieve));
    assert_eq!(policies(&vm), ["arc", "sieve", "fifo"]);
    assert_eq!(vm.disks.iter().map(|d| d.share_bytes).sum::<u64>(), GIB, "shares stay");
    let container = set(&vm, "web/shop", None);
    assert_eq!(policies(&container), ["sieve", "sieve", "fifo"]);
    let disk = set(&set(&container, "web:c", None), "b", Some(PolicyKind::Car));
    assert_eq!(policies(&disk), ["sieve", "car", "sieve"]);
    assert_eq!(policies(&set(&disk, "web", None)), ["s3-fifo", "car", "s3-fifo"], "the default is left");
    // As with `set DISK --policy`; a disk that comes inherits, too.
    let own =
        vm.with_change("web:a", &DiskChange { policy: Some(PolicyKind::Clock), ..DiskChange::default() }).unwrap();
    assert_eq!(policies(&set(&own, "web/shop", Some(PolicyKind::Lru))), ["clock", "sieve", "fifo"]);
    fs::write(place.at("d.raw"), [0; 4096]).unwrap();
    let more = DiskSpec { vm: Some("web".into()), ..spec(&place, "d", "d.raw") };
    assert_eq!(policies(&vm.with_disk(&more, &place.machine).unwrap()), ["arc", "sieve", "fifo", "sieve"]);
    // The file, read again, has the last word.
    let change = own.difference(&plan);
    assert_eq!(policies(&change.result.unwrap()), ["arc", "lru", "fifo"]);
    let host =
        plan.with_node("host", &NodeChange { policy: Some(None), ..NodeChange::default() }).unwrap_err().to_string();
    assert!(host.contains("the host has no weight, floor, ceiling, goal, hint or policy"), "{host}");
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
    let set = |plan: &ServePlan, node: &str, change: NodeChange| plan.with_node(node, &change);
    let ceiling = |bytes: u64| NodeChange { ceiling_bytes: Some(Some(bytes)), ..NodeChange::default() };
    let floor = |bytes: u64| NodeChange { floor_bytes: Some(bytes), ..NodeChange::default() };
    let weight = |weight| NodeChange { weight: Some(weight), ..NodeChange::default() };
    let floor_of = |plan: &ServePlan, node: &str| {
        let mut layout = Layout::default();
        layout.follow(plan).unwrap();
        let id = layout.find(node).unwrap();
        layout.tree().node(id).unwrap().settings().floor * 4096 / MIB
    };
    // What fits of 64 MiB after the 4 MiB that each disk needs; the first by name has it.
    let small = set(&plan, "web", ceiling(64 * MIB)).unwrap();
    assert_eq!([floor_of(&small, "web/shop"), floor_of(&small, "web:a"), floor_of(&small, "web:b")], [60, 60, 4]);
    assert!(small.disks[..2].iter().all(|d| d.share_bytes >= 4 * MIB), "{:?}", small.disks);
    // Nothing that was set is lost: with the ceiling gone it is all there again.
    let back = set(&small, "web", NodeChange { ceiling_bytes: Some(None), ..NodeChange::default() }).unwrap();
    assert_eq!(["web/shop", "web:a", "web:b"].map(|n| floor_of(&back, n)), [300, 200, 100]);
    // The host's changes all happen: weights, other VMs, other disks.
    let light = set(&plan, "db", weight(10_000)).unwrap();
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
        let e = set(plan, node, change).unwrap_err().to_string();
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

fn two_disks() -> &'static str {
    "[store]\nmemory=\"1GiB\"\n[[disk]]\nname=\"d\"\nimage=\"a.raw\"\n[[disk]]\nname=\"e\"\nimage=\"b.raw\"\n"
}

fn spec(place: &Place, name: &str, image: &str) -> DiskSpec {
    DiskSpec { name: name.into(), image: place.at(image).to_str().unwrap().into(), ..DiskSpec::default() }
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
        (DiskSpec { size: Some(undercroft::units::Size(GIB)), ..spec(&place, "f", "c.raw") }, "leave 0B"),
        (DiskSpec { socket: Some(place.at("run/e.sock")), ..spec(&place, "f", "c.raw") }, "is that of disk \"e\" too"),
        (DiskSpec { nbd: Some(true), ..spec(&place, "f", "c.raw") }, "no NBD listener"),
        (spec(&place, "f", "none.raw"), "does not exist"),
    ] {
        let e = with(spec).unwrap_err();
        assert!(e.contains(needle), "{needle}: {e}");
    }
}

#[test]
fn a_changed_size_leaves_room_for_the_others_or_is_refused() {
    let place = Place::new();
    let plan = place.good(two_disks());
    let change = |bytes| DiskChange { share_bytes: Some(bytes), ..DiskChange::default() };
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
    /// Whatever is changed by hand, in whatever order: the shares fit into the store, and a size that was set is had.
    #[test]
    fn shares_fit_after_every_change(changes in prop::collection::vec((0usize..3, 0u8..5, 1u64..900), 1..12)) {
        let place = Place::new();
        let mut plan = place.good(
            "[store]\nmemory=\"1GiB\"\n[[vm]]\nname=\"web\"\n[[vm.disk]]\nname=\"a\"\nimage=\"a.raw\"\n\
             [[vm.disk]]\nname=\"b\"\nimage=\"b.raw\"\n[[vm]]\nname=\"db\"\n[[vm.disk]]\nname=\"c\"\nimage=\"c.raw\"\n",
        );
        for (disk, what, amount) in changes {
            let (name, bytes) = (["web:a", "web:b", "db:c"][disk], amount * MIB);
            let node = |change: NodeChange| plan.with_node(name, &change);
            let done = match what {
                0 | 1 => plan.with_change(name, &DiskChange { share_bytes: Some(bytes), ..DiskChange::default() }),
                2 => node(NodeChange { weight: Some(amount as u32), ..NodeChange::default() }),
                3 => node(NodeChange { floor_bytes: Some(bytes), ..NodeChange::default() }),
                _ => node(NodeChange { ceiling_bytes: Some(Some(bytes)), ..NodeChange::default() }),
            };
            let Ok(next) = done else { continue };
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
    let expected = DiskChange { share_bytes: Some(256 * MIB), policy: Some(PolicyKind::Arc), poll: None };
    assert_eq!(change.changed, [("d".to_string(), expected)]);
    assert_eq!(change.log_level, Some(LogLevel::Debug));
    let rest = change.needs_restart.join("\n");
    for needle in ["store.memory: 1GiB -> 2GiB", "daemon.workers: 6 -> 2", "disk \"d\": queues"] {
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

#[test]
fn what_shrinks_comes_before_what_grows() {
    let place = Place::new();
    let of = |d: &str, e: &str| {
        let text = two_disks().replace("a.raw\"", &format!("a.raw\"\nsize=\"{d}\""));
        place.good(&text.replace("b.raw\"", &format!("b.raw\"\nsize=\"{e}\"")))
    };
    let order = |from: ServePlan, to: ServePlan| {
        from.difference(&to).changed.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(order(of("768MiB", "256MiB"), of("256MiB", "768MiB")), ["d", "e"]);
    assert_eq!(order(of("256MiB", "768MiB"), of("768MiB", "256MiB")), ["e", "d"]);
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_text_panics(text in "(\\[\\[?(store|daemon|nbd|vm|vm\\.disk|disk)\\]\\]?\n|(memory|name|image|size|poll|queues|weight|socket|unix|tcp|workers) ?= ?(\"\\PC{0,8}\"|-?[0-9]{1,20}|true|\\[\\]|\\{\\}|1\\.5|1979-05-27)\n|\\PC{0,6}\n){0,12}") {
        config::check_bytes(text.as_bytes());
    }
}

#[test]
fn floor_pressure_and_ksm_are_planned_with_their_defaults() {
    use undercroft::ksm::{Advisor, KsmPlan};
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
    let disk = "[[vm]]\nname = \"web\"\npid_file = \"web.pid\"\n[[vm.disk]]\nname = \"a\"\nimage = \"a.raw\"\nformat = \"raw\"\n";
    let plain = place.good("[[disk]]\nname = \"a\"\nimage = \"a.raw\"\nformat = \"raw\"\n").scan;
    assert!(!plain.enabled && plain.to_string() == "off");
    let scan =
        "[scan]\nenabled = true\ncpu = \"2.5%\"\nperiod_min = \"1s\"\nperiod_max = \"2min\"\nmemory = \"8MiB\"\n";
    let plan = place.good(&format!("{scan}{disk}"));
    assert_eq!(plan.scan.cpu, undercroft::units::Percent(250));
    assert_eq!((plan.scan.period_min.as_secs(), plan.scan.period_max.as_secs()), (1, 120));
    assert_eq!(plan.scan.pid_files, [("web".to_string(), place.at("web.pid"))]);
    assert!(!plan.scan.track_writes);

    let bad = place.bad(&format!(
        "[scan]\nenabled = true\ncpu = \"0%\"\nperiod_min = \"5ms\"\nperiod_max = \"2000min\"\nmemory = \"4KiB\"\n{disk}"
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
        (d.policy.name(), d.hint.name(), d.goal.map(|g| g.to_string()))
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
