//! What `undercroft sim --beside` shows: a table, JSON, and columns for CSV and Parquet.
//!
//! Owns the forms. Never runs anything. Invariant: with a second level, an access is counted once as a hit of the one,
//! a hit of the other, or a read of the disk; without one, the forms are what they were before there were two.

use super::rows::{Columns, Values};
use crate::cli::table::{lines, plain};
use serde::Serialize;
use undercroft_study::sim::tenants::{AboveCounts, Below, LabRow, row::Part};

/// What `--json` prints.
#[derive(Serialize)]
pub struct Document {
    /// Their names.
    pub tenants: Vec<String>,
    /// Distinct blocks of all tenants.
    pub footprint_blocks: u64,
    /// What each tenant's own cache did, in their order; none if there are no such caches.
    pub above: Vec<ShownAbove>,
    /// The level below the one that is divided first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub below: Option<ShownBelow>,
    /// Whether all that was asked for was run.
    pub complete: bool,
    /// One for each controller and policy at each size.
    pub results: Vec<Shown>,
}

/// A tenant's own cache.
#[derive(Serialize)]
pub struct ShownAbove {
    /// Whose.
    pub tenant: String,
    /// Blocks that it holds.
    pub blocks: u32,
    /// Its policy.
    pub policy: &'static str,
    /// Whether it hands down what it evicts.
    pub hands_down: bool,
    /// What it did.
    #[serde(flatten)]
    pub counts: AboveCounts,
}

/// The level below.
#[derive(Serialize)]
pub struct ShownBelow {
    /// Blocks that it holds for all tenants.
    pub blocks: u32,
    /// Its policy.
    pub policy: &'static str,
    /// Whether it holds what the level above evicts, and nothing else.
    pub demotes: bool,
}

impl From<Below> for ShownBelow {
    fn from(Below { blocks, policy, demotes }: Below) -> Self {
        Self { blocks, policy: policy.name(), demotes }
    }
}

/// One run.
#[derive(Serialize)]
pub struct Shown {
    /// The size that was asked for.
    pub size: String,
    /// What it came to.
    #[serde(flatten)]
    pub row: LabRow,
    /// Where accesses found their blocks, of all tenants and of each, if there is a level below.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub found: Vec<Found>,
}

/// Where accesses to the divided caches found their blocks.
#[derive(Serialize)]
pub struct Found {
    /// Whose; `None`: of all.
    pub tenant: Option<String>,
    /// Accesses that reached the first of the two.
    pub accesses: u64,
    /// Found there.
    pub hits: u64,
    /// Found below.
    pub below_hits: u64,
    /// Found in neither.
    pub disk_reads: u64,
}

impl Shown {
    /// A run at the size that was asked for as `size`.
    pub fn new(size: String, row: LabRow) -> Self {
        let found = |tenant, (accesses, misses): (u64, u64), (asked, disk_reads): (u64, u64)| Found {
            tenant,
            accesses,
            hits: accesses - misses,
            below_hits: asked - disk_reads,
            disk_reads,
        };
        let part = |p: &Part| (p.requests, p.misses);
        let found = row.below.as_ref().map_or(vec![], |below| {
            let all = found(None, (row.requests, row.misses), (below.requests, below.misses));
            let tenants = row.tenants.iter().zip(&below.tenants);
            let each = tenants.map(|(u, l)| found(Some(u.name.to_string()), part(u), part(l)));
            std::iter::once(all).chain(each).collect()
        });
        Self { size, row, found }
    }
}

/// What is printed for people.
pub fn text(document: &Document) -> String {
    let mut text = String::new();
    for above in &document.above {
        let AboveCounts { accesses, hits } = above.counts;
        let part = 100.0 * hits as f64 / accesses.max(1) as f64;
        text += &format!(
            "{}: its own {} of {} blocks has {part:.1} % of {accesses} accesses\n",
            above.tenant, above.policy, above.blocks
        );
    }
    text += &match &document.below {
        None => table(document),
        Some(below) => {
            let holds = if below.demotes { "holds what is evicted above it" } else { "keeps what passes" };
            format!("below: {} of {} blocks for all, which {holds}\n", below.policy, below.blocks)
                + &table_of_two(document)
        }
    };
    if !document.complete {
        text += "Not whole: it was interrupted before the others were run.\n";
    }
    text
}

fn ratio(misses: u64, requests: u64) -> String {
    format!("{:.4}", misses as f64 / requests.max(1) as f64)
}

