//! One connection in its transmission phase, driven by the worker that owns the disk.
//!
//! Owns the requests under way: slots, buffers, replies. Never blocks; never knows what a cache is.
//! Invariants: requests taken and replies waiting are together at most `requests_max`, and what they hold is bounded
//! (see `Buffers`); a request is answered at most once; reply data that the core did not fill are never sent.

mod errors;
mod extents;
mod incoming;

use self::errors::error_number;
use self::extents::encode_extents;
use self::incoming::Stop;
use super::inbox::{Inbox, Received};
use super::outbox::{Outbox, Sent};
use super::rules::ExportRules;
use super::stream::Stream;
use super::wire::errno;
use crate::budget::Account;
use crate::buffers::{Buffer, Buffers, HEADROOM};
use crate::faults::{NoPortFaults, PortBug, PortFaults};
use crate::filled::Filled;
use crate::turns::SEND_BYTES;
use crate::{Peer, Port, PortInterest, Protocol};
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use undercroft_cache::{DiskId, Extent, IoError, Request};

/// Calls to receive in one turn at most, so that one connection cannot keep the worker to itself.
const RECEIVES_PER_TURN: u32 = 32;
/// Bytes received in one turn at most, for the same reason; the last call may go over.
const RECEIVE_BYTES_PER_TURN: usize = 96 * 1024;
/// Bytes for the extents of one reply: 2048 of them, less one for the context's id.
pub const EXTENT_BYTES: usize = 16 * 1024;
/// Times of falling asleep with nothing left to send, after which we stop watching for room to send.
pub const CALM_SLEEPS: u32 = 64;

/// Bounds of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortLimits {
    /// Requests under way and replies waiting, together.
    pub requests_max: usize,
    /// Bytes of data in them. One request longer than this is served when it is alone.
    pub bytes_max: usize,
}

impl Default for PortLimits {
    /// 128 requests, 4 MiB: sixteen of the largest that copying tools send, more than hides any latency.
    fn default() -> Self {
        Self { requests_max: 128, bytes_max: 4 * 1024 * 1024 }
    }
}

/// Called with the socket and the bytes not sent when the port is dropped; closes the connection in peace.
pub type OnClose<S> = Box<dyn FnOnce(S, Vec<u8>) + Send>;

/// What a slot is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Free,
    Read,
    Write { fua: bool },
    Flush,
    Trim { fua: bool },
    Zeroes { unmap: bool, fua: bool },
    Cache,
    Status { one: bool },
}

/// A request under way.
#[derive(Debug)]
struct Slot {
    task: Task,
    cookie: u64,
    offset: u64,
    len: u32,
    /// Bytes of extents encoded.
    encoded: usize,
    buffer: Buffer,
}

const FREE: Slot = Slot { task: Task::Free, cookie: 0, offset: 0, len: 0, encoded: 0, buffer: Buffer::new() };

/// What the next bytes received are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    Header,
    /// Data of the write in slot `tag`.
    Payload {
        tag: u32,
        filled: usize,
    },
    /// Data of a write that was refused.
    Skip {
        left: u32,
        cookie: u64,
        error: u32,
    },
}

/// How the connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Requests are served.
    Open,
    /// What has come of a request still comes, and no other is begun; once those under way are answered, the end.
    Shutting,
    /// No request will come; once those under way are answered, the end.
    Draining,
    /// Over.
    Closed,
}

/// A connection in transmission.
pub struct NbdPort<S: Stream, F: PortFaults = NoPortFaults> {
    port: u32,
    disk: DiskId,
    rules: ExportRules,
    limits: PortLimits,
    peer: String,
    /// `None` only while the port is dropped.
    stream: Option<S>,
    on_close: Option<OnClose<S>>,
    inbox: Inbox,
    outbox: Outbox,
    buffers: Buffers,
    slots: Vec<Slot>,
    /// By tag: what has come of the data of the read there.
    filled: Vec<Filled>,
    free: Vec<u32>,
    /// Tags whose request has another step to go.
    again: Vec<u32>,
    expect: Expect,
    state: State,
    /// The next request found no room.
    stalled: bool,
    /// The last flush sent as much as one should, and there is more.
    unsent: bool,
    /// `arm` said that we sleep.
    asleep: bool,
    watching_room: bool,
    calm: u32,
    /// The last answer was to a connection that is over.
    unheard: bool,
    /// Failures that were not sent when it ended.
    unsent_failures: Vec<u32>,
    faults: PhantomData<F>,
}

