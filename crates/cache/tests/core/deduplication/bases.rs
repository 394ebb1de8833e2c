//! Images that several disks stand on: who is given a block of one, who is not, and what clones need and leave.
//!
//! Owns the scenarios of bases and clones. Never compares contents of trust groups: the tests beside it do. Invariant:
//! a test that plants a bug also asserts that it sees the bug.

use super::rig::{B, Rig, WRITE, options, read_numbered};
use std::panic::catch_unwind;
use undercroft_cache::fault_injection::{Bug, FaultInjection, NoFaults, Planted};
use undercroft_cache::{Base, ContentKey, Core, CoreOptions, DiskId, DiskOptions, Event, LayerId, Op, disk_bytes};
use undercroft_engine::{ExclusiveMode, PolicyKind};
use undercroft_testkit::front::{Front, Numbered, check_ceiling};

fn by_block(_disk: u32, block: u64) -> u8 {
    1 + block as u8
}

#[test]
fn a_block_of_the_base_is_read_once_for_all_who_have_not_changed_it() {
    let mut r = Rig::new(&[Some(0), Some(1), Some(2)], 500, by_block);
    assert!(r.base(0, 9, 100, &[5]) && r.base(1, 9, 100, &[]) && r.base(2, 8, 100, &[]));
    r.read(0, 0, 20);
    assert_eq!(r.read(1, 0, 20), (0..20).map(|b| by_block(1, b)).collect::<Vec<_>>());
    let s = r.stats(1);
    assert_eq!((s.shared_hit_blocks, s.hit_blocks, s.miss_blocks), (19, 19, 1), "block 5 is the first one's own");
    assert_eq!(r.frames(), 21);
    r.read(2, 0, 20);
    assert_eq!((r.stats(2).miss_blocks, r.frames()), (20, 41), "another image has nothing to do with it");
    // A write takes the block out, from when it begins.
    r.front.client.data.write = Some(77);
    r.ask(1, WRITE, 3, 1);
    r.ask(1, Op::Read, 3, 1);
    r.settle();
    assert_eq!((r.read(1, 3, 1), r.read(0, 3, 1)), (vec![77], vec![4]));
    r.ask(1, Op::Discard, 3, 1);
    r.settle();
    let before = r.stats(1).miss_blocks;
    assert_eq!((r.read(1, 3, 1), r.stats(1).miss_blocks), (vec![0], before + 1), "the base is hidden for good");
    r.assert_charges_add_up(3);
    r.core.remove_disk(DiskId(0));
    r.assert_charges_add_up(3);
    assert_eq!(r.stats(1).charged_blocks, 19 + 1 - 1, "who stays pays; block 3 is zero");
}

#[test]
fn a_base_block_is_had_without_a_slot_too() {
    let mut r = Rig::new(&[Some(0), Some(0)], 100, by_block);
    r.core.set_capacity(DiskId(1), 0).unwrap();
    assert!(r.base(0, 1, 50, &[]));
    assert!(!r.base(1, 1, 50, &[]), "no room for a map");
    r.core.set_capacity(DiskId(1), 100).unwrap();
    assert!(r.base(1, 1, 50, &[]));
    r.read(0, 0, 10);
    r.core.set_limit(DiskId(1), 0);
    assert_eq!(r.read(1, 0, 10), r.read(0, 0, 10));
    assert_eq!((r.stats(1).shared_hit_blocks, r.stats(1).backend_reads, r.stats(1).cached_blocks), (10, 0, 0));
}

#[test]
fn the_last_partial_block_and_what_is_past_the_base_are_a_disks_own() {
    let mut r = Rig::new(&[Some(0), Some(0)], 100, by_block);
    for d in 0..2 {
        let map = vec![0u64; 4];
        let base = Base { layer: LayerId(1), size_bytes: 10 * B + 5, cluster_bytes: 4 * B as u32, own: map };
        assert!(r.core.set_base(DiskId(d), base));
    }
    r.read(0, 0, 20);
    r.read(1, 0, 20);
    assert_eq!(r.stats(1).shared_hit_blocks, 10);
}

#[test]
fn an_invalidated_disk_has_no_base_any_more() {
    let mut r = Rig::new(&[Some(0), Some(0)], 100, by_block);
    assert!(r.base(0, 1, 50, &[]) && r.base(1, 1, 50, &[]));
    r.read(0, 0, 10);
    r.core.invalidate(DiskId(1));
    assert!(!r.core.has_base(DiskId(1)) && r.core.has_base(DiskId(0)));
    r.read(1, 0, 10);
    assert_eq!((r.stats(1).shared_hit_blocks, r.stats(1).miss_blocks), (0, 10));
    r.assert_charges_add_up(2);
}

