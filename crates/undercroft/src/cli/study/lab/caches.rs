//! `undercroft lab caches`: memory traces through processor caches.
//!
//! Owns the table and the forms for programs. Never simulates: `undercroft_study::processor` does. Invariant: traces
//! that were done before an interrupt are shown.

use super::args::{CachesArgs, CountedArg, ModifyArg, RoomArg};
use crate::cli::Failure;
use crate::cli::meter::Meter;
use crate::cli::output::Out;
use crate::cli::study::reading::{ReadArgs, note, warn};
use crate::cli::study::sim::name_of;
use crate::cli::study::sim::rows::{Columns, Values};
use crate::cli::table::{lines, with_left};
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use undercroft_engine::probability::ProbabilityRule;
use undercroft_study::processor::table::{Row, Wanted, is_plain, rows};
use undercroft_study::processor::{ArmsOptions, LineReference, Room, Shape};
use undercroft_study::sim::Rule;
use undercroft_trace::options::{MemoryRecords, Modifies};
use undercroft_trace::{ReaderOptions, TraceReader};
use undercroft_units::{Size, human_size};

/// Accesses between two looks at the clock and at Ctrl-C.
const LOOK_EVERY: usize = 1 << 16;

/// One way through one cache, for programs.
#[derive(Clone, Serialize)]
struct Shown {
    trace: String,
    size_bytes: u64,
    ways: u32,
    line_bytes: u32,
    way: String,
    /// Lines that were to be locked, in percent.
    lock_percent: Option<f64>,
    /// Lines that could be locked, in percent of all.
    locked_percent: f64,
    references: u64,
    misses: u64,
    miss_percent: f64,
    /// Points more than without locks and victim buffer.
    change: f64,
    victim_hits: u64,
    written_back: u64,
}

/// Runs it.
///
/// # Errors
/// A trace cannot be read, the caches make no sense, or it was interrupted, after the results.
pub(super) fn run(args: &CachesArgs, stop: &AtomicBool, out: &mut Out) -> Result<(), Failure> {
    let mut wanted = wanted(args)?;
    wanted.check().map_err(|e| Failure::Said(e.to_string()))?;
    if let Some(other) = &args.other {
        let Some(references) = read(other, &counted(args), stop)? else { return Err(Failure::Interrupted) };
        wanted.other = Some(references);
    }
    let (mut shown, mut failed) = (Vec::new(), None);
    for path in &args.traces {
        match of_trace(path, args, &wanted, stop) {
            Ok(rows) => shown.push(rows),
            Err(e) => {
                failed = Some(e);
                break;
            }
        }
    }
    if args.json {
        out.json(&shown.concat())?;
    } else if args.csv {
        columns(&shown.concat()).csv(out)?;
    } else {
        out.write(&shown.iter().map(|rows| text(rows)).collect::<Vec<_>>().join("\n"))?;
    }
    out.flush()?;
    failed.map_or(Ok(()), Err)
}

/// What is asked for, as the study takes it.
fn wanted(args: &CachesArgs) -> Result<Wanted, Failure> {
    let said = |e: &dyn std::fmt::Display| Failure::Said(e.to_string());
    let line = u32::try_from(args.line.0).map_err(|_| Failure::Said(format!("--line {} makes no sense", args.line)))?;
    let shapes = args.size.iter().map(|size| Shape::new(size.0, args.ways, line));
    let shapes = shapes.collect::<Result<Vec<_>, _>>().map_err(|e| said(&e))?;
    let rooms = match (args.victim, args.room) {
        (0, _) => vec![],
        (_, RoomArg::Carved) => vec![Room::Carved],
        (_, RoomArg::Extra) => vec![Room::Extra],
        (_, RoomArg::Both) => vec![Room::Carved, Room::Extra],
    };
    if args.table == 0 {
        return Err(Failure::Said("--table 0 makes no sense: a miss table has an entry at least".into()));
    }
    let rules = args.policy.iter().flat_map(|p| p.0.iter().copied());
    let policies = rules.map(|rule| {
        let there_is = match rule {
            Rule::Policy(kind) => return Ok(kind),
            Rule::Opt(_) => "for the fewest misses there is --optimum",
            Rule::Probability(_) => "there is --probability",
        };
        Err(Failure::Said(format!("--policy {}: {there_is}", rule.name())))
    });
    Ok(Wanted {
        shapes,
        arms: ArmsOptions {
            percents: args.lock.iter().copied().filter(|p| *p != 0.0).collect(),
            table: args.table,
            preload: args.preload,
            victim_lines: args.victim,
            rooms,
            seed: args.seed,
            other: None,
            whole: args.whole,
            rules: if args.probability { vec![ProbabilityRule::Literal, ProbabilityRule::Aged] } else { vec![] },
        },
        other: None,
        online: args.online,
        optimum: args.optimum,
        policies: policies.collect::<Result<_, _>>()?,
    })
}

/// What is counted of a trace.
pub(super) struct Counted<'a> {
    pub count: CountedArg,
    pub modify: ModifyArg,
    /// Bytes of a line.
    pub line: Size,
    pub limit: Option<usize>,
    pub read: &'a ReadArgs,
}

/// So many records say whether a trace is of another format than its name says.
const LOOKED_AT: usize = 64;

