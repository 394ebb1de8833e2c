//! The rules of the data path, one small scenario each; the simulation looks for everything in between.

use undercroft_cache::{
    Core, CoreOptions, DiskId, DiskOptions, Event, Geometry, IoError, IoKind, Op, blocks_per_disk_max,
};
use undercroft_engine::PolicyKind;
use undercroft_engine::shares::Hint;
use undercroft_testkit::front::{Front, Values, request};

const B: u64 = 4096;
const DISK: DiskId = DiskId(0);
const WRITE: Op = Op::Write { fua: false };

/// A client that writes bytes of the value of its tag, and a disk that does nothing until told.
struct Rig {
    core: Core,
    front: Front<Values>,
}

/// A small disk.
fn options_of_disk() -> DiskOptions {
    DiskOptions::new(&Geometry::new(256 * B), PolicyKind::Lru, 64)
}

impl Rig {
    fn new(change: impl FnOnce(&mut DiskOptions)) -> Self {
        let mut core = Core::new(CoreOptions::new(16 << 20)).unwrap();
        let mut options = options_of_disk();
        change(&mut options);
        core.add_disk(DISK, options).unwrap();
        Self { core, front: Front::noting(Values::default()) }
    }

    fn ask(&mut self, tag: u32, op: Op, offset: u64, len: u64) {
        self.front.ask(&mut self.core, request(tag, DISK, op, offset, len));
    }

    /// Completes the oldest operation; a read finds bytes of `value`.
    fn complete(&mut self, value: u8, result: Result<(), IoError>) -> IoKind {
        self.front.end(&mut self.core, 0, |io| {
            if io.kind == IoKind::Read {
                io.buf.pieces_mut().for_each(|p| p.fill(value));
            }
            result
        })
    }

    fn replies(&mut self) -> Vec<(u32, Result<(), IoError>)> {
        std::mem::take(&mut self.front.answers)
    }

    fn seen(&mut self) -> Vec<(u32, usize, u8)> {
        std::mem::take(&mut self.front.client.seen)
    }

    fn shapes(&self) -> Vec<(u64, u64)> {
        self.front.ios.iter().map(|io| (io.offset, io.len)).collect()
    }

    /// Completes everything and checks that nothing is left.
    fn rest(mut self) {
        self.complete_all(0);
        assert!(self.core.is_idle(DISK));
        self.core.check();
    }

    /// Completes everything; reads find bytes of `value`. How many operations it were.
    fn complete_all(&mut self, value: u8) -> u32 {
        let mut operations = 0;
        while !self.front.ios.is_empty() {
            self.complete(value, Ok(()));
            operations += 1;
        }
        operations
    }
}

#[test]
fn misses_on_one_block_join_into_one_read() {
    let mut r = Rig::new(|_| ());
    r.ask(1, Op::Read, 0, 4 * B);
    r.ask(2, Op::Read, B, B);
    r.ask(3, Op::Read, 2 * B + 100, 50);
    assert_eq!(r.shapes(), [(0, 4 * B)]);
    r.complete(7, Ok(()));
    assert_eq!(r.replies(), [(1, Ok(())), (2, Ok(())), (3, Ok(()))]);
    assert_eq!(r.core.stats(DISK).joined_blocks, 2);
    r.seen();
    r.ask(4, Op::Read, 0, 4 * B);
    assert_eq!(r.replies(), [(4, Ok(()))], "and now they hit");
    assert_eq!(r.seen(), [(4, 0, 7), (4, 4096, 7), (4, 8192, 7), (4, 12288, 7)]);
    r.rest();
}

#[test]
fn a_request_that_hits_in_part_reads_only_the_rest() {
    let mut r = Rig::new(|_| ());
    r.ask(1, Op::Read, 2 * B, B);
    r.complete(7, Ok(()));
    r.ask(2, Op::Read, 0, 5 * B);
    assert_eq!(r.shapes(), [(0, 2 * B), (3 * B, 2 * B)]);
    r.complete(1, Ok(()));
    assert_eq!(r.replies(), [(1, Ok(()))]);
    r.complete(2, Ok(()));
    assert_eq!(r.replies(), [(2, Ok(()))]);
    r.rest();
}

