//! The arguments of `undercroft curve` and `undercroft partition`, with their help.
//!
//! Owns words. Never acts.

use crate::cli::study::reading::ReadArgs;
use crate::cli::study::sim::args::plot_file;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;
use undercroft_engine::AnyPolicyKind;
use undercroft_study::curves::{CurveMethod, EstimateOptions, Requests, Window, partition};
use undercroft_trace::BLOCK_BYTES;
use undercroft_units::{CacheSize, Percent, Size, UnitError};

/// Ways to make a curve.
fn methods() -> impl TypedValueParser<Value = CurveMethod> {
    let values = CurveMethod::ALL.map(|m| PossibleValue::new(m.name()).help(m.about()));
    PossibleValuesParser::new(values).try_map(|name| name.parse::<CurveMethod>())
}

/// What `--of` takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Of {
    /// Reads and writes
    #[default]
    All,
    /// Reads; writes bring blocks in
    Reads,
    /// Writes
    Writes,
}

impl Of {
    /// As the curves call it.
    pub fn requests(self) -> Requests {
        match self {
            Of::All => Requests::All,
            Of::Reads => Requests::Reads,
            Of::Writes => Requests::Writes,
        }
    }
}

/// A part of all blocks or requests, above 0.
fn rate(text: &str) -> Result<f64, UnitError> {
    text.parse::<Percent>().map(|p| p.value() / 100.0)
}

/// What both commands take of traces.
#[derive(Debug, Args)]
pub struct CurveTraceArgs {
    /// Bytes of a block: ranges of bytes are split into such, sizes in bytes are counted in them, and a block or key of
    /// other traces stands for so many [default: 4KiB]
    #[arg(long, value_name = "SIZE")]
    pub block_size: Option<Size>,
    /// The part of blocks or requests that is sampled; for `mini` at least (rounded up to a power of a half; a cache
    /// has 8192 slots or more, and 65,536 blocks or more are sampled)
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = rate)]
    pub rate: f64,
    /// For `shards`: sample at most so many blocks, at a rate that falls as they come, instead of at --rate
    #[arg(long, value_name = "BLOCKS", conflicts_with = "rate", value_parser = clap::value_parser!(u32).range(64..))]
    pub samples: Option<u32>,
    /// Chooses the sample: other seeds show how far the curves may be off
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// A curve for each tenant of each trace (disks of a recording, volumes of a CSV file), not for each trace
    #[arg(long)]
    pub per_tenant: bool,
    #[command(flatten, next_help_heading = "How the traces are read")]
    #[allow(missing_docs)]
    pub read: ReadArgs,
}

impl CurveTraceArgs {
    /// Bytes of a block: 4 KiB, unless something else was asked for.
    pub fn block_bytes(&self) -> u64 {
        self.block_size.map_or(u64::from(BLOCK_BYTES), |size| size.0)
    }

    /// What is sampled.
    /// `footprint` is the number of different blocks, if it is known.
    pub fn estimate(&self, footprint: Option<u64>) -> EstimateOptions {
        EstimateOptions { rate: self.rate, samples: self.samples, seed: self.seed, footprint }
    }
}

/// `undercroft curve`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Reads each trace once (for other policies than LRU twice, with `mini` or if sizes are parts of the footprint; a pipe is
kept in a file for that) and prints the miss ratio by the size of the cache. Misses while the cache fills count. A block
is whatever the trace counts in; --block-size says how large that is. If a size is in bytes, requests are split into
blocks of 4KiB or of --block-size, and objects of sizes of their own are refused.

Each ratio from a sample has its error behind it: 0.4312 ±0.0087 says that the ratio of all requests is between 0.4225
and 0.4399 with a probability of 95 % (--json: miss_ratio_error). What the model of aet errs by is not in it. Sizes for
which a sample has too few blocks are named.

Examples:
  undercroft curve web.vscsi
  undercroft curve web.vscsi db.vscsi --plot curves.svg
  undercroft curve big.oracleGeneral.zst --method paired --rate 0.1% \\
      --sizes 1GiB,4GiB,16GiB
  undercroft curve web.vscsi --policy lru,arc,s3-fifo --method mini --rate 5%
  undercroft curve web.vscsi --of reads --window 60s --zipf
  undercroft curve volumes.csv.gz --format alibaba --per-tenant --method paired
  undercroft curve web.vscsi --sizes 256MiB,512MiB,1GiB
  zstdcat web.csv.zst | undercroft curve - --format csv --columns time=1,text=2
  undercroft curve web.vscsi --json | jq '.traces[0].curves[0].points'

Methods:
  exact    no sampling; some 100 ns a request and 50 bytes a block for LRU at
           all sizes
  shards   LRU; errs where few blocks have many of the requests
  paired   LRU; a tenth of the error of shards on such loads
  aet      LRU; a model: errs where phases differ
  mini     any policy: LRU's exact curve, and small caches for what another
           policy misses more or less

Exit codes:
  0    done
  1    failed, or a trace could not be read; what could is shown
  2    used wrongly
  130  interrupted; the curves are of what had been read
