//! The whole path, but for a virtual machine: a front end on a socket, a real worker, a real core, a real image.
//!
//! Owns nothing. Every wait has an end, so that a lost answer is a failure and not a hang.

use crate::rig::{DISK_BYTES, Daemon, FLUSH, IN, OUT, PATIENCE, Vm};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use undercroft_frontend::faults::NoPortFaults;
use undercroft_frontend::socket::SocketError;
use undercroft_frontend::vhost::limits::{MAPPINGS_MAX, QUEUES_MAX};
use undercroft_frontend::vhost::parts::{InflightArea, Mappings, Profile, Session};
use undercroft_frontend::vhost::{VhostError, VhostOptions, VhostServer};
use undercroft_porttest::vhost::rig::{self, DATA, Guest, INDIRECT, WRITE};
use vhost::VhostBackend;
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserInflight, VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserBackendReqHandlerMut, VhostUserFrontend};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

#[test]
fn a_guest_writes_reads_and_flushes_through_a_real_worker() {
    let daemon = Daemon::new();
    let mut vm = Vm::new(&daemon);
    assert_eq!(vm.front.get_queue_num().unwrap(), 4);
    let size = VhostUserConfigFlags::WRITABLE;
    let (_, config) = vm.front.get_config(0, 60, size, &[0; 60]).unwrap();
    assert_eq!(config[..8], (DISK_BYTES / 512).to_le_bytes());
    assert_eq!(config[34..36], 4u16.to_le_bytes());
    (0..4).for_each(|q| vm.start(q, 0));
    let data = |q: usize| -> Vec<u8> { (0..20_000u32).map(|i| (i * 7 + q as u32) as u8).collect() };
    for q in 0..4 {
        let at = DATA + 0x1_0000 * (q as u64 + 1);
        vm.guest.write(at, &data(q)[..19_968]);
        assert_eq!(vm.request(q, OUT, 100 * q as u64 + 1, (at, 19_968)), 0);
    }
    assert_eq!(vm.request(0, FLUSH, 0, (0, 0)), 0);
    let image = daemon.image();
    for q in 0..4 {
        let at = 512 * (100 * q + 1);
        assert_eq!(image[at..at + 19_968], data(q)[..19_968], "queue {q}'s write is in the image");
        vm.guest.write(DATA + 0x6_0000, &[0; 19_968]);
        assert_eq!(vm.request(3 - q, IN, 100 * q as u64 + 1, (DATA + 0x6_0000, 19_968)), 0);
        assert_eq!(vm.guest.read(DATA + 0x6_0000, 19_968), data(q)[..19_968]);
    }
    assert_eq!(vm.request(1, 8, 0, (DATA + 0x6_0000, 20)), 0);
    assert_eq!(vm.guest.read(DATA + 0x6_0000, 11), b"live-serial");
    assert_eq!(vm.request(2, IN, DISK_BYTES / 512, (DATA + 0x6_0000, 512)), 1, "past the end");
    for q in 0..4 {
        let base = vm.front.get_vring_base(q).unwrap();
        assert_eq!(base, u32::from(vm.guest.offered(q as u16)), "every chain was taken and answered");
    }
}

