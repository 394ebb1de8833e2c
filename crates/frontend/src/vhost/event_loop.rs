//! The event loop of all vhost-user sockets: one thread that accepts front ends and moves their messages.
//!
//! Owns the devices and the threads that carry out their tasks. Never waits but for events, and never touches a ring or
//! a request: those belong to the worker that owns the disk. Invariants: nothing that one peer does or leaves undone
//! keeps the thread from another; jobs that wait for the same worker go one after the other, so that a worker that does
//! not answer keeps one thread and no other worker's disks; nothing happens at intervals.

use super::device::{Accepted, Device, Lent};
use super::exchange::Exchange;
use super::limits::HANDLERS_MAX;
use super::tasks::{Done, Handlers, Job, Outcome, Task};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use undercroft_host::{Epoll, EventFd, Interest, ThreadPool, Trigger, now_ns};
use vhost::vhost_user::Error;

/// Kinds of epoll tokens: the upper byte. The rest is the device's key.
const COMMANDS: u64 = 0;
const JOBS: u64 = 1;
const REST: u64 = 2;
const LISTENER: u64 = 3;
const CONNECTION: u64 = 4;

/// After what time somebody is accepted for whom there was no room, in nanoseconds.
const RETRY_NS: u64 = 100_000_000;

fn token(kind: u64, device: u64) -> u64 {
    kind << 56 | device
}

/// What others ask of the event loop.
enum Command {
    /// Serve a device from now on.
    Add(u64, Box<Device>, Sender<io::Result<()>>),
    /// End its session and forget it.
    Remove(u64, Sender<()>),
    /// Give its session away, if nothing of a message is under way.
    Lend(u64, Sender<Option<Lent>>),
    /// Take over a front end of another process.
    Adopt(u64, UnixStream, Sender<io::Result<(Exchange, UnixStream)>>),
    /// Go on with what was lent or adopted, or end the session, and why.
    TakeBack(u64, Option<Exchange>, Option<Error>),
    /// A job that had a thread of its own is done.
    Done(Done),
    /// End.
    Stop,
}

/// The way to the event loop, for threads.
#[derive(Clone)]
struct Mailbox {
    commands: Sender<Command>,
    wake: Arc<EventFd>,
}

impl Mailbox {
    fn send(&self, command: Command) {
        // Fails only if the event loop has ended; then whoever waits for an answer is told by the closed channel.
        let _ = self.commands.send(command);
        self.wake.signal();
    }
}

/// A running event loop. Ends when dropped; its devices have to be gone by then.
pub struct EventLoop {
    mailbox: Mailbox,
    keys: AtomicU64,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl EventLoop {
    /// Starts the thread.
    ///
    /// # Errors
    /// What the kernel says: no room for a thread or a descriptor.
    pub fn start() -> io::Result<Arc<EventLoop>> {
        let (commands, inbox) = channel();
        let mailbox = Mailbox { commands, wake: Arc::new(EventFd::new()?) };
        let state = State::new(inbox, mailbox.clone())?;
        let thread = std::thread::Builder::new().name("vhost-loop".into()).spawn(move || {
            // Without it no front end can connect any more. A supervisor can start the daemon afresh, and guests
            // reconnect; the panic itself has been said on standard error.
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| state.run())).is_err() {
                std::process::abort();
            }
        })?;
        Ok(Arc::new(EventLoop { mailbox, keys: AtomicU64::new(0), thread: Mutex::new(Some(thread)) }))
    }

    /// Serves a device. Returns the key to remove it by.
    pub(super) fn add(&self, device: Device) -> io::Result<u64> {
        let key = self.keys.fetch_add(1, Ordering::Relaxed);
        let (to, from) = channel();
        self.mailbox.send(Command::Add(key, Box::new(device), to));
        from.recv().map_err(|_| io::Error::other("the event loop of vhost-user sockets has ended"))??;
        Ok(key)
    }

    /// The session of a device, and its listener; `None` while something of a message is under way. Nobody is accepted
    /// there until [`EventLoop::take_back`].
    pub(super) fn lend(&self, key: u64) -> Option<Lent> {
        let (to, from) = channel();
        self.mailbox.send(Command::Lend(key, to));
        from.recv().ok().flatten()
    }

    /// Has a device take over the connection of a front end; whoever asks has the session.
    pub(super) fn adopt(&self, key: u64, connection: UnixStream) -> io::Result<(Exchange, UnixStream)> {
        let (to, from) = channel();
        self.mailbox.send(Command::Adopt(key, connection, to));
        from.recv().map_err(|_| io::Error::other("the device is gone"))?
    }

    /// Goes on with what was lent or adopted; `end` says why the session ends, if it does.
    pub(super) fn take_back(&self, key: u64, exchange: Option<Exchange>, end: Option<Error>) {
        self.mailbox.send(Command::TakeBack(key, exchange, end));
    }

    /// Ends a device's session, if it has one, and waits until the device is gone.
    pub(super) fn remove(&self, key: u64) {
        let (to, from) = channel();
        self.mailbox.send(Command::Remove(key, to));
        // An error says that the event loop is gone, and the device with it.
        let _ = from.recv();
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        self.mailbox.send(Command::Stop);
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventLoop").finish_non_exhaustive()
    }
}

