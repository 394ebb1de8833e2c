//! `undercroft pin`: blocks of a disk that are never evicted.
//!
//! Owns what it says, and the order: blocks are gathered, cut, written, and then pinned. Never judges a list: the
//! daemon does. Invariant: where anything fails, nothing was pinned.

mod boot;
pub(super) mod chosen;
mod sources;
pub mod span;

use super::args::PinArgs;
use super::control::full_name_or_given;
use crate::cli::interrupt::interrupt;
use crate::cli::output::{Out, complain};
use crate::cli::style::{WARNING, paint};
use crate::cli::table::{lines, plain};
use crate::cli::{Failure, control_socket};
use chosen::{Chosen, Room};
use hyper::Method;
use sources::amount;
use span::DiskSpan;
use std::io::Write;
use std::path::Path;
use undercroft_api::PinsStatus;
use undercroft_api::client::{self, ClientError, disk_path};
use undercroft_api::hot_set::{BLOCK_BYTES, HotSet};
use undercroft_config::pin_list::RANGES_MAX;
use undercroft_units::{Size, human_size};

/// Runs it.
///
/// # Errors
/// What is to be pinned cannot be read or is of another disk, the daemon refused, or there is none.
pub fn run(args: &PinArgs, out: &mut Out) -> Result<(), Failure> {
    // Before the program has other threads.
    let stop = args.boot.then(interrupt).transpose()?;
    let socket = control_socket(&args.control.control);
    let name = full_name_or_given(&socket, &args.disk)?;
    let path = format!("{}/pins", disk_path(&name));
    let now: PinsStatus = client::request_json(&socket, Method::GET, &path, None)?;
    let gathers = !args.range.is_empty()
        || args.blocks.is_some()
        || args.ranges.is_some()
        || args.recording.is_some()
        || args.boot;
    if !gathers && !args.clear {
        if let Some(file) = &args.write {
            write(file, &HotSet { size_bytes: now.size_bytes, ranges: now.ranges.clone() }, args.json, out)?;
        }
        return if args.json { Ok(out.json(&now)?) } else { Ok(out.write(&described(&now))?) };
    }
    let mut named = Chosen::new(now.size_bytes);
    gather(args, &socket, &now, &mut named)?;
    if let Some(stop) = &stop {
        boot::of_boot(&socket, &now.disk, args, stop, &mut named)?;
    }
    if args.replace && named.is_empty() {
        return Err(Failure::Said(
            "what was given names no block, and nothing was changed; --clear unpins everything".to_string(),
        ));
    }
    // That may have taken minutes: what others have pinned meanwhile stays.
    let now: PinsStatus = client::request_json(&socket, Method::GET, &path, None)?;
    let mut chosen = Chosen::new(now.size_bytes);
    let beside = !args.replace && !args.clear;
    if beside {
        chosen.add_list(&now.ranges);
    }
    chosen.add_list(&named.list().ranges);
    if args.fit {
        let (fits, left) = chosen.fit(room(&now));
        chosen = fits;
        if left > 0 {
            let left = human_size(left * BLOCK_BYTES);
            complain(&format!("undercroft: warning: {left} are left out: they are past the budget, or too scattered"));
        }
    }
    let list = chosen::in_order(chosen.list());
    if args.dry_run {
        return dry_run(&now, &list, args.json, out);
    }
    if let Some(file) = &args.write {
        write(file, &list, args.json, out)?;
    }
    let body = serde_json::to_string(&list).map_err(|e| Failure::Said(e.to_string()))?;
    let version = beside.then_some(now.version);
    let done: PinsStatus = client::put_json(&socket, &path, body, version).map_err(|e| match e {
        ClientError::Refused(e) if list.bytes() > now.budget_bytes => {
            let fit = "--fit leaves out what is past the budget, what was named last first";
            Failure::Said(format!("{}; {}; {fit}", e.error, e.remedy))
        }
        e => e.into(),
    })?;
    if args.json {
        return Ok(out.json(&done)?);
    }
    let had = amount(now.pinned_bytes, now.ranges.len());
    out.line(&summary(&done))?;
    Ok(out.line(&format!("before: {had}"))?)
}

/// What there is room for of a disk.
fn room(now: &PinsStatus) -> Room {
    Room { blocks: now.budget_bytes / BLOCK_BYTES, ranges: RANGES_MAX, more: u64::from(now.is_displaced) }
}

/// What files and the command line name.
fn gather(args: &PinArgs, socket: &Path, now: &PinsStatus, to: &mut Chosen) -> Result<(), Failure> {
    args.range.iter().try_for_each(|&span| to.add_span(span))?;
    if let Some(file) = &args.blocks {
        sources::of_blocks(file, now.size_bytes, to)?;
    }
    if let Some(file) = &args.ranges {
        sources::of_ranges(file, &now.disk, to)?;
    }
    if let Some(file) = &args.recording {
        sources::of_recording(file, &now.disk, args.first.map(|t| t.duration()), sources::Order::of(args), to)?;
    }
    if args.boot {
        // What would be refused at the end is refused at once: on a VM's own socket nothing is recorded.
        client::request(socket, Method::GET, "/v1/recordings", None)?;
    }
    Ok(())
}

