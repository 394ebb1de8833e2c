//! The arguments of the commands about memory: who has which share of the store, and what the host holds twice.
//!
//! Owns words. Never acts. Invariant: every command teaches by examples.

use super::ControlArgs;
use super::keys::{self, KeyArgs};
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;
use undercroft_units::{Percent, Size, Time};

/// `undercroft set`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("change").required(true).multiple(true)
    .args(keys::names()).args(["memory", "ranges"]))]
#[command(override_usage = "undercroft set [OPTIONS] NAME\n       undercroft set [OPTIONS] --memory SIZE\n       \
        undercroft set [OPTIONS] --ranges FILE")]
#[command(after_long_help = "\
Takes effect at once and holds until the daemon ends or reloads its file; guests notice nothing but the hit ratio.
What is cached and fits stays, both ways.

A disk has a share that a controller gives it, within its floor and its ceiling; --size fixes it instead, and a new
weight, floor or ceiling ends that. A VM is named VM, a container of it VM/CONTAINER.

Examples:
  undercroft set web:root --policy arc --poll 0
  undercroft set web:root --size 1GiB
  undercroft set web:root --readahead 2MiB --exclusive off

  Blocks that miss often are locked, while that pays, in half of the cache:
    undercroft set web:root --lock online --lock-budget 50%

  Twice what others get where all contend, and never less than 256MiB:
    undercroft set web --weight 200 --floor 256MiB
    undercroft set web/shop --ceiling 1GiB

  Who divides the host's share, or a VM's:
    undercroft set host --controller static
    undercroft set web --controller utility

  For all disks of a VM that have no policy of their own, and for one that had:
    undercroft set web --policy arc
    undercroft set web:root --policy inherit

  What a VM, a container or a disk is to reach, where `target` divides, and how
  a disk will be used (`undercroft why NAME` says what a goal takes):
    undercroft set host --controller target
    undercroft set web --goal 'hit 90%'
    undercroft set web:backup --hint noreuse

  Only if it still has a version that `undercroft shares --json` has shown:
    undercroft set web/shop --weight 200 --if-version 1795345244123

  On a VM's own control socket, what is below it:
    undercroft set shop --weight 200 --control /run/undercroft/web.sock

  Blocks of one disk for a container, as the guest's `undercroft ranges` says:
    ssh guest undercroft-ranges --container shop --disk web:root \\
        --watch 10s /srv/shop | undercroft set --ranges -

  The whole store, between its floor (`store.floor`) and its ceiling
  (`store.memory`):
    undercroft set --memory 2GiB
")]
pub struct SetArgs {
    /// A disk, a VM, a container (VM/CONTAINER), or `host`
    #[arg(
        value_name = "NAME",
        required_unless_present_any = ["memory", "ranges"],
        conflicts_with_all = ["memory", "ranges"]
    )]
    pub disk: Option<String>,
    /// Memory that the whole store may hold at most, metadata included; without a disk
    #[arg(long, value_name = "SIZE", conflicts_with_all = keys::names())]
    pub memory: Option<Size>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub keys: KeyArgs,
    /// Change it only if what is set is still of this version
    #[arg(long, value_name = "N", conflicts_with_all = ["memory", "ranges"])]
    pub if_version: Option<u64>,
    /// Lists of ranges that containers have of disks; `-` is standard input, and each list is sent as it comes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with = "memory", conflicts_with_all = keys::names())]
    pub ranges: Option<PathBuf>,
    /// For programs: the disk, the node with what was set before, the store, or what was taken of each list
    #[arg(long)]
    pub json: bool,
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
  undercroft ksm status --json \\
      | jq '.guests[] | {name, mergeable_bytes, merged_bytes}'
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
Columns:
  ENTITLED     what it has when everybody wants all they can get
  SHARE        what it has now
  TARGET       where its share goes
  FLOOR        `20MiB of 30MiB`: set to 30MiB, of which 20MiB fit into what is
               above it
  READS        blocks read in the last interval
  MISSES       those of them that were not in RAM
  WORKING SET  what would have to be kept for hardly a miss to be left that any
               size can save; `-` where nothing was read

With an SSD store, who has how much of that (HITS and MISSES: blocks that RAM did not have, in
the last interval). Each worker divides its part of the store among its own disks, by the same
weights and controllers as RAM, but for floors, ceilings, sizes and goals, which are of RAM.

A TENTH MORE: what a tenth more RAM, or a tenth more of the SSD store, would bring each disk: blocks
a second that come from RAM, and that do not come from the image; and milliseconds of waiting that
this saves a second, by the mean times of reads. Both stores are taken for one LRU stack.

Examples:
  undercroft shares
  undercroft shares --watch   # again every two seconds, until Ctrl-C
  undercroft shares --json \\
      | jq '.nodes[] | select(.level == \"disk\") | {name, curve}'
")]
pub struct SharesArgs {
    /// As JSON, with the curves
    #[arg(long)]
    pub json: bool,
    /// Show it again and again, every 2s or as given, until Ctrl-C; with --json one object a line
    #[arg(short, long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "2s")]
    pub watch: Option<Time>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub control: ControlArgs,
}

/// `undercroft why`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Shares are divided once an interval (`shares.interval`). Of each move and finding: when, below which node, what was
decided, what was seen that led to it, and what it is expected to bring where that is known. The last 4096 are kept
while the daemon runs.

Examples:
  undercroft why web:root
  undercroft why web/shop --last 5
  undercroft why host --json

  Where the block is that has this byte of the disk: in RAM or not, locked or
  not, and why:
    undercroft why web:root --block 1GiB
")]
pub struct WhyArgs {
    /// A disk, a VM, a container (VM/CONTAINER), or `host` for all
    #[arg(value_name = "NAME")]
    pub node: String,
    /// Of a disk: where the block is that has this byte, and why, in place of what its share did
    #[arg(long, value_name = "OFFSET", conflicts_with = "last")]
    pub block: Option<Size>,
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

/// `undercroft duplicates`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Looks at the memory of every QEMU process of this host and at the page cache of their disk images, and says what is held
more than once. The guests need not run their disks on Undercroft. Nothing is written, and nothing is brought into
memory: pages swapped out, given back by a balloon or not cached stay so. The guests go on meanwhile, so the figures are
of no single moment.

Needs root, or CAP_SYS_PTRACE and CAP_SYS_ADMIN's view of the files. Takes 16 bytes of memory for each page compared
(0.4 %).

Examples:
  undercroft duplicates
  undercroft duplicates --sample 10%   # a tenth of the contents, estimates
  undercroft duplicates --pid 4711     # one process, of whatever program
  undercroft duplicates --image /srv/base.qcow2   # its page cache, too
  undercroft duplicates --cpu 20%      # use at most a fifth of a core
  undercroft duplicates --json | jq .total.give_back_bytes

Columns:
  PRESENT      memory of the guest that is there
  ZERO         of that, pages full of zeroes
  SAME VM      pages equal to another of the same guest, all but the first of
               each content
  OTHER VMS    pages equal to one of another guest
  PAGE CACHE   pages that the host holds in its page cache, too
  GIVE BACK    what would be free if every content were held once and zeroes not
               at all; equal pages of several guests count in equal parts

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
