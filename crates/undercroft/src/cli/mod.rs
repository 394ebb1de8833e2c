//! The command line: arguments in, exit code out.
//!
//! Owns what people type and read. Never serves: it makes a plan and hands it over. Invariants: help, man pages and
//! completions come from `args`, and nowhere else; a broken pipe is no failure; exit codes are 0 (done), 1 (failed),
//! 2 (used wrongly), 130 (interrupted, and what was done is shown).

pub mod args;
pub mod help;
pub(crate) mod interrupt;
pub(crate) mod manual;
pub(crate) mod meter;
pub mod operate;
pub mod output;
pub mod study;
pub(crate) mod style;
pub(crate) mod table;
pub mod watch;

use args::{Cli, Command};
use clap::FromArgMatches;
use operate::{attach, check, control, disks, duplicates, hot_sets, ksm, misses, mount, pins, ranges, record, serve};
use operate::{shares, ssd, status, upgrade, volume_plugin};
use output::Out;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use study::{curve, lab, sim, trace};
use undercroft_api::client::ClientError;
use undercroft_config::{Machine, Problems, ServePlan};

/// The control socket of the system's daemon.
const SYSTEM_CONTROL: &str = "/run/undercroft/control.sock";

/// What runs the daemon: serves the plan until it is told to stop, and calls `ready` once everything listens.
pub type Serve<'a> = &'a dyn Fn(ServePlan, &mut dyn FnMut()) -> anyhow::Result<()>;

/// Why a command did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The message is all there is to say.
    #[error("{0}")]
    Said(String),
    /// The configuration is bad.
    #[error("{0}")]
    Problems(#[from] Problems),
    /// No good answer from the daemon.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The daemon failed.
    #[error("{0:#}")]
    Serve(anyhow::Error),
    /// The output is gone or full.
    #[error("the output cannot be written: {0}")]
    Output(#[from] std::io::Error),
    /// It was interrupted, and what was done until then has been shown.
    #[error("")]
    Interrupted,
    /// It has been said already; only the exit code is left.
    #[error("")]
    Silent,
}

/// Runs a command line, whose first word is the program's name.
pub fn run(words: impl IntoIterator<Item = OsString>, serve: Serve<'_>) -> ExitCode {
    let words: Vec<OsString> = words.into_iter().collect();
    let color = style::asked(&words);
    style::choose(color);
    let parsed = help::command().color(color).try_get_matches_from(words).and_then(|m| Cli::from_arg_matches(&m));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version come here too, with exit code 0; clap knows which stream is whose.
            let _ = e.print();
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    let mut out = Out::stdout();
    match dispatch(cli, serve, &mut out).and_then(|()| Ok(out.flush()?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Output(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(Failure::Silent) => ExitCode::FAILURE,
        Err(Failure::Interrupted) => ExitCode::from(130),
        Err(e @ Failure::Problems(_)) => {
            let _ = out.flush();
            output::complain(&e.to_string());
            ExitCode::FAILURE
        }
        Err(e) => {
            let _ = out.flush();
            // Several things can be wrong at once, each on its line.
            e.to_string().lines().for_each(|line| output::complain(&format!("undercroft: {line}")));
            ExitCode::FAILURE
        }
    }
}

fn dispatch(cli: Cli, serve: Serve<'_>, out: &mut Out) -> Result<(), Failure> {
    match cli.command {
        Command::Serve(args) => serve::run(*args, serve, out),
        Command::Check(args) => check::run(&args, out),
        Command::Status(args) => status::run(&args, out),
        Command::AttachArgs(args) => attach::run(&args, out),
        Command::Attach(args) => disks::attach(&args, out),
        Command::Detach(args) => disks::detach(&args, out),
        Command::Mount(args) => mount::mount(&args, out),
        Command::Umount(args) => mount::umount(&args, out),
        Command::VolumePlugin(args) => volume_plugin::run(&args, out),
        Command::Set(args) => control::set(&args, out),
        Command::Shares(args) => shares::shares(&args, out),
        Command::Why(args) => shares::why(&args, out),
        Command::Pin(args) => pins::run(&args, out),
        Command::Misses(args) => misses::run(&args, out),
        Command::Ranges(args) => ranges::ranges(args, out),
        Command::Record(args) => record::run(&args, out),
        Command::Curve(args) => curve::run(&args, out),
        Command::Partition(args) => curve::partition::run(&args, out),
        Command::Sim(args) => sim::run(&args, out),
        Command::Compare(args) => sim::compare::run(&args, out),
        Command::Trace(args) => trace::run(&args, out),
        Command::Lab(args) => lab::run(&args, out),
        Command::Ksm(args) => ksm::run(&args, out),
        Command::Ssd(args) => ssd::run(&args, out),
        Command::DropCache(args) => control::drop_cache(&args, out),
        Command::HotSet(args) => hot_sets::hot_set(&args, out),
        Command::Warm(args) => hot_sets::warm(&args, out),
        Command::Reload(args) => control::reload(&args, out),
        Command::Upgrade(args) => upgrade::run(&args, out),
        Command::Stop(args) => control::stop(&args, out),
        Command::Duplicates(args) => duplicates::run(&args, out),
        Command::Completions { shell } => manual::completions(shell, out),
        Command::Man { dir } => manual::man(dir.as_deref(), out),
        Command::Version { json } => manual::version(json, out),
        Command::Openapi => Ok(out.write(&undercroft_http::openapi())?),
        Command::Reference => Ok(out.write(&undercroft_config::reference::markdown())?),
    }
}

/// The control socket that a command talks to: the one given, else the default of this user, else that of the system
/// if this user has none.
fn control_socket(given: &Option<PathBuf>) -> PathBuf {
    if let Some(path) = given {
        return path.clone();
    }
    let (own, system) = (undercroft_config::machine::runtime_dir().join("control.sock"), PathBuf::from(SYSTEM_CONTROL));
    if !own.exists() && system.exists() { system } else { own }
}

/// This machine, for checks.
fn machine() -> Machine {
    Machine::here()
}
