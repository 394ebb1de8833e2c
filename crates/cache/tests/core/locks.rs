//! Locked and pinned blocks through the core: what stays whatever else is read, what gives way to shares, to guests and
//! to other disks, and what is refused.

use undercroft_cache::{ByteRange, Core, CoreOptions, DiskId, DiskOptions, Event, Geometry, LockReport, Op, PinError};
use undercroft_engine::locking::{LockMode, LockSettings};
use undercroft_engine::{ExclusiveMode, PartId, PartRange, PartSetting, PolicyKind};
use undercroft_testkit::front::{Front, Guest, ValueDisks, Values, block_request, check_ceiling};

const B: u64 = 4096;
const A: DiskId = DiskId(0);
const OTHER: DiskId = DiskId(4);
const HALF: LockSettings =
    LockSettings { mode: LockMode::Off, budget_permille: 500, keep_held: false, miss_entries: 0, victim_blocks: 0 };

/// Disks whose block n of disk d is filled with a value of both, under a guest of some pages, or none.
struct Rig {
    core: Core,
    front: Front<Guest<Values>>,
    disks: ValueDisks,
}

impl Rig {
    fn new(blocks: &[(DiskId, u32)], kind: PolicyKind) -> Self {
        let mut core = Core::new(CoreOptions { hash_seed: 1, ..CoreOptions::new(64 << 20) }).unwrap();
        for &(id, capacity) in blocks {
            let options = DiskOptions::new(&Geometry::new(1 << 30), kind, capacity);
            core.add_disk(id, DiskOptions { exclusive: ExclusiveMode::Capture, ..options }).unwrap();
        }
        let disks = ValueDisks::new(|disk, block| (disk as u8).wrapping_mul(31) ^ (block as u8) | 1);
        Self { core, front: Front::new(Guest::new(64)), disks }
    }

    /// Reads a block, into a page of the guest or elsewhere; whether it was in RAM.
    fn read_into(&mut self, disk: DiskId, block: u64, page: Option<u32>) -> bool {
        self.front.client.page = page;
        self.front.client.data.seen.clear();
        let before = self.core.stats(disk).hit_blocks;
        let disks = &mut self.disks;
        self.front.run(&mut self.core, block_request(disk, Op::Read, block, 1), |io| disks.serve(io));
        self.core.apply(Event::Spare { copies: true }, 0, &mut self.front);
        let &[(0, 0, value)] = &self.front.client.data.seen[..] else { panic!("not read, or in pieces") };
        assert_eq!(value, self.disks.value(disk.0, block), "block {block} of {disk:?}");
        self.core.stats(disk).hit_blocks > before
    }

    /// Reads blocks; how many were in RAM.
    fn read(&mut self, disk: DiskId, blocks: impl IntoIterator<Item = u64>) -> usize {
        let hits = blocks.into_iter().filter(|&block| self.read_into(disk, block, None)).count();
        self.core.check();
        check_ceiling(&self.core);
        hits
    }

    fn pin(&mut self, disk: DiskId, first: u64, blocks: u64) {
        self.core.set_pins(disk, &[range(first, blocks)]).unwrap();
    }

    /// Reports once all that follows from changes is done.
    fn report(&mut self, disk: DiskId) -> LockReport {
        for _ in 0..8 {
            self.front.tick(&mut self.core, 1_000_000_000);
            self.core.apply(Event::Spare { copies: true }, 0, &mut self.front);
        }
        self.core.check();
        let report = self.core.lock_report(disk);
        assert!(!report.settling, "{report:?}");
        report
    }
}

fn range(first: u64, blocks: u64) -> ByteRange {
    ByteRange { offset: first * B, bytes: blocks * B }
}

