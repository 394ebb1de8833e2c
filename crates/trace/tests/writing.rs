//! What is written is read back: by format, by compression, by hand-made bytes; merged and cut; and nothing half stays.

mod samples;

use proptest::prelude::*;
use samples::*;
use std::path::Path;
use undercroft_trace::merge::Order;
use undercroft_trace::options::{MemoryRecords, Modifies};
use undercroft_trace::recording::{Recording, Row};
use undercroft_trace::synth::{Load, Pattern};
use undercroft_trace::write::{MemoryWriter, Packing, Written};
use undercroft_trace::{
    AccessKind, Blocks, Format, Merge, ReaderOptions, Sample, Summary, Tenants, TraceError, TraceReader, TraceRequest,
    Writer,
};

/// 64-bit FNV-1a, so that a file's content can be pinned without keeping it.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

fn tenants(names: &[&str]) -> Tenants {
    let mut all = Tenants::default();
    names.iter().for_each(|n| assert!(all.add(n).is_ok()));
    all
}

fn write(
    path: &Path,
    format: Format,
    blocks: Blocks,
    requests: &[TraceRequest],
    names: &[&str],
) -> Result<Written, TraceError> {
    let mut writer = Writer::create(path, format, Packing::of_path(path), blocks, false)?;
    for some in requests.chunks(100) {
        writer.write(some, &tenants(names))?;
    }
    writer.finish()
}

fn read(path: &Path) -> (Vec<TraceRequest>, Vec<String>) {
    let mut reader = TraceReader::open(path).expect("it opens");
    let (mut all, mut some) = (vec![], vec![]);
    while reader.next_requests(&mut some).expect("it is sound") > 0 {
        all.extend_from_slice(&some);
    }
    (all, reader.tenants().names().to_vec())
}

fn kind() -> impl Strategy<Value = AccessKind> {
    prop::sample::select(vec![AccessKind::Read, AccessKind::Write, AccessKind::Unknown])
}

