//! What `undercroft sim --ssd` shows: a line for each pair of stores, and forms for programs.
//!
//! Owns these forms. Never counts. Invariant: hits in RAM, hits on the SSD and misses of a line are its reads.

use super::super::rows::{Columns, Values};
use crate::cli::table::{lines, plain};
use serde::Serialize;
use std::collections::BTreeMap;
use undercroft_study::sim::stores::{
    RestartResult, SsdWritten, StoresCounts, StoresResult, StoresSimulation, admission_name,
};
use undercroft_units::human_size;

/// What `--json` prints.
#[derive(Serialize)]
pub struct StoresDocument {
    trace: String,
    block_bytes: u64,
    /// Accesses read, warm-up included.
    accesses: u64,
    footprint_blocks: Option<u64>,
    complete: bool,
    error: Option<String>,
    seconds: f64,
    results: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    policy: &'static str,
    size: String,
    ram_blocks: u32,
    ssd: String,
    ssd_bytes: u64,
    /// Blocks that there is room for, and that are there at the end.
    ssd_room_blocks: u64,
    ssd_blocks: u64,
    /// `None` without an SSD.
    admit: Option<&'static str>,
    writes_per_day: Option<u64>,
    #[serde(flatten)]
    counts: StoresCounts,
    miss_ratio: f64,
    admitted_blocks: u64,
    /// Only reasons that there were.
    refused: BTreeMap<&'static str, u64>,
    #[serde(flatten)]
    written: SsdWritten,
    written_bytes: u64,
    write_amplification: f64,
    /// In a day of the trace's time, if it has times.
    written_bytes_per_day: Option<f64>,
    /// Seconds of the trace.
    trace_seconds: f64,
    mismatches: u64,
    /// Memory: of the store's tables, and of the simulation for what the store wrote about itself.
    memory_bytes: u64,
    device_memory_bytes: u64,
    restart: Option<RestartResult>,
}

impl Row {
    fn of(r: &StoresResult) -> Self {
        Self {
            policy: r.plan.policy.name(),
            size: r.plan.ram.clone(),
            ram_blocks: r.plan.ram_blocks,
            ssd: r.plan.ssd.clone(),
            ssd_bytes: r.plan.ssd_bytes,
            ssd_room_blocks: r.room_blocks,
            ssd_blocks: r.ssd_blocks,
            admit: (r.plan.ssd_bytes > 0).then(|| admission_name(r.plan.admission)),
            writes_per_day: r.plan.writes_per_day,
            counts: r.counts,
            miss_ratio: 1.0 - r.counts.hit_ratio(),
            admitted_blocks: r.admitted_blocks,
            refused: r.refused.iter().copied().filter(|(_, blocks)| *blocks > 0).collect(),
            written: r.written,
            written_bytes: r.written.total(),
            write_amplification: r.written.amplification(),
            written_bytes_per_day: r.written_per_day(),
            trace_seconds: r.seconds,
            mismatches: r.mismatches,
            memory_bytes: r.table_bytes,
            device_memory_bytes: r.device_bytes,
            restart: r.restart.clone(),
        }
    }
}

impl StoresDocument {
    /// Of what a simulation came to in `seconds`.
    pub fn of(trace: String, footprint_blocks: Option<u64>, seconds: f64, done: &StoresSimulation) -> Self {
        Self {
            trace,
            block_bytes: 4096,
            accesses: done.accesses,
            footprint_blocks,
            complete: !done.stopped && done.broken.is_none(),
            error: done.broken.as_ref().map(ToString::to_string),
            seconds,
            results: done.results.iter().map(Row::of).collect(),
        }
    }
}

/// A part of a whole, for people.
fn percent(part: u64, of: u64) -> String {
    format!("{:.2}%", part as f64 * 100.0 / of.max(1) as f64)
}

