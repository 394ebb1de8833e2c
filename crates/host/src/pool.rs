//! Threads that serve file operations with blocking calls, where io_uring is missing or cannot do one.
//!
//! Owns its threads' work. Never blocks its caller. Invariant: an operation is in the queue, with one thread, among
//! the finished, or handed over; one that is dropped with the pool is leaked with its frames, whose arena may be gone.

use crate::engine::{Action, FileDone, FileOp, Region};
use crate::file::{self, OpenFile};
use crate::frame::IoBuf;
use crate::ring::check;
use crate::wait::{EventFd, now_ns, set_thread_name};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, ReadWriteFlags};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Pieces of memory of one system call at most (`IOV_MAX`).
const PIECES_MAX: usize = 1024;
/// How long `drop` waits for calls under way.
const DROP_WAIT_NS: u64 = 5_000_000_000;

/// A queue of operations on one file, and the threads that carry them out.
pub struct Pool<T> {
    shared: Arc<Shared<T>>,
    wake: EventFd,
    threads: Vec<JoinHandle<()>>,
    threads_max: usize,
    inflight: usize,
}

struct Shared<T> {
    file: Arc<OpenFile>,
    queue: Mutex<Queue<T>>,
    work: Condvar,
    ended: Condvar,
    done: Mutex<VecDeque<FileDone<T>>>,
    /// Length of `done`, to look at without its lock.
    done_len: AtomicUsize,
    wake: EventFd,
}

struct Queue<T> {
    ops: VecDeque<FileOp<T>>,
    /// Threads that wait for work.
    idle: usize,
    /// Threads that have not ended.
    alive: usize,
    closed: bool,
}

/// A panic while a lock is held cannot leave the queues half changed, so a poisoned lock is as good as any.
fn lock<X>(m: &Mutex<X>) -> MutexGuard<'_, X> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Send + 'static> Pool<T> {
    /// A pool for `file` of at most `threads_max` threads, which are started when needed.
    ///
    /// # Errors
    /// What the kernel says: out of descriptors.
    pub fn new(file: Arc<OpenFile>, threads_max: usize) -> io::Result<Self> {
        let wake = EventFd::new()?;
        let shared = Shared {
            file,
            queue: Mutex::new(Queue { ops: VecDeque::new(), idle: 0, alive: 0, closed: false }),
            work: Condvar::new(),
            ended: Condvar::new(),
            done: Mutex::new(VecDeque::new()),
            done_len: AtomicUsize::new(0),
            wake: wake.try_clone()?,
        };
        Ok(Self { shared: Arc::new(shared), wake, threads: Vec::new(), threads_max, inflight: 0 })
    }

    /// Takes an operation over and starts it as soon as a thread is free.
    pub fn submit(&mut self, op: FileOp<T>) {
        check(&op);
        self.inflight += 1;
        let mut q = lock(&self.shared.queue);
        q.ops.push_back(op);
        let starved = q.ops.len() > q.idle && self.threads.len() < self.threads_max;
        q.alive += usize::from(starved);
        drop(q);
        self.shared.work.notify_one();
        if starved {
            let shared = Arc::clone(&self.shared);
            let spawned = std::thread::Builder::new().name("disk-io".into()).spawn(move || serve(&shared));
            match spawned {
                Ok(t) => self.threads.push(t),
                Err(e) => {
                    lock(&self.shared.queue).alive -= 1;
                    // With one thread at least, work goes on; without any, it fails.
                    if self.threads.is_empty() {
                        self.fail_all(e.raw_os_error().unwrap_or(libc::EAGAIN));
                    }
                }
            }
        }
    }

    fn fail_all(&self, errno: i32) {
        let ops: Vec<_> = lock(&self.shared.queue).ops.drain(..).collect();
        for op in ops {
            self.shared.finish(op, Err(Errno::from_raw_os_error(errno)), Vec::new());
        }
    }

    /// Hands over at most `max` finished operations; true if there may be more.
    pub fn poll(&mut self, max: usize, done: &mut impl FnMut(FileDone<T>)) -> bool {
        if self.shared.done_len.load(Ordering::Acquire) == 0 {
            return false;
        }
        for _ in 0..max {
            let mut finished = lock(&self.shared.done);
            let Some(d) = finished.pop_front() else { return false };
            self.shared.done_len.store(finished.len(), Ordering::Release);
            if finished.is_empty() {
                self.wake.drain();
            }
            drop(finished);
            self.inflight -= 1;
            done(d);
        }
        self.shared.done_len.load(Ordering::Acquire) > 0
    }

    /// Operations submitted and not yet handed over.
    pub fn inflight(&self) -> usize {
        self.inflight
    }
}

