//! Content held once: blocks of equal content in one frame, blocks of a common base, who pays, and who must not see it.
//!
//! Owns the scenarios of trust groups and of equal contents. Never looks into the store: what it asserts is what disks
//! read and what the core tells. Invariant: a test that plants a bug also asserts that it sees the bug.

mod bases;
mod below;
mod rig;

pub use rig::read_numbered;

use rig::Rig;
use undercroft_cache::fault_injection::{Bug, NoFaults, Planted};
use undercroft_cache::{ContentKey, DiskId, Op};
use undercroft_testkit::front::{check_ceiling, fill_blocks};

/// Ten contents, the same on all disks.
fn ten(_disk: u32, block: u64) -> u8 {
    1 + (block % 10) as u8
}

#[test]
fn equal_blocks_of_a_group_take_one_frame_and_diverge_when_written() {
    let mut r = Rig::new(&[Some(0), Some(0)], 500, ten);
    for d in 0..2 {
        for b in 0..10 {
            r.read(d, b * 10, 10);
        }
    }
    assert_eq!(r.frames(), 10, "ten contents, ten frames");
    assert_eq!((r.stats(0).cached_blocks, r.stats(0).shared_blocks, r.stats(0).charged_blocks), (100, 100, 5));
    r.assert_charges_add_up(2);
    r.write(0, 3, 200);
    assert_eq!(r.read(0, 3, 1), [200]);
    assert_eq!(r.read(1, 3, 1), [4], "the other disk's block is as it was");
    assert_eq!(r.read(0, 13, 1), [4], "and so is another block of the same content");
    assert_eq!(r.frames(), 11);
    r.write(1, 77, 200);
    assert_eq!(r.frames(), 11, "what is written is shared too");
    r.assert_charges_add_up(2);
}

#[test]
fn zeroes_take_no_frame() {
    let mut r = Rig::new(&[Some(0)], 500, |_, block| (block % 2) as u8);
    for b in 0..10 {
        r.read(0, b * 10, 10);
    }
    assert_eq!((r.frames(), r.stats(0).zero_blocks, r.stats(0).charged_blocks), (1, 50, 1));
    assert_eq!(r.read(0, 4, 2), [0, 1]);
    r.write(0, 4, 9);
    assert_eq!((r.read(0, 4, 1), r.stats(0).zero_blocks), (vec![9], 49));
    r.write(0, 4, 0);
    assert_eq!((r.read(0, 4, 1), r.stats(0).zero_blocks), (vec![0], 50));
    r.core.check();
}

#[test]
fn groups_share_nothing_and_a_disk_without_a_group_not_even_with_itself() {
    let mut r = Rig::new(&[Some(0), Some(1), None], 500, ten);
    for d in 0..3 {
        for b in 0..10 {
            r.read(d, b * 10, 10);
        }
    }
    assert_eq!(r.frames(), 10 + 10 + 100);
    assert_eq!((r.stats(0).charged_blocks, r.stats(1).charged_blocks, r.stats(2).charged_blocks), (10, 10, 100));
    for domain in r.core.domains() {
        assert_eq!((domain.disks.len(), domain.shared_frames, domain.shared_blocks), (1, 10, 100));
    }
}

/// Whatever another group caches, of the same contents and at the same time: what a disk does is the same, effect by
/// effect and count by count, so nothing of it can be told by timing.
#[test]
fn nothing_of_another_group_shows() {
    let run = |neighbour: bool| {
        let mut r = Rig::new(&[Some(0), Some(1)], 60, ten);
        r.base(0, 5, 100, &[]);
        for i in 0..300u64 {
            if neighbour {
                let log = std::mem::take(&mut r.front.client.log);
                r.read(1, i * 7 % 100, 1 + i % 4);
                r.write(1, i * 3 % 100, (i % 10) as u8);
                r.front.client.log = log;
            }
            r.read(0, i * 7 % 100, 1 + i % 3);
            r.write(0, i * 11 % 100, (i % 13) as u8);
            if i % 50 == 0 {
                r.tick(1);
            }
        }
        (r.stats(0), r.front.client.log)
    };
    let (alone, beside) = (run(false), run(true));
    assert_eq!(alone.0, beside.0);
    assert_eq!(alone.1, beside.1);
    assert!(alone.0.hit_blocks > 0 && alone.0.miss_blocks > 0 && alone.0.shared_blocks > 0);
}

