//! Arbitrary bytes as a trace of each format, compressed or not: an error at worst, within bounded time and memory.
#![no_main]

use libfuzzer_sys::fuzz_target;
use undercroft_trace::{Format, Reader};

/// A few bytes can name 2^27 blocks; so many are as good as all.
const ACCESSES_MAX: usize = 100_000;

fuzz_target!(|data: &[u8]| {
    for format in Format::ALL {
        if let Ok(reader) = Reader::new(data, "fuzz", format) {
            let mut failed = false;
            for access in reader.take(ACCESSES_MAX) {
                assert!(!failed, "an error is the last thing that a reader says");
                failed = access.is_err();
            }
        }
    }
});
