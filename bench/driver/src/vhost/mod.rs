//! A vhost-user-blk front end without a VM.
//!
//! Owns the connection, the shared memory and the queues. Never interprets data.
//! Invariant: a tag belongs to one queue for good, `tag % queues`.

pub mod hostile;
pub mod ring;

use crate::target::{Counters, Done, Fault, Geometry, Kind, Operation, PATIENCE, Target};
use anyhow::{Context, Result, ensure};
use ring::{Layout, Payload, Ring};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_WRITE_ZEROES,
    VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN,
    VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use vm_memory::{FileOffset, GuestAddress, GuestRegionMmap, MmapRegion};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

/// Where the shared region starts in the guest: not where the driver has it mapped, so that mixing them up shows.
const GUEST_BASE: GuestAddress = GuestAddress(0x1_0000_0000);
/// Bytes of `struct virtio_blk_config` up to and including write_zeroes_may_unmap.
const CONFIG_BYTES: usize = 60;
const SECTOR: u64 = 512;

/// How to connect.
#[derive(Clone, Debug)]
pub struct Options {
    /// Queues to use.
    pub queues: usize,
    /// Operations under way at most, over all queues.
    pub depth: usize,
    /// Bytes of each buffer.
    pub buffer_bytes: usize,
    /// Data segments per request.
    pub segments: usize,
    /// Use indirect descriptors, as a Linux guest does.
    pub indirect: bool,
    /// Look at the used ring all the time instead of sleeping.
    pub poll: bool,
    /// Negotiate EVENT_IDX if offered.
    pub event_idx: bool,
}

/// Memory shared with the server, allocated at once as a guest's should be (`prealloc=on`): what the server is the
/// first to touch is charged to its control group, where requests then wait for room. Leaked on purpose: a server that
/// misbehaves may go on writing to it, and a run makes one.
fn share_memory(bytes: usize) -> Result<&'static GuestRegionMmap<()>> {
    let file: File = rustix::fs::memfd_create("undercroft-driver", rustix::fs::MemfdFlags::CLOEXEC)?.into();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes as u64)
        .context("no memory to share with the server")?;
    let region = MmapRegion::from_file(FileOffset::new(file, 0), bytes)?;
    let region = GuestRegionMmap::new(region, GUEST_BASE).context("the shared region wraps round")?;
    Ok(Box::leak(Box::new(region)))
}

/// The connection, before any queue runs.
pub struct Link {
    front: Frontend,
    stream: UnixStream,
    features: u64,
    /// What the server says about the disk.
    pub geometry: Geometry,
    queues_max: usize,
}

impl Link {
    /// Connects and negotiates features.
    pub fn new(path: &Path, queues: usize, indirect: bool, event_idx: bool) -> Result<Link> {
        let stream = UnixStream::connect(path).with_context(|| format!("cannot connect to {}", path.display()))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut front = Frontend::from_stream(stream.try_clone()?, queues.max(1) as u64);
        front.set_owner().context("SET_OWNER")?;
        let offered = front.get_features().context("GET_FEATURES")?;
        let protocol = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        ensure!(offered & protocol != 0, "the server has no protocol features, hence no configuration space");
        let mut wanted = protocol | 1 << VIRTIO_F_VERSION_1;
        for bit in
            [VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES]
        {
            wanted |= 1 << bit;
        }
        if indirect {
            wanted |= 1 << VIRTIO_RING_F_INDIRECT_DESC;
        }
        if event_idx {
            wanted |= 1 << VIRTIO_RING_F_EVENT_IDX;
        }
        let features = offered & wanted;
        let has = |bit: u32| features & 1 << bit != 0;
        ensure!(has(VIRTIO_F_VERSION_1), "the server does not offer VIRTIO_F_VERSION_1");
        ensure!(!indirect || has(VIRTIO_RING_F_INDIRECT_DESC), "the server does not offer indirect descriptors");
        let had = front.get_protocol_features().context("GET_PROTOCOL_FEATURES")?;
        let use_protocol = had
            & (VhostUserProtocolFeatures::MQ
                | VhostUserProtocolFeatures::CONFIG
                | VhostUserProtocolFeatures::REPLY_ACK);
        ensure!(use_protocol.contains(VhostUserProtocolFeatures::CONFIG), "the server has no configuration space");
        front.set_protocol_features(use_protocol).context("SET_PROTOCOL_FEATURES")?;
        if use_protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        let queues_max = if use_protocol.contains(VhostUserProtocolFeatures::MQ) {
            usize::try_from(front.get_queue_num().context("GET_QUEUE_NUM")?)?
        } else {
            1
        };
        ensure!(queues <= queues_max, "the server has {queues_max} queues, {queues} are wanted");
        front.set_features(features).context("SET_FEATURES")?;
        let (_, config) = front
            .get_config(0, CONFIG_BYTES as u32, VhostUserConfigFlags::empty(), &[0; CONFIG_BYTES])
            .context("GET_CONFIG")?;
        let at = |from: usize| u32::from_le_bytes(config[from..from + 4].try_into().expect("four bytes"));
        let capacity = u64::from(at(0)) | u64::from(at(4)) << 32;
        let geometry = Geometry {
            size_bytes: capacity.checked_mul(SECTOR).context("the capacity is past 2^64 bytes")?,
            block_bytes: at(20),
            read_only: has(VIRTIO_BLK_F_RO),
            flush: has(VIRTIO_BLK_F_FLUSH),
            discard: has(VIRTIO_BLK_F_DISCARD),
            write_zeroes: has(VIRTIO_BLK_F_WRITE_ZEROES),
            queues: if has(VIRTIO_BLK_F_MQ) { at(34) & 0xffff } else { 1 },
            segments_max: at(12),
            features: format!("{offered:#x}"),
        };
        Ok(Link { front, stream, features, geometry, queues_max })
    }

