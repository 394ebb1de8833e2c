//! The SSD store alone, on a device in memory: scenarios of meetings that are too rare for its simulation.
//!
//! Owns a device that does what is asked, unless a scenario has it fail, and an image of which the store is told that
//! it is as it was: with times that are too coarse, a change may not show in its stamp. Never looks into the store.
//! Invariant: what a scenario finds wrong with a bug planted, it does not find without.

mod handover;
mod links;
mod parked;
mod pins;

use std::io;
use undercroft_cache::fault_injection::{Bug, FaultInjection, NoFaults, Planted};
use undercroft_cache::limits::SSD_DROP_BLOCKS;
use undercroft_cache::ssd::{
    Admission, BootId, Change, Format, Hint, Identity, Kept, Known, Media, Offered, OutOfService, OwnerId, Quiet,
    Recovered, Region, Ssd, SsdDone, SsdFound, SsdIo, SsdIoKind, Stamp, StoreId, Verified, memory_bytes_for,
};

const BOOT: BootId = BootId([1; 16]);
const SEGMENT: u32 = 256 << 10;
/// Blocks of a segment, without its summary.
const FULL: u64 = 63;
/// Where segments begin, and where the copies of the table are.
const SEGMENTS_AT: usize = 256 << 10;
const TABLES_AT: [usize; 2] = [64 << 10, 128 << 10];
const BLOCKS: u64 = 1000;
const STAMP: Stamp = Stamp([5; 64]);

/// A device's region. All is durable at once.
#[derive(Clone)]
struct Flash {
    bytes: Vec<u8>,
    /// Of these segments the next read of the summary fails.
    unreadable: Vec<u64>,
    /// Of these, the read after that; or it gives, with `true`, what another store has written.
    later: Vec<(u64, bool)>,
}

impl Flash {
    /// With room for so many segments.
    fn of(segments: usize) -> Self {
        Self { bytes: vec![0; SEGMENTS_AT + segments * SEGMENT as usize], unreadable: Vec::new(), later: Vec::new() }
    }

    fn at(&mut self, offset: u64, len: usize) -> &mut [u8] {
        &mut self.bytes[offset as usize..][..len]
    }
}

impl Media for Flash {
    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        let fails = |segment: &u64| SEGMENTS_AT as u64 + segment * u64::from(SEGMENT) == offset;
        if let Some(n) = self.unreadable.iter().position(fails) {
            self.unreadable.remove(n);
            return Err(io::Error::other("a read failed in passing"));
        }
        to.copy_from_slice(self.at(offset, to.len()));
        if let Some(n) = self.later.iter().position(|(segment, _)| fails(segment)) {
            match self.later.remove(n) {
                (segment, false) => self.unreadable.push(segment),
                (segment, true) => self.at(SEGMENTS_AT as u64 + segment * u64::from(SEGMENT), 4096).fill(7),
            }
        }
        Ok(())
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.at(offset, from.len()).copy_from_slice(from);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A store with one disk.
struct Rig<F: FaultInjection> {
    ssd: Ssd<F>,
    disk: OwnerId,
    flash: Flash,
    /// What the image holds: each block's bytes are all the same.
    image: Vec<u8>,
    kept: Kept,
    found: Recovered,
    now: u64,
}

fn known() -> Known {
    Known { identity: Identity([9; 64]), stamp: Some(STAMP), blocks: BLOCKS }
}

impl<F: FaultInjection> Rig<F> {
    /// Newly formatted, with so many segments.
    fn new(segments: usize, faults: F) -> Self {
        let mut flash = Flash::of(segments);
        let format = Format { store: StoreId([7; 16]), segment_bytes: SEGMENT };
        let region = Region::format(&mut flash, format, BOOT, faults).unwrap();
        let image = (0..BLOCKS).map(|n| n as u8).collect();
        Self::with(flash, region, image, Recovered::default())
    }

    fn with(flash: Flash, region: Region<F>, image: Vec<u8>, found: Recovered) -> Self {
        let mut ssd = Ssd::new(vec![region]);
        ssd.set_admission(Admission::All);
        // Which segment is used next depends on it.
        ssd.set_discards(false);
        let (disk, kept) = ssd.attach(&known()).unwrap();
        ssd.set_share(disk, 1 << 20);
        Self { ssd, disk, flash, image, kept, found, now: 0 }
    }

