//! How much of a host's memory is held twice, by guest and by image.
//!
//! Owns the walk over guests and images and the figures of the report. Never writes, and never makes a page resident.
//! Invariants: every figure in bytes counts whole pages; `zero + nonzero` is what is present and could be read; with a
//! sample, zero and present are exact and the rest is scaled.
//!
//! A sample is chosen by content, not by place: a page is taken if 64 bytes in its middle say so, and pages where these
//! are zero if their hash does. Equal pages are so taken together or not at all, which a sample of places would tear
//! apart.

use super::hash::{PageHash, is_zero};
use super::source::{Source, Walked};
use super::tally::{Holder, Tally};
use super::throttle::Throttle;
use super::vm::{Found, ksm_pages};
use serde::Serialize;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use undercroft_host::foreign::{Batch, PAGE_BYTES, PageRun, Piece};
use undercroft_host::idle::thread_cpu_ns;
use undercroft_host::now_ns;

const PAGE: u64 = PAGE_BYTES as u64;

/// How to look.
#[derive(Clone, Debug)]
pub struct Options {
    /// Part of the contents to compare: above 0, 1 for all.
    pub sample: f64,
    /// Ceiling of processor time, in percent of one core.
    pub cpu_percent: f64,
}

/// The report, as `--json` shows it.
#[derive(Clone, Debug, Serialize)]
pub struct DuplicatesReport {
    /// Whether everything was read; false after an interruption.
    pub complete: bool,
    /// Part of the contents that was compared; below 1 the figures but `present` and `zero` are estimates.
    pub sample: f64,
    /// How long it took.
    pub seconds: f64,
    /// Processor time it took.
    pub cpu_seconds: f64,
    /// Bytes copied and looked at.
    pub read_bytes: u64,
    /// By guest.
    pub vms: Vec<VmReport>,
    /// By image.
    pub images: Vec<ImageReport>,
    /// Together.
    pub total: TotalReport,
    /// What could not be looked at.
    pub problems: Vec<String>,
}

/// One guest.
#[derive(Clone, Debug, Default, Serialize)]
pub struct VmReport {
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Size of its memory.
    pub ram_bytes: u64,
    /// Of that, shared memory, which the kernel (KSM) cannot merge.
    pub shared_bytes: u64,
    /// In memory.
    pub present_bytes: u64,
    /// Swapped out, and left there.
    pub swapped_bytes: u64,
    /// Present, but not readable.
    pub unreadable_bytes: u64,
    /// Present and full of zeroes.
    pub zero_bytes: u64,
    /// Equal to another page of this guest: all but the first of each content.
    pub same_vm_bytes: u64,
    /// Equal to a page of another guest.
    pub other_vms_bytes: u64,
    /// Held in the page cache, too.
    pub page_cache_bytes: u64,
    /// What it could give back if every content were held once and zeroes not at all. Equal pages of several guests
    /// count in equal parts.
    pub give_back_bytes: u64,
    /// What the kernel has merged of it already.
    pub ksm_merged_bytes: u64,
    /// Its images.
    pub images: Vec<String>,
}

/// One image.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ImageReport {
    /// Its path.
    pub path: String,
    /// Its size.
    pub size_bytes: u64,
    /// In the page cache.
    pub cached_bytes: u64,
    /// Of that, zeroes.
    pub zero_bytes: u64,
    /// Of that, held by guests, too: cached twice.
    pub in_guests_bytes: u64,
    /// Of the rest, equal to another cached page of an image: all but the first of each content.
    pub same_images_bytes: u64,
    /// What could be dropped, as for guests.
    pub give_back_bytes: u64,
    /// Guests that have it open.
    pub vms: Vec<String>,
}

