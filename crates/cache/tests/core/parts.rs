//! Parts of a disk through the core: what each keeps and did, how shares move, and what is refused.

use undercroft_cache::fault_injection::{Bug, FaultInjection, NoFaults, Planted};
use undercroft_cache::{
    AddDiskError, Core, CoreOptions, DiskId, DiskOptions, Event, Geometry, GroupId, Op, PartStats, SetPartsError,
};
use undercroft_engine::{ExclusiveMode, PartId, PartRange, PartSetting, PartsError, PolicyKind};
use undercroft_testkit::front::{Front, Guest, Values, block_request, check_ceiling, fill_blocks};

const B: u64 = 4096;
const DISK: DiskId = DiskId(0);

/// The value of all bytes of a block of the disk.
fn content(block: u64) -> u8 {
    (block % 251) as u8 + 1
}

/// A guest of some pages, or none, over a disk whose blocks are told by their numbers.
struct Rig<P: FaultInjection = NoFaults> {
    core: Core<P>,
    front: Front<Guest<Values>>,
}

impl Rig {
    fn new(capacity_blocks: u32, change: impl FnOnce(&mut DiskOptions)) -> Self {
        Rig::planted(NoFaults, capacity_blocks, change)
    }
}

impl<P: FaultInjection> Rig<P> {
    fn planted(faults: P, capacity_blocks: u32, change: impl FnOnce(&mut DiskOptions)) -> Self {
        // The same sample of blocks in every run: some 45 of a loop of 2900, which by chance count as up to half more.
        let options = CoreOptions { hash_seed: 1, ..CoreOptions::new(64 << 20) };
        let mut core = Core::with_faults(options, faults).unwrap();
        let mut options = DiskOptions::new(&Geometry::new(10_000 * B), PolicyKind::Lru, capacity_blocks);
        change(&mut options);
        core.add_disk(DISK, options).unwrap();
        Self { core, front: Front::new(Guest::new(0)) }
    }

    /// Reads blocks; how many of them were hits.
    fn read(&mut self, blocks: impl IntoIterator<Item = u64>) -> u64 {
        let before = self.core.stats(DISK).hit_blocks;
        for block in blocks {
            self.front.client.data.seen.clear();
            self.front.run(&mut self.core, block_request(DISK, Op::Read, block, 1), |io| fill_blocks(io, content));
            assert_eq!(self.front.client.data.seen, [(0, 0, content(block))]);
        }
        check_ceiling(&self.core);
        self.core.stats(DISK).hit_blocks - before
    }

    fn tick(&mut self) {
        self.front.tick(&mut self.core, 0);
        self.core.check();
    }

    fn part(&self, n: u8) -> PartStats {
        self.core.part_stats(DISK).into_iter().find(|s| s.part == PartId(n)).unwrap()
    }
}

fn range(first: u64, blocks: u64, part: u8) -> PartRange {
    PartRange { first, blocks, part: PartId(part) }
}

fn lru(part: u8, share_blocks: u32) -> PartSetting {
    PartSetting { part: PartId(part), policy: PolicyKind::Lru, share_blocks }
}

#[test]
fn a_scan_of_one_part_leaves_the_others_alone() {
    let mut r = Rig::new(3000, |_| {});
    r.core.set_parts(DISK, &[range(0, 2000, 1), range(2000, 8000, 2)], &[lru(1, 1200), lru(2, 1800)]).unwrap();
    r.read(0..1000);
    r.read(2000..9000);
    assert_eq!(r.read(0..1000), 1000, "part 1 has what it had");
    let [rest, one, two] = [0, 1, 2].map(|n| r.part(n));
    assert_eq!((rest.cached_blocks, one.cached_blocks, one.hit_blocks, one.miss_blocks), (0, 1000, 1000, 1000));
    assert_eq!((two.hit_blocks, two.miss_blocks, two.share_blocks), (0, 7000, 1800));
    // All but what the map takes.
    assert!((1760..=1800).contains(&two.cached_blocks) && two.cached_blocks == two.limit_blocks, "{two:?}");
    assert_eq!(two.evicted_blocks, 7000 - two.cached_blocks);
    r.core.check();
}

