//! What the thread of the scan does: waits until a pass is due, walks over the memory of guests, tells the cache.
//!
//! Owns the index, the rhythm and what the last pass read to the end. Never starts or ends the thread, and never reads
//! a byte in place. Invariant: a page whose content is not remembered is read, whatever the kernel says of it.

use super::super::control::{Memory, ScanControl};
use super::super::hash::{PageHash, is_zero};
use super::super::index::{ContentIndex, Place, SOURCES_MAX, Seen};
use super::super::source::{Source, Walked};
use super::super::throttle::Throttle;
use super::{Cache, ScanGuest, Shared, TELL_MAX, Told, lock};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use undercroft_cache::ContentHash;
use undercroft_host::foreign::{BATCH_PAGES, Batch, PAGE_BYTES, PageRun, Piece};
use undercroft_host::idle::{self, thread_cpu_ns};
use undercroft_host::now_ns;

/// Longest time between two looks at memory, nanoseconds.
const LOOK_NS: u64 = 1_000_000_000;

pub(super) struct Scan<C: Cache> {
    pub(super) cache: C,
    pub(super) hash: PageHash,
    pub(super) index: ContentIndex,
    pub(super) throttle: Throttle,
    pub(super) control: ScanControl,
    pub(super) batch: Batch,
    pub(super) shared: Arc<Shared>,
    pub(super) cpu_ns: u64,
    /// Problems that the log has already.
    pub(super) said: Vec<String>,
    /// What the last pass read to the end, by the number of the source: only of that is the index in the know.
    pub(super) read: Vec<Option<(String, PageRun)>>,
    /// Passes since the scan started, also those that did not end.
    pub(super) begun: u64,
}

/// Every so many passes everything is read, whatever the kernel says: what it notes can miss a page.
pub(super) const ALL_EVERY: u64 = 8;

/// What one pass did.
#[derive(Default)]
struct Pass {
    walked: Walked,
    zero: u64,
    unread: u64,
    told: Told,
    /// As `Scan::read`, of this pass.
    read: Vec<Option<(String, PageRun)>>,
}

impl<C: Cache> Scan<C> {
    /// Lowers the thread's priority, unless somebody waits for its end already.
    pub(super) fn begin(&self) {
        // Locked meanwhile, so that whoever stops the scan either finds the priority lowered or has it not lowered.
        let stopping = lock(&self.shared.stopping.0);
        self.shared.tid.store(idle::thread_id(), Ordering::Relaxed);
        if !*stopping && !idle::lowest_priority() {
            tracing::warn!("the scan runs at the usual priority: the kernel refused a lower one");
        }
    }

    pub(super) fn run(&mut self) {
        self.cpu_ns = thread_cpu_ns();
        while !self.stopping() {
            let memory = self.cache.memory();
            if self.control.due(memory, now_ns()).is_some() {
                self.pass(memory);
                continue;
            }
            lock(&self.shared.report).period_ns = self.control.period_ns();
            self.sleep(self.control.next_ns(memory).saturating_sub(now_ns()).clamp(1, LOOK_NS));
            self.rest();
        }
    }

    fn stopping(&self) -> bool {
        *lock(&self.shared.stopping.0)
    }

    fn sleep(&self, ns: u64) {
        let (flag, stopped) = &self.shared.stopping;
        drop(stopped.wait_timeout_while(lock(flag), Duration::from_nanos(ns), |stop| !*stop));
    }

    /// Keeps to the ceiling.
    fn rest(&mut self) {
        let now = thread_cpu_ns();
        let mut used = now.saturating_sub(self.cpu_ns);
        self.cpu_ns = now;
        lock(&self.shared.report).cpu_ns = now;
        loop {
            let sleep = self.throttle.after(used, now_ns());
            if sleep == 0 || self.stopping() {
                return;
            }
            used = 0;
            self.sleep(sleep);
        }
    }

