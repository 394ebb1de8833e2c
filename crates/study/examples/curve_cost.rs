//! What a meter costs: `cargo run --release -p undercroft-lab --example curve_cost`.
//!
//! Times a loop over block numbers with and without a meter, and prints the difference of best, median and worst run in
//! nanoseconds per request, and the memory that the meter came to. 10 ns are 1 % of a core at a million requests a
//! second.

use std::hint::black_box;
use std::time::Duration;
use undercroft_engine::{HashKey, LruCurve, LruCurveOptions, Meter, MeterOptions, PolicyKind, Served};
use undercroft_trace::synth::Zipf;

const REQUESTS: usize = 2_000_000;
const RUNS: usize = 9;
/// Requests of an interval: a million requests a second, one second.
const INTERVAL: usize = 1_000_000;

/// Processor time of this thread; unlike the clock on the wall it does not run while somebody else does.
fn thread_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Nanoseconds a request of each run, rising.
fn times(mut run: impl FnMut() -> Duration) -> Vec<f64> {
    let mut times: Vec<f64> = (0..RUNS).map(|_| run().as_nanos() as f64 / REQUESTS as f64).collect();
    times.sort_by(f64::total_cmp);
    times
}

/// Best, median and worst run, less what the bare loop takes.
fn row(times: &[f64], bare: f64) -> String {
    format!("{:.1} | {:.1} | {:.1}", times[0] - bare, times[RUNS / 2] - bare, times[RUNS - 1] - bare)
}

fn main() {
    let mut x = 88_172_645_463_325_252u64;
    let mut random = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    let loads: [(&str, Vec<u64>); 4] = [
        ("zipf 1.0 of 1,000,000", Zipf::new(1_000_000, 1.0, 42).take(REQUESTS).collect()),
        ("zipf 0.8 of 100,000", Zipf::new(100_000, 0.8, 42).take(REQUESTS).collect()),
        ("uniform of 1,000,000", (0..REQUESTS).map(|_| random() % 1_000_000).collect()),
        ("each once", (0..REQUESTS as u64).collect()),
    ];
    println!("| load | share | policy | ns a request: best | median | worst | bytes |\n|---|--:|---|--:|--:|--:|--:|");
    for (name, blocks) in &loads {
        let bare = times(|| {
            let start = thread_time();
            let mut sum = 0u64;
            for &block in blocks {
                sum = sum.wrapping_add(black_box(block));
            }
            black_box(sum);
            thread_time() - start
        })[RUNS / 2];
        let mut lru = LruCurve::new(LruCurveOptions::default(), HashKey::from_seed(1));
        let alone = times(|| {
            let start = thread_time();
            for &block in blocks {
                lru.observe(black_box(block));
            }
            thread_time() - start
        });
        println!("| {name} | | lru alone | {} | {} |", row(&alone, bare), lru.memory_bytes());
        for share in [1_000, 10_000, 100_000, 1_000_000] {
            for kind in [PolicyKind::S3Fifo, PolicyKind::Arc, PolicyKind::WTinyLfu] {
                let mut bytes = 0;
                let metered = times(|| {
                    let mut meter = Meter::new(kind, share, share * 8, MeterOptions::default(), HashKey::from_seed(1));
                    // warm: all tables have grown, all miniature caches are full
                    blocks.iter().for_each(|&block| meter.observe(block, Served::Miss));
                    meter.interval();
                    let start = thread_time();
                    let mut sum = 0u64;
                    for interval in blocks.chunks(INTERVAL) {
                        for &block in interval {
                            sum = sum.wrapping_add(black_box(block));
                            meter.observe(block, Served::Miss);
                        }
                        black_box(meter.interval());
                    }
                    black_box(sum);
                    let took = thread_time() - start;
                    bytes = meter.memory_bytes();
                    took
                });
                println!("| {name} | {share} | {kind} | {} | {bytes} |", row(&metered, bare));
            }
        }
    }
}