#[test]
fn a_write_makes_a_racing_read_stale() {
    let mut r = Rig::new(|o| o.write_allocate = false);
    r.ask(1, Op::Read, 0, B);
    r.ask(9, WRITE, 0, B);
    r.ask(2, Op::Read, 0, B);
    assert_eq!(r.shapes(), [(0, B), (0, B)], "the second read waits for the write");
    r.complete(7, Ok(()));
    assert_eq!((r.replies(), r.seen()), (vec![(1, Ok(()))], vec![(1, 0, 7)]));
    assert_eq!(r.core.stats(DISK).stale_fills, 1);
    r.complete(0, Ok(()));
    // The read had been given a slot, so the written block took it.
    assert_eq!((r.replies(), r.seen()), (vec![(9, Ok(())), (2, Ok(()))], vec![(2, 0, 9)]));
    r.rest();
}

#[test]
fn readers_get_the_old_block_until_the_write_is_done_and_lose_it_if_it_fails() {
    let mut r = Rig::new(|_| ());
    r.ask(5, WRITE, 0, B);
    r.complete(0, Ok(()));
    r.ask(6, WRITE, 0, B);
    r.ask(1, Op::Read, 0, B);
    assert_eq!((r.replies(), r.seen()), (vec![(5, Ok(())), (1, Ok(()))], vec![(1, 0, 5)]));
    r.complete(0, Err(IoError::NoSpace));
    assert_eq!(r.replies(), [(6, Err(IoError::NoSpace))]);
    assert_eq!(r.core.stats(DISK).cached_blocks, 0);
    r.ask(2, Op::Read, 0, B);
    assert_eq!(r.shapes(), [(0, B)], "the disk is asked what it holds");
    r.rest();
}

#[test]
fn overlapping_writes_go_in_order_of_arrival() {
    let mut r = Rig::new(|_| ());
    r.ask(1, WRITE, 0, 2 * B);
    r.ask(2, WRITE, B, 2 * B);
    r.ask(3, WRITE, 5 * B, B);
    assert_eq!(r.shapes(), [(0, 2 * B), (5 * B, B)]);
    r.complete(0, Ok(()));
    assert_eq!(r.shapes(), [(5 * B, B), (B, 2 * B)]);
    r.rest();
}

#[test]
fn a_partial_write_is_aligned_overlaid_or_merged() {
    let mut r = Rig::new(|_| ());
    r.ask(1, WRITE, 512, 1024);
    assert_eq!(r.shapes(), [(512, 1024)], "aligned: alone");
    r.complete(0, Ok(()));
    assert_eq!(r.core.stats(DISK).cached_blocks, 0, "and not cached");
    r.ask(2, WRITE, 700, 10);
    assert_eq!(r.shapes(), [(0, B)], "not aligned: the block is read");
    assert_eq!(r.complete(7, Ok(())), IoKind::Read);
    assert_eq!(r.shapes(), [(512, 512)], "and its sector written");
    r.complete(0, Ok(()));
    assert_eq!(r.core.stats(DISK).cached_blocks, 1);
    r.ask(3, WRITE, 1023, 2);
    assert_eq!(r.shapes(), [(512, 1024)], "cached: overlaid, and written as far as the alignment asks");
    r.complete(0, Ok(()));
    r.replies();
    r.ask(4, Op::Read, 1022, 1);
    r.ask(5, Op::Read, 1023, 1);
    r.ask(6, Op::Read, 1025, 1);
    r.ask(7, Op::Read, 705, 1);
    assert_eq!(r.seen(), [(4, 0, 7), (5, 0, 3), (6, 0, 7), (7, 0, 2)]);
    r.rest();
}