#[test]
fn pinned_blocks_stay_whatever_else_is_read() {
    for kind in PolicyKind::ALL {
        let mut r = Rig::new(&[(A, 100)], kind);
        r.core.set_locking(A, HALF);
        r.pin(A, 1000, 30);
        assert_eq!(r.read(A, 1000..1030), 0, "{kind}");
        // Often enough that no policy keeps them for having been read.
        r.read(A, 0..700);
        r.read(A, 0..700);
        assert_eq!(r.read(A, 1000..1030), 30, "{kind}");
        let report = r.report(A);
        assert_eq!((report.locked_blocks, report.pinned_blocks), (30, 30), "{kind}");
        assert!((48..=50).contains(&report.budget_blocks), "{kind}: {report:?}");
        // Not pinned any more, they go as others do.
        r.core.set_pins(A, &[]).unwrap();
        assert_eq!(r.report(A).locked_blocks, 0, "{kind}");
        r.read(A, 0..700);
        r.read(A, 0..700);
        let left = r.read(A, 1000..1030);
        // Some policies keep for long what they have taken for worth it.
        assert!(left == 0 || !matches!(kind, PolicyKind::Lru | PolicyKind::Fifo | PolicyKind::Clock), "{kind}: {left}");
    }
}

#[test]
fn blocks_that_are_here_already_are_locked_when_they_are_read_again() {
    let mut r = Rig::new(&[(A, 100)], PolicyKind::Lru);
    r.read(A, 0..20);
    r.pin(A, 0, 10);
    assert_eq!(r.report(A).locked_blocks, 0);
    assert_eq!(r.read(A, 0..5), 5);
    assert_eq!(r.report(A).locked_blocks, 5);
    r.read(A, 100..400);
    assert_eq!(r.read(A, 0..10), 5);
}

#[test]
fn a_smaller_share_takes_what_is_beyond_its_budget_and_a_larger_one_locks_again() {
    let mut r = Rig::new(&[(A, 200)], PolicyKind::S3Fifo);
    r.core.set_locking(A, HALF);
    r.pin(A, 0, 90);
    r.read(A, 0..300);
    assert_eq!(r.report(A).locked_blocks, 90);
    r.core.set_share(A, 60).unwrap();
    let report = r.report(A);
    assert!(report.budget_blocks <= 30 && report.locked_blocks == report.budget_blocks, "{report:?}");
    assert!(r.core.stats(A).cached_blocks > report.locked_blocks, "others have room beside them");
    r.core.set_share(A, 200).unwrap();
    r.read(A, 0..300);
    assert_eq!(r.report(A).locked_blocks, 90);
    // What the host takes back for a while counts as well.
    r.core.set_limit(A, 10);
    while r.core.give_back(16) > 0 {}
    let report = r.report(A);
    assert!(report.locked_blocks <= 5 && r.core.stats(A).cached_blocks <= 10, "{report:?}");
}

#[test]
fn pins_beyond_the_budget_or_the_disk_are_refused_and_change_nothing() {
    let mut r = Rig::new(&[(A, 100)], PolicyKind::Lru);
    r.core.set_locking(A, HALF);
    r.pin(A, 5, 10);
    let budget = r.report(A).budget_blocks;
    let whole = (1u64 << 30) / B;
    // Of blocks that two ranges name, one counts.
    r.core.set_pins(A, &[range(0, budget - 5), range(3, budget - 3)]).unwrap();
    r.pin(A, 5, 10);
    let over = PinError::OverBudget { pinned_bytes: (budget + 1) * B, budget_bytes: budget * B };
    assert_eq!(r.core.set_pins(A, &[range(0, budget + 1)]), Err(over));
    // What was pinned before stays pinned, and is locked as far as there is room.
    r.core.set_pins_again(A, &[range(0, budget + 1)]).unwrap();
    r.read(A, 0..budget + 1);
    let report = r.report(A);
    assert_eq!((report.pinned_blocks, report.locked_blocks), (budget + 1, budget));
    r.pin(A, 5, 10);
    // A byte is its block.
    let odd = ByteRange { offset: B - 1, bytes: 2 + (budget - 1) * B };
    assert_eq!(r.core.set_pins(A, &[odd]), Err(over));
    for bad in [range(whole, 1), range(3, 0), range(whole - 1, 2), ByteRange { offset: u64::MAX, bytes: 9 }] {
        let refused = r.core.set_pins(A, &[range(0, 1), bad]);
        assert_eq!(refused, Err(PinError::OutOfDisk { range: bad, size_bytes: 1 << 30 }));
    }
    let many = vec![range(0, 1); 65_537];
    assert_eq!(r.core.set_pins(A, &many), Err(PinError::TooMany { ranges: 65_537, most: 65_536 }));
    assert_eq!(r.core.set_pins(OTHER, &[]), Err(PinError::NoDisk));
    assert_eq!(r.core.pins(A), [range(5, 10)]);
    let text = over.to_string();
    assert!(text.contains("lock_budget") && text.contains("may be locked now"), "{text}");
    assert_eq!(r.core.set_pins(A, &many[..30_000]), Err(PinError::NoRoom), "the list takes more than the share");
}

