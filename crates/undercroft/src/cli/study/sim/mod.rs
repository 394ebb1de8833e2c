//! `undercroft sim`: a trace through caches.
//!
//! Owns the table and the forms for programs. Never simulates: `undercroft_study::sim` does. Invariant: what was
//! counted before an interrupt or damage is shown, and marked as not whole.

pub mod args;
pub mod compare;
mod daemon;
mod hierarchy;
mod plan;
pub mod rows;
mod run;
mod stores;
mod tenants;
mod tenants_report;

use self::args::{Engine, SimArgs};
use self::compare::plot;
use self::rows::{Columns, Values};
pub use self::run::name_of;
use self::run::run_trace;
pub(in crate::cli::study) use self::run::{
    block_bytes, check_memory, check_requests, first_pass, footprint, meter, open, served,
};
use crate::cli::Failure;
use crate::cli::interrupt::interrupt;
use crate::cli::output::{Out, complain};
use crate::cli::table::{lines, plain};
use std::sync::atomic::Ordering;
use undercroft_engine::PolicyKind;
use undercroft_study::sim::{CellRow, TraceRun, without_repeats};
use undercroft_units::{CacheSize, WrittenSize, human_size};

/// Runs it.
///
/// # Errors
/// The trace cannot be read, or not to its end; or it was interrupted, after the results.
pub fn run(args: &SimArgs, out: &mut Out) -> Result<(), Failure> {
    let through_core =
        args.engine == Engine::Core && args.hierarchy.is_empty() && args.beside.is_empty() && !args.per_tenant;
    if args.one_by_one && !through_core {
        return Err(Failure::Said("--one-by-one is for --engine core: without it, nothing overlaps".into()));
    }
    let stop = interrupt()?;
    if !args.stores.ssd.is_empty() {
        return stores::run(args, &stop, out);
    }
    if !args.hierarchy.is_empty() {
        return hierarchy::run(args, &stop, out);
    }
    if !args.beside.is_empty() || args.per_tenant {
        return tenants::run(args, &stop, out);
    }
    if args.engine == Engine::Core {
        return daemon::run(args, &stop, out);
    }
    let mut policies = without_repeats(args.policy.iter().flat_map(|p| p.0.iter().copied()));
    if policies.is_empty() {
        policies = vec![PolicyKind::Lru.into(), PolicyKind::S3Fifo.into()];
    }
    let tenth = || vec![WrittenSize { text: "10%".into(), size: CacheSize::Share(0.1) }];
    let sizes = if args.size.is_empty() { tenth() } else { args.size.clone() };
    let Some(run) = run_trace(&args.trace, &policies, &sizes, &args.sweep, &stop)? else {
        complain("undercroft: interrupted while the blocks were counted; there is nothing to show yet");
        return Err(Failure::Interrupted);
    };
    if args.sweep.json {
        out.json(&run.document(args.sweep.block_bytes()))?;
    } else if args.sweep.csv {
        columns(std::slice::from_ref(&run), args.sweep.block_bytes()).csv(out)?;
    } else {
        out.write(&table(&run, args.sweep.block_bytes()))?;
    }
    out.flush()?;
    if let Some(path) = &args.sweep.parquet {
        columns(std::slice::from_ref(&run), args.sweep.block_bytes()).parquet(path)?;
    }
    if let Some(path) = &args.plot {
        plot(&policies, std::slice::from_ref(&run), path)?;
    }
    match run.broken {
        Some(e) => Err(Failure::Said(e)),
        None if stop.load(Ordering::Relaxed) => Err(Failure::Interrupted),
        None => Ok(()),
    }
}

/// What `--csv` and `--parquet` write of traces.
pub fn columns(runs: &[TraceRun], block_bytes: u64) -> Columns {
    let rows = || runs.iter().flat_map(|run| run.rows.iter().map(move |row| (run, row)));
    let text = |f: &dyn Fn(&TraceRun, &CellRow) -> String| Values::Text(rows().map(|(run, row)| f(run, row)).collect());
    let count = |f: &dyn Fn(&CellRow) -> u64| Values::Count(rows().map(|(_, row)| f(row)).collect());
    Columns::default()
        .with("trace", text(&|run, _| run.name.clone()))
        .with("policy", text(&|_, row| row.rule.name().into()))
        .with("size", text(&|_, row| row.size.clone()))
        .with("capacity_blocks", count(&|row| row.blocks.into()))
        .with("block_bytes", count(&|_| block_bytes))
        .with("accesses", count(&|row| row.counts.accesses()))
        .with("misses", count(&|row| row.counts.misses()))
        .with("miss_ratio", Values::Real(rows().map(|(_, row)| row.counts.miss_ratio()).collect()))
        .with("reads", count(&|row| row.counts.reads))
        .with("read_misses", count(&|row| row.counts.read_misses))
        .with("writes", count(&|row| row.counts.writes))
        .with("write_misses", count(&|row| row.counts.write_misses))
        .with("complete", text(&|run, _| if run.complete { "yes" } else { "no" }.into()))
}

fn table(run: &TraceRun, block_bytes: u64) -> String {
    let mut text = summary(run);
    let header = ["POLICY", "SIZE", "BLOCKS", "BYTES", "ACCESSES", "MISSES", "MISS RATIO"].map(String::from);
    let mut t = plain(&header, 1);
    for r in &run.rows {
        t.add_row([
            r.rule.name().to_string(),
            r.size.clone(),
            r.blocks.to_string(),
            human_size(u64::from(r.blocks).saturating_mul(block_bytes)),
            r.counts.accesses().to_string(),
            r.counts.misses().to_string(),
            format!("{:.4}", r.counts.miss_ratio()),
        ]);
    }
    text += &lines(&t);
    if !run.complete {
        text += "Not whole: this is of what had been read.\n";
    }
    text
}

/// A trace in a line.
pub fn summary(run: &TraceRun) -> String {
    let blocks = run.footprint.map_or(String::new(), |n| format!(" to {n} blocks"));
    let per = run.accesses as f64 * run.rows.len() as f64 / run.seconds.max(1e-9) / 1e6;
    let caches = if run.rows.len() == 1 { "1 cache".to_string() } else { format!("{} caches", run.rows.len()) };
    format!(
        "{}: {} accesses{blocks}; {caches} in {:.1} s, {per:.1} M accesses/s\n",
        run.name, run.accesses, run.seconds
    )
}
