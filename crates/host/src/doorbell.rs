//! Notifies another process through an event descriptor that it holds too, without ever waiting for that process.
//!
//! Owns the write, the watch over threads that write, and the slower way that cannot be held up. A write to an eventfd
//! waits if its counter is full and nobody set `O_NONBLOCK`; both are in the hands of the other process, since the flag
//! belongs to the open file that it shares with us and can be cleared again at any time. Never reads one. Invariants: a
//! watched thread is in such a write for at most two [`LOOK`]s; a careful doorbell never waits at all; while no watched
//! thread writes, nothing runs.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// How often it is looked whether a thread is held up in a write.
pub const LOOK: Duration = Duration::from_millis(50);
/// Looks in a row without a write from which on nobody looks until there is one: a second.
const RESTS_AFTER: u32 = 20;
/// The signal that gets a thread out of a write: ignored by default, and nobody's here.
const NUDGE: libc::c_int = libc::SIGURG;

/// The other process made a write to its event descriptor wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldUp;

/// An event descriptor of another process, to be signalled.
#[derive(Debug)]
pub struct Doorbell {
    fd: File,
    careful: bool,
}

impl Doorbell {
    /// For a process that has done no harm yet: one `write`. `fd` must be an eventfd with `O_NONBLOCK`.
    #[must_use]
    pub fn new(fd: File) -> Doorbell {
        Doorbell { fd, careful: false }
    }

    /// For a process that has held us up before: the kernel signals the descriptor when an operation of our own
    /// completes, which never waits, and costs several times as much.
    ///
    /// # Errors
    /// If the kernel has no asynchronous I/O for it (`CONFIG_AIO`, `fs.aio-max-nr`).
    pub fn careful(fd: File) -> io::Result<Doorbell> {
        signaller()?;
        Ok(Doorbell { fd, careful: true })
    }

    #[cold]
    fn held_up() -> HeldUp {
        crate::guard::note();
        HeldUp
    }

    /// Adds one to the descriptor. A counter that is full is as good: the peer is signalled already.
    ///
    /// # Errors
    /// [`HeldUp`] if the write had to be interrupted, which happens on watched threads only; counted by
    /// [`crate::guard::faults`].
    #[inline]
    pub fn ring(&self) -> Result<(), HeldUp> {
        if self.careful {
            if let Ok(signaller) = signaller() {
                signaller.signal(&self.fd);
            }
            return Ok(());
        }
        let result = WRITES.with(|writes| match writes.get() {
            Some(writes) => {
                let n = writes.load(Ordering::Relaxed);
                // Before the look at whether the watch rests, as the watch rests before it looks at this.
                writes.store(n + 1, Ordering::SeqCst);
                if WATCH.rests.load(Ordering::SeqCst) {
                    WATCH.wake();
                }
                let result = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
                writes.store(n + 2, Ordering::Relaxed);
                result
            }
            None => rustix::io::write(&self.fd, &1u64.to_ne_bytes()),
        });
        if result == Err(rustix::io::Errno::INTR) { Err(Self::held_up()) } else { Ok(()) }
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

thread_local! {
    /// Writes that this thread has begun and ended; odd while it is in one. `None` if it is not watched.
    static WRITES: Cell<Option<&'static AtomicU64>> = const { Cell::new(None) };
}

/// One thread that is watched.
struct Watched {
    thread: libc::pid_t,
    writes: &'static AtomicU64,
    seen: u64,
}

/// All threads that are watched, and whether the watch sleeps until one of them writes.
struct Watch {
    threads: Mutex<Vec<Watched>>,
    changed: Condvar,
    rests: AtomicBool,
}

static WATCH: Watch = Watch { threads: Mutex::new(Vec::new()), changed: Condvar::new(), rests: AtomicBool::new(false) };

impl Watch {
    /// Ends the rest of the watch, if it rests.
    #[cold]
    fn wake(&self) {
        // The lock, so that it is not missed between the decision to rest and the rest.
        let threads = lock();
        self.rests.store(false, Ordering::SeqCst);
        drop(threads);
        self.changed.notify_one();
    }
}

fn lock() -> MutexGuard<'static, Vec<Watched>> {
    WATCH.threads.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While it lives, its thread is got out of writes to doorbells that do not return.
#[derive(Debug)]
pub struct Watching {
    writes: &'static AtomicU64,
    /// It belongs to the thread that made it.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Watching {
    /// Watches the calling thread.
    ///
    /// # Errors
    /// If there can be no thread that watches.
    pub fn this_thread() -> io::Result<Watching> {
        watcher()?;
        // A few bytes for each worker of the process, for ever: the watcher may look at any time.
        let writes: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(0)));
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        lock().push(Watched { thread, writes, seen: 0 });
        WRITES.with(|w| w.set(Some(writes)));
        WATCH.changed.notify_one();
        Ok(Watching { writes, _not_send: std::marker::PhantomData })
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        WRITES.with(|w| w.set(None));
        lock().retain(|w| !std::ptr::eq(w.writes, self.writes));
    }
}

