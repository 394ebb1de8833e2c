//! What takes long is done in steps: tables that follow a share, and what is dropped for a discard.

use undercroft_cache::fault_injection::{Bug, FaultInjection, NoFaults, Planted};
use undercroft_cache::limits::{EVICTION_BYTES, STEP_BYTES, UNIT_BYTES};
use undercroft_cache::{Core, CoreOptions, DiskId, DiskOptions, Event, Geometry, GroupId, IoKind, Op};
use undercroft_engine::PolicyKind;
use undercroft_testkit::front::{Front, Numbered, Values, block_request, fill_blocks, number_blocks};

const DISK: DiskId = DiskId(0);
const B: u64 = 4096;

/// A disk whose blocks hold their numbers, and what is paused until the test resumes it.
struct Rig {
    core: Core,
    front: Front<Numbered>,
}

impl Rig {
    fn new(policy: PolicyKind, blocks: u32) -> Self {
        Self::of(DiskOptions::new(&Geometry::new(1 << 40), policy, blocks))
    }

    fn of(disk: DiskOptions) -> Self {
        let core = CoreOptions { step_bytes: STEP_BYTES, hash_seed: 1, ..CoreOptions::new(256 << 20) };
        let mut core = Core::new(core).unwrap();
        core.add_disk(DISK, disk).unwrap();
        Self { core, front: Front::new(Numbered::default()) }
    }

    fn request(&mut self, op: Op, block: u64, blocks: u64) {
        self.front.ask(&mut self.core, block_request(DISK, op, block, blocks));
    }

    /// Completes what was submitted.
    fn complete(&mut self) {
        self.front.end_all(&mut self.core, number_blocks);
    }

    fn read(&mut self, block: u64) {
        let before = self.front.client.blocks;
        self.request(Op::Read, block, 1);
        self.complete();
        assert_eq!(self.front.client.blocks, before + 1, "not read");
    }

    fn discard(&mut self, block: u64, blocks: u64) {
        self.request(Op::Discard, block, blocks);
        self.complete();
        while let Some(paused) = self.front.paused.pop() {
            self.event(Event::Resume(paused));
        }
    }

    /// Drops and table work of one event are bounded; what is going on goes on.
    fn event(&mut self, event: Event) {
        let (cached, units) = (self.cached(), self.core.table_units(DISK));
        self.core.apply(event, 0, &mut self.front);
        assert!(self.core.table_units(DISK) - units <= STEP_BYTES / UNIT_BYTES, "too much work on tables in an event");
        assert!(cached.saturating_sub(self.cached()) <= 256, "too many blocks go in an event");
    }

    fn cached(&self) -> u64 {
        self.core.stats(DISK).cached_blocks
    }
}

/// Every block is found, with its content, while tables grow and shrink, and the ceiling holds.
#[test]
fn a_share_that_moves_is_followed_in_steps_and_no_block_is_lost() {
    for policy in PolicyKind::ALL {
        let mut r = Rig::new(policy, 4000);
        (0..4000).for_each(|block| r.read(block * 3));
        for (share, slots) in [(9000, 11_250), (6000, 11_250), (4300, 5375), (16_000, 20_000)] {
            r.core.set_share(DISK, share).unwrap();
            let mut events = 0;
            while r.core.slots(DISK) != slots {
                events += 1;
                assert!(events < 2000, "{policy}: it does not come to an end");
                r.event(if events % 3 == 0 { Event::Tick } else { Event::Spare { copies: false } });
                let before = r.core.stats(DISK).miss_blocks;
                let block = events % 4000 * 3;
                r.read(block);
                r.read(block);
                assert!(r.core.stats(DISK).miss_blocks - before <= 1, "{policy}: a block that was read is not found");
                if events % 16 == 0 {
                    r.core.check();
                }
            }
            while r.core.wants_spare() {
                r.event(Event::Spare { copies: false });
            }
            r.core.check();
        }
    }
}

