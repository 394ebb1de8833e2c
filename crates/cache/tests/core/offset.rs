//! A guest whose pages lie across blocks, as with file systems of 1 KiB blocks: blocks are counted from where they
//! begin.

use crate::ssd::{BOOT, Flash, REGION, SEGMENT};
use undercroft_cache::fault_injection::{Bug, FaultInjection, NoFaults, Planted};
use undercroft_cache::ssd::{Admission, Format, Identity, Known, Region, Ssd, StoreId};
use undercroft_cache::{
    Core, CoreOptions, DiskId, DiskOptions, Event, ExclusiveState, Geometry, Io, IoKind, IoTarget, Op, ReqId, Request,
};
use undercroft_engine::{ExclusiveMode, PolicyKind};
use undercroft_testkit::front::{Buffer, Front, Guest};

const B: u64 = 4096;
const DISK: DiskId = DiskId(0);
const PAGES: u32 = 64;

/// A guest over a disk whose bytes say which sector they are of.
struct Rig {
    core: Core,
    front: Front<Guest<Buffer>>,
    /// The guest's page for the next read.
    next: u32,
}

fn sector(at: u64) -> u8 {
    (at / 512).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[7]
}

/// Operations do not reach past the disk, and begin with sectors.
fn serve(io: &mut Io, size: u64) {
    assert!(io.offset.is_multiple_of(512) && io.offset + io.len <= size, "{} and {} bytes", io.offset, io.len);
    if io.kind == IoKind::Read {
        let mut at = io.offset;
        for piece in io.buf.pieces_mut() {
            for part in piece.chunks_mut(512) {
                part.fill(sector(at));
                at += part.len() as u64;
            }
        }
        assert_eq!(at, io.offset + io.len);
    }
}

const SIZE: u64 = 1 << 26;

impl Rig {
    fn new(mode: ExclusiveMode) -> Self {
        let mut core = Core::new(CoreOptions { hash_seed: 1, ..CoreOptions::new(32 << 20) }).unwrap();
        let options = DiskOptions::new(&Geometry::new(SIZE), PolicyKind::Lru, 400);
        core.add_disk(DISK, DiskOptions { readahead_bytes: 0, exclusive: mode, ..options }).unwrap();
        core.set_guest(DISK, PAGES);
        let data = Guest { pages: vec![[0; 4096]; PAGES as usize], data: Buffer(vec![0; 4096]), ..guest() };
        Self { core, front: Front::new(data), next: 0 }
    }

    /// The guest reads bytes `at..at + len` into a page. Whether the cache had them.
    fn read(&mut self, at: u64, len: u64) -> bool {
        let before = self.core.stats(DISK).backend_reads;
        self.front.client.page = Some(self.next % PAGES);
        self.next += 1;
        self.front.client.data.0.fill(0);
        let id = ReqId { port: 0, tag: self.next };
        let req = Request { id, disk: DISK, op: Op::Read, offset: at, len };
        self.front.run(&mut self.core, req, |io| serve(io, SIZE));
        self.core.apply(Event::Spare { copies: true }, 0, &mut self.front);
        for (n, &byte) in self.front.client.data.0[..len as usize].iter().enumerate() {
            assert_eq!(byte, sector(at + n as u64), "byte {}", at + n as u64);
        }
        self.core.stats(DISK).backend_reads == before
    }

    /// Reads `n` pages of a file of `of` pages that begins with byte `from`, in any order. How many the cache had.
    fn file(&mut self, from: u64, n: u64, of: u64) -> u64 {
        (0..n).map(|i| u64::from(self.read(from + i * 7919 % of * B, B))).sum()
    }

    fn offset(&mut self) -> u32 {
        self.core.check();
        self.core.exclusive(DISK).unwrap().block_offset
    }
}

fn guest() -> Guest<Buffer> {
    Guest { data: Buffer(Vec::new()), pages: Vec::new(), page: None, runs: false, copies: 0, opaque: false }
}

#[test]
fn pages_that_lie_across_blocks_are_captured_once_blocks_begin_where_they_do() {
    let mut rig = Rig::new(ExclusiveMode::Auto);
    rig.file(1024, 200, 200);
    assert_eq!(rig.offset(), 0);
    rig.file(1024, 400, 200);
    assert_eq!(rig.offset(), 1024);
    // The first block is what comes before the first page, and is cached as others are.
    for (at, len) in [(0, 512), (512, 512), (0, 1024), (512, 3072)] {
        rig.read(at, len);
        assert!(rig.read(at, len), "{len} bytes at {at}");
    }
    let hits = rig.file(1024, 400, 200);
    let report = rig.core.exclusive(DISK).unwrap();
    assert!(matches!(report.state, ExclusiveState::On { .. }) && report.stats.evictions > 100, "{report:?}");
    assert!(hits > 390 && report.stats.pages_held > 50, "{hits}: {report:?}");
    assert!(rig.read(SIZE - 512, 512) || rig.read(SIZE - 512, 512), "the last block is cached, too");
    rig.core.check();
}

