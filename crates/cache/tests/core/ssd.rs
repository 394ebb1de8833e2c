//! The SSD store below a core, a scenario for each way that a block takes through it; the simulation looks for
//! everything in between.

use std::io;
use undercroft_cache::fault_injection::{Bug, FaultInjection, NoFaults, Planted};
use undercroft_cache::ssd::{Admission, BootId, Format, Identity, Kept, Known, Media, Region, Ssd, Stamp, StoreId};
use undercroft_cache::{
    ByteRange, Core, CoreOptions, DiskId, DiskOptions, Durability, Event, Geometry, Io, IoError, IoKind, IoTarget, Op,
    SSD,
};
use undercroft_engine::PolicyKind;
use undercroft_engine::locking::{LockMode, LockSettings};
use undercroft_host::IoBuf;
use undercroft_testkit::front::{Front, Values, request};

const B: u64 = 4096;
const DISK: DiskId = DiskId(0);
pub(super) const BOOT: BootId = BootId([1; 16]);
pub(super) const REGION: usize = 4 << 20;
pub(super) const SEGMENT: u32 = 256 << 10;

/// A device's region, all of it durable at once.
pub(super) struct Flash(pub(super) Vec<u8>);

impl Media for Flash {
    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        to.copy_from_slice(&self.0[offset as usize..][..to.len()]);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.0[offset as usize..][..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Flash {
    /// Does what an operation asks for.
    pub(super) fn serve(&mut self, io: &mut Io) {
        let mut at = io.offset as usize;
        match io.kind {
            IoKind::Read => {
                for piece in io.buf.pieces_mut() {
                    piece.copy_from_slice(&self.0[at..at + piece.len()]);
                    at += piece.len();
                }
            }
            IoKind::Write { .. } => {
                for piece in io.buf.pieces() {
                    self.0[at..at + piece.len()].copy_from_slice(piece);
                    at += piece.len();
                }
            }
            _ => {}
        }
    }
}

/// A disk of 64 blocks, two of which fit into RAM, above a store that admits everything.
struct Rig<P: FaultInjection = NoFaults> {
    core: Core<P>,
    front: Front<Values>,
    flash: Flash,
    /// What the image holds of each block.
    image: [u8; 64],
    kept: Kept,
}

fn stamp(of: u8) -> Stamp {
    Stamp([of; 64])
}

impl Rig {
    fn new() -> Self {
        let mut flash = Flash(vec![0; REGION]);
        let format = Format { store: StoreId([7; 16]), segment_bytes: SEGMENT };
        let region = Region::format(&mut flash, format, BOOT, NoFaults).unwrap();
        Rig::with(flash, region, 0, NoFaults)
    }
}

impl<P: FaultInjection> Rig<P> {
    /// Over a region that was formatted or recovered, with an image of this stamp.
    fn with(flash: Flash, region: Region<NoFaults>, of: u8, faults: P) -> Self {
        let mut core = Core::with_faults(CoreOptions::new(16 << 20), faults).unwrap();
        let options = DiskOptions::new(&Geometry::new(64 * B - 512), PolicyKind::Lru, 2);
        core.add_disk(DISK, options).unwrap();
        let mut ssd = Ssd::new(vec![region]);
        ssd.set_admission(Admission::All);
        core.set_ssd(ssd);
        let known = Known { identity: Identity([9; 64]), stamp: Some(stamp(of)), blocks: 64 };
        let kept = core.use_ssd(DISK, &known).unwrap().unwrap();
        core.set_ssd_share(DISK, 1 << 20);
        Self { core, front: Front::noting(Values::default()), flash, image: std::array::from_fn(|n| n as u8), kept }
    }

    /// Starts over what the last core left, on an image of this stamp.
    fn again<Q: FaultInjection>(self, of: u8, faults: Q) -> Rig<Q> {
        let Self { core, mut flash, image, .. } = self;
        drop(core);
        let (region, _) = Region::recover(&mut flash, SEGMENT, BOOT, NoFaults).unwrap();
        Rig { image, ..Rig::with(flash, region, of, faults) }
    }

    /// Completes operations until there are none, those of the store first; returns the kinds of those of the image.
    fn rest(&mut self) -> Vec<IoKind> {
        let mut kinds = Vec::new();
        while !self.front.ios.is_empty() {
            let of_store = self.front.ios.iter().position(|io| io.target != IoTarget::Image);
            let kind = self.complete(of_store.unwrap_or(0));
            if of_store.is_none() {
                kinds.push(kind);
            }
        }
        kinds
    }

    /// Completes an operation.
    fn complete(&mut self, at: usize) -> IoKind {
        let Self { core, front, flash, image, .. } = self;
        front.end(core, at, |io| {
            match io.target {
                IoTarget::Ssd(_) => flash.serve(io),
                IoTarget::Image => serve_image(image, io.offset, io.kind, &mut io.buf),
            }
            Ok(())
        })
    }

    /// Reads a block and completes everything; the value that came, and what was asked of the image for it.
    fn read(&mut self, block: u64) -> (u8, Vec<IoKind>) {
        self.front.client.seen.clear();
        self.front.ask(&mut self.core, request(1, DISK, Op::Read, block * B, B));
        let kinds = self.rest();
        let value = self.front.client.seen.iter().find(|(_, at, _)| *at == 0).expect("a byte came").2;
        (value, kinds)
    }

    fn stop(&mut self, of: u8) {
        self.core.stop_ssd(&[(DISK, stamp(of))]);
        while !self.core.ssd().unwrap().is_stopped() {
            self.core.apply(Event::Tick, 0, &mut self.front);
            self.rest();
        }
    }

    /// Operations of the image that are under way.
    fn of_image(&self) -> Vec<IoKind> {
        self.front.ios.iter().filter(|io| io.target == IoTarget::Image).map(|io| io.kind).collect()
    }
}

fn serve_image(image: &mut [u8; 64], offset: u64, kind: IoKind, buf: &mut IoBuf) {
    let first = (offset / B) as usize;
    match kind {
        IoKind::Read => buf.pieces_mut().enumerate().for_each(|(n, piece)| piece.fill(image[first + n])),
        IoKind::Write { .. } => buf.pieces().enumerate().for_each(|(n, piece)| image[first + n] = piece[0]),
        _ => {}
    }
}

#[test]
fn what_left_ram_is_read_from_the_store() {
    let mut r = Rig::new();
    (0..4).for_each(|block| assert_eq!(r.read(block), (block as u8, vec![IoKind::Read])));
    // Blocks 0 and 1 have gone for 2 and 3.
    assert_eq!(r.read(0), (0, vec![]), "the image was asked for what the store has");
    assert_eq!(r.core.stats(DISK).ssd_hit_blocks, 1);
    // It is in RAM again, and leaves it once more without being written.
    let admitted = r.core.ssd_stats_of(DISK).unwrap().admitted;
    (4..8).for_each(|block| assert_eq!(r.read(block).0, block as u8));
    assert_eq!(r.core.ssd_stats_of(DISK).unwrap().admitted, admitted + 3, "not the one that was there");
    assert_eq!(r.read(0), (0, vec![]));
}

#[test]
fn a_last_block_that_is_not_whole_is_not_in_the_store() {
    let mut r = Rig::new();
    r.front.ask(&mut r.core, request(1, DISK, Op::Read, 63 * B, B - 512));
    r.rest();
    (0..4).for_each(|block| _ = r.read(block));
    r.front.ask(&mut r.core, request(1, DISK, Op::Read, 63 * B, B - 512));
    assert_eq!(r.rest(), [IoKind::Read]);
}

#[test]
fn a_change_takes_the_block_out_of_the_store() {
    let mut r = Rig::new();
    (0..4).for_each(|block| _ = r.read(block));
    r.front.ask(&mut r.core, request(200, DISK, Op::Write { fua: false }, 0, B));
    assert_eq!(r.rest(), [IoKind::Write { fua: false }]);
    (4..8).for_each(|block| _ = r.read(block));
    assert_eq!(r.read(0).0, 200);
}

#[test]
fn bytes_that_are_not_the_blocks_are_read_from_the_image() {
    let mut r = Rig::new();
    (0..20).for_each(|block| _ = r.read(block));
    // All is written, so that nothing is served from memory.
    r.stop(0);
    let mut r = r.again(0, NoFaults);
    assert!(matches!(r.kept, Kept::Blocks(n) if n >= 18), "{:?}", r.kept);
    assert_eq!(r.read(3), (3, vec![]), "the store has it");
    r.flash.0[SEGMENT as usize..].iter_mut().for_each(|byte| *byte ^= 1);
    assert_eq!(r.read(5), (5, vec![IoKind::Read]));
    assert_eq!(r.core.stats(DISK).backend_errors, 0);
}

#[test]
fn an_image_that_was_changed_meanwhile_has_nothing_in_the_store() {
    let mut r = Rig::new();
    (0..20).for_each(|block| _ = r.read(block));
    r.stop(1);
    let mut r = r.again(2, NoFaults);
    assert!(matches!(r.kept, Kept::Dropped(_)), "{:?}", r.kept);
    r.image[3] = 99;
    assert_eq!(r.read(3), (99, vec![IoKind::Read]));
}

/// What the first change after a start waits for: a store that still calls the image unchanged would be believed after
/// a loss of power, when what the file system knows of times may be old, too.
fn first_change_waits<P: FaultInjection>(faults: P) -> bool {
    let mut r = Rig::new();
    (0..20).for_each(|block| _ = r.read(block));
    r.stop(1);
    let mut r = r.again(1, faults);
    r.front.ask(&mut r.core, request(200, DISK, Op::Write { fua: false }, 0, B));
    while r.of_image().is_empty() {
        let at = r.front.ios.iter().position(|io| io.disk == SSD).expect("the store notes the change");
        r.complete(at);
    }
    // The host dies now.
    let before = r.flash.0.clone();
    r.rest();
    let found = Region::recover(&mut Flash(before), SEGMENT, BOOT, NoFaults).unwrap().1;
    found.blocks == 0
}

#[test]
fn the_first_change_after_a_start_waits_until_the_store_has_noted_it() {
    assert!(first_change_waits(NoFaults));
    assert!(!first_change_waits(Planted(Bug::BelowNotAwaited)), "the test does not see the bug");
}

#[test]
fn a_device_that_does_not_answer_is_not_waited_for() {
    let mut r = Rig::new();
    (0..20).for_each(|block| _ = r.read(block));
    r.stop(0);
    let mut r = r.again(0, NoFaults);
    r.front.ask(&mut r.core, request(7, DISK, Op::Read, 3 * B, B));
    assert!(r.of_image().is_empty());
    r.core.apply(Event::Tick, 1_000_000_000, &mut r.front);
    let at = r.front.ios.iter().position(|io| io.target == IoTarget::Image).expect("the image is read as well");
    r.complete(at);
    assert_eq!(r.front.answers, [(7, Ok(()))]);
    assert_eq!(r.core.stats(DISK).ssd_late_blocks, 1);
    // What comes after all is of no use, and harms nobody.
    r.rest();
    assert_eq!(r.read(3), (3, vec![]), "it is in RAM");
    r.core.check();
}

#[test]
fn a_device_that_fails_fails_nobody() {
    let mut r = Rig::new();
    (0..20).for_each(|block| _ = r.read(block));
    r.stop(0);
    let mut r = r.again(0, NoFaults);
    r.front.ask(&mut r.core, request(7, DISK, Op::Read, 3 * B, B));
    let at = r.front.ios.iter().position(|io| io.target != IoTarget::Image).expect("the store is read");
    r.front.end(&mut r.core, at, |_| Err(IoError::Io));
    assert_eq!(r.rest(), [IoKind::Read]);
    assert_eq!(r.front.answers, [(7, Ok(()))]);
}

#[test]
fn what_the_store_has_is_read_ahead_from_there() {
    let mut r = Rig::new();
    (0..48).for_each(|block| _ = r.read(block));
    r.stop(0);
    let mut r = r.again(0, NoFaults);
    r.core.set_readahead(DISK, 64 << 10);
    // What is read ahead of these is in the store, too.
    for block in 0..28 {
        assert_eq!(r.read(block), (block as u8, vec![]), "block {block} was read from the image");
    }
    let stats = r.core.stats(DISK);
    assert!(stats.readahead_hit_blocks > 15, "{stats:?}");
    r.core.check();
}

/// The store comes (`undercroft ssd start`) while a disk is written to: what RAM lets go of the block then is the old
/// content.
#[test]
fn a_change_that_began_before_the_store_came_is_known_to_it() {
    let mut r = Rig::new();
    let known = Known { identity: Identity([8; 64]), stamp: None, blocks: 64 };
    let other = DiskId(1);
    r.core.add_disk(other, DiskOptions::new(&Geometry::new(64 * B), PolicyKind::Lru, 2)).unwrap();
    let read = |r: &mut Rig, block: u64| {
        r.front.client.seen.clear();
        r.front.ask(&mut r.core, request(1, other, Op::Read, block * B, B));
        while let Some(at) = r.front.ios.iter().position(|io| io.kind == IoKind::Read || io.target != IoTarget::Image) {
            r.complete(at);
        }
        r.front.client.seen.iter().find(|(_, at, _)| *at == 0).map(|seen| seen.2)
    };
    assert_eq!(read(&mut r, 0), Some(0));
    r.front.ask(&mut r.core, request(200, other, Op::Write { fua: false }, 0, B));
    r.core.use_ssd(other, &known).unwrap();
    r.core.set_ssd_share(other, 1 << 20);
    (1..4).for_each(|block| assert_eq!(read(&mut r, block), Some(block as u8)));
    r.rest();
    (4..8).for_each(|block| _ = read(&mut r, block));
    assert_eq!(read(&mut r, 0), Some(200), "the old content came from the store");
}

#[test]
fn asking_where_a_block_is_changes_nothing_in_the_store() {
    let mut r = Rig::new();
    (0..4).for_each(|block| _ = r.read(block));
    let before = r.core.ssd_stats_of(DISK).unwrap();
    let of = |r: &mut Rig, block: u64| r.core.block_report(DISK, block * B).unwrap();
    let (there, nowhere) = (of(&mut r, 0), of(&mut r, 50));
    assert_eq!((there.on_ssd, there.cached, nowhere.on_ssd), (true, false, false));
    assert_eq!(r.core.ssd_stats_of(DISK).unwrap(), before, "it was counted as looked for");
}

/// What the store, which admits what leaves RAM for the second time, has of a disk after its blocks left RAM once:
/// locked are blocks that a profile names, or that are pinned.
fn admitted_of_locked(profile: &[ByteRange], pins: &[ByteRange]) -> u64 {
    let mut r = Rig::new();
    let other = DiskId(1);
    r.core.add_disk(other, DiskOptions::new(&Geometry::new(64 * B), PolicyKind::Lru, 40)).unwrap();
    let known = Known { identity: Identity([8; 64]), stamp: None, blocks: 64 };
    r.core.use_ssd(other, &known).unwrap();
    r.core.set_ssd_share(other, 1 << 20);
    r.core.ssd_mut().unwrap().set_admission(Admission::Second);
    let (mode, budget_permille) = (LockMode::Static, 500);
    r.core.set_locking(other, LockSettings { mode, budget_permille, ..LockSettings::default() });
    r.core.set_lock_profile(other, profile).unwrap();
    r.core.set_pins(other, pins).unwrap();
    for block in 0..64 {
        r.front.ask(&mut r.core, request(1, other, Op::Read, block * B, B));
        r.rest();
    }
    // Most of what is locked goes, too.
    r.core.set_share(other, 8).unwrap();
    for _ in 0..8 {
        r.core.apply(Event::Tick, 0, &mut r.front);
        r.rest();
    }
    r.core.ssd_stats_of(other).unwrap().admitted
}

#[test]
fn what_a_profile_names_is_not_admitted_as_what_is_pinned() {
    let range = |blocks: u64| ByteRange { offset: 0, bytes: blocks * B };
    let named = admitted_of_locked(&[range(64)], &[]);
    assert!(named < 3, "{named} blocks, which left RAM for the first time");
    let pinned = admitted_of_locked(&[range(64)], &[range(16)]);
    assert!((1..=18).contains(&pinned), "{pinned} blocks, of which 16 are pinned");
}

const WRITE: Op = Op::Write { fua: false };

impl<P: FaultInjection> Rig<P> {
    /// A request without data, or one that writes its tag to block 0, and all that follows.
    fn does(&mut self, tag: u32, op: Op) {
        let len = if op == Op::Flush { 0 } else { B };
        self.front.ask(&mut self.core, request(tag, DISK, op, 0, len));
        self.rest();
    }

    /// The disk is at rest, and its image has this stamp. Whether that is written down.
    fn comes_to_rest(&mut self, of: u8) -> bool {
        let since = self.core.quiet_since(DISK).expect("no change is under way");
        self.core.rest_ssd(DISK, since, stamp(of))
    }

    /// The core flushes the image by itself, which ends so.
    fn flushes(&mut self, result: Result<(), IoError>) {
        self.core.apply(Event::MakeDurable { disk: DISK }, 0, &mut self.front);
        let at = self.front.ios.iter().position(|io| io.kind == IoKind::Flush && io.target == IoTarget::Image);
        self.front.end(&mut self.core, at.expect("a flush"), |_| result);
    }
}

#[test]
fn an_image_has_no_stamp_before_a_flush_vouches_for_it() {
    let mut r = Rig::new();
    (0..20).for_each(|block| _ = r.read(block));
    assert_eq!(r.core.durability(DISK), Durability::Unflushed, "a process before may have written to it");
    r.does(200, WRITE);
    assert!(!r.comes_to_rest(1));
    let answers = r.front.answers.len();
    r.core.apply(Event::MakeDurable { disk: DISK }, 0, &mut r.front);
    r.core.apply(Event::MakeDurable { disk: DISK }, 0, &mut r.front);
    assert_eq!((r.of_image(), r.core.durability(DISK)), (vec![IoKind::Flush], Durability::NotNow), "one is enough");
    assert!(!r.comes_to_rest(1));
    r.rest();
    assert_eq!(r.front.answers.len(), answers, "nobody has asked");
    assert_eq!(r.core.durability(DISK), Durability::Whole);
    assert!(r.comes_to_rest(1) && r.core.is_idle(DISK));
    // One that must be durable is as well: had it failed, a part of it could be there.
    r.does(201, Op::Write { fua: true });
    assert_eq!(r.core.durability(DISK), Durability::Unflushed);
    r.does(1, Op::Flush);
    assert!(r.comes_to_rest(2), "a port's flush does as well");
    r.core.check();
}

#[test]
fn a_flush_that_began_beside_a_change_vouches_for_nothing() {
    let mut r = Rig::new();
    (0..20).for_each(|block| _ = r.read(block));
    r.front.ask(&mut r.core, request(200, DISK, WRITE, 0, B));
    while r.of_image().is_empty() {
        r.complete(0);
    }
    r.front.ask(&mut r.core, request(1, DISK, Op::Flush, 0, 0));
    let at = r.front.ios.iter().position(|io| io.kind == IoKind::Flush && io.target == IoTarget::Image);
    r.complete(at.expect("the flush does not wait"));
    assert_eq!(r.core.durability(DISK), Durability::NotNow);
    r.rest();
    assert_eq!(r.core.durability(DISK), Durability::Unflushed);
}

#[test]
fn a_change_that_failed_is_vouched_for_by_the_next_flush_alone() {
    let mut r = Rig::new();
    (0..20).for_each(|block| _ = r.read(block));
    r.does(1, Op::Flush);
    assert_eq!(r.core.durability(DISK), Durability::Whole);
    r.front.ask(&mut r.core, request(200, DISK, WRITE, 0, B));
    while r.of_image().is_empty() {
        r.complete(0);
    }
    let at = r.front.ios.iter().position(|io| io.target == IoTarget::Image).expect("the write");
    r.front.end(&mut r.core, at, |_| Err(IoError::Io));
    r.rest();
    assert!(!r.comes_to_rest(1), "a part of it may be on the image");
    r.flushes(Ok(()));
    assert!(r.comes_to_rest(1));
}

#[test]
fn after_a_failed_flush_nothing_of_the_disk_stays_and_its_ports_are_told() {
    for by_port in [false, true] {
        let mut r = Rig::new();
        (0..20).for_each(|block| _ = r.read(block));
        r.does(200, WRITE);
        if by_port {
            r.front.ask(&mut r.core, request(1, DISK, Op::Flush, 0, 0));
            let at = r.front.ios.iter().position(|io| io.kind == IoKind::Flush && io.target == IoTarget::Image);
            r.front.end(&mut r.core, at.expect("the flush"), |_| Err(IoError::Io));
        } else {
            r.flushes(Err(IoError::Io));
            r.front.answers.clear();
            r.does(1, Op::Flush);
            assert_eq!(r.front.answers, [(1, Err(IoError::Lost))], "the guest's would have failed");
        }
        r.front.answers.clear();
        r.does(1, Op::Flush);
        assert_eq!(r.front.answers, [(1, Ok(()))]);
        assert_eq!(r.core.durability(DISK), Durability::Never, "this one says nothing of what was lost");
        assert!(!r.comes_to_rest(1) && r.core.ssd_use_of(DISK).is_none());
        let before = r.core.ssd_stats_of(DISK).unwrap().blocks;
        let (owner, _) = r.core.part_ssd(DISK).unwrap();
        let after = r.core.ssd().unwrap().owner_stats(owner).blocks;
        assert!(before > 10 && after == 0, "{before} blocks, then {after}");
    }
}

/// What a disk reads as whose image lost what was written to it without a flush, while its times stayed as they were:
/// it was at rest, and its last flush did not end before the store was stopped.
fn read_after_loss<P: FaultInjection>(faults: P) -> u8 {
    let mut flash = Flash(vec![0; REGION]);
    let format = Format { store: StoreId([7; 16]), segment_bytes: SEGMENT };
    let region = Region::format(&mut flash, format, BOOT, NoFaults).unwrap();
    let mut r = Rig::with(flash, region, 0, faults);
    (0..20).for_each(|block| _ = r.read(block));
    r.does(200, WRITE);
    (0..20).for_each(|block| _ = r.read(block));
    r.comes_to_rest(1);
    for _ in 0..4 {
        r.core.apply(Event::Tick, 0, &mut r.front);
        r.rest();
    }
    r.core.stop_ssd(&[]);
    while !r.core.ssd().unwrap().is_stopped() {
        r.core.apply(Event::Tick, 0, &mut r.front);
        r.rest();
    }
    r.image[0] = 0;
    r.again(1, NoFaults).read(0).0
}

#[test]
fn what_an_image_lost_is_not_read_from_the_store() {
    assert_eq!(read_after_loss(NoFaults), 0);
    assert_eq!(read_after_loss(Planted(Bug::StampUnflushed)), 200, "the test does not see the bug");
}
