//! Replies of one file on their way to the kernel.
//!
//! Owns the queue. Never decides what is replied. Invariants: a reply is one message, so it goes whole or not at all,
//! in the order in which it was queued; nothing is allocated for a reply.

use super::device::Device;
use super::wire::{REPLY_HEADER_BYTES, Small, reply_header};
use crate::buffers::{Buffer, Buffers, HEADROOM};
use rustix::io::Errno;
use std::collections::VecDeque;

/// One reply.
#[derive(Debug)]
struct Reply {
    unique: u64,
    error: i32,
    small: Small,
    /// If not empty, the data are in here.
    buffer: Buffer,
    len: usize,
    /// The request that failed, if the reply says so of one that the disk had.
    failed: Option<u32>,
}

impl Reply {
    fn bytes(&self) -> usize {
        REPLY_HEADER_BYTES + if self.buffer.is_empty() { self.small.bytes().len() } else { self.len }
    }
}

/// How far sending got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Nothing is left.
    All,
    /// As much as one call should send.
    Enough,
    /// The kernel takes no more from us.
    Gone,
}

/// Replies waiting to be sent.
#[derive(Debug)]
pub(super) struct Outbox {
    queue: VecDeque<Reply>,
    bytes: usize,
    /// Failures that nobody waited for any more.
    unheard: Vec<u32>,
}

impl Outbox {
    /// Empty, with room for `replies`.
    pub fn new(replies: usize) -> Self {
        Self { queue: VecDeque::with_capacity(replies), bytes: 0, unheard: Vec::with_capacity(replies) }
    }

    /// Replies waiting.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Bytes waiting.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn push(&mut self, reply: Reply) {
        self.bytes += reply.bytes();
        self.queue.push_back(reply);
    }

    /// Queues success, with what there is to tell.
    pub fn small(&mut self, unique: u64, small: Small) {
        self.push(Reply { unique, error: 0, small, buffer: Buffer::new(), len: 0, failed: None });
    }

    /// Queues success with the `len` bytes of data in `buffer`.
    pub fn data(&mut self, unique: u64, buffer: Buffer, len: usize) {
        self.push(Reply { unique, error: 0, small: Small::EMPTY, buffer, len, failed: None });
    }

    /// Queues a failure; `failed` is the request that the disk had, if it had one.
    pub fn error(&mut self, unique: u64, error: i32, failed: Option<u32>) {
        self.push(Reply { unique, error, small: Small::EMPTY, buffer: Buffer::new(), len: 0, failed });
    }

    /// Sends replies until `most` bytes or more have gone; buffers sent go back.
    pub fn send(&mut self, device: &mut impl Device, buffers: &mut Buffers, most: usize) -> Sent {
        let mut sent = 0;
        while let Some(reply) = self.queue.front_mut() {
            if sent >= most {
                return Sent::Enough;
            }
            let bytes = reply.bytes();
            let header = reply_header(reply.unique, reply.error, bytes - REPLY_HEADER_BYTES);
            let result = if reply.buffer.is_empty() {
                let mut message = [0; REPLY_HEADER_BYTES + super::wire::SMALL_BYTES];
                message[..REPLY_HEADER_BYTES].copy_from_slice(&header);
                message[REPLY_HEADER_BYTES..bytes].copy_from_slice(reply.small.bytes());
                device.send(&message[..bytes])
            } else {
                reply.buffer[HEADROOM - REPLY_HEADER_BYTES..HEADROOM].copy_from_slice(&header);
                device.send(&reply.buffer[HEADROOM - REPLY_HEADER_BYTES..HEADROOM + reply.len])
            };
            match result {
                Err(Errno::INTR) => continue,
                Err(Errno::NODEV | Errno::PERM) => return Sent::Gone,
                // Whoever waited for it was killed, or the message was not taken: it is over for this request, and for
                // no other.
                Err(_) => self.unheard.extend(reply.failed),
                Ok(()) => {}
            }
            sent += bytes;
            self.bytes -= bytes;
            if let Some(reply) = self.queue.pop_front() {
                buffers.give(reply.buffer);
            }
        }
        Sent::All
    }

    /// Drops what waits: nobody takes it. Failures among it count as unheard.
    pub fn clear(&mut self, buffers: &mut Buffers) {
        for reply in self.queue.drain(..) {
            self.unheard.extend(reply.failed);
            buffers.give(reply.buffer);
        }
        self.bytes = 0;
    }

    /// What fails unheard from now on is not noted: for tests.
    pub fn forget_failures(&mut self) {
        self.queue.iter_mut().for_each(|reply| reply.failed = None);
    }

    /// A request whose failure reached nobody.
    pub fn take_unheard(&mut self) -> Option<u32> {
        self.unheard.pop()
    }
}
