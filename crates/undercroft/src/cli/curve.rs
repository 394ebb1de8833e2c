//! `undercroft curve`: miss ratios by the size of the cache, from traces.
//!
//! Owns the passes over the traces. Never computes a curve itself: undercroft-curves does; `curve_report` shows them.
//! Invariant: a trace that cannot be read is named and does not keep the others from being shown.

use super::Failure;
use super::curve_args::CurveArgs;
use super::curve_input::Input;
use super::curve_report::{CurveReport, PointReport, Report, TraceReport, WindowReport, ZipfReport, csv, draw, text};
use super::output::{Out, complain};
use rayon::prelude::*;
use std::path::Path;
use undercroft_curves::{CurveMethod, Estimate, Popularity, Requests, WorkingSet, in_blocks};
use undercroft_engine::PolicyKind;

/// Runs it.
///
/// # Errors
/// A trace cannot be read, the arguments contradict each other, or there is nowhere to write to.
pub fn run(args: &CurveArgs, out: &mut Out) -> Result<(), Failure> {
    check(args)?;
    let input = Input::new(args.trace.format)?;
    let reports: Vec<Result<TraceReport, String>> =
        args.traces.par_iter().map(|path| of_trace(path, args, &input)).collect();
    input.done();
    let mut failed = false;
    let mut traces = vec![];
    for report in reports {
        match report {
            Ok(report) => traces.push(report),
            Err(e) => {
                complain(&format!("undercroft: {e}"));
                failed = true;
            }
        }
    }
    let report = Report { complete: !input.interrupted() && !failed, traces };
    if args.json {
        out.json(&report)?;
    } else if args.csv {
        out.write(&csv(&report))?;
    } else {
        out.write(&text(&report, args))?;
    }
    out.flush()?;
    if let Some(path) = &args.plot
        && !report.traces.is_empty()
    {
        draw(path, &report)?;
    }
    if input.interrupted() {
        complain("undercroft: interrupted: this is of what had been read");
        return Err(Failure::Interrupted);
    }
    if failed { Err(Failure::Silent) } else { Ok(()) }
}

fn check(args: &CurveArgs) -> Result<(), Failure> {
    let other = args.policy.iter().find(|p| **p != PolicyKind::Lru);
    if let Some(policy) = args.policy.iter().find(|p| !args.method.knows(**p)) {
        let method = args.method.name();
        return Err(Failure::Said(format!("{method} knows LRU only, not {policy}; take --method mini, or exact")));
    }
    if args.of.requests() != Requests::All && (other.is_some() || args.method != CurveMethod::Exact) {
        return Err(Failure::Said("--of tells reads from writes for LRU by --method exact only; leave one out".into()));
    }
    if args.trace.samples.is_some() && args.method != CurveMethod::Shards {
        return Err(Failure::Said("--samples is for --method shards; give the others a --rate".into()));
    }
    let suffix = args.plot.as_ref().map(|p| p.extension().map(|s| s.to_ascii_lowercase()));
    if suffix.is_some_and(|s| !s.is_some_and(|s| s == "svg" || s == "png")) {
        return Err(Failure::Said("--plot draws .svg and .png; end the name with one of them".into()));
    }
    Ok(())
}

/// Everything of one trace; in words what is wrong with it.
fn of_trace(path: &Path, args: &CurveArgs, input: &Input) -> Result<TraceReport, String> {
    let block_bytes = args.trace.block_size.0;
    let in_parts = args.sizes.iter().any(|s| s.needs_footprint());
    let simulated = args.policy.iter().any(|&p| args.method.needs_sizes(p));
    let mut known = None;
    if simulated && in_parts {
        let mut popularity = Popularity::new();
        input.read(path, |batch| popularity.observe(&batch.blocks))?;
        known = Some((popularity.footprint(), true));
    }
    let sizes = |footprint: u64| in_blocks(&args.sizes, block_bytes, footprint);
    let begun = sizes(known.map_or(0, |k| k.0));
    let of = args.of.requests();
    let mut estimates: Vec<(PolicyKind, Estimate)> =
        args.policy.iter().map(|&p| (p, Estimate::new(args.method, p, of, &begun, &args.trace.estimate()))).collect();
    let mut popularity = args.zipf.then(Popularity::new);
    let mut set = args.window.map(WorkingSet::new);
    let (mut requests, mut writes) = (0u64, 0u64);
    input.read(path, |batch| {
        requests += batch.blocks.len() as u64;
        writes += batch.writes.iter().filter(|&&w| w).count() as u64;
        let curves = || estimates.par_iter_mut().for_each(|(_, estimate)| estimate.observe(batch));
        let counts = || {
            if let Some(popularity) = &mut popularity {
                popularity.observe(&batch.blocks);
            }
        };
        let windows = || {
            for (i, &block) in batch.blocks.iter().enumerate() {
                if let Some(set) = &mut set {
                    set.observe(block, batch.times[i], batch.writes[i]);
                }
            }
        };
        rayon::join(curves, || rayon::join(counts, windows));
    })?;
    if requests == 0 && !input.interrupted() {
        return Err(format!("the trace {} has no requests", path.display()));
    }
    let exact = popularity.as_ref().map(|p| (p.footprint(), true)).or(set.as_ref().map(|s| (s.footprint(), true)));
    let of_estimate = estimates.iter().find_map(|(_, estimate)| estimate.footprint());
    let footprint = known.or(exact).or(of_estimate);
    let shown = if simulated { begun } else { sizes(footprint.map_or(0, |f| f.0)) };
    let curves = estimates.iter().map(|(policy, estimate)| {
        let curve = estimate.curve();
        let points = shown.iter().map(|&blocks| PointReport {
            blocks,
            bytes: blocks.saturating_mul(block_bytes),
            misses: curve.misses_at(blocks),
            miss_ratio: curve.miss_ratio_at(blocks),
        });
        CurveReport {
            policy: policy.to_string(),
            method: args.method.name(),
            requests: curve.requests(),
            working_set_blocks: curve.working_set(0.01),
            points: points.collect(),
            curve,
        }
    });
    Ok(TraceReport {
        trace: path.display().to_string(),
        requests,
        writes,
        footprint_blocks: footprint.map_or(0, |f| f.0),
        footprint_exact: footprint.is_some_and(|f| f.1),
        block_bytes,
        curves: curves.collect(),
        zipf: popularity.and_then(|p| p.zipf()).map(ZipfReport::from),
        windows: set.map_or(vec![], |set| set.windows().into_iter().map(WindowReport::from).collect()),
    })
}
