//! `undercroft shares`, `undercroft why`, and `undercroft set` of a node: who has how much of the store, and why.
//!
//! Owns columns and words. Never computes what the daemon does not know.

use super::args::{SetArgs, SharesArgs, WhyArgs};
use super::{blocks, status};
use crate::cli::output::{Out, json};
use crate::cli::style::{HEADING, WARNING, paint};
use crate::cli::table::{lines, with_left};
use crate::cli::watch::watch;
use crate::cli::{Failure, control_socket};
use hyper::Method;
use std::path::Path;
use undercroft_api::client::{self, node_path};
use undercroft_api::{NodeChanged, NodeStatus, ShareEvent, SharesStatus};
use undercroft_config::keys::VM;
use undercroft_engine::shares::Hint;
use undercroft_units::{Size, human_size};

/// Runs `undercroft shares`.
///
/// # Errors
/// There is no daemon.
pub fn shares(args: &SharesArgs, out: &mut Out) -> Result<(), Failure> {
    let socket = control_socket(&args.control.control);
    watch(args.watch, !args.json, out, || {
        let status: SharesStatus = client::request_json(&socket, Method::GET, "/v1/shares", None)?;
        if args.json { Ok(json(&status, args.watch.is_some())?) } else { Ok(describe(&status)) }
    })
}

const HEADER: [&str; 11] = [
    "NODE",
    "WEIGHT",
    "FLOOR",
    "CEILING",
    "CONTROLLER",
    "ENTITLED",
    "SHARE",
    "TARGET",
    "READS",
    "MISSES",
    "WORKING SET",
];

fn describe(status: &SharesStatus) -> String {
    let mut table = with_left(&HEADER, |column| [0, 4].contains(&column));
    for node in &status.nodes {
        table.add_row(row(status, node));
    }
    let mut text = lines(&table);
    text += &of_ssd(status);
    text += &next_of(status);
    if let Some(problem) = &status.problem {
        text += &format!("shares stay as they are: {}\n", paint(WARNING, problem));
    }
    if status.intervals == 0 {
        text += &format!(
            "nothing is measured yet: the first interval ends {} s after the start\n",
            status.interval_seconds
        );
    }
    text
}

/// Who has how much of the SSD store; nothing where nobody has.
fn of_ssd(status: &SharesStatus) -> String {
    let mut table = with_left(&["SSD STORE", "SHARE", "TARGET", "CACHED", "HITS", "MISSES"], |column| column == 0);
    let mut any = false;
    for node in &status.nodes {
        let Some(ssd) = &node.ssd else { continue };
        let [share, target, cached] = [ssd.share_bytes, ssd.target_bytes, ssd.cached_bytes].map(human_size);
        table.add_row([indented(status, node), share, target, cached, ssd.hits.to_string(), ssd.misses.to_string()]);
        any = true;
    }
    if any { format!("\n{}", lines(&table)) } else { String::new() }
}

/// What a tenth more of each store would bring, a second; nothing where that would bring nothing.
fn next_of(status: &SharesStatus) -> String {
    let header = ["A TENTH MORE", "STORE", "BYTES", "RAM HITS/S", "IMAGE READS/S", "SAVES"];
    let mut table = with_left(&header, |column| column < 2);
    let mut any = false;
    for node in &status.nodes {
        for (store, next) in [("RAM", node.next_ram), ("SSD", node.next_ssd)] {
            let Some(next) = next.filter(|n| n.ram_hits_per_second + n.image_reads_saved_per_second >= 0.05) else {
                continue;
            };
            let saves = next.saved_ms_per_second.map_or("-".to_string(), |ms| format!("{ms:.1} ms/s"));
            let hits = if store == "RAM" { format!("+{:.1}", next.ram_hits_per_second) } else { "-".to_string() };
            let reads = format!("-{:.1}", next.image_reads_saved_per_second);
            let bytes = human_size(next.bytes);
            table.add_row([indented(status, node), store.to_string(), bytes, hits, reads, saves]);
            any = true;
        }
    }
    if any { format!("\n{}", lines(&table)) } else { String::new() }
}

