//! `undercroft attach` and `undercroft detach`: disks that come and go while the others are served.
//!
//! Owns their arguments and what they say. Never judges a disk: the daemon does, by the rules of its configuration
//! file. Invariant: success is only said once the daemon has said it.

use super::args::ControlArgs;
use super::control;
use crate::cli::output::Out;
use crate::cli::{Failure, control_socket};
use clap::Args;
use hyper::Method;
use serde::Serialize;
use undercroft_api::client::{self, disk_path};
use undercroft_api::{DiskState, DiskStatus};
use undercroft_config::DiskSpec;
use undercroft_units::Size;

/// `undercroft attach`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The disk is served at once and until it is detached, the daemon ends, or it reloads a file that does not name the \
disk (without --keep). To keep it over restarts, put it into the file as well. All other keys of [[disk]] \
(docs/configuration.md) are those of `POST /v1/disks` on the control socket.

Examples:
  A disk of the VM \"web\", over vhost-user; then what QEMU needs for it:
    undercroft attach web:data /var/lib/images/data.qcow2
    undercroft attach-args web:data

  One that NBD clients alone read:
    undercroft attach docs docs.raw --read-only --nbd --no-vhost-user
")]
pub struct AttachDiskArgs {
    /// Its name: VM:DISK, or DISK if it belongs to no VM
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Path of the image, or the URI of an NBD server
    #[arg(value_name = "IMAGE", value_hint = clap::ValueHint::FilePath)]
    pub image: String,
    /// Format of the image: raw, qcow2 or nbd; found out from the image if not given
    #[arg(long)]
    pub format: Option<String>,
    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
    /// Path of the vhost-user socket; a name beside the others if not given
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::FilePath)]
    pub socket: Option<std::path::PathBuf>,
    /// No vhost-user socket
    #[arg(long, conflicts_with = "socket", requires = "elsewhere")]
    pub no_vhost_user: bool,
    /// Export it on the NBD listeners
    #[arg(long, group = "elsewhere")]
    pub nbd: bool,
    /// Its guest runs elsewhere and migrates here: the image is not opened before the guest starts
    #[arg(long)]
    pub incoming: bool,
    /// Make it a file of this host: a path that is not there, or an empty file
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::FilePath, group = "elsewhere")]
    pub fuse: Option<std::path::PathBuf>,
    /// Make it a block device of this host: a path for a link to it (Linux 6.5 with ublk_drv, as root)
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::FilePath, group = "elsewhere")]
    pub ublk: Option<std::path::PathBuf>,
    /// Keep it when the daemon reloads a file that does not name it
    #[arg(long)]
    pub keep: bool,
    /// Replacement policy
    #[arg(long)]
    pub policy: Option<String>,
    /// Fixed share of the store, metadata included
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Part of what it and its siblings contend for, 1 to 10000
    #[arg(long, value_name = "N")]
    pub weight: Option<u64>,
    /// What it has whenever it wants it
    #[arg(long, value_name = "SIZE")]
    pub floor: Option<Size>,
    /// What it never has more of
    #[arg(long, value_name = "SIZE")]
    pub ceiling: Option<Size>,
    /// For programs: the disk as `status --json` shows it
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub control: ControlArgs,
}

/// `undercroft detach`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Requests under way are finished first; then the guest sees the device go. Nothing is lost: every write that was \
acknowledged is in the image. A disk that the configuration file names comes back with the next reload.

Examples:
  undercroft detach web:data
")]
pub struct DetachDiskArgs {
    /// The disk: VM:DISK, or the bare name if it is the only one
    #[arg(value_name = "DISK")]
    pub disk: String,
    /// For programs: {detached}
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub control: ControlArgs,
}

#[derive(Serialize)]
struct Detached<'a> {
    detached: &'a str,
}

