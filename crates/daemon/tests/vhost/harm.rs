//! Front ends that do harm: they take away the memory that they share, or make the worker wait for them. Real sockets,
//! a real worker, real images; a second disk on the same worker shows that others never notice.
//!
//! Owns nothing. Every wait has an end, but for those whose failure is that they have none.

use crate::rig::{Daemon, IN, OUT, Vm};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use undercroft_porttest::vhost::rig::{self, DATA, DATA_SPLIT};
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserInflight;

/// A page of data that is nowhere else.
fn page(seed: u8) -> Vec<u8> {
    (0..4096u32).map(|i| (i / 7) as u8 ^ seed).collect()
}

/// Takes a region of a guest's memory away, by its number in the order of addresses.
fn take_away(vm: &Vm, region: usize) {
    let mapping = &vm.guest.map.regions()[region].mapping;
    mapping.file_offset().unwrap().file().set_len(0).unwrap();
}

/// A disk whose front end will do harm, with a page of data in its second sector group, and a neighbour on its worker.
fn two() -> (Daemon, Daemon, Vm, Vm) {
    let bad = Daemon::new();
    let good = bad.beside();
    let (mut a, mut b) = (Vm::new(&bad), Vm::new(&good));
    for vm in [&mut a, &mut b] {
        vm.start(0, 0);
        vm.guest.write(DATA + 0x1_0000, &page(1));
        assert_eq!(vm.request(0, OUT, 8, (DATA + 0x1_0000, 4096)), 0);
    }
    (bad, good, a, b)
}

/// The neighbour goes on, the front end that did harm is gone, and the next one on its socket is served.
fn others_go_on(bad: &Daemon, good: &mut Vm) {
    assert_eq!(good.request(0, IN, 8, (DATA + 0x2_0000, 4096)), 0);
    assert_eq!(good.guest.read(DATA + 0x2_0000, 4096), page(1));
    bad.wait_connected(false);
    let mut next = Vm::new(bad);
    next.start(0, 0);
    assert_eq!(next.request(0, IN, 8, (DATA + 0x2_0000, 4096)), 0);
    assert_eq!(next.guest.read(DATA + 0x2_0000, 4096), page(1), "the disk has what was written before");
    assert_eq!(good.request(0, IN, 8, (DATA + 0x2_0000, 4096)), 0);
}

#[test]
fn data_of_a_write_that_is_gone_does_not_reach_the_disk() {
    let (bad, _good, mut a, mut b) = two();
    take_away(&a, 2);
    a.post(0, OUT, 8, (DATA_SPLIT + 0x1000, 4096));
    bad.wait_connected(false);
    assert_eq!(bad.image()[4096..8192], page(1), "zeroes that nobody wrote would be here");
    others_go_on(&bad, &mut b);
}

#[test]
fn part_of_a_write_that_is_gone_keeps_all_of_it_off_the_disk() {
    let (bad, _good, mut a, mut b) = two();
    take_away(&a, 2);
    // The first page is there, the second is not; both go to the disk as one operation.
    a.guest.write(DATA_SPLIT - 0x1000, &page(2));
    a.post(0, OUT, 8, (DATA_SPLIT - 0x1000, 8192));
    bad.wait_connected(false);
    assert_eq!(bad.image()[4096..8192], page(1));
    others_go_on(&bad, &mut b);
}

#[test]
fn a_read_into_memory_that_is_gone_ends_its_front_end_alone() {
    let (bad, _good, mut a, mut b) = two();
    take_away(&a, 2);
    a.post(0, IN, 8, (DATA_SPLIT + 0x1000, 4096));
    others_go_on(&bad, &mut b);
}

#[test]
fn rings_that_are_gone_end_their_front_end_alone() {
    let (bad, _good, mut a, mut b) = two();
    a.post(0, IN, 8, (DATA + 0x1_0000, 4096));
    take_away(&a, 0);
    a.post(0, IN, 8, (DATA + 0x1_0000, 4096));
    // What says whether the device wants that is gone, too.
    a.kick(0);
    others_go_on(&bad, &mut b);
}

