//! `undercroft ksm`: what the kernel merges of guests' RAM, told and switched.
//!
//! Owns the table. `status` reads the kernel's files only; `on` and `off` ask the daemon, which puts back what it
//! found. Never writes a setting itself. Invariant: whoever switches merging on here has been shown what it gives away.

use super::args::{KsmArgs, KsmCommand};
use crate::cli::output::{self, Out};
use crate::cli::style::{WARNING, paint};
use crate::cli::table::{lines, with_left};
use crate::cli::{Failure, control_socket};
use hyper::Method;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;
use undercroft_api::body::KsmChangeBody;
use undercroft_api::{KsmStatus, client};
use undercroft_hostmem::ksm::{Ksm, KsmGuest, Numbers, SHARED_RAM, SIDE_CHANNEL, SYSFS, Settings, guests};
use undercroft_units::human_size;

/// Everything that `undercroft ksm status --json` says.
#[derive(Debug, Serialize)]
struct Report {
    /// Whether this kernel has KSM.
    available: bool,
    settings: Settings,
    numbers: Numbers,
    guests: Vec<KsmGuest>,
}

/// Runs it.
///
/// # Errors
/// /proc cannot be read; or the daemon refused, or there is none.
pub fn run(args: &KsmArgs, out: &mut Out) -> Result<(), Failure> {
    match &args.command {
        KsmCommand::Status { json } => {
            let report = look(&Ksm::here(), Path::new("/proc"))?;
            if *json {
                out.json(&report)?;
            } else {
                out.write(&describe(&report))?;
            }
            Ok(())
        }
        KsmCommand::On(control) => {
            output::complain(&format!("warning: {SIDE_CHANNEL}."));
            switch(&control.control, KsmChangeBody { manage: true, unmerge: false }, out)
        }
        KsmCommand::Off { unmerge, control } => {
            switch(&control.control, KsmChangeBody { manage: false, unmerge: *unmerge }, out)
        }
    }
}

fn look(ksm: &Ksm, proc: &Path) -> Result<Report, Failure> {
    // The mappings of a large guest take a while; a person is told which one, should it come to seconds.
    let bar = ProgressBar::new_spinner()
        .with_style(ProgressStyle::with_template("{spinner} {msg}").unwrap_or(ProgressStyle::default_spinner()));
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    bar.enable_steady_tick(Duration::from_secs(2));
    let guests = guests(proc, |pid| bar.set_message(format!("reading the memory map of process {pid}")));
    bar.finish_and_clear();
    let guests = guests.map_err(|e| Failure::Said(format!("{} cannot be read: {e}", proc.display())))?;
    Ok(Report { available: ksm.exists(), settings: ksm.settings(), numbers: ksm.numbers(), guests })
}

fn switch(control: &Option<std::path::PathBuf>, body: KsmChangeBody, out: &mut Out) -> Result<(), Failure> {
    let socket = control_socket(control);
    let text = serde_json::to_string(&body).map_err(|e| Failure::Said(e.to_string()))?;
    let status: KsmStatus = client::request_json(&socket, Method::PATCH, "/v1/ksm", Some(text))?;
    for problem in &status.problems {
        output::complain(&format!("undercroft: {problem}"));
    }
    let run = switch_words(status.settings.run);
    let keeps = if status.managed { "; what was found is put back when the daemon ends" } else { ", as it was found" };
    out.line(&format!("KSM is {run}{keeps}"))?;
    Ok(())
}

fn switch_words(run: Option<i64>) -> &'static str {
    match run {
        Some(0) => "off; what is merged stays merged",
        Some(1) => "on",
        Some(2) => "off, and everything is unmerged",
        _ => "in a state that is not known here",
    }
}

fn pages(n: Option<i64>) -> String {
    let bytes = |n: i64| u64::try_from(n).unwrap_or(0).saturating_mul(4096);
    n.map_or("-".to_string(), |n| human_size(bytes(n)))
}

fn signed(n: Option<i64>) -> String {
    n.map_or("-".to_string(), |n| format!("{}{}", if n < 0 { "-" } else { "" }, human_size(n.unsigned_abs())))
}

fn describe(r: &Report) -> String {
    let mut text = if r.available {
        kernel(&r.settings, &r.numbers)
    } else {
        format!("This kernel has no KSM ({SYSFS} is missing; it needs CONFIG_KSM=y): nothing is merged.\n")
    };
    text.push('\n');
    if r.guests.is_empty() {
        return text + "No QEMU process is running.\n";
    }
    let header = ["PID", "GUEST", "MERGEABLE", "MERGED", "ZERO", "PROFIT", "NOT MARKED", "HUGE", "SHARED"];
    let mut table = with_left(&header, |column| column == 1);
    let size = |b: u64| if b == 0 { "-".to_string() } else { human_size(b) };
    for g in &r.guests {
        table.add_row([
            g.pid.to_string(),
            g.name.clone(),
            size(g.mergeable_bytes),
            g.merged_bytes.map_or("?".into(), human_size),
            g.zero_bytes.map_or("?".into(), human_size),
            signed(g.profit_bytes),
            size(g.unmarked_bytes),
            size(g.huge_bytes),
            size(g.shared_bytes),
        ]);
    }
    text += &lines(&table);
    for guest in &r.guests {
        let said = reasons(guest);
        text += &said.iter().map(|what| format!("{} ({}): {what}\n", guest.name, guest.pid)).collect::<String>();
    }
    text
}

