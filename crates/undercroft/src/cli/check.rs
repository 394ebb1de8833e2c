//! `undercroft check`: every problem of a configuration file.
//!
//! Owns how the result is shown. Invariant: exit code 0 exactly if `serve` would go on to open all images.

use super::args::CheckArgs;
use super::output::Out;
use super::{Failure, machine};
use crate::config::{self, Overrides, Problem, Problems, ServePlan, Severity};
use crate::units::{Size, Time};
use serde::Serialize;
use std::path::Path;

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
    policy: &'static str,
    share_bytes: u64,
    poll: Time,
}

/// Runs it.
///
/// # Errors
/// `Silent` if the file is bad: the problems have been printed.
pub fn run(args: &CheckArgs, out: &mut Out) -> Result<(), Failure> {
    let (plan, problems) = match config::load(&args.config, &machine(), &Overrides::default()) {
        Ok(resolution) => (Some(resolution.plan), resolution.problems),
        Err(unreadable) => (None, unreadable.problems),
    };
    let ok = problems.iter().all(|p| p.severity < Severity::Disk);
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
            Some(plan) => out.line(&summary(&args.config, &plan, warnings))?,
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

fn of_plan(disk: &config::DiskPlan) -> Disk<'_> {
    Disk {
        name: &disk.name,
        vm: disk.vm.as_deref(),
        image: &disk.image.location,
        read_only: disk.image.read_only,
        socket: disk.socket.as_deref(),
        nbd: disk.nbd,
        policy: disk.policy.name(),
        share_bytes: disk.share_bytes,
        poll: disk.poll.into(),
    }
}

fn summary(file: &Path, plan: &ServePlan, warnings: usize) -> String {
    let mut text = format!("{}: good: {}", file.display(), count(plan.disks.len(), "disk"));
    text += &format!(" in {} of memory", Size(plan.store.memory_bytes));
    if warnings > 0 {
        text += &format!(", {}", count(warnings, "warning"));
    }
    text
}

fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}
