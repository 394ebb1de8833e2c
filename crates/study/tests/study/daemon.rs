//! Recordings replayed through the daemon's data path: what it finds is what the index alone finds where nothing else
//! plays a part, and no recording makes it panic.

use proptest::prelude::*;
use std::path::PathBuf;
use undercroft_engine::{Access, Index, Outcome, PolicyKind};
use undercroft_study::sim::Go;
use undercroft_study::sim::daemon::{DaemonOptions, DaemonReplay, DaemonTiming, replay};
use undercroft_trace::recording::{
    DiskEnd, RecordedDisk, RecordedFailure, RecordedLocks, RecordedOp, Recording, RecordingHeader, RecordingWriter,
    Row, Trailer, VERSION,
};
use undercroft_trace::synth::Zipf;

const CAPACITY: u64 = 200;
const BLOCK: u64 = 4096;

fn header() -> RecordingHeader {
    let disk = RecordedDisk {
        name: "web:root".into(),
        size_bytes: 4000 * BLOCK,
        policy: "s3-fifo".into(),
        capacity_blocks: CAPACITY,
        write_allocate: true,
        exclusive: "off".into(),
        ..RecordedDisk::default()
    };
    RecordingHeader { format: VERSION, block_bytes: 4096, sample: 1, disks: vec![disk], ..RecordingHeader::default() }
}

fn row(op: RecordedOp, offset_bytes: u64, length_bytes: u64, time_ns: u64) -> Row {
    Row {
        time_ns,
        disk: 0,
        client: 1,
        op,
        offset_bytes,
        length_bytes,
        hit_blocks: 0,
        ahead_blocks: 0,
        joined_blocks: 0,
        miss_blocks: 0,
        latency_ns: Some(50_000),
        failure: None,
    }
}

fn recorded(dir: &tempfile::TempDir, header: &RecordingHeader, rows: &[Row]) -> PathBuf {
    let path = dir.path().join("x.parquet");
    let mut writer =
        RecordingWriter::new(std::fs::File::create(&path).expect("a file"), header.clone()).expect("a header");
    rows.chunks(1000).for_each(|some| writer.write(some).expect("rows"));
    let of = |d: &RecordedDisk| DiskEnd {
        policy: d.policy.clone(),
        capacity_blocks: d.capacity_blocks,
        ..DiskEnd::default()
    };
    let disks = header.disks.iter().map(of).collect();
    writer.finish(Trailer { disks, reason: "stopped".into(), ..Trailer::default() }).expect("an end");
    path
}

fn replayed(header: &RecordingHeader, rows: &[Row], options: &DaemonOptions) -> DaemonReplay {
    let dir = tempfile::tempdir().expect("a place");
    let mut recording = Recording::open(recorded(&dir, header, rows)).expect("a recording");
    replay(&mut recording, options, &mut |_| Go::On).expect("it runs")
}

/// Reads of one block to a few, 1 ms apart.
fn reads(n: usize) -> Vec<Row> {
    let blocks = Zipf::new(3900, 0.9, 5).take(n);
    blocks
        .enumerate()
        .map(|(i, b)| row(RecordedOp::Read, b * BLOCK, (1 + b % 4) * BLOCK, i as u64 * 1_000_000))
        .collect()
}

#[test]
fn reads_one_after_the_other_find_what_the_index_finds() {
    let rows = reads(20_000);
    for timing in [DaemonTiming::Recorded, DaemonTiming::OneByOne] {
        for policy in PolicyKind::ALL {
            let options = DaemonOptions { policy: Some(policy), timing, ..DaemonOptions::default() };
            let done = replayed(&header(), &rows, &options);
            let mut index = Index::new(policy, CAPACITY as u32);
            let blocks = rows.iter().flat_map(|r| r.offset_bytes / BLOCK..(r.offset_bytes + r.length_bytes) / BLOCK);
            let mut counts = [0u64; 2];
            for block in blocks {
                let hit = matches!(index.access(block, Access::Read, |_| true), Outcome::Hit(_));
                counts[usize::from(hit)] += 1;
            }
            let disk = &done.disks[0];
            assert_eq!([disk.simulated.miss_blocks, disk.simulated.hit_blocks], counts, "{policy}");
            assert_eq!((disk.requests, disk.reads, disk.left_out, done.rows), (20_000, 20_000, 0, 20_000));
            assert_eq!(disk.simulated.blocks(), counts[0] + counts[1]);
            assert!(done.broken.is_none() && !done.stopped);
        }
    }
}

