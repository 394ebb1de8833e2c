//! How other threads reach a worker: closures through a mailbox, answered through channels.
//!
//! Owns the mailbox and the thread. Never touches the data path itself. Invariants: a closure runs between two turns,
//! on the worker's thread, at most once; a caller who is told that it did not run can rely on it. Nobody waits longer
//! than [`CALL_WAIT`] for a worker that is held up, but for those who ask to.

use super::copying::Copying;
use super::polling::Polling;
use super::{Worker, WorkerOptions, effects::Dirty, turn};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use undercroft_cache::limits::{self, STEP_BYTES};
use undercroft_cache::{Core, CoreOptions, DiskId};
use undercroft_frontend::turns::Flows;
use undercroft_frontend::{MakePort, OnPort, PortHost};
use undercroft_host::{Epoll, EventFd, Interest, Trigger, Watching, faults, now_ns};

type Command = Box<dyn FnOnce(&mut Worker) + Send>;

/// How long a worker may leave its mail unread before it is said not to answer, and callers turn to something else.
pub const CALL_WAIT: Duration = Duration::from_secs(5);
/// How long a closure may take that has begun to run. A disk's whole index is rebuilt within this.
const RUN_WAIT: Duration = Duration::from_secs(60);

/// How far a closure is for which somebody waits.
const WAITS: u8 = 0;
const RUNS: u8 = 1;
const GIVEN_UP: u8 = 2;

/// Whether the closure waited, and is now so far.
fn claim(state: &AtomicU8, to: u8) -> bool {
    state.compare_exchange(WAITS, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// Waits until a closure has run, but not for long if it does not begin to.
fn heard(ran: &Receiver<()>, state: &AtomicU8) -> Result<(), Gone> {
    match ran.recv_timeout(CALL_WAIT) {
        Err(RecvTimeoutError::Timeout) if claim(state, GIVEN_UP) => Err(Gone::Silent),
        Err(RecvTimeoutError::Timeout) => ran.recv_timeout(RUN_WAIT).map_err(|e| match e {
            RecvTimeoutError::Timeout => Gone::Silent,
            RecvTimeoutError::Disconnected => Gone::Ended,
        }),
        Err(RecvTimeoutError::Disconnected) => Err(Gone::Ended),
        Ok(()) => Ok(()),
    }
}

/// What a closure returned. It does not go through the channel: that would be compiled for each type, 10 KB of it
/// (decision 0174).
struct Answer<R>(Mutex<Option<R>>);

impl<R> Answer<R> {
    fn set(&self, answer: R) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
    }

    fn take(&self) -> Result<R, Gone> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or(Gone::Ended)
    }
}

/// The worker's end of the mailbox.
pub(super) struct Mailbox {
    wake_fd: Arc<EventFd>,
    /// Since when there is mail that the worker has not looked for, in nanoseconds; 0 if there is none.
    unread_ns: Arc<AtomicU64>,
    commands: Receiver<Command>,
}

impl Mailbox {
    pub(super) fn acknowledge(&self) {
        self.unread_ns.store(0, Ordering::Relaxed);
        self.wake_fd.drain();
    }

    pub(super) fn again(&self) {
        self.wake_fd.signal();
    }

    pub(super) fn try_next(&self) -> Option<Command> {
        self.commands.try_recv().ok()
    }
}

/// Why a worker did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Gone {
    /// It has ended, or ended before it answered.
    #[error("the worker has stopped")]
    Ended,
    /// Something holds it up: it has not looked at its mail for [`CALL_WAIT`]. What was asked has not been done, and
    /// will not be, unless it had begun.
    #[error("the worker has not answered for {} s", CALL_WAIT.as_secs())]
    Silent,
}

/// Frames that a worker gives back between two turns: what keeps its guests waiting for some 50 us.
const GIVE_BACK_FRAMES: usize = 256;

/// In place of a number of bytes: only the worker knows.
const AWAKE: u64 = u64::MAX;

/// Who asks whether a worker's disks had anything to do: a bit each.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Asker {
    /// Who tells disks what they may keep.
    Limits = 1,
    /// Who divides the store among them.
    Shares = 2,
    /// Who tells the SSD store which disks are at rest.
    Ssd = 4,
}

/// The bits of all who ask.
const ALL_ASKERS: u8 = Asker::Limits as u8 | Asker::Shares as u8 | Asker::Ssd as u8;

/// What others may know of a worker without waking it.
pub(super) struct Seen {
    /// For each who asks, whether its disks had anything to do since they asked last.
    has_worked: AtomicU8,
    /// What its store has of the kernel while it sleeps, or [`AWAKE`].
    frames_bytes: AtomicU64,
}

impl Seen {
    /// The worker has had something to do. Only written where it changes: another thread reads it.
    pub(super) fn work(&self) {
        if self.has_worked.load(Ordering::Relaxed) != ALL_ASKERS {
            self.has_worked.store(ALL_ASKERS, Ordering::Relaxed);
        }
    }

