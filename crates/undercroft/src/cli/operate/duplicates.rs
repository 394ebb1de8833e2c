//! `undercroft duplicates`: what this host's memory holds twice.
//!
//! Owns columns, the progress bar and what Ctrl-C does. Never counts anything itself. Invariant: whatever was read is
//! shown, and what could not be read is named with what would help.

use super::args::DuplicatesArgs;
use crate::cli::Failure;
use crate::cli::interrupt::interrupt;
use crate::cli::output::{Out, complain};
use crate::cli::table::{lines, plain};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fs::File;
use std::sync::atomic::Ordering;
use std::time::Duration;
use undercroft_host::idle::lowest_priority;
use undercroft_hostmem::scan::duplicates::{self, DuplicatesReport, ImageReport, Options, VmReport};
use undercroft_hostmem::scan::vm;
use undercroft_units::human_size;

/// The bar shows itself for what takes longer than this.
const BAR_AFTER: Duration = Duration::from_secs(2);

/// Runs it.
///
/// # Errors
/// Nothing could be read; or it was interrupted, after the report.
pub fn run(args: &DuplicatesArgs, out: &mut Out) -> Result<(), Failure> {
    let stop = interrupt()?;
    lowest_priority();

    let mut found = vm::find(&args.pid).map_err(|e| Failure::Said(format!("/proc cannot be read: {e}")))?;
    for path in &args.image {
        let shown = path.display();
        match File::open(path).and_then(|file| found.add_image(path, file, false)) {
            Ok(Some(_)) => {}
            Ok(None) => found.problems.push(format!("{shown} has no page cache: it is empty, memory or no file")),
            Err(e) => found.problems.push(format!("the page cache of {shown} cannot be looked at: {e}")),
        }
    }
    let nothing = found.vms.is_empty() && found.images.is_empty();
    if nothing && !found.problems.is_empty() {
        return Err(Failure::Said(found.problems.join("\n")));
    }
    let options = Options { sample: args.sample.value() / 100.0, cpu_percent: args.cpu.value() };
    let bar = bar();
    let began = std::time::Instant::now();
    let mut progress = |passed: u64, total: u64, what: &str| {
        if began.elapsed() >= BAR_AFTER {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.set_length(total);
            bar.set_message(what.to_string());
            bar.set_position(passed);
        }
    };
    let report = duplicates::run(found, &options, &stop, &mut progress)
        .map_err(|e| Failure::Said(format!("cannot make room for pages: {e}")))?;
    bar.finish_and_clear();

    if args.json {
        out.json(&report)?;
    } else {
        if nothing {
            out.line("No QEMU process runs on this host, so no guest holds anything.")?;
            out.line("Name another program's process with --pid, or a file with --image to see its page cache.")?;
        }
        out.write(&shown(&report))?;
    }
    out.flush()?;
    if !args.json {
        report.problems.iter().for_each(|p| complain(&format!("undercroft: {p}")));
    }
    if stop.load(Ordering::Relaxed) { Err(Failure::Interrupted) } else { Ok(()) }
}

/// A bar that nobody sees yet.
fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    let style = ProgressStyle::with_template("{wide_bar} {percent:>3}% {eta:>4} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn shown(report: &DuplicatesReport) -> String {
    let mut text = String::new();
    if !report.vms.is_empty() {
        text += &vms(&report.vms);
    }
    if !report.images.is_empty() {
        text += &format!("\n{}", images(&report.images));
    }
    if !report.vms.is_empty() || !report.images.is_empty() {
        text += &format!("\n{}", sums(report));
    }
    text
}

fn vms(vms: &[VmReport]) -> String {
    let mut t =
        plain(&["VM", "PID", "MEMORY", "PRESENT", "ZERO", "SAME VM", "OTHER VMS", "PAGE CACHE", "GIVE BACK"], 1);
    for vm in vms {
        let sizes = [
            vm.ram_bytes,
            vm.present_bytes,
            vm.zero_bytes,
            vm.same_vm_bytes,
            vm.other_vms_bytes,
            vm.page_cache_bytes,
            vm.give_back_bytes,
        ];
        t.add_row([vm.name.clone(), vm.pid.to_string()].into_iter().chain(sizes.map(human_size)));
    }
    lines(&t)
}

fn images(images: &[ImageReport]) -> String {
    let mut t = plain(&["IMAGE", "SIZE", "CACHED", "ZERO", "IN GUESTS", "SAME IMAGES", "GIVE BACK", "VMS"], 1);
    for image in images {
        let sizes = [
            image.size_bytes,
            image.cached_bytes,
            image.zero_bytes,
            image.in_guests_bytes,
            image.same_images_bytes,
            image.give_back_bytes,
        ];
        let cells = std::iter::once(image.path.clone()).chain(sizes.map(human_size));
        t.add_row(cells.chain([image.vms.join(", ")]));
    }
    lines(&t)
}

fn sums(report: &DuplicatesReport) -> String {
    let t = &report.total;
    let held = t.present_bytes + t.cached_bytes;
    let percent = if held == 0 { 0.0 } else { t.give_back_bytes as f64 * 100.0 / held as f64 };
    let mut text = format!(
        "{} could be given back, {percent:.1}% of the {} held by guests and the page cache of their images:\n",
        human_size(t.give_back_bytes),
        human_size(held),
    );
    text += &format!("  {:>8}  pages of zeroes\n", human_size(t.zero_bytes));
    text += &format!("  {:>8}  pages of guests that are equal\n", human_size(t.merge_bytes));
    text += &format!("  {:>8}  page cache that guests hold, too\n", human_size(t.double_cached_bytes));
    if t.ksm_saved_bytes > 0 {
        text += &format!("KSM saves {} of it already.\n", human_size(t.ksm_saved_bytes));
    }
    let shared: u64 = report.vms.iter().map(|v| v.shared_bytes).sum();
    if shared > 0 {
        text += &format!("{} of the guests' memory is shared memory, where KSM cannot merge.\n", human_size(shared));
    }
    let swapped: u64 = report.vms.iter().map(|v| v.swapped_bytes).sum();
    if swapped > 0 {
        text += &format!("{} is swapped out, and was not looked at.\n", human_size(swapped));
    }
    let unreadable: u64 = report.vms.iter().map(|v| v.unreadable_bytes).sum();
    if unreadable > 0 {
        text += &format!("{} could not be read.\n", human_size(unreadable));
    }
    if report.sample < 1.0 {
        text += &format!("Estimates from {}% of the contents; present and zero are exact.\n", report.sample * 100.0);
    }
    if !report.complete {
        text += "Interrupted: this is of what had been read.\n";
    }
    let rate = if report.cpu_seconds > 0.0 { report.read_bytes as f64 / report.cpu_seconds / 1e9 } else { 0.0 };
    text += &format!(
        "Read {} in {:.2} s, with {:.2} s of processor time ({rate:.1} GB/s).\n",
        human_size(report.read_bytes),
        report.seconds,
        report.cpu_seconds
    );
    text
}
