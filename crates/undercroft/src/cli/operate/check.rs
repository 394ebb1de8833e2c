//! `undercroft check`: every problem of a configuration file, and of the images that it names.
//!
//! Owns how the result is shown. Never writes to an image. Invariant: exit code 0 exactly if `serve` would open the
//! images, and writes to those that are not read-only would be served, as far as that can be told of images that are in
//! use, or not for this user to read; and if no disk is to be a file or a device that this host cannot make.

use super::args::CheckArgs;
use super::serve::in_place_of_configuration;
use crate::cli::meter::Meter;
use crate::cli::output::Out;
use crate::cli::{Failure, machine};
use serde::Serialize;
use std::path::Path;
use undercroft_backend::qcow2::{Examined, examine};
use undercroft_backend::{OpenError, OpenOptions};
use undercroft_config::{self as config, Overrides, Problem, Problems, ServePlan, Severity};
use undercroft_config::{ImageFormat, ImageSpec};
use undercroft_daemon::service::obstacles::{Obstacle, obstacles};
use undercroft_units::{Size, Time};

#[derive(Serialize)]
struct Report<'a> {
    file: &'a Path,
    ok: bool,
    problems: &'a [Problem],
    memory_bytes: Option<u64>,
    disks: Vec<Disk<'a>>,
}

#[derive(Serialize)]
struct Disk<'a> {
    name: &'a str,
    vm: Option<&'a str>,
    image: &'a str,
    read_only: bool,
    socket: Option<&'a Path>,
    nbd: bool,
    file: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'a Path>,
    policy: &'static str,
    share_bytes: u64,
    poll: Time,
}

/// Runs it.
///
/// # Errors
/// `Silent` if the file is bad: the problems have been printed.
pub fn run(args: &CheckArgs, out: &mut Out) -> Result<(), Failure> {
    let loaded = match in_place_of_configuration(&args.config) {
        Some(image) => Err(image),
        None => config::load(&args.config, &machine(), &Overrides::default()),
    };
    let (plan, mut problems) = match loaded {
        Ok(resolution) => (Some(resolution.plan), resolution.problems),
        Err(unreadable) => (None, unreadable.problems),
    };
    let unusable = |p: &Problem| p.severity == Severity::Error;
    if let Some(plan) = plan.as_ref().filter(|_| !problems.iter().any(unusable)) {
        problems.extend(plan.disks.iter().filter_map(of_image));
        problems.extend(plan.disks.iter().flat_map(|disk| of_host(disk, &plan.daemon.runtime_dir)));
    }
    let least = if args.let_wait { Severity::Error } else { Severity::Disk };
    let ok = problems.iter().all(|p| p.severity < least);
    if args.json {
        let good = plan.as_ref().filter(|_| ok);
        out.json(&Report {
            file: &args.config,
            ok,
            problems: &problems,
            memory_bytes: good.map(|p| p.store.memory_bytes),
            disks: good.map_or(Vec::new(), |p| p.disks.iter().map(of_plan).collect()),
        })?;
    } else {
        let (errors, warnings): (Vec<_>, Vec<_>) = problems.iter().partition(|p| p.severity >= Severity::Disk);
        let (errors, warnings) = (errors.len(), warnings.len());
        if !problems.is_empty() {
            out.line(&Problems { file: Some(args.config.clone()), problems }.to_string())?;
        }
        match plan.filter(|_| ok) {
            Some(plan) => out.line(&summary(&args.config, &plan, errors, warnings))?,
            None => out.line(&format!(
                "{}: {} and {}",
                args.config.display(),
                count(errors, "error"),
                count(warnings, "warning")
            ))?,
        }
    }
    if ok {
        Ok(())
    } else {
        out.flush()?;
        Err(Failure::Silent)
    }
}

/// A problem of a disk's image.
fn problem_of(disk: &config::DiskPlan, severity: Severity, error: String, remedy: &str) -> Problem {
    let place = format!("disk \"{}\", image {}", disk.name, disk.image.location);
    Problem { severity, line: None, place, error, remedy: remedy.to_owned() }
}

/// What stands on this host against a disk's being a file or a block device.
fn of_host(disk: &config::DiskPlan, runtime_dir: &Path) -> Vec<Problem> {
    let problem = |Obstacle { error, key, is_of_user }| {
        let severity = if is_of_user { Severity::Warning } else { Severity::Disk };
        let remedy = format!("or leave `{key}` out, and have the disk reached in another way");
        Problem { severity, line: None, place: format!("disk \"{}\", `{key}`", disk.name), error, remedy }
    };
    obstacles(disk, runtime_dir).into_iter().map(problem).collect()
}

/// Why a disk's image would not be opened, or what is wrong with its tables.
fn of_image(disk: &config::DiskPlan) -> Option<Problem> {
    not_opened(disk).or_else(|| of_tables(disk))
}