/// Starts the watcher and prepares the signal, once.
fn watcher() -> io::Result<()> {
    static DONE: OnceLock<Option<i32>> = OnceLock::new();
    let failed = DONE.get_or_init(|| {
        // SAFETY: all-zero is a valid `sigaction`.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // Without SA_RESTART: the interrupted write is to return.
        action.sa_sigaction = nudged as *const () as usize;
        // SAFETY: the handler does nothing at all.
        if unsafe { libc::sigaction(NUDGE, &raw const action, std::ptr::null_mut()) } != 0 {
            return io::Error::last_os_error().raw_os_error();
        }
        let spawned = std::thread::Builder::new().name("doorbells".into()).spawn(watch);
        spawned.err().map(|e| e.raw_os_error().unwrap_or(libc::EAGAIN))
    });
    failed.map_or(Ok(()), |e| Err(io::Error::from_raw_os_error(e)))
}

extern "C" fn nudged(_signal: libc::c_int) {}

fn watch() {
    let mut silent = 0;
    loop {
        let mut threads = lock();
        while threads.is_empty() || WATCH.rests.load(Ordering::SeqCst) {
            threads = WATCH.changed.wait(threads).unwrap_or_else(PoisonError::into_inner);
            silent = 0;
        }
        silent += 1;
        if silent >= RESTS_AFTER {
            WATCH.rests.store(true, Ordering::SeqCst);
        }
        for w in threads.iter_mut() {
            let now = w.writes.load(Ordering::SeqCst);
            if now != w.seen || now % 2 == 1 {
                silent = 0;
                WATCH.rests.store(false, Ordering::SeqCst);
            }
            if now % 2 == 1 && now == w.seen {
                // SAFETY: sends a signal to a thread of this process, which is watched and so has not ended; one that
                // has left the write meanwhile does not mind.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), w.thread, NUDGE) };
            }
            w.seen = now;
        }
        drop(threads);
        if silent < RESTS_AFTER {
            std::thread::sleep(LOOK);
        }
    }
}

/// Signals event descriptors through completions of asynchronous I/O: `IOCB_FLAG_RESFD`, which adds to a counter
/// without ever waiting for room in it.
struct Signaller {
    context: libc::c_ulong,
    /// Always readable, so that waiting for that completes at once.
    ready: OwnedFd,
}

/// `struct iocb` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key_and_flags: [u32; 2],
    opcode: u16,
    priority: i16,
    fd: u32,
    buf: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    signalled: u32,
}

const IOCB_CMD_POLL: u16 = 5;
const IOCB_FLAG_RESFD: u32 = 1;
/// Completions that can wait to be collected.
const EVENTS: usize = 64;

