//! Looks at images with a limit: one on a file system that does not answer keeps its look, and nobody who asked.
//!
//! Owns the threads that look. Never opens an image for writing, nor asks an NBD server. Invariants: an image that does
//! not answer keeps one thread, however often it is asked for; others are answered as soon as they are looked at.

use super::{Identity, chain, identity, scheme};
use crate::image::{ImageFormat, ImageSpec};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the look at an image may take: as long as an operation before its image is said to be stalled.
pub const LOOK_WAIT: Duration = Duration::from_secs(5);
/// After so long without an answer there are more threads.
const STEP: Duration = Duration::from_millis(50);
/// Of a thread: a look needs little, and all images may be on the file system that does not answer.
const STACK_BYTES: usize = 256 << 10;

/// What is under way in this process.
static HERE: LazyLock<Arc<Looks>> = LazyLock::new(|| Looks::by(look_at));

/// What was found of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Why it cannot be opened, if that is known by now.
    pub fault: Option<Fault>,
    /// The image and the backing files below it, as far as they are found.
    pub chain: Vec<Identity>,
}

/// Why an image cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There is nothing at its path.
    Missing,
    /// What is there is neither a file nor a block device.
    NoImage,
    /// Its path cannot be followed: why.
    Unreachable(String),
    /// It cannot be read, or not written either.
    Forbidden {
        /// Whether it can be read.
        readable: bool,
    },
    /// It did not answer within [`LOOK_WAIT`].
    Silent,
}

/// Looks at images, all at the same time if need be; what is found stands in the order of `images`. Returns after about
/// [`LOOK_WAIT`] at most if some do not answer, however many.
pub fn look<'a>(images: impl Iterator<Item = &'a ImageSpec> + Clone) -> Vec<Look> {
    HERE.look(images)
}

fn look_at(image: &ImageSpec) -> Look {
    let path = Path::new(&image.location);
    let chain = chain(&image.location, image.format == Some(ImageFormat::Raw));
    let fault = match identity(path) {
        Ok(_) => forbidden(path, image.read_only),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Some(Fault::Missing),
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => Some(Fault::NoImage),
        Err(e) => Some(Fault::Unreachable(e.to_string())),
    };
    Look { fault, chain }
}

fn forbidden(path: &Path, read_only: bool) -> Option<Fault> {
    let may = |access| accessat(CWD, path, access, AtFlags::EACCESS).is_ok();
    let all = if read_only { Access::READ_OK } else { Access::READ_OK | Access::WRITE_OK };
    (!may(all)).then(|| Fault::Forbidden { readable: may(Access::READ_OK) })
}

/// One call: what is still to be looked at, what was found, and since when each is looked at.
struct Call {
    queue: VecDeque<usize>,
    since: Vec<Instant>,
    found: Vec<Option<Look>>,
    left: usize,
    threads: usize,
}

#[derive(Default)]
struct State {
    /// Looked at by a thread now, for this call or an earlier one.
    busy: HashSet<ImageSpec>,
    calls: BTreeMap<u64, Call>,
    last_call: u64,
}

struct Looks {
    state: Mutex<State>,
    found: Condvar,
    by: Box<dyn Fn(&ImageSpec) -> Look + Send + Sync>,
}

impl Looks {
    fn by(by: impl Fn(&ImageSpec) -> Look + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), found: Condvar::new(), by: Box::new(by) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look<'a>(self: &Arc<Self>, images: impl Iterator<Item = &'a ImageSpec> + Clone) -> Vec<Look> {
        let files: Arc<[ImageSpec]> = images.clone().filter(|i| scheme(&i.location).is_none()).cloned().collect();
        let mut found = if files.is_empty() { Vec::new() } else { self.look_at_files(&files) }.into_iter();
        let of_image = |image: &ImageSpec| match scheme(&image.location) {
            Some(_) => Look { fault: None, chain: chain(&image.location, true) },
            None => found.next().flatten().unwrap_or_else(|| silent(image)),
        };
        images.map(of_image).collect()
    }

    fn look_at_files(self: &Arc<Self>, files: &Arc<[ImageSpec]>) -> Vec<Option<Look>> {
        let mut state = self.lock();
        state.last_call += 1;
        let number = state.last_call;
        let all = files.len();
        let (queue, since) = ((0..all).collect(), vec![Instant::now(); all]);
        state.calls.insert(number, Call { queue, since, found: vec![None; all], left: all, threads: 0 });
        let mut calm = true;
        while let State { busy, calls, .. } = &mut *state
            && let Some(call) = calls.get_mut(&number)
            && call.left > 0
        {
            if calm {
                // Twice as many as before: none of those came back.
                let startable = call.queue.iter().filter(|&&n| !busy.contains(&files[n])).count();
                let more = startable.min(call.threads.max(1));
                let begun = (0..more).filter(|_| self.begin(number, files)).count();
                call.threads += begun;
                // What nobody looks at yet waits, unless there can be no thread.
                if begun == 0 && call.is_over() {
                    break;
                }
            }
            let (again, waited) = self.found.wait_timeout(state, STEP).unwrap_or_else(PoisonError::into_inner);
            (state, calm) = (again, waited.timed_out());
        }
        state.calls.remove(&number).map(|call| call.found).unwrap_or_default()
    }

    fn begin(self: &Arc<Self>, number: u64, files: &Arc<[ImageSpec]>) -> bool {
        let (looks, files) = (self.clone(), files.clone());
        let thread = std::thread::Builder::new().name("undercroft-look".into()).stack_size(STACK_BYTES);
        thread.spawn(move || while looks.one(number, &files) {}).is_ok()
    }

    /// Looks at one image of a call. False if there is none for this thread any more.
    fn one(&self, number: u64, files: &[ImageSpec]) -> bool {
        let mut state = self.lock();
        let State { busy, calls, .. } = &mut *state;
        let Some(call) = calls.get_mut(&number) else { return false };
        let Some(at) = call.queue.iter().position(|&n| !busy.contains(&files[n])) else {
            call.threads -= 1;
            return false;
        };
        let Some(n) = call.queue.remove(at) else { return false };
        busy.insert(files[n].clone());
        call.since[n] = Instant::now();
        drop(state);
        let look = (self.by)(&files[n]);
        let mut state = self.lock();
        state.busy.remove(&files[n]);
        if let Some(call) = state.calls.get_mut(&number) {
            call.found[n] = Some(look);
            call.left -= 1;
        }
        self.found.notify_all();
        true
    }
}