/// A discard of everything drops what is cached a few blocks at a time, whether it goes by the range or by the slots,
/// also while blocks change their slots; nothing of it is found after the answer.
#[test]
fn a_discard_of_all_that_is_cached_is_done_in_steps() {
    for (blocks, moves) in [(7000, false), (1 << 28, false), (1 << 28, true)] {
        let mut r = Rig::new(PolicyKind::S3Fifo, 8000);
        (0..6000).for_each(|block| r.read(block));
        r.discard(0, 3000);
        if moves {
            // Those that are left have slots that go.
            r.core.set_capacity(DISK, 3500).unwrap();
        }
        r.front.answered = 0;
        r.request(Op::Discard, 0, blocks);
        assert_eq!(r.cached(), 3000, "until it is done readers get what was there");
        let mut before = r.cached();
        r.complete();
        let mut events = 0;
        while let Some(paused) = r.front.paused.pop() {
            assert_eq!(r.front.answered, 0, "it is answered before all is dropped");
            assert!(before - r.cached() <= STEP_BYTES / EVICTION_BYTES, "too many blocks go in an event");
            before = r.cached();
            r.event(Event::Resume(paused));
            if moves {
                r.event(Event::Spare { copies: false });
                before = r.cached();
            }
            events += 1;
            assert!(events < 2000, "it goes on for ever");
        }
        assert!(events > 40, "there was something to do");
        assert_eq!((r.cached(), r.front.answered), (0, 1));
        r.core.check();
    }
}

/// A discard that is dropping what is cached looks through all slots again when its disk leaves a pool, or is what is
/// left of one: there are other tables then, whose moves were counted from 0.
#[test]
fn a_discard_goes_on_where_a_disk_joins_or_leaves_a_pool() {
    const OTHER: DiskId = DiskId(1);
    for (leaves, joins) in [(DISK, false), (OTHER, false), (DISK, true)] {
        let mut r = Rig::new(PolicyKind::Lru, 2000);
        r.core.add_disk(OTHER, DiskOptions::new(&Geometry::new(1 << 40), PolicyKind::Lru, 2000)).unwrap();
        r.core.join_pool(DISK, OTHER).unwrap();
        if joins {
            r.core.leave_pool(leaves, 2000).unwrap();
        }
        let blocks = if joins { 2000 } else { 3000 };
        (0..blocks).for_each(|block| r.read(block));
        r.request(Op::Discard, 0, 10_000);
        r.complete();
        for _ in 0..20 {
            let paused = r.front.paused.pop().expect("it takes more events than these");
            r.event(Event::Resume(paused));
        }
        if joins {
            r.core.join_pool(DISK, OTHER).unwrap();
        } else {
            r.core.leave_pool(leaves, 2000).unwrap();
        }
        assert!(r.cached() > 500, "nothing was left to drop");
        while let Some(paused) = r.front.paused.pop() {
            r.event(Event::Resume(paused));
        }
        assert_eq!(r.cached(), 0, "what was discarded is found after the answer ({leaves:?} leaves, {joins})");
        r.core.check();
    }
}

/// To hash a block takes as long as to copy two, so a piece of spare time hashes half as much as an event copies: what
/// small requests of others wait for.
#[test]
fn spare_time_hashes_a_few_blocks_at_a_time() {
    let mut r = Rig::of(DiskOptions {
        group: Some(GroupId(0)),
        ..DiskOptions::new(&Geometry::new(1 << 40), PolicyKind::S3Fifo, 4000)
    });
    for n in 0..4 {
        r.request(Op::Read, n * 64, 16);
        r.complete();
    }
    let hashed = |r: &Rig| r.core.stats(DISK).hashed_blocks;
    let mut before = hashed(&r);
    let mut pieces = 0;
    while r.core.wants_spare() {
        r.event(Event::Spare { copies: false });
        let now = hashed(&r);
        assert!(now - before <= STEP_BYTES / 2 / 4096, "{} blocks were hashed at once", now - before);
        pieces += u32::from(now > before);
        before = now;
    }
    assert!(pieces >= 8, "there was something to hash: {pieces}");
}

