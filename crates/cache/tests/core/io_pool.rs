//! The pool of frames for I/O that the disks of a core share: what a share holds with it, who gets how much, and what
//! becomes of loans when disks shrink or go.

use undercroft_cache::fault_injection::{Bug, FaultInjection, NoFaults, Planted};
use undercroft_cache::{
    AddDiskError, Core, CoreOptions, DiskId, DiskOptions, Event, Geometry, Io, Op, blocks_per_disk_max, disk_bytes,
    limits,
};
use undercroft_engine::{ExclusiveMode, PolicyKind};
use undercroft_testkit::front::{Front, Guest, NoData, ValueDisks, Values, block_request, check_ceiling};

const B: u64 = 4096;
const MIB: u64 = 1 << 20;
const READAHEAD: u32 = 512 << 10;
const WRITE: Op = Op::Write { fua: false };

fn options(capacity_blocks: u32) -> DiskOptions {
    let options = DiskOptions::new(&Geometry::new(1 << 40), PolicyKind::S3Fifo, capacity_blocks);
    DiskOptions { readahead_bytes: READAHEAD, ..options }
}

struct Rig {
    core: Core,
    front: Front<NoData>,
}

impl Rig {
    /// A core with a ceiling of `disks` times `share`, and as many disks that have it to themselves.
    fn new(disks: u32, share: u64) -> Self {
        let o = CoreOptions::new(u64::from(disks) * share);
        let blocks = blocks_per_disk_max(&o, disks, READAHEAD);
        let mut core = Core::new(o).unwrap();
        (0..disks).for_each(|d| core.add_disk(DiskId(d), options(blocks)).unwrap());
        Self { core, front: Front::new(NoData) }
    }

    fn ask(&mut self, disk: u32, op: Op, block: u64, blocks: u64) {
        self.front.ask(&mut self.core, block_request(DiskId(disk), op, block, blocks));
        check_ceiling(&self.core);
    }

    /// The oldest operation of a disk, or of any, ends; false if there is none.
    fn end_one(&mut self, disk: Option<u32>) -> bool {
        let Some(at) = self.front.ios.iter().position(|io| disk.is_none_or(|d| io.disk == DiskId(d))) else {
            return false;
        };
        self.front.end(&mut self.core, at, |_| Ok(()));
        check_ceiling(&self.core);
        true
    }

    fn end_all(&mut self) {
        while self.end_one(None) {}
    }

    /// Frames under way for a disk.
    fn frames(&self, disk: u32) -> usize {
        self.front.ios.iter().filter(|io| io.disk == DiskId(disk)).map(|io| io.buf.frames.len()).sum()
    }

    fn cached(&self, disk: u32) -> u64 {
        self.core.stats(DiskId(disk)).cached_blocks
    }
}

/// Reads so much, one block after the other, that a disk holds what it can.
fn fill(r: &mut Rig, disk: u32, blocks: u64) {
    for b in 0..blocks {
        r.ask(disk, Op::Read, 3 * b, 1);
        r.end_all();
    }
}

#[test]
fn a_share_of_eleven_mib_holds_nine() {
    for disks in [1, 2, 5] {
        let mut r = Rig::new(disks, 11 * MIB);
        for d in 0..disks {
            fill(&mut r, d, 3000);
        }
        // At once, and with reads ahead of streams.
        for b in (0..4000).step_by(4) {
            (0..disks).for_each(|d| r.ask(d, Op::Read, 100_000 + b, 4));
            (0..disks).for_each(|d| r.ask(d, WRITE, 7 * b, 64));
            if b % 64 == 0 {
                r.end_all();
            }
        }
        r.end_all();
        r.core.check();
        for d in 0..disks {
            assert!(r.cached(d) * B >= 9 * MIB, "{} blocks of disk {d} of {disks}", r.cached(d));
        }
    }
}

#[test]
fn a_share_that_becomes_eleven_mib_holds_nine_too() {
    let o = CoreOptions::new(512 * MIB);
    let all = blocks_per_disk_max(&o, 1, READAHEAD);
    let mut core = Core::new(o).unwrap();
    core.add_disk(DiskId(0), options(all)).unwrap();
    let blocks = core.blocks_for(DiskId(0), 11 * MIB);
    assert!(u64::from(blocks) * B >= 9 * MIB, "{blocks} blocks");
    assert!(core.bytes_for(DiskId(0), blocks.into()) <= 11 * MIB);
    assert!(core.bytes_for(DiskId(0), u64::from(blocks) + 1) > 11 * MIB - B);
    core.set_capacity(DiskId(0), blocks).unwrap();
    assert_eq!(core.io_pool().frames, u64::from(blocks / limits::POOL_PART));
    core.check();
    // What it gave is there for others.
    let other = blocks_per_disk_max(&CoreOptions::new(500 * MIB), 1, READAHEAD);
    core.add_disk(DiskId(1), options(other)).unwrap();
    core.check();
}

