//! One device as the event loop sees it: its listener, and how far the front end that is connected has come.
//!
//! Owns the listener and the connection. Never waits, and never calls the worker: what may take a moment it returns as
//! a task, and goes on when the outcome is there. Invariants: at most one front end is connected, and one task under
//! way; a second front end is turned away at once rather than left waiting; the next one is served only when the
//! session of the last has ended.

use super::VhostOptions;
use super::config::Profile;
use super::connection::{ControlConnection, Gone, Message, MessageArrival};
use super::exchange::Exchange;
use super::limits::TURNED_AWAY_MAX;
use super::mappings::Mappings;
use super::session::Session;
use super::shared::Trust;
use super::tasks::{Outcome, Task, refusal};
use crate::PortHost;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use undercroft_host::Closing;
use vhost::vhost_user::Error;

/// What the event loop and the owner of a device share.
#[derive(Debug, Default)]
pub(super) struct Flags {
    /// Set when the device begins to go: nobody is accepted any more, and endings are not worth a line in the log.
    pub(super) stopping: AtomicBool,
    /// A front end is connected.
    pub(super) connected: AtomicBool,
}

/// How far a front end has come.
enum Step {
    /// A message is waited for.
    Receive(Exchange),
    /// A reply goes out.
    Reply(Exchange),
    /// Queues come to rest.
    Rest(Exchange, Message, Vec<Receiver<u16>>),
    /// A reply waits until the guest that goes on elsewhere may.
    Leave(Exchange, Message, Receiver<u16>),
    /// A task is under way.
    Busy,
    /// Somebody has the session who may hand it to another process.
    Lent,
    /// The session is being ended.
    Ending,
}

/// The front end that is connected.
struct Front {
    connection: ControlConnection,
    step: Step,
}

/// A device.
pub(super) struct Device {
    pub(super) host: Arc<dyn PortHost>,
    pub(super) port: u32,
    disk: Profile,
    options: VhostOptions,
    flags: Arc<Flags>,
    /// `None` once the device goes.
    listener: Option<UnixListener>,
    front: Option<Front>,
    /// Somebody may wait at the listener.
    newcomers: bool,
    /// What its front ends have mapped.
    mappings: Mappings,
    /// Nobody is accepted: somebody may hand the device to another process.
    lent: bool,
    /// What is being closed of its front ends: connections, and what they have sent.
    pub(super) closing: Closing,
    /// Who waits for the device to be gone.
    removed: Option<Sender<()>>,
}

/// What of a device is lent: its listener, and the session of its front end with the connection.
pub(super) struct Lent {
    pub(super) listener: UnixListener,
    pub(super) front: Option<(Exchange, UnixStream)>,
}

/// What came of looking at the listener.
pub(super) enum Accepted {
    /// Nothing that needs doing.
    Nobody,
    /// A front end, to be watched and welcomed.
    Front(Task),
    /// There may be more, but others come first.
    More,
    /// There is no room now: most likely for descriptors, or too many are being closed; that does not pass in no time.
    Later,
}

impl Device {
    /// A device that nobody has connected to.
    pub(super) fn new(
        listener: UnixListener,
        host: Arc<dyn PortHost>,
        port: u32,
        disk: Profile,
        options: VhostOptions,
        flags: Arc<Flags>,
    ) -> Device {
        let listener = Some(listener);
        Device {
            host,
            port,
            disk,
            options,
            flags,
            listener,
            front: None,
            newcomers: false,
            mappings: Mappings::default(),
            lent: false,
            closing: Closing::default(),
            removed: None,
        }
    }

