//! The arguments of `undercroft trace` and its commands.
//!
//! Owns words. Never acts. Every command teaches by examples.

use crate::cli::study::reading::{ReadArgs, formats};
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use std::path::PathBuf;
use undercroft_trace::Format;
use undercroft_trace::write::WRITTEN;
use undercroft_units::{Percent, Size};

/// `undercroft trace`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
A trace says who asked a disk or a cache for what, and when. Any may be compressed (zstd, gzip, xz), and may come from a
pipe, as -. What a trace's format is, its beginning or its name tells, else --format.

Examples:
  undercroft trace info disk.vscsi
  undercroft trace head -n 5 src1_0.csv.gz
  undercroft trace convert src1_0.csv.gz src1_0.lcs.zst --block-size 4KiB
  undercroft trace split --by tenant volumes.csv.gz --output volume --to csv
  undercroft trace merge a.parquet b.parquet --output both.parquet
  undercroft trace sample big.lis.zst small.oracleGeneral.zst --rate 1%
  undercroft trace synth zipf zipf.oracleGeneral --keys 1000000 \\
      --requests 20000000 --seed 42
  curl -s https://example.org/a.csv.gz | undercroft trace info - --format msr

A trace that is read strictly ends at the first record that makes no sense, with an error that names it; with --lenient,
such records are left out and counted. Times that go back are counted, and are no error: real traces have them.

Exit codes:
  0    done (a broken pipe counts as done)
  1    failed; the reason is on standard error, and no half-written file is left
  2    used wrongly
  130  interrupted; no half-written file is left
")]
pub struct TraceArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: TraceCommand,
}

/// The commands of `undercroft trace`.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Show what a trace is like: requests, bytes, times, tenants, distinct blocks
    Info(InfoArgs),
    /// Write a trace in another format
    Convert(ConvertArgs),
    /// Write the first requests of a trace
    Head(HeadArgs),
    /// Write the parts of a trace to files of their own: by tenant, time or count
    Split(SplitArgs),
    /// Write several traces as one, in the order of their times
    Merge(MergeArgs),
    /// Write what of a trace goes to a sample of its blocks
    Sample(SampleArgs),
    /// Make a trace: Zipf, uniform, scan, loop, phases, or a mixture
    Synth(SynthArgs),
}

/// How a trace is read.
#[derive(Clone, Debug, Args)]
pub struct InputArgs {
    /// Split requests into blocks of this size [default: 4KiB, what a recording says, and not at all for vscsi]
    #[arg(long, value_name = "SIZE")]
    pub block_size: Option<Size>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub read: ReadArgs,
}

/// How a trace is written.
#[derive(Clone, Debug, Args)]
pub struct OutputArgs {
    /// Format to write [default: what the output's name tells; CSV for standard output]
    #[arg(short, long, value_name = "FORMAT", value_parser = formats(&WRITTEN))]
    pub to: Option<Format>,
    /// Compression [default: what the output's name tells]
    #[arg(long, value_name = "NAME", value_enum)]
    pub compress: Option<CompressArg>,
    /// Replace a file that is there already
    #[arg(long)]
    pub force: bool,
}

/// Compressions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompressArg {
    /// As it is
    None,
    /// zstd, level 3
    Zstd,
    /// gzip, level 6
    Gzip,
    /// xz, level 6
    Xz,
}

/// `undercroft trace info`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  undercroft trace info arc-P6.lis.zst
  undercroft trace info --block-size 4KiB disk.vscsi
  undercroft trace info --json *.csv.gz \\
      | jq '.[] | {trace, requests, footprint_blocks}'
  zcat web.csv.gz | undercroft trace info --format spc -

The footprint is exact up to 16,777,216 distinct blocks, and an estimate (within 2 % or so) beyond.
")]
pub struct InfoArgs {
    /// Traces; - is standard input
    #[arg(value_name = "TRACE", required = true, value_hint = ValueHint::FilePath)]
    pub traces: Vec<PathBuf>,
    /// For programs: an array with an object for each trace
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: InputArgs,
}

/// `undercroft trace convert`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
What is kept: times (oracle-general and lcs: seconds), sizes, reads and writes and tenants in csv and
undercroft-parquet, the same in lcs with tenants by number; elsewhere the tenant stands above bit 51 of the block's
number. oracle-general, lcs, u32le and u64le have one record for each block of a request; the others keep requests
whole.

Examples:
  undercroft trace convert prxy_0.csv.gz prxy_0.parquet
  undercroft trace convert disk.vscsi disk.lcs.zst --block-size 4KiB
  undercroft trace convert --format u32le w106.bin w106.oracleGeneral
  undercroft trace convert my.csv my.parquet \\
      --columns time=1,offset=3,size=4,op=2 --time-unit 1ms --offset-unit 512
  undercroft trace convert disk.lis - --to csv | head
")]
pub struct ConvertArgs {
    /// Trace to read; - is standard input
    #[arg(value_name = "TRACE", value_hint = ValueHint::FilePath)]
    pub trace: PathBuf,
    /// File to write; - is standard output
    #[arg(value_name = "OUTPUT", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: InputArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub written: OutputArgs,
}

/// `undercroft trace head`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  undercroft trace head disk.vscsi
  undercroft trace head -n 1000000 big.oracleGeneral.zst first.oracleGeneral.zst
")]
pub struct HeadArgs {
    /// Trace to read; - is standard input
    #[arg(value_name = "TRACE", value_hint = ValueHint::FilePath)]
    pub trace: PathBuf,
    /// File to write [default: standard output, as CSV]
    #[arg(value_name = "OUTPUT", default_value = "-", hide_default_value = true, value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// How many requests
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub requests: u64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: InputArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub written: OutputArgs,
}

