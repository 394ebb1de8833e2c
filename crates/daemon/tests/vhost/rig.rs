//! A daemon and a hypervisor in small: a front end on a socket, a real worker, a real core, a real image.
//!
//! Owns what tests of vhost-user over sockets are written with. Never asserts what the product does. Invariant: every
//! wait has an end, so that a lost answer is a failure and not a hang.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use undercroft_backend::{Backend, OpenOptions, open};
use undercroft_cache::Geometry;
use undercroft_cache::{CoreOptions, DiskOptions, Io, IoDone};
use undercroft_config::{ImageFormat, ImageSpec};
use undercroft_daemon::worker::{DiskHost, WorkerHandle, WorkerOptions};
use undercroft_frontend::vhost::parts::MemoryRegion;
use undercroft_frontend::vhost::{EventLoop, Trust, VhostOptions, VhostServer};
use undercroft_frontend::{DiskInfo, PortHost};
use undercroft_porttest::vhost::rig::{DATA, Guest, INDIRECT, WRITE};
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const FLUSH: u32 = 4;
pub const DISK_BYTES: u64 = 8 << 20;
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A daemon in small: one worker, one disk, one socket.
pub struct Daemon {
    pub worker: Arc<WorkerHandle>,
    pub host: Arc<DiskHost>,
    pub info: DiskInfo,
    pub event_loop: Arc<EventLoop>,
    pub server: Option<VhostServer>,
    pub dir: tempfile::TempDir,
    /// Whether the worker ends with it.
    own: bool,
    trust: Trust,
}

/// A real image that answers nothing while its gate is shut.
struct Stalling {
    image: Box<dyn Backend>,
    open: Arc<AtomicBool>,
    held: Vec<Io>,
}

impl Backend for Stalling {
    fn geometry(&self) -> &Geometry {
        self.image.geometry()
    }

    fn submit(&mut self, io: Io) {
        self.held.push(io);
    }

    fn kick(&mut self) {}

    fn poll(&mut self, done: &mut Vec<IoDone>) -> bool {
        if self.open.load(Ordering::Acquire) {
            self.held.drain(..).for_each(|io| self.image.submit(io));
            self.image.kick();
        }
        self.image.poll(done)
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.image.wake_fd()
    }

    fn describe(&self) -> String {
        "stalling".into()
    }

    fn inflight(&self) -> usize {
        self.held.len() + self.image.inflight()
    }
}

impl Daemon {
    pub fn new() -> Daemon {
        Daemon::with(&Arc::new(AtomicBool::new(true)))
    }

    /// A daemon whose image answers while `gate` is open.
    pub fn with(gate: &Arc<AtomicBool>) -> Daemon {
        let core = CoreOptions { hash_seed: 1, ..CoreOptions::new(64 << 20) };
        let worker = WorkerHandle::start(WorkerOptions {
            name: "worker".into(),
            core,
            poll_ns_max: 0,
            copy_cpu_percent: 20,
            check_captures: true,
        })
        .unwrap();
        let mut daemon = Daemon::on(worker, EventLoop::start().unwrap(), gate);
        daemon.own = true;
        daemon
    }

    /// Another disk on the same worker; to be dropped first.
    pub fn beside(&self) -> Daemon {
        Daemon::on(Arc::clone(&self.worker), Arc::clone(&self.event_loop), &Arc::new(AtomicBool::new(true)))
    }

    fn on(worker: Arc<WorkerHandle>, event_loop: Arc<EventLoop>, gate: &Arc<AtomicBool>) -> Daemon {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        std::fs::write(&image, vec![0; DISK_BYTES as usize]).unwrap();
        let spec =
            ImageSpec { location: image.to_str().unwrap().into(), format: Some(ImageFormat::Raw), read_only: false };
        let backend = open(&spec, &OpenOptions::default()).unwrap();
        let backend = Box::new(Stalling { image: backend, open: Arc::clone(gate), held: Vec::new() });
        let geometry = backend.geometry().clone();
        let options = DiskOptions::new(&geometry, undercroft_engine::PolicyKind::Lru, 512);
        let disk = worker.call(move |w| w.add_disk("live".into(), backend, options, 0)).unwrap().unwrap();
        let info = DiskInfo { name: "live".into(), disk, geometry, serial: "live-serial".into() };
        let host = Arc::new(DiskHost::new(Arc::clone(&worker), disk));
        let mut daemon =
            Daemon { worker, host, info, event_loop, server: None, dir, own: false, trust: Trust::default() };
        daemon.listen();
        daemon
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// The same, for front ends that may share any memory.
    pub fn trusting(mut self) -> Daemon {
        drop(self.server.take());
        self.trust = Trust::Anything;
        self.listen();
        self
    }

    pub fn listen(&mut self) {
        self.listen_for(self.host.clone());
    }

    /// The same, with another host of ports than the worker's own.
    pub fn listen_for(&mut self, host: Arc<dyn PortHost>) {
        drop(self.server.take());
        let options = VhostOptions { queues: 4, queue_size: 256, trust: self.trust, ..VhostOptions::default() };
        let (path, info) = (self.path(), self.info.clone());
        self.server = Some(VhostServer::start(&self.event_loop, &path, info, host, options).unwrap());
    }

    pub fn image(&self) -> Vec<u8> {
        std::fs::read(self.dir.path().join("image")).unwrap()
    }

    /// Waits until the front end's coming or going was noticed.
    pub fn wait_connected(&self, want: bool) {
        let start = Instant::now();
        while self.server.as_ref().unwrap().is_connected() != want {
            assert!(start.elapsed() < PATIENCE, "the session did not change");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.server.take());
        let (to, back) = std::sync::mpsc::channel();
        let disk = self.info.disk;
        if self.worker.send(move |w| w.remove_disk(disk, to)).is_ok() {
            drop(back.recv());
        }
        if self.own {
            self.worker.stop();
        }
    }
}

/// A hypervisor in small, with its guest.
pub struct Vm {
    pub front: Frontend,
    pub guest: Guest,
    pub kicks: Vec<EventFd>,
    pub calls: Vec<EventFd>,
    pub size: u16,
}

impl Vm {
    /// Connects and negotiates; starts nothing.
    pub fn connect(daemon: &Daemon, guest: Guest) -> Vm {
        Vm::over(UnixStream::connect(daemon.path()).unwrap(), guest)
    }

