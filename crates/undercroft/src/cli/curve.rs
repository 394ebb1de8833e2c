//! `undercroft curve`: miss ratios by the size of the cache, from traces.
//!
//! Owns the passes over the traces and what is printed. Never computes a curve itself: undercroft-curves does.
//! Invariant: a trace that cannot be read is named and does not keep the others from being shown.

use super::Failure;
use super::curve_args::{CacheSize, CurveArgs, CurveMethod};
use super::curve_estimate::Estimate;
use super::curve_input::Input;
use super::output::{Out, complain};
use crate::units::{human_size, human_time};
use comfy_table::{CellAlignment, Table, presets};
use rayon::prelude::*;
use serde::Serialize;
use std::path::Path;
use undercroft_curves::plot::{Plot, Series, plot};
use undercroft_curves::{Curve, Popularity, Requests, Window, WorkingSet};
use undercroft_engine::PolicyKind;

/// Points of a plotted line.
const PLOTTED: u32 = 300;
/// Windows that a table shows at most.
const WINDOWS_SHOWN: usize = 40;

/// What is printed.
#[derive(Debug, Serialize)]
struct Report {
    complete: bool,
    traces: Vec<TraceReport>,
}

#[derive(Debug, Serialize)]
struct TraceReport {
    trace: String,
    requests: u64,
    writes: u64,
    footprint_blocks: u64,
    footprint_exact: bool,
    block_bytes: u64,
    curves: Vec<CurveReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    zipf: Option<ZipfReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    windows: Vec<WindowReport>,
}

#[derive(Debug, Serialize)]
struct CurveReport {
    policy: String,
    method: &'static str,
    requests: f64,
    /// The smallest size that misses at most a hundredth of all requests more than the best does.
    working_set_blocks: u64,
    points: Vec<PointReport>,
    #[serde(skip)]
    curve: Curve,
}

#[derive(Debug, Serialize)]
struct PointReport {
    blocks: u64,
    bytes: u64,
    misses: f64,
    miss_ratio: f64,
}

#[derive(Debug, Serialize)]
struct ZipfReport {
    alpha: f64,
    error: f64,
    distance: f64,
    ranks: u64,
    part: f64,
}

#[derive(Debug, Serialize)]
struct WindowReport {
    first_request: u64,
    start_ns: u64,
    requests: u64,
    writes: u64,
    blocks: u64,
    new_blocks: u64,
}

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
    if let (Some(policy), CurveMethod::Shards | CurveMethod::Paired | CurveMethod::Aet) = (other, args.method) {
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
    let in_parts = args.sizes.iter().any(|s| matches!(s, CacheSize::Part(_)));
    let simulated = args.policy.iter().any(|&p| Estimate::needs_sizes(args.method, p));
    let mut known = None;
    if simulated && in_parts {
        let mut popularity = Popularity::new();
        input.read(path, |batch| popularity.observe(&batch.blocks))?;
        known = Some((popularity.footprint(), true));
    }
    let sizes = |footprint: u64| -> Vec<u64> {
        let mut sizes: Vec<u64> = args.sizes.iter().map(|s| s.blocks(block_bytes, footprint)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    };
    let begun = sizes(known.map_or(0, |k| k.0));
    let of = args.of.requests();
    let mut estimates: Vec<(PolicyKind, Estimate)> =
        args.policy.iter().map(|&p| (p, Estimate::new(args.method, p, of, &begun, &args.trace))).collect();
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
        zipf: popularity.and_then(|p| p.zipf()).map(|fit| ZipfReport {
            alpha: fit.alpha,
            error: fit.error,
            distance: fit.distance,
            ranks: fit.ranks,
            part: fit.part,
        }),
        windows: set.map_or(vec![], |set| set.windows().into_iter().map(WindowReport::from).collect()),
    })
}

impl From<undercroft_curves::WindowCounts> for WindowReport {
    fn from(w: undercroft_curves::WindowCounts) -> Self {
        WindowReport {
            first_request: w.first_request,
            start_ns: w.start_ns,
            requests: w.requests,
            writes: w.writes,
            blocks: w.blocks,
            new_blocks: w.new_blocks,
        }
    }
}

fn csv(report: &Report) -> String {
    let mut text = "trace,policy,method,blocks,bytes,requests,misses,miss_ratio\n".to_string();
    for trace in &report.traces {
        for curve in &trace.curves {
            for p in &curve.points {
                let quoted = super::curve::quoted(&trace.trace);
                let (policy, method, requests) = (&curve.policy, curve.method, curve.requests);
                text += &format!(
                    "{quoted},{policy},{method},{},{},{requests},{},{:.6}\n",
                    p.blocks, p.bytes, p.misses, p.miss_ratio
                );
            }
        }
    }
    text
}

/// A field of CSV.
pub(super) fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n']) { format!("\"{}\"", field.replace('"', "\"\"")) } else { field.to_owned() }
}

