//! `undercroft upgrade`: has a new process serve in place of the daemon's.
//!
//! Owns what it says. Invariant: success is said only once another process answers than before.

use super::args::UpgradeArgs;
use super::control::pid_at;
use crate::cli::output::Out;
use crate::cli::{Failure, control_socket};
use hyper::Method;
use std::time::{Duration, Instant};
use undercroft_api::VersionInfo;
use undercroft_api::client::{self, ClientError};

/// Runs it.
///
/// # Errors
/// The daemon refused, the new process does not serve, or there is no daemon.
pub fn run(args: &UpgradeArgs, out: &mut Out) -> Result<(), Failure> {
    let socket = control_socket(&args.control.control);
    let before = pid_at(&socket);
    let end = Instant::now() + args.timeout.duration();
    // There is an answer only if it fails; else the process that was asked ends.
    let asked = client::request(&socket, Method::POST, "/v1/upgrade", None);
    if let Err(e @ (ClientError::Refused(_) | ClientError::NoDaemon { .. })) = asked {
        return Err(e.into());
    }
    loop {
        let now = pid_at(&socket);
        if now.is_some() && now != before {
            let version: VersionInfo = client::request_json(&socket, Method::GET, "/v1/version", None)?;
            let pid = now.map_or(0, |pid| pid.as_raw_nonzero().get());
            out.line(&format!("process {pid} serves now, version {}", version.version))?;
            return Ok(());
        }
        if Instant::now() > end {
            let said = "no other process serves: see the daemon's log, or wait longer with --timeout";
            return Err(Failure::Said(said.to_owned()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