#[test]
fn equal_hashes_of_unequal_contents_are_not_shared() {
    fn all_different(disk: u32, block: u64) -> u8 {
        1 + disk as u8 * 100 + block as u8
    }
    let weak = ContentKey::from_seed(1).weakened(1);
    let mut r = Rig::planted(NoFaults, weak.clone(), &[Some(0), Some(0)], 500, all_different);
    let check = |r: &mut Rig| {
        for d in 0..2 {
            for b in 0..90 {
                assert_eq!(r.read(d, b, 1), [all_different(d, b)]);
            }
        }
    };
    check(&mut r);
    check(&mut r);
    assert_eq!(r.frames(), 180);
    // The same without a comparison: this test would see it.
    let mut r = Rig::planted(Planted(Bug::DeduplicatesUncompared), weak, &[Some(0)], 500, all_different);
    for b in 0..20 {
        r.read(0, b, 1);
    }
    assert!((0..20).any(|b| r.read(0, b, 1) != [all_different(0, b)]));
}

#[test]
fn a_hit_hashes_nothing() {
    let mut r = Rig::new(&[Some(0)], 500, ten);
    for b in 0..10 {
        r.read(0, b * 10, 10);
    }
    let hashed = r.stats(0).hashed_blocks;
    assert_eq!(hashed, 100, "each fill once");
    for _ in 0..10 {
        r.read(0, 0, 100);
    }
    assert_eq!((r.stats(0).hashed_blocks, r.stats(0).hit_blocks), (hashed, 1000));
    r.write(0, 5, 3);
    assert_eq!(r.stats(0).hashed_blocks, hashed + 1, "each write once");
}

#[test]
fn no_hashing_is_done_before_the_replies_are_out() {
    let mut r = Rig::new(&[Some(0)], 500, ten);
    r.ask(0, Op::Read, 0, 60);
    r.front.end_all(&mut r.core, |io| fill_blocks(io, |_| 1));
    assert_eq!((r.stats(0).reads, r.stats(0).hashed_blocks), (1, 0));
    assert!(r.core.wants_spare());
    r.spare();
    assert_eq!((r.stats(0).hashed_blocks, r.frames()), (60, 1));
}

#[test]
fn when_others_leave_the_last_one_pays() {
    let mut r = Rig::new(&[Some(0), Some(0), Some(0)], 200, ten);
    for d in 0..3 {
        r.read(d, 0, 10);
    }
    let charges = |r: &Rig| [0, 1, 2].map(|d| r.stats(d).charged_blocks);
    assert_eq!(charges(&r), [4, 4, 4], "ten frames, in thirds, rounded up");
    r.core.remove_disk(DiskId(2));
    assert_eq!(charges(&r), [5, 5, 0]);
    r.ask(1, Op::Discard, 0, 10);
    r.settle();
    assert_eq!(charges(&r), [10, 0, 0]);
    assert_eq!((r.stats(0).shared_blocks, r.frames()), (0, 10));
    let mut r = Rig::planted(Planted(Bug::ChargeLost), ContentKey::from_seed(1), &[Some(0), Some(0)], 200, ten);
    r.read(0, 0, 10);
    r.read(1, 0, 10);
    r.ask(1, Op::Discard, 0, 10);
    r.settle();
    assert_eq!(r.stats(0).charged_blocks, 0, "the planted bug is one");
    std::mem::forget(r.core);
}

/// What deduplication saves can be used: a disk whose blocks are half zeroes keeps nearly twice as many, and gives the
/// slots back when they no longer are.
#[test]
fn what_sharing_saves_is_used_for_more_blocks() {
    let mut r = Rig::new(&[Some(0), Some(1)], 1000, |_, b| if b % 2 == 0 { 0 } else { (b * 7 % 251) as u8 + 1 });
    for round in 0..6 {
        for b in 0..1900 {
            r.read(0, b, 1);
        }
        r.tick(2);
        let s = r.stats(0);
        assert!(s.charged_blocks <= s.capacity_blocks && r.frames() <= 1000, "round {round}: {s:?}");
    }
    let s = r.stats(0);
    assert!(s.cached_blocks >= 1900, "{s:?}");
    check_ceiling(&r.core);
}
