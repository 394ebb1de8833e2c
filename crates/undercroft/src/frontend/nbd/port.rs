//! One connection in its transmission phase, driven by the worker that owns the disk.
//!
//! Owns the requests under way: slots, buffers, replies. Never blocks; never knows what a cache is.
//! Invariants: requests taken and replies waiting are together at most `requests_max`, and what they hold is bounded
//! (see `Buffers`); a request is answered at most once; reply data that the core did not fill are never sent.

use super::buffers::{Buffer, Buffers, HEADROOM};
use super::inbox::{Inbox, Received, rest};
use super::outbox::{Outbox, Sent};
use super::rules::{Header, Rules, Verdict};
use super::stream::Stream;
use super::wire::{CONTEXT_ID, REQUEST_HEADER, STATE_HOLE, STATE_ZERO, errno};
use crate::frontend::{Peer, Port, PortInterest, Protocol};
use std::os::fd::BorrowedFd;
use undercroft_cache::{DiskId, Extent, IoError, Op, ReqId, Request};

/// Calls to receive in one turn at most, so that one connection cannot keep the worker to itself.
const RECEIVES_PER_TURN: u32 = 32;
/// Bytes for the extents of one reply: 2048 of them, less one for the context's id.
const EXTENT_BYTES: usize = 16 * 1024;
/// Times of falling asleep with nothing left to send, after which we stop watching for room to send.
const CALM_SLEEPS: u32 = 64;

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
pub type Farewell<S> = Box<dyn FnOnce(S, Vec<u8>) + Send>;

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
    /// Bytes of reply data filled in, or of extents encoded.
    filled: usize,
    buffer: Buffer,
}

const FREE: Slot = Slot { task: Task::Free, cookie: 0, offset: 0, len: 0, filled: 0, buffer: Buffer::new() };

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
    /// Requests are refused; once those under way are answered, the end.
    Shutting,
    /// No request will come; once those under way are answered, the end.
    Draining,
    /// Over.
    Closed,
}

/// Why parsing stopped.
enum Stop {
    /// More bytes are needed.
    Starved,
    /// The batch is full.
    Batch,
    /// There is no room for the next request.
    Stalled,
    /// No request will come.
    Over,
}

/// A connection in transmission.
pub struct NbdPort<S: Stream> {
    port: u32,
    disk: DiskId,
    rules: Rules,
    limits: PortLimits,
    peer: String,
    /// `None` only while the port is dropped.
    stream: Option<S>,
    farewell: Option<Farewell<S>>,
    inbox: Inbox,
    outbox: Outbox,
    buffers: Buffers,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Tags whose request has another step to go.
    again: Vec<u32>,
    expect: Expect,
    state: State,
    /// The next request found no room.
    stalled: bool,
    /// `arm` said that we sleep.
    asleep: bool,
    watching_room: bool,
    calm: u32,
}

/// What a port is made from.
pub struct NewPort<S: Stream> {
    /// The worker's name for it.
    pub port: u32,
    /// Which disk.
    pub disk: DiskId,
    /// What was agreed on.
    pub rules: Rules,
    /// Its bounds.
    pub limits: PortLimits,
    /// Who is at the other end, for the log.
    pub peer: String,
    /// Connected, and past the handshake.
    pub stream: S,
    /// Bytes received behind the handshake.
    pub first: Vec<u8>,
    /// Who closes the connection.
    pub farewell: Option<Farewell<S>>,
}

impl<S: Stream> NbdPort<S> {
    /// Makes the port of a connection.
    pub fn new(new: NewPort<S>) -> Self {
        let n = new.limits.requests_max.clamp(1, 1 << 16);
        Self {
            port: new.port,
            disk: new.disk,
            rules: new.rules,
            limits: PortLimits { requests_max: n, ..new.limits },
            peer: new.peer,
            stream: Some(new.stream),
            farewell: new.farewell,
            inbox: Inbox::new(&new.first),
            outbox: Outbox::new(n + 1),
            buffers: Buffers::new(new.limits.bytes_max, n),
            slots: std::iter::repeat_with(|| FREE).take(n).collect(),
            free: (0..n as u32).rev().collect(),
            again: Vec::with_capacity(n),
            expect: Expect::Header,
            state: State::Open,
            stalled: false,
            asleep: false,
            watching_room: false,
            calm: 0,
        }
    }

