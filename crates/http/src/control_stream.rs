//! One client of a control socket, as the HTTP server reads and writes it.
//!
//! Owns the connection. Never closes what a client passes along: see [`ClientSocket`]. Invariants: no call blocks the
//! thread, which answers all clients; what comes along with a request is there before the request.

use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;
use undercroft_host::{ClientSocket, Closing, Passed};

/// A connected client.
#[derive(Debug)]
pub struct ControlStream {
    /// Another handle, which tells when there is something to do. It goes first.
    events: UnixStream,
    socket: ClientSocket,
}

impl ControlStream {
    /// Takes over an accepted connection; what has to be closed of it is counted in `closing`.
    ///
    /// # Errors
    /// What the kernel says: no descriptor left.
    pub fn new(events: UnixStream, closing: &Closing) -> io::Result<ControlStream> {
        let socket = rustix::io::fcntl_dupfd_cloexec(&events, 0)?;
        Ok(ControlStream { events, socket: ClientSocket::new(socket, closing) })
    }

    /// The same for a client that may pass descriptors along, and what it passes.
    ///
    /// # Errors
    /// See [`ControlStream::new`].
    pub fn taking(events: UnixStream, closing: &Closing) -> io::Result<(ControlStream, Passed)> {
        let socket = rustix::io::fcntl_dupfd_cloexec(&events, 0)?;
        let (socket, passed) = ClientSocket::taking(socket, closing);
        Ok((ControlStream { events, socket }, passed))
    }
}

/// A signal in between is no error: the call is made again.
fn retried<T>(mut call: impl FnMut() -> Result<T, Errno>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return Ok(done?),
        }
    }
}

impl AsyncRead for ControlStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let ControlStream { events, socket } = self.get_mut();
        loop {
            ready!(events.poll_read_ready(cx))?;
            let space = to.initialize_unfilled();
            match events.try_io(Interest::READABLE, || retried(|| socket.receive(space, &mut []))) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done.map(|n| to.advance(n))),
            }
        }
    }
}

impl AsyncWrite for ControlStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            ready!(self.events.poll_write_ready(cx))?;
            let send = || retried(|| rustix::net::send(&self.socket, bytes, flags));
            match self.events.try_io(Interest::WRITABLE, send) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match rustix::net::shutdown(&self.socket, Shutdown::Write) {
            Ok(()) | Err(Errno::NOTCONN) => Ok(()),
            Err(e) => Err(e.into()),
        })
    }
}
