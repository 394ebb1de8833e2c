//! Recordings, written and read back; damaged, cut short, and no recordings at all.

use bytes::Bytes;
use proptest::prelude::*;
use std::io::Write;
use undercroft_trace::recording::{
    DISKS_MAX, DiskEnd, GROUP_ROWS, Gap, RecordedDisk, RecordedFailure, RecordedOp, Recording, RecordingHeader,
    RecordingWriter, Row, Trailer, VERSION, in_sample,
};
use undercroft_trace::{Access, AccessKind, Format, TraceError, TraceReader};

fn header(disks: usize, sample: u32) -> RecordingHeader {
    let disk = |n: usize| RecordedDisk {
        name: format!("vm{n}:root"),
        vm: n.is_multiple_of(2).then(|| format!("vm{n}")),
        container: n.is_multiple_of(3).then(|| "shop".to_string()),
        size_bytes: 1 << 30,
        align_bytes: 512,
        policy: "s3-fifo".into(),
        capacity_blocks: 1000 + n as u64,
        ..RecordedDisk::default()
    };
    RecordingHeader {
        format: VERSION,
        version: "0.1.0".into(),
        started_unix_ns: u64::MAX,
        block_bytes: 4096,
        store_bytes: 1 << 30,
        sample,
        disks: (0..disks).map(disk).collect(),
    }
}

fn row(disks: u16) -> impl Strategy<Value = Row> {
    let op = prop::sample::select(RecordedOp::ALL.to_vec());
    let counts = (any::<u32>(), any::<u32>(), any::<u32>(), 0..3u32);
    let end = (any::<Option<u64>>(), prop::option::of(prop::sample::select(RecordedFailure::ALL.to_vec())));
    (any::<u64>(), 0..disks, any::<u32>(), op, any::<u64>(), any::<u64>(), counts, end).prop_map(
        |(time_ns, disk, client, op, offset_bytes, length_bytes, counts, (latency_ns, failure))| Row {
            time_ns,
            disk,
            client,
            op,
            offset_bytes,
            length_bytes,
            hit_blocks: counts.0,
            ahead_blocks: counts.1,
            joined_blocks: counts.2,
            miss_blocks: counts.3,
            latency_ns,
            failure,
        },
    )
}

