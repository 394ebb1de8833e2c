//! `undercroft compare`: policies, sizes and traces side by side.
//!
//! Owns the tables and which baseline things are held against. Never simulates. Invariant: a trace that cannot be read
//! does not keep the others from being shown; it is named, and the exit code tells.

use super::args::CompareArgs;
use super::run::{name_of, run_trace};
use super::{columns, summary};
use crate::cli::Failure;
use crate::cli::interrupt::interrupt;
use crate::cli::output::{Out, complain};
use crate::cli::study::plot_file;
use crate::cli::table::{lines, plain};
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::Ordering;
use undercroft_study::curves::plot::{PLOTS_MAX, Plot, Series, Style};
use undercroft_study::sim::{CellRow, Rule, SweepDocument, TraceRun, without_repeats};

/// Runs it.
///
/// # Errors
/// No trace can be read, or some could not; or it was interrupted, after the results.
pub fn run(args: &CompareArgs, out: &mut Out) -> Result<(), Failure> {
    let stop = interrupt()?;
    let chosen = args.policies.iter().flat_map(|p| p.0.iter().copied());
    let policies = without_repeats(std::iter::once(args.baseline).chain(chosen));
    let (mut runs, mut failed) = (vec![], false);
    for path in &args.trace {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        match run_trace(path, &policies, &args.sizes, &args.sweep, &stop) {
            Ok(Some(run)) => {
                if let Some(e) = &run.broken {
                    complain(&format!("undercroft: {e}"));
                    failed = true;
                }
                runs.push(run);
            }
            Ok(None) => break,
            // What is wrong with this one need not be wrong with the next.
            Err(Failure::Said(e)) => {
                let name = name_of(path);
                complain(&format!("undercroft: {}", if e.contains(&name) { e } else { format!("{name}: {e}") }));
                failed = true;
            }
            Err(e) => return Err(e),
        }
    }
    show(args, &policies, &runs, out)?;
    out.flush()?;
    if let Some(path) = &args.sweep.parquet {
        columns(&runs, args.sweep.block_bytes()).parquet(path)?;
    }
    if let Some(path) = args.plot.as_ref().filter(|_| !runs.is_empty()) {
        plot(&policies, &runs, path)?;
    }
    match (stop.load(Ordering::Relaxed), failed) {
        (true, _) => Err(Failure::Interrupted),
        (_, true) => Err(Failure::Silent),
        _ => Ok(()),
    }
}

#[derive(Serialize)]
struct Comparison {
    baseline: &'static str,
    traces: Vec<SweepDocument>,
}

fn show(args: &CompareArgs, policies: &[Rule], runs: &[TraceRun], out: &mut Out) -> Result<(), Failure> {
    let block_bytes = args.sweep.block_bytes();
    if args.sweep.json {
        let traces = runs.iter().map(|r| r.document(block_bytes)).collect();
        return Ok(out.json(&Comparison { baseline: args.baseline.name(), traces })?);
    }
    if args.sweep.csv {
        return columns(runs, block_bytes).csv(out);
    }
    for (i, run) in runs.iter().enumerate() {
        if i > 0 {
            out.line("")?;
        }
        out.write(&summary(run))?;
        out.write(&table(policies, run))?;
        if !run.complete {
            out.line("Not whole: this is of what had been read.")?;
        }
    }
    Ok(())
}

/// A row for each policy, best first at the last size; two columns for each size: the miss ratio, and how many more or
/// fewer misses than the baseline.
fn table(policies: &[Rule], run: &TraceRun) -> String {
    let sizes: Vec<&[CellRow]> = run.rows.chunks(policies.len()).collect();
    let mut header = vec!["POLICY".to_string()];
    for rows in &sizes {
        header.push(rows[0].size.clone());
        header.push(format!("TO {}", policies[0].name().to_uppercase()));
    }
    let mut order: Vec<usize> = (0..policies.len()).collect();
    order.sort_by_key(|&p| sizes.last().map(|rows| rows[p].counts.misses()));
    let mut t = plain(&header, 1);
    for p in order {
        let mut cells = vec![policies[p].name().to_string()];
        for rows in &sizes {
            cells.push(format!("{:.4}", rows[p].counts.miss_ratio()));
            cells.push(relative(rows[p].counts.misses(), rows[0].counts.misses()));
        }
        t.add_row(cells);
    }
    lines(&t)
}

/// How many more or fewer `misses` are than those of the baseline.
fn relative(misses: u64, baseline: u64) -> String {
    match (misses, baseline) {
        (m, b) if m == b => "=".into(),
        (_, 0) => "more".into(),
        (m, b) => format!("{:+.1}%", (m as f64 / b as f64 - 1.0) * 100.0),
    }
}

/// Draws a plot for each trace.
///
/// # Errors
/// The file cannot be written.
pub fn plot(policies: &[Rule], runs: &[TraceRun], path: &Path) -> Result<(), Failure> {
    if runs.len() > PLOTS_MAX {
        complain(&format!("undercroft: the plot shows the first {PLOTS_MAX} of {} traces", runs.len()));
    }
    plot_file::save(path, &plots(policies, runs)).map_err(|e| Failure::Said(format!("--plot: {e}")))
}

/// A plot for each trace, a line for each policy.
fn plots(policies: &[Rule], runs: &[TraceRun]) -> Vec<Plot> {
    let line = |run: &TraceRun, policy: Rule| {
        let rows = run.rows.iter().filter(|r| r.rule == policy);
        let mut points: Vec<(f64, f64)> = rows.map(|r| (r.blocks.max(1).into(), r.counts.miss_ratio())).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Series { name: policy.name().to_string(), points, band: vec![] }
    };
    let plot = |run: &TraceRun| Plot {
        title: run.name.clone(),
        x_label: "cache, blocks".into(),
        y_label: "miss ratio".into(),
        log_x: true,
        style: Style::Marked,
        series: policies.iter().map(|&policy| line(run, policy)).collect(),
    };
    runs.iter().map(plot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use undercroft_engine::PolicyKind;
    use undercroft_study::sim::CacheCounts;

    #[test]
    fn a_table_holds_policies_against_the_baseline_and_puts_the_best_first() {
        let row = |rule, size: &str, blocks, misses| CellRow {
            rule,
            size: size.into(),
            blocks,
            counts: CacheCounts { reads: 1000, read_misses: misses, ..CacheCounts::default() },
        };
        let policies = [PolicyKind::Lru, PolicyKind::Fifo, PolicyKind::Arc].map(Rule::from);
        let misses = [("1%", 1, [500, 550, 500]), ("10%", 10, [200, 250, 150])];
        let rows = misses.iter().flat_map(|&(size, blocks, m)| {
            policies.iter().zip(m).map(move |(&p, misses)| row(p, size, blocks, misses))
        });
        let run = TraceRun {
            name: "t".into(),
            footprint: Some(100),
            accesses: 1000,
            seconds: 1.0,
            complete: true,
            broken: None,
            rows: rows.collect(),
        };
        let table = anstream::adapter::strip_str(&table(&policies, &run)).to_string();
        let lines: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["POLICY", "1%", "TO", "LRU", "10%", "TO", "LRU"]);
        assert_eq!(lines[1], ["arc", "0.5000", "=", "0.1500", "-25.0%"]);
        assert_eq!(lines[2], ["lru", "0.5000", "=", "0.2000", "="]);
        assert_eq!(lines[3], ["fifo", "0.5500", "+10.0%", "0.2500", "+25.0%"]);
    }
}
