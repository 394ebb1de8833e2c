//! Miss counts against those of an independent simulator: every row of the short block traces, and for each long trace
//! (P6, Zipf) two rows. `golden_long` runs all of the long ones.

mod common;

use undercroft_engine::PolicyKind::{Arc, Lru, S3Fifo, WTinyLfu};

/// Rows of 12 to 20 million accesses each.
fn is_long(trace: &str) -> bool {
    trace == "arc-P6" || trace.starts_with("zipf")
}

#[test]
fn miss_counts_on_the_short_traces() {
    common::verify(common::rows(|row| !is_long(&row.trace)));
}

#[test]
fn miss_counts_on_the_long_traces_in_part() {
    let chosen = [(Lru, 7_737), (S3Fifo, 77_377), (Arc, 10_000), (WTinyLfu, 100_000)];
    common::verify(common::rows(|row| is_long(&row.trace) && chosen.contains(&(row.policy, row.capacity))));
}
