//! `undercroft lab cores`: programs as jobs of several cores, whose caches lock ways.
//!
//! Owns the queue of jobs, the table and the forms for programs. Never simulates: `undercroft_study::processor` does.
//! Invariant: all strategies run the same queue.

use super::args::{CoresArgs, CountedArg, ModifyArg, StrategyArg};
use super::caches::{Counted, read};
use crate::cli::Failure;
use crate::cli::output::{Out, complain};
use crate::cli::study::sim::name_of;
use crate::cli::study::sim::rows::{Columns, Values};
use crate::cli::table::{lines, plain};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use undercroft_study::processor::{Bami, Job, Machine, MachineResult, Shape, Strategy, run as simulate};
use undercroft_units::{Size, human_size};

/// One strategy with one size of the cores' caches, for programs.
#[derive(Clone, Serialize)]
struct Shown {
    strategy: &'static str,
    core_bytes: u64,
    /// Ways that were to be locked, in percent.
    lock_percent: f64,
    /// Ways that were locked, on average.
    locked_percent: f64,
    tasks: u64,
    mean_delay: f64,
    /// The mean delay without locks, less this one, in percent of it.
    better_percent: f64,
    references: u64,
    core_misses: u64,
    shared_misses: u64,
    written_back: u64,
}

/// Runs it.
///
/// # Errors
/// A trace cannot be read, the caches make no sense, or it was interrupted, after the results.
pub(super) fn run(args: &CoresArgs, stop: &AtomicBool, out: &mut Out) -> Result<(), Failure> {
    let machines = args.core_size.iter().map(|size| machine(args, *size)).collect::<Result<Vec<_>, _>>()?;
    if let Some(percent) = args.lock.iter().find(|p| !(0.0..100.0).contains(*p)) {
        return Err(Failure::Said(format!("--lock {percent} makes no sense: 0 to less than 100 percent are possible")));
    }
    let programs = programs(args, stop)?;
    let (mut shown, mut references, began) = (Vec::new(), 0, Instant::now());
    'all: for machine in &machines {
        let queue = queue(args, machine, &programs);
        let mut without = None;
        for strategy in &args.strategy {
            let locks = !matches!(strategy, StrategyArg::None | StrategyArg::Loaded);
            let percents: &[f64] = if locks { &args.lock } else { &[0.0] };
            for percent in percents {
                if stop.load(Ordering::Relaxed) {
                    break 'all;
                }
                let result = simulate(machine, &queue, meant(*strategy, *percent, args.seed));
                references += result.references;
                if *strategy == StrategyArg::None {
                    without = Some(result);
                }
                shown.push(show(machine, *strategy, *percent, &result, without.as_ref()));
            }
        }
    }
    let rate = references as f64 / began.elapsed().as_secs_f64().max(1e-9) / 1e6;
    if args.json {
        out.json(&shown)?;
    } else if args.csv {
        columns(&shown).csv(out)?;
    } else {
        out.write(&text(args, &shown, references, rate))?;
    }
    out.flush()?;
    if stop.load(Ordering::Relaxed) { Err(Failure::Interrupted) } else { Ok(()) }
}

fn machine(args: &CoresArgs, size: Size) -> Result<Machine, Failure> {
    let bytes =
        |size: Size, name| u32::try_from(size.0).map_err(|_| Failure::Said(format!("--{name} {size} makes no sense")));
    let said = |e: undercroft_study::processor::ShapeError| Failure::Said(e.to_string());
    let (line, shared_line) = (bytes(args.line, "line")?, bytes(args.shared_line, "shared-line")?);
    if shared_line < line {
        let what =
            format!("--shared-line {shared_line} is less than --line {line}: a line of the cores' caches has to fit");
        return Err(Failure::Said(what));
    }
    let own = Shape::new(size.0, args.ways, line).map_err(said)?;
    let shared = Shape::new(args.shared.0, args.shared_ways, shared_line).map_err(said)?;
    Ok(Machine { cores: usize::from(args.cores), instructions: own, data: own, shared })
}

/// A program: its name, and its references.
type Program = (String, Arc<[undercroft_study::processor::LineReference]>);

