//! A guest made of bytes: memory with rings in it, a driver that posts chains, and a disk in a vector. For the tests of
//! the front end, of the daemon, and for the fuzzer.
//!
//! Owns the guest's end of the rings. Never judges what the device does. Invariant: it posts exactly what it is told
//! to, however wrong.

use crate::faults::Switched;
use crate::shadow::Shadow;
use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;
use std::sync::atomic::fence;
use std::sync::{Arc, LazyLock};
use undercroft_cache::{DiskId, Geometry, IoError, Op, Request};
use undercroft_frontend::faults::PortFaults;
use undercroft_frontend::turns::SEND_BYTES;
use undercroft_frontend::vhost::parts::{GuestMap, MemoryRegion, MemoryWindow, Profile, RingAddresses, VhostPort};
use undercroft_frontend::{DiskInfo, Port};
use vm_memory::{Bytes, FileOffset, MmapRegion};

/// Another descriptor follows.
pub const NEXT: u16 = 1;
/// The device writes it.
pub const WRITE: u16 = 2;
/// It holds a table of descriptors.
pub const INDIRECT: u16 = 4;

/// Guest addresses: rings, then a hole, then data in two regions that touch. Here the data begin.
pub const DATA: u64 = 0x10_0000;
/// Here the second region of data begins.
pub const DATA_SPLIT: u64 = 0x18_0000;
/// Here it ends.
pub const DATA_END: u64 = 0x19_0000;
const REGIONS: [(u64, u64); 3] = [(0, 0x4_0000), (DATA, DATA_SPLIT), (DATA_SPLIT, DATA_END)];
const RING_STRIDE: u64 = 0x8000;
const USER: u64 = 0x7f00_0000_0000;

/// A guest's memory, and its driver's positions.
pub struct Guest {
    /// Its memory.
    pub map: Arc<GuestMap>,
    /// Entries of each queue.
    pub size: u16,
    available: Vec<u16>,
    used: Vec<u16>,
    /// Its memory's copy, while it migrates.
    pub(crate) shadow: Option<Arc<Shadow>>,
}

impl Guest {
    /// A guest with `queues` rings of `size` entries.
    pub fn new(queues: u16, size: u16) -> Guest {
        let mut map = GuestMap::default();
        for (guest, end) in REGIONS {
            let len = end - guest;
            let fd = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
            rustix::fs::ftruncate(&fd, len).expect("memory");
            let file = FileOffset::new(File::from(fd), 0);
            let mapping = MmapRegion::from_file(file, len as usize).expect("memory");
            let mapping = Arc::new(undercroft_host::Guarded::new(mapping).expect("memory"));
            map = map.with(MemoryRegion { guest, user: USER + guest, len, mapping }).expect("regions do not overlap");
        }
        let zero = vec![0; usize::from(queues)];
        Guest { map: Arc::new(map), size, available: zero.clone(), used: zero, shadow: None }
    }

    /// Gives the pages that lie wholly in `len` bytes at `at` back to the host, as a balloon does. From now on they
    /// read as zeroes.
    pub(crate) fn give_back(&self, at: u64, len: u64) {
        const PAGE: u64 = 4096;
        let how = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        for page in (at.next_multiple_of(PAGE)..(at + len) / PAGE * PAGE).step_by(PAGE as usize) {
            let region = self.map.regions().iter().find(|r| (r.guest..r.guest + r.len).contains(&page));
            let region = region.expect("the test stays inside memory");
            let place = region.mapping.file_offset().expect("all of it is of files");
            rustix::fs::fallocate(place.file(), how, page - region.guest, PAGE).expect("memory has holes");
            self.wrote(page, PAGE);
        }
    }

    /// Bytes of the host's memory that its memory takes.
    pub(crate) fn held_bytes(&self) -> u64 {
        let files = self.map.regions().iter().filter_map(|r| r.mapping.file_offset());
        files.map(|place| place.file().metadata().map_or(0, |about| 512 * about.blocks())).sum()
    }

    /// Where the parts of a ring lie, as guest addresses.
    pub fn ring(queue: u16) -> [u64; 3] {
        let base = u64::from(queue) * RING_STRIDE;
        [base, base + 0x4000, base + 0x5000]
    }

