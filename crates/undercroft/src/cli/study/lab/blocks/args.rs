//! The arguments of `undercroft lab blocks`.
//!
//! Owns words; `undercroft_study::sim` reads sizes, policies and what is locked. Never acts. It teaches by examples.

use crate::cli::study::sim::args::SweepArgs;
use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;
use undercroft_study::sim::Policies;
use undercroft_study::sim::locks::LockingArm;
use undercroft_units::WrittenSize;

/// What the first run is made over, and what the caches are then tried on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FirstRunArg {
    /// The whole trace, which the caches are then tried on: more than can be known
    Whole,
    /// Its first half; caches are tried on the second, from empty ones
    FirstHalf,
}

/// `undercroft lab blocks`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Runs a block trace through a cache under each policy at each size, without locks and with blocks locked in several ways,
by the code that the daemon has. Locked blocks are read and written like any other and never evicted; the policy has
what is left of the cache.

What is locked (--lock, with commas between):
  none            nothing; always there, as what others are compared with
  static:10%      a tenth of the cache: the blocks that a first run missed most
  online:30%      at most so much, by the daemon's rule, without a first run
  hits:10%        a control: the blocks that a first run hit most
  random:10%      a control: as many blocks by chance
  buffer:12       nothing, but the last 12 evicted blocks stay a little longer,
                  in room that the cache gives (a victim buffer)
  online:30%+12   both; `both` for short

All have the same memory: what the rule has to remember, or the list of what is locked, comes out of the cache, as in
the daemon (limit_blocks of --json is what is left).

LOCKED are the blocks that are locked at the end, MISSES reads that were not cached, MISS % those of all reads, CHANGE
the points that they differ by from the same cache without locks, ON LOCKED the reads that hit a locked block, in
percent of all, IN BUFFER the reads and writes that hit one in the victim buffer, in percent of all, and TIME the
processor time, as a ratio to that of the cache without locks in the same run: to be compared, it needs --jobs 1, so
that caches do not take each other's room in the processor.

Examples:
  What locks would do for the default policy, and for LRU:
    undercroft lab blocks web.vscsi --policy lru,s3-fifo --size 64MiB,1%

  How much to lock, with controls, as a laboratory wants it:
    undercroft lab blocks oltp.lis.zst --policy disk --size 1%,5%,20% \\
        --lock static:5%,static:10%,static:30%,online:30%,random:10%,hits:10% \\
        --json

  A profile that does not know what comes: of the first half, or of yesterday:
    undercroft lab blocks oltp.lis.zst --first-run first-half
    undercroft lab blocks today.vscsi --other yesterday.vscsi --lock static:20%

Exit codes:
  0    done (a broken pipe counts as done)
  1    failed; results up to a damaged place are shown, and the reason is on
       standard error
  2    used wrongly
  130  interrupted; the results of what had been read are shown
")]
pub struct BlocksArgs {
    /// The trace
    #[arg(value_name = "TRACE", value_hint = ValueHint::FilePath)]
    pub trace: PathBuf,
    /// Policies that a disk may have, with commas between; `disk` for all of them
    #[arg(long, visible_alias = "policies", short, value_name = "LIST", default_value = "lru,s3-fifo")]
    pub policy: Vec<Policies>,
    /// Sizes, with commas between: 1GiB, 10% of the footprint, 1000blocks
    #[arg(long, visible_alias = "sizes", short, value_name = "LIST", value_delimiter = ',', default_value = "10%")]
    pub size: Vec<WrittenSize>,
    /// What is locked, with commas between; see below
    #[arg(
        long,
        short,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "static:10%,online:30%,buffer:12,both"
    )]
    pub lock: Vec<LockingArm>,
    /// What the first run is made over
    #[arg(long, value_name = "OF", value_enum, default_value = "whole")]
    pub first_run: FirstRunArg,
    /// Make it over this trace instead; something of --lock has to need one
    #[arg(long, value_name = "TRACE", value_hint = ValueHint::FilePath, conflicts_with = "first_run")]
    pub other: Option<PathBuf>,
    /// What the random control depends on, and which blocks the rule's guard looks at
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub sweep: SweepArgs,
}