    pub fn over(stream: UnixStream, guest: Guest) -> Vm {
        let mut front = Frontend::from_stream(stream, 8);
        front.set_owner().unwrap();
        let features = front.get_features().unwrap();
        front.set_features(features).unwrap();
        let protocol = front.get_protocol_features().unwrap();
        front.set_protocol_features(protocol).unwrap();
        front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        let fd = || EventFd::new(EFD_NONBLOCK).unwrap();
        let (kicks, calls) = ((0..4).map(|_| fd()).collect(), (0..4).map(|_| fd()).collect());
        let size = guest.size;
        Vm { front, guest, kicks, calls, size }
    }

    pub fn new(daemon: &Daemon) -> Vm {
        let vm = Vm::connect(daemon, Guest::new(4, 64));
        vm.share_memory();
        vm
    }

    pub fn regions(&self) -> Vec<VhostUserMemoryRegionInfo> {
        let info = |r: &MemoryRegion| {
            let file = r.mapping.file_offset().unwrap().file().as_raw_fd();
            VhostUserMemoryRegionInfo {
                guest_phys_addr: r.guest,
                memory_size: r.len,
                userspace_addr: r.user,
                mmap_offset: 0,
                mmap_handle: file,
            }
        };
        self.guest.map.regions().iter().map(info).collect()
    }

    pub fn share_memory(&self) {
        self.front.set_mem_table(&self.regions()).unwrap();
    }

    pub fn place(&mut self, queue: usize, base: u16) {
        let at = Guest::addresses(queue as u16);
        self.front.set_vring_num(queue, self.size).unwrap();
        self.front.set_vring_base(queue, base).unwrap();
        let place = VringConfigData {
            queue_max_size: self.size,
            queue_size: self.size,
            flags: 0,
            desc_table_addr: at.descriptors,
            used_ring_addr: at.used,
            avail_ring_addr: at.available,
            log_addr: None,
        };
        self.front.set_vring_addr(queue, &place).unwrap();
        self.front.set_vring_kick(queue, &self.kicks[queue]).unwrap();
        self.front.set_vring_call(queue, &self.calls[queue]).unwrap();
    }

    pub fn start(&mut self, queue: usize, base: u16) {
        self.place(queue, base);
        self.front.set_vring_enable(queue, true).unwrap();
    }

    /// Waits for `n` used entries of a queue, by its call descriptor alone.
    pub fn wait(&mut self, queue: usize, n: usize) -> Vec<(u32, u32)> {
        let mut used = Vec::new();
        let start = Instant::now();
        loop {
            used.extend(self.guest.used(queue as u16));
            if used.len() >= n {
                return used;
            }
            assert!(start.elapsed() < PATIENCE, "{} of {n} answers came", used.len());
            // Ask to be told of the very next one, and look once more, as drivers do: what has come meanwhile may have
            // come before the wish, so that it has to be made anew.
            self.guest.ask(queue as u16);
            let late = self.guest.used(queue as u16);
            if late.is_empty() {
                signalled(&self.calls[queue]);
            }
            used.extend(late);
        }
    }

    /// One request on a queue: kicks if the device wants that, and waits for the answer.
    pub fn request(&mut self, queue: usize, kind: u32, sector: u64, data: (u64, u32)) -> u8 {
        self.post(queue, kind, sector, data);
        assert_eq!(self.wait(queue, 1).len(), 1);
        self.guest.read(DATA + 0x100 * queue as u64 + 0x80, 1)[0]
    }

    /// Posts one request on a queue, and kicks if the device wants that.
    pub fn post(&mut self, queue: usize, kind: u32, sector: u64, data: (u64, u32)) {
        let (header, status) = (DATA + 0x100 * queue as u64, DATA + 0x100 * queue as u64 + 0x80);
        self.guest.header(header, kind, sector);
        self.guest.write(status, &[0xee]);
        let flags = if kind == OUT { 0 } else { WRITE };
        let table = DATA + 0x1000 + 0x100 * queue as u64;
        let mut buffers = vec![(header, 16, 0)];
        buffers.extend((data.1 > 0).then_some((data.0, data.1, flags)));
        buffers.push((status, 1, WRITE));
        self.guest.chain(table, 0, &buffers);
        self.guest.descriptor(Guest::ring(queue as u16)[0], 5, table, 16 * buffers.len() as u32, INDIRECT, 0);
        if self.guest.offer_live(queue as u16, 5) {
            self.kick(queue);
        }
    }

    /// Has the device look at a queue, whether it wants that or not.
    pub fn kick(&self, queue: usize) {
        self.kicks[queue].write(1).unwrap();
    }
}

/// Waits for an eventfd to be signalled.
fn signalled(fd: &EventFd) {
    let start = Instant::now();
    while fd.read().is_err() {
        assert!(start.elapsed() < PATIENCE, "no notification came");
        std::thread::sleep(Duration::from_micros(50));
    }
}