#[test]
fn what_is_cached_stays_when_ranges_come_change_and_go() {
    let mut r = Rig::new(2000, |_| {});
    r.read(0..1500);
    r.core.set_parts(DISK, &[range(0, 1000, 3)], &[lru(3, 1000)]).unwrap();
    let kept = r.part(3).cached_blocks;
    assert_eq!(r.part(0).cached_blocks, 500);
    assert!(kept >= 980, "only what the map takes went: {kept}");
    let frames = r.core.memory().frames_bytes;
    r.core.set_parts(DISK, &[range(500, 1000, 3)], &[lru(3, 1100)]).unwrap();
    assert_eq!((r.part(0).cached_blocks, r.part(3).cached_blocks), (kept - 500, 1000));
    r.core.clear_parts(DISK);
    assert!(r.core.part_stats(DISK).is_empty());
    assert_eq!(r.core.stats(DISK).cached_blocks, 500 + kept);
    assert!(r.core.memory().frames_bytes <= frames);
    let first = 1000 - kept;
    assert_eq!(r.read(first..1500), 1500 - first);
    r.core.check();
}

#[test]
fn a_share_moves_step_by_step_and_takes_the_disk_with_it() {
    let mut r = Rig::new(9000, |_| {});
    r.core.set_parts(DISK, &[range(0, 5000, 1), range(5000, 5000, 2)], &[lru(1, 4500), lru(2, 4500)]).unwrap();
    r.read(0..10_000);
    let before = r.part(1).cached_blocks;
    r.core.set_part_shares(DISK, &[(PartId(1), 1000), (PartId(2), 5000)]).unwrap();
    assert_eq!((r.core.stats(DISK).capacity_blocks, r.part(1).share_blocks), (6000, 1000));
    let one = r.part(1).cached_blocks;
    assert!(before > 4400 && one >= before - 256 && one < before, "one step: {before}, then {one}");
    let mut two = r.part(2).cached_blocks;
    while r.part(1).cached_blocks > r.part(1).limit_blocks {
        r.tick();
        assert!(r.part(2).cached_blocks >= two, "part 2, which may grow, lost blocks");
        two = r.part(2).cached_blocks;
    }
    r.read(5000..10_000);
    let [one, two] = [1, 2].map(|n| r.part(n));
    assert!((950..=1000).contains(&one.cached_blocks) && (4900..=5000).contains(&two.cached_blocks), "{one:?} {two:?}");
    // The disk as a whole: all parts alike.
    r.core.set_share(DISK, 3000).unwrap();
    r.tick();
    assert_eq!((r.part(1).share_blocks, r.part(2).share_blocks), (500, 2500));
    assert!(r.part(1).cached_blocks <= 500 && r.part(2).cached_blocks <= 2500);
    // Down to nothing, and back to what they were to each other.
    r.core.set_capacity(DISK, 0).unwrap();
    r.tick();
    r.core.set_capacity(DISK, 6000).unwrap();
    assert_eq!((r.part(1).share_blocks, r.part(2).share_blocks), (1000, 5000));
    r.read(0..100);
    assert_eq!(r.read(0..100), 100);
}

