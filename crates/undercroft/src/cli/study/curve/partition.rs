//! `undercroft partition`: who should get how much of a memory, from traces.
//!
//! Owns the tenants' names and bounds, and what is printed. Never searches: `undercroft_study::curves` does.
//! Invariant: nothing is divided unless every trace could be read.

use super::args::PartitionArgs;
use super::input::Input;
use super::report::table;
use crate::cli::Failure;
use crate::cli::output::{Out, complain};
use crate::cli::study::plot_file;
use crate::cli::study::sim::rows::{Columns, Values};
use rayon::prelude::*;
use serde::Serialize;
use std::path::{Path, PathBuf};
use undercroft_config::Machine;
use undercroft_engine::curve::shared;
use undercroft_engine::{AnyPolicyKind, PolicyKind};
use undercroft_study::curves::partition::{divide, equal, misses, proportional};
use undercroft_study::curves::plot::{Plot, Series, Style};
use undercroft_study::curves::{Bars, CurveMethod, Estimate, Requests, Tenant};
use undercroft_units::{Size, human_size};

/// Sizes between which a curve of simulated caches is a straight line.
const SIMULATED: u64 = 64;

#[derive(Debug, Serialize)]
struct Report {
    complete: bool,
    method: &'static str,
    memory_bytes: u64,
    block_bytes: u64,
    tenants: Vec<TenantReport>,
    misses: MissesReport,
    /// What would save nobody a miss.
    left_bytes: u64,
}

#[derive(Debug, Serialize)]
struct TenantReport {
    name: String,
    trace: String,
    requests: f64,
    /// Distinct blocks, as far as the method tells.
    footprint_blocks: u64,
    floor_bytes: u64,
    ceiling_bytes: Option<u64>,
    share_blocks: u64,
    share_bytes: u64,
    misses: f64,
    miss_ratio: f64,
    /// Half of the interval that holds the ratio with a probability of 95 %; 0 where nothing was sampled.
    miss_ratio_error: f64,
    equal_bytes: u64,
    equal_misses: f64,
    proportional_bytes: u64,
    proportional_misses: f64,
}

/// Expected misses of all tenants together.
#[derive(Debug, Serialize)]
struct MissesReport {
    requests: f64,
    divided: f64,
    equal: f64,
    proportional: f64,
    /// Of one LRU queue without shares, if the tenants' requests come evenly mixed.
    shared_queue: f64,
}

/// Runs it.
///
/// # Errors
/// A trace cannot be read, or names and bounds do not fit.
pub fn run(args: &PartitionArgs, out: &mut Out) -> Result<(), Failure> {
    if !args.by.knows(args.policy) {
        let method = args.by.name();
        return Err(Failure::Said(format!("{method} knows LRU only, not {}; take --by mini, or exact", args.policy)));
    }
    if args.trace.samples.is_some() && args.by != CurveMethod::Shards {
        return Err(Failure::Said("--samples is for --by shards; give the others a --rate".into()));
    }
    Estimate::check(
        args.by,
        &[args.policy],
        &simulated(args),
        &args.trace.estimate(None),
        Machine::here().usable_bytes(),
    )
    .map_err(|e| Failure::Said(e.to_string()))?;
    let options = args.trace.read.of_blocks(args.trace.block_size, true, true)?;
    let traces = names(&args.traces)?;
    if !args.trace.per_tenant {
        // a wrong name is told before anything is read
        bounds(args, &traces)?;
    }
    let paths: Vec<PathBuf> = traces.iter().map(|t| t.1.clone()).collect();
    let input = Input::new(options, &paths, 1)?;
    let read: Vec<Result<Vec<(String, Curves)>, undercroft_trace::TraceError>> =
        traces.par_iter().map(|(name, path)| estimates(name, path, args, &input)).collect();
    input.done();
    let mut failed = false;
    let (mut named, mut estimates) = (vec![], vec![]);
    for ((_, path), result) in traces.iter().zip(read) {
        match result {
            Ok(all) => {
                for (name, estimate) in all {
                    named.push((name, path.clone()));
                    estimates.push(estimate);
                }
            }
            Err(e) => {
                complain(&format!("undercroft: {e}"));
                failed = true;
            }
        }
    }
    if failed {
        return Err(Failure::Silent);
    }
    let bars: Vec<Bars> = estimates.iter().map(|e| e.asked.bars(&e.asked.curve())).collect();
    let of_lru: Vec<&Estimate> = estimates.iter().map(Curves::of_lru).collect();
    let whole = named.iter().zip(bounds(args, &named)?).zip(&estimates);
    let tenants: Vec<Tenant> = whole
        .map(|(((name, _), (floor, ceiling)), estimate)| Tenant {
            name: name.clone(),
            curve: estimate.asked.curve(),
            floor,
            ceiling,
        })
        .collect();
    let report = divided(args, &named, &tenants, &of_lru, &bars, !input.interrupted())?;
    if args.json {
        out.json(&report)?;
    } else if args.csv {
        columns(&report).csv(out)?;
    } else {
        out.write(&text(&report))?;
    }
    out.flush()?;
    if let Some(path) = &args.parquet {
        columns(&report).parquet(path)?;
    }
    if let Some(path) = &args.plot {
        draw(path, &tenants, report.memory_bytes / report.block_bytes)?;
    }
    if input.interrupted() {
        complain("undercroft: interrupted: this is by what had been read");
        return Err(Failure::Interrupted);
    }
    Ok(())
}

