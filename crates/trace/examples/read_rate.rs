//! How fast a trace is read, in accesses a second:
//! `cargo run --release -p undercroft-trace --example read_rate FILE [FORMAT]`.
//!
//! Prints a line for each way of reading: batches, batches with a thread that reads ahead, the iterator; the best of
//! three, and a sum over the blocks so that nothing is left out.

use std::process::ExitCode;
use std::time::Instant;
use undercroft_trace::{BATCH, ReaderOptions, TraceError, TraceReader};

fn batches(path: &str, options: &ReaderOptions) -> Result<(u64, u64), TraceError> {
    let mut reader = TraceReader::open_with(path, options)?;
    let mut batch = Vec::with_capacity(BATCH);
    let (mut count, mut sum) = (0, 0u64);
    loop {
        batch.clear();
        if reader.next_batch(&mut batch)? == 0 {
            return Ok((count, sum));
        }
        count += batch.len() as u64;
        sum = batch.iter().fold(sum, |s, a| s.wrapping_add(a.block));
    }
}

fn one_by_one(path: &str, options: &ReaderOptions) -> Result<(u64, u64), TraceError> {
    let (mut count, mut sum) = (0, 0u64);
    for access in TraceReader::open_with(path, options)? {
        count += 1;
        sum = sum.wrapping_add(access?.block);
    }
    Ok((count, sum))
}

/// Reads a trace in one way: how many accesses, and the sum of their blocks.
type Way = fn(&str, &ReaderOptions) -> Result<(u64, u64), TraceError>;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let Some(path) = words.next() else {
        eprintln!("usage: read_rate FILE [FORMAT]");
        return ExitCode::from(2);
    };
    let format = words.next().and_then(|f| f.parse().ok());
    let ways: [(&str, bool, Way); 3] =
        [("batches", false, batches), ("ahead", true, batches), ("iterator", false, one_by_one)];
    for (name, ahead, way) in ways {
        let options = ReaderOptions { format, ahead, ..ReaderOptions::default() };
        let mut best = f64::INFINITY;
        let mut found = (0, 0);
        for _ in 0..3 {
            let begun = Instant::now();
            match way(&path, &options) {
                Ok(read) => found = read,
                Err(e) => {
                    eprintln!("{e}");
                    return ExitCode::FAILURE;
                }
            }
            best = best.min(begun.elapsed().as_secs_f64());
        }
        println!(
            "{name:<9} {:>7.1} M accesses/s, {} accesses, sum {:016x}",
            found.0 as f64 / best / 1e6,
            found.0,
            found.1
        );
    }
    ExitCode::SUCCESS
}
