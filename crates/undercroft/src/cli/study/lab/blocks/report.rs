//! What `undercroft lab blocks` shows: a line for each cache, and forms for programs.
//!
//! Owns these forms. Never counts. Invariant: every line is compared with the one of the same policy and size without
//! locks, which comes first among them.

use crate::cli::study::sim::rows::{Columns, Values};
use crate::cli::table::{lines, with_left};
use serde::Serialize;
use undercroft_engine::locking::OnlineStats;
use undercroft_study::sim::locks::{LockingArm, LocksResult, LocksSimulation};

/// What is known of a trace beside what became of the caches.
pub(super) struct Known {
    pub trace: String,
    pub block_bytes: u64,
    pub footprint_blocks: Option<u64>,
    /// What the first run was made over; nothing if none was needed.
    pub first_run: Option<String>,
    /// What of the trace the caches were tried on.
    pub tried_on: &'static str,
    pub seconds: f64,
}

/// What `--json` prints.
#[derive(Serialize)]
pub(super) struct LocksDocument {
    trace: String,
    block_bytes: u64,
    /// Accesses of the caches, warm-up included, and without those of the first run.
    accesses: u64,
    footprint_blocks: Option<u64>,
    first_run: Option<String>,
    tried_on: &'static str,
    complete: bool,
    error: Option<String>,
    seconds: f64,
    results: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    policy: &'static str,
    size: String,
    capacity_blocks: u32,
    lock: String,
    reads: u64,
    read_misses: u64,
    /// Of reads.
    miss_percent: f64,
    /// Points more than without locks.
    change: f64,
    writes: u64,
    write_misses: u64,
    locked_blocks: u32,
    budget_blocks: u32,
    locked_read_hits: u64,
    buffer_hits: u64,
    online: Option<Rule>,
    /// Bytes that the rule takes at most, or the list of what is locked, which come out of the cache, ...
    lock_bytes: u64,
    /// ... and how many blocks are left.
    limit_blocks: u32,
    /// Processor time of an access, and as a ratio to that without locks.
    cpu_ns: f64,
    cpu_ratio: f64,
}

/// What the daemon's rule has done.
#[derive(Serialize)]
struct Rule {
    chosen: u32,
    locks: u64,
    unlocks: u64,
    rests: u64,
    epochs: u64,
}

impl From<OnlineStats> for Rule {
    fn from(OnlineStats { chosen, locks, unlocks, rests, epochs }: OnlineStats) -> Self {
        Self { chosen, locks, unlocks, rests, epochs }
    }
}

fn miss_percent(result: &LocksResult) -> f64 {
    100.0 * result.counts.read_misses as f64 / result.counts.reads.max(1) as f64
}

fn cpu_ns(result: &LocksResult) -> f64 {
    result.took_ns as f64 / result.counts.accesses().max(1) as f64
}

impl Row {
    fn of(result: &LocksResult, plain: &LocksResult) -> Self {
        let (plan, counts) = (&result.plan, result.counts);
        Self {
            policy: plan.policy.name(),
            size: plan.size.clone(),
            capacity_blocks: plan.blocks,
            lock: plan.arm.to_string(),
            reads: counts.reads,
            read_misses: counts.read_misses,
            miss_percent: miss_percent(result),
            change: miss_percent(result) - miss_percent(plain),
            writes: counts.writes,
            write_misses: counts.write_misses,
            locked_blocks: result.locked_blocks,
            budget_blocks: result.budget_blocks,
            locked_read_hits: result.locked_read_hits,
            buffer_hits: result.buffer_hits,
            online: result.online.map(Rule::from),
            lock_bytes: result.lock_bytes,
            limit_blocks: result.limit_blocks,
            cpu_ns: cpu_ns(result),
            cpu_ratio: if plain.took_ns == 0 { 1.0 } else { cpu_ns(result) / cpu_ns(plain) },
        }
    }

    fn is_plain(&self) -> bool {
        self.lock == LockingArm::NONE.to_string()
    }
}

impl LocksDocument {
    /// Of a simulation whose first plan of each policy and size is without locks.
    pub fn of(known: Known, done: &LocksSimulation) -> Self {
        let mut results = vec![];
        let mut plain = None;
        for result in &done.results {
            if result.plan.arm == LockingArm::NONE {
                plain = Some(result);
            }
            results.push(Row::of(result, plain.unwrap_or(result)));
        }
        Self {
            trace: known.trace,
            block_bytes: known.block_bytes,
            accesses: done.pass.accesses,
            footprint_blocks: known.footprint_blocks,
            first_run: known.first_run,
            tried_on: known.tried_on,
            complete: !done.pass.stopped && done.pass.broken.is_none(),
            error: done.pass.broken.as_ref().map(ToString::to_string),
            seconds: known.seconds,
            results,
        }
    }
}

