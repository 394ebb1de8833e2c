//! The socket under a connection, as the data path uses it: never blocking, a few calls.
//!
//! Owns the socket. Never knows what the bytes mean.
//! Invariant: no call blocks, and a peer that is gone is an error, not a signal.

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use undercroft_host::ClientSocket;

/// What a connection needs of its socket. `Err(Errno::AGAIN)` means: nothing now.
pub trait Stream: Send + 'static {
    /// Receives into `first`, then `second` (which may be empty); 0 at the end of the stream.
    fn receive(&mut self, first: &mut [u8], second: &mut [u8]) -> Result<usize, Errno>;

    /// Sends the parts in order, as far as there is room; returns the bytes taken.
    fn send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize, Errno>;

    /// Sends on what `send` took and kept, if it keeps anything.
    fn flush(&mut self) -> Result<(), Errno> {
        Ok(())
    }

    /// Whether something that `send` took is not sent yet.
    fn is_pending(&self) -> bool {
        false
    }

    /// Has one of `fds` fire when there is room to send: at once if there is now, and later again and again.
    fn watch_room(&mut self);

    /// Ends that.
    fn unwatch_room(&mut self);

    /// Descriptors that become readable, edge-triggered, when there is something to receive, or what `watch_room`
    /// promised.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Tells the peer that this is the end.
    fn close(&mut self);

    /// Gives the socket up, and the bytes to be sent on it before it is closed: what was taken and not sent, then
    /// `bytes`.
    fn take_leave(self, bytes: Vec<u8>) -> (Option<ClientSocket>, Vec<u8>)
    where
        Self: Sized,
    {
        (None, bytes)
    }
}

/// A connected socket, unix or TCP.
///
/// Every byte that the peer takes from a unix socket is an event "there is room again" on our side. A worker that
/// watched for that would be woken twice for each request. So only reading is watched on the socket itself; an epoll
/// set of its own watches for room, and is told to only when a send came back short.
#[derive(Debug)]
pub(crate) struct SocketStream {
    socket: ClientSocket,
    room: OwnedFd,
    watched: bool,
}

impl SocketStream {
    /// Takes over a connected socket, which must be nonblocking.
    ///
    /// # Errors
    /// If the kernel has no descriptor left.
    pub fn new(socket: ClientSocket) -> io::Result<Self> {
        let room = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { socket, room, watched: false })
    }

    /// The socket, to look at.
    pub fn socket(&self) -> &ClientSocket {
        &self.socket
    }
}

impl Stream for SocketStream {
    #[inline]
    fn receive(&mut self, first: &mut [u8], second: &mut [u8]) -> Result<usize, Errno> {
        self.socket.receive(first, second)
    }

    #[inline]
    fn send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match parts {
            [one] => rustix::net::send(&self.socket, one, flags),
            _ => rustix::net::sendmsg(&self.socket, parts, &mut SendAncillaryBuffer::default(), flags),
        }
    }

    fn watch_room(&mut self) {
        let events = epoll::EventFlags::OUT | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(0);
        // Changing what is watched tells nobody anything if the set has something to say already, and nobody ever asks
        // what it is; adding always does.
        self.unwatch_room();
        self.watched = true;
        if epoll::add(&self.room, &self.socket, data, events).is_err() {
            // The kernel is out of memory: a connection that would never be woken again is better closed.
            self.close();
        }
    }

    fn unwatch_room(&mut self) {
        if std::mem::take(&mut self.watched) {
            let _ = epoll::delete(&self.room, &self.socket);
        }
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.socket.as_fd(), self.room.as_fd()]
    }

    fn close(&mut self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }

    fn take_leave(self, bytes: Vec<u8>) -> (Option<ClientSocket>, Vec<u8>) {
        (Some(self.socket), bytes)
    }
}
