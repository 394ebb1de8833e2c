//! Front ends that have a log of dirty memory kept, good and bad, over real sockets.
//!
//! Owns nothing. Invariant: a front end that lies about its log, or takes it away, loses its session; nobody else
//! notices, and nothing is written beside the log.

use crate::rig::{Daemon, IN, OUT, Vm};
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use undercroft_daemon::worker::DiskHost;
use undercroft_frontend::{MakePort, OnPort, PortHost};
use undercroft_porttest::vhost::rig::{DATA, Guest};
use vhost::{VhostBackend, VhostUserDirtyLogRegion, VringConfigData};

const LOG_ALL: u64 = 1 << 26;
/// Bytes of a log of the guest's memory: a bit for each page up to its end.
const LOG_BYTES: u64 = 0x190 / 8;

fn memfd(bytes: u64) -> File {
    let fd = rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    File::from(fd)
}

fn region(fd: RawFd, mmap_size: u64, mmap_offset: u64) -> Option<VhostUserDirtyLogRegion> {
    Some(VhostUserDirtyLogRegion { mmap_size, mmap_offset, mmap_handle: fd })
}

/// A front end whose guest runs and does not migrate yet.
fn running(daemon: &Daemon) -> (Vm, u64) {
    let mut vm = Vm::new(daemon);
    let features = vm.front.get_features().unwrap();
    assert_ne!(features & LOG_ALL, 0, "offered");
    vm.front.set_features(features & !LOG_ALL).unwrap();
    vm.start(0, 0);
    assert_eq!(vm.request(0, IN, 8, (DATA + 0x1_0000, 4096)), 0);
    (vm, features)
}

/// Says where the rings of queue 0 are, and that its used ring is to be logged.
fn log_ring(vm: &Vm, log: u64) -> vhost::Result<()> {
    let at = Guest::addresses(0);
    vm.front.set_vring_addr(
        0,
        &VringConfigData {
            queue_max_size: vm.size,
            queue_size: vm.size,
            flags: 1,
            desc_table_addr: at.descriptors,
            used_ring_addr: at.used,
            avail_ring_addr: at.available,
            log_addr: Some(log),
        },
    )
}

fn marked(file: &File, bytes: u64) -> Vec<u64> {
    let mut log = vec![0; bytes as usize];
    file.read_exact_at(&mut log, 0).unwrap();
    file.write_all_at(&vec![0; log.len()], 0).unwrap();
    (0..bytes * 8).filter(|page| log[*page as usize / 8] >> (page % 8) & 1 == 1).collect()
}

#[test]
fn a_guest_that_runs_is_logged_from_one_message_on_until_another() {
    let daemon = Daemon::new();
    let (mut vm, features) = running(&daemon);
    let log = memfd(4096);
    vm.front.set_log_base(0, region(log.as_raw_fd(), 4096, 0)).unwrap();
    let call = vmm_sys_util::eventfd::EventFd::new(vmm_sys_util::eventfd::EFD_NONBLOCK).unwrap();
    vm.front.set_log_fd(call.as_raw_fd()).unwrap();
    vm.front.set_features(features).unwrap();
    log_ring(&vm, Guest::ring(0)[2]).unwrap();
    assert_eq!(vm.request(0, IN, 8, (DATA + 0x2_0000, 4096)), 0);
    // The worker may still be about to mark its wish to be kicked, in the page of the used ring.
    let (status, used) = ((DATA + 0x80) / 4096, Guest::ring(0)[2] / 4096);
    assert_eq!(marked(&log, 4096), [used, status, (DATA + 0x2_0000) / 4096]);
    assert!(call.read().is_ok(), "and it was told of them");
    vm.front.set_features(features & !LOG_ALL).unwrap();
    marked(&log, 4096);
    assert_eq!(vm.request(0, IN, 8, (DATA + 0x2_0000, 4096)), 0);
    assert_eq!(marked(&log, 4096), [0; 0]);
    assert!(vm.front.get_vring_base(0).is_ok());
}

#[test]
fn logs_that_cannot_be_end_the_session() {
    let daemon = Daemon::new();
    let neighbour = daemon.beside();
    let mut good = Vm::new(&neighbour);
    good.start(0, 0);
    let (short, long, event) = (memfd(LOG_BYTES - 1), memfd(4096), vmm_sys_util::eventfd::EventFd::new(0).unwrap());
    let socket = std::os::unix::net::UnixListener::bind(daemon.dir.path().join("other")).unwrap();
    let disk = File::open(daemon.dir.path().join("image")).unwrap();
    let tries = [
        ("too small for the memory", region(long.as_raw_fd(), LOG_BYTES - 1, 0)),
        ("longer than its file", region(short.as_raw_fd(), LOG_BYTES, 0)),
        ("past the end of its file", region(long.as_raw_fd(), LOG_BYTES, 8192)),
        ("an offset that is no page", region(long.as_raw_fd(), LOG_BYTES, 1)),
        ("an end that wraps", region(long.as_raw_fd(), LOG_BYTES, u64::MAX)),
        ("a size that wraps", region(long.as_raw_fd(), u64::MAX, 4096)),
        ("nothing", region(long.as_raw_fd(), 0, 0)),
        ("an eventfd", region(event.as_raw_fd(), LOG_BYTES, 0)),
        ("a socket", region(socket.as_raw_fd(), LOG_BYTES, 0)),
        ("a file on a disk", region(disk.as_raw_fd(), LOG_BYTES, 0)),
    ];
    for (what, said) in tries {
        let (vm, _) = running(&daemon);
        assert!(vm.front.set_log_base(0, said).is_err(), "{what}");
        daemon.wait_connected(false);
        assert_eq!(good.request(0, IN, 8, (DATA + 0x1_0000, 4096)), 0, "{what}");
    }
    let (vm, _) = running(&daemon);
    assert!(vm.front.set_log_fd(long.as_raw_fd()).is_err(), "what is no eventfd is told of nothing");
    daemon.wait_connected(false);
    for log in [u64::MAX - 8, 0x8_0000, 1 << 50] {
        let (vm, _) = running(&daemon);
        assert!(log_ring(&vm, log).is_err(), "{log:#x}");
        daemon.wait_connected(false);
    }
}

