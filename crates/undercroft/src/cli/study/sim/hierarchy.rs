//! `undercroft sim --hierarchy`: a trace through caches over caches.
//!
//! Owns the tables and the forms for programs. Never simulates: `undercroft_study::sim::simulate` does. Invariant:
//! what was counted before an interrupt or damage is shown, and marked as not whole.

use super::args::SimArgs;
use super::plan::PlanFile;
use super::rows::{Columns, Values};
use super::run::{block_bytes, check_memory, check_requests, first_pass, footprint, meter, name_of, open};
use crate::cli::Failure;
use crate::cli::output::Out;
use crate::cli::table::{lines, plain};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use undercroft_study::sim::hierarchy::{Hints, LevelCounts};
use undercroft_study::sim::latency::{LatencyReport, Times};
use undercroft_study::sim::simulate::{HierarchyPlan, HierarchyResult, Simulation, simulate};
use undercroft_study::sim::{Go, Reference, SweepOptions};
use undercroft_units::human_time;

#[derive(Serialize)]
struct Document {
    trace: String,
    accesses: u64,
    footprint_blocks: Option<u64>,
    complete: bool,
    error: Option<String>,
    hierarchies: Vec<Shown>,
}

#[derive(Serialize)]
struct Shown {
    name: String,
    /// The client's first; the disk is the last.
    levels: Vec<ShownLevel>,
    latency: Option<LatencyReport>,
}

#[derive(Serialize)]
struct ShownLevel {
    name: String,
    /// `None` for the disk.
    capacity_blocks: Option<u32>,
    policy: Option<&'static str>,
    #[serde(flatten)]
    counts: LevelCounts,
}

/// Runs it.
///
/// # Errors
/// A file or the trace cannot be read, or not to its end; or it was interrupted, after the results.
pub fn run(args: &SimArgs, stop: &AtomicBool, out: &mut Out) -> Result<(), Failure> {
    let files = args.hierarchy.iter().map(|path| PlanFile::open(path)).collect::<Result<Vec<_>, _>>()?;
    let block_bytes = block_bytes(&args.sweep)?;
    let sized = files.iter().any(PlanFile::has_bytes);
    let (mut known, mut total) = (args.sweep.footprint, args.sweep.limit);
    if known.is_none() && files.iter().any(PlanFile::needs_footprint) {
        let Some(counted) = footprint(&args.trace, &args.sweep, sized, stop)? else { return Err(Failure::Interrupted) };
        (known, total) = (Some(counted.blocks()), Some(counted.accesses));
    }
    let mut plans = files.iter().map(|f| f.plan(block_bytes, known)).collect::<Result<Vec<_>, _>>()?;
    for (file, plan) in files.iter().zip(&mut plans) {
        let Some((range_blocks, every)) = file.hints(block_bytes)? else { continue };
        let said = "what is told of ranges";
        let learned = first_pass(&args.trace, &args.sweep, sized, stop, said, &mut |trace, watch| {
            Hints::of(range_blocks, every, trace, args.sweep.limit, watch)
        })?;
        let Some(hints) = learned else { return Err(Failure::Interrupted) };
        plan.hints = Some(Arc::new(hints));
    }
    check_memory(plans.iter().flat_map(|p| p.levels.iter().map(|l| l.blocks)))?;
    let options = SweepOptions {
        jobs: args.sweep.jobs.map(usize::from),
        warm_up: args.sweep.warm_up,
        limit: args.sweep.limit,
        memory_bytes: None,
    };
    let name = name_of(&args.trace);
    let (trace, progress) = open(&args.trace, &args.sweep, sized)?;
    let mut meter = meter(format!("{} hierarchies on {name}", plans.len()), total, progress);
    let done = simulate(trace.map(|a| a.map(Reference::from)), &plans, &options, &mut |accesses| {
        meter.at(accesses);
        if stop.load(Ordering::Relaxed) { Go::Stop } else { Go::On }
    });
    drop(meter);
    let Simulation { results, accesses, stopped, broken } = done.map_err(|e| Failure::Said(e.to_string()))?;
    if !stopped {
        check_requests(&args.trace, accesses, args.sweep.warm_up, broken.as_ref())?;
    }
    let document = Document {
        trace: name,
        accesses,
        footprint_blocks: known,
        complete: !stopped && broken.is_none(),
        error: broken.map(|e| e.to_string()),
        hierarchies: plans.iter().zip(results).map(|(plan, result)| shown(plan, result)).collect(),
    };
    if args.sweep.json {
        out.json(&document)?;
    } else if args.sweep.csv {
        columns(&document).csv(out)?;
    } else {
        out.write(&text(&document))?;
    }
    out.flush()?;
    if let Some(path) = &args.sweep.parquet {
        columns(&document).parquet(path)?;
    }
    match document.error {
        Some(e) => Err(Failure::Said(e)),
        None if !document.complete => Err(Failure::Interrupted),
        None => Ok(()),
    }
}

