//! Changes while a worker does not answer: what its disks have is for nobody else, and is not said to be changed.
//!
//! Owns workers that are held up for as long as a test wants. Never waits for time but where the service does: five
//! seconds for a worker that is silent.

use super::Service;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use undercroft_api::ranges::{RangeBody, RangeList, RangeListBody};
use undercroft_config::{
    ControlError, ControlErrorKind, DiskSpec, Machine, NodeChange, Overrides, ServePlan, Written, keys,
};
use undercroft_http::{Caller, Daemon};

const MIB: u64 = 1 << 20;

/// A file of 64 MiB for `one:a` and `two:b`, which are on workers of their own, with further keys of each.
pub(super) fn write_file(dir: &Path, of_a: &str, of_b: &str) -> PathBuf {
    let disk = |vm: &str, name: &str, keys: &str| {
        format!("[[vm]]\nname={vm:?}\n[[vm.disk]]\nname={name:?}\nimage=\"a.raw\"\nread_only=true\n{keys}\n")
    };
    let head = "[store]\nmemory=\"64MiB\"\nfloor=\"8MiB\"\ndeduplicate=false\n[shares]\ninterval=\"600s\"\n";
    let daemon = format!("[daemon]\nruntime_dir={dir:?}\nworkers=2\n");
    let file = dir.join("undercroft.toml");
    std::fs::write(dir.join("a.raw"), vec![0; 1 << 20]).unwrap();
    std::fs::write(&file, [head, &daemon, &disk("one", "a", of_a), &disk("two", "b", of_b)].concat()).unwrap();
    file
}

/// The plan of such a file.
pub(super) fn two_vms(dir: &Path) -> ServePlan {
    let file = write_file(dir, "", "");
    undercroft_config::load(&file, &Machine::here(), &Overrides::default()).unwrap().accept().unwrap().0
}

/// Keeps a worker from its mail until what is returned is dropped.
fn hold_up(service: &Service, worker: usize) -> Sender<()> {
    let (held, until) = channel();
    service.workers[worker].send(move |_| _ = until.recv()).unwrap();
    held
}

/// Lets it look at its mail, and waits until it has.
fn go_on(service: &Service, held: Sender<()>) {
    drop(held);
    while service.workers[0].call(|_| ()).is_err() {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Bytes that the cores let disks have.
fn had_bytes(service: &Service) -> u64 {
    let of = |disk: &Arc<super::ServedDisk>| {
        let id = disk.id();
        let had = move |w: &mut crate::worker::Worker| {
            let blocks = w.core().stats(id).capacity_blocks;
            w.core().bytes_for(id, blocks)
        };
        disk.host().worker.call(had).unwrap()
    };
    service.disks().iter().map(of).sum()
}

fn share(service: &Service, name: &str) -> u64 {
    service.plan().find(name).unwrap().share_bytes
}

fn set(key: &'static str, text: &str) -> NodeChange {
    NodeChange::default().with(key, Written::parse(keys::settable(key).unwrap(), text).unwrap())
}

fn is_silent<T>(result: Result<T, ControlError>) {
    let e = result.err().expect("its worker does not answer");
    assert_eq!(e.kind, ControlErrorKind::Unavailable, "{e}");
    assert!(e.error.contains("worker w0 has not answered"), "{e}");
}

#[test]
fn what_a_disk_of_a_silent_worker_has_is_for_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(two_vms(dir.path())).unwrap();
    let workers: Vec<usize> = service.disks().iter().map(|d| d.worker_number()).collect();
    assert_eq!(workers, [0, 1]);
    let (a, by) = (share(&service, "one:a"), Caller::Signal);
    let held = hold_up(&service, 0);
    // What others are entitled to now comes to them when it is there.
    let changed = service.change_node("two", set("weight", "300"), None, &by).unwrap();
    assert_eq!((changed.node.weight, share(&service, "one:a")), (300, a));
    assert!(share(&service, "two:b") + a <= 64 * MIB);
    // A size is had at once, or refused.
    is_silent(service.change_node("two:b", set("size", "48MiB"), None, &by));
    service.change_node("two:b", set("size", "20MiB"), None, &by).unwrap();
    let spec = |size: &str| DiskSpec {
        name: "c".into(),
        image: dir.path().join("a.raw").display().to_string(),
        read_only: Some(true),
        size: Some(size.parse().unwrap()),
        ..DiskSpec::default()
    };
    is_silent(service.add_disk(spec("16MiB"), &by));
    assert_eq!(service.disks().len(), 2);
    service.add_disk(spec("12MiB"), &by).unwrap();
    let shares = ["one:a", "two:b", "c"].map(|name| share(&service, name));
    assert_eq!(shares, [a, 20 * MIB, 12 * MIB]);
    service.remove_disk("c", &by).unwrap();
    assert_eq!(share(&service, "one:a"), a);
    go_on(&service, held);
    assert!(had_bytes(&service) <= 64 * MIB, "{}", had_bytes(&service));
    service.shut_down();
}

#[test]
fn what_a_silent_worker_is_not_told_is_not_said_to_be_done() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(two_vms(dir.path())).unwrap();
    let (before, by) = (service.plan(), Caller::Signal);
    let held = hold_up(&service, 0);
    for (name, key, value) in [("one:a", "ceiling", "8MiB"), ("one:a", "policy", "lru"), ("one", "policy", "lru")] {
        is_silent(service.change_node(name, set(key, value), None, &by));
    }
    is_silent(service.change_disk("one:a", set("size", "8MiB"), &by));
    is_silent(service.drop_cache("one:a"));
    let list = |ranges: Vec<RangeBody>| {
        RangeList::new(RangeListBody { disk: "one:a".into(), container: "shop".into(), ranges }).unwrap()
    };
    is_silent(service.set_ranges(list(vec![RangeBody { offset_bytes: 0, length_bytes: 4096 }]), &by));
    assert_eq!(*service.plan(), *before, "it is as it was");
    // What is the other's is done.
    service.change_node("two:b", set("policy", "lru"), None, &by).unwrap();
    go_on(&service, held);
    service.change_node("one:a", set("ceiling", "8MiB"), None, &by).unwrap();
    assert_eq!(share(&service, "one:a"), 8 * MIB);
    assert!(had_bytes(&service) <= 64 * MIB);
    service.shut_down();
}

#[test]
fn a_reload_names_what_a_silent_worker_was_not_told() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(two_vms(dir.path())).unwrap();
    let by = Caller::Signal;
    let policy = |name: &str| service.plan().find(name).unwrap().policy.name();
    let held = hold_up(&service, 0);
    write_file(dir.path(), "policy=\"lru\"", "policy=\"arc\"");
    let report = service.reload(false, &by).unwrap();
    assert_eq!(report.changed, ["disk \"two:b\": policy: inherit -> arc"]);
    let [failed] = &report.failed[..] else { panic!("{report:?}") };
    assert!(failed.contains("one:a") && failed.contains("worker w0 has not answered"), "{failed}");
    assert_eq!([policy("one:a"), policy("two:b")], ["s3-fifo", "arc"]);
    go_on(&service, held);
    let report = service.reload(false, &by).unwrap();
    assert_eq!((report.changed, report.failed), (vec!["disk \"one:a\": policy: inherit -> lru".to_owned()], vec![]));
    assert_eq!(policy("one:a"), "lru");
    service.shut_down();
}
