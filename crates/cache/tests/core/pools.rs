//! Disks that keep their blocks together: what they may keep, whose blocks go, and how disks join and leave.

use undercroft_cache::{AddDiskError, Core, CoreOptions, DiskId, DiskOptions, Event, Geometry, GroupId, Op};
use undercroft_engine::shares::Hint;
use undercroft_engine::{ExclusiveMode, PolicyKind};
use undercroft_testkit::front::{Front, Guest, Numbered, ValueDisks, Values, block_request};

use crate::deduplication::read_numbered;

const A: DiskId = DiskId(3);
const OTHER: DiskId = DiskId(0);
const C: DiskId = DiskId(7);

/// Disks whose block n of disk d is filled with a value of both.
struct Rig {
    core: Core,
    front: Front<Guest<Values>>,
    disks: ValueDisks,
}

impl Rig {
    fn new(blocks: &[(DiskId, u32)]) -> Self {
        Self::with(blocks, |_| {})
    }

    fn with(blocks: &[(DiskId, u32)], set: impl Fn(&mut DiskOptions)) -> Self {
        let mut core = Core::new(CoreOptions { hash_seed: 1, ..CoreOptions::new(64 << 20) }).unwrap();
        for &(id, capacity) in blocks {
            let mut options = DiskOptions::new(&Geometry::new(1 << 30), PolicyKind::Lru, capacity);
            set(&mut options);
            core.add_disk(id, options).unwrap();
        }
        let disks = ValueDisks::new(|disk, block| (disk as u8).wrapping_mul(31) ^ (block as u8) | 1);
        Self { core, front: Front::new(Guest::new(64)), disks }
    }

    fn run(&mut self, disk: DiskId, op: Op, block: u64) {
        self.front.client.data.seen.clear();
        let disks = &mut self.disks;
        self.front.run(&mut self.core, block_request(disk, op, block, 1), |io| disks.serve(io));
        self.core.check();
    }

    /// Reads a block; whether it was in RAM.
    fn read(&mut self, disk: DiskId, block: u64) -> bool {
        let before = self.core.stats(disk).hit_blocks;
        self.run(disk, Op::Read, block);
        let &[(0, 0, value)] = &self.front.client.data.seen[..] else { panic!("not read, or in pieces") };
        assert_eq!(value, self.disks.value(disk.0, block), "block {block} of {disk:?}");
        self.core.stats(disk).hit_blocks > before
    }

    fn cached(&self, disk: DiskId) -> Vec<u64> {
        let mut blocks = Vec::new();
        self.core.for_each_cached(disk, |block, _| blocks.push(block));
        blocks.sort_unstable();
        assert_eq!(self.core.stats(disk).cached_blocks, blocks.len() as u64);
        blocks
    }

    fn tick(&mut self) {
        for _ in 0..8 {
            self.front.tick(&mut self.core, 1_000_000_000);
            self.core.check();
        }
    }
}

#[test]
fn the_block_that_nobody_read_for_longest_goes_whosever_it_is() {
    let mut r = Rig::new(&[(A, 10), (OTHER, 10)]);
    r.core.join_pool(OTHER, A).unwrap();
    for b in 0..15 {
        assert!(!r.read(A, b));
    }
    assert_eq!(r.cached(A).len(), 15, "one alone has what both may have");
    for b in 0..10 {
        assert!(!r.read(OTHER, b));
    }
    assert_eq!(r.cached(A), (5..15).collect::<Vec<_>>(), "its oldest went");
    assert_eq!(r.cached(OTHER), (0..10).collect::<Vec<_>>());
    let stats = r.core.pool_stats(A);
    assert_eq!((stats.disks, stats.cached_blocks, stats.capacity_blocks), (2, 20, 20));
    assert_eq!((r.core.stats(A).evicted_blocks, r.core.stats(OTHER).evicted_blocks), (5, 0), "each its own");
    // blocks of one number are two blocks
    assert!(r.read(A, 7) && r.read(OTHER, 7));
}

