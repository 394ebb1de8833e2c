//! `undercroft status`: tables for people, JSON for programs.
//!
//! Owns columns and rounding. Never computes what the daemon does not know, but for rates between two looks.

use super::args::StatusArgs;
use crate::cli::output::Out;
use crate::cli::{Failure, control_socket};
use comfy_table::{CellAlignment, Table, presets};
use hyper::Method;
use std::time::Duration;
use undercroft_api::client::{self, disk_path};
use undercroft_api::{DiskState, DiskStatus, LatencySnapshot, PressureDirection, ScanStatus, Status};
use undercroft_units::{Time, human_size, human_time};

/// Shortest pause between two looks.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// Runs it.
///
/// # Errors
/// There is no daemon, or no such disk.
pub fn run(args: &StatusArgs, out: &mut Out) -> Result<(), Failure> {
    let socket = control_socket(&args.control.control);
    let mut before: Option<Status> = None;
    loop {
        let status: Status = client::request_json(&socket, Method::GET, "/v1/status", None)?;
        let one = match &args.disk {
            Some(name) => Some(find(&status, name, &socket)?),
            None => None,
        };
        match (args.json, args.watch, &one) {
            (true, None, Some(disk)) => out.json(disk)?,
            (true, None, None) => out.json(&status)?,
            (true, Some(_), Some(disk)) => out.line(&compact(disk)?)?,
            (true, Some(_), None) => out.line(&compact(&status)?)?,
            (false, watch, one) => {
                if watch.is_some() && out.is_terminal() {
                    out.write("\x1b[H\x1b[2J")?;
                }
                out.write(&one.as_ref().map_or_else(|| overview(&status, before.as_ref()), detail))?;
            }
        }
        out.flush()?;
        let Some(Time(pause)) = args.watch else { return Ok(()) };
        before = Some(status);
        std::thread::sleep(Duration::from_nanos(pause).max(PAUSE_MIN));
    }
}

fn compact(value: &impl serde::Serialize) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(|e| Failure::Said(e.to_string()))
}

fn find(status: &Status, name: &str, socket: &std::path::Path) -> Result<DiskStatus, Failure> {
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

fn duration(seconds: f64) -> String {
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
    text += &notes(status);
    if let Some(scan) = &status.scan {
        text += &scanned(scan);
    }
    if status.disks.is_empty() {
        return text + "no disks\n";
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
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
    table.set_header(header);
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
            format!("{} of {}", human_size(disk.cache.cached_bytes), human_size(disk.cache.capacity_bytes)),
            percent(disk.cache.hit_ratio),
            rate(disk.counters.reads, |d| d.counters.reads),
            rate(disk.counters.writes, |d| d.counters.writes),
            p50_p99(&disk.latency.read_hit),
            p50_p99(&disk.latency.read_miss),
            p50_p99(&disk.latency.write),
            disk.frontends.len().to_string(),
        ]);
    }
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if i >= 3 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    text += &table.lines().map(|l| l.trim_end().to_string() + "\n").collect::<String>();
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

fn state(disk: &DiskStatus) -> &'static str {
    match disk.state {
        DiskState::Serving => "serving",
        DiskState::Stalled => "stalled",
        DiskState::Waiting => "waiting",
        DiskState::Failed => "failed",
        DiskState::Detaching => "detaching",
    }
}

