//! `undercroft record`: what guests ask for, into a file, until Ctrl-C or a limit.
//!
//! Owns the file's creation, the progress shown, and what Ctrl-C does. Never writes a row: the daemon does, into the
//! file that this command has opened and passes along, so that it matters neither whose the file is nor what the daemon
//! sees at its path. Invariant: when it returns, the file is whole, or it says why not.

use super::args::RecordArgs;
use crate::cli::interrupt::interrupt;
use crate::cli::output::{Out, complain};
use crate::cli::{Failure, control_socket};
use hyper::Method;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use undercroft_api::RecordingStatus;
use undercroft_api::client::{self, ClientError};
use undercroft_api::record::RecordBody;
use undercroft_host::nameless;
use undercroft_trace::recording::Recording;
use undercroft_units::{Time, human_size};

/// Pause between two questions.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// How soon Ctrl-C is noticed.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Requests that are not in the file yet, if that is worth a word: fewer come between two looks.
const WORTH_TELLING: u64 = 1 << 20;
/// The daemon ends a recording of which it has heard nothing for so long.
const LEASE: Duration = Duration::from_secs(10);
/// How long a daemon that stops may take to finish the file.
const FINISH_WITHIN: Duration = Duration::from_secs(30);

/// Runs it.
///
/// # Errors
/// The file cannot be created, the daemon refused, or the recording is of no use.
pub fn run(args: &RecordArgs, out: &mut Out) -> Result<(), Failure> {
    // After a second Ctrl-C the daemon finishes the file by itself, as it does however this ends.
    let stop = interrupt()?;
    let socket = control_socket(&args.control.control);
    let path = std::path::absolute(&args.file).map_err(|e| Failure::Said(format!("{}: {e}", args.file.display())))?;
    // A daemon that is not there, or a socket that may not do this, is found out before there is a file.
    client::request(&socket, Method::GET, "/v1/recordings", None)?;
    let (file, created) = open(&path, args.force)?;
    let begun = begin(&socket, &path, file, args);
    let status = match begun {
        Ok(status) => status,
        Err(e) => {
            if created {
                let _ = std::fs::remove_file(&path);
            }
            return Err(e);
        }
    };
    let status = follow(&socket, &path, status, &stop)?;
    if args.json {
        out.json(&status)?;
    } else {
        out.write(&summary(&status))?;
    }
    out.flush()?;
    match &status.failed {
        Some(e) => Err(Failure::Said(format!("the recording is of no use: {e}"))),
        None => Ok(()),
    }
}

/// Opens the file for the daemon to write, so that it belongs to who asked for it; whether it was not there before.
fn open(path: &Path, force: bool) -> Result<(File, bool), Failure> {
    let shown = path.display();
    match File::options().write(true).create_new(true).open(path) {
        Ok(file) => return Ok((file, true)),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(Failure::Said(format!("cannot create {shown}: {e}"))),
    }
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|e| {
        Failure::Said(match e {
            Errno::LOOP => format!("{shown} is a symbolic link; name the file itself"),
            e => format!("cannot open {shown}: {e}"),
        })
    })?);
    let empty = file.metadata().is_ok_and(|m| m.len() == 0);
    if force || empty {
        return Ok((file, false));
    }
    Err(Failure::Said(format!("{shown} exists already; name another file, or overwrite it with --force")))
}

fn begin(socket: &Path, path: &Path, file: File, args: &RecordArgs) -> Result<RecordingStatus, Failure> {
    let body = RecordBody {
        path: path.display().to_string(),
        descriptor: true,
        force: args.force,
        disks: args.disk.clone(),
        vms: args.vm.clone(),
        duration: args.duration,
        max_size: Some(args.max_size),
        sample: Some(args.sample.0),
        lease: Some(Time::from(LEASE)),
    };
    let body = serde_json::to_string(&body).map_err(|e| Failure::Said(e.to_string()))?;
    // Where rows wait for the daemon to find time for them; without, it converts them at once.
    let waiting = nameless(path.parent().unwrap_or(Path::new("/"))).ok();
    let files = [file].into_iter().chain(waiting).collect();
    Ok(client::request_with_files(socket, Method::POST, "/v1/recordings", body, files)?)
}

/// Shows progress until the recording has ended; ends it when told to.
fn follow(socket: &Path, path: &Path, first: RecordingStatus, stop: &AtomicBool) -> Result<RecordingStatus, Failure> {
    let of_it = format!("/v1/recordings/{}", first.id);
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{spinner} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    let mut last = first;
    let mut ends = false;
    while last.running {
        bar.set_message(progress(&last));
        let asked = Instant::now();
        let stops = || stop.load(Ordering::Relaxed) && last.ending.is_none();
        while asked.elapsed() < ASK_EVERY && !stops() {
            bar.tick();
            std::thread::sleep(LOOK_EVERY);
        }
        let method = if stops() { Method::DELETE } else { Method::GET };
        ends |= method == Method::DELETE;
        if stop.load(Ordering::Relaxed) && !ends {
            // It had ended by itself: this is no order to end, but not to wait.
            bar.finish_and_clear();
            complain("undercroft: the daemon finishes the file by itself");
            std::process::exit(130);
        }
        match client::request_json::<RecordingStatus>(socket, method, &of_it, None) {
            Ok(status) if status.path == last.path => last = status,
            // The daemon stops, or has been started again: it has finished the file, or is about to.
            Ok(_) | Err(ClientError::NoDaemon { .. } | ClientError::Bad { .. } | ClientError::Refused(_)) => {
                bar.finish_and_clear();
                complain("undercroft: the daemon has ended; waiting for it to finish the file");
                return finished(path, last);
            }
        }
    }
    bar.finish_and_clear();
    Ok(last)
}

