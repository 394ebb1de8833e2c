//! Disks that were put on a worker, could not be reached there, and do not go: what they have is for nobody else.
//!
//! Owns an image that takes its time to be closed. Never waits for time but where the service does: ten seconds for a
//! disk that does not go.

use super::silent_tests::two_vms;
use super::{Service, disk};
use crate::watched_backend::{Watch, Watched};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use undercroft_config::{NodeChange, ServePlan, Written};
use undercroft_http::{Caller, Daemon};

/// Sees to it that an image is closed when somebody says so.
struct Stubborn(Receiver<()>);

impl Watch for Stubborn {}

impl Drop for Stubborn {
    fn drop(&mut self) {
        let _ = self.0.recv();
    }
}

/// Waits until it is so.
fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// `two:b` opened so that it does not go when it cannot be reached: its socket cannot be made, and its image is closed
/// when the sender is dropped.
fn stubborn(dir: &Path, plan: &ServePlan) -> (disk::Opened, Sender<()>) {
    let mut opened = disk::open(plan.find("two:b").unwrap().clone(), false).unwrap();
    let (close, until) = channel();
    opened.backend = Box::new(Watched { watch: Stubborn(until), real: opened.backend });
    opened.plan.socket = Some(dir.join("nowhere/b.sock"));
    (opened, close)
}

#[test]
fn a_disk_that_cannot_be_reached_and_does_not_go_keeps_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let mut whole = two_vms(dir.path());
    whole.disks[1].socket = Some(dir.path().join("nowhere/b.sock"));
    let alone = whole.without_disk("two:b").unwrap();
    let (all, half) = (alone.disks[0].share_bytes, whole.disks[1].share_bytes);
    let service = Service::start(alone).unwrap();
    let (opened, close) = stubborn(dir.path(), &whole);
    let change = service.change.lock();
    let e = service.attach(whole, opened, &Default::default()).err().expect("there is no such directory").to_string();
    assert!(e.contains("nowhere/b.sock"), "{e}");
    drop(change);
    let plan = service.plan();
    assert_eq!((plan.disks.len(), plan.going_bytes, plan.disks[0].share_bytes), (1, half, all - half));
    drop(close);
    until(|| service.plan().going_bytes == 0);
    assert_eq!(service.plan().disks[0].share_bytes, all);
    service.shut_down();
}

/// `two:b` waits, and what a try has left of it does not go.
fn waits_for_what_it_left(dir: &Path) -> (Arc<Service>, Sender<()>) {
    let whole = two_vms(dir);
    let service = Service::start(whole.without_disk("two:b").unwrap()).unwrap();
    let (opened, close) = stubborn(dir, &whole);
    let change = service.change.lock();
    let plan = service.apply(whole, |_| false).unwrap();
    let unserved = service.serve_opened(opened, &plan).err().expect("there is no such directory");
    assert!(unserved.left.is_some());
    let own = plan.find("two:b").unwrap().clone();
    service.adopt(plan);
    let waiting = service.let_wait(&own, unserved);
    drop(change);
    assert!(waiting.has_left());
    (service, close)
}

#[test]
fn a_disk_that_waits_is_tried_again_when_what_it_left_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (service, close) = waits_for_what_it_left(dir.path());
    let (share, by) = (|| service.plan().find("two:b").unwrap().share_bytes, Caller::Signal);
    let half = share();
    // Whatever others are entitled to now, what it left has this share.
    let weight = NodeChange::default().with("weight", Written::Number(300));
    service.change_node("one", weight.clone(), None, &by).unwrap();
    assert_eq!(share(), half);
    let e = service.change_node("two:b", weight, None, &by).unwrap_err();
    assert!(e.error.contains("tried again when what the last try opened is closed"), "{e}");
    // Long enough for a second try, which would find its socket and be served.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(service.disks().len(), 1);
    drop(close);
    until(|| service.disks().len() == 2);
    assert_eq!((share(), service.plan().going_bytes), (half, 0));
    service.shut_down();
}

/// What such a disk has is for nobody once `unwanted` has made it so that nobody wants it, until it is gone.
fn goes_when_it_is(unwanted: impl FnOnce(&Service, &Path)) {
    let dir = tempfile::tempdir().unwrap();
    let (service, close) = waits_for_what_it_left(dir.path());
    let before = service.plan();
    let [a, b] = [0, 1].map(|at| before.disks[at].share_bytes);
    unwanted(&service, dir.path());
    let plan = service.plan();
    assert_eq!((plan.disks.len(), plan.going_bytes, plan.disks[0].share_bytes), (1, b, a));
    assert!(service.all_waiting().is_empty());
    drop(close);
    until(|| service.plan().going_bytes == 0);
    assert_eq!(service.plan().disks[0].share_bytes, a + b);
    service.shut_down();
}

#[test]
fn what_a_disk_left_that_is_detached_goes_as_it_would() {
    goes_when_it_is(|service, _| service.remove_disk("two:b", &Caller::Signal).unwrap());
}

#[test]
fn what_a_disk_left_that_a_file_does_not_name_goes_as_it_would() {
    goes_when_it_is(|service, dir| {
        let file = dir.join("undercroft.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(file, &text[..text.rfind("[[vm]]").unwrap()]).unwrap();
        let report = service.reload(false, &Caller::Signal).unwrap();
        assert!(report.failed.is_empty(), "{report:?}");
    });
}
