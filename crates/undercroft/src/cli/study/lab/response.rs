//! `undercroft lab response`: what misses mean for response times.
//!
//! Owns the table and the form for programs. Never computes: `undercroft_study::processor::response` does.

use super::args::ResponseArgs;
use crate::cli::Failure;
use crate::cli::output::Out;
use crate::cli::table::{lines, plain};
use serde::Serialize;
use undercroft_study::processor::response::{Array, LINKS, MEDIA};

/// One number of misses on one link and disk.
#[derive(Serialize)]
struct Shown {
    link: &'static str,
    disk: &'static str,
    miss_percent: f64,
    miss_us: f64,
    mean_us: f64,
    /// Less than with the first number of misses, in percent.
    better_percent: f64,
}

/// Runs it.
///
/// # Errors
/// A number, a link or a disk makes no sense.
pub(super) fn run(args: &ResponseArgs, out: &mut Out) -> Result<(), Failure> {
    let percents = args.misses.iter().chain([&args.controller_hits]);
    if let Some(percent) = percents.into_iter().find(|p| !(0.0..=100.0).contains(*p)) {
        return Err(Failure::Said(format!("{percent} percent make no sense: 0 to 100 are possible")));
    }
    let mut shown: Vec<Shown> = Vec::new();
    for link in &args.link {
        let link = named(link, &LINKS, |l| l.name, "link")?;
        for disk in &args.disk {
            let medium = named(disk, &MEDIA, |m| m.name, "disk")?;
            let controller_us = args.controller.0 as f64 / 1000.0;
            let array = Array { link, medium, controller_us, controller_hits: args.controller_hits / 100.0 };
            let mean = |percent: f64| array.mean_us(args.block.0, percent / 100.0, args.hit.0 as f64 / 1000.0);
            let first = mean(args.misses[0]);
            shown.extend(args.misses.iter().map(|percent| Shown {
                link: link.name,
                disk: medium.name,
                miss_percent: *percent,
                miss_us: array.miss_us(args.block.0),
                mean_us: mean(*percent),
                better_percent: 100.0 * (first - mean(*percent)) / first,
            }));
        }
    }
    if args.json {
        return Ok(out.json(&shown)?);
    }
    let mut table = plain(&["LINK", "DISK", "MISS %", "A MISS", "MEAN", "BETTER"], 2);
    for row in &shown {
        table.add_row([
            row.link.to_string(),
            row.disk.to_string(),
            format!("{:.2}", row.miss_percent),
            format!("{:.0}us", row.miss_us),
            format!("{:.1}us", row.mean_us),
            format!("{:+.1} %", row.better_percent),
        ]);
    }
    Ok(out.write(&lines(&table))?)
}

fn named<T: Copy>(name: &str, all: &[T], of: impl Fn(&T) -> &'static str, what: &str) -> Result<T, Failure> {
    all.iter().find(|one| of(one) == name).copied().ok_or_else(|| {
        let known = all.iter().map(of).collect::<Vec<_>>().join(", ");
        Failure::Said(format!("there is no {what} \"{name}\"; known are {known}"))
    })
}