/// What a file says whose daemon is gone.
fn finished(path: &Path, last: RecordingStatus) -> Result<RecordingStatus, Failure> {
    let since = Instant::now();
    loop {
        match Recording::open(path) {
            Ok(recording) => {
                let end = recording.trailer();
                let bytes = std::fs::metadata(path).map_or(last.bytes, |m| m.len());
                return Ok(RecordingStatus {
                    running: false,
                    ended: Some(end.reason.clone()),
                    seconds: end.ended_ns as f64 / 1e9,
                    ending: Some(end.reason.clone()),
                    requests: end.rows,
                    waiting: 0,
                    waiting_bytes: 0,
                    dropped: end.dropped,
                    bytes,
                    ..last
                });
            }
            Err(e) if since.elapsed() > FINISH_WITHIN => {
                return Err(Failure::Said(format!("the daemon ended without finishing the file: {e}")));
            }
            Err(_) => std::thread::sleep(LOOK_EVERY),
        }
    }
}

/// How it stands, and what Ctrl-C would do.
fn progress(s: &RecordingStatus) -> String {
    let beside =
        if s.waiting_bytes > 0 { format!(" ({} beside the file)", human_size(s.waiting_bytes)) } else { String::new() };
    match (&s.ending, s.waiting) {
        (Some(_), n) => {
            format!("{}; {n} requests still to go into the file{beside}; Ctrl-C leaves that to the daemon", line(s))
        }
        (None, n) if n >= WORTH_TELLING => format!("{}, {n} of them wait{beside}; Ctrl-C ends it", line(s)),
        (None, _) => format!("{}; Ctrl-C ends it", line(s)),
    }
}

/// How it stands, in a line.
fn line(s: &RecordingStatus) -> String {
    let rate = if s.seconds > 0.0 { s.requests as f64 / s.seconds } else { 0.0 };
    let dropped = if s.dropped > 0 { format!(", {} DROPPED", s.dropped) } else { String::new() };
    format!("{} requests in {:.1} s ({rate:.0}/s), {}{dropped}", s.requests, s.seconds, human_size(s.bytes))
}

fn summary(s: &RecordingStatus) -> String {
    let mut text = format!("{}: {}\n", s.path, line(s));
    if s.read_blocks > 0 {
        let percent = s.hit_blocks as f64 * 100.0 / s.read_blocks as f64;
        text += &format!("{percent:.1}% of the {} blocks read were in RAM\n", s.read_blocks);
    }
    if s.dropped > 0 {
        text += "what was dropped is not in the file, which says when that was: there was no place for it, or the \
            daemon stopped\n";
    }
    text += match s.ended.as_deref() {
        Some("max-size") => {
            "ended because the file, with what waited beside it, was as large as it may be (--max-size)\n"
        }
        Some("disk-full") => "ended because the disk of the file is full\n",
        Some("daemon-stopped") => "ended because the daemon stopped\n",
        Some("client-gone") => "ended because the daemon heard nothing of this command for 10 s\n",
        _ => "",
    };
    text
}

/// One of so many: `1/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneOf(pub u32);

/// A text is none of `1/1`, `1/2`, ...
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("write it as 1/8, for one of eight blocks")]
pub struct OneOfError;

impl std::str::FromStr for OneOf {
    type Err = OneOfError;

    fn from_str(text: &str) -> Result<Self, OneOfError> {
        let n = text.strip_prefix("1/").and_then(|n| n.parse().ok());
        let n = if text == "1" { Some(1) } else { n };
        n.filter(|n| (1..=undercroft_api::record::SAMPLE_MAX).contains(n)).map(OneOf).ok_or(OneOfError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read() {
        assert_eq!(("1".parse(), "1/8".parse()), (Ok(OneOf(1)), Ok(OneOf(8))));
        for bad in ["", "8", "1/0", "2/8", "1/x", "1/99999999"] {
            assert!(bad.parse::<OneOf>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_summary_names_what_matters() {
        let s = RecordingStatus {
            path: "/x.parquet".into(),
            ended: Some("max-size".into()),
            seconds: 2.0,
            requests: 1000,
            dropped: 7,
            bytes: 4096,
            read_blocks: 200,
            hit_blocks: 50,
            ..RecordingStatus::default()
        };
        let text = summary(&s);
        for needle in
            ["/x.parquet: 1000 requests in 2.0 s (500/s)", "7 DROPPED", "25.0% of the 200 blocks", "--max-size"]
        {
            assert!(text.contains(needle), "{text}");
        }
    }
}