    /// Looks at every page of every guest once.
    fn pass(&mut self, memory: Memory) {
        let began = now_ns();
        let (guests, mut problems) = self.cache.guests();
        let known = guests.len();
        self.index.begin_pass();
        self.begun += 1;
        let mut pass = Pass::default();
        let mut number = 0;
        for mut guest in guests {
            if let Err(e) = self.guest(&mut guest, &mut number, &mut pass) {
                problems.push(match e.kind() {
                    _ if super::super::vm::has_ended(&e) => {
                        format!("{} ended while its memory was scanned", guest.name)
                    }
                    io::ErrorKind::PermissionDenied => {
                        format!("the memory of {} cannot be read: {}", guest.name, super::super::vm::need_ptrace())
                    }
                    _ => format!("the memory of {} cannot be scanned further: {e}", guest.name),
                });
            }
            if self.stopping() {
                return;
            }
        }
        self.read = std::mem::take(&mut pass.read);
        // What is gone need not be kept in mind for look-ahead.
        for gone in number..SOURCES_MAX.min(number + 64) {
            self.index.remove_source(gone as u16);
        }
        let now = now_ns();
        self.control.scrubbed(memory, pass.told.cooled.saturating_mul(PAGE_BYTES as u64), now);
        self.tell_log(&problems);
        let stats = self.index.stats();
        let mut r = lock(&self.shared.report);
        r.passes += 1;
        r.guests = known as u64;
        r.walked.add(&pass.walked);
        r.zero_pages += pass.zero;
        r.unchanged_pages += stats.unchanged;
        r.equal_pages += stats.again;
        r.lookahead_hits += stats.lookahead_hits;
        r.lookahead_misses += stats.lookahead_misses;
        r.unindexed += stats.full;
        r.unread_pages += pass.unread;
        r.index_bytes = self.index.bytes() as u64;
        r.found_blocks += pass.told.blocks;
        r.cooled_blocks += pass.told.cooled;
        r.pass_ns = now.saturating_sub(began);
        r.period_ns = self.control.period_ns();
        r.problems = problems;
    }

    /// Says each problem once, until it is gone.
    fn tell_log(&mut self, problems: &[String]) {
        for p in problems.iter().filter(|p| !self.said.contains(p)) {
            tracing::warn!("guest memory scan: {p}");
        }
        self.said = problems.to_vec();
    }

    fn guest(&mut self, guest: &mut ScanGuest<C::Disk>, number: &mut usize, pass: &mut Pass) -> io::Result<()> {
        let first = *number as u16;
        let mut pending: Vec<ContentHash> = Vec::with_capacity(TELL_MAX);
        let mut result = Ok(());
        let all = self.begun.is_multiple_of(ALL_EVERY);
        let mut changed =
            guest.changed.take().filter(|c| !all && c.len() == guest.ram.len()).unwrap_or_default().into_iter();
        for source in &mut guest.ram {
            let (changed, name) = (changed.next(), (guest.name.clone(), source.range()));
            let known = self.read.get(*number).is_some_and(|r| r.as_ref() == Some(&name));
            let changed = changed.filter(|_| known);
            if *number >= SOURCES_MAX {
                return Err(io::Error::other(format!("there are more than {SOURCES_MAX} pieces of guest memory")));
            }
            let own = first..=*number as u16;
            result = self.source(source, own, changed.as_deref(), &mut pending, &guest.disks, pass);
            pass.read.push(result.is_ok().then_some(name));
            pass.walked.add(&source.walked());
            *number += 1;
            if result.is_err() || self.stopping() {
                break;
            }
        }
        self.tell(&mut pending, &guest.disks, pass);
        result
    }

