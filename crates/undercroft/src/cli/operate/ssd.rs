//! `undercroft ssd`: the SSD store, told, switched and emptied.
//!
//! Owns the lines. Never opens a device: the daemon does. Invariant: success is only said once the daemon has said it.

use super::args::{SsdArgs, SsdCommand};
use super::control::full_name;
use crate::cli::output::{Out, json};
use crate::cli::style::{WARNING, paint};
use crate::cli::table::{lines, plain};
use crate::cli::watch::watch;
use crate::cli::{Failure, control_socket};
use hyper::Method;
use std::path::Path;
use undercroft_api::client::{self, ssd_drop_path};
use undercroft_api::ssd::SsdChangeBody;
use undercroft_api::{Dropped, SsdClasses, SsdCounters, SsdStatus};
use undercroft_units::human_size;

/// Runs it.
///
/// # Errors
/// The daemon has no SSD store, or refused; or there is no daemon.
pub fn run(args: &SsdArgs, out: &mut Out) -> Result<(), Failure> {
    match &args.command {
        None => {
            let socket = control_socket(&args.control.control);
            watch(args.watch, !args.json, out, || {
                let status: SsdStatus = client::request_json(&socket, Method::GET, "/v1/ssd", None)?;
                Ok(if args.json { json(&status, args.watch.is_some())? } else { describe(&status) })
            })
        }
        Some(SsdCommand::Start(control)) => switch(&control_socket(&control.control), true, out),
        Some(SsdCommand::Stop(control)) => switch(&control_socket(&control.control), false, out),
        Some(SsdCommand::Drop { disk, control, .. }) => {
            drop_from(&control_socket(&control.control), disk.as_deref(), out)
        }
    }
}

fn switch(socket: &Path, in_service: bool, out: &mut Out) -> Result<(), Failure> {
    let body = serde_json::to_string(&SsdChangeBody { in_service }).map_err(|e| Failure::Said(e.to_string()))?;
    let status: SsdStatus = client::request_json(socket, Method::PATCH, "/v1/ssd", Some(body))?;
    let made = status.made.as_ref().map_or(String::new(), |why| format!("; it was made anew: {why}"));
    let now = if status.in_service { "in service" } else { "out of service, and its files and devices are closed" };
    out.line(&format!("the SSD store is {now}{made}"))?;
    Ok(())
}

fn drop_from(socket: &Path, disk: Option<&str>, out: &mut Out) -> Result<(), Failure> {
    let (path, what) = match disk {
        Some(name) => {
            // What is not found is left for the daemon to refuse.
            let name = full_name(socket, name)?.unwrap_or_else(|| name.to_owned());
            (ssd_drop_path(Some(&name)), format!("disk \"{name}\""))
        }
        None => (ssd_drop_path(None), "all disks".to_owned()),
    };
    let dropped: Dropped = client::request_json(socket, Method::POST, &path, None)?;
    out.line(&format!("{what}: {} dropped from the SSD store", human_size(dropped.dropped_bytes)))?;
    Ok(())
}

/// One line, for `status`.
pub(super) fn summary(s: &SsdStatus) -> String {
    if !s.in_service {
        let why = s.reason.as_deref().unwrap_or("it is closed");
        return format!("{}: {why}\n", paint(WARNING, "SSD store out of service"));
    }
    let (cached, room) = (human_size(s.cached_bytes), human_size(s.capacity_bytes));
    format!("SSD store: {cached} of {room}, {} hits, {} written\n", s.counters.hits, human_size(written(s)))
}

fn written(s: &SsdStatus) -> u64 {
    let w = &s.written;
    w.admitted_bytes + w.cleaning_bytes + w.summaries_bytes + w.tables_bytes
}

fn describe(s: &SsdStatus) -> String {
    let mut text = summary(s);
    if let Some(why) = s.reason.as_ref().filter(|_| s.in_service) {
        text += &format!("{}: {why}\n", paint(WARNING, "not all of it is in service"));
    }
    if let Some(made) = &s.made {
        text += &format!("it was made anew when it was opened: {made}\n");
    }
    let limit = s.writes_per_day_bytes.map_or("no limit".to_owned(), |b| format!("{} a day", human_size(b)));
    let (w, c) = (&s.written, &s.counters);
    let own = w.summaries_bytes + w.tables_bytes;
    let times = s.write_amplification.map_or(String::new(), |a| format!("; {a:.3} bytes for each byte admitted"));
    let rows = [
        ("held", format!("{} are in RAM or with guests as well, and go first", human_size(s.held_bytes))),
        ("equal", format!("{} take no room, since equal blocks were there", human_size(s.deduplicated_bytes))),
        (
            "memory",
            format!(
                "{} of {} set aside in store.memory",
                human_size(s.memory_bytes),
                human_size(s.memory_reserved_bytes)
            ),
        ),
        ("found", format!("{} of {} blocks", c.hits, c.hits + c.misses)),
        ("admit", format!("{}: {} blocks admitted, {} of them not written", s.admit, c.admitted, c.deduplicated)),
        ("classes", classes(&c.classes)),
        ("refused", refused(c)),
        (
            "written",
            format!(
                "{} admitted, {} kept, {} of its own{times}",
                human_size(w.admitted_bytes),
                human_size(w.cleaning_bytes),
                human_size(own)
            ),
        ),
        ("left", s.budget_left_bytes.map_or(limit.clone(), |left| format!("{} now, of {limit}", human_size(left)))),
        ("damaged", format!("{} blocks were not what was written, and came from images", c.mismatches)),
    ];
    text += &rows.iter().map(|(name, value)| format!("{name:<9} {value}\n")).collect::<String>();
    let mut table = plain(&["DEVICE", "KIND", "USED", "EACH WORKER", "WORKERS", "I/O"], 2);
    for d in &s.devices {
        table.add_row([
            d.path.clone(),
            if d.is_device { "device" } else { "file" }.to_owned(),
            human_size(d.size_bytes),
            human_size(d.region_bytes),
            d.regions_in_service.to_string(),
            if d.engine.is_empty() { "-".to_owned() } else { d.engine.clone() },
        ]);
    }
    text += &format!("\n{}", lines(&table));
    if !s.disks.is_empty() {
        let mut table = plain(&["DISK", "SHARE", "TARGET", "CACHED", "FOUND", "NOT FOUND", "ADMITTED"], 1);
        for d in &s.disks {
            let [share, target, cached] = [d.share_bytes, d.target_bytes, d.cached_bytes].map(human_size);
            let [found, missed, admitted] = [d.hits, d.misses, d.admitted].map(|n| n.to_string());
            table.add_row([d.disk.clone(), share, target, cached, found, missed, admitted]);
        }
        text += &format!("\n{}", lines(&table));
    }
    text
}

