//! `undercroft hot-set` and `undercroft warm`: which blocks of a disk are hot, from one daemon to another.
//!
//! Owns what they say and their arguments. Never reads a block: the daemons do. Invariant: what `hot-set` writes is
//! what `warm` reads.

use super::args::ControlArgs;
use super::control::full_name;
use crate::cli::output::Out;
use crate::cli::{Failure, control_socket};
use clap::Args;
use hyper::Method;
use std::io::Read;
use undercroft_api::client::{self, disk_path};
use undercroft_api::hot_set::{self, BODY_BYTES_MAX, HotSet, Warming};
use undercroft_units::{Size, human_size};

/// `undercroft hot-set`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Numbers of blocks, and no data. The daemon to which the disk's guest migrates fetches them with `undercroft warm`, so
that the guest finds there what it had here. Take it before the guest has gone: nothing is cached afterwards.

Examples:
  undercroft hot-set web:root > web-root.hot
  undercroft hot-set web:root | ssh other undercroft warm web:root
")]
pub struct HotSetArgs {
    /// The disk
    #[arg(value_name = "DISK")]
    pub disk: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub control: ControlArgs,
}

/// `undercroft warm`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Reads what `undercroft hot-set` has written, and has the daemon fetch those blocks, the hottest first. Only into free
room of the disk's cache: nothing is evicted, and guests' requests come first. Of a disk whose guest has still to come
(incoming = true) nothing is read before it runs here.

Examples:
  undercroft warm web:root < web-root.hot
  undercroft warm web:root --budget 256MiB < web-root.hot
")]
pub struct WarmArgs {
    /// The disk
    #[arg(value_name = "DISK")]
    pub disk: String,
    /// Fetch at most so much [default: what there is room for]
    #[arg(long, value_name = "SIZE")]
    pub budget: Option<Size>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub control: ControlArgs,
}

/// Runs `undercroft hot-set`.
///
/// # Errors
/// The daemon refused, or there is none.
pub fn hot_set(args: &HotSetArgs, out: &mut Out) -> Result<(), Failure> {
    let socket = control_socket(&args.control.control);
    // What is not found is left for the daemon to refuse.
    let name = full_name(&socket, &args.disk)?.unwrap_or_else(|| args.disk.clone());
    let set: HotSet = client::request_json(&socket, Method::GET, &format!("{}/hot-set", disk_path(&name)), None)?;
    let text = serde_json::to_string(&set).map_err(|e| Failure::Said(e.to_string()))?;
    Ok(out.line(&text)?)
}

/// Runs `undercroft warm`.
///
/// # Errors
/// What comes is no hot set, the daemon refused, or there is none.
pub fn warm(args: &WarmArgs, out: &mut Out) -> Result<(), Failure> {
    let mut text = Vec::new();
    let most = BODY_BYTES_MAX as u64 + 1;
    std::io::stdin()
        .lock()
        .take(most)
        .read_to_end(&mut text)
        .map_err(|e| Failure::Said(format!("standard input cannot be read: {e}")))?;
    let set = hot_set::parse(&text).map_err(|e| Failure::Said(format!("standard input: {}; {}", e.error, e.remedy)))?;
    let body = serde_json::to_string(&set).map_err(|e| Failure::Said(e.to_string()))?;
    let socket = control_socket(&args.control.control);
    let name = full_name(&socket, &args.disk)?.unwrap_or_else(|| args.disk.clone());
    let budget = args.budget.map_or_else(String::new, |Size(bytes)| format!("?budget_bytes={bytes}"));
    let path = format!("{}/warm{budget}", disk_path(&name));
    let warming: Warming = client::request_json(&socket, Method::POST, &path, Some(body))?;
    let wanted = human_size(warming.wanted_bytes);
    let when = if warming.waits { "will be fetched when its guest runs here" } else { "are being fetched" };
    let left = match warming.left_bytes {
        0 => String::new(),
        bytes => format!("; there is no room for another {}", human_size(bytes)),
    };
    Ok(out.line(&format!("disk \"{name}\": {wanted} {when}{left}"))?)
}
