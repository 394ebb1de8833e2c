//! A core goes on with the frames of another: the same blocks in the same memory, and nothing else.

use undercroft_cache::{
    ByteRange, Core, CoreOptions, DiskId, DiskOptions, Event, FramesIn, Geometry, GroupId, KeptBlock, KeptBlocks, Op,
};
use undercroft_engine::{PartId, PartRange, PartSetting, PolicyKind, Tier};
use undercroft_host::SharedMemory;
use undercroft_testkit::front::{Front, Values, block_request, fill_blocks};

const B: u64 = 4096;
const DISK: DiskId = DiskId(0);
const MEMORY: u64 = 16 << 20;

struct Rig {
    core: Core,
    front: Front<Values>,
    /// Blocks that were read from the disk.
    read: Vec<u64>,
}

impl Rig {
    fn new(frames: FramesIn, policy: PolicyKind, capacity_blocks: u32) -> Self {
        Self::of(frames, DiskOptions::new(&Geometry::new(1000 * B), policy, capacity_blocks))
    }

    fn grouped(frames: FramesIn, group: Option<GroupId>) -> Self {
        Self::of(frames, DiskOptions { group, ..DiskOptions::new(&Geometry::new(1000 * B), PolicyKind::Lru, 256) })
    }

    fn of(frames: FramesIn, options: DiskOptions) -> Self {
        let mut core = Core::new(CoreOptions { frames, ..CoreOptions::new(MEMORY) }).unwrap();
        core.add_disk(DISK, options).unwrap();
        Self { core, front: Front::new(Values { write: Some(0), ..Values::default() }), read: vec![] }
    }

    /// A second one, on the memory of `old`, which has left it.
    fn after(old: &mut Rig, policy: PolicyKind, capacity_blocks: u32) -> (Self, KeptBlocks) {
        let (memory, kept) = old.leave();
        (Self::new(FramesIn::Left(memory), policy, capacity_blocks), kept)
    }

    fn leave(&mut self) -> (SharedMemory, KeptBlocks) {
        self.core.freeze_frames(true);
        (self.core.frames_memory().unwrap(), self.core.kept(DISK))
    }

    fn ask(&mut self, op: Op, block: u64, count: u64) {
        let request = block_request(DISK, op, block, count);
        self.front.run(&mut self.core, request, |io| {
            self.read.extend(io.offset / B..(io.offset + io.len) / B);
            fill_blocks(io, |block| block as u8);
        });
    }

    fn seen(&mut self) -> Option<u8> {
        self.front.client.seen.pop().map(|(_, _, value)| value)
    }
}

#[test]
fn what_was_cached_is_served_from_the_same_frames() {
    for policy in [PolicyKind::Lru, PolicyKind::S3Fifo, PolicyKind::Arc] {
        let mut old = Rig::new(FramesIn::Shared, policy, 256);
        (0..200).for_each(|n| old.ask(Op::Read, n * 3, 1));
        old.ask(Op::Write { fua: false }, 3, 1);
        let (mut new, kept) = Rig::after(&mut old, policy, 256);
        assert_eq!(kept.blocks.len(), 200);
        assert_eq!(new.core.restore(DISK, &kept), 200);
        new.core.settle_frames();
        assert_eq!(new.core.frames_bytes(), old.core.frames_bytes().min(200 * B).max(new.core.frames_bytes()));
        for n in 0..200 {
            new.ask(Op::Read, n * 3, 1);
            assert_eq!(new.seen(), Some(if n == 1 { 0 } else { (n * 3) as u8 }), "block {}", n * 3);
        }
        assert!(new.read.is_empty(), "{policy:?}: read again: {:?}", new.read);
        // And it caches and evicts as ever, within its memory.
        (0..900).for_each(|n| new.ask(Op::Read, n, 1));
        new.core.check();
        std::mem::forget(old);
    }
}