fn shown(plan: &HierarchyPlan, result: HierarchyResult) -> Shown {
    let levels = result.names.into_iter().zip(result.counts).enumerate().map(|(i, (name, counts))| {
        let level = plan.levels.get(i);
        let policy = level.map(|l| match l.linux {
            Some(_) => "linux",
            None if plan.hints.is_some() => "hinted",
            None => l.policy.name(),
        });
        ShownLevel { name, capacity_blocks: level.map(|l| l.blocks), policy, counts }
    });
    Shown { name: result.name, levels: levels.collect(), latency: result.latency }
}

fn text(document: &Document) -> String {
    let blocks = document.footprint_blocks.map_or(String::new(), |n| format!(" to {n} blocks"));
    let mut text = format!("{}: {} accesses{blocks}\n", document.trace, document.accesses);
    for hierarchy in &document.hierarchies {
        text += &format!("\n{}\n{}", hierarchy.name, table(hierarchy));
    }
    if !document.complete {
        text += "Not whole: this is of what had been read.\n";
    }
    text
}

fn table(hierarchy: &Shown) -> String {
    let header = ["LEVEL", "POLICY", "BLOCKS", "READS", "MISSES", "MISS RATIO", "WRITES", "TAKEN", "EVICTED", "BUSY"];
    let mut t = plain(&header.map(String::from), 2);
    for (i, l) in hierarchy.levels.iter().enumerate() {
        let c = &l.counts;
        let busy = hierarchy.latency.as_ref().map_or(String::new(), |r| format!("{:.1}%", r.busy[i] * 100.0));
        let of_cache = |n: String| if l.capacity_blocks.is_some() { n } else { String::new() };
        t.add_row([
            l.name.clone(),
            l.policy.unwrap_or_default().to_string(),
            l.capacity_blocks.map_or(String::new(), |n| n.to_string()),
            c.reads.to_string(),
            of_cache(c.read_misses.to_string()),
            of_cache(format!("{:.4}", c.read_misses as f64 / c.reads.max(1) as f64)),
            c.writes.to_string(),
            of_cache(c.demotions.to_string()),
            of_cache(c.evictions.to_string()),
            busy,
        ]);
    }
    let mut text = lines(&t);
    if let Some(latency) = &hierarchy.latency {
        for (what, times) in [("reads", &latency.reads), ("writes", &latency.writes)] {
            if times.requests > 0 {
                text += &times_line(what, times);
            }
        }
        text += &format!("{:.0} requests/s over {:.1} s\n", latency.per_second, latency.seconds);
    }
    text
}

fn times_line(what: &str, t: &Times) -> String {
    let [p50, p99, max] = [t.p50_ns, t.p99_ns, t.max_ns].map(human_time);
    format!("{what}: mean {}, half within {p50}, 99% within {p99}, all within {max}\n", human_time(t.mean_ns as u64))
}

fn columns(document: &Document) -> Columns {
    let rows = || document.hierarchies.iter().flat_map(|h| h.levels.iter().enumerate().map(move |(i, l)| (h, i, l)));
    let text = |f: &dyn Fn(&Shown, &ShownLevel) -> String| Values::Text(rows().map(|(h, _, l)| f(h, l)).collect());
    let count = |f: &dyn Fn(&LevelCounts) -> u64| Values::Count(rows().map(|(_, _, l)| f(&l.counts)).collect());
    let real = |f: &dyn Fn(&LatencyReport, usize) -> f64| {
        Values::Real(rows().map(|(h, i, _)| h.latency.as_ref().map_or(f64::NAN, |r| f(r, i))).collect())
    };
    Columns::default()
        .with("trace", text(&|_, _| document.trace.clone()))
        .with("hierarchy", text(&|h, _| h.name.clone()))
        .with("level", text(&|_, l| l.name.clone()))
        .with("policy", text(&|_, l| l.policy.unwrap_or_default().to_string()))
        .with("capacity_blocks", Values::Count(rows().map(|(_, _, l)| l.capacity_blocks.unwrap_or(0).into()).collect()))
        .with("reads", count(&|c| c.reads))
        .with("read_misses", count(&|c| c.read_misses))
        .with("writes", count(&|c| c.writes))
        .with("write_misses", count(&|c| c.write_misses))
        .with("demotions", count(&|c| c.demotions))
        .with("evictions", count(&|c| c.evictions))
        .with("busy", real(&|r, i| r.busy[i]))
        .with("read_mean_ns", real(&|r, _| r.reads.mean_ns))
        .with("read_p50_ns", real(&|r, _| r.reads.p50_ns as f64))
        .with("read_p99_ns", real(&|r, _| r.reads.p99_ns as f64))
        .with("requests_per_second", real(&|r, _| r.per_second))
        .with("complete", text(&|_, _| if document.complete { "yes" } else { "no" }.into()))
}