/// A line for each run.
fn table(document: &Document) -> String {
    let mut header =
        ["CONTROLLER", "POLICY", "SIZE", "BLOCKS", "ACCESSES", "MISSES", "MISS RATIO"].map(String::from).to_vec();
    header.extend(document.tenants.iter().map(|t| format!("OF {t}")));
    header.push("MOVED".into());
    let mut t = plain(&header, 2);
    for Shown { size, row, .. } in &document.results {
        let mut cells = vec![row.arm.clone(), row.policy.to_string(), size.clone(), row.total_blocks.to_string()];
        cells.extend([row.requests.to_string(), row.misses.to_string(), ratio(row.misses, row.requests)]);
        cells.extend(row.tenants.iter().map(|t| ratio(t.misses, t.requests)));
        cells.push(row.moved_blocks.to_string());
        t.add_row(cells);
    }
    lines(&t)
}

/// For each run a line for all tenants and one for each, with what it has of both levels at the end.
fn table_of_two(document: &Document) -> String {
    let header = [
        "CONTROLLER",
        "POLICY",
        "SIZE",
        "TENANT",
        "ACCESSES",
        "HITS",
        "HITS BELOW",
        "DISK READS",
        "DISK RATIO",
        "BLOCKS",
        "BLOCKS BELOW",
        "MOVED",
        "MOVED BELOW",
    ];
    let mut t = plain(&header.map(String::from), 4);
    for Shown { size, row, found } in &document.results {
        let rows = [Some(row), row.below.as_deref()];
        let of = |f: &dyn Fn(&LabRow) -> Option<u64>| {
            rows.map(|row| row.and_then(f).map_or(String::new(), |n: u64| n.to_string()))
        };
        for (i, f) in found.iter().enumerate() {
            let shares = match i {
                0 => of(&|row| Some(row.total_blocks.into())),
                // nobody has a share where nothing is divided
                _ => of(&|row| row.targets.last().map(|targets| targets[i - 1])),
            };
            let moved = of(&|row| (i == 0).then_some(row.moved_blocks));
            let tenant = f.tenant.clone().unwrap_or_else(|| "(all)".into());
            let counts = [f.accesses, f.hits, f.below_hits, f.disk_reads].map(|n| n.to_string());
            let mut cells = vec![row.arm.clone(), row.policy.to_string(), size.clone(), tenant];
            cells.extend(counts);
            cells.push(ratio(f.disk_reads, f.accesses));
            cells.extend(shares.into_iter().chain(moved));
            t.add_row(cells);
        }
    }
    lines(&t)
}

/// A row for each tenant of each run.
pub fn columns(document: &Document) -> Columns {
    let rows = || document.results.iter().flat_map(|s| s.row.tenants.iter().enumerate().map(move |(i, t)| (s, i, t)));
    let text = |f: &dyn Fn(&Shown, usize) -> String| Values::Text(rows().map(|(s, i, _)| f(s, i)).collect());
    let columns = Columns::default()
        .with("controller", text(&|s, _| s.row.arm.clone()))
        .with("policy", text(&|s, _| s.row.policy.to_string()))
        .with("size", text(&|s, _| s.size.clone()))
        .with("total_blocks", Values::Count(rows().map(|(s, ..)| s.row.total_blocks.into()).collect()))
        .with("tenant", text(&|_, i| document.tenants[i].clone()))
        .with("accesses", Values::Count(rows().map(|(_, _, t)| t.requests).collect()))
        .with("misses", Values::Count(rows().map(|(_, _, t)| t.misses).collect()))
        .with("moved_blocks", Values::Count(rows().map(|(s, ..)| s.row.moved_blocks).collect()));
    let Some(below) = &document.below else { return columns };
    let count = |f: &dyn Fn(&Shown, usize) -> u64| Values::Count(rows().map(|(s, i, _)| f(s, i)).collect());
    // the first is of all tenants
    let found = |f: &dyn Fn(&Found) -> u64| count(&|s, i| f(&s.found[i + 1]));
    columns
        .with("hits", found(&|f| f.hits))
        .with("below_hits", found(&|f| f.below_hits))
        .with("disk_reads", found(&|f| f.disk_reads))
        .with("below_blocks", count(&|_, _| below.blocks.into()))
        .with("below_policy", text(&|_, _| below.policy.into()))
        .with("below_demotes", text(&|_, _| if below.demotes { "yes" } else { "no" }.into()))
        .with("below_moved_blocks", count(&|s, _| s.row.below.as_ref().map_or(0, |row| row.moved_blocks)))
}