/// Blocks of parts, and locked ones, are kept like others, and those that go last stand last.
#[test]
fn what_is_of_a_part_or_locked_is_kept_too() {
    let mut old = Rig::new(FramesIn::Shared, PolicyKind::Lru, 256);
    old.core.set_pins(DISK, &[ByteRange { offset: 500 * B, bytes: 9 * B }]).unwrap();
    let ranges = [PartRange { first: 100, blocks: 100, part: PartId(3) }];
    let settings = [PartSetting { part: PartId(3), policy: PolicyKind::S3Fifo, share_blocks: 120 }];
    old.core.set_parts(DISK, &ranges, &settings).unwrap();
    (500..509).chain(90..150).for_each(|n| old.ask(Op::Read, n, 1));
    assert_eq!(old.core.hottest(DISK, 1000).len(), 69);
    let (mut new, kept) = Rig::after(&mut old, PolicyKind::Lru, 256);
    assert_eq!(kept.blocks.len(), 69);
    let last: Vec<u64> = kept.blocks[60..].iter().map(|k| k.block).collect();
    assert_eq!(last, (500..509).collect::<Vec<_>>(), "locked ones go last");
    assert_eq!(new.core.restore(DISK, &kept), 69);
    new.core.settle_frames();
    (500..509).chain(90..150).for_each(|n| new.ask(Op::Read, n, 1));
    assert!(new.read.is_empty(), "read again: {:?}", new.read);
    new.core.check();
    std::mem::forget(old);
}

/// Blocks of equal content, held once: they are again, and part when one of them is written.
#[test]
fn what_was_held_once_is_held_once() {
    let group = Some(GroupId(0));
    let mut old = Rig::grouped(FramesIn::Shared, group);
    // Blocks 1, 257 and 513 have the same bytes, and so on.
    for block in (0..40).flat_map(|n| [n + 1, n + 257, n + 513]) {
        old.ask(Op::Read, block, 1);
    }
    (0..50).for_each(|_| old.core.apply(Event::Spare { copies: true }, 0, &mut old.front));
    let (memory, kept) = old.leave();
    let distinct: std::collections::BTreeSet<u32> = kept.blocks.iter().map(|k| k.frame).collect();
    let count = kept.blocks.len();
    assert!(count == 120 && distinct.len() < 120, "{} frames of {count}", distinct.len());
    let mut new = Rig::grouped(FramesIn::Left(memory), group);
    assert_eq!(new.core.restore(DISK, &kept), 120);
    new.core.settle_frames();
    new.core.check();
    new.ask(Op::Write { fua: false }, 257, 1);
    for (block, value) in [(1, 1), (257, 0), (513, 1)] {
        new.ask(Op::Read, block, 1);
        assert_eq!(new.seen(), Some(value), "block {block}");
    }
    assert_eq!(new.read, [257], "but for the write");
    new.core.check();
    std::mem::forget(old);
}

/// Those that would go last stay.
#[test]
fn a_smaller_cache_keeps_the_hottest() {
    let mut old = Rig::new(FramesIn::Shared, PolicyKind::Lru, 256);
    (0..200).for_each(|n| old.ask(Op::Read, n, 1));
    let (mut new, kept) = Rig::after(&mut old, PolicyKind::Lru, 100);
    let restored = new.core.restore(DISK, &kept);
    assert!((1..=100).contains(&restored), "{restored}");
    new.core.settle_frames();
    (200 - restored..200).for_each(|n| new.ask(Op::Read, n, 1));
    assert_eq!(new.read, [0; 0]);
    new.core.check();
    std::mem::forget(old);
}

/// What a snapshot says that cannot be: frames that there are not or that are named twice, and blocks past the end.
#[test]
fn a_list_that_makes_no_sense_takes_no_frame_twice() {
    let mut old = Rig::new(FramesIn::Shared, PolicyKind::Lru, 256);
    (0..10).for_each(|n| old.ask(Op::Read, n, 1));
    let (mut new, mut kept) = Rig::after(&mut old, PolicyKind::Lru, 256);
    let (tier, blocks) = (Tier::Cold, &mut kept.blocks);
    let first = blocks[0].frame;
    blocks.push(KeptBlock { block: 500, frame: first, tier });
    blocks.push(KeptBlock { block: 501, frame: u32::MAX - 1, tier });
    blocks.push(KeptBlock { block: 1000, frame: first + 100, tier });
    blocks.push(KeptBlock { block: u64::MAX, frame: first + 101, tier });
    blocks.push(KeptBlock { block: 5, frame: first + 102, tier });
    blocks.push(KeptBlock { block: 502, frame: KeptBlock::ZEROES, tier });
    assert_eq!(new.core.restore(DISK, &kept), 11);
    new.core.settle_frames();
    assert_eq!(
        new.core.restore(DISK, &KeptBlocks { blocks: kept.blocks[..3].to_vec(), ..kept.clone() }),
        0,
        "what is settled is not claimed"
    );
    new.core.check();
    (0..10).chain(500..503).for_each(|n| new.ask(Op::Read, n, 1));
    new.core.check();
    assert!(!new.read.contains(&5) && !new.read.contains(&502) && new.read.contains(&500));
    std::mem::forget(old);
}
