//! The command line.
//!
//! Owns the names and defaults of the options. Never opens anything.

use crate::nbd::uri::Uri;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::str::FromStr;
use undercroft_units::Size;

/// Drives vhost-user-blk and NBD sockets without a VM, for benches and tests. Results are JSON on the standard output.
///
/// Exit codes: 0 done; 1 wrong data, a refused request or a wrong option; 3 the server went away or did not answer.
#[derive(Debug, Parser)]
#[command(name = "undercroft-driver", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Put a load on a disk and say how fast it was, and what it cost the server.
    Run(Box<Run>),
    /// Say what the server tells about a disk.
    Probe {
        /// vhost-user socket, or NBD URI.
        target: Address,
    },
    /// Hold a disk to what a journal of `run --journal` says was promised.
    Audit(Audit),
    /// Behave like a broken or malicious guest.
    Hostile {
        /// vhost-user socket.
        socket: PathBuf,
        /// Cases; all of them if none is given.
        cases: Vec<String>,
    },
    /// List the cases of `hostile`.
    Cases,
}

/// Where a disk is.
#[derive(Clone, Debug)]
pub enum Address {
    /// A vhost-user-blk socket.
    Vhost(PathBuf),
    /// An NBD export.
    Nbd(Uri),
}

impl FromStr for Address {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Address> {
        if text.contains("://") { Ok(Address::Nbd(text.parse()?)) } else { Ok(Address::Vhost(text.into())) }
    }
}

/// How offsets are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PatternName {
    /// Uniformly at random.
    Rand,
    /// One after the other.
    Seq,
    /// Zipf.
    Zipf,
}

/// Options of `run`.
#[derive(Debug, Args)]
pub struct Run {
    /// vhost-user socket, or NBD URI (nbd+unix:///EXPORT?socket=PATH, nbd://HOST:PORT/EXPORT).
    pub target: Address,
    /// How offsets are chosen.
    #[arg(long, value_enum, default_value = "rand")]
    pub pattern: PatternName,
    /// Skew of the Zipf pattern, between 0 and 1.
    #[arg(long, default_value_t = 0.99)]
    pub theta: f64,
    /// Bytes of an operation: a multiple of 512.
    #[arg(long, default_value = "4KiB")]
    pub block: Size,
    /// Operations are of random lengths from --block to this, in steps of 512, and at any sector.
    #[arg(long)]
    pub block_max: Option<Size>,
    /// Operations under way, over all queues.
    #[arg(long, default_value_t = 1)]
    pub depth: usize,
    /// Queues of a vhost-user device; connections to an NBD export.
    #[arg(long, default_value_t = 1)]
    pub queues: usize,
    /// Seconds to go on for.
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Operations to do.
    #[arg(long)]
    pub ops: Option<u64>,
    /// Of 100 operations, how many write.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub write_percent: u32,
    /// Of 100 operations, how many write zeroes.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub zero_percent: u32,
    /// Of 100 operations, how many discard.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub discard_percent: u32,
    /// Flush after as many changes; 0 for never.
    #[arg(long, default_value_t = 0)]
    pub flush_every: u64,
    /// First byte of the working set.
    #[arg(long, default_value = "0")]
    pub offset: Size,
    /// Bytes of the working set; to the end of the disk if not given.
    #[arg(long)]
    pub length: Option<Size>,
    /// Read the whole working set once before the clock starts.
    #[arg(long)]
    pub prefill: bool,
    /// Watch the used ring all the time instead of sleeping until notified (vhost-user).
    #[arg(long)]
    pub poll: bool,
    /// Data segments per request (vhost-user).
    #[arg(long, default_value_t = 1)]
    pub segments: usize,
    /// Use indirect descriptors, as Linux guests do (vhost-user).
    #[arg(long)]
    pub indirect: bool,
    /// Do without EVENT_IDX (vhost-user).
    #[arg(long)]
    pub no_event_idx: bool,
    /// Do without structured replies (NBD).
    #[arg(long)]
    pub simple_replies: bool,
    /// Write with FUA (NBD).
    #[arg(long)]
    pub fua: bool,
    /// Seed of the random numbers.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A process whose CPU time and memory are reported; may be given several times.
    #[arg(long)]
    pub pid: Vec<i32>,
    /// Compare what is read with this file.
    #[arg(long, conflicts_with = "journal")]
    pub verify: Option<PathBuf>,
    /// Write stamped sectors, check what is read, and record what was promised in this file for `audit`.
    #[arg(long)]
    pub journal: Option<PathBuf>,
    /// With --journal: what the disk held at first; zeroes if not given.
    #[arg(long, requires = "journal")]
    pub base: Option<PathBuf>,
    /// Count refused requests instead of ending with the first.
    #[arg(long)]
    pub allow_errors: bool,
}

/// Options of `audit`.
#[derive(Debug, Args)]
pub struct Audit {
    /// The journal.
    #[arg(long)]
    pub journal: PathBuf,
    /// A raw image.
    #[arg(long, conflicts_with = "target", required_unless_present = "target")]
    pub image: Option<PathBuf>,
    /// A running server: vhost-user socket, or NBD URI.
    #[arg(long)]
    pub target: Option<Address>,
    /// What the disk held at first; zeroes if not given.
    #[arg(long)]
    pub base: Option<PathBuf>,
    /// Hold the disk to everything acknowledged, flushed or not.
    #[arg(long)]
    pub strict: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_are_read_as_everywhere() {
        let of = |words: &[&str]| match Cli::try_parse_from([&["driver", "run", "/a/socket"][..], words].concat()) {
            Ok(Cli { command: Command::Run(run) }) => Ok((run.block, run.length)),
            Ok(_) => panic!("another command"),
            Err(e) => Err(e.to_string()),
        };
        assert_eq!(of(&[]), Ok((Size(4096), None)));
        assert_eq!(of(&["--block", "64KiB", "--length", "1.5GiB"]), Ok((Size(65536), Some(Size(3 << 29)))));
        assert!(of(&["--block", "4k"]).is_err_and(|said| said.contains("4KiB (powers of 1024)")));
    }
}
