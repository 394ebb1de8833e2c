//! Damage: files cut, changed and read as what they are not.
//!
//! Owns the tests of what a reader says of records that make no sense. Never tests what sound files hold.

use super::{gzip, message, options, read, requests};
use crate::samples::{FIO_3, MSR, Sample, all, blktrace, vscsi_1};
use proptest::prelude::*;
use undercroft_trace::{AccessKind, Format, ReaderOptions, TraceError, TraceReader};

/// Cut at every byte: the requests before, then perhaps an error; never anything else.
#[test]
fn a_file_cut_anywhere_gives_a_prefix() {
    for Sample { format, file, requests: expected, ends, dull, .. } in all() {
        for cut in dull..file.len() {
            for lenient in [false, true] {
                let (found, _, failed) = read(&file[..cut], &ReaderOptions { lenient, ..options(format) });
                // a number that is cut is another number
                let sure = found.len() - usize::from(ends.is_none() && !found.is_empty());
                assert!(found.len() <= expected.len() && found[..sure] == expected[..sure], "{format} cut at {cut}");
                // of a line of names that is cut nobody can tell what it names
                let names = format == Format::Csv && found.is_empty();
                let only_nothing = matches!(failed, None | Some(TraceError::Nothing { .. }))
                    || names && matches!(failed, Some(TraceError::Columns { .. }));
                assert!(!lenient || only_nothing, "{format} cut at {cut}: {failed:?}");
                let whole = ends.as_ref().is_none_or(|ends| ends.contains(&cut));
                assert!(whole || lenient || found.len() == expected.len() || failed.is_some(), "{format} cut at {cut}");
            }
        }
    }
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
        let mut reader =
            TraceReader::with(file, "the.trace", &ReaderOptions { lenient: true, ..options(format) }).expect("opens");
        let good = reader.by_ref().inspect(|a| assert!(a.is_ok(), "lenient")).count();
        assert!(good > 0, "{format}");
        assert_eq!((reader.tally().skipped, reader.tally().first.len()), (bad as u64, bad), "{format}");
        assert!(reader.tally().first[0].contains(needle), "{format}: {:?}", reader.tally().first);
    }
    // a damaged record of blktrace: on to the next magic number
    let good = blktrace(5, 8, 4096, 1 << 16 | 1, 8 << 20, b"");
    let file = [&good[..], &[0xEE; 77], &good].concat();
    assert!(message(&file, &options(Format::Blktrace)).contains("record 2 at byte 48: it begins with 0xeeeeeeee"));
    assert_eq!(requests(&file, &ReaderOptions { lenient: true, ..options(Format::Blktrace) }).len(), 2);
    // a line without end
    let file = [b"1 1 0 0\n".as_slice(), &[b'7'; 10_000], b"\n2 1 0 0\n"].concat();
    assert_eq!(requests(&file, &ReaderOptions { lenient: true, ..options(Format::ArcLis) }).len(), 2);
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
    let text = message(MSR, &ReaderOptions { lenient: true, ..options(Format::Blkparse) });
    assert!(text.contains("no record of the trace the.trace makes sense (3 were left out)"), "{text}");
    let text = message(b"\x01\x02\x03", &ReaderOptions::default());
    assert!(text.contains("--format") && text.contains("oracle-general"), "{text}");
}

#[test]
fn truncated_compression_is_an_error_or_counted() {
    let plain: Vec<u8> = (0..100_000u64).flat_map(|n| (n * 0x9e37_79b9).to_le_bytes()).collect();
    for packed in [zstd::encode_all(&plain[..], 1).expect("zstd"), gzip(&plain)] {
        let cut = &packed[..packed.len() / 2];
        assert!(message(cut, &options(Format::U64Le)).contains("cannot read the trace the.trace at byte"));
        let mut reader =
            TraceReader::with(cut, "t", &ReaderOptions { lenient: true, ..options(Format::U64Le) }).expect("opens");
        let good: Vec<u64> = reader.by_ref().map(|a| a.expect("lenient").block).collect();
        assert!(good.len() > 10_000 && reader.tally().skipped >= 1, "{}", good.len());
        assert!(good.iter().enumerate().all(|(n, b)| *b == n as u64 * 0x9e37_79b9));
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
        let Sample { format, mut file, dull, .. } = all().swap_remove(which);
        for (at, byte, how) in damage {
            let at = at.index(file.len() - dull) + dull;
            match how {
                0 => file[at] = byte,
                1 => file.insert(at, byte),
                _ => { file.remove(at); }
            }
        }
        let (found, ..) = read(&file, &ReaderOptions { lenient, ..options(format) });
        prop_assert!(found.len() <= 20);
        prop_assert!(found.iter().all(|r| r.kind != AccessKind::Unknown || r.keys >= 1));
    }
}
