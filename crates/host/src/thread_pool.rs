//! Threads that carry out blocking work for an owner that must not block.
//!
//! Owns the queue, the threads, and finished work until it is fetched. Never knows what the work is. Invariant: a job
//! is in the queue, with one thread, among the finished, or handed over. Jobs often hold frames, whose arena may be
//! gone when a pool is dropped; so what is left then is leaked, not dropped.

use crate::wait::{EventFd, now_ns, set_thread_name};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// How long dropping a pool waits for jobs under way.
const DROP_WAIT_NS: u64 = 5_000_000_000;

/// What a pool does.
pub trait Work: Send + Sync + 'static {
    /// A piece of work.
    type Job: Send + 'static;
    /// What comes of it.
    type Done: Send + 'static;

    /// Carries out a job, for as long as it takes. Must not panic.
    fn carry_out(&self, job: Self::Job) -> Self::Done;

    /// Fails a job, because no thread can be had for it.
    fn refuse(&self, job: Self::Job, why: &io::Error) -> Self::Done;
}

/// A queue of jobs and the threads that carry them out, which are started when needed.
pub struct ThreadPool<W: Work> {
    shared: Arc<Shared<W>>,
    wake: EventFd,
    name: &'static str,
    threads: Vec<JoinHandle<()>>,
    threads_max: usize,
    inflight: usize,
}

struct Shared<W: Work> {
    work: W,
    queue: Mutex<Queue<W::Job>>,
    available: Condvar,
    ended: Condvar,
    done: Mutex<VecDeque<W::Done>>,
    /// Length of `done`, to look at without its lock.
    done_len: AtomicUsize,
    wake: EventFd,
}

struct Queue<J> {
    jobs: VecDeque<J>,
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

impl<W: Work> ThreadPool<W> {
    /// A pool of at most `threads_max` threads named `name`.
    ///
    /// # Errors
    /// What the kernel says: out of descriptors.
    pub fn new(name: &'static str, threads_max: usize, work: W) -> io::Result<Self> {
        let wake = EventFd::new()?;
        let shared = Shared {
            work,
            queue: Mutex::new(Queue { jobs: VecDeque::new(), idle: 0, alive: 0, closed: false }),
            available: Condvar::new(),
            ended: Condvar::new(),
            done: Mutex::new(VecDeque::new()),
            done_len: AtomicUsize::new(0),
            wake: wake.try_clone()?,
        };
        Ok(Self { shared: Arc::new(shared), wake, name, threads: Vec::new(), threads_max, inflight: 0 })
    }

    /// What the pool works with.
    pub fn work(&self) -> &W {
        &self.shared.work
    }

    /// Takes a job over; it starts as soon as a thread is free.
    pub fn submit(&mut self, job: W::Job) {
        self.inflight += 1;
        let mut q = lock(&self.shared.queue);
        q.jobs.push_back(job);
        let starved = q.jobs.len() > q.idle && self.threads.len() < self.threads_max;
        q.alive += usize::from(starved);
        drop(q);
        self.shared.available.notify_one();
        if starved {
            self.hire();
        }
    }

    fn hire(&mut self) {
        let (shared, name) = (Arc::clone(&self.shared), self.name);
        let spawned = std::thread::Builder::new().name(name.into()).spawn(move || {
            set_thread_name(name);
            serve(&shared);
        });
        match spawned {
            Ok(t) => self.threads.push(t),
            Err(e) => {
                let mut q = lock(&self.shared.queue);
                q.alive -= 1;
                if !self.threads.is_empty() {
                    return; // the others will get to it
                }
                let jobs: Vec<_> = q.jobs.drain(..).collect();
                drop(q);
                for job in jobs {
                    self.shared.finish(self.shared.work.refuse(job, &e));
                }
            }
        }
    }

    /// Hands over at most `max` finished jobs; true if there may be more. No system call if there are none.
    pub fn poll(&mut self, max: usize, done: &mut impl FnMut(W::Done)) -> bool {
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

    /// Jobs submitted and not yet handed over.
    pub fn inflight(&self) -> usize {
        self.inflight
    }
}

impl<W: Work> Shared<W> {
    fn finish(&self, done: W::Done) {
        let mut finished = lock(&self.done);
        finished.push_back(done);
        self.done_len.store(finished.len(), Ordering::Release);
        if finished.len() == 1 {
            self.wake.signal();
        }
    }
}

fn serve<W: Work>(shared: &Shared<W>) {
    let mut q = lock(&shared.queue);
    loop {
        if q.closed {
            q.alive -= 1;
            shared.ended.notify_all();
            return;
        }
        let Some(job) = q.jobs.pop_front() else {
            q.idle += 1;
            q = shared.available.wait(q).unwrap_or_else(PoisonError::into_inner);
            q.idle -= 1;
            continue;
        };
        drop(q);
        shared.finish(shared.work.carry_out(job));
        q = lock(&shared.queue);
    }
}

/// Readable (level-triggered) when `poll` has something.
impl<W: Work> AsFd for ThreadPool<W> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl<W: Work> Drop for ThreadPool<W> {
    /// Waits for jobs under way, for a bounded time, so that nothing is written after the owner is gone. A thread that
    /// hangs in a call keeps what it works with.
    fn drop(&mut self) {
        let mut q = lock(&self.shared.queue);
        q.closed = true;
        self.shared.available.notify_all();
        q.jobs.drain(..).for_each(std::mem::forget);
        let end = now_ns() + DROP_WAIT_NS;
        while q.alive > 0 && now_ns() < end {
            let wait = std::time::Duration::from_nanos(end.saturating_sub(now_ns()));
            (q, _) = self.shared.ended.wait_timeout(q, wait).unwrap_or_else(PoisonError::into_inner);
        }
        let all_ended = q.alive == 0;
        drop(q);
        if all_ended {
            for t in self.threads.drain(..) {
                // The threads have nothing left to do but to let go of what they share. A panic of one ends here.
                let _ = t.join();
            }
        }
        lock(&self.shared.done).drain(..).for_each(std::mem::forget);
    }
}

impl<W: Work> std::fmt::Debug for ThreadPool<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadPool").field("threads", &self.threads.len()).field("inflight", &self.inflight).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    struct Add {
        gate: Mutex<mpsc::Receiver<()>>,
    }

    impl Work for Add {
        type Job = u32;
        type Done = u32;

        fn carry_out(&self, job: u32) -> u32 {
            if job >= 100 {
                let _ = self.gate.lock().unwrap().recv();
            }
            job + 1
        }

        fn refuse(&self, _: u32, _: &io::Error) -> u32 {
            0
        }
    }

    fn drain(c: &mut ThreadPool<Add>, n: usize) -> Vec<u32> {
        let mut out = Vec::new();
        while out.len() < n {
            c.poll(3, &mut |d| out.push(d));
            std::thread::yield_now();
        }
        out.sort_unstable();
        out
    }

    #[test]
    #[cfg(not(miri))]
    fn every_job_comes_back_once_and_a_slow_one_holds_up_no_other() {
        let (open, gate) = mpsc::channel();
        let mut c = ThreadPool::new("test", 2, Add { gate: Mutex::new(gate) }).unwrap();
        c.submit(100);
        (0..50).for_each(|i| c.submit(i));
        assert_eq!(drain(&mut c, 50), (1..51).collect::<Vec<_>>());
        assert_eq!(c.inflight(), 1);
        open.send(()).unwrap();
        assert_eq!(drain(&mut c, 1), [101]);
        assert_eq!(c.inflight(), 0);
        c.submit(1);
        c.submit(2);
        drop(c); // waits for what is under way
    }
}