/// How many of the blocks of each class the rule admitted, if it tells them apart.
fn classes(c: &SsdClasses) -> String {
    let all = [
        (c.first, "first"),
        (c.first_sequential, "first, sequential"),
        (c.again, "again"),
        (c.again_sequential, "again, sequential"),
        (c.reused, "reused"),
    ];
    let said = all.iter().filter(|(n, _)| n.admitted + n.refused > 0);
    let said: Vec<String> =
        said.map(|(n, what)| format!("{what} {} of {}", n.admitted, n.admitted + n.refused)).collect();
    if said.is_empty() { "not told apart".to_owned() } else { said.join("; ") }
}

/// Blocks that were not admitted, by reason.
fn refused(c: &SsdCounters) -> String {
    let all = [
        (c.refused_rule, "by the rule"),
        (c.refused_budget, "over what may be written a day"),
        (c.refused_guest_holds, "held by guests"),
        (c.refused_no_room, "without a free segment"),
        (c.refused_staging, "with too many waiting"),
        (c.refused_range, "being changed"),
        (c.refused_out_of_service, "out of service"),
        (c.refused_no_share, "without a share"),
    ];
    let said: Vec<String> = all.iter().filter(|(n, _)| *n > 0).map(|(n, why)| format!("{n} {why}")).collect();
    if said.is_empty() { "none".to_owned() } else { said.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use undercroft_api::{SsdClass, SsdDeviceStatus, SsdWritten};

    fn plain_text(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn a_store_in_service_says_what_it_holds_and_what_was_written_and_why() {
        let status = SsdStatus {
            in_service: true,
            devices: vec![SsdDeviceStatus {
                path: "/var/lib/undercroft/ssd0".into(),
                size_bytes: 100 << 30,
                region_bytes: 50 << 30,
                regions_in_service: 2,
                engine: "io_uring".into(),
                ..SsdDeviceStatus::default()
            }],
            admit: "measured".into(),
            capacity_bytes: 100 << 30,
            cached_bytes: 3 << 30,
            deduplicated_bytes: 2 << 30,
            writes_per_day_bytes: Some(2 << 40),
            budget_left_bytes: Some(5 << 30),
            written: SsdWritten { admitted_bytes: 4 << 30, summaries_bytes: 1 << 20, ..SsdWritten::default() },
            write_amplification: Some(1.0421),
            counters: SsdCounters {
                hits: 7,
                misses: 3,
                admitted: 900,
                deduplicated: 30,
                refused_rule: 12,
                refused_budget: 1,
                classes: SsdClasses { again: SsdClass { admitted: 8, refused: 12 }, ..SsdClasses::default() },
                ..SsdCounters::default()
            },
            ..SsdStatus::default()
        };
        let text = plain_text(&describe(&status));
        for needle in [
            "SSD store: 3GiB of 100GiB, 7 hits, 4.0GiB written\n",
            "equal     2GiB take no room, since equal blocks were there\n",
            "found     7 of 10 blocks\n",
            "admit     measured: 900 blocks admitted, 30 of them not written\n",
            "classes   again 8 of 20\n",
            "refused   12 by the rule, 1 over what may be written a day\n",
            "written   4GiB admitted, 0B kept, 1MiB of its own; 1.042 bytes for each byte admitted\n",
            "left      5GiB now, of 2TiB a day\n",
            "/var/lib/undercroft/ssd0  file",
        ] {
            assert!(text.contains(needle), "{needle}\nis missing in\n{text}");
        }
    }

    #[test]
    fn a_store_out_of_service_says_why_first() {
        let status = SsdStatus { reason: Some("/x: No space".into()), ..SsdStatus::default() };
        assert!(plain_text(&describe(&status)).starts_with("SSD store out of service: /x: No space\n"));
        let status = SsdStatus { in_service: true, reason: Some("worker 1".into()), ..SsdStatus::default() };
        assert!(plain_text(&describe(&status)).contains("not all of it is in service: worker 1\n"));
    }
}
