//! Content held once: blocks of equal content in one frame, blocks of a common base, who pays, and who must not see it.

use std::collections::BTreeMap;
use std::panic::catch_unwind;
use undercroft_cache::fault_injection::{Bug, FaultInjection, NoFaults, Planted};
use undercroft_cache::{
    Base, ContentKey, Core, CoreOptions, DiskId, DiskOptions, DiskStats, Effects, Event, Extent, GroupId, Io, IoDone,
    IoError, IoKind, LayerId, Op, ReqId, Request, disk_bytes, limits,
};
use undercroft_engine::{ExclusiveMode, PolicyKind};

const B: u64 = 4096;
const WRITE: Op = Op::Write { fua: false };

/// Disks of which every block holds what `content` says, until it is written.
struct World {
    ios: Vec<Io>,
    written: BTreeMap<(u32, u64), u8>,
    content: fn(u32, u64) -> u8,
    /// What a write brings.
    value: u8,
    /// Place in the request and value of what was copied out.
    seen: Vec<(usize, u8)>,
    /// What the core did, in order: for comparison.
    log: Vec<String>,
    /// Pages of guests, by disk: the value of all bytes of each.
    pages: BTreeMap<u32, Vec<u8>>,
    /// The guest page that the next request uses.
    page: Option<u32>,
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

struct Rig<P: FaultInjection = NoFaults> {
    core: Core<P>,
    world: World,
}

fn options(group: Option<u32>, blocks: u32) -> DiskOptions {
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
    fn new(groups: &[Option<u32>], blocks: u32, content: fn(u32, u64) -> u8) -> Self {
        Rig::planted(NoFaults, ContentKey::from_seed(1), groups, blocks, content)
    }
}

impl<P: FaultInjection> Rig<P> {
    fn planted(plant: P, key: ContentKey, groups: &[Option<u32>], blocks: u32, content: fn(u32, u64) -> u8) -> Self {
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

    fn ask(&mut self, disk: u32, op: Op, block: u64, blocks: u64) {
        let id = ReqId { port: 0, tag: 1 };
        let req = Request { id, disk: DiskId(disk), op, offset: block * B, len: blocks * B };
        self.core.apply(Event::Request(req), 0, &mut self.world);
    }

    /// Completes everything under way, then lets what waits be hashed.
    fn settle(&mut self) {
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

    fn spare(&mut self) {
        while self.core.wants_spare() {
            self.core.apply(Event::Spare { copies: true }, 0, &mut self.world);
        }
    }

    fn read(&mut self, disk: u32, block: u64, blocks: u64) -> Vec<u8> {
        self.world.seen.clear();
        self.ask(disk, Op::Read, block, blocks);
        self.settle();
        let mut seen = std::mem::take(&mut self.world.seen);
        seen.sort_unstable();
        seen.into_iter().map(|s| s.1).collect()
    }

    fn write(&mut self, disk: u32, block: u64, value: u8) {
        self.world.value = value;
        self.ask(disk, WRITE, block, 1);
        self.settle();
    }

    fn tick(&mut self, n: u64) {
        for i in 0..n {
            self.core.apply(Event::Tick, i, &mut self.world);
        }
    }

    fn stats(&self, disk: u32) -> DiskStats {
        self.core.stats(DiskId(disk))
    }

    fn frames(&self) -> u64 {
        self.core.check();
        self.core.frames_used()
    }

    /// Charges are rounded up, by less than a frame for each disk.
    fn assert_charges_add_up(&self, disks: u32) {
        let sum: u64 = (0..disks).map(|d| self.stats(d).charged_blocks).sum();
        let used = self.frames();
        assert!((used..=used + 2 * u64::from(disks)).contains(&sum), "{sum} charged, {used} used");
    }

    fn base(&mut self, disk: u32, layer: u64, blocks: u64, own: &[u64]) -> bool {
        let mut map = vec![0u64; blocks.div_ceil(64) as usize];
        own.iter().for_each(|&b| map[b as usize / 64] |= 1 << (b % 64));
        let base = Base { layer: LayerId(layer), size_bytes: blocks * B, cluster_bytes: B as u32, own: map };
        self.core.set_base(DiskId(disk), base)
    }
}

/// Ten contents, the same on all disks.
fn ten(_disk: u32, block: u64) -> u8 {
    1 + (block % 10) as u8
}

#[test]
fn equal_blocks_of_a_group_take_one_frame_and_diverge_when_written() {
    let mut r = Rig::new(&[Some(0), Some(0)], 500, ten);
    for d in 0..2 {
        for b in 0..10 {
            r.read(d, b * 10, 10);
        }
    }
    assert_eq!(r.frames(), 10, "ten contents, ten frames");
    assert_eq!((r.stats(0).cached_blocks, r.stats(0).shared_blocks, r.stats(0).charged_blocks), (100, 100, 5));
    r.assert_charges_add_up(2);
    r.write(0, 3, 200);
    assert_eq!(r.read(0, 3, 1), [200]);
    assert_eq!(r.read(1, 3, 1), [4], "the other disk's block is as it was");
    assert_eq!(r.read(0, 13, 1), [4], "and so is another block of the same content");
    assert_eq!(r.frames(), 11);
    r.write(1, 77, 200);
    assert_eq!(r.frames(), 11, "what is written is shared too");
    r.assert_charges_add_up(2);
}

#[test]
fn zeroes_take_no_frame() {
    let mut r = Rig::new(&[Some(0)], 500, |_, block| (block % 2) as u8);
    for b in 0..10 {
        r.read(0, b * 10, 10);
    }
    assert_eq!((r.frames(), r.stats(0).zero_blocks, r.stats(0).charged_blocks), (1, 50, 1));
    assert_eq!(r.read(0, 4, 2), [0, 1]);
    r.write(0, 4, 9);
    assert_eq!((r.read(0, 4, 1), r.stats(0).zero_blocks), (vec![9], 49));
    r.write(0, 4, 0);
    assert_eq!((r.read(0, 4, 1), r.stats(0).zero_blocks), (vec![0], 50));
    r.core.check();
}

#[test]
fn groups_share_nothing_and_a_disk_without_a_group_not_even_with_itself() {
    let mut r = Rig::new(&[Some(0), Some(1), None], 500, ten);
    for d in 0..3 {
        for b in 0..10 {
            r.read(d, b * 10, 10);
        }
    }
    assert_eq!(r.frames(), 10 + 10 + 100);
    assert_eq!((r.stats(0).charged_blocks, r.stats(1).charged_blocks, r.stats(2).charged_blocks), (10, 10, 100));
    for domain in r.core.domains() {
        assert_eq!((domain.disks.len(), domain.shared_frames, domain.shared_blocks), (1, 10, 100));
    }
}

/// Whatever another group caches, of the same contents and at the same time: what a disk does is the same, effect by
/// effect and count by count, so nothing of it can be told by timing.
#[test]
fn nothing_of_another_group_shows() {
    let run = |neighbour: bool| {
        let mut r = Rig::new(&[Some(0), Some(1)], 60, ten);
        r.base(0, 5, 100, &[]);
        for i in 0..300u64 {
            if neighbour {
                let log = std::mem::take(&mut r.world.log);
                r.read(1, i * 7 % 100, 1 + i % 4);
                r.write(1, i * 3 % 100, (i % 10) as u8);
                r.world.log = log;
            }
            r.read(0, i * 7 % 100, 1 + i % 3);
            r.write(0, i * 11 % 100, (i % 13) as u8);
            if i % 50 == 0 {
                r.tick(1);
            }
        }
        (r.stats(0), r.world.log)
    };
    let (alone, beside) = (run(false), run(true));
    assert_eq!(alone.0, beside.0);
    assert_eq!(alone.1, beside.1);
    assert!(alone.0.hit_blocks > 0 && alone.0.miss_blocks > 0 && alone.0.shared_blocks > 0);
}

#[test]
fn equal_hashes_of_unequal_contents_are_not_shared() {
    fn all_different(disk: u32, block: u64) -> u8 {
        1 + disk as u8 * 100 + block as u8
    }
    let weak = ContentKey::from_seed(1).weakened(1);
    let mut r = Rig::planted(NoFaults, weak, &[Some(0), Some(0)], 500, all_different);
    let check = |r: &mut Rig| {
        for d in 0..2 {
            for b in 0..90 {
                assert_eq!(r.read(d, b, 1), [all_different(d, b)]);
            }
        }
    };
    check(&mut r);
    check(&mut r);
    assert_eq!(r.frames(), 180);
    // The same without a comparison: this test would see it.
    let mut r = Rig::planted(Planted(Bug::ShareUncompared), weak, &[Some(0)], 500, all_different);
    for b in 0..20 {
        r.read(0, b, 1);
    }
    assert!((0..20).any(|b| r.read(0, b, 1) != [all_different(0, b)]));
}

#[test]
fn a_hit_hashes_nothing() {
    let mut r = Rig::new(&[Some(0)], 500, ten);
    for b in 0..10 {
        r.read(0, b * 10, 10);
    }
    let hashed = r.stats(0).hashed_blocks;
    assert_eq!(hashed, 100, "each fill once");
    for _ in 0..10 {
        r.read(0, 0, 100);
    }
    assert_eq!((r.stats(0).hashed_blocks, r.stats(0).hit_blocks), (hashed, 1000));
    r.write(0, 5, 3);
    assert_eq!(r.stats(0).hashed_blocks, hashed + 1, "each write once");
}

#[test]
fn no_hashing_is_done_before_the_replies_are_out() {
    let mut r = Rig::new(&[Some(0)], 500, ten);
    r.ask(0, Op::Read, 0, 60);
    let mut io = r.world.ios.remove(0);
    io.buf.frames.iter_mut().for_each(|f| f.bytes_mut().fill(1));
    let done = IoDone { op: io.op, disk: io.disk, buf: io.buf, result: Ok(()), extents: Vec::new() };
    r.core.apply(Event::IoDone(done), 0, &mut r.world);
    assert_eq!((r.stats(0).reads, r.stats(0).hashed_blocks), (1, 0));
    assert!(r.core.wants_spare());
    r.spare();
    assert_eq!((r.stats(0).hashed_blocks, r.frames()), (60, 1));
}

#[test]
fn when_others_leave_the_last_one_pays() {
    let mut r = Rig::new(&[Some(0), Some(0), Some(0)], 200, ten);
    for d in 0..3 {
        r.read(d, 0, 10);
    }
    let charges = |r: &Rig| [0, 1, 2].map(|d| r.stats(d).charged_blocks);
    assert_eq!(charges(&r), [4, 4, 4], "ten frames, in thirds, rounded up");
    r.core.remove_disk(DiskId(2));
    assert_eq!(charges(&r), [5, 5, 0]);
    r.ask(1, Op::Discard, 0, 10);
    r.settle();
    assert_eq!(charges(&r), [10, 0, 0]);
    assert_eq!((r.stats(0).shared_blocks, r.frames()), (0, 10));
    let mut r = Rig::planted(Planted(Bug::ChargeLost), ContentKey::from_seed(1), &[Some(0), Some(0)], 200, ten);
    r.read(0, 0, 10);
    r.read(1, 0, 10);
    r.ask(1, Op::Discard, 0, 10);
    r.settle();
    assert_eq!(r.stats(0).charged_blocks, 0, "the planted bug is one");
    std::mem::forget(r.core);
}

/// Six clones of one image hold all of it together; all but one of them go, one after the other.
fn clones_that_go<P: FaultInjection>(plant: P, go: impl Fn(&mut Rig<P>, u32)) {
    const CLONES: u32 = 6;
    let groups = [Some(0); CLONES as usize];
    let mut r = Rig::planted(plant, ContentKey::from_seed(1), &groups, 2000, |_, _| 0);
    (0..CLONES).for_each(|d| assert!(r.base(d, 1, 10_000, &[])));
    let mut front = Numbered::default();
    for t in 0..8 {
        for d in 0..CLONES {
            (0..500).for_each(|chunk| front.read(&mut r.core, d, chunk * 20, 20));
        }
        (0..4).for_each(|n| r.core.apply(Event::Tick, 4 * t + n, &mut front));
    }
    assert!(r.frames() > 8000, "{} frames for six clones", r.frames());
    (1..CLONES).rev().for_each(|d| go(&mut r, d));
    r.tick(1);
    assert!((1000..=2000).contains(&r.frames()), "{} frames for one disk of 2000", r.frames());
    let m = r.core.memory();
    assert!(m.frames_bytes + m.metadata_bytes <= m.ceiling_bytes);
}

/// The rest keep to what they are promised themselves. (The tables of frames once were made for that while the frames
/// were still there, and putting them in never ended.)
#[test]
fn when_clones_go_at_once_the_rest_keep_to_their_share() {
    clones_that_go(NoFaults, |r, d| {
        r.core.remove_disk(DiskId(d));
        r.core.check();
    });
}

fn shrink_to_nothing<P: FaultInjection>(r: &mut Rig<P>, d: u32) {
    r.core.set_share(DiskId(d), 0).unwrap();
    for _ in 0..20 {
        r.core.check();
        r.tick(1);
    }
}

/// A disk that shrinks pays until the others have given up what only it paid for.
#[test]
fn when_clones_shrink_no_frame_is_unpaid() {
    clones_that_go(NoFaults, shrink_to_nothing);
    let early = catch_unwind(|| clones_that_go(Planted(Bug::PaysLessEarly), shrink_to_nothing));
    assert!(early.is_err(), "the planted bug is one");
}

/// What sharing saves can be used: a disk whose blocks are half zeroes keeps nearly twice as many, and gives the slots
/// back when they no longer are.
#[test]
fn what_sharing_saves_is_used_for_more_blocks() {
    let mut r = Rig::new(&[Some(0), Some(1)], 1000, |_, b| if b % 2 == 0 { 0 } else { (b * 7 % 251) as u8 + 1 });
    for round in 0..6 {
        for b in 0..1900 {
            r.read(0, b, 1);
        }
        r.tick(2);
        let s = r.stats(0);
        assert!(s.charged_blocks <= s.capacity_blocks && r.frames() <= 1000, "round {round}: {s:?}");
    }
    let s = r.stats(0);
    assert!(s.cached_blocks >= 1900, "{s:?}");
    let m = r.core.memory();
    assert!(m.frames_bytes + m.metadata_bytes <= m.ceiling_bytes);
}

/// Eight clones of one image, each with an eighth of the memory that holds all of it and 15 % more.
#[test]
fn eight_clones_need_hardly_more_memory_than_one() {
    const COMMON: u32 = 8000;
    let needed_by_one = |policy| {
        // One disk that keeps it all, its operations under way not counted.
        let o = CoreOptions::new(256 << 20);
        let _ = policy;
        disk_bytes(&o, COMMON, 0) - disk_bytes(&o, 0, 0)
    };
    for policy in [PolicyKind::Lru, PolicyKind::Arc, PolicyKind::S3Fifo] {
        let o = CoreOptions { hash_seed: 7, ..CoreOptions::new(256 << 20) };
        let one = needed_by_one(policy);
        // Blocks of one clone, such that all eight together are promised 1.15 times that.
        let block = (disk_bytes(&o, 1000, 0) - disk_bytes(&o, 0, 0)) / 1000;
        let blocks = (one as f64 * 1.15 / 8.0 / block as f64) as u32;
        let groups: Vec<Option<u32>> = (0..8).map(Some).collect();
        // Every block of the image is unlike every other, by what is in its first bytes.
        let mut r = Rig::planted(NoFaults, ContentKey::from_seed(1), &[], 0, |_, _| 0);
        for (i, &g) in groups.iter().enumerate() {
            let o = DiskOptions { policy, ..options(g, blocks) };
            r.core.add_disk(DiskId(i as u32), o).unwrap();
            assert!(r.base(i as u32, 1, u64::from(COMMON), &[]));
        }
        let mut front = Numbered::default();
        let mut pass = |core: &mut Core| {
            let before = front.reads;
            for chunk in 0..COMMON / 20 {
                for d in 0..8 {
                    front.read(core, d, u64::from(chunk) * 20, 20);
                }
            }
            for t in 0..20 {
                core.apply(Event::Tick, t, &mut front);
            }
            front.reads - before
        };
        let reads: Vec<u64> = (0..8).map(|_| pass(&mut r.core)).collect();
        assert_eq!(reads[7], 0, "{policy}: all of the image is in RAM for all: {reads:?}");
        let frames = r.frames();
        assert!(frames <= u64::from(COMMON) * 115 / 100, "{policy}: {frames} frames for {COMMON} blocks");
        let metadata: u64 = r.core.memory().metadata_bytes;
        let sum: u64 = (0..8).map(|d| r.stats(d).charged_blocks).sum();
        println!("{policy}: {frames} frames, {sum} charged, {metadata} bytes of metadata; reads {reads:?}");
        assert!(sum <= frames + 16);
        for d in 0..8 {
            let s = r.stats(d);
            assert!(s.charged_blocks <= s.capacity_blocks, "{s:?}");
        }
        assert!(r.stats(7).shared_hit_blocks >= u64::from(COMMON));
    }
}

/// A front end whose disks hold the block's number in every block.
#[derive(Default)]
struct Numbered {
    ios: Vec<Io>,
    reads: u64,
    wanted: u64,
}

impl Numbered {
    fn read<P: FaultInjection>(&mut self, core: &mut Core<P>, disk: u32, block: u64, blocks: u64) {
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

fn by_block(_disk: u32, block: u64) -> u8 {
    1 + block as u8
}

#[test]
fn a_block_of_the_base_is_read_once_for_all_who_have_not_changed_it() {
    let mut r = Rig::new(&[Some(0), Some(1), Some(2)], 500, by_block);
    assert!(r.base(0, 9, 100, &[5]) && r.base(1, 9, 100, &[]) && r.base(2, 8, 100, &[]));
    r.read(0, 0, 20);
    assert_eq!(r.read(1, 0, 20), (0..20).map(|b| by_block(1, b)).collect::<Vec<_>>());
    let s = r.stats(1);
    assert_eq!((s.shared_hit_blocks, s.hit_blocks, s.miss_blocks), (19, 19, 1), "block 5 is the first one's own");
    assert_eq!(r.frames(), 21);
    r.read(2, 0, 20);
    assert_eq!((r.stats(2).miss_blocks, r.frames()), (20, 41), "another image has nothing to do with it");
    // A write takes the block out, from when it begins.
    r.world.value = 77;
    r.ask(1, WRITE, 3, 1);
    r.ask(1, Op::Read, 3, 1);
    r.settle();
    assert_eq!((r.read(1, 3, 1), r.read(0, 3, 1)), (vec![77], vec![4]));
    r.ask(1, Op::Discard, 3, 1);
    r.settle();
    let before = r.stats(1).miss_blocks;
    assert_eq!((r.read(1, 3, 1), r.stats(1).miss_blocks), (vec![0], before + 1), "the base is hidden for good");
    r.assert_charges_add_up(3);
    r.core.remove_disk(DiskId(0));
    r.assert_charges_add_up(3);
    assert_eq!(r.stats(1).charged_blocks, 19 + 1 - 1, "who stays pays; block 3 is zero");
}

#[test]
fn a_base_block_is_had_without_a_slot_too() {
    let mut r = Rig::new(&[Some(0), Some(0)], 100, by_block);
    r.core.set_capacity(DiskId(1), 0).unwrap();
    assert!(r.base(0, 1, 50, &[]));
    assert!(!r.base(1, 1, 50, &[]), "no room for a map");
    r.core.set_capacity(DiskId(1), 100).unwrap();
    assert!(r.base(1, 1, 50, &[]));
    r.read(0, 0, 10);
    r.core.set_limit(DiskId(1), 0);
    assert_eq!(r.read(1, 0, 10), r.read(0, 0, 10));
    assert_eq!((r.stats(1).shared_hit_blocks, r.stats(1).backend_reads, r.stats(1).cached_blocks), (10, 0, 0));
}

#[test]
fn the_last_partial_block_and_what_is_past_the_base_are_a_disks_own() {
    let mut r = Rig::new(&[Some(0), Some(0)], 100, by_block);
    for d in 0..2 {
        let map = vec![0u64; 4];
        let base = Base { layer: LayerId(1), size_bytes: 10 * B + 5, cluster_bytes: 4 * B as u32, own: map };
        assert!(r.core.set_base(DiskId(d), base));
    }
    r.read(0, 0, 20);
    r.read(1, 0, 20);
    assert_eq!(r.stats(1).shared_hit_blocks, 10);
}

#[test]
fn an_invalidated_disk_has_no_base_any_more() {
    let mut r = Rig::new(&[Some(0), Some(0)], 100, by_block);
    assert!(r.base(0, 1, 50, &[]) && r.base(1, 1, 50, &[]));
    r.read(0, 0, 10);
    r.core.invalidate(DiskId(1));
    assert!(!r.core.has_base(DiskId(1)) && r.core.has_base(DiskId(0)));
    r.read(1, 0, 10);
    assert_eq!((r.stats(1).shared_hit_blocks, r.stats(1).miss_blocks), (0, 10));
    r.assert_charges_add_up(2);
}

/// A guest page with another content of equal hash (a weak key makes one) reaches its own disk at most, never others
/// on the same base.
#[test]
fn what_was_copied_from_a_guest_is_never_taken_for_a_block_of_the_base() {
    let others_see = |plant| {
        let key = ContentKey::from_seed(1).weakened(1);
        let mut r = Rig::planted(plant, key, &[], 0, |_, block| if block == 0 { 1 } else { 3 });
        for d in 0..2 {
            let o = DiskOptions { exclusive: ExclusiveMode::Capture, ..options(Some(d), 64) };
            r.core.add_disk(DiskId(d), o).unwrap();
            assert!(r.base(d, 1, 50, &[]));
        }
        r.core.set_guest(DiskId(0), 16);
        let hash = |v: u8| key.hash(&[v; 4096]);
        let forged = (2..250u8).find(|&v| hash(v) == hash(1)).expect("one bit of hash");
        r.world.pages.insert(0, vec![forged; 16]);
        // Block 0 goes to page 0; nothing of it stays cached; the page, changed, is used for another block.
        r.world.page = Some(0);
        r.read(0, 0, 1);
        r.world.page = None;
        r.core.set_limit(DiskId(0), 0);
        r.core.set_limit(DiskId(0), u32::MAX);
        r.world.page = Some(0);
        r.read(0, 1, 1);
        r.world.page = None;
        let captured = r.core.exclusive(DiskId(0)).unwrap().stats.captures;
        assert_eq!(captured, 1, "the forged page was kept");
        let seen = r.read(1, 0, 1);
        (seen, forged)
    };
    assert_eq!(others_see(Planted(Bug::StaleFill)).0, [1], "any other bug");
    let (seen, forged) = others_see(Planted(Bug::CaptureTakenForBase));
    assert_eq!(seen, [forged], "the planted bug is one");
}

#[test]
fn a_disk_that_others_leave_keeps_to_its_share() {
    // Two disks with the same 150 blocks, and room for 100 frames each.
    let mut r = Rig::new(&[Some(0), Some(1)], 100, |_, b| 1 + b as u8);
    assert!(r.base(0, 1, 300, &[]) && r.base(1, 1, 300, &[]));
    for _ in 0..8 {
        for b in 0..15 {
            r.read(0, b * 10, 10);
            r.read(1, b * 10, 10);
        }
        r.tick(2);
    }
    let both = r.stats(0).cached_blocks;
    assert!(both >= 145 && r.stats(1).cached_blocks >= 145, "{both}");
    r.ask(1, Op::Discard, 0, 200);
    r.settle();
    r.tick(4);
    let s = r.stats(0);
    assert!(s.cached_blocks <= 100 && s.charged_blocks <= 100, "{s:?}");
    assert!(r.frames() <= 200);
    // The other has all of its share at once.
    for b in 0..10 {
        r.read(1, 400 + b * 10, 10);
    }
    assert!(r.stats(1).cached_blocks >= 90 && r.stats(0).charged_blocks <= 100);
    r.core.check();
    let _ = limits::SLOTS_PER_BLOCK_MAX;
}
