//! Pinned blocks on an SSD: they stay when their segment is emptied, unless that would never come to an end.
//!
//! Owns a store that is asked what it wants done until it wants nothing, for so long at most. Never looks into the
//! store. Invariant: whatever is pinned, without admissions the store comes to rest.

use super::*;
use undercroft_cache::ssd::{Pinned, Refusal};

/// More operations than a store of a few segments needs to make room.
const MOST: usize = 5_000;

impl<F: FaultInjection> Rig<F> {
    /// Carries out what the store wants done; whether that came to an end.
    fn ends(&mut self) -> bool {
        for _ in 0..MOST {
            let Some(io) = self.ssd.next_io(self.now) else { return true };
            self.complete(io, |_, _| None);
        }
        false
    }

    /// Offers blocks, whatever becomes of them; whether what follows came to an end each time.
    fn offer_on(&mut self, mut blocks: std::ops::Range<u64>) -> bool {
        blocks.all(|block| {
            let bytes = [self.image[block as usize]; 4096];
            self.ssd.offer(self.disk, block, &bytes, Hint::default(), self.now);
            self.ends()
        })
    }

    fn pin(&mut self, first: u64, end: u64) {
        self.ssd.set_pins(self.disk, &Pinned::from([(first, end)]));
    }

    /// Blocks of these that the store has.
    fn has(&mut self, mut blocks: std::ops::Range<u64>) -> bool {
        blocks.all(|block| self.ssd.has(self.disk, block))
    }

    /// Another disk comes, which may have so many blocks.
    fn another(&mut self, share: u64) -> OwnerId {
        let (other, _) = self.ssd.attach(&Known { identity: Identity([10; 64]), ..known() }).unwrap();
        self.ssd.set_share(other, share);
        other
    }
}

/// A disk goes that is known to be unchanged and has pins; another one needs the room.
fn pinned_disk_goes<F: FaultInjection>(faults: F) -> usize {
    let mut r = Rig::new(8, faults);
    r.ssd.set_share(r.disk, 8 * FULL);
    r.pin(0, 4 * FULL);
    r.offer(0..4 * FULL);
    r.quiet();
    r.ssd.detach(r.disk);
    r.disk = r.another(1 << 20);
    usize::from(!r.offer_on(4 * FULL..10 * FULL))
}

#[test]
fn pins_of_a_disk_that_has_gone_are_not_written_again() {
    let bug = Bug::SsdPinsOutliveDetach;
    finds(bug, pinned_disk_goes(NoFaults), pinned_disk_goes(Planted(bug)));
}

#[test]
fn pins_that_a_smaller_share_has_no_room_for_are_as_others_until_it_has() {
    let mut r = Rig::new(12, NoFaults);
    r.ssd.set_share(r.disk, 4 * FULL);
    r.pin(0, 2 * FULL);
    r.offer(0..2 * FULL);
    let other = r.another(7 * FULL);
    assert!(r.of(other, |r| r.offer_on(0..BLOCKS)));
    assert!(r.has(0..2 * FULL), "the other disk is the one that is over its share");
    // The base has less of the disk's share now, or the disk less of the store.
    r.ssd.set_share(r.disk, FULL);
    r.ssd.set_share(other, 10 * FULL);
    assert!(r.of(other, |r| r.offer_on(0..BLOCKS)), "what is pinned of one segment's share fills two, again and again");
    assert!(!r.has(0..2 * FULL));
    // As it was; nobody had to tell of the pins again.
    r.ssd.set_share(r.disk, 4 * FULL);
    r.ssd.set_share(other, 7 * FULL);
    assert!(r.offer_on(0..2 * FULL) && r.offer_on(2 * FULL..15 * FULL));
    assert!(r.has(0..2 * FULL), "{:?}", r.ssd.stats()[0]);
}

#[test]
fn pins_that_fill_what_the_disk_has_are_not_written_again_and_again() {
    // Shares beyond what there is: what may be had says nothing.
    for pinned in 1..12 {
        let mut r = Rig::new(12, NoFaults);
        r.pin(0, pinned * FULL);
        assert!(r.offer_on(0..15 * FULL), "{pinned} segments");
        let other = r.another(1 << 20);
        assert!(r.of(other, |r| r.offer_on(0..15 * FULL)), "{pinned} segments");
    }
}

