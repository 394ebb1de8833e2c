//! `undercroft sim --engine core`: a recording through the daemon's own data path.
//!
//! Owns which replays are made and how they are shown. Never replays: `undercroft_study::sim::daemon` does. Invariant:
//! whatever keeps a replay from being exact is said beside its counts.

use super::args::SimArgs;
use super::rows::{Columns, Values};
use super::run::{check_memory, name_of};
use crate::cli::Failure;
use crate::cli::meter::Meter;
use crate::cli::output::{Out, complain};
use crate::cli::table::{lines, plain};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use undercroft_engine::PolicyKind;
use undercroft_study::sim::daemon::{DaemonOptions, DaemonReplay, DaemonTiming, DiskReplay, FoundBlocks, replay};
use undercroft_study::sim::{Go, only_policies, without_repeats};
use undercroft_trace::Format;
use undercroft_trace::recording::Recording;
use undercroft_units::CacheSize;

#[derive(Serialize)]
struct Document {
    recording: String,
    /// Whether every replay got to the end.
    complete: bool,
    error: Option<String>,
    replays: Vec<Shown>,
}

#[derive(Serialize)]
struct Shown {
    /// The size as it was asked for; `recorded` if it was not.
    size: String,
    rows: u64,
    /// Why counts may differ from the daemon's.
    doubts: Vec<String>,
    disks: Vec<DiskReplay>,
}

/// Runs it.
///
/// # Errors
/// It is no recording, or is damaged; or it was interrupted, after what was done is shown.
pub fn run(args: &SimArgs, stop: &AtomicBool, out: &mut Out) -> Result<(), Failure> {
    if let Some(option) = unfit(args) {
        return Err(Failure::Said(format!(
            "--engine core replays a recording whole and as it is: leave out {option}, or --engine core"
        )));
    }
    let policies = without_repeats(
        only_policies(args.policy.iter().flat_map(|p| p.0.iter().copied()))
            .map_err(|e| Failure::Said(e.to_string()))?,
    );
    if let Some(study) = policies.iter().find(|p| p.served().is_none()) {
        return Err(Failure::Said(format!(
            "--policy {study}: no disk of the daemon may have it; take one of {}, or leave out --engine core",
            PolicyKind::ALL.map(PolicyKind::name).join(", ")
        )));
    }
    let policies: Vec<_> =
        if policies.is_empty() { vec![None] } else { policies.into_iter().map(|p| p.served()).collect() };
    let mut sizes = vec![];
    for size in &args.size {
        let blocks = match size.size {
            CacheSize::Share(_) => Err(Failure::Said(format!(
                "--size {}: the data path is simulated at sizes in bytes or blocks only",
                size.text
            ))),
            // A block of the daemon has 4 KiB, whatever a block of a trace is.
            absolute => absolute.slots(4096, None).map_err(|e| Failure::Said(e.to_string())),
        };
        sizes.push((Some(blocks?), size.text.clone()));
    }
    if sizes.is_empty() {
        sizes.push((None, "recorded".to_string()));
    }
    let timing = if args.one_by_one { DaemonTiming::OneByOne } else { DaemonTiming::Recorded };
    let (mut replays, mut error) = (vec![], None);
    'all: for (capacity_blocks, size) in &sizes {
        for &policy in &policies {
            let options = DaemonOptions { policy, capacity_blocks: *capacity_blocks, timing };
            let done = one(args, &options, stop)?;
            error = done.broken.map(|e| e.to_string());
            replays.push(Shown { size: size.clone(), rows: done.rows, doubts: done.doubts, disks: done.disks });
            if error.is_some() || stop.load(Ordering::Relaxed) {
                break 'all;
            }
        }
    }
    let complete = error.is_none() && !stop.load(Ordering::Relaxed);
    let document = Document { recording: name_of(&args.trace), complete, error, replays };
    if args.sweep.json {
        out.json(&document)?;
    } else if args.sweep.csv {
        columns(&document).csv(out)?;
    } else {
        out.write(&table(&document))?;
    }
    out.flush()?;
    if let Some(path) = &args.sweep.parquet {
        columns(&document).parquet(path)?;
    }
    if !args.sweep.json
        && let Some(first) = document.replays.first()
    {
        first.doubts.iter().for_each(|d| complain(&format!("undercroft: not exact: {d}")));
    }
    match document.error {
        Some(e) => Err(Failure::Said(e)),
        None if !document.complete => Err(Failure::Interrupted),
        None => Ok(()),
    }
}

