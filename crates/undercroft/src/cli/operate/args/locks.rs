//! The arguments of the commands about locked blocks: what is pinned, and what misses.
//!
//! Owns words. Never acts. Invariant: every command teaches by examples.

use super::ControlArgs;
use crate::cli::operate::pins::span::DiskSpan;
use clap::{ArgGroup, Args, ValueHint};
use std::path::PathBuf;
use undercroft_units::Time;

/// `undercroft pin`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("source").multiple(true).args(["range", "blocks", "ranges", "recording", "boot"]))]
#[command(override_usage = "undercroft pin [OPTIONS] DISK [RANGE]...")]
#[command(after_long_help = "\
Pinned blocks are locked from when they are read next: they are never evicted while they are pinned, as far as the
disk's lock_budget goes (a quarter of its cache, unless it is set otherwise). Without a range and without an option that
names blocks, it shows what is pinned.

What is pinned by hand holds until the disk is detached or the daemon ends, also over `undercroft upgrade`; a reload
puts the file in its place that the configuration names for the disk (pins = \"FILE\"), if it names one. To keep pins,
write such a file with --write.

Examples:
  undercroft pin web:root               # what is pinned
  undercroft pin web:root 0..64MiB      # from one byte to another
  undercroft pin web:root 1GiB+16MiB    # so many from a byte on
  undercroft pin web:root --clear       # nothing any more

  What is hot now, as much of it as may be locked:
    undercroft hot-set web:root \\
        | undercroft pin web:root --replace --blocks - --fit

  The files of a container, as the guest says where they are:
    ssh guest undercroft-ranges --container shop --disk web:root /srv/shop \\
        | undercroft pin web:root --ranges -

  What the guest reads when it starts: begin this, then start it. It ends when
  the guest has read nothing for so long; the list is for clones of the image,
  too, with pins = \"/var/lib/undercroft/boot.pins\" in their configuration:
    undercroft pin web:root --boot --quiet 20s \\
        --write /var/lib/undercroft/boot.pins

  What was read in the first minute of a recording, shown but not pinned:
    undercroft pin web:root --recording web.parquet --first 60s --dry-run

  A profile (lock = \"static\") of what missed most in a recording, as much of it
  as may be locked; nothing is pinned:
    undercroft pin web:root --recording web.parquet --most-missed 100000 \\
        --replace --fit --dry-run --json > /var/lib/undercroft/root.profile
    undercroft set web:root --lock static \\
        --lock-profile /var/lib/undercroft/root.profile

Exit codes:
  0    done
  1    failed; the reason is on standard error, and nothing was pinned
  2    used wrongly
  130  interrupted (--boot); nothing was pinned
")]
pub struct PinArgs {
    /// The disk
    #[arg(value_name = "DISK")]
    pub disk: String,
    /// Bytes of the disk, from its first one on: START..END or START+LENGTH
    #[arg(value_name = "RANGE")]
    pub range: Vec<DiskSpan>,
    /// Pin them in place of what is pinned, not beside it
    #[arg(long, requires = "source")]
    pub replace: bool,
    /// Unpin everything
    #[arg(long, conflicts_with_all = ["source", "replace", "write"])]
    pub clear: bool,
    /// Blocks that `undercroft hot-set` or --write wrote; `-` is standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub blocks: Option<PathBuf>,
    /// Ranges that `undercroft ranges` printed in the guest; `-` is standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ranges: Option<PathBuf>,
    /// Blocks that reads of a recording asked for (`undercroft record`)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub recording: Option<PathBuf>,
    /// Of the recording, its first so many seconds alone
    #[arg(long, value_name = "TIME", requires = "recording")]
    pub first: Option<Time>,
    /// Of the recording, so many blocks that were read most often, the first of them first
    #[arg(long, value_name = "BLOCKS", requires = "recording", value_parser = clap::value_parser!(u64).range(1..))]
    pub most_read: Option<u64>,
    /// Of the recording, so many blocks whose reads missed most often
    #[arg(long, value_name = "BLOCKS", requires = "recording", conflicts_with = "most_read")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub most_missed: Option<u64>,
    /// Blocks that the guest reads from now on, until it has read for a while and then pauses
    #[arg(long)]
    pub boot: bool,
    /// With --boot: how long nothing is read at its end
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub quiet: Time,
    /// With --boot: how long to wait for that at most
    #[arg(long = "for", value_name = "TIME", default_value = "5min")]
    pub most: Time,
    /// Leave out what is past the budget, what was named last first
    #[arg(long, requires = "source")]
    pub fit: bool,
    /// Write the whole list as well, for --blocks and for pins = "FILE"
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub write: Option<PathBuf>,
    /// Show what would be pinned, and pin and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// For programs: {disk, size_bytes, ranges, pinned_bytes, locked_bytes, budget_bytes, ...}
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub control: ControlArgs,
}

/// `undercroft misses`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Each disk counts, in a table of `miss_table` blocks (20), how often its blocks were read and not in RAM. Of a VM, a
container or the host it shows the tables of all disks in one. `undercroft pin` keeps such blocks in RAM, and
`undercroft set DISK --lock online` has the daemon do so by itself. Of a container that has a disk by ranges, what is
in the disk's table of these ranges is shown.

Columns:
  OFFSET    the byte of the disk where the block of 4KiB begins
  MISSES    how often it was missed, at most
  AT LEAST  how often for certain: a block that comes into a full table takes
            over the count of the one that goes

Examples:
  undercroft misses web:root
  undercroft misses web                  # all disks of a VM
  undercroft set web:root --miss-table 100
  undercroft misses host --json | jq '.blocks[:3]'

  A list of these blocks of a disk, to be pinned, or to be locked as a profile:
    undercroft misses web:root --list | undercroft pin web:root --blocks -
    undercroft misses web:root --list > /var/lib/undercroft/root.profile
    undercroft set web:root --lock static \\
        --lock-profile /var/lib/undercroft/root.profile
")]
pub struct MissesArgs {
    /// A disk, a VM, a container (VM/CONTAINER), or `host` for all disks
    #[arg(value_name = "NAME")]
    pub node: String,
    /// Write a list of the blocks of one disk, for `pin --blocks` and `set --lock-profile`
    #[arg(long, conflicts_with = "json")]
    pub list: bool,
    /// For programs: {counted_misses, miss_table, blocks}
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub control: ControlArgs,
}