/// Requests for bytes of two disks, in order of time.
fn disk_requests() -> impl Strategy<Value = Vec<TraceRequest>> {
    let one = (0..1u64 << 40, 0..2u16, kind(), 0..1u64 << 45, 1..1u64 << 18);
    prop::collection::vec(one, 1..300).prop_map(|all| {
        let mut requests: Vec<_> = all.into_iter().map(|(t, who, k, a, n)| bytes(t, who, k, a, n)).collect();
        requests.sort_by_key(|r| r.time_ns);
        // so that tenants are numbered as they are named
        requests[0].tenant = 0;
        requests
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn requests_survive_csv_and_parquet(requests in disk_requests(), packed in 0..4usize) {
        let dir = tempfile::tempdir().expect("a directory");
        let csv = dir.path().join(["a.csv", "a.csv.zst", "a.csv.gz", "a.csv.xz"][packed]);
        let blocks = Blocks::of_bytes(4096);
        write(&csv, Format::Csv, blocks, &requests, &["vm,1", "vm 2"]).expect("written");
        let (found, names) = read(&csv);
        prop_assert_eq!(&found, &requests);
        prop_assert_eq!(&names[0], "vm,1");
        let parquet = dir.path().join("a.parquet");
        write(&parquet, Format::Recording, blocks, &requests, &["one", "two"]).expect("written");
        let (found, names) = read(&parquet);
        // a recording has reads and writes
        let known: Vec<_> = requests
            .iter()
            .map(|r| TraceRequest {
                kind: if r.kind == AccessKind::Write { AccessKind::Write } else { AccessKind::Read },
                ..*r
            })
            .collect();
        prop_assert_eq!(&found, &known);
        prop_assert_eq!(names, ["one", "two"]);
    }

    /// Records are what libCacheSim reads: next accesses as a naive look ahead finds them.
    #[test]
    fn oracle_general_and_lcs_know_the_next_access(requests in disk_requests(), packed: bool) {
        let dir = tempfile::tempdir().expect("a directory");
        let near = |r: &TraceRequest| TraceRequest { address: r.address % (1 << 24), ..*r };
        let requests: Vec<TraceRequest> = requests.iter().map(near).collect();
        for (format, name, begin, length) in
            [(Format::OracleGeneral, "a.oracleGeneral", 0, 24), (Format::Lcs, "a.lcs", 8192, 36)]
        {
            let path = dir.path().join(if packed { format!("{name}.zst") } else { name.to_owned() });
            let size = 65_536u32;
            let blocks = Blocks::of_bytes(size);
            let written = write(&path, format, blocks, &requests, &["one", "two"]).expect("written");
            let mut file = std::fs::read(&path).expect("there");
            if packed { file = zstd::decode_all(&file[..]).expect("zstd") }
            let expected: Vec<(u64, TraceRequest)> = requests.iter().flat_map(|r| {
                let (first, count) = blocks.of(r);
                (0..count).map(move |n| (first + n, *r))
            }).collect();
            prop_assert_eq!(written.records, expected.len() as u64);
            prop_assert_eq!(file.len(), begin + expected.len() * length);
            for (n, (record, (block, r))) in file[begin..].chunks(length).zip(&expected).enumerate() {
                let next = expected[n + 1..].iter().position(|(b, _)| b == block).map_or(-1, |at| (n + 1 + at) as i64);
                let mut wanted = ((r.time_ns / 1_000_000_000) as u32).to_le_bytes().to_vec();
                wanted.extend(block.to_le_bytes());
                if format == Format::Lcs {
                    let op = match r.kind {
                        AccessKind::Read | AccessKind::Fetch => 12u32,
                        AccessKind::Write => 13,
                        AccessKind::Unknown => 0,
                    };
                    wanted.extend(u64::from(size).to_le_bytes());
                    wanted.extend((op | u32::from(r.tenant) << 8).to_le_bytes());
                    wanted.extend(0u32.to_le_bytes());
                } else {
                    wanted.extend(size.to_le_bytes());
                }
                wanted.extend(next.to_le_bytes());
                prop_assert_eq!(record, &wanted[..], "record {}", n);
            }
            if format == Format::Lcs {
                let at = |n: usize| u64::from_le_bytes(file[n * 8..n * 8 + 8].try_into().expect("8 bytes"));
                let distinct: std::collections::HashSet<u64> = expected.iter().map(|e| e.0).collect();
                prop_assert_eq!((at(0), at(1), at(1023)), (0x1234_5678_9abc_def0, 3, 0x1234_5678_9abc_def0));
                prop_assert_eq!((at(3), at(4)), (expected.len() as u64, distinct.len() as u64));
            }
        }
    }
}

/// The same bytes as ../shared/reference/zipf_trace.py writes; its sums were taken from its files.
#[test]
fn zipf_is_the_reference_bit_for_bit() {
    let dir = tempfile::tempdir().expect("a directory");
    for (keys, requests, alpha, seed, sum) in [(1000, 50_000, 1.0, 42, FNV_1), (5000, 30_000, 0.8, 7, FNV_2)] {
        let path = dir.path().join(format!("{seed}.oracleGeneral"));
        let load: Vec<TraceRequest> =
            Load::new(Pattern::Zipf { alpha }, keys, 10_000, 0.0, seed).take(requests).collect();
        write(&path, Format::OracleGeneral, Blocks::KEYS, &load, &[]).expect("written");
        let file = std::fs::read(&path).expect("there");
        assert_eq!((file.len(), fnv(&file)), (requests * 24, sum));
    }
}

const FNV_1: u64 = 0xea71_f844_6619_aae0;
const FNV_2: u64 = 0x1ddd_eb41_3b0f_f6bf;

#[test]
fn keys_survive_each_format_of_keys() {
    let dir = tempfile::tempdir().expect("a directory");
    let requests: Vec<TraceRequest> = (0..1000u64).map(|n| key(n * 1_000_000_000, 0, U, n * n % 97, 1)).collect();
    for name in ["a.oracleGeneral", "a.oracleGeneral.gz", "a.lcs.xz", "a.csv"] {
        let path = dir.path().join(name);
        write(&path, Format::of_path(&path).expect("known"), Blocks::KEYS, &requests, &[]).expect("written");
        let tenant = read(&path).1;
        assert!(tenant.len() <= 1, "{name}: {tenant:?}");
        assert_eq!(read(&path).0, requests, "{name}");
    }
    for name in ["a.u64le.zst", "a.u32le", "a.lis"] {
        let path = dir.path().join(name);
        write(&path, Format::of_path(&path).expect("known"), Blocks::KEYS, &requests, &[]).expect("written");
        let found: Vec<u64> = TraceReader::open(&path).expect("opens").map(|a| a.expect("sound").block).collect();
        assert_eq!(found, requests.iter().map(|r| r.address).collect::<Vec<_>>(), "{name}");
    }
    // as blocks of a disk, and back by their numbers
    let path = dir.path().join("a.parquet");
    write(&path, Format::Recording, Blocks::KEYS, &requests, &[]).expect("written");
    let found: Vec<u64> = TraceReader::open(&path).expect("opens").map(|a| a.expect("sound").block).collect();
    assert_eq!(found, requests.iter().map(|r| r.address).collect::<Vec<_>>());
    let mut recording = Recording::open(&path).expect("a recording");
    let rows: Vec<Row> = recording.next_group().expect("sound").expect("rows");
    assert_eq!((rows[3].offset_bytes, rows[3].length_bytes, rows[3].time_ns), (9 * 4096, 4096, 3_000_000_000));
}

#[test]
fn what_does_not_fit_a_format_is_said_and_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    let refused = |name: &str, r: TraceRequest, needle: &str| {
        let path = at(name);
        let good = key(0, 0, U, 1, 1);
        let e = write(&path, Format::of_path(&path).expect("known"), Blocks::KEYS, &[good, r], &[])
            .expect_err(name)
            .to_string();
        assert!(e.contains("request 2") && e.contains(name) && e.contains(needle), "{e}");
    };
    refused("a.u32le", key(0, 0, U, 1 << 32, 1), "does not fit 32 bits; write u64le");
    refused("a.oracleGeneral", key(0, 0, U, 1, 1 << 32), "write lcs");
    refused("a.oracleGeneral.zst", key(u64::MAX, 0, U, 1, 1), "136 years");
    refused("a.parquet", key(0, 0, U, 1 << 60, 1), "is no block of a disk");
    let e = write(&at("a.vscsi"), Format::Vscsi, Blocks::KEYS, &[], &[]).expect_err("read only").to_string();
    assert!(e.contains("can be read, not written"), "{e}");
    // dropped before its end
    let mut writer = Writer::create(&at("b.csv"), Format::Csv, Packing::None, Blocks::KEYS, false).expect("begun");
    writer.write(&[key(0, 0, U, 1, 1)], &Tenants::default()).expect("taken");
    assert_eq!(std::fs::read_dir(dir.path()).expect("there").count(), 1, "a temporary file");
    drop(writer);
    assert_eq!(std::fs::read_dir(dir.path()).expect("there").count(), 0, "nothing is left");
    // a file that is there stays as it is until it is replaced by a whole one
    std::fs::write(at("c.csv"), "mine").expect("written");
    let e = write(&at("c.csv"), Format::Csv, Blocks::KEYS, &[], &[]).expect_err("it is there").to_string();
    assert!(e.contains("c.csv") && e.contains("--force"), "{e}");
    let writer = Writer::create(&at("c.csv"), Format::Csv, Packing::None, Blocks::KEYS, true).expect("begun");
    assert_eq!(std::fs::read(at("c.csv")).expect("there"), b"mine");
    writer.finish().expect("replaced");
    assert_eq!(std::fs::read(at("c.csv")).expect("there"), b"time_ns,tenant,op,key,keys,size_bytes\n");
}

/// /dev/full takes nothing: the error names it.
#[test]
fn a_full_disk_is_named() {
    let requests = vec![key(0, 0, U, 1, 1); 100_000];
    for (format, packing) in [
        (Format::Csv, Packing::None),
        (Format::U64Le, Packing::Zstd),
        (Format::OracleGeneral, Packing::None),
        (Format::Lcs, Packing::Gzip),
        (Format::Recording, Packing::None),
        (Format::Csv, Packing::Xz),
    ] {
        let result = Writer::create(Path::new("/dev/full"), format, packing, Blocks::KEYS, false).and_then(|mut w| {
            w.write(&requests, &Tenants::default())?;
            w.finish()
        });
        let e = result.expect_err("it is full").to_string();
        assert!(e.contains("/dev/full") && e.contains("No space left"), "{format}: {e}");
    }
}

fn spc(times: &[u32], block: u64) -> Vec<u8> {
    times.iter().map(|t| format!("0,{},512,r,{t}.0\n", block * 8)).collect::<String>().into_bytes()
}

#[test]
fn traces_are_merged_by_time_with_tenants_apart() {
    let (a, b) = (spc(&[1, 5, 4, 9], 7), spc(&[2, 5, 6], 7));
    let merged = |order, align| {
        let traces = [("a", &a), ("b", &b)];
        let readers = traces.map(|(n, t)| (n.to_owned(), TraceReader::new(&t[..], n, Format::Spc).expect("opens")));
        let mut merge = Merge::new(readers.into(), order, align).expect("alike");
        let (mut all, mut some) = (vec![], vec![]);
        while merge.next_requests(&mut some).expect("sound") > 0 {
            all.extend(some.iter().map(|r| (r.time_ns / 1_000_000_000, r.tenant, merge.blocks().of(r).0)));
        }
        assert_eq!(merge.tenants().names(), ["a:0", "b:0"]);
        all
    };
    let (x, y) = (7, 1 << 51 | 7);
    // a time that goes back waits for its turn
    assert_eq!(
        merged(Order::Time, false),
        [(1, 0, x), (2, 1, y), (5, 0, x), (5, 0, x), (5, 1, y), (6, 1, y), (9, 0, x)]
    );
    assert_eq!(merged(Order::Time, true).iter().map(|r| r.0).collect::<Vec<_>>(), [0, 0, 3, 4, 4, 4, 8]);
    assert_eq!(merged(Order::Turn, false).iter().map(|r| r.1).collect::<Vec<_>>(), [0, 1, 0, 1, 0, 1, 0]);
    let keys = TraceReader::new(&b"1 1 0 0\n"[..], "k", Format::ArcLis).expect("opens");
    let bytes = TraceReader::new(&a[..], "a", Format::Spc).expect("opens");
    let Err(e) = Merge::new(vec![("a".into(), bytes), ("k".into(), keys)], Order::Time, false) else {
        panic!("not alike")
    };
    assert!(e.to_string().contains("k cannot be merged"), "{e}");
}

#[test]
fn a_sample_holds_all_accesses_of_its_blocks() {
    let blocks = Blocks::of_bytes(4096);
    let requests: Vec<_> = (0..2000u64).map(|n| bytes(n, 0, R, n * 7919 % 1000 * 1024, 8192)).collect();
    let sample = Sample::new(0.25, 9);
    let mut held = vec![];
    sample.of_requests(&requests, &blocks, &mut held);
    let all = requests.iter().flat_map(|r| {
        let (first, count) = blocks.of(r);
        (0..count).map(move |n| (r.time_ns, first + n))
    });
    let expected: Vec<_> = all.filter(|a| sample.holds(a.1)).collect();
    assert_eq!(held.iter().map(|r| (r.time_ns, blocks.of(r).0)).collect::<Vec<_>>(), expected);
    assert!(held.iter().all(|r| blocks.of(r).1 == 1) && !held.is_empty());
}

#[test]
fn a_summary_counts_what_there_is() {
    let blocks = Blocks::of_bytes(4096);
    let mut summary = Summary::new(blocks);
    summary.add(&[bytes(5, 0, R, 0, 8192), bytes(9, 1, W, 0, 4096), bytes(3, 0, U, 4096, 100)]);
    let (all, tenants) = (summary.all, &summary.tenants);
    assert_eq!(
        (all.requests, all.accesses, all.reads, all.writes, all.bytes, all.bytes_written),
        (3, 4, 1, 1, 12_388, 4096)
    );
    assert_eq!((summary.footprint(), summary.time_ns), ((3, true), Some((3, 9))));
    assert_eq!((tenants[0].accesses, tenants[1].accesses), (3, 1));
    assert_eq!([0, 1, 2].map(|tenant| summary.footprint_of(tenant)), [Some(2), Some(1), Some(0)]);
}

/// What a tenant asks for is its footprint, also where others asked for it before.
#[test]
fn tenants_that_use_the_same_keys_have_them_all() {
    let of = |asked: &[(u16, u64)]| {
        let mut summary = Summary::new(Blocks::KEYS);
        summary.add(&asked.iter().map(|&(tenant, key)| self::key(0, tenant, R, key, 1)).collect::<Vec<_>>());
        (summary.footprint().0, [0, 1, 2].map(|tenant| summary.footprint_of(tenant).expect("few")))
    };
    assert_eq!(of(&[(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3), (1, 1)]), (3, [3, 3, 0]));
    assert_eq!(of(&[(2, 7), (2, 8), (2, 7)]), (2, [0, 0, 2]), "the only one need not be the first");
    assert_eq!(of(&[(2, 7), (0, 7), (1, 9), (2, 8)]), (3, [1, 1, 2]));
    assert_eq!(of(&[]), (0, [0, 0, 0]));
}

/// A recording of the daemon's kind is read back by a reader that is asked for other blocks, too.
#[test]
fn recordings_are_split_as_asked() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.parquet");
    write(&path, Format::Recording, Blocks::of_bytes(4096), &[bytes(0, 0, R, 0, 16_384)], &["d"]).expect("written");
    for (block_bytes, count) in [(None, 4), (Some(512), 32), (Some(1 << 20), 1)] {
        let options = ReaderOptions { block_bytes, ..ReaderOptions::default() };
        assert_eq!(TraceReader::open_with(&path, &options).expect("opens").count(), count);
    }
}

