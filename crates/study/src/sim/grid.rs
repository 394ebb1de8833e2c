//! Policies at sizes on one trace: the caches that a sweep takes, and its results as programs read them.
//!
//! Owns the order of cells and the fields of `--json`, for the command line and for Python. Never runs anything, reads
//! no clock. Invariant: cells and rows are in one order: each policy at the first size, then at the next.

use crate::sim::cell::{CacheCounts, Cell, CellResult};
use crate::sim::error::SimError;
use crate::sim::rule::Rule;
use serde::Serialize;
use undercroft_engine::AnyPolicyKind;
use undercroft_units::{SLOTS_MAX, SlotsError, WrittenSize, human_size};

/// Bytes that a block of a simulated cache takes at most, with what policies remember of absent ones.
pub(crate) const BYTES_PER_BLOCK: u64 = 64;

/// What is to be simulated of one trace.
#[derive(Clone, Copy, Debug)]
pub struct Grid<'a> {
    /// The policies: each is simulated at every size.
    pub policies: &'a [Rule],
    /// The sizes.
    pub sizes: &'a [WrittenSize],
    /// Bytes that a block of the trace stands for.
    pub block_bytes: u32,
}

impl Grid<'_> {
    /// Whether a size is a share of the footprint, which must be known then.
    pub fn needs_footprint(&self) -> bool {
        self.sizes.iter().any(|s| s.size.needs_footprint())
    }

    /// The caches, for a trace of `footprint` distinct blocks, if that is known.
    ///
    /// # Errors
    /// A size that cannot be had; it is named.
    pub fn cells(&self, footprint: Option<u64>) -> Result<Vec<Cell>, SimError> {
        let mut cells = vec![];
        for size in self.sizes {
            let blocks = size.size.slots(self.block_bytes, footprint);
            let blocks = blocks.map_err(|source| SimError::Size { size: size.text.clone(), source })?;
            cells.extend(self.policies.iter().map(|&policy| Cell::new(policy, size.size, blocks)));
        }
        Ok(cells)
    }

    /// The results of these caches, with the sizes as they were written.
    pub fn rows(&self, results: &[CellResult]) -> Vec<CellRow> {
        let texts = self.sizes.iter().flat_map(|s| self.policies.iter().map(move |_| s.text.clone()));
        let row = |(r, size): (&CellResult, String)| CellRow {
            rule: r.cell.rule,
            size,
            blocks: r.cell.blocks,
            counts: r.counts,
        };
        results.iter().zip(texts).map(row).collect()
    }
}

/// The results of one cell.
#[derive(Clone, Debug, PartialEq)]
pub struct CellRow {
    /// What decided in it.
    pub rule: Rule,
    /// Its size as it was asked for.
    pub size: String,
    /// Its size.
    pub blocks: u32,
    /// What was counted.
    pub counts: CacheCounts,
}

/// What became of one trace.
#[derive(Clone, Debug)]
pub struct TraceRun {
    /// Its name.
    pub name: String,
    /// Distinct blocks, if they were counted or given.
    pub footprint: Option<u64>,
    /// Accesses read, warm-up included.
    pub accesses: u64,
    /// Seconds of the pass through the caches.
    pub seconds: f64,
    /// Whether the whole trace was read, or as much as was asked for.
    pub complete: bool,
    /// Why it was not, if it is damaged.
    pub broken: Option<String>,
    /// For each size, in the order they were asked for, each policy.
    pub rows: Vec<CellRow>,
}

/// What `--json` prints of one trace.
#[derive(Serialize)]
pub struct SweepDocument {
    trace: String,
    block_bytes: u64,
    /// Accesses read, warm-up included.
    accesses: u64,
    footprint_blocks: Option<u64>,
    /// Whether the whole trace was read, or as much as was asked for.
    complete: bool,
    error: Option<String>,
    seconds: f64,
    results: Vec<ResultRow>,
}

#[derive(Serialize)]
struct ResultRow {
    policy: &'static str,
    size: String,
    capacity_blocks: u32,
    accesses: u64,
    misses: u64,
    miss_ratio: f64,
    reads: u64,
    read_misses: u64,
    writes: u64,
    write_misses: u64,
}