#[test]
fn what_is_refused_is_told_and_changes_nothing() {
    let mut r = Rig::new(100, |_| {});
    r.read(0..50);
    let refused = |r: &mut Rig, ranges: &[PartRange], settings: &[PartSetting]| {
        let why = r.core.set_parts(DISK, ranges, settings).unwrap_err();
        assert!(r.core.part_stats(DISK).is_empty() && r.core.stats(DISK).cached_blocks == 50);
        why
    };
    let why = refused(&mut r, &[range(0, 10, 1), range(9, 3, 1)], &[lru(1, 5)]);
    assert_eq!(why, SetPartsError::Parts(PartsError::Overlap { first: 0, second: 9 }));
    let why = refused(&mut r, &[range(9999, 2, 1)], &[lru(1, 5)]).to_string();
    assert!(why.contains("behind the disk") && why.contains("10000"), "{why}");
    let why = refused(&mut r, &[range(0, 10, 1)], &[lru(1, 101)]).to_string();
    assert!(why.contains("101") && why.contains("100"), "{why}");
    let many: Vec<_> = (0..5000).map(|n| range(2 * n, 1, 1)).collect();
    let why = refused(&mut r, &many, &[lru(255, 1), lru(1, 5)]);
    assert!(matches!(why, SetPartsError::NoRoom { disk_blocks: 100, .. }), "{why}");
    let other = DiskId(7);
    assert_eq!(r.core.set_parts(other, &[], &[]), Err(SetPartsError::Disk(AddDiskError::Unknown(other))));
    r.core.set_parts(DISK, &[range(0, 10, 1)], &[lru(1, 50)]).unwrap();
    let before = r.core.part_stats(DISK);
    let too_much = r.core.set_part_shares(DISK, &[(PartId(1), 1 << 30)]).unwrap_err();
    assert!(matches!(too_much, SetPartsError::Disk(AddDiskError::NoMemory { .. })), "{too_much}");
    let unknown = r.core.set_part_shares(DISK, &[(PartId(1), 10), (PartId(2), 1)]);
    assert_eq!(unknown, Err(SetPartsError::Parts(PartsError::UnknownPart(PartId(2)))));
    assert_eq!(r.core.part_stats(DISK), before);
    assert!(
        !r.core.set_part_policy(DISK, PartId(2), PolicyKind::Car) && !r.core.measure_part(DISK, PartId(2), Some(9))
    );
    r.core.check();
}

#[test]
fn each_part_is_measured_by_its_own_requests() {
    let mut r = Rig::new(4000, |_| {});
    r.core.set_parts(DISK, &[range(0, 3000, 1), range(3000, 3000, 2)], &[lru(1, 2000), lru(2, 1000)]).unwrap();
    for n in [1, 2] {
        assert!(r.core.part_telemetry(DISK, PartId(n)).is_none(), "nobody asked for it");
        assert!(r.core.measure_part(DISK, PartId(n), Some(16_384)));
    }
    // A loop over 2900 blocks of part 1, of which 2000 keep none and 2900 would keep all, and over 100 of part 2.
    for _ in 0..20 {
        r.read(0..2900);
        r.read(3000..3100);
    }
    let [one, two] = [1, 2].map(|n| r.core.part_telemetry(DISK, PartId(n)).unwrap());
    assert_eq!((one.requests, one.misses, two.requests, two.misses), (20 * 2900, 20 * 2900, 2000, 100));
    assert!(one.curve.miss_ratio_at(1900) > 0.9 && one.curve.miss_ratio_at(4000) < 0.2, "{:?}", one.curve);
    // What it has gone through stays known when the ranges change around it.
    r.core.set_parts(DISK, &[range(0, 3000, 1), range(5000, 10, 9)], &[lru(1, 2000), lru(9, 10)]).unwrap();
    r.read(0..10);
    assert_eq!(r.core.part_telemetry(DISK, PartId(1)).unwrap().requests, 10);
    assert!(r.core.part_telemetry(DISK, PartId(2)).is_none(), "it is gone, and its meter with it");
    r.core.check();
}

#[test]
fn an_invalidated_disk_keeps_its_parts() {
    let mut r = Rig::new(1000, |_| {});
    r.core.set_parts(DISK, &[range(0, 500, 1)], &[lru(1, 500)]).unwrap();
    r.read(0..800);
    r.core.invalidate(DISK);
    assert_eq!(r.core.stats(DISK).cached_blocks, 0);
    r.core.check();
    r.read(0..800);
    assert_eq!((r.part(0).cached_blocks, r.part(0).miss_blocks, r.part(1).miss_blocks), (300, 600, 1000));
    r.core.check();
}