    fn event_idx(&self) -> bool {
        self.features & 1 << VIRTIO_RING_F_EVENT_IDX != 0
    }

    fn start(&mut self, region: &GuestRegionMmap<()>, layouts: &[Layout]) -> Result<Vec<(EventFd, EventFd)>> {
        let info = VhostUserMemoryRegionInfo::from_guest_region(region)?;
        self.front.set_mem_table(&[info]).context("SET_MEM_TABLE")?;
        let mut fds = Vec::new();
        for (i, l) in layouts.iter().enumerate() {
            let (kick, call) = (EventFd::new(libc_nonblock())?, EventFd::new(libc_nonblock())?);
            let (table, avail, used) = l.parts();
            let data = VringConfigData {
                queue_max_size: l.size,
                queue_size: l.size,
                flags: 0,
                desc_table_addr: info.userspace_addr + table as u64,
                used_ring_addr: info.userspace_addr + used as u64,
                avail_ring_addr: info.userspace_addr + avail as u64,
                log_addr: None,
            };
            self.front.set_vring_num(i, l.size).context("SET_VRING_NUM")?;
            self.front.set_vring_addr(i, &data).context("SET_VRING_ADDR")?;
            self.front.set_vring_base(i, 0).context("SET_VRING_BASE")?;
            self.front.set_vring_call(i, &call).context("SET_VRING_CALL")?;
            self.front.set_vring_kick(i, &kick).context("SET_VRING_KICK")?;
            self.front.set_vring_enable(i, true).context("SET_VRING_ENABLE")?;
            fds.push((kick, call));
        }
        Ok(fds)
    }
}

fn libc_nonblock() -> i32 {
    rustix::event::EventfdFlags::NONBLOCK.bits() as i32
}

/// A running vhost-user-blk device.
pub struct VhostTarget {
    link: Link,
    rings: Vec<Ring<'static>>,
    fds: Vec<(EventFd, EventFd)>,
    epoll: Epoll,
    poll: bool,
    counters: Counters,
}

impl VhostTarget {
    /// Connects and starts the queues.
    pub fn connect(path: &Path, o: &Options) -> Result<VhostTarget> {
        ensure!(o.queues >= 1 && o.depth >= o.queues, "each of the {} queues needs a depth of 1", o.queues);
        let mut link = Link::new(path, o.queues, o.indirect, o.event_idx)?;
        let mut layouts = Vec::new();
        let mut at = 0;
        for _ in 0..o.queues {
            let l = Layout::new(at, o.depth.div_ceil(o.queues), o.segments, o.buffer_bytes, o.indirect)?;
            at = l.end();
            layouts.push(l);
        }
        let region = share_memory(at)?;
        let event_idx = link.event_idx();
        let mut rings: Vec<Ring<'static>> =
            layouts.iter().map(|l| Ring::new(region, *l, event_idx)).collect::<Result<_>>()?;
        rings.iter_mut().for_each(Ring::disarm);
        let fds = link.start(region, &layouts)?;
        let epoll = Epoll::new()?;
        // Edge-triggered and never read: one system call less per wake.
        let wake = EventSet::IN | EventSet::EDGE_TRIGGERED;
        for (i, (_, call)) in fds.iter().enumerate() {
            epoll.ctl(ControlOperation::Add, call.as_raw_fd(), EpollEvent::new(wake, i as u64))?;
        }
        let hang_up = EpollEvent::new(EventSet::READ_HANG_UP | EventSet::HANG_UP, u64::MAX);
        epoll.ctl(ControlOperation::Add, link.stream.as_raw_fd(), hang_up)?;
        Ok(VhostTarget { link, rings, fds, epoll, poll: o.poll, counters: Counters::default() })
    }

    /// Queues that the server can run.
    pub fn queues_max(&self) -> usize {
        self.link.queues_max
    }