fn signaller() -> io::Result<&'static Signaller> {
    static SIGNALLER: OnceLock<Result<Signaller, i32>> = OnceLock::new();
    let made = SIGNALLER.get_or_init(|| {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let ready = rustix::event::eventfd(1, flags).map_err(rustix::io::Errno::raw_os_error)?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: writes the context's number to the location given, which is valid.
        if unsafe { libc::syscall(libc::SYS_io_setup, EVENTS, &raw mut context) } != 0 {
            return Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOSYS));
        }
        Ok(Signaller { context, ready })
    });
    made.as_ref().map_err(|&e| io::Error::from_raw_os_error(e))
}

impl Signaller {
    fn signal(&self, fd: &File) {
        let mut wait = Iocb {
            opcode: IOCB_CMD_POLL,
            fd: self.ready.as_raw_fd() as u32,
            buf: libc::POLLIN as u64,
            flags: IOCB_FLAG_RESFD,
            signalled: fd.as_raw_fd() as u32,
            ..Iocb::default()
        };
        // `struct io_event`: four words.
        let mut events = [[0u64; 4]; EVENTS];
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        for _ in 0..2 {
            let mut list = [&raw mut wait];
            // SAFETY: one valid `iocb`, which the kernel copies; the operation reads and writes no memory of ours.
            let sent = unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1usize, list.as_mut_ptr()) };
            // SAFETY: room for as many events as are asked for; it does not wait.
            unsafe {
                libc::syscall(libc::SYS_io_getevents, self.context, 0usize, EVENTS, events.as_mut_ptr(), &raw const now)
            };
            if sent == 1 {
                return;
            }
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    /// An eventfd as a peer leaves it that wants us to wait: full, and blocking again.
    fn trap() -> (File, File) {
        let fd = File::from(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let theirs = fd.try_clone().unwrap();
        rustix::io::write(&theirs, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let flags = fcntl_getfl(&theirs).unwrap();
        fcntl_setfl(&theirs, flags & !OFlags::NONBLOCK).unwrap();
        (fd, theirs)
    }

    fn count(fd: &File) -> u64 {
        let mut bytes = [0; 8];
        rustix::io::read(fd, &mut bytes).map_or(0, |_| u64::from_ne_bytes(bytes))
    }

    #[test]
    fn a_peer_that_makes_its_descriptor_block_does_not_keep_a_watched_thread() {
        let (fd, _theirs) = trap();
        // Without the watch this thread never comes back, and the test hangs.
        let held_up = std::thread::spawn(move || {
            let _watching = Watching::this_thread().unwrap();
            Doorbell::new(fd).ring()
        });
        assert_eq!(held_up.join().unwrap(), Err(HeldUp));
    }

    #[test]
    fn a_watch_that_rests_is_woken_by_the_first_write() {
        let (fd, _theirs) = trap();
        let held_up = std::thread::spawn(move || {
            let _watching = Watching::this_thread().unwrap();
            // Other tests may write meanwhile.
            for _ in 0..600 {
                if WATCH.rests.load(Ordering::SeqCst) {
                    break;
                }
                std::thread::sleep(LOOK);
            }
            assert!(WATCH.rests.load(Ordering::SeqCst), "nobody writes");
            Doorbell::new(fd).ring()
        });
        assert_eq!(held_up.join().unwrap(), Err(HeldUp));
    }

    #[test]
    fn a_careful_doorbell_signals_and_never_waits() {
        let fd = File::from(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let doorbell = Doorbell::careful(fd.try_clone().unwrap()).unwrap();
        // More often than completions can wait.
        (0..500).for_each(|_| doorbell.ring().unwrap());
        assert_eq!(count(&fd), 500);
        let (fd, _theirs) = trap();
        // This thread is not watched: were it to wait, it would wait for ever.
        (0..500).for_each(|_| Doorbell::careful(fd.try_clone().unwrap()).unwrap().ring().unwrap());
    }

    #[test]
    fn a_full_counter_is_as_good_as_a_signal() {
        let fd = File::from(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let _watching = Watching::this_thread().unwrap();
        assert_eq!(Doorbell::new(fd.try_clone().unwrap()).ring(), Ok(()));
        assert_eq!(count(&fd), u64::MAX - 1);
    }
}
