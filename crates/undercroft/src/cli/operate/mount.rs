//! `undercroft mount` and `undercroft umount`: a disk as a folder of this host, and not any more.
//!
//! Owns their arguments and what they say. Never mounts anything itself: `undercroft-volumes` does. Invariant: success
//! is only said once everything is done.

use super::args::ControlArgs;
use super::control;
use crate::cli::interrupt::interrupt;
use crate::cli::output::Out;
use crate::cli::{Failure, control_socket};
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueHint};
use std::path::PathBuf;
use undercroft_volumes::mount::{self, MountRequest};
use undercroft_volumes::{DaemonLink, FsKind, VolumeError};

/// `undercroft mount`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Makes the disk a file of this host if it is none, a loop device of the file (with direct I/O, so that nothing is \
cached twice below the file system), a file system on it if --mkfs asks for one and the disk is empty, and mounts \
that. A disk that holds anything is never written to by --mkfs. A disk that a guest uses is refused. `undercroft \
umount` undoes all of it.

Examples:
  An empty disk gets a file system, and is mounted:
    undercroft attach db /srv/db.raw --nbd
    undercroft mount db /srv/db --mkfs ext4

  The disk \"data\" of the VM \"web\", while that is off, to look into it:
    undercroft mount web:data /mnt --read-only

  What is deleted is free in the image at once:
    undercroft mount db /srv/db -o discard,noatime
")]
pub struct MountArgs {
    /// The disk: VM:DISK, or the bare name if it is the only one
    #[arg(value_name = "DISK")]
    pub disk: String,
    /// An empty directory
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// Make a file system if the disk is empty; one of that kind that is there already is mounted as it is
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(FsKind::ALL.map(FsKind::name)))]
    pub mkfs: Option<String>,
    /// Write nothing
    #[arg(short, long, conflicts_with = "mkfs")]
    pub read_only: bool,
    /// Options of the mount and the file system, with commas between them
    #[arg(short, long, value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// For programs: {disk, dir, device, kind, file, made}
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub control: ControlArgs,
}

/// `undercroft umount`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Unmounts it, after which all that was written is in the image; the loop device goes, and the disk is a file no more \
if it was made one for the mount. It works without the daemon, too: a file system whose daemon is gone answers with \
errors, and is let go whoever uses it. What had not been written to it is lost then.

Examples:
  undercroft umount /srv/db

  Programs that have files open there keep them until they close them:
    undercroft umount --lazy /srv/db
")]
pub struct UmountArgs {
    /// The directory
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// Also while it is in use
    #[arg(short, long)]
    pub lazy: bool,
    /// For programs: {disk, dir, device, was_dead, remains}
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub control: ControlArgs,
}

/// What cannot be done with volumes and mounts, as a failure of a command.
pub(super) fn failed(e: VolumeError) -> Failure {
    match e {
        VolumeError::Daemon(e) => e.into(),
        VolumeError::Interrupted => Failure::Interrupted,
        e => Failure::Said(e.to_string()),
    }
}

/// Runs `undercroft mount`.
///
/// # Errors
/// It cannot be mounted; nothing is left behind.
pub fn mount(args: &MountArgs, out: &mut Out) -> Result<(), Failure> {
    let stop = interrupt()?;
    let socket = control_socket(&args.control.control);
    // What is not found is left for the daemon to refuse.
    let disk = control::full_name(&socket, &args.disk)?.unwrap_or_else(|| args.disk.clone());
    let mkfs = args.mkfs.as_deref().map(str::parse).transpose().map_err(failed)?;
    let (read_only, options) = (args.read_only, &*args.options);
    let want = MountRequest { disk: &disk, dir: &args.dir, mkfs, read_only, options };
    let done = mount::mount(&DaemonLink::new(socket), &want, &stop).map_err(failed)?;
    if args.json {
        return Ok(out.json(&done)?);
    }
    let mount::Mounted { disk, dir, device, kind, file, made } = &done;
    let (dir, new) = (dir.display(), if *made { "a new " } else { "" });
    out.line(&format!("disk \"{disk}\" is mounted at {dir}: {new}{kind} on {device}, of {}", file.display()))?;
    Ok(out.line(&format!("to undo it: undercroft umount {dir}"))?)
}

/// Runs `undercroft umount`.
///
/// # Errors
/// It cannot be unmounted, and is as it was.
pub fn umount(args: &UmountArgs, out: &mut Out) -> Result<(), Failure> {
    let daemon = DaemonLink::new(control_socket(&args.control.control));
    let done = mount::unmount(&daemon, &args.dir, args.lazy).map_err(failed)?;
    if args.json {
        return Ok(out.json(&done)?);
    }
    let mount::Unmounted { dir, disk, device, was_dead, remains } = &done;
    let disk = disk.as_ref().map_or("a disk".to_owned(), |name| format!("disk \"{name}\""));
    out.line(&format!("{disk} is unmounted from {}", dir.display()))?;
    if *was_dead {
        out.line("it had answered no more: what had not been written to it before is lost")?;
    }
    if *remains {
        out.line(&format!("{device} is in use elsewhere, and goes with that"))?;
    }
    Ok(())
}
