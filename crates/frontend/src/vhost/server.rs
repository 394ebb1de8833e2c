//! The socket of one disk, and the thread that talks to the front ends that connect to it, one after the other.
//!
//! Owns the listener, the session thread and the port's life. Never serves a request. Invariants: at most one front end
//! is connected; a second one is turned away at once rather than left waiting; when [`VhostServer::stop`] returns,
//! every request taken has been answered, the socket file is gone and the thread has ended.

use super::config::Profile;
use super::limits::{QUEUE_SIZE_MAX, QUEUES_MAX};
use super::port::VhostPort;
use super::session::{Session, on_port};
use super::{VhostError, VhostOptions};
use crate::socket::{BoundSocket, SocketGuard, bind_unix};
use crate::{AnyPort, DiskInfo, PortHost};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use vhost::vhost_user::{BackendReqHandler, Error};

/// What the session thread and the server's owner share.
struct Shared {
    stopping: AtomicBool,
    connected: AtomicBool,
    /// Readable once the server stops.
    wake: OwnedFd,
    /// The connection, to interrupt a read from it.
    connection: Mutex<Option<UnixStream>>,
}

/// A vhost-user-blk device listening on a socket.
pub struct VhostServer {
    path: PathBuf,
    guard: Option<SocketGuard>,
    host: Arc<dyn PortHost>,
    port: u32,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl VhostServer {
    /// Starts serving a disk on a new socket at `path`.
    ///
    /// # Errors
    /// The socket cannot be made, or the options make no sense.
    pub fn start(
        path: &Path,
        info: DiskInfo,
        host: Arc<dyn PortHost>,
        options: VhostOptions,
    ) -> Result<VhostServer, VhostError> {
        if options.queues == 0 || options.queues > QUEUES_MAX {
            return Err(VhostError::Queues(options.queues));
        }
        let size = options.queue_size;
        if !size.is_power_of_two() || size > QUEUE_SIZE_MAX {
            return Err(VhostError::QueueSize(size));
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(|e| VhostError::Os(e.into()))?;
        let wake_fd = eventfd(0, flags).map_err(|e| VhostError::Os(e.into()))?;
        let BoundSocket { listener, guard } = bind_unix(path, options.access)?;
        listener.set_nonblocking(true).map_err(VhostError::Os)?;
        let shared = Arc::new(Shared {
            stopping: AtomicBool::new(false),
            connected: AtomicBool::new(false),
            wake,
            connection: Mutex::new(None),
        });
        let disk = Profile::new(&info);
        let profile = disk.clone();
        let (queues, room) = (options.queues, Arc::clone(&options.room));
        let port = host.attach(Box::new(move |id| {
            AnyPort::guest(VhostPort::new(id, profile, queues, File::from(wake_fd)).with_room(room))
        }));
        if port == u32::MAX {
            return Err(VhostError::Os(io::Error::other("the worker of this disk does not answer")));
        }
        let front = Front { host: Arc::clone(&host), port, disk, options, shared: Arc::clone(&shared) };
        let name = format!("vhost-{}", info.name.replace('\0', ""));
        let spawned = std::thread::Builder::new().name(name).spawn(move || front.run(&listener));
        let thread = match spawned {
            Ok(thread) => Some(thread),
            Err(source) => {
                host.detach(port);
                return Err(VhostError::Os(source));
            }
        };
        Ok(VhostServer { path: path.to_owned(), guard: Some(guard), host, port, shared, thread })
    }

    /// Whether a front end is connected.
    pub fn is_connected(&self) -> bool {
        self.shared.connected.load(Ordering::Acquire)
    }

    /// Where the socket is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Stops accepting, answers the requests under way, disconnects the front end, removes the socket.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.shared.stopping.store(true, Ordering::Release);
        drop(self.guard.take());
        // Answers still reach the guest, since the session stands until the port is gone.
        self.host.detach(self.port);
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        if let Some(connection) = &*lock(&self.shared.connection) {
            let _ = connection.shutdown(Shutdown::Both);
        }
        if thread.join().is_err() {
            tracing::error!(socket = %self.path.display(), "the thread of a vhost-user socket panicked");
        }
    }
}

impl Drop for VhostServer {
    fn drop(&mut self) {
        self.end();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The session thread's own.
struct Front {
    host: Arc<dyn PortHost>,
    port: u32,
    disk: Profile,
    options: VhostOptions,
    shared: Arc<Shared>,
}

/// What a wait ended with.
#[derive(Clone, Copy, Default)]
struct Ready {
    stop: bool,
    listener: bool,
    connection: bool,
}

impl Front {
    fn run(&self, listener: &UnixListener) {
        while !self.stopping() {
            let ready = self.wait(listener, None, None);
            if ready.stop {
                break;
            }
            if ready.listener
                && let Some(stream) = self.accept(listener)
            {
                self.serve(listener, stream);
            }
        }
    }

    fn stopping(&self) -> bool {
        self.shared.stopping.load(Ordering::Acquire)
    }

    /// Waits for something to happen, or `timeout`.
    fn wait(&self, listener: &UnixListener, connection: Option<BorrowedFd<'_>>, timeout: Option<&Timespec>) -> Ready {
        let mut fds = vec![PollFd::new(&self.shared.wake, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        fds.extend(connection.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        match poll(&mut fds, timeout) {
            Ok(_) => {
                let ready = |i: usize| fds.get(i).is_some_and(|fd| !fd.revents().is_empty());
                Ready { stop: ready(0), listener: ready(1), connection: ready(2) }
            }
            Err(_) => Ready::default(),
        }
    }

    fn accept(&self, listener: &UnixListener) -> Option<UnixStream> {
        match listener.accept() {
            Ok((stream, _)) => stream.set_nonblocking(false).is_ok().then_some(stream),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => None,
            Err(e) => {
                tracing::warn!(disk = self.disk.name, "a front end could not connect: {e}");
                // Most likely the daemon has run out of descriptors; that does not pass in no time.
                std::thread::sleep(std::time::Duration::from_millis(100));
                None
            }
        }
    }

    /// Serves one front end until it or the server goes.
    fn serve(&self, listener: &UnixListener, stream: UnixStream) {
        let (Ok(clone), Ok(other)) = (stream.try_clone(), stream.try_clone()) else { return };
        let (Ok(fd), Ok(watch)) = (stream.as_fd().try_clone_to_owned(), stream.as_fd().try_clone_to_owned()) else {
            return;
        };
        *lock(&self.shared.connection) = Some(clone);
        self.shared.connected.store(true, Ordering::Release);
        tracing::info!(disk = self.disk.name, "vhost-user front end connected");
        on_port(&*self.host, self.port, move |port| port.welcome(other));
        let session = Session::new(Arc::clone(&self.host), self.port, self.disk.clone(), &self.options, watch);
        let mut handler = BackendReqHandler::from_stream(stream, Arc::new(Mutex::new(session)));
        let reason = loop {
            let ready = self.wait(listener, Some(fd.as_fd()), None);
            // The connection first: if it has ended, whoever waits at the listener may be the next.
            if ready.connection {
                match handler.handle_request() {
                    Ok(()) => {}
                    Err(e) => break Some(e),
                }
            } else if ready.stop {
                break None;
            } else if ready.listener {
                self.turn_away(listener, fd.as_fd());
            }
        };
        match reason {
            _ if self.stopping() => {}
            None | Some(Error::Disconnected | Error::SocketBroken(_)) => {
                tracing::info!(disk = self.disk.name, "vhost-user front end disconnected");
            }
            Some(e) => tracing::error!(
                disk = self.disk.name,
                "vhost-user session ended: {e}; the front end has to connect anew"
            ),
        }
        // First the rings, then the socket: when the peer sees it closed, no memory of its guest is touched any more.
        on_port(&*self.host, self.port, VhostPort::sever);
        self.shared.connected.store(false, Ordering::Release);
        *lock(&self.shared.connection) = None;
        drop(handler);
    }

    /// Refuses a second front end.
    fn turn_away(&self, listener: &UnixListener, current: BorrowedFd<'_>) {
        // The present one may have gone between two looks.
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if self.wait(listener, Some(current), Some(&now)).connection {
            return;
        }
        if self.accept(listener).is_some() {
            tracing::warn!(disk = self.disk.name, "a second vhost-user front end was turned away: the disk is in use");
        }
    }
}
