//! CSV: which column is what, what is said of that, what is refused.
//!
//! Owns the tests of the map and of names in first lines. Never tests other formats.

use super::{message, options, requests};
use crate::samples::{R, U, W, bytes, key};
use undercroft_trace::options::{Column, Csv};
use undercroft_trace::{Format, ReaderOptions, TraceReader, TraceRequest};

#[test]
fn csv_is_read_by_names_and_by_numbers() {
    let csv = |map: &str, file: &[u8]| {
        let mut csv = Csv { time_unit_ns: 1_000_000, offset_unit: 512, ..Csv::default() };
        csv.set_columns(map).expect("a map");
        requests(file, &ReaderOptions { csv, ..options(Format::Csv) })
    };
    let expected = [bytes(1500, 0, R, 1024, 4096), bytes(2_000_000, 1, W, 512, 512)];
    let expected = [TraceRequest { time_ns: 1_500_000, ..expected[0] }, expected[1]];
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
        message(b"1,2\n", &ReaderOptions { csv: wrong, ..options(Format::Csv) })
            .contains("\"1,2\", has 2 columns, no column 9")
    );
    for bad in ["time", "when=1", "time=0", "time=999", "offset=1,key=2", "key=1,text=2", "time="] {
        assert!(Csv::default().set_columns(bad).is_err(), "{bad}");
    }
    assert_eq!("Offset".parse(), Ok(Column::Name("Offset".into())));
}

/// Requests of a file that says by itself what it is, with what its reader took for what.
fn noted(file: &[u8]) -> (Vec<TraceRequest>, String) {
    let note = TraceReader::with(file, "the.trace", &ReaderOptions::default())
        .expect("its beginning tells")
        .note()
        .map(str::to_owned);
    (requests(file, &ReaderOptions::default()), note.expect("said"))
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
    let reader = TraceReader::with(&b"0,7\n"[..], "t", &ReaderOptions { csv, ..options(Format::Csv) }).expect("opens");
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
    let empty = TraceReader::with(&b""[..], "t", &options(Format::Csv)).expect("nothing is no error").count();
    assert_eq!(empty, 0);
}

#[test]
fn keys_may_be_text_and_lines_nothing_but_keys() {
    let blocks = |file: &[u8], options: &ReaderOptions| -> Vec<u64> {
        requests(file, options).iter().map(|r| r.address).collect()
    };
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
    let mapped = ReaderOptions { csv, ..options(Format::Csv) };
    assert_eq!(blocks(b"1,/a\n2,/b\n", &mapped), names[..2]);
    assert_eq!(blocks(b"when,what\n1,/a\n2,/b\n", &mapped), names[..2], "a line of names is none of keys");
    // what begins as numbers stays numbers
    let text = message(b"key\n1\n/a\n", &options(Format::Csv));
    assert!(
        text.contains("the key is \"/a\", not a number; if keys are any text") && text.contains("text=2"),
        "{text}"
    );
    let text = message(b"/a\n/b\n", &ReaderOptions { key_bytes: Some(512), ..options(Format::Csv) });
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
fn a_beginning_of_comments_alone_is_not_guessed_but_refused() {
    let comments =
        |n: usize| "# written by hand, and annotated at length: what was traced, where, when, by whom\n".repeat(n);
    let (few, many) = (comments(10), comments(60));
    let file = |comments: &str| format!("{comments}key\n1\n2\n1\n");
    let keys = |found: Vec<TraceRequest>| found.iter().map(|r| r.address).collect::<Vec<_>>();
    assert_eq!(keys(requests(file(&few).as_bytes(), &options(Format::Csv))), [1, 2, 1]);
    // All of it as one key would be a trace of one block.
    let said = message(file(&many).as_bytes(), &options(Format::Csv));
    assert!(said.contains("first 4096 bytes are comments") && said.contains("take them out"), "{said}");
    // A file that is all comments has no requests, and that is known.
    assert_eq!(requests(few.as_bytes(), &options(Format::Csv)), []);
}

#[test]
fn a_column_without_a_name_is_a_column() {
    // An index that another program wrote before its columns.
    let expected = [key(100_000_000_000, 0, U, 7, 0), key(200_000_000_000, 0, U, 8, 0)];
    for separator in [",", "\t", ";"] {
        let file = ["", "time", "key"].join(separator) + "\n" + &["0", "100", "7"].join(separator) + "\n";
        let file = file + &["1", "200", "8"].join(separator) + "\n";
        assert_eq!(requests(file.as_bytes(), &options(Format::Csv)), expected, "{file:?}");
        let mut csv = Csv::default();
        csv.set_columns("time=2,key=3").expect("a map");
        assert_eq!(requests(file.as_bytes(), &ReaderOptions { csv, ..options(Format::Csv) }), expected, "{file:?}");
    }
}