/// Everything about one disk.
fn detail(d: &DiskStatus) -> String {
    let c = &d.counters;
    let mut rows: Vec<(&str, String)> = vec![
        ("disk", d.name.clone()),
        ("state", format!("{}{}", state(d), d.reason.as_ref().map_or(String::new(), |r| format!(": {r}")))),
        ("image", format!("{}{}", d.image, if d.read_only { " (read-only)" } else { "" })),
        ("back end", format!("{}, {}", d.backend, human_size(d.size_bytes))),
        ("vhost-user socket", d.socket.clone().unwrap_or_else(|| "none".into())),
        ("NBD export", if d.nbd { d.name.clone() } else { "no".into() }),
    ];
    for front_end in &d.frontends {
        rows.push(("client", front_end.peer.clone()));
    }
    let share = format!(
        "{} of {} ({} with metadata), {}",
        human_size(d.cache.cached_bytes),
        human_size(d.cache.capacity_bytes),
        human_size(d.cache.share_bytes),
        d.cache.policy
    );
    rows.push(("cached", share));
    let s = &d.sharing;
    let with = match &s.trust {
        None => "nothing".to_string(),
        Some(trust) => format!(
            "{} in common, {} zeroes; charged for {}; trust group {trust}{}",
            human_size(s.shared_bytes),
            human_size(s.zero_bytes),
            human_size(s.charged_bytes),
            if s.base { ", and all disks on its base" } else { "" }
        ),
    };
    rows.push(("shares", with));
    if d.counters.shared_hit_blocks > 0 {
        rows.push(("hits at others", format!("{} blocks of the base", d.counters.shared_hit_blocks)));
    }
    let e = &d.exclusive;
    rows.push(("exclusive", format!("{}{}", e.state, e.reason.as_ref().map_or(String::new(), |r| format!(": {r}")))));
    if e.guest_pages > 0 {
        let pages = |n: u64| human_size(n.saturating_mul(4096));
        rows.push((
            "  kept",
            format!(
                "{} not in the guest, {} about to leave it, {} in both",
                pages(e.hot_blocks),
                pages(e.probation_blocks),
                pages(e.cold_blocks)
            ),
        ));
        rows.push((
            "  guest",
            format!(
                "{} of {} known; table {}",
                pages(e.guest_pages_held),
                pages(e.guest_pages),
                human_size(e.table_bytes)
            ),
        ));
        rows.push((
            "  evictions",
            format!(
                "{} ({} cached already); {} of {} captured at reuse ({} zeroed)",
                e.evictions, e.evictions_cached, e.captures, e.captures_tried, e.captures_zeroed
            ),
        ));
        rows.push((
            "  early copies",
            format!(
                "{} of {} good, {} too early; at age {} (read), {} (written)",
                e.early, e.early_tried, e.early_lapsed, e.age_read, e.age_write
            ),
        ));
    }
    rows.push((
        "hits",
        format!(
            "{} ({} hit, {} missed, {} joined)",
            percent(d.cache.hit_ratio),
            c.hit_blocks,
            c.miss_blocks,
            c.joined_blocks
        ),
    ));
    rows.push(("read ahead", format!("{} blocks used, {} wasted", c.readahead_hit_blocks, c.readahead_wasted_blocks)));
    rows.push(("evicted", format!("{} blocks; {} bypassed", c.evicted_blocks, c.bypassed_blocks)));
    rows.push(("reads", format!("{} ({})", c.reads, human_size(c.read_bytes))));
    rows.push(("writes", format!("{} ({})", c.writes, human_size(c.write_bytes))));
    rows.push(("flushes", c.flushes.to_string()));
    rows.push(("discards", format!("{}; {} write-zeroes", c.discards, c.write_zeroes)));
    rows.push(("errors", format!("{} of requests, {} of the image", c.errors, c.backend_errors)));
    rows.push(("image reads", format!("{} ({})", c.backend_reads, human_size(c.backend_read_bytes))));
    rows.push(("image writes", format!("{} ({})", c.backend_writes, human_size(c.backend_write_bytes))));
    rows.push((
        "under way",
        format!("{} requests, {} operations, {} stalled", d.inflight_requests, d.inflight_ops, d.stalled_ops),
    ));
    for (name, l) in [
        ("read hit took", &d.latency.read_hit),
        ("read miss took", &d.latency.read_miss),
        ("write took", &d.latency.write),
    ] {
        let text = if l.count == 0 {
            "-".to_string()
        } else {
            format!(
                "{} (p50), {} (p99), {} (p99.9), {} (max) of {}",
                us(l.p50_us),
                us(l.p99_us),
                us(l.p999_us),
                us(l.max_us),
                l.count
            )
        };
        rows.push((name, text));
    }
    let poll = if d.poll_us == 0.0 { "off".to_string() } else { format!("up to {}", us(d.poll_us)) };
    rows.push(("polling", format!("{poll}, worker {}", d.worker)));
    rows.iter().map(|(name, text)| format!("{name:<18} {text}\n")).collect()
}
