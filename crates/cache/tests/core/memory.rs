//! The promises about memory: 64 bytes of metadata a block, and a ceiling over data and metadata.

use undercroft_cache::{
    AddDiskError, Core, CoreOptions, DiskId, DiskOptions, Event, Geometry, Op, blocks_per_disk_max, disk_bytes, limits,
};
use undercroft_engine::PolicyKind;
use undercroft_testkit::front::{Front, NoData, block_request, check_ceiling};

const B: u64 = 4096;

fn options(policy: PolicyKind, capacity_blocks: u32) -> DiskOptions {
    let options = DiskOptions::new(&Geometry::new(1 << 40), policy, capacity_blocks);
    DiskOptions { readahead_bytes: 1 << 20, ..options }
}

fn read(core: &mut Core, front: &mut Front<NoData>, disk: u32, block: u64, blocks: u64) {
    front.run(core, block_request(DiskId(disk), Op::Read, block, blocks), |_| ());
}

#[test]
fn a_block_costs_at_most_64_bytes_of_metadata_and_48_more_where_contents_are_known() {
    for contents in [false, true] {
        metadata_per_block(contents);
    }
}

fn metadata_per_block(contents: bool) {
    const BLOCKS: u32 = 40_000;
    let with = |policy, blocks| {
        let o = CoreOptions { contents, ..CoreOptions::new(0) };
        let needed = disk_bytes(&o, blocks, 1 << 20);
        let mut core = Core::new(CoreOptions { memory_bytes: needed + needed / 500 + 8192, ..o }).unwrap();
        core.add_disk(DiskId(0), options(policy, blocks)).unwrap();
        // A guest of two pages: its table hardly counts, the tiers do.
        core.set_guest(DiskId(0), 2);
        let mut front = Front::new(NoData);
        for block in 0..2 * u64::from(blocks) {
            // Some seen twice, so that ghosts and both queues fill.
            read(&mut core, &mut front, 0, block * 7919 % 50_021, 1 + block % 2);
        }
        core.check();
        core.memory()
    };
    for policy in PolicyKind::ALL {
        // What does not depend on the capacity, tables of operations under way, is there at any capacity.
        let (full, half) = (with(policy, BLOCKS), with(policy, BLOCKS / 2));
        let per_block = (full.metadata_bytes - half.metadata_bytes) as f64 / f64::from(BLOCKS / 2);
        println!("{policy}: {per_block:.1} bytes of metadata a block");
        let more = if contents { limits::CONTENT_BYTES_PER_BLOCK_MAX } else { 0 };
        let most = (limits::METADATA_BYTES_PER_BLOCK_MAX + more) as f64;
        assert!(per_block <= most, "{policy}: {per_block} bytes a block");
    }
}

#[test]
fn the_ceiling_holds_through_growth_shrinkage_and_changes_of_policy() {
    let o = CoreOptions::new(24 << 20);
    let most = blocks_per_disk_max(&o, 2, 1 << 20);
    let mut core = Core::new(o).unwrap();
    core.add_disk(DiskId(0), options(PolicyKind::Lru, most)).unwrap();
    core.add_disk(DiskId(1), options(PolicyKind::Fifo, most)).unwrap();
    let err = core.add_disk(DiskId(2), options(PolicyKind::Fifo, 1000)).unwrap_err();
    assert!(matches!(err, AddDiskError::NoMemory { .. }), "{err}");
    let mut front = Front::new(NoData);
    let mut at = 0;
    let mut churn = |core: &mut Core, front: &mut Front<NoData>| {
        for _ in 0..300 {
            at += 64;
            read(core, front, 0, at, 64);
            read(core, front, 1, at, 33);
            check_ceiling(core);
        }
    };
    churn(&mut core, &mut front);
    for (i, policy) in PolicyKind::ALL.into_iter().cycle().take(16).enumerate() {
        core.set_policy(DiskId(0), policy);
        let (small, large) = if i % 2 == 0 { (0, 1) } else { (1, 0) };
        core.set_capacity(DiskId(small), most / 4).unwrap();
        while core.stats(DiskId(small)).cached_blocks > u64::from(most / 4) {
            core.apply(Event::Tick, 0, &mut front);
        }
        core.set_capacity(DiskId(large), most + most / 2).unwrap();
        churn(&mut core, &mut front);
        core.set_capacity(DiskId(large), most).unwrap();
        while core.stats(DiskId(large)).cached_blocks > u64::from(most) {
            core.apply(Event::Tick, 0, &mut front);
        }
        core.set_capacity(DiskId(small), most).unwrap();
        churn(&mut core, &mut front);
        core.check();
    }
}

