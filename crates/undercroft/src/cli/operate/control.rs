//! The commands that ask the running daemon to do something: `set`, `drop-cache`, `reload`, `stop`.
//!
//! Owns what they say. Invariant: success is only said once the daemon has said it.

use super::args::{DropCacheArgs, ReloadArgs, SetArgs, StopArgs};
use crate::cli::output::Out;
use crate::cli::{Failure, control_socket};
use hyper::Method;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use undercroft_api::Dropped;
use undercroft_api::body::StoreChangeBody;
use undercroft_api::client::{self, ClientError, disk_path};
use undercroft_api::{DiskStatus, ReloadReport, Status, StoreStatus};
use undercroft_config::keys::{Key, VM};
use undercroft_units::{Size, human_size};

/// The full name of a disk that was named in full or in short; `None` if there is no such disk.
pub(super) fn full_name(socket: &Path, name: &str) -> Result<Option<String>, Failure> {
    if name.contains(':') {
        return Ok(Some(name.to_string()));
    }
    let status: Status = client::request_json(socket, Method::GET, "/v1/status", None)?;
    let names = || status.disks.iter().map(|d| &d.name);
    let mut short = names().filter(|n| n.split_once(':').is_some_and(|(_, n)| n == name));
    let only = short.next().filter(|_| short.next().is_none());
    let exact = names().find(|n| *n == name);
    Ok(exact.or(only).cloned())
}

/// The same, or what was given where there is no such disk, or where a VM's own socket does not say which there are:
/// then the daemon finds it, or words the refusal.
pub(super) fn full_name_or_given(socket: &Path, name: &str) -> Result<String, Failure> {
    match full_name(socket, name) {
        Ok(full) => Ok(full.unwrap_or_else(|| name.to_string())),
        Err(Failure::Client(ClientError::Refused(_))) => Ok(name.to_string()),
        Err(e) => Err(e),
    }
}

/// Runs `undercroft set`.
///
/// # Errors
/// The daemon refused, or there is none.
pub fn set(args: &SetArgs, out: &mut Out) -> Result<(), Failure> {
    let socket = control_socket(&args.control.control);
    if let Some(memory) = args.memory {
        return set_memory(&socket, memory, args.json, out);
    }
    if let Some(file) = &args.ranges {
        return super::ranges::set(file, &socket, args.json, out);
    }
    // A policy can be that of a VM or a container, and so can all that a disk has alike with them; on a VM's own
    // socket, everything is a node.
    let given = |of_disk: fn(&Key) -> bool| args.keys.given.iter().all(|(key, _)| of_disk(key));
    if args.if_version.is_some() || !given(|key| key.name == "policy" || of_disks_alone(key)) {
        return super::shares::set(args, &socket, out);
    }
    let name = args.disk.as_deref().unwrap_or_default();
    let full = full_name(&socket, name);
    let inherit = args.keys.given.iter().any(|(key, text)| key.name == "policy" && text == "inherit");
    if !given(of_disks_alone)
        && (inherit || given(|key| key.name == "policy") && !full.as_ref().is_ok_and(Option::is_some))
    {
        return super::shares::set(args, &socket, out);
    }
    let name = full?.unwrap_or_else(|| name.to_string());
    let body = args.keys.body();
    let disk: DiskStatus = client::request_json(&socket, Method::PATCH, &disk_path(&name), Some(body))?;
    if args.json {
        return Ok(out.json(&disk)?);
    }
    let poll = if disk.poll_us == 0.0 { "off".to_string() } else { format!("{}us", disk.poll_us) };
    let share = Size(disk.cache.share_bytes);
    out.line(&format!("disk \"{}\": size {share}, policy {}, poll {poll}", disk.name, disk.cache.policy))?;
    for (key, text) in args.keys.given.iter().filter(|(key, _)| !["size", "policy", "poll"].contains(&key.name)) {
        out.line(&format!("{} is {text}", key.name))?;
    }
    Ok(())
}

/// Keys of disks that a VM's own socket sets as well, where everything is a node.
const OF_OWNERS: [&str; 6] = ["hint", "lock", "lock_budget", "lock_held", "miss_table", "victim_buffer"];

/// Whether a key is of disks, and not of VMs and containers, and the host's to set.
fn of_disks_alone(key: &Key) -> bool {
    VM.key(key.name).is_none() && !OF_OWNERS.contains(&key.name)
}