#[test]
fn what_is_cached_stays_when_disks_join_and_leave() {
    for policy in PolicyKind::ALL {
        let mut r = Rig::with(&[(A, 20), (OTHER, 30), (C, 10)], |o| o.policy = policy);
        for b in 0..6 {
            r.read(A, b);
            r.read(OTHER, b + 1);
            r.read(C, b + 2);
        }
        let before = [A, OTHER, C].map(|d| r.cached(d));
        let promised = r.core.memory().promised_bytes;
        r.core.join_pool(A, OTHER).unwrap();
        r.core.join_pool(C, A).unwrap();
        r.core.check();
        assert_eq!([A, OTHER, C].map(|d| r.cached(d)), before, "{policy}");
        assert_eq!(r.core.memory().promised_bytes, promised, "{policy}");
        assert_eq!(r.core.pool(C), [OTHER, A, C]);
        // The one that the others joined goes first.
        for (n, disk) in [OTHER, C].into_iter().enumerate() {
            assert!(r.read(disk, 3));
            r.core.leave_pool(disk, 15).unwrap();
            r.core.check();
            assert_eq!(r.core.pool(disk), []);
            assert_eq!(r.core.stats(disk).capacity_blocks, 15, "{policy}");
            assert_eq!(r.core.stats(A).capacity_blocks, 45 - 15 * n as u64, "{policy}");
        }
        assert_eq!([A, OTHER, C].map(|d| r.cached(d)), before, "{policy}");
        assert!(r.core.memory().promised_bytes <= promised);
        for disk in [A, OTHER, C] {
            assert!(r.read(disk, 3) && !r.read(disk, 300));
        }
    }
}

#[test]
fn a_disk_that_goes_leaves_its_capacity_to_the_others() {
    let mut r = Rig::new(&[(A, 10), (OTHER, 10)]);
    r.core.join_pool(OTHER, A).unwrap();
    for b in 0..10 {
        r.read(A, b);
        r.read(OTHER, b);
    }
    r.core.remove_disk(A);
    r.core.check();
    assert_eq!(r.core.stats(OTHER).capacity_blocks, 20);
    for b in 0..20 {
        r.read(OTHER, b);
    }
    assert_eq!(r.cached(OTHER).len(), 20);
    // Another one may come under the same number, and join.
    let options = DiskOptions::new(&Geometry::new(1 << 20), PolicyKind::Lru, 5);
    r.core.add_disk(A, options).unwrap();
    r.core.join_pool(A, OTHER).unwrap();
    assert!(!r.read(A, 3));
    assert_eq!(r.core.stats(A).capacity_blocks, 25);
    r.core.remove_disk(OTHER);
    r.core.remove_disk(A);
    r.core.check();
    assert_eq!((r.core.memory().promised_bytes, r.core.frames_used()), (0, 0));
}

#[test]
fn capacity_and_limit_are_those_of_all() {
    let mut r = Rig::new(&[(A, 40), (OTHER, 40)]);
    r.core.join_pool(OTHER, A).unwrap();
    let fill = |r: &mut Rig| {
        for b in 0..100 {
            r.read([A, OTHER][b as usize % 2], b);
        }
        (r.cached(A).len() + r.cached(OTHER).len()) as u64
    };
    assert_eq!(fill(&mut r), 80);
    r.core.set_share(A, 50).unwrap();
    r.tick();
    // What stays of the slots that there were costs a block.
    assert_eq!(r.core.pool_stats(OTHER).cached_blocks, 49);
    assert_eq!(fill(&mut r), 49);
    r.core.set_capacity(OTHER, 90).unwrap();
    r.tick();
    // more slots than needed, for which two blocks go
    assert_eq!(fill(&mut r), 88);
    r.core.set_limit(OTHER, 30);
    r.tick();
    assert_eq!((fill(&mut r), r.core.stats(A).limit_blocks), (30, 30));
    r.core.set_limit(A, u32::MAX);
    r.tick();
    assert_eq!(fill(&mut r), 88);
    for policy in PolicyKind::ALL {
        r.core.set_policy(A, policy);
        r.core.check();
        assert_eq!(r.core.policy(OTHER), Some(policy));
        assert_eq!(fill(&mut r), 88);
    }
}