    /// Reads one piece of a guest's memory; `own` are the numbers of this guest's pieces so far, this one last.
    fn source(
        &mut self,
        source: &mut Source,
        own: std::ops::RangeInclusive<u16>,
        changed: Option<&[PageRun]>,
        pending: &mut Vec<ContentHash>,
        disks: &[C::Disk],
        pass: &mut Pass,
    ) -> io::Result<()> {
        while let Some(runs) = source.look()? {
            let (pieces, number) = (split(runs, changed), *own.end());
            for (may_have_changed, mut runs) in pieces {
                if !may_have_changed {
                    // The pages whose content is not remembered are read after all.
                    let pages = std::mem::take(&mut runs).into_iter().flat_map(|r| r.first..r.end());
                    for page in pages {
                        let place = Place { source: number, page: source.number(page) };
                        match self.index.last_hash(place) {
                            Some(hash) => {
                                self.read_all(source, &mut runs, &own, pending, disks, pass)?;
                                pass.unread += 1;
                                self.seen(place, hash, &own, pending);
                                if pending.len() >= TELL_MAX {
                                    self.tell(pending, disks, pass);
                                }
                            }
                            None => runs.push(PageRun { first: page, count: 1 }),
                        }
                    }
                }
                self.read_all(source, &mut runs, &own, pending, disks, pass)?;
                self.rest();
                if self.stopping() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Reads pages and takes note of what they hold.
    fn read_all(
        &mut self,
        source: &mut Source,
        runs: &mut Vec<PageRun>,
        own: &std::ops::RangeInclusive<u16>,
        pending: &mut Vec<ContentHash>,
        disks: &[C::Disk],
        pass: &mut Pass,
    ) -> io::Result<()> {
        let mut fresh = Vec::with_capacity(BATCH_PAGES);
        while !runs.is_empty() && !self.stopping() {
            source.copy(runs, Piece::Whole, &mut self.batch)?;
            fresh.clear();
            for (i, number) in self.batch.numbers().iter().enumerate() {
                let page = self.batch.page(i);
                if is_zero(page) {
                    pass.zero += 1;
                } else {
                    fresh.push((Place { source: *own.end(), page: source.number(*number) }, self.hash.of(page)));
                }
            }
            self.index.warm(fresh.iter().map(|(_, hash)| *hash));
            for (place, hash) in &fresh {
                self.seen(*place, *hash, own, pending);
            }
            if pending.len() + BATCH_PAGES > TELL_MAX {
                self.tell(pending, disks, pass);
            }
            self.rest();
        }
        Ok(())
    }

    /// A page of the guest with the pieces `own` holds this content.
    fn seen(
        &mut self,
        place: Place,
        hash: ContentHash,
        own: &std::ops::RangeInclusive<u16>,
        pending: &mut Vec<ContentHash>,
    ) {
        // What the same guest holds twice need be told once.
        match self.index.see(place, hash) {
            Seen::Again(at) if own.contains(&at.source) => {}
            _ => pending.push(hash),
        }
    }

    fn tell(&mut self, pending: &mut Vec<ContentHash>, disks: &[C::Disk], pass: &mut Pass) {
        if !pending.is_empty() {
            for disk in disks {
                if let Some(told) = self.cache.held_by_guest(disk, pending) {
                    pass.told.blocks += told.blocks;
                    pass.told.cooled += told.cooled;
                }
            }
        }
        pending.clear();
    }
}

/// Divides runs into pages that may have changed and pages that have not, in order. Without knowledge all may have.
pub(super) fn split(runs: Vec<PageRun>, changed: Option<&[PageRun]>) -> Vec<(bool, Vec<PageRun>)> {
    let Some(changed) = changed else { return vec![(true, runs)] };
    let mut pieces: Vec<(bool, Vec<PageRun>)> = Vec::new();
    for run in runs {
        let mut at = run.first;
        while at < run.end() {
            // The first change that does not end before here.
            let next = changed.get(changed.partition_point(|c| c.end() <= at));
            let (is_changed, end) = match next {
                Some(c) if c.first <= at => (true, c.end().min(run.end())),
                Some(c) => (false, c.first.min(run.end())),
                None => (false, run.end()),
            };
            let piece = PageRun { first: at, count: end - at };
            match pieces.last_mut() {
                Some((kind, list)) if *kind == is_changed => list.push(piece),
                _ => pieces.push((is_changed, vec![piece])),
            }
            at = end;
        }
    }
    pieces
}
