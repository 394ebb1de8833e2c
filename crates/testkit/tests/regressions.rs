//! One test per bug that the simulation found in the core: the scenario that showed it, and the seed.

use undercroft_cache::fault_injection::{Bug, FaultInjection, NoFaults, Planted};
use undercroft_cache::{
    Base, Core, CoreOptions, DiskId, DiskOptions, Effects, Event, Extent, GroupId, Io, IoDone, IoError, IoKind,
    LayerId, Op, ReqId, Request,
};
use undercroft_engine::PolicyKind;
use undercroft_testkit::{Plan, run};

const DISK: DiskId = DiskId(0);

#[derive(Default)]
struct Front {
    ios: Vec<Io>,
    replies: Vec<(u32, Result<(), IoError>)>,
}

impl Effects for Front {
    fn copy_out(&mut self, _req: ReqId, _at: usize, _bytes: &[u8]) {}
    fn copy_in(&mut self, _req: ReqId, _at: usize, bytes: &mut [u8]) {
        bytes.fill(1);
    }
    fn submit(&mut self, io: Io) {
        self.ios.push(io);
    }
    fn extents(&mut self, _req: ReqId, _extents: &[Extent]) {}
    fn reply(&mut self, req: ReqId, result: Result<(), IoError>) {
        self.replies.push((req.tag, result));
    }
}

fn options() -> DiskOptions {
    DiskOptions {
        size_bytes: 1 << 20,
        align: 512,
        read_only: false,
        can_discard: true,
        can_write_zeroes: true,
        policy: PolicyKind::Lru,
        capacity_blocks: 64,
        readahead_bytes: 0,
        write_allocate: true,
        exclusive: Default::default(),
        share: Some(GroupId(0)),
    }
}

fn core() -> Core {
    let mut core = Core::new(CoreOptions::new(16 << 20)).unwrap();
    core.add_disk(DISK, options()).unwrap();
    core
}

fn request(tag: u32, op: Op, offset: u64, len: u64) -> Event {
    Event::Request(Request { id: ReqId { port: 0, tag }, disk: DISK, op, offset, len })
}

/// Seed 9: two requests refused for lengths near 2^63 made the counter of bytes overflow, which a client could do.
#[test]
fn lengths_of_refused_requests_are_not_counted() {
    let (mut core, mut front) = (core(), Front::default());
    for (tag, op) in [(1, Op::Read), (2, Op::Read), (3, Op::Write { fua: false }), (4, Op::Write { fua: false })] {
        core.apply(request(tag, op, 4096, u64::MAX - 4096), 0, &mut front);
        assert_eq!(front.replies.pop(), Some((tag, Err(IoError::Invalid))));
    }
    let s = core.stats(DISK);
    assert_eq!((s.read_bytes, s.write_bytes, s.errors), (0, 0, 4));
    assert!(run(Plan { seed: 9, steps: 20_000, bug: None }).is_ok());
}

/// Seed 71: a base was set while a long write was under way, and its later parts were not counted as the disk's own.
#[test]
fn a_change_under_way_when_a_base_is_set_is_the_disks_own() {
    let (mut core, mut front) = (core(), Front::default());
    core.add_disk(DiskId(1), DiskOptions { share: Some(GroupId(0)), ..options() }).unwrap();
    let base = || Base { layer: LayerId(1), size_bytes: 1 << 20, cluster_bytes: 4096, own: vec![0; 4] };
    let on = |disk, op, offset, len| {
        Event::Request(Request { id: ReqId { port: 0, tag: 1 }, disk: DiskId(disk), op, offset, len })
    };
    core.apply(on(0, Op::Write { fua: false }, 0, 4096), 0, &mut front);
    assert!(core.set_base(DiskId(0), base()) && core.set_base(DiskId(1), base()));
    let finish = |core: &mut Core, front: &mut Front| {
        while let Some(io) = front.ios.pop() {
            let done = IoDone { op: io.op, disk: io.disk, buf: io.buf, result: Ok(()), extents: Vec::new() };
            core.apply(Event::IoDone(done), 0, front);
        }
    };
    finish(&mut core, &mut front);
    core.apply(on(1, Op::Read, 0, 4096), 0, &mut front);
    finish(&mut core, &mut front);
    core.apply(on(0, Op::Discard, 4096, 4096), 0, &mut front);
    finish(&mut core, &mut front);
    core.set_limit(DiskId(0), 0);
    core.set_limit(DiskId(0), u32::MAX);
    core.apply(on(0, Op::Read, 0, 4096), 0, &mut front);
    assert_eq!((core.stats(DiskId(0)).shared_hit_blocks, front.ios.len()), (0, 1));
    finish(&mut core, &mut front);
}