#[test]
fn a_disk_alone_has_nearly_all_of_the_pool() {
    let mut r = Rig::new(1, 256 * MIB);
    let pool = r.core.io_pool().frames;
    assert!(pool > 900, "{pool}");
    (0..32).for_each(|n| r.ask(0, WRITE, n * 256, 256));
    let (guaranteed, lent) = (limits::IO_FRAMES_GUARANTEED, r.core.io_pool().lent);
    assert_eq!(r.frames(0), guaranteed + lent as usize);
    assert!(lent * 10 >= pool * 8, "{lent} of {pool}");
    r.core.check();
    r.end_all();
    assert_eq!((r.front.answered, r.core.io_pool().lent), (32, 0));
    // Small requests at depth 32 take no loan at all.
    (0..32).for_each(|n| r.ask(0, Op::Read, 1_000_000 + 9 * n, 1));
    assert_eq!((r.front.ios.len(), r.core.io_pool().lent), (32, 0));
    r.end_all();
}

#[test]
fn a_disk_that_floods_leaves_others_their_part() {
    let mut r = Rig::new(3, 64 * MIB);
    let pool = r.core.io_pool().frames as usize;
    (0..64).for_each(|n| r.ask(0, WRITE, n * 256, 256));
    let alone = r.frames(0);
    // Another comes: what it is guaranteed is there at once, and something of the pool.
    (0..64).for_each(|n| r.ask(1, Op::Read, 1_000_000 + n * 300, 256));
    assert!(r.frames(1) > limits::IO_FRAMES_GUARANTEED, "{} frames", r.frames(1));
    // As the first one's operations end, both have as much.
    for _ in 0..12 {
        (0..2).for_each(|d| assert!(r.end_one(Some(d))));
        r.core.check();
    }
    let (first, second) = (r.frames(0), r.frames(1));
    assert!(first < alone && first.abs_diff(second) <= 2 * limits::IO_BLOCKS_MAX, "{first} and {second} of {pool}");
    // The third is served, whatever they do, with operations of the largest size.
    r.ask(2, Op::Read, 0, 64);
    assert!(r.frames(2) >= limits::IO_FRAMES_GUARANTEED);
    r.end_all();
    assert_eq!((r.front.answered, r.core.io_pool().lent), (129, 0));
    r.core.check();
}

#[test]
fn loans_of_what_a_disk_takes_with_it_stay_promised_until_they_end() {
    let mut r = Rig::new(2, 64 * MIB);
    let ceiling = r.core.memory().ceiling_bytes;
    (0..64).for_each(|n| r.ask(0, WRITE, n * 256, 256));
    let lent = r.core.io_pool().lent;
    r.core.remove_disk(DiskId(1));
    let (pool, promised) = (r.core.io_pool(), r.core.memory().promised_bytes);
    assert!(pool.lent == lent && pool.owed == lent - pool.frames && pool.owed > 0, "{pool:?}");
    r.core.check();
    // Nobody gets memory that operations still have.
    let o = CoreOptions::new(ceiling);
    let left = blocks_per_disk_max(&o, 2, READAHEAD);
    let refused = r.core.may_add(left, READAHEAD);
    assert!(matches!(refused, Err(AddDiskError::NoMemory { .. })), "{refused:?}");
    while r.core.io_pool().owed > 0 {
        assert!(r.end_one(None));
        r.core.check();
    }
    let owed = promised - r.core.memory().promised_bytes;
    assert!(owed >= pool.owed * B, "{owed} bytes for {} frames", pool.owed);
    r.core.add_disk(DiskId(1), options(left)).unwrap();
    r.end_all();
    r.core.check();
    assert_eq!((r.front.answered, r.core.io_pool().owed), (64, 0));
}

#[test]
fn a_disk_that_shrinks_under_load_gives_its_part_back_as_operations_end() {
    let mut r = Rig::new(2, 64 * MIB);
    let blocks = r.core.stats(DiskId(0)).capacity_blocks as u32;
    (0..64).for_each(|n| r.ask(0, WRITE, n * 256, 256));
    r.core.set_capacity(DiskId(1), blocks / 8).unwrap();
    r.core.set_capacity(DiskId(0), blocks / 8).unwrap();
    assert!(r.core.io_pool().owed > 0);
    r.core.set_limit(DiskId(0), 100);
    r.core.check();
    while r.end_one(None) {
        r.core.check();
    }
    assert_eq!(r.core.io_pool().owed, 0);
    // And may grow again.
    r.core.set_limit(DiskId(0), u32::MAX);
    r.core.set_capacity(DiskId(0), blocks).unwrap();
    assert_eq!(r.core.io_pool().frames, u64::from(blocks / 64 + blocks / 8 / 64));
    fill(&mut r, 0, 6000);
    assert!(r.cached(0) > u64::from(blocks / 8));
    r.core.check();
}

