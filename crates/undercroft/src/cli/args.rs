//! The arguments of every command, with their help: the one source of `--help`, man pages and completions.
//!
//! Owns words. Never acts. Every command teaches by examples.

use super::curve_args::{CurveArgs, PartitionArgs};
use super::disks::{AttachDiskArgs, DetachDiskArgs};
use super::record::OneOf;
use super::sim_args::{CompareArgs, SimArgs};
use super::trace_args::TraceArgs;
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueHint};
use std::net::SocketAddr;
use std::path::PathBuf;
use undercroft_config::{LogFormat, LogLevel};
use undercroft_engine::PolicyKind;
use undercroft_units::{Percent, Size, Time};

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

/// `undercroft serve`.
#[derive(Debug, Args)]
#[command(override_usage = "undercroft serve [OPTIONS] CONFIG\n       undercroft serve [OPTIONS] --image IMAGE ...")]
#[command(after_long_help = "\
Examples:
  One image; its vhost-user socket is made beside it, as disk.qcow2.sock:
    undercroft serve --image disk.qcow2

  Two images, 2GiB of cache together, for NBD clients too:
    undercroft serve -i a.qcow2 -i b.raw --memory 2GiB --nbd
    nbdinfo --list 'nbd+unix:///?socket=a.qcow2.nbd.sock'

  An image that another program opens:
    qemu-nbd --socket /tmp/up.sock disk.vmdk &
    undercroft serve --image 'nbd+unix:///?socket=/tmp/up.sock'

  What a file says (see undercroft.toml(5)):
    undercroft serve /etc/undercroft/undercroft.toml

Signals:
  SIGTERM, SIGINT  finish requests under way and stop
  SIGHUP           read the configuration file again
")]
pub struct ServeArgs {
    /// Configuration file
    #[arg(value_name = "CONFIG", required_unless_present = "image", conflicts_with = "image", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,

    /// Image to serve: a file, a block device, or an NBD URI; may be repeated
    #[arg(short, long, value_name = "IMAGE", value_hint = ValueHint::FilePath)]
    pub image: Vec<String>,

    /// Memory of the cache, metadata included [default: a quarter of the machine's, at most 1GiB]
    #[arg(short, long, value_name = "SIZE", conflicts_with = "config")]
    pub memory: Option<Size>,

    /// Replacement policy
    #[arg(short, long, value_name = "POLICY", conflicts_with = "config", ignore_case = true,
          value_parser = PossibleValuesParser::new(PolicyKind::ALL.map(|k| k.name())))]
    pub policy: Option<String>,

    /// Path of the vhost-user socket, for a single image [default: IMAGE.sock]
    #[arg(long, value_name = "PATH", conflicts_with = "config", value_hint = ValueHint::FilePath)]
    pub socket: Option<PathBuf>,

    /// Refuse writes, and open the image without the right to write
    #[arg(short, long, conflicts_with = "config")]
    pub read_only: bool,

    /// Format of the images [default: found out from each]
    #[arg(short, long, value_name = "FORMAT", conflicts_with = "config", value_parser = ["raw", "qcow2", "nbd"])]
    pub format: Option<String>,

    /// Longest polling before a worker sleeps; 0 turns it off [default: 50us]
    #[arg(long, value_name = "TIME", conflicts_with = "config")]
    pub poll: Option<Time>,

    /// Longest read-ahead of sequential streams; 0 turns it off [default: 512KiB]
    #[arg(long, value_name = "SIZE", conflicts_with = "config")]
    pub readahead: Option<Size>,

    /// Queues of the vhost-user devices, at most what QEMU may use [default: 4]
    #[arg(long, value_name = "N", conflicts_with = "config")]
    pub queues: Option<u64>,

    /// Export the images over NBD too: on a unix socket (a path), a TCP address, or without a value on IMAGE.nbd.sock
    #[arg(long, value_name = "ADDRESS", conflicts_with = "config", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub nbd: Option<String>,

    /// Leave the vhost-user sockets out: NBD only
    #[arg(long, requires = "nbd")]
    pub no_vhost_user: bool,

    /// Group that may use the sockets of the disks; without it, only this user may
    #[arg(long, value_name = "GROUP", conflicts_with = "config")]
    pub group: Option<String>,

    /// Worker threads [default: one per processor]
    #[arg(long, value_name = "N", conflicts_with = "config")]
    pub workers: Option<u64>,

    /// Serve /metrics over TCP too, for Prometheus
    #[arg(long, value_name = "ADDRESS", conflicts_with = "config")]
    pub metrics: Option<SocketAddr>,

    /// Least important lines to log [default: info]
    #[arg(long, value_name = "LEVEL", value_enum)]
    pub log_level: Option<LogLevel>,

    /// How log lines look [default: text]
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub log_format: Option<LogFormat>,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub control: ControlArgs,
}

