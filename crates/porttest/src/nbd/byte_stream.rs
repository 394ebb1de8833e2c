//! A stream of bytes in memory, in place of the socket of an NBD connection.
//!
//! Owns what was sent and has not arrived. Never looks at what the bytes mean, and never opens a socket. Invariant:
//! bytes arrive once, in order.

use rustix::io::Errno;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use undercroft_frontend::nbd::stream::Stream;

/// Both ends of a [`ByteStream`].
#[derive(Debug, Default)]
pub struct Wire {
    /// What the client has sent so far, or is about to.
    pub input: Vec<u8>,
    /// What the port has sent.
    pub output: Vec<u8>,
    /// Bytes of `input` that the port has received.
    pub(super) received: usize,
    /// Bytes of `input` that have arrived.
    pub arrived: usize,
    /// Bytes that arrive at a time; 0 for all.
    pub piece: usize,
    /// Calls to receive that brought something.
    pub receives: usize,
    /// Calls to send.
    pub sends: usize,
    /// Bytes that can still be sent before the socket is full.
    pub room: usize,
    /// The stream takes more than there is room for, and keeps it, as TLS does.
    pub keeps: bool,
    pub(super) kept: Vec<u8>,
    /// The client has closed its end.
    pub ended: bool,
    /// The port has closed.
    pub closed: bool,
    /// The port wants to be woken when there is room again.
    pub watches_room: bool,
}

impl Wire {
    /// Sends what was kept, as far as there is room.
    fn pass_on(&mut self) {
        let n = self.kept.len().min(self.room);
        self.output.extend(self.kept.drain(..n));
        self.room -= n;
    }

    /// Lets the next piece arrive; true if there was one.
    pub fn arrive(&mut self) -> bool {
        let n = if self.piece == 0 { usize::MAX } else { self.piece };
        let before = self.arrived;
        self.arrived = self.arrived.saturating_add(n).min(self.input.len());
        self.arrived > before
    }

    /// Bytes that the port has not received yet.
    pub fn unread(&self) -> usize {
        self.input.len() - self.received
    }
}

/// A stream between a port and a test.
#[derive(Clone, Debug, Default)]
pub struct ByteStream(pub Arc<Mutex<Wire>>);

impl ByteStream {
    /// Runs `f` on the wire.
    pub fn with<R>(&self, f: impl FnOnce(&mut Wire) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Stream for ByteStream {
    fn receive(&mut self, first: &mut [u8], second: &mut [u8]) -> Result<usize, Errno> {
        self.with(|w| {
            if w.arrived == w.received {
                return if w.ended && w.unread() == 0 { Ok(0) } else { Err(Errno::AGAIN) };
            }
            let n = (w.arrived - w.received).min(first.len() + second.len());
            w.receives += 1;
            let one = n.min(first.len());
            let from = &w.input[w.received..];
            first[..one].copy_from_slice(&from[..one]);
            second[..n - one].copy_from_slice(&from[one..n]);
            w.received += n;
            Ok(n)
        })
    }

    fn send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize, Errno> {
        self.with(|w| {
            let mut n = 0;
            w.sends += 1;
            if w.keeps {
                parts.iter().for_each(|p| w.kept.extend_from_slice(p));
                w.pass_on();
                return Ok(parts.iter().map(|p| p.len()).sum());
            }
            for p in parts {
                let take = p.len().min(w.room);
                w.output.extend_from_slice(&p[..take]);
                w.room -= take;
                n += take;
            }
            if n == 0 { Err(Errno::AGAIN) } else { Ok(n) }
        })
    }

    fn flush(&mut self) -> Result<(), Errno> {
        self.with(|w| {
            w.pass_on();
            if w.kept.is_empty() { Ok(()) } else { Err(Errno::AGAIN) }
        })
    }

    fn is_pending(&self) -> bool {
        self.with(|w| !w.kept.is_empty())
    }

    fn watch_room(&mut self) {
        self.with(|w| w.watches_room = true);
    }

    fn unwatch_room(&mut self) {
        self.with(|w| w.watches_room = false);
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn close(&mut self) {
        self.with(|w| w.closed = true);
    }
}