/// `undercroft trace split`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Writes OUTPUT-PART.FORMAT for each part: PART is the tenant's name, or a number from 0.

Examples:
  undercroft trace split --by tenant tencent.csv.gz --output volume \\
      --to oracle-general --compress zstd
  undercroft trace split --by time --every 60min week.parquet --output hour
  undercroft trace split --by count --every 1000000 tencent.csv.gz \\
      --output part --tenant 17
")]
pub struct SplitArgs {
    /// Trace to read; - is standard input
    #[arg(value_name = "TRACE", value_hint = ValueHint::FilePath)]
    pub trace: PathBuf,
    /// What makes a part
    #[arg(long, value_name = "WHAT", value_enum)]
    pub by: SplitBy,
    /// Length of a part: a time (60min) with --by time, a number of requests with --by count
    #[arg(long, value_name = "LENGTH", required_if_eq_any([("by", "time"), ("by", "count")]))]
    pub every: Option<String>,
    /// Beginning of the names of the files
    #[arg(short, long, value_name = "PREFIX", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// Only this tenant's requests; may be repeated
    #[arg(long, value_name = "NAME")]
    pub tenant: Vec<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: InputArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub written: OutputArgs,
}

/// What makes a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SplitBy {
    /// Whose requests they are
    Tenant,
    /// When they came
    Time,
    /// How many there have been
    Count,
}

/// `undercroft trace merge`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Tenants stay apart: each is named after its trace (trace:tenant), and its number is part of the blocks' numbers.

Examples:
  undercroft trace merge web.parquet db.parquet --output both.parquet
  undercroft trace merge sda.blktrace.0 sda.blktrace.1 --output sda.csv
  undercroft trace merge a.lis b.lis --order turn --output ab.oracleGeneral
")]
pub struct MergeArgs {
    /// Traces to read
    #[arg(value_name = "TRACE", required = true, num_args = 1.., value_hint = ValueHint::FilePath)]
    pub traces: Vec<PathBuf>,
    /// File to write; - is standard output
    #[arg(short, long, value_name = "OUTPUT", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// Whose request is next
    #[arg(long, value_name = "WHICH", value_enum, default_value = "time")]
    pub order: OrderArg,
    /// Count the times of each trace from its first request
    #[arg(long)]
    pub align: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: InputArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub written: OutputArgs,
}

/// Orders of merging.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OrderArg {
    /// The earliest
    Time,
    /// One of each trace in turn
    Turn,
}

/// `undercroft trace sample`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
A block is in the sample, with all its accesses, if the hash of its number is small enough (as in SHARDS): caches of
RATE of the size, run on the sample, miss about as often as whole caches on the whole trace.

Examples:
  undercroft trace sample big.lis.zst small.oracleGeneral.zst --rate 1%
  undercroft trace sample week.parquet tenth.parquet --rate 10% --seed 7
")]
pub struct SampleArgs {
    /// Trace to read; - is standard input
    #[arg(value_name = "TRACE", value_hint = ValueHint::FilePath)]
    pub trace: PathBuf,
    /// File to write; - is standard output
    #[arg(value_name = "OUTPUT", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// How much of the blocks
    #[arg(long, value_name = "PERCENT")]
    pub rate: Percent,
    /// Another seed, another sample
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: InputArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub written: OutputArgs,
}

/// `undercroft trace synth`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The same arguments make the same trace, on every machine. Keys count from 1.

Patterns:
  zipf     independent requests, key r in proportion to 1 / r^alpha
  uniform  independent requests, all keys alike
  scan     key after key, none twice
  loop     key after key, from the first again after the last
  phased   as zipf; every --phase requests, half of the keys are new ones
  mixed    of --mix zipf, loop and scan, each with keys of its own

Examples:
  undercroft trace synth zipf zipf.oracleGeneral --keys 1000000 \\
      --requests 20000000 --seed 42
  undercroft trace synth loop loop.u64le.zst --keys 10000 --requests 1000000
  undercroft trace synth phased phased.lcs --keys 50000 --requests 5000000 \\
      --phase 500000 --writes 30%
  undercroft trace synth mixed - --mix zipf=80,loop=0,scan=20 -n 1000 | head
")]
pub struct SynthArgs {
    /// What is asked for
    #[arg(value_name = "PATTERN", value_enum)]
    pub pattern: PatternArg,
    /// File to write; - is standard output
    #[arg(value_name = "OUTPUT", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// How many requests
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1_000_000)]
    pub requests: u64,
    /// How many keys
    #[arg(short, long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub keys: u32,
    /// Exponent of Zipf's law
    #[arg(short, long, value_name = "A", default_value_t = 1.0)]
    pub alpha: f64,
    /// Another seed, another trace
    #[arg(short, long, value_name = "N", default_value_t = 42)]
    pub seed: u64,
    /// Requests a second
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub rate: u64,
    /// How many of the requests write [default: none]
    #[arg(long, value_name = "PERCENT")]
    pub writes: Option<Percent>,
    /// Requests of a phase
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub phase: u64,
    /// Shares of a mixture
    #[arg(long, value_name = "SHARES", default_value = "zipf=70,loop=20,scan=10")]
    pub mix: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub written: OutputArgs,
}

/// Patterns of synthetic loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PatternArg {
    /// Popularity by Zipf's law
    Zipf,
    /// All keys alike
    Uniform,
    /// None twice
    Scan,
    /// All again and again
    Loop,
    /// Popularity that changes
    Phased,
    /// Zipf, loop and scan together
    Mixed,
}
