//! The table behind the choice of the default policy: `cargo run --release -p undercroft-lab --example policy_table`.
//!
//! Runs every policy on the shared block traces and on synthetic workloads, prints what came out, and writes it to
//! bench/results/policies.md. Needs the shared traces beside the repository; takes some minutes on two processors.

use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use undercroft_engine::{Index, PolicyKind};
use undercroft_study::lab::{Comparison, Standing, Workload, misses, misses_while_resized};
use undercroft_trace::TraceReader;

/// Sizes of the reference's miss counts, by trace.
const REFERENCE: [(&str, &str, &[u32]); 4] = [
    ("arc-OLTP", "arc-OLTP.lis.zst", &[1000, 1868, 18_688]),
    ("arc-P6", "arc-P6.lis.zst", &[7737, 77_377]),
    ("cloudPhysicsIO", "cloudPhysicsIO.vscsi", &[489, 4897]),
    ("cloudphysics-w106", "cloudphysics-w106.u32le.xz", &[2751, 27_517]),
];
/// Further sizes, as shares of the footprint.
const SHARES: [f64; 3] = [0.001, 0.01, 0.1];
/// A size is not run again if another one is that close.
const SAME_WITHIN: f64 = 0.15;
/// Times that a cache is halved and restored, and runs that a timing is the best of.
const PERIODS: usize = 20;
const TIMED_RUNS: usize = 3;
/// Accesses of the Zipf workload that are timed.
const ZIPF_TIMED: usize = 5_000_000;

fn sizes(workload: &Workload, reference: &[u32]) -> Vec<u32> {
    let mut sizes = reference.to_vec();
    for share in SHARES {
        let size = ((f64::from(workload.footprint) * share) as u32).max(1);
        if !sizes.iter().any(|&s| (f64::from(s) / f64::from(size) - 1.0).abs() < SAME_WITHIN) {
            sizes.push(size);
        }
    }
    sizes.sort_unstable();
    sizes
}

fn standings_markdown(standings: &[Standing]) -> String {
    let mut text = String::from(
        "| policy | fewer misses than lru, mean | at worst | mean rank | more misses than the best, at worst |\n\
         |---|--:|--:|--:|--:|\n",
    );
    for s in standings {
        let percent = |x: f64| format!("{:+.1} %", x * 100.0);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.2} | {} |",
            s.policy,
            percent(s.mean_reduction),
            percent(s.worst_reduction),
            s.mean_rank,
            percent(s.worst_regret)
        );
    }
    text
}

/// Processor time of this thread; unlike the clock on the wall it does not run while somebody else does.
fn thread_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Nanoseconds per access, the best of some runs, and the memory that an index takes.
fn cost_markdown(workloads: &[(&Workload, u32)]) -> String {
    let names: Vec<_> = workloads.iter().map(|(w, size)| format!("{}, {size} blocks", w.name)).collect();
    let mut text = format!(
        "| policy | bytes per slot | ns per access: {} |\n|---|--:|{}\n",
        names.join(" | "),
        "--:|".repeat(names.len())
    );
    for policy in PolicyKind::ALL {
        let capacity = 1 << 20;
        let bytes = Index::new(policy, capacity).memory_bytes() as f64 / f64::from(capacity);
        let times = workloads.iter().map(|(workload, size)| {
            let run = || {
                let start = thread_time();
                std::hint::black_box(misses(policy, *size, workload));
                (thread_time() - start).as_nanos() as f64 / workload.blocks.len() as f64
            };
            let best = (0..TIMED_RUNS).map(|_| run()).fold(f64::INFINITY, f64::min);
            format!("{best:.0}")
        });
        let _ = writeln!(text, "| {policy} | {bytes:.1} | {} |", times.collect::<Vec<_>>().join(" | "));
    }
    text
}

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let traces: PathBuf = root.join("../shared/traces/block");
    if !traces.exists() {
        return Err(format!("the shared traces are not at {}; nothing was compared", traces.display()).into());
    }
    let (mut block, mut resized, mut synthetic) = (Comparison::default(), Comparison::default(), Comparison::default());

    let mut timed = vec![];
    for (name, file, reference) in REFERENCE {
        eprintln!("{name} ...");
        let workload = Workload::of_trace(name, TraceReader::open(traces.join(file))?)?;
        block.add(&workload, &sizes(&workload, reference));
        let largest = *reference.last().expect("every trace has sizes");
        resized.add_with(&workload, &[largest], |policy, capacity| {
            misses_while_resized(policy, capacity, &workload, PERIODS)
        });
        if matches!(name, "arc-OLTP" | "cloudphysics-w106") {
            timed.push((workload, largest));
        }
    }
    eprintln!("cloudPhysicsIO in 4 KiB blocks ...");
    let in_4k =
        Workload::in_4k_blocks("cloudPhysicsIO, 4 KiB", TraceReader::open(traces.join("cloudPhysicsIO.vscsi"))?)?;
    block.add(&in_4k, &sizes(&in_4k, &[]));

    eprintln!("synthetic ...");
    let scans = Workload::zipf_with_scans("zipf 1.0 with scans", 100_000, 2_000_000, 100_000, 20_000);
    synthetic.add(&scans, &[1000, 10_000]);
    let looping = Workload::new("loop of 12,000", (0..600_000).map(|i| i % 12_000).collect());
    synthetic.add(&looping, &[10_000, 11_900]);
    let mut zipf = Workload::zipf("zipf 1.0", 1_000_000, 20_000_000, 1.0, 42);
    synthetic.add(&zipf, &sizes(&zipf, &[10_000, 100_000]));
    zipf.blocks.truncate(ZIPF_TIMED);
    timed.push((zipf, 100_000));

    eprintln!("timing ...");
    let timed: Vec<_> = timed.iter().map(|(workload, size)| (workload, *size)).collect();
    let text = format!(
        "# Replacement policies compared\n\n\
         Made by `cargo run --release -p undercroft-lab --example policy_table` from the shared block traces.\n\
         Every access counts as one block; caches begin cold; nothing is under I/O.\n\n\
         ## Miss ratios on block traces\n\n{}\n\
         ### How the policies stand over these rows\n\n{}\n\
         ## Miss ratios while the cache is halved and restored, {PERIODS} periods\n\n{}\n\
         ## Synthetic workloads\n\n{}\n\
         ## Cost\n\nBytes of index, policy and ghosts per slot at 2^20 slots; processor time on one thread of the \
         machine that made this table (two processors, busy with other work), best of {TIMED_RUNS} runs.\n\n{}",
        block.markdown(),
        standings_markdown(&block.standings()),
        resized.markdown(),
        synthetic.markdown(),
        cost_markdown(&timed),
    );
    println!("{text}");
    let results = root.join("bench/results");
    std::fs::create_dir_all(&results)?;
    std::fs::write(results.join("policies.md"), text)?;
    Ok(())
}