fn set_memory(socket: &Path, memory: Size, json: bool, out: &mut Out) -> Result<(), Failure> {
    let body =
        serde_json::to_string(&StoreChangeBody { memory: Some(memory) }).map_err(|e| Failure::Said(e.to_string()))?;
    let store: StoreStatus = client::request_json(socket, Method::PATCH, "/v1/store", Some(body))?;
    if json {
        return Ok(out.json(&store)?);
    }
    let limit = Size(store.limit_bytes);
    let now = if store.allowed_bytes < store.limit_bytes {
        let allowed = human_size(store.allowed_bytes);
        format!("; {allowed} for now, because the machine is, or was, short of memory")
    } else {
        String::new()
    };
    out.line(&format!("the store may hold {limit} of its ceiling of {}{now}", Size(store.memory_bytes)))?;
    Ok(())
}

/// Runs `undercroft drop-cache`.
///
/// # Errors
/// The daemon refused, or there is none.
pub fn drop_cache(args: &DropCacheArgs, out: &mut Out) -> Result<(), Failure> {
    let socket = control_socket(&args.control.control);
    // What is not found is left for the daemon to refuse.
    let name = full_name(&socket, &args.disk)?.unwrap_or_else(|| args.disk.clone());
    let path = format!("{}/drop-cache", disk_path(&name));
    let dropped: Dropped = client::request_json(&socket, Method::POST, &path, None)?;
    out.line(&format!("disk \"{name}\": {} dropped", human_size(dropped.dropped_bytes)))?;
    Ok(())
}

/// Runs `undercroft reload`.
///
/// # Errors
/// The file is bad, a part of the change failed, or there is no daemon.
pub fn reload(args: &ReloadArgs, out: &mut Out) -> Result<(), Failure> {
    let socket = control_socket(&args.control.control);
    let path = if args.yes { "/v1/reload?detach_most=true" } else { "/v1/reload" };
    let report: ReloadReport = client::request_json(&socket, Method::POST, path, None)?;
    if args.json {
        out.json(&report)?;
    } else {
        out.write(&describe(&report))?;
    }
    if report.failed.is_empty() {
        Ok(())
    } else {
        out.flush()?;
        Err(Failure::Silent)
    }
}

fn describe(report: &ReloadReport) -> String {
    let mut text = String::new();
    for (what, list) in [
        ("attached", &report.added),
        ("detached", &report.removed),
        ("changed", &report.changed),
        ("needs a restart", &report.needs_restart),
        ("failed", &report.failed),
    ] {
        for item in list {
            text += &format!("{what}: {item}\n");
        }
    }
    if text.is_empty() {
        text += "nothing has changed\n";
    }
    text
}

/// Runs `undercroft stop`.
///
/// # Errors
/// There is no daemon, or it has not gone in time.
pub fn stop(args: &StopArgs, out: &mut Out) -> Result<(), Failure> {
    let socket = control_socket(&args.control.control);
    // Its process, not its socket: images are closed after the socket.
    let process = process_at(&socket);
    client::request(&socket, Method::POST, "/v1/stop", None)?;
    if args.no_wait {
        out.line("the daemon is stopping")?;
        return Ok(());
    }
    let end = Instant::now() + args.timeout.duration();
    let gone = || match &process {
        Some(process) => has_ended(process),
        None => UnixStream::connect(&socket).is_err(),
    };
    while !gone() {
        if Instant::now() > end {
            return Err(Failure::Said(format!(
                "the daemon has not stopped within {}; an image may not answer: see its log, or wait longer with \
                 --timeout",
                args.timeout
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    out.line("the daemon has stopped")?;
    Ok(())
}

/// The process that listens on a socket; `None` if it cannot be told, as from within another namespace.
fn process_at(socket: &Path) -> Option<OwnedFd> {
    pidfd_open(pid_at(socket)?, PidfdFlags::empty()).ok()
}

/// Its number.
pub(super) fn pid_at(socket: &Path) -> Option<Pid> {
    let stream = UnixStream::connect(socket).ok()?;
    rustix::net::sockopt::socket_peercred(&stream).ok().map(|peer| peer.pid)
}

/// Whether a process has ended. One that cannot be watched counts as ended: nobody would be told otherwise.
fn has_ended(process: &OwnedFd) -> bool {
    let mut watched = [PollFd::new(process, PollFlags::IN)];
    !matches!(poll(&mut watched, Some(&Timespec::default())), Ok(0) | Err(Errno::INTR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_is_told_line_by_line() {
        assert_eq!(describe(&ReloadReport::default()), "nothing has changed\n");
        let report = ReloadReport {
            added: vec!["a".into()],
            needs_restart: vec!["daemon.workers: 2 -> 4".into()],
            ..ReloadReport::default()
        };
        assert_eq!(describe(&report), "attached: a\nneeds a restart: daemon.workers: 2 -> 4\n");
    }
}