#[test]
fn what_overlaps_is_joined_as_recorded() {
    // Two reads of one block 10 us apart, with 50 us to the reply: the second joins the first.
    let rows: Vec<Row> = (0..10).map(|i| row(RecordedOp::Read, i / 2 * BLOCK, BLOCK, i * 10_000)).collect();
    let found =
        |timing| replayed(&header(), &rows, &DaemonOptions { timing, ..DaemonOptions::default() }).disks.remove(0);
    let overlapping = found(DaemonTiming::Recorded).simulated;
    assert_eq!((overlapping.miss_blocks, overlapping.joined_blocks, overlapping.hit_blocks), (5, 5, 0));
    let alone = found(DaemonTiming::OneByOne).simulated;
    assert_eq!((alone.miss_blocks, alone.joined_blocks, alone.hit_blocks), (5, 0, 5));
}

#[test]
fn writes_discards_and_failures_do_what_they_do_in_the_daemon() {
    let mut rows = vec![
        row(RecordedOp::Write, 0, BLOCK, 0),
        row(RecordedOp::Read, 0, BLOCK, 1_000_000),
        row(RecordedOp::Discard, 0, BLOCK, 2_000_000),
        row(RecordedOp::Read, 0, BLOCK, 3_000_000),
        row(RecordedOp::Flush, 0, 0, 4_000_000),
        row(RecordedOp::Write, 8 * BLOCK + 512, 512, 5_000_000),
        Row { failure: Some(RecordedFailure::Io), ..row(RecordedOp::Read, 0, BLOCK, 6_000_000) },
        row(RecordedOp::Read, 3999 * BLOCK, 2 * BLOCK, 7_000_000),
    ];
    rows[1].hit_blocks = 1;
    rows[3].miss_blocks = 1;
    let done = replayed(&header(), &rows, &DaemonOptions::default());
    let disk = &done.disks[0];
    assert_eq!((disk.simulated, disk.reads, disk.equal_reads), (disk.recorded, 2, 2));
    assert_eq!(disk.left_out, 2, "the one that failed, and the one past the end");
    assert_eq!(done.doubts, Vec::<String>::new());
}

#[test]
fn doubts_and_impossible_disks_are_told() {
    let mut header = header();
    header.sample = 8;
    header.disks[0].cached_blocks = 5;
    header.disks[0].shares_content = true;
    header.disks[0].exclusive = "auto".into();
    let doubts = replayed(&header, &reads(10), &DaemonOptions::default()).doubts.join("\n");
    for needle in ["one of 8 blocks", "not empty", "equal content", "exclusive of the guest's"] {
        assert!(doubts.contains(needle), "{needle}: {doubts}");
    }
    let refused = |change: &dyn Fn(&mut RecordingHeader)| {
        let dir = tempfile::tempdir().expect("a place");
        let mut header = header.clone();
        change(&mut header);
        let mut recording = Recording::open(recorded(&dir, &header, &[])).expect("a recording");
        replay(&mut recording, &DaemonOptions::default(), &mut |_| Go::On).expect_err("refused").to_string()
    };
    assert!(refused(&|h| h.disks[0].policy = "lur".into()).contains("known are fifo"));
    assert!(refused(&|h| h.disks[0].capacity_blocks = 1 << 40).contains("smaller"));
    assert!(refused(&|h| h.disks[0].size_bytes = u64::MAX).contains("8EiB"));
    assert!(refused(&|h| h.block_bytes = 512).contains("512 bytes"));
}

/// Settings of locks as the daemon writes them.
fn locks(mode: &str) -> RecordedLocks {
    RecordedLocks { mode: mode.into(), budget_permille: 500, ..RecordedLocks::default() }
}

#[test]
fn pins_that_do_not_fit_a_smaller_cache_are_pinned_as_far_as_they_do() {
    let mut header = header();
    // They touch 93 blocks: the first range begins and ends within one.
    let pins = vec![(1000, 31 * BLOCK), (100 * BLOCK, 30 * BLOCK), (200 * BLOCK, 31 * BLOCK)];
    header.disks[0].locks = RecordedLocks { pins, ..locks("off") };
    // Each pinned block, and then many others, and the pinned ones again.
    let one = |block: u64, n: usize| row(RecordedOp::Read, block * BLOCK, BLOCK, n as u64 * 1_000_000);
    let pinned = || (0..32).chain(100..130).chain(200..231);
    let blocks = pinned().chain(1000..3000).chain(pinned());
    let rows: Vec<Row> = blocks.enumerate().map(|(n, block)| one(block, n)).collect();
    let hits = |options: &DaemonOptions| {
        let done = replayed(&header, &rows, options);
        (done.disks[0].simulated.hit_blocks, done.doubts)
    };
    let (whole, doubts) = hits(&DaemonOptions { policy: Some(PolicyKind::Lru), ..DaemonOptions::default() });
    assert_eq!((whole, doubts), (93, vec![]));
    let small = DaemonOptions { capacity_blocks: Some(100), policy: Some(PolicyKind::Lru), ..DaemonOptions::default() };
    let (fewer, doubts) = hits(&small);
    assert!((45..=50).contains(&fewer), "{fewer}");
    assert!(doubts.len() == 1 && doubts[0].contains("of them are pinned"), "{doubts:?}");
    // There is a cache, but none of it may be locked.
    let (none, doubts) = hits(&DaemonOptions { capacity_blocks: Some(1), ..small });
    assert_eq!((none, doubts.len()), (0, 1), "{doubts:?}");
}