/// A table without lines, all columns but the first `left` to the right.
pub(super) fn table(header: &[String], left: usize, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header.iter().cloned());
    rows.into_iter().for_each(|row| {
        table.add_row(row);
    });
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if i >= left {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|l| l.trim_end().to_string() + "\n").collect()
}

fn text(report: &Report, args: &CurveArgs) -> String {
    let mut text = String::new();
    for (i, trace) in report.traces.iter().enumerate() {
        if i > 0 {
            text += "\n";
        }
        let about = if trace.footprint_exact { "" } else { "about " };
        let bytes = human_size(trace.footprint_blocks.saturating_mul(trace.block_bytes));
        text += &format!(
            "{}: {} requests, {} of them writes; {about}{} blocks ({bytes})\n",
            trace.trace, trace.requests, trace.writes, trace.footprint_blocks
        );
        text += &curves(trace);
        if let Some(zipf) = &trace.zipf {
            text += &format!(
                "Zipf: alpha {:.3} (+- {:.3}), from the {} most asked-for blocks with {:.1}% of the requests; off by {:.1}% of \
                 them at most{}\n",
                zipf.alpha,
                zipf.error,
                zipf.ranks,
                zipf.part * 100.0,
                zipf.distance * 100.0,
                if zipf.distance > 0.05 { ": no law of Zipf's" } else { "" }
            );
        } else if args.zipf {
            text += "Zipf: too few blocks are asked for often enough\n";
        }
        text += &windows(trace, args);
    }
    text
}

fn curves(trace: &TraceReport) -> String {
    let header = ["BLOCKS", "SIZE", "FOOTPRINT"].map(String::from).into_iter();
    let header: Vec<String> =
        header.chain(trace.curves.iter().map(|c| format!("{} {}", c.policy, c.method).to_uppercase())).collect();
    let rows = (0..trace.curves.first().map_or(0, |c| c.points.len())).map(|i| {
        let p = &trace.curves[0].points[i];
        let part = p.blocks as f64 / trace.footprint_blocks.max(1) as f64;
        let part = if trace.footprint_blocks > 0 { format!("{:.1}%", part * 100.0) } else { "-".into() };
        let ratios = trace.curves.iter().map(|c| format!("{:.4}", c.points[i].miss_ratio));
        [p.blocks.to_string(), human_size(p.bytes), part].into_iter().chain(ratios).collect()
    });
    table(&header, 0, rows)
}

fn windows(trace: &TraceReport, args: &CurveArgs) -> String {
    let Some(window) = args.window else { return String::new() };
    let by_time = matches!(window, Window::Time(_));
    let header = [if by_time { "START" } else { "REQUEST" }, "REQUESTS", "WRITES", "BLOCKS", "SIZE", "NEW"];
    let start = trace.windows.first().map_or(0, |w| w.start_ns);
    let rows = trace.windows.iter().take(WINDOWS_SHOWN).map(|w| {
        let begin = if by_time { human_time(w.start_ns - start) } else { w.first_request.to_string() };
        let size = human_size(w.blocks.saturating_mul(trace.block_bytes));
        vec![begin, w.requests.to_string(), w.writes.to_string(), w.blocks.to_string(), size, w.new_blocks.to_string()]
    });
    let mut text = table(&header.map(String::from), 0, rows);
    let more = trace.windows.len().saturating_sub(WINDOWS_SHOWN);
    if more > 0 {
        text += &format!("{more} more windows; --json has them all\n");
    }
    text
}

fn draw(path: &Path, report: &Report) -> Result<(), Failure> {
    let several = report.traces.len() > 1;
    let mut series = vec![];
    for trace in &report.traces {
        let name = Path::new(&trace.trace).file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        for curve in &trace.curves {
            let label = format!("{} {}", curve.policy, curve.method);
            let name = if several { format!("{name} {label}") } else { label };
            series.push(Series { name, points: line(curve, trace.footprint_blocks) });
        }
    }
    let title = if several { "miss ratio curves".into() } else { report.traces[0].trace.clone() };
    let drawn = Plot { title, x_label: "blocks".into(), y_label: "miss ratio".into(), log_x: true, series };
    plot(path, &drawn).map_err(|e| Failure::Said(e.to_string()))
}

/// A curve's line: its own points where a few sizes were simulated, else as many as the eye can tell apart.
fn line(report: &CurveReport, footprint: u64) -> Vec<(f64, f64)> {
    let curve = &report.curve;
    if curve.points().len() <= report.points.len() + 1 {
        return report.points.iter().map(|p| (p.blocks as f64, p.miss_ratio)).collect();
    }
    let last = footprint.max(report.points.last().map_or(1, |p| p.blocks)).max(2) as f64;
    let sizes = (0..=PLOTTED).map(|i| last.powf(f64::from(i) / f64::from(PLOTTED)).round() as u64);
    let mut points: Vec<(f64, f64)> = sizes.map(|s| (s as f64, curve.miss_ratio_at(s))).collect();
    points.dedup_by_key(|p| p.0 as u64);
    points
}