#[test]
fn the_last_block_is_cut_at_the_end_of_the_disk() {
    let mut r = Rig::new(|o| o.size_bytes = 3 * B + 1024 + 100);
    r.ask(1, Op::Read, 3 * B, 1024);
    assert_eq!(r.shapes(), [(3 * B, 1024)]);
    r.complete(1, Ok(()));
    r.ask(2, Op::Read, 3 * B, 1025);
    assert_eq!(r.replies(), [(1, Ok(())), (2, Err(IoError::Invalid))]);
    r.ask(3, WRITE, 3 * B, 1024);
    assert_eq!(r.shapes(), [(3 * B, 1024)], "the whole of a partial block");
    r.rest();
}

#[test]
fn a_discard_of_the_whole_disk_drops_what_is_cached_when_it_is_done() {
    let mut r = Rig::new(|o| o.size_bytes = 1 << 50);
    r.ask(5, WRITE, 0, B);
    r.complete(0, Ok(()));
    r.ask(1, Op::Discard, 0, 1 << 50);
    r.ask(2, Op::Read, 0, B);
    assert_eq!(r.seen(), [(2, 0, 5)], "the old block until then");
    assert_eq!(r.complete(0, Ok(())), IoKind::Discard);
    assert_eq!(r.core.stats(DISK).cached_blocks, 0);
    r.rest();
}

#[test]
fn zeroes_are_written_where_the_disk_does_not_make_them() {
    let mut r = Rig::new(|o| o.can_write_zeroes = false);
    let zeroes = Op::WriteZeroes { unmap: true, fua: true };
    r.ask(1, zeroes, 512, 2 * B);
    assert_eq!(r.shapes(), [(512, 2 * B)]);
    assert_eq!(r.complete(0, Ok(())), IoKind::Write { fua: true });
    // A disk that promised more than it can do.
    let mut r = Rig::new(|_| ());
    r.ask(1, zeroes, 0, B);
    assert_eq!(r.complete(0, Err(IoError::Unsupported)), IoKind::WriteZeroes { unmap: true, fua: true });
    assert_eq!(r.complete(0, Ok(())), IoKind::Write { fua: true });
    assert_eq!(r.replies(), [(1, Ok(()))]);
    r.rest();
}

#[test]
fn a_failed_read_fails_its_owner_and_not_those_who_joined_it() {
    let mut r = Rig::new(|_| ());
    r.ask(1, Op::Read, 0, 4 * B);
    r.ask(2, Op::Read, B, B);
    r.complete(0, Err(IoError::Io));
    assert_eq!(r.replies(), [(1, Err(IoError::Io))]);
    assert_eq!(r.shapes(), [(B, B)], "perhaps only another block is bad");
    r.complete(4, Ok(()));
    assert_eq!((r.replies(), r.seen()), (vec![(2, Ok(()))], vec![(2, 0, 4)]));
    r.rest();
}

#[test]
fn a_stream_is_read_ahead_without_telling_the_policy() {
    let mut r = Rig::new(|o| o.readahead_bytes = 128 << 10);
    for b in 0..3 {
        r.ask(b as u32, Op::Read, b * B, B);
        r.complete(1, Ok(()));
    }
    assert_eq!(r.shapes(), [(3 * B, 16 * B)]);
    r.complete(8, Ok(()));
    assert_eq!(r.core.stats(DISK).cached_blocks, 3, "what nobody asked for is in no slot");
    r.seen();
    r.ask(7, Op::Read, 3 * B, B);
    assert_eq!(r.seen(), [(7, 0, 8)]);
    assert_eq!((r.core.stats(DISK).cached_blocks, r.core.stats(DISK).readahead_hit_blocks), (4, 1));
    // A write to a block read ahead: it is not what it was.
    r.ask(9, WRITE, 4 * B, 512);
    let last = r.front.ios.len() - 1;
    r.front.ios.swap(0, last);
    r.complete(0, Ok(()));
    r.seen();
    let before = r.core.stats(DISK).backend_reads;
    r.ask(8, Op::Read, 4 * B, B);
    assert!(r.seen().is_empty() && r.core.stats(DISK).backend_reads > before);
    r.rest();
}