impl TraceRun {
    /// The JSON of one trace.
    pub fn document(&self, block_bytes: u64) -> SweepDocument {
        let results = self.rows.iter().map(|r| ResultRow {
            policy: r.rule.name(),
            size: r.size.clone(),
            capacity_blocks: r.blocks,
            accesses: r.counts.accesses(),
            misses: r.counts.misses(),
            miss_ratio: r.counts.miss_ratio(),
            reads: r.counts.reads,
            read_misses: r.counts.read_misses,
            writes: r.counts.writes,
            write_misses: r.counts.write_misses,
        });
        SweepDocument {
            trace: self.name.clone(),
            block_bytes,
            accesses: self.accesses,
            footprint_blocks: self.footprint,
            complete: self.complete,
            error: self.broken.clone(),
            seconds: self.seconds,
            results: results.collect(),
        }
    }
}

/// Refuses a cache of more blocks than one under its policy can have.
///
/// # Errors
/// It is one.
pub fn check_slots(policy: impl Into<AnyPolicyKind>, blocks: u64) -> Result<(), SimError> {
    let policy = policy.into();
    if blocks > SLOTS_MAX.into() {
        return Err(SlotsError::TooLarge { blocks }.into());
    }
    let most = policy.slots_max();
    if blocks > most.into() { Err(SimError::Policy { policy: policy.name(), blocks, most }) } else { Ok(()) }
}

/// Refuses caches of so many blocks each whose tables do not fit in `there` bytes of memory, before the machine swaps
/// or the kernel kills.
///
/// # Errors
/// They are too large together.
pub fn check_memory(blocks: impl IntoIterator<Item = u32>, there: u64) -> Result<(), SimError> {
    let (mut caches, mut needed) = (0u64, 0u64);
    for n in blocks {
        caches += 1;
        needed = needed.saturating_add(u64::from(n) * BYTES_PER_BLOCK);
    }
    if needed <= there {
        return Ok(());
    }
    Err(SimError::Options(format!(
        "{caches} caches take {} of memory together, and there is {}; give smaller sizes, or fewer policies and sizes \
         at a time",
        human_size(needed),
        human_size(there)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Go, Reference, SweepOptions, sweep};
    use undercroft_engine::PolicyKind;

    #[test]
    fn rows_are_those_of_their_cells() {
        let sizes = ["1%", "3blocks", "8KiB"].map(|s| s.parse::<WrittenSize>().expect("a size"));
        let policies = [PolicyKind::Lru, PolicyKind::Fifo].map(Rule::from);
        let grid = Grid { policies: &policies, sizes: &sizes, block_bytes: 4096 };
        assert!(grid.needs_footprint() && grid.cells(None).expect_err("a share").to_string().starts_with("1%: "));
        let cells = grid.cells(Some(400)).expect("cells");
        let trace = (0..1000).map(|i| Ok(Reference::read(i % 4)));
        let swept = sweep(trace, cells, &SweepOptions::default(), &mut |_| Go::On).expect("it runs");
        let rows = grid.rows(&swept.results);
        let said: Vec<_> = rows.iter().map(|r| (r.rule, r.size.as_str(), r.blocks)).collect();
        let [lru, fifo] = policies;
        let wanted = [
            (lru, "1%", 4),
            (fifo, "1%", 4),
            (lru, "3blocks", 3),
            (fifo, "3blocks", 3),
            (lru, "8KiB", 2),
            (fifo, "8KiB", 2),
        ];
        assert_eq!(said, wanted);
        assert_eq!(rows.iter().map(|r| r.counts.misses()).collect::<Vec<_>>(), [4, 4, 1000, 1000, 1000, 1000]);
    }

    #[test]
    fn caches_that_do_not_fit_are_refused_with_both_sizes() {
        assert!(check_memory([1024, 1024], 2 * 64 * 1024).is_ok());
        let said = check_memory([1024, 1025], 2 * 64 * 1024).expect_err("64 bytes more").to_string();
        assert!(said.starts_with("2 caches take 128KiB") && said.contains("there is 128KiB"), "{said}");
    }
}