#[test]
fn steps_of_a_share_keep_what_fits_and_rebuild_seldom() {
    let mut core = Core::new(CoreOptions::new(64 << 20)).unwrap();
    core.add_disk(DiskId(0), options(PolicyKind::Lru, 4000)).unwrap();
    let mut front = Front::new(NoData);
    let hits = |core: &mut Core, front: &mut Front<NoData>, blocks: std::ops::Range<u64>| {
        let before = core.stats(DiskId(0)).hit_blocks;
        for b in blocks {
            read(core, front, 0, b * 3, 1);
        }
        core.stats(DiskId(0)).hit_blocks - before
    };
    hits(&mut core, &mut front, 0..4000);
    // Down to the half and up again, a tenth at a time: the youngest stay, and come back within the same slots.
    for blocks in [3600, 3200, 2800, 2400, 2000] {
        core.set_share(DiskId(0), blocks).unwrap();
        while core.stats(DiskId(0)).cached_blocks > u64::from(blocks) {
            core.apply(Event::Tick, 0, &mut front);
        }
        check_ceiling(&core);
        assert!(core.slots(DiskId(0)) == 4000, "no step down to the half rebuilds");
    }
    let kept = core.stats(DiskId(0)).cached_blocks;
    assert!((1950..=2000).contains(&kept), "2000 blocks less what 2000 empty slots cost: {kept}");
    assert_eq!(hits(&mut core, &mut front, 4000 - kept..4000), kept);
    core.set_share(DiskId(0), 4000).unwrap();
    assert_eq!(core.slots(DiskId(0)), 4000);
    hits(&mut core, &mut front, 0..4000);
    assert_eq!(core.stats(DiskId(0)).cached_blocks, 4000);
    // Past its slots it gets a quarter more than it needs; far below them they go.
    core.set_share(DiskId(0), 4400).unwrap();
    front.tick(&mut core, 0);
    assert_eq!(core.slots(DiskId(0)), 5500);
    core.set_share(DiskId(0), 1000).unwrap();
    front.tick(&mut core, 0);
    assert_eq!(core.slots(DiskId(0)), 1250);
    core.check();
}

#[test]
fn memory_of_a_smaller_capacity_goes_back_to_the_kernel() {
    let mut core = Core::new(CoreOptions::new(64 << 20)).unwrap();
    core.add_disk(DiskId(0), options(PolicyKind::Sieve, 8000)).unwrap();
    let mut front = Front::new(NoData);
    for i in 0..200 {
        read(&mut core, &mut front, 0, i * 64, 64);
    }
    let full = core.memory().frames_bytes;
    assert!(full >= 8000 * B);
    core.set_capacity(DiskId(0), 1000).unwrap();
    for seconds in 0..20 {
        // Blocks read ahead and not used go in time, too.
        front.tick(&mut core, seconds * 1_000_000_000);
    }
    assert_eq!(core.stats(DiskId(0)).cached_blocks, 1000);
    let left = core.memory().frames_bytes;
    assert!(left <= (1000 + 2048 + limits::LATER_MAX as u64) * B, "{left} bytes are still committed of {full}");
}

