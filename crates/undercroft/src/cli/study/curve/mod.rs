//! `undercroft curve`: miss ratios by the size of the cache, from traces.
//!
//! Owns the passes over the traces. Never computes a curve itself: `undercroft_study::curves` does; `report` shows
//! them. Invariant: a trace that cannot be read is named and does not keep the others from being shown.

pub mod args;
mod input;
pub mod partition;
mod report;

use self::args::CurveArgs;
use self::input::Input;
use self::report::{
    CurveReport, PointReport, Report, SampleReport, TraceReport, WindowReport, ZipfReport, columns, draw, text,
};
use crate::cli::Failure;
use crate::cli::output::{Out, complain};
use rayon::prelude::*;
use std::path::{Path, PathBuf};
use undercroft_config::Machine;
use undercroft_engine::{AnyPolicyKind, PolicyKind};
use undercroft_study::curves::{CurveMethod, Estimate, Popularity, RequestBatch, Requests, WorkingSet};
use undercroft_units::CacheSize;

/// Runs it.
///
/// # Errors
/// A trace cannot be read, the arguments contradict each other, or there is nowhere to write to.
pub fn run(args: &CurveArgs, out: &mut Out) -> Result<(), Failure> {
    check(args)?;
    let sized = args.sizes.iter().any(|s| matches!(s, CacheSize::Bytes(_)));
    let options = args.trace.read.of_blocks(args.trace.block_size, true, sized)?;
    let input = Input::new(options, &args.traces, if counts_first(args) { 2 } else { 1 })?;
    let reports: Vec<Result<Vec<TraceReport>, NoCurve>> =
        args.traces.par_iter().map(|path| of_trace(path, args, &input)).collect();
    input.done();
    let mut failed = false;
    let mut traces = vec![];
    for report in reports {
        match report {
            Ok(reports) => traces.extend(reports),
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
        columns(&report).csv(out)?;
    } else {
        out.write(&text(&report, args))?;
    }
    out.flush()?;
    if let Some(path) = &args.parquet {
        columns(&report).parquet(path)?;
    }
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
    Ok(())
}

/// Whether blocks are counted in a pass before: what is simulated needs its sizes, and what is sampled for it how much
/// to sample.
fn counts_first(args: &CurveArgs) -> bool {
    let in_parts = args.sizes.iter().any(|s| s.needs_footprint());
    args.policy.iter().any(|&p| args.method.needs_sizes(p) && in_parts || args.method.needs_footprint(p))
}

/// Whether the curve of a policy comes from caches that are simulated whole.
fn whole(method: CurveMethod, policy: AnyPolicyKind) -> bool {
    method == CurveMethod::Exact && method.needs_sizes(policy)
}

/// Why there is no curve of a trace.
#[derive(Debug, thiserror::Error)]
enum NoCurve {
    /// It cannot be read, or not to its end.
    #[error(transparent)]
    Trace(#[from] undercroft_trace::TraceError),
    /// The caches to simulate are too large.
    #[error(transparent)]
    Caches(#[from] undercroft_study::sim::SimError),
    /// Nothing is asked for in it.
    #[error("the trace {} has no requests", .0.display())]
    Empty(PathBuf),
}

/// Refuses what this machine cannot simulate, of a trace whose tenants, or which, have so many blocks, if these are
/// known.
fn check_caches(args: &CurveArgs, known: &[Option<u64>]) -> Result<(), undercroft_study::sim::SimError> {
    let (block_bytes, there) = (args.trace.block_bytes(), Machine::here().usable_bytes());
    let footprints = if known.is_empty() { &[None] } else { known };
    footprints.iter().try_for_each(|&known| {
        let sizes = CacheSize::rising(&args.sizes, block_bytes, known.unwrap_or(0));
        Estimate::check(args.method, &args.policy, &sizes, &args.trace.estimate(known), there)
    })
}

/// Everything of one trace, by tenant if that was asked for.
fn of_trace(path: &Path, args: &CurveArgs, input: &Input) -> Result<Vec<TraceReport>, NoCurve> {
    let per_tenant = args.trace.per_tenant;
    let mut known = vec![];
    if counts_first(args) {
        let mut popularity: Vec<Popularity> = vec![];
        input.read_parts(path, per_tenant, |parts| {
            popularity.resize_with(parts.len().max(popularity.len()), Popularity::new);
            popularity.iter_mut().zip(parts).for_each(|(p, part)| p.observe(&part.blocks));
        })?;
        known = popularity.iter().map(|p| Some(p.footprint())).collect();
    }
    check_caches(args, &known)?;
    let mut studies: Vec<Study> = vec![];
    let names = input.read_parts(path, per_tenant, |parts| {
        for number in studies.len()..parts.len() {
            studies.push(Study::new(args, known.get(number).copied().flatten()));
        }
        studies.par_iter_mut().zip(parts).filter(|(_, part)| !part.blocks.is_empty()).for_each(|(study, part)| {
            study.observe(part);
        });
    })?;
    if studies.iter().all(|s| s.requests == 0) && !input.interrupted() {
        return Err(NoCurve::Empty(path.to_owned()));
    }
    let trace = path.display().to_string();
    if !per_tenant {
        return Ok(studies.into_iter().map(|s| s.report(&trace, None, args)).collect());
    }
    // numbers without requests are none of its tenants: a recording names every disk
    let named = names.into_iter().map(Some).chain(std::iter::repeat(None)).zip(studies);
    let asked = named.filter(|(_, study)| study.requests > 0);
    Ok(asked.map(|(name, study)| study.report(&trace, name.or_else(|| Some("-".into())), args)).collect())
}

/// Everything of one trace, or of one tenant, in the making.
struct Study {
    estimates: Vec<(AnyPolicyKind, Estimate)>,
    popularity: Option<Popularity>,
    set: Option<WorkingSet>,
    requests: u64,
    writes: u64,
    /// Its distinct blocks, if they were counted before, and the sizes that were simulated.
    known: Option<u64>,
    begun: Vec<u64>,
}

impl Study {
    fn new(args: &CurveArgs, known: Option<u64>) -> Self {
        let begun = CacheSize::rising(&args.sizes, args.trace.block_bytes(), known.unwrap_or(0));
        let of = args.of.requests();
        let estimate = |&p: &AnyPolicyKind| (p, Estimate::new(args.method, p, of, &begun, &args.trace.estimate(known)));
        Self {
            estimates: args.policy.iter().map(estimate).collect(),
            // Caches that are simulated whole do not tell how many blocks there are.
            popularity: (args.zipf || known.is_none() && args.policy.iter().all(|&p| whole(args.method, p)))
                .then(Popularity::new),
            set: args.window.map(WorkingSet::new),
            requests: 0,
            writes: 0,
            known,
            begun,
        }
    }

    fn observe(&mut self, batch: &RequestBatch) {
        let Self { estimates, popularity, set, .. } = self;
        let curves = || estimates.par_iter_mut().for_each(|(_, estimate)| estimate.observe(batch));
        let counts = || {
            if let Some(popularity) = popularity {
                popularity.observe(&batch.blocks);
            }
        };
        let windows = || {
            for (i, &block) in batch.blocks.iter().enumerate() {
                if let Some(set) = set {
                    set.observe(block, batch.times[i], batch.writes[i]);
                }
            }
        };
        rayon::join(curves, || rayon::join(counts, windows));
        self.requests += batch.blocks.len() as u64;
        self.writes += batch.writes.iter().filter(|&&w| w).count() as u64;
    }

    fn report(self, trace: &str, tenant: Option<String>, args: &CurveArgs) -> TraceReport {
        let Self { estimates, popularity, set, requests, writes, known, begun } = self;
        let block_bytes = args.trace.block_bytes();
        let exact = popularity.as_ref().map(|p| (p.footprint(), true)).or(set.as_ref().map(|s| (s.footprint(), true)));
        let of_estimate = estimates.iter().find_map(|(_, estimate)| estimate.footprint());
        let footprint = known.map(|blocks| (blocks, true)).or(exact).or(of_estimate);
        let simulated = args.policy.iter().any(|&p| args.method.needs_sizes(p));
        let shown =
            if simulated { begun } else { CacheSize::rising(&args.sizes, block_bytes, footprint.map_or(0, |f| f.0)) };
        let curves = estimates.iter().map(|(policy, estimate)| {
            let curve = estimate.curve();
            let bars = estimate.bars(&curve);
            let points = shown.iter().map(|&blocks| PointReport {
                blocks,
                bytes: blocks.saturating_mul(block_bytes),
                misses: curve.misses_at(blocks),
                miss_ratio: curve.miss_ratio_at(blocks),
                miss_ratio_error: bars.at(blocks),
            });
            CurveReport {
                policy: policy.to_string(),
                method: args.method.name(),
                requests: curve.requests(),
                working_set_blocks: curve.working_set(0.01),
                points: points.collect(),
                sample: estimate.sampled().map(SampleReport::from),
                curve,
                bars,
            }
        });
        TraceReport {
            trace: trace.to_owned(),
            tenant,
            requests,
            writes,
            footprint_blocks: footprint.map_or(0, |f| f.0),
            footprint_exact: footprint.is_some_and(|f| f.1),
            block_bytes,
            curves: curves.collect(),
            zipf: popularity.filter(|_| args.zipf).and_then(|p| p.zipf()).map(ZipfReport::from),
            windows: set.map_or(vec![], |set| set.windows().into_iter().map(WindowReport::from).collect()),
        }
    }
}