#[test]
fn many_requests_at_once_are_all_answered() {
    let daemon = Daemon::new();
    let mut vm = Vm::connect(&daemon, Guest::new(4, 256));
    vm.share_memory();
    (0..4).for_each(|q| vm.start(q, 0));
    let disk: Vec<u8> = (0..DISK_BYTES).map(|i| (i / 512) as u8 ^ (i / 7) as u8).collect();
    for (i, piece) in disk.chunks(0x4_0000).enumerate() {
        vm.guest.write(DATA + 0x2_0000, piece);
        assert_eq!(vm.request(0, OUT, i as u64 * 512, (DATA + 0x2_0000, 0x4_0000)), 0);
    }
    // Each chain: header, status and table in 0x60 bytes, a sector of data. More chains than the device takes at once.
    let place = |q: u64, i: u64| (DATA + 0x1000 + (q * 256 + i) * 0x60, DATA + 0x2_0000 + (q * 256 + i) * 0x140);
    for round in 0..3u64 {
        let sector = |q: u64, i: u64| (round * 97 + q * 256 + i) * 13 % (DISK_BYTES / 512);
        for (q, i) in (0..256).flat_map(|i| (0..4).map(move |q| (q, i))) {
            let (request, data) = place(q, i);
            vm.guest.header(request, IN, sector(q, i));
            vm.guest.write(request + 0x10, &[0xee]);
            // Sectors overlap in the buffers, so each is read in two pieces of which only the first is kept.
            let pieces =
                [(request, 16, 0), (data, 0x140, WRITE), (DATA + 0x7_f000, 0xc0, WRITE), (request + 0x10, 1, WRITE)];
            vm.guest.chain(request + 0x14, 0, &pieces);
            vm.guest.descriptor(Guest::ring(q as u16)[0], i as u16, request + 0x14, 64, INDIRECT, 0);
            if vm.guest.offer_live(q as u16, i as u16) {
                vm.kicks[q as usize].write(1).unwrap();
            }
        }
        for q in 0..4 {
            let mut heads: Vec<u32> = vm.wait(q, 256).into_iter().map(|(head, _)| head).collect();
            heads.sort_unstable();
            assert!(heads.into_iter().eq(0..256), "each chain came back once");
        }
        for (q, i) in (0..4).flat_map(|q| (0..256).map(move |i| (q, i))) {
            let (request, data) = place(q, i);
            let from = sector(q, i) as usize * 512;
            assert_eq!(vm.guest.read(request + 0x10, 1), [0]);
            assert_eq!(vm.guest.read(data, 0x140), disk[from..from + 0x140], "queue {q}, chain {i}, round {round}");
        }
    }
}

#[test]
fn a_second_front_end_is_turned_away_and_the_first_goes_on() {
    let daemon = Daemon::new();
    let mut vm = Vm::new(&daemon);
    vm.start(0, 0);
    let mut second = UnixStream::connect(daemon.path()).unwrap();
    second.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(second.read(&mut [0; 16]).unwrap(), 0, "closed, not left waiting");
    assert_eq!(vm.request(0, IN, 0, (DATA + 0x1_0000, 4096)), 0);
    drop(vm);
    daemon.wait_connected(false);
    let mut next = Vm::new(&daemon);
    next.start(0, 0);
    assert_eq!(next.request(0, IN, 0, (DATA + 0x1_0000, 4096)), 0);
}

#[test]
fn a_front_end_that_talks_nonsense_loses_its_session_only() {
    let daemon = Daemon::new();
    let garbage: [&[u8]; 5] = [
        &[0xff; 64],
        b"GET / HTTP/1.1\r\n\r\n",
        &[1, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0, 0],
        &[13, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0],
        &[5, 0, 0, 0, 1],
    ];
    for bytes in garbage {
        let mut peer = UnixStream::connect(daemon.path()).unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        peer.write_all(bytes).unwrap();
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // Closed with unread bytes in it, the socket may say so.
        let _ = peer.read_to_end(&mut answer);
        daemon.wait_connected(false);
    }
    let mut vm = Vm::new(&daemon);
    vm.start(0, 0);
    assert_eq!(vm.request(0, IN, 0, (DATA + 0x1_0000, 4096)), 0);
}