/// A list of blocks that is of another disk: one of another size.
fn of_lists(disk: &config::DiskPlan, size_bytes: u64) -> Option<Problem> {
    disk.pins.iter().chain(&disk.lock_profile).find_map(|path| {
        // One that cannot be read has been said already.
        let list = config::read_list(path).ok().filter(|list| list.size_bytes() != size_bytes)?;
        let error = format!(
            "the list of blocks {} is of a disk of {} bytes, and this one has {size_bytes}",
            path.display(),
            list.size_bytes()
        );
        Some(problem_of(disk, Severity::Disk, error, "write it anew: `undercroft pin DISK --write FILE`"))
    })
}

/// Why a disk's image would not be opened, if it is a file; what others do with it at the moment does not count. And
/// what is wrong with its lists of blocks.
fn not_opened(disk: &config::DiskPlan) -> Option<Problem> {
    if disk.image.format == Some(ImageFormat::Nbd) || config::images::scheme(&disk.image.location).is_some() {
        return None;
    }
    let to_read = ImageSpec { read_only: true, ..disk.image.clone() };
    match undercroft_backend::open(&to_read, &OpenOptions::default()) {
        Ok(image) => of_lists(disk, image.geometry().size_bytes),
        Err(OpenError::InUse { .. } | OpenError::Permission { .. } | OpenError::Io { .. }) => None,
        // Said already: it is an error of the configuration.
        Err(OpenError::NotFound { image, .. }) if image == disk.image.location => None,
        Err(e) => {
            let said = e.to_string();
            let (error, remedy) = said.rsplit_once("; ").unwrap_or((&said, "repair, convert or replace the image"));
            Some(problem_of(disk, Severity::Disk, error.to_owned(), remedy))
        }
    }
}

/// What is wrong with the tables of a disk's image, if it is a qcow2 file that nothing uses.
fn of_tables(disk: &config::DiskPlan) -> Option<Problem> {
    let qcow2 = match disk.image.format {
        None if config::images::scheme(&disk.image.location).is_none() => false,
        Some(ImageFormat::Qcow2) => true,
        _ => return None,
    };
    let mut meter: Option<(u64, Meter)> = None;
    let found = examine(&disk.image.location, qcow2, |done, of| {
        let (total, meter) = meter.get_or_insert_with(|| (of, meter_of(&disk.image.location, of)));
        if *total != of {
            // How much there is to read is known only after the first tables.
            (*total, *meter) = (of, meter_of(&disk.image.location, of));
        }
        meter.at(done);
    });
    if let Some((_, meter)) = &mut meter {
        meter.hide();
    }
    let problem = |severity, error, remedy: &str| Some(problem_of(disk, severity, error, remedy));
    let repair = "run `qemu-img check -r all` on a copy of it, or give the disk `read_only = true`";
    match found {
        Ok(Examined::Other | Examined::Sound(_)) => None,
        // It would be opened, and only be read.
        Ok(Examined::ReadOnly(why)) if disk.image.read_only => problem(Severity::Warning, why, repair),
        Ok(Examined::ReadOnly(why)) => problem(Severity::Disk, why, repair),
        Err(e @ (OpenError::Damaged { .. } | OpenError::Unsupported { .. })) => {
            problem(Severity::Disk, e.to_string(), "repair, convert or replace the image")
        }
        // Said already: it is an error of the configuration.
        Err(OpenError::NotFound { image, .. }) if image == disk.image.location => None,
        // In use, say, or not for this user to read.
        Err(e) => problem(Severity::Warning, format!("its tables were not verified: {e}"), "check it again then"),
    }
}

fn meter_of(image: &str, tables: u64) -> Meter {
    Meter::of_requests(tables).named(format!("verifying {image}"), "tables")
}

fn of_plan(disk: &config::DiskPlan) -> Disk<'_> {
    Disk {
        name: &disk.name,
        vm: disk.vm.as_deref(),
        image: &disk.image.location,
        read_only: disk.image.read_only,
        socket: disk.socket.as_deref(),
        nbd: disk.nbd,
        file: disk.file.as_deref(),
        device: disk.device.as_deref(),
        policy: disk.policy.name(),
        share_bytes: disk.share_bytes,
        poll: disk.poll.into(),
    }
}

fn summary(file: &Path, plan: &ServePlan, faults: usize, warnings: usize) -> String {
    let mut text = format!("{}: good: {}", file.display(), count(plan.disks.len(), "disk"));
    text += &format!(" in {} of memory", Size(plan.store.memory_bytes));
    if faults > 0 {
        text += &format!(", {} for which disks wait", count(faults, "fault"));
    }
    if warnings > 0 {
        text += &format!(", {}", count(warnings, "warning"));
    }
    text
}

fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}
