//! The arguments of the commands about what guests do: the ranges of their containers, and recordings.
//!
//! Owns words. Never acts. Invariant: every command teaches by examples.

use super::ControlArgs;
use crate::cli::operate::record::OneOf;
use clap::{Args, ValueHint};
use std::path::PathBuf;
use undercroft_units::{Size, Time};

/// `undercroft ranges`.
#[derive(Debug, Args)]
#[command(override_usage = "undercroft ranges --container NAME --disk VM:DISK [OPTIONS] PATH...\n       \
        undercroft ranges --table PATH...")]
#[command(after_long_help = "\
Run it inside the guest; undercroft-ranges is the same as a small static program. It looks at every regular file at and
below each PATH: on the same file system only, without following symbolic links, a file with several names once. What
files have not written yet is written back first.

Examples:
  What a container has of the disk:
    undercroft ranges --table /var/lib/containers/shop

  Tell the daemon, from the host:
    ssh guest undercroft ranges --container shop --disk web:root /srv/shop \\
        | undercroft set --ranges -

Exit codes:
  0  done (a broken pipe counts as done)
  1  failed, or some files could not be looked at: the reasons are on standard
     error
  2  used wrongly
")]
pub struct RangesArgs {
    /// Directories and files of the container; for an overlay its upperdir and lowerdir
    #[arg(value_name = "PATH", required = true, value_hint = ValueHint::AnyPath)]
    pub path: Vec<PathBuf>,
    /// The container on the host, without its VM
    #[arg(long, value_name = "NAME", required_unless_present = "table")]
    pub container: Option<String>,
    /// The disk on the host, as `undercroft status` shows it there
    #[arg(long, value_name = "VM:DISK", required_unless_present = "table")]
    pub disk: Option<String>,
    /// One line of JSON (what it does without an option)
    #[arg(long, conflicts_with = "table")]
    pub json: bool,
    /// A line for each extent, for people; needs neither --container nor --disk
    #[arg(long)]
    pub table: bool,
    /// Look again after each INTERVAL, and print a new line when the list has changed
    #[arg(long, value_name = "INTERVAL", value_parser = undercroft_ranges::arguments::interval)]
    pub watch: Option<std::time::Duration>,
}

/// `undercroft record`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Writes a row for each request to a disk: time, VM, container, disk, what was asked for, and how many of its blocks were
in RAM. No data. The file is Parquet; docs/trace-format.md describes it. This command opens it, so it may be wherever
you may write, and is yours, whoever the daemon runs as. The daemon writes it, in processor time that nobody else wants:
guests never wait for it. Requests that find no such time wait in memory, and then in a file without a name beside the
one they go to, which --max-size counts; when the recording ends, they are converted, which may take a while.

Ends at Ctrl-C, after --duration, before the file passes --max-size, when its disk is full, when the daemon stops (which
then converts for 10 s at most, and counts the rest as dropped), and 10 s after this command is gone. The file is whole
in every case; only a daemon that is killed leaves one without an end.

Examples:
  undercroft record web.parquet --vm web --duration 10min
  undercroft record root.parquet --disk web:root --disk db:root
  undercroft record all.parquet --max-size 256MiB --sample 1/8
  undercroft record all.parquet --duration 60s --json | jq .requests

  How often each disk hit, with any tool that reads Parquet:
    duckdb -c \"select disk, sum(hit_blocks) / sum(hit_blocks + miss_blocks) \\
        from 'all.parquet' group by disk\"

Exit codes:
  0    recorded, also if Ctrl-C ended it
  1    failed; the reason is on standard error
  2    used wrongly
  130  interrupted twice; the daemon finishes the file by itself
")]
pub struct RecordArgs {
    /// The file to write: one that there is not yet
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Record this disk; may be repeated. Without --disk and --vm: all disks
    #[arg(long, value_name = "DISK")]
    pub disk: Vec<String>,
    /// Record the disks of this VM; may be repeated
    #[arg(long, value_name = "VM")]
    pub vm: Vec<String>,
    /// End after this time [default: at Ctrl-C]
    #[arg(long, value_name = "TIME")]
    pub duration: Option<Time>,
    /// End before the file, with what waits beside it, is larger
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub max_size: Size,
    /// Record requests to one of so many blocks, chosen by a hash of their number
    #[arg(long, value_name = "1/N", default_value = "1/1")]
    pub sample: OneOf,
    /// Overwrite the file if there is one
    #[arg(long)]
    pub force: bool,
    /// For programs: the JSON of the API, at the end
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub control: ControlArgs,
}