    fn used(&self) -> usize {
        self.slots.len() - self.free.len()
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

    /// Everything is answered and sent: the end, in peace.
    fn finish(&mut self) {
        if self.farewell.is_none() {
            return self.cut("all was answered");
        }
        tracing::debug!(peer = %self.peer, "NBD connection ended");
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

    /// Reads requests out of the inbox until something is missing.
    fn parse(&mut self, end: usize, out: &mut Vec<Request>) -> Stop {
        loop {
            if out.len() >= end {
                return Stop::Batch;
            }
            match self.expect {
                Expect::Payload { tag, filled } => {
                    let slot = &mut self.slots[tag as usize];
                    let len = slot.len as usize;
                    let filled = filled + self.inbox.read(rest(&mut slot.buffer, filled, len));
                    if filled < len {
                        self.expect = Expect::Payload { tag, filled };
                        return Stop::Starved;
                    }
                    self.expect = Expect::Header;
                    out.push(self.request(tag));
                }
                Expect::Skip { left, cookie, error } => {
                    let left = left - self.inbox.skip(left as usize) as u32;
                    if left > 0 {
                        self.expect = Expect::Skip { left, cookie, error };
                        return Stop::Starved;
                    }
                    self.expect = Expect::Header;
                    self.fail(cookie, error);
                }
                Expect::Header => {
                    let Some(bytes) = self.inbox.header() else { return Stop::Starved };
                    let Some(header) = Header::parse(bytes) else {
                        self.cut("it sent something that is not a request");
                        return Stop::Over;
                    };
                    if let Some(stop) = self.begin(&header, out) {
                        return stop;
                    }
                }
            }
        }
    }

    /// Starts on one request; `Some` if parsing cannot go on, in which case the header stays.
    fn begin(&mut self, h: &Header, out: &mut Vec<Request>) -> Option<Stop> {
        if self.used() + self.outbox.len() >= self.limits.requests_max {
            self.stalled = true;
            return Some(Stop::Stalled);
        }
        let mut verdict = self.rules.judge(h);
        if self.state == State::Shutting && verdict != Verdict::Disconnect {
            verdict = Verdict::Refuse(errno::ESHUTDOWN);
        }
        let bytes = match verdict {
            Verdict::Read | Verdict::Write { .. } => h.len as usize,
            Verdict::Status { .. } => EXTENT_BYTES,
            _ => 0,
        };
        if bytes > 0 && !self.buffers.has_room(bytes) {
            self.stalled = true;
            return Some(Stop::Stalled);
        }
        self.inbox.skip(REQUEST_HEADER);
        let task = match verdict {
            Verdict::Read => Task::Read,
            Verdict::Write { fua } => Task::Write { fua },
            Verdict::Flush => Task::Flush,
            Verdict::Trim { fua } => Task::Trim { fua },
            Verdict::Zeroes { unmap, fua } => Task::Zeroes { unmap, fua },
            Verdict::Cache => Task::Cache,
            Verdict::Status { one } => Task::Status { one },
            Verdict::Done if self.rules.structured => {
                self.outbox.none(h.cookie);
                return None;
            }
            Verdict::Done => {
                self.outbox.simple(h.cookie, 0);
                return None;
            }
            Verdict::Refuse(error) if h.payload() > 0 => {
                self.expect = Expect::Skip { left: h.payload(), cookie: h.cookie, error };
                return None;
            }
            Verdict::Refuse(error) => {
                self.fail(h.cookie, error);
                return None;
            }
            Verdict::Disconnect => {
                self.state = State::Draining;
                return Some(Stop::Over);
            }
        };
        let buffer = if bytes > 0 { self.buffers.take(bytes) } else { Buffer::new() };
        let tag = self.free.pop().expect("fewer slots are used than there are");
        self.slots[tag as usize] = Slot { task, cookie: h.cookie, offset: h.offset, len: h.len, filled: 0, buffer };
        match task {
            Task::Write { .. } => self.expect = Expect::Payload { tag, filled: 0 },
            _ => out.push(self.request(tag)),
        }
        None
    }

    /// The request to the core for the present step of a slot.
    fn request(&self, tag: u32) -> Request {
        let slot = &self.slots[tag as usize];
        let mut len = u64::from(slot.len);
        let mut offset = slot.offset;
        let op = match slot.task {
            Task::Read => Op::Read,
            Task::Write { fua } => Op::Write { fua },
            Task::Flush => {
                (offset, len) = (0, 0);
                Op::Flush
            }
            Task::Trim { .. } => Op::Discard,
            Task::Zeroes { unmap, fua } => Op::WriteZeroes { unmap, fua },
            Task::Cache => {
                // Any length may be asked for; the core reads a bounded part at a time.
                len = len.min(CACHE_STEP);
                Op::Read
            }
            Task::Status { .. } => Op::Status,
            Task::Free => unreachable!("a free slot has no request"),
        };
        Request { id: ReqId { port: self.port, tag }, disk: self.disk, op, offset, len }
    }

    fn fail(&mut self, cookie: u64, error: u32) {
        if self.rules.structured {
            self.outbox.error(cookie, error, words(error));
        } else {
            self.outbox.simple(cookie, error);
        }
    }

    /// Receives once. False if nothing came.
    fn receive(&mut self) -> Received {
        let Some(stream) = &mut self.stream else { return Received::Nothing };
        let (tag, filled) = match self.expect {
            Expect::Payload { tag, filled } => (tag, filled),
            _ => (u32::MAX, 0),
        };
        let payload = match self.slots.get_mut(tag as usize) {
            Some(s) => rest(&mut s.buffer, filled, s.len as usize),
            None => &mut [],
        };
        match self.inbox.receive(stream, payload) {
            Ok(received) => {
                if let (Expect::Payload { filled, .. }, Received::Some(n) | Received::Last(n)) =
                    (&mut self.expect, received)
                {
                    *filled += n;
                }
                if self.inbox.ended {
                    // The end of the stream is a goodbye without words; half a request at the end is none.
                    self.drop_payload();
                    self.state = State::Draining;
                }
                received
            }
            Err(_) => {
                self.cut("the connection broke");
                Received::Nothing
            }
        }
    }
}

/// Bytes that one step of a CACHE request reads.
const CACHE_STEP: u64 = 1024 * 1024;

/// Words for people that go with an error.
fn words(error: u32) -> &'static str {
    match error {
        errno::EPERM => "the disk is read-only",
        errno::EIO => "the disk failed",
        errno::ENOSPC => "past the end, or the disk is full",
        errno::EOVERFLOW => "more than 32 MiB at a time",
        errno::ENOTSUP => "not supported",
        errno::ESHUTDOWN => "the disk is going away",
        _ => "the request makes no sense here",
    }
}

fn error_number(e: IoError) -> u32 {
    match e {
        IoError::Io => errno::EIO,
        IoError::NoSpace => errno::ENOSPC,
        // The protocol keeps ENOTSUP for fast zeroes, which were answered before.
        IoError::Invalid | IoError::Unsupported => errno::EINVAL,
        IoError::ReadOnly => errno::EPERM,
        IoError::Shutdown => errno::ESHUTDOWN,
    }
}

impl<S: Stream> Port for NbdPort<S> {
    fn take(&mut self, budget: usize, out: &mut Vec<Request>) -> bool {
        self.asleep = false;
        // An event may have brought us here.
        self.inbox.drained = false;
        let start = out.len();
        let end = start + budget;
        while out.len() < end
            && let Some(tag) = self.again.pop()
        {
            out.push(self.request(tag));
        }
        let mut receives = 0;
        let mut seen_empty = false;
        while matches!(self.state, State::Open | State::Shutting) {
            match self.parse(end, out) {
                Stop::Starved if !seen_empty && receives < RECEIVES_PER_TURN => {
                    receives += 1;
                    match self.receive() {
                        Received::Some(_) => {}
                        Received::Last(_) => seen_empty = true,
                        Received::Nothing => break,
                    }
                }
                Stop::Starved | Stop::Batch | Stop::Stalled | Stop::Over => break,
            }
        }
        if out.len() == start && (!self.outbox.is_empty() || self.state != State::Open) {
            // Only errors, or the end: no reply of the core will remind anybody to send them, or to close.
            self.flush();
        }
        self.can_go_on()
    }

