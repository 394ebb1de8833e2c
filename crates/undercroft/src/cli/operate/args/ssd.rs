//! The arguments of `undercroft ssd`.
//!
//! Owns words. Never acts.

use super::ControlArgs;
use clap::{Args, Subcommand};
use undercroft_units::Time;

/// `undercroft ssd`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_long_help = "\
The SSD store is set up in [ssd] of the configuration. It holds nothing that the images do not
hold, so that losing it costs time and nothing else. What it holds outlives a restart of the
daemon as long as nobody changes the images meanwhile.

`stop` closes its files and devices, so that a device can be exchanged, and gives up what they
hold; `start` opens them again, empty. Both hold until the daemon ends.

Lines:
  WRITTEN      by what for: blocks that were admitted, blocks kept although
               their segment was the oldest, and the store's own tables; and
               how many bytes that makes for each byte admitted
  LEFT         what may be written at once of `writes_per_day`
  CLASSES      with `admit` measured: how many blocks were admitted of
               those that left RAM for the first time in a while, again, or
               after they had been used again there
  MEMORY       what its tables take of what is set aside for them in
               `store.memory`, with blocks that wait to be written
  SHARE        what a disk may have of it, and where that goes (TARGET); what
               it has beyond its share goes when the room is wanted
  REFUSED      blocks that were not admitted: by the rule (`admit`), because
               `writes_per_day` was used up, and others

Examples:
  undercroft ssd
  undercroft ssd --watch          # again every two seconds, until Ctrl-C
  undercroft ssd --json | jq .write_amplification
  undercroft ssd stop && undercroft ssd start
  undercroft ssd drop web:root    # for measurements
  undercroft ssd drop --all
")]
pub struct SsdArgs {
    #[command(subcommand)]
    #[allow(missing_docs)]
    pub command: Option<SsdCommand>,
    /// For programs: the store as `GET /v1/ssd` has it
    #[arg(long)]
    pub json: bool,
    /// Show it again and again, every 2s or as given, until Ctrl-C; with --json one object a line
    #[arg(short, long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "2s")]
    pub watch: Option<Time>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub control: ControlArgs,
}

/// What to do about the SSD store.
#[derive(Debug, Subcommand)]
pub enum SsdCommand {
    /// Take it into service again
    Start(ControlArgs),
    /// Take it out of service, and close its files and devices
    Stop(ControlArgs),
    /// Drop what it holds of a disk, or of all
    Drop {
        /// The disk
        #[arg(value_name = "DISK", required_unless_present = "all", conflicts_with = "all")]
        disk: Option<String>,
        /// What it holds of all disks
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        #[allow(missing_docs)]
        control: ControlArgs,
    },
}