/// All guests and images.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TotalReport {
    /// Memory of guests that is in memory.
    pub present_bytes: u64,
    /// Page cache of images.
    pub cached_bytes: u64,
    /// Zeroes in guests and in the page cache.
    pub zero_bytes: u64,
    /// Pages of guests equal to an earlier one.
    pub merge_bytes: u64,
    /// Page cache that guests hold, too.
    pub double_cached_bytes: u64,
    /// All that is held more than once, and zeroes.
    pub give_back_bytes: u64,
    /// Of that, what the kernel saves already by merging, at most: `pages_sharing` is of the whole host.
    pub ksm_saved_bytes: u64,
}

/// Told of progress: pages passed of pages in all, and what is being read.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64, &str);

/// What one walk counted.
#[derive(Clone, Copy, Default)]
struct Walk {
    walked: Walked,
    zero: u64,
}

/// Reads all there is, until `stop`.
///
/// # Errors
/// No memory for the batch. What goes wrong with one guest is among the report's problems.
pub fn run(
    mut found: Found,
    options: &Options,
    stop: &AtomicBool,
    progress: Progress<'_>,
) -> io::Result<DuplicatesReport> {
    let began = now_ns();
    let cpu_began = thread_cpu_ns();
    let mut images: Vec<Source> = found.images.iter().map(|i| Source::of_cached(i.file.clone())).collect();
    let total: u64 = found.vms.iter().flat_map(|v| &v.ram).chain(&images).map(Source::pages).sum();
    let mut reader = Reader::new(options, stop)?;
    let mut passed = 0;
    let mut problems = std::mem::take(&mut found.problems);

    let vms = read_guests(&mut found, &mut reader, &mut passed, total, &mut problems, &mut *progress);
    let image_reports =
        read_images(&found, &mut images, &mut reader, &mut passed, total, &mut problems, &mut *progress);
    let (read_pages, complete) = (reader.read_pages, !reader.stopped());
    let mut report = DuplicatesReport {
        complete,
        sample: options.sample,
        seconds: 0.0,
        cpu_seconds: 0.0,
        read_bytes: read_pages * PAGE,
        vms,
        images: image_reports,
        total: TotalReport::default(),
        problems,
    };
    fill(&mut report, reader.tally, options.sample);
    report.seconds = Duration::from_nanos(now_ns().saturating_sub(began)).as_secs_f64();
    report.cpu_seconds = Duration::from_nanos(thread_cpu_ns().saturating_sub(cpu_began)).as_secs_f64();
    Ok(report)
}

/// Reads the memory of every guest.
fn read_guests(
    found: &mut Found,
    reader: &mut Reader<'_>,
    passed: &mut u64,
    total: u64,
    problems: &mut Vec<String>,
    progress: Progress<'_>,
) -> Vec<VmReport> {
    let mut vms = Vec::new();
    for (n, vm) in found.vms.iter_mut().enumerate() {
        let mut walk = Walk::default();
        for source in &mut vm.ram {
            let mut tell = |done: u64| progress(*passed + done, total, &vm.name);
            let result = reader.walk(source, Holder::Guest(n as u32), &mut walk, &mut tell);
            *passed += source.pages();
            if let Err(e) = result {
                problems.push(unread_guest(&vm.name, vm.pid, &e));
                break;
            }
        }
        vms.push(VmReport {
            name: vm.name.clone(),
            pid: vm.pid,
            ram_bytes: vm.ram.iter().map(Source::bytes).sum(),
            shared_bytes: vm.shared_bytes,
            images: vm.images.iter().map(|i| found.images[*i].path.display().to_string()).collect(),
            present_bytes: walk.walked.present * PAGE,
            swapped_bytes: walk.walked.swapped * PAGE,
            unreadable_bytes: walk.walked.unreadable * PAGE,
            zero_bytes: walk.zero * PAGE,
            ksm_merged_bytes: vm.process.text("ksm_stat").map_or(0, |t| ksm_pages(&t).0) * PAGE,
            ..VmReport::default()
        });
    }
    vms
}

