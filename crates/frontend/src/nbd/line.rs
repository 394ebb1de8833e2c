//! The connection to a client during the handshake, before a worker has it: its socket, encrypted or not.
//!
//! Owns the socket. Never knows what the bytes mean. Invariant: no call blocks.

use super::stream::Stream;
use super::tls::TlsStream;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};
use std::io::IoSlice;
use undercroft_host::ClientSocket;

/// A connected socket.
pub(super) enum Line {
    /// As it is.
    Plain(ClientSocket),
    /// Under TLS, agreed on or about to be.
    Tls(Box<TlsStream>),
}

impl Line {
    /// The socket, to wait for.
    pub(super) fn socket(&self) -> &ClientSocket {
        match self {
            Line::Plain(socket) => socket,
            Line::Tls(stream) => stream.socket(),
        }
    }

    /// What to wait for if something is to be sent, or else received.
    pub(super) fn wants(&self, sends: bool) -> PollFlags {
        let pending = matches!(self, Line::Tls(stream) if stream.is_pending());
        if sends || pending { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Sends as far as there is room; returns the bytes taken.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        match self {
            Line::Plain(socket) => rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
            Line::Tls(stream) => stream.send(&[IoSlice::new(bytes)]),
        }
    }

    /// Sends on what `send` took.
    pub(super) fn flush(&mut self) -> Result<(), Errno> {
        match self {
            Line::Plain(_) => Ok(()),
            Line::Tls(stream) => stream.flush(),
        }
    }

    /// Receives; 0 at the end.
    pub(super) fn receive(&mut self, to: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Line::Plain(socket) => socket.receive(to, &mut []),
            Line::Tls(stream) => stream.receive(to, &mut []),
        }
    }

    /// Receives and throws away, whatever it is; 0 at the end.
    pub(super) fn discard(&mut self, to: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Line::Plain(socket) => socket.receive(to, &mut []),
            Line::Tls(stream) => stream.discard(to),
        }
    }

    /// Says that nothing more will be sent.
    pub(super) fn end(&mut self) {
        if let Line::Tls(stream) = self {
            stream.end();
            let _ = stream.flush();
        }
        let _ = rustix::net::shutdown(self.socket(), Shutdown::Write);
    }
}