#[test]
fn headers_that_are_gone_are_not_served() {
    let (bad, _good, mut a, mut b) = two();
    // Rings stay, so that chains are found whose descriptors and headers read as zeroes.
    take_away(&a, 1);
    a.post(0, OUT, 8, (DATA_SPLIT + 0x1000, 4096));
    bad.wait_connected(false);
    assert!(bad.image()[..4096].iter().all(|&b| b == 0) && bad.image()[4096..8192] == page(1));
    others_go_on(&bad, &mut b);
}

#[test]
fn a_record_of_requests_that_is_gone_ends_its_front_end_alone() {
    let bad = Daemon::new();
    let good = bad.beside();
    let (mut a, mut b) = (Vm::new(&bad), Vm::new(&good));
    let (said, sealed) = a.front.get_inflight_fd(&VhostUserInflight::new(0, 0, 4, 64)).unwrap();
    assert!(sealed.set_len(0).is_err(), "what we hand out is sealed");
    // A front end may hand over a file of its own, which it can cut short.
    let own = File::from(rustix::fs::memfd_create("own", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    own.set_len(said.mmap_size).unwrap();
    a.front.set_inflight_fd(&said, own.as_raw_fd()).unwrap();
    for vm in [&mut a, &mut b] {
        vm.start(0, 0);
        vm.guest.write(DATA + 0x1_0000, &page(1));
        assert_eq!(vm.request(0, OUT, 8, (DATA + 0x1_0000, 4096)), 0);
    }
    own.set_len(0).unwrap();
    a.post(0, IN, 8, (DATA + 0x1_0000, 4096));
    others_go_on(&bad, &mut b);
}

#[test]
fn a_notification_that_is_made_to_block_holds_nobody_up() {
    let (bad, _good, mut a, mut b) = two();
    let trap = |vm: &Vm| {
        let call = &vm.calls[0];
        let _ = call.read();
        call.write(u64::MAX - 1).unwrap();
        // The flag belongs to the open file, which daemon and front end share.
        let us = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        let same = pidfd_getfd(us, call.as_raw_fd(), PidfdGetfdFlags::empty()).unwrap();
        let flags = fcntl_getfl(&same).unwrap();
        fcntl_setfl(&same, flags & !OFlags::NONBLOCK).unwrap();
    };
    trap(&a);
    a.guest.ask(0);
    a.post(0, IN, 8, (DATA + 0x1_0000, 4096));
    bad.wait_connected(false);
    others_go_on(&bad, &mut b);
    // The second time nothing waits at all, and the front end may stay: it harms itself only.
    let mut again = Vm::new(&bad);
    again.start(0, 0);
    assert_eq!(again.request(0, IN, 8, (DATA + 0x1_0000, 4096)), 0, "this way notifies as well");
    trap(&again);
    again.guest.ask(0);
    again.post(0, IN, 8, (DATA + 0x1_0000, 4096));
    assert_eq!(b.request(0, IN, 8, (DATA + 0x2_0000, 4096)), 0);
    assert!(again.front.get_features().is_ok());
}

#[test]
fn memory_that_could_make_the_worker_wait_is_refused_unless_trusted() {
    let bad = Daemon::new();
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let file = File::options().read(true).write(true).create_new(true).open(dir.path().join("ram")).unwrap();
    if undercroft_host::backing(&file).unwrap() != undercroft_host::Backing::Other {
        return undercroft_skips::skip("the source tree is on tmpfs");
    }
    file.set_len(0x10_0000).unwrap();
    let share = |daemon: &Daemon| {
        let vm = Vm::connect(daemon, rig::Guest::new(4, 64));
        let region = vhost::VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: 0x10_0000,
            userspace_addr: 0x7f00_0000_0000,
            mmap_offset: 0,
            mmap_handle: file.as_fd().as_raw_fd(),
        };
        vm.front.set_mem_table(&[region]).is_ok()
    };
    assert!(!share(&bad), "a file on a disk");
    bad.wait_connected(false);
    let trusting = bad.beside().trusting();
    assert!(share(&trusting));
}