/// `undercroft check`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Every problem is named, not only the first, with its line and what to do. The tables of qcow2 images that nothing uses
are read and verified, as before the first write of a disk; nothing is changed.

Examples:
  undercroft check /etc/undercroft/undercroft.toml
  undercroft check --json undercroft.toml | jq '.problems[].error'

Exit codes:
  0  good, perhaps with warnings
  1  it cannot be served
  2  used wrongly
")]
pub struct CheckArgs {
    /// Configuration file
    #[arg(value_name = "CONFIG", value_hint = ValueHint::FilePath)]
    pub config: PathBuf,
    /// For programs: {ok, problems, disks}
    #[arg(long)]
    pub json: bool,
}

/// `undercroft status`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  undercroft status                 a line for each disk
  undercroft status web:root        everything about one disk
  undercroft status --watch         again every two seconds, with rates
  undercroft status --json | jq '.disks[] | {name, hits: .cache.hit_ratio}'

Columns:
  CACHED   data cached of data that may be cached
  HITS     blocks of reads found in RAM, since the disk was attached
  P50,P99  half, and 99 %, of the reads (from RAM, from the image) and writes took no longer
")]
pub struct StatusArgs {
    /// Disk to show alone
    #[arg(value_name = "DISK")]
    pub disk: Option<String>,
    /// For programs: the JSON of the API
    #[arg(long)]
    pub json: bool,
    /// Show it again and again, every 2s or as given; with --json one object a line
    #[arg(short, long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "2s")]
    pub watch: Option<Time>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub control: ControlArgs,
}

/// `undercroft attach-args`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Prints QEMU arguments and libvirt XML, for vhost-user and, where the disk is exported, for NBD. vhost-user needs the
guest's memory to be shared: the memory backend printed with it.

Examples:
  Of a disk that the running daemon serves:
    undercroft attach-args web:root

  Of all disks of a VM, with one memory backend:
    undercroft attach-args web

  Of a disk in a file, whether it is served or not:
    undercroft attach-args web:root --config /etc/undercroft/undercroft.toml

  Straight into a command line:
    qemu-system-x86_64 -M q35 -m 4G $(undercroft attach-args web:root --as qemu --memory 4GiB)
")]
pub struct AttachArgs {
    /// The disk: VM:DISK, or the bare name if it is the only one; or a VM, for all its disks
    #[arg(value_name = "DISK|VM")]
    pub disk: String,
    /// Take it from this configuration file instead of the running daemon
    #[arg(long, value_name = "CONFIG", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Print one form alone
    #[arg(long = "as", value_name = "FORM", value_enum)]
    pub form: Option<AttachForm>,
    /// Memory of the guest, for the shared memory backend
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    pub memory: Size,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub control: ControlArgs,
}

/// Forms of `attach-args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum AttachForm {
    /// QEMU arguments for vhost-user, on one line
    Qemu,
    /// QEMU arguments for NBD, on one line
    QemuNbd,
    /// libvirt XML for vhost-user
    Libvirt,
    /// libvirt XML for NBD
    LibvirtNbd,
    /// All of them as JSON
    Json,
}

/// `undercroft set`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("change").required(true).multiple(true)
    .args(["size", "policy", "poll", "memory", "weight", "floor", "ceiling", "controller", "goal", "hint", "store", "ranges"]))]
#[command(
    override_usage = "undercroft set [OPTIONS] NAME\n       undercroft set [OPTIONS] --memory SIZE\n       undercroft set [OPTIONS] --ranges FILE"
)]
#[command(after_long_help = "\
Takes effect at once and holds until the daemon ends or reloads its file; guests notice nothing but the hit ratio.
What is cached and fits stays, both ways.

A disk has a share that a controller gives it, within its floor and its ceiling; --size fixes it instead, and a new
weight, floor or ceiling ends that. A VM is named VM, a container of it VM/CONTAINER.

Examples:
  undercroft set web:root --policy arc --poll 0
  undercroft set web:root --size 1GiB

  Twice what others get where all contend, and never less than 256MiB:
    undercroft set web --weight 200 --floor 256MiB
    undercroft set web/shop --ceiling 1GiB

  Who divides the host's share, or a VM's:
    undercroft set host --controller static
    undercroft set web --controller utility

  For all disks of a VM that have no policy of their own, and for one of them that had:
    undercroft set web --policy arc
    undercroft set web:root --policy inherit

  What a VM, a container or a disk is to reach, where `target` divides (`undercroft why NAME` says
  what it takes), and how a disk will be used:
    undercroft set host --controller target
    undercroft set web --goal 'hit 90%'
    undercroft set web:backup --hint noreuse

  Only if nobody else has changed it since it was of that version (`undercroft shares --json`):
    undercroft set web/shop --weight 200 --if-version 1795345244123

  On a VM's own control socket, what is below it:
    undercroft set shop --weight 200 --control /run/undercroft/web.sock

  Blocks of one disk for a container, as `undercroft ranges` prints them inside the guest:
    ssh guest undercroft-ranges --container shop --disk web:root --watch 10s /srv/shop \\
        | undercroft set --ranges -

  The whole store, between its floor (`store.floor`) and its ceiling (`store.memory`):
    undercroft set --memory 2GiB