#[test]
fn a_second_disk_pays_for_tables_and_what_it_is_guaranteed_and_no_more() {
    let o = CoreOptions::new(1 << 30);
    let least = disk_bytes(&o, 0, READAHEAD);
    assert!(least < 3 * MIB / 2, "{least} bytes for a disk without a cache");
    let part = |blocks: u32| disk_bytes(&o, blocks, READAHEAD) - least;
    let per_block = part(64) as f64 / 64.0;
    let bare = (B as usize + limits::METADATA_BYTES_PER_BLOCK_MAX + limits::CONTENT_BYTES_PER_BLOCK_MAX) as f64;
    assert!(per_block < bare * 1.017, "{per_block} bytes a block");
}

/// Operations of a small disk that is asked for 256 KiB after 256 KiB, eight at a time, beside single blocks.
fn operations_for(op: Op, readahead_bytes: u32) -> (u64, u64) {
    let o = CoreOptions::new(16 * MIB);
    let blocks = blocks_per_disk_max(&o, 1, READAHEAD);
    let mut core = Core::new(o).unwrap();
    core.add_disk(DiskId(0), DiskOptions { readahead_bytes, ..options(blocks) }).unwrap();
    let mut r = Rig { core, front: Front::new(NoData) };
    let (mut asked, rounds) = (0, 400);
    while r.front.answered < rounds {
        while asked < r.front.answered + 8 {
            match asked % 8 {
                0 => r.ask(0, Op::Read, 1_000_000 + 7 * asked, 1),
                _ => r.ask(0, op, asked * 64, 64),
            }
            asked += 1;
        }
        assert!(r.end_one(None), "nothing is under way");
    }
    let stats = r.core.stats(DiskId(0));
    let long = r.front.answered * 7 / 8;
    r.end_all();
    r.core.check();
    (stats.backend_reads + stats.backend_writes, long)
}

#[test]
fn operations_stay_long_where_frames_are_few() {
    for (op, readahead) in [(Op::Read, 0), (WRITE, 0), (Op::Read, READAHEAD)] {
        let (operations, long) = operations_for(op, readahead);
        assert!(operations <= 3 * long, "{op:?}: {operations} operations for {long} requests of 256 KiB");
    }
}

/// A guest reads a stream, and reads of it that are under way come when the disk has nothing to lend any more. Frames
/// that are lent then beyond those that there are and those that are owed.
fn lent_beyond(faults: impl FaultInjection) -> u64 {
    let o = CoreOptions { hash_seed: 1, io_frames_guaranteed: 2, ..CoreOptions::new(32 * MIB) };
    let mut core = Core::with_faults(o, faults).unwrap();
    let options = DiskOptions { readahead_bytes: 64 << 10, exclusive: ExclusiveMode::Capture, ..options(1000) };
    core.add_disk(DiskId(0), options).unwrap();
    core.set_guest(DiskId(0), 200);
    // Whatever is read waits to be hashed.
    core.set_scanned(DiskId(0), true);
    let mut front = Front::new(Guest::<Values>::new(200));
    let mut disk = ValueDisks::new(|_, block| block as u8 | 1);
    let is_long = |io: &Io| io.len >= 8 * B;
    for block in 0.. {
        front.client.page = Some(block as u32);
        front.ask(&mut core, block_request(DiskId(0), Op::Read, block, 1));
        while let Some(at) = front.ios.iter().position(|io| !is_long(io)) {
            front.end(&mut core, at, |io| {
                disk.serve(io);
                Ok(())
            });
        }
        if !front.ios.is_empty() {
            break;
        }
    }
    // The first two are wanted, the others wait to be used.
    let first = front.ios[0].offset / B;
    for block in [first, first + 1] {
        front.client.page = Some(100 + (block - first) as u32);
        front.ask(&mut core, block_request(DiskId(0), Op::Read, block, 1));
    }
    core.set_share(DiskId(0), 1).unwrap();
    // What it held goes with the next events.
    for _ in 0..100 {
        core.apply(Event::Tick, 0, &mut front);
    }
    let pool = core.io_pool();
    assert!(pool.frames == 0 && pool.lent > 4 && pool.owed == pool.lent, "{pool:?}");
    while !front.ios.is_empty() {
        front.end(&mut core, 0, |io| {
            disk.serve(io);
            Ok(())
        });
    }
    let pool = core.io_pool();
    pool.lent - (pool.frames + pool.owed).min(pool.lent)
}

/// Seed 1001622 of the simulation.
#[test]
fn frames_that_have_come_count_until_they_have_their_places() {
    assert_eq!(lent_beyond(NoFaults), 0);
    assert_ne!(lent_beyond(Planted(Bug::PlacedBeforeTime)), 0, "the test does not see the bug");
}