/// What a port is made from.
pub struct NewPort<S: Stream> {
    /// The worker's name for it.
    pub port: u32,
    /// Which disk.
    pub disk: DiskId,
    /// What was agreed on.
    pub rules: ExportRules,
    /// Its bounds.
    pub limits: PortLimits,
    /// Who is at the other end, for the log.
    pub peer: String,
    /// Connected, and past the handshake.
    pub stream: S,
    /// Bytes received behind the handshake.
    pub first: Vec<u8>,
    /// What to do with the socket when the port is dropped.
    pub on_close: Option<OnClose<S>>,
    /// Its part of the memory for data that all connections share.
    pub account: Option<Arc<Account>>,
}

impl<S: Stream> NbdPort<S> {
    /// Makes the port of a connection.
    pub fn new(new: NewPort<S>) -> Self {
        NbdPort::with_faults(new)
    }
}

impl<S: Stream, F: PortFaults> NbdPort<S, F> {
    /// [`NbdPort::new`] with bugs that a test may switch on.
    pub fn with_faults(new: NewPort<S>) -> Self {
        let n = new.limits.requests_max.clamp(1, 1 << 16);
        Self {
            port: new.port,
            disk: new.disk,
            rules: new.rules,
            limits: PortLimits { requests_max: n, ..new.limits },
            peer: new.peer,
            stream: Some(new.stream),
            on_close: new.on_close,
            inbox: Inbox::new(&new.first),
            outbox: Outbox::new(n + 1),
            buffers: Buffers::new(new.limits.bytes_max, n, new.account),
            slots: std::iter::repeat_with(|| FREE).take(n).collect(),
            filled: vec![Filled::new(); n],
            free: (0..n as u32).rev().collect(),
            again: Vec::with_capacity(n),
            expect: Expect::Header,
            state: State::Open,
            stalled: false,
            unsent: false,
            asleep: false,
            watching_room: false,
            calm: 0,
            unheard: false,
            unsent_failures: Vec::new(),
            faults: PhantomData,
        }
    }

    fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Bytes of memory that requests under way and replies waiting hold.
    pub fn held_bytes(&self) -> usize {
        self.buffers.held_bytes()
    }

    /// Replies that wait to be sent.
    pub fn replies_waiting(&self) -> usize {
        self.outbox.len()
    }

    /// Requests that have another step to go, which `take` has not handed out yet.
    pub fn steps_to_go(&self) -> usize {
        self.again.len()
    }

    /// Whether `take` would get further than it did.
    fn can_go_on(&self) -> bool {
        if !self.again.is_empty() {
            return true;
        }
        if self.stalled || !matches!(self.state, State::Open | State::Shutting) {
            return false;
        }
        let at_hand = match self.expect {
            Expect::Header => self.inbox.header().is_some(),
            Expect::Payload { tag, filled } => self.inbox.len() > 0 || filled == self.slots[tag as usize].len as usize,
            Expect::Skip { .. } => self.inbox.len() > 0,
        };
        at_hand || !(self.inbox.drained || self.inbox.ended)
    }

    /// The connection is of no more use: requests under way finish unheard.
    fn cut(&mut self, why: &str) {
        if self.state != State::Closed {
            tracing::debug!(peer = %self.peer, "NBD connection ended: {why}");
            self.state = State::Closed;
            self.note_unsent();
            self.outbox.clear(&mut self.buffers);
            self.drop_payload();
            while let Some(tag) = self.again.pop() {
                self.release(tag);
            }
            if let Some(s) = &mut self.stream {
                s.close();
            }
        }
    }

