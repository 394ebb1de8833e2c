//! Every format, whole and damaged, compressed and not, in large pieces and byte by byte.

use std::io::{self, Read, Write};
use undercroft_trace::{Access, AccessKind, Format, TraceError, TraceReader};

fn read(bytes: &[u8], format: Format) -> Result<Vec<Access>, TraceError> {
    TraceReader::new(bytes, "the.trace", format)?.collect()
}

fn blocks(bytes: &[u8], format: Format) -> Vec<u64> {
    read(bytes, format).expect("a sound trace").iter().map(|a| a.block).collect()
}

fn message(bytes: &[u8], format: Format) -> String {
    read(bytes, format).expect_err("a damaged trace").to_string()
}

/// Gives one byte at a time, as a slow pipe may.
struct Trickle<'a>(&'a [u8]);

impl Read for Trickle<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = buf.len().min(1);
        self.0.read(&mut buf[..n])
    }
}

fn vscsi_1(command: u16, block: u64, bytes: u32, time_us: u64) -> Vec<u8> {
    let mut record = vec![];
    record.extend(7u32.to_le_bytes());
    record.extend(bytes.to_le_bytes());
    record.extend(1u32.to_le_bytes());
    record.extend(command.to_le_bytes());
    record.extend(0x0100u16.to_le_bytes());
    record.extend(block.to_le_bytes());
    record.extend(time_us.to_le_bytes());
    record
}

fn vscsi_2(command: u16, block: u64, bytes: u32, time_us: u64) -> Vec<u8> {
    let mut record = vec![];
    record.extend(command.to_le_bytes());
    record.extend(0x0200u16.to_le_bytes());
    record.extend(7u32.to_le_bytes());
    record.extend(bytes.to_le_bytes());
    record.extend(1u32.to_le_bytes());
    record.extend(block.to_le_bytes());
    record.extend(time_us.to_le_bytes());
    record.extend(123u64.to_le_bytes());
    record
}

#[test]
fn vscsi_of_both_versions() {
    for make in [vscsi_1, vscsi_2] {
        let bytes = [make(0x28, 1000, 512, 5), make(0x2A, 7, 8192, 9), make(0x12, 8, 0, 10)].concat();
        let expected = [
            Access { time_ns: 5_000, block: 1000, bytes: 512, tenant: 0, kind: AccessKind::Read },
            Access { time_ns: 9_000, block: 7, bytes: 8192, tenant: 0, kind: AccessKind::Write },
            Access { time_ns: 10_000, block: 8, bytes: 0, tenant: 0, kind: AccessKind::Unknown },
        ];
        assert_eq!(read(&bytes, Format::Vscsi).expect("sound"), expected);
    }
}

#[test]
fn arc_lis_unfolds_ranges_and_passes_over_empty_ones() {
    let text = b"110765 3 0 0\n\n5 0 0 1\r\n  9 1 0 2\n18446744073709551600 2 0 3";
    assert_eq!(
        blocks(text, Format::ArcLis),
        [110_765, 110_766, 110_767, 9, 18_446_744_073_709_551_600, 18_446_744_073_709_551_601]
    );
}

#[test]
fn u32le_and_oracle_general() {
    assert_eq!(blocks(&[0xCA, 0xCE, 0x0D, 0, 1, 0, 0, 0xFF], Format::U32Le), [0x000D_CECA, 0xFF00_0001]);
    let mut record = 3u32.to_le_bytes().to_vec();
    record.extend(0x0102_0304_0506_0708u64.to_le_bytes());
    record.extend(4096u32.to_le_bytes());
    record.extend((-1i64).to_le_bytes());
    let expected = Access {
        time_ns: 3_000_000_000,
        block: 0x0102_0304_0506_0708,
        bytes: 4096,
        tenant: 0,
        kind: AccessKind::Unknown,
    };
    assert_eq!(read(&record, Format::OracleGeneral).expect("sound"), [expected]);
}

#[test]
fn nothing_is_an_empty_trace() {
    // Parquet has at least its end.
    for format in Format::ALL.into_iter().filter(|&f| f != Format::Recording) {
        assert_eq!(read(b"", format).expect("sound"), []);
    }
}

#[test]
fn compression_is_told_by_the_first_bytes() {
    let plain: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    let expected: Vec<u64> = (0..100_000).collect();
    let zstd = zstd::encode_all(&plain[..], 3).expect("zstd");
    let mut xz = liblzma::write::XzEncoder::new(vec![], 3);
    xz.write_all(&plain).expect("xz");
    let xz = xz.finish().expect("xz");
    for bytes in [&plain, &zstd, &xz, &[&zstd[..], &zstd].concat(), &[&xz[..], &xz].concat()] {
        let times = if bytes.len() == 2 * zstd.len() || bytes.len() == 2 * xz.len() { 2 } else { 1 };
        assert_eq!(blocks(bytes, Format::U32Le), expected.repeat(times));
        let slowly: Result<Vec<_>, _> =
            TraceReader::new(Trickle(bytes), "pipe", Format::U32Le).expect("sound").collect();
        assert_eq!(slowly.expect("sound").len(), 100_000 * times);
        // a file cut short is said to be, wherever the cut is
        if bytes != &plain {
            assert!(read(&bytes[..bytes.len() - 9], Format::U32Le).is_err());
        }
    }
}