")]
pub struct CurveArgs {
    /// The traces
    #[arg(value_name = "TRACE", required = true, value_hint = ValueHint::FilePath)]
    pub traces: Vec<PathBuf>,
    /// How the curves are made
    #[arg(long, value_name = "METHOD", default_value = "exact", value_parser = methods())]
    pub method: CurveMethod,
    /// Replacement policies, separated by commas
    #[arg(long, value_name = "POLICY", default_value = "lru", value_delimiter = ',')]
    pub policy: Vec<AnyPolicyKind>,
    /// Sizes of the cache, separated by commas: blocks (1000), bytes (512MiB), or parts of what the trace asks for
    /// (10%)
    #[arg(
        long,
        value_name = "SIZES",
        value_delimiter = ',',
        default_value = "0.1%,0.2%,0.5%,1%,2%,5%,10%,20%,30%,50%,70%,100%"
    )]
    pub sizes: Vec<CacheSize>,
    /// Which requests' misses are counted, with `exact` and LRU
    #[arg(long, value_name = "REQUESTS", default_value = "all")]
    pub of: Of,
    /// The working set over time: different blocks in each window of so many requests (100000) or so much time (60s)
    #[arg(long, value_name = "WINDOW")]
    pub window: Option<Window>,
    /// Fit Zipf's law to the requests by block
    #[arg(long)]
    pub zipf: bool,
    /// Draw the curves into this file, .svg or .png
    #[arg(long, value_name = "FILE", value_parser = plot_file, value_hint = ValueHint::FilePath)]
    pub plot: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub trace: CurveTraceArgs,
    /// For programs: {complete, traces}; miss_ratio_error is half of an interval of 95 %
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// For programs: a line for each trace, policy and size
    #[arg(long)]
    pub csv: bool,
    /// Write those lines into this Parquet file, too
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub parquet: Option<PathBuf>,
}

/// `undercroft partition`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Each trace is a tenant, or with --per-tenant each tenant within them. Makes their curves (LRU's, unless --policy says
another) and divides the memory such that all of them together miss least; beside it, what equal parts, parts in
proportion to requests, and one LRU queue for all would miss. Memory that would save nobody a miss is left over.

Examples:
  undercroft partition web.vscsi db.vscsi --memory 4GiB
  undercroft partition web=monday.vscsi db=tuesday.vscsi --memory 4GiB \\
      --floor web=512MiB --ceiling db=3GiB
  undercroft partition *.lis.zst --memory 64GiB --by paired --rate 0.1%
  undercroft partition web.vscsi db.vscsi --memory 4GiB --policy s3-fifo \\
      --by mini --rate 5%
  undercroft partition host.parquet --per-tenant --memory 4GiB \\
      --floor vm1:root=256MiB
  undercroft partition web.vscsi db.vscsi --memory 4GiB --json \\
      | jq '.tenants[] | {name, share_bytes}'

Ways to divide:
  dp         dynamic programming: the best there is, in steps of a 4096th of the
             memory; tenants with equal curves get equal parts where that costs
             no more than a thousandth of the misses
  greedy     along the curves' convex hulls: fast; may end in the middle of a
             cliff
  lookahead  as the daemon's controller `utility` does

Exit codes:
  0    done
  1    failed, or a trace could not be read
  2    used wrongly
  130  interrupted; the division is by what had been read
")]
pub struct PartitionArgs {
    /// The traces, a tenant each, called by its file unless a name is given
    #[arg(value_name = "[NAME=]TRACE", required = true, value_hint = ValueHint::FilePath)]
    pub traces: Vec<String>,
    /// What there is to divide
    #[arg(long, value_name = "SIZE")]
    pub memory: Size,
    /// How it is divided: dp, greedy or lookahead
    #[arg(long, value_name = "METHOD", default_value = "dp")]
    pub method: partition::Method,
    /// How the curves are made: exact, shards, paired, aet or mini
    #[arg(long, value_name = "METHOD", default_value = "exact", value_parser = methods())]
    pub by: CurveMethod,
    /// The policy that each part will have, of any that `sim` knows; others than lru are simulated at 64 sizes (--by
    /// exact, or mini)
    #[arg(long, value_name = "POLICY", default_value = "lru")]
    pub policy: AnyPolicyKind,
    /// What a tenant gets in any case; may be repeated
    #[arg(long, value_name = "NAME=SIZE", value_parser = bound)]
    pub floor: Vec<(String, Size)>,
    /// What a tenant gets at most; may be repeated
    #[arg(long, value_name = "NAME=SIZE", value_parser = bound)]
    pub ceiling: Vec<(String, Size)>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub trace: CurveTraceArgs,
    /// Draw the tenants' curves into this file, .svg or .png
    #[arg(long, value_name = "FILE", value_parser = plot_file, value_hint = ValueHint::FilePath)]
    pub plot: Option<PathBuf>,
    /// For programs: {complete, tenants, misses, left_bytes}
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// For programs: a line for each tenant
    #[arg(long)]
    pub csv: bool,
    /// Write those lines into this Parquet file, too
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub parquet: Option<PathBuf>,
}

/// Why a text is no bound of a tenant.
#[derive(Debug, thiserror::Error)]
enum BoundError {
    /// There is no name.
    #[error("`{0}` is not NAME=SIZE; write it like web=512MiB")]
    NoName(String),
    /// There is no size.
    #[error(transparent)]
    Size(#[from] UnitError),
}

/// The name of a tenant, and a size.
fn bound(text: &str) -> Result<(String, Size), BoundError> {
    let Some((name, size)) = text.rsplit_once('=').filter(|(name, _)| !name.is_empty()) else {
        return Err(BoundError::NoName(text.to_string()));
    };
    Ok((name.to_owned(), size.parse()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_have_a_name_and_a_size() {
        assert_eq!(bound("a=b=1GiB").unwrap(), ("a=b".into(), Size(1 << 30)));
        for bad in ["1GiB", "=1GiB", "web=", "web=much"] {
            assert!(bound(bad).is_err(), "{bad}");
        }
    }
}
