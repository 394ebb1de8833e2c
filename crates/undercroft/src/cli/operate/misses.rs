//! `undercroft misses`: the blocks that miss most.
//!
//! Owns columns. Never counts: the daemon's tables do.

use super::args::MissesArgs;
use super::pins::chosen::Chosen;
use crate::cli::output::Out;
use crate::cli::table::{lines, plain};
use crate::cli::{Failure, control_socket};
use hyper::Method;
use std::path::Path;
use undercroft_api::client::{self, disk_path, node_path};
use undercroft_api::hot_set::{BLOCK_BYTES, HotSet};
use undercroft_api::{MissesStatus, PinsStatus};
use undercroft_units::Size;

/// Runs it.
///
/// # Errors
/// There is no such node, or no daemon; a list is asked for where nothing has missed, or of several disks.
pub fn run(args: &MissesArgs, out: &mut Out) -> Result<(), Failure> {
    let socket = control_socket(&args.control.control);
    let path = format!("{}/misses", node_path(&args.node));
    let status: MissesStatus = client::request_json(&socket, Method::GET, &path, None)?;
    if args.json {
        return Ok(out.json(&status)?);
    }
    if args.list {
        return list(args, &socket, &status, out);
    }
    Ok(out.write(&described(&args.node, &status))?)
}

/// Writes a list of the blocks of a disk, those that missed most often first.
fn list(args: &MissesArgs, socket: &Path, status: &MissesStatus, out: &mut Out) -> Result<(), Failure> {
    let Some(disk) = status.blocks.first().map(|b| b.disk.as_str()) else {
        return Err(Failure::Said(described(&args.node, status).trim_end().to_string()));
    };
    if status.blocks.iter().any(|b| b.disk != disk) {
        return Err(Failure::Said(format!("a list is of one disk, and {} has several; name one of them", args.node)));
    }
    let pins: PinsStatus = client::request_json(socket, Method::GET, &format!("{}/pins", disk_path(disk)), None)?;
    let text = serde_json::to_string(&listed(status, pins.size_bytes)).map_err(|e| Failure::Said(e.to_string()))?;
    Ok(out.line(&text)?)
}

/// Where blocks of the cache begin elsewhere than those that are counted, each is of two of these.
fn listed(status: &MissesStatus, size_bytes: u64) -> HotSet {
    let mut chosen = Chosen::new(size_bytes);
    for block in &status.blocks {
        let end = block.offset_bytes.saturating_add(BLOCK_BYTES).min(size_bytes);
        chosen.add(block.offset_bytes / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES));
    }
    chosen.list()
}

fn described(node: &str, status: &MissesStatus) -> String {
    if status.blocks.is_empty() {
        return match status.miss_table {
            0 => format!("{node} has no table of misses; `undercroft set DISK --miss-table 20` makes one\n"),
            _ => format!("{node}: nothing has missed yet\n"),
        };
    }
    let mut table = plain(&["DISK", "OFFSET", "MISSES", "AT LEAST"], 1);
    for block in &status.blocks {
        let sure = block.misses.saturating_sub(block.error);
        let [misses, sure] = [block.misses, sure].map(|n| n.to_string());
        table.add_row([block.disk.clone(), Size(block.offset_bytes).to_string(), misses, sure]);
    }
    format!("{}{} misses counted in all\n", lines(&table), status.counted_misses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anstream::adapter::strip_str;
    use undercroft_api::MissedBlock;

    #[test]
    fn what_misses_is_told_with_what_is_certain() {
        let block = MissedBlock { disk: "web:root".into(), offset_bytes: 3 << 20, misses: 17, error: 5 };
        let status = MissesStatus { counted_misses: 40, miss_table: 20, blocks: vec![block] };
        let text = strip_str(&described("web", &status)).to_string();
        let rows: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["web:root", "3MiB", "17", "12"], "{text}");
        assert!(text.ends_with("40 misses counted in all\n"), "{text}");
        let at = |offset_bytes| MissedBlock { offset_bytes, ..MissedBlock::default() };
        let aligned = MissesStatus { blocks: vec![at(3 << 20), at(0), at(4 << 20)], ..MissesStatus::default() };
        let list = listed(&aligned, (4 << 20) + 512);
        assert_eq!((list.size_bytes, &list.ranges[..]), ((4 << 20) + 512, &[(768, 1), (0, 1), (1024, 1)][..]));
        let displaced = MissesStatus { blocks: vec![at(512)], ..MissesStatus::default() };
        assert_eq!(listed(&displaced, 1 << 20).ranges, [(0, 2)]);
        let none = MissesStatus { miss_table: 20, ..MissesStatus::default() };
        assert_eq!(described("web", &none), "web: nothing has missed yet\n");
        assert!(described("web", &MissesStatus::default()).contains("no table of misses"));
    }
}