#[test]
fn what_is_written_again_for_pins_is_no_more_than_what_is_admitted_and_leaves_others_theirs() {
    let mut r = Rig::new(16, NoFaults);
    r.ssd.set_share(r.disk, 16 * FULL);
    r.pin(0, 4 * FULL);
    r.offer(0..4 * FULL);
    // One that is read again and again, and not pinned.
    let read = 5 * FULL;
    for _ in 0..12 {
        for first in (4 * FULL..BLOCKS - FULL).step_by(FULL as usize) {
            assert!(r.offer_on(first..first + FULL));
            assert!(r.look(read).is_none_or(|found| found == (Verified::Good, true)));
        }
    }
    let written = r.ssd.stats()[0].written;
    assert!(r.has(0..4 * FULL) && r.has(read..read + 1), "{written:?}");
    assert!(written.pins > 0 && written.pins <= written.admitted, "{written:?}");
    let others = written.cleaning - written.pins;
    assert!(others > 5 * 4096, "what is read again has its place: {written:?}");
    assert!(written.total() - written.pins <= written.admitted / 10 * 11 + (1 << 20), "{written:?}");
    // Another process counts on.
    r.ssd.rest();
    assert!(r.ends());
    let told = r.ssd.hand_over().expect("a store at rest");
    let taken = Ssd::take_over(&told, &[(r.flash.bytes(), SEGMENT)], NoFaults).unwrap();
    assert_eq!(taken.stats()[0].written, r.ssd.stats()[0].written);
}

#[test]
fn pins_are_not_written_again_when_the_device_may_not_be_written_to() {
    let mut r = Rig::new(16, NoFaults);
    r.ssd.set_share(r.disk, 16 * FULL);
    r.pin(0, 4 * FULL);
    r.ssd.set_budget(Some(1));
    // Less than two segments are left of it when the last four are free.
    while r.ssd.stats()[0].budget_left > Some(900 * 4096) {
        r.offer(900..900 + FULL);
        r.ssd.invalidate_all(r.disk);
    }
    r.offer(0..12 * FULL);
    assert_eq!(r.ssd.stats()[0].written.pins, 0);
    let mut offers = (12 * FULL..BLOCKS).map(|block| {
        let bytes = [r.image[block as usize]; 4096];
        r.ssd.offer(r.disk, block, &bytes, Hint::default(), r.now)
    });
    let refused = offers.find(|offered| *offered != Offered::Admitted);
    assert_eq!(refused, Some(Offered::Refused(Refusal::Budget)));
    assert!(r.ends());
    assert_eq!((r.ssd.stats()[0].written.pins, r.has(0..1)), (0, false));
}

#[test]
fn pinned_blocks_are_admitted_whatever_the_rule_says_and_not_counted_as_refused_by_it() {
    let mut r = Rig::new(8, NoFaults);
    let hint = Hint { pinned: true, ..Hint::default() };
    r.ssd.set_admission(Admission::None);
    let refused = r.ssd.offer(r.disk, 0, &[0; 4096], hint, 0);
    assert_eq!(refused, Offered::Refused(Refusal::Rule));
    r.ssd.set_admission(Admission::Measured);
    for block in 0..20 {
        let bytes = [r.image[block as usize]; 4096];
        assert_eq!(r.ssd.offer(r.disk, block, &bytes, hint, 0), Offered::Admitted);
    }
    let stats = r.ssd.owner_stats(r.disk);
    assert_eq!(stats.admitted, 20);
    assert_eq!(stats.classes.map(|class| class.admitted + class.refused).iter().sum::<u64>(), 0, "{stats:?}");
}

/// A device is replaced: what is pinned is so on the new one.
#[test]
fn pins_are_known_to_a_device_that_comes_in_the_place_of_another() {
    let mut r = Rig::new(12, NoFaults);
    r.ssd.set_share(r.disk, 12 * FULL);
    r.pin(0, 3 * FULL);
    r.ssd.take_out_of_service(0, OutOfService::Operator);
    assert!(r.ends());
    r.flash = Flash::of(12);
    let format = Format { store: StoreId([8; 16]), segment_bytes: SEGMENT };
    let region = Region::format(&mut r.flash, format, BOOT, NoFaults).unwrap();
    assert!(r.ssd.replace(0, region).is_ok(), "the one before is out of service");
    r.offer(0..3 * FULL);
    assert!(r.offer_on(3 * FULL..15 * FULL));
    assert!(r.has(0..3 * FULL));
}
