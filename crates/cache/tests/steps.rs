//! What takes long is done in steps: tables that follow a share, and what is dropped for a discard.

use undercroft_cache::limits::{EVICTION_BYTES, STEP_BYTES, UNIT_BYTES};
use undercroft_cache::{
    Core, CoreOptions, DiskId, DiskOptions, Effects, Event, Extent, Io, IoDone, IoError, IoKind, Op, Paused, ReqId,
    Request,
};
use undercroft_engine::PolicyKind;

const B: u64 = 4096;
const DISK: DiskId = DiskId(0);

/// Answers reads with the number of each block, and does what is asked of it when it is told to.
#[derive(Default)]
struct Front {
    ios: Vec<Io>,
    paused: Vec<Paused>,
    replies: u32,
    seen: u64,
}

impl Effects for Front {
    fn copy_out(&mut self, _req: ReqId, _at: usize, bytes: &[u8]) {
        self.seen = bytes.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
    }
    fn copy_in(&mut self, _req: ReqId, _at: usize, _bytes: &mut [u8]) {}
    fn submit(&mut self, io: Io) {
        self.ios.push(io);
    }
    fn extents(&mut self, _req: ReqId, _extents: &[Extent]) {}
    fn paused(&mut self, _req: ReqId, paused: Paused) {
        self.paused.push(paused);
    }
    fn reply(&mut self, _req: ReqId, result: Result<(), IoError>) {
        assert_eq!(result, Ok(()));
        self.replies += 1;
    }
}

struct Rig {
    core: Core,
    front: Front,
}

impl Rig {
    fn new(policy: PolicyKind, blocks: u32) -> Self {
        let core = CoreOptions { step_bytes: STEP_BYTES, hash_seed: 1, ..CoreOptions::new(256 << 20) };
        let mut core = Core::new(core).unwrap();
        let options = DiskOptions {
            size_bytes: 1 << 40,
            align: 512,
            read_only: false,
            can_discard: true,
            can_write_zeroes: true,
            policy,
            capacity_blocks: blocks,
            readahead_bytes: 0,
            write_allocate: true,
            exclusive: Default::default(),
            share: None,
        };
        core.add_disk(DISK, options).unwrap();
        Self { core, front: Front::default() }
    }

    fn request(&mut self, op: Op, block: u64, blocks: u64) {
        let id = ReqId { port: 0, tag: 0 };
        let request = Request { id, disk: DISK, op, offset: block * B, len: blocks * B };
        self.core.apply(Event::Request(request), 0, &mut self.front);
    }

    /// Completes what was submitted.
    fn complete(&mut self) {
        while let Some(mut io) = self.front.ios.pop() {
            if io.kind == IoKind::Read {
                for (n, piece) in io.buf.pieces_mut().enumerate() {
                    piece[..8].copy_from_slice(&(io.offset / B + n as u64).to_le_bytes());
                }
            }
            let done = IoDone { op: io.op, disk: io.disk, buf: io.buf, result: Ok(()), extents: Vec::new() };
            self.core.apply(Event::IoDone(done), 0, &mut self.front);
        }
    }

    fn read(&mut self, block: u64) {
        self.request(Op::Read, block, 1);
        self.complete();
        assert_eq!(self.front.seen, block, "another block's content");
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
        r.front.replies = 0;
        r.request(Op::Discard, 0, blocks);
        assert_eq!(r.cached(), 3000, "until it is done readers get what was there");
        let mut before = r.cached();
        r.complete();
        let mut events = 0;
        while let Some(paused) = r.front.paused.pop() {
            assert_eq!(r.front.replies, 0, "it is answered before all is dropped");
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
        assert_eq!((r.cached(), r.front.replies), (0, 1));
        r.core.check();
    }
}