/// For people.
pub fn table(document: &StoresDocument) -> String {
    let blocks = document.footprint_blocks.map_or(String::new(), |n| format!(" to {n} blocks"));
    let mut text = format!("{}: {} accesses{blocks}; {:.1} s\n", document.trace, document.accesses, document.seconds);
    let header = [
        "POLICY",
        "RAM",
        "SSD",
        "ADMIT",
        "READS",
        "RAM HITS",
        "SSD HITS",
        "MISSES",
        "OF READS",
        "WRITTEN",
        "PER DAY",
        "AMPLIFIED",
        "REFUSED",
    ];
    let mut t = plain(&header, 4);
    for r in &document.results {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        let refused: u64 = r.refused.values().sum();
        t.add_row([
            r.policy.to_string(),
            r.size.clone(),
            r.ssd.clone(),
            or_none(r.admit.map(str::to_string)),
            r.counts.reads.to_string(),
            r.counts.ram_hits.to_string(),
            r.counts.ssd_hits.to_string(),
            r.counts.misses.to_string(),
            percent(r.counts.misses, r.counts.reads),
            human_size(r.written_bytes),
            or_none(r.written_bytes_per_day.map(|bytes| human_size(bytes as u64))),
            format!("{:.3}", r.write_amplification),
            refused.to_string(),
        ]);
    }
    text += &lines(&t);
    text += &restarts(document);
    if !document.complete {
        text += "Not whole: this is of what had been read.\n";
    }
    text
}

/// What followed restarts: hits of reads in each interval, with what the SSD had and without.
fn restarts(document: &StoresDocument) -> String {
    let mut text = String::new();
    for r in &document.results {
        let Some(restart) = &r.restart else { continue };
        let SumOfBoth { warm, cold } = SumOfBoth::of(restart);
        text += &format!(
            "{}, {} over {}, started again after {} accesses with {} blocks: {:.2}% of {} reads hit, {:.2}% with an \
             empty SSD\n",
            r.policy,
            r.size,
            r.ssd,
            restart.at,
            restart.recovered_blocks,
            warm.hit_ratio() * 100.0,
            warm.reads,
            cold.hit_ratio() * 100.0
        );
    }
    text
}

/// Both sides of a restart, over all intervals.
struct SumOfBoth {
    warm: StoresCounts,
    cold: StoresCounts,
}

impl SumOfBoth {
    fn of(restart: &RestartResult) -> Self {
        let sum = |counts: &[StoresCounts]| {
            counts.iter().fold(StoresCounts::default(), |mut all, one| {
                all.add(one);
                all
            })
        };
        Self { warm: sum(&restart.warm), cold: sum(&restart.cold) }
    }
}

/// What `--csv` and `--parquet` write.
pub fn columns(document: &StoresDocument) -> Columns {
    let rows = || document.results.iter();
    let text = |f: &dyn Fn(&Row) -> String| Values::Text(rows().map(f).collect());
    let count = |f: &dyn Fn(&Row) -> u64| Values::Count(rows().map(f).collect());
    let real = |f: &dyn Fn(&Row) -> f64| Values::Real(rows().map(f).collect());
    Columns::default()
        .with("trace", text(&|_| document.trace.clone()))
        .with("policy", text(&|r| r.policy.into()))
        .with("size", text(&|r| r.size.clone()))
        .with("ram_blocks", count(&|r| r.ram_blocks.into()))
        .with("ssd", text(&|r| r.ssd.clone()))
        .with("ssd_bytes", count(&|r| r.ssd_bytes))
        .with("admit", text(&|r| r.admit.unwrap_or_default().into()))
        .with("reads", count(&|r| r.counts.reads))
        .with("writes", count(&|r| r.counts.writes))
        .with("ram_hits", count(&|r| r.counts.ram_hits))
        .with("ssd_hits", count(&|r| r.counts.ssd_hits))
        .with("misses", count(&|r| r.counts.misses))
        .with("miss_ratio", real(&|r| r.miss_ratio))
        .with("admitted_blocks", count(&|r| r.admitted_blocks))
        .with("refused_blocks", count(&|r| r.refused.values().sum()))
        .with("admitted_bytes", count(&|r| r.written.admitted_bytes))
        .with("cleaning_bytes", count(&|r| r.written.cleaning_bytes))
        .with("summary_bytes", count(&|r| r.written.summary_bytes))
        .with("table_bytes", count(&|r| r.written.table_bytes))
        .with("written_bytes", count(&|r| r.written_bytes))
        .with("write_amplification", real(&|r| r.write_amplification))
        .with("trace_seconds", real(&|r| r.trace_seconds))
        .with("complete", text(&|_| if document.complete { "yes" } else { "no" }.into()))
}
