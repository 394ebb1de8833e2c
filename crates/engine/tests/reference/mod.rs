//! The reference counts and the traces they belong to, shared by the golden tests.
//!
//! Owns where the files are. Where they are absent the test counts as skipped, and gets nothing.

use std::path::PathBuf;
use undercroft_engine::{AnyPolicyKind, PolicyKind, StudiedPolicyKind, replay::replay};
use undercroft_trace::{TraceReader, synth};

/// One line of miss-counts.csv that names a policy of ours.
#[derive(Clone, Debug)]
pub struct Row {
    pub trace: String,
    pub requests: u64,
    pub capacity: u32,
    pub policy: AnyPolicyKind,
    pub misses: u64,
}

/// Where the reference is; without it the calling test counts as skipped.
fn shared() -> Option<PathBuf> {
    undercroft_skips::shared("reference/miss-counts.csv")?;
    undercroft_skips::shared("")
}

/// The rows for which `wanted` is true, by trace; empty, with a note why, where the reference is absent.
pub fn rows(wanted: impl Fn(&Row) -> bool) -> Vec<(String, Vec<Row>)> {
    let Some(shared) = shared() else { return vec![] };
    let csv = std::fs::read_to_string(shared.join("reference/miss-counts.csv")).expect("the counts can be read");
    let mut traces: Vec<(String, Vec<Row>)> = vec![];
    for line in csv.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let [trace, requests, capacity, policy, misses] = fields[..] else { panic!("five fields in {line}") };
        let Ok(policy) = policy.parse() else { continue };
        let number = |field: &str| field.parse::<u64>().unwrap_or_else(|_| panic!("a number in {line}"));
        let row = Row {
            trace: trace.to_owned(),
            requests: number(requests),
            capacity: number(capacity) as u32,
            policy,
            misses: number(misses),
        };
        if wanted(&row) {
            match traces.last_mut() {
                Some((name, rows)) if name == trace => rows.push(row),
                _ => traces.push((trace.to_owned(), vec![row])),
            }
        }
    }
    assert!(!traces.is_empty(), "the counts have none of the rows that this test wants");
    traces
}

/// Rows that miss-counts.csv does not have, of (trace, accesses, capacity, misses); empty where the traces are absent.
#[allow(dead_code, reason = "not every test that shares this file needs it")]
pub fn pinned(policy: impl Into<AnyPolicyKind>, counts: &[(&str, u64, u32, u64)]) -> Vec<(String, Vec<Row>)> {
    let policy = policy.into();
    let row = |&(trace, requests, capacity, misses): &(&str, u64, u32, u64)| {
        (trace.to_owned(), vec![Row { trace: trace.to_owned(), requests, capacity, policy, misses }])
    };
    shared().map_or(vec![], |_| counts.iter().map(row).collect())
}

/// The rows of OPT: trace, capacity and misses. Empty where the reference is absent.
#[allow(dead_code, reason = "not every test that shares this file needs it")]
pub fn optima() -> Vec<(String, u32, u64)> {
    let Some(shared) = shared() else { return vec![] };
    let csv = std::fs::read_to_string(shared.join("reference/miss-counts.csv")).expect("the counts can be read");
    let row = |line: &str| match line.split(',').collect::<Vec<_>>()[..] {
        [trace, _, capacity, "opt", misses] => Some((trace.to_owned(), capacity.parse().ok()?, misses.parse().ok()?)),
        _ => None,
    };
    let rows: Vec<_> = csv.lines().filter_map(row).collect();
    assert!(!rows.is_empty(), "the counts have rows of OPT");
    rows
}

/// The blocks of a trace, in order.
pub fn blocks(trace: &str) -> Vec<u64> {
    if trace == "zipf-1.0-1m-20m" {
        return synth::Zipf::new(1_000_000, 1.0, 42).take(20_000_000).collect();
    }
    let directory = shared().expect("rows come from there").join("traces/block");
    let path = std::fs::read_dir(&directory)
        .expect("the traces can be listed")
        .map(|entry| entry.expect("an entry").path())
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(trace)))
        .unwrap_or_else(|| panic!("no trace {trace} in {}", directory.display()));
    TraceReader::open(path).and_then(|accesses| accesses.map(|a| a.map(|a| a.block)).collect()).expect("a sound trace")
}

/// The misses of a policy.
pub fn misses(policy: AnyPolicyKind, capacity: u32, blocks: &[u64]) -> u64 {
    replay(policy, capacity, blocks)
}

/// Runs every row, on as many threads as there are processors, and panics with all rows that differ too much.
pub fn verify(traces: Vec<(String, Vec<Row>)>) {
    let mut failures = vec![];
    for (trace, rows) in traces {
        let blocks = blocks(&trace);
        let next = std::sync::atomic::AtomicUsize::new(0);
        let worker = || {
            let mut failures = vec![];
            while let Some(row) = rows.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                assert_eq!(blocks.len() as u64, row.requests, "accesses of {trace}");
                let misses = misses(row.policy, row.capacity, &blocks);
                let percent = (misses as f64 / row.misses as f64 - 1.0) * 100.0;
                println!("{trace} {} {}: {misses} of {} ({percent:+.3} %)", row.capacity, row.policy, row.misses);
                // docs/decisions/0011 and 0118 say why these differ; those that two implementations confirmed do not
                let allowed = match row.policy {
                    AnyPolicyKind::Served(PolicyKind::WTinyLfu) => 1.0,
                    AnyPolicyKind::Studied(StudiedPolicyKind::Lirs) => 0.035,
                    _ => 0.0,
                };
                if percent.abs() > allowed {
                    failures.push(format!("{row:?}: {misses} misses, {percent:+.3} %"));
                }
            }
            failures
        };
        std::thread::scope(|scope| {
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
            workers.into_iter().for_each(|w| failures.extend(w.join().expect("a worker that did not panic")));
        });
    }
    assert!(failures.is_empty(), "misses differ from the reference:\n{}", failures.join("\n"));
}
