//! What has to be done for a front end and may take a moment, away from the event loop's thread.
//!
//! Owns nothing that outlives a task. Never reads or writes the front end's socket. A task waits for the worker that
//! owns the disk, and, unless only memory of the kernel is trusted, for whoever stands behind a descriptor that the
//! front end sent: closing a file of FUSE waits for its server. Invariant: each task has exactly one outcome, also if
//! it panics.

use super::connection::Message;
use super::exchange::Exchange;
use super::port::{RestNotice, VhostPort};
use super::session::on_port;
use super::shared::{self, Trust};
use crate::PortHost;
use rustix::io::Errno;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use undercroft_host::{Closing, EventFd, Work, release};
use vhost::vhost_user::Error;

/// What is said of a descriptor that cannot tell of a queue.
pub(super) const NOT_AN_EVENTFD: &str = "a queue's notification descriptor is not an eventfd";

/// What is to be done.
pub(super) enum Task {
    /// Tell the port who has connected.
    Welcome(Exchange, UnixStream),
    /// Begin to stop queues that must be at rest before the message is handled.
    Stop(Exchange, Message, Range<u32>),
    /// Handle a message.
    Handle(Exchange, Message),
    /// End the session, and let go of all that came with it.
    Sever(Option<Exchange>, Vec<Message>),
}

/// What came of it.
pub(super) enum Outcome {
    Welcomed(Exchange),
    /// Each is sent the position of a queue when it has come to rest, or is closed.
    Stopping(Exchange, Message, Vec<Receiver<u16>>),
    /// The reply, and why the session ends, if it does.
    Handled(Exchange, Message, Option<Error>),
    /// A reply that waits until this is closed: the guest goes on elsewhere, and its image is closed first.
    Leaving(Exchange, Message, Receiver<u16>),
    Severed,
    /// It panicked, which ends the session.
    Failed,
}

/// A task of one device.
pub(super) struct Job {
    /// The device's key.
    pub(super) device: u64,
    /// Jobs of one lane wait for the same worker, so they go one after the other.
    pub(super) lane: usize,
    pub(super) host: Arc<dyn PortHost>,
    pub(super) port: u32,
    pub(super) task: Task,
    /// Signalled when a queue has come to rest.
    pub(super) rest: Arc<EventFd>,
    /// Where what may take long to close is closed.
    pub(super) closing: Closing,
}

/// A job that is done.
pub(super) struct Done {
    pub(super) device: u64,
    /// Which lane is free again; `None` if the job held none.
    pub(super) lane: Option<usize>,
    pub(super) outcome: Outcome,
}

impl Job {
    /// Carries it out, for as long as it takes.
    pub(super) fn carry_out(self) -> Done {
        let Job { device, lane, host, port, task, rest, closing } = self;
        let ends = matches!(task, Task::Sever(..));
        let run = AssertUnwindSafe(|| match task {
            Task::Welcome(exchange, connection) => {
                on_port(&*host, port, move |port| port.welcome(connection));
                Outcome::Welcomed(exchange)
            }
            Task::Stop(exchange, message, queues) => {
                let session = exchange.session();
                // A queue that cannot be stopped is refused when the message is handled.
                let begin = |index| {
                    let (to, from) = sync_channel(1);
                    session.begin_stop(index, RestNotice::waking(to, Arc::clone(&rest))).ok().map(|()| from)
                };
                let waits = queues.filter_map(begin).collect();
                drop(session);
                Outcome::Stopping(exchange, message, waits)
            }
            Task::Handle(mut exchange, message) => {
                let (reply, end) = exchange.handle(&message);
                close(&closing, message);
                if end.is_none() && exchange.session().take_leaves() {
                    let (to, until) = sync_channel(1);
                    host.guest_moves(Box::new(RestNotice::waking(to, rest)));
                    return Outcome::Leaving(exchange, reply, until);
                }
                Outcome::Handled(exchange, reply, end)
            }
            Task::Sever(exchange, messages) => {
                // First the rings: when the peer sees its socket closed, no memory of its guest is touched any more.
                on_port(&*host, port, VhostPort::sever);
                drop(exchange);
                messages.into_iter().for_each(|message| close(&closing, message));
                Outcome::Severed
            }
        });
        let outcome = catch_unwind(run).unwrap_or(if ends { Outcome::Severed } else { Outcome::Failed });
        Done { device, lane: Some(lane), outcome }
    }
}

/// The threads that carry jobs out.
pub(super) struct Handlers;

impl Work for Handlers {
    type Job = Job;
    type Done = Done;

    fn carry_out(&self, job: Job) -> Done {
        job.carry_out()
    }

    fn refuse(&self, job: Job, why: &io::Error) -> Done {
        // Better late than never: whoever submits it carries it out.
        tracing::warn!("there can be no thread for messages of front ends, which wait for each other now: {why}");
        job.carry_out()
    }
}

/// Closes what came with `message`, elsewhere: that may wait for somebody else than the kernel, or free the memory of a
/// guest that has gone.
fn close(closing: &Closing, message: Message) {
    if message.brought().any(|fd| foreign(fd).is_some()) {
        closing.close(message);
    } else if message.brought().next().is_some() {
        release(message);
    }
}

/// Why nothing may be done with a descriptor unless its user is trusted: even closing it may wait for somebody else
/// than the kernel. `None` for an eventfd, and for memory.
fn foreign(fd: &OwnedFd) -> Option<io::Error> {
    if is_eventfd(fd) == Ok(true) { None } else { shared::check(fd, Trust::Memory).err() }
}

/// Why `message` is refused before anybody looks at it: nothing that a front end of which the memory is not trusted may
/// ask for needs what it brings, and whoever looks at it has to close it.
pub(super) fn refusal(message: &Message) -> Option<Error> {
    let why = message.descriptors().iter().find_map(foreign)?;
    Some(Error::ReqHandlerError(if message.is_for_a_queue() { io::Error::other(NOT_AN_EVENTFD) } else { why }))
}

/// Whether a descriptor is an eventfd; asks the kernel alone.
pub(super) fn is_eventfd(fd: impl AsFd) -> Result<bool, Errno> {
    let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    let link = rustix::fs::readlink(link, Vec::new())?;
    Ok(link.as_bytes().starts_with(b"anon_inode:[eventfd"))
}
