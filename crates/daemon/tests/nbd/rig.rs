//! What the tests serve: a worker with a disk on a raw image, or on memory that can be made to stall or fail.
//!
//! Owns worker, server and their directory. Never looks at the protocol.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use undercroft_backend::{self as backend, Backend, OpenOptions};
use undercroft_cache::Geometry;
use undercroft_cache::{CoreOptions, DiskOptions, Extent, Io, IoDone, IoError, IoKind};
use undercroft_config::{ImageFormat, ImageSpec};
use undercroft_daemon::worker::{DiskHost, WorkerHandle, WorkerOptions};
use undercroft_engine::PolicyKind;
use undercroft_frontend::nbd::{ExportInfo, Exports, Listen, NbdServer, NbdServerOptions, ServedExport};
use undercroft_frontend::socket::SocketPermissions;
use undercroft_frontend::{DiskInfo, MakePort, OnPort, PortHost};
use undercroft_host::EventFd;

/// How long a test waits for something that has to happen before it fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `f` is true.
pub fn until(what: &str, mut f: impl FnMut() -> bool) {
    let start = Instant::now();
    while !f() {
        assert!(start.elapsed() < PATIENCE, "still waiting: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes that differ from place to place.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut v = Vec::with_capacity(len + 8);
    while v.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        v.extend_from_slice(&x.to_le_bytes());
    }
    v.truncate(len);
    v
}

/// The disks of a rig, by name.
#[derive(Default)]
struct Shelf(Mutex<HashMap<String, ServedExport>>);

impl Exports for Shelf {
    fn list(&self) -> Vec<ExportInfo> {
        let shelf = self.0.lock().unwrap();
        let mut all: Vec<_> = shelf
            .values()
            .map(|e| ExportInfo { name: e.info.name.clone(), description: e.description.clone() })
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    fn find(&self, name: &str) -> Option<ServedExport> {
        self.0.lock().unwrap().get(name).cloned()
    }
}

/// The way to a disk that has gone.
struct Nowhere;

impl PortHost for Nowhere {
    fn attach(&self, _: MakePort) -> u32 {
        u32::MAX
    }

    fn with(&self, _: u32, _: OnPort) -> bool {
        false
    }

    fn detach(&self, _: u32) {}
}

/// What the process has logged, from the first call on.
pub fn logged() -> String {
    static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    struct ToLines;
    impl std::io::Write for ToLines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            LINES.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let _ = tracing_subscriber::fmt().with_writer(|| ToLines).with_ansi(false).try_init();
    String::from_utf8(LINES.lock().unwrap().clone()).unwrap()
}

/// A worker with disks, and an NBD server in front.
pub struct Rig {
    pub dir: tempfile::TempDir,
    pub worker: Arc<WorkerHandle>,
    pub server: Option<NbdServer>,
    pub socket: PathBuf,
    shelf: Arc<Shelf>,
}

impl Rig {
    /// A rig without disks.
    pub fn new(options: NbdServerOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let core = CoreOptions::new(64 << 20);
        let worker = WorkerHandle::start(WorkerOptions {
            name: "test".to_owned(),
            core,
            poll_ns_max: 0,
            copy_cpu_percent: 20,
            check_captures: false,
        })
        .unwrap();
        let shelf = Arc::new(Shelf::default());
        let socket = dir.path().join("nbd.sock");
        let listen = Listen::Unix(socket.clone(), SocketPermissions::default());
        let server = Some(NbdServer::start(listen, shelf.clone(), options).unwrap());
        Self { dir, worker, server, socket, shelf }
    }

    /// A rig with one disk `disk` on a raw image that holds `bytes`.
    pub fn raw(bytes: &[u8]) -> Self {
        let rig = Self::new(NbdServerOptions::default());
        rig.add_raw("disk", bytes, false);
        rig
    }

    /// A rig with one disk `disk` in memory.
    pub fn memory(bytes: &[u8], options: NbdServerOptions) -> (Self, Gate) {
        let rig = Self::new(options);
        let (memory, gate) = Memory::new(bytes);
        rig.add("disk", Box::new(memory), 1024);
        (rig, gate)
    }

    /// Where the raw image of a disk is.
    pub fn image(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.raw"))
    }

    /// Adds a disk on a raw image that holds `bytes`.
    pub fn add_raw(&self, name: &str, bytes: &[u8], read_only: bool) {
        let path = self.image(name);
        std::fs::write(&path, bytes).unwrap();
        let location = path.to_str().unwrap().to_owned();
        let spec = ImageSpec { location, format: Some(ImageFormat::Raw), read_only };
        self.add(name, backend::open(&spec, &OpenOptions::default()).unwrap(), 4096);
    }

    /// Adds a disk.
    pub fn add(&self, name: &str, backend: Box<dyn Backend>, capacity_blocks: u32) {
        let geometry = backend.geometry().clone();
        let options = DiskOptions::new(&geometry, PolicyKind::S3Fifo, capacity_blocks);
        let label = name.to_owned();
        let disk = self.worker.call(move |w| w.add_disk(label, backend, options, 0)).unwrap().unwrap();
        let info = DiskInfo { name: name.to_owned(), disk, geometry, serial: "test".to_owned() };
        let host: Arc<dyn PortHost> = Arc::new(DiskHost::new(self.worker.clone(), disk));
        let export = ServedExport { info, description: format!("the disk {name}"), host };
        self.shelf.0.lock().unwrap().insert(name.to_owned(), export);
    }

    /// Promises a disk to clients that none of them gets: it is gone once they are to be served.
    pub fn promise(&self, name: &str, like: &str) {
        let mut export = self.export(like);
        (export.info.name, export.host) = (name.to_owned(), Arc::new(Nowhere));
        self.shelf.0.lock().unwrap().insert(name.to_owned(), export);
    }

    /// What is served under a name.
    pub fn export(&self, name: &str) -> ServedExport {
        self.shelf.find(name).unwrap()
    }

    /// A second listener, with the same disks, and where it listens.
    pub fn listen_too(&self, options: NbdServerOptions) -> (PathBuf, NbdServer) {
        let socket = self.dir.path().join("second.sock");
        let listen = Listen::Unix(socket.clone(), SocketPermissions::default());
        let server = NbdServer::start(listen, self.shelf.clone(), options).unwrap();
        (socket, server)
    }

    /// Connections in transmission.
    pub fn connections(&self) -> usize {
        self.server.as_ref().map_or(0, |s| s.connections().len())
    }

    /// The URI of a disk, for clients.
    pub fn uri(&self, name: &str) -> String {
        format!("nbd+unix:///{name}?socket={}", self.socket.display())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.server.take();
        let disks: Vec<_> = self.shelf.0.lock().unwrap().drain().map(|(_, e)| e.info.disk).collect();
        for id in disks {
            let (tx, rx) = std::sync::mpsc::channel();
            let _ = self.worker.send(move |w| w.remove_disk(id, tx));
            drop(rx.recv_timeout(PATIENCE));
        }
        self.worker.stop();
    }
}

/// Lets a test stall a [`Memory`] disk, or make it fail.
#[derive(Clone)]
pub struct Gate(Arc<GateState>);

struct GateState {
    wake_fd: EventFd,
    closed: AtomicBool,
    broken: AtomicBool,
    bytes: Mutex<Vec<u8>>,
    held: std::sync::atomic::AtomicUsize,
}

impl Gate {
    /// Operations wait from now on.
    pub fn close(&self) {
        self.0.closed.store(true, Ordering::SeqCst);
    }

    /// Operations that wait are done.
    pub fn open(&self) {
        self.0.closed.store(false, Ordering::SeqCst);
        self.0.wake_fd.signal();
    }

    /// Operations fail from now on, or no longer.
    pub fn set_broken(&self, broken: bool) {
        self.0.broken.store(broken, Ordering::SeqCst);
    }

    /// What the disk holds.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.bytes.lock().unwrap().clone()
    }

    /// Operations that wait.
    pub fn held(&self) -> usize {
        self.0.held.load(Ordering::SeqCst)
    }
}

/// A disk in memory that stalls and fails when told to.
pub struct Memory {
    state: Arc<GateState>,
    geometry: Geometry,
    waiting: Vec<Io>,
}

impl Memory {
    pub fn new(bytes: &[u8]) -> (Self, Gate) {
        let state = Arc::new(GateState {
            wake_fd: EventFd::new().unwrap(),
            closed: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            bytes: Mutex::new(bytes.to_vec()),
            held: 0.into(),
        });
        let geometry = Geometry::new(bytes.len() as u64);
        (Self { state: state.clone(), geometry, waiting: Vec::new() }, Gate(state))
    }

    fn execute(&self, mut io: Io) -> IoDone {
        let mut bytes = self.state.bytes.lock().unwrap();
        let range = io.offset as usize..(io.offset + io.len) as usize;
        let mut extents = Vec::new();
        let broken = self.state.broken.load(Ordering::SeqCst);
        match io.kind {
            _ if broken => {}
            IoKind::Read => io.buf.copy_from(&bytes[range]),
            IoKind::Write { .. } => io.buf.copy_to(&mut bytes[range]),
            IoKind::Discard | IoKind::WriteZeroes { .. } => bytes[range].fill(0),
            IoKind::Flush => {}
            IoKind::Status => extents.push(Extent { len: io.len, hole: false, zero: false }),
        }
        let result = if broken { Err(IoError::Io) } else { Ok(()) };
        IoDone { op: io.op, disk: io.disk, buf: io.buf, result, extents }
    }
}

impl Backend for Memory {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&mut self, io: Io) {
        self.waiting.push(io);
        self.state.held.store(self.waiting.len(), Ordering::SeqCst);
    }

    fn kick(&mut self) {
        if !self.state.closed.load(Ordering::SeqCst) {
            self.state.wake_fd.signal();
        }
    }

    fn poll(&mut self, done: &mut Vec<IoDone>) -> bool {
        self.state.wake_fd.drain();
        if !self.state.closed.load(Ordering::SeqCst) {
            for io in std::mem::take(&mut self.waiting) {
                done.push(self.execute(io));
            }
            self.state.held.store(0, Ordering::SeqCst);
        }
        false
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.state.wake_fd.as_fd()
    }

    fn describe(&self) -> String {
        "memory".to_owned()
    }

    fn inflight(&self) -> usize {
        self.waiting.len()
    }
}