    /// Where the parts of a ring lie, as the front end says it.
    pub fn addresses(queue: u16) -> RingAddresses {
        let [descriptors, available, used] = Self::ring(queue).map(|at| USER + at);
        let log = Some(Self::ring(queue)[2]);
        RingAddresses { descriptors, available, used, log }
    }

    fn window(&self, at: u64, len: usize) -> MemoryWindow {
        self.map.window(USER + at, len, 1).expect("the test stays inside memory")
    }

    /// Cuts `len` bytes at `at` where one region of memory ends and the next begins.
    fn pieces(at: u64, len: usize) -> [(u64, std::ops::Range<usize>); 2] {
        let first = if at < DATA_SPLIT { len.min((DATA_SPLIT - at) as usize) } else { len };
        [(at, 0..first), (at + first as u64, first..len)]
    }

    /// Writes its memory.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        for (at, part) in Self::pieces(at, bytes.len()).into_iter().filter(|(_, part)| !part.is_empty()) {
            self.window(at, part.len()).slice().write_slice(&bytes[part], 0).expect("inside");
        }
        self.wrote(at, bytes.len() as u64);
    }

    /// Its memory was written by itself.
    fn wrote(&self, at: u64, len: u64) {
        self.shadow.iter().for_each(|shadow| shadow.wrote(at, len));
    }

    /// Reads its memory.
    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for (at, part) in Self::pieces(at, len).into_iter().filter(|(_, part)| !part.is_empty()) {
            self.window(at, part.len()).slice().read_slice(&mut bytes[part], 0).expect("inside");
        }
        bytes
    }

    fn read_u16(&self, at: u64) -> u16 {
        // In one access: the device changes indices meanwhile, and half of each makes neither.
        u16::from_le(self.window(at, 2).slice().load(0, Ordering::Acquire).expect("indices are aligned"))
    }

    /// Writes descriptor `index` of the table at `table`.
    pub fn descriptor(&self, table: u64, index: u16, addr: u64, len: u32, flags: u16, next: u16) {
        let mut bytes = addr.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.write(table + 16 * u64::from(index), &bytes);
    }

    /// Writes consecutive descriptors from `first` on that form one chain.
    pub fn chain(&self, table: u64, first: u16, buffers: &[(u64, u32, u16)]) {
        for (i, &(addr, len, flags)) in (first..).zip(buffers) {
            let more = usize::from(i - first) + 1 < buffers.len();
            self.descriptor(table, i, addr, len, if more { flags | NEXT } else { flags }, i + 1);
        }
    }

    /// Makes the chain at `head` available.
    pub fn offer(&mut self, queue: u16, head: u16) {
        let [_, available, _] = Self::ring(queue);
        let at = &mut self.available[usize::from(queue)];
        let entry = available + 4 + 2 * u64::from(*at % self.size);
        *at = at.wrapping_add(1);
        let at = *at;
        self.write(entry, &head.to_le_bytes());
        self.set_available(queue, at);
    }

    /// Makes the chain at `head` available, and says whether the device wants to be kicked for it.
    pub fn offer_live(&mut self, queue: u16, head: u16) -> bool {
        let old = self.available[usize::from(queue)];
        fence(Ordering::SeqCst);
        self.offer(queue, head);
        fence(Ordering::SeqCst);
        self.available_event(queue) == old
    }

    /// Chains made available and not seen used.
    pub(crate) fn outstanding(&self, queue: u16) -> u16 {
        self.available[usize::from(queue)].wrapping_sub(self.used[usize::from(queue)])
    }

    /// Chains made available so far.
    pub fn offered(&self, queue: u16) -> u16 {
        self.available[usize::from(queue)]
    }

    /// Has the rings of a queue begin at another position than 0, as those of a guest do that has run for long.
    pub(crate) fn begin_at(&mut self, queue: u16, index: u16) {
        self.available[usize::from(queue)] = index;
        self.used[usize::from(queue)] = index;
        self.set_available(queue, index);
        self.write(Self::ring(queue)[2] + 2, &index.to_le_bytes());
        self.set_used_event(queue, index);
    }

    /// The position after the last used entry that is visible.
    pub fn used_index(&self, queue: u16) -> u16 {
        self.read_u16(Self::ring(queue)[2] + 2)
    }

    /// Asks to be notified of the very next used entry.
    pub fn ask(&self, queue: u16) {
        self.set_used_event(queue, self.used[usize::from(queue)]);
        fence(Ordering::SeqCst);
    }

    /// Sets the available index.
    pub fn set_available(&self, queue: u16, index: u16) {
        self.write(Self::ring(queue)[1] + 2, &index.to_le_bytes());
    }

    /// Used entries (head, bytes written) that came since the last look.
    pub fn used(&mut self, queue: u16) -> Vec<(u32, u32)> {
        let used = Self::ring(queue)[2];
        let index = self.read_u16(used + 2);
        let mut entries = Vec::new();
        while self.used[usize::from(queue)] != index {
            let at = &mut self.used[usize::from(queue)];
            let entry = used + 4 + 8 * u64::from(*at % self.size);
            *at = at.wrapping_add(1);
            let bytes = self.read(entry, 8);
            let word = |i: usize| u32::from_le_bytes(std::array::from_fn(|j| bytes[i + j]));
            entries.push((word(0), word(4)));
        }
        entries
    }

    /// The used event index that the driver wishes for.
    pub fn set_used_event(&self, queue: u16, index: u16) {
        self.write(Self::ring(queue)[1] + 4 + 2 * u64::from(self.size), &index.to_le_bytes());
    }

    /// The available event index that the device wishes for.
    pub fn available_event(&self, queue: u16) -> u16 {
        self.read_u16(Self::ring(queue)[2] + 4 + 8 * u64::from(self.size))
    }

    /// The device's flags.
    pub fn used_flags(&self, queue: u16) -> u16 {
        self.read_u16(Self::ring(queue)[2])
    }

    /// Writes a request header at `at`.
    pub fn header(&self, at: u64, kind: u32, sector: u64) {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend([0; 4]);
        bytes.extend(sector.to_le_bytes());
        self.write(at, &bytes);
    }
}