/// A write that the disk has done is installed a step at a time: until the last one it is not answered, a reader of a
/// block that is not installed yet gets what was there, and what an event has left of its allowance is all that the
/// request may still copy.
#[test]
fn a_finished_write_is_installed_in_steps() {
    const STEP: u64 = STEP_BYTES / 4096;
    let mut r = Rig::new(PolicyKind::S3Fifo, 4000);
    r.request(Op::Write { fua: false }, 0, 64);
    while let Some(paused) = r.front.paused.pop() {
        r.event(Event::Resume(paused));
    }
    assert_eq!((r.front.ios.len(), r.cached()), (1, 0), "one operation carries it");
    r.front.end_in_part(&mut r.core, 0, |_| Ok(()));
    for step in 1..4 {
        assert_eq!((r.cached(), r.front.answered), (step * STEP, 0));
        r.core.check();
        assert!(!r.core.is_idle(DISK));
        assert!(r.front.end_more(&mut r.core));
    }
    assert_eq!((r.cached(), r.front.answered), (64, 1));
    assert!(!r.front.end_more(&mut r.core));
    r.core.check();
}

/// What a write has on the disk and not in the cache yet does not come into it once the disk may hold something else.
#[test]
fn the_rest_of_a_write_is_not_installed_after_an_invalidation() {
    let mut r = Rig::new(PolicyKind::S3Fifo, 4000);
    r.request(Op::Write { fua: false }, 0, 64);
    while let Some(paused) = r.front.paused.pop() {
        r.event(Event::Resume(paused));
    }
    r.front.end_in_part(&mut r.core, 0, |_| Ok(()));
    r.core.invalidate(DISK);
    while r.front.end_more(&mut r.core) {}
    assert_eq!((r.cached(), r.front.answered), (0, 1));
    assert!(r.core.is_idle(DISK));
    r.core.check();
}

/// What is asked of the disk, in order, where a write and then a long read wait for the memory that another long read
/// has: until the write is asked for, and of how many blocks that are read then.
fn reads_before_the_write<P: FaultInjection>(faults: P) -> u64 {
    let options = CoreOptions { step_bytes: B, hash_seed: 1, io_frames_per_disk: 1, ..CoreOptions::new(64 << 20) };
    let options = CoreOptions { io_frames_guaranteed: 1, ..options };
    let mut core = Core::with_faults(options, faults).unwrap();
    let disk = DiskOptions::new(&Geometry::new(1 << 30), PolicyKind::Lru, 64);
    core.add_disk(DISK, DiskOptions { readahead_bytes: 0, ..disk }).unwrap();
    let mut front = Front::new(Values::default());
    front.ask(&mut core, block_request(DISK, Op::Read, 0, 4));
    front.ask(&mut core, block_request(DISK, Op::Write { fua: false }, 100, 1));
    front.ask(&mut core, block_request(DISK, Op::Read, 200, 40));
    let mut read = 0;
    while !front.ios.iter().any(|io| matches!(io.kind, IoKind::Write { .. })) {
        if let Some(at) = front.ios.iter().position(|io| io.kind == IoKind::Read) {
            read += u64::from(front.ios[at].offset >= 200 * B);
            front.end(&mut core, at, |io| {
                fill_blocks(io, |block| block as u8);
                Ok(())
            });
        }
        // Another event may come before a paused request is resumed.
        if let Some(paused) = front.paused.pop() {
            core.apply(Event::Resume(paused), 0, &mut front);
        }
        assert!(!front.ios.is_empty() || !front.paused.is_empty(), "nothing is under way");
    }
    // All of it ends.
    while !front.ios.is_empty() || !front.paused.is_empty() {
        front.end_all(&mut core, |io| fill_blocks(io, |block| block as u8));
        front.paused.pop().into_iter().for_each(|paused| core.apply(Event::Resume(paused), 0, &mut front));
    }
    assert_eq!(front.answered, 3);
    core.check();
    read
}

/// The step of the event that brings a block is used up by its copy, so that the write pauses when it is its turn: it
/// keeps that while it does.
#[test]
fn a_write_that_pauses_when_it_is_its_turn_is_not_passed() {
    assert_eq!(reads_before_the_write(NoFaults), 0);
    let passed = reads_before_the_write(Planted(Bug::PausedLosesPlace));
    assert!(passed > 10, "the test does not see the bug: {passed}");
}
