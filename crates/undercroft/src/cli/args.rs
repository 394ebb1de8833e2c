//! The arguments of every command, with their help: the one source of `--help`, man pages and completions.
//!
//! Owns words. Never acts. Every command teaches by examples.

use super::operate::args::{
    AttachArgs, CheckArgs, DropCacheArgs, DuplicatesArgs, KsmArgs, MissesArgs, PinArgs, RangesArgs, RecordArgs,
    ReloadArgs, ServeArgs, SetArgs, SharesArgs, SsdArgs, StatusArgs, StopArgs, UpgradeArgs, WhyArgs,
};
use super::operate::disks::{AttachDiskArgs, DetachDiskArgs};
use super::operate::hot_sets::{HotSetArgs, WarmArgs};
use super::operate::mount::{MountArgs, UmountArgs};
use super::operate::volume_plugin::VolumePluginArgs;
use super::study::curve::args::{CurveArgs, PartitionArgs};
use super::study::lab::args::LabArgs;
use super::study::sim::args::{CompareArgs, SimArgs};
use super::study::trace::args::TraceArgs;
use clap::{Parser, Subcommand, ValueHint};
use std::path::PathBuf;

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
  NO_COLOR            no colours, unless --color always

Terms: docs/glossary.md (installed: /usr/share/doc/undercroft/glossary.md)
";

/// Serves disks of virtual machines and containers from caches of its own.
///
/// Undercroft serves disks to virtual machines (vhost-user-blk, NBD) and to the host itself (files, mounted file
/// systems, volumes of containers) from a RAM store and an SSD store that it alone manages: the host page cache is not
/// involved. Writes go to the image before they are acknowledged.
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
    /// Colours: `auto` has them where a terminal is and NO_COLOR is not set
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: clap::ColorChoice,
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
    /// Print what QEMU and libvirt need to attach a disk, or all disks of a VM
    AttachArgs(AttachArgs),
    /// Serve one disk more, while the others go on
    Attach(Box<AttachDiskArgs>),
    /// Stop serving a disk, while the others go on
    Detach(DetachDiskArgs),
    /// Mount a disk on this host: loop device, file system and mount in one step
    Mount(MountArgs),
    /// Undo `mount`, also when the daemon is gone
    Umount(UmountArgs),
    /// Serve volumes to Podman and Docker, each a disk of the daemon
    VolumePlugin(VolumePluginArgs),
    /// Change a disk, a VM, a container or the whole store while it serves
    Set(SetArgs),
    /// Show how the store is divided among VMs, containers and disks
    Shares(SharesArgs),
    /// Say why a share changed, or where a block is and why
    Why(WhyArgs),
    /// Pin blocks of a disk, which are never evicted then, or show what is pinned
    Pin(Box<PinArgs>),
    /// Show the blocks that miss most
    Misses(MissesArgs),
    /// Inside a guest: print where a container's files are on the virtual disk
    Ranges(RangesArgs),
    /// Record what guests ask for into a Parquet file, for simulations and analysis
    Record(RecordArgs),
    /// Compute miss ratios by the size of the cache, from traces
    Curve(Box<CurveArgs>),
    /// Divide memory among traces such that they miss least together
    Partition(Box<PartitionArgs>),
    /// Simulate caches on a trace
    Sim(Box<SimArgs>),
    /// Compare policies and sizes on traces, as a table and a plot
    Compare(CompareArgs),
    /// Describe, convert, cut, join or make traces of block accesses
    Trace(Box<TraceArgs>),
    /// Trace what programs do with memory, and simulate processor caches with locked lines and victim buffers
    Lab(LabArgs),
    /// Show what the kernel merges of guests' RAM (KSM), or switch it
    Ksm(KsmArgs),
    /// Show the SSD store, switch it, or drop what it holds
    Ssd(SsdArgs),
    /// Drop what is cached of a disk, for measurements
    DropCache(DropCacheArgs),
    /// Write which blocks of a disk are hot, for a daemon that its guest migrates to
    HotSet(HotSetArgs),
    /// Fetch the blocks that were hot where a disk's guest came from
    Warm(WarmArgs),
    /// Have the daemon read its configuration file again
    Reload(ReloadArgs),
    /// Have a new process of the program serve, while guests stay connected
    Upgrade(UpgradeArgs),
    /// Stop the daemon in an orderly way
    Stop(StopArgs),
    /// Show how much of this host's memory is held twice, by guest and by image
    Duplicates(DuplicatesArgs),
    /// Print completions for a shell
    #[command(after_long_help = "\
Examples:
  undercroft completions bash \\
      > /usr/share/bash-completion/completions/undercroft
  undercroft completions zsh \\
      > /usr/share/zsh/vendor-completions/_undercroft
  undercroft completions fish \\
      > /usr/share/fish/vendor_completions.d/undercroft.fish
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