/// Whether the number of a block is a packed memory access: bytes below 65, and a kind.
fn is_packed(reference: &LineReference) -> bool {
    let (kind, bytes) = (reference.block() >> 56, reference.block() >> 48 & 0xff);
    (1..=4).contains(&kind) && (1..=64).contains(&bytes)
}

/// What is counted of a trace, in lines; `None` if interrupted.
pub(super) fn read(
    path: &Path,
    counted: &Counted<'_>,
    stop: &AtomicBool,
) -> Result<Option<Vec<LineReference>>, Failure> {
    let memory = MemoryRecords {
        fetches: counted.count == CountedArg::All,
        stores: counted.count != CountedArg::Loads,
        modifies: if counted.modify == ModifyArg::One { Modifies::One } else { Modifies::Two },
    };
    let options = ReaderOptions { memory, ..counted.read.of_blocks(Some(counted.line), true, false)? };
    let failure = |e: &dyn std::fmt::Display| Failure::Said(e.to_string());
    let mut reader = TraceReader::open_with(path, &options).map_err(|e| failure(&e))?;
    note(&reader);
    let mut meter = Meter::new(vec![reader.progress()]).named(format!("reading {}", path.display()), "accesses");
    let mut references = Vec::new();
    for access in reader.by_ref().take(counted.limit.unwrap_or(usize::MAX)) {
        references.push(LineReference::from(access.map_err(|e| failure(&e))?));
        if references.len() == LOOKED_AT && options.format.is_none() && references.iter().all(is_packed) {
            let what = format!(
                "the trace {} is read as numbers of blocks, and has packed memory accesses: say --format memory",
                path.display()
            );
            return Err(Failure::Said(what));
        }
        if references.len().is_multiple_of(LOOK_EVERY) {
            meter.at(references.len() as u64);
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
        }
    }
    drop(meter);
    warn(&reader);
    Ok(Some(references))
}

fn counted(args: &CachesArgs) -> Counted<'_> {
    Counted { count: args.count, modify: args.modify, line: args.line, limit: args.limit, read: &args.read }
}

fn of_trace(path: &Path, args: &CachesArgs, wanted: &Wanted, stop: &AtomicBool) -> Result<Vec<Shown>, Failure> {
    let Some(references) = read(path, &counted(args), stop)? else { return Err(Failure::Interrupted) };
    let name = name_of(path);
    let rows = rows(&references, wanted, stop).map_err(|e| Failure::Said(format!("{name}: {e}")))?;
    if stop.load(Ordering::Relaxed) {
        return Err(Failure::Interrupted);
    }
    let mut plain = 0.0;
    let show = |row: &Row| {
        if is_plain(row) {
            plain = row.counts.miss_percent();
        }
        Shown {
            trace: name.clone(),
            size_bytes: row.shape.lines() * u64::from(row.shape.line_bytes()),
            ways: row.shape.ways(),
            line_bytes: row.shape.line_bytes(),
            way: row.way.name(),
            lock_percent: row.percent,
            locked_percent: row.locked_percent,
            references: row.counts.references,
            misses: row.counts.misses,
            miss_percent: row.counts.miss_percent(),
            change: row.counts.miss_percent() - plain,
            victim_hits: row.counts.victim_hits,
            written_back: row.counts.written_back,
        }
    };
    Ok(rows.iter().map(show).collect())
}

fn text(rows: &[Shown]) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let head = format!(
        "{}: {} references, lines of {} bytes, {} ways\n",
        first.trace, first.references, first.line_bytes, first.ways
    );
    let header = ["SIZE", "CACHE", "LOCKED", "MISSES", "MISS %", "CHANGE"];
    let mut table = with_left(&header, |column| column == 1);
    for (n, row) in rows.iter().enumerate() {
        let begins = n == 0 || rows[n - 1].size_bytes != row.size_bytes;
        table.add_row([
            if begins { human_size(row.size_bytes) } else { String::new() },
            row.way.clone(),
            row.lock_percent.map_or(String::new(), |_| format!("{:.1} %", row.locked_percent)),
            row.misses.to_string(),
            format!("{:.2}", row.miss_percent),
            if begins { String::new() } else { format!("{:+.2}", row.change) },
        ]);
    }
    head + &lines(&table)
}

fn columns(rows: &[Shown]) -> Columns {
    let text = |f: &dyn Fn(&Shown) -> String| Values::Text(rows.iter().map(f).collect());
    let count = |f: &dyn Fn(&Shown) -> u64| Values::Count(rows.iter().map(f).collect());
    let real = |f: &dyn Fn(&Shown) -> f64| Values::Real(rows.iter().map(f).collect());
    Columns::default()
        .with("trace", text(&|r| r.trace.clone()))
        .with("size_bytes", count(&|r| r.size_bytes))
        .with("ways", count(&|r| r.ways.into()))
        .with("line_bytes", count(&|r| r.line_bytes.into()))
        .with("way", text(&|r| r.way.clone()))
        .with("lock_percent", text(&|r| r.lock_percent.map_or(String::new(), |p| p.to_string())))
        .with("locked_percent", real(&|r| r.locked_percent))
        .with("references", count(&|r| r.references))
        .with("misses", count(&|r| r.misses))
        .with("miss_percent", real(&|r| r.miss_percent))
        .with("change", real(&|r| r.change))
        .with("victim_hits", count(&|r| r.victim_hits))
        .with("written_back", count(&|r| r.written_back))
}
