//! What `willneed` fetches before anybody asks. The simulation hints disks so, too.

use undercroft_cache::{
    Core, CoreOptions, DiskId, DiskOptions, Effects, Event, Extent, Io, IoDone, IoError, IoKind, Op, ReqId, Request,
};
use undercroft_engine::PolicyKind;
use undercroft_engine::shares::Hint;

const B: u64 = 4096;
const DISK: DiskId = DiskId(0);
const LENDER: DiskId = DiskId(1);

/// A client that looks at the first byte it gets, and a disk whose block n holds bytes of n, or what was written.
#[derive(Default)]
struct Front {
    ios: Vec<Io>,
    seen: Vec<u8>,
}

impl Effects for Front {
    fn copy_out(&mut self, _req: ReqId, _at: usize, bytes: &[u8]) {
        self.seen.push(bytes[0]);
    }
    fn copy_in(&mut self, _req: ReqId, _at: usize, bytes: &mut [u8]) {
        bytes.fill(255);
    }
    fn submit(&mut self, io: Io) {
        self.ios.push(io);
    }
    fn extents(&mut self, _req: ReqId, _extents: &[Extent]) {}
    fn reply(&mut self, _req: ReqId, result: Result<(), IoError>) {
        assert_eq!(result, Ok(()));
    }
}

struct Rig {
    core: Core,
    front: Front,
    /// Blocks that were read from the disk, in order.
    read: Vec<u64>,
    /// Operations that the disk had at the same time at most.
    most: usize,
}

impl Rig {
    fn new(blocks: u64, capacity_blocks: u32) -> Self {
        let mut core = Core::new(CoreOptions::new(64 << 20)).unwrap();
        let options = DiskOptions {
            size_bytes: blocks * B,
            align: 512,
            read_only: false,
            can_discard: true,
            can_write_zeroes: true,
            policy: PolicyKind::S3Fifo,
            capacity_blocks,
            readahead_bytes: 1 << 20,
            write_allocate: true,
            exclusive: Default::default(),
            share: None,
        };
        core.add_disk(DISK, options.clone()).unwrap();
        // What the disk has under way beyond what it is guaranteed is lent, by one that brings enough for it.
        core.add_disk(LENDER, DiskOptions { capacity_blocks: 10_000, ..options }).unwrap();
        Self { core, front: Front::default(), read: vec![], most: 0 }
    }

    fn hint(&mut self, hint: Hint) {
        self.core.set_hint(DISK, hint);
        self.core.apply(Event::Tick, 0, &mut self.front);
    }

    fn ask(&mut self, op: Op, block: u64, count: u64) {
        let req = Request { id: ReqId { port: 0, tag: 0 }, disk: DISK, op, offset: block * B, len: count * B };
        self.core.apply(Event::Request(req), 0, &mut self.front);
    }

    fn complete(&mut self, at: usize, result: Result<(), IoError>) {
        self.most = self.most.max(self.front.ios.len());
        let mut io = self.front.ios.remove(at);
        let first = io.offset / B;
        if io.kind == IoKind::Read {
            self.read.extend(first..first + io.len / B);
            io.buf.pieces_mut().zip(first..).for_each(|(p, n)| p.fill(n as u8));
        }
        let done = IoDone { op: io.op, disk: DISK, buf: io.buf, result, extents: Vec::new() };
        self.core.apply(Event::IoDone(done), 0, &mut self.front);
    }

    /// The disk does all it was told, and is idle then.
    fn rest(&mut self) {
        while !self.front.ios.is_empty() {
            self.complete(0, Ok(()));
        }
        assert!(self.core.is_idle(DISK));
        self.core.check();
    }

    fn cached(&self) -> u64 {
        self.core.stats(DISK).cached_blocks
    }
}

