//! `undercroft sim --ssd`: a trace through the daemon's RAM store over its SSD store.
//!
//! Owns which pairs of stores are simulated. Never simulates: `undercroft_study::sim::stores` does. Invariant: what was
//! counted before an interrupt or damage is shown, and marked as not whole.

mod args;
mod report;

pub use args::StoresArgs;

use self::report::{StoresDocument, columns, table};
use super::args::{SimArgs, SweepArgs};
use super::run::{check_memory, check_requests, footprint, meter, name_of, open, served};
use crate::cli::Failure;
use crate::cli::output::{Out, complain};
use args::TracePlace;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use undercroft_engine::PolicyKind;
use undercroft_study::sim::stores::{Restart, StoresPlan, StoresSimulation, simulate_stores};
use undercroft_study::sim::{Go, Reference, SweepOptions};
use undercroft_units::{CacheSize, Size, WrittenSize};

/// Bytes of a block, of these stores and so of the trace.
const BLOCK_BYTES: u32 = 4096;

/// What is known of the trace before it is simulated.
#[derive(Clone, Copy, Default)]
struct Counted {
    footprint: Option<u64>,
    accesses: Option<u64>,
}

/// Runs it.
///
/// # Errors
/// The trace cannot be read, or not to its end; or it was interrupted, after the results.
pub fn run(args: &SimArgs, stop: &AtomicBool, out: &mut Out) -> Result<(), Failure> {
    let sweep = SweepArgs { block_size: Some(Size(BLOCK_BYTES.into())), ..args.sweep.clone() };
    let policies = policies(args)?;
    let tenth = WrittenSize { text: "10%".into(), size: CacheSize::Share(0.1) };
    let sizes = if args.size.is_empty() { vec![tenth] } else { args.size.clone() };
    let Some(counted) = count(args, &sizes, &sweep, stop)? else {
        complain("undercroft: interrupted while the blocks were counted; there is nothing to show yet");
        return Err(Failure::Interrupted);
    };
    let plans = plans(args, &policies, &sizes, counted)?;
    // A block of the SSD takes 12 bytes of tables, and up to 17 for its part of a summary; one of RAM has 64.
    let ssd = |plan: &StoresPlan| u32::try_from(plan.ssd_bytes / u64::from(BLOCK_BYTES) / 2).unwrap_or(u32::MAX);
    check_memory(plans.iter().flat_map(|plan| [plan.ram_blocks, ssd(plan)]))?;
    let began = Instant::now();
    let done = simulate(&args.trace, &plans, &sweep, counted, stop)?;
    if !done.stopped {
        check_requests(&args.trace, done.accesses, sweep.warm_up, done.broken.as_ref())?;
    }
    if !done.has_times && args.stores.writes_per_day.is_some() {
        complain("undercroft: the trace has no times: the SSD may be written to as at once, an hour's bytes in all");
    }
    let document = StoresDocument::of(name_of(&args.trace), counted.footprint, began.elapsed().as_secs_f64(), &done);
    if sweep.json {
        out.json(&document)?;
    } else if sweep.csv {
        columns(&document).csv(out)?;
    } else {
        out.write(&table(&document))?;
    }
    out.flush()?;
    if let Some(path) = &sweep.parquet {
        columns(&document).parquet(path)?;
    }
    match done.broken {
        Some(e) => Err(Failure::Said(e.to_string())),
        None if done.stopped => Err(Failure::Interrupted),
        None => Ok(()),
    }
}

/// The policies, all of which a disk of the daemon may have.
fn policies(args: &SimArgs) -> Result<Vec<PolicyKind>, Failure> {
    let served = served(&args.policy, ", or leave out --ssd")?;
    Ok(if served.is_empty() { vec![PolicyKind::Lru, PolicyKind::S3Fifo] } else { served })
}

/// Goes through the trace once, if sizes or the place of a restart are parts of it; `None` if interrupted.
fn count(
    args: &SimArgs,
    sizes: &[WrittenSize],
    sweep: &SweepArgs,
    stop: &AtomicBool,
) -> Result<Option<Counted>, Failure> {
    let ssds = args.stores.ssd.iter().filter_map(|ssd| ssd.0.as_ref());
    let of_blocks = sizes.iter().chain(ssds).any(|size| size.size.needs_footprint());
    let of_accesses = matches!(args.stores.restart_at, Some(TracePlace::Part(_)));
    if !of_accesses && (!of_blocks || sweep.footprint.is_some()) {
        return Ok(Some(Counted { footprint: sweep.footprint, accesses: sweep.limit }));
    }
    let counted = footprint(&args.trace, sweep, true, stop)?;
    Ok(counted.map(|found| {
        let known = sweep.footprint.or(Some(found.blocks()));
        Counted { footprint: known, accesses: Some(found.accesses) }
    }))
}

/// Every policy at every size of RAM, over every SSD under every rule: of no SSD, once.
fn plans(
    args: &SimArgs,
    policies: &[PolicyKind],
    sizes: &[WrittenSize],
    counted: Counted,
) -> Result<Vec<StoresPlan>, Failure> {
    let stores = &args.stores;
    let at = stores.restart_at.map(|place| match place {
        TracePlace::Accesses(at) => at,
        TracePlace::Part(part) => (counted.accesses.unwrap_or(0) as f64 * part.value() / 100.0) as u64,
    });
    let restart = at.map(|at| Restart { at, count: stores.restart_for });
    let writes_per_day = stores.writes_per_day.map(|size| size.0);
    let mut plans = vec![];
    for (size, &policy) in sizes.iter().flat_map(|size| policies.iter().map(move |policy| (size, policy))) {
        let ram_blocks = size.size.slots(BLOCK_BYTES, counted.footprint);
        let ram_blocks = ram_blocks.map_err(|e| Failure::Said(format!("--size {}: {e}", size.text)))?;
        let base =
            StoresPlan { ram: size.text.clone(), ram_blocks, writes_per_day, restart, ..StoresPlan::new(policy) };
        for ssd in &stores.ssd {
            let Some(ssd) = &ssd.0 else {
                plans.push(StoresPlan { ssd: "none".into(), ..base.clone() });
                continue;
            };
            let blocks = ssd.size.blocks(BLOCK_BYTES.into(), counted.footprint).unwrap_or(0);
            let ssd_bytes = blocks.saturating_mul(BLOCK_BYTES.into());
            let of_rule = stores.admit.iter().map(|admit| admit.0);
            plans.extend(of_rule.map(|admission| StoresPlan {
                ssd: ssd.text.clone(),
                ssd_bytes,
                admission,
                ..base.clone()
            }));
        }
    }
    Ok(plans)
}

fn simulate(
    path: &Path,
    plans: &[StoresPlan],
    sweep: &SweepArgs,
    counted: Counted,
    stop: &AtomicBool,
) -> Result<StoresSimulation, Failure> {
    let options = SweepOptions {
        jobs: sweep.jobs.map(usize::from),
        warm_up: sweep.warm_up,
        limit: sweep.limit,
        ..SweepOptions::default()
    };
    let (trace, progress) = open(path, sweep, true)?;
    let mut meter = meter(format!("{} pairs of stores on {}", plans.len(), name_of(path)), counted.accesses, progress);
    let trace = trace.map(|a| a.map(Reference::from));
    let done = simulate_stores(trace, plans, &options, &mut |accesses| {
        meter.at(accesses);
        if stop.load(Ordering::Relaxed) { Go::Stop } else { Go::On }
    });
    drop(meter);
    done.map_err(|e| Failure::Said(e.to_string()))
}
