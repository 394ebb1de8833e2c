//! Miss counts against those of an independent simulator on the long traces: every row of P6 and of the Zipf trace.
//!
//! Takes about a minute of processor time: `cargo test -p undercroft-engine --test golden_long -- --ignored`.

mod common;

#[test]
#[ignore = "long: run by make test-long"]
fn miss_counts_on_the_long_traces() {
    common::verify(common::rows(|row| row.trace == "arc-P6" || row.trace.starts_with("zipf")));
}
