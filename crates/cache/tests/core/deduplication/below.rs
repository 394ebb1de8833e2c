//! Images that several disks stand on, in the SSD store below the core.
//!
//! Owns the scenarios. Never looks at the store's own tables but for how many blocks it has. Invariant: a test that
//! plants a bug also asserts that it sees the bug.

use super::rig::{B, Rig, options};
use undercroft_cache::fault_injection::{Bug, FaultInjection, NoFaults, Planted};
use undercroft_cache::{Base, ContentKey, DiskId, DiskOptions, LayerId, Op};
use undercroft_engine::ExclusiveMode;

/// Blocks that each of three clones reads, of which 40 fit into RAM for each.
const BLOCKS: u64 = 160;

fn by_block(_disk: u32, block: u64) -> u8 {
    (block as u8).wrapping_add(1)
}

fn clones<P: FaultInjection>(faults: P, with_base: bool) -> Rig<P> {
    let mut r = Rig::planted(faults, ContentKey::from_seed(1), &[Some(0), Some(1), Some(2)], 40, by_block);
    r.put_ssd();
    for disk in 0..3 {
        let own = vec![0; 4];
        let base = Base { layer: LayerId(9), size_bytes: 200 * B, cluster_bytes: B as u32, own };
        assert!(r.core.set_base(DiskId(disk), base));
        r.use_ssd(disk, with_base);
    }
    r
}

/// Reads what the clones have of the image, from one end to the other.
fn read_all<P: FaultInjection>(r: &mut Rig<P>, disk: u32) {
    for first in (0..BLOCKS).step_by(20) {
        let expected: Vec<u8> = (first..first + 20).map(|b| by_block(disk, b)).collect();
        assert_eq!(r.read(disk, first, 20), expected, "disk {disk} from block {first}");
    }
}

fn stored<P: FaultInjection>(r: &Rig<P>) -> u64 {
    r.core.ssd().unwrap().stats().iter().map(|s| s.blocks).sum()
}

#[test]
fn what_clones_have_in_common_is_in_the_store_once() {
    let all = |with_base| {
        let mut r = clones(NoFaults, with_base);
        for _ in 0..2 {
            (0..3).for_each(|disk| read_all(&mut r, disk));
        }
        r.core.check();
        let from_images: u64 = (0..3).map(|d| r.stats(d).backend_read_bytes / B).sum();
        (stored(&r), from_images)
    };
    let (once, read_once) = all(true);
    let (apart, read_apart) = all(false);
    assert!((100..=BLOCKS).contains(&once), "{once} blocks of {BLOCKS} that there are");
    assert_eq!(read_once, BLOCKS, "the first clone has read what all have");
    assert!(apart > 2 * once, "{apart} blocks of three disks, each for itself");
    assert!(read_apart > 2 * BLOCKS, "{read_apart}");
}

#[test]
fn the_base_of_a_clone_that_goes_stays_for_the_others() {
    let mut r = clones(NoFaults, true);
    read_all(&mut r, 0);
    r.core.remove_disk(DiskId(0));
    read_all(&mut r, 1);
    let before = r.stats(1).backend_read_bytes;
    read_all(&mut r, 1);
    assert_eq!(r.stats(1).backend_read_bytes, before);
    r.core.remove_disk(DiskId(1));
    r.core.remove_disk(DiskId(2));
    assert_eq!(stored(&r), 0, "nothing was written down of an image that nobody stands on");
    r.core.check();
}

/// What a clone that changed block 3 reads of it when RAM has let go of that, and what another one reads.
fn after_a_change<P: FaultInjection>(faults: P) -> [u8; 2] {
    let mut r = clones(faults, true);
    (0..2).for_each(|disk| read_all(&mut r, disk));
    r.write(1, 3, 77);
    for first in (20..BLOCKS).step_by(20) {
        r.read(1, first, 20);
        r.read(0, first, 20);
    }
    [r.read(1, 3, 1)[0], r.read(0, 3, 1)[0]]
}

#[test]
fn a_changed_block_is_the_disks_own() {
    assert_eq!(after_a_change(NoFaults), [77, 4]);
    assert_eq!(after_a_change(Planted(Bug::BelowBaseOutlivesChange))[0], 4, "the test does not see the bug");
}

#[test]
fn the_part_of_a_share_that_is_the_bases_follows_what_is_looked_for() {
    let mut r = clones(NoFaults, true);
    let share = |r: &Rig| {
        let base = r.core.ssd_base_of(DiskId(0)).unwrap();
        assert_eq!(r.core.ssd_stats_of(DiskId(0)).unwrap().share_blocks, 1000, "that of both");
        r.core.ssd().unwrap().owner_stats(base).share_blocks
    };
    assert_eq!(share(&r), 1500, "half of each of three disks'");
    for _ in 0..4 {
        read_all(&mut r, 0);
        read_all(&mut r, 0);
        r.tick(1);
    }
    assert!(share(&r) > 1700, "{}: all that the first disk looks for is the base's", share(&r));
    for _ in 0..8 {
        (300..700).step_by(20).for_each(|first| _ = r.read(0, first, 20));
        r.tick(1);
    }
    assert!(share(&r) < 1300, "{}: nothing is", share(&r));
}

/// A guest page with another content of equal hash, copied, evicted to the store and read again, reaches its own disk
/// at most.
fn others_see<P: FaultInjection>(faults: P) -> (Vec<u8>, Vec<u8>, u8) {
    let key = ContentKey::from_seed(1).weakened(1);
    let mut r = Rig::planted(faults, key.clone(), &[], 0, |_, block| if block == 0 { 1 } else { 3 });
    r.put_ssd();
    for d in 0..2 {
        let o = DiskOptions { exclusive: ExclusiveMode::Capture, ..options(Some(d), 64) };
        r.core.add_disk(DiskId(d), o).unwrap();
        assert!(r.base(d, 1, 50, &[]));
        r.use_ssd(d, false);
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
    r.core.drop_ssd(DiskId(0));
    r.front.client.page = Some(0);
    r.read(0, 1, 1);
    r.front.client.page = None;
    assert_eq!(r.core.exclusive(DiskId(0)).unwrap().stats.captures, 1, "the forged page was kept");
    // RAM lets go of the copy, and it comes back from the store.
    r.core.set_limit(DiskId(0), 0);
    r.core.set_limit(DiskId(0), u32::MAX);
    r.settle();
    let own = r.read(0, 0, 1);
    (own, r.read(1, 0, 1), forged)
}

#[test]
fn what_came_from_a_guest_is_not_taken_for_the_base_when_it_comes_back_from_the_store() {
    let (own, others, forged) = others_see(NoFaults);
    assert_eq!((own[0], others[0]), (forged, 1), "its own disk, which forged it, and the other one");
    let (_, others, forged) = others_see(Planted(Bug::BelowTakenForBase));
    assert_eq!(others, [forged], "the test does not see the bug");
}

#[test]
fn a_read_that_comes_back_when_its_base_has_gone_is_read_from_the_image() {
    let mut r = clones(NoFaults, true);
    read_all(&mut r, 0);
    r.ask(0, Op::Read, 3, 1);
    (0..3).for_each(|disk| r.core.invalidate(DiskId(disk)));
    r.settle();
    assert_eq!(r.read(0, 3, 1), [4]);
    r.core.check();
}