impl<T> Shared<T> {
    fn finish(&self, op: FileOp<T>, result: Result<(), Errno>, regions: Vec<Region>) {
        let mut finished = lock(&self.done);
        finished.push_back(FileDone { token: op.token, buf: op.buf, result, regions });
        self.done_len.store(finished.len(), Ordering::Release);
        if finished.len() == 1 {
            self.wake.signal();
        }
    }
}

fn serve<T>(shared: &Shared<T>) {
    set_thread_name("disk-io");
    let mut q = lock(&shared.queue);
    loop {
        if q.closed {
            q.alive -= 1;
            shared.ended.notify_all();
            return;
        }
        let Some(mut op) = q.ops.pop_front() else {
            q.idle += 1;
            q = shared.work.wait(q).unwrap_or_else(PoisonError::into_inner);
            q.idle -= 1;
            continue;
        };
        drop(q);
        let mut regions = Vec::new();
        let result = carry_out(&shared.file, &mut op, &mut regions);
        shared.finish(op, result, regions);
        q = lock(&shared.queue);
    }
}

fn carry_out<T>(file: &File, op: &mut FileOp<T>, regions: &mut Vec<Region>) -> Result<(), Errno> {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let zero = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    match op.action {
        Action::Read => transfer(op.len, |done| {
            let mut pieces = skip_mut(&mut op.buf, done);
            rustix::io::preadv(file, &mut pieces, op.offset + done)
        }),
        Action::Write { dsync } => transfer(op.len, |done| {
            let pieces = skip(&op.buf, done);
            if dsync {
                rustix::io::pwritev2(file, &pieces, op.offset + done, ReadWriteFlags::DSYNC)
            } else {
                rustix::io::pwritev(file, &pieces, op.offset + done)
            }
        }),
        Action::Nothing => Ok(()),
        Action::Sync => uninterrupted(|| rustix::fs::fdatasync(file)),
        Action::PunchHole => uninterrupted(|| fallocate(file, punch, op.offset, op.len)),
        Action::ZeroRange => uninterrupted(|| fallocate(file, zero, op.offset, op.len)),
        Action::DeviceDiscard => uninterrupted(|| file::device_discard(file, op.offset, op.len)),
        Action::Map => {
            *regions = file::map_regions(file, op.offset, op.len)?;
            Ok(())
        }
    }
}

/// Repeats `step`, which is told the bytes done so far, until `len` bytes are done.
fn transfer(len: u64, mut step: impl FnMut(u64) -> Result<usize, Errno>) -> Result<(), Errno> {
    let mut done = 0;
    while done < len {
        match step(done) {
            Ok(0) => return Err(Errno::IO), // the end of the file
            Ok(n) => done += n as u64,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn uninterrupted(mut call: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

fn skip(buf: &IoBuf, mut bytes: u64) -> Vec<IoSlice<'_>> {
    let mut out = Vec::new();
    for p in buf.pieces() {
        let cut = bytes.min(p.len() as u64);
        bytes -= cut;
        if (cut as usize) < p.len() && out.len() < PIECES_MAX {
            out.push(IoSlice::new(&p[cut as usize..]));
        }
    }
    out
}

fn skip_mut(buf: &mut IoBuf, mut bytes: u64) -> Vec<IoSliceMut<'_>> {
    let mut out = Vec::new();
    for p in buf.pieces_mut() {
        let cut = bytes.min(p.len() as u64);
        bytes -= cut;
        if (cut as usize) < p.len() && out.len() < PIECES_MAX {
            out.push(IoSliceMut::new(&mut p[cut as usize..]));
        }
    }
    out
}

/// Readable (level-triggered) when `poll` has something.
impl<T> AsFd for Pool<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl<T> Drop for Pool<T> {
    /// Waits for calls under way, for a bounded time, so that no write of ours lands after the file's lock is gone.
    /// A thread that hangs in a call keeps its frames and its file.
    fn drop(&mut self) {
        let mut q = lock(&self.shared.queue);
        q.closed = true;
        self.shared.work.notify_all();
        q.ops.drain(..).for_each(std::mem::forget);
        let end = now_ns() + DROP_WAIT_NS;
        while q.alive > 0 && now_ns() < end {
            let wait = std::time::Duration::from_nanos(end.saturating_sub(now_ns()));
            (q, _) = self.shared.ended.wait_timeout(q, wait).unwrap_or_else(PoisonError::into_inner);
        }
        let all_ended = q.alive == 0;
        drop(q);
        if all_ended {
            for t in self.threads.drain(..) {
                // The threads have nothing left to do but to let go of the file. A panic of one ends here.
                let _ = t.join();
            }
        }
        lock(&self.shared.done).drain(..).for_each(std::mem::forget);
    }
}

impl<T> std::fmt::Debug for Pool<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads.len()).field("inflight", &self.inflight).finish()
    }
}
