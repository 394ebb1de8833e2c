//! Replies of one connection on their way out: encoded, queued, gathered, sent.
//!
//! Owns the queue and the position in it. Never decides what is replied.
//! Invariant: replies leave whole and in the order they were queued; nothing is allocated per reply.

use super::stream::Stream;
use super::wire::{CHUNK_HEADER, CHUNK_MAGIC, SIMPLE_HEADER, SIMPLE_REPLY_MAGIC, chunk};
use crate::buffers::{Buffer, Buffers, HEADROOM};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::IoSlice;

/// Replies handed to the kernel with one call at most.
const GATHER: usize = 64;
/// Bytes of a reply without data at most: a chunk with an error and its words.
const SMALL_MAX: usize = 64;

/// One reply.
#[derive(Debug)]
struct Reply {
    small: [u8; SMALL_MAX],
    /// If not empty, the reply is in here.
    buffer: Buffer,
    from: usize,
    to: usize,
    /// The request that failed, if the reply says so of one that the disk had.
    failed: Option<u32>,
}

impl Reply {
    fn bytes(&self) -> &[u8] {
        let all = if self.buffer.is_empty() { &self.small[..] } else { &self.buffer };
        &all[self.from..self.to]
    }
}

/// How far sending got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Nothing is left.
    All,
    /// As much as one call should send; the socket may take more.
    Enough,
    /// The socket takes no more now.
    Blocked,
    /// The peer is gone.
    Gone,
}

/// Replies waiting to be sent.
#[derive(Debug)]
pub struct Outbox {
    queue: VecDeque<Reply>,
    /// Bytes of them that are not sent.
    bytes: usize,
    /// Failures in replies that the stream took while it kept some of what it had.
    kept_failures: Vec<u32>,
}

