//! The arguments of `undercroft sim` and `undercroft compare`, with their help.
//!
//! Owns words; `undercroft_study::sim` reads sizes and lists of policies. Never acts.

use super::stores::StoresArgs;
use crate::cli::study::reading::ReadArgs;
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::str::FromStr;
use undercroft_engine::control::ControllerKind;
use undercroft_study::sim::tenants::Arm;
use undercroft_study::sim::{Policies, Rule};
use undercroft_trace::BLOCK_BYTES;
use undercroft_units::{Size, WrittenSize};

/// What simulates a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Engine {
    /// The index: policy, ghosts, decisions.
    Index,
    /// The daemon's whole data path.
    Core,
}

/// Who divides a cache among tenants.
#[derive(Clone, Debug, PartialEq)]
pub struct Divider(pub Arm);

/// Why a text names nobody who divides.
#[derive(Debug, thiserror::Error)]
pub enum DividerError {
    /// A controller that cannot be simulated on a trace.
    #[error("target needs goals, which a trace has not")]
    NeedsGoals,
    /// There is nobody of that name.
    #[error("\"{0}\" divides nothing; known are shared, strict, best, {others}", others = controllers())]
    Unknown(String),
}

/// The controllers that need nothing but a trace.
fn controllers() -> String {
    let of_traces = ControllerKind::ALL.into_iter().filter(|kind| *kind != ControllerKind::Target);
    of_traces.map(ControllerKind::name).collect::<Vec<_>>().join(", ")
}

impl FromStr for Divider {
    type Err = DividerError;

    fn from_str(text: &str) -> Result<Self, DividerError> {
        Ok(Divider(match text.trim() {
            "shared" => Arm::Shared,
            "strict" => Arm::Strict,
            "best" => Arm::KnownCurves,
            "target" => return Err(DividerError::NeedsGoals),
            word => Arm::Governed(word.parse().map_err(|_| DividerError::Unknown(word.to_string()))?),
        }))
    }
}

/// What both commands take.
#[derive(Clone, Debug, Args)]
pub struct SweepArgs {
    /// Bytes of a block: ranges of bytes are split into such, sizes in bytes are counted in them, and a block or key of
    /// other traces stands for so many [default: 4KiB]
    #[arg(long, value_name = "SIZE")]
    pub block_size: Option<Size>,
    /// Distinct blocks of the trace, if they are known: spares a pass that counts them for sizes in %
    #[arg(long, value_name = "BLOCKS")]
    pub footprint: Option<u64>,
    /// Accesses at the beginning that fill the caches and are not counted
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub warm_up: u64,
    /// End after so many accesses, warm-up included
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Threads [default: one per processor]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Option<u16>,
    /// For programs, on standard output
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// A line for each result, on standard output
    #[arg(long)]
    pub csv: bool,
    /// Write the results into this Parquet file, too
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub parquet: Option<PathBuf>,
    #[command(flatten, next_help_heading = "How the trace is read")]
    #[allow(missing_docs)]
    pub read: ReadArgs,
}

impl SweepArgs {
    /// Bytes of a block: 4 KiB, unless something else was asked for.
    pub fn block_bytes(&self) -> u64 {
        self.block_size.map_or(u64::from(BLOCK_BYTES), |size| size.0)
    }
}

/// `undercroft sim`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Reads the trace once and gives every access to every policy at every size, on all processors. What a disk of the daemon
may have decides by the same code there. Sizes in % are shares of the distinct blocks of the trace, which are counted in
a pass before.

