//! The scan's thread: passes over the memory of the daemon's guests, and what they tell the cache.
//!
//! Owns the thread, the index and the rhythm. Never reads a byte in place, never holds up a worker: what it finds goes
//! to the cache in small batches, between two turns of the worker. Invariants: the thread's processor time stays under
//! its ceiling; a pass that fails for one guest goes on with the next; a stop is noticed within one batch and one
//! sleep.

use super::control::{Control, Limits, Memory};
use super::hash::{PageHash, is_zero};
use super::index::{ContentIndex, Place, SOURCES_MAX, Seen};
use super::source::{Source, Walked};
use super::throttle::Throttle;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;
use undercroft_cache::{ContentHash, ContentKey};
use undercroft_host::foreign::{BATCH_PAGES, Batch, PAGE_BYTES, PageRun, Piece};
use undercroft_host::idle::{lowest_priority, thread_cpu_ns};
use undercroft_host::{now_ns, set_thread_name};

/// Hashes told to the cache at once: what a worker looks up in a few tens of microseconds.
pub const TELL_MAX: usize = 256;
/// Longest time between two looks at memory, nanoseconds.
const LOOK_NS: u64 = 1_000_000_000;

/// How to scan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Ceiling of processor time, in percent of one core.
    pub cpu_percent: f64,
    /// When to scan.
    pub limits: Limits,
    /// Most that the index may hold, in bytes.
    pub index_bytes: usize,
}

/// A guest, as found at the beginning of a pass.
pub struct Guest<D> {
    /// For messages.
    pub name: String,
    /// Its memory.
    pub ram: Vec<Source>,
    /// The disks that it may hold blocks of.
    pub disks: Vec<D>,
    /// For each piece of `ram` the pages that may have changed since the pass before, in order, if the kernel knows.
    pub changed: Option<Vec<Vec<PageRun>>>,
}

/// What a cache did with contents that a guest holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Blocks of the disk with one of these contents.
    pub blocks: u64,
    /// Of those, blocks that were not known to be held twice, and now are.
    pub cooled: u64,
}

/// The daemon, as the scan sees it.
pub trait Cache: Send {
    /// What names a disk.
    type Disk: Clone + Send;

    /// The guests of now, and what is wrong with those that cannot be scanned, in words.
    fn guests(&mut self) -> (Vec<Guest<Self::Disk>>, Vec<String>);

    /// The state of the cache's memory.
    fn memory(&mut self) -> Memory;

    /// A guest with this disk holds these contents, at most [`TELL_MAX`]. `None` if the disk is gone.
    fn held_by_guest(&mut self, disk: &Self::Disk, contents: &[ContentHash]) -> Option<Told>;
}

/// What the scan has done since it started, and how it stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Passes finished.
    pub passes: u64,
    /// Guests in the last pass.
    pub guests: u64,
    /// Pages met, by what became of them.
    pub walked: Walked,
    /// Pages of zeroes.
    pub zero_pages: u64,
    /// Pages whose content had not changed since the pass before.
    pub unchanged_pages: u64,
    /// Pages equal to one met earlier in the same pass.
    pub equal_pages: u64,
    /// Of those, found by looking ahead.
    pub lookahead_hits: u64,
    /// Look-aheads that found nothing.
    pub lookahead_misses: u64,
    /// Contents that the index had no room for.
    pub unindexed: u64,
    /// Pages not read because the kernel knows that they have not changed.
    pub unread_pages: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Blocks of disks found in guests, once for every pass.
    pub found_blocks: u64,
    /// Blocks that became the first to go.
    pub cooled_blocks: u64,
    /// Processor time used, nanoseconds.
    pub cpu_ns: u64,
    /// How long the last pass took, nanoseconds.
    pub pass_ns: u64,
    /// Time between passes as of now, nanoseconds.
    pub period_ns: u64,
    /// What could not be scanned in the last pass.
    pub problems: Vec<String>,
}

#[derive(Default)]
struct Shared {
    report: Mutex<Report>,
    stopping: (Mutex<bool>, Condvar),
}

