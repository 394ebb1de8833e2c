//! Another process goes on with the SSD store.
//!
//! Owns a store at rest and what it tells. Never looks into the store. Invariant: what is not exactly what was told is
//! refused.

use super::*;
use undercroft_cache::ssd::{NotTakenOver, Refusal, SsdStats};

/// A store at rest with blocks of two segments, one of them changed, and what it tells another process.
fn told() -> (Rig<NoFaults>, Vec<u8>) {
    let mut r = Rig::new(8, NoFaults);
    r.offer(0..FULL + 5);
    r.change_in_time(3);
    r.ssd.hold(r.disk, 7);
    assert!(r.ssd.hand_over().is_none(), "a store that is not at rest tells nothing");
    r.ssd.rest();
    r.rest();
    let told = r.ssd.hand_over().expect("a store at rest");
    (r, told)
}

fn taken(r: &Rig<NoFaults>, told: &[u8]) -> Result<Ssd<NoFaults>, NotTakenOver> {
    Ssd::take_over(told, &[(r.flash.bytes(), SEGMENT)], NoFaults)
}

#[test]
fn another_process_finds_what_was_there_and_goes_on_with_it() {
    let (mut r, told) = told();
    let offered = r.ssd.offer(r.disk, 900, &[1; 4096], Hint::default(), 0);
    assert_eq!(offered, Offered::Refused(Refusal::OutOfService), "nothing is admitted at rest");
    let before = r.ssd.stats();
    r.ssd = taken(&r, &told).unwrap();
    assert!(r.ssd.next_io(r.now).is_none());
    let after = r.ssd.stats();
    let of = |s: &[SsdStats]| (s[0].blocks, s[0].held, s[0].free_segments, s[0].written);
    assert_eq!(of(&after), of(&before));
    assert_eq!(r.ssd.owner_stats(r.disk).share_blocks, 1 << 20);
    r.ssd.set_admission(Admission::All);
    r.ssd.go_on();
    assert_eq!(r.look(3), None, "it was changed");
    for block in (0..FULL + 5).filter(|b| *b != 3) {
        assert_eq!(r.look(block), Some((Verified::Good, true)), "block {block}");
    }
    // What comes now is as good as what was there, also after a kill.
    r.offer(FULL + 5..2 * FULL);
    r.change_in_time(9);
    r.quiet();
    let mut again = r.killed(NoFaults);
    // The segment that was begun last is not complete yet.
    assert_eq!((again.kept, again.stale()), (Kept::Blocks(FULL + 5 - 2), 0));
    assert_eq!(again.look(9), None);
}

#[test]
fn each_byte_of_what_is_told_counts() {
    let (r, told) = told();
    for at in 0..told.len() {
        let mut bytes = told.clone();
        bytes[at] ^= 1 << (at % 8);
        assert!(taken(&r, &bytes).is_err(), "byte {at}");
    }
    for len in [0, 7, 8, 20, told.len() / 2, told.len() - 1] {
        assert!(taken(&r, &told[..len]).is_err(), "{len} bytes");
    }
    assert!(taken(&r, &[&told[..], &[0]].concat()).is_err());
    let other = |sizes: &[(u64, u32)]| Ssd::take_over(&told, sizes, NoFaults).err();
    let bytes = r.flash.bytes();
    assert_eq!(other(&[(bytes + u64::from(SEGMENT), SEGMENT)]), Some(NotTakenOver::Layout));
    assert_eq!(other(&[(bytes, 2 * SEGMENT)]), Some(NotTakenOver::Layout));
    assert_eq!(other(&[]), Some(NotTakenOver::Layout));
    assert_eq!(other(&[(bytes, SEGMENT), (bytes, SEGMENT)]), Some(NotTakenOver::Layout));
}
