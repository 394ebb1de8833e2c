//! Equal blocks on an SSD are kept once.
//!
//! Owns disks that hold the same bytes. Never looks into the store. Invariant: what is found of a disk is what its own
//! image holds, whoever wrote it to the device.

use super::*;

/// A store with two disks that hold the same, in these domains; the second one.
pub(super) fn two<F: FaultInjection>(segments: usize, domains: [u16; 2], faults: F) -> (Rig<F>, OwnerId) {
    let mut r = Rig::new(segments, faults);
    let (other, _) = r.ssd.attach(&Known { identity: Identity([10; 64]), ..known() }).unwrap();
    r.ssd.set_share(other, 1 << 20);
    r.ssd.set_domain(r.disk, domains[0]);
    r.ssd.set_domain(other, domains[1]);
    (r, other)
}

impl<F: FaultInjection> Rig<F> {
    /// The same for another disk of the same contents.
    pub(super) fn of<T>(&mut self, disk: OwnerId, what: impl FnOnce(&mut Self) -> T) -> T {
        let before = std::mem::replace(&mut self.disk, disk);
        let said = what(self);
        self.disk = before;
        said
    }

    pub(super) fn found(&mut self, blocks: std::ops::Range<u64>) -> usize {
        blocks.filter(|block| self.look(*block) == Some((Verified::Good, true))).count()
    }

    /// Of an image, what `blocks` hold, is that of other blocks of it.
    fn repeat(&mut self, from: u64, blocks: std::ops::Range<u64>) {
        blocks.enumerate().for_each(|(n, block)| self.image[block as usize] = self.image[from as usize + n]);
    }
}

#[test]
fn what_two_disks_hold_is_written_once_and_found_by_both() {
    let (mut r, other) = two(16, [3, 3], NoFaults);
    r.offer(0..3 * FULL);
    let before = r.ssd.stats()[0];
    r.of(other, |r| r.offer(0..3 * FULL));
    let after = r.ssd.stats()[0];
    // The first one waits until the summary that it leads to has come.
    assert_eq!((after.linked, after.written.admitted), (3 * FULL, before.written.admitted));
    assert_eq!(after.blocks, 2 * 3 * FULL);
    let stats = [r.disk, other].map(|disk| r.ssd.owner_stats(disk));
    assert_eq!(
        stats.map(|s| (s.blocks, s.admitted, s.linked)),
        [(3 * FULL, 3 * FULL, 0), (3 * FULL, 3 * FULL, 3 * FULL)]
    );
    assert_eq!([r.found(0..BLOCKS), r.of(other, |r| r.found(0..BLOCKS))], [3 * FULL as usize; 2]);
    // Each changes some of its own: nothing is known of that, and what the other has is as good as before.
    r.change_in_time(5);
    assert_eq!((r.look(5), r.stale()), (None, 0));
    r.image[5] ^= 0xff;
    r.of(other, |r| {
        r.ssd.change_begins(other, 7..9);
        assert_eq!((r.look(7), r.look(8), r.look(5)), (None, None, Some((Verified::Good, true))));
        r.ssd.change_ended(other, 7..9);
        assert_eq!((r.look(7), r.look(8)), (None, None));
    });
    assert_eq!(r.look(7), Some((Verified::Good, true)));
}

#[test]
fn a_copy_elsewhere_on_the_same_disk_is_written_once() {
    let (mut r, _) = two(16, [3, 3], NoFaults);
    r.repeat(0, 300..300 + FULL);
    r.offer(0..FULL);
    // Not in the same order: a few are left out, some come late.
    let order = (300..300 + FULL).filter(|n| n % 9 != 0).flat_map(|n| if n % 5 == 0 { [n + 3, n] } else { [n, n] });
    for block in order.filter(|n| *n < 300 + FULL) {
        let bytes = [r.image[block as usize]; 4096];
        assert!(!matches!(r.ssd.offer(r.disk, block, &bytes, Hint::default(), 0), Offered::Refused(_)));
        r.rest();
    }
    assert!(r.ssd.stats()[0].linked > FULL * 8 / 10, "{:?}", r.ssd.stats());
    assert_eq!((r.found(0..FULL), r.stale()), (FULL as usize, 0));
}

/// Links that are made where there must be none.
fn across<F: FaultInjection>(domains: [u16; 2], faults: F) -> usize {
    let (mut r, other) = two(16, domains, faults);
    r.offer(0..FULL);
    r.of(other, |r| r.offer(0..FULL));
    assert_eq!([r.found(0..BLOCKS), r.of(other, |r| r.found(0..BLOCKS))], [FULL as usize; 2]);
    r.ssd.stats()[0].linked as usize
}

#[test]
fn disks_that_share_nothing_have_nothing_in_common() {
    assert_eq!([across([0, 0], NoFaults), across([0, 3], NoFaults), across([3, 0], NoFaults)], [0; 3]);
    finds(Bug::SsdLinkAcross, across([3, 4], NoFaults), across([3, 4], Planted(Bug::SsdLinkAcross)));
}

#[test]
fn segments_are_used_again_when_the_links_to_them_are_out() {
    for bug in [None, Some(Bug::SsdLinkOutlivesSegment)] {
        let stale = match bug {
            None => used_again(NoFaults),
            Some(bug) => used_again(Planted(bug)),
        };
        assert_eq!(stale == 0, bug.is_none(), "{stale} with {bug:?}");
    }
}