    /// The connection is over: of failures that it has not sent its client cannot know.
    fn note_unsent(&mut self) {
        if !F::has(PortBug::UnseenForgotten) {
            self.unsent_failures.extend(self.outbox.failures());
        }
    }

    /// Everything is answered and sent: the end, in peace.
    fn finish(&mut self) {
        if self.on_close.is_none() {
            return self.cut("all was answered");
        }
        tracing::debug!(peer = %self.peer, "NBD connection ended");
        // What the stream still keeps goes out behind us, if the peer takes it.
        self.note_unsent();
        self.drop_payload();
        self.state = State::Closed;
    }

    /// Frees the slot of a write whose data did not all arrive.
    fn drop_payload(&mut self) {
        if let Expect::Payload { tag, .. } = self.expect {
            self.release(tag);
        }
        self.expect = Expect::Header;
    }

    fn release(&mut self, tag: u32) {
        let slot = std::mem::replace(&mut self.slots[tag as usize], FREE);
        assert!(slot.task != Task::Free, "request {tag} was answered twice");
        self.buffers.give(slot.buffer);
        self.free.push(tag);
        self.stalled = false;
    }
}

/// Bytes that one step of a CACHE request reads.
const CACHE_STEP: u64 = 1024 * 1024;

impl<S: Stream, F: PortFaults> Port for NbdPort<S, F> {
    fn take(&mut self, budget: usize, out: &mut Vec<Request>) -> bool {
        self.asleep = false;
        // An event may have brought us here.
        self.inbox.drained = false;
        if self.buffers.was_called() {
            self.stalled = false;
            if !self.buffers.tend() {
                tracing::warn!(peer = %self.peer, "an NBD client that was slow with its data made room for others that \
                    wait");
                self.cut("its client kept others waiting for memory");
            }
        }
        let start = out.len();
        let end = start + budget;
        while out.len() < end
            && let Some(tag) = self.again.pop()
        {
            out.push(self.request(tag));
        }
        let (mut receives, mut received) = (0, 0);
        let mut seen_empty = false;
        while matches!(self.state, State::Open | State::Shutting) {
            match self.parse(end, out) {
                Stop::Starved if !seen_empty && receives < RECEIVES_PER_TURN && received < RECEIVE_BYTES_PER_TURN => {
                    receives += 1;
                    match self.receive() {
                        Received::Some(n) => received += n,
                        Received::Last(_) => seen_empty = true,
                        Received::Nothing => break,
                    }
                }
                Stop::Starved | Stop::Batch | Stop::Stalled | Stop::Making | Stop::Over => break,
            }
        }
        self.buffers.set_waits_for_client(matches!(self.expect, Expect::Payload { .. }) || !self.outbox.is_empty());
        if out.len() == start && (!self.outbox.is_empty() || self.state != State::Open) {
            // Only errors, or the end: no reply of the core will remind anybody to send them, or to close.
            self.flush(SEND_BYTES);
        }
        self.can_go_on()
    }

    #[inline]
    fn copy_out(&mut self, tag: u32, at: usize, bytes: &[u8]) {
        let slot = &mut self.slots[tag as usize];
        if slot.task == Task::Read {
            slot.buffer[HEADROOM + at..HEADROOM + at + bytes.len()].copy_from_slice(bytes);
            self.filled[tag as usize].copied(at, bytes.len());
        }
    }

    #[inline]
    fn copy_in(&mut self, tag: u32, at: usize, bytes: &mut [u8]) {
        let slot = &self.slots[tag as usize];
        bytes.copy_from_slice(&slot.buffer[HEADROOM + at..HEADROOM + at + bytes.len()]);
    }

    fn extents(&mut self, tag: u32, extents: &[Extent]) {
        let slot = &mut self.slots[tag as usize];
        let Task::Status { one } = slot.task else { return };
        slot.encoded = encode_extents(&mut slot.buffer[HEADROOM..HEADROOM + EXTENT_BYTES], extents, slot.len, one);
    }

