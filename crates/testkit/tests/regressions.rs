//! One test per bug that the simulation found in the core: the scenario that showed it, and the seed.

use undercroft_cache::fault_injection::{Bug, FaultInjection, NoFaults, Planted};
use undercroft_cache::{
    Base, Core, CoreOptions, DiskId, DiskOptions, Event, Geometry, GroupId, IoError, IoKind, LayerId, Op,
};
use undercroft_engine::PolicyKind;
use undercroft_testkit::front::{Front, NoData, block_request, request};
use undercroft_testkit::{Plan, run};

const DISK: DiskId = DiskId(0);
const WRITE: Op = Op::Write { fua: false };

fn options() -> DiskOptions {
    DiskOptions { group: Some(GroupId(0)), ..DiskOptions::new(&Geometry::new(1 << 20), PolicyKind::Lru, 64) }
}

fn core() -> Core {
    let mut core = Core::new(CoreOptions::new(16 << 20)).unwrap();
    core.add_disk(DISK, options()).unwrap();
    core
}

/// Seed 9: two requests refused for lengths near 2^63 made the counter of bytes overflow, which a client could do.
#[test]
fn lengths_of_refused_requests_are_not_counted() {
    let (mut core, mut front) = (core(), Front::noting(NoData));
    for (tag, op) in [(1, Op::Read), (2, Op::Read), (3, WRITE), (4, WRITE)] {
        front.ask(&mut core, request(tag, DISK, op, 4096, u64::MAX - 4096));
        assert_eq!(front.answers.pop(), Some((tag, Err(IoError::Invalid))));
    }
    let s = core.stats(DISK);
    assert_eq!((s.read_bytes, s.write_bytes, s.errors), (0, 0, 4));
    assert!(run(Plan { seed: 9, steps: 20_000, bug: None }).is_ok());
}

/// Seed 71: a base was set while a long write was under way, and its later parts were not counted as the disk's own.
#[test]
fn a_change_under_way_when_a_base_is_set_is_the_disks_own() {
    let (mut core, mut front) = (core(), Front::new(NoData));
    core.add_disk(DiskId(1), options()).unwrap();
    let base = || Base { layer: LayerId(1), size_bytes: 1 << 20, cluster_bytes: 4096, own: vec![0; 4] };
    front.ask(&mut core, block_request(DISK, WRITE, 0, 1));
    assert!(core.set_base(DISK, base()) && core.set_base(DiskId(1), base()));
    front.end_all(&mut core, |_| ());
    front.run(&mut core, block_request(DiskId(1), Op::Read, 0, 1), |_| ());
    front.run(&mut core, block_request(DISK, Op::Discard, 1, 1), |_| ());
    core.set_limit(DISK, 0);
    core.set_limit(DISK, u32::MAX);
    front.ask(&mut core, block_request(DISK, Op::Read, 0, 1));
    assert_eq!((core.stats(DISK).shared_hit_blocks, front.ios.len()), (0, 1));
    front.end_all(&mut core, |_| ());
}

/// Seed 2: the range that a flush request happened to carry was handed on, past the end of the disk.
#[test]
fn a_flush_has_no_range_whatever_the_request_says() {
    let (mut core, mut front) = (core(), Front::noting(NoData));
    front.ask(&mut core, request(1, DISK, Op::Flush, 2888, u64::MAX / 2));
    front.end(&mut core, 0, |io| {
        assert_eq!((io.kind, io.offset, io.len), (IoKind::Flush, 0, 0));
        Err(IoError::Io)
    });
    assert_eq!(front.answers, [(1, Err(IoError::Io))], "and its error is the guest's");
}

/// A copy of a guest page was dealt with while a block was being served, since too many waited: it took the slot of
/// that very block, and the guest was given another block's content.
#[test]
fn a_block_being_served_does_not_lose_its_slot_to_a_capture() {
    undercroft_testkit::run(undercroft_testkit::Plan { seed: 224, steps: 20_000, bug: None }).unwrap();
}

/// Frames still to go when memory of a full cache was asked back, 64 frames at a time.
fn left_when_given_back(faults: impl FaultInjection) -> usize {
    let mut core = Core::with_faults(CoreOptions::new(64 << 20), faults).unwrap();
    core.add_disk(DISK, DiskOptions { size_bytes: 4 << 20, capacity_blocks: 1000, ..options() }).unwrap();
    let mut front = Front::new(NoData);
    for n in 0..16 {
        front.run(&mut core, request(n, DISK, Op::Read, u64::from(n) << 18, 250_000), |_| ());
    }
    assert!(core.stats(DISK).cached_blocks > 900);
    core.set_limit(DISK, 0);
    (0..100).map(|_| core.give_back(64)).last().unwrap_or(0)
}