/// The thread's own.
struct State {
    epoll: Epoll,
    inbox: Receiver<Command>,
    mailbox: Mailbox,
    devices: HashMap<u64, Box<Device>>,
    handlers: ThreadPool<Handlers>,
    /// Jobs that wait for another one of their lane; a lane has an entry while it has a job under way.
    lanes: HashMap<usize, VecDeque<Job>>,
    /// Signalled when a queue of some device has come to rest.
    rest: Arc<EventFd>,
    /// Devices of which queues are coming to rest.
    resting: Vec<u64>,
    /// Devices whose listeners are looked at again, and when, in nanoseconds.
    again: Vec<(u64, u64)>,
    stopped: bool,
}

impl State {
    fn new(inbox: Receiver<Command>, mailbox: Mailbox) -> io::Result<State> {
        let epoll = Epoll::new()?;
        let rest = Arc::new(EventFd::new()?);
        let handlers = ThreadPool::new("vhost-handler", HANDLERS_MAX, Handlers)?;
        epoll.add(mailbox.wake.as_fd(), token(COMMANDS, 0), Interest::Read, Trigger::Level)?;
        epoll.add(handlers.as_fd(), token(JOBS, 0), Interest::Read, Trigger::Level)?;
        epoll.add(rest.as_fd(), token(REST, 0), Interest::Read, Trigger::Level)?;
        Ok(State {
            epoll,
            inbox,
            mailbox,
            devices: HashMap::new(),
            handlers,
            lanes: HashMap::new(),
            rest,
            resting: Vec::new(),
            again: Vec::new(),
            stopped: false,
        })
    }

    fn run(mut self) {
        let mut tokens = Vec::new();
        while !self.stopped {
            let timeout = self.again.iter().map(|&(_, at)| at.saturating_sub(now_ns())).min();
            tokens.clear();
            match self.epoll.wait(timeout) {
                Ok(ready) => tokens.extend(ready.map(|r| r.token)),
                // Cannot happen to a descriptor of our own; going on would spin for ever.
                Err(e) => panic!("epoll_wait failed: {e}"),
            }
            for &token in &tokens {
                // A device that has gone meanwhile is not found.
                let device = token & ((1 << 56) - 1);
                match token >> 56 {
                    COMMANDS => self.read_commands(),
                    JOBS => self.finish_jobs(),
                    REST => self.look_at_resting(),
                    LISTENER => self.accept(device),
                    _ => self.advance(device),
                }
            }
            self.accept_again();
        }
    }

    fn read_commands(&mut self) {
        self.mailbox.wake.drain();
        while let Ok(command) = self.inbox.try_recv() {
            match command {
                Command::Add(key, device, to) => _ = to.send(self.add(key, device)),
                Command::Remove(key, to) => {
                    if let Some(device) = self.devices.get_mut(&key) {
                        if let Some(listener) = device.listener() {
                            let _ = self.epoll.remove(listener);
                        }
                        let task = device.remove(to);
                        self.submit(key, task);
                        self.let_go(key);
                    }
                }
                Command::Lend(key, to) => {
                    let _ = to.send(self.devices.get_mut(&key).and_then(|device| device.lend()));
                }
                Command::Adopt(key, connection, to) => _ = to.send(self.adopt(key, connection)),
                Command::TakeBack(key, exchange, end) => self.take_back(key, exchange, end),
                Command::Done(done) => self.finish(done),
                Command::Stop => self.stopped = true,
            }
        }
    }

    fn add(&mut self, key: u64, device: Box<Device>) -> io::Result<()> {
        let Some(listener) = device.listener() else { return Ok(()) };
        // At the edge: one that is not accepted yet, because the last front end is still going, is not news all the
        // time.
        self.epoll.add(listener, token(LISTENER, key), Interest::Read, Trigger::Edge)?;
        self.devices.insert(key, device);
        Ok(())
    }

    fn adopt(&mut self, key: u64, connection: UnixStream) -> io::Result<(Exchange, UnixStream)> {
        let device = self.devices.get_mut(&key).ok_or_else(|| io::Error::other("the device is gone"))?;
        let met = device.adopt(connection)?;
        let watched = device
            .connection()
            .map_or(Ok(()), |c| self.epoll.add(c, token(CONNECTION, key), Interest::ReadWrite, Trigger::Edge));
        if let Err(e) = watched {
            let task = device.take_back(Some(met.0), Some(Error::BackendInternalError));
            self.submit(key, task);
            return Err(e);
        }
        Ok(met)
    }