    fn reply(&mut self, tag: u32, result: Result<(), IoError>) {
        let slot = &mut self.slots[tag as usize];
        self.unheard = self.state == State::Closed;
        if self.unheard {
            return self.release(tag);
        }
        let (mut cookie, len) = (slot.cookie, slot.len as usize);
        if F::has(PortBug::WrongCookie)
            && let Some(other) = self.slots.iter().find(|s| s.task != Task::Free && s.cookie != cookie)
        {
            cookie = other.cookie;
        }
        let slot = &mut self.slots[tag as usize];
        match (slot.task, result) {
            (Task::Read, Ok(())) => {
                if !self.filled[tag as usize].is_whole() && !F::has(PortBug::ShortReadSent) {
                    // What was in the buffer before is not this client's to see.
                    tracing::error!("a read of {len} bytes was answered without all of its data: I/O error");
                    self.fail(cookie, errno::EIO);
                } else {
                    let buffer = std::mem::take(&mut slot.buffer);
                    if self.rules.structured {
                        let skew = if F::has(PortBug::ChunkOffsetOfBlock) { slot.offset % 4096 } else { 0 };
                        self.outbox.chunk_data(cookie, slot.offset - skew, buffer, len);
                    } else {
                        self.outbox.simple_data(cookie, buffer, len);
                    }
                }
            }
            // The core answers a discard as soon as it is done; durable it is after a flush.
            (Task::Trim { fua: true }, Ok(())) => {
                slot.task = Task::Flush;
                if F::has(PortBug::TagReused) {
                    self.free.insert(0, tag);
                }
                return self.again.push(tag);
            }
            (Task::Cache, Ok(())) if u64::from(slot.len) > CACHE_STEP => {
                slot.len -= CACHE_STEP as u32;
                slot.offset += CACHE_STEP;
                return self.again.push(tag);
            }
            (Task::Status { one }, Ok(()) | Err(IoError::Unsupported)) => {
                // A disk that cannot tell, or says nothing, is all data: always true, and always progress.
                if slot.encoded == 0 {
                    let all = [Extent { len: u64::from(slot.len), hole: false, zero: false }];
                    let to = &mut slot.buffer[HEADROOM..HEADROOM + EXTENT_BYTES];
                    slot.encoded = encode_extents(to, &all, slot.len, one);
                }
                let (encoded, buffer) = (slot.encoded, std::mem::take(&mut slot.buffer));
                self.outbox.chunk_extents(cookie, buffer, encoded);
            }
            (_, Ok(())) => self.outbox.simple(cookie, 0),
            (Task::Flush, Err(_)) if F::has(PortBug::LossUnsaid) => self.outbox.simple(cookie, 0),
            (_, Err(e)) => {
                self.fail(cookie, error_number(e));
                if e == IoError::Lost {
                    self.outbox.is_failure_of(tag);
                }
            }
        }
        self.release(tag);
    }

    fn unheard(&self) -> bool {
        self.unheard && !F::has(PortBug::UnheardForgotten)
    }

    fn take_unheard(&mut self) -> Option<u32> {
        self.unsent_failures.pop()
    }

    fn flush(&mut self, most: usize) {
        let Some(stream) = &mut self.stream else { return };
        if !self.outbox.is_empty() || stream.is_pending() {
            let waiting = self.outbox.len();
            let sent = self.outbox.send(stream, &mut self.buffers, most);
            self.unsent = sent == Sent::Enough;
            match sent {
                Sent::All | Sent::Enough => {}
                Sent::Blocked => {
                    self.calm = 0;
                    if !self.watching_room {
                        self.watching_room = true;
                        if !F::has(PortBug::RoomNotWatched) {
                            stream.watch_room();
                        }
                    }
                }
                Sent::Gone => self.cut("the client went away"),
            }
            if self.outbox.len() < waiting {
                self.stalled = false;
            }
        }
        if matches!(self.state, State::Shutting | State::Draining) && self.inflight() == 0 && self.outbox.is_empty() {
            self.finish();
        }
        if self.asleep && self.can_go_on() {
            // Something that we wait for no event of has become possible: have the worker look at us again.
            self.asleep = false;
            self.watching_room = true;
            if let Some(stream) = &mut self.stream {
                stream.watch_room();
            }
        }
    }