    /// The program dies now, and starts again on the same boot.
    fn killed(&self, faults: F) -> Self {
        let mut flash = self.flash.clone();
        let (region, found) = Region::recover(&mut flash, SEGMENT, BOOT, faults).unwrap();
        Self::with(flash, region, self.image.clone(), found)
    }

    fn offer(&mut self, blocks: std::ops::Range<u64>) {
        for block in blocks {
            let bytes = [self.image[block as usize]; 4096];
            assert_eq!(self.ssd.offer(self.disk, block, &bytes, Hint::default(), self.now), Offered::Admitted);
            self.rest();
        }
    }

    /// Carries an operation out, in the way of `device` if it returns whether it is done.
    fn complete(&mut self, mut io: SsdIo, device: impl FnOnce(&mut Flash, &mut SsdIo) -> Option<bool>) {
        let is_done = device(&mut self.flash, &mut io).unwrap_or_else(|| self.flash.serve(&mut io));
        self.ssd.io_done(SsdDone { id: io.id, device: io.device, buf: io.buf, is_done });
    }

    /// Carries all operations out.
    fn rest(&mut self) {
        while let Some(io) = self.ssd.next_io(self.now) {
            self.complete(io, |_, _| None);
        }
    }

    /// Carries operations out until one is of this kind: that is not begun.
    fn until(&mut self, is_it: impl Fn(&SsdIo) -> bool) -> SsdIo {
        loop {
            let io = self.ssd.next_io(self.now).expect("an operation of this kind comes");
            if is_it(&io) {
                return io;
            }
            self.complete(io, |_, _| None);
        }
    }

    /// A guest changes a block, if that need not wait.
    fn change(&mut self, block: u64) -> Change {
        let change = self.ssd.change_begins(self.disk, block..block + 1);
        if change == Change::Ready {
            self.image[block as usize] ^= 0xff;
            self.ssd.change_ended(self.disk, block..block + 1);
        }
        change
    }

    /// It does so when it may.
    fn change_in_time(&mut self, block: u64) {
        if let Change::Wait(wait) = self.ssd.change_begins(self.disk, block..block + 1) {
            self.rest();
            let mut released = Vec::new();
            self.ssd.take_released(&mut released);
            assert_eq!(released, [wait]);
        }
        self.image[block as usize] ^= 0xff;
        self.ssd.change_ended(self.disk, block..block + 1);
    }

    /// It is written down that the image is as it is.
    fn quiet(&mut self) {
        assert_eq!(self.ssd.quiet(self.disk, STAMP), Quiet::Begun);
        self.rest();
    }

    /// What a read of the block from the store comes to, and whether it is what the image holds.
    fn look(&mut self, block: u64) -> Option<(Verified, bool)> {
        let mut bytes = [0; 4096];
        let (offset, token) = match self.ssd.lookup(self.disk, block)? {
            SsdFound::Staged(bytes) => return Some((Verified::Good, bytes[0] == self.image[block as usize])),
            SsdFound::Stored { offset, token, .. } => (offset, token),
        };
        bytes.copy_from_slice(self.flash.at(offset, 4096));
        Some((self.ssd.verify(self.disk, block, token, &bytes), bytes[0] == self.image[block as usize]))
    }

