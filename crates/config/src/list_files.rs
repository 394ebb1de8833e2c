//! Reads files of lists with a limit: one on a file system that does not answer keeps its thread, and nobody who asked.
//!
//! Owns the threads that read. Never writes. Invariants: a file that does not answer keeps one thread, however often it
//! is asked for; several files are read at the same time; what is found was read after it was asked for.

use super::checks::{Checker, ListAsked};
use super::images::LOOK_WAIT;
use super::pin_list::PinList;
use super::written::WrittenError;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// After so long without an answer there may be more threads.
const STEP: Duration = Duration::from_millis(50);
/// Threads of a call at first.
const THREADS: usize = 8;
/// Of a thread, which reads one list.
const STACK_BYTES: usize = 512 << 10;

/// What is under way in this process.
static HERE: LazyLock<Arc<Reads>> = LazyLock::new(|| Reads::by(PinList::read, LOOK_WAIT));

/// Why there is no list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListFault {
    /// In words; names the file.
    pub why: WrittenError,
    /// The file did not answer: it may be well later.
    pub is_silent: bool,
}

/// What came of reading a list.
pub type ListRead = Result<Arc<PinList>, ListFault>;

/// Reads lists, all at the same time if need be. Those that do not answer within [`LOOK_WAIT`] are faults.
pub fn read_lists(paths: impl IntoIterator<Item = PathBuf>) -> BTreeMap<PathBuf, ListRead> {
    HERE.read(paths.into_iter().collect())
}

/// The same of one.
///
/// # Errors
/// See [`PinList::read`]; or it does not answer.
pub fn read_list(path: &Path) -> ListRead {
    read_lists([path.to_path_buf()]).remove(path).unwrap_or_else(|| Err(silent(path)))
}

fn silent(path: &Path) -> ListFault {
    let why = WrittenError {
        error: format!("the list of blocks {} does not answer: nothing came back within {LOOK_WAIT:?}", path.display()),
        remedy: "look at the storage that it is on".to_owned(),
    };
    ListFault { why, is_silent: true }
}

impl Checker<'_> {
    /// The path of a list. What is wrong with it is found by [`Checker::read_lists`].
    pub(crate) fn pin_list(
        &mut self,
        line: Option<usize>,
        place: &str,
        key: &'static str,
        path: Option<&Path>,
    ) -> Option<PathBuf> {
        let path = self.path(line, place, key, path?);
        if path.is_absolute() {
            self.lists.push(ListAsked { line, place: place.to_owned(), key, path: path.clone() });
        }
        Some(path)
    }

    /// Reads the lists that were named: one that cannot be used is a fault of its disk.
    pub(crate) fn read_lists(&mut self) {
        let asked = std::mem::take(&mut self.lists);
        if asked.is_empty() {
            return;
        }
        let found = read_lists(asked.iter().map(|a| a.path.clone()));
        for ListAsked { line, place, key, path } in asked {
            if let Some(Err(ListFault { why, .. })) = found.get(&path) {
                self.disk_fault(line, &place, format!("{key}: {}", why.error), why.remedy.clone());
            }
        }
    }
}

type Read = Result<PinList, WrittenError>;

/// What is read now, and since when.
struct Reads {
    busy: Mutex<BTreeMap<PathBuf, Instant>>,
    by: Box<dyn Fn(&Path) -> Read + Send + Sync>,
    /// How long a file may take.
    wait: Duration,
}

/// Whether a thread reads a file now.
enum Begun {
    Now,
    /// One of an earlier call does, since then.
    Before(Instant),
    /// There can be no thread.
    Not,
}

/// The right to read a file; others have it when this is dropped.
struct Busy {
    reads: Arc<Reads>,
    path: PathBuf,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.reads.lock().remove(&self.path);
    }
}

