//! What tests of sharing drive a core with: disks that hold what a test says, and disks that number their blocks.
//!
//! Owns the content of disks and of guests' pages, and what the core did. Never decides what is right, but that no
//! request fails and nobody gets mixed content or another block's. Invariant: a disk reads as what was written to it
//! last, and as what the test says where nothing was.

use std::collections::BTreeMap;
use undercroft_cache::fault_injection::{FaultInjection, NoFaults};
use undercroft_cache::{
    Base, ContentKey, Core, CoreOptions, DiskId, DiskOptions, DiskStats, Effects, Event, Extent, GroupId, Io, IoDone,
    IoError, IoKind, LayerId, Op, ReqId, Request,
};
use undercroft_engine::{ExclusiveMode, PolicyKind};

pub(super) const B: u64 = 4096;
pub(super) const WRITE: Op = Op::Write { fua: false };

/// Disks of which every block holds what `content` says, until it is written.
pub(super) struct World {
    pub(super) ios: Vec<Io>,
    written: BTreeMap<(u32, u64), u8>,
    content: fn(u32, u64) -> u8,
    /// What a write brings.
    pub(super) value: u8,
    /// Place in the request and value of what was copied out.
    seen: Vec<(usize, u8)>,
    /// What the core did, in order: for comparison.
    pub(super) log: Vec<String>,
    /// Pages of guests, by disk: the value of all bytes of each.
    pub(super) pages: BTreeMap<u32, Vec<u8>>,
    /// The guest page that the next request uses.
    pub(super) page: Option<u32>,
}

impl Effects for World {
    fn copy_out(&mut self, req: ReqId, at: usize, bytes: &[u8]) {
        assert!(bytes.iter().all(|&b| b == bytes[0]), "mixed content");
        self.seen.push((at, bytes[0]));
        self.log.push(format!("out {} {at} {}", req.tag, bytes.len()));
    }
    fn copy_in(&mut self, _req: ReqId, _at: usize, bytes: &mut [u8]) {
        bytes.fill(self.value);
    }
    fn guest_page(&mut self, _req: ReqId, at: usize) -> Option<u32> {
        self.page.map(|p| p + at as u32 / 4096)
    }
    fn copy_guest_page(&mut self, disk: DiskId, page: u32, to: &mut [u8; 4096]) -> bool {
        let Some(&value) = self.pages.get(&disk.0).and_then(|p| p.get(page as usize)) else { return false };
        to.fill(value);
        true
    }
    fn submit(&mut self, io: Io) {
        self.log.push(format!("submit {:?} {} {}", io.kind, io.offset, io.len));
        self.ios.push(io);
    }
    fn extents(&mut self, _req: ReqId, _extents: &[Extent]) {}
    fn reply(&mut self, req: ReqId, result: Result<(), IoError>) {
        assert_eq!(result, Ok(()));
        self.log.push(format!("reply {}", req.tag));
    }
}

pub(super) struct Rig<P: FaultInjection = NoFaults> {
    pub(super) core: Core<P>,
    pub(super) world: World,
}

pub(super) fn options(group: Option<u32>, blocks: u32) -> DiskOptions {
    DiskOptions {
        size_bytes: 1 << 30,
        align: 512,
        read_only: false,
        can_discard: true,
        can_write_zeroes: true,
        policy: PolicyKind::Lru,
        capacity_blocks: blocks,
        readahead_bytes: 0,
        write_allocate: true,
        exclusive: ExclusiveMode::Off,
        share: group.map(GroupId),
    }
}

impl Rig<NoFaults> {
    pub(super) fn new(groups: &[Option<u32>], blocks: u32, content: fn(u32, u64) -> u8) -> Self {
        Rig::planted(NoFaults, ContentKey::from_seed(1), groups, blocks, content)
    }
}

impl<P: FaultInjection> Rig<P> {
    pub(super) fn planted(
        plant: P,
        key: ContentKey,
        groups: &[Option<u32>],
        blocks: u32,
        content: fn(u32, u64) -> u8,
    ) -> Self {
        let o = CoreOptions { content_key: key, hash_seed: 7, ..CoreOptions::new(128 << 20) };
        let mut core = Core::with_faults(o, plant).unwrap();
        for (i, &g) in groups.iter().enumerate() {
            core.add_disk(DiskId(i as u32), options(g, blocks)).unwrap();
        }
        let world = World {
            ios: Vec::new(),
            written: BTreeMap::new(),
            content,
            value: 0,
            seen: Vec::new(),
            log: Vec::new(),
            pages: BTreeMap::new(),
            page: None,
        };
        Self { core, world }
    }

    pub(super) fn ask(&mut self, disk: u32, op: Op, block: u64, blocks: u64) {
        let id = ReqId { port: 0, tag: 1 };
        let req = Request { id, disk: DiskId(disk), op, offset: block * B, len: blocks * B };
        self.core.apply(Event::Request(req), 0, &mut self.world);
    }