#[test]
fn the_budget_is_told_before_anything_is_pinned_and_is_what_can_be_pinned() {
    for settings in [LockSettings::default(), HALF, LockSettings { victim_blocks: 12, ..HALF }] {
        let mut r = Rig::new(&[(A, 100)], PolicyKind::Lru);
        r.core.set_locking(A, settings);
        let report = r.report(A);
        let budget = report.budget_blocks;
        assert!((20..=50).contains(&budget) && report.pinned_blocks == 0, "{report:?}");
        let over = PinError::OverBudget { pinned_bytes: (budget + 1) * B, budget_bytes: budget * B };
        assert_eq!(r.core.set_pins(A, &[range(0, budget + 1)]), Err(over), "{settings:?}");
        r.pin(A, 0, budget);
        assert_eq!(r.report(A).pinned_blocks, budget);
    }
}

#[test]
fn what_counts_for_a_pool_is_what_was_set_last_of_any_of_its_disks() {
    let mut r = Rig::new(&[(A, 80), (OTHER, 80)], PolicyKind::Lru);
    r.core.set_locking(A, LockSettings { victim_blocks: 6, ..HALF });
    r.pin(A, 0, 30);
    r.read(A, 0..30);
    // One of which nothing is set comes, pins blocks, and has a profile.
    r.core.join_pool(OTHER, A).unwrap();
    let (a, other) = (r.report(A), r.report(OTHER));
    assert_eq!((a.locked_blocks, a.buffer_blocks, other.buffer_blocks), (30, 6, 6));
    assert_eq!((other.settings.budget_permille, other.settings.victim_blocks), (500, 6), "what counts is told");
    assert_eq!((other.budget_blocks, other.pinned_blocks, other.others_pinned_blocks), (a.budget_blocks, 0, 30));
    let left = other.budget_blocks - 30;
    let over = PinError::OverBudget { pinned_bytes: (left + 1) * B, budget_bytes: left * B };
    assert_eq!(r.core.set_pins(OTHER, &[range(0, left + 1)]), Err(over), "what the pins of others leave");
    r.pin(OTHER, 0, left);
    r.core.set_locking(OTHER, LockSettings { mode: LockMode::Static, ..LockSettings::default() });
    r.read(OTHER, 0..left);
    r.read(OTHER, 100..400);
    let (a, other) = (r.report(A), r.report(OTHER));
    assert_eq!((a.locked_blocks, a.settings.budget_permille, a.buffer_blocks), (30, 500, 6), "{other:?}");
    assert!(other.locked_blocks >= left - 1, "a range takes memory: {other:?}");
    // It is set of the other one.
    r.core.set_locking(OTHER, LockSettings { budget_permille: 100, victim_blocks: 3, ..LockSettings::default() });
    let a = r.report(A);
    assert_eq!((a.settings.budget_permille, a.settings.victim_blocks, a.buffer_blocks), (100, 3, 3));
    assert!(a.pool_locked_blocks <= 16, "{a:?}");
    // Nothing is left to be locked of one, and of both.
    r.core.set_pins(OTHER, &[]).unwrap();
    assert_eq!(r.report(OTHER).locked_blocks, 0);
    r.read(A, 0..30);
    assert!(r.report(A).locked_blocks > 0);
    r.core.set_pins(A, &[]).unwrap();
    assert_eq!(r.report(A).pool_locked_blocks, 0);
    r.core.leave_pool(OTHER, 80).unwrap();
    assert_eq!((r.report(A).settings.budget_permille, r.report(OTHER).settings.budget_permille), (500, 100));
}

