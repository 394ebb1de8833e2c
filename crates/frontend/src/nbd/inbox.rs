//! The receiving side of one connection: a fixed buffer of bytes, refilled with as few calls as possible.
//!
//! Owns bytes received and not yet looked at. Never interprets them.
//! Invariant: `drained` is true only if the socket was seen empty, so that an event will tell of the next bytes.

use super::stream::Stream;
use super::wire::REQUEST_HEADER;
use crate::buffers::HEADROOM;
use rustix::io::Errno;

/// Bytes received at a time, besides the rest of a large payload.
const INBOX_BYTES: usize = 64 * 1024;

/// What one call brought; the number is that of the bytes that went into the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Bytes, and there may be more.
    Some(usize),
    /// Bytes, and probably no more.
    Last(usize),
    /// None.
    Nothing,
}

/// Bytes received.
#[derive(Debug)]
pub struct Inbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// The socket was seen empty: whatever comes next is an event.
    pub drained: bool,
    /// The peer sends no more.
    pub ended: bool,
}

impl Inbox {
    /// An inbox that starts with `first`, bytes that came behind the handshake.
    pub fn new(first: &[u8]) -> Self {
        let mut bytes = vec![0; INBOX_BYTES.max(first.len())].into_boxed_slice();
        bytes[..first.len()].copy_from_slice(first);
        Self { bytes, start: 0, end: first.len(), drained: false, ended: false }
    }

    /// Bytes at hand.
    #[inline]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// The next header, if all of it is here; it stays.
    #[inline]
    pub fn header(&self) -> Option<&[u8; REQUEST_HEADER]> {
        self.bytes[self.start..self.end].first_chunk()
    }

    /// Drops `n` bytes from the front, or as many as there are; returns how many.
    #[inline]
    pub fn skip(&mut self, n: usize) -> usize {
        let n = n.min(self.len());
        self.start += n;
        n
    }

    /// Moves bytes from the front into `to`, as many as there are; returns how many.
    #[inline]
    pub fn read(&mut self, to: &mut [u8]) -> usize {
        let n = to.len().min(self.len());
        to[..n].copy_from_slice(&self.bytes[self.start..self.start + n]);
        self.start += n;
        n
    }

    /// Receives once: the rest of a payload first, which `payload` is and which needs the inbox to be empty, then more
    /// into the inbox. Returns what came.
    ///
    /// # Errors
    /// If the peer is gone.
    pub fn receive(&mut self, stream: &mut impl Stream, payload: &mut [u8]) -> Result<Received, Errno> {
        debug_assert!(payload.is_empty() || self.len() == 0);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.bytes.len() {
            // Part of a header is left: move it to the front.
            self.bytes.copy_within(self.start.., 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let free = &mut self.bytes[self.end..];
        let room = payload.len() + free.len();
        let result = if payload.is_empty() { stream.receive(free, &mut []) } else { stream.receive(payload, free) };
        match result {
            Ok(0) => {
                self.ended = true;
                Ok(Received::Nothing)
            }
            Ok(n) => {
                let in_payload = n.min(payload.len());
                self.end += n - in_payload;
                // A short answer says that there are no more bytes now, so that what came had better be served before
                // we ask again. It does not say that the peer has not closed: no further event might tell.
                Ok(if n < room { Received::Last(in_payload) } else { Received::Some(in_payload) })
            }
            Err(Errno::AGAIN) => {
                self.drained = true;
                Ok(Received::Nothing)
            }
            Err(Errno::INTR) => {
                self.drained = false;
                Ok(Received::Last(0))
            }
            Err(e) => Err(e),
        }
    }
}

/// The part of a payload's buffer that is still to be filled.
pub fn rest(buffer: &mut [u8], filled: usize, len: usize) -> &mut [u8] {
    &mut buffer[HEADROOM + filled..HEADROOM + len]
}