/// Shows what would be pinned.
fn dry_run(now: &PinsStatus, list: &HotSet, json: bool, out: &mut Out) -> Result<(), Failure> {
    if json {
        return Ok(out.json(list)?);
    }
    out.write(&table(&list.ranges, now.size_bytes))?;
    let fits = if list.bytes() > now.budget_bytes { "more than" } else { "of" };
    Ok(out.line(&format!(
        "disk \"{}\": {} would be pinned, {fits} the {} that may be locked",
        now.disk,
        amount(list.bytes(), list.ranges.len()),
        human_size(now.budget_bytes)
    ))?)
}

/// Writes a list for other disks, and says so.
fn write(file: &Path, list: &HotSet, quiet: bool, out: &mut Out) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::Said(format!("{} cannot be written: {e}", file.display()));
    let mut text = serde_json::to_string(list).map_err(|e| Failure::Said(e.to_string()))?;
    text.push('\n');
    // A whole file or none: a daemon may read it at any time.
    let mut name = file.file_name().map(std::ffi::OsStr::to_os_string).unwrap_or_default();
    name.push(format!(".{}", std::process::id()));
    let beside = file.with_file_name(name);
    let written = std::fs::File::create_new(&beside).and_then(|mut f| {
        f.write_all(text.as_bytes())?;
        f.sync_all()
    });
    let written = written.and_then(|()| std::fs::rename(&beside, file));
    written.inspect_err(|_| _ = std::fs::remove_file(&beside)).map_err(failed)?;
    if quiet {
        return Ok(());
    }
    let whole = std::path::absolute(file).unwrap_or_else(|_| file.to_path_buf());
    Ok(out.line(&format!(
        "{}: {}; for other disks of this size: pins = \"{}\" in their configuration",
        file.display(),
        amount(list.bytes(), list.ranges.len()),
        whole.display()
    ))?)
}

/// Ranges of blocks, a row each.
fn table(ranges: &[(u64, u64)], size_bytes: u64) -> String {
    if ranges.is_empty() {
        return String::new();
    }
    let mut table = plain(&["FROM", "TO", "SIZE"], 0);
    for &(first, count) in ranges {
        let start = first.saturating_mul(BLOCK_BYTES);
        let end = first.saturating_add(count).saturating_mul(BLOCK_BYTES).min(size_bytes);
        let span = DiskSpan { start, end };
        table.add_row([Size(span.start), Size(span.end), Size(end.saturating_sub(start))].map(|s| s.to_string()));
    }
    lines(&table)
}

fn summary(s: &PinsStatus) -> String {
    let (locked, budget) = (human_size(s.locked_bytes), human_size(s.budget_bytes));
    if s.ranges.is_empty() {
        return format!("disk \"{}\": nothing is pinned; {budget} may be locked", s.disk);
    }
    let by = match (s.origin.as_deref(), &s.file) {
        (Some("file"), Some(file)) => format!(" by {file}"),
        (Some("file"), None) => " by the configuration".to_string(),
        _ => " by hand".to_string(),
    };
    let pinned = amount(s.pinned_bytes, s.ranges.len());
    format!("disk \"{}\": {pinned} pinned{by}; {locked} of the disk locked now, of {budget} that may be", s.disk)
}

/// What is pinned, for people.
fn described(s: &PinsStatus) -> String {
    let mut text = table(&s.ranges, s.size_bytes);
    text += &format!("{}\n", summary(s));
    if let Some(problem) = &s.problem {
        text += &format!("not pinned: {}\n", paint(WARNING, problem));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anstream::adapter::strip_str;

    #[test]
    fn what_is_pinned_is_told_with_where_it_ends() {
        let status = PinsStatus {
            disk: "web:root".into(),
            size_bytes: (10 << 20) + 512,
            ranges: vec![(0, 256), (2560, 1)],
            pinned_bytes: (1 << 20) + 4096,
            locked_bytes: 1 << 20,
            budget_bytes: 4 << 20,
            origin: Some("hand".into()),
            ..PinsStatus::default()
        };
        let text = strip_str(&described(&status)).to_string();
        let rows: Vec<Vec<&str>> = text.lines().take(3).map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(rows, [["FROM", "TO", "SIZE"], ["0B", "1MiB", "1MiB"], ["10MiB", "10486272B", "512B"]], "{text}");
        assert!(text.contains("1028KiB in 2 ranges pinned by hand; 1MiB of the disk locked now, of 4MiB"), "{text}");
        let none = PinsStatus { ranges: Vec::new(), problem: Some("too much".into()), ..status };
        let text = strip_str(&described(&none)).to_string();
        assert_eq!(text, "disk \"web:root\": nothing is pinned; 4MiB may be locked\nnot pinned: too much\n");
    }
}
