//! `undercroft pin --boot`: the blocks that a guest reads from now on, until it pauses.
//!
//! Owns the recording that finds them out, and its file, which has no name any more when it begins. Never pins a block.
//! Invariant: when it returns, no recording of its goes on; after Ctrl-C it has found nothing.

use super::super::args::PinArgs;
use super::chosen::Chosen;
use super::sources;
use crate::cli::Failure;
use crate::cli::output::complain;
use hyper::Method;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use undercroft_api::client::{self, disk_path};
use undercroft_api::record::RecordBody;
use undercroft_api::{DiskStatus, RecordingStatus};
use undercroft_host::nameless;
use undercroft_trace::recording::Recording;
use undercroft_units::{Size, Time, human_size};

/// Pause between two questions.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// How soon Ctrl-C is noticed.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The daemon ends a recording of which it has heard nothing for so long.
const LEASE: Duration = Duration::from_secs(10);
/// How long the daemon may take to finish the file.
const FINISH_WITHIN: Duration = Duration::from_secs(120);
/// Bytes of the recording at most: some ten million requests.
const BYTES_MAX: u64 = 256 << 20;

/// Adds the blocks that the guest of a disk reads, in the order in which it does.
///
/// # Errors
/// The daemon refused, nothing was read, or it was interrupted.
pub fn of_boot(socket: &Path, disk: &str, args: &PinArgs, stop: &AtomicBool, to: &mut Chosen) -> Result<(), Failure> {
    let dir = std::env::temp_dir();
    let file = file_in(&dir)?;
    let own = file.try_clone().map_err(|e| Failure::Said(format!("{}: {e}", dir.display())))?;
    let before = reads_of(socket, disk)?;
    let first = begin(socket, disk, &dir, file)?;
    let path = format!("/v1/recordings/{}", first.id);
    let watched = watch(socket, disk, before, &path, args, stop);
    // Whatever came of it, it is not to go on.
    let ended: Result<RecordingStatus, _> = client::request_json(socket, Method::DELETE, &path, None);
    let (reads, paused) = watched?;
    let status = finish(socket, &path, ended?, stop)?;
    if let Some(why) = &status.failed {
        return Err(Failure::Said(format!("what was read is not known, and nothing was pinned: {why}")));
    }
    if reads == 0 {
        return Err(Failure::Said(format!(
            "nothing was read of disk \"{disk}\" within {}, and nothing was pinned; start the guest after this command",
            args.most
        )));
    }
    if matches!(status.ended.as_deref(), Some("max-size" | "disk-full")) {
        complain("undercroft: warning: there were more requests than were recorded: the last ones are left out");
    }
    if !paused && status.ended.as_deref() == Some("stopped") {
        complain(&format!(
            "undercroft: warning: the guest had not paused for {} when {} were over, so the list may end before its \
             start does; wait longer with --for",
            args.quiet, args.most
        ));
    }
    let name = "the recording";
    let recording = Recording::of_file(own, name).map_err(|e| Failure::Said(e.to_string()))?;
    sources::blocks_read(recording, name, disk, None, sources::Order::First, to)
}

/// A file for the recording, whose name is gone at once.
fn file_in(dir: &Path) -> Result<File, Failure> {
    let path = dir.join(format!(".undercroft-boot.{}", std::process::id()));
    let failed = |e: std::io::Error| {
        Failure::Said(format!("cannot make a file for the recording in {}: {e}; set TMPDIR to another", dir.display()))
    };
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
    std::fs::remove_file(&path).map_err(failed)?;
    Ok(file)
}

fn reads_of(socket: &Path, disk: &str) -> Result<u64, Failure> {
    let status: DiskStatus = client::request_json(socket, Method::GET, &disk_path(disk), None)?;
    Ok(status.counters.reads)
}

fn begin(socket: &Path, disk: &str, dir: &Path, file: File) -> Result<RecordingStatus, Failure> {
    let body = RecordBody {
        path: dir.join("undercroft-boot.parquet").display().to_string(),
        descriptor: true,
        disks: vec![disk.to_string()],
        max_size: Some(Size(BYTES_MAX)),
        lease: Some(Time::from(LEASE)),
        ..RecordBody::default()
    };
    let body = serde_json::to_string(&body).map_err(|e| Failure::Said(e.to_string()))?;
    let files = [file].into_iter().chain(nameless(dir).ok()).collect();
    Ok(client::request_with_files(socket, Method::POST, "/v1/recordings", body, files)?)
}

/// Waits until the guest has read something and then nothing for a while, or for as long as it may take. How many
/// reads there were, and whether it has paused.
fn watch(
    socket: &Path,
    disk: &str,
    before: u64,
    path: &str,
    args: &PinArgs,
    stop: &AtomicBool,
) -> Result<(u64, bool), Failure> {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{spinner} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    let (quiet, most) = (args.quiet.duration(), args.most.duration());
    let (begun, mut since, mut last) = (Instant::now(), Instant::now(), 0);
    loop {
        let status: RecordingStatus = client::request_json(socket, Method::GET, path, None)?;
        let reads = reads_of(socket, disk)?.saturating_sub(before);
        if reads != last {
            (last, since) = (reads, Instant::now());
        }
        let paused = last > 0 && since.elapsed() >= quiet;
        if paused || begun.elapsed() >= most || status.ending.is_some() {
            bar.finish_and_clear();
            return Ok((last, paused));
        }
        bar.set_message(progress(&status, last, since.elapsed(), args));
        let asked = Instant::now();
        while asked.elapsed() < ASK_EVERY {
            if stop.load(Ordering::Relaxed) {
                bar.finish_and_clear();
                complain("undercroft: interrupted: nothing was pinned");
                return Err(Failure::Interrupted);
            }
            bar.tick();
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

fn progress(status: &RecordingStatus, reads: u64, paused: Duration, args: &PinArgs) -> String {
    let read = human_size(status.read_blocks.saturating_mul(4096));
    if reads == 0 {
        return format!("nothing is read yet: start the guest; waiting {} at most, Ctrl-C ends it", args.most);
    }
    format!(
        "{reads} reads in {:.0} s, {read} so far; quiet for {:.0} s of {}; Ctrl-C ends it and pins nothing",
        status.seconds,
        paused.as_secs_f64(),
        args.quiet
    )
}

/// Waits until the file is whole.
fn finish(
    socket: &Path,
    path: &str,
    mut status: RecordingStatus,
    stop: &AtomicBool,
) -> Result<RecordingStatus, Failure> {
    let begun = Instant::now();
    while status.running {
        if stop.load(Ordering::Relaxed) {
            complain("undercroft: interrupted: nothing was pinned");
            return Err(Failure::Interrupted);
        }
        if begun.elapsed() > FINISH_WITHIN {
            return Err(Failure::Said(format!(
                "the daemon has not finished the recording within {} s, and nothing was pinned",
                FINISH_WITHIN.as_secs()
            )));
        }
        std::thread::sleep(LOOK_EVERY);
        status = client::request_json(socket, Method::GET, path, None)?;
    }
    Ok(status)
}
