//! `undercroft lab`: what the laboratory of locked lines and blocks runs, and how programs' memory accesses get there.
//!
//! Owns the choice among its commands. Never simulates: `undercroft_study` does (`processor`, and `sim::locks` for
//! traces of blocks). Invariant: what is counted of a trace of memory accesses, and how it is cut into lines, is the
//! same in all of them.

pub mod args;
mod blocks;
mod caches;
mod cores;
mod record;
mod response;

use self::args::{LabArgs, LabCommand};
use crate::cli::Failure;
use crate::cli::interrupt::interrupt;
use crate::cli::output::Out;

/// Runs it.
///
/// # Errors
/// A trace cannot be read or made, the caches make no sense, or it was interrupted.
pub fn run(args: &LabArgs, out: &mut Out) -> Result<(), Failure> {
    let stop = interrupt()?;
    match &args.command {
        LabCommand::Trace(args) => record::run(args, &stop),
        LabCommand::Caches(args) => caches::run(args, &stop, out),
        LabCommand::Cores(args) => cores::run(args, &stop, out),
        LabCommand::Blocks(args) => blocks::run(args, &stop, out),
        LabCommand::Response(args) => response::run(args, out),
    }
}