")]
pub struct SetArgs {
    /// A disk, a VM, a container (VM/CONTAINER), or `host`
    #[arg(value_name = "NAME", required_unless_present_any = ["memory", "ranges"], conflicts_with_all = ["memory", "ranges"])]
    pub disk: Option<String>,
    /// Memory that the whole store may hold at most, metadata included; without a disk
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["size", "policy", "poll", "weight", "floor", "ceiling", "controller", "goal", "hint", "store"])]
    pub memory: Option<Size>,
    /// Fixed share of the store for a disk, metadata included
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Part of what it and its siblings contend for, 1 to 10000
    #[arg(long, value_name = "N", conflicts_with_all = ["size", "poll"])]
    pub weight: Option<u64>,
    /// What it has whenever it wants it
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["size", "poll"])]
    pub floor: Option<Size>,
    /// What it never has more of; `none` takes it away
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["size", "poll"])]
    pub ceiling: Option<String>,
    /// Who divides its share: static, donor, utility, target, paper; `inherit`: as above it
    #[arg(long, value_name = "NAME", conflicts_with_all = ["size", "poll"])]
    pub controller: Option<String>,
    /// What it is to reach, where `target` divides: "hit 90%", "p99 2ms", "iops 5000"; `none` takes it away
    #[arg(long, value_name = "GOAL", conflicts_with_all = ["size", "poll"])]
    pub goal: Option<String>,
    /// How a disk will be used, as in posix_fadvise, for all accesses to come: normal, sequential, random, noreuse,
    /// dontneed, willneed
    #[arg(long, value_name = "HINT", conflicts_with_all = ["size", "poll"])]
    pub hint: Option<String>,
    /// Which stores its blocks may be in, and those of what is below it and names none: ram (there is no SSD store
    /// yet); `inherit`: as above it
    #[arg(long, value_name = "STORE", conflicts_with_all = ["size", "poll"])]
    pub store: Option<String>,
    /// Change it only if what is set is still of this version
    #[arg(long, value_name = "N", conflicts_with_all = ["size", "poll", "memory", "ranges"])]
    pub if_version: Option<u64>,
    /// Lists of ranges that containers have of disks; `-` is standard input, and each list is sent as it comes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["size", "policy", "poll", "memory", "weight", "floor", "ceiling", "controller", "goal", "hint", "store"])]
    pub ranges: Option<PathBuf>,
    /// Replacement policy, of a VM or a container for its disks that name none; `inherit`: that of what is above it
    #[arg(long, value_name = "POLICY", ignore_case = true,
          value_parser = PossibleValuesParser::new(PolicyKind::ALL.map(|k| k.name()).into_iter().chain(["inherit"])))]
    pub policy: Option<String>,
    /// Longest polling before a worker sleeps; 0 turns it off
    #[arg(long, value_name = "TIME")]
    pub poll: Option<Time>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub control: ControlArgs,
}

/// `undercroft ksm`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
KSM is the kernel's own merging of equal pages, of all processes that marked memory for it:
QEMU marks the RAM of its guests (mem-merge=on, its default). It merges private anonymous
memory only. RAM that is shared with another process, as vhost-user needs it
(memory-backend-memfd or -file with share=on), is never merged, whatever is set here.

WARNING, side channels: merging lets a guest find out, by how long its own writes take,
whether another guest holds the same page. Keys, addresses and versions of programs leak that
way, and Rowhammer attacks have changed merged pages. Use it only among guests that may know
each other's memory.

`status` reads /sys and /proc itself and needs no daemon; guests of other users are told only
to root. `on` and `off` go through the daemon, because it keeps what it found and puts it back
when it ends, after a crash when it is started again.

Examples:
  undercroft ksm status
  undercroft ksm status --json | jq '.guests[] | {name, mergeable_bytes, merged_bytes}'
  undercroft ksm on
  undercroft ksm off --unmerge
")]
pub struct KsmArgs {
    #[command(subcommand)]
    #[allow(missing_docs)]
    pub command: KsmCommand,
}

/// What to do about KSM.
#[derive(Debug, Subcommand)]
pub enum KsmCommand {
    /// Show settings, numbers, and the RAM of every QEMU process: what can be merged, what cannot, what is
    Status {
        /// For programs: {available, settings, numbers, guests}
        #[arg(long)]
        json: bool,
    },
    /// Have the daemon set KSM up as [ksm] of its configuration says, and keep what it finds (read the warning in
    /// --help)
    On(ControlArgs),
    /// Have the daemon put back what it found
    Off {
        /// Make all merged pages of the machine private again first; takes the memory that merging had saved
        #[arg(long)]
        unmerge: bool,
        #[command(flatten)]
        #[allow(missing_docs)]
        control: ControlArgs,
    },
}