/// What the guest holds is the first to go within its part, and makes no room in another one.
#[test]
fn a_part_of_a_disk_that_is_kept_exclusive_of_its_guest_has_cold_blocks_of_its_own() {
    let mut r = Rig::new(400, |o| o.exclusive = ExclusiveMode::Capture);
    r.front.client.pages = vec![[0; 4096]; 64];
    r.core.set_guest(DISK, 64);
    r.core.set_parts(DISK, &[range(0, 5000, 1), range(5000, 5000, 2)], &[lru(1, 200), lru(2, 200)]).unwrap();
    let limit = r.part(1).limit_blocks;
    for block in 0..20 {
        r.front.client.page = Some(block as u32);
        r.read([block]);
        r.front.client.page = Some(20 + block as u32);
        r.read([5000 + block]);
    }
    r.front.client.page = None;
    // Their hashes are learned, so that they can be told later.
    r.core.apply(Event::Spare { copies: true }, 0, &mut r.front);
    assert_eq!(r.core.exclusive(DISK).unwrap().tiers[2], 40, "the guest holds them");
    r.read(100..100 + limit);
    let two = r.part(2);
    assert_eq!((r.part(1).cached_blocks, two.cached_blocks, two.evicted_blocks), (limit, 20, 0));
    assert_eq!(r.core.exclusive(DISK).unwrap().tiers[2], 20, "those of part 1 went first");
    assert_eq!(r.read(100..100 + limit), limit);
    r.read(5100..5100 + two.limit_blocks);
    assert_eq!(r.core.exclusive(DISK).unwrap().tiers[2], 0, "those of part 2 went too");
    // The guest's pages are used for other blocks: what they held comes back, to its part.
    for page in 0..20 {
        r.front.client.page = Some(20 + page as u32);
        r.read([9000 + page]);
        r.core.apply(Event::Spare { copies: true }, 0, &mut r.front);
        r.core.check();
    }
    r.front.client.page = None;
    assert_eq!(r.read(5000..5020), 20);
    assert_eq!((r.core.exclusive(DISK).unwrap().stats.captures, r.part(1).evicted_blocks), (20, 20));
    r.core.clear_parts(DISK);
    r.core.check();
}

/// Equal contents take one frame, whatever parts they are in, and each part pays in proportion.
#[test]
fn parts_of_a_disk_share_frames_and_pay_for_what_they_have() {
    let mut r = Rig::new(1000, |o| o.group = Some(GroupId(0)));
    r.core.set_parts(DISK, &[range(0, 5000, 1), range(5000, 5000, 2)], &[lru(1, 500), lru(2, 500)]).unwrap();
    // Contents repeat every 251 blocks.
    for _ in 0..6 {
        r.read(0..600);
        r.read(5000..5600);
        r.core.apply(Event::Spare { copies: true }, 0, &mut r.front);
        r.tick();
    }
    let (s, one, two) = (r.core.stats(DISK), r.part(1), r.part(2));
    assert!(s.charged_blocks <= 260 && s.cached_blocks >= 1100, "{s:?}");
    assert_eq!(one.charged_blocks + two.charged_blocks, s.charged_blocks);
    assert!(one.cached_blocks >= 550 && two.cached_blocks >= 550, "{one:?} {two:?}");
    assert!(one.charged_blocks.abs_diff(two.charged_blocks) <= s.charged_blocks / 8);
}

/// A part that grows takes slots of one that has too much, before that has given them up by itself; and the frames in
/// them are counted off the part that had them.
#[test]
fn a_part_that_grows_takes_the_slots_of_one_that_shrinks() {
    fn grow<P: FaultInjection>(faults: P) -> Rig<P> {
        let mut r = Rig::planted(faults, 9000, |_| {});
        r.core.set_parts(DISK, &[range(0, 5000, 1), range(5000, 5000, 2)], &[lru(1, 4500), lru(2, 4500)]).unwrap();
        r.read(0..10_000);
        r.core.set_part_shares(DISK, &[(PartId(1), 2000), (PartId(2), 5000)]).unwrap();
        let over = r.part(1).cached_blocks - r.part(1).limit_blocks;
        let two = r.part(2);
        assert!(over > 64, "{over} blocks too many");
        // One request, so that nothing shrinks between its blocks.
        r.front.run(&mut r.core, block_request(DISK, Op::Read, 5000, 64), |io| fill_blocks(io, content));
        let now = r.part(2);
        assert_eq!((now.evicted_blocks, now.miss_blocks), (two.evicted_blocks, two.miss_blocks + 64));
        r
    }
    grow(NoFaults).core.check();
    let bug = std::panic::catch_unwind(|| grow(Planted(Bug::NewcomersPartPays)).core.check());
    assert!(bug.is_err(), "the planted bug is one");
}
