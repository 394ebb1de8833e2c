//! What `undercroft curve` shows: tables for people, JSON and CSV for programs, plots.
//!
//! Owns the shapes and the words. Never reads a trace. Invariant: the table, the JSON and the CSV show the same
//! numbers.

use super::args::CurveArgs;
use crate::cli::Failure;
use crate::cli::study::plot_file;
use crate::cli::study::sim::rows::{Columns, Values};
use crate::cli::table::{lines, plain};
use serde::Serialize;
use std::path::Path;
use undercroft_study::curves::plot::{Plot, Series, Style};
use undercroft_study::curves::{Bars, Curve, Sampled, Window, WindowCounts, ZipfFit};
use undercroft_units::{human_size, human_time};

/// Points of a plotted line.
const PLOTTED: u32 = 300;
/// Windows that a table shows at most.
const WINDOWS_SHOWN: usize = 40;

/// What is printed.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) complete: bool,
    pub(super) traces: Vec<TraceReport>,
}

#[derive(Debug, Serialize)]
pub(super) struct TraceReport {
    pub(super) trace: String,
    /// Whose of its requests these are; absent where they are not told apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tenant: Option<String>,
    pub(super) requests: u64,
    pub(super) writes: u64,
    pub(super) footprint_blocks: u64,
    pub(super) footprint_exact: bool,
    pub(super) block_bytes: u64,
    pub(super) curves: Vec<CurveReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) zipf: Option<ZipfReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) windows: Vec<WindowReport>,
}

#[derive(Debug, Serialize)]
pub(super) struct CurveReport {
    pub(super) policy: String,
    pub(super) method: &'static str,
    pub(super) requests: f64,
    /// The smallest size that misses at most a hundredth of all requests more than the best does.
    pub(super) working_set_blocks: u64,
    pub(super) points: Vec<PointReport>,
    /// Of samples of blocks or requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sample: Option<SampleReport>,
    #[serde(skip)]
    pub(super) curve: Curve,
    #[serde(skip)]
    pub(super) bars: Bars,
}

#[derive(Debug, Serialize)]
pub(super) struct SampleReport {
    /// Blocks or requests.
    pub(super) of: &'static str,
    pub(super) count: u64,
    /// For sizes below this there are too few; `None` if there are for all.
    pub(super) enough_from_blocks: Option<u64>,
}

