//! The arguments of every command, with their help: the one source of `--help`, man pages and completions.
//!
//! Owns words. Never acts. Every command teaches by examples.

mod daemon;
mod memory;

pub use daemon::{AttachArgs, AttachForm, CheckArgs, DropCacheArgs, ReloadArgs, ServeArgs, StatusArgs, StopArgs};
pub use memory::{DuplicatesArgs, KsmArgs, KsmCommand, SetArgs, SharesArgs, WhyArgs};

use super::curve_args::{CurveArgs, PartitionArgs};
use super::disks::{AttachDiskArgs, DetachDiskArgs};
use super::record::OneOf;
use super::sim_args::{CompareArgs, SimArgs};
use super::trace_args::TraceArgs;
use clap::{Args, Parser, Subcommand, ValueHint};
use std::path::PathBuf;
use undercroft_units::{Size, Time};

const EXIT_CODES: &str = "\
Exit codes:
  0  done (a broken pipe counts as done)
  1  failed; the reason is on standard error
  2  used wrongly";

const MAIN_EXAMPLES: &str = "\
Examples:
  Serve an image, with nothing configured; prints what QEMU needs:
    undercroft serve --image disk.qcow2

  Serve what a file says, after a look at it:
    undercroft check /etc/undercroft/undercroft.toml
    undercroft serve /etc/undercroft/undercroft.toml

  See how it goes:
    undercroft status --watch

Environment:
  UNDERCROFT_CONTROL  the control socket, as --control
  UNDERCROFT_LOG      log filter: undercroft_daemon::worker=debug,info

Terms: docs/glossary.md (installed: /usr/share/doc/undercroft/glossary.md)
";

/// Serves VM disks from a cache of its own.
///
/// Undercroft serves the disks of virtual machines over vhost-user-blk and NBD from a RAM cache that it alone manages:
/// the host page cache is not involved. Writes go to the image before they are acknowledged.
#[derive(Debug, Parser)]
#[command(
    name = "undercroft",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true
)]
#[command(after_long_help = const_format(&[MAIN_EXAMPLES, "\n", EXIT_CODES]))]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

fn const_format(parts: &[&str]) -> String {
    parts.concat()
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve disks, from a configuration file or straight from images
    Serve(Box<ServeArgs>),
    /// Look for everything that is wrong with a configuration file
    Check(CheckArgs),
    /// Show what the running daemon does
    Status(StatusArgs),
    /// Print what QEMU and libvirt need to attach a disk
    AttachArgs(AttachArgs),
    /// Serve one disk more, while the others go on
    Attach(Box<AttachDiskArgs>),
    /// Stop serving a disk, while the others go on
    Detach(DetachDiskArgs),
    /// Change a disk, a VM, a container or the whole store while it serves
    Set(SetArgs),
    /// Show how the store is divided among VMs, containers and disks
    Shares(SharesArgs),
    /// Say why a share changed
    Why(WhyArgs),
    /// Inside a guest: print where a container's files are on the virtual disk
    Ranges(RangesArgs),
    /// Record what guests ask for into a Parquet file, for simulations and analysis
    Record(RecordArgs),
    /// Compute miss ratios by the size of the cache, from traces
    Curve(Box<CurveArgs>),
    /// Divide memory among traces such that they miss least together
    Partition(Box<PartitionArgs>),
    /// Simulate caches on a trace
    Sim(SimArgs),
    /// Compare policies and sizes on traces, as a table and a plot
    Compare(CompareArgs),
    /// Describe, convert, cut, join or make traces of block accesses
    Trace(Box<TraceArgs>),
    /// Show what the kernel merges of guests' RAM (KSM), or switch it
    Ksm(KsmArgs),
    /// Drop what is cached of a disk, for measurements
    DropCache(DropCacheArgs),
    /// Have the daemon read its configuration file again
    Reload(ReloadArgs),
    /// Stop the daemon in an orderly way
    Stop(StopArgs),
    /// Show how much of this host's memory is held twice, by guest and by image
    Duplicates(DuplicatesArgs),
    /// Print completions for a shell
    #[command(after_long_help = "\
Examples:
  undercroft completions bash > /usr/share/bash-completion/completions/undercroft
  undercroft completions zsh > /usr/share/zsh/vendor-completions/_undercroft
  undercroft completions fish > /usr/share/fish/vendor_completions.d/undercroft.fish
")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual, or write its pages
    #[command(after_long_help = "\
Examples:
  undercroft man | man -l -
  undercroft man --dir /usr/share/man
")]
    Man {
        /// Write all pages into man1 and man5 below this directory
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        dir: Option<PathBuf>,
    },
    /// Print the version
    Version {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the description of the API, as committed in docs/openapi.json
    #[command(hide = true)]
    Openapi,
    /// Print the reference of the configuration, as committed in docs/configuration.md
    #[command(hide = true)]
    Reference,
}

/// How to reach the daemon.
#[derive(Clone, Debug, Args)]
pub struct ControlArgs {
    /// Control socket of the daemon, or of one VM [default: /run/undercroft/control.sock for root, else
    /// $XDG_RUNTIME_DIR/undercroft/control.sock]
    #[arg(long, value_name = "SOCKET", env = "UNDERCROFT_CONTROL", hide_env_values = true, value_hint = ValueHint::FilePath)]
    pub control: Option<PathBuf>,
}

/// `undercroft ranges`.
#[derive(Debug, Args)]
#[command(
    override_usage = "undercroft ranges --container NAME --disk VM:DISK [OPTIONS] PATH...\n       undercroft ranges --table PATH..."
)]
#[command(after_long_help = "\
Run it inside the guest; undercroft-ranges is the same as a small static program. It looks at every regular file at and below
each PATH: on the same file system only, without following symbolic links, a file with several names once. What files have not
written yet is written back first.

Examples:
  What a container has of the disk:
    undercroft ranges --table /var/lib/containers/shop

  Tell the daemon, from the host:
    ssh guest undercroft ranges --container shop --disk web:root /srv/shop \\
        | undercroft set --ranges -

Exit codes:
  0  done (a broken pipe counts as done)
  1  failed, or some files could not be looked at: the reasons are on standard error
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
in RAM. No data. The file is Parquet; docs/trace-format.md describes it. The daemon writes it, in processor time that
nobody else wants: guests never wait for it. Requests that find no such time wait in memory, and then in a file without a
name beside the one they go to, which --max-size counts; when the recording ends, they are converted, which may take a while.

Ends at Ctrl-C, after --duration, before the file passes --max-size, when its disk is full, when the daemon stops (which
then converts for 10 s at most, and counts the rest as dropped), and 10 s after this command is gone. The file is whole in every case; only a daemon that is killed leaves one without an end.

Examples:
  undercroft record web.parquet --vm web --duration 10m
  undercroft record root.parquet --disk web:root --disk db:root
  undercroft record all.parquet --max-size 256MiB --sample 1/8
  undercroft record all.parquet --duration 60s --json | jq .requests

  How often each disk hit, with any tool that reads Parquet:
    duckdb -c \"select disk, sum(hit_blocks) / sum(hit_blocks + miss_blocks) from 'all.parquet' \\
        group by disk\"

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