    /// Blocks that are served and are not what the image holds.
    fn stale(&mut self) -> usize {
        (0..BLOCKS).filter(|block| self.look(*block) == Some((Verified::Good, false))).count()
    }
}

impl Flash {
    /// Does what an operation asks for.
    fn serve(&mut self, io: &mut SsdIo) -> bool {
        let mut at = io.offset;
        match io.kind {
            SsdIoKind::Read => {
                for piece in io.buf.pieces_mut() {
                    piece.copy_from_slice(self.at(at, piece.len()));
                    at += piece.len() as u64;
                }
            }
            SsdIoKind::Write => {
                for piece in io.buf.pieces() {
                    self.at(at, piece.len()).copy_from_slice(piece);
                    at += piece.len() as u64;
                }
            }
            SsdIoKind::Flush | SsdIoKind::Discard => {}
        }
        true
    }
}

/// Without the bug nothing is wrong, with it something is.
fn finds(bug: Bug, plain: usize, planted: usize) {
    assert_eq!(plain, 0);
    assert_ne!(planted, 0, "the scenario does not see {bug:?}");
}

/// A summary cannot be read at one start, and can at the next; a block that it names is changed in between.
fn read_fails_in_passing<F: FaultInjection>(faults: F) -> usize {
    let mut r = Rig::new(8, faults);
    r.offer(0..8 * FULL);
    r.quiet();
    // Not the one that will be used next.
    r.flash.unreadable = vec![7];
    let mut r = r.killed(faults);
    assert_eq!((r.flash.unreadable.len(), r.found.unreadable), (0, 1));
    r.change_in_time(8 * FULL - 3);
    r.offer(8 * FULL..9 * FULL);
    r.quiet();
    r.killed(faults).stale()
}

/// The same with summaries that have much higher sequences than all that can be read.
fn reads_of_the_newest_fail<F: FaultInjection>(faults: F) -> usize {
    let mut r = Rig::new(8, faults);
    let (other, _) = r.ssd.attach(&Known { identity: Identity([10; 64]), ..known() }).unwrap();
    r.ssd.set_share(other, 1 << 20);
    let disk = std::mem::replace(&mut r.disk, other);
    r.offer(0..4 * FULL);
    // The first disk uses the other half of the segments again and again.
    r.disk = disk;
    r.ssd.set_share(disk, FULL);
    r.offer(0..13 * FULL);
    r.flash.unreadable = (4..8).collect();
    let mut r = r.killed(faults);
    assert_eq!(r.found.unreadable, 4);
    (12 * FULL..13 * FULL).for_each(|block| r.change_in_time(block));
    r.offer(14 * FULL..15 * FULL);
    r.quiet();
    r.killed(faults).stale()
}

#[test]
fn a_summary_whose_read_fails_in_passing_is_not_believed_later() {
    let bug = Bug::SsdUnreadablePassedOver;
    finds(bug, read_fails_in_passing(NoFaults), read_fails_in_passing(Planted(bug)));
    finds(bug, reads_of_the_newest_fail(NoFaults), reads_of_the_newest_fail(Planted(bug)));
}

#[test]
fn nothing_is_taken_over_when_a_summary_cannot_be_read() {
    let mut r = Rig::new(8, NoFaults);
    r.offer(0..3 * FULL);
    r.quiet();
    assert_eq!(r.killed(NoFaults).kept, Kept::Blocks(3 * FULL));
    r.flash.unreadable = vec![1];
    let r = r.killed(NoFaults);
    assert_eq!((r.found.unreadable, r.found.blocks, r.found.owners, r.kept), (1, 0, 0, Kept::New));
    // It was written down.
    assert_eq!(r.killed(NoFaults).kept, Kept::New);
}

/// Summaries are read twice: for their order, and for their blocks.
#[test]
fn nothing_is_taken_over_when_a_summary_is_not_there_the_second_time() {
    for is_other in [false, true] {
        let mut r = Rig::new(8, NoFaults);
        r.offer(0..3 * FULL);
        r.quiet();
        r.flash.later = vec![(1, is_other)];
        let mut r = r.killed(NoFaults);
        assert!(r.flash.later.is_empty() && r.flash.unreadable.is_empty(), "it was read twice");
        assert_eq!((r.found.unreadable, r.found.blocks, r.found.owners, r.kept), (1, 0, 0, Kept::New));
        // All segments are free: as much can be offered as before, and is found again.
        r.offer(0..3 * FULL);
        r.quiet();
        assert_eq!(r.killed(NoFaults).kept, Kept::Blocks(3 * FULL));
    }
}

/// The newer copy of the table breaks; the older one calls clean what was changed since.
fn newer_table_breaks<F: FaultInjection>(faults: F) -> usize {
    let mut r = Rig::new(8, faults);
    r.offer(0..FULL);
    r.quiet();
    let before = r.flash.clone();
    r.change_in_time(3);
    r.rest();
    let differs = |at: &&usize| r.flash.bytes[**at..][..4096] != before.bytes[**at..][..4096];
    let newer: Vec<_> = TABLES_AT.iter().filter(differs).copied().collect();
    assert_eq!(newer.len(), 1, "one copy says that the disk is being changed");
    r.flash.bytes[newer[0] + 100] ^= 1;
    r.killed(faults).stale()
}

#[test]
fn one_copy_of_the_table_is_not_enough() {
    let bug = Bug::SsdOneTableIsEnough;
    finds(bug, newer_table_breaks(NoFaults), newer_table_breaks(Planted(bug)));
}

/// A summary that was written again by an orderly stop is lost with the power, for all that the device said.
fn last_summary_is_lost<F: FaultInjection>(faults: F) -> usize {
    let mut r = Rig::new(8, faults);
    r.offer(0..FULL);
    r.change_in_time(3);
    let before = r.flash.clone();
    r.ssd.stop(&[(r.disk, STAMP)]);
    r.rest();
    assert!(r.ssd.is_stopped());
    let summary = SEGMENTS_AT..SEGMENTS_AT + 4096;
    assert_ne!(r.flash.bytes[summary.clone()], before.bytes[summary.clone()]);
    r.flash.bytes[summary.clone()].copy_from_slice(&before.bytes[summary]);
    r.killed(faults).stale()
}

#[test]
fn summaries_that_are_not_those_of_the_stop_are_not_believed() {
    let bug = Bug::SsdDigestIgnored;
    finds(bug, last_summary_is_lost(NoFaults), last_summary_is_lost(Planted(bug)));
}

/// A device fails that calls the disk clean, and a guest changes it before that is recorded elsewhere.
fn changed_before_it_is_recorded<F: FaultInjection>(faults: F) -> usize {
    let mut r = Rig::new(8, faults);
    r.offer(0..FULL);
    r.quiet();
    r.ssd.take_out_of_service(0, OutOfService::Operator);
    let given_up = r.ssd.given_up().expect("the caller is to record it");
    let change = r.change(3);
    // The program dies before it is recorded.
    let before = r.killed(faults).stale();
    // Or it does not.
    r.ssd.given_up_is_recorded(given_up.device);
    let mut released = Vec::new();
    r.ssd.take_released(&mut released);
    assert!(match change {
        Change::Ready => released.is_empty(),
        Change::Wait(wait) => released == [wait],
    });
    before
}

#[test]
fn a_change_waits_until_it_is_recorded_that_a_device_failed() {
    let bug = Bug::SsdGivenUpNotWaitedFor;
    finds(bug, changed_before_it_is_recorded(NoFaults), changed_before_it_is_recorded(Planted(bug)));
}

/// Blocks of a change are looked for in steps; whoever changed them would wait for ever if the last steps did not come.
#[test]
fn a_large_change_waits_until_all_of_its_blocks_are_dropped() {
    let mut r = Rig::new(6, NoFaults);
    let known = Known { identity: Identity([8; 64]), blocks: 4 * SSD_DROP_BLOCKS, ..known() };
    let (large, _) = r.ssd.attach(&known).unwrap();
    r.ssd.set_share(large, 1 << 20);
    let end = 3 * SSD_DROP_BLOCKS;
    let blocks = [0, SSD_DROP_BLOCKS + 1, end - 1, end];
    for block in blocks {
        assert_eq!(r.ssd.offer(large, block, &[1; 4096], Hint::default(), 0), Offered::Admitted);
        r.rest();
    }
    let Change::Wait(wait) = r.ssd.change_begins(large, 0..end) else { panic!("one step is not enough") };
    let mut released = Vec::new();
    let mut steps = 0;
    while released.is_empty() {
        assert_eq!(blocks.map(|block| r.ssd.lookup(large, block).is_some()), [false, false, false, true]);
        assert!(steps < 10 && r.ssd.has_more_to_drop(), "it waits for ever");
        r.rest();
        r.ssd.take_released(&mut released);
        steps += 1;
    }
    assert_eq!((released, r.ssd.has_more_to_drop()), (vec![wait], false));
    r.ssd.change_ended(large, 0..end);
    assert_eq!(blocks.map(|block| r.ssd.lookup(large, block).is_some()), [false, false, false, true]);
    assert_eq!(r.ssd.stats()[0].blocks, 1);
}

/// A block is changed while the last flush is under way before the table calls the disk clean.
fn changed_while_it_is_written_down<F: FaultInjection>(faults: F) -> usize {
    let mut r = Rig::new(8, faults);
    r.offer(0..FULL);
    assert_eq!(r.ssd.quiet(r.disk, STAMP), Quiet::Begun);
    let flush = r.until(|io| io.kind == SsdIoKind::Flush);
    assert_eq!(r.change(3), Change::Ready, "no table calls the disk clean");
    r.complete(flush, |_, _| None);
    r.rest();
    r.killed(faults).stale()
}

#[test]
fn a_change_ends_what_is_being_written_down() {
    let bug = Bug::SsdQuietIgnoresChange;
    finds(bug, changed_while_it_is_written_down(NoFaults), changed_while_it_is_written_down(Planted(bug)));
}

/// A summary that is written again goes elsewhere, and the device says that it is done.
fn new_summary_goes_elsewhere<F: FaultInjection>(faults: F) -> usize {
    let mut r = Rig::new(8, faults);
    r.offer(0..FULL);
    assert_eq!(r.change(3), Change::Ready);
    assert_eq!(r.ssd.quiet(r.disk, STAMP), Quiet::Begun);
    let write = r.until(|io| io.kind == SsdIoKind::Write);
    assert_eq!(write.offset, SEGMENTS_AT as u64, "it is the summary");
    r.complete(write, |_, _| Some(true));
    r.rest();
    r.killed(faults).stale()
}

#[test]
fn a_summary_that_went_elsewhere_is_missed() {
    let bug = Bug::SsdNotReadBack;
    finds(bug, new_summary_goes_elsewhere(NoFaults), new_summary_goes_elsewhere(Planted(bug)));
}

/// A segment is used again, and the program dies before it is complete. Blocks that are taken for those which were
/// there before, and are not.
fn segment_is_used_again<F: FaultInjection>(faults: F) -> usize {
    let mut r = Rig::new(4, faults);
    r.offer(0..2 * FULL);
    r.quiet();
    // The first segment is emptied to make room.
    r.offer(2 * FULL..4 * FULL);
    let blocks = 4 * FULL..5 * FULL;
    for block in blocks {
        let bytes = [r.image[block as usize]; 4096];
        assert_eq!(r.ssd.offer(r.disk, block, &bytes, Hint::default(), 0), Offered::Admitted);
    }
    let in_first = |io: &SsdIo| io.kind == SsdIoKind::Write && io.offset == SEGMENTS_AT as u64 + 4096;
    let run = r.until(in_first);
    r.complete(run, |_, _| None);
    let mut r = r.killed(faults);
    assert!(matches!(r.kept, Kept::Blocks(_)), "{:?}", r.kept);
    (0..BLOCKS).filter(|block| matches!(r.look(*block), Some((Verified::Corrupt, _)))).count()
}

#[test]
fn a_segment_that_is_used_again_ends_its_former_summary() {
    let bug = Bug::SsdMarkLeftOut;
    finds(bug, segment_is_used_again(NoFaults), segment_is_used_again(Planted(bug)));
}

#[test]
fn what_is_good_is_written_down_though_nothing_was_admitted_since_the_start() {
    let mut r = Rig::new(8, NoFaults);
    r.offer(0..FULL);
    r.quiet();
    let mut r = r.killed(NoFaults);
    r.change_in_time(3);
    assert_eq!(r.killed(NoFaults).kept, Kept::New);
    r.quiet();
    assert_eq!(r.killed(NoFaults).kept, Kept::Blocks(FULL - 1));
}

#[test]
fn so_many_bytes_are_written_for_it_each_day() {
    let mut r = Rig::new(8, NoFaults);
    r.offer(0..FULL);
    r.quiet();
    let mut r = r.killed(NoFaults);
    let day = 86_400_000_000_000;
    for days in 1..=3 {
        loop {
            r.change_in_time(3);
            if r.ssd.quiet(r.disk, STAMP) == Quiet::TooMuch {
                break;
            }
            r.rest();
        }
        let written = r.ssd.stats()[0].written.total();
        assert!(((days * 3) << 20..=(days * 4) << 20).contains(&written), "{written} bytes in {days} days");
        r.ssd.tick(days * day);
    }
}

/// Where segments are discarded when all that the disk has is dropped; the device does it, or refuses.
fn discarded(r: &mut Rig<NoFaults>, is_done: bool) -> Vec<u64> {
    let mut discarded = Vec::new();
    r.ssd.invalidate_all(r.disk);
    while let Some(io) = r.ssd.next_io(r.now) {
        if io.kind != SsdIoKind::Discard {
            r.complete(io, |_, _| None);
            continue;
        }
        assert_eq!((io.len, io.buf.len), (u64::from(SEGMENT), 0));
        assert!(r.ssd.next_io(r.now).is_none(), "one at a time");
        discarded.push((io.offset - SEGMENTS_AT as u64) / u64::from(SEGMENT));
        r.complete(io, |_, _| Some(is_done));
    }
    discarded
}

#[test]
fn free_segments_are_discarded_by_a_device_that_can() {
    let mut r = Rig::new(16, NoFaults);
    r.ssd.set_discards(true);
    r.offer(0..5 * FULL);
    assert_eq!(discarded(&mut r, true), [4, 3, 2, 1, 0]);
    assert!(discarded(&mut r, true).is_empty(), "each once");
    r.offer(0..4 * FULL);
    assert_eq!(discarded(&mut r, false).len(), 1, "it refused");
    r.offer(0..4 * FULL);
    assert!(discarded(&mut r, true).is_empty());
    r.ssd.set_discards(true);
    assert_eq!(discarded(&mut r, true).len(), 7);
}

#[test]
fn segments_that_are_about_to_be_used_are_not_discarded() {
    let mut r = Rig::new(4, NoFaults);
    r.ssd.set_discards(true);
    r.offer(0..3 * FULL);
    let mut discards = 0;
    for n in 3..12 {
        for block in n * FULL..(n + 1) * FULL {
            let bytes = [r.image[block as usize]; 4096];
            assert_eq!(r.ssd.offer(r.disk, block, &bytes, Hint::default(), 0), Offered::Admitted);
            while let Some(io) = r.ssd.next_io(r.now) {
                discards += usize::from(io.kind == SsdIoKind::Discard);
                r.complete(io, |_, _| None);
            }
        }
    }
    assert_eq!(discards, 0, "each segment that becomes free is used again");
}

#[test]
fn a_region_never_takes_more_memory_than_was_said_before_there_was_one() {
    for segments in [8, 12, 100] {
        let mut rig = Rig::new(segments, NoFaults);
        let most = memory_bytes_for(rig.flash.bytes.len() as u64, u64::from(SEGMENT));
        let takes = |rig: &Rig<NoFaults>| rig.ssd.stats()[0].memory;
        for _ in 0..3 {
            rig.offer(0..BLOCKS);
            assert!(takes(&rig) <= most, "{} and {most}", takes(&rig));
            rig.ssd.invalidate_all(rig.disk);
        }
        // As many as may wait are waiting.
        let of = [0; 4096];
        let mut admitted = 0;
        while rig.ssd.offer(rig.disk, admitted, &of, Hint::default(), rig.now) == Offered::Admitted {
            admitted += 1;
        }
        assert!(admitted > 0 && takes(&rig) <= most, "{} and {most} with {admitted} waiting", takes(&rig));
        // The free segments, in whatever list.
        assert!(most < takes(&rig) + (2 << 20), "far more than it ever takes");
        rig.rest();
        assert!(takes(&rig.killed(NoFaults)) <= most);
    }
}

/// The clock is that of the machine, which may have run for weeks when a store is opened: what it begins before the
/// first tick is not as old as that. A device that was slow then was out of service at once, and lost all that it held.
#[test]
fn an_operation_is_no_older_than_its_beginning() {
    const SECOND: u64 = 1_000_000_000;
    let mut before = Rig::new(8, NoFaults);
    before.offer(0..8);
    before.quiet();
    let mut r = before.killed(NoFaults);
    r.now = 1_000_000 * SECOND;
    // The first that is asked of it.
    r.ssd.change_begins(r.disk, 3..4);
    let slow = r.ssd.next_io(r.now).expect("a table is written before the change");
    for late in 0..20 {
        r.ssd.tick(r.now + late * SECOND);
        assert_eq!(r.ssd.stats()[0].out_of_service, None, "after {late} s");
    }
    r.ssd.tick(r.now + 20 * SECOND);
    assert_eq!(r.ssd.stats()[0].out_of_service, Some(OutOfService::Stalled));
    r.complete(slow, |_, _| None);
}