#[test]
fn a_disk_that_is_used_in_several_ways_keeps_its_blocks_where_they_are() {
    let mut rig = Rig::new(ExclusiveMode::Auto);
    for n in 0..2000 {
        rig.file(if n % 2 == 0 { 1024 } else { 0 }, 1, 200);
    }
    assert_eq!(rig.offset(), 0);
    // Of 1 KiB each, what is read says nothing.
    for n in 0..2000 {
        rig.read(1024 * n, 1024);
    }
    assert_eq!(rig.offset(), 0);
}

#[test]
fn blocks_begin_elsewhere_again_when_another_part_of_the_disk_is_used() {
    let mut rig = Rig::new(ExclusiveMode::Auto);
    rig.file(512, 400, 300);
    assert_eq!(rig.offset(), 512);
    rig.file(0, 300, 300);
    assert_eq!(rig.offset(), 512, "it takes twice as much as before");
    rig.file(0, 2000, 300);
    assert_eq!(rig.offset(), 0);
    assert!(rig.file(0, 300, 300) > 290);
}

#[test]
fn a_disk_that_is_not_exclusive_keeps_its_blocks_where_they_are() {
    let mut rig = Rig::new(ExclusiveMode::Off);
    rig.file(1024, 2000, 300);
    assert_eq!(rig.offset(), 0);
}

/// Blocks in the SSD store of a disk whose pages lie across blocks, in one pool with another disk: both are read until
/// each has given up blocks for the other.
fn stored_of_a_displaced_disk_in_a_pool<P: FaultInjection>(faults: P) -> u64 {
    let other = DiskId(1);
    let mut core = Core::with_faults(CoreOptions { hash_seed: 1, ..CoreOptions::new(32 << 20) }, faults).unwrap();
    let mut flash = Flash(vec![0; REGION]);
    let format = Format { store: StoreId([7; 16]), segment_bytes: SEGMENT };
    let region = Region::format(&mut flash, format, BOOT, NoFaults).unwrap();
    let mut ssd = Ssd::new(vec![region]);
    ssd.set_admission(Admission::All);
    core.set_ssd(ssd);
    for (n, id) in [DISK, other].into_iter().enumerate() {
        let options = DiskOptions::new(&Geometry::new(SIZE), PolicyKind::Lru, 200);
        core.add_disk(id, DiskOptions { readahead_bytes: 0, exclusive: ExclusiveMode::Auto, ..options }).unwrap();
        core.set_guest(id, PAGES);
        let known = Known { identity: Identity([n as u8; 64]), stamp: None, blocks: SIZE / B };
        core.use_ssd(id, &known).unwrap();
        core.set_ssd_share(id, 1 << 20);
    }
    let data = Guest { pages: vec![[0; 4096]; PAGES as usize], data: Buffer(vec![0; 4096]), ..guest() };
    let mut front = Front::new(data);
    let mut next = 0;
    let mut read = |core: &mut Core<P>, disk: DiskId, at: u64| {
        front.client.page = Some(next % PAGES);
        next += 1;
        let req = Request { id: ReqId { port: 0, tag: next }, disk, op: Op::Read, offset: at, len: B };
        front.run(core, req, |io| match io.target {
            IoTarget::Ssd(_) => flash.serve(io),
            IoTarget::Image => serve(io, SIZE),
        });
        let bytes = front.client.data.0.chunks(512).enumerate();
        bytes.for_each(|(n, part)| assert_eq!(part, [sector(at + n as u64 * 512); 512], "{disk:?} at {at}"));
    };
    (0..800).for_each(|n| read(&mut core, DISK, 1024 + n % 200 * B));
    assert_eq!(core.exclusive(DISK).unwrap().block_offset, 1024);
    core.join_pool(DISK, other).unwrap();
    for n in 0..600 {
        read(&mut core, DISK, 1024 + n * B);
        read(&mut core, other, (n % 300) * B);
    }
    core.check();
    assert!(core.ssd_stats_of(other).unwrap().blocks > 100, "{:?}", core.ssd_stats_of(other));
    core.ssd_stats_of(DISK).unwrap().blocks
}

/// The store knows blocks by their numbers, and at the next start they are counted from the image's first byte again:
/// seed 14182 of the simulation served a block in place of the one beside it.
#[test]
fn what_a_pool_gives_up_of_a_displaced_disk_does_not_come_to_an_ssd() {
    assert_eq!(stored_of_a_displaced_disk_in_a_pool(NoFaults), 0);
    let bug = Planted(Bug::BelowNumbersTakenForOwn);
    assert!(stored_of_a_displaced_disk_in_a_pool(bug) > 0, "the test does not see the bug");
}
