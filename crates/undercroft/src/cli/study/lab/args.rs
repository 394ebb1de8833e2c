//! The arguments of `undercroft lab` and its commands.
//!
//! Owns words. Never acts. Every command teaches by examples.

use super::blocks::BlocksArgs;
use crate::cli::study::reading::ReadArgs;
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;
use undercroft_study::sim::Policies;
use undercroft_units::{Size, Time};

/// `undercroft lab`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Which lines of a processor's cache would be worth locking, and what a few lines beside it that take what it evicts (a
victim buffer) would bring: on what programs do with memory, by the rules of docs/processor-caches.md. And which blocks
of a disk, in the daemon's cache: on block traces.

Examples:
  undercroft lab trace gzip.memory.zst -- gzip -6 -c file
  undercroft lab caches gzip.memory.zst
  undercroft lab cores gzip.memory.zst sort.memory.zst
  undercroft lab blocks web.vscsi --size 1%,10%
")]
pub struct LabArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: LabCommand,
}

/// The commands of `undercroft lab`.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Run a program and write what it does with memory, by Valgrind's Lackey
    Trace(LabTraceArgs),
    /// Run traces through processor caches, with locked lines and a victim buffer and without
    Caches(Box<CachesArgs>),
    /// Run traces as jobs of several cores whose caches lock ways
    Cores(Box<CoresArgs>),
    /// Run a block trace through the daemon's cache, with locked blocks and a victim buffer and without
    Blocks(Box<BlocksArgs>),
    /// What misses mean for response times, over links and disks as they are sold
    Response(ResponseArgs),
}

/// `undercroft lab trace`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The program runs some hundred times slower than by itself. What it prints goes where it always does.

Examples:
  undercroft lab trace gzip.memory.zst -- gzip -6 -c file >/dev/null
  undercroft lab trace ls.memory --force -- ls -l /

Exit codes:
  0    done
  1    failed; the reason is on standard error, and no half-written file is left
  2    used wrongly
  130  interrupted; no half-written file is left
")]
pub struct LabTraceArgs {
    /// Where to write it: packed accesses, compressed if the name ends in .zst, .gz or .xz; - for standard output
    #[arg(value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// Replace a file that is there
    #[arg(long)]
    pub force: bool,
    /// End the program after so many accesses, instructions included
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,
}

/// Which accesses count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CountedArg {
    /// Loads, and what loads and stores
    Loads,
    /// Loads and stores
    Data,
    /// Loads, stores and instructions
    All,
}

/// What an access that loads and stores counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModifyArg {
    /// One access
    One,
    /// A load and then a store
    Two,
}

/// Where a victim buffer's lines come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoomArg {
    /// From the cache, whose sets give one each in turn
    Carved,
    /// From nowhere: the cache has as many as without
    Extra,
    /// One after the other
    Both,
}

/// How cores lock ways of their caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StrategyArg {
    /// Not at all
    None,
    /// Not at all, with the shared cache loaded by profile, as all others but random load it
    Loaded,
    /// Each core, blocks of its job at random
    Random,
    /// The first core for all, once, by what all jobs miss
    Static,
    /// Each core by what its job misses
    Dynamic,
    /// By job: none if it fits, at random if it is new, else as much as its own run says is best
    Hybrid,
}

impl StrategyArg {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            StrategyArg::None => "none",
            StrategyArg::Loaded => "loaded",
            StrategyArg::Random => "random",
            StrategyArg::Static => "static",
            StrategyArg::Dynamic => "dynamic",
            StrategyArg::Hybrid => "hybrid",
        }
    }
}

/// `undercroft lab cores`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Each core has a cache for instructions and one for data, of the same size, over a cache that all share. Traces are
jobs, which the cores take from a queue, one each at a time; a batch takes as long as its slowest core. A miss of a
core's cache costs 1, and 15 more if the shared one misses as well; the mean delay is that of an instruction.

