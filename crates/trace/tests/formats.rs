//! Every format: what it holds, what is wrong with it, what it looks like, leniently and strictly.

mod samples;

use proptest::prelude::*;
use samples::*;
use undercroft_trace::options::{Column, Csv, Event};
use undercroft_trace::{Access, BATCH, Error, Format, Kind, Options, Reader, Request, Unit};

fn options(format: Format) -> Options {
    Options { format: Some(format), ..Options::default() }
}

/// Requests, tenants' names, and the error at the end.
fn read(bytes: &[u8], options: &Options) -> (Vec<Request>, Vec<String>, Option<Error>) {
    let mut reader = match Reader::with(bytes, "the.trace", options) {
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

fn requests(bytes: &[u8], options: &Options) -> Vec<Request> {
    let (all, _, failed) = read(bytes, options);
    assert!(failed.is_none(), "{failed:?}");
    all
}

fn message(bytes: &[u8], options: &Options) -> String {
    read(bytes, options).2.expect("an error").to_string()
}

fn accesses(bytes: &[u8], options: &Options) -> Vec<Access> {
    Reader::with(bytes, "the.trace", options).expect("sound").collect::<Result<_, _>>().expect("sound")
}

#[test]
fn each_format_holds_what_its_documentation_says() {
    for (format, file, expected, names) in all() {
        let (found, tenants, failed) = read(&file, &options(format));
        assert!(failed.is_none(), "{format}: {failed:?}");
        assert_eq!((found, tenants), (expected, names.iter().map(ToString::to_string).collect()), "{format}");
    }
}

#[test]
fn every_format_has_a_sample_a_name_and_a_suffix() {
    for format in Format::ALL {
        assert!(format == Format::Recording || all().iter().any(|s| s.0 == format), "{format}");
        assert_eq!(format.name().parse::<Format>(), Ok(format));
        let path = format!("x.{}.zst", format.suffix());
        assert_eq!(Format::of_path(path.as_ref()).expect("known"), format);
    }
}

/// Raw numbers look like nothing; everything else is known by its beginning.
#[test]
fn content_tells_the_format() {
    for (format, file, expected, _) in all() {
        let raw = matches!(format, Format::U32Le | Format::U64Le);
        assert_eq!(Format::of_content(&file), (!raw).then_some(format), "{format}");
        for packed in [zstd::encode_all(&file[..], 3).expect("zstd"), gzip(&file)] {
            let (found, _, failed) = read(&packed, &Options::default());
            match (raw, failed) {
                (true, Some(Error::UnknownFormat { .. })) => {}
                (false, None) => assert_eq!(found, expected, "{format}"),
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

/// Cut at every byte: the requests before, then perhaps an error; never anything else.
#[test]
fn a_file_cut_anywhere_gives_a_prefix() {
    for (format, file, expected, _) in all() {
        let from = if format == Format::Lcs { 8150 } else { 0 };
        for cut in from..file.len() {
            for lenient in [false, true] {
                let (found, _, failed) = read(&file[..cut], &Options { lenient, ..options(format) });
                // a number that is cut is another number
                let text = !matches!(
                    format,
                    Format::Vscsi
                        | Format::U32Le
                        | Format::U64Le
                        | Format::OracleGeneral
                        | Format::Lcs
                        | Format::Blktrace
                );
                let sure = found.len() - usize::from(text && !found.is_empty());
                assert!(found.len() <= expected.len() && found[..sure] == expected[..sure], "{format} cut at {cut}");
                // of a line of names that is cut nobody can tell what it names
                let names = format == Format::Csv && found.is_empty();
                let only_nothing = matches!(failed, None | Some(Error::Nothing { .. }))
                    || names && matches!(failed, Some(Error::Columns { .. }));
                assert!(!lenient || only_nothing, "{format} cut at {cut}: {failed:?}");
                assert!(
                    text || lenient || found.len() == expected.len() || failed.is_some() || whole(format, &file, cut)
                );
            }
        }
    }
}

/// Whether a cut is between records.
fn whole(format: Format, file: &[u8], cut: usize) -> bool {
    let (from, bytes) = match (format, file.len()) {
        (Format::U32Le, _) => (0, 4),
        (Format::U64Le, _) => (0, 8),
        (Format::OracleGeneral, _) => (0, 24),
        (Format::Vscsi, 96) => (0, 32),
        (Format::Vscsi, _) => (0, 40),
        (Format::Lcs, all) => (8192, (all - 8192) / 2),
        (Format::Blktrace, _) => return [0, 58, 106, 162, 210, 258].contains(&cut),
        _ => return false,
    };
    cut == 0 || cut >= from && (cut - from).is_multiple_of(bytes)
}

#[test]
fn bad_records_are_named_strictly_and_counted_leniently() {
    let cases: [(Format, &[u8], usize, &str); 12] = [
        (
            Format::Msr,
            b"1,usr,0,Read,0,4096,1\n1,usr,0,Erase,0,4096,1\n2,usr,0,Read,x,4096,1\n3,usr,0,Read,4096,4096,1\n",
            2,
            "record 2 at byte 22: the operation is \"Erase\"",
        ),
        (
            Format::Alibaba,
            b"1,R,0,4096,1\n1,R,0,99999999999999,2\n",
            1,
            "record 2 at byte 13: 99999999999999 bytes from byte 0",
        ),
        (Format::Alibaba, b"1,R,0,4096,1\n1,R,18446744073709551615,4096,2\n", 1, "more than any disk"),
        (Format::Tencent, b"1,0,8,0,1\n1,0,8,2,1\n", 1, "neither 0 (read) nor 1 (write)"),
        (Format::Tencent, b"1,0,8,0,1\n1,99999999999999999999,8,1,1\n", 1, "the offset is \"99999999999999999999\""),
        (Format::Spc, b"0,0,512,r,0.5\n0,0,512,r\n", 1, "less than 5 columns"),
        (Format::Fio, b"fio version 3 iolog\n1 f read 0 512\n2 f rewind 0 512\n", 1, "\"rewind\" is no action"),
        (Format::Fio, b"fio version 3 iolog\n1 f read 0 512\n2 f read 0\n", 1, "the length is \"\""),
        (Format::Blkparse, b"8,0 0 1 0.1 1 Q R 8 + 8 [a]\nnonsense\n", 1, "begins with \"nonsense\""),
        (
            Format::Qemu,
            b"blk_co_preadv blk 0x1 offset 0 bytes 1\nblk_co_preadv blk 0x1 offset z bytes 1\n",
            1,
            "the offset is \"z\"",
        ),
        (Format::Lackey, b"I  1000,4\nX  1000,4\n", 1, "no line of Lackey"),
        (Format::Csv, b"key\n1\n-2\n", 1, "record 3 at byte 6: the key is \"-2\""),
    ];
    for (format, file, bad, needle) in cases {
        let text = message(file, &options(format));
        assert!(text.contains("the.trace") && text.contains(needle), "{format}: {text}");
        let mut reader = Reader::with(file, "the.trace", &Options { lenient: true, ..options(format) }).expect("opens");
        let good = reader.by_ref().inspect(|a| assert!(a.is_ok(), "lenient")).count();
        assert!(good > 0, "{format}");
        assert_eq!((reader.tally().skipped, reader.tally().first.len()), (bad as u64, bad), "{format}");
        assert!(reader.tally().first[0].contains(needle), "{format}: {:?}", reader.tally().first);
    }
    // a damaged record of blktrace: on to the next magic number
    let good = blktrace(5, 8, 4096, 1 << 16 | 1, 8 << 20, b"");
    let file = [&good[..], &[0xEE; 77], &good].concat();
    assert!(message(&file, &options(Format::Blktrace)).contains("record 2 at byte 48: it begins with 0xeeeeeeee"));
    assert_eq!(requests(&file, &Options { lenient: true, ..options(Format::Blktrace) }).len(), 2);
    // a line without end
    let file = [b"1 1 0 0\n".as_slice(), &[b'7'; 10_000], b"\n2 1 0 0\n"].concat();
    assert_eq!(requests(&file, &Options { lenient: true, ..options(Format::ArcLis) }).len(), 2);
}

#[test]
fn a_wrong_format_says_what_the_file_looks_like() {
    let text = message(MSR, &options(Format::Alibaba));
    assert!(text.contains("it is read as alibaba, but looks like msr"), "{text}");
    let text = message(FIO_3, &options(Format::Vscsi));
    assert!(text.contains("it is read as vscsi, but looks like fio"), "{text}");
    let text = message(&vscsi_1(0x28, 1, 512, 1).repeat(3), &options(Format::ArcLis));
    assert!(text.contains("looks like vscsi"), "{text}");
    // leniently, too, when nothing makes sense
    let text = message(MSR, &Options { lenient: true, ..options(Format::Blkparse) });
    assert!(text.contains("no record of the trace the.trace makes sense (3 were left out)"), "{text}");
    let text = message(b"\x01\x02\x03", &Options::default());
    assert!(text.contains("--format") && text.contains("oracle-general"), "{text}");
}

#[test]
fn truncated_compression_is_an_error_or_counted() {
    let plain: Vec<u8> = (0..100_000u64).flat_map(|n| (n * 0x9e37_79b9).to_le_bytes()).collect();
    for packed in [zstd::encode_all(&plain[..], 1).expect("zstd"), gzip(&plain)] {
        let cut = &packed[..packed.len() / 2];
        assert!(message(cut, &options(Format::U64Le)).contains("cannot read the trace the.trace at byte"));
        let mut reader = Reader::with(cut, "t", &Options { lenient: true, ..options(Format::U64Le) }).expect("opens");
        let good: Vec<u64> = reader.by_ref().map(|a| a.expect("lenient").block).collect();
        assert!(good.len() > 10_000 && reader.tally().skipped >= 1, "{}", good.len());
        assert!(good.iter().enumerate().all(|(n, b)| *b == n as u64 * 0x9e37_79b9));
    }
}

#[test]
fn wide_requests_are_split_into_blocks_of_the_size_asked_for() {
    let blocks = |format, file: &[u8], block_bytes, key_bytes| -> Vec<u64> {
        let o = Options { block_bytes, key_bytes, ..options(format) };
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
    let refused = Options { block_bytes: Some(4096), ..options(Format::OracleGeneral) };
    assert!(message(&keys, &refused).contains("cannot be split"));
    let refused = Options { key_bytes: Some(4096), ..options(Format::Msr) };
    assert!(message(MSR, &refused).contains("no size to be told"));
    let huge = Options { key_bytes: Some(4096), ..options(Format::U64Le) };
    assert!(message(&u64::MAX.to_le_bytes(), &huge).contains("past any disk"));
}

/// Runs far longer than a batch come whole, in order, by each way of reading.
#[test]
fn batches_and_the_iterator_agree() {
    let text = b"0 5000 0 0\n9 1 0 1\n100000 3000 0 2\n".repeat(50);
    let one_by_one = accesses(&text, &options(Format::ArcLis));
    assert_eq!(one_by_one.len(), 50 * 8001);
    let mut reader = Reader::new(&text[..], "t", Format::ArcLis).expect("opens");
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
    let mut reader = Reader::new(&text[..], "t", Format::ArcLis).expect("opens");
    assert_eq!(reader.by_ref().take(3000).filter(Result::is_ok).count(), 3000);
    assert!(reader.next().is_some_and(|a| a.is_err_and(|e| e.to_string().contains("record 3001 at byte 24000"))));
    assert!(reader.next().is_none());
}

#[test]
fn times_that_go_back_are_counted_and_kept() {
    let mut reader = Reader::new(&b"0,0,512,r,5.0\n0,0,512,r,4.5\n0,0,512,r,4.9\n0,0,512,r,6\n"[..], "t", Format::Spc)
        .expect("opens");
    let times: Vec<u64> = reader.by_ref().map(|a| a.expect("sound").time_ns / 1_000_000).collect();
    assert_eq!(times, [5000, 4500, 4900, 6000]);
    let tally = reader.tally();
    assert_eq!((tally.backwards, tally.first_backwards, tally.back_ns_max), (2, 2, 500_000_000));
}

#[test]
fn csv_is_read_by_names_and_by_numbers() {
    let csv = |map: &str, file: &[u8]| {
        let mut csv = Csv { time_unit_ns: 1_000_000, offset_unit: 512, ..Csv::default() };
        csv.set_columns(map).expect("a map");
        requests(file, &Options { csv, ..options(Format::Csv) })
    };
    let expected = [bytes(1500, 0, R, 1024, 4096), bytes(2_000_000, 1, W, 512, 512)];
    let expected = [Request { time_ns: 1_500_000, ..expected[0] }, expected[1]];
    let map = "time=1,offset=3,size=4,op=2,tenant=5";
    assert_eq!(csv(map, b"1.5,READ,2,4096,vm1\n2,w,1,512,vm2\n"), expected);
    assert_eq!(csv(map, b"when;what;where;how much;who\r\n1.5;R;2;4096;vm1\r\n2;Write;1;512;vm2\r\n"), expected);
    assert_eq!(csv(map, b"1.5 0  2 4096 vm1\n2\t1 1 512 vm2\n"), expected);
    let map = "time=when,offset=where,size=n,op=what,tenant=who";
    assert_eq!(csv(map, b"n,What,where,when,who\n4096,r,2,1.5,vm1\n512,W,0x1,2,vm2\n"), expected);
    assert_eq!(csv("key=2", b"a,7\nb,8\n"), [key(0, 0, U, 7, 0), key(0, 0, U, 8, 0)]);
    let file = b"key,size,op\n7,100,r\n8,200,w\n";
    assert_eq!(requests(file, &options(Format::Csv)), [key(0, 0, R, 7, 100), key(0, 0, W, 8, 200)]);
    let mut wrong = Csv::default();
    wrong.set_columns("offset=9").expect("a map");
    assert!(
        message(b"1,2\n", &Options { csv: wrong, ..options(Format::Csv) })
            .contains("\"1,2\", has 2 columns, no column 9")
    );
    for bad in ["time", "when=1", "time=0", "time=999", "offset=1,key=2", "key=1,text=2", "time="] {
        assert!(Csv::default().set_columns(bad).is_err(), "{bad}");
    }
    assert_eq!("Offset".parse(), Ok(Column::Name("Offset".into())));
}

/// Requests of a file that says by itself what it is, with what its reader took for what.
fn noted(file: &[u8]) -> (Vec<Request>, String) {
    let note =
        Reader::with(file, "the.trace", &Options::default()).expect("its beginning tells").note().map(str::to_owned);
    (requests(file, &Options::default()), note.expect("said"))
}

#[test]
fn csv_as_libcachesim_writes_it_is_read_and_what_was_taken_is_said() {
    let file = "# time, object, size, next_access_vtime\n0,7,100,3\n1.5,8,200,-2\n";
    let expected = [key(0, 0, U, 7, 100), key(1_500_000_000, 0, U, 8, 200)];
    let (found, note) = noted(file.as_bytes());
    assert_eq!(found, expected);
    let said = "column 1 (\"time\") is the time, column 2 (\"object\") is the key, column 3 (\"size\") is the size";
    assert_eq!(note, said);
    // with a byte order mark, other comments before it, the ends of lines of Windows, or other spelling
    for file in [
        format!("\u{feff}{file}"),
        format!("# made by hand\n\n{file}"),
        file.replace('\n', "\r\n"),
        file.replace("# time, object, size", "TIME,Obj-ID,obj size"),
    ] {
        assert_eq!(noted(file.as_bytes()).0, expected, "{file}");
    }
    // a map of columns says it all: nothing to be noted
    let mut csv = Csv::default();
    csv.set_columns("key=2").expect("a map");
    let reader = Reader::with(&b"0,7\n"[..], "t", &Options { csv, ..options(Format::Csv) }).expect("opens");
    assert_eq!(reader.note(), None);
}

#[test]
fn csv_without_known_names_is_not_guessed() {
    for (file, needle) in [
        ("7,x\n8,y\n", "has 2 columns and no names that are known; say which column is what: --columns time=1,key=2"),
        ("1 7 4096\n2 8 4096\n", "has 3 columns and no names"),
        ("\u{feff}7;8\n", "has 2 columns and no names"),
        ("when,what\n1,2\n", "has 2 columns and no names"),
        ("time,size\n1,2\n", "names neither offsets nor keys"),
        ("id,key\n1,2\n", "\"id\" and \"key\" in its first line may both be the key"),
        ("item\n17\n18\n", "may be a name or a key; say --columns key=1 if it is a name"),
    ] {
        let text = message(file.as_bytes(), &options(Format::Csv));
        assert!(text.contains("the.trace") && text.contains(needle), "{file:?}: {text}");
    }
    let empty = Reader::with(&b""[..], "t", &options(Format::Csv)).expect("nothing is no error").count();
    assert_eq!(empty, 0);
}

#[test]
fn keys_may_be_text_and_lines_nothing_but_keys() {
    let blocks =
        |file: &[u8], options: &Options| -> Vec<u64> { requests(file, options).iter().map(|r| r.address).collect() };
    let plain = noted(b"17\n18\n17\n");
    assert_eq!(plain.0.iter().map(|r| r.address).collect::<Vec<_>>(), [17, 18, 17]);
    assert_eq!(plain.1, "no names in its first line, and one column: each line is a key");
    assert_eq!(blocks("\u{feff}17\n18\n".as_bytes(), &options(Format::Csv)), [17, 18]);
    // text: the same text is the same key, and no two of these are one
    let names = blocks(b"/a\n/b\n/a\nlonger than eight bytes\n17\n017\n", &options(Format::Csv));
    assert_eq!(names[0], names[2]);
    let distinct: std::collections::HashSet<_> = names.iter().collect();
    assert_eq!(distinct.len(), 5, "{names:?}");
    let (found, note) = noted(b"time,key\n1,/a\n2,/b\n");
    assert_eq!(found.iter().map(|r| r.address).collect::<Vec<_>>(), names[..2]);
    assert!(note.ends_with("keys are text, and their hashes stand for them"), "{note}");
    let mut csv = Csv::default();
    csv.set_columns("time=1,text=2").expect("a map");
    let mapped = Options { csv, ..options(Format::Csv) };
    assert_eq!(blocks(b"1,/a\n2,/b\n", &mapped), names[..2]);
    assert_eq!(blocks(b"when,what\n1,/a\n2,/b\n", &mapped), names[..2], "a line of names is none of keys");
    // what begins as numbers stays numbers
    let text = message(b"key\n1\n/a\n", &options(Format::Csv));
    assert!(
        text.contains("the key is \"/a\", not a number; if keys are any text") && text.contains("text=2"),
        "{text}"
    );
    let text = message(b"/a\n/b\n", &Options { key_bytes: Some(512), ..options(Format::Csv) });
    assert!(text.contains("its keys are text, which are no pieces of a disk"), "{text}");
}

#[test]
fn numbers_that_are_too_large_are_said_to_be() {
    let huge = "99999999999999999999";
    let named = |what: &str| format!("the {what} is \"");
    for (file, what) in [
        (format!("time,key\n{huge},1\n"), "time"),
        ("time,key\n20000000000,1\n".to_owned(), "time"),
        (format!("key\n{huge}\n"), "key"),
        ("key\n0x1ffffffffffffffff\n".to_owned(), "key"),
        (format!("offset,size\n{huge},1\n"), "offset"),
        (format!("offset,size\n1,{huge}\n"), "size"),
    ] {
        let text = message(file.as_bytes(), &options(Format::Csv));
        assert!(text.contains(&named(what)) && text.contains("too large: it does not fit 64 bits"), "{file:?}: {text}");
    }
    let lis = format!("{huge} 1 0 0\n");
    assert!(message(lis.as_bytes(), &options(Format::ArcLis)).contains("too large"));
    // a number may begin with as many zeros as it likes
    assert_eq!(requests(b"key\n000000000000000000000000017\n", &options(Format::Csv)), [key(0, 0, U, 17, 0)]);
    assert!(message(b"key\n1\n-2\n", &options(Format::Csv)).contains("the key is \"-2\", not a number"));
}

#[test]
fn the_event_that_counts_can_be_chosen() {
    let of = |format, file: &[u8], event| requests(file, &Options { event, ..options(format) });
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
    let virtio = b"virtio_blk_handle_read vdev 0x1 req 0x2 sector 8 nsectors 16\nblk_co_preadv blk 0x1 bs 0x2 offset 4096 bytes 8192 flags 0x0\n\
virtio_blk_handle_write vdev 0x1 req 0x2 sector 0 nsectors 1\n";
    assert_eq!(requests(virtio, &options(Format::Qemu)), [bytes(0, 0, R, 4096, 8192), bytes(0, 0, W, 0, 512)]);
}

#[test]
fn more_tenants_than_numbers_are_refused() {
    let file: String = (0..=8192).map(|n| format!("{n},R,0,4096,1\n")).collect();
    let text = message(file.as_bytes(), &options(Format::Alibaba));
    assert!(text.contains("\"8192\" is one tenant more than the 8192"), "{text}");
    let mut reader =
        Reader::with(file.as_bytes(), "t", &Options { lenient: true, ..options(Format::Alibaba) }).expect("opens");
    let blocks: std::collections::HashSet<u64> = reader.by_ref().map(|a| a.expect("lenient").block).collect();
    assert_eq!((blocks.len(), reader.tally().skipped), (8192, 1), "no two tenants share a block");
}

#[test]
fn files_are_read_ahead_and_pipes_like_files() {
    let plain: Vec<u8> = (0..1_000_000u32).flat_map(u32::to_le_bytes).collect();
    let mut file = tempfile::Builder::new().suffix(".u32le.zst").tempfile().expect("a file");
    std::io::Write::write_all(&mut file, &zstd::encode_all(&plain[..], 1).expect("zstd")).expect("written");
    for ahead in [false, true] {
        let reader = Reader::open_with(file.path(), &Options { ahead, ..Options::default() }).expect("opens");
        let progress = reader.progress();
        assert_eq!((reader.format(), reader.blocks().unit), (Format::U32Le, Unit::Keys));
        assert!(reader.map(|a| a.expect("sound").block).eq(0..1_000_000));
        assert_eq!(Some(progress.done()), progress.total());
        // dropped before its end, the thread ends, too
        drop(Reader::open_with(file.path(), &Options { ahead, ..Options::default() }).expect("opens").next());
    }
}

fn any_format() -> impl Strategy<Value = usize> {
    0..all().len()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Bytes changed, put in or taken out: whatever comes, it ends, and what comes is within bounds.
    #[test]
    fn damage_is_an_error_at_worst(
        which in any_format(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..6),
        lenient: bool,
    ) {
        let (format, mut file, ..) = all().swap_remove(which);
        for (at, byte, how) in damage {
            let at = if format == Format::Lcs { at.index(file.len() - 8160) + 8160 } else { at.index(file.len()) };
            match how {
                0 => file[at] = byte,
                1 => file.insert(at, byte),
                _ => { file.remove(at); }
            }
        }
        let (found, ..) = read(&file, &Options { lenient, ..options(format) });
        prop_assert!(found.len() <= 20);
        prop_assert!(found.iter().all(|r| r.kind != Kind::Unknown || r.keys >= 1));
    }
}
