//! Blocks that wait until it is known whether an SSD has them already.
//!
//! Owns a reader that is faster than the device. Never looks into the store. Invariant: what waits is found as what is
//! written is, and goes as that goes.

use super::links::two;
use super::*;
use undercroft_cache::limits::SSD_PARKED_MAX;

impl<F: FaultInjection> Rig<F> {
    /// Offers blocks of a disk, all before the device has done anything.
    fn offer_at_once(&mut self, disk: OwnerId, blocks: std::ops::Range<u64>) {
        for block in blocks {
            let bytes = [self.image[block as usize]; 4096];
            assert_eq!(self.ssd.offer(disk, block, &bytes, Hint::default(), self.now), Offered::Admitted);
        }
    }
}

/// Two disks with the same bytes, of which the first has had so many blocks written.
fn a_copy<F: FaultInjection>(blocks: u64, faults: F) -> (Rig<F>, OwnerId) {
    let (mut r, other) = two(32, [3, 3], faults);
    r.offer(0..blocks);
    (r, other)
}

#[test]
fn a_reader_that_is_faster_than_the_device_has_nothing_written_twice() {
    let (mut r, other) = a_copy(4 * FULL, NoFaults);
    let before = r.ssd.stats()[0].written.admitted;
    for first in (0..4 * FULL).step_by(84) {
        r.offer_at_once(other, first..first + 84);
        // Found while they wait, and not taken twice.
        assert_eq!(r.of(other, |r| r.found(first..first + 84)), 84);
        let bytes = [r.image[first as usize]; 4096];
        assert_eq!(r.ssd.offer(other, first, &bytes, Hint::default(), 0), Offered::Present);
        r.rest();
    }
    let after = &r.ssd.stats()[0];
    assert_eq!((after.linked, after.written.admitted, after.staged), (4 * FULL, before, 0));
    assert_eq!(r.of(other, |r| r.found(0..BLOCKS)), 4 * FULL as usize);
    assert_eq!(r.ssd.wrong(), None);
}

#[test]
fn what_waits_and_is_like_nothing_is_written() {
    let (mut r, other) = a_copy(2 * FULL, NoFaults);
    r.offer_at_once(other, 0..4);
    // They follow blocks that are there already, and are not.
    (4..40).for_each(|block| r.image[block] = 0x80 + block as u8);
    r.offer_at_once(other, 4..40);
    assert_eq!(r.ssd.stats()[0].staged, 40);
    r.rest();
    assert_eq!(r.ssd.stats()[0].linked, 4);
    r.of(other, |r| assert_eq!(r.found(0..40), 40));
}

#[test]
fn more_than_may_wait_is_written_at_once() {
    let (mut r, other) = a_copy(4 * FULL, NoFaults);
    let before = r.ssd.stats()[0].written.admitted;
    r.offer_at_once(other, 0..4 * FULL);
    assert_eq!(r.ssd.stats()[0].staged, 4 * FULL);
    r.rest();
    let after = &r.ssd.stats()[0];
    assert_eq!(after.linked as usize, SSD_PARKED_MAX);
    assert_eq!(after.written.admitted - before, (4 * FULL - SSD_PARKED_MAX as u64) * 4096);
    assert_eq!(r.of(other, |r| r.found(0..BLOCKS)), 4 * FULL as usize);
}

/// Blocks that are found and are not what the image holds, after one of those that wait was changed.
fn changed<F: FaultInjection>(faults: F) -> usize {
    let (mut r, other) = a_copy(FULL, faults);
    r.offer_at_once(other, 0..20);
    r.of(other, |r| {
        assert_eq!(r.change(7), Change::Ready);
        let wrong = usize::from(r.look(7).is_some());
        r.rest();
        wrong + r.stale()
    })
}

#[test]
fn what_waits_goes_when_it_is_changed() {
    let bug = Bug::SsdParkedOutlivesChange;
    finds(bug, changed(NoFaults), changed(Planted(bug)));
}

/// The same of a disk that goes while its blocks wait, for another that comes.
fn gone<F: FaultInjection>(faults: F) -> usize {
    let (mut r, other) = a_copy(FULL, faults);
    r.offer_at_once(other, 0..20);
    r.ssd.drop_owner(other);
    let (another, kept) = r.ssd.attach(&Known { identity: Identity([11; 64]), ..known() }).unwrap();
    assert!(!matches!(kept, Kept::Blocks(1..)), "{kept:?}");
    r.ssd.set_share(another, 1 << 20);
    r.image.iter_mut().for_each(|byte| *byte ^= 0xff);
    r.of(another, |r| {
        let wrong = (0..BLOCKS).filter(|block| r.look(*block).is_some()).count();
        r.rest();
        wrong + r.stale()
    })
}

#[test]
fn what_waits_goes_with_its_disk() {
    let bug = Bug::SsdParkedOutlivesDisk;
    finds(bug, gone(NoFaults), gone(Planted(bug)));
}

#[test]
fn what_waits_goes_with_all_that_the_disk_has() {
    let (mut r, other) = a_copy(FULL, NoFaults);
    r.offer_at_once(other, 0..20);
    r.ssd.invalidate_all(other);
    r.image.iter_mut().for_each(|byte| *byte ^= 0xff);
    assert_eq!(r.of(other, |r| (r.found(0..BLOCKS), r.stale())), (0, 0));
    r.rest();
    assert_eq!(r.of(other, |r| (r.found(0..BLOCKS), r.stale())), (0, 0));
    // And with the device.
    r.image.iter_mut().for_each(|byte| *byte ^= 0xff);
    r.offer_at_once(other, 0..20);
    r.ssd.take_out_of_service(0, OutOfService::Operator);
    assert_eq!((r.ssd.stats()[0].staged, r.of(other, |r| r.found(0..BLOCKS))), (0, 0));
    r.rest();
}

#[test]
fn what_is_taken_into_ram_waits_no_more() {
    let (mut r, other) = a_copy(FULL, NoFaults);
    r.offer_at_once(other, 0..20);
    r.ssd.hold(other, 5);
    assert_eq!(r.of(other, |r| (r.look(5), r.found(0..20))), (None, 19));
    assert!(!r.ssd.let_go(other, 5, true), "it is offered again");
    r.rest();
    assert_eq!(r.ssd.stats()[0].linked, 19);
}

#[test]
fn nothing_waits_over_a_stop_or_a_rest() {
    for is_stop in [false, true] {
        let (mut r, other) = a_copy(FULL, NoFaults);
        r.offer_at_once(other, 0..20);
        if is_stop {
            r.ssd.stop(&[(other, STAMP)])
        } else {
            r.ssd.rest()
        }
        // Where the summary has not come, there is no time for it any more.
        r.rest();
        let stats = &r.ssd.stats()[0];
        assert_eq!((stats.linked, stats.staged), (0, 0));
        assert!(if is_stop { r.ssd.is_stopped() } else { r.ssd.hand_over().is_some() });
        assert_eq!(r.of(other, |r| r.found(0..BLOCKS)), 20);
        if is_stop {
            let mut again = r.killed(NoFaults);
            let (other, kept) = again.ssd.attach(&Known { identity: Identity([10; 64]), ..known() }).unwrap();
            assert_eq!(kept, Kept::Blocks(20));
            assert_eq!(again.of(other, |r| r.found(0..BLOCKS)), 20);
        }
    }
}