Examples:
  The thesis's four cores, a quarter of the ways locked:
    undercroft lab cores fft.memory.zst gif.memory.zst jpeg.memory.zst

  How it depends on what is locked, and on the size:
    undercroft lab cores *.memory.zst --core-size 4KiB,16KiB,64KiB \\
        --lock 12.5,25,37.5,50 --repeat 4 --new jpeg.memory.zst

Exit codes:
  0    done (a broken pipe counts as done)
  1    failed; the reason is on standard error
  2    used wrongly
  130  interrupted; what was done is shown
")]
pub struct CoresArgs {
    /// Traces of memory accesses, instructions among them
    #[arg(required = true, value_hint = ValueHint::FilePath)]
    pub traces: Vec<PathBuf>,
    /// Cores
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub cores: u16,
    /// Size of a core's cache of instructions, and of that of data
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "4KiB,8KiB,16KiB,32KiB,64KiB")]
    pub core_size: Vec<Size>,
    /// Lines of a set of these
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub ways: u32,
    /// Bytes of a line of these
    #[arg(long, value_name = "SIZE", default_value = "128")]
    pub line: Size,
    /// Size of the shared cache
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    pub shared: Size,
    /// Lines of a set of it
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub shared_ways: u32,
    /// Bytes of a line of it
    #[arg(long, value_name = "SIZE", default_value = "128")]
    pub shared_line: Size,
    /// Strategies
    #[arg(
        long,
        value_name = "STRATEGY,...",
        value_enum,
        value_delimiter = ',',
        default_value = "none,loaded,random,static,dynamic,hybrid"
    )]
    pub strategy: Vec<StrategyArg>,
    /// Ways to lock, in percent of all
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', default_value = "25")]
    pub lock: Vec<f64>,
    /// How often each program is in the queue
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    pub repeat: u16,
    /// A program that was never profiled, by the name of its trace; more than once for several
    #[arg(long, value_name = "TRACE")]
    pub new: Vec<String>,
    /// What choices at random depend on
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// End each trace after so many accesses
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// For programs, on standard output
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// A line for each result, on standard output
    #[arg(long)]
    pub csv: bool,
    #[command(flatten, next_help_heading = "How traces are read")]
    #[allow(missing_docs)]
    pub read: ReadArgs,
}

/// `undercroft lab caches`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Each trace goes through each cache without locks, with the blocks locked that a first run found to miss most, with a
victim buffer, and with both; and, as controls, with blocks locked that are hit most, with blocks locked at random, and
with those that missed with another input (--other). What is locked is locked at its first fill, which is a miss.

Examples:
  The sizes of the thesis, 4 ways, lines of 64 bytes, loads alone:
    undercroft lab caches gzip.memory.zst

  What else there is, at one size:
    undercroft lab caches gzip.memory.zst --size 4KiB --lock 5,10,20 \\
        --online --optimum --policy lru,s3-fifo --probability --whole

  As in a laboratory, with what another input of the program says:
    undercroft lab caches sort-a.memory.zst --other sort-b.memory.zst --json

Exit codes:
  0    done (a broken pipe counts as done)
  1    failed; the reason is on standard error
  2    used wrongly
  130  interrupted; traces that were done are shown
