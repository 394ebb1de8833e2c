//! `undercroft serve`: a plan from a file or from images, handed to the daemon.
//!
//! Owns what the command line adds to a plan. Never opens an image or a socket. Invariant: warnings are said, errors
//! end it, before anything is opened.

use super::args::ServeArgs;
use super::attach::{self, Attachment};
use crate::cli::output::Out;
use crate::cli::{Failure, Serve, machine, output};
use std::fs;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use undercroft_config::images_only::{ForEach, add_images};
use undercroft_config::spec::{DaemonSpec, StoreSpec};
use undercroft_config::{
    self as config, DiskSpec, Machine, Overrides, Problem, Problems, ServePlan, ServeSpec, Severity,
};
use undercroft_daemon::logging;
use undercroft_units::Size;

/// Runs it.
///
/// # Errors
/// The plan is bad, or the daemon failed.
pub fn run(args: ServeArgs, serve: Serve<'_>, out: &mut Out) -> Result<(), Failure> {
    let (plan, warnings) = plan(&args, &machine())?;
    logging::init(plan.daemon.log).map_err(|e| Failure::Said(e.to_string()))?;
    let said = Problems { file: plan.config_file.clone(), problems: warnings };
    if !said.problems.is_empty() {
        output::complain(&said.to_string());
    }
    let announcement = if args.image.is_empty() { None } else { Some(announce(&plan)) };
    let mut printed = Ok(());
    let result = serve(plan, &mut || {
        if let Some(text) = &announcement {
            printed = out.write(text).and_then(|()| out.flush());
        }
    });
    // Nobody reading the announcement is no reason to stop serving; a full disk is none either.
    if let Err(e) = printed {
        tracing::debug!("the announcement could not be printed: {e}");
    }
    logging::flush();
    result.map_err(Failure::Serve)
}

/// The plan that a command line asks for, with its warnings.
///
/// # Errors
/// Everything that is wrong with it.
pub fn plan(args: &ServeArgs, machine: &Machine) -> Result<(ServePlan, Vec<Problem>), Problems> {
    let overrides = Overrides {
        control_socket: args.control.control.as_ref().map(|p| machine.current_dir.join(p)),
        log_level: args.log_level,
        log_format: args.log_format,
        take_over: args.take_over,
    };
    if let Some(file) = &args.config {
        if let Some(problem) = in_place_of_configuration(file) {
            return Err(problem);
        }
        return config::load(file, machine, &overrides)?.accept_waiting();
    }
    let mut spec = ServeSpec {
        store: StoreSpec { memory: args.memory, ..StoreSpec::default() },
        overrides,
        daemon: DaemonSpec {
            disk_group: args.group.clone(),
            workers: args.workers,
            poll: args.poll,
            metrics: args.metrics.map(|m| m.to_string()),
            ..DaemonSpec::default()
        },
        ..ServeSpec::default()
    };
    if args.image.len() > 1 && args.socket.is_some() {
        return Err(one_problem(
            "--socket names one socket, but there are several images",
            "leave it out: each gets IMAGE.sock",
        ));
    }
    let nbd_beside = args.nbd.as_deref() == Some("");
    match args.nbd.as_deref() {
        None | Some("") => {}
        Some(address) if address.contains('/') => {
            spec.nbd.unix = Some(address.strip_prefix("unix:").unwrap_or(address).into());
        }
        Some(address) => spec.nbd.tcp = Some(address.strip_prefix("tcp:").unwrap_or(address).to_string()),
    }
    let each = ForEach {
        socket: args.socket.clone(),
        disk: DiskSpec {
            format: args.format.clone(),
            read_only: args.read_only.then_some(true),
            policy: args.policy.clone(),
            readahead: args.readahead,
            queues: args.queues,
            nbd: args.nbd.as_ref().map(|_| true),
            vhost_user: args.no_vhost_user.then_some(false),
            ..DiskSpec::default()
        },
    };
    add_images(&mut spec, &args.image, &each, nbd_beside, machine);
    config::resolve(&spec, machine, Vec::new()).accept()
}