/// A new eventfd.
pub fn eventfd() -> File {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).expect("a descriptor is free").into()
}

/// How often an eventfd was signalled since the last look.
pub fn signals(fd: &File) -> u64 {
    let mut bytes = [0; 8];
    rustix::io::read(fd, &mut bytes).map_or(0, |_| u64::from_ne_bytes(bytes))
}

/// A device with a guest and a disk, whose bugs and deaths can be switched on.
pub type Rig = RigWith<Switched>;

/// A device with a guest and a disk.
pub struct RigWith<F: PortFaults> {
    /// The guest.
    pub guest: Guest,
    /// The device.
    pub port: VhostPort<F>,
    /// The eventfd that wakes the worker; only tests look whether it was signalled.
    pub wake_fd: File,
    /// What the disk holds.
    pub disk: Vec<u8>,
    /// By queue, where the driver is notified.
    pub calls: Vec<File>,
    /// By queue, where the front end is told of errors.
    pub errors: Vec<File>,
    /// What went to the core, in order.
    pub taken: Vec<Request>,
    /// What the core answers with from now on.
    pub failure: Option<IoError>,
    /// Flushes that the disk has had.
    pub flushes: usize,
    open: HashSet<u32>,
    read_only: bool,
}

/// That of a disk that can do everything.
pub fn geometry(size_bytes: u64) -> Geometry {
    Geometry { size_bytes, align: 1, read_only: false, can_discard: true, can_write_zeroes: true }
}

/// A disk of that geometry.
pub fn info(geometry: Geometry) -> DiskInfo {
    DiskInfo { name: "rig".into(), disk: DiskId(3), geometry, serial: "rig-serial".into() }
}

/// What a disk holds at first: of each byte its sector and its place, which begin anew after 128 KiB.
fn contents(size: usize) -> Vec<u8> {
    // Made once, and copied: tests make thousands of disks.
    static PERIOD: LazyLock<Vec<u8>> = LazyLock::new(|| (0..128u32 << 10).map(|i| (i / 512) as u8 ^ i as u8).collect());
    let mut bytes = PERIOD.repeat(size.div_ceil(PERIOD.len()));
    bytes.truncate(size);
    bytes
}