/// The curve of a tenant in the making, and LRU's if that is another.
struct Curves {
    asked: Estimate,
    lru: Option<Estimate>,
}

impl Curves {
    /// LRU's: it tells what one queue for all would miss, and how many blocks there are.
    fn of_lru(&self) -> &Estimate {
        self.lru.as_ref().unwrap_or(&self.asked)
    }
}

/// The curves of a trace in the making: its own, or with `--per-tenant` each of its tenants', whose names then follow
/// the trace's where there are several traces.
fn estimates(
    name: &str,
    path: &Path,
    args: &PartitionArgs,
    input: &Input,
) -> Result<Vec<(String, Curves)>, undercroft_trace::TraceError> {
    let sizes = simulated(args);
    let estimate = |by, policy| Estimate::new(by, policy, Requests::All, &sizes, &args.trace.estimate(None));
    let lru = AnyPolicyKind::from(PolicyKind::Lru);
    let new = || {
        let beside = (args.policy != lru).then(|| estimate(CurveMethod::Exact, lru));
        (0u64, Curves { asked: estimate(args.by, args.policy), lru: beside })
    };
    let mut all = vec![];
    let names = input.read_parts(path, args.trace.per_tenant, |parts| {
        all.resize_with(parts.len().max(all.len()), new);
        all.par_iter_mut().zip(parts).for_each(|((requests, curves), part)| {
            *requests += part.blocks.len() as u64;
            let Curves { asked, lru } = curves;
            rayon::join(|| asked.observe(part), || lru.iter_mut().for_each(|lru| lru.observe(part)));
        });
    })?;
    if !args.trace.per_tenant {
        return Ok(all.into_iter().map(|(_, estimate)| (name.to_owned(), estimate)).collect());
    }
    let called = |number: usize| {
        let tenant = names.get(number).map_or("-", |n| n);
        if args.traces.len() == 1 { tenant.to_owned() } else { format!("{name}/{tenant}") }
    };
    let asked = all.into_iter().enumerate().filter(|(_, (requests, _))| *requests > 0);
    Ok(asked.map(|(number, (_, estimate))| (called(number), estimate)).collect())
}

