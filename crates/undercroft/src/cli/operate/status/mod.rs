//! `undercroft status`: tables for people, JSON for programs.
//!
//! Owns columns and rounding. Never computes what the daemon does not know, but for rates between two looks.

mod detail;

use super::args::StatusArgs;
use crate::cli::output::{Out, json};
use crate::cli::style::{ERROR, WARNING};
use crate::cli::table::{plain, toned};
use crate::cli::watch::watch;
use crate::cli::{Failure, control_socket};
use anstyle::Style;
use detail::detail;
use hyper::Method;
use std::path::Path;
use std::time::{Duration, Instant};
use undercroft_api::client::{self, ClientError, disk_path};
use undercroft_api::{DiskState, DiskStatus, LatencySnapshot, PressureDirection, ScanStatus, Status};
use undercroft_units::{human_size, human_time};

/// Pause between two attempts to reach a daemon that starts.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Runs it.
///
/// # Errors
/// There is no daemon, or no such disk.
pub fn run(args: &StatusArgs, out: &mut Out) -> Result<(), Failure> {
    let socket = control_socket(&args.control.control);
    if let Some(most) = args.wait {
        wait(&socket, most.duration())?;
    }
    let mut before: Option<Status> = None;
    watch(args.watch, !args.json, out, || {
        let status: Status = client::request_json(&socket, Method::GET, "/v1/status", None)?;
        let one = match &args.disk {
            Some(name) => Some(find(&status, name, &socket)?),
            None => None,
        };
        let one_line = args.watch.is_some();
        let text = match (args.json, &one) {
            (true, Some(disk)) => json(disk, one_line)?,
            (true, None) => json(&status, one_line)?,
            (false, Some(disk)) => detail(disk),
            (false, None) => overview(&status, before.as_ref()),
        };
        before = Some(status);
        Ok(text)
    })
}

/// Waits until a daemon answers; what is wrong besides that none does is left for whoever asks next.
fn wait(socket: &Path, most: Duration) -> Result<(), Failure> {
    let until = Instant::now() + most;
    loop {
        match client::request(socket, Method::GET, "/v1/version", None) {
            Err(e @ ClientError::NoDaemon { .. }) if Instant::now() >= until => return Err(e.into()),
            Err(ClientError::NoDaemon { .. }) => std::thread::sleep(LOOK_AGAIN),
            _ => return Ok(()),
        }
    }
}

fn find(status: &Status, name: &str, socket: &Path) -> Result<DiskStatus, Failure> {
    let exact = status.disks.iter().find(|d| d.name == name);
    let mut short = status.disks.iter().filter(|d| d.name.split_once(':').is_some_and(|(_, n)| n == name));
    if let Some(disk) = exact.or_else(|| short.next().filter(|_| short.next().is_none())) {
        return Ok(disk.clone());
    }
    // The daemon words the refusal, and knows a disk attached since.
    Ok(client::request_json(socket, Method::GET, &disk_path(name), None)?)
}

fn percent(ratio: Option<f64>) -> String {
    ratio.map_or("-".to_string(), |r| format!("{:.1}%", r * 100.0))
}

fn us(value: f64) -> String {
    if value <= 0.0 { "-".to_string() } else { human_time((value * 1000.0) as u64) }
}

fn p50_p99(l: &LatencySnapshot) -> String {
    if l.count == 0 { "-".to_string() } else { format!("{}, {}", us(l.p50_us), us(l.p99_us)) }
}

fn p50_p99_all(l: &LatencySnapshot) -> String {
    if l.count == 0 {
        return "-".to_string();
    }
    let (p50, p99, p999, max) = (us(l.p50_us), us(l.p99_us), us(l.p999_us), us(l.max_us));
    format!("{p50} (p50), {p99} (p99), {p999} (p99.9), {max} (max) of {}", l.count)
}

/// Seconds as people say them.
pub fn duration(seconds: f64) -> String {
    let s = seconds.max(0.0) as u64;
    match (s / 86_400, s / 3600 % 24, s / 60 % 60, s % 60) {
        (0, 0, 0, s) => format!("{s}s"),
        (0, 0, m, s) => format!("{m}min {s}s"),
        (0, h, m, _) => format!("{h}h {m}min"),
        (d, h, _, _) => format!("{d}d {h}h"),
    }
}

/// A line about the scan of guests' memory, and one for each guest that cannot be scanned.
fn scanned(s: &ScanStatus) -> String {
    let pages = |n: u64| human_size(n.saturating_mul(4096));
    let mut text = format!(
        "scan: {} in {}, every {}; {} read, {} found in the cache, {} made the first to go; {} of processor time\n",
        if s.guests == 1 { "1 guest".to_string() } else { format!("{} guests", s.guests) },
        if s.passes == 1 { "1 pass".to_string() } else { format!("{} passes", s.passes) },
        duration(s.period_seconds),
        pages(s.read_pages),
        pages(s.found_blocks),
        pages(s.cooled_blocks),
        human_time((s.cpu_seconds * 1e9) as u64),
    );
    s.problems.iter().for_each(|p| text += &format!("scan: {p}\n"));
    text
}

