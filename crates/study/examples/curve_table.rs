//! The errors of the online miss curves:
//! `cargo run --release -p undercroft-lab --example curve_table [prefix of a name]`.
//!
//! Holds them against exact curves on the shared block traces and on Zipf, with several seeds, and prints a table.
//! Needs the shared traces beside the repository (without them only Zipf); takes some minutes.

use std::path::Path;
use undercroft_engine::{HashKey, LruCurve, LruCurveOptions, PolicyCurve, PolicyCurveOptions, PolicyKind, curve};
use undercroft_study::lab::curve::{CurveError, MattsonLru, error, sizes};
use undercroft_study::lab::{Workload, misses};
use undercroft_trace::TraceReader;

const SEEDS: u64 = 5;
const LRU_SIZES: u32 = 50;

/// Mean over seeds of the mean error, and the largest of the largest.
fn together(errors: &[CurveError]) -> String {
    let mean = errors.iter().map(|e| e.mean).sum::<f64>() / errors.len() as f64;
    let worst = errors.iter().fold(CurveError::default(), |w, e| if e.max.0 > w.max.0 { *e } else { w });
    format!("{mean:.4} | {:.4} at {}", worst.max.0, worst.max.1)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces/block");
    println!("| trace | curve | rate in the end | mean error | largest error |\n|---|---|--:|--:|--:|");
    let files = ["arc-OLTP.lis.zst", "arc-P6.lis.zst", "cloudPhysicsIO.vscsi", "cloudphysics-w106.u32le.xz", "zipf"];
    for file in files.into_iter().filter(|file| file.starts_with(&wanted)) {
        let workload = match traces.join(file) {
            _ if file == "zipf" => Workload::zipf("zipf", 1_000_000, 5_000_000, 1.0, 42),
            path if path.exists() => Workload::of_trace(file, TraceReader::open(&path)?)?,
            path => {
                eprintln!("SKIPPED: no trace at {}", path.display());
                continue;
            }
        };
        let exact = MattsonLru::new(&workload.blocks).curve();
        let at = sizes(u64::from(workload.footprint) / 100, u64::from(workload.footprint), LRU_SIZES);
        for samples_max in [2048, 8192] {
            let (mut errors, mut rate) = (vec![], 0.0);
            for seed in 0..SEEDS {
                let options = LruCurveOptions { samples_max, ..Default::default() };
                let mut lru = LruCurve::new(options, HashKey::from_seed(seed));
                workload.blocks.iter().for_each(|&block| lru.observe(block));
                errors.push(error(&lru.curve(), at.iter().map(|&size| (size, exact.miss_ratio_at(size)))));
                rate = lru.rate();
            }
            println!("| {file} | lru of {samples_max} | {rate:.5} | {} |", together(&errors));
        }
        for kind in [PolicyKind::S3Fifo, PolicyKind::Arc, PolicyKind::WTinyLfu] {
            for share in [workload.footprint / 100, workload.footprint / 10] {
                let at = curve::sizes_around(u64::from(share), u64::from(workload.footprint));
                let mut errors = vec![];
                let (mut exact, mut small) = (vec![], 0);
                for seed in 0..SEEDS {
                    let options = PolicyCurveOptions::default();
                    let mut mini = PolicyCurve::new(kind, &at, options, HashKey::from_seed(seed));
                    workload.blocks.iter().for_each(|&block| mini.observe(block));
                    if seed == 0 {
                        let ratio = |&size: &u64| {
                            (size, misses(kind, size as u32, &workload) as f64 / workload.blocks.len() as f64)
                        };
                        exact = mini.sizes().iter().map(ratio).collect();
                        small = at.len() - exact.len();
                    }
                    errors.push(error(&mini.curve(), exact.iter().copied()));
                }
                let name = format!("{kind} around {share} ({} sizes, {small} too small)", exact.len());
                println!("| {file} | {name} | | {} |", together(&errors));
            }
        }
    }
    Ok(())
}