/// `undercroft shares`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
ENTITLED is what a node has when everybody wants all they can get; SHARE is what it has now, TARGET where that goes.
A FLOOR of 20MiB of 30MiB is set to 30MiB, and only 20MiB of that fit into what is above it.
MISSES are those of the last interval, and WORKING SET is what would have to be kept for hardly one of them to be left
that any size can save.

Examples:
  undercroft shares
  undercroft shares --json | jq '.nodes[] | select(.level == \"disk\") | {name, curve}'
")]
pub struct SharesArgs {
    /// As JSON, with the curves
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub control: ControlArgs,
}

/// `undercroft why`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The last ones of 4096 moves and findings are kept while the daemon runs.

Examples:
  undercroft why web:root
  undercroft why web/shop --last 5
  undercroft why host --json
")]
pub struct WhyArgs {
    /// A disk, a VM, a container (VM/CONTAINER), or `host` for all
    #[arg(value_name = "NAME")]
    pub node: String,
    /// How many, the youngest last
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub last: usize,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub control: ControlArgs,
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

/// `undercroft drop-cache`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Loses nothing: everything cached is on the image too.

Examples:
  undercroft drop-cache web:root
")]
pub struct DropCacheArgs {
    /// The disk
    #[arg(value_name = "DISK")]
    pub disk: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub control: ControlArgs,
}

/// `undercroft reload`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Attaches new disks, detaches those that are gone, and changes sizes, weights, policies and polling. What needs a
restart is named and stays as it is. A bad file changes nothing, and neither does one that has lost all of the disks
that are served, or most of them, unless --yes is given. An image that does not open is tried again; `undercroft status`
shows the disk as waiting.

Examples:
  undercroft reload
  undercroft reload --json | jq .needs_restart
")]
pub struct ReloadArgs {
    /// Detach the disks that the file no longer has, also if they are all or most of those that are served
    #[arg(long)]
    pub yes: bool,
    /// For programs: the JSON of the API
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub control: ControlArgs,
}

/// `undercroft stop`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Requests under way are finished, images are flushed and closed. Waits until the daemon is gone.

Examples:
  undercroft stop
  undercroft stop --no-wait
")]
pub struct StopArgs {
    /// Return at once
    #[arg(long)]
    pub no_wait: bool,
    /// How long to wait
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub timeout: Time,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub control: ControlArgs,
}

/// `undercroft duplicates`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Looks at the memory of every QEMU process of this host and at the page cache of their disk images, and says what is held more
than once. The guests need not run their disks on Undercroft. Nothing is written, and nothing is brought into memory: pages
swapped out, given back by a balloon or not cached stay so. The guests go on meanwhile, so the figures are of no single moment.

Needs root, or CAP_SYS_PTRACE and CAP_SYS_ADMIN's view of the files. Takes 16 bytes of memory for each page compared (0.4 %).

Examples:
  undercroft duplicates
  undercroft duplicates --sample 10%           a tenth of the contents: faster, and estimates
  undercroft duplicates --pid 4711             one process, of whatever program
  undercroft duplicates --image /srv/base.qcow2   this file's page cache, too
  undercroft duplicates --cpu 20%              use at most a fifth of a core
  undercroft duplicates --json | jq .total.give_back_bytes

Columns:
  PRESENT      memory of the guest that is there
  ZERO         of that, pages full of zeroes
  SAME VM      pages equal to another of the same guest, all but the first of each content
  OTHER VMS    pages equal to one of another guest
  PAGE CACHE   pages that the host holds in its page cache, too
  GIVE BACK    what would be free if every content were held once and zeroes not at all; equal
               pages of several guests count in equal parts

Exit codes:
  0    done, or there is no guest
  1    failed; nothing could be read
  2    used wrongly
  130  interrupted; the report is of what had been read
")]
pub struct DuplicatesArgs {
    /// Look at this process instead of at every QEMU process; may be repeated
    #[arg(long, value_name = "PID")]
    pub pid: Vec<u32>,
    /// Look at the page cache of this file, too, though no guest has it open; may be repeated
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub image: Vec<PathBuf>,
    /// Compare only this part of the contents, chosen so that equal pages stay together
    #[arg(long, value_name = "PERCENT", default_value = "100%")]
    pub sample: Percent,
    /// Use at most this much of one core
    #[arg(long, value_name = "PERCENT", default_value = "100%")]
    pub cpu: Percent,
    /// For programs: {complete, vms, images, total, problems}
    #[arg(long)]
    pub json: bool,
}