/// What people ask for who want to measure: the image is what it was, so its clones go on sharing it.
#[test]
fn a_disk_whose_cache_is_dropped_keeps_its_base() {
    let mut r = Rig::new(&[Some(0), Some(0)], 100, by_block);
    assert!(r.base(0, 1, 50, &[]) && r.base(1, 1, 50, &[]));
    r.read(0, 0, 10);
    r.write(1, 3, 77);
    r.read(1, 0, 10);
    r.core.drop_cache(DiskId(1));
    assert_eq!((r.stats(1).cached_blocks, r.stats(0).cached_blocks), (0, 10));
    assert!(r.core.has_base(DiskId(1)));
    let before = r.stats(1);
    assert_eq!(r.read(1, 0, 10), [1, 2, 3, 77, 5, 6, 7, 8, 9, 10]);
    let s = r.stats(1);
    assert_eq!(
        (s.shared_hit_blocks - before.shared_hit_blocks, s.miss_blocks - before.miss_blocks),
        (9, 1),
        "all but the block that it had changed before"
    );
    r.assert_charges_add_up(2);
    // Results of operations that were under way are not kept, as after any drop.
    r.ask(1, Op::Read, 20, 1);
    r.core.drop_cache(DiskId(1));
    r.settle();
    assert_eq!(r.stats(1).cached_blocks, 0);
}

/// A guest page with another content of equal hash (a weak key makes one) reaches its own disk at most, never others
/// on the same base.
#[test]
fn what_was_copied_from_a_guest_is_never_taken_for_a_block_of_the_base() {
    let others_see = |faults| {
        let key = ContentKey::from_seed(1).weakened(1);
        let mut r = Rig::planted(faults, key.clone(), &[], 0, |_, block| if block == 0 { 1 } else { 3 });
        for d in 0..2 {
            let o = DiskOptions { exclusive: ExclusiveMode::Capture, ..options(Some(d), 64) };
            r.core.add_disk(DiskId(d), o).unwrap();
            assert!(r.base(d, 1, 50, &[]));
        }
        r.core.set_guest(DiskId(0), 16);
        let hash = |v: u8| key.hash(&[v; 4096]);
        let forged = (2..250u8).find(|&v| hash(v) == hash(1)).expect("one bit of hash");
        r.front.client.pages.insert(0, vec![forged; 16]);
        // Block 0 goes to page 0; nothing of it stays cached; the page, changed, is used for another block.
        r.front.client.page = Some(0);
        r.read(0, 0, 1);
        r.front.client.page = None;
        r.core.set_limit(DiskId(0), 0);
        r.core.set_limit(DiskId(0), u32::MAX);
        r.front.client.page = Some(0);
        r.read(0, 1, 1);
        r.front.client.page = None;
        let captured = r.core.exclusive(DiskId(0)).unwrap().stats.captures;
        assert_eq!(captured, 1, "the forged page was kept");
        let seen = r.read(1, 0, 1);
        (seen, forged)
    };
    assert_eq!(others_see(Planted(Bug::StaleFill)).0, [1], "any other bug");
    let (seen, forged) = others_see(Planted(Bug::CaptureTakenForBase));
    assert_eq!(seen, [forged], "the planted bug is one");
}

#[test]
fn a_disk_that_others_leave_keeps_to_its_share() {
    // Two disks with the same 150 blocks, and room for 100 frames each.
    let mut r = Rig::new(&[Some(0), Some(1)], 100, |_, b| 1 + b as u8);
    assert!(r.base(0, 1, 300, &[]) && r.base(1, 1, 300, &[]));
    for _ in 0..8 {
        for b in 0..15 {
            r.read(0, b * 10, 10);
            r.read(1, b * 10, 10);
        }
        r.tick(2);
    }
    let both = r.stats(0).cached_blocks;
    assert!(both >= 145 && r.stats(1).cached_blocks >= 145, "{both}");
    r.ask(1, Op::Discard, 0, 200);
    r.settle();
    r.tick(4);
    let s = r.stats(0);
    assert!(s.cached_blocks <= 100 && s.charged_blocks <= 100, "{s:?}");
    assert!(r.frames() <= 200);
    // The other has all of its share at once.
    for b in 0..10 {
        r.read(1, 400 + b * 10, 10);
    }
    assert!(r.stats(1).cached_blocks >= 90 && r.stats(0).charged_blocks <= 100);
    r.core.check();
}