    /// The worker goes to sleep, and nothing changes its store until it says [`Self::wake`].
    pub(super) fn sleep(&self, frames_bytes: u64) {
        self.frames_bytes.store(frames_bytes, Ordering::Relaxed);
    }

    /// It is awake.
    pub(super) fn wake(&self) {
        self.frames_bytes.store(AWAKE, Ordering::Relaxed);
    }
}

/// A running worker, for other threads.
pub struct WorkerHandle {
    wake_fd: Arc<EventFd>,
    unread_ns: Arc<AtomicU64>,
    commands: Sender<Command>,
    seen: Arc<Seen>,
    thread: std::sync::Mutex<Option<JoinHandle<()>>>,
}

impl WorkerHandle {
    /// Starts a worker thread.
    ///
    /// # Errors
    /// If the kernel refuses memory, descriptors or the thread.
    pub fn start(options: WorkerOptions) -> io::Result<Arc<Self>> {
        let wake_fd = Arc::new(EventFd::new()?);
        let (tx, rx) = channel();
        let unread_ns = Arc::new(AtomicU64::new(0));
        let seen = Arc::new(Seen { has_worked: AtomicU8::new(ALL_ASKERS), frames_bytes: AtomicU64::new(AWAKE) });
        let epoll = Epoll::new()?;
        epoll.add(wake_fd.as_fd(), turn::token(turn::MAILBOX, 0, 0), Interest::Read, Trigger::Level)?;
        let mut polling = Polling::default();
        polling.set_bound(options.poll_ns_max);
        let worker = Worker {
            lives: 0,
            core: Core::new(CoreOptions { step_bytes: STEP_BYTES, ..options.core })?,
            disks: Vec::new(),
            devices: super::ssd::Devices::default(),
            ports: Vec::new(),
            flows: Flows::default(),
            busy_disks: Vec::new(),
            dirty: Dirty::default(),
            starved: false,
            news_ns: 0,
            seen: seen.clone(),
            leaving: false,
            epoll,
            mailbox: Mailbox { wake_fd: wake_fd.clone(), unread_ns: unread_ns.clone(), commands: rx },
            polling,
            check_captures: options.check_captures,
            memories: 0,
            refused: Vec::new(),
            faults: faults(),
            tap: None,
            copying: Copying::new(options.copy_cpu_percent, now_ns()),
            stopping: false,
            now_ns: now_ns(),
            tick_ns: 0,
            requests: Vec::with_capacity(limits::BATCH),
            done: Vec::with_capacity(limits::BATCH),
        };
        let thread = std::thread::Builder::new().name(options.name).spawn(move || {
            let _watching = Watching::this_thread().map_err(|e| {
                tracing::error!("a front end could hold up this worker: there can be no thread that watches it: {e}");
            });
            // A worker that panics holds guests' requests that nobody would ever answer. Ending the process is the
            // better failure: guests reconnect to the restarted daemon, and a write-through cache loses nothing.
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| worker.run())).is_err() {
                tracing::error!("a worker failed; the daemon ends so that a supervisor can start it afresh");
                crate::logging::flush();
                std::process::abort();
            }
        })?;
        Ok(Arc::new(Self { wake_fd, unread_ns, commands: tx, seen, thread: std::sync::Mutex::new(Some(thread)) }))
    }

    /// Whether the worker's disks had anything to do since `who` asked last: if not, they hold what they held. The
    /// worker is not woken for that.
    pub(crate) fn take_has_worked(&self, who: Asker) -> bool {
        self.seen.has_worked.fetch_and(!(who as u8), Ordering::Relaxed) & who as u8 != 0
    }

    /// Bytes of frames that its store has of the kernel. A worker that sleeps is not woken for that.
    ///
    /// # Errors
    /// If the worker does not answer.
    pub(crate) fn frames_bytes(&self) -> Result<u64, Gone> {
        match self.seen.frames_bytes.load(Ordering::Relaxed) {
            AWAKE => self.call(|w| w.core().frames_bytes()),
            bytes => Ok(bytes),
        }
    }

    /// Sends `f` to run between two turns.
    pub fn send(&self, f: impl FnOnce(&mut Worker) + Send + 'static) -> Result<(), Gone> {
        self.commands.send(Box::new(f)).map_err(|_| Gone::Ended)?;
        let _ = self.unread_ns.compare_exchange(0, now_ns().max(1), Ordering::Relaxed, Ordering::Relaxed);
        self.wake_fd.signal();
        Ok(())
    }

    /// Whether the worker has left its mail unread for longer than [`CALL_WAIT`]: something holds it up.
    pub(crate) fn is_silent(&self) -> bool {
        let since = self.unread_ns.load(Ordering::Relaxed);
        since != 0 && u128::from(now_ns().saturating_sub(since)) > CALL_WAIT.as_nanos()
    }

    /// Runs `f` between two turns and waits for what it returns, but not for long.
    ///
    /// # Errors
    /// [`Gone`] if the worker has ended, or does not answer; then `f` does not run later either.
    pub fn call<R: Send + 'static>(&self, f: impl FnOnce(&mut Worker) -> R + Send + 'static) -> Result<R, Gone> {
        if self.is_silent() {
            return Err(Gone::Silent);
        }
        let (state, answer) = (Arc::new(AtomicU8::new(WAITS)), Arc::new(Answer(Mutex::new(None))));
        // Room for one word: a channel without a bound takes memory for 31 at once.
        let (tx, rx) = sync_channel(1);
        let (here, to) = (state.clone(), answer.clone());
        self.send(move |w| {
            if claim(&here, RUNS) {
                to.set(f(w));
                let _ = tx.send(());
            }
        })?;
        heard(&rx, &state)?;
        answer.take()
    }

    /// Has the worker give back at most `frames` frames of what is over, some of them between each two turns. Returns
    /// how many are still to go.
    ///
    /// # Errors
    /// As [`WorkerHandle::call`].
    pub fn give_back(&self, frames: usize) -> Result<usize, Gone> {
        let mut left = frames;
        loop {
            let some = left.min(GIVE_BACK_FRAMES);
            let to_go = self.call(move |w| w.core().give_back(some as u32))?;
            left -= some;
            if left == 0 || to_go == 0 {
                return Ok(to_go);
            }
        }
    }

    /// Runs `f` between two turns and waits for what it returns, however long that takes: for threads that have nothing
    /// else to do.
    ///
    /// # Errors
    /// [`Gone`] if the worker has ended.
    pub(crate) fn wait_for<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Worker) -> R + Send + 'static,
    ) -> Result<R, Gone> {
        let answer = Arc::new(Answer(Mutex::new(None)));
        let (tx, rx) = sync_channel(1);
        let to = answer.clone();
        self.send(move |w| {
            to.set(f(w));
            let _ = tx.send(());
        })?;
        rx.recv().map_err(|_| Gone::Ended)?;
        answer.take()
    }

    /// Asks the worker to end once its disks are removed, and waits for it.
    pub fn stop(&self) {
        let _ = self.send(Worker::stop);
        let thread = self.thread.lock().ok().and_then(|mut t| t.take());
        if let Some(t) = thread {
            let _ = t.join();
        }
    }
}

