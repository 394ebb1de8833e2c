//! `undercroft volume-plugin`: volumes of Podman and Docker that are disks of the daemon.
//!
//! Owns its arguments. Never makes a volume itself: `undercroft-volumes` does. Invariant: it says that it is ready once
//! its socket listens.

use super::args::ControlArgs;
use super::mount::failed;
use crate::cli::output::Out;
use crate::cli::{Failure, control_socket};
use clap::{Args, ValueHint};
use std::path::PathBuf;
use undercroft_config::{LogFormat, LogLevel, LogPlan};
use undercroft_daemon::logging;
use undercroft_volumes::DaemonLink;
use undercroft_volumes::plugin::{PluginServer, VolumeDriver, serve};

/// `undercroft volume-plugin`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Serves the volume-plugin protocol until SIGTERM or SIGINT. Each volume is a raw image in a folder of its own below \
--images, with what was said of it beside, and a disk of the running daemon: a node of the tree of shares. Volumes \
outlive the plugin and the daemon; a daemon that is started anew is given all of them again. Needs root, and a daemon \
whose files this process sees (docs/attach/containers.md).

Options of volumes (-o): size (required), fs (ext4 or xfs), share (a fixed share of the store), and what `undercroft \
set` sets of disks: weight, floor, ceiling, policy and so on.

Docker finds it by its socket, Podman by lines in /etc/containers/containers.conf:
    [engine.volume_plugins]
    undercroft = \"/run/docker/plugins/undercroft.sock\"

Then a volume is made and used so:
    podman volume create --driver undercroft -o size=8GiB -o weight=200 db
    podman run -v db:/var/lib/postgresql/data postgres

Examples:
  undercroft volume-plugin --images /var/lib/undercroft/volumes
")]
pub struct VolumePluginArgs {
    /// The socket; Docker looks for plugins in /run/docker/plugins
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/run/docker/plugins/undercroft.sock",
        value_hint = ValueHint::FilePath
    )]
    pub socket: PathBuf,
    /// The folder of all volumes; made if it is missing
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub images: PathBuf,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub control: ControlArgs,
}

/// Runs `undercroft volume-plugin`.
///
/// # Errors
/// The folder or the socket cannot be had, or another plugin has it.
pub fn run(args: &VolumePluginArgs, out: &mut Out) -> Result<(), Failure> {
    let plan = LogPlan { level: LogLevel::Info, format: LogFormat::Text };
    logging::init(plan).map_err(|e| Failure::Said(e.to_string()))?;
    if !rustix::process::geteuid().is_root() {
        let why = "volumes are mounted, which only root may: run it as root, with `sudo`";
        return Err(Failure::Said(why.into()));
    }
    let daemon = DaemonLink::new(control_socket(&args.control.control));
    let driver = VolumeDriver::open(&args.images, daemon).map_err(failed)?;
    let folder = driver.folder().display().to_string();
    let server = PluginServer::bind(&args.socket, driver).map_err(failed)?;
    out.line(&format!("ready: volumes of {folder} at {}", args.socket.display()))?;
    out.flush()?;
    let served = serve(server).map_err(failed);
    logging::flush();
    served
}