/// Six clones of one image hold all of it together; all but one of them go, one after the other.
fn clones_that_go<P: FaultInjection>(faults: P, go: impl Fn(&mut Rig<P>, u32)) {
    const CLONES: u32 = 6;
    let groups = [Some(0); CLONES as usize];
    let mut r = Rig::planted(faults, ContentKey::from_seed(1), &groups, 2000, |_, _| 0);
    (0..CLONES).for_each(|d| assert!(r.base(d, 1, 10_000, &[])));
    let mut front = Front::new(Numbered::default());
    for t in 0..8 {
        for d in 0..CLONES {
            (0..500).for_each(|chunk| _ = read_numbered(&mut front, &mut r.core, d, chunk * 20, 20));
        }
        (0..4).for_each(|n| r.core.apply(Event::Tick, 4 * t + n, &mut front));
    }
    assert!(r.frames() > 8000, "{} frames for six clones", r.frames());
    (1..CLONES).rev().for_each(|d| go(&mut r, d));
    r.tick(1);
    assert!((1000..=2000).contains(&r.frames()), "{} frames for one disk of 2000", r.frames());
    check_ceiling(&r.core);
}

/// The rest keep to what they are promised themselves. (The tables of frames once were made for that while the frames
/// were still there, and putting them in never ended.)
#[test]
fn when_clones_go_at_once_the_rest_keep_to_their_share() {
    clones_that_go(NoFaults, |r, d| {
        r.core.remove_disk(DiskId(d));
        r.core.check();
    });
}

fn shrink_to_nothing<P: FaultInjection>(r: &mut Rig<P>, d: u32) {
    r.core.set_share(DiskId(d), 0).unwrap();
    for _ in 0..20 {
        r.core.check();
        r.tick(1);
    }
}

/// A disk that shrinks pays until the others have given up what only it paid for.
#[test]
fn when_clones_shrink_no_frame_is_unpaid() {
    clones_that_go(NoFaults, shrink_to_nothing);
    let early = catch_unwind(|| clones_that_go(Planted(Bug::PaysLessEarly), shrink_to_nothing));
    assert!(early.is_err(), "the planted bug is one");
}

/// Eight clones of one image, each with an eighth of the memory that holds all of it and 20 % more: what eight
/// times the slots take is 15 % of it.
#[test]
fn eight_clones_need_hardly_more_memory_than_one() {
    const COMMON: u32 = 8000;
    let needed_by_one = |policy| {
        // One disk that keeps it all, its operations under way not counted.
        let o = CoreOptions::new(256 << 20);
        let _ = policy;
        disk_bytes(&o, COMMON, 0) - disk_bytes(&o, 0, 0)
    };
    for policy in [PolicyKind::Lru, PolicyKind::Arc, PolicyKind::S3Fifo] {
        let o = CoreOptions { hash_seed: 7, ..CoreOptions::new(256 << 20) };
        let one = needed_by_one(policy);
        // Blocks of one clone, such that all eight together are promised 1.2 times that.
        let block = (disk_bytes(&o, 1000, 0) - disk_bytes(&o, 0, 0)) / 1000;
        let blocks = (one as f64 * 1.2 / 8.0 / block as f64) as u32;
        let groups: Vec<Option<u32>> = (0..8).map(Some).collect();
        // Every block of the image is unlike every other, by what is in its first bytes.
        let mut r = Rig::planted(NoFaults, ContentKey::from_seed(1), &[], 0, |_, _| 0);
        for (i, &g) in groups.iter().enumerate() {
            let o = DiskOptions { policy, ..options(g, blocks) };
            r.core.add_disk(DiskId(i as u32), o).unwrap();
            assert!(r.base(i as u32, 1, u64::from(COMMON), &[]));
        }
        let mut front = Front::new(Numbered::default());
        let mut pass = |core: &mut Core| {
            let mut reads = 0;
            for chunk in 0..COMMON / 20 {
                for d in 0..8 {
                    reads += read_numbered(&mut front, core, d, u64::from(chunk) * 20, 20);
                }
            }
            for t in 0..20 {
                core.apply(Event::Tick, t, &mut front);
            }
            reads
        };
        let reads: Vec<u64> = (0..8).map(|_| pass(&mut r.core)).collect();
        assert_eq!(reads[7], 0, "{policy}: all of the image is in RAM for all: {reads:?}");
        let frames = r.frames();
        assert!(frames <= u64::from(COMMON) * 115 / 100, "{policy}: {frames} frames for {COMMON} blocks");
        let metadata: u64 = r.core.memory().metadata_bytes;
        let sum: u64 = (0..8).map(|d| r.stats(d).charged_blocks).sum();
        println!("{policy}: {frames} frames, {sum} charged, {metadata} bytes of metadata; reads {reads:?}");
        assert!(sum <= frames + 16);
        for d in 0..8 {
            let s = r.stats(d);
            assert!(s.charged_blocks <= s.capacity_blocks, "{s:?}");
        }
        assert!(r.stats(7).shared_hit_blocks >= u64::from(COMMON));
    }
}
