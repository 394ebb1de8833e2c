//! `undercroft trace info`: what a trace is like.
//!
//! Owns the table and the JSON. Invariant: both say the same.

use super::args::InfoArgs;
use super::{Session, failure, open};
use crate::cli::Failure;
use crate::cli::meter::Meter;
use crate::cli::output::Out;
use crate::cli::study::reading::warn;
use crate::cli::table::{lines, plain};
use undercroft_trace::Summary;
use undercroft_trace::info::{Info, TenantInfo};
use undercroft_units::{human_size, human_time};

/// Tenants that the table shows.
const TENANTS_SHOWN: usize = 20;

/// Runs it.
///
/// # Errors
/// A trace cannot be read, or it was interrupted.
pub(super) fn info(args: &InfoArgs, session: &Session, out: &mut Out) -> Result<(), Failure> {
    let mut all = Vec::new();
    for path in &args.traces {
        let mut reader = open(path, &args.input)?;
        let mut summary = Summary::new(reader.blocks());
        let mut meter = Meter::new(vec![reader.progress()]);
        let mut requests = Vec::new();
        while reader.next_requests(&mut requests).map_err(failure)? > 0 {
            session.go_on()?;
            summary.add(&requests);
            meter.add(requests.len());
        }
        session.go_on()?;
        drop(meter);
        warn(&reader);
        let info = Info::of(&reader, &summary);
        if args.json {
            all.push(info);
        } else {
            if args.traces.len() > 1 && path != &args.traces[0] {
                out.line("")?;
            }
            out.write(&text(&info))?;
        }
    }
    if args.json {
        out.json(&all)?;
    }
    Ok(())
}

fn text(info: &Info) -> String {
    let a = &info.all;
    let percent = |n: u64| if a.requests == 0 { 0.0 } else { n as f64 * 100.0 / a.requests as f64 };
    let mut lines = vec![format!("{}: {}", info.trace, info.format)];
    let mut line = |what: &str, value: String| lines.push(format!("  {what:<12} {value}"));
    line("requests", grouped(a.requests));
    let block = match (info.block_bytes, info.unit) {
        (Some(bytes), _) => format!("blocks of {}", human_size(u64::from(bytes))),
        (None, "keys") => "keys".to_owned(),
        (None, _) => "the first sector of each request".to_owned(),
    };
    line("accesses", format!("{} to {block}", grouped(a.accesses)));
    let exact = if info.footprint_exact { "" } else { "about " };
    let size = info.footprint_bytes.map_or(String::new(), |b| format!(", {}", human_size(b)));
    line("footprint", format!("{exact}{} distinct{size}", grouped(info.footprint_blocks)));
    if a.reads + a.writes > 0 {
        line("reads", format!("{} ({:.1}%)", grouped(a.reads), percent(a.reads)));
        line("writes", format!("{} ({:.1}%)", grouped(a.writes), percent(a.writes)));
    }
    if a.bytes > 0 {
        let written =
            if a.writes > 0 { format!(", {} of them written", human_size(a.bytes_written)) } else { String::new() };
        line("bytes", format!("{}{written}", human_size(a.bytes)));
    }
    match (info.first_ns, info.last_ns) {
        (Some(first), Some(last)) if last > 0 => line("time", format!("{} long", human_span(last - first))),
        _ => line("time", "not known".to_owned()),
    }
    if info.tenants.len() > 1 {
        line("tenants", grouped(info.tenants.len() as u64));
    }
    let mut text = lines.join("\n") + "\n";
    if info.tenants.len() > 1 {
        text += &tenants(info);
    }
    text
}

fn tenants(info: &Info) -> String {
    let mut by_size: Vec<&TenantInfo> = info.tenants.iter().collect();
    by_size.sort_by_key(|t| std::cmp::Reverse(t.all.requests));
    let mut table = plain(&["TENANT", "REQUESTS", "ACCESSES", "WRITES", "BYTES", "FOOTPRINT"], 1);
    for t in by_size.iter().take(TENANTS_SHOWN) {
        let footprint = t.footprint_blocks.map_or("-".to_owned(), grouped);
        let (requests, accesses, writes) = (grouped(t.all.requests), grouped(t.all.accesses), grouped(t.all.writes));
        table.add_row([t.name.clone(), requests, accesses, writes, human_size(t.all.bytes), footprint]);
    }
    let mut text: String = lines(&table).lines().map(|l| format!("  {l}\n")).collect();
    if by_size.len() > TENANTS_SHOWN {
        text += &format!("  and {} more; --json has them all\n", by_size.len() - TENANTS_SHOWN);
    }
    text
}

/// `1,234,567`.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, c) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(c);
    }
    text
}

/// A long time as days and hours, a short one as elsewhere.
fn human_span(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60) {
        (0, 0, 0 | 1) => human_time(ns),
        (0, 0, minutes) => format!("{minutes}min {}s", seconds % 60),
        (0, hours, minutes) => format!("{hours}h {minutes}min"),
        (days, hours, _) => format!("{days}d {hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_spans_read_well() {
        assert_eq!((grouped(0), grouped(999), grouped(1_234_567)), ("0".into(), "999".into(), "1,234,567".into()));
        assert_eq!(human_span(90_061 * 1_000_000_000), "1d 1h");
        assert_eq!(human_span(3_700 * 1_000_000_000), "1h 1min");
        assert_eq!(human_span(150 * 1_000_000_000), "2min 30s");
        assert_eq!(human_span(1_500_000), "1.5ms");
    }
}