#[test]
fn a_long_request_leaves_frames_to_others() {
    let mut core_options = CoreOptions::new(32 << 20);
    core_options.io_frames_per_disk = 64;
    let mut r = Rig::new(|_| ());
    r.core = Core::new(core_options).unwrap();
    r.core.add_disk(DISK, DiskOptions::new(&Geometry::new(1 << 30), PolicyKind::Fifo, 16)).unwrap();
    r.ask(1, Op::Read, 0, 32 << 20);
    r.ask(2, Op::Read, 1 << 29, B);
    let mut steps = 0;
    while !r.front.ios.is_empty() {
        assert!(r.front.ios.iter().map(|io| io.buf.frames.len()).sum::<usize>() <= 64);
        r.complete(1, Ok(()));
        steps += 1;
    }
    let mut answered = r.replies();
    answered.sort_by_key(|a| a.0);
    assert_eq!(answered, [(1, Ok(())), (2, Ok(()))], "after {steps} operations");
    r.rest();
}

#[test]
fn a_disk_that_leaves_refuses_and_a_read_only_one_refuses_changes() {
    let mut r = Rig::new(|o| o.read_only = true);
    r.ask(1, WRITE, 0, B);
    r.ask(2, Op::Discard, 0, B);
    r.ask(3, Op::WriteZeroes { unmap: false, fua: false }, 0, B);
    let refused = [(1, Err(IoError::ReadOnly)), (2, Err(IoError::ReadOnly)), (3, Err(IoError::ReadOnly))];
    assert_eq!(r.replies(), refused);
    r.core.begin_shutdown(DISK);
    r.ask(4, Op::Read, 0, B);
    r.core.remove_disk(DISK);
    r.ask(5, Op::Read, 0, B);
    assert_eq!(r.replies(), [(4, Err(IoError::Shutdown)), (5, Err(IoError::Shutdown))]);
}

impl Rig {
    /// Reads blocks one after the other; returns how many waited for the disk.
    fn pass(&mut self, blocks: std::ops::Range<u64>) -> u64 {
        let before = self.core.stats(DISK).miss_blocks;
        for b in blocks {
            self.ask(1, Op::Read, b * B, B);
            self.complete_all(b as u8);
            assert_eq!(self.seen().pop(), Some((1, 0, b as u8)), "block {b}");
        }
        self.core.stats(DISK).miss_blocks - before
    }
}

#[test]
fn what_is_wanted_once_takes_no_place_of_what_is_kept() {
    for hint in [Hint::NoReuse, Hint::Sequential, Hint::Normal] {
        let mut r = Rig::new(|o| o.readahead_bytes = 0);
        r.pass(0..40);
        r.core.set_hint(DISK, hint);
        assert_eq!(r.pass(100..250), 150);
        // What fits beside it is kept all the same: the 24 last blocks, of which none is worth more than the next.
        assert_eq!(r.core.stats(DISK).cached_blocks, 64, "{hint}");
        r.core.set_hint(DISK, Hint::Normal);
        let missed = r.pass(0..40);
        assert_eq!(missed, if hint == Hint::Normal { 40 } else { 0 }, "{hint}");
        r.rest();
    }
}

#[test]
fn of_what_is_not_wanted_nothing_is_kept() {
    let mut r = Rig::new(|_| ());
    r.pass(0..40);
    r.core.set_hint(DISK, Hint::DontNeed);
    assert_eq!(r.pass(0..40), 40);
    r.ask(9, WRITE, 0, 4 * B);
    r.complete(0, Ok(()));
    assert_eq!(r.core.stats(DISK).cached_blocks, 0);
    // sticky, until something else is said
    r.core.set_hint(DISK, Hint::WillNeed);
    r.pass(0..8);
    assert_eq!(r.core.stats(DISK).cached_blocks, 8);
    r.rest();
}