#[test]
fn errors_name_the_file_the_record_and_what_is_wrong() {
    let cut = [vscsi_1(0x28, 1, 512, 5), vscsi_1(0x28, 1, 512, 5)[..20].to_vec()].concat();
    let text = message(&cut, Format::Vscsi);
    for part in ["the.trace", "record 2", "byte 32", "ends after 20 of the record's 32 bytes"] {
        assert!(text.contains(part), "{text}");
    }
    let cut = vscsi_2(0x28, 1, 512, 5);
    assert!(
        message(&cut[..36], Format::Vscsi)
            .contains("record 1 at byte 0: the file ends after 36 of the record's 40 bytes")
    );
    let mixed = [vscsi_2(0x28, 1, 512, 5), vscsi_1(0x28, 1, 512, 5)].concat();
    assert!(message(&mixed, Format::Vscsi).contains("record 2 at byte 40: its version differs"));
    assert!(message(&[9; 32], Format::Vscsi).contains("neither version 1 nor 2"));

    assert!(message(b"1 1 0 0\n5 x 0 0\n", Format::ArcLis).contains("record 2 at byte 8: the count is \"x\""));
    assert!(message(b"-3 1 0 0\n", Format::ArcLis).contains("the start is \"-3\""));
    assert!(message(b"7\n", Format::ArcLis).contains("one number"));
    assert!(message(b"1 999999999 0 0\n", Format::ArcLis).contains("too many"));
    assert!(message(b"18446744073709551615 1 0 0\n", Format::ArcLis).contains("too many"));
    assert!(message(&[b'1'; 10_000], Format::ArcLis).contains("longer than 4096 bytes"));
    assert!(message(b"\xFF\xFE 1 0 0\n", Format::ArcLis).contains("\\xff"), "unprintable bytes are escaped");

    assert!(message(&[1, 2, 3, 4, 5], Format::U32Le).contains("record 2 at byte 4"));
    assert!(message(&[0; 25], Format::OracleGeneral).contains("record 2 at byte 24"));
    let damaged = [&[0x28, 0xB5, 0x2F, 0xFD][..], &[0xAA; 40]].concat();
    assert!(message(&damaged, Format::U32Le).contains("cannot read the trace the.trace at byte 0"));
}

#[test]
fn an_error_ends_the_trace() {
    let mut reader = TraceReader::new(&b"1 1 0 0\nx\n2 1 0 0\n"[..], "x", Format::ArcLis).expect("sound");
    assert!(reader.next().is_some_and(|a| a.is_ok()));
    assert!(reader.next().is_some_and(|a| a.is_err()));
    assert!(reader.next().is_none());
}

#[test]
fn files_open_by_name() {
    for (name, format) in [
        ("a/arc-P6.lis.zst", Format::ArcLis),
        ("X.VSCSI", Format::Vscsi),
        ("w106.u32le.xz", Format::U32Le),
        ("trace.oracleGeneral.zst", Format::OracleGeneral),
        ("trace.oracleGeneral.bin", Format::OracleGeneral),
    ] {
        assert_eq!(Format::of_path(name.as_ref()).expect("known"), format, "{name}");
    }
    let error = Format::of_path("trace.dat".as_ref()).expect_err("unknown").to_string();
    assert!(error.contains("trace.dat") && error.contains("vscsi, arc-lis, u32le, u64le, oracle-general"), "{error}");
    let missing = TraceReader::open("/nowhere/at/all.lis").err().expect("missing").to_string();
    assert!(missing.contains("cannot open the trace /nowhere/at/all.lis"), "{missing}");
}

/// The shared traces have as many accesses as the reference says, and the blocks are those it counts by.
#[test]
fn the_shared_traces_are_read_whole() {
    let Some(directory) = undercroft_skips::shared("traces/block") else { return };
    for (name, accesses, distinct) in [
        ("arc-OLTP.lis.zst", 914_145, 186_880),
        ("cloudPhysicsIO.vscsi", 113_872, 48_974),
        ("cloudphysics-w106.u32le.xz", 5_292_456, 275_171),
    ] {
        let mut seen = std::collections::HashSet::new();
        let mut count = 0;
        for access in TraceReader::open(directory.join(name)).expect("it opens") {
            seen.insert(access.expect("it is sound").block);
            count += 1;
        }
        assert_eq!((count, seen.len()), (accesses, distinct), "{name}");
    }
}