impl Reads {
    fn by(by: impl Fn(&Path) -> Read + Send + Sync + 'static, wait: Duration) -> Arc<Self> {
        Arc::new(Self { busy: Mutex::default(), by: Box::new(by), wait })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Instant>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(self: &Arc<Self>, paths: BTreeSet<PathBuf>) -> BTreeMap<PathBuf, ListRead> {
        let (tell, told) = channel();
        let (mut left, mut most) = (paths, THREADS);
        let mut begun: BTreeMap<PathBuf, Instant> = BTreeMap::new();
        let mut found: BTreeMap<PathBuf, ListRead> = BTreeMap::new();
        while !left.is_empty() || !begun.is_empty() {
            left.retain(|path| {
                if begun.len() >= most {
                    return true;
                }
                match self.begin(path, &tell) {
                    Begun::Now => _ = begun.insert(path.clone(), Instant::now()),
                    // That one may have read what was there before this was asked for.
                    Begun::Before(since) if since.elapsed() < self.wait => return true,
                    Begun::Before(_) | Begun::Not => _ = found.insert(path.clone(), Err(silent(path))),
                }
                false
            });
            match told.recv_timeout(STEP) {
                Ok((path, read)) => {
                    begun.remove(&path);
                    let fault = |why| ListFault { why, is_silent: false };
                    found.insert(path, read.map(Arc::new).map_err(fault));
                }
                // None of those came back.
                Err(_) => most = most.saturating_mul(2),
            }
            begun.retain(|path, since| {
                let waits = since.elapsed() < self.wait;
                if !waits {
                    found.insert(path.clone(), Err(silent(path)));
                }
                waits
            });
        }
        found
    }

    /// Has a thread read a file, if none does.
    fn begin(self: &Arc<Self>, path: &Path, tell: &Sender<(PathBuf, Read)>) -> Begun {
        match self.lock().entry(path.to_path_buf()) {
            Entry::Occupied(busy) => return Begun::Before(*busy.get()),
            Entry::Vacant(free) => _ = free.insert(Instant::now()),
        }
        let (own, tell) = (Busy { reads: self.clone(), path: path.to_path_buf() }, tell.clone());
        let thread = std::thread::Builder::new().name("undercroft-list".into()).stack_size(STACK_BYTES);
        let begun = thread.spawn(move || {
            let read = (own.reads.by)(&own.path);
            let path = own.path.clone();
            // Before it is told: who hears of it may ask again.
            drop(own);
            // Who asked may wait no longer.
            _ = tell.send((path, read));
        });
        if begun.is_ok() { Begun::Now } else { Begun::Not }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Condvar;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Opened, if true.
    type Gate = Arc<(Mutex<bool>, Condvar)>;

    /// Reads lists of nothing; those with `stuck` in their names wait until the gate is opened. How many reads began.
    fn gated() -> (Arc<Reads>, Gate, Arc<AtomicUsize>) {
        let gate: Gate = Arc::new((Mutex::new(false), Condvar::new()));
        let begun = Arc::new(AtomicUsize::new(0));
        let (its, count) = (gate.clone(), begun.clone());
        let by = move |path: &Path| {
            count.fetch_add(1, Ordering::Relaxed);
            if path.display().to_string().contains("stuck") {
                drop(its.1.wait_while(its.0.lock().unwrap(), |open| !*open).unwrap());
            }
            Ok(PinList::default())
        };
        (Reads::by(by, Duration::from_secs(2)), gate, begun)
    }

    fn names(n: usize) -> BTreeSet<PathBuf> {
        (0..n).map(|i| PathBuf::from(format!("/{}{i}", if i % 2 == 0 { "stuck" } else { "fine" }))).collect()
    }

    fn silent_of(found: &BTreeMap<PathBuf, ListRead>) -> usize {
        found.values().filter(|read| read.as_ref().is_err_and(|fault| fault.is_silent)).count()
    }

    #[test]
    fn those_that_do_not_answer_keep_no_others_and_one_thread_each() {
        let (reads, gate, begun) = gated();
        let found = reads.read(names(40));
        assert_eq!((found.len(), silent_of(&found)), (40, 20));
        assert!(found[Path::new("/fine1")].is_ok());
        let e = found[Path::new("/stuck0")].as_ref().unwrap_err();
        assert!(e.why.error.contains("/stuck0 does not answer"), "{e:?}");
        assert_eq!(silent_of(&reads.read(names(40))), 20, "asked again while the threads still read");
        assert_eq!(begun.load(Ordering::Relaxed), 40 + 20, "no more threads for the same files");
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        while !reads.lock().is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(silent_of(&reads.read(names(40))), 0);
        assert!(reads.read(BTreeSet::new()).is_empty());
    }

    #[test]
    fn what_is_wrong_with_a_file_is_told_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let (good, bad) = (dir.path().join("good"), dir.path().join("bad"));
        std::fs::write(&good, r#"{"size_bytes": 8192, "ranges": [[1, 1]]}"#).unwrap();
        let found = read_lists([good.clone(), bad.clone(), good.clone()]);
        assert_eq!(found.len(), 2);
        assert_eq!(read_list(&good).unwrap().ranges(), [(1, 1)]);
        let e = found[&bad].as_ref().unwrap_err();
        assert!(!e.is_silent && e.why.error.contains("bad cannot be read"), "{e:?}");
    }
}