#[test]
fn what_was_promised_is_given_back_in_bounded_steps_without_ticks() {
    let mut core = Core::new(CoreOptions::new(64 << 20)).unwrap();
    core.add_disk(DiskId(0), options(PolicyKind::S3Fifo, 4000)).unwrap();
    core.add_disk(DiskId(1), options(PolicyKind::Lru, 4000)).unwrap();
    let mut front = Front::new(NoData);
    for i in 0..125 {
        read(&mut core, &mut front, i % 2, u64::from(i / 2) * 64, 64);
    }
    let cached = |core: &Core| core.stats(DiskId(0)).cached_blocks + core.stats(DiskId(1)).cached_blocks;
    assert_eq!(core.give_back(1 << 20), 0, "nothing is over");
    core.set_limit(DiskId(0), 1000);
    core.set_limit(DiskId(1), 500);
    let mut left = core.give_back(0);
    assert!(left > 0);
    for _ in 0..100 {
        let (before, frames) = (cached(&core), core.memory().frames_bytes);
        left = core.give_back(100);
        assert!(before - cached(&core) <= 100 && frames - core.memory().frames_bytes <= 100 * B, "a step too large");
        core.check();
        if left == 0 {
            break;
        }
    }
    assert_eq!((left, cached(&core)), (0, 1500));
    assert!(core.memory().frames_bytes <= (1500 + 2 * 2048) * B);
}

#[test]
fn a_limit_takes_memory_away_and_gives_it_back_without_losing_what_is_kept() {
    for policy in PolicyKind::ALL {
        let mut core = Core::new(CoreOptions::new(64 << 20)).unwrap();
        core.add_disk(DiskId(0), options(policy, 8000)).unwrap();
        let mut front = Front::new(NoData);
        let mut now_ns = 0;
        let mut ticks = |core: &mut Core, front: &mut Front<NoData>| {
            for _ in 0..40 {
                now_ns += 1_000_000_000;
                front.tick(core, now_ns);
            }
        };
        for i in 0..125 {
            read(&mut core, &mut front, 0, i * 64, 64);
        }
        core.set_limit(DiskId(0), 3000);
        ticks(&mut core, &mut front);
        let stats = core.stats(DiskId(0));
        assert_eq!((stats.cached_blocks, stats.limit_blocks, stats.capacity_blocks), (3000, 3000, 8000), "{policy}");
        assert!(core.memory().frames_bytes <= (3000 + 2048 + limits::LATER_MAX as u64) * B);
        let mut kept = Vec::new();
        core.for_each_cached(DiskId(0), |block, _| kept.push(block));
        for i in 200..300 {
            read(&mut core, &mut front, 0, i * 64, 64);
            assert!(core.stats(DiskId(0)).cached_blocks <= 3000, "{policy}: the limit holds");
        }
        core.check();
        core.set_limit(DiskId(0), u32::MAX);
        let before = core.stats(DiskId(0)).cached_blocks;
        for i in 300..400 {
            read(&mut core, &mut front, 0, i * 64, 64);
        }
        assert!(core.stats(DiskId(0)).cached_blocks > before, "{policy}: and ends");
        core.set_limit(DiskId(0), 0);
        ticks(&mut core, &mut front);
        read(&mut core, &mut front, 0, 0, 64);
        assert_eq!(core.stats(DiskId(0)).cached_blocks, 0, "{policy}");
        core.check();
    }
}

#[test]
fn what_the_planner_says_fits_fits() {
    for (mib, disks) in [(4, 1), (16, 3), (64, 8)] {
        let o = CoreOptions::new(mib << 20);
        let blocks = blocks_per_disk_max(&o, disks, 1 << 20);
        assert!(blocks > 0);
        let mut core = Core::new(o).unwrap();
        for d in 0..disks {
            core.add_disk(DiskId(d), options(PolicyKind::Arc, blocks)).unwrap_or_else(|e| panic!("{mib} MiB: {e}"));
        }
        core.check();
    }
}