fn write(header: &RecordingHeader, groups: &[Vec<Row>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = RecordingWriter::new(&mut bytes, header.clone()).expect("a header");
    for rows in groups {
        let bound = writer.bytes_bound(rows.len());
        writer.write(rows).expect("rows");
        assert!(writer.bytes_bound(0) <= bound, "a row group takes more than the bound that was said before");
    }
    let bound = writer.bytes_bound(0);
    let disks = vec![DiskEnd::default(); header.disks.len()];
    let gaps = vec![Gap { worker: u32::MAX, from_ns: u64::MAX, to_ns: u64::MAX, dropped: u64::MAX }; 256];
    let length =
        writer.finish(Trailer { disks, gaps, reason: "stopped".into(), ..Trailer::default() }).expect("an end");
    assert_eq!(length, bytes.len() as u64);
    assert!(length <= bound, "the file has {length} bytes, more than the {bound} that were said before");
    bytes
}

fn read(bytes: Vec<u8>) -> Result<Vec<Vec<Row>>, TraceError> {
    let mut recording = Recording::of_bytes(Bytes::from(bytes), "the.parquet")?;
    let mut groups = Vec::new();
    while let Some(rows) = recording.next_group()? {
        groups.push(rows);
    }
    Ok(groups)
}

fn plain(time_ns: u64, op: RecordedOp, block: u64, blocks: u64) -> Row {
    let (offset_bytes, length_bytes) = (block * 4096, blocks * 4096);
    let hit_blocks = if op == RecordedOp::Read { blocks as u32 } else { 0 };
    Row {
        time_ns,
        disk: 0,
        client: 3,
        op,
        offset_bytes,
        length_bytes,
        hit_blocks,
        ahead_blocks: 0,
        joined_blocks: 0,
        miss_blocks: 0,
        latency_ns: None,
        failure: None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_written_is_read(groups in prop::collection::vec(prop::collection::vec(row(5), 1..200), 0..4)) {
        let bytes = write(&header(5, 1), &groups);
        prop_assert_eq!(read(bytes).expect("a sound file"), groups);
    }

    /// Every byte that is changed either shows, or changes nothing that is read.
    #[test]
    fn changed_bytes_show(at: prop::sample::Index, with in 1..=255u8) {
        let groups: Vec<_> = (0..3)
            .map(|g| (0..50).map(|i| plain(g * 50 + i, RecordedOp::Read, i * 77 % 1000, 1 + i % 3)).collect())
            .collect();
        let mut bytes = write(&header(2, 1), &groups);
        let at = at.index(bytes.len());
        bytes[at] ^= with;
        if let Ok(found) = read(bytes) {
            prop_assert_eq!(found, groups);
        }
    }

    #[test]
    fn a_file_cut_short_is_an_error(at: prop::sample::Index) {
        let bytes = write(&header(1, 1), &[vec![plain(1, RecordedOp::Read, 0, 1); 20]]);
        let short = bytes[..at.index(bytes.len())].to_vec();
        let e = read(short).expect_err("a part of a file").to_string();
        prop_assert!(e.contains("the.parquet"), "{}", e);
    }
}

#[test]
fn full_groups_of_many_disks_keep_to_the_bound() {
    let rows = |seed: u64| -> Vec<Row> {
        (0..GROUP_ROWS as u64)
            .map(|i| {
                let noise =
                    (i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                Row {
                    disk: (noise % DISKS_MAX as u64) as u16,
                    client: noise as u32,
                    offset_bytes: noise,
                    length_bytes: noise.rotate_left(9),
                    time_ns: noise.rotate_left(19),
                    hit_blocks: (noise >> 3) as u32,
                    ahead_blocks: (noise >> 13) as u32,
                    joined_blocks: (noise >> 23) as u32,
                    miss_blocks: (noise >> 33) as u32,
                    latency_ns: Some(noise.rotate_left(39)),
                    failure: Some(RecordedFailure::ALL[(noise % 7) as usize]),
                    op: RecordedOp::ALL[(noise % 5) as usize],
                }
            })
            .collect()
    };
    let groups = [rows(1), rows(2)];
    assert_eq!(read(write(&header(DISKS_MAX, 1), &groups)).expect("a sound file"), groups);
}

#[test]
fn accesses_are_blocks_of_reads_writes_and_zeroes() {
    let rows = vec![
        plain(5, RecordedOp::Read, 10, 2),
        plain(6, RecordedOp::Flush, 0, 0),
        plain(7, RecordedOp::Discard, 0, 100),
        Row { disk: 1, offset_bytes: 4095, length_bytes: 2, ..plain(8, RecordedOp::Write, 0, 1) },
        Row { failure: Some(RecordedFailure::Io), ..plain(9, RecordedOp::Read, 3, 1) },
        plain(10, RecordedOp::WriteZeroes, 7, 1),
    ];
    let access =
        |time_ns, block: u64, bytes, kind| Access { time_ns, block, bytes, tenant: (block >> 51) as u16, kind };
    let expected = vec![
        access(5, 10, 8192, AccessKind::Read),
        access(5, 11, 8192, AccessKind::Read),
        access(8, 1 << 51, 2, AccessKind::Write),
        access(8, (1 << 51) + 1, 2, AccessKind::Write),
        access(10, 7, 4096, AccessKind::Write),
    ];
    let bytes = write(&header(2, 1), &[rows]);
    let all = |r: TraceReader<'_>| r.collect::<Result<Vec<_>, _>>().expect("a sound trace");
    assert_eq!(all(TraceReader::new(&bytes[..], "stream", Format::Recording).expect("a recording")), expected);
    // A file is known by its content, whatever its name says.
    let mut file = tempfile::Builder::new().suffix(".lis").tempfile().expect("a file");
    file.write_all(&bytes).expect("written");
    assert_eq!(all(TraceReader::open(file.path()).expect("a recording")), expected);
    let packed = zstd::encode_all(&bytes[..], 1).expect("zstd");
    let mut file = tempfile::Builder::new().suffix(".parquet.zst").tempfile().expect("a file");
    file.write_all(&packed).expect("written");
    assert_eq!(all(TraceReader::open(file.path()).expect("a recording")), expected);
}

#[test]
fn of_a_sample_only_its_blocks_are_accesses() {
    let bytes = write(&header(1, 8), &[vec![plain(1, RecordedOp::Read, 0, 4096)]]);
    let blocks: Vec<u64> = TraceReader::new(&bytes[..], "s", Format::Recording)
        .expect("a recording")
        .map(|a| a.expect("sound").block)
        .collect();
    let wanted: Vec<u64> = (0..4096).filter(|&b| in_sample(b, 8)).collect();
    assert_eq!(blocks, wanted);
    assert!((400..625).contains(&blocks.len()), "{} of 4096 blocks are an eighth", blocks.len());
    assert_eq!((0..1000).filter(|&b| in_sample(b, 1)).count(), 1000);
}

#[test]
fn what_is_no_recording_says_so() {
    for (bytes, needle) in [
        (b"".to_vec(), "no Parquet file"),
        (b"7 2 0 0\n".repeat(9), "no Parquet file"),
        (b"PAR1 and then nothing of use".to_vec(), "cut short"),
        ([b"PAR1".as_slice(), &[0xFF; 40], &100u32.to_le_bytes(), b"PAR1"].concat(), "makes no sense"),
    ] {
        let e = read(bytes).expect_err("no recording").to_string();
        assert!(e.contains(needle), "{e}");
    }
    let other = RecordingHeader { format: 2, ..header(1, 1) };
    let e = read(write(&other, &[])).expect_err("of another version").to_string();
    assert!(e.contains("version 2"), "{e}");
}
