//! Miss counts against those of an independent simulator, by the sweep: one pass of each trace for all its rows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use undercroft_engine::PolicyKind;
use undercroft_skips::by_length;
use undercroft_study::sim::{Cell, Footprint, Go, Reference, SweepOptions, sweep};
use undercroft_trace::TraceReader;
use undercroft_units::CacheSize;

/// Policies whose counts two independent implementations agree on.
const CONFIRMED: [PolicyKind; 5] =
    [PolicyKind::Fifo, PolicyKind::Lru, PolicyKind::Clock, PolicyKind::Sieve, PolicyKind::Arc];
/// The short traces; the long ones are the engine's tests' business. The last one, of five million accesses, is read at
/// length alone.
const TRACES: [&str; 3] = ["arc-OLTP", "cloudPhysicsIO", "cloudphysics-w106"];

fn shared() -> Option<PathBuf> {
    undercroft_skips::shared("reference/miss-counts.csv")?;
    undercroft_skips::shared("")
}

fn open(shared: &Path, name: &str) -> impl Iterator<Item = Result<Reference, undercroft_trace::TraceError>> {
    let files = std::fs::read_dir(shared.join("traces/block")).expect("the traces can be listed");
    let mut paths = files.map(|f| f.expect("an entry").path());
    let path = paths.find(|p| p.file_name().is_some_and(|f| f.to_string_lossy().starts_with(name)));
    TraceReader::open(path.expect("the trace is there")).expect("it opens").map(|a| a.map(Reference::from))
}

#[test]
fn one_pass_gives_every_count_of_the_reference() {
    let Some(shared) = shared() else { return };
    let csv = std::fs::read_to_string(shared.join("reference/miss-counts.csv")).expect("the counts can be read");
    let traces = &TRACES[..by_length(2, 3)];
    let mut rows: BTreeMap<&str, Vec<(Cell, u64)>> = BTreeMap::new();
    for line in csv.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let (Ok(policy), Ok(blocks)) = (fields[3].parse::<PolicyKind>(), fields[2].parse::<u32>()) else { continue };
        if traces.contains(&fields[0]) && CONFIRMED.contains(&policy) {
            let cell = Cell::new(policy, CacheSize::Blocks(blocks.into()), blocks);
            rows.entry(fields[0]).or_default().push((cell, fields[4].parse().expect("a count")));
        }
    }
    assert_eq!(rows.keys().copied().collect::<Vec<_>>(), traces);
    for (trace, rows) in rows {
        assert!(rows.len() >= 10, "{trace}");
        let cells = rows.iter().map(|r| r.0).collect();
        let done = sweep(open(&shared, trace), cells, &SweepOptions::default(), &mut |_| Go::On).expect("it runs");
        assert!(done.broken.is_none());
        for (result, (cell, misses)) in done.results.iter().zip(rows) {
            assert_eq!(result.counts.misses(), misses, "{trace} {} {}", cell.rule, cell.blocks);
        }
    }
}

#[test]
fn shares_come_to_the_sizes_of_the_reference() {
    let Some(shared) = shared() else { return };
    let mut footprint = Footprint::default();
    open(&shared, "arc-OLTP").for_each(|r| footprint.see(r.expect("sound").block));
    assert_eq!(footprint.accesses, 914_145);
    for (share, blocks) in [(0.01, 1868), (0.1, 18_688)] {
        assert_eq!(CacheSize::Share(share).blocks(4096, Some(footprint.blocks())).expect("it fits"), blocks);
    }
}