    fn has_more_to_send(&self) -> bool {
        self.unsent && self.stream.is_some() && self.state != State::Closed
    }

    fn bytes_to_send(&self) -> usize {
        self.outbox.bytes()
    }

    fn arm(&mut self) -> bool {
        let pending = self.stream.as_ref().is_some_and(S::is_pending);
        if self.watching_room && self.outbox.is_empty() && !pending {
            self.calm += 1;
            if self.calm >= CALM_SLEEPS {
                self.calm = 0;
                self.watching_room = false;
                if let Some(stream) = &mut self.stream {
                    stream.unwatch_room();
                }
            }
        }
        let more = self.can_go_on();
        self.asleep = !more;
        more
    }

    fn disarm(&mut self) {}

    fn fds(&self) -> Vec<(BorrowedFd<'_>, PortInterest)> {
        let fds = self.stream.as_ref().map(Stream::fds).unwrap_or_default();
        fds.into_iter().chain(self.buffers.fd()).map(|fd| (fd, PortInterest::Read)).collect()
    }

    fn fds_changed(&mut self) -> bool {
        false
    }

    fn inflight(&self) -> usize {
        self.used() - usize::from(matches!(self.expect, Expect::Payload { .. }))
    }

    fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    fn shut(&mut self) {
        if self.state == State::Open {
            self.state = State::Shutting;
        }
    }

    fn process_ends(&mut self) {
        self.cut("this process ends");
    }

    fn peer(&self) -> Option<Peer> {
        Some(Peer { protocol: Protocol::Nbd, name: self.peer.clone() })
    }

    fn as_any(&mut self) -> &mut dyn std::any::Any {
        self
    }
}

impl<S: Stream, F: PortFaults> Drop for NbdPort<S, F> {
    fn drop(&mut self) {
        if let (Some(stream), Some(on_close)) = (self.stream.take(), self.on_close.take()) {
            on_close(stream, self.outbox.take_bytes(&mut self.buffers));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::stream::SocketStream;
    use super::super::wire::{REQUEST_MAGIC, command};
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use undercroft_cache::Geometry;

    /// A read of ten bytes.
    fn read() -> Vec<u8> {
        let parts: [&[u8]; 6] = [
            &REQUEST_MAGIC.to_be_bytes(),
            &0u16.to_be_bytes(),
            &command::READ.to_be_bytes(),
            &0u64.to_be_bytes(),
            &0u64.to_be_bytes(),
            &10u32.to_be_bytes(),
        ];
        parts.concat()
    }

    #[test]
    fn an_event_while_the_batch_is_full_is_not_forgotten() {
        let geometry =
            Geometry { size_bytes: 4096, align: 1, read_only: false, can_discard: true, can_write_zeroes: true };
        let (mut client, ours) = UnixStream::pair().unwrap();
        let mut port = NbdPort::new(NewPort {
            port: 0,
            disk: DiskId(0),
            rules: ExportRules::new(&geometry, true, true),
            limits: PortLimits::default(),
            peer: String::new(),
            stream: SocketStream::new(undercroft_host::ClientSocket::new(ours.into(), &Default::default())).unwrap(),
            first: Vec::new(),
            on_close: None,
            account: None,
        });
        let mut requests = Vec::new();
        client.write_all(&[read(), read()].concat()).unwrap();
        assert!(port.take(1, &mut requests));
        port.inbox.drained = true;
        client.write_all(&read()).unwrap();
        assert!(port.take(1, &mut requests), "there may be more in the socket");
        port.take(8, &mut requests);
        assert_eq!(requests.len(), 3);
    }
}