/// The sizes at which caches are simulated, if they are, in blocks: evenly up to the whole memory, and below that ever
/// smaller ones.
fn simulated(args: &PartitionArgs) -> Vec<u64> {
    if !args.by.needs_sizes(args.policy) {
        return vec![];
    }
    let total = args.memory.0 / args.trace.block_bytes();
    let even = (1..=SIMULATED).map(|i| (u128::from(total) * u128::from(i) / u128::from(SIMULATED)) as u64);
    let mut sizes: Vec<u64> = even.chain((1..u64::BITS).map(|i| (total / SIMULATED) >> i)).filter(|&s| s > 0).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Each trace with the name of its tenant.
fn names(traces: &[String]) -> Result<Vec<(String, PathBuf)>, Failure> {
    let mut named: Vec<(String, PathBuf)> = vec![];
    for trace in traces {
        // a file of that very name is one
        let (name, path) = match trace.split_once('=').filter(|_| !Path::new(trace).exists()) {
            Some((name, path)) => (name.to_owned(), PathBuf::from(path)),
            None => {
                let path = PathBuf::from(trace);
                let file = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
                (file.split('.').next().unwrap_or_default().to_owned(), path)
            }
        };
        if let Some((_, other)) = named.iter().find(|(n, _)| *n == name) {
            return Err(Failure::Said(format!(
                "two tenants are called {name}: {} and {}; name one, like other={}",
                other.display(),
                path.display(),
                path.display()
            )));
        }
        named.push((name, path));
    }
    Ok(named)
}

/// Floor and ceiling of each tenant, in blocks.
fn bounds(args: &PartitionArgs, named: &[(String, PathBuf)]) -> Result<Vec<(u64, u64)>, Failure> {
    let mut bounds = vec![(0, u64::MAX); named.len()];
    let block = args.trace.block_bytes();
    let find = |name: &str| {
        let known = || named.iter().map(|n| n.0.as_str()).collect::<Vec<_>>().join(", ");
        let nobody = || Failure::Said(format!("no tenant is called {name}; there are {}", known()));
        named.iter().position(|n| n.0 == name).ok_or_else(nobody)
    };
    for (name, Size(bytes)) in &args.floor {
        bounds[find(name)?].0 = bytes.div_ceil(block);
    }
    for (name, Size(bytes)) in &args.ceiling {
        bounds[find(name)?].1 = bytes / block;
    }
    Ok(bounds)
}

fn divided(
    args: &PartitionArgs,
    named: &[(String, PathBuf)],
    tenants: &[Tenant],
    of_lru: &[&Estimate],
    bars: &[Bars],
    complete: bool,
) -> Result<Report, Failure> {
    let block_bytes = args.trace.block_bytes();
    let total = args.memory.0 / block_bytes;
    let said = |e: undercroft_study::curves::PartitionError| Failure::Said(e.to_string());
    let parts = divide(tenants, total, args.method).map_err(said)?;
    let equal = equal(tenants, total).map_err(said)?;
    let proportional = proportional(tenants, total).map_err(said)?;
    let curves: Vec<_> = of_lru.iter().map(|e| e.curve()).collect();
    let bytes = |blocks: u64| blocks.saturating_mul(block_bytes);
    let rows = tenants.iter().enumerate().map(|(i, t)| TenantReport {
        name: t.name.clone(),
        trace: named[i].1.display().to_string(),
        requests: t.curve.requests(),
        footprint_blocks: of_lru[i].footprint().map_or(0, |f| f.0),
        floor_bytes: bytes(t.floor),
        ceiling_bytes: (t.ceiling < u64::MAX).then(|| bytes(t.ceiling)),
        share_blocks: parts[i],
        share_bytes: bytes(parts[i]),
        misses: t.curve.misses_at(parts[i]),
        miss_ratio: t.curve.miss_ratio_at(parts[i]),
        miss_ratio_error: bars[i].at(parts[i]),
        equal_bytes: bytes(equal[i]),
        equal_misses: t.curve.misses_at(equal[i]),
        proportional_bytes: bytes(proportional[i]),
        proportional_misses: t.curve.misses_at(proportional[i]),
    });
    Ok(Report {
        complete,
        method: args.method.name(),
        memory_bytes: args.memory.0,
        block_bytes,
        tenants: rows.collect(),
        misses: MissesReport {
            requests: curves.iter().map(|c| c.requests()).sum(),
            divided: misses(tenants, &parts),
            equal: misses(tenants, &equal),
            proportional: misses(tenants, &proportional),
            shared_queue: shared(&curves).misses_at(total),
        },
        left_bytes: bytes(total - parts.iter().sum::<u64>()),
    })
}

/// A row for each tenant.
fn columns(report: &Report) -> Columns {
    let text = |f: &dyn Fn(&TenantReport) -> &str| Values::Text(report.tenants.iter().map(|t| f(t).into()).collect());
    let count = |f: &dyn Fn(&TenantReport) -> u64| Values::Count(report.tenants.iter().map(f).collect());
    let real = |f: &dyn Fn(&TenantReport) -> f64| Values::Real(report.tenants.iter().map(f).collect());
    Columns::default()
        .with("tenant", text(&|t| &t.name))
        .with("trace", text(&|t| &t.trace))
        .with("requests", real(&|t| t.requests))
        .with("footprint_blocks", count(&|t| t.footprint_blocks))
        .with("share_blocks", count(&|t| t.share_blocks))
        .with("share_bytes", count(&|t| t.share_bytes))
        .with("misses", real(&|t| t.misses))
        .with("miss_ratio_error", real(&|t| t.miss_ratio_error))
        .with("equal_bytes", count(&|t| t.equal_bytes))
        .with("equal_misses", real(&|t| t.equal_misses))
        .with("proportional_bytes", count(&|t| t.proportional_bytes))
        .with("proportional_misses", real(&|t| t.proportional_misses))
}

fn text(report: &Report) -> String {
    let header = [
        "TENANT",
        "REQUESTS",
        "FOOTPRINT",
        "SHARE",
        "MISS RATIO",
        "MISSES",
        "IF EQUAL",
        "MISSES",
        "IF BY REQUESTS",
        "MISSES",
    ];
    let rows = report.tenants.iter().map(|t| {
        vec![
            t.name.clone(),
            format!("{:.0}", t.requests),
            human_size(t.footprint_blocks.saturating_mul(report.block_bytes)),
            human_size(t.share_bytes),
            if t.miss_ratio_error > 0.0 {
                format!("{:.4} ±{:.4}", t.miss_ratio, t.miss_ratio_error)
            } else {
                format!("{:.4}", t.miss_ratio)
            },
            format!("{:.0}", t.misses),
            human_size(t.equal_bytes),
            format!("{:.0}", t.equal_misses),
            human_size(t.proportional_bytes),
            format!("{:.0}", t.proportional_misses),
        ]
    });
    let mut text = table(&header.map(String::from), 1, rows);
    let m = &report.misses;
    let more = |misses: f64| {
        if m.divided > 0.0 { format!("{:+.1}%", (misses / m.divided - 1.0) * 100.0) } else { "-".to_owned() }
    };
    text += &format!("{} divided by {}: {:.0} misses", human_size(report.memory_bytes), report.method, m.divided);
    text += &format!("; in equal parts {:.0} ({})", m.equal, more(m.equal));
    text += &format!(", by requests {:.0} ({})", m.proportional, more(m.proportional));
    text += &format!(", in one LRU queue about {:.0} ({})\n", m.shared_queue, more(m.shared_queue));
    if report.left_bytes > 0 {
        text += &format!("{} would save nobody a miss, and are left\n", human_size(report.left_bytes));
    }
    text
}

/// The tenants' curves up to the whole memory.
fn draw(path: &Path, tenants: &[Tenant], total: u64) -> Result<(), Failure> {
    let points = |t: &Tenant| {
        let sizes = (0..=300u64).map(|i| (u128::from(total) * u128::from(i) / 300) as u64);
        sizes.map(|size| (size as f64, t.curve.misses_at(size))).collect()
    };
    let series = tenants.iter().map(|t| Series { name: t.name.clone(), points: points(t), band: vec![] }).collect();
    let (title, x_label, y_label) = ("misses by share".into(), "blocks".into(), "misses".into());
    let drawn = Plot { title, x_label, y_label, log_x: false, style: Style::Curves, series };
    plot_file::save(path, &[drawn]).map_err(|e| Failure::Said(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_are_called_by_their_files_or_as_is_said() {
        let of = |traces: &[&str]| names(&traces.iter().map(ToString::to_string).collect::<Vec<_>>());
        let named = of(&["a/web.vscsi.zst", "db=b/x.lis"]).expect("two names");
        assert_eq!(named, [("web".into(), "a/web.vscsi.zst".into()), ("db".into(), "b/x.lis".into())]);
        let said = of(&["a/web.lis", "b/web.lis"]).expect_err("one name").to_string();
        assert!(said.contains("two tenants are called web") && said.contains("other=b/web.lis"), "{said}");
    }
}