#[test]
fn what_a_recording_does_not_say_of_locks_is_told() {
    let doubts = |change: &dyn Fn(&mut RecordingHeader)| {
        let mut header = header();
        change(&mut header);
        replayed(&header, &reads(10), &DaemonOptions::default()).doubts.join("\n")
    };
    assert_eq!(doubts(&|h| h.disks[0].locks = locks("online")), "");
    let warm = doubts(&|h| {
        h.disks[0].locks = locks("online");
        h.disks[0].cached_blocks = 5;
    });
    assert!(warm.contains("had counted and locked before"), "{warm}");
    let large = doubts(&|h| {
        h.disks[0].locks = locks("online");
        h.disks[0].capacity_blocks = 5000;
    });
    assert!(large.contains("watches a sample of the blocks"), "{large}");
    let pool = doubts(&|h| {
        h.disks[0].together_with = Some("web:root".into());
        h.disks[0].locks = locks("off");
        let second = RecordedDisk { name: "web:data".into(), ..h.disks[0].clone() };
        h.disks.push(second);
        h.disks[1].locks.budget_permille = 100;
    });
    assert_eq!(pool.matches("those hold that were set last").count(), 2, "{pool}");
    let bad = RecordedLocks { mode: "lines".into(), ..locks("off") };
    let dir = tempfile::tempdir().expect("a place");
    let mut header = header();
    header.disks[0].locks = bad;
    let mut recording = Recording::open(recorded(&dir, &header, &[])).expect("a recording");
    let refused = replay(&mut recording, &DaemonOptions::default(), &mut |_| Go::On).expect_err("no such mode");
    assert!(refused.to_string().contains("known are off, static, online"), "{refused}");
}

#[test]
fn it_stops_when_told() {
    let dir = tempfile::tempdir().expect("a place");
    let mut recording = Recording::open(recorded(&dir, &header(), &reads(5000))).expect("a recording");
    let done = replay(&mut recording, &DaemonOptions::default(), &mut |_| Go::Stop).expect("it runs");
    assert!(done.stopped && done.rows == 1000 && done.disks[0].requests == 1000, "{done:?}");
}

fn any_row() -> impl Strategy<Value = Row> {
    let op = prop::sample::select(RecordedOp::ALL.to_vec());
    // Mostly what can be, and now and then anything.
    let offset = prop_oneof![8 => 0..4100 * BLOCK, 1 => any::<u64>()];
    let length = prop_oneof![8 => 0..80 * BLOCK, 1 => any::<u64>()];
    let time = prop_oneof![8 => 0..20_000_000u64, 1 => any::<u64>()];
    let end = (
        prop::option::of(any::<u64>()),
        prop::option::weighted(0.1, prop::sample::select(RecordedFailure::ALL.to_vec())),
    );
    (op, offset, length, time, end).prop_map(|(op, offset, length, time, (latency_ns, failure))| Row {
        latency_ns,
        failure,
        ..row(op, offset, length, time)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn no_recording_makes_it_panic(
        rows in prop::collection::vec(any_row(), 0..300),
        readahead in 0u64..1 << 20,
        alone: bool,
    ) {
        let mut header = header();
        header.disks[0].readahead_bytes = readahead;
        let timing = if alone { DaemonTiming::OneByOne } else { DaemonTiming::Recorded };
        let done = replayed(&header, &rows, &DaemonOptions { timing, ..DaemonOptions::default() });
        let disk = &done.disks[0];
        prop_assert_eq!(done.rows, rows.len() as u64);
        prop_assert!(disk.requests <= done.rows && disk.reads <= disk.requests);
        prop_assert!(
            done.doubts.iter().all(|d| !d.contains("had no answer")),
            "every request is answered: {:?}",
            done.doubts
        );
    }
}
