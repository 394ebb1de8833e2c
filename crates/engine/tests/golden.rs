//! Miss counts against those of an independent simulator: every row of the short block traces, and for each long trace
//! (P6, Zipf) two rows. `golden_long` runs all of the long ones.

mod common;

use undercroft_engine::PolicyKind::{Arc, Lirs, Lru, S3Fifo, TwoQ, WTinyLfu};
use undercroft_engine::opt::{Admission, misses};

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
    let chosen = [(Lru, 7_737), (S3Fifo, 77_377), (Arc, 10_000), (WTinyLfu, 100_000), (TwoQ, 10_000), (Lirs, 77_377)];
    common::verify(common::rows(|row| is_long(&row.trace) && chosen.contains(&(row.policy, row.capacity))));
}

#[test]
fn the_optimum_on_the_short_traces() {
    for (trace, capacity, expected) in common::optima() {
        let blocks = common::blocks(&trace);
        let optimum = misses(&blocks, capacity, Admission::Always);
        assert_eq!(optimum, expected, "{trace} with {capacity} blocks");
        assert!(misses(&blocks, capacity, Admission::Bypass) <= optimum, "{trace}: bypassing is a choice");
    }
}
