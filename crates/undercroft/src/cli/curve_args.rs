//! The arguments of `undercroft curve` and `undercroft partition`, with their help.
//!
//! Owns words, and how sizes of caches are written. Never acts.

use crate::units::{Percent, Size, Time};
use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;
use std::str::FromStr;
use undercroft_curves::{Requests, Window, partition};
use undercroft_engine::PolicyKind;
use undercroft_trace::Format;

/// How a curve is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CurveMethod {
    /// No sampling: stack distances for LRU, whole simulations for other policies
    Exact,
    /// LRU from a sample of blocks (SHARDS, FAST 2015)
    Shards,
    /// LRU from a sample of requests, whose distances a sample of blocks tells: the most exact of the samples
    Paired,
    /// LRU by the average eviction time model (ATC 2016), from a sample of requests: the fastest
    Aet,
    /// Any policy, by simulating small caches on a sample of blocks (ATC 2017)
    Mini,
}

impl CurveMethod {
    /// As the command line writes it.
    pub fn name(self) -> &'static str {
        match self {
            CurveMethod::Exact => "exact",
            CurveMethod::Shards => "shards",
            CurveMethod::Paired => "paired",
            CurveMethod::Aet => "aet",
            CurveMethod::Mini => "mini",
        }
    }
}

/// The size of a cache: `1000` blocks, `512MiB`, or `10%` of the blocks that the trace asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CacheSize {
    /// Blocks.
    Blocks(u64),
    /// Bytes.
    Bytes(u64),
    /// A part of the footprint, above 0 to 1.
    Part(f64),
}

impl FromStr for CacheSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.ends_with('%') {
            return text.parse::<Percent>().map(|p| CacheSize::Part(p.value() / 100.0)).map_err(|e| e.to_string());
        }
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            let blocks = text.parse::<u64>().ok().filter(|&n| n > 0);
            return blocks.map(CacheSize::Blocks).ok_or_else(|| format!("{text} blocks are no cache; give 1 or more"));
        }
        let bytes: Size = text.parse().map_err(|e: crate::units::UnitError| e.to_string())?;
        if bytes.0 == 0 { Err(format!("{text} is no cache; give more")) } else { Ok(CacheSize::Bytes(bytes.0)) }
    }
}

impl CacheSize {
    /// In blocks, at least 1.
    pub fn blocks(self, block_bytes: u64, footprint: u64) -> u64 {
        let blocks = match self {
            CacheSize::Blocks(blocks) => blocks,
            CacheSize::Bytes(bytes) => bytes / block_bytes.max(1),
            CacheSize::Part(part) => (footprint as f64 * part).round() as u64,
        };
        blocks.max(1)
    }
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

fn format(text: &str) -> Result<Format, String> {
    let names = || Format::ALL.map(Format::name).join(", ");
    let known = || format!("`{text}` is no format of traces; take one of {}", names());
    Format::ALL.into_iter().find(|f| f.name() == text).ok_or_else(known)
}

/// A number of requests, or a time.
fn window(text: &str) -> Result<Window, String> {
    if let Ok(requests) = text.parse::<u64>() {
        return if requests > 0 { Ok(Window::Requests(requests)) } else { Err("give 1 request or more".into()) };
    }
    let time: Time = text.parse().map_err(|e: crate::units::UnitError| e.to_string())?;
    if time.0 > 0 { Ok(Window::Time(time.0)) } else { Err("give a time above 0".into()) }
}

/// A part of all blocks or requests, above 0.
fn rate(text: &str) -> Result<f64, String> {
    text.parse::<Percent>().map(|p| p.value() / 100.0).map_err(|e| e.to_string())
}

fn block_size(text: &str) -> Result<Size, String> {
    let size: Size = text.parse().map_err(|e: crate::units::UnitError| e.to_string())?;
    if size.0 == 0 { Err("a block has at least 1 byte".into()) } else { Ok(size) }
}

/// What both commands take of traces.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// The format of the traces [default: told by content or name]
    #[arg(long, value_name = "FORMAT", value_parser = format)]
    pub format: Option<Format>,
    /// How large a block is, for sizes in bytes
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = block_size)]
    pub block_size: Size,
    /// The part of blocks or requests that is sampled; for `mini`, on average over the sizes
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = rate)]
    pub rate: f64,
    /// For `shards`: sample at most so many blocks, at a rate that falls as they come, instead of at --rate
    #[arg(long, value_name = "BLOCKS", conflicts_with = "rate", value_parser = clap::value_parser!(u32).range(64..))]
    pub samples: Option<u32>,
    /// Chooses the sample: other seeds show how far the curves may be off
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// `undercroft curve`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Reads each trace once (twice for `mini` and other policies than LRU, if sizes are parts of the footprint) and prints the miss
ratio by the size of the cache. Misses while the cache fills count. A block is whatever the trace counts in; --block-size says
how large that is.