    /// Completes everything under way, then lets what waits be hashed.
    pub(super) fn settle(&mut self) {
        while !self.world.ios.is_empty() {
            let mut io = self.world.ios.remove(0);
            let first = io.offset / B;
            let content = self.world.content;
            for (i, f) in io.buf.frames.iter_mut().enumerate() {
                let block = first + i as u64;
                let at = (io.disk.0, block);
                match io.kind {
                    IoKind::Read => {
                        let written = self.world.written.get(&at).copied();
                        f.bytes_mut().fill(written.unwrap_or_else(|| content(io.disk.0, block)));
                    }
                    _ => drop(self.world.written.insert(at, f.bytes()[0])),
                }
            }
            if matches!(io.kind, IoKind::Discard | IoKind::WriteZeroes { .. }) {
                for block in first..first + io.len / B {
                    self.world.written.insert((io.disk.0, block), 0);
                }
            }
            let done = IoDone { op: io.op, disk: io.disk, buf: io.buf, result: Ok(()), extents: Vec::new() };
            self.core.apply(Event::IoDone(done), 0, &mut self.world);
        }
        self.spare();
    }

    pub(super) fn spare(&mut self) {
        while self.core.wants_spare() {
            self.core.apply(Event::Spare { copies: true }, 0, &mut self.world);
        }
    }

    pub(super) fn read(&mut self, disk: u32, block: u64, blocks: u64) -> Vec<u8> {
        self.world.seen.clear();
        self.ask(disk, Op::Read, block, blocks);
        self.settle();
        let mut seen = std::mem::take(&mut self.world.seen);
        seen.sort_unstable();
        seen.into_iter().map(|s| s.1).collect()
    }

    pub(super) fn write(&mut self, disk: u32, block: u64, value: u8) {
        self.world.value = value;
        self.ask(disk, WRITE, block, 1);
        self.settle();
    }

    pub(super) fn tick(&mut self, n: u64) {
        for i in 0..n {
            self.core.apply(Event::Tick, i, &mut self.world);
        }
    }

    pub(super) fn stats(&self, disk: u32) -> DiskStats {
        self.core.stats(DiskId(disk))
    }

    pub(super) fn frames(&self) -> u64 {
        self.core.check();
        self.core.frames_used()
    }

    /// Charges are rounded up, by less than a frame for each disk.
    pub(super) fn assert_charges_add_up(&self, disks: u32) {
        let sum: u64 = (0..disks).map(|d| self.stats(d).charged_blocks).sum();
        let used = self.frames();
        assert!((used..=used + 2 * u64::from(disks)).contains(&sum), "{sum} charged, {used} used");
    }

    pub(super) fn base(&mut self, disk: u32, layer: u64, blocks: u64, own: &[u64]) -> bool {
        let mut map = vec![0u64; blocks.div_ceil(64) as usize];
        own.iter().for_each(|&b| map[b as usize / 64] |= 1 << (b % 64));
        let base = Base { layer: LayerId(layer), size_bytes: blocks * B, cluster_bytes: B as u32, own: map };
        self.core.set_base(DiskId(disk), base)
    }
}

/// A front end whose disks hold the block's number in every block.
#[derive(Default)]
pub(super) struct Numbered {
    ios: Vec<Io>,
    pub(super) reads: u64,
    wanted: u64,
}

impl Numbered {
    pub(super) fn read<P: FaultInjection>(&mut self, core: &mut Core<P>, disk: u32, block: u64, blocks: u64) {
        let id = ReqId { port: 0, tag: 0 };
        let req = Request { id, disk: DiskId(disk), op: Op::Read, offset: block * B, len: blocks * B };
        self.wanted = block;
        core.apply(Event::Request(req), 0, self);
        while let Some(mut io) = self.ios.pop() {
            self.reads += 1;
            for (i, f) in io.buf.frames.iter_mut().enumerate() {
                f.bytes_mut().fill(1);
                f.bytes_mut()[..8].copy_from_slice(&(io.offset / B + i as u64).to_le_bytes());
            }
            let done = IoDone { op: io.op, disk: io.disk, buf: io.buf, result: Ok(()), extents: Vec::new() };
            core.apply(Event::IoDone(done), 0, self);
        }
        core.apply(Event::Spare { copies: false }, 0, self);
    }
}

impl Effects for Numbered {
    fn copy_out(&mut self, _req: ReqId, at: usize, bytes: &[u8]) {
        for (i, b) in bytes.chunks(4096).enumerate() {
            let number = u64::from_le_bytes(b[..8].try_into().unwrap());
            assert_eq!(number, self.wanted + at as u64 / B + i as u64, "another block's bytes");
        }
    }
    fn copy_in(&mut self, _req: ReqId, _at: usize, _bytes: &mut [u8]) {}
    fn submit(&mut self, io: Io) {
        self.ios.push(io);
    }
    fn extents(&mut self, _req: ReqId, _extents: &[Extent]) {}
    fn reply(&mut self, _req: ReqId, result: Result<(), IoError>) {
        assert_eq!(result, Ok(()));
    }
}