#[test]
fn a_disk_that_fits_is_there_before_it_is_asked_for() {
    let mut r = Rig::new(200, 256);
    r.hint(Hint::WillNeed);
    r.rest();
    assert_eq!(r.read, (0..200).collect::<Vec<_>>(), "each block once");
    assert!(r.most <= 2, "{} operations at the same time", r.most);
    for block in 0..200 {
        r.ask(Op::Read, block, 1);
    }
    assert_eq!(r.front.seen, (0..200).map(|n| n as u8).collect::<Vec<_>>());
    let stats = r.core.stats(DISK);
    assert_eq!((stats.hit_blocks, stats.miss_blocks, stats.readahead_hit_blocks), (200, 0, 0));
    r.core.apply(Event::Tick, 0, &mut r.front);
    assert!(r.front.ios.is_empty(), "all of it is there");
}

#[test]
fn nothing_that_is_kept_goes_for_it() {
    let mut r = Rig::new(400, 256);
    for block in (300..380).step_by(2) {
        r.ask(Op::Read, block, 1);
        r.complete(0, Ok(()));
    }
    r.read.clear();
    r.hint(Hint::WillNeed);
    r.rest();
    assert_eq!(r.read, (0..216).collect::<Vec<_>>(), "what is free is filled");
    assert_eq!(r.core.stats(DISK).evicted_blocks, 0);
    // What becomes free later is used for more: the disk's share has grown.
    r.core.set_capacity(DISK, 280).unwrap();
    r.core.apply(Event::Tick, 0, &mut r.front);
    r.rest();
    assert_eq!((r.read.len(), r.cached()), (240, 280));
}

#[test]
fn it_stops_when_another_hint_is_given_or_the_disk_leaves() {
    for leave in [false, true] {
        let mut r = Rig::new(400, 400);
        r.hint(Hint::WillNeed);
        assert_eq!(r.front.ios.len(), 2);
        if leave {
            r.core.begin_shutdown(DISK);
        } else {
            r.hint(Hint::Normal);
        }
        r.rest();
        assert_eq!(r.read.len(), 128, "what was under way");
    }
}

#[test]
fn a_write_meanwhile_makes_it_stale() {
    let mut r = Rig::new(64, 64);
    r.hint(Hint::WillNeed);
    r.ask(Op::Write { fua: false }, 5, 1);
    assert_eq!(r.front.ios.len(), 2);
    r.complete(1, Ok(()));
    r.rest();
    r.ask(Op::Read, 5, 1);
    r.rest();
    assert_eq!(r.front.seen.pop(), Some(255), "what was written, not what was fetched before");
}

#[test]
fn what_is_being_written_is_not_fetched() {
    let mut r = Rig::new(64, 64);
    r.ask(Op::Write { fua: false }, 5, 1);
    r.hint(Hint::WillNeed);
    let shapes: Vec<_> = r.front.ios.iter().map(|io| (io.offset / B, io.len / B)).collect();
    assert_eq!(shapes, [(5, 1), (0, 5), (6, 58)]);
    // The reads are first, and found what was there before.
    r.complete(1, Ok(()));
    r.complete(1, Ok(()));
    r.rest();
    r.ask(Op::Read, 5, 1);
    assert_eq!(r.front.seen.pop(), Some(255));
}

#[test]
fn a_guest_that_asks_meanwhile_waits_for_the_same_read() {
    let mut r = Rig::new(64, 64);
    r.hint(Hint::WillNeed);
    r.ask(Op::Read, 7, 1);
    r.rest();
    assert_eq!((r.read.len(), r.front.seen.pop()), (64, Some(7)));
}

#[test]
fn a_disk_that_fails_is_asked_again_by_who_wants_it_only() {
    let mut r = Rig::new(64, 64);
    r.hint(Hint::WillNeed);
    r.complete(0, Err(IoError::Io));
    r.rest();
    assert_eq!(r.cached(), 0, "no slot without a block");
    r.ask(Op::Read, 3, 1);
    r.rest();
    assert_eq!(r.front.seen.pop(), Some(3));
}