/// Not of a seed: the caches of the simulation are smaller than one step of a cache that shrinks.
#[test]
fn memory_asked_back_is_given_back_and_a_core_that_does_not_is_found() {
    assert_eq!(left_when_given_back(NoFaults), 0);
    assert!(left_when_given_back(Planted(Bug::GiveBackEvictsNothing)) > 0);
}

/// What a partial write does next when the disk was exchanged while the block under it was read.
fn after_an_exchange(faults: impl FaultInjection) -> IoKind {
    let mut core = Core::with_faults(CoreOptions::new(16 << 20), faults).unwrap();
    core.add_disk(DISK, options()).unwrap();
    let mut front = Front::new(NoData);
    front.ask(&mut core, request(1, DISK, WRITE, 100, 10));
    core.invalidate(DISK);
    front.end(&mut core, 0, |_| Ok(()));
    let next = front.ios[0].kind;
    front.end_all(&mut core, |_| ());
    next
}

/// Not of a seed: a write that was under way when the disk was exchanged reads its block again.
#[test]
fn a_partial_write_is_not_made_of_what_was_read_before_an_exchange() {
    assert_eq!(after_an_exchange(NoFaults), IoKind::Read);
    assert_ne!(after_an_exchange(Planted(Bug::MergeOfOldContent)), IoKind::Read);
}

/// Seed 1,000,097: zeroes that begin and end inside sectors of one block were under way, their first edge being read to
/// be merged, when another request showed that the disk cannot write zeroes. They went on as an ordinary write, which
/// did not wait for the edge: the block that was cached in the end had a sector from before. It takes a request that
/// is begun in steps, and a disk that takes its word back.
#[test]
fn zeroes_that_become_a_write_half_way_wait_for_their_edge() {
    let mut core = Core::new(CoreOptions { step_bytes: 1, ..CoreOptions::new(16 << 20) }).unwrap();
    core.add_disk(DISK, options()).unwrap();
    let mut front = Front::new(NoData);
    let zeroes = Op::WriteZeroes { unmap: false, fua: false };
    front.ask(&mut core, request(1, DISK, zeroes, 8 * 4096, 4096));
    front.ask(&mut core, request(2, DISK, zeroes, 2831, 795));
    let kinds: Vec<IoKind> = front.ios.iter().map(|io| io.kind).collect();
    assert_eq!(kinds, [IoKind::WriteZeroes { unmap: false, fua: false }, IoKind::Read]);
    front.end(&mut core, 0, |_| Err(IoError::Unsupported));
    let resume = |core: &mut Core, front: &mut Front<NoData>| {
        for paused in std::mem::take(&mut front.paused) {
            core.apply(Event::Resume(paused), 0, front);
        }
    };
    for _ in 0..4 {
        resume(&mut core, &mut front);
        assert_eq!(front.ios.iter().filter(|io| io.offset < 4096).count(), 1, "beside the edge: {:?}", front.ios);
    }
    while front.answered < 2 {
        front.end_all(&mut core, |_| ());
        resume(&mut core, &mut front);
    }
    if let Err(what) = run(Plan { seed: 1_000_097, steps: 20_000, bug: None }) {
        panic!("{what}");
    }
}

/// Memory was given back to the last block, as the answer said, and a disk kept one more than it may: a later one had
/// given up a content that both held, which was the first one's alone from then on.
#[test]
fn what_a_disk_gives_up_is_charged_to_one_that_had_its_turn() {
    if let Err(what) = run(Plan { seed: 1_003_933, steps: 20_000, bug: None }) {
        panic!("{what}");
    }
}

/// Not bugs of the core: what a request waited to be resumed, which is for the run to decide, counted as time in which
/// others were let go first.
#[test]
fn a_request_that_is_resumed_late_is_not_one_that_starves() {
    for seed in [49_921, 74_473, 95_713, 600_425] {
        if let Err(what) = run(Plan { seed, steps: 20_000, bug: None }) {
            panic!("seed {seed}: {what}");
        }
    }
}