/// A line for each disk.
fn overview(status: &Status, before: Option<&Status>) -> String {
    let store = &status.store;
    let used = store.data_bytes.saturating_add(store.metadata_bytes).saturating_add(store.io_bytes);
    let mut text = format!(
        "undercroft {}, pid {}, up {}; {} of {} used ({} metadata); {}\n",
        status.version,
        status.pid,
        duration(status.uptime_seconds),
        human_size(used),
        human_size(store.memory_bytes),
        human_size(store.metadata_bytes),
        if status.workers == 1 { "1 worker".to_string() } else { format!("{} workers", status.workers) },
    );
    if store.saved_bytes > 0 {
        text += &format!(
            "{} of what is cached take no memory: held once for several blocks, or zeroes\n",
            human_size(store.saved_bytes)
        );
    }
    if let Some(ssd) = &status.ssd {
        text += &super::ssd::summary(ssd);
    }
    text += &notes(status);
    if let Some(scan) = &status.scan {
        text += &scanned(scan);
    }
    if status.disks.is_empty() {
        return text + "no disks\n";
    }
    let (reads, writes) = if before.is_some() { ("READS/s", "WRITES/s") } else { ("READS", "WRITES") };
    let header = [
        "DISK",
        "STATE",
        "POLICY",
        "CACHED",
        "HITS",
        reads,
        writes,
        "HIT P50,P99",
        "MISS P50,P99",
        "WRITE P50,P99",
        "CLIENTS",
    ];
    let mut table = plain(&header, 3);
    for disk in &status.disks {
        let old = before.and_then(|b| Some((b, b.disks.iter().find(|d| d.name == disk.name)?)));
        let rate = |now: u64, then: fn(&DiskStatus) -> u64| match old {
            Some((b, old)) => {
                let seconds = (status.uptime_seconds - b.uptime_seconds).max(0.001);
                format!("{:.0}", now.saturating_sub(then(old)) as f64 / seconds)
            }
            None => now.to_string(),
        };
        table.add_row([
            disk.name.clone(),
            state(disk).to_string(),
            disk.cache.policy.clone(),
            format!(
                "{} of {}{}",
                human_size(disk.cache.cached_bytes),
                human_size(disk.cache.capacity_bytes),
                if disk.cache.pool.is_empty() { "" } else { " shared" }
            ),
            percent(disk.cache.hit_ratio),
            rate(disk.counters.reads, |d| d.counters.reads),
            rate(disk.counters.writes, |d| d.counters.writes),
            p50_p99(&disk.latency.read_hit),
            p50_p99(&disk.latency.read_miss),
            p50_p99(&disk.latency.write),
            disk.frontends.len().to_string(),
        ]);
    }
    text += &toned(&table, |row| status.disks.get(row).and_then(tone));
    for disk in status.disks.iter().filter(|d| d.reason.is_some()) {
        text += &format!("{}: {}\n", disk.name, disk.reason.as_deref().unwrap_or(""));
    }
    text
}

/// Lines about memory that is given back and about KSM, where there is something to say.
fn notes(status: &Status) -> String {
    let (store, p, ksm) = (&status.store, &status.pressure, &status.ksm);
    let mut text = String::new();
    if store.limit_bytes < store.memory_bytes {
        text +=
            &format!("memory set by hand: {} of {}\n", human_size(store.limit_bytes), human_size(store.memory_bytes));
    }
    if p.direction != PressureDirection::Full {
        let way = match p.direction {
            PressureDirection::Giving => "giving memory back",
            PressureDirection::Growing => "growing again",
            PressureDirection::Waiting | PressureDirection::Full => "waiting until memory is no longer short",
        };
        let allowed = human_size(store.allowed_bytes);
        let ago = p.last_seconds_ago.map_or(String::new(), |s| format!(", {} ago", duration(s as f64)));
        let cause = p.last_cause.as_deref().unwrap_or("memory was short");
        text += &format!("{way}: {allowed} allowed, floor {} ({cause}{ago})\n", human_size(store.floor_bytes));
    }
    if let Some(room) = p.room_bytes {
        text += &format!("little memory is available: the store grows by {} at most now\n", human_size(room));
    }
    if ksm.managed {
        let pages = |n: Option<i64>| human_size(u64::try_from(n.unwrap_or(0)).unwrap_or(0).saturating_mul(4096));
        let (saved, shared) = (pages(ksm.numbers.pages_sharing), pages(ksm.numbers.pages_shared));
        text += &format!("KSM is managed: {saved} saved by {shared} of merged pages\n");
    }
    for problem in &ksm.problems {
        text += &format!("KSM: {problem}\n");
    }
    text
}

/// The colour of a disk that does not serve as it should.
fn tone(disk: &DiskStatus) -> Option<Style> {
    match disk.state {
        DiskState::Serving | DiskState::Dormant => None,
        DiskState::Stalled | DiskState::Failed => Some(ERROR),
        DiskState::Waiting | DiskState::Detaching => Some(WARNING),
    }
}

fn state(disk: &DiskStatus) -> &'static str {
    match disk.state {
        DiskState::Serving => "serving",
        DiskState::Stalled => "stalled",
        DiskState::Waiting => "waiting",
        DiskState::Failed => "failed",
        DiskState::Dormant => "dormant",
        DiskState::Detaching => "detaching",
    }
}