    #[inline]
    fn copy_out(&mut self, tag: u32, at: usize, bytes: &[u8]) {
        let slot = &mut self.slots[tag as usize];
        if slot.task == Task::Read {
            slot.buffer[HEADROOM + at..HEADROOM + at + bytes.len()].copy_from_slice(bytes);
            slot.filled += bytes.len();
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
        slot.filled = encode_extents(&mut slot.buffer[HEADROOM..HEADROOM + EXTENT_BYTES], extents, slot.len, one);
    }

    fn reply(&mut self, tag: u32, result: Result<(), IoError>) {
        let slot = &mut self.slots[tag as usize];
        if self.state == State::Closed {
            return self.release(tag);
        }
        let (cookie, len) = (slot.cookie, slot.len as usize);
        match (slot.task, result) {
            (Task::Read, Ok(())) => {
                if slot.filled != len {
                    // What was in the buffer before is not this client's to see.
                    tracing::error!("a read of {len} bytes was answered with {} bytes", slot.filled);
                    self.fail(cookie, errno::EIO);
                } else {
                    let buffer = std::mem::take(&mut slot.buffer);
                    if self.rules.structured {
                        self.outbox.chunk_data(cookie, slot.offset, buffer, len);
                    } else {
                        self.outbox.simple_data(cookie, buffer, len);
                    }
                }
            }
            // The core answers a discard as soon as it is done; durable it is after a flush.
            (Task::Trim { fua: true }, Ok(())) => {
                slot.task = Task::Flush;
                return self.again.push(tag);
            }
            (Task::Cache, Ok(())) if u64::from(slot.len) > CACHE_STEP => {
                slot.len -= CACHE_STEP as u32;
                slot.offset += CACHE_STEP;
                return self.again.push(tag);
            }
            (Task::Status { one }, Ok(()) | Err(IoError::Unsupported)) => {
                // A disk that cannot tell, or says nothing, is all data: always true, and always progress.
                if slot.filled == 0 {
                    let all = [Extent { len: u64::from(slot.len), hole: false, zero: false }];
                    let to = &mut slot.buffer[HEADROOM..HEADROOM + EXTENT_BYTES];
                    slot.filled = encode_extents(to, &all, slot.len, one);
                }
                let (filled, buffer) = (slot.filled, std::mem::take(&mut slot.buffer));
                self.outbox.chunk_extents(cookie, buffer, filled);
            }
            (_, Ok(())) => self.outbox.simple(cookie, 0),
            (_, Err(e)) => self.fail(cookie, error_number(e)),
        }
        self.release(tag);
    }

    fn flush(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        if !self.outbox.is_empty() {
            let waiting = self.outbox.len();
            match self.outbox.send(stream, &mut self.buffers) {
                Sent::All => {}
                Sent::Blocked => {
                    self.calm = 0;
                    if !self.watching_room {
                        self.watching_room = true;
                        stream.watch_room();
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

    fn arm(&mut self) -> bool {
        if self.watching_room && self.outbox.is_empty() {
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
        fds.into_iter().map(|fd| (fd, PortInterest::Read)).collect()
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

    fn peer(&self) -> Option<Peer> {
        Some(Peer { protocol: Protocol::Nbd, name: self.peer.clone() })
    }

    fn as_any(&mut self) -> &mut dyn std::any::Any {
        self
    }
}

impl<S: Stream> Drop for NbdPort<S> {
    fn drop(&mut self) {
        if let (Some(stream), Some(farewell)) = (self.stream.take(), self.farewell.take()) {
            farewell(stream, self.outbox.take_bytes(&mut self.buffers));
        }
    }
}

/// Writes context id and descriptors for the first `len` bytes of `extents`; returns the bytes written, 0 if there is
/// no extent.
fn encode_extents(to: &mut [u8], extents: &[Extent], len: u32, one: bool) -> usize {
    let mut left = len;
    let mut at = 4;
    let mut last: Option<(usize, u32)> = None;
    to[..4].copy_from_slice(&CONTEXT_ID.to_be_bytes());
    for e in extents {
        let n = u32::try_from(e.len).unwrap_or(u32::MAX).min(left);
        if n == 0 {
            continue;
        }
        let state = u32::from(e.hole) * STATE_HOLE + u32::from(e.zero) * STATE_ZERO;
        match last {
            // Neighbours of one kind are one extent. The sum cannot overflow: both are parts of the request.
            Some((place, kind)) if kind == state => {
                let mut bytes = [0; 4];
                bytes.copy_from_slice(&to[place..place + 4]);
                to[place..place + 4].copy_from_slice(&(u32::from_be_bytes(bytes) + n).to_be_bytes());
            }
            Some(_) if one => break,
            _ => {
                let Some(entry) = to.get_mut(at..at + 8) else { break };
                entry[..4].copy_from_slice(&n.to_be_bytes());
                entry[4..].copy_from_slice(&state.to_be_bytes());
                last = Some((at, state));
                at += 8;
            }
        }
        left -= n;
    }
    if last.is_some() { at } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::super::exercise::{ByteDisk, ByteStream, Reply, Wire, fuzz_commands, geometry, replies, request};
    use super::super::wire::{command, command_flag};
    use super::*;
    use std::collections::HashMap;

    struct Fixture {
        port: NbdPort<ByteStream>,
        disk: ByteDisk,
        wire: ByteStream,
        reads: HashMap<u64, usize>,
        requests: Vec<Request>,
        geometry: crate::backend::Geometry,
    }

    const SIZE: usize = 64 << 20;

    impl Fixture {
        fn new(structured: bool) -> Self {
            Self::with_limits(structured, PortLimits::default())
        }

        fn with_limits(structured: bool, limits: PortLimits) -> Self {
            let geometry = geometry(SIZE as u64);
            let wire = ByteStream::default();
            wire.with(|w| w.room = usize::MAX);
            let port = NbdPort::new(NewPort {
                port: 0,
                disk: DiskId(0),
                rules: Rules::new(&geometry, structured, structured),
                limits,
                peer: String::new(),
                stream: wire.clone(),
                first: Vec::new(),
                farewell: None,
            });
            let disk = ByteDisk::new(SIZE);
            Self { port, disk, wire, reads: HashMap::new(), requests: Vec::new(), geometry }
        }

        fn send(&mut self, bytes: &[u8]) {
            self.wire.with(|w| w.input.extend_from_slice(bytes));
        }

        fn ask(&mut self, flags: u16, command: u16, offset: u64, len: u32, cookie: u64) {
            if command == command::READ {
                self.reads.insert(cookie, len as usize);
            }
            self.send(&request(flags, command, offset, len, cookie));
        }

        /// Takes what can be taken.
        fn take(&mut self) {
            let mut requests = std::mem::take(&mut self.requests);
            self.wire.with(Wire::arrive);
            while self.port.take(8, &mut requests) {}
            self.requests = requests;
        }

        /// Serves everything until nothing moves.
        fn run(&mut self) -> Vec<(u64, Reply)> {
            loop {
                let news = self.wire.with(Wire::arrive);
                self.take();
                let idle = self.requests.is_empty();
                self.disk.serve(&mut self.requests, &mut self.port);
                self.port.flush();
                if idle && !self.port.arm() && !news {
                    break;
                }
            }
            self.replies()
        }

        fn replies(&mut self) -> Vec<(u64, Reply)> {
            let output = self.wire.with(|w| std::mem::take(&mut w.output));
            let (all, rest) = replies(&output, &self.reads);
            assert!(rest.is_empty());
            all
        }

        fn one(&mut self, flags: u16, command: u16, offset: u64, len: u32) -> Reply {
            self.ask(flags, command, offset, len, 77);
            let mut all = self.run();
            assert_eq!(all.len(), 1);
            let (cookie, reply) = all.remove(0);
            assert_eq!(cookie, 77);
            reply
        }
    }

    #[test]
    fn reads_bring_the_bytes_of_the_disk_at_any_alignment() {
        for structured in [false, true] {
            let mut f = Fixture::new(structured);
            for (offset, len) in [(0, 4096), (1, 1), (4095, 2), (SIZE as u64 - 7, 7), (513, 70_000), (3, 32 << 20)] {
                let want = f.disk.bytes[offset as usize..][..len as usize].to_vec();
                assert_eq!(f.one(0, command::READ, offset, len), Reply::Data(want), "{offset} {len}");
            }
            assert_eq!(f.one(0, command::READ, 10, 0), if structured { Reply::Done } else { Reply::Data(vec![]) });
        }
    }

    #[test]
    fn writes_of_every_size_arrive_whole_in_any_pieces() {
        for piece in [1, 27, 29, 1000, 65_536, 0] {
            let mut f = Fixture::new(true);
            f.wire.with(|w| w.piece = piece);
            let lens: &[usize] =
                if piece < 100 { &[1, 27, 5000] } else { &[1, 4096, 65_536, 65_537, 300_000, 32 << 20] };
            let mut at = 5;
            for (n, &len) in lens.iter().enumerate() {
                let data: Vec<u8> = (0..len).map(|i| (i * 7 + n) as u8).collect();
                f.ask(command_flag::FUA, command::WRITE, at as u64, len as u32, n as u64);
                f.send(&data);
                assert_eq!(f.run(), [(n as u64, Reply::Done)]);
                assert!(f.disk.bytes[at..at + len] == data[..], "{piece} {len}");
                at += len;
            }
        }
    }

    #[test]
    fn many_requests_cost_one_receive_and_one_send() {
        let mut f = Fixture::new(true);
        for n in 0..64 {
            f.ask(0, command::READ, n * 4096, 4096, n);
        }
        f.wire.with(Wire::arrive);
        f.port.take(64, &mut f.requests);
        assert_eq!(f.requests.len(), 64);
        assert_eq!(f.wire.with(|w| w.receives), 1);
        f.disk.serve(&mut f.requests, &mut f.port);
        assert!(f.wire.with(|w| w.output.is_empty()));
        f.port.flush();
        assert_eq!(f.wire.with(|w| w.sends), 1);
        assert_eq!(f.replies().len(), 64);
        assert!(!f.port.take(64, &mut f.requests));
        assert!(!f.port.arm());
    }

    #[test]
    fn replies_may_overtake_each_other() {
        let mut f = Fixture::new(true);
        for n in 0..10 {
            f.ask(0, command::READ, n * 100, 50, n);
        }
        f.take();
        f.requests.reverse();
        let all = f.run();
        assert_eq!(all.iter().map(|r| r.0).collect::<Vec<_>>(), (0..10).rev().collect::<Vec<_>>());
        for (n, r) in all {
            assert_eq!(r, Reply::Data(f.disk.bytes[n as usize * 100..][..50].to_vec()));
        }
    }

    #[test]
    fn a_read_that_the_core_did_not_fill_is_an_error() {
        let mut f = Fixture::new(true);
        f.ask(0, command::READ, 0, 8192, 1);
        f.take();
        let tag = f.requests.remove(0).id.tag;
        f.port.copy_out(tag, 0, &[1; 4096]);
        f.port.reply(tag, Ok(()));
        f.port.flush();
        assert_eq!(f.replies(), [(1, Reply::Error(errno::EIO))]);
    }

    #[test]
    fn errors_of_the_disk_have_their_numbers() {
        let table = [
            (IoError::Io, errno::EIO),
            (IoError::NoSpace, errno::ENOSPC),
            (IoError::Invalid, errno::EINVAL),
            (IoError::ReadOnly, errno::EPERM),
            (IoError::Unsupported, errno::EINVAL),
            (IoError::Shutdown, errno::ESHUTDOWN),
        ];
        for structured in [false, true] {
            for (error, number) in table {
                let mut f = Fixture::new(structured);
                f.disk.fails = Some(error);
                for c in [command::READ, command::TRIM, command::WRITE_ZEROES, command::CACHE] {
                    assert_eq!(f.one(0, c, 0, 100), Reply::Error(number));
                }
                assert_eq!(f.one(0, command::FLUSH, 0, 0), Reply::Error(number));
                f.disk.fails = None;
                f.reads.clear();
                assert_eq!(f.one(0, command::TRIM, 0, 100), Reply::Done);
            }
        }
    }

    #[test]
    fn refused_writes_are_read_past_without_keeping_their_data() {
        let mut f = Fixture::new(true);
        f.ask(0, command::WRITE, SIZE as u64 - 10, 4096, 1);
        f.send(&[9; 4096]);
        f.ask(0, command::WRITE, 0, (32 << 20) + 1, 2);
        f.send(&vec![9; (32 << 20) + 1]);
        f.ask(0, command::READ, 0, 10, 3);
        let first = f.disk.bytes[..10].to_vec();
        let errors = [(1, Reply::Error(errno::ENOSPC)), (2, Reply::Error(errno::EINVAL)), (3, Reply::Data(first))];
        assert_eq!(f.run(), errors);
        assert_eq!(f.port.buffers.held_bytes(), 0);
        assert!(f.disk.bytes == ByteDisk::new(SIZE).bytes);
    }

    #[test]
    fn a_trim_with_fua_is_followed_by_a_flush() {
        let mut f = Fixture::new(true);
        f.ask(command_flag::FUA, command::TRIM, 4096, 4096, 5);
        f.take();
        let first = f.requests.remove(0);
        assert_eq!(first.op, Op::Discard);
        f.port.reply(first.id.tag, Ok(()));
        f.port.flush();
        assert!(f.replies().is_empty(), "not durable yet");
        assert_eq!(f.port.inflight(), 1);
        assert!(f.port.arm(), "there is a flush to take");
        f.take();
        let second = f.requests.remove(0);
        assert_eq!((second.op, second.offset, second.len), (Op::Flush, 0, 0));
        f.port.reply(second.id.tag, Ok(()));
        f.port.flush();
        assert_eq!(f.replies(), [(5, Reply::Done)]);
        assert_eq!(f.port.inflight(), 0);
    }

    #[test]
    fn cache_reads_all_of_its_range_in_parts_and_sends_nothing_but_success() {
        let mut f = Fixture::new(true);
        f.ask(0, command::CACHE, 100, 40 << 20, 5);
        let mut at = 100;
        while at < 100 + (40 << 20) {
            f.take();
            let r = f.requests.remove(0);
            assert_eq!((r.op, r.offset), (Op::Read, at));
            assert!(r.len <= u64::from(undercroft_cache::limits::REQUEST_BYTES_MAX));
            at += r.len;
            let result = f.disk.execute(&r, &mut f.port);
            f.port.reply(r.id.tag, result);
        }
        assert_eq!(at, 100 + (40 << 20));
        f.port.flush();
        assert_eq!(f.replies(), [(5, Reply::Done)]);
    }

    #[test]
    fn extents_are_joined_cut_and_bounded() {
        let mut f = Fixture::new(true);
        let ask = |f: &mut Fixture, flags, len, extents: &[Extent]| {
            f.ask(flags, command::BLOCK_STATUS, 0, len, 1);
            f.take();
            let tag = f.requests.remove(0).id.tag;
            f.port.extents(tag, extents);
            f.port.reply(tag, Ok(()));
            f.port.flush();
            f.replies().remove(0).1
        };
        let e = |len, hole, zero| Extent { len, hole, zero };
        let some =
            [e(10, true, true), e(20, true, true), e(0, false, false), e(5, false, true), e(1 << 40, false, false)];
        assert_eq!(ask(&mut f, 0, 100, &some), Reply::Extents(vec![(30, 3), (5, 2), (65, 0)]));
        assert_eq!(ask(&mut f, command_flag::REQ_ONE, 100, &some), Reply::Extents(vec![(30, 3)]));
        assert_eq!(ask(&mut f, 0, 25, &some), Reply::Extents(vec![(25, 3)]));
        // A disk that cannot tell.
        assert_eq!(ask(&mut f, 0, 100, &[]), Reply::Extents(vec![(100, 0)]));
        // More extents than the reply has room for.
        let many: Vec<_> = (0..10_000).map(|n| e(512, n % 2 == 0, false)).collect();
        let Reply::Extents(got) = ask(&mut f, 0, 32 << 20, &many) else { panic!() };
        assert_eq!(got.len(), (EXTENT_BYTES - 4) / 8);
        assert!(got.iter().enumerate().all(|(n, g)| *g == (512, u32::from(n % 2 == 0))));
    }

    #[test]
    fn a_client_that_takes_no_replies_is_not_read_from_and_costs_bounded_memory() {
        let limits = PortLimits { requests_max: 128, bytes_max: 1 << 20 };
        let mut f = Fixture::with_limits(true, limits);
        f.wire.with(|w| w.room = 100_000);
        for n in 0..5000 {
            f.ask(0, command::READ, n * 4096, 8192, n);
        }
        for _ in 0..50 {
            f.take();
            f.disk.serve(&mut f.requests, &mut f.port);
            f.port.flush();
            assert!(f.port.buffers.held_bytes() <= limits.bytes_max);
        }
        assert!(!f.port.arm(), "the worker may sleep");
        assert!(f.wire.with(|w| w.unread()) > 5000 * REQUEST_HEADER - (64 << 10) - 128 * REQUEST_HEADER);
        assert!(f.port.watching_room);
        // Small replies are bounded, too.
        let mut g = Fixture::with_limits(true, limits);
        g.wire.with(|w| w.room = 0);
        for n in 0..5000 {
            g.ask(0, command::TRIM, u64::MAX, 1, n);
        }
        for _ in 0..50 {
            g.take();
            g.port.flush();
        }
        assert_eq!(g.port.outbox.len(), 128);
        // And once there is room again, all are served.
        for (f, n) in [(&mut f, 5000), (&mut g, 5000)] {
            f.wire.with(|w| w.room = usize::MAX);
            f.port.flush();
            let cookies: Vec<_> = f.run().into_iter().map(|r| r.0).collect();
            assert_eq!(cookies, (0..n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn room_made_by_a_reply_wakes_a_worker_that_sleeps() {
        let mut f = Fixture::with_limits(true, PortLimits { requests_max: 1, bytes_max: 1 << 20 });
        f.ask(0, command::READ, 0, 10, 0);
        f.ask(0, command::READ, 0, 10, 1);
        f.take();
        assert_eq!(f.requests.len(), 1);
        assert!(!f.port.arm(), "the second request has to wait for the first");
        assert!(!f.port.watching_room);
        f.disk.serve(&mut f.requests, &mut f.port);
        f.port.flush();
        assert!(f.port.watching_room, "the worker was told to look again");
        assert_eq!(f.run().len(), 2);
        for _ in 0..CALM_SLEEPS {
            assert!(!f.port.arm());
        }
        assert!(!f.port.watching_room);
    }

    #[test]
    fn an_event_while_the_batch_is_full_is_not_forgotten() {
        let mut f = Fixture::new(true);
        f.ask(0, command::READ, 0, 10, 0);
        f.ask(0, command::READ, 0, 10, 1);
        f.wire.with(Wire::arrive);
        f.port.take(1, &mut f.requests);
        f.port.inbox.drained = true;
        f.ask(0, command::READ, 0, 10, 2);
        f.wire.with(Wire::arrive);
        assert!(f.port.take(1, &mut f.requests), "there may be more in the socket");
        assert_eq!(f.run().len(), 3);
    }

    #[test]
    fn a_payload_that_ends_with_the_batch_is_not_forgotten() {
        let mut f = Fixture::new(true);
        f.ask(command_flag::FUA, command::TRIM, 0, 10, 0);
        f.ask(0, command::WRITE, 0, 100_000, 1);
        f.send(&[1; 50_000]);
        f.take();
        assert_eq!(f.requests.len(), 1);
        f.disk.serve(&mut f.requests, &mut f.port);
        f.send(&[1; 50_000]);
        f.wire.with(Wire::arrive);
        // The flush that follows the trim fills the batch.
        assert!(f.port.take(1, &mut f.requests));
        assert_eq!(f.requests.len(), 1);
        assert!(f.port.arm());
        assert_eq!(f.run().len(), 2);
    }

    #[test]
    fn shut_lets_requests_under_way_finish_and_refuses_others() {
        let mut f = Fixture::new(true);
        f.ask(0, command::READ, 0, 10, 0);
        f.ask(0, command::WRITE, 0, 10, 1);
        f.send(&[1; 5]);
        f.take();
        assert_eq!((f.requests.len(), f.port.inflight()), (1, 1));
        f.port.shut();
        assert!(!f.port.is_closed());
        f.send(&[1; 5]);
        f.ask(0, command::READ, 0, 10, 2);
        f.ask(0, command::WRITE, 0, 10, 3);
        f.send(&[1; 10]);
        f.take();
        // The write whose data were on their way is still done.
        assert_eq!(f.requests.len(), 2);
        let got: HashMap<_, _> = f.run().into_iter().collect();
        assert_eq!(got[&0], Reply::Data(vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 9]));
        assert_eq!(got[&1], Reply::Done);
        assert_eq!(got[&2], Reply::Error(errno::ESHUTDOWN));
        assert_eq!(got[&3], Reply::Error(errno::ESHUTDOWN));
        assert!(f.port.is_closed());
        assert!(f.wire.with(|w| w.closed));
    }

    #[test]
    fn goodbye_comes_after_the_last_reply() {
        let mut f = Fixture::new(true);
        f.ask(0, command::READ, 0, 10, 0);
        f.ask(0, command::DISC, 0, 0, 1);
        f.ask(0, command::READ, 0, 10, 2);
        f.take();
        assert_eq!(f.requests.len(), 1, "nothing after a goodbye is served");
        f.port.flush();
        assert!(!f.port.is_closed());
        assert_eq!(f.run().len(), 1);
        assert!(f.port.is_closed());
    }

    #[test]
    fn garbage_and_broken_streams_close_and_free_everything() {
        let mut garbage = Fixture::new(true);
        garbage.ask(0, command::READ, 0, 10, 0);
        garbage.send(&[0x55; 28]);
        garbage.take();
        assert!(garbage.port.is_closed());
        assert_eq!(garbage.port.inflight(), 1, "what was taken is still finished");
        assert!(garbage.run().is_empty(), "but nobody is told");
        assert_eq!(garbage.port.inflight(), 0);
        assert_eq!(garbage.port.buffers.held_bytes(), 0);

        for cut in [3, REQUEST_HEADER, REQUEST_HEADER + 50] {
            let mut f = Fixture::new(true);
            let mut bytes = request(0, command::WRITE, 0, 100, 1);
            bytes.extend([1; 100]);
            f.send(&bytes[..cut]);
            f.wire.with(|w| w.ended = true);
            assert!(f.run().is_empty());
            assert!(f.port.is_closed());
            assert_eq!((f.port.inflight(), f.port.buffers.held_bytes()), (0, 0));
            assert_eq!(f.disk.bytes[0..4], [0, 1, 2, 3], "half a write is no write");
        }
    }

    #[test]
    fn what_was_not_sent_is_handed_over_at_the_end() {
        let mut f = Fixture::new(false);
        let (tx, rx) = std::sync::mpsc::channel();
        f.port.farewell = Some(Box::new(move |_, bytes| drop(tx.send(bytes))));
        f.ask(0, command::READ, 0, 10, 0);
        f.wire.with(|w| w.room = 7);
        f.port.shut();
        f.port.state = State::Open;
        f.take();
        f.disk.serve(&mut f.requests, &mut f.port);
        f.port.flush();
        assert_eq!(f.wire.with(|w| w.output.len()), 7);
        drop(f.port);
        let rest = rx.recv().unwrap();
        assert_eq!(rest.len(), 16 + 10 - 7);
        assert_eq!(rest[rest.len() - 3..], [7, 8, 9]);
    }

    #[test]
    fn every_rule_is_advertised_as_it_is_kept() {
        let f = Fixture::new(true);
        assert_eq!(Rules::new(&f.geometry, true, true), f.port.rules);
    }

    #[test]
    fn arbitrary_input_is_answered_by_the_rules() {
        let mut x = 0x9e37_79b9_7f4a_7c15_u64;
        for n in 0..3000 {
            let len = 4 + n % 300;
            let data: Vec<u8> = std::iter::repeat_with(|| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                (x >> 24) as u8
            })
            .take(len)
            .collect();
            fuzz_commands(&data);
        }
    }
}