Examples:
  Two policies, at two sizes:
    undercroft sim web.parquet --policy lru,s3-fifo --size 1GiB,10%

  How far they are from the fewest misses there can be (keeps the trace in
  memory, 48 bytes an access):
    undercroft sim web.vscsi --policy lru,s3-fifo,opt,opt-bypass --size 10%

  A picture of how the policies do at nine sizes:
    undercroft sim web.vscsi --policy lru,s3-fifo,arc \\
        --size 0.1%,0.3%,1%,2%,3%,5%,10%,20%,30% --plot web.svg

  Every policy there is, for a program:
    undercroft sim web.vscsi --policy all --size 1%,10% --json \\
        | jq -r '.results[] | [.policy, .miss_ratio] | @tsv'

  Would the daemon have done better with another policy, read-ahead and all:
    undercroft sim web.parquet --engine core --policy lru,s3-fifo,arc

  Two tenants on one cache, under several controllers:
    undercroft sim web.vscsi --beside db.vscsi --size 1GiB \\
        --controller shared,strict,utility,best

  Did the disks of a recording get the best of one cache, in the order in which
  all of them asked:
    undercroft sim host.parquet --per-tenant --size 1GiB \\
        --controller shared,strict,utility,best

  The same below guests with caches of their own, where the host keeps what
  those evict:
    undercroft sim web.vscsi --beside db.vscsi --size 1GiB --above 512MiB \\
        --hands-down --controller strict,utility

  The same over an SSD that is divided among them as well, and holds what goes
  from memory:
    undercroft sim web.vscsi --beside db.vscsi --size 1GiB --below 8GiB \\
        --demotes --controller strict,utility,best

  The daemon's RAM store over its SSD store: what each rule of admission saves
  and writes:
    undercroft sim web.vscsi --size 1GiB,2GiB --ssd none,8GiB,10% \\
        --admit measured,all,second

  What the SSD store is worth after a restart in the middle of the trace:
    undercroft sim web.vscsi --size 1GiB --ssd 8GiB --restart-at 50%

  A guest over a host over an SSD, with the times that requests take:
    undercroft sim oltp.lis.zst --hierarchy three.toml \\
        --hierarchy exclusive.toml

  where three.toml is:
    [[level]]
    name = \"guest\"
    size = \"5%\"
    linux = { free = \"2%\" }  # or policy = \"lru\"
    read = \"1us\"
    [[level]]
    name = \"host\"
    size = \"5%\"
    policy = \"s3-fifo\"
    keeps = \"inferred\"       # passing, demoted, captured, scanned, hinted
    read = \"10us\"
    [[level]]
    name = \"ssd\"
    size = \"20%\"
    policy = \"lru\"
    writes = \"back\"          # through, around
    read = \"80us\"
    channels = 8
    [disk]
    read = \"8ms\"
    [requests]
    arrive = \"closed\"        # trace, random
    depth = 16

  The second half of a trace, with caches warmed by the first:
    undercroft sim oltp.lis.zst --size 1000blocks --warm-up 450000

Exit codes:
  0    done (a broken pipe counts as done)
  1    failed; results up to a damaged place are shown, and the reason is on
       standard error
  2    used wrongly
  130  interrupted; the results of what had been read are shown
")]
pub struct SimArgs {
    /// The trace
    #[arg(value_name = "TRACE", value_hint = ValueHint::FilePath)]
    pub trace: PathBuf,
    /// Policies, with commas between; `disk` for those that a disk may have, `all` for those for study, too; `opt` and
    /// `opt-bypass` for the fewest misses there can be, `probability` for that rule, to the letter and with ageing
    /// [default: lru,s3-fifo; with --engine core, as recorded]
    #[arg(long, visible_alias = "policies", short, value_name = "LIST")]
    pub policy: Vec<Policies>,
    /// Sizes, with commas between: 1GiB, 10% of the footprint, 1000blocks [default: 10%; with --engine core, as
    /// recorded]
    #[arg(long, visible_alias = "sizes", short, value_name = "LIST", value_delimiter = ',')]
    pub size: Vec<WrittenSize>,
    /// What simulates a cache: `index`, its decisions alone; `core`, the daemon's whole data path, which replays a
    /// recording with partial blocks, read-ahead, and requests that overlap
    #[arg(long, value_name = "ENGINE", value_enum, default_value = "index")]
    pub engine: Engine,
    /// Simulate the hierarchy that this TOML file describes, instead of single caches; may be repeated
    #[arg(
        long,
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
        conflicts_with_all = ["policy", "size", "engine"]
    )]
    pub hierarchy: Vec<PathBuf>,
    /// The trace of another tenant of the same cache; may be repeated. Sizes are those of the cache for all of them
    #[arg(long, value_name = "TRACE", value_hint = ValueHint::FilePath, group = "tenants",
          conflicts_with_all = ["hierarchy", "engine", "warm_up"])]
    pub beside: Vec<PathBuf>,
    /// The tenants of the trace itself (disks of a recording, volumes of a CSV file) share the cache, in the order of
    /// its rows
    #[arg(long, group = "tenants", conflicts_with_all = ["beside", "hierarchy", "engine", "warm_up"])]
    pub per_tenant: bool,
    /// Who divides the cache among tenants, with commas between: shared (nobody: one cache for all), strict (equal
    /// parts), best (curves known in advance), or a controller of the daemon: static, utility, donor, paper
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        requires = "tenants",
        default_value = "shared,strict,utility"
    )]
    pub controller: Vec<Divider>,
    /// Accesses of all tenants together after which a controller decides anew
    #[arg(long, value_name = "N", default_value = "100000", requires = "tenants",
          value_parser = clap::value_parser!(u32).range(100..))]
    pub interval: u32,
    /// Every tenant has a cache of its own of this size above the one that is divided (of the guest's, say): 512MiB, 5%
    /// of the tenant's own footprint, 1000blocks
    #[arg(long, value_name = "SIZE", requires = "tenants")]
    pub above: Option<WrittenSize>,
    /// The policy of those caches
    #[arg(long, value_name = "POLICY", requires = "above", default_value = "lru")]
    pub above_policy: Policies,
    /// They hand down what they evict, and the one that is divided holds that and nothing else
    #[arg(long, requires = "above")]
    pub hands_down: bool,
    /// A second cache of this size below the one that is divided (of an SSD, say), divided among the same tenants by
    /// the same rule: 20GiB, 30% of the footprint, 1000blocks
    #[arg(long, value_name = "SIZE", requires = "tenants")]
    pub below: Option<WrittenSize>,
    /// The policy of that cache
    #[arg(long, value_name = "POLICY", requires = "below", default_value = "lru")]
    pub below_policy: Policies,
    /// What the cache above it evicts goes down to it, and it holds that and nothing else: a block that is read goes
    /// up. Otherwise it keeps what passes
    #[arg(long, requires = "below")]
    pub demotes: bool,
    /// Draw miss ratios over sizes, a line for each policy, into this file: .svg or .png
    #[arg(long, value_name = "FILE", value_parser = plot_file, value_hint = ValueHint::FilePath,
          conflicts_with_all = ["hierarchy", "tenants", "engine"])]
    pub plot: Option<PathBuf>,
    /// With --engine core: each request ends before the next begins, whatever the recording says
    #[arg(long)]
    pub one_by_one: bool,
    #[command(flatten, next_help_heading = "RAM over an SSD")]
    #[allow(missing_docs)]
    pub stores: StoresArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub sweep: SweepArgs,
}

