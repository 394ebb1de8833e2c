//! The scan's thread over guests made of memory files, and a cache that keeps contents.
//!
//! Owns the pretended cache. Never looks at a real guest. Invariant: every test stops the thread that it starts.

use super::pass::{ALL_EVERY, split};
use super::*;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};
use undercroft_host::foreign::{PAGE_BYTES, SharedFile};

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

    fn guests(&mut self) -> (Vec<ScanGuest<u8>>, Vec<String>) {
        let source = |file: &File| {
            let shared = Arc::new(SharedFile::new(file.try_clone().unwrap()).unwrap().unwrap());
            let run = PageRun { first: 0, count: shared.pages() };
            Source::of_shared(shared, run)
        };
        let guest = |(name, files, disks): &(&str, Vec<File>, Vec<u8>)| ScanGuest {
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

fn until(scanner: &Scanner, what: impl Fn(&ScanReport) -> bool) -> ScanReport {
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

/// A cache that is told something, and answers once the thread that tells it has an ordinary priority.
struct Patient {
    toy: Toy,
    /// Whether it was told, and whether the priority became ordinary.
    seen: Arc<Mutex<(bool, Option<bool>)>>,
}

/// Whether the calling thread is of `SCHED_IDLE`.
fn is_idle() -> bool {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    // The field "policy" is the 41st; the second may hold anything, blanks too.
    stat.rsplit_once(") ").unwrap().1.split(' ').nth(38) == Some("5")
}

impl Cache for Patient {
    type Disk = u8;

    fn guests(&mut self) -> (Vec<ScanGuest<u8>>, Vec<String>) {
        self.toy.guests()
    }

    fn memory(&mut self) -> Memory {
        self.toy.memory()
    }

    fn held_by_guest(&mut self, disk: &u8, contents: &[ContentHash]) -> Option<Told> {
        assert!(is_idle(), "it scans at the lowest priority");
        lock(&self.seen).0 = true;
        let give_up = Instant::now() + Duration::from_secs(60);
        while is_idle() && Instant::now() < give_up {
            std::thread::sleep(Duration::from_millis(1));
        }
        lock(&self.seen).1 = Some(!is_idle());
        self.toy.held_by_guest(disk, contents)
    }
}

#[test]
fn whoever_waits_for_its_end_has_it_run_at_an_ordinary_priority() {
    let may = std::thread::spawn(|| idle::lowest_priority() && is_idle() && idle::ordinary(idle::thread_id()));
    if !may.join().unwrap() {
        return undercroft_skips::skip("only root may take the lowest priority back");
    }
    let seen = Arc::new(Mutex::new((false, None)));
    let toy = Toy {
        guests: vec![("web", vec![memory_file(10, &[(1, 1)])], vec![0])],
        kept: Arc::new(Mutex::new(vec![BTreeSet::new()])),
        told: Arc::new(Mutex::new(Vec::new())),
        changed: None,
    };
    let patient = Patient { toy, seen: seen.clone() };
    let scanner = Scanner::start(patient, ContentKey::from_seed(KEY), settings(10)).unwrap();
    let give_up = Instant::now() + Duration::from_secs(60);
    while !lock(&seen).0 {
        assert!(Instant::now() < give_up, "nothing was told");
        std::thread::sleep(Duration::from_millis(2));
    }
    scanner.stop();
    assert_eq!(lock(&seen).1, Some(true), "it ended at the lowest priority");
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
