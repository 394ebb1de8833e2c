//! `undercroft sim --beside`: several tenants on one cache, under the controllers of the daemon.
//!
//! Owns which runs are made and how they are shown. Never divides anything: `undercroft_sim::tenants` runs the engine's
//! controllers. Invariant: every controller sees the same requests in the same order.

use super::Failure;
use super::output::Out;
use super::sim::{lines, plain};
use super::sim_args::SimArgs;
use super::sim_rows::{Columns, Values};
use super::sim_trace::{Bar, block_bytes, check_memory, name_of, open};
use crate::units::CacheSize;
use serde::Serialize;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use undercroft_engine::PolicyKind;
use undercroft_sim::tenants::{Above, AboveCounts, LabRow, Options, TenantTrace, Trace, run_all};
use undercroft_sim::{Footprint, Go, Reference, SimSize, only_policies, slots, without_repeats};

#[derive(Serialize)]
struct Document {
    tenants: Vec<String>,
    footprint_blocks: u64,
    /// What each tenant's own cache did, in their order; none if there are no such caches.
    above: Vec<ShownAbove>,
    complete: bool,
    results: Vec<Shown>,
}

#[derive(Serialize)]
struct ShownAbove {
    tenant: String,
    blocks: u32,
    policy: &'static str,
    hands_down: bool,
    #[serde(flatten)]
    counts: AboveCounts,
}

#[derive(Serialize)]
struct Shown {
    size: String,
    #[serde(flatten)]
    row: LabRow,
}

/// Accesses between two looks at the interrupt.
const LOOK_EVERY: u64 = 1 << 15;

/// Runs it.
///
/// # Errors
/// A trace cannot be read to its end; or it was interrupted, after what was done is shown.
pub fn run(args: &SimArgs, stop: &AtomicBool, out: &mut Out) -> Result<(), Failure> {
    let mut footprint = Footprint::default();
    let (mut tenants, mut own) = (vec![], vec![]);
    for (number, path) in std::iter::once(&args.trace).chain(&args.beside).enumerate() {
        let before = footprint.blocks();
        let Some(references) = read(path, number as u64, args.sweep.limit, &mut footprint, stop)? else {
            return Err(Failure::Interrupted);
        };
        own.push(footprint.blocks() - before);
        tenants.push(TenantTrace { name: name_of(path), references });
    }
    let names: Vec<String> = tenants.iter().map(|t| t.name.clone()).collect();
    let block_bytes = block_bytes(&args.sweep)?;
    let known = args.sweep.footprint.unwrap_or(footprint.blocks());
    let mut policies =
        without_repeats(only_policies(args.policy.iter().flat_map(|p| p.0.iter().copied())).map_err(Failure::Said)?);
    if policies.is_empty() {
        policies = vec![PolicyKind::DEFAULT];
    }
    let tenth = || vec![SimSize { text: "10%".into(), size: CacheSize::Share(0.1) }];
    let sizes = if args.size.is_empty() { tenth() } else { args.size.clone() };
    let mut totals = vec![];
    for size in &sizes {
        let blocks = slots(size.size, block_bytes, Some(known));
        totals.push(blocks.map_err(|e| Failure::Said(format!("{}: {e}", size.text)))?);
    }
    let arms: Vec<_> = policies
        .iter()
        .flat_map(|&policy| {
            args.controller.iter().map(move |c| (c.0.clone(), Options { policy, ..Options::default() }))
        })
        .collect();
    // Every tenant's index has tables for the whole cache, as it may come to have it.
    check_memory(totals.iter().max().into_iter().flat_map(|&n| std::iter::repeat_n(n, arms.len() * tenants.len())))?;
    let said = |e: undercroft_sim::Error| Failure::Said(e.to_string());
    let interval = args.interval as usize;
    let caches = caches_above(args, block_bytes, &own)?;
    check_memory(caches.iter().map(|a| a.blocks))?;
    let (mut trace, counts) = match &caches[..] {
        [] => (Trace::of_tenants(&tenants, 0, interval).map_err(said)?, vec![]),
        caches => Trace::of_tenants_below(&tenants, caches, 0, interval).map_err(said)?,
    };
    let shown = |((name, cache), counts): ((&String, Above), AboveCounts)| ShownAbove {
        tenant: name.clone(),
        blocks: cache.blocks,
        policy: cache.policy.name(),
        hands_down: cache.hands_down,
        counts,
    };
    let above = names.iter().zip(caches).zip(counts).map(shown).collect();
    drop(tenants);
    let bar = Mutex::new((Bar::new("runs".into(), Some((arms.len() * sizes.len()) as u64)), 0));
    let mut results = vec![];
    for (size, total) in sizes.iter().zip(totals) {
        trace.load.total = total;
        let done = || {
            if let Ok(mut bar) = bar.lock() {
                bar.1 += 1;
                let runs = bar.1;
                bar.0.at(runs);
            }
            if stop.load(Ordering::Relaxed) { Go::Stop } else { Go::On }
        };
        let rows = run_all(&trace, &arms, args.sweep.jobs.map(usize::from), &done).map_err(said)?;
        results.extend(rows.into_iter().flatten().map(|row| Shown { size: size.text.clone(), row }));
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    if let Ok(bar) = bar.lock() {
        bar.0.end();
    }
    let complete = results.len() == arms.len() * sizes.len();
    let document = Document { tenants: names, footprint_blocks: known, above, complete, results };
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
    if document.complete { Ok(()) } else { Err(Failure::Interrupted) }
}

/// The tenants' own caches, for tenants of `own` distinct blocks.
fn caches_above(args: &SimArgs, block_bytes: u32, own: &[u64]) -> Result<Vec<Above>, Failure> {
    let Some(size) = &args.above else { return Ok(vec![]) };
    let said = |e: String| Failure::Said(format!("--above-policy: {e}"));
    let policies = only_policies(args.above_policy.0.iter().copied()).map_err(said)?;
    let [policy] = policies[..] else { return Err(said("give one policy".into())) };
    let cache = |&blocks: &u64| {
        let blocks = slots(size.size, block_bytes, Some(blocks)).map_err(|e| Failure::Said(format!("--above: {e}")))?;
        Ok(Above { blocks, policy, hands_down: args.hands_down })
    };
    own.iter().map(cache).collect()
}

/// A trace as a whole; `None` if interrupted. Blocks of different tenants are different blocks.
fn read(
    path: &Path,
    tenant: u64,
    limit: Option<u64>,
    footprint: &mut Footprint,
    stop: &AtomicBool,
) -> Result<Option<Vec<Reference>>, Failure> {
    let mut bar = Bar::new(format!("reading {}", name_of(path)), limit);
    let mut all = vec![];
    for reference in open(path)?.take(limit.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX))) {
        let reference = reference.map_err(|e| Failure::Said(e.to_string()))?;
        footprint.see(reference.block ^ tenant << 56);
        all.push(reference);
        if (all.len() as u64).is_multiple_of(LOOK_EVERY) {
            bar.at(all.len() as u64);
            if stop.load(Ordering::Relaxed) {
                bar.end();
                return Ok(None);
            }
        }
    }
    bar.end();
    Ok(Some(all))
}

