//! One load on one disk, and the very same load split over several disks that keep their blocks together: the daemon's
//! data path misses as often, under every policy.

use undercroft_cache::{
    ContentKey, Core, CoreOptions, DiskId, DiskOptions, Geometry, IoNeeds, Op, blocks_per_disk_max,
};
use undercroft_engine::{ExclusiveMode, PolicyKind};
use undercroft_skips::by_length;
use undercroft_testkit::front::{Front, NoData, block_request};
use undercroft_trace::synth::Zipf;

/// Blocks of the load: 320 MiB.
const BLOCKS: u32 = 80 * 1024;
/// Bytes of the store: a fifth of that. Operations take 1.5 MiB of it: of one disk, or of all disks of a pool.
const STORE_BYTES: u64 = 64 << 20;
const READS: usize = 200_000;

/// Reads after which the hot blocks are another disk's.
const PERIOD: usize = 1000;

/// The disk and the block of the `n`th read, of `key`.
fn place(n: usize, key: u64, disks: u32, period: usize) -> (u64, u64) {
    // The load is not spread evenly: of the reads of a period most are of one disk.
    let hot = (n / period) as u64 % u64::from(disks);
    let disk = if key % 8 < 5 { hot } else { key % u64::from(disks) };
    (disk, (key - 1) * 37 % u64::from(BLOCKS))
}

/// Misses of the first half of the load, and of all of it, if it is split over `disks` disks. Without `pooled` each
/// keeps its part to itself.
fn misses(policy: PolicyKind, disks: u32, pooled: bool, period: usize) -> [u64; 2] {
    let options = CoreOptions { hash_seed: 5, content_key: ContentKey::from_seed(5), ..CoreOptions::new(STORE_BYTES) };
    let io_disks = if pooled { disks } else { 1 };
    let blocks = blocks_per_disk_max(&options, disks, IoNeeds { readahead_bytes: 0, disks: io_disks });
    let mut core = Core::new(options).unwrap();
    for d in 0..disks {
        let options = DiskOptions::new(&Geometry::new(u64::from(BLOCKS) * 4096), policy, blocks);
        core.add_disk(DiskId(d), DiskOptions { exclusive: ExclusiveMode::Off, io_disks, ..options }).unwrap();
    }
    for d in (1..disks).filter(|_| pooled) {
        core.join_pool(DiskId(d), DiskId(0)).unwrap();
    }
    let mut front = Front::new(NoData);
    let all = |core: &Core| (0..disks).map(|d| core.stats(DiskId(d)).miss_blocks).sum::<u64>();
    let mut half = 0;
    for (n, key) in Zipf::new(BLOCKS, 0.8, 7).take(READS).enumerate() {
        let (disk, block) = place(n, key, disks, period);
        front.run(&mut core, block_request(DiskId(disk as u32), Op::Read, block, 1), |_| {});
        if n == READS / 2 {
            half = all(&core);
        }
    }
    core.check();
    [half, all(&core)]
}

/// The same load on one disk that has a place for each block of each disk.
fn on_one(policy: PolicyKind, disks: u32) -> [u64; 2] {
    let options = CoreOptions { hash_seed: 5, content_key: ContentKey::from_seed(5), ..CoreOptions::new(STORE_BYTES) };
    let blocks = blocks_per_disk_max(&options, 1, 0);
    let mut core = Core::new(options).unwrap();
    let size = u64::from(disks * BLOCKS) * 4096;
    let one = DiskOptions::new(&Geometry::new(size), policy, blocks);
    core.add_disk(DiskId(0), DiskOptions { exclusive: ExclusiveMode::Off, ..one }).unwrap();
    let mut front = Front::new(NoData);
    let mut half = 0;
    for (n, key) in Zipf::new(BLOCKS, 0.8, 7).take(READS).enumerate() {
        let (disk, block) = place(n, key, disks, PERIOD);
        let block = disk * u64::from(BLOCKS) + block;
        front.run(&mut core, block_request(DiskId(0), Op::Read, block, 1), |_| {});
        if n == READS / 2 {
            half = core.stats(DiskId(0)).miss_blocks;
        }
    }
    [half, core.stats(DiskId(0)).miss_blocks]
}

#[test]
fn a_load_split_over_disks_misses_as_often_as_on_one() {
    for policy in PolicyKind::ALL {
        for &disks in by_length(&[4][..], &[2, 4][..]) {
            let (one, split) = (on_one(policy, disks), misses(policy, disks, true, PERIOD));
            for (one, split) in one.into_iter().zip(split) {
                println!("{policy} {disks}: {one} {split} {:.3}", split as f64 / one as f64);
                assert!(split * 100 <= one * 101, "{policy}, {disks} disks: {split} misses, on one disk {one}");
            }
        }
    }
}

#[test]
fn apart_they_miss_more() {
    // All of the time most of the load is the first disk's.
    let of = |pooled| misses(PolicyKind::S3Fifo, 4, pooled, READS);
    let (together, apart) = (of(true), of(false));
    assert!(apart[1] * 100 > together[1] * 105, "{apart:?}, together {together:?}: the load does not show it");
}