impl Call {
    /// Whether all that answer in time have answered.
    fn is_over(&self) -> bool {
        let mut open = self.found.iter().zip(&self.since).filter(|(found, _)| found.is_none());
        open.all(|(_, since)| since.elapsed() >= LOOK_WAIT)
    }
}

/// One that does not answer is at least itself, by its path.
fn silent(image: &ImageSpec) -> Look {
    Look { fault: Some(Fault::Silent), chain: vec![Identity::Silent(image.location.clone())] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn images(names: impl IntoIterator<Item = String>) -> Vec<ImageSpec> {
        names.into_iter().map(|location| ImageSpec { location, format: None, read_only: false }).collect()
    }

    fn fine(image: &ImageSpec) -> Look {
        Look { fault: None, chain: vec![Identity::Uri(image.location.clone())] }
    }

    /// Opened, if true.
    type Gate = Arc<(Mutex<bool>, Condvar)>;

    /// Looks at names; those with `stuck` in them wait until the gate is opened. How many looks began.
    fn gated() -> (Arc<Looks>, Gate, Arc<AtomicUsize>) {
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let begun = Arc::new(AtomicUsize::new(0));
        let (its, count) = (gate.clone(), begun.clone());
        let looks = Looks::by(move |image| {
            count.fetch_add(1, Ordering::Relaxed);
            if image.location.contains("stuck") {
                drop(its.1.wait_while(its.0.lock().unwrap(), |open| !*open).unwrap());
            }
            fine(image)
        });
        (looks, gate, begun)
    }

    fn open(gate: &(Mutex<bool>, Condvar)) {
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
    }

    #[test]
    fn those_that_do_not_answer_keep_no_others() {
        let (looks, gate, begun) = gated();
        let names = |n: usize| (0..n).map(|i| format!("/{}{i}", if i % 2 == 0 { "stuck" } else { "fine" }));
        let wanted = images(names(300));
        let found = looks.look(wanted.iter());
        for (image, look) in wanted.iter().zip(&found) {
            assert_eq!(*look, if image.location.contains("stuck") { silent(image) } else { fine(image) });
        }
        // Asked again while the threads still look: no more of them for the same images.
        assert_eq!(looks.look(wanted.iter()), found);
        assert_eq!(begun.load(Ordering::Relaxed), 300 + 150);
        open(&gate);
        assert_eq!(looks.look(wanted.iter()), wanted.iter().map(fine).collect::<Vec<_>>());
        assert!(looks.lock().busy.is_empty() && looks.lock().calls.is_empty());
    }

    #[test]
    fn callers_at_the_same_time_are_all_answered() {
        let (looks, gate, _) = gated();
        let wanted = images((0..50).map(|i| format!("/{}{i}", if i == 7 { "stuck" } else { "fine" })));
        std::thread::scope(|s| {
            let callers: Vec<_> = (0..8).map(|_| s.spawn(|| looks.look(wanted.iter()))).collect();
            std::thread::sleep(Duration::from_millis(200));
            open(&gate);
            for caller in callers {
                assert_eq!(caller.join().unwrap(), wanted.iter().map(fine).collect::<Vec<_>>());
            }
        });
    }

    #[test]
    fn nothing_to_look_at_and_nobody_to_ask() {
        let (looks, _, begun) = gated();
        assert!(looks.look([].iter()).is_empty());
        let found = looks.look(images(["nbd://host:10809/x".to_string()]).iter());
        assert_eq!(found[0].chain, [Identity::Uri("nbd://host/x".into())]);
        assert_eq!(begun.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_same_image_twice() {
        let (looks, ..) = gated();
        let wanted = images(["/a", "/a", "/a"].map(String::from));
        assert_eq!(looks.look(wanted.iter()), wanted.iter().map(fine).collect::<Vec<_>>());
    }
}
