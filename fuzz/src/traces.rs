//! Traces that may contain anything.
//!
//! Owns the target of traces, never a parser. Invariant: as for all targets, a panic is a defect of the parser.

use undercroft_trace::options::{Csv, Event};
use undercroft_trace::transfers::TransferLog;
use undercroft_trace::{Format, ReaderOptions, TraceReader};

/// A few bytes can name 2^27 blocks; so many are as good as all.
const ACCESSES_MAX: usize = 100_000;

/// The first byte of what is a log of a guest's transfers.
const TRANSFERS: u8 = u8::MAX;

/// Arbitrary bytes as a trace, the format by the first byte, compressed or not: an error at worst, within bounded time
/// and memory. The second byte chooses how it is read: leniently, split, with keys as sectors or blocks, CSV with a map
/// of columns. The last first byte is for logs of a guest's transfers.
///
/// # Panics
/// If a request does not fit its blocks, a reader goes on after an error, or a log of transfers measures nothing or has
/// a page that it does not count.
pub fn trace(data: &[u8]) {
    let [which, how, data @ ..] = data else { return };
    if *which == TRANSFERS {
        if let Ok(log) = TransferLog::parse(data) {
            assert!(log.begin() < log.transfers().len(), "nothing is measured");
            assert!(log.transfers().iter().all(|t| t.page < log.pages()), "a page is not counted");
        }
        return;
    }
    let format = Format::ALL.get(usize::from(*which)).copied();
    let bit = |n: u8| how >> n & 1 == 1;
    let mut csv = Csv::default();
    match how >> 6 {
        1 => csv.set_columns("time=1,offset=2,size=3,tenant=4").expect("a map"),
        2 => csv.set_columns("text=1,op=2,keys=3").expect("a map"),
        3 => csv.set_columns("key=object,time=time").expect("a map"),
        // by the names in its first line
        _ => {}
    }
    let options = ReaderOptions {
        csv,
        // none: whatever it looks like
        format,
        block_bytes: bit(0).then_some(4096),
        key_bytes: bit(1).then_some(512),
        keys_are_blocks: bit(5),
        lenient: bit(2),
        event: if bit(3) { Event::Complete } else { Event::Queue },
        ..ReaderOptions::default()
    };
    let Ok(mut reader) = TraceReader::with(data, "fuzz", &options) else { return };
    if bit(4) {
        let mut requests = Vec::new();
        while let Ok(1..) = reader.next_requests(&mut requests) {
            for r in &requests {
                assert!(reader.blocks().fits(r).is_ok(), "{r:?}");
            }
        }
        return;
    }
    let mut failed = false;
    for access in reader.take(ACCESSES_MAX) {
        assert!(!failed, "an error is the last thing that a reader says");
        failed = access.is_err();
    }
}