#[test]
fn what_changes_on_one_disk_leaves_the_blocks_of_the_other() {
    let mut r = Rig::new(&[(A, 40), (OTHER, 40)]);
    r.core.join_pool(OTHER, A).unwrap();
    for b in 0..30 {
        r.read(A, b);
        r.read(OTHER, b);
    }
    r.front.run(&mut r.core, block_request(A, Op::Discard, 0, 20), |io| r.disks.serve(io));
    assert_eq!((r.cached(A).len(), r.cached(OTHER).len()), (10, 30));
    // more blocks than there are slots: they are looked for slot by slot
    r.front.run(&mut r.core, block_request(OTHER, Op::Discard, 0, 1000), |io| r.disks.serve(io));
    assert_eq!((r.cached(A).len(), r.cached(OTHER).len()), (10, 0));
    r.run(OTHER, Op::Write { fua: false }, 25);
    assert!(r.read(A, 25) && r.read(OTHER, 25));
    r.disks.changed.insert((A.0, 25), 77);
    r.core.invalidate(A);
    r.core.check();
    assert_eq!((r.cached(A), r.cached(OTHER)), (vec![], vec![25]));
    assert!(!r.read(A, 25) && r.read(OTHER, 25));
}

#[test]
fn what_is_under_way_ends_well_when_a_disk_joins_or_leaves() {
    let mut r = Rig::new(&[(A, 10), (OTHER, 10)]);
    r.front.ask(&mut r.core, block_request(A, Op::Read, 1, 2));
    r.front.ask(&mut r.core, block_request(OTHER, Op::Write { fua: false }, 1, 2));
    r.core.join_pool(A, OTHER).unwrap();
    r.core.check();
    r.front.ask(&mut r.core, block_request(A, Op::Read, 8, 1));
    r.front.end_all(&mut r.core, |io| r.disks.serve(io));
    r.core.check();
    assert!(r.read(A, 1) && r.read(A, 2) && r.read(A, 8) && r.read(OTHER, 1));
    r.front.ask(&mut r.core, block_request(A, Op::Read, 20, 2));
    r.front.ask(&mut r.core, block_request(OTHER, Op::Read, 20, 2));
    r.core.leave_pool(OTHER, 10).unwrap();
    r.front.end_all(&mut r.core, |io| r.disks.serve(io));
    r.core.check();
    assert!(r.read(A, 20) && r.read(OTHER, 20) && r.read(OTHER, 1));
}

#[test]
fn equal_content_is_held_once_and_each_disk_pays_for_its_own() {
    let mut r = Rig::with(&[(A, 20), (OTHER, 20)], |o| o.group = Some(GroupId(1)));
    for disk in [A, OTHER] {
        for b in 0..30 {
            r.disks.changed.insert((disk.0, b), b as u8 + 1);
        }
    }
    r.core.join_pool(OTHER, A).unwrap();
    for _ in 0..3 {
        for b in 0..30 {
            r.read(A, b);
            r.read(OTHER, b);
            r.front.tick(&mut r.core, 0);
        }
    }
    // 30 contents in 60 blocks: all of it fits into 40.
    let stats = r.core.pool_stats(A);
    assert_eq!((stats.cached_blocks, r.core.frames_used()), (60, 30), "{stats:?}");
    assert_eq!(r.core.stats(A).charged_blocks, 15);
    assert_eq!(r.core.stats(OTHER).charged_blocks, 15);
    r.core.leave_pool(OTHER, 20).unwrap();
    r.tick();
    assert!(r.read(A, 29) && r.read(OTHER, 29));
}

