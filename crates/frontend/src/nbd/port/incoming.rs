//! What a client sends, from bytes to requests for the core.
//!
//! Owns no state of its own: inbox, slots and buffers are the port's. Never sends a byte, and never answers what the
//! core was asked. Invariants: a request for which there is no room keeps its header in the inbox; a write goes to the
//! core only with all of its data; the data of a refused write are never taken for a request.

use super::super::inbox::{Received, rest};
use super::super::rules::{RequestHeader, Verdict};
use super::super::stream::Stream;
use super::super::wire::REQUEST_HEADER;
use super::errors::words;
use super::{CACHE_STEP, EXTENT_BYTES, Expect, NbdPort, RECEIVE_BYTES_PER_TURN, Slot, State, Task};
use crate::buffers::Buffer;
use crate::faults::{PortBug, PortFaults};
use crate::filled::BLOCK;
use undercroft_cache::{Op, ReqId, Request};

/// Why parsing stopped.
pub(super) enum Stop {
    /// More bytes are needed.
    Starved,
    /// The batch is full.
    Batch,
    /// There is no room for the next request.
    Stalled,
    /// There is, but its buffer takes another call to make.
    Making,
    /// No request will come.
    Over,
}

impl<S: Stream, F: PortFaults> NbdPort<S, F> {
    /// Reads requests out of the inbox until something is missing.
    pub(super) fn parse(&mut self, end: usize, out: &mut Vec<Request>) -> Stop {
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
                    let Some(header) = RequestHeader::parse(bytes) else {
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
    fn begin(&mut self, h: &RequestHeader, out: &mut Vec<Request>) -> Option<Stop> {
        if self.used() + self.outbox.len() >= self.limits.requests_max {
            self.stalled = true;
            return Some(Stop::Stalled);
        }
        if self.state == State::Shutting {
            // Not refused: a client that connects anew, to whoever serves the disk next, sends it again.
            self.state = State::Draining;
            return Some(Stop::Over);
        }
        let verdict = self.rules.judge(h);
        let bytes = match verdict {
            Verdict::Read | Verdict::Write { .. } => h.len as usize,
            Verdict::Status { .. } => EXTENT_BYTES,
            _ => 0,
        };
        if bytes > 0 && !self.buffers.has_room(bytes) {
            self.stalled = true;
            return Some(Stop::Stalled);
        }
        if bytes > 0 && !self.buffers.make(bytes) {
            return Some(Stop::Making);
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
        self.slots[tag as usize] = Slot { task, cookie: h.cookie, offset: h.offset, len: h.len, encoded: 0, buffer };
        if task == Task::Read {
            self.filled[tag as usize].begin(h.len as usize);
            if F::has(PortBug::BlocksAtMultiples) {
                self.filled[tag as usize].begins_at(h.offset as usize % BLOCK);
            }
        }
        match task {
            Task::Write { .. } => self.expect = Expect::Payload { tag, filled: 0 },
            _ => out.push(self.request(tag)),
        }
        None
    }

    /// The request to the core for the present step of a slot.
    pub(super) fn request(&self, tag: u32) -> Request {
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
            Task::Zeroes { unmap, fua } => Op::WriteZeroes { unmap, fua: fua && !F::has(PortBug::ZeroesLoseFua) },
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

    pub(super) fn fail(&mut self, cookie: u64, error: u32) {
        if self.rules.structured {
            self.outbox.error(cookie, error, words(error));
        } else {
            self.outbox.simple(cookie, error);
        }
    }

    /// Receives once. False if nothing came.
    pub(super) fn receive(&mut self) -> Received {
        let Some(stream) = &mut self.stream else { return Received::Nothing };
        let (tag, filled) = match self.expect {
            Expect::Payload { tag, filled } => (tag, filled),
            _ => (u32::MAX, 0),
        };
        let payload = match self.slots.get_mut(tag as usize) {
            Some(s) => rest(&mut s.buffer, filled, (s.len as usize).min(filled + RECEIVE_BYTES_PER_TURN)),
            None => &mut [],
        };
        match self.inbox.receive(stream, payload) {
            Ok(received) => {
                if let (Expect::Payload { filled, .. }, Received::Some(n) | Received::Last(n)) =
                    (&mut self.expect, received)
                {
                    *filled += n;
                    self.buffers.moved(n);
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