/// A running scan.
pub struct Scanner {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Scanner {
    /// Starts the thread. `key` is the cache's.
    ///
    /// # Errors
    /// The kernel refuses the thread or the batch's memory.
    pub fn start(cache: impl Cache + 'static, key: ContentKey, settings: Settings) -> io::Result<Scanner> {
        let shared = Arc::new(Shared::default());
        let mut scan = Scan {
            cache,
            hash: PageHash::with_key(key),
            index: ContentIndex::new(settings.index_bytes),
            throttle: Throttle::new(settings.cpu_percent),
            control: Control::new(settings.limits, now_ns()),
            batch: Batch::new()?,
            shared: shared.clone(),
            cpu_ns: 0,
            said: Vec::new(),
            read: Vec::new(),
            begun: 0,
        };
        let thread = std::thread::Builder::new().name("undercroft-scan".into()).spawn(move || {
            set_thread_name("undercroft-scan");
            if !lowest_priority() {
                tracing::warn!("the scan runs at the usual priority: the kernel refused a lower one");
            }
            scan.run();
        })?;
        Ok(Scanner { shared, thread: Mutex::new(Some(thread)) })
    }

    /// What it has done.
    pub fn report(&self) -> Report {
        lock(&self.shared.report).clone()
    }

    /// Stops it, and waits until it has.
    pub fn stop(&self) {
        *lock(&self.shared.stopping.0) = true;
        self.shared.stopping.1.notify_all();
        // The scan itself may be the last to let go of what owns it.
        if let Some(thread) = lock(&self.thread).take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl Drop for Scanner {
    fn drop(&mut self) {
        self.stop();
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|p| p.into_inner())
}

struct Scan<C: Cache> {
    cache: C,
    hash: PageHash,
    index: ContentIndex,
    throttle: Throttle,
    control: Control,
    batch: Batch,
    shared: Arc<Shared>,
    cpu_ns: u64,
    /// Problems that the log has already.
    said: Vec<String>,
    /// What the last pass read to the end, by the number of the source: only of that is the index in the know.
    read: Vec<Option<(String, PageRun)>>,
    /// Passes since the scan started, also those that did not end.
    begun: u64,
}

/// Every so many passes everything is read, whatever the kernel says: what it notes can miss a page.
const ALL_EVERY: u64 = 8;

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
    fn run(&mut self) {
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
        let (flag, bell) = &self.shared.stopping;
        drop(bell.wait_timeout_while(lock(flag), Duration::from_nanos(ns), |stop| !*stop));
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
                    io::ErrorKind::NotFound => format!("{} ended while its memory was scanned", guest.name),
                    io::ErrorKind::PermissionDenied => {
                        format!("the memory of {} cannot be read: {}", guest.name, super::vm::need_ptrace())
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

    fn guest(&mut self, guest: &mut Guest<C::Disk>, number: &mut usize, pass: &mut Pass) -> io::Result<()> {
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
fn split(runs: Vec<PageRun>, changed: Option<&[PageRun]>) -> Vec<(bool, Vec<PageRun>)> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs::File;
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::time::Instant;
    use undercroft_host::foreign::SharedFile;

    const KEY: u64 = 5;

    /// A cache that keeps contents, and guests made of memory files.
    struct Toy {
        guests: Vec<(&'static str, Vec<File>, Vec<u8>)>,
        kept: Arc<Mutex<Vec<BTreeSet<ContentHash>>>>,
        told: Arc<Mutex<Vec<(u8, usize)>>>,
        /// What the kernel is made to say has changed, of each guest's only piece.
        changed: Option<Vec<PageRun>>,
    }

    fn memory_file(pages: u64, contents: &[(u64, u8)]) -> File {
        let file = File::from(rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.set_len(pages * PAGE_BYTES as u64).unwrap();
        for (page, byte) in contents {
            file.write_all_at(&[*byte; PAGE_BYTES], page * PAGE_BYTES as u64).unwrap();
        }
        file
    }

    fn hash(byte: u8) -> ContentHash {
        ContentKey::from_seed(KEY).hash(&[byte; PAGE_BYTES])
    }

    impl Cache for Toy {
        type Disk = u8;

        fn guests(&mut self) -> (Vec<Guest<u8>>, Vec<String>) {
            let source = |file: &File| {
                let shared = Arc::new(SharedFile::new(file.try_clone().unwrap()).unwrap().unwrap());
                let run = PageRun { first: 0, count: shared.pages() };
                Source::of_shared(shared, run)
            };
            let guest = |(name, files, disks): &(&str, Vec<File>, Vec<u8>)| Guest {
                name: name.to_string(),
                ram: files.iter().map(source).collect(),
                disks: disks.clone(),
                changed: self.changed.clone().map(|c| vec![c]),
            };
            (self.guests.iter().map(guest).collect(), vec!["one guest is shy".to_string()])
        }

        fn memory(&mut self) -> Memory {
            Memory { total: 100 << 20, cached: 80 << 20, free: 20 << 20 }
        }

        fn held_by_guest(&mut self, disk: &u8, contents: &[ContentHash]) -> Option<Told> {
            lock(&self.told).push((*disk, contents.len()));
            let mut kept = lock(&self.kept);
            let kept = kept.get_mut(usize::from(*disk))?;
            let found = contents.iter().filter(|h| kept.remove(h)).count() as u64;
            Some(Told { blocks: found, cooled: found })
        }
    }

    fn settings(period_ms: u64) -> Settings {
        let limits =
            Limits { period_ns_min: period_ms * 1_000_000, period_ns_max: period_ms * 1_000_000, ..Limits::default() };
        Settings { cpu_percent: 100.0, limits, index_bytes: 1 << 20 }
    }

    fn until(scanner: &Scanner, what: impl Fn(&Report) -> bool) -> Report {
        let give_up = Instant::now() + Duration::from_secs(60);
        loop {
            let report = scanner.report();
            if what(&report) {
                return report;
            }
            assert!(Instant::now() < give_up, "{report:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn each_disk_hears_of_what_its_own_guest_holds() {
        let web = memory_file(5000, &[(1, 1), (2, 2), (3, 2), (4, 0), (4999, 3)]);
        let db = memory_file(100, &[(0, 1), (1, 2), (50, 4)]);
        let blocks = web.metadata().unwrap().blocks();
        let all: BTreeSet<ContentHash> = (1..=9).map(hash).collect();
        let kept = Arc::new(Mutex::new(vec![all.clone(), all.clone(), all]));
        let told = Arc::new(Mutex::new(Vec::new()));
        let toy = Toy {
            guests: vec![("web", vec![web.try_clone().unwrap()], vec![0, 7]), ("db", vec![db], vec![1])],
            kept: kept.clone(),
            told: told.clone(),
            changed: None,
        };
        let scanner = Scanner::start(toy, ContentKey::from_seed(KEY), settings(10)).unwrap();
        let report = until(&scanner, |r| r.passes >= 2);
        scanner.stop();
        let left = |disk: usize| (1..=9).filter(|b| !lock(&kept)[disk].contains(&hash(*b))).collect::<Vec<u8>>();
        assert_eq!((left(0), left(1), left(2)), (vec![1, 2, 3], vec![1, 2, 4], vec![]));
        assert_eq!((report.found_blocks, report.cooled_blocks, report.guests), (6, 6, 2));
        let n = report.passes;
        assert_eq!((report.zero_pages, report.walked.present, report.walked.absent), (n, 8 * n, 5092 * n));
        // Page 3 repeats page 2 of its own guest; pages 0 and 1 of db those of web, the second by looking ahead.
        assert_eq!((report.equal_pages, report.lookahead_hits), (3 * n, n));
        assert_eq!(report.unchanged_pages, 7 * (n - 1));
        assert_eq!(report.problems, ["one guest is shy"]);
        assert!(report.index_bytes > 0 && report.cpu_ns > 0);
        // The double was told once; the disk that is gone is no trouble.
        assert_eq!(lock(&told)[..3], [(0, 3), (7, 3), (1, 3)]);
        assert_eq!(web.metadata().unwrap().blocks(), blocks, "holes stay holes");
    }

    #[test]
    fn what_is_told_comes_in_small_batches_and_a_stop_does_not_wait_for_a_pass() {
        let contents: Vec<(u64, u8)> = (0..3000).map(|n| (n, 1)).collect();
        let file = memory_file(3000, &contents);
        for n in 0..3000u64 {
            file.write_all_at(&n.to_ne_bytes(), n * PAGE_BYTES as u64).unwrap();
        }
        let told = Arc::new(Mutex::new(Vec::new()));
        let toy = Toy {
            guests: vec![("web", vec![file], vec![0])],
            kept: Arc::new(Mutex::new(vec![BTreeSet::new()])),
            told: told.clone(),
            changed: None,
        };
        let slow = Settings { cpu_percent: 0.1, ..settings(1) };
        let scanner = Scanner::start(toy, ContentKey::from_seed(KEY), slow).unwrap();
        let give_up = Instant::now() + Duration::from_secs(60);
        while lock(&told).is_empty() {
            assert!(Instant::now() < give_up);
            std::thread::sleep(Duration::from_millis(2));
        }
        scanner.stop();
        assert_eq!(scanner.report().passes, 0, "stopped in the middle");
        assert!(lock(&told).iter().all(|(_, n)| *n <= TELL_MAX));
    }

    #[test]
    fn what_the_kernel_knows_unchanged_is_not_read_but_told() {
        let file = memory_file(1000, &[(0, 1), (1, 2), (2, 0), (500, 3), (501, 4)]);
        let kept = Arc::new(Mutex::new(vec![BTreeSet::new()]));
        let toy = Toy {
            guests: vec![("web", vec![file.try_clone().unwrap()], vec![0])],
            kept: kept.clone(),
            told: Arc::default(),
            changed: Some(vec![PageRun { first: 1, count: 1 }, PageRun { first: 501, count: 400 }]),
        };
        let scanner = Scanner::start(toy, ContentKey::from_seed(KEY), settings(20)).unwrap();
        let first = until(&scanner, |r| r.passes >= 1);
        assert_eq!(first.unread_pages, 0, "the first pass reads everything");
        // Pages 0 and 500 are not read any more: what is written to them now is not noticed until everything is read.
        for page in [0u64, 1] {
            file.write_all_at(&[page as u8 + 7; PAGE_BYTES], page * PAGE_BYTES as u64).unwrap();
        }
        let contents = |bytes: &[u8]| *lock(&kept) = vec![bytes.iter().map(|b| hash(*b)).collect()];
        contents(&[1, 3, 7, 8]);
        let before = scanner.report().passes;
        until(&scanner, |r| r.passes >= before + 2);
        let left = lock(&kept)[0].clone();
        let passes = scanner.report().passes;
        assert!(passes + 1 >= ALL_EVERY || left == [hash(7)].into(), "told of old 1 and 3, and of new 8");
        let all = until(&scanner, |r| r.passes >= before + ALL_EVERY + 2);
        assert!(lock(&kept)[0].is_empty(), "read at last");
        scanner.stop();
        assert!(all.unread_pages > 0 && all.unread_pages <= 2 * all.passes);
        // Zeroes are not remembered, so they are read each time.
        assert_eq!(all.zero_pages, all.passes);
        assert_eq!(all.walked.present, 5 * all.passes);
    }

    #[test]
    fn runs_are_split_where_changes_begin_and_end() {
        let run = |first, count| PageRun { first, count };
        assert_eq!(split(vec![run(0, 5)], None), [(true, vec![run(0, 5)])]);
        assert_eq!(split(vec![run(0, 5), run(9, 1)], Some(&[])), [(false, vec![run(0, 5), run(9, 1)])]);
        let got = split(vec![run(0, 10), run(20, 10)], Some(&[run(3, 2), run(8, 15), run(40, 1)]));
        let want = [
            (false, vec![run(0, 3)]),
            (true, vec![run(3, 2)]),
            (false, vec![run(5, 3)]),
            (true, vec![run(8, 2), run(20, 3)]),
            (false, vec![run(23, 7)]),
        ];
        assert_eq!(got, want);
    }
}