#[test]
fn disks_of_a_pool_have_one_budget_and_their_pins_go_with_them() {
    let mut r = Rig::new(&[(A, 60), (OTHER, 60)], PolicyKind::Lru);
    r.core.set_locking(OTHER, HALF);
    r.pin(OTHER, 0, 20);
    r.read(OTHER, 0..20);
    r.core.join_pool(OTHER, A).unwrap();
    assert_eq!(r.report(OTHER).locked_blocks, 20, "they are locked in the index that they come to");
    r.core.set_locking(A, HALF);
    r.pin(A, 10, 20);
    r.read(A, 0..40);
    r.read(A, 100..400);
    let (a, other) = (r.report(A), r.report(OTHER));
    assert_eq!((a.locked_blocks, other.locked_blocks, a.pool_locked_blocks), (20, 20, 40));
    assert_eq!(r.core.locked_at(A), (10..30).map(|b| b * B).collect::<Vec<_>>(), "each its own");
    assert_eq!((r.read(A, 10..30), r.read(OTHER, 0..20)), (20, 20));
    r.core.leave_pool(OTHER, 60).unwrap();
    let (a, other) = (r.report(A), r.report(OTHER));
    assert_eq!((a.locked_blocks, other.locked_blocks), (20, 20));
    // One that goes for good leaves nothing locked, and one that comes in its place has no pins.
    r.core.join_pool(OTHER, A).unwrap();
    r.core.remove_disk(OTHER);
    assert_eq!(r.report(A).pool_locked_blocks, 20);
    r.core.add_disk(OTHER, DiskOptions::new(&Geometry::new(1 << 30), PolicyKind::Lru, 60)).unwrap();
    r.core.join_pool(OTHER, A).unwrap();
    r.read(OTHER, 0..20);
    assert_eq!((r.report(OTHER).locked_blocks, r.core.pins(OTHER)), (0, vec![]));
}

#[test]
fn what_is_pinned_stays_pinned_when_the_content_is_another() {
    let mut r = Rig::new(&[(A, 100)], PolicyKind::Lru);
    r.core.set_locking(A, HALF);
    r.pin(A, 0, 10);
    r.read(A, 0..50);
    r.core.invalidate(A);
    assert_eq!(r.report(A).locked_blocks, 0);
    assert_eq!(r.read(A, 0..10), 0);
    r.read(A, 100..400);
    assert_eq!((r.read(A, 0..10), r.report(A).locked_blocks), (10, 10));
    r.core.drop_cache(A);
    assert_eq!((r.read(A, 0..10), r.read(A, 0..10), r.report(A).locked_blocks), (0, 10, 10));
}

#[test]
fn what_the_guest_holds_is_not_kept_for_being_pinned_unless_told() {
    for keep_held in [false, true] {
        let mut r = Rig::new(&[(A, 40)], PolicyKind::Lru);
        r.core.set_guest(A, 8);
        r.core.set_locking(A, LockSettings { keep_held, ..HALF });
        r.pin(A, 0, 4);
        (0..4).for_each(|b| _ = r.read_into(A, b, Some(b as u32)));
        let report = r.core.block_report(A, 2 * B).unwrap();
        assert_eq!((report.locked, report.guest_holds, report.cached), (keep_held, true, true));
        assert_eq!(report.pinned_by, Some(range(0, 4)));
        // The cache is full of what others want; then the guest evicts what it held, and it is copied, and locked.
        r.read(A, 500..600);
        let kept = r.core.block_report(A, 2 * B).unwrap();
        assert_eq!((kept.cached, kept.locked), (keep_held, keep_held), "{kept:?}");
        (0..4).for_each(|b| _ = r.read_into(A, 900 + b, Some(b as u32)));
        r.read(A, 500..600);
        let report = r.report(A);
        assert_eq!(report.locked_blocks, 4, "{keep_held}: {report:?}");
        assert_eq!(r.read(A, 0..4), 4);
    }
}