/// Seed 2: the range that a flush request happened to carry was handed on, past the end of the disk.
#[test]
fn a_flush_has_no_range_whatever_the_request_says() {
    let (mut core, mut front) = (core(), Front::default());
    core.apply(request(1, Op::Flush, 2888, u64::MAX / 2), 0, &mut front);
    let io = front.ios.pop().unwrap();
    assert_eq!((io.kind, io.offset, io.len), (IoKind::Flush, 0, 0));
    let done = IoDone { op: io.op, disk: DISK, buf: io.buf, result: Err(IoError::Io), extents: Vec::new() };
    core.apply(Event::IoDone(done), 0, &mut front);
    assert_eq!(front.replies, [(1, Err(IoError::Io))], "and its error is the guest's");
}

/// A copy of a guest page was dealt with while a block was being served, since too many waited: it took the slot of
/// that very block, and the guest was given another block's content.
#[test]
fn a_block_being_served_does_not_lose_its_slot_to_a_capture() {
    undercroft_testkit::run(undercroft_testkit::Plan { seed: 224, steps: 20_000, bug: None }).unwrap();
}

/// Frames still to go when memory of a full cache was asked back, 64 frames at a time.
fn left_when_given_back(plant: impl FaultInjection) -> usize {
    let mut core = Core::with_faults(CoreOptions::new(64 << 20), plant).unwrap();
    core.add_disk(DISK, DiskOptions { size_bytes: 4 << 20, capacity_blocks: 1000, ..options() }).unwrap();
    let mut front = Front::default();
    for n in 0..16 {
        core.apply(request(n, Op::Read, u64::from(n) << 18, 250_000), 0, &mut front);
        while let Some(io) = front.ios.pop() {
            let done = IoDone { op: io.op, disk: io.disk, buf: io.buf, result: Ok(()), extents: Vec::new() };
            core.apply(Event::IoDone(done), 0, &mut front);
        }
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
fn after_an_exchange(plant: impl FaultInjection) -> IoKind {
    let mut core = Core::with_faults(CoreOptions::new(16 << 20), plant).unwrap();
    core.add_disk(DISK, options()).unwrap();
    let mut front = Front::default();
    core.apply(request(1, Op::Write { fua: false }, 100, 10), 0, &mut front);
    core.invalidate(DISK);
    let mut kind = IoKind::Flush;
    while let Some(io) = front.ios.pop() {
        let done = IoDone { op: io.op, disk: io.disk, buf: io.buf, result: Ok(()), extents: Vec::new() };
        core.apply(Event::IoDone(done), 0, &mut front);
        if kind == IoKind::Flush {
            kind = front.ios[0].kind;
        }
    }
    kind
}

/// Not of a seed: a write that was under way when the disk was exchanged reads its block again.
#[test]
fn a_partial_write_is_not_made_of_what_was_read_before_an_exchange() {
    assert_eq!(after_an_exchange(NoFaults), IoKind::Read);
    assert_ne!(after_an_exchange(Planted(Bug::MergeOfOldContent)), IoKind::Read);
}
