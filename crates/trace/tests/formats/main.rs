//! Every format: what it holds, what is wrong with it, what it looks like, leniently and strictly.
//!
//! Owns what all formats are asked; `csv` and `damage` have the rest. Invariant: a format that is listed is tested
//! here, by its sample alone.

mod csv;
mod damage;
#[path = "../samples/mod.rs"]
mod samples;

use samples::*;
use undercroft_trace::options::Event;
use undercroft_trace::{Access, BATCH, Format, ReaderOptions, TraceError, TraceReader, TraceRequest, Unit};

fn options(format: Format) -> ReaderOptions {
    ReaderOptions { format: Some(format), ..ReaderOptions::default() }
}

/// Requests, tenants' names, and the error at the end.
fn read(bytes: &[u8], options: &ReaderOptions) -> (Vec<TraceRequest>, Vec<String>, Option<TraceError>) {
    let mut reader = match TraceReader::with(bytes, "the.trace", options) {
        Ok(reader) => reader,
        Err(error) => return (vec![], vec![], Some(error)),
    };
    let (mut all, mut some, mut failed) = (vec![], vec![], None);
    loop {
        match reader.next_requests(&mut some) {
            Ok(0) => break,
            Ok(_) => all.extend_from_slice(&some),
            Err(error) => {
                failed = Some(error);
                assert!(matches!(reader.next_requests(&mut some), Ok(0)), "nothing comes after an error");
                break;
            }
        }
    }
    (all, reader.tenants().names().to_vec(), failed)
}

fn requests(bytes: &[u8], options: &ReaderOptions) -> Vec<TraceRequest> {
    let (all, _, failed) = read(bytes, options);
    assert!(failed.is_none(), "{failed:?}");
    all
}

fn message(bytes: &[u8], options: &ReaderOptions) -> String {
    read(bytes, options).2.expect("an error").to_string()
}

fn accesses(bytes: &[u8], options: &ReaderOptions) -> Vec<Access> {
    TraceReader::with(bytes, "the.trace", options).expect("sound").collect::<Result<_, _>>().expect("sound")
}

#[test]
fn each_format_holds_what_its_documentation_says() {
    for sample in all() {
        let (found, tenants, failed) = read(&sample.file, &options(sample.format));
        let format = sample.format;
        assert!(failed.is_none(), "{format}: {failed:?}");
        assert_eq!(
            (found, tenants),
            (sample.requests, sample.tenants.iter().map(ToString::to_string).collect()),
            "{format}"
        );
    }
}

#[test]
fn every_format_has_a_sample_a_name_and_a_suffix() {
    for format in Format::ALL {
        assert!(format == Format::Recording || all().iter().any(|s| s.format == format), "{format}");
        assert_eq!(format.name().parse::<Format>(), Ok(format));
        let path = format!("x.{}.zst", format.suffix());
        assert_eq!(Format::of_path(path.as_ref()).expect("known"), format);
    }
}