#[test]
fn what_a_guest_gives_up_is_locked_where_it_is() {
    let mut r = Rig::new(&[(A, 40)], PolicyKind::Lru);
    r.core.set_guest(A, 8);
    r.core.set_locking(A, HALF);
    r.pin(A, 0, 4);
    (0..4).for_each(|b| _ = r.read_into(A, b, Some(b as u32)));
    let held = r.core.block_report(A, 2 * B).unwrap();
    assert!(held.cached && held.first_to_go && !held.locked, "{held:?}");
    // Other blocks come into the pages: nothing has had to go meanwhile, so nothing is copied or read again.
    (0..4).for_each(|b| _ = r.read_into(A, 900 + b, Some(b as u32)));
    assert_eq!(r.report(A).locked_blocks, 4);
    r.read(A, 500..600);
    assert_eq!(r.read(A, 0..4), 4);
}

#[test]
fn what_is_pinned_and_held_takes_the_place_of_others_if_told() {
    for keep_held in [false, true] {
        let mut r = Rig::new(&[(A, 40)], PolicyKind::Lru);
        r.core.set_guest(A, 8);
        r.core.set_locking(A, LockSettings { keep_held, ..HALF });
        r.pin(A, 0, 4);
        r.read(A, 500..600);
        (0..4).for_each(|b| _ = r.read_into(A, b, Some(b as u32)));
        let report = r.core.block_report(A, 2 * B).unwrap();
        assert_eq!((report.cached, report.locked, report.guest_holds), (keep_held, keep_held, true), "{report:?}");
    }
}

#[test]
fn parts_leave_locks_and_give_the_victim_buffer_back() {
    let mut r = Rig::new(&[(A, 200)], PolicyKind::Lru);
    r.core.set_locking(A, LockSettings { victim_blocks: 12, ..HALF });
    r.core.set_pins(A, &[range(0, 10), range(100, 5)]).unwrap();
    r.read(A, (0..10).chain(100..105).chain(300..400));
    assert_eq!((r.report(A).locked_blocks, r.report(A).buffer_blocks), (15, 12));
    let ranges = [PartRange { first: 100, blocks: 100, part: PartId(1) }];
    let parts = [PartSetting { part: PartId(1), policy: PolicyKind::Lru, share_blocks: 40 }];
    r.core.set_parts(A, &ranges, &parts).unwrap();
    assert_eq!((r.report(A).locked_blocks, r.report(A).buffer_blocks), (15, 0));
    r.core.clear_parts(A);
    assert_eq!((r.report(A).locked_blocks, r.report(A).buffer_blocks), (15, 12));
}

#[test]
fn pins_in_a_part_are_locked_as_far_as_its_own_budget_goes() {
    let mut r = Rig::new(&[(A, 200)], PolicyKind::Lru);
    r.core.set_locking(A, HALF);
    let ranges = [PartRange { first: 100, blocks: 100, part: PartId(1) }];
    let parts = [PartSetting { part: PartId(1), policy: PolicyKind::Lru, share_blocks: 20 }];
    r.core.set_parts(A, &ranges, &parts).unwrap();
    r.pin(A, 100, 30);
    r.read(A, 100..130);
    let (report, last) = (r.report(A), r.core.block_report(A, 129 * B).unwrap());
    assert!(!last.locked && report.locked_blocks == last.part_locked_blocks, "{last:?} {report:?}");
    assert!(last.part_locked_blocks == last.part_budget_blocks && last.part_budget_blocks <= 10, "{last:?}");
    assert!(report.budget_blocks > 50, "that of all parts: {report:?}");
}