#[test]
fn a_disk_that_does_not_fit_is_refused_with_the_sizes() {
    let mut core = Core::new(CoreOptions::new(8 << 20)).unwrap();
    let err = core.add_disk(DiskId(0), options(PolicyKind::Arc, 100_000)).unwrap_err().to_string();
    assert!(err.contains("MiB") && err.contains("fewer blocks"), "{err}");
    assert!(matches!(core.set_capacity(DiskId(3), 1), Err(AddDiskError::Unknown(DiskId(3)))));
}

#[test]
fn a_meter_tells_what_reads_would_be_worth_and_comes_out_of_the_share() {
    // The sample is by hash: always the same one.
    let mut core = Core::new(CoreOptions { hash_seed: 1, ..CoreOptions::new(64 << 20) }).unwrap();
    let o = DiskOptions { readahead_bytes: 0, ..options(PolicyKind::Lru, 2000) };
    core.add_disk(DiskId(0), o).unwrap();
    assert!(core.telemetry(DiskId(0)).is_none(), "nobody asked for it");
    core.measure(DiskId(0), Some(16_384));
    let mut front = Front::new(NoData);
    // A loop over 3000 blocks: none of it hits with 2000 blocks, all of it would with 3000.
    for i in 0..60_000u64 {
        read(&mut core, &mut front, 0, i % 3000 * 7, 1);
        check_ceiling(&core);
    }
    let seen = core.telemetry(DiskId(0)).unwrap();
    assert_eq!((seen.requests, seen.misses, seen.ahead), (60_000, 60_000, 0));
    // One block of 48 is sampled: of 3000 blocks, 63 with a standard deviation of 8. Three of those are 1134 blocks.
    assert!((1866..=4134).contains(&seen.distinct), "{} distinct blocks", seen.distinct);
    assert!(seen.curve.miss_ratio_at(2000) > 0.95 && seen.curve.miss_ratio_at(4000) < 0.15, "{:?}", seen.curve);
    // With a share that holds the loop it hits, and the next interval says so of itself.
    core.set_share(DiskId(0), 3600).unwrap();
    for i in 0..6000u64 {
        read(&mut core, &mut front, 0, i % 3000 * 7, 1);
    }
    let seen = core.telemetry(DiskId(0)).unwrap();
    assert_eq!((seen.requests, seen.misses), (6000, core.stats(DiskId(0)).miss_blocks - 60_000));
    assert!(seen.misses <= 3000);
    core.measure(DiskId(0), None);
    assert!(core.telemetry(DiskId(0)).is_none());
    core.check();
}

#[test]
fn what_a_disk_keeps_does_not_depend_on_how_much_it_was_measured() {
    let mut core = Core::new(CoreOptions { hash_seed: 1, ..CoreOptions::new(64 << 20) }).unwrap();
    let o = DiskOptions { readahead_bytes: 0, ..options(PolicyKind::Lru, 2000) };
    core.add_disk(DiskId(0), o).unwrap();
    core.measure(DiskId(0), Some(16_384));
    let mut front = Front::new(NoData);
    let kept = |core: &Core| core.stats(DiskId(0)).cached_blocks;
    (0..2000).for_each(|block| read(&mut core, &mut front, 0, block, 1));
    let first = kept(&core);
    assert!((1900..2000).contains(&first), "{first} blocks: the meter takes a few of 2000");
    // ever more blocks are in the meter's sample
    for from in [2000, 6000, 12_000, 20_000] {
        (from..from + 4000).for_each(|block| read(&mut core, &mut front, 0, block, 1));
        core.telemetry(DiskId(0)).unwrap();
        assert_eq!(kept(&core), first, "after {from} blocks");
    }
    core.measure(DiskId(0), None);
    (0..2000).for_each(|block| read(&mut core, &mut front, 0, block, 1));
    assert_eq!(kept(&core), 2000);
    core.check();
}
