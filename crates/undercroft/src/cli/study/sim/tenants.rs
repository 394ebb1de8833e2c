//! `undercroft sim --beside` and `--per-tenant`: several tenants on one cache or two, under the controllers of the
//! daemon.
//!
//! Owns which runs are made; `sim_tenants_report` has their forms. Never divides anything:
//! `undercroft_study::sim::tenants` runs the engine's controllers. Invariant: every controller sees the same requests
//! in the same order.

use super::args::{SimArgs, SweepArgs};
use super::run::{block_bytes, check_memory, meter, name_of, open};
use super::tenants_report::{Document, Shown, ShownAbove, columns, text};
use crate::cli::Failure;
use crate::cli::meter::Meter;
use crate::cli::output::Out;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use undercroft_engine::{AnyPolicyKind, PolicyKind};
use undercroft_study::sim::tenants::{Above, AboveCounts, ArmOptions, Below, Clocks, TenantTrace, Trace, run_all};
use undercroft_study::sim::{Footprint, Go, Policies, Reference, only_policies, without_repeats};
use undercroft_trace::Access;
use undercroft_units::{CacheSize, WrittenSize};

/// Accesses between two looks at the interrupt.
const LOOK_EVERY: u64 = 1 << 15;

/// Runs it.
///
/// # Errors
/// A trace cannot be read to its end; or it was interrupted, after what was done is shown.
pub fn run(args: &SimArgs, stop: &AtomicBool, out: &mut Out) -> Result<(), Failure> {
    let Some(Loaded { tenants, own, footprint: known, clocks }) = load(args, stop)? else {
        return Err(Failure::Interrupted);
    };
    let names: Vec<String> = tenants.iter().map(|t| t.name.clone()).collect();
    let block_bytes = block_bytes(&args.sweep)?;
    let policies = policies(args)?;
    let tenth = || vec![WrittenSize { text: "10%".into(), size: CacheSize::Share(0.1) }];
    let sizes = if args.size.is_empty() { tenth() } else { args.size.clone() };
    let mut totals = vec![];
    for size in &sizes {
        let blocks = size.size.slots(block_bytes, Some(known));
        totals.push(blocks.map_err(|e| Failure::Said(format!("{}: {e}", size.text)))?);
    }
    let below = cache_below(args, block_bytes, known)?;
    let arms: Vec<_> = policies
        .iter()
        .flat_map(|&policy| {
            args.controller.iter().map(move |c| (c.0.clone(), ArmOptions { policy, below, ..ArmOptions::default() }))
        })
        .collect();
    // Every tenant's index has tables for the whole cache, as it may come to have it.
    let largest = totals.iter().max().copied().into_iter().chain(below.map(|b| b.blocks));
    check_memory(largest.flat_map(|n| std::iter::repeat_n(n, arms.len() * tenants.len())))?;
    let said = |e: undercroft_study::sim::SimError| Failure::Said(e.to_string());
    let interval = args.interval as usize;
    let caches = caches_above(args, block_bytes, &own)?;
    check_memory(caches.iter().map(|a| a.blocks))?;
    let (mut trace, counts) = match &caches[..] {
        [] => (Trace::of_tenants(&tenants, clocks, 0, interval).map_err(said)?, vec![]),
        caches => Trace::of_tenants_below(&tenants, caches, clocks, 0, interval).map_err(said)?,
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
    let runs = Meter::of_requests((arms.len() * sizes.len()) as u64).named(String::new(), "runs");
    let meter = Mutex::new((runs, 0));
    let mut results = vec![];
    for (size, total) in sizes.iter().zip(totals) {
        trace.load.total = total;
        let done = || {
            if let Ok(mut meter) = meter.lock() {
                meter.1 += 1;
                let runs = meter.1;
                meter.0.at(runs);
            }
            if stop.load(Ordering::Relaxed) { Go::Stop } else { Go::On }
        };
        let rows = run_all(&trace, &arms, args.sweep.jobs.map(usize::from), &done).map_err(said)?;
        results.extend(rows.into_iter().flatten().map(|row| Shown::new(size.text.clone(), row)));
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    drop(meter);
    let complete = results.len() == arms.len() * sizes.len();
    let below = below.map(Into::into);
    let document = Document { tenants: names, footprint_blocks: known, above, below, complete, results };
    show(&document, args, out)
}

/// The policies asked for, or the default one.
fn policies(args: &SimArgs) -> Result<Vec<AnyPolicyKind>, Failure> {
    let asked = only_policies(args.policy.iter().flat_map(|p| p.0.iter().copied()));
    let asked = without_repeats(asked.map_err(|e| Failure::Said(e.to_string()))?);
    Ok(if asked.is_empty() { vec![PolicyKind::DEFAULT.into()] } else { asked })
}

/// Prints what was done, in the form that was asked for.
fn show(document: &Document, args: &SimArgs, out: &mut Out) -> Result<(), Failure> {
    if args.sweep.json {
        out.json(document)?;
    } else if args.sweep.csv {
        columns(document).csv(out)?;
    } else {
        out.write(&text(document))?;
    }
    out.flush()?;
    if let Some(path) = &args.sweep.parquet {
        columns(document).parquet(path)?;
    }
    if document.complete { Ok(()) } else { Err(Failure::Interrupted) }
}

/// The tenants' own caches, for tenants of `own` distinct blocks.
fn caches_above(args: &SimArgs, block_bytes: u32, own: &[u64]) -> Result<Vec<Above>, Failure> {
    let Some(size) = &args.above else { return Ok(vec![]) };
    let policy = one_policy("--above-policy", &args.above_policy)?;
    let cache = |&blocks: &u64| {
        let blocks = size.size.slots(block_bytes, Some(blocks)).map_err(|e| Failure::Said(format!("--above: {e}")))?;
        Ok(Above { blocks, policy, hands_down: args.hands_down })
    };
    own.iter().map(cache).collect()
}

/// The level below the one that is divided first, for traces of `known` distinct blocks.
fn cache_below(args: &SimArgs, block_bytes: u32, known: u64) -> Result<Option<Below>, Failure> {
    let Some(size) = &args.below else { return Ok(None) };
    let policy = one_policy("--below-policy", &args.below_policy)?;
    let blocks = size.size.slots(block_bytes, Some(known)).map_err(|e| Failure::Said(format!("--below: {e}")))?;
    Ok(Some(Below { blocks, policy, demotes: args.demotes }))
}

/// The policy that `option` was given.
fn one_policy(option: &str, given: &Policies) -> Result<AnyPolicyKind, Failure> {
    let said = |e: String| Failure::Said(format!("{option}: {e}"));
    let policies = only_policies(given.0.iter().copied()).map_err(|e| said(e.to_string()))?;
    let [policy] = policies[..] else { return Err(said("give one policy".into())) };
    Ok(policy)
}

/// What all tenants ask for.
struct Loaded {
    tenants: Vec<TenantTrace>,
    /// Distinct blocks of each.
    own: Vec<u64>,
    /// Distinct blocks of all of them, or what was said to be.
    footprint: u64,
    clocks: Clocks,
}

/// The tenants, each a trace or each of one trace; `None` if interrupted. Blocks of different tenants are different
/// blocks.
fn load(args: &SimArgs, stop: &AtomicBool) -> Result<Option<Loaded>, Failure> {
    let mut tenants = vec![];
    let given = args.size.iter().chain(&args.above).chain(&args.below);
    let sized = given.into_iter().any(|s| matches!(s.size, CacheSize::Bytes(_)));
    let clocks = if args.per_tenant {
        let Some(all) = read_recorded(&args.trace, &args.sweep, sized, stop)? else { return Ok(None) };
        tenants = all;
        Clocks::Common
    } else {
        for path in std::iter::once(&args.trace).chain(&args.beside) {
            let mut references = vec![];
            let read = read(path, &args.sweep, sized, stop, |access| references.push(Reference::from(access)))?;
            let Some(_) = read else { return Ok(None) };
            tenants.push(TenantTrace { name: name_of(path), references });
        }
        Clocks::Own
    };
    let blocks = |tenant: &TenantTrace| {
        let mut footprint = Footprint::default();
        tenant.references.iter().for_each(|r| footprint.see(r.block));
        footprint.blocks()
    };
    let own: Vec<u64> = tenants.iter().map(blocks).collect();
    let footprint = args.sweep.footprint.unwrap_or(own.iter().sum());
    Ok(Some(Loaded { tenants, own, footprint, clocks }))
}

/// The tenants of one trace, whose order is kept: what stands for a request's time is its place. `None` if interrupted.
fn read_recorded(
    path: &Path,
    args: &SweepArgs,
    sized: bool,
    stop: &AtomicBool,
) -> Result<Option<Vec<TenantTrace>>, Failure> {
    let mut by_number: Vec<Vec<Reference>> = vec![];
    let mut place = 0;
    let read = read(path, args, sized, stop, |access| {
        let number = usize::from(access.tenant);
        if number >= by_number.len() {
            by_number.resize_with(number + 1, Vec::new);
        }
        by_number[number].push(Reference { time_ns: place, ..Reference::from(access) });
        place += 1;
    })?;
    let Some(names) = read else { return Ok(None) };
    let name = |number: usize| names.get(number).map_or("-", |name| name).to_owned();
    let tenant = |(number, references)| TenantTrace { name: name(number), references };
    // A trace may name tenants that ask for nothing.
    Ok(Some(by_number.into_iter().enumerate().filter(|(_, all)| !all.is_empty()).map(tenant).collect()))
}

/// Shows a trace as a whole to `each`, and returns the names of its tenants; `None` if interrupted.
fn read(
    path: &Path,
    args: &SweepArgs,
    sized: bool,
    stop: &AtomicBool,
    mut each: impl FnMut(Access),
) -> Result<Option<Vec<String>>, Failure> {
    let (mut trace, progress) = open(path, args, sized)?;
    let mut meter = meter(format!("reading {}", name_of(path)), args.limit, progress);
    let limit = args.limit.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
    let mut done: u64 = 0;
    for access in trace.by_ref().take(limit) {
        each(access.map_err(|e| Failure::Said(e.to_string()))?);
        done += 1;
        if done.is_multiple_of(LOOK_EVERY) {
            meter.at(done);
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
        }
    }
    Ok(Some(trace.tenants().to_vec()))
}