#[test]
fn a_log_that_is_taken_away_ends_its_front_end_alone() {
    let daemon = Daemon::new();
    let neighbour = daemon.beside();
    let mut good = Vm::new(&neighbour);
    good.start(0, 0);
    let (mut vm, features) = running(&daemon);
    let log = memfd(4096);
    vm.front.set_log_base(0, region(log.as_raw_fd(), 4096, 0)).unwrap();
    log.set_len(0).unwrap();
    vm.front.set_features(features).unwrap();
    vm.post(0, IN, 8, (DATA + 0x1_0000, 4096));
    daemon.wait_connected(false);
    assert_eq!(good.request(0, OUT, 8, (DATA + 0x1_0000, 4096)), 0);
    let (mut next, _) = running(&daemon);
    assert_eq!(next.request(0, IN, 8, (DATA + 0x1_0000, 4096)), 0);
}

#[test]
fn memory_that_grows_past_its_log_is_refused() {
    let daemon = Daemon::new();
    let (vm, features) = running(&daemon);
    let log = memfd(LOG_BYTES);
    vm.front.set_log_base(0, region(log.as_raw_fd(), LOG_BYTES, 0)).unwrap();
    vm.front.set_features(features).unwrap();
    let more = memfd(0x1000);
    let mut regions = vm.regions();
    regions.push(vhost::VhostUserMemoryRegionInfo {
        guest_phys_addr: 0x100_0000,
        memory_size: 0x1000,
        userspace_addr: 0x1000,
        mmap_offset: 0,
        mmap_handle: more.as_raw_fd(),
    });
    assert!(vm.front.set_mem_table(&regions).is_err());
    daemon.wait_connected(false);
    // With the log first it is accepted, as QEMU does it.
    let (vm, features) = running(&daemon);
    vm.front.set_log_base(0, region(log.as_raw_fd(), LOG_BYTES, 0)).unwrap();
    vm.front.set_features(features).unwrap();
    let log = memfd(0x1001 / 8 + 1);
    vm.front.set_log_base(0, region(log.as_raw_fd(), 0x1001 / 8 + 1, 0)).unwrap();
    vm.front.set_mem_table(&regions).unwrap();
}

/// The worker's own host of ports, which hands over what a guest that goes on elsewhere waits for.
struct Leaving(Arc<DiskHost>, Mutex<Sender<Box<dyn Send>>>);

impl PortHost for Leaving {
    fn attach(&self, make: MakePort) -> u32 {
        self.0.attach(make)
    }

    fn with(&self, port: u32, f: OnPort) -> bool {
        self.0.with(port, f)
    }

    fn guest_moves(&self, until: Box<dyn Send>) {
        self.1.lock().unwrap().send(until).unwrap();
    }

    fn detach(&self, port: u32) {
        self.0.detach(port);
    }
}

/// A front end that stops the queues of a guest that migrates, on a thread of its own; what it is waiting for, and its
/// answer.
fn leaving(daemon: &mut Daemon) -> (Receiver<Box<dyn Send>>, Receiver<bool>) {
    let (moves, told) = channel();
    daemon.listen_for(Arc::new(Leaving(daemon.host.clone(), Mutex::new(moves))));
    let (vm, features) = running(daemon);
    let log = memfd(4096);
    vm.front.set_log_base(0, region(log.as_raw_fd(), 4096, 0)).unwrap();
    vm.front.set_features(features).unwrap();
    let (answer, answered) = channel();
    std::thread::spawn(move || answer.send(vm.front.get_vring_base(0).is_ok()));
    (told, answered)
}

/// Whoever has the image next may rely on it: without locks, as some storage is, nothing else orders both sides.
#[test]
fn a_guest_that_migrates_has_stopped_when_its_image_is_closed_and_not_before() {
    let mut daemon = Daemon::new();
    let (told, answered) = leaving(&mut daemon);
    let until = told.recv_timeout(crate::rig::PATIENCE).expect("its host is told that it goes");
    assert!(answered.recv_timeout(Duration::from_millis(300)).is_err(), "answered while its image is open");
    // Others are served meanwhile, on the same event loop and worker.
    let neighbour = daemon.beside();
    let mut other = Vm::new(&neighbour);
    other.start(0, 0);
    assert_eq!(other.request(0, IN, 8, (DATA + 0x1_0000, 4096)), 0);
    drop(until);
    assert_eq!(answered.recv_timeout(crate::rig::PATIENCE), Ok(true));
}

#[test]
fn a_device_that_goes_keeps_no_guest_that_leaves() {
    let mut daemon = Daemon::new();
    let (told, answered) = leaving(&mut daemon);
    let _until = told.recv_timeout(crate::rig::PATIENCE).expect("its host is told that it goes");
    drop(daemon.server.take());
    assert_eq!(answered.recv_timeout(crate::rig::PATIENCE), Ok(false), "it is told that its device is gone");
}