    fn take_back(&mut self, key: u64, exchange: Option<Exchange>, end: Option<Error>) {
        let Some(device) = self.devices.get_mut(&key) else { return };
        match device.take_back(exchange, end) {
            Some(task) => self.submit(key, Some(task)),
            None => self.advance(key),
        }
        // Who came meanwhile.
        self.accept(key);
        self.let_go(key);
    }

    fn accept(&mut self, key: u64) {
        let Some(device) = self.devices.get_mut(&key) else { return };
        match device.accept() {
            Accepted::Nobody => {}
            Accepted::More => self.again.push((key, 0)),
            Accepted::Later => self.again.push((key, now_ns() + RETRY_NS)),
            Accepted::Front(task) => {
                let watch = |c| self.epoll.add(c, token(CONNECTION, key), Interest::ReadWrite, Trigger::Edge);
                let task = match device.connection().map_or(Ok(()), watch) {
                    Ok(()) => Some(task),
                    Err(e) => device.give_up(task, e),
                };
                self.submit(key, task);
                // Others that wait are turned away.
                self.again.push((key, 0));
            }
        }
    }

    fn accept_again(&mut self) {
        if self.again.is_empty() {
            return;
        }
        let now = now_ns();
        let (due, later) = self.again.drain(..).partition(|&(_, at)| at <= now);
        self.again = later;
        let due: Vec<(u64, u64)> = due;
        due.into_iter().for_each(|(key, _)| self.accept(key));
    }

    fn advance(&mut self, key: u64) {
        let Some(device) = self.devices.get_mut(&key) else { return };
        let task = device.advance();
        self.submit(key, task);
    }

    fn look_at_resting(&mut self) {
        self.rest.drain();
        for key in std::mem::take(&mut self.resting) {
            self.advance(key);
            if self.devices.get(&key).is_some_and(|d| d.is_resting()) {
                self.resting.push(key);
            }
        }
    }

    fn finish_jobs(&mut self) {
        let mut done = Vec::new();
        // What is left is reported again.
        self.handlers.poll(HANDLERS_MAX, &mut |d| done.push(d));
        done.into_iter().for_each(|d| self.finish(d));
    }

    fn finish(&mut self, done: Done) {
        if let Some(lane) = done.lane {
            match self.lanes.get_mut(&lane).map(VecDeque::pop_front) {
                Some(Some(next)) => self.handlers.submit(next),
                _ => _ = self.lanes.remove(&lane),
            }
        }
        let key = done.device;
        let Some(device) = self.devices.get_mut(&key) else { return };
        if let (Outcome::Severed, Some(connection)) = (&done.outcome, device.connection()) {
            let _ = self.epoll.remove(connection);
        }
        let task = device.take(done.outcome);
        match task {
            Some(task) => self.submit(key, Some(task)),
            None => self.advance(key),
        }
        let Some(device) = self.devices.get(&key) else { return };
        if device.is_resting() {
            self.resting.push(key);
        }
        if device.has_newcomers() {
            self.accept(key);
        }
        self.let_go(key);
    }

    /// Has a task of a device carried out.
    fn submit(&mut self, key: u64, task: Option<Task>) {
        let (Some(task), Some(device)) = (task, self.devices.get(&key)) else { return };
        let own_thread = device.may_wait() || matches!(task, Task::Sever(..));
        let host = Arc::clone(&device.host);
        let lane = host.worker();
        let (rest, closing) = (Arc::clone(&self.rest), device.closing.clone());
        let job = Job { device: key, lane, host, port: device.port, task, rest, closing };
        if own_thread {
            return self.start_thread(job);
        }
        match self.lanes.get_mut(&lane) {
            Some(waiting) => waiting.push_back(job),
            None => {
                self.lanes.insert(lane, VecDeque::new());
                self.handlers.submit(job);
            }
        }
    }

    /// Carries a job out on a thread that may be kept for long. A device has one at most.
    fn start_thread(&self, job: Job) {
        let mailbox = self.mailbox.clone();
        // Kept here until the thread has it, so that it is not lost if there can be none.
        let (to, from) = channel();
        let run = move || {
            if let Ok(job) = from.recv() {
                let done: Done = Job::carry_out(job);
                mailbox.send(Command::Done(Done { lane: None, ..done }));
            }
        };
        match std::thread::Builder::new().name("vhost-aside".into()).spawn(run) {
            Ok(_) => _ = to.send(job),
            Err(e) => {
                tracing::error!("there can be no thread for what may wait long; all front ends wait for it: {e}");
                let done = job.carry_out();
                self.mailbox.send(Command::Done(Done { lane: None, ..done }));
            }
        }
    }

    /// Forgets a device that is gone.
    fn let_go(&mut self, key: u64) {
        if let Some(to) = self.devices.get_mut(&key).and_then(|device| device.gone()) {
            self.devices.remove(&key);
            let _ = to.send(());
        }
    }
}
