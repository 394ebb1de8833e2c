//! The socket of one disk, for whoever serves the disk.
//!
//! Owns the file of the socket and the port's life. Never accepts a front end: the event loop does. Invariant: when
//! [`VhostServer::stop`] returns, every request taken has been answered, the socket file is gone and the session has
//! ended.

use super::config::Profile;
use super::device::{Device, Flags};
use super::limits::{QUEUE_SIZE_MAX, QUEUES_MAX};
use super::port::VhostPort;
use super::{EventLoop, VhostError, VhostOptions};
use crate::socket::{BoundSocket, SocketGuard, bind_unix};
use crate::{AnyPort, DiskInfo, PortHost};
use rustix::event::{EventfdFlags, eventfd};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A vhost-user-blk device listening on a socket.
pub struct VhostServer {
    path: PathBuf,
    guard: Option<SocketGuard>,
    host: Arc<dyn PortHost>,
    port: u32,
    flags: Arc<Flags>,
    event_loop: Arc<EventLoop>,
    /// Its key there; `None` once it has ended.
    device: Option<u64>,
}

impl VhostServer {
    /// Starts serving a disk on a new socket at `path`.
    ///
    /// # Errors
    /// The socket cannot be made, or the options make no sense.
    pub fn start(
        event_loop: &Arc<EventLoop>,
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
        let wake_fd = eventfd(0, flags).map_err(|e| VhostError::Os(e.into()))?;
        let BoundSocket { listener, guard } = bind_unix(path, options.access)?;
        listener.set_nonblocking(true).map_err(VhostError::Os)?;
        // Listens until the file is gone if the device cannot be served, and is dropped with it.
        let listens = listener.try_clone().map_err(VhostError::Os)?;
        let disk = Profile::new(&info);
        let profile = disk.clone();
        let (queues, room) = (options.queues, Arc::clone(&options.room));
        let port = host.attach(Box::new(move |id| {
            AnyPort::guest(VhostPort::new(id, profile, queues, File::from(wake_fd)).with_room(room))
        }));
        if port == u32::MAX {
            return Err(VhostError::Os(io::Error::other(
                "the worker of this disk does not answer, or has let the disk go",
            )));
        }
        let flags = Arc::new(Flags::default());
        let device = Device::new(listener, Arc::clone(&host), port, disk, options, Arc::clone(&flags));
        match event_loop.add(device) {
            Ok(key) => Ok(VhostServer {
                path: path.to_owned(),
                guard: Some(guard),
                host,
                port,
                flags,
                event_loop: Arc::clone(event_loop),
                device: Some(key),
            }),
            Err(source) => {
                drop(guard);
                drop(listens);
                host.detach(port);
                Err(VhostError::Os(source))
            }
        }
    }

    /// Whether a front end is connected.
    pub fn is_connected(&self) -> bool {
        self.flags.connected.load(Ordering::Acquire)
    }

    /// The event loop, and the key of the device there, while there is one.
    pub(super) fn place(&self) -> Option<(Arc<EventLoop>, u64)> {
        Some((Arc::clone(&self.event_loop), self.device?))
    }

    /// Where the socket is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the socket and leaves the rest as it is: the process is about to end, and its device is lent.
    pub fn leave(mut self) {
        self.flags.stopping.store(true, Ordering::Release);
        drop(self.guard.take());
        self.device = None;
    }

    /// Stops accepting, answers the requests under way, disconnects the front end, removes the socket.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(device) = self.device.take() else { return };
        self.flags.stopping.store(true, Ordering::Release);
        drop(self.guard.take());
        // Answers still reach the guest, since the session stands until the port is gone.
        self.host.detach(self.port);
        self.event_loop.remove(device);
    }
}

impl Drop for VhostServer {
    fn drop(&mut self) {
        self.end();
    }
}
