//! `undercroft lab trace`: a program's memory accesses, while it runs under Valgrind.
//!
//! Owns the program while it runs. Never cuts an access into lines: whoever reads the trace does. Invariant: there is
//! no file before the program has ended, and none if it was interrupted.

use super::args::LabTraceArgs;
use crate::cli::Failure;
use crate::cli::meter::Meter;
use crate::cli::output::complain;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use undercroft_trace::write::{MemoryWriter, Packing};
use undercroft_units::human_size;

/// Accesses between two looks at the clock and at Ctrl-C.
const LOOK_EVERY: u64 = 1 << 14;

/// Runs the program to its end, or to as many accesses as are wanted.
///
/// # Errors
/// Valgrind is not there, the file cannot be written, the program made no access, or it was interrupted.
pub(super) fn run(args: &LabTraceArgs, stop: &AtomicBool) -> Result<(), Failure> {
    let said = |e: &dyn std::fmt::Display| Failure::Said(e.to_string());
    let mut writer =
        MemoryWriter::create(&args.output, Packing::of_path(&args.output), args.force).map_err(|e| said(&e))?;
    let (from, to) = std::io::pipe().map_err(|e| Failure::Said(format!("no pipe can be had: {e}")))?;
    let mut child = begin(args, &to)?;
    let name = args.program[0].to_string_lossy().into_owned();
    let ended = thread::scope(|scope| {
        let pid = child.id();
        let waiting = scope.spawn(move || {
            let ended = child.wait();
            // What is in the pipe is read still; its end comes when nobody can write to it any more.
            drop(to);
            ended
        });
        let taken = take(from, &mut writer, args.limit, &name, stop);
        if !matches!(taken, Ok(Taken::All)) {
            kill(pid);
        }
        let ended = waiting.join().expect("a thread that waits does not panic");
        taken.map(|taken| (taken, ended))
    });
    let (taken, ended) = ended.map_err(|e| said(&e))?;
    let ended = ended.map_err(|e| Failure::Said(format!("valgrind cannot be waited for: {e}")))?;
    if taken == Taken::Interrupted || stop.load(Ordering::Relaxed) {
        return Err(Failure::Interrupted);
    }
    if writer.records() == 0 {
        return Err(Failure::Said(format!("{name} made no memory access that valgrind told of ({ended})")));
    }
    let records = writer.records();
    let bytes = writer.finish().map_err(|e| said(&e))?;
    report(args, &name, taken, ended, records, bytes);
    Ok(())
}

/// How reading what Lackey says has ended.
#[derive(Clone, Copy, PartialEq)]
enum Taken {
    All,
    Enough,
    Interrupted,
}

/// Starts Valgrind, which opens the pipe by its name: a descriptor need not be passed on then.
fn begin(args: &LabTraceArgs, to: &PipeWriter) -> Result<Child, Failure> {
    let log = format!("--log-file=/proc/{}/fd/{}", std::process::id(), to.as_raw_fd());
    let mut command = Command::new("valgrind");
    command.args(["--tool=lackey", "--trace-mem=yes", "--basic-counts=no"]).arg(log).arg("--").args(&args.program);
    command.spawn().map_err(|e| {
        let what = if e.kind() == std::io::ErrorKind::NotFound { "it is in the package valgrind" } else { "" };
        Failure::Said(format!("valgrind cannot be run: {e}{}{what}", if what.is_empty() { "" } else { "; " }))
    })
}

fn take(
    from: PipeReader,
    writer: &mut MemoryWriter,
    limit: Option<u64>,
    name: &str,
    stop: &AtomicBool,
) -> Result<Taken, Failed> {
    let mut meter =
        limit.map_or_else(|| Meter::new(vec![]), Meter::of_requests).named(format!("{name} under Lackey"), "accesses");
    let mut from = BufReader::with_capacity(1 << 20, from);
    let mut line = Vec::new();
    loop {
        line.clear();
        if from.read_until(b'\n', &mut line)? == 0 {
            return Ok(Taken::All);
        }
        if !writer.line(&line)? {
            continue;
        }
        let records = writer.records();
        if limit.is_some_and(|limit| records >= limit) {
            return Ok(Taken::Enough);
        }
        if records.is_multiple_of(LOOK_EVERY) {
            if stop.load(Ordering::Relaxed) {
                return Ok(Taken::Interrupted);
            }
            meter.at(records);
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("what valgrind says cannot be read: {0}")]
    Read(#[from] std::io::Error),
    #[error(transparent)]
    Write(#[from] undercroft_trace::TraceError),
}

fn kill(pid: u32) {
    if let Ok(pid) = i32::try_from(pid) {
        // It may have ended by itself.
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
    }
}

fn report(args: &LabTraceArgs, name: &str, taken: Taken, ended: ExitStatus, records: u64, bytes: u64) {
    if args.output.as_os_str() != "-" {
        complain(&format!("wrote {records} accesses, {}, to {}", human_size(bytes), args.output.display()));
    }
    if taken == Taken::All && !ended.success() {
        complain(&format!("undercroft: warning: {name} failed: {ended}"));
    }
}
