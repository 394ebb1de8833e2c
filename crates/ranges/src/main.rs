//! `undercroft-ranges`, for inside the guest: see `arguments::HELP`.
#![forbid(unsafe_code)]

use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use undercroft_ranges::arguments::{Asked, HELP, parse};
use undercroft_ranges::{RangesError, Sysfs, WalkOutcome, run};

fn main() -> ExitCode {
    let mut out = std::io::stdout().lock();
    // Standard error that is gone is no reason to fail.
    let mut complain = |text: &str| {
        let _ = writeln!(std::io::stderr(), "undercroft-ranges: {text}");
    };
    let done = parse(std::env::args_os().skip(1)).and_then(|asked| match asked {
        Asked::Help => Ok(out.write_all(HELP.as_bytes()).map(|()| WalkOutcome::Whole)?),
        Asked::Version => {
            Ok(writeln!(out, "undercroft-ranges {}", env!("CARGO_PKG_VERSION")).map(|()| WalkOutcome::Whole)?)
        }
        Asked::Run(options) => run(&options, &Sysfs::default(), &mut out, &mut complain, &mut |interval| {
            std::thread::sleep(interval);
            true
        }),
    });
    match done {
        Ok(WalkOutcome::Whole) => ExitCode::SUCCESS,
        Ok(WalkOutcome::Partial) => ExitCode::from(3),
        Err(RangesError::Output(e)) if e.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            complain(&e.to_string());
            ExitCode::from(if matches!(e, RangesError::Usage(_)) { 2 } else { 1 })
        }
    }
}