/// An option that a replay through the data path has no use for, if one was given.
fn unfit(args: &SimArgs) -> Option<&'static str> {
    let (sweep, read) = (&args.sweep, &args.sweep.read);
    let given = [
        (sweep.block_size.is_some(), "--block-size"),
        (sweep.footprint.is_some(), "--footprint"),
        (sweep.warm_up > 0, "--warm-up"),
        (sweep.limit.is_some(), "--limit"),
        (read.format.is_some_and(|f| f != Format::Recording), "--format"),
        (read.key_size.is_some(), "--key-size"),
        (read.lenient, "--lenient"),
        (read.columns.is_some(), "--columns"),
        (read.separator.is_some(), "--separator"),
    ];
    given.iter().find(|(given, _)| *given).map(|(_, option)| *option)
}

fn one(args: &SimArgs, options: &DaemonOptions, stop: &AtomicBool) -> Result<DaemonReplay, Failure> {
    let mut recording = Recording::open(&args.trace)
        .map_err(|e| Failure::Said(format!("{e}; --engine core replays what `undercroft record` writes")))?;
    let recorded = |blocks: u64| u32::try_from(blocks).unwrap_or(u32::MAX);
    let disks = recording.header().disks.iter();
    check_memory(disks.map(|d| options.capacity_blocks.unwrap_or(recorded(d.capacity_blocks))))?;
    let meter = Meter::of_requests(recording.trailer().rows);
    let mut meter = meter.named(format!("replaying {}", name_of(&args.trace)), "rows");
    let done = replay(&mut recording, options, &mut |rows| {
        meter.at(rows);
        if stop.load(Ordering::Relaxed) { Go::Stop } else { Go::On }
    });
    drop(meter);
    done.map_err(|e| Failure::Said(e.to_string()))
}

fn ratio(found: &FoundBlocks) -> f64 {
    found.miss_blocks as f64 / found.blocks().max(1) as f64
}

fn table(document: &Document) -> String {
    let header = ["DISK", "POLICY", "BLOCKS", "", "READS", "HIT", "AHEAD", "JOINED", "MISS", "MISS RATIO"];
    let mut t = plain(&header.map(String::from), 2);
    for disk in document.replays.iter().flat_map(|r| &r.disks) {
        for (what, found) in [("recorded", &disk.recorded), ("simulated", &disk.simulated)] {
            let counts = [disk.reads, found.hit_blocks, found.ahead_blocks, found.joined_blocks, found.miss_blocks];
            let head = match what {
                "recorded" => [disk.disk.clone(), String::new(), String::new(), what.to_string()],
                _ => [String::new(), disk.policy.to_string(), disk.capacity_blocks.to_string(), what.to_string()],
            };
            let counts = counts.iter().map(u64::to_string).chain([format!("{:.4}", ratio(found))]);
            t.add_row(head.into_iter().chain(counts));
        }
    }
    let mut text = lines(&t);
    if !document.complete {
        text += "Not whole: this is of what had been replayed.\n";
    }
    text
}

fn columns(document: &Document) -> Columns {
    let rows = || document.replays.iter().flat_map(|r| r.disks.iter().map(move |d| (r, d)));
    let text = |f: &dyn Fn(&Shown, &DiskReplay) -> String| Values::Text(rows().map(|(r, d)| f(r, d)).collect());
    let count = |f: &dyn Fn(&DiskReplay) -> u64| Values::Count(rows().map(|(_, d)| f(d)).collect());
    Columns::default()
        .with("recording", text(&|_, _| document.recording.clone()))
        .with("disk", text(&|_, d| d.disk.clone()))
        .with("policy", text(&|_, d| d.policy.to_string()))
        .with("size", text(&|r, _| r.size.clone()))
        .with("capacity_blocks", count(&|d| d.capacity_blocks))
        .with("reads", count(&|d| d.reads))
        .with("equal_reads", count(&|d| d.equal_reads))
        .with("recorded_hit_blocks", count(&|d| d.recorded.hit_blocks))
        .with("recorded_ahead_blocks", count(&|d| d.recorded.ahead_blocks))
        .with("recorded_joined_blocks", count(&|d| d.recorded.joined_blocks))
        .with("recorded_miss_blocks", count(&|d| d.recorded.miss_blocks))
        .with("hit_blocks", count(&|d| d.simulated.hit_blocks))
        .with("ahead_blocks", count(&|d| d.simulated.ahead_blocks))
        .with("joined_blocks", count(&|d| d.simulated.joined_blocks))
        .with("miss_blocks", count(&|d| d.simulated.miss_blocks))
        .with("complete", text(&|_, _| if document.complete { "yes" } else { "no" }.into()))
}