/// For people.
pub(super) fn table(document: &LocksDocument) -> String {
    let blocks = document.footprint_blocks.map_or(String::new(), |n| format!(" to {n} blocks"));
    let first = document.first_run.as_ref().map_or(String::new(), |of| format!("; the first run was over {of}"));
    let mut text = format!(
        "{}: {} accesses{blocks}, {}{first}; {} caches in {:.1} s\n",
        document.trace,
        document.accesses,
        document.tried_on,
        document.results.len(),
        document.seconds
    );
    let header =
        ["POLICY", "SIZE", "BLOCKS", "LOCK", "LOCKED", "MISSES", "MISS %", "CHANGE", "ON LOCKED", "IN BUFFER", "TIME"];
    let mut t = with_left(&header, |column| matches!(column, 0 | 1 | 3));
    for row in &document.results {
        let plain = row.is_plain();
        let once = |text: String| if plain { text } else { String::new() };
        let more = |text: String| if plain { String::new() } else { text };
        let of_accesses = |hits: u64, all: u64| format!("{:.2}", 100.0 * hits as f64 / all.max(1) as f64);
        t.add_row([
            once(row.policy.to_string()),
            once(row.size.clone()),
            once(row.capacity_blocks.to_string()),
            row.lock.clone(),
            more(row.locked_blocks.to_string()),
            row.read_misses.to_string(),
            format!("{:.2}", row.miss_percent),
            more(format!("{:+.2}", row.change)),
            more(of_accesses(row.locked_read_hits, row.reads)),
            more(of_accesses(row.buffer_hits, row.reads + row.writes)),
            more(format!("{:.2}", row.cpu_ratio)),
        ]);
    }
    text += &lines(&t);
    if !document.complete {
        text += "Not whole: this is of what had been read.\n";
    }
    text
}

/// What `--csv` and `--parquet` write.
pub(super) fn columns(document: &LocksDocument) -> Columns {
    let rows = || document.results.iter();
    let text = |f: &dyn Fn(&Row) -> String| Values::Text(rows().map(f).collect());
    let count = |f: &dyn Fn(&Row) -> u64| Values::Count(rows().map(f).collect());
    let real = |f: &dyn Fn(&Row) -> f64| Values::Real(rows().map(f).collect());
    let rule = |f: fn(&Rule) -> u64| Values::Count(rows().map(|r| r.online.as_ref().map_or(0, f)).collect());
    Columns::default()
        .with("trace", text(&|_| document.trace.clone()))
        .with("policy", text(&|r| r.policy.into()))
        .with("size", text(&|r| r.size.clone()))
        .with("capacity_blocks", count(&|r| r.capacity_blocks.into()))
        .with("lock", text(&|r| r.lock.clone()))
        .with("first_run", text(&|_| document.first_run.clone().unwrap_or_default()))
        .with("tried_on", text(&|_| document.tried_on.into()))
        .with("reads", count(&|r| r.reads))
        .with("read_misses", count(&|r| r.read_misses))
        .with("miss_percent", real(&|r| r.miss_percent))
        .with("change", real(&|r| r.change))
        .with("writes", count(&|r| r.writes))
        .with("write_misses", count(&|r| r.write_misses))
        .with("locked_blocks", count(&|r| r.locked_blocks.into()))
        .with("budget_blocks", count(&|r| r.budget_blocks.into()))
        .with("locked_read_hits", count(&|r| r.locked_read_hits))
        .with("buffer_hits", count(&|r| r.buffer_hits))
        .with("online_locks", rule(|r| r.locks))
        .with("online_unlocks", rule(|r| r.unlocks))
        .with("online_rests", rule(|r| r.rests))
        .with("lock_bytes", count(&|r| r.lock_bytes))
        .with("limit_blocks", count(&|r| r.limit_blocks.into()))
        .with("cpu_ns", real(&|r| r.cpu_ns))
        .with("cpu_ratio", real(&|r| r.cpu_ratio))
        .with("complete", text(&|_| if document.complete { "yes" } else { "no" }.into()))
}