#[test]
fn messages_that_make_no_sense_end_the_session() {
    let daemon = Daemon::new();
    let ends = |what: &str, f: &dyn Fn(&mut Vm) -> bool| {
        let mut vm = Vm::new(&daemon);
        assert!(f(&mut vm), "{what} must be refused");
        assert!(vm.front.get_features().is_err(), "{what} must end the session");
        drop(vm);
        daemon.wait_connected(false);
    };
    ends("a feature that was not offered", &|vm| vm.front.set_features(1 << 63).is_err());
    ends("a queue that is not there", &|vm| vm.front.set_vring_base(4, 0).is_err());
    ends("a queue larger than offered", &|vm| vm.front.set_vring_num(0, 512).is_err());
    ends("a queue of an odd size", &|vm| vm.front.set_vring_num(0, 48).is_err());
    ends("memory that overlaps", &|vm| {
        let mut regions = vm.regions();
        regions[1].guest_phys_addr = 0x1000;
        vm.front.set_mem_table(&regions).is_err()
    });
    ends("memory past the end of its file", &|vm| {
        let mut regions = vm.regions();
        regions[2].memory_size += 0x1000;
        vm.front.set_mem_table(&regions).is_err()
    });
    ends("memory of a size near the end of the address space", &|vm| {
        let mut regions = vm.regions();
        regions[2].memory_size = u64::MAX - 0x1000;
        vm.front.set_mem_table(&regions).is_err()
    });
    ends("more memory than a record needs", &|vm| {
        let wish = VhostUserInflight::new(0, 0, QUEUES_MAX + 1, 64);
        vm.front.get_inflight_fd(&wish).is_err()
    });
}

#[test]
fn config_space_is_read_within_its_bounds() {
    let daemon = Daemon::new();
    let mut vm = Vm::new(&daemon);
    let profile = Profile::new(&daemon.info);
    let mut session =
        Session::new(daemon.host.clone(), u32::MAX, profile, &VhostOptions::default(), &Mappings::default());
    let mut get = |offset, size| session.get_config(offset, size, VhostUserConfigFlags::empty());
    assert_eq!(get(20, 4).unwrap(), 512u32.to_le_bytes());
    assert_eq!(get(200, 56).unwrap(), [0; 56]);
    for (offset, size) in [(200, 57), (257, 1), (4000, 96), (u32::MAX, 1), (1, u32::MAX)] {
        assert!(get(offset, size).is_err(), "{size} bytes at {offset}");
    }
    vm.front.set_config(0, VhostUserConfigFlags::WRITABLE, &[0; 8]).unwrap();
    let (_, capacity) = vm.front.get_config(0, 8, VhostUserConfigFlags::WRITABLE, &[0; 8]).unwrap();
    assert_eq!(capacity, (DISK_BYTES / 512).to_le_bytes(), "what a guest writes there has no effect");
}

#[test]
fn memory_can_be_added_and_removed_while_queues_run() {
    let daemon = Daemon::new();
    let mut vm = Vm::connect(&daemon, Guest::new(4, 64));
    let regions = vm.regions();
    assert!(vm.front.get_max_mem_slots().unwrap() >= 3);
    vm.front.add_mem_region(&regions[0]).unwrap();
    vm.front.add_mem_region(&regions[1]).unwrap();
    vm.start(0, 0);
    assert_eq!(vm.request(0, IN, 0, (DATA + 0x1_0000, 4096)), 0);
    let beyond = rig::DATA_SPLIT;
    assert_eq!(vm.request(0, IN, 0, (beyond, 4096)), 1, "not there yet");
    vm.front.add_mem_region(&regions[2]).unwrap();
    assert_eq!(vm.request(0, IN, 0, (beyond, 4096)), 0);
    vm.front.remove_mem_region(&regions[2]).unwrap();
    assert_eq!(vm.request(0, IN, 0, (beyond, 4096)), 1);
}