/// The name of a node, below that of what it belongs to.
fn indented(status: &SharesStatus, node: &NodeStatus) -> String {
    let above = |name: &String| status.nodes.iter().find(|n| n.name == *name).and_then(|n| n.parent.as_ref());
    let depth = std::iter::successors(node.parent.as_ref(), |parent| above(parent)).take(status.nodes.len()).count();
    format!("{}{}", "  ".repeat(depth), node.name)
}

fn row(status: &SharesStatus, node: &NodeStatus) -> [String; 11] {
    let or_dash = |bytes: u64| if bytes == 0 { "-".to_string() } else { human_size(bytes) };
    [
        indented(status, node),
        if node.level == "host" { "-".to_string() } else { node.weight.to_string() },
        if node.set_floor_bytes > node.floor_bytes {
            format!("{} of {}", human_size(node.floor_bytes), human_size(node.set_floor_bytes))
        } else {
            or_dash(node.floor_bytes)
        },
        node.ceiling_bytes.map_or("-".to_string(), human_size),
        node.controller.clone().unwrap_or_else(|| "-".to_string()),
        human_size(node.entitled_bytes),
        human_size(node.share_bytes),
        human_size(node.target_bytes),
        node.requests.to_string(),
        node.misses.to_string(),
        or_dash(node.working_set_bytes),
    ]
}

/// Runs `undercroft why`.
///
/// # Errors
/// There is no such node, or no daemon.
pub fn why(args: &WhyArgs, out: &mut Out) -> Result<(), Failure> {
    if let Some(byte) = args.block {
        return blocks::why(args, byte, out);
    }
    let socket = control_socket(&args.control.control);
    let path = format!("{}/events", node_path(&args.node));
    let events: Vec<ShareEvent> = client::request_json(&socket, Method::GET, &path, None)?;
    let last = &events[events.len().saturating_sub(args.last)..];
    if args.json {
        return Ok(out.json(&last)?);
    }
    if last.is_empty() {
        out.line(&format!(
            "nothing has moved to or from {} yet; `undercroft shares` shows what it has, and what it asks for",
            args.node
        ))?;
    }
    for event in last {
        out.write(&told(event))?;
    }
    Ok(())
}

/// An event in a few lines: when and where, what was decided, what was seen, what it should bring.
fn told(event: &ShareEvent) -> String {
    let ago = |seconds: u64| format!("{} ago", status::duration(seconds as f64));
    let when = event.seconds_ago.map_or(format!("interval {}", event.interval), ago);
    let store = if event.ssd { ", SSD store" } else { "" };
    let what = if event.decided.is_empty() { &event.text } else { &event.decided };
    let head = format!("{when}, in {}{store}: {what}", event.node);
    let mut text = format!("{}\n", paint(HEADING, &head));
    if !event.seen.is_empty() {
        text += &format!("  seen:     {}\n", event.seen);
    }
    if let Some(expected) = &event.expected {
        text += &format!("  expected: {expected}\n");
    }
    text
}