fn programs(args: &CoresArgs, stop: &AtomicBool) -> Result<Vec<Program>, Failure> {
    let counted = Counted {
        count: CountedArg::All,
        modify: ModifyArg::One,
        line: args.line,
        limit: args.limit,
        read: &args.read,
    };
    let mut programs: Vec<Program> = Vec::new();
    for path in &args.traces {
        let Some(references) = read(path, &counted, stop)? else { return Err(Failure::Interrupted) };
        if references.is_empty() {
            return Err(Failure::Said(format!("the trace {} has no accesses", path.display())));
        }
        programs.push((name_of(path), references.into()));
    }
    for name in &args.new {
        if !programs.iter().any(|(program, _)| program == name) {
            let names: Vec<&str> = programs.iter().map(|(name, _)| name.as_str()).collect();
            return Err(Failure::Said(format!("--new {name} is none of the traces: {}", names.join(", "))));
        }
    }
    if programs.iter().all(|(_, references)| !references.iter().any(|r| r.is_fetch())) {
        complain("undercroft: warning: the traces have no instructions, so that caches of instructions stay empty");
    }
    Ok(programs)
}

/// The programs, one after the other, as often as was asked for.
fn queue(args: &CoresArgs, machine: &Machine, programs: &[Program]) -> Vec<Job> {
    let job = |(name, references): &Program| {
        let instructions = references.iter().filter(|r| r.is_fetch()).count();
        let known = !args.new.contains(name);
        Job {
            name: name.clone(),
            references: references.clone(),
            tasks: if instructions > 0 { instructions } else { references.len() } as u64,
            misses: known.then(|| Arc::new(Bami::of(references, machine))),
        }
    };
    let jobs: Vec<Job> = programs.iter().map(job).collect();
    jobs.iter().cycle().take(jobs.len() * usize::from(args.repeat)).cloned().collect()
}

fn meant(strategy: StrategyArg, percent: f64, seed: u64) -> Strategy {
    match strategy {
        StrategyArg::None => Strategy::None,
        StrategyArg::Loaded => Strategy::Loaded { seed },
        StrategyArg::Random => Strategy::Random { percent, seed },
        StrategyArg::Static => Strategy::Static { percent },
        StrategyArg::Dynamic => Strategy::Dynamic { percent },
        StrategyArg::Hybrid => Strategy::Hybrid { percent, seed },
    }
}

fn show(
    machine: &Machine,
    strategy: StrategyArg,
    percent: f64,
    result: &MachineResult,
    without: Option<&MachineResult>,
) -> Shown {
    let better = without.map_or(f64::NAN, |w| 100.0 * (w.mean_delay() - result.mean_delay()) / w.mean_delay());
    Shown {
        strategy: strategy.name(),
        core_bytes: machine.data.lines() * u64::from(machine.data.line_bytes()),
        lock_percent: percent,
        locked_percent: result.locked_percent,
        tasks: result.tasks,
        mean_delay: result.mean_delay(),
        better_percent: better,
        references: result.references,
        core_misses: result.core_misses,
        shared_misses: result.shared_misses,
        written_back: result.written_back,
    }
}

fn text(args: &CoresArgs, rows: &[Shown], references: u64, rate: f64) -> String {
    let jobs = args.traces.len() * usize::from(args.repeat);
    let head = format!(
        "{jobs} jobs on {} cores; the shared cache has {}; {references} references at {rate:.0} M/s\n",
        args.cores,
        human_size(args.shared.0)
    );
    let header = ["L1", "STRATEGY", "LOCKED", "MEAN DELAY", "BETTER", "L1 MISSES", "L2 MISSES", "WRITTEN BACK"];
    let mut table = plain(&header, 2);
    for row in rows {
        let better = if row.better_percent.is_nan() { String::new() } else { format!("{:+.1} %", row.better_percent) };
        table.add_row([
            human_size(row.core_bytes),
            row.strategy.to_string(),
            format!("{:.1} %", row.locked_percent),
            format!("{:.4}", row.mean_delay),
            better,
            row.core_misses.to_string(),
            row.shared_misses.to_string(),
            row.written_back.to_string(),
        ]);
    }
    head + &lines(&table)
}

fn columns(rows: &[Shown]) -> Columns {
    let count = |f: &dyn Fn(&Shown) -> u64| Values::Count(rows.iter().map(f).collect());
    let real = |f: &dyn Fn(&Shown) -> f64| Values::Real(rows.iter().map(f).collect());
    Columns::default()
        .with("strategy", Values::Text(rows.iter().map(|r| r.strategy.into()).collect()))
        .with("core_bytes", count(&|r| r.core_bytes))
        .with("lock_percent", real(&|r| r.lock_percent))
        .with("locked_percent", real(&|r| r.locked_percent))
        .with("tasks", count(&|r| r.tasks))
        .with("mean_delay", real(&|r| r.mean_delay))
        .with("better_percent", real(&|r| r.better_percent))
        .with("references", count(&|r| r.references))
        .with("core_misses", count(&|r| r.core_misses))
        .with("shared_misses", count(&|r| r.shared_misses))
        .with("written_back", count(&|r| r.written_back))
}
