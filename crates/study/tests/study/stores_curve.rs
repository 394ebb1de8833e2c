//! The curve of both stores together against the simulated stores: how far an LRU stack of their size is from what RAM
//! and SSD store really miss.

use undercroft_engine::{HashKey, LruCurve, LruCurveOptions, PolicyKind};
use undercroft_study::sim::stores::{Admission, StoresPlan, simulate_stores};
use undercroft_study::sim::{Go, Reference, SweepOptions};
use undercroft_trace::synth::Zipf;

/// Blocks of a segment of the simulated store, and what comes before its segments.
const SEGMENT: u64 = 256 << 10;
const RAM: u32 = 400;
/// How many too few misses the stack may say, of all requests (it is 3 to 6 %): segments are kept free, blocks are in
/// both stores for a while, and the store is a queue, where LRU moves what is asked for again.
const OFF: f64 = 0.07;

#[test]
fn the_curve_of_both_stores_says_what_they_miss_together() {
    let segments = [16u64, 40, 80, 160];
    let trace: Vec<u64> = Zipf::new(12_000, 0.8, 11).take(200_000).collect();
    let exact = LruCurveOptions { rate_max: 1.0, samples_max: 1 << 16, size_max: u64::MAX };
    let mut lru = LruCurve::new(exact, HashKey::from_seed(3));
    trace.iter().for_each(|&block| lru.observe(block));
    let curve = lru.curve();
    let plans = segments.map(|n| StoresPlan {
        ram_blocks: RAM,
        ssd_bytes: (n + 1) * SEGMENT,
        admission: Admission::All,
        ..StoresPlan::new(PolicyKind::Lru)
    });
    let reads = trace.iter().map(|&block| Ok(Reference::read(block)));
    let done = simulate_stores(reads, &plans, &SweepOptions::default(), &mut |_| Go::On).unwrap();
    let mut before = f64::INFINITY;
    for (result, n) in done.results.iter().zip(segments) {
        let said = curve.misses_at(u64::from(RAM) + n * 63);
        let misses = result.counts.misses as f64;
        let off = (said - misses).abs() / trace.len() as f64;
        assert!(off < OFF && said < misses, "{n} segments: {misses} misses, {said} said");
        assert!(misses < before, "more room saves misses");
        before = misses;
    }
}