/// What Lackey says of a program, with words of Valgrind's and the program's between.
const LACKEY: &[u8] =
    b"==7== Lackey\nI  0401ab70,3\n S 1ffeffe7e,8\n M 0421,4\nhello\n L ffff00000010,16\nI  04,1\n L 3c,8\n";

fn read_memory(path: &Path, format: Format, memory: MemoryRecords) -> Vec<(AccessKind, u64)> {
    let options = ReaderOptions {
        format: Some(format),
        memory,
        block_bytes: Some(64),
        lenient: true,
        ..ReaderOptions::default()
    };
    let all = TraceReader::open_with(path, &options).unwrap().map(|a| a.unwrap());
    all.map(|a| (a.kind, a.block)).collect()
}

#[test]
fn what_lackey_says_is_packed_and_read_as_the_text_is() {
    let folder = tempfile::tempdir().unwrap();
    let (text, packed) = (folder.path().join("t.lackey"), folder.path().join("t.memory.zst"));
    std::fs::write(&text, LACKEY).unwrap();
    let mut writer = MemoryWriter::create(&packed, Packing::of_path(&packed), false).unwrap();
    let taken = LACKEY.split(|c| *c == b'\n').filter(|line| writer.line(line).unwrap()).count();
    assert_eq!((taken, writer.records()), (6, 6));
    assert!(!packed.exists(), "it is not whole yet");
    assert_eq!(writer.finish().unwrap(), std::fs::metadata(&packed).unwrap().len());
    for modifies in [Modifies::One, Modifies::Two] {
        for (fetches, stores) in [(false, false), (true, false), (false, true), (true, true)] {
            let memory = MemoryRecords { fetches, stores, modifies };
            let of_text = read_memory(&text, Format::Lackey, memory);
            assert_eq!(read_memory(&packed, Format::Memory, memory), of_text, "{memory:?}");
            let instructions = of_text.iter().filter(|(kind, _)| *kind == AccessKind::Fetch).count();
            assert_eq!(instructions, if fetches { 2 } else { 0 });
        }
    }
    // Loads are at 0xffff00000010, at 0x421 (which stores, too), and across a border of lines.
    let loads: Vec<u64> = read_memory(&packed, Format::Memory, MemoryRecords::LOADS).iter().map(|a| a.1).collect();
    assert_eq!(loads, [0x421 / 64, 0xffff_0000_0010 / 64, 0, 1]);
}

/// A file that has a great many records in a row that are not asked for has not ended there.
#[test]
fn records_that_are_passed_over_are_not_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.memory");
    let mut writer = MemoryWriter::create(&path, Packing::None, false).unwrap();
    for n in 0..100_000u32 {
        assert!(writer.line(format!(" S {n:x},4").as_bytes()).unwrap());
    }
    assert!(writer.line(b" L 40,4").unwrap());
    writer.finish().unwrap();
    assert_eq!(read_memory(&path, Format::Memory, MemoryRecords::LOADS), [(AccessKind::Read, 1)]);
}
