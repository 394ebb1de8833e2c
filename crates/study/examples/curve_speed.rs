//! What each curve costs and how far it is off:
//! `cargo run --release -p `undercroft_study::curves` --example curve_speed [-- PROFILER]`.
//!
//! The Zipf trace (a million blocks, 20 million requests, alpha 1.0, seed 42) and, where the reference data is there,
//! arc-P6. Processor time of one thread over requests in memory, best of three runs; errors in miss ratio at a hundred
//! sizes from a hundredth of the footprint to all of it, over five seeds. With the path of libCacheSim's `mrcProfiler`
//! it runs beside: the same requests from a file of its oracleGeneral format, sizes in objects, user and system time of
//! the whole process.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use undercroft_engine::PolicyKind;
use undercroft_study::curves::{Aet, Curve, ExactLru, Miniature, Paired, Requests, Sample, Shards};
use undercroft_trace::TraceReader;
use undercroft_trace::synth::Zipf;

const RATE: f64 = 0.01;
const SEEDS: u64 = 5;
const RUNS: usize = 3;

/// Processor time of this thread; unlike the clock on the wall it does not run while somebody else does.
fn thread_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Processor time of the child processes that have ended, in seconds.
fn children_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // after the name in parentheses: cutime and cstime are the 14th and 15th, in hundredths of a second
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(13) + ticks(14)) / 100.0
}

/// Mean and largest difference to the truth.
fn errors(ratio: impl Fn(u64) -> f64, truth: &Curve, footprint: u64) -> (f64, f64) {
    let off: Vec<f64> = sizes(footprint).map(|s| (ratio(s) - truth.miss_ratio_at(s)).abs()).collect();
    (off.iter().sum::<f64>() / off.len() as f64, off.iter().copied().fold(0.0, f64::max))
}

fn sizes(footprint: u64) -> impl Iterator<Item = u64> {
    (1..=100).map(move |i| footprint * i / 100)
}

/// A row: time of the best run, errors of all seeds (mean of the means, and the largest), memory.
fn row(name: &str, blocks: &[u64], truth: &Curve, footprint: u64, seeds: u64, run: impl Fn(u64) -> (Curve, usize)) {
    let (mut best, mut mean, mut most, mut bytes) = (f64::INFINITY, 0.0, 0.0f64, 0);
    for i in 0..seeds.max(RUNS as u64) {
        let seed = i % seeds + 1;
        let start = thread_time();
        let (curve, memory) = run(seed);
        best = best.min((thread_time() - start).as_nanos() as f64 / blocks.len() as f64);
        let (m, most_now) = errors(|s| curve.miss_ratio_at(s), truth, footprint);
        (mean, most, bytes) = (mean + m / seeds.max(RUNS as u64) as f64, most.max(most_now), memory);
    }
    println!("| {name} | {best:.1} | {mean:.4} | {most:.4} | {:.1} |", bytes as f64 / 1e6);
}

fn measure(name: &str, blocks: &[u64], profiler: Option<&Path>) {
    let mut exact = ExactLru::new();
    exact.observe(blocks);
    let (truth, footprint) = (exact.curve(Requests::All), exact.footprint());
    println!("\n{name}: {} requests for {footprint} blocks\n", blocks.len());
    println!("| method | ns/request | mean error | largest error | MB |\n|---|--:|--:|--:|--:|");
    row("exact", blocks, &truth, footprint, 1, |_| {
        let mut exact = ExactLru::new();
        exact.observe(blocks);
        (exact.curve(Requests::All), exact.memory_bytes())
    });
    row("shards, 1 % of the blocks", blocks, &truth, footprint, SEEDS, |seed| {
        let mut shards = Shards::new(Sample::Rate(RATE), seed);
        shards.observe(blocks);
        (shards.curve(), shards.memory_bytes())
    });
    row("shards, 8192 blocks", blocks, &truth, footprint, SEEDS, |seed| {
        let mut shards = Shards::new(Sample::Blocks(8192), seed);
        shards.observe(blocks);
        (shards.curve(), shards.memory_bytes())
    });
    row("paired, 1 %", blocks, &truth, footprint, SEEDS, |seed| {
        let mut paired = Paired::new(RATE, seed);
        paired.observe(blocks);
        (paired.curve(), paired.memory_bytes())
    });
    for (name, rate) in [("aet, 1 % of the requests", RATE), ("aet, all requests", 1.0)] {
        row(name, blocks, &truth, footprint, if rate < 1.0 { SEEDS } else { 1 }, |seed| {
            let mut aet = Aet::new(rate, seed);
            aet.observe(blocks);
            (aet.curve(), aet.memory_bytes())
        });
    }
    // of another policy than LRU, whose curve `mini` has without any simulation, beside replays
    let points: Vec<u64> = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0]
        .map(|part| (footprint as f64 * part) as u64)
        .to_vec();
    let mut whole = Miniature::new(PolicyKind::S3Fifo, &points, 1.0, None, 1);
    whole.observe(blocks);
    let truth_of_it = whole.curve();
    row("mini (s3-fifo, 12 sizes), all", blocks, &truth_of_it, footprint, 1, |seed| {
        let mut mini = Miniature::new(PolicyKind::S3Fifo, &points, 1.0, None, seed);
        blocks.chunks(1 << 16).for_each(|batch| mini.observe(batch));
        (mini.curve(), mini.memory_bytes())
    });
    row("mini (s3-fifo, 12 sizes), 1 %", blocks, &truth_of_it, footprint, 3, |seed| {
        let mut mini = Miniature::new(PolicyKind::S3Fifo, &points, RATE, Some(footprint), seed);
        blocks.chunks(1 << 16).for_each(|batch| mini.observe(batch));
        (mini.curve(), mini.memory_bytes())
    });
    if let Some(profiler) = profiler {
        beside(profiler, blocks, &truth, footprint).expect("libCacheSim's profiler runs");
    }
}