    /// The listener, while there is one.
    pub(super) fn listener(&self) -> Option<BorrowedFd<'_>> {
        self.listener.as_ref().map(AsFd::as_fd)
    }

    /// The connection, if there is one.
    pub(super) fn connection(&self) -> Option<BorrowedFd<'_>> {
        self.front.as_ref().map(|front| front.connection.as_fd())
    }

    /// Whether the next task must have a thread of its own, because it may wait for who knows whom.
    pub(super) fn may_wait(&self) -> bool {
        self.options.trust == Trust::Anything
    }

    /// Whether it is gone, and who waits for that.
    pub(super) fn gone(&mut self) -> Option<Sender<()>> {
        if self.front.is_none() { self.removed.take() } else { None }
    }

    /// Takes who waits at the listener: serves one, and turns the others away.
    pub(super) fn accept(&mut self) -> Accepted {
        self.newcomers = false;
        if !self.closing.has_room() {
            return Accepted::Later;
        }
        for _ in 0..TURNED_AWAY_MAX {
            // If the present one has gone, whoever waits may be the next.
            let goes = |f: &Front| matches!(f.step, Step::Ending) || f.connection.hung_up();
            if self.flags.stopping.load(Ordering::Acquire) {
                return Accepted::Nobody;
            }
            if self.lent {
                self.newcomers = true;
                return Accepted::Nobody;
            }
            if self.front.as_ref().is_some_and(goes) {
                self.newcomers = true;
                return Accepted::Nobody;
            }
            let Some(listener) = &self.listener else { return Accepted::Nobody };
            match listener.accept() {
                Ok((stream, _)) if self.front.is_none() => match self.welcome(stream) {
                    Ok(task) => return Accepted::Front(task),
                    Err(e) => return self.cannot_connect(&e),
                },
                Ok((stream, _)) => {
                    tracing::warn!(
                        disk = self.disk.name,
                        "a second vhost-user front end was turned away: the disk is in use"
                    );
                    self.closing.close(stream);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Accepted::Nobody,
                Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {}
                Err(e) => return self.cannot_connect(&e),
            }
        }
        Accepted::More
    }

    fn cannot_connect(&self, e: &io::Error) -> Accepted {
        tracing::warn!(disk = self.disk.name, "a front end could not connect: {e}");
        Accepted::Later
    }

    fn welcome(&mut self, stream: UnixStream) -> io::Result<Task> {
        let (exchange, connection) = self.meet(stream, Step::Busy)?;
        tracing::info!(disk = self.disk.name, "vhost-user front end connected");
        Ok(Task::Welcome(exchange, connection))
    }

    fn meet(&mut self, stream: UnixStream, step: Step) -> io::Result<(Exchange, UnixStream)> {
        stream.set_nonblocking(true)?;
        let connection = ControlConnection::new(stream);
        let session = Session::new(Arc::clone(&self.host), self.port, self.disk.clone(), &self.options, &self.mappings);
        let met = (Exchange::new(session)?, connection.try_clone()?);
        self.front = Some(Front { connection, step });
        self.flags.connected.store(true, Ordering::Release);
        Ok(met)
    }

    /// Takes over a front end whose session another process had; whoever asks has the session until
    /// [`Device::take_back`].
    ///
    /// # Errors
    /// There is one already, or the kernel has no room.
    pub(super) fn adopt(&mut self, stream: UnixStream) -> io::Result<(Exchange, UnixStream)> {
        if self.front.is_some() || self.lent {
            return Err(io::Error::other("another front end is connected already"));
        }
        let met = self.meet(stream, Step::Lent)?;
        self.lent = true;
        Ok(met)
    }

    /// Gives the session away, if nothing of a message is under way; nobody is accepted until [`Device::take_back`].
    /// `None` if something is under way.
    pub(super) fn lend(&mut self) -> Option<Lent> {
        if self.lent || self.removed.is_some() {
            return None;
        }
        let listener = self.listener.as_ref()?.try_clone().ok()?;
        let Some(front) = &mut self.front else {
            self.lent = true;
            return Some(Lent { listener, front: None });
        };
        if !front.connection.is_between() {
            return None;
        }
        match std::mem::replace(&mut front.step, Step::Busy) {
            Step::Receive(exchange) => match front.connection.try_clone() {
                Ok(connection) => {
                    front.step = Step::Lent;
                    self.lent = true;
                    Some(Lent { listener, front: Some((exchange, connection)) })
                }
                Err(_) => {
                    front.step = Step::Receive(exchange);
                    None
                }
            },
            step => {
                front.step = step;
                None
            }
        }
    }

    /// Goes on with what was lent, or adopted; `end` says why the session ends, if it does.
    pub(super) fn take_back(&mut self, exchange: Option<Exchange>, end: Option<Error>) -> Option<Task> {
        self.lent = false;
        let goes = self.removed.is_some();
        let front = self.front.as_mut()?;
        match exchange {
            Some(exchange) if end.is_none() && !goes => {
                front.step = Step::Receive(exchange);
                None
            }
            exchange => self.end(exchange, None, end),
        }
    }

    /// Ends the session of a front end that cannot be watched, in place of `task`.
    pub(super) fn give_up(&mut self, task: Task, e: io::Error) -> Option<Task> {
        let exchange = if let Task::Welcome(exchange, _) = task { Some(exchange) } else { None };
        self.end(exchange, None, Some(Error::SocketError(e)))
    }

    /// Whether somebody may be accepted now who could not be before.
    pub(super) fn has_newcomers(&self) -> bool {
        self.newcomers && self.front.is_none()
    }

    /// Whether queues of it are coming to rest, or its guest is about to leave.
    pub(super) fn is_resting(&self) -> bool {
        self.front.as_ref().is_some_and(|front| matches!(front.step, Step::Rest(..) | Step::Leave(..)))
    }

    /// Goes on with the front end as far as that is possible without waiting. What has to be done next, if anything.
    pub(super) fn advance(&mut self) -> Option<Task> {
        loop {
            let front = self.front.as_mut()?;
            match std::mem::replace(&mut front.step, Step::Busy) {
                step @ (Step::Busy | Step::Lent | Step::Ending) => {
                    front.step = step;
                    return None;
                }
                Step::Receive(exchange) => match front.connection.receive() {
                    MessageArrival::Message(message) => {
                        if self.options.trust == Trust::Memory
                            && let Some(why) = refusal(&message)
                        {
                            return self.end(Some(exchange), Some(message), Some(why));
                        }
                        let stops = message.stops(self.options.queues);
                        let handle = stops.is_empty();
                        return Some(if handle {
                            Task::Handle(exchange, message)
                        } else {
                            Task::Stop(exchange, message, stops)
                        });
                    }
                    MessageArrival::Part => {
                        front.step = Step::Receive(exchange);
                        return None;
                    }
                    MessageArrival::End(Gone::Between) => {
                        return self.end(Some(exchange), None, Some(Error::Disconnected));
                    }
                    MessageArrival::End(Gone::Within) => {
                        return self.end(Some(exchange), None, Some(Error::PartialMessage));
                    }
                },
                Step::Reply(exchange) => match front.connection.send() {
                    Ok(true) => front.step = Step::Receive(exchange),
                    Ok(false) => {
                        front.step = Step::Reply(exchange);
                        return None;
                    }
                    Err(_) => return self.end(Some(exchange), None, Some(Error::Disconnected)),
                },
                Step::Rest(exchange, message, mut waits) => {
                    waits.retain(|rest| rest.try_recv() == Err(TryRecvError::Empty));
                    if waits.is_empty() {
                        return Some(Task::Handle(exchange, message));
                    }
                    // A front end that has gone must not keep the next one waiting for a disk that does not answer.
                    if front.connection.hung_up() {
                        return self.end(Some(exchange), Some(message), Some(Error::Disconnected));
                    }
                    front.step = Step::Rest(exchange, message, waits);
                    return None;
                }
                Step::Leave(exchange, reply, until) => {
                    if until.try_recv() == Err(TryRecvError::Empty) && !front.connection.hung_up() {
                        front.step = Step::Leave(exchange, reply, until);
                        return None;
                    }
                    front.connection.reply(reply);
                    front.step = Step::Reply(exchange);
                }
            }
        }
    }

    /// Takes the outcome of a task. What has to be done next, if that is known already.
    pub(super) fn take(&mut self, outcome: Outcome) -> Option<Task> {
        let goes = self.removed.is_some();
        let front = self.front.as_mut()?;
        match outcome {
            Outcome::Severed => {
                if let Some(front) = self.front.take() {
                    self.closing.close(front.connection.into_socket());
                }
                self.flags.connected.store(false, Ordering::Release);
                None
            }
            Outcome::Failed => self.end(None, None, Some(Error::BackendInternalError)),
            Outcome::Handled(exchange, reply, end) => {
                front.connection.reply(reply);
                if goes || end.is_some() {
                    // What the peer does not take at once it need not have.
                    let _ = front.connection.send();
                    return self.end(Some(exchange), None, end);
                }
                front.step = Step::Reply(exchange);
                None
            }
            Outcome::Welcomed(exchange) if goes => self.end(Some(exchange), None, None),
            Outcome::Stopping(exchange, message, _) if goes => self.end(Some(exchange), Some(message), None),
            Outcome::Leaving(exchange, _, _) if goes => self.end(Some(exchange), None, None),
            Outcome::Welcomed(exchange) => {
                front.step = Step::Receive(exchange);
                None
            }
            Outcome::Stopping(exchange, message, waits) => {
                front.step = Step::Rest(exchange, message, waits);
                None
            }
            Outcome::Leaving(exchange, reply, until) => {
                front.step = Step::Leave(exchange, reply, until);
                None
            }
        }
    }

    /// Listens no more and ends the session; `to` is told when the device is gone.
    pub(super) fn remove(&mut self, to: Sender<()>) -> Option<Task> {
        self.removed = Some(to);
        if let Some(listener) = self.listener.take() {
            self.closing.close(listener);
        }
        let front = self.front.as_mut()?;
        match std::mem::replace(&mut front.step, Step::Busy) {
            Step::Receive(exchange) | Step::Reply(exchange) | Step::Leave(exchange, ..) => {
                self.end(Some(exchange), None, None)
            }
            Step::Rest(exchange, message, _) => self.end(Some(exchange), Some(message), None),
            step @ (Step::Busy | Step::Lent | Step::Ending) => {
                front.step = step;
                None
            }
        }
    }

    /// Ends the session, of which `message` was not handled.
    fn end(&mut self, exchange: Option<Exchange>, message: Option<Message>, why: Option<Error>) -> Option<Task> {
        let front = self.front.as_mut()?;
        front.step = Step::Ending;
        match why {
            _ if self.flags.stopping.load(Ordering::Acquire) => {}
            None | Some(Error::Disconnected | Error::SocketBroken(_)) => {
                tracing::info!(disk = self.disk.name, "vhost-user front end disconnected");
            }
            Some(e) => tracing::error!(
                disk = self.disk.name,
                "vhost-user session ended: {e}; the front end has to connect anew"
            ),
        }
        Some(Task::Sever(exchange, message.into_iter().chain(front.connection.rest()).collect()))
    }
}