/// What the kernel merges, and how it is set.
fn kernel(s: &Settings, n: &Numbers) -> String {
    let pace = match (s.advisor_mode.as_deref(), s.pages_to_scan, s.sleep_millisecs) {
        (Some("scan-time"), Some(pages), _) => {
            let target = s.advisor_target_scan_time.unwrap_or(0);
            format!("{pages} pages at a time, set by the advisor for a scan in {target}s")
        }
        (_, Some(pages), Some(ms)) => format!("{pages} pages every {ms}ms"),
        _ => "at an unknown pace".to_string(),
    };
    let flag = |b: Option<bool>| b.map_or("not in this kernel", |b| if b { "yes" } else { "no" }).to_string();
    let rows = [
        ("KSM", switch_words(s.run).to_string()),
        ("pace", pace),
        ("advisor", s.advisor_mode.clone().unwrap_or_else(|| "not in this kernel (Linux 6.7)".into())),
        ("smart scan", flag(s.smart_scan)),
        ("zero pages", flag(s.use_zero_pages)),
        ("merged pages", format!("{}, used in place of {} more", pages(n.pages_shared), pages(n.pages_sharing))),
        ("not merged", format!("{} unlike any other, {} changing", pages(n.pages_unshared), pages(n.pages_volatile))),
        ("profit", signed(n.general_profit)),
        ("full scans", n.full_scans.map_or("-".into(), |n| n.to_string())),
    ];
    let mut text: String = rows.iter().map(|(name, value)| format!("{name:<14} {value}\n")).collect();
    if s.run == Some(1) || n.pages_sharing.is_some_and(|p| p > 0) {
        text += &format!("{} {SIDE_CHANNEL}.\n", paint(WARNING, "Warning:"));
    }
    text
}

/// Why memory of a guest is not merged.
fn reasons(g: &KsmGuest) -> Vec<String> {
    let mut said = Vec::new();
    if g.shared_bytes > 0 {
        let with = if g.shared_with.is_empty() { String::new() } else { format!(" ({})", g.shared_with.join(", ")) };
        said.push(format!("{}{with} cannot be merged: {SHARED_RAM}", human_size(g.shared_bytes)));
    }
    if g.unmarked_bytes > 0 {
        let unmarked = human_size(g.unmarked_bytes);
        said.push(format!("{unmarked} is private, but not marked for merging (mem-merge=off)"));
    }
    if g.huge_bytes > 0 {
        let huge = human_size(g.huge_bytes);
        said.push(format!("{huge} of huge pages cannot be merged: the kernel merges pages of 4KiB only"));
    }
    said.extend(g.unknown.clone());
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(guests: Vec<KsmGuest>) -> Report {
        let settings =
            Settings { run: Some(1), pages_to_scan: Some(100), sleep_millisecs: Some(20), ..Settings::default() };
        let numbers = Numbers {
            pages_shared: Some(256),
            pages_sharing: Some(512),
            general_profit: Some(-4096),
            ..Numbers::default()
        };
        Report { available: true, settings, numbers, guests }
    }

    #[test]
    fn what_cannot_be_merged_is_said_with_the_reason() {
        let shared = KsmGuest {
            pid: 7,
            name: "web".into(),
            shared_bytes: 64 << 20,
            shared_with: vec!["/memfd:memory-backend-memfd".into()],
            merged_bytes: Some(0),
            ..KsmGuest::default()
        };
        let text = describe(&report(vec![shared]));
        let line = text.lines().last().unwrap();
        assert!(
            line.starts_with(
                "web (7): 64MiB (/memfd:memory-backend-memfd) cannot be merged: the kernel merges private"
            ),
            "{line}"
        );
        assert!(text.contains("1MiB, used in place of 2MiB more") && text.contains("-4KiB"), "{text}");
        let plain = anstream::adapter::strip_str(&text).to_string();
        assert!(plain.contains("Warning: merging lets a guest find out"), "{text}");
    }

    #[test]
    fn a_kernel_without_it_is_told_plainly() {
        let none =
            Report { available: false, settings: Settings::default(), numbers: Numbers::default(), guests: vec![] };
        let text = describe(&none);
        assert!(
            text.starts_with("This kernel has no KSM (/sys/kernel/mm/ksm is missing; it needs CONFIG_KSM=y)"),
            "{text}"
        );
        assert!(text.ends_with("No QEMU process is running.\n"));
    }
}