/// Why the memory of a guest was not read to its end.
fn unread_guest(name: &str, pid: u32, e: &io::Error) -> String {
    match e.kind() {
        _ if super::vm::has_ended(e) => {
            format!("{name} (process {pid}) ended while it was read; what was read of it counts")
        }
        io::ErrorKind::PermissionDenied => {
            format!("the memory of {name} (process {pid}) cannot be read: {}", super::vm::need_ptrace())
        }
        _ => format!("the memory of {name} (process {pid}) cannot be read further: {e}"),
    }
}

/// Reads the page cache of every image.
fn read_images(
    found: &Found,
    sources: &mut [Source],
    reader: &mut Reader<'_>,
    passed: &mut u64,
    total: u64,
    problems: &mut Vec<String>,
    progress: Progress<'_>,
) -> Vec<ImageReport> {
    let mut reports = Vec::new();
    for (n, (image, source)) in found.images.iter().zip(sources).enumerate() {
        let path = image.path.display().to_string();
        let mut walk = Walk::default();
        // Huge images that are not cached at all need no walk.
        if image.file.count_cached() != Some(0) {
            let mut tell = |done: u64| progress(*passed + done, total, &path);
            if let Err(e) = reader.walk(source, Holder::File(n as u32), &mut walk, &mut tell) {
                problems.push(format!("the page cache of {path} cannot be read further: {e}"));
            }
        }
        *passed += source.pages();
        let users = found.vms.iter().filter(|v| v.images.contains(&n)).map(|v| v.name.clone());
        reports.push(ImageReport {
            size_bytes: image.bytes,
            cached_bytes: walk.walked.present * PAGE,
            zero_bytes: walk.zero * PAGE,
            vms: users.collect(),
            path,
            ..ImageReport::default()
        });
    }
    reports
}

/// Turns the tally into the report's figures.
fn fill(report: &mut DuplicatesReport, tally: Tally, sample: f64) {
    let counted = tally.count(report.vms.len(), report.images.len());
    let scaled = |pages: u64| scale(pages as f64, sample);
    let total = &mut report.total;
    let mut merge = 0.0;
    for (vm, t) in report.vms.iter_mut().zip(&counted.guests) {
        vm.same_vm_bytes = scaled(t.same_guest);
        vm.other_vms_bytes = scaled(t.other_guests);
        vm.page_cache_bytes = scaled(t.page_cache);
        vm.give_back_bytes = vm.zero_bytes + scale(t.give_back, sample);
        merge += t.give_back;
        total.present_bytes += vm.present_bytes;
        total.zero_bytes += vm.zero_bytes;
    }
    let mut cached = 0.0;
    for (image, t) in report.images.iter_mut().zip(&counted.files) {
        image.in_guests_bytes = scaled(t.in_guests);
        image.same_images_bytes = scaled(t.same_files);
        image.give_back_bytes = image.zero_bytes + scale(t.give_back, sample);
        cached += t.give_back;
        total.cached_bytes += image.cached_bytes;
        total.zero_bytes += image.zero_bytes;
        total.double_cached_bytes += image.in_guests_bytes;
    }
    total.merge_bytes = scale(merge, sample);
    total.give_back_bytes = total.zero_bytes + scale(merge + cached, sample);
    // What is saved host-wide is not all of guests.
    let merged: u64 = report.vms.iter().map(|v| v.ksm_merged_bytes).sum();
    total.ksm_saved_bytes = ksm_sharing().min(merged).min(total.merge_bytes);
}

/// Pages of a sample as bytes of the whole, in whole pages.
fn scale(pages: f64, sample: f64) -> u64 {
    (pages / sample).round() as u64 * PAGE
}

/// What the kernel saves by merging, in bytes, on the whole host.
fn ksm_sharing() -> u64 {
    let text = std::fs::read_to_string("/sys/kernel/mm/ksm/pages_sharing").unwrap_or_default();
    text.trim().parse::<u64>().unwrap_or(0).saturating_mul(PAGE)
}