/// What is heard of a disk's guest.
pub(crate) enum GuestNews {
    /// It starts to run here.
    Starts,
    /// It goes on elsewhere, and does not before this is dropped.
    Moves(Box<dyn Send>),
}

/// One disk on its worker, for front ends.
pub struct DiskHost {
    /// The worker that owns the disk.
    pub worker: Arc<WorkerHandle>,
    disk: DiskId,
    /// Which of the disks that had this id it is; `None` if there was none.
    life: Option<u64>,
    /// Who is told of its guest; returns at once.
    on_guest: OnceLock<Box<dyn Fn(GuestNews) + Send + Sync>>,
}

impl DiskHost {
    /// The disk that has this id on the worker now.
    pub fn new(worker: Arc<WorkerHandle>, disk: DiskId) -> Self {
        let life = worker.call(move |w| w.life(disk)).ok().flatten();
        Self { worker, disk, life, on_guest: OnceLock::new() }
    }

    /// Has `told` hear of the guest from now on. Once.
    pub(crate) fn on_guest(&self, told: impl Fn(GuestNews) + Send + Sync + 'static) {
        let _ = self.on_guest.set(Box::new(told));
    }
}

impl PortHost for DiskHost {
    fn worker(&self) -> usize {
        Arc::as_ptr(&self.worker).addr()
    }

    fn attach(&self, make: MakePort) -> u32 {
        let (disk, Some(life)) = (self.disk, self.life) else { return u32::MAX };
        // What was not made is dropped here: with it may go a socket, for which no worker should wait.
        self.worker
            .call(move |w| w.add_port_in_life(disk, life, make))
            .map_or(u32::MAX, |made| made.unwrap_or(u32::MAX))
    }

    fn with(&self, port: u32, f: OnPort) -> bool {
        // Whoever calls has a thread for it; no front end of this worker can be served any earlier.
        self.worker.wait_for(move |w| w.with_port(port, f)).unwrap_or(false)
    }

    fn guest_starts(&self) {
        if let Some(told) = self.on_guest.get() {
            told(GuestNews::Starts);
        }
    }

    fn guest_moves(&self, until: Box<dyn Send>) {
        if let Some(told) = self.on_guest.get() {
            told(GuestNews::Moves(until));
        }
    }

    fn detach(&self, port: u32) {
        let (tx, rx) = channel();
        if self.worker.send(move |w| w.detach_port(port, tx)).is_ok() {
            // A worker that is held up lets the port go when it goes on; nobody has to wait for that.
            while rx.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout)
                && !self.worker.is_silent()
            {}
        }
    }
}