#[test]
fn a_front_end_that_leaves_a_stalled_disk_does_not_keep_the_next_one_out() {
    let gate = Arc::new(AtomicBool::new(false));
    let daemon = Daemon::with(&gate);
    let stream = UnixStream::connect(daemon.path()).unwrap();
    let end = stream.try_clone().unwrap();
    let mut vm = Vm::over(stream, Guest::new(4, 64));
    vm.share_memory();
    vm.start(0, 0);
    let (header, table, status) = (DATA, DATA + 0x1000, DATA + 0x80);
    vm.guest.header(header, IN, 0);
    vm.guest.chain(table, 0, &[(header, 16, 0), (DATA + 0x2000, 512, WRITE), (status, 1, WRITE)]);
    vm.guest.descriptor(Guest::ring(0)[0], 0, table, 48, INDIRECT, 0);
    vm.guest.write(status, &[0xee]);
    vm.guest.offer(0, 0);
    vm.kicks[0].write(1).unwrap();
    let taken = |n: u64| {
        let start = Instant::now();
        let disk = daemon.info.disk;
        while daemon.worker.call(move |w| w.core().stats(disk).inflight_requests).unwrap() != n {
            assert!(start.elapsed() < PATIENCE, "the request was not taken");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    taken(1);
    // It asks for a queue to stop, which cannot be answered, and goes away.
    let front = vm.front;
    let asking = std::thread::spawn(move || front.get_vring_base(0));
    std::thread::sleep(Duration::from_millis(20));
    end.shutdown(std::net::Shutdown::Both).unwrap();
    assert!(asking.join().unwrap().is_err());
    daemon.wait_connected(false);

    let mut next = Vm::connect(&daemon, Guest::new(4, 64));
    next.share_memory();
    next.start(0, 0);
    gate.store(true, Ordering::Release);
    assert_eq!(next.request(0, IN, 0, (DATA + 0x1_0000, 4096)), 0);
    assert_eq!(vm.guest.used(0), [], "the first guest's memory was let go");
    assert_eq!(vm.guest.read(status, 1), [0xee]);
    taken(0);
}

/// A process has 65,530 mappings by default, and no memory at all beyond them.
#[test]
fn memory_that_changes_again_and_again_under_waiting_requests_is_bounded() {
    let gate = Arc::new(AtomicBool::new(false));
    let daemon = Daemon::with(&gate);
    let mut vm = Vm::connect(&daemon, Guest::new(4, 128));
    vm.share_memory();
    (0..4).for_each(|queue| vm.start(queue, 0));
    let (header, table, status) = (DATA, DATA + 0x1000, DATA + 0x80);
    vm.guest.header(header, IN, 0);
    vm.guest.chain(table, 0, &[(header, 16, 0), (DATA + 0x2000, 512, WRITE), (status, 1, WRITE)]);
    let regions = vm.regions();
    let tables = (0..4 * 128u16).find(|&n| {
        let (queue, head) = (n / 128, n % 128);
        vm.guest.descriptor(Guest::ring(queue)[0], head, table, 48, INDIRECT, 0);
        vm.guest.offer(queue, head);
        vm.kicks[usize::from(queue)].write(1).unwrap();
        let (start, disk) = (Instant::now(), daemon.info.disk);
        while daemon.worker.call(move |w| w.core().stats(disk).inflight_requests).unwrap() != u64::from(n) + 1 {
            assert!(start.elapsed() < PATIENCE, "request {n} was not taken");
            std::thread::yield_now();
        }
        vm.front.set_mem_table(&regions).is_err()
    });
    // Each table has three regions, and the request before it keeps the one before.
    assert_eq!(tables.map(usize::from), Some(MAPPINGS_MAX / 3 - 1));
    daemon.wait_connected(false);
    gate.store(true, Ordering::Release);
    // What was mapped is given back, a moment after the last request that used it.
    let start = Instant::now();
    let mut next = loop {
        let vm = Vm::connect(&daemon, Guest::new(4, 64));
        if vm.front.set_mem_table(&vm.regions()).is_ok() {
            break vm;
        }
        assert!(start.elapsed() < PATIENCE, "it has no room for memory any more");
        drop(vm);
        daemon.wait_connected(false);
    };
    next.start(0, 0);
    assert_eq!(next.request(0, IN, 0, (DATA + 0x1_0000, 4096)), 0);
}

#[test]
fn a_daemon_that_comes_back_serves_what_the_last_one_left() {
    let mut daemon = Daemon::new();
    let mut vm = Vm::new(&daemon);
    let (record, file) = vm.front.get_inflight_fd(&VhostUserInflight::new(0, 0, 4, 64)).unwrap();
    vm.front.set_inflight_fd(&record, file.as_raw_fd()).unwrap();
    vm.start(0, 0);
    assert_eq!(vm.request(0, IN, 0, (DATA + 0x1_0000, 4096)), 0);
    // An orderly stop leaves nothing under way.
    drop(daemon.server.take());
    assert!(!daemon.path().exists());
    assert!(vm.front.get_features().is_err());
    // As if a chain had been taken by a daemon that was killed: marked, counted, not used.
    let Vm { mut guest, .. } = vm;
    let table = DATA + 0x2000;
    guest.header(DATA + 0x800, IN, 8);
    guest.chain(table, 0, &[(DATA + 0x800, 16, 0), (DATA + 0x2_0000, 512, WRITE), (DATA + 0x880, 1, WRITE)]);
    guest.write(DATA + 0x880, &[0xee]);
    guest.descriptor(Guest::ring(0)[0], 9, table, 48, INDIRECT, 0);
    guest.offer(0, 9);
    let mut log = InflightArea::open(&record, file.try_clone().unwrap(), ()).unwrap().queue(0).unwrap();
    let left = log.recover::<NoPortFaults>(64, 1).unwrap();
    assert_eq!(left, Some(vec![]), "nothing is left after an orderly stop");
    log.taken::<NoPortFaults>(9);

    daemon.listen();
    let mut vm = Vm::connect(&daemon, guest);
    vm.share_memory();
    vm.front.set_inflight_fd(&record, file.as_raw_fd()).unwrap();
    vm.guest.ask(0);
    vm.start(0, 1);
    assert_eq!(vm.wait(0, 1), [(9, 513)]);
    assert_eq!(vm.guest.read(DATA + 0x880, 1), [0]);
    assert_eq!(vm.request(0, IN, 0, (DATA + 0x1_0000, 4096)), 0);
}

#[test]
fn sockets_and_options_are_checked() {
    let daemon = Daemon::new();
    let start = |path: PathBuf, options: VhostOptions| {
        VhostServer::start(&daemon.event_loop, &path, daemon.info.clone(), daemon.host.clone(), options).err()
    };
    let taken = start(daemon.path(), VhostOptions::default());
    assert!(matches!(taken, Some(VhostError::Socket(SocketError::InUse(_)))), "{taken:?}");
    let other = daemon.dir.path().join("other");
    for queues in [0, QUEUES_MAX + 1] {
        let e = start(other.clone(), VhostOptions { queues, ..VhostOptions::default() });
        assert!(matches!(e, Some(VhostError::Queues(n)) if n == queues));
    }
    for queue_size in [0, 100, 2048] {
        let e = start(other.clone(), VhostOptions { queue_size, ..VhostOptions::default() });
        assert!(matches!(e, Some(VhostError::QueueSize(n)) if n == queue_size));
    }
    assert!(!other.exists());
}

#[test]
fn without_the_protocols_features_queues_run_at_once() {
    let daemon = Daemon::new();
    let front = Frontend::connect(daemon.path(), 8).unwrap();
    front.set_owner().unwrap();
    let features = front.get_features().unwrap() & !VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
    front.set_features(features).unwrap();
    let fd = || EventFd::new(EFD_NONBLOCK).unwrap();
    let guest = Guest::new(4, 64);
    let mut vm = Vm { front, size: 64, guest, kicks: vec![fd()], calls: vec![fd()] };
    vm.share_memory();
    vm.place(0, 0);
    assert_eq!(vm.request(0, IN, 0, (DATA + 0x1_0000, 4096)), 0);
}

#[test]
fn a_reset_device_can_be_set_up_again() {
    let daemon = Daemon::new();
    let mut vm = Vm::new(&daemon);
    assert!(vm.front.get_protocol_features().unwrap().contains(VhostUserProtocolFeatures::RESET_DEVICE));
    vm.start(0, 0);
    assert_eq!(vm.request(0, IN, 0, (DATA + 0x1_0000, 4096)), 0);
    vm.front.reset_device().unwrap();
    vm.guest.offer(0, 5);
    vm.kicks[0].write(1).unwrap();
    let features = vm.front.get_features().unwrap();
    vm.front.set_features(features).unwrap();
    assert_eq!(vm.guest.used(0), [], "a reset queue is not served");
    vm.start(0, 1);
    assert_eq!(vm.wait(0, 1).len(), 1);
}
