//! What tests of sharing drive a core with: disks that hold what a test says, and disks that number their blocks.
//!
//! Owns the content of disks and of guests' pages, and what the core did. Never decides what is right, but that no
//! request fails and nobody gets mixed content or another block's. Invariant: a disk reads as what was written to it
//! last, and as what the test says where nothing was.

use crate::ssd::{BOOT, Flash, REGION, SEGMENT};
use std::collections::BTreeMap;
use undercroft_cache::fault_injection::{FaultInjection, NoFaults};
use undercroft_cache::ssd::{Admission, Format, Identity, Known, Region, Ssd, Stamp, StoreId};
use undercroft_cache::{
    Base, ContentKey, Core, CoreOptions, DiskId, DiskOptions, DiskStats, Event, Geometry, GroupId, Io, IoTarget,
    LayerId, Op, ReqId,
};
use undercroft_engine::{ExclusiveMode, PolicyKind};
use undercroft_testkit::front::{Client, Front, Numbered, ValueDisks, Values, block_request, number_blocks};

pub(super) const B: u64 = 4096;
pub(super) const WRITE: Op = Op::Write { fua: false };

/// Clients of all disks, some of them in guests whose pages hold what a test says.
pub(super) struct Clients {
    pub(super) data: Values,
    /// What the core did, in order: for comparison.
    pub(super) log: Vec<String>,
    /// Pages of guests, by disk: the value of all bytes of each.
    pub(super) pages: BTreeMap<u32, Vec<u8>>,
    /// The guest page that the next request uses.
    pub(super) page: Option<u32>,
}

impl Client for Clients {
    fn take(&mut self, req: ReqId, at: usize, bytes: &[u8]) {
        self.data.take(req, at, bytes);
        self.log.push(format!("out {} {at} {}", req.tag, bytes.len()));
    }
    fn give(&mut self, req: ReqId, at: usize, bytes: &mut [u8]) {
        self.data.give(req, at, bytes);
    }
    fn page(&mut self, _req: ReqId, at: usize) -> Option<u32> {
        self.page.map(|p| p + at as u32 / 4096)
    }
    fn copy_page(&mut self, disk: DiskId, page: u32, to: &mut [u8; 4096]) -> bool {
        let Some(&value) = self.pages.get(&disk.0).and_then(|p| p.get(page as usize)) else { return false };
        to.fill(value);
        true
    }
    fn submitted(&mut self, io: &Io) {
        self.log.push(format!("submit {:?} {} {}", io.kind, io.offset, io.len));
    }
    fn answered(&mut self, req: ReqId) {
        self.log.push(format!("reply {}", req.tag));
    }
}

pub(super) struct Rig<P: FaultInjection = NoFaults> {
    pub(super) core: Core<P>,
    pub(super) front: Front<Clients>,
    disks: ValueDisks,
    /// The device of the SSD store, where there is one.
    flash: Flash,
}

pub(super) fn options(group: Option<u32>, blocks: u32) -> DiskOptions {
    DiskOptions {
        exclusive: ExclusiveMode::Off,
        group: group.map(GroupId),
        ..DiskOptions::new(&Geometry::new(1 << 30), PolicyKind::Lru, blocks)
    }
}

impl Rig<NoFaults> {
    pub(super) fn new(groups: &[Option<u32>], blocks: u32, content: fn(u32, u64) -> u8) -> Self {
        Rig::planted(NoFaults, ContentKey::from_seed(1), groups, blocks, content)
    }
}

impl<P: FaultInjection> Rig<P> {
    pub(super) fn planted(
        faults: P,
        key: ContentKey,
        groups: &[Option<u32>],
        blocks: u32,
        content: fn(u32, u64) -> u8,
    ) -> Self {
        let o = CoreOptions { content_key: key, hash_seed: 7, ..CoreOptions::new(128 << 20) };
        let mut core = Core::with_faults(o, faults).unwrap();
        for (i, &g) in groups.iter().enumerate() {
            core.add_disk(DiskId(i as u32), options(g, blocks)).unwrap();
        }
        let data = Values { write: Some(0), ..Values::default() };
        let clients = Clients { data, log: Vec::new(), pages: BTreeMap::new(), page: None };
        Self { core, front: Front::new(clients), disks: ValueDisks::new(content), flash: Flash(Vec::new()) }
    }

    pub(super) fn ask(&mut self, disk: u32, op: Op, block: u64, blocks: u64) {
        self.front.ask(&mut self.core, block_request(DiskId(disk), op, block, blocks));
    }

    /// Completes everything under way, then lets what waits be hashed.
    pub(super) fn settle(&mut self) {
        self.front.end_all(&mut self.core, |io| match io.target {
            IoTarget::Ssd(_) => self.flash.serve(io),
            IoTarget::Image => self.disks.serve(io),
        });
        self.spare();
    }

    /// Puts a store below the core that admits everything.
    pub(super) fn put_ssd(&mut self) {
        self.flash = Flash(vec![0; REGION]);
        let format = Format { store: StoreId([7; 16]), segment_bytes: SEGMENT };
        let region = Region::format(&mut self.flash, format, BOOT, NoFaults).unwrap();
        let mut ssd = Ssd::new(vec![region]);
        ssd.set_admission(Admission::All);
        self.core.set_ssd(ssd);
    }

    /// Has a disk use the store, and what it stands on as an owner of its own, if that is wanted and it does.
    pub(super) fn use_ssd(&mut self, disk: u32, and_base: bool) {
        let known = |n: u8| Known { identity: Identity([n; 64]), stamp: Some(Stamp([1; 64])), blocks: 1 << 18 };
        self.core.use_ssd(DiskId(disk), &known(disk as u8)).unwrap();
        self.core.set_ssd_share(DiskId(disk), 1000);
        if and_base {
            assert!(self.core.use_ssd_for_base(DiskId(disk), &known(0xba)).unwrap().is_some());
        }
    }

    pub(super) fn spare(&mut self) {
        while self.core.wants_spare() {
            self.core.apply(Event::Spare { copies: true }, 0, &mut self.front);
        }
    }

    pub(super) fn read(&mut self, disk: u32, block: u64, blocks: u64) -> Vec<u8> {
        self.front.client.data.seen.clear();
        self.ask(disk, Op::Read, block, blocks);
        self.settle();
        let mut seen = std::mem::take(&mut self.front.client.data.seen);
        seen.sort_unstable();
        seen.into_iter().map(|(_, _, value)| value).collect()
    }

    pub(super) fn write(&mut self, disk: u32, block: u64, value: u8) {
        self.front.client.data.write = Some(value);
        self.ask(disk, WRITE, block, 1);
        self.settle();
    }

    pub(super) fn tick(&mut self, n: u64) {
        for i in 0..n {
            self.core.apply(Event::Tick, i, &mut self.front);
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

/// Reads blocks that hold their numbers, and leaves no time for copies of guests' pages. How many operations it took.
pub fn read_numbered<P: FaultInjection>(
    front: &mut Front<Numbered>,
    core: &mut Core<P>,
    disk: u32,
    block: u64,
    blocks: u64,
) -> u64 {
    let mut operations = 0;
    front.run(core, block_request(DiskId(disk), Op::Read, block, blocks), |io| {
        operations += 1;
        number_blocks(io);
    });
    core.apply(Event::Spare { copies: false }, 0, front);
    operations
}