/// Ends of the names of disk images.
const IMAGE_ENDS: [&str; 8] = ["qcow2", "raw", "img", "iso", "vmdk", "vdi", "vhd", "vhdx"];

/// What is said if an image was named where a configuration belongs.
pub(super) fn in_place_of_configuration(file: &Path) -> Option<Problems> {
    let shown = file.display().to_string();
    let served = format!("`undercroft serve --image {}`", attach::shell(&shown));
    if config::images::scheme(&shown).is_some() {
        return Some(one_problem(
            &format!("{shown} is an image, not a configuration file"),
            &format!("serve it by {served}"),
        ));
    }
    if is_image(file) {
        return Some(one_problem(
            &format!("{shown} is a disk image, not a configuration"),
            &format!("serve it by {served}"),
        ));
    }
    let named_so = file.extension().and_then(|e| e.to_str()).is_some_and(|e| IMAGE_ENDS.contains(&e));
    if named_so && !file.exists() {
        return Some(one_problem(
            &format!("{shown} does not exist, and would be a disk image, not a configuration"),
            &format!("make it (`qemu-img create`), and serve it by {served}"),
        ));
    }
    if named_so && fs::metadata(file).is_ok_and(|about| about.is_file() && about.len() == 0) {
        let size = match file.extension().and_then(|e| e.to_str()) {
            Some("qcow2") => format!("qemu-img create -f qcow2 {} 10G", attach::shell(&shown)),
            _ => format!("truncate -s 10G {}", attach::shell(&shown)),
        };
        return Some(one_problem(
            &format!("{shown} would be a disk image, not a configuration, and the image is empty"),
            &format!("give it a size, for instance by `{size}`, and serve it by {served}"),
        ));
    }
    None
}

/// Whether a file is an image rather than a configuration: a block device, or bytes that no text has.
fn is_image(file: &Path) -> bool {
    let Ok(about) = fs::metadata(file) else { return false };
    if about.file_type().is_block_device() {
        return true;
    }
    // What is read of a pipe here would be missing from the configuration.
    if !about.is_file() {
        return false;
    }
    let mut first = Vec::new();
    let read = fs::File::open(file).and_then(|f| f.take(4096).read_to_end(&mut first));
    read.is_ok() && (first.starts_with(b"QFI\xfb") || first.contains(&0))
}

fn one_problem(error: &str, remedy: &str) -> Problems {
    let problem = Problem {
        severity: Severity::Error,
        line: None,
        place: String::new(),
        error: error.to_string(),
        remedy: remedy.to_string(),
    };
    Problems { file: None, problems: vec![problem] }
}

/// What is printed once the images are served: where, and what QEMU needs.
pub(crate) fn announce(plan: &ServePlan) -> String {
    let mut text = String::new();
    for disk in &plan.disks {
        let attachment = Attachment::of_plan(plan, disk);
        text += &format!(
            "disk \"{}\": {} cached in {} of memory ({})\n",
            disk.name,
            disk.image.location,
            Size(disk.share_bytes),
            disk.policy
        );
        if let Some(args) = attachment.qemu(Size(4 << 30)) {
            text += "  QEMU, with the guest's memory shared (set its size):\n";
            text += &format!("    qemu-system-x86_64 -M q35,accel=kvm -m 4G \\\n{}\n", attach::broken(&args, "      "));
        }
        for uri in attachment.nbd_uris() {
            text += &format!("  NBD: {uri}\n");
        }
    }
    text += &format!(
        "`undercroft status{}` shows how it goes; Ctrl-C stops.\n",
        if plan.overrides.control_socket.is_some() {
            format!(" --control {}", attach::shell(&plan.daemon.control_socket.display().to_string()))
        } else {
            String::new()
        }
    );
    text
}
