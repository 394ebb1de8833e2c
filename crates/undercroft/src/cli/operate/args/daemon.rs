//! The arguments of the commands that begin, show, reach and end the daemon's service.
//!
//! Owns words. Never acts. Invariant: every command teaches by examples.

use super::ControlArgs;
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueHint};
use std::net::SocketAddr;
use std::path::PathBuf;
use undercroft_config::{LogFormat, LogLevel};
use undercroft_engine::PolicyKind;
use undercroft_units::{Size, Time};

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
    #[arg(
        value_name = "CONFIG",
        required_unless_present = "image",
        conflicts_with = "image",
        value_hint = ValueHint::FilePath
    )]
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
    #[arg(
        long,
        value_name = "ADDRESS",
        conflicts_with = "config",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ""
    )]
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

    /// Take over from the daemon that is connected to the standard input, as `upgrade` has it
    #[arg(long, hide = true)]
    pub take_over: bool,

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

A disk whose image is missing or damaged is an error, although the daemon would serve the others and let that disk wait.
With --let-wait it is only named.

Examples:
  undercroft check /etc/undercroft/undercroft.toml
  undercroft check --let-wait /etc/undercroft/undercroft.toml   # would it start
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
    /// Succeed although disks have to wait for their images, as the daemon starts and reloads then, too
    #[arg(long)]
    pub let_wait: bool,
    /// For programs: {ok, problems, disks}
    #[arg(long)]
    pub json: bool,
}

/// `undercroft status`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  undercroft status            # a line for each disk
  undercroft status web:root   # everything about one disk
  undercroft status --watch    # again every two seconds, with rates
  undercroft status --json | jq '.disks[] | {name, hits: .cache.hit_ratio}'

Columns:
  CACHED   data cached of data that may be cached
  HITS     blocks of reads found in RAM, since the disk was attached
  P50,P99  half, and 99 %, of the reads (from RAM, from the image) and writes
           took no longer
")]
pub struct StatusArgs {
    /// Wait until the daemon answers, at most 30s or as given, as scripts that have just started it want
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "30s")]
    pub wait: Option<Time>,
    /// Disk to show alone
    #[arg(value_name = "DISK")]
    pub disk: Option<String>,
    /// For programs: the JSON of the API
    #[arg(long)]
    pub json: bool,
    /// Show it again and again, every 2s or as given, until Ctrl-C; with --json one object a line
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
guest's memory to be shared: the memory backend printed with it. Where an NBD listener has TLS, clients encrypt: QEMU
finds its certificates in --tls-dir, libvirt in nbd_tls_x509_cert_dir of its qemu.conf, libnbd in ?tls-certificates=DIR
of the URI.

Examples:
  Of a disk that the running daemon serves:
    undercroft attach-args web:root

  Of all disks of a VM, with one memory backend:
    undercroft attach-args web

  Of a disk in a file, whether it is served or not:
    undercroft attach-args web:root --config /etc/undercroft/undercroft.toml

  Straight into a command line:
    qemu-system-x86_64 -M q35 -m 4G \\
        $(undercroft attach-args web:root --as qemu --memory 4GiB)
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
    /// Directory of QEMU's certificates, for NBD listeners that encrypt
    #[arg(long, value_name = "DIR", default_value = "/etc/pki/qemu", value_hint = ValueHint::DirPath)]
    pub tls_dir: String,
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
Attaches new disks, detaches those that are gone, and changes what can change while they serve. What needs a
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

/// `undercroft upgrade`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The daemon starts the program anew from where it was started, with the same arguments, so install the new version first.
The new process makes ready while the old one serves; then requests under way are finished, the images change hands, and
the new process serves: guests at vhost-user sockets stay connected and notice a pause, NBD clients connect anew. With
`keep = true` in [store] what is cached stays, too. If anything fails before the new process serves, the old one goes
on. Refused while a guest migrates, or a disk is a file.

Examples:
  dpkg -i undercroft_1.2_amd64.deb && undercroft upgrade
")]
pub struct UpgradeArgs {
    /// How long to wait
    #[arg(long, value_name = "TIME", default_value = "120s")]
    pub timeout: Time,
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