impl From<Sampled> for SampleReport {
    fn from(s: Sampled) -> Self {
        let enough_from_blocks = (s.too_few_below < u64::MAX).then_some(s.too_few_below);
        SampleReport { of: s.of, count: s.count, enough_from_blocks }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct PointReport {
    pub(super) blocks: u64,
    pub(super) bytes: u64,
    pub(super) misses: f64,
    pub(super) miss_ratio: f64,
    /// Half of the interval that holds the ratio with a probability of 95 %; 0 where nothing was sampled.
    pub(super) miss_ratio_error: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct ZipfReport {
    pub(super) alpha: f64,
    pub(super) error: f64,
    pub(super) distance: f64,
    pub(super) ranks: u64,
    pub(super) part: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct WindowReport {
    pub(super) first_request: u64,
    pub(super) start_ns: u64,
    pub(super) requests: u64,
    pub(super) writes: u64,
    pub(super) blocks: u64,
    pub(super) new_blocks: u64,
}

impl From<WindowCounts> for WindowReport {
    fn from(w: WindowCounts) -> Self {
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

impl From<ZipfFit> for ZipfReport {
    fn from(fit: ZipfFit) -> Self {
        let ZipfFit { alpha, error, distance, ranks, part } = fit;
        ZipfReport { alpha, error, distance, ranks, part }
    }
}

impl TraceReport {
    /// What it is of: a trace, or a tenant of one.
    fn name(&self, trace: &str) -> String {
        self.tenant.as_ref().map_or(trace.to_owned(), |tenant| format!("{trace} {tenant}"))
    }
}

/// A row for each trace, tenant, policy and size.
pub(super) fn columns(report: &Report) -> Columns {
    let curves = || report.traces.iter().flat_map(|trace| trace.curves.iter().map(move |curve| (trace, curve)));
    let rows = || curves().flat_map(|(trace, curve)| curve.points.iter().map(move |p| (trace, curve, p)));
    let text = |f: &dyn Fn(&TraceReport, &CurveReport) -> String| Values::Text(rows().map(|r| f(r.0, r.1)).collect());
    let count = |f: &dyn Fn(&PointReport) -> u64| Values::Count(rows().map(|r| f(r.2)).collect());
    let real = |f: &dyn Fn(&CurveReport, &PointReport) -> f64| Values::Real(rows().map(|r| f(r.1, r.2)).collect());
    Columns::default()
        .with("trace", text(&|trace, _| trace.trace.clone()))
        .with("tenant", text(&|trace, _| trace.tenant.clone().unwrap_or_default()))
        .with("policy", text(&|_, curve| curve.policy.clone()))
        .with("method", text(&|_, curve| curve.method.into()))
        .with("blocks", count(&|p| p.blocks))
        .with("bytes", count(&|p| p.bytes))
        .with("requests", real(&|curve, _| curve.requests))
        .with("misses", real(&|_, p| p.misses))
        .with("miss_ratio", real(&|_, p| p.miss_ratio))
        .with("miss_ratio_error", real(&|_, p| p.miss_ratio_error))
}

/// A table without lines, all columns but the first `left` to the right.
pub(super) fn table(header: &[String], left: usize, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = plain(header, left);
    rows.into_iter().for_each(|row| {
        table.add_row(row);
    });
    lines(&table)
}

/// As tables.
pub(super) fn text(report: &Report, args: &CurveArgs) -> String {
    let mut text = String::new();
    for (i, trace) in report.traces.iter().enumerate() {
        if i > 0 {
            text += "\n";
        }
        let about = if trace.footprint_exact { "" } else { "about " };
        let bytes = human_size(trace.footprint_blocks.saturating_mul(trace.block_bytes));
        text += &format!(
            "{}: {} requests, {} of them writes; {about}{} blocks ({bytes})\n",
            trace.name(&trace.trace),
            trace.requests,
            trace.writes,
            trace.footprint_blocks
        );
        text += &curves(trace);
        text += &trace.curves.iter().map(|curve| too_few(trace, curve)).collect::<String>();
        if let Some(zipf) = &trace.zipf {
            text += &format!(
                "Zipf: alpha {:.3} (+- {:.3}), from the {} most asked-for blocks with {:.1}% of the requests; off by \
                 {:.1}% of them at most{}\n",
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
        let ratios = trace.curves.iter().map(|c| {
            let PointReport { miss_ratio, miss_ratio_error, .. } = c.points[i];
            if c.bars.is_exact() {
                format!("{miss_ratio:.4}")
            } else {
                format!("{miss_ratio:.4} ±{miss_ratio_error:.4}")
            }
        });
        [p.blocks.to_string(), human_size(p.bytes), part].into_iter().chain(ratios).collect()
    });
    table(&header, 0, rows)
}

/// What a sample is too small for, in a line, if it was asked for.
fn too_few(trace: &TraceReport, curve: &CurveReport) -> String {
    let Some(SampleReport { of, count, enough_from_blocks }) = &curve.sample else { return String::new() };
    let sampled = format!("{} sampled {count} {of}: too few", curve.method);
    match enough_from_blocks {
        None => format!("{sampled} for any size; a higher --rate samples more\n"),
        Some(from) if curve.points.iter().any(|p| p.blocks < *from) => {
            let bytes = human_size(from.saturating_mul(trace.block_bytes));
            format!("{sampled} for sizes below {from} blocks ({bytes}); a higher --rate samples more\n")
        }
        Some(_) => String::new(),
    }
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

/// Draws the curves.
///
/// # Errors
/// The file cannot be written.
pub(super) fn draw(path: &Path, report: &Report) -> Result<(), Failure> {
    let several = report.traces.len() > 1;
    let mut series = vec![];
    for trace in &report.traces {
        let name = Path::new(&trace.trace).file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        for curve in &trace.curves {
            let label = format!("{} {}", curve.policy, curve.method);
            let name = if several { format!("{} {label}", trace.name(&name)) } else { label };
            let points = line(curve, trace.footprint_blocks);
            let error = |&(x, y): &(f64, f64)| {
                let off = curve.bars.at(x as u64);
                (x, (y - off).max(0.0), (y + off).min(1.0))
            };
            let band = if curve.bars.is_exact() { vec![] } else { points.iter().map(error).collect() };
            series.push(Series { name, points, band });
        }
    }
    let name = |path: &str| Path::new(path).file_name().map_or(path.into(), |n| n.to_string_lossy().into_owned());
    let title =
        if several { "miss ratio curves".into() } else { report.traces[0].name(&name(&report.traces[0].trace)) };
    let drawn = Plot {
        title,
        x_label: "blocks".into(),
        y_label: "miss ratio".into(),
        log_x: true,
        style: Style::Curves,
        series,
    };
    plot_file::save(path, &[drawn]).map_err(|e| Failure::Said(e.to_string()))
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