/// Runs `undercroft set` for what is set on a node.
///
/// # Errors
/// The daemon refused, or there is none.
pub fn set(args: &SetArgs, socket: &Path, out: &mut Out) -> Result<(), Failure> {
    let name = args.disk.as_deref().unwrap_or_default();
    let body = args.keys.body();
    let done: NodeChanged = client::change_node(socket, &node_path(name), body, args.if_version)?;
    if args.json {
        return Ok(out.json(&done)?);
    }
    let NodeChanged { node, previous } = done;
    if let ("host", Some(now)) = (node.level.as_str(), &node.controller) {
        // All that there is to set for it.
        out.line(&format!("the store is divided by {now}; version {}", node.version))?;
        let before = previous.controller.unwrap_or_default();
        return Ok(out.line(&format!("before: by {before} (version {})", previous.version))?);
    }
    let controller = node.controller.map_or(String::new(), |c| format!(", divided by {c}"));
    let ceiling = node.ceiling_bytes.map_or("none".to_string(), |c| Size(c).to_string());
    let goal = node.goal.map_or(String::new(), |g| format!(", goal {g}"));
    let policy = node.policy.map_or(String::new(), |p| format!(", policy {p}"));
    let store = node.store.map_or(String::new(), |s| format!(", store {s}"));
    let hint = node.hint.filter(|h| *h != Hint::Normal.name()).map_or(String::new(), |h| format!(", hint {h}"));
    out.line(&format!(
        "{} \"{}\": weight {}, floor {}, ceiling {ceiling}{controller}{goal}{policy}{store}{hint}; entitled to {}, has \
         {}; version {}",
        node.level,
        node.name,
        node.weight,
        Size(node.floor_bytes),
        human_size(node.entitled_bytes),
        human_size(node.share_bytes),
        node.version
    ))?;
    // The line above tells of what nodes have alike.
    for (key, text) in args.keys.given.iter().filter(|(key, _)| VM.key(key.name).is_none() && key.name != "hint") {
        let before = previous.keys.get(key.name).map_or(String::new(), |was| format!(" (before: {was})"));
        out.line(&format!("{} is {text}{before}", key.name))?;
    }
    out.line(&format!("before: {previous} (version {})", previous.version))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anstream::adapter::strip_str;
    use undercroft_api::{NextStatus, NodeSsdStatus};

    fn node(name: &str, parent: Option<&str>, working_set_bytes: u64) -> NodeStatus {
        let (name, parent) = (name.to_string(), parent.map(str::to_string));
        NodeStatus { name, parent, working_set_bytes, share_bytes: 8 << 20, ..NodeStatus::default() }
    }

    #[test]
    fn a_disk_that_nobody_reads_has_no_working_set() {
        let nodes = vec![node("host", None, 1 << 20), node("a", Some("host"), 1 << 20), node("b", Some("host"), 0)];
        let text = describe(&SharesStatus { nodes, intervals: 1, ..SharesStatus::default() });
        let text = strip_str(&text).to_string();
        let ends: Vec<&str> = text.lines().map(|l| l.rsplit(' ').next().unwrap()).collect();
        assert_eq!(ends, ["SET", "1MiB", "1MiB", "-"], "{text}");
        assert!(text.contains("\n  a "), "{text}");
    }

    #[test]
    fn both_stores_are_told_with_what_more_of_each_would_bring() {
        let next = |bytes, ram, image, ms| {
            let (ram_hits_per_second, image_reads_saved_per_second) = (ram, image);
            Some(NextStatus { bytes, ram_hits_per_second, image_reads_saved_per_second, saved_ms_per_second: ms })
        };
        let ssd = NodeSsdStatus {
            share_bytes: 3 << 30,
            target_bytes: 4 << 30,
            cached_bytes: 2 << 30,
            hits: 17,
            misses: 5,
            ..NodeSsdStatus::default()
        };
        let a = NodeStatus {
            next_ram: next(1 << 20, 12.0, 7.5, Some(31.25)),
            next_ssd: next(300 << 20, 0.0, 40.0, None),
            ssd: Some(ssd),
            ..node("a", Some("host"), 0)
        };
        let nodes = vec![node("host", None, 0), a];
        let text = describe(&SharesStatus { nodes, intervals: 1, ..SharesStatus::default() });
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        for row in [
            &["a", "3GiB", "4GiB", "2GiB", "17", "5"][..],
            &["a", "RAM", "1MiB", "+12.0", "-7.5", "31.2", "ms/s"],
            &["a", "SSD", "300MiB", "-", "-40.0", "-"],
        ] {
            assert!(rows.iter().any(|r| r == row), "{row:?} is missing in\n{text}");
        }
    }

    #[test]
    fn an_event_says_when_what_why_and_what_for() {
        let event = ShareEvent {
            node: "host".into(),
            seconds_ago: Some(75),
            decided: "web gets 2MiB from db".into(),
            seen: "web misses less".into(),
            expected: Some("700 misses fewer an interval".into()),
            ..ShareEvent::default()
        };
        assert_eq!(
            strip_str(&told(&event)).to_string(),
            "1min 15s ago, in host: web gets 2MiB from db\n  seen:     web misses less\n  \
             expected: 700 misses fewer an interval\n"
        );
        let below = ShareEvent { ssd: true, ..event };
        assert!(strip_str(&told(&below)).to_string().starts_with("1min 15s ago, in host, SSD store: web gets"));
    }
}