fn table(document: &Document) -> String {
    let mut header =
        ["CONTROLLER", "POLICY", "SIZE", "BLOCKS", "ACCESSES", "MISSES", "MISS RATIO"].map(String::from).to_vec();
    header.extend(document.tenants.iter().map(|t| format!("OF {t}")));
    header.push("MOVED".into());
    let mut t = plain(&header, 2);
    for Shown { size, row } in &document.results {
        let ratio = |misses: u64, requests: u64| format!("{:.4}", misses as f64 / requests.max(1) as f64);
        let mut cells = vec![row.arm.clone(), row.policy.to_string(), size.clone(), row.total_blocks.to_string()];
        cells.extend([row.requests.to_string(), row.misses.to_string(), ratio(row.misses, row.requests)]);
        cells.extend(row.tenants.iter().map(|t| ratio(t.misses, t.requests)));
        cells.push(row.moved_blocks.to_string());
        t.add_row(cells);
    }
    let mut text = String::new();
    for above in &document.above {
        let AboveCounts { accesses, hits } = above.counts;
        let part = 100.0 * hits as f64 / accesses.max(1) as f64;
        text += &format!(
            "{}: its own {} of {} blocks has {part:.1} % of {accesses} accesses\n",
            above.tenant, above.policy, above.blocks
        );
    }
    text += &lines(&t);
    if !document.complete {
        text += "Not whole: it was interrupted before the others were run.\n";
    }
    text
}

/// A row for each tenant of each run.
fn columns(document: &Document) -> Columns {
    let rows = || document.results.iter().flat_map(|s| s.row.tenants.iter().enumerate().map(move |(i, t)| (s, i, t)));
    let text = |f: &dyn Fn(&Shown, usize) -> String| Values::Text(rows().map(|(s, i, _)| f(s, i)).collect());
    Columns::default()
        .with("controller", text(&|s, _| s.row.arm.clone()))
        .with("policy", text(&|s, _| s.row.policy.to_string()))
        .with("size", text(&|s, _| s.size.clone()))
        .with("total_blocks", Values::Count(rows().map(|(s, ..)| s.row.total_blocks.into()).collect()))
        .with("tenant", text(&|_, i| document.tenants[i].clone()))
        .with("accesses", Values::Count(rows().map(|(_, _, t)| t.requests).collect()))
        .with("misses", Values::Count(rows().map(|(_, _, t)| t.misses).collect()))
        .with("moved_blocks", Values::Count(rows().map(|(s, ..)| s.row.moved_blocks).collect()))
}
