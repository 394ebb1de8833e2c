//! How other threads reach a worker: closures through a mailbox, answered through channels.
//!
//! Owns the mailbox and the thread. Never touches the data path itself.
//! Invariant: a closure runs between two turns, on the worker's thread, exactly once, unless the worker is gone.

use super::copying::Copying;
use super::flows::Flows;
use super::polling::Polling;
use super::{Worker, WorkerOptions, effects::Dirty, turn};
use crate::frontend::{MakePort, OnPort, PortHost};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use undercroft_cache::limits::{self, STEP_BYTES};
use undercroft_cache::{Core, CoreOptions, DiskId};
use undercroft_host::{Epoll, EventFd, Interest, Trigger, now_ns};

type Command = Box<dyn FnOnce(&mut Worker) + Send>;

/// The worker's end of the mailbox.
pub(super) struct Mailbox {
    bell: Arc<EventFd>,
    commands: Receiver<Command>,
}

impl Mailbox {
    pub(super) fn acknowledge(&self) {
        self.bell.drain();
    }

    pub(super) fn again(&self) {
        self.bell.signal();
    }

    pub(super) fn try_next(&self) -> Option<Command> {
        self.commands.try_recv().ok()
    }
}

/// The worker has ended, or ended before it answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the worker has stopped")]
pub struct Gone;

/// A running worker, for other threads.
pub struct WorkerHandle {
    bell: Arc<EventFd>,
    commands: Sender<Command>,
    thread: std::sync::Mutex<Option<JoinHandle<()>>>,
}

impl WorkerHandle {
    /// Starts a worker thread.
    ///
    /// # Errors
    /// If the kernel refuses memory, descriptors or the thread.
    pub fn start(options: WorkerOptions) -> io::Result<Arc<Self>> {
        let bell = Arc::new(EventFd::new()?);
        let (tx, rx) = channel();
        let epoll = Epoll::new()?;
        epoll.add(bell.as_fd(), turn::token(turn::MAILBOX, 0, 0), Interest::Read, Trigger::Level)?;
        let mut polling = Polling::default();
        polling.set_bound(options.poll_ns_max);
        let worker = Worker {
            core: Core::new(CoreOptions { step_bytes: STEP_BYTES, ..options.core })?,
            disks: Vec::new(),
            ports: Vec::new(),
            flows: Flows::default(),
            busy_disks: Vec::new(),
            dirty: Dirty::default(),
            starved: false,
            leaving: false,
            epoll,
            mailbox: Mailbox { bell: bell.clone(), commands: rx },
            polling,
            check_captures: options.check_captures,
            tap: None,
            copying: Copying::new(options.copy_cpu_percent, now_ns()),
            stopping: false,
            now_ns: now_ns(),
            tick_ns: 0,
            requests: Vec::with_capacity(limits::BATCH),
            done: Vec::with_capacity(limits::BATCH),
        };
        let thread = std::thread::Builder::new().name(options.name).spawn(move || {
            // A worker that panics holds guests' requests that nobody would ever answer. Ending the process is the
            // better failure: guests reconnect to the restarted daemon, and a write-through cache loses nothing.
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| worker.run())).is_err() {
                tracing::error!("a worker failed; the daemon ends so that a supervisor can start it afresh");
                crate::logging::flush();
                std::process::abort();
            }
        })?;
        Ok(Arc::new(Self { bell, commands: tx, thread: std::sync::Mutex::new(Some(thread)) }))
    }

    /// Sends `f` to run between two turns.
    pub fn send(&self, f: impl FnOnce(&mut Worker) + Send + 'static) -> Result<(), Gone> {
        self.commands.send(Box::new(f)).map_err(|_| Gone)?;
        self.bell.signal();
        Ok(())
    }

    /// Runs `f` between two turns and waits for what it returns.
    ///
    /// # Errors
    /// [`Gone`] if the worker has ended.
    pub fn call<R: Send + 'static>(&self, f: impl FnOnce(&mut Worker) -> R + Send + 'static) -> Result<R, Gone> {
        let (tx, rx) = channel();
        self.send(move |w| drop(tx.send(f(w))))?;
        rx.recv().map_err(|_| Gone)
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

/// One disk on its worker, for front ends.
pub struct DiskHost {
    /// The worker that owns the disk.
    pub worker: Arc<WorkerHandle>,
    /// The disk's id there.
    pub disk: DiskId,
}

impl PortHost for DiskHost {
    fn attach(&self, make: MakePort) -> u32 {
        let disk = self.disk;
        self.worker.call(move |w| w.add_port(disk, make)).unwrap_or(u32::MAX)
    }

    fn with(&self, port: u32, f: OnPort) -> bool {
        self.worker.call(move |w| w.with_port(port, f)).unwrap_or(false)
    }

    fn detach(&self, port: u32) {
        let (tx, rx) = channel();
        if self.worker.send(move |w| w.detach_port(port, tx)).is_ok() {
            let _ = rx.recv();
        }
    }
}