/// Raw numbers look like nothing; everything else is known by its beginning.
#[test]
fn content_tells_the_format() {
    for Sample { format, file, requests: expected, recognised, .. } in all() {
        assert_eq!(Format::of_content(&file), recognised.then_some(format), "{format}");
        for packed in [zstd::encode_all(&file[..], 3).expect("zstd"), gzip(&file)] {
            let (found, _, failed) = read(&packed, &ReaderOptions::default());
            match (recognised, failed) {
                (false, Some(TraceError::UnknownFormat { .. })) => {}
                (true, None) => assert_eq!(found, expected, "{format}"),
                other => panic!("{format}: {other:?}"),
            }
        }
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(vec![], flate2::Compression::default());
    encoder.write_all(bytes).expect("into memory");
    encoder.finish().expect("into memory")
}

#[test]
fn wide_requests_are_split_into_blocks_of_the_size_asked_for() {
    let blocks = |format, file: &[u8], block_bytes, key_bytes| -> Vec<u64> {
        let o = ReaderOptions { block_bytes, key_bytes, ..options(format) };
        accesses(file, &o).iter().map(|a| a.block).collect()
    };
    // 6 blocks long, but not aligned to them
    let first = 7_014_609_920 / 4096;
    let msr = blocks(Format::Msr, MSR, None, None);
    assert_eq!(msr[..7], (first..first + 7).collect::<Vec<_>>());
    assert_eq!(*msr.last().expect("some"), 1 << 51 | (2_436_440_064 / 4096));
    assert_eq!(blocks(Format::Msr, MSR, Some(65_536), None).len(), 3);
    assert_eq!(blocks(Format::Alibaba, b"1,R,1000,1000,1\n", Some(1000), None), [1]);
    assert_eq!(blocks(Format::Alibaba, b"1,R,999,2,1\n", Some(1000), None), [0, 1]);
    assert_eq!(blocks(Format::Alibaba, b"1,R,999,0,1\n", None, None), [0u64; 0]);
    let vscsi = [vscsi_1(0x28, 15, 8192, 5)].concat();
    assert_eq!(blocks(Format::Vscsi, &vscsi, None, None), [15]);
    assert_eq!(blocks(Format::Vscsi, &vscsi, Some(4096), None), [1, 2, 3]);
    let keys = oracle_general(0, 15, 8192, -1);
    assert_eq!(blocks(Format::OracleGeneral, &keys, None, None), [15]);
    assert_eq!(blocks(Format::OracleGeneral, &keys, None, Some(512)), [1, 2, 3]);
    assert_eq!(blocks(Format::ArcLis, b"7 3 0 0\n", Some(1024), Some(512)), [3, 4]);
    let refused = ReaderOptions { block_bytes: Some(4096), ..options(Format::OracleGeneral) };
    assert!(message(&keys, &refused).contains("cannot be split"));
    let refused = ReaderOptions { key_bytes: Some(4096), ..options(Format::Msr) };
    assert!(message(MSR, &refused).contains("no size to be told"));
    let huge = ReaderOptions { key_bytes: Some(4096), ..options(Format::U64Le) };
    assert!(message(&u64::MAX.to_le_bytes(), &huge).contains("past any disk"));
}

/// Runs far longer than a batch come whole, in order, by each way of reading.
#[test]
fn batches_and_the_iterator_agree() {
    let text = b"0 5000 0 0\n9 1 0 1\n100000 3000 0 2\n".repeat(50);
    let one_by_one = accesses(&text, &options(Format::ArcLis));
    assert_eq!(one_by_one.len(), 50 * 8001);
    let mut reader = TraceReader::new(&text[..], "t", Format::ArcLis).expect("opens");
    let (mut all, mut batch) = (vec![], vec![]);
    loop {
        batch.clear();
        let n = reader.next_batch(&mut batch).expect("sound");
        assert!(n == batch.len() && n <= BATCH);
        if n == 0 {
            break;
        }
        all.extend_from_slice(&batch);
    }
    assert_eq!(all, one_by_one);
}

#[test]
fn what_comes_before_an_error_is_given() {
    let text = [b"1 1 0 0\n".repeat(3000), b"x\n".to_vec()].concat();
    let mut reader = TraceReader::new(&text[..], "t", Format::ArcLis).expect("opens");
    assert_eq!(reader.by_ref().take(3000).filter(Result::is_ok).count(), 3000);
    assert!(reader.next().is_some_and(|a| a.is_err_and(|e| e.to_string().contains("record 3001 at byte 24000"))));
    assert!(reader.next().is_none());
}

#[test]
fn times_that_go_back_are_counted_and_kept() {
    let mut reader =
        TraceReader::new(&b"0,0,512,r,5.0\n0,0,512,r,4.5\n0,0,512,r,4.9\n0,0,512,r,6\n"[..], "t", Format::Spc)
            .expect("opens");
    let times: Vec<u64> = reader.by_ref().map(|a| a.expect("sound").time_ns / 1_000_000).collect();
    assert_eq!(times, [5000, 4500, 4900, 6000]);
    let tally = reader.tally();
    assert_eq!((tally.backwards, tally.first_backwards, tally.back_ns_max), (2, 2, 500_000_000));
}

#[test]
fn the_event_that_counts_can_be_chosen() {
    let of = |format, file: &[u8], event| requests(file, &ReaderOptions { event, ..options(format) });
    assert_eq!(of(Format::Blkparse, BLKPARSE, Event::Issue), [bytes(9_508_000, 0, W, 223_490 * 512, 28_672)]);
    assert_eq!(of(Format::Blkparse, BLKPARSE, Event::Complete), [bytes(2_500_000_000, 0, W, 223_490 * 512, 28_672)]);
    let file = [blktrace(1, 8, 512, 1 << 16 | 1, 0, b""), blktrace(2, 8, 512, 1 << 16 | 8, 0, b"")].concat();
    assert_eq!(of(Format::Blktrace, &file, Event::Complete), [bytes(2, 0, R, 4096, 512)]);
}

#[test]
fn qemu_is_read_as_simpletrace_prints_it_and_in_other_layers() {
    let simple = b"blk_co_preadv 0.000 pid=1 blk=0x55 bs=0x56 offset=0x1000 bytes=0x200 flags=0x0\n\
blk_co_pwritev 12.500 pid=1 blk=0x77 bs=0x56 offset=0x0 bytes=0x2000 flags=0x0\n";
    let expected = [bytes(0, 0, R, 4096, 512), bytes(12_500, 1, W, 0, 8192)];
    assert_eq!(requests(simple, &options(Format::Qemu)), expected);
    let virtio = b"virtio_blk_handle_read vdev 0x1 req 0x2 sector 8 nsectors 16\nblk_co_preadv blk 0x1 bs 0x2 offset \
        4096 bytes 8192 flags 0x0\n\
        virtio_blk_handle_write vdev 0x1 req 0x2 sector 0 nsectors 1\n";
    assert_eq!(requests(virtio, &options(Format::Qemu)), [bytes(0, 0, R, 4096, 8192), bytes(0, 0, W, 0, 512)]);
}

#[test]
fn more_tenants_than_numbers_are_refused() {
    let file: String = (0..=8192).map(|n| format!("{n},R,0,4096,1\n")).collect();
    let text = message(file.as_bytes(), &options(Format::Alibaba));
    assert!(text.contains("\"8192\" is one tenant more than the 8192"), "{text}");
    let mut reader =
        TraceReader::with(file.as_bytes(), "t", &ReaderOptions { lenient: true, ..options(Format::Alibaba) })
            .expect("opens");
    let blocks: std::collections::HashSet<u64> = reader.by_ref().map(|a| a.expect("lenient").block).collect();
    assert_eq!((blocks.len(), reader.tally().skipped), (8192, 1), "no two tenants share a block");
}

#[test]
fn files_are_read_ahead_and_pipes_like_files() {
    let plain: Vec<u8> = (0..1_000_000u32).flat_map(u32::to_le_bytes).collect();
    let mut file = tempfile::Builder::new().suffix(".u32le.zst").tempfile().expect("a file");
    std::io::Write::write_all(&mut file, &zstd::encode_all(&plain[..], 1).expect("zstd")).expect("written");
    for ahead in [false, true] {
        let reader =
            TraceReader::open_with(file.path(), &ReaderOptions { ahead, ..ReaderOptions::default() }).expect("opens");
        let progress = reader.progress();
        assert_eq!((reader.format(), reader.blocks().unit), (Format::U32Le, Unit::Keys));
        assert!(reader.map(|a| a.expect("sound").block).eq(0..1_000_000));
        assert_eq!(Some(progress.done()), progress.total());
        // dropped before its end, the thread ends, too
        drop(
            TraceReader::open_with(file.path(), &ReaderOptions { ahead, ..ReaderOptions::default() })
                .expect("opens")
                .next(),
        );
    }
}