#[test]
fn a_profile_locks_what_it_names_as_far_as_the_budget_goes() {
    let mut r = Rig::new(&[(A, 100)], PolicyKind::Sieve);
    let named: Vec<ByteRange> = (0..90).map(|n| range(3 * n, 1)).collect();
    r.core.set_lock_profile(A, &named).unwrap();
    r.read(A, 0..300);
    assert_eq!(r.report(A).locked_blocks, 0, "the mode is not static");
    r.core.set_locking(A, LockSettings { mode: LockMode::Static, ..HALF });
    r.core.set_lock_profile(A, &named).unwrap();
    r.read(A, 0..300);
    let report = r.report(A);
    assert_eq!(report.locked_blocks, report.budget_blocks);
    assert!(r.core.locked_at(A).iter().all(|at| (at / B).is_multiple_of(3)));
    assert!(r.core.block_report(A, 3 * B).unwrap().named_by_profile);
    r.core.set_locking(A, HALF);
    assert_eq!(r.report(A).locked_blocks, 0);
}

#[test]
fn the_online_rule_locks_part_of_a_loop_and_takes_its_memory_out_of_the_share() {
    let misses = |mode| {
        let mut r = Rig::new(&[(A, 400)], PolicyKind::Lru);
        r.core.set_locking(A, LockSettings { mode, budget_permille: 900, ..HALF });
        for _ in 0..40 {
            r.read(A, 0..420);
        }
        let report = r.report(A);
        assert_eq!(report.online.is_some(), mode == LockMode::Online);
        (r.core.stats(A).miss_blocks, report)
    };
    let ((with, report), (without, _)) = (misses(LockMode::Online), misses(LockMode::Off));
    assert!(report.locked_blocks > 0, "{report:?}");
    assert!(with * 10 < without * 8, "{with} misses with the rule, {without} without: {report:?}");
}

const ONLINE: LockSettings = LockSettings { mode: LockMode::Online, ..HALF };

/// A loop of each disk, each of which fits into what both have: the cache misses always because of both, not because of
/// what is locked.
#[test]
fn the_online_rule_of_a_pool_hears_of_all_of_its_disks_and_locks_for_those_that_have_it() {
    let mut r = Rig::new(&[(A, 400), (OTHER, 400)], PolicyKind::Lru);
    r.core.set_locking(A, ONLINE);
    r.core.join_pool(OTHER, A).unwrap();
    r.core.check();
    for n in 0..24_000 {
        r.read_into(if n % 2 == 0 { A } else { OTHER }, n / 2 % 600, None);
    }
    let (a, other) = (r.report(A), r.report(OTHER));
    assert!(a.locked_blocks > 100, "{a:?}");
    assert_eq!((a.online.unwrap().rests, other.locked_blocks, other.online), (0, 0, None), "{a:?}");
}

#[test]
fn what_the_rule_takes_is_paid_for_in_a_pool_from_the_moment_that_it_comes_there() {
    let mut r = Rig::new(&[(A, 800), (OTHER, 400)], PolicyKind::Lru);
    r.core.set_locking(OTHER, ONLINE);
    r.read(A, 0..800);
    r.read(OTHER, 0..400);
    r.core.join_pool(OTHER, A).unwrap();
    r.core.check();
    check_ceiling(&r.core);
    r.core.leave_pool(OTHER, 400).unwrap();
    r.core.check();
    r.core.join_pool(A, OTHER).unwrap();
    r.core.check();
    r.core.remove_disk(OTHER);
    r.core.check();
    assert!(r.report(A).online.is_none());
}

/// Whoever checks a core checks that it pays for what the rule was made for, and that this takes no more.
#[test]
fn what_the_rule_takes_follows_the_share_and_is_paid_for() {
    for idle in [false, true] {
        let mut r = Rig::new(&[(A, 4000)], PolicyKind::Lru);
        r.core.measure(A, Some(8000));
        r.core.set_locking(A, LockSettings { budget_permille: 900, ..ONLINE });
        r.read(A, 0..4500);
        for share in [3000, 100, 3500, 3400, 0, 50, 3900, 700] {
            r.core.set_share(A, share).unwrap();
            r.core.check();
            _ = r.core.telemetry(A);
            r.report(A);
            if !idle {
                r.read(A, 0..100);
            }
            r.core.set_limit(A, share / 3);
            r.report(A);
            r.core.set_limit(A, u32::MAX);
            r.report(A);
            check_ceiling(&r.core);
        }
    }
}