#[test]
fn hints_say_how_far_is_read_ahead() {
    let furthest = |hint| {
        let mut r = Rig::new(|o| o.readahead_bytes = 64 << 10);
        r.core.set_hint(DISK, hint);
        let (mut furthest, mut reads) = (0, 0);
        for b in 0..100 {
            r.ask(1, Op::Read, b * B, B);
            furthest = r.shapes().iter().map(|(at, len)| (at + len) / B - b).max().unwrap_or(0).max(furthest);
            reads += r.complete_all(b as u8);
        }
        (furthest, reads)
    };
    let (normal, fewer) = furthest(Hint::Normal);
    assert_eq!(normal, 17, "16 blocks after the one that is read");
    assert_eq!(furthest(Hint::Sequential).0, 33);
    for hint in [Hint::Random, Hint::DontNeed] {
        assert_eq!(furthest(hint), (1, 100), "{hint}");
    }
    assert!(fewer < 30, "{fewer} reads of the disk");
}

/// How far the stream reads ahead that a guest has gone through from `from` to `end`, in blocks.
fn furthest_ahead(r: &mut Rig, from: u64, end: u64) -> u64 {
    let mut furthest = 0;
    for b in from..end {
        r.ask(1, Op::Read, b * B, B);
        furthest = r.shapes().iter().map(|(at, len)| (at + len) / B - b - 1).max().unwrap_or(0).max(furthest);
        r.complete_all(b as u8);
        r.core.check();
    }
    furthest
}

#[test]
fn read_ahead_changes_while_the_disk_serves() {
    let mut r = Rig::new(|o| o.readahead_bytes = 0);
    // What is read ahead beyond what the disk is guaranteed is lent, by one that brings enough for it.
    let lender = DiskOptions { capacity_blocks: 2400, ..options_of_disk() };
    r.core.add_disk(DiskId(7), lender).unwrap();
    assert_eq!(furthest_ahead(&mut r, 0, 40), 0);
    r.core.set_readahead(DISK, 64 << 10);
    assert_eq!(furthest_ahead(&mut r, 50, 90), 16);
    r.core.set_readahead(DISK, 256 << 10);
    assert_eq!(furthest_ahead(&mut r, 120, 200), 64);
    r.core.set_readahead(DISK, 0);
    assert_eq!(furthest_ahead(&mut r, 210, 250), 0);
    r.rest();
}

/// A disk that has all of the ceiling: what it may keep with another read-ahead is what it can be promised.
#[test]
fn a_full_ceiling_has_room_for_every_read_ahead() {
    let options = CoreOptions::new(64 << 20);
    let capacity = |readahead| blocks_per_disk_max(&options, 1, readahead);
    for (first, second) in [(512 << 10, 0), (2 << 20, 0), (0, 2 << 20), (512 << 10, 2 << 20)] {
        let mut r = Rig::new(|_| ());
        r.core = Core::new(options.clone()).unwrap();
        let disk = DiskOptions { capacity_blocks: capacity(first), readahead_bytes: first, ..options_of_disk() };
        r.core.add_disk(DISK, disk).unwrap();
        for readahead in [second, first, second] {
            r.core.set_readahead(DISK, readahead);
            let blocks = capacity(readahead).min(r.core.blocks_for(DISK, options.memory_bytes));
            r.core.set_capacity(DISK, blocks).unwrap();
            (0..9).for_each(|_| r.core.apply(Event::Tick, 0, &mut r.front));
            r.core.check();
        }
    }
}

#[test]
fn read_ahead_ends_while_it_is_under_way() {
    let mut r = Rig::new(|o| o.readahead_bytes = 128 << 10);
    for b in 0..3 {
        r.ask(b as u32, Op::Read, b * B, B);
        r.complete(1, Ok(()));
    }
    assert_eq!(r.shapes(), [(3 * B, 16 * B)], "what is read ahead");
    r.core.set_readahead(DISK, 0);
    r.core.check();
    r.complete(8, Ok(()));
    r.core.check();
    r.seen();
    // What was asked for in time is there; nothing is asked for any more.
    r.ask(7, Op::Read, 3 * B, B);
    assert!(r.front.ios.is_empty() || r.shapes() == [(3 * B, B)]);
    r.complete_all(8);
    r.rest();
}