#[test]
fn what_is_over_the_shares_does_not_depend_on_who_has_the_index() {
    let mut core = Core::new(CoreOptions { hash_seed: 1, ..CoreOptions::new(128 << 20) }).unwrap();
    for id in [A, OTHER] {
        let options = DiskOptions::new(&Geometry::new(1 << 30), PolicyKind::Lru, 6000);
        core.add_disk(id, DiskOptions { group: Some(GroupId(1)), ..options }).unwrap();
    }
    core.join_pool(OTHER, A).unwrap();
    let mut front = Front::new(Numbered::default());
    (0..600).for_each(|chunk| _ = read_numbered(&mut front, &mut core, OTHER.0, chunk * 20, 20));
    read_numbered(&mut front, &mut core, A.0, 0, 1);
    while core.pool_stats(A).cached_blocks > 6000 {
        core.set_share(A, 6000).unwrap();
    }
    // The blocks are evicted, and the kernel has not got their memory back.
    let with_a = core.over_shares_bytes();
    core.exclusive(OTHER);
    let with_other = core.over_shares_bytes();
    assert!(with_a == with_other && with_a > 16 << 20, "{with_a} over the shares, {with_other} by the other");
}

#[test]
fn a_guest_is_followed_on_each_disk_and_the_other_is_not_taken_for_it() {
    let mut r = Rig::with(&[(A, 400), (OTHER, 400)], |o| o.exclusive = ExclusiveMode::Capture);
    r.core.join_pool(OTHER, A).unwrap();
    r.core.set_guest(A, 64);
    for b in 0..10 {
        r.front.client.page = Some(b as u32);
        r.read(A, b);
        r.front.client.page = None;
        r.read(OTHER, b);
    }
    let tiers = r.core.exclusive(A).unwrap().tiers;
    assert_eq!((tiers[0], tiers[2]), (10, 10), "what the guest holds is the first to go, of its disk only");
    r.core.set_share(A, 14 + 400).unwrap();
    r.core.set_exclusive(A, ExclusiveMode::Off);
    r.core.check();
    assert_eq!(r.core.exclusive(A).unwrap().tiers, [20, 0, 0]);
    assert!(r.read(A, 3) && r.read(OTHER, 3));
}

#[test]
fn a_meter_sees_all_disks() {
    let mut r = Rig::new(&[(A, 2000), (OTHER, 2000)]);
    r.core.join_pool(OTHER, A).unwrap();
    r.core.measure(A, Some(4000));
    for round in 0..3 {
        for b in 0..200 {
            assert_eq!(r.read(A, b), round > 0);
            assert_eq!(r.read(OTHER, b), round > 0);
        }
    }
    let seen = r.core.telemetry(OTHER).unwrap();
    assert_eq!((seen.requests, seen.misses), (1200, 400));
    assert_eq!(r.core.telemetry(A).unwrap().requests, 0, "asked already");
}

#[test]
fn what_cannot_be_is_refused() {
    let mut r = Rig::new(&[(A, 40), (OTHER, 40), (C, 40)]);
    assert_eq!(r.core.join_pool(A, DiskId(9)), Err(AddDiskError::Unknown(DiskId(9))));
    assert_eq!(r.core.leave_pool(A, 1), Ok(()), "it keeps its blocks apart already");
    r.core.join_pool(A, A).unwrap();
    assert_eq!(r.core.pool(A), []);
    r.core.join_pool(A, OTHER).unwrap();
    r.core.join_pool(A, OTHER).unwrap();
    assert!(matches!(r.core.join_pool(A, C), Err(AddDiskError::Options(_))), "it is of a pool");
    r.core.join_pool(C, A).unwrap();
    r.core.set_hint(A, Hint::Normal);
    r.core.apply(Event::Tick, 0, &mut r.front);
    r.core.check();
}