Examples:
  undercroft curve web.vscsi
  undercroft curve web.vscsi db.vscsi --plot curves.svg
  undercroft curve big.oracleGeneral.zst --method paired --rate 0.1% --sizes 1GiB,4GiB,16GiB
  undercroft curve web.vscsi --policy lru,arc,s3-fifo --method mini --rate 5%
  undercroft curve web.vscsi --of reads --window 60s --zipf
  undercroft curve web.vscsi --json | jq '.traces[0].curves[0].points'

Methods:
  exact    no sampling; some 100 ns a request and 50 bytes a block for LRU at all sizes
  shards   LRU; errs where few blocks have many of the requests
  paired   LRU; a tenth of the error of shards on such loads
  aet      LRU; a model: errs where phases differ
  mini     any policy

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
    /// How the curves are made [default: exact]
    #[arg(long, value_name = "METHOD", default_value = "exact")]
    pub method: CurveMethod,
    /// Replacement policies, separated by commas
    #[arg(long, value_name = "POLICY", default_value = "lru", value_delimiter = ',')]
    pub policy: Vec<PolicyKind>,
    /// Sizes of the cache, separated by commas: blocks (1000), bytes (512MiB), or parts of what the trace asks for (10%)
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
    #[arg(long, value_name = "WINDOW", value_parser = window)]
    pub window: Option<Window>,
    /// Fit Zipf's law to the requests by block
    #[arg(long)]
    pub zipf: bool,
    /// Draw the curves into this file, .svg or .png
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub plot: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub trace: TraceArgs,
    /// For programs: {complete, traces}
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// For programs: a line for each trace, policy and size
    #[arg(long)]
    pub csv: bool,
}

/// `undercroft partition`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Each trace is a tenant. Makes their LRU curves and divides the memory such that all of them together miss least; beside it,
what equal parts, parts in proportion to requests, and one LRU queue for all would miss. Memory that would save nobody a miss
is left over.

Examples:
  undercroft partition web.vscsi db.vscsi --memory 4GiB
  undercroft partition web=monday.vscsi db=tuesday.vscsi --memory 4GiB --floor web=512MiB --ceiling db=3GiB
  undercroft partition *.oracleGeneral.zst --memory 64GiB --by paired --rate 0.1%
  undercroft partition web.vscsi db.vscsi --memory 4GiB --json | jq '.tenants[] | {name, share_bytes}'

Ways to divide:
  dp         dynamic programming: the best there is, in steps of a 4096th of the memory
  greedy     along the curves' convex hulls: fast; may end in the middle of a cliff
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
    /// How the curves are made: exact, shards, paired or aet
    #[arg(long, value_name = "METHOD", default_value = "exact")]
    pub by: CurveMethod,
    /// What a tenant gets in any case; may be repeated
    #[arg(long, value_name = "NAME=SIZE", value_parser = bound)]
    pub floor: Vec<(String, Size)>,
    /// What a tenant gets at most; may be repeated
    #[arg(long, value_name = "NAME=SIZE", value_parser = bound)]
    pub ceiling: Vec<(String, Size)>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub trace: TraceArgs,
    /// Draw the tenants' curves into this file, .svg or .png
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub plot: Option<PathBuf>,
    /// For programs: {complete, tenants, misses, left_bytes}
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// For programs: a line for each tenant
    #[arg(long)]
    pub csv: bool,
}

fn bound(text: &str) -> Result<(String, Size), String> {
    let Some((name, size)) = text.rsplit_once('=').filter(|(name, _)| !name.is_empty()) else {
        return Err(format!("`{text}` is not NAME=SIZE; write it like web=512MiB"));
    };
    Ok((name.to_owned(), size.parse().map_err(|e: crate::units::UnitError| e.to_string())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_blocks_bytes_or_parts() {
        let read = |text: &str| text.parse::<CacheSize>();
        assert_eq!(read("1000"), Ok(CacheSize::Blocks(1000)));
        assert_eq!(read("512MiB"), Ok(CacheSize::Bytes(512 << 20)));
        assert_eq!(read("0.5%"), Ok(CacheSize::Part(0.005)));
        for bad in ["", "0", "0B", "101%", "5x", "512M"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert_eq!(CacheSize::Bytes(8192).blocks(4096, 0), 2);
        assert_eq!(CacheSize::Part(0.1).blocks(4096, 57), 6);
        assert_eq!(CacheSize::Part(0.001).blocks(4096, 10), 1, "a cache has a block");
    }

    #[test]
    fn windows_are_requests_or_times() {
        assert_eq!(window("1000"), Ok(Window::Requests(1000)));
        assert_eq!(window("2s"), Ok(Window::Time(2_000_000_000)));
        assert!(window("0").is_err() && window("0s").is_err() && window("5 days").is_err());
    }

    #[test]
    fn bounds_have_a_name_and_a_size() {
        assert_eq!(bound("a=b=1GiB"), Ok(("a=b".into(), Size(1 << 30))));
        for bad in ["1GiB", "=1GiB", "web=", "web=much"] {
            assert!(bound(bad).is_err(), "{bad}");
        }
    }
}