    /// Asks for the serial number by a GET_ID request; nothing else may be under way.
    pub fn serial(&mut self) -> Result<String, Fault> {
        self.rings[0].submit(0, VIRTIO_BLK_T_GET_ID, 0, Payload::In(VIRTIO_BLK_ID_BYTES));
        self.send()?;
        let mut done = Vec::new();
        self.reap(&mut done)?;
        if let Some(Done { result: Err(errno), .. }) = done.first() {
            return Err(Fault::Protocol(format!("GET_ID was refused with error {errno}")));
        }
        let mut id = [0; VIRTIO_BLK_ID_BYTES as usize];
        self.fetch(0, &mut id);
        Ok(String::from_utf8_lossy(&id).trim_end_matches('\0').to_owned())
    }

    fn collect(&mut self, done: &mut Vec<Done>) -> Result<(), Fault> {
        let queues = self.rings.len();
        for (q, ring) in self.rings.iter_mut().enumerate() {
            while let Some(next) = ring.completed() {
                let (slot, status) = next.map_err(|e| Fault::Protocol(e.to_string()))?;
                let result = match status {
                    0 => Ok(()),
                    1 => Err(rustix::io::Errno::IO.raw_os_error() as u32),
                    2 => Err(rustix::io::Errno::NOTSUP.raw_os_error() as u32),
                    s => return Err(Fault::Protocol(format!("status byte {s:#x}"))),
                };
                done.push(Done { tag: slot * queues + q, result });
            }
        }
        Ok(())
    }

    /// Sleeps until a queue or the connection has news; `Gone` if the server hung up.
    fn sleep(&mut self, timeout: Duration) -> Result<bool, Fault> {
        let mut events = [EpollEvent::default(); 8];
        match self.epoll.wait(timeout.as_millis() as i32, &mut events) {
            Ok(n) => {
                if events[..n].iter().any(|e| e.data() == u64::MAX) {
                    return Err(Fault::Gone("the vhost-user connection was closed".to_owned()));
                }
                Ok(n > 0)
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => Ok(true),
            Err(e) => Err(e.into()),
        }
    }
}

impl Target for VhostTarget {
    fn geometry(&self) -> &Geometry {
        &self.link.geometry
    }

    fn fill(&mut self, tag: usize, bytes: &[u8]) {
        let (ring, slot) = (&self.rings[tag % self.rings.len()], tag / self.rings.len());
        ring.bytes(ring.layout().data_at(slot), bytes.len()).copy_from(bytes);
    }

    fn fetch(&self, tag: usize, into: &mut [u8]) {
        let (ring, slot) = (&self.rings[tag % self.rings.len()], tag / self.rings.len());
        ring.bytes(ring.layout().data_at(slot), into.len()).copy_to(into);
    }

    fn submit(&mut self, o: &Operation) -> Result<(), Fault> {
        let queues = self.rings.len();
        let ring = &mut self.rings[o.tag % queues];
        let sector = o.offset / SECTOR;
        let (kind, sector, payload) = match o.kind {
            Kind::Read => (VIRTIO_BLK_T_IN, sector, Payload::In(o.length)),
            Kind::Write => (VIRTIO_BLK_T_OUT, sector, Payload::Out(o.length)),
            Kind::Flush => (VIRTIO_BLK_T_FLUSH, 0, Payload::None),
            Kind::Discard => (VIRTIO_BLK_T_DISCARD, 0, Payload::Range(sector, o.length / SECTOR as u32, 0)),
            Kind::WriteZeroes => (VIRTIO_BLK_T_WRITE_ZEROES, 0, Payload::Range(sector, o.length / SECTOR as u32, 0)),
        };
        ring.submit(o.tag / queues, kind, sector, payload);
        Ok(())
    }

    fn send(&mut self) -> Result<(), Fault> {
        for (ring, (kick, _)) in self.rings.iter_mut().zip(&self.fds) {
            if ring.kick_needed() {
                kick.write(1)?;
                self.counters.kicks += 1;
            }
        }
        Ok(())
    }

    fn reap(&mut self, done: &mut Vec<Done>) -> Result<(), Fault> {
        let before = done.len();
        let deadline = Instant::now() + PATIENCE;
        let mut spins = 0u32;
        loop {
            self.collect(done)?;
            if done.len() > before {
                return Ok(());
            }
            if self.poll {
                std::hint::spin_loop();
                spins += 1;
                // About every millisecond: is the server still there?
                if spins.is_multiple_of(1 << 15) {
                    self.sleep(Duration::ZERO)?;
                    if Instant::now() > deadline {
                        return Err(Fault::Silent);
                    }
                }
                continue;
            }
            if self.rings.iter_mut().any(Ring::arm) {
                continue;
            }
            if !self.sleep(PATIENCE)? && Instant::now() > deadline {
                return Err(Fault::Silent);
            }
            self.counters.wakes += 1;
            self.rings.iter_mut().for_each(Ring::disarm);
        }
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn close(mut self: Box<Self>) -> Result<(), Fault> {
        for i in 0..self.rings.len() {
            self.link.front.set_vring_enable(i, false).context("SET_VRING_ENABLE")?;
            self.link.front.get_vring_base(i).context("GET_VRING_BASE")?;
        }
        Ok(())
    }
}
