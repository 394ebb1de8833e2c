//! `undercroft shares`, `undercroft why`, and `undercroft set` of a node: who has how much of the store, and why.
//!
//! Owns columns and words. Never computes what the daemon does not know.

use super::args::{SetArgs, SharesArgs, WhyArgs};
use crate::cli::output::Out;
use crate::cli::{Failure, control_socket};
use comfy_table::{CellAlignment, Table, presets};
use hyper::Method;
use std::path::Path;
use undercroft_api::client::{self, node_path};
use undercroft_api::{NodeChanged, NodeStatus, ShareEvent, SharesStatus};
use undercroft_engine::shares::Hint;
use undercroft_units::{Size, human_size};

/// Runs `undercroft shares`.
///
/// # Errors
/// There is no daemon.
pub fn shares(args: &SharesArgs, out: &mut Out) -> Result<(), Failure> {
    let socket = control_socket(&args.control.control);
    let status: SharesStatus = client::request_json(&socket, Method::GET, "/v1/shares", None)?;
    if args.json {
        out.json(&status)?;
    } else {
        out.write(&describe(&status))?;
    }
    Ok(())
}

fn describe(status: &SharesStatus) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
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
    ]);
    let depth = |node: &NodeStatus| {
        let mut depth = 0;
        let mut at = node.parent.as_ref();
        while let Some(parent) = at {
            depth += 1;
            at = status.nodes.iter().find(|n| n.name == *parent).and_then(|n| n.parent.as_ref());
        }
        depth
    };
    for node in &status.nodes {
        let or_dash = |bytes: u64| if bytes == 0 { "-".to_string() } else { human_size(bytes) };
        let host = node.level == "host";
        table.add_row([
            format!("{}{}", "  ".repeat(depth(node)), node.name),
            if host { "-".to_string() } else { node.weight.to_string() },
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
        ]);
    }
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if ![0, 4].contains(&i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text: String = table.lines().map(|l| l.trim_end().to_string() + "\n").collect();
    if let Some(problem) = &status.problem {
        text += &format!("shares stay as they are: {problem}\n");
    }
    if status.intervals == 0 {
        text += &format!(
            "nothing is measured yet: the first interval ends {} s after the start\n",
            status.interval_seconds
        );
    }
    text
}

/// Runs `undercroft why`.
///
/// # Errors
/// There is no such node, or no daemon.
pub fn why(args: &WhyArgs, out: &mut Out) -> Result<(), Failure> {
    let socket = control_socket(&args.control.control);
    let path = format!("{}/events", node_path(&args.node));
    let events: Vec<ShareEvent> = client::request_json(&socket, Method::GET, &path, None)?;
    let last = &events[events.len().saturating_sub(args.last)..];
    if args.json {
        return Ok(out.json(&last)?);
    }
    if last.is_empty() {
        out.line(&format!("nothing has moved to or from {} yet", args.node))?;
    }
    for event in last {
        let size = if event.bytes == 0 { String::new() } else { format!(" ({})", Size(event.bytes)) };
        out.line(&format!("interval {}, in {}: {}{size}", event.interval, event.node, event.text))?;
    }
    Ok(())
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
    let controller = node.controller.map_or(String::new(), |c| format!(", divided by {c}"));
    let ceiling = node.ceiling_bytes.map_or("none".to_string(), |c| Size(c).to_string());
    let goal = node.goal.map_or(String::new(), |g| format!(", goal {g}"));
    let policy = node.policy.map_or(String::new(), |p| format!(", policy {p}"));
    let store = node.store.map_or(String::new(), |s| format!(", store {s}"));
    let hint = node.hint.filter(|h| *h != Hint::Normal.name()).map_or(String::new(), |h| format!(", hint {h}"));
    out.line(&format!(
        "{} \"{}\": weight {}, floor {}, ceiling {ceiling}{controller}{goal}{policy}{store}{hint}; entitled to {}, has {}; version {}",
        node.level,
        node.name,
        node.weight,
        Size(node.floor_bytes),
        human_size(node.entitled_bytes),
        human_size(node.share_bytes),
        node.version
    ))?;
    out.line(&format!("before: {previous} (version {})", previous.version))?;
    Ok(())
}
