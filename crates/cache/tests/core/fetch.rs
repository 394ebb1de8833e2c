//! What `willneed` fetches before anybody asks. The simulation hints disks so, too.

use undercroft_cache::{Core, CoreOptions, DiskId, DiskOptions, Event, Geometry, IoError, IoKind, Op};
use undercroft_engine::PolicyKind;
use undercroft_engine::shares::Hint;
use undercroft_testkit::front::{Front, Values, block_request, fill_blocks};

const B: u64 = 4096;
const DISK: DiskId = DiskId(0);
const LENDER: DiskId = DiskId(1);

/// A disk whose block n holds bytes of n, or 255 if it was written.
struct Rig {
    core: Core,
    front: Front<Values>,
    /// Blocks that were read from the disk, in order.
    read: Vec<u64>,
    /// Operations that the disk had at the same time at most.
    most: usize,
}

impl Rig {
    fn new(blocks: u64, capacity_blocks: u32) -> Self {
        let mut core = Core::new(CoreOptions::new(64 << 20)).unwrap();
        let options = DiskOptions {
            readahead_bytes: 1 << 20,
            ..DiskOptions::new(&Geometry::new(blocks * B), PolicyKind::S3Fifo, capacity_blocks)
        };
        core.add_disk(DISK, options.clone()).unwrap();
        // What the disk has under way beyond what it is guaranteed is lent, by one that brings enough for it.
        core.add_disk(LENDER, DiskOptions { capacity_blocks: 10_000, ..options }).unwrap();
        let front = Front::new(Values { write: Some(255), ..Values::default() });
        Self { core, front, read: vec![], most: 0 }
    }

    fn hint(&mut self, hint: Hint) {
        self.core.set_hint(DISK, hint);
        self.core.apply(Event::Tick, 0, &mut self.front);
    }

    fn ask(&mut self, op: Op, block: u64, count: u64) {
        self.front.ask(&mut self.core, block_request(DISK, op, block, count));
    }

    fn complete(&mut self, at: usize, result: Result<(), IoError>) {
        self.most = self.most.max(self.front.ios.len());
        self.front.end(&mut self.core, at, |io| {
            if io.kind == IoKind::Read {
                self.read.extend(io.offset / B..(io.offset + io.len) / B);
            }
            fill_blocks(io, |block| block as u8);
            result
        });
    }

    /// The value of what a request was given last.
    fn last_seen(&mut self) -> Option<u8> {
        self.front.client.seen.pop().map(|(_, _, value)| value)
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
    assert_eq!(r.front.client.seen, (0..200).map(|n| (0, 0, n as u8)).collect::<Vec<_>>());
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
    assert_eq!(r.last_seen(), Some(255), "what was written, not what was fetched before");
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
    assert_eq!(r.last_seen(), Some(255));
}

#[test]
fn a_guest_that_asks_meanwhile_waits_for_the_same_read() {
    let mut r = Rig::new(64, 64);
    r.hint(Hint::WillNeed);
    r.ask(Op::Read, 7, 1);
    r.rest();
    assert_eq!((r.read.len(), r.last_seen()), (64, Some(7)));
}

/// What was hot where the guest came from: single blocks and ranges, the hottest first.
#[test]
fn blocks_that_are_wanted_are_fetched_in_their_order() {
    let mut r = Rig::new(400, 256);
    r.ask(Op::Read, 21, 1);
    r.rest();
    r.read.clear();
    let singles: Vec<(u64, u64)> = (0..40).map(|n| (5 * n, 1)).collect();
    let wanted = [&[(300, 50), (20, 3)], &singles[..], &[(390, 1000), (5000, 7), (u64::MAX, 9)]].concat();
    assert_eq!(r.core.want(DISK, &wanted), wanted.len());
    r.core.apply(Event::Tick, 0, &mut r.front);
    r.rest();
    let had = |n: &u64| *n == 20;
    let order = (300..350).chain([20, 22]).chain((0..200).step_by(5).filter(|n| !had(n))).chain(390..400);
    assert_eq!(r.read, order.collect::<Vec<_>>(), "but for what was there, and what no disk has");
    assert!(r.most <= 9, "{} operations at the same time", r.most);
    assert_eq!((r.core.wanted(DISK), r.core.stats(DISK).evicted_blocks), (0, 0));
    r.ask(Op::Read, 195, 1);
    assert_eq!((r.last_seen(), r.front.ios.len()), (Some(195), 0));
    // Those that would go last are hot; what was fetched among them.
    let hottest = r.core.hottest(DISK, 1000);
    assert_eq!((hottest.len() as u64, r.core.hottest(DISK, 7).len()), (r.cached(), 7));
    assert!([300, 21, 399].iter().all(|block| hottest.contains(block)));
}

#[test]
fn what_is_wanted_takes_no_room_that_is_used_and_no_more_than_its_list_has() {
    let mut r = Rig::new(4000, 64);
    for block in (0..32).map(|n| n * 137 % 900) {
        r.ask(Op::Read, block, 1);
        r.rest();
    }
    r.read.clear();
    let many: Vec<(u64, u64)> = (0..5000).map(|n| (1000 + n % 900, 1)).collect();
    let taken = r.core.want(DISK, &many);
    assert!(taken < many.len() && r.core.wanted(DISK) == taken);
    assert_eq!(r.core.want(DISK, &many), 0, "the list is full");
    r.core.apply(Event::Tick, 0, &mut r.front);
    r.rest();
    assert_eq!((r.read, r.core.stats(DISK).evicted_blocks), ((1000..1032).collect::<Vec<_>>(), 0));
    assert_eq!(r.core.wanted(DISK), 0, "the rest is given up");
    assert_eq!(r.core.want(DiskId(77), &[(0, 1)]), 0);
}

/// An image that another daemon had meanwhile: nothing of what was read, is being read or was wanted counts any more.
#[test]
fn nothing_is_kept_of_an_image_that_changes_hands() {
    let mut r = Rig::new(400, 256);
    r.ask(Op::Read, 7, 1);
    r.rest();
    r.core.want(DISK, &[(100, 200)]);
    r.core.apply(Event::Tick, 0, &mut r.front);
    r.core.invalidate(DISK);
    r.rest();
    assert_eq!((r.cached(), r.core.wanted(DISK)), (0, 0));
    assert_eq!(r.core.hottest(DISK, 9), [0; 0]);
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
    assert_eq!(r.last_seen(), Some(3));
}