/// Copies pages and notes them.
struct Reader<'a> {
    batch: Batch,
    hash: PageHash,
    tally: Tally,
    throttle: Throttle,
    sample: f64,
    stop: &'a AtomicBool,
    cpu_ns: u64,
    read_pages: u64,
}

impl<'a> Reader<'a> {
    fn new(options: &Options, stop: &'a AtomicBool) -> io::Result<Self> {
        Ok(Reader {
            batch: Batch::new()?,
            hash: PageHash::new(),
            tally: Tally::default(),
            throttle: Throttle::new(options.cpu_percent),
            sample: options.sample,
            stop,
            cpu_ns: thread_cpu_ns(),
            read_pages: 0,
        })
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn walk(
        &mut self,
        source: &mut Source,
        holder: Holder,
        walk: &mut Walk,
        tell: &mut dyn FnMut(u64),
    ) -> io::Result<()> {
        let result = self.pages(source, holder, walk, tell);
        walk.walked.add(&source.walked());
        result
    }

    fn pages(
        &mut self,
        source: &mut Source,
        holder: Holder,
        walk: &mut Walk,
        tell: &mut dyn FnMut(u64),
    ) -> io::Result<()> {
        while !self.stopped() {
            let Some(mut runs) = source.look()? else { break };
            if self.sample < 1.0 {
                runs = self.chosen(source, runs)?;
            }
            while !runs.is_empty() && !self.stopped() {
                source.copy(&mut runs, Piece::Whole, &mut self.batch)?;
                for i in 0..self.batch.len() {
                    let page = self.batch.page(i);
                    if is_zero(page) {
                        walk.zero += 1;
                        continue;
                    }
                    let hash = self.hash.of(page);
                    // What the probe chose is in; what it could not judge is judged by the whole page.
                    if self.sample >= 1.0 || !is_zero(probe(page)) || self.falls(hash.get()) {
                        self.tally.add(hash, holder);
                    }
                }
                self.read_pages += self.batch.len() as u64;
                self.rest();
            }
            tell(source.passed());
        }
        Ok(())
    }

    /// The pages of `runs` that are to be read whole: those whose probe falls into the sample, and those whose probe is
    /// zero.
    fn chosen(&mut self, source: &mut Source, mut runs: Vec<PageRun>) -> io::Result<Vec<PageRun>> {
        let mut chosen: Vec<PageRun> = Vec::new();
        while !runs.is_empty() && !self.stopped() {
            source.copy(&mut runs, Piece::Probe, &mut self.batch)?;
            for (i, number) in self.batch.numbers().iter().enumerate() {
                let probe = self.batch.copy(i);
                if !is_zero(probe) && !self.falls(self.hash.of_probe(probe)) {
                    continue;
                }
                match chosen.last_mut() {
                    Some(last) if last.end() == *number => last.count += 1,
                    _ => chosen.push(PageRun { first: *number, count: 1 }),
                }
            }
            self.rest();
        }
        Ok(chosen)
    }

    /// Whether a hash falls into the sample.
    fn falls(&self, hash: u64) -> bool {
        (hash as f64) < self.sample * u64::MAX as f64
    }

    /// Keeps to the ceiling.
    fn rest(&mut self) {
        let now = thread_cpu_ns();
        let mut used = now.saturating_sub(self.cpu_ns);
        self.cpu_ns = now;
        loop {
            let sleep = self.throttle.after(used, now_ns());
            if sleep == 0 || self.stopped() {
                return;
            }
            used = 0;
            std::thread::sleep(Duration::from_nanos(sleep));
        }
    }
}

/// The bytes of a page that a probe copies.
fn probe(page: &[u8]) -> &[u8] {
    page.get(PAGE_BYTES / 2..PAGE_BYTES / 2 + Piece::Probe.bytes()).unwrap_or_default()
}