/// The rows of libCacheSim's profiler.
fn beside(profiler: &Path, blocks: &[u64], truth: &Curve, footprint: u64) -> std::io::Result<()> {
    let dir = tempfile::tempdir()?;
    let (trace, result) = (dir.path().join("trace.oracleGeneral.bin"), dir.path().join("result"));
    let mut file = BufWriter::new(File::create(&trace)?);
    for (i, &block) in blocks.iter().enumerate() {
        file.write_all(&((i / 10_000) as u32).to_le_bytes())?;
        file.write_all(&block.to_le_bytes())?;
        file.write_all(&1u32.to_le_bytes())?;
        // the next request is of no use to a profiler
        file.write_all(&(-1i64).to_le_bytes())?;
    }
    file.into_inner()?.sync_all()?;
    let first = footprint / 100;
    let range = format!("--size={first}B,{}B,100", first * 100);
    let say = |name: &str, sample: &str, seeds: u64| -> std::io::Result<()> {
        let (mut best, mut mean, mut most) = (f64::INFINITY, 0.0, 0.0f64);
        for seed in 1..=seeds {
            let before = children_time();
            let parameters = format!("--profiler-params={sample},{seed}");
            let done = Command::new(profiler)
                .args([trace.as_os_str(), "oracleGeneral".as_ref()])
                .args(["--algo=LRU", "--profiler=SHARDS", "--ignore-obj-size", &parameters, &range])
                .arg(format!("--output={}", result.display()))
                .output()?;
            best = best.min((children_time() - before) * 1e9 / blocks.len() as f64);
            let said =
                std::fs::read_to_string(&result).unwrap_or_else(|_| String::from_utf8_lossy(&done.stdout).into());
            let ratios: Vec<(u64, f64)> = said.lines().filter_map(point).collect();
            assert_eq!(ratios.len(), 100, "a hundred sizes in what the profiler says: {said}");
            let off: Vec<f64> = ratios.iter().map(|&(s, r)| (r - truth.miss_ratio_at(s)).abs()).collect();
            mean += off.iter().sum::<f64>() / off.len() as f64 / seeds as f64;
            most = off.into_iter().fold(most, f64::max);
        }
        println!("| libCacheSim {name} | {best:.1} | {mean:.4} | {most:.4} | |");
        Ok(())
    };
    say("shards, 1 %", "FIX_RATE,0.01", SEEDS)?;
    say("shards, 8192 blocks", "FIX_SIZE,8192", SEEDS)?;
    say("exact (shards of all)", "FIX_RATE,1.0", 1)
}

/// A line `123B <tab> ratio <tab> ratio`.
fn point(line: &str) -> Option<(u64, f64)> {
    let mut fields = line.split('\t');
    let size = fields.next()?.strip_suffix('B')?.parse().ok()?;
    Some((size, fields.next()?.parse().ok()?))
}

fn main() {
    let profiler = std::env::args().nth(1);
    let profiler = profiler.as_deref().map(Path::new);
    println!("one thread, processor time");
    measure("zipf 1.0", &Zipf::new(1_000_000, 1.0, 42).take(20_000_000).collect::<Vec<_>>(), profiler);
    let p6 = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces/block/arc-P6.lis.zst");
    if !p6.exists() {
        println!("\narc-P6 is skipped: it is not at {}", p6.display());
        return;
    }
    let start = thread_time();
    let blocks: Result<Vec<u64>, _> = TraceReader::open(&p6).and_then(|r| r.map(|a| a.map(|a| a.block)).collect());
    let blocks = blocks.expect("a sound trace");
    let reading = (thread_time() - start).as_nanos() as f64 / blocks.len() as f64;
    measure("arc-P6", &blocks, profiler);
    println!("\nReading arc-P6 takes {reading:.1} ns a request beside that.");
}
