//! What host caches save beside a real guest whose transfers were logged, on the daemon's own engine.
//!
//! `transfer_log LOG... [--size MIB]... [--pages N] [--ages]`: a line for each log and size (default: 96 MiB of blocks)
//! with hits in percent of the blocks read in the measured part; with `--ages` instead the ages at which the guest
//! evicted pages filled by reads, for each tenth of that part.
//! `make lab-exclusive LAB="--arms direct --keep-transfers FOLDER"` makes logs.

use std::process::ExitCode;
use undercroft_engine::{ExclusiveMode, PolicyKind};
use undercroft_study::sim::host::Placement;
use undercroft_study::sim::transfer_log::{ages_at_eviction, replay};
use undercroft_trace::transfers::TransferLog;

const USAGE: &str = "usage: transfer_log LOG... [--size MIB]... [--pages N] [--ages]";
/// Pages of the laboratory's guests of 192 MiB.
const PAGES: u32 = 49_152;
/// Those of 256 GiB.
const PAGES_MAX: u32 = 1 << 26;
const BLOCKS_PER_MIB: u32 = 256;
const ARMS: [(&str, Placement, PolicyKind); 6] = [
    ("lru", Placement::Inclusive, PolicyKind::Lru),
    ("s3-fifo", Placement::Inclusive, PolicyKind::S3Fifo),
    ("perfect", Placement::Perfect, PolicyKind::S3Fifo),
    ("perfect lru", Placement::Perfect, PolicyKind::Lru),
    ("auto", Placement::Exclusive(ExclusiveMode::Auto), PolicyKind::S3Fifo),
    ("auto lru", Placement::Exclusive(ExclusiveMode::Auto), PolicyKind::Lru),
];

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("transfer_log: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut args: impl Iterator<Item = String>) -> Result<(), String> {
    let (mut logs, mut sizes, mut pages, mut ages) = (vec![], vec![], PAGES, false);
    while let Some(arg) = args.next() {
        let mut number = |most: u32| {
            let text = args.next().ok_or(USAGE)?;
            let number = text.parse().ok().filter(|n| (1..=most).contains(n));
            number.ok_or(format!("{arg}: '{text}' is not a number from 1 to {most}"))
        };
        match arg.as_str() {
            "--size" => sizes.push(number(1 << 20)?),
            "--ages" => ages = true,
            "--pages" => pages = number(PAGES_MAX)?,
            _ if arg.starts_with('-') => return Err(USAGE.into()),
            _ => logs.push(arg),
        }
    }
    if logs.is_empty() {
        return Err(USAGE.into());
    }
    if sizes.is_empty() {
        sizes.push(96);
    }
    for path in logs {
        let bytes = std::fs::read(&path).map_err(|e| format!("{path}: {e}"))?;
        let log = TransferLog::parse(&bytes).map_err(|e| format!("{path}: {e}"))?;
        if ages {
            println!("{path}: ages at eviction, in transfers, for each tenth of what is measured");
            show_ages(&ages_at_eviction(&log));
            continue;
        }
        for &mib in &sizes {
            print!("{path} {mib} MiB:");
            for (name, placement, policy) in ARMS {
                let result = replay(&log, placement, policy, mib * BLOCKS_PER_MIB, pages);
                print!("  {name} {:.1}", percent(result.count.hits, result.count.reads));
                if let Placement::Exclusive(_) = placement {
                    print!(" ({:.0} % of evictions cached)", percent(result.evictions_cached, result.evictions));
                }
            }
            println!();
        }
    }
    Ok(())
}

fn show_ages(ages: &[u32]) {
    for part in ages.chunks(ages.len().div_ceil(10).max(1)) {
        let mut sorted = part.to_vec();
        sorted.sort_unstable();
        for percent in [5, 25, 50, 75, 95] {
            print!("  {percent} %: {:6}", sorted[sorted.len() * percent / 100]);
        }
        // The most that lie within so many transfers of each other: what copies that last as long could catch.
        let within = |width| {
            let most = (0..sorted.len()).map(|i| sorted.partition_point(|&a| a < sorted[i] + width) - i).max();
            percent(most.unwrap_or(0) as u64, sorted.len() as u64)
        };
        println!("  within 500: {:3.0} %, within 2000: {:3.0} %", within(500), within(2000));
    }
}

fn percent(part: u64, of: u64) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}