/// One disk's blocks push its older ones out, to which those of the other are links. Blocks of the other that are not
/// its own any more, whether they are told from those or not.
fn used_again<F: FaultInjection>(faults: F) -> usize {
    let (mut r, other) = two(8, [3, 3], faults);
    r.offer(0..3 * FULL);
    r.of(other, |r| r.offer(0..3 * FULL));
    assert!(r.ssd.stats()[0].linked > 2 * FULL);
    // What comes now is not compared with anything.
    r.ssd.set_domain(r.disk, 0);
    r.offer(3 * FULL..BLOCKS - 10);
    assert!(r.ssd.stats()[0].linked < 3 * FULL, "its segments were used again");
    let is_wrong = |it| matches!(it, Some((Verified::Corrupt, _) | (Verified::Good, false)));
    r.of(other, |r| (0..BLOCKS).map(|block| r.look(block)).filter(|it| is_wrong(*it)).count())
}

#[test]
fn a_summary_that_cannot_be_read_is_read_once() {
    let (mut r, other) = two(16, [3, 3], NoFaults);
    r.offer(0..FULL);
    r.flash.bytes[SEGMENTS_AT + 100] ^= 1;
    let mut reads = 0;
    for block in 0..FULL {
        let bytes = [r.image[block as usize]; 4096];
        assert_eq!(r.ssd.offer(other, block, &bytes, Hint::default(), 0), Offered::Admitted);
        while let Some(io) = r.ssd.next_io(r.now) {
            reads += usize::from(io.kind == SsdIoKind::Read);
            r.complete(io, |_, _| None);
        }
    }
    assert_eq!((reads, r.ssd.stats()[0].linked), (1, 0));
    assert_eq!(r.of(other, |r| r.found(0..FULL)), FULL as usize);
}

/// A block is changed, and changed back: it is a link to where it was before. Then it is changed for good.
/// The simulation found it with seed 705.
fn changed_back_and_again<F: FaultInjection>(faults: F) -> usize {
    let (mut r, _) = two(16, [3, 3], faults);
    r.repeat(2, 300..301);
    r.offer(0..FULL);
    r.change_in_time(3);
    r.image[3] ^= 0xff;
    // What leads to the segment where it was.
    r.offer(300..301);
    r.offer(3..4);
    assert_eq!(r.ssd.stats()[0].linked, 2);
    r.quiet();
    r.change_in_time(3);
    r.quiet();
    r.killed(faults).stale()
}

#[test]
fn a_block_that_is_as_it_was_before_is_not_what_a_summary_names() {
    let bug = Bug::SsdLinkTakenForBlock;
    finds(bug, changed_back_and_again(NoFaults), changed_back_and_again(Planted(bug)));
}

#[test]
fn a_disk_that_goes_takes_what_others_have_of_it_along() {
    let (mut r, other) = two(16, [3, 3], NoFaults);
    r.offer(0..2 * FULL);
    r.of(other, |r| r.offer(0..2 * FULL));
    r.ssd.invalidate_all(r.disk);
    assert_eq!(r.found(0..BLOCKS), 0);
    assert_eq!((r.of(other, |r| r.found(0..BLOCKS)), r.ssd.stats()[0].linked), (0, 0));
    r.rest();
    // The other way round: what had no room of its own goes without a trace.
    let (mut r, other) = two(16, [3, 3], NoFaults);
    r.offer(0..2 * FULL);
    r.of(other, |r| r.offer(0..2 * FULL));
    r.ssd.invalidate_all(other);
    assert_eq!((r.of(other, |r| r.found(0..BLOCKS)), r.ssd.stats()[0].linked), (0, 0));
    assert_eq!((r.found(0..BLOCKS), r.ssd.owner_stats(other).blocks), (2 * FULL as usize, 0));
    assert_eq!(r.ssd.wrong(), None);
}

#[test]
fn links_go_to_another_process_and_not_past_a_crash() {
    let (mut r, other) = two(16, [3, 3], NoFaults);
    r.offer(0..2 * FULL);
    r.of(other, |r| r.offer(0..2 * FULL));
    r.of(other, Rig::quiet);
    r.quiet();
    let mut again = r.killed(NoFaults);
    assert_eq!((again.kept, again.stale()), (Kept::Blocks(2 * FULL), 0));
    let (other, kept) = again.ssd.attach(&Known { identity: Identity([10; 64]), ..known() }).unwrap();
    assert!(matches!(kept, Kept::New | Kept::Blocks(0)), "{kept:?}");
    again.ssd.set_share(other, 1 << 20);
    again.ssd.set_domain(again.disk, 3);
    again.ssd.set_domain(other, 3);
    // They are found to be there again, by samples of what is written from now on.
    again.offer(2 * FULL..3 * FULL);
    again.of(other, |r| r.offer(2 * FULL..3 * FULL));
    again.ssd.rest();
    again.rest();
    let linked = again.ssd.stats()[0].linked;
    assert!(linked >= FULL - 1, "{linked}");
    let told = again.ssd.hand_over().unwrap();
    again.ssd = Ssd::take_over(&told, &[(again.flash.bytes(), SEGMENT)], NoFaults).unwrap();
    again.ssd.go_on();
    assert_eq!((again.ssd.stats()[0].linked, again.ssd.wrong()), (linked, None));
    assert_eq!(again.of(other, |r| r.found(2 * FULL..3 * FULL)), FULL as usize);
}