")]
pub struct CachesArgs {
    /// Traces of memory accesses
    #[arg(required = true, value_hint = ValueHint::FilePath)]
    pub traces: Vec<PathBuf>,
    /// Sizes of the cache
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "2KiB,4KiB,8KiB,16KiB,32KiB,64KiB")]
    pub size: Vec<Size>,
    /// Lines of a set; 0: all of the cache are one set
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub ways: u32,
    /// Bytes of a line: a power of two
    #[arg(long, value_name = "SIZE", default_value = "64")]
    pub line: Size,
    /// Lines to lock, in percent of all, rounded up; 0: none
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', default_value = "5")]
    pub lock: Vec<f64>,
    /// Entries of the miss table: so many blocks can be locked at most
    #[arg(long, value_name = "N", default_value_t = undercroft_study::processor::LOCKED_MAX)]
    pub table: usize,
    /// Have what is locked in the cache before the first access
    #[arg(long)]
    pub preload: bool,
    /// Lines of the victim buffer; 0: none
    #[arg(long, value_name = "N", default_value_t = undercroft_study::processor::VICTIM_LINES)]
    pub victim: u32,
    /// Where its lines come from
    #[arg(long, value_name = "FROM", value_enum, default_value = "both")]
    pub room: RoomArg,
    /// Which accesses count
    #[arg(long, value_name = "WHICH", value_enum, default_value = "loads")]
    pub count: CountedArg,
    /// What an access that loads and stores counts as, where stores count
    #[arg(long, value_name = "HOW", value_enum, default_value = "one")]
    pub modify: ModifyArg,
    /// A trace of the same program with another input: lock what misses there, as a control
    #[arg(long, value_name = "TRACE", value_hint = ValueHint::FilePath)]
    pub other: Option<PathBuf>,
    /// Locks that follow the phase, without a first run
    #[arg(long)]
    pub online: bool,
    /// Lock all of the cache, too: nothing is cached but the lines that miss most
    #[arg(long)]
    pub whole: bool,
    /// Replacement by probability, to the letter of the thesis and with ageing; each with locks and victim buffer, too
    #[arg(long)]
    pub probability: bool,
    /// Other policies than LRU, in each set by itself
    #[arg(long, value_name = "POLICY,...")]
    pub policy: Vec<Policies>,
    /// The fewest misses that are possible (needs the trace in memory, as all of this does)
    #[arg(long)]
    pub optimum: bool,
    /// What the random control depends on
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// End after so many accesses that count
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// For programs, on standard output
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// A line for each result, on standard output
    #[arg(long)]
    pub csv: bool,
    #[command(flatten, next_help_heading = "How traces are read")]
    #[allow(missing_docs)]
    pub read: ReadArgs,
}

/// `undercroft lab response`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
A reference takes T = M C_M + (1 - M) C_H on average, and a miss C_M = 2 T_LINK + T_CC + (1 - h) (T_SEEK + T_ROT),
where h is what the cache of the disks' controller has. Links: fc (16 Gbit/s, 10us), iscsi (10 Gbit/s, 50us), sas
(12 Gbit/s, 5us), nvme-of (25 Gbit/s, 8us). Disks: 15k, 10k and 7200 turns a minute, flash.

Examples:
  undercroft lab response 12.02 10.5
  undercroft lab response 38.71 36.2 --link iscsi,nvme-of --disk flash \\
      --controller-hits 50

Exit codes:
  0  done (a broken pipe counts as done)
  1  failed; the reason is on standard error
  2  used wrongly
")]
pub struct ResponseArgs {
    /// Misses, in percent of the references: the first is what the others are compared with
    #[arg(required = true, value_name = "PERCENT")]
    pub misses: Vec<f64>,
    /// Links
    #[arg(long, value_name = "LINK,...", value_delimiter = ',', default_value = "fc,iscsi,sas,nvme-of")]
    pub link: Vec<String>,
    /// Disks
    #[arg(long, value_name = "DISK,...", value_delimiter = ',', default_value = "15k,7200,flash")]
    pub disk: Vec<String>,
    /// Bytes of a block
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    pub block: Size,
    /// What a hit takes
    #[arg(long, value_name = "TIME", default_value = "1us")]
    pub hit: Time,
    /// What it takes to search the controller's cache
    #[arg(long, value_name = "TIME", default_value = "20us")]
    pub controller: Time,
    /// What the controller's cache has of what is asked for, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    pub controller_hits: f64,
    /// For programs, on standard output
    #[arg(long)]
    pub json: bool,
}