/// What the daemon is asked for.
fn spec(args: &AttachDiskArgs) -> DiskSpec {
    let (vm, name) = match args.name.split_once(':') {
        Some((vm, name)) => (Some(vm.to_string()), name),
        None => (None, args.name.as_str()),
    };
    // A path is the daemon's to open, from a directory of its own.
    let path = std::path::Path::new(&args.image);
    let image = match std::path::absolute(path) {
        Ok(whole) if !args.image.contains("://") && !args.image.starts_with("nbd:") => whole.display().to_string(),
        _ => args.image.clone(),
    };
    DiskSpec {
        name: name.to_string(),
        vm,
        image,
        format: args.format.clone(),
        keep: args.keep,
        read_only: args.read_only.then_some(true),
        incoming: args.incoming.then_some(true),
        socket: args.socket.as_ref().map(|s| std::path::absolute(s).unwrap_or_else(|_| s.clone())),
        vhost_user: args.no_vhost_user.then_some(false),
        nbd: args.nbd.then_some(true),
        fuse: args.fuse.as_ref().map(|f| std::path::absolute(f).unwrap_or_else(|_| f.clone())),
        ublk: args.ublk.as_ref().map(|d| std::path::absolute(d).unwrap_or_else(|_| d.clone())),
        policy: args.policy.clone(),
        size: args.size,
        weight: args.weight,
        floor: args.floor,
        ceiling: args.ceiling,
        ..DiskSpec::default()
    }
}

/// Runs `undercroft attach`.
///
/// # Errors
/// The daemon refused, or there is none.
pub fn attach(args: &AttachDiskArgs, out: &mut Out) -> Result<(), Failure> {
    let socket = control_socket(&args.control.control);
    let body = serde_json::to_string(&spec(args)).map_err(|e| Failure::Said(e.to_string()))?;
    let disk: DiskStatus = client::request_json(&socket, Method::POST, "/v1/disks", Some(body))?;
    if args.json {
        return Ok(out.json(&disk)?);
    }
    Ok(out.write(&attached(&disk))?)
}

fn attached(disk: &DiskStatus) -> String {
    let (name, size) = (&disk.name, Size(disk.size_bytes));
    let access = if disk.read_only { "read only" } else { "writable" };
    let mut text = format!("disk \"{name}\": {}, {size}, {access}\n", disk.backend);
    if disk.state == DiskState::Waiting {
        let why = disk.reason.as_deref().unwrap_or("its image does not open");
        text = format!("disk \"{name}\" waits: {why}\n");
    }
    if let Some(socket) = &disk.socket {
        text += &format!("vhost-user: {socket}\n");
    }
    if disk.nbd {
        text += &format!("NBD: export \"{name}\"\n");
    }
    if let Some(file) = &disk.file {
        text += &format!("file: {file}\n");
    }
    if let Some(device) = &disk.device {
        text += &format!("block device: {device}\n");
    }
    text + &format!("to attach it to a guest: undercroft attach-args {name}\n")
}

/// Runs `undercroft detach`.
///
/// # Errors
/// The daemon refused, or there is none.
pub fn detach(args: &DetachDiskArgs, out: &mut Out) -> Result<(), Failure> {
    let socket = control_socket(&args.control.control);
    // What is not found is left for the daemon to refuse.
    let name = control::full_name(&socket, &args.disk)?.unwrap_or_else(|| args.disk.clone());
    client::request(&socket, Method::DELETE, &disk_path(&name), None)?;
    if args.json {
        return Ok(out.json(&Detached { detached: &name })?);
    }
    Ok(out.line(&format!("disk \"{name}\" is detached"))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{Cli, Command};
    use clap::Parser;

    fn asked(words: &[&str]) -> DiskSpec {
        let line = ["undercroft", "attach"].into_iter().chain(words.iter().copied());
        match Cli::parse_from(line).command {
            Command::Attach(args) => spec(&args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_name_tells_the_vm_and_paths_are_whole() {
        let disk = asked(&["web:data", "data.raw", "--socket", "data.sock"]);
        assert_eq!((disk.vm.as_deref(), &*disk.name), (Some("web"), "data"));
        assert!(disk.image.starts_with('/') && disk.image.ends_with("/data.raw"), "{}", disk.image);
        assert!(disk.socket.is_some_and(|s| s.is_absolute()));
        for uri in ["nbd://host/export", "nbd+unix:///x?socket=/run/nbd.sock", "nbd:host:10809"] {
            assert_eq!(asked(&["a", uri]).image, uri);
        }
        let only = asked(&["a", "/a.raw", "--nbd", "--no-vhost-user", "--read-only"]);
        assert_eq!((only.vm, only.vhost_user, only.nbd, only.read_only), (None, Some(false), Some(true), Some(true)));
    }
}