fn chunk_header(flags: u16, kind: u16, cookie: u64, len: u32) -> [u8; CHUNK_HEADER] {
    let mut h = [0; CHUNK_HEADER];
    h[..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
    h[4..6].copy_from_slice(&flags.to_be_bytes());
    h[6..8].copy_from_slice(&kind.to_be_bytes());
    h[8..16].copy_from_slice(&cookie.to_be_bytes());
    h[16..].copy_from_slice(&len.to_be_bytes());
    h
}

fn simple_header(error: u32, cookie: u64) -> [u8; SIMPLE_HEADER] {
    let mut h = [0; SIMPLE_HEADER];
    h[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    h[4..8].copy_from_slice(&error.to_be_bytes());
    h[8..].copy_from_slice(&cookie.to_be_bytes());
    h
}

impl Outbox {
    /// Empty, with room for `replies`.
    pub fn new(replies: usize) -> Self {
        Self { queue: VecDeque::with_capacity(replies), bytes: 0, kept_failures: Vec::new() }
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

    fn small(&mut self, parts: &[&[u8]]) {
        let mut small = [0; SMALL_MAX];
        let mut to = 0;
        for p in parts {
            small[to..to + p.len()].copy_from_slice(p);
            to += p.len();
        }
        self.bytes += to;
        self.queue.push_back(Reply { small, buffer: Buffer::new(), from: 0, to, failed: None });
    }

    /// Puts `header` before the `len` bytes of data in `buffer`.
    #[inline]
    fn framed(&mut self, header: &[&[u8]], mut buffer: Buffer, len: usize) {
        let mut from = HEADROOM;
        for part in header.iter().rev() {
            from -= part.len();
            buffer[from..from + part.len()].copy_from_slice(part);
        }
        self.bytes += HEADROOM + len - from;
        let to = HEADROOM + len;
        self.queue.push_back(Reply { small: [0; SMALL_MAX], buffer, from, to, failed: None });
    }

    /// Queues a simple reply without data; `error` 0 is success.
    pub fn simple(&mut self, cookie: u64, error: u32) {
        self.small(&[&simple_header(error, cookie)]);
    }

    /// Queues a structured reply that says success and nothing more.
    pub fn none(&mut self, cookie: u64) {
        self.small(&[&chunk_header(chunk::DONE, chunk::NONE, cookie, 0)]);
    }

    /// Queues a structured error; of `words`, as much as fits.
    pub fn error(&mut self, cookie: u64, error: u32, words: &str) {
        let words = &words.as_bytes()[..words.len().min(SMALL_MAX - CHUNK_HEADER - 6)];
        let header = chunk_header(chunk::DONE, chunk::ERROR, cookie, 6 + words.len() as u32);
        self.small(&[&header, &error.to_be_bytes(), &(words.len() as u16).to_be_bytes(), words]);
    }

    /// The reply queued last says that request `tag` failed.
    pub fn is_failure_of(&mut self, tag: u32) {
        if let Some(reply) = self.queue.back_mut() {
            reply.failed = Some(tag);
        }
    }

    /// The requests whose failures have not been sent, or not wholly, or are perhaps among what the stream keeps.
    pub fn failures(&self) -> impl Iterator<Item = u32> + '_ {
        self.kept_failures.iter().copied().chain(self.queue.iter().filter_map(|reply| reply.failed))
    }

    /// Queues a simple reply with the `len` bytes of data in `buffer`.
    #[inline]
    pub fn simple_data(&mut self, cookie: u64, buffer: Buffer, len: usize) {
        self.framed(&[&simple_header(0, cookie)], buffer, len);
    }

    /// Queues a structured reply with the `len` bytes of data in `buffer`, which are those at `offset` of the disk.
    #[inline]
    pub fn chunk_data(&mut self, cookie: u64, offset: u64, buffer: Buffer, len: usize) {
        let header = chunk_header(chunk::DONE, chunk::OFFSET_DATA, cookie, 8 + len as u32);
        self.framed(&[&header, &offset.to_be_bytes()], buffer, len);
    }

    /// Queues a structured reply with the `len` bytes of extents in `buffer`, context id included.
    pub fn chunk_extents(&mut self, cookie: u64, buffer: Buffer, len: usize) {
        self.framed(&[&chunk_header(chunk::DONE, chunk::BLOCK_STATUS, cookie, len as u32)], buffer, len);
    }

    /// Sends as much as the socket takes, and at most `most` bytes; buffers sent go back.
    pub fn send(&mut self, stream: &mut impl Stream, buffers: &mut Buffers, most: usize) -> Sent {
        let mut left = most;
        while !self.queue.is_empty() {
            if left == 0 {
                return Sent::Enough;
            }
            let mut parts = [IoSlice::new(&[]); GATHER];
            let mut n = 0;
            let mut bytes = 0;
            for (part, reply) in parts.iter_mut().zip(&self.queue) {
                let some = reply.bytes().len().min(left - bytes);
                *part = IoSlice::new(&reply.bytes()[..some]);
                bytes += some;
                n += 1;
                if bytes == left {
                    break;
                }
            }
            match stream.send(&parts[..n]) {
                Ok(sent) => {
                    self.advance(sent, buffers);
                    self.forget_sent(stream);
                    left -= sent.min(left);
                    // A short send found the socket full. Edge-triggered events tell when it no longer is.
                    if sent < bytes {
                        return Sent::Blocked;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Sent::Blocked,
                Err(_) => return Sent::Gone,
            }
        }
        let flushed = stream.flush();
        self.forget_sent(stream);
        match flushed {
            Ok(()) => Sent::All,
            Err(Errno::AGAIN | Errno::INTR) => Sent::Blocked,
            Err(_) => Sent::Gone,
        }
    }

    /// Failures that the stream took are sent once it keeps nothing.
    fn forget_sent(&mut self, stream: &impl Stream) {
        if !self.kept_failures.is_empty() && !stream.is_pending() {
            self.kept_failures.clear();
        }
    }

    fn advance(&mut self, mut sent: usize, buffers: &mut Buffers) {
        buffers.moved(sent);
        self.bytes -= sent;
        while let Some(front) = self.queue.front_mut() {
            let left = front.to - front.from;
            if sent < left {
                front.from += sent;
                return;
            }
            sent -= left;
            if let Some(reply) = self.queue.pop_front() {
                self.kept_failures.extend(reply.failed);
                buffers.give(reply.buffer);
            }
        }
    }

    /// Drops everything.
    pub fn clear(&mut self, buffers: &mut Buffers) {
        self.queue.drain(..).for_each(|r| buffers.give(r.buffer));
        self.kept_failures.clear();
        self.bytes = 0;
    }

    /// Takes out, as bytes, what was not sent.
    pub fn take_bytes(&mut self, buffers: &mut Buffers) -> Vec<u8> {
        let bytes = self.queue.iter().flat_map(|r| r.bytes()).copied().collect();
        self.clear(buffers);
        bytes
    }
}