/// `undercroft compare`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Shows the miss ratio of every policy at every size on every trace, and how many fewer misses each has than a baseline:
-12.3% is 12.3 % fewer. A trace that is damaged is used up to there, and named.

Examples:
  undercroft compare *.vscsi
  undercroft compare oltp.lis p6.lis --policies lru,arc,s3-fifo,w-tinylfu \\
      --sizes 1%,5%,10% --plot ratios.svg
  undercroft compare web.parquet --baseline fifo --csv > web.csv
  undercroft compare *.zst --policies all --parquet all.parquet --plot all.png

Exit codes:
  0    done (a broken pipe counts as done)
  1    failed, or some traces could not be read to their end: the reasons are on
       standard error
  2    used wrongly
  130  interrupted; what had been done is shown
")]
pub struct CompareArgs {
    /// The traces
    #[arg(value_name = "TRACE", required = true, value_hint = ValueHint::FilePath)]
    pub trace: Vec<PathBuf>,
    /// Policies, with commas between; `disk` for those that a disk may have, `all` for those for study, too; `opt` and
    /// `opt-bypass` for the fewest misses there can be, `probability` for that rule, to the letter and with ageing
    #[arg(long, visible_alias = "policy", short, value_name = "LIST", default_value = "disk")]
    pub policies: Vec<Policies>,
    /// Sizes, with commas between: 1GiB, 10% of a trace's footprint, 1000blocks
    #[arg(
        long,
        visible_alias = "size",
        short,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "0.1%,1%,10%"
    )]
    pub sizes: Vec<WrittenSize>,
    /// The policy that others are compared with; it is run too
    #[arg(long, short, value_name = "POLICY", default_value = "lru")]
    pub baseline: Rule,
    /// Draw miss ratios over sizes, a panel for each trace, into this file: .svg or .png
    #[arg(long, value_name = "FILE", value_parser = plot_file, value_hint = ValueHint::FilePath)]
    pub plot: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub sweep: SweepArgs,
}

/// The name of a file says no kind of picture.
#[derive(Debug, thiserror::Error)]
#[error("the name ends with .svg or .png, which says what is written")]
pub(crate) struct PlotNameError;

/// The name of a plot.
pub(crate) fn plot_file(text: &str) -> Result<PathBuf, PlotNameError> {
    let path = PathBuf::from(text);
    match path.extension().and_then(|e| e.to_str()) {
        Some("svg" | "png") => Ok(path),
        _ => Err(PlotNameError),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_is_one_of_two_kinds() {
        assert!(plot_file("a.svg").is_ok() && plot_file("b.c.png").is_ok());
        assert!(plot_file("a.pdf").is_err() && plot_file("svg").is_err());
    }
}