impl<F: PortFaults> RigWith<F> {
    /// A device of `geometry` with `queues` started queues of `size` entries, and all features but those in `without`.
    pub fn new(geometry: Geometry, queues: u16, size: u16, without: u64) -> Self {
        let bytes = contents(geometry.size_bytes as usize);
        let read_only = geometry.read_only;
        let profile = Profile::new(&info(geometry));
        let features = profile.features() & !without;
        let wake_fd = eventfd();
        let port = VhostPort::with_faults(9, profile, queues, wake_fd.try_clone().expect("a descriptor is free"));
        let mut rig = RigWith {
            guest: Guest::new(queues, size),
            port,
            wake_fd,
            disk: bytes,
            calls: (0..queues).map(|_| eventfd()).collect(),
            errors: (0..queues).map(|_| eventfd()).collect(),
            taken: Vec::new(),
            failure: None,
            flushes: 0,
            open: HashSet::new(),
            read_only,
        };
        rig.connect(features);
        (0..queues).for_each(|queue| rig.start(queue, 0, false));
        rig
    }

    /// What a front end says before it starts the queues.
    pub fn connect(&mut self, features: u64) {
        self.port.set_features(features);
        self.port.set_memory(Arc::clone(&self.guest.map));
    }

    /// What a front end says to start a queue.
    pub fn start(&mut self, queue: u16, base: u16, logged: bool) {
        let (index, port) = (u32::from(queue), &mut self.port);
        port.set_size(index, u32::from(self.guest.size)).expect("size");
        port.set_base(index, u32::from(base)).expect("base");
        port.set_addresses(index, Guest::addresses(queue)).expect("addresses");
        port.start(index, eventfd(), logged).expect("start");
        port.set_call(index, self.calls[usize::from(queue)].try_clone().ok()).expect("call");
        port.set_error(index, self.errors[usize::from(queue)].try_clone().ok()).expect("error");
        port.enable(index, true).expect("enable");
        signals(&self.calls[usize::from(queue)]);
    }

    /// Whether the disk refuses writes.
    pub(crate) fn disk_is_read_only(&self) -> bool {
        self.read_only
    }

    /// Takes requests without serving them.
    pub fn take(&mut self) -> Vec<Request> {
        let mut out = Vec::new();
        while self.port.take(64, &mut out) {}
        for r in &out {
            assert_eq!((r.id.port, r.disk), (9, DiskId(3)));
            assert!(self.open.insert(r.id.tag), "tag {} is under way already", r.id.tag);
            let end = r.offset.checked_add(r.len).expect("ranges do not wrap");
            assert!(end <= self.disk.len() as u64, "request past the end of the disk: {r:?}");
        }
        self.taken.extend(&out);
        out
    }

    /// Serves one request from the vector.
    pub fn serve(&mut self, r: Request) {
        assert!(self.open.remove(&r.id.tag), "tag {} is not under way", r.id.tag);
        let range = r.offset as usize..(r.offset + r.len) as usize;
        if let Some(failure) = self.failure {
            return self.port.reply(r.id.tag, Err(failure));
        }
        // In pieces that end at block boundaries, as the core copies.
        let mut at = 0;
        while at < r.len as usize && matches!(r.op, Op::Read | Op::Write { .. }) {
            let here = (4096 - (range.start + at) % 4096).min(r.len as usize - at);
            let bytes = &mut self.disk[range.start + at..range.start + at + here];
            match r.op {
                Op::Read => self.port.copy_out(r.id.tag, at, bytes),
                _ => self.port.copy_in(r.id.tag, at, bytes),
            }
            at += here;
        }
        match r.op {
            Op::Discard | Op::WriteZeroes { .. } => self.disk[range].fill(0),
            Op::Flush => self.flushes += 1,
            _ => {}
        }
        self.port.reply(r.id.tag, Ok(()));
    }

    /// Takes and serves all there is, then publishes.
    pub fn turn(&mut self) -> usize {
        let requests = self.take();
        let n = requests.len();
        requests.into_iter().for_each(|r| self.serve(r));
        self.port.flush(SEND_BYTES);
        n
    }
}