/// What the rule takes depends on how much may be kept, which is less by what it takes.
#[test]
fn with_the_rule_a_share_that_stays_lets_as_much_be_kept_each_time() {
    let mut r = Rig::new(&[(A, 1200)], PolicyKind::Lru);
    r.core.measure(A, Some(4000));
    r.core.set_locking(A, LockSettings { budget_permille: 900, ..ONLINE });
    for share in (900..1100).step_by(3) {
        r.core.set_share(A, share).unwrap();
        _ = r.core.telemetry(A);
        let budget = r.report(A).budget_blocks;
        for _ in 0..6 {
            _ = r.core.telemetry(A);
            assert_eq!(r.core.lock_report(A).budget_blocks, budget, "a share of {share} blocks");
        }
    }
}

#[test]
fn misses_are_counted_for_the_blocks_that_miss_most() {
    let mut r = Rig::new(&[(A, 20)], PolicyKind::Lru);
    r.core.set_locking(A, LockSettings { miss_entries: 5, ..HALF });
    for n in 0..50u64 {
        r.read(A, [7]);
        if n % 2 == 0 {
            r.read(A, [9]);
        }
        r.read(A, 100..130);
    }
    let report = r.report(A);
    assert_eq!(report.misses, r.core.stats(A).miss_blocks);
    assert_eq!(report.most_missed.len(), 5);
    assert_eq!(r.core.lock_summary(A), LockReport { most_missed: vec![], ..report.clone() });
    let mut of = |block: u64| r.core.block_report(A, block * B).unwrap().missed.unwrap();
    let (seven, nine) = (of(7), of(9));
    assert!(seven.misses >= 50 && seven.misses - seven.error <= 50, "{seven:?}");
    assert!(nine.misses >= 25 && nine.misses - nine.error <= 25, "{nine:?}");
    r.core.drop_cache(A);
    assert_eq!(r.core.lock_report(A).misses, report.misses, "the content is the same");
    r.core.invalidate(A);
    let after = r.core.lock_report(A);
    assert_eq!((after.misses, after.most_missed), (0, vec![]), "these blocks have not missed");
}

#[test]
fn a_victim_buffer_is_out_of_the_share_and_counts_its_hits() {
    let mut r = Rig::new(&[(A, 40)], PolicyKind::Fifo);
    r.core.set_locking(A, LockSettings { victim_blocks: 12, ..HALF });
    r.read(A, 0..60);
    let cached = r.core.stats(A).cached_blocks;
    assert!(cached <= 40, "{cached}");
    let report = r.report(A);
    assert_eq!((report.buffered_blocks, report.buffer_blocks, report.buffer_hits), (12, 12, 0));
    let first = (0..60).find(|&b| r.core.block_report(A, b * B).is_some_and(|r| r.cached)).unwrap();
    assert!(r.core.block_report(A, first * B).unwrap().buffered, "the oldest is in the buffer");
    assert_eq!((r.read(A, [first]), r.report(A).buffer_hits), (1, 1));
    assert!(!r.core.block_report(A, first * B).unwrap().buffered);
    r.core.set_locking(A, HALF);
    assert_eq!(r.report(A).buffer_blocks, 0);
}

#[test]
fn reports_of_blocks_say_where_they_are() {
    let mut r = Rig::new(&[(A, 20)], PolicyKind::Lru);
    r.read(A, [3]);
    let three = r.core.block_report(A, 3 * B + 17).unwrap();
    assert_eq!((three.offset, three.cached, three.locked, three.policy), (3 * B, true, false, PolicyKind::Lru));
    let four = r.core.block_report(A, 4 * B).unwrap();
    assert!(!four.cached && !four.on_its_way && four.missed.is_none() && !four.keeps_nothing);
    assert!(r.core.block_report(A, 1 << 30).is_none() && r.core.block_report(OTHER, 0).is_none());
}
