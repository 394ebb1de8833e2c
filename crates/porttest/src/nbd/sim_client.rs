//! An NBD client of the simulation: requests on a stream that delivers in any pieces, and a careful reader of replies.
//!
//! Owns one connection's port and both ends of its stream. Never looks at the disk. Invariant: each request is answered
//! at most once, in a form that the protocol allows, under its own cookie; and exactly once unless the connection ends.

use super::exercise::{Reads, Reply, replies, request};
use crate::faults::Switched;
use crate::work::{Finished, Verb, Violation, Work};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use undercroft_frontend::nbd::port::{NbdPort, NewPort, PortLimits};
use undercroft_frontend::nbd::rules::ExportRules;
use undercroft_frontend::nbd::stream::Stream;
use undercroft_frontend::nbd::wire::{command, command_flag};
use undercroft_frontend::{DiskInfo, Port};
use undercroft_testkit::rng::{Rng, fill_pattern};

/// Both ends of a stream, and what a socket would tell of it.
#[derive(Debug, Default)]
struct SimWire {
    /// What the client has sent.
    sent: Vec<u8>,
    /// How much of it has arrived, and how much of that was received.
    arrived: usize,
    received: usize,
    /// The client sends no more, and that has arrived.
    ended: bool,
    /// What the port has sent and the client has not read.
    replies: Vec<u8>,
    /// Bytes that fit the way back.
    room: usize,
    watched: bool,
    /// Something has happened of which the worker is told: an edge.
    event: bool,
    closed: bool,
}

/// A stream in memory, with events as those of a socket.
#[derive(Clone, Debug, Default)]
pub(crate) struct SimStream(Arc<Mutex<SimWire>>);

impl SimStream {
    fn with<R>(&self, f: impl FnOnce(&mut SimWire) -> R) -> R {
        f(&mut self.0.lock().expect("nobody panics with it"))
    }
}

impl Stream for SimStream {
    fn receive(&mut self, first: &mut [u8], second: &mut [u8]) -> Result<usize, Errno> {
        self.with(|w| {
            if w.closed || (w.arrived == w.received && w.ended) {
                return Ok(0);
            }
            let n = (w.arrived - w.received).min(first.len() + second.len());
            if n == 0 {
                return Err(Errno::AGAIN);
            }
            let one = n.min(first.len());
            let from = &w.sent[w.received..w.received + n];
            first[..one].copy_from_slice(&from[..one]);
            second[..n - one].copy_from_slice(&from[one..]);
            w.received += n;
            Ok(n)
        })
    }

    fn send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize, Errno> {
        self.with(|w| {
            if w.closed {
                return Err(Errno::PIPE);
            }
            let mut n = 0;
            for part in parts {
                let take = part.len().min(w.room);
                w.replies.extend_from_slice(&part[..take]);
                w.room -= take;
                n += take;
            }
            if n == 0 { Err(Errno::AGAIN) } else { Ok(n) }
        })
    }

    fn watch_room(&mut self) {
        self.with(|w| {
            w.watched = true;
            w.event |= w.room > 0;
        });
    }

    fn unwatch_room(&mut self) {
        self.with(|w| w.watched = false);
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn close(&mut self) {
        self.with(|w| w.closed = true);
    }
}

/// See the head of the file.
pub(crate) struct SimClient {
    /// The connection's port.
    pub port: NbdPort<SimStream, Switched>,
    wire: SimStream,
    works: BTreeMap<u64, Work>,
    reads: Reads,
    structured: bool,
    /// Replies received in part.
    got: Vec<u8>,
    cookies: u64,
    /// The client has said that it sends no more.
    pub leaving: bool,
    /// It read half a reply once: the matrix wants to know.
    pub fragments: u64,
    limits: PortLimits,
}

impl SimClient {
    /// A client that is past its handshake, on port `id`.
    pub(crate) fn new(id: u32, info: &DiskInfo, rng: &mut Rng) -> SimClient {
        let structured = !rng.one_in(3);
        let wire = SimStream::default();
        wire.with(|w| w.room = 4096);
        let limits = PortLimits {
            requests_max: *rng.pick(&[1, 2, 8, 128]),
            bytes_max: *rng.pick(&[8 << 10, 64 << 10, 4 << 20]),
        };
        let port = NbdPort::with_faults(NewPort {
            port: id,
            disk: info.disk,
            rules: ExportRules::new(&info.geometry, structured, structured),
            limits,
            peer: String::new(),
            stream: wire.clone(),
            first: Vec::new(),
            on_close: None,
            account: None,
        });
        let cookies = rng.bits();
        SimClient {
            port,
            wire,
            works: BTreeMap::new(),
            reads: Reads::new(),
            structured,
            got: Vec::new(),
            cookies,
            leaving: false,
            fragments: 0,
            limits,
        }
    }

    /// Whether block status was agreed on.
    pub(crate) fn knows_extents(&self) -> bool {
        self.structured
    }

    /// What is under way.
    pub(crate) fn works(&mut self) -> impl Iterator<Item = &mut Work> {
        self.works.values_mut()
    }

    /// Requests under way.
    pub(crate) fn under_way(&self) -> usize {
        self.works.len()
    }

    /// Bytes that have been sent and have not arrived.
    pub(crate) fn on_the_way(&self) -> usize {
        self.wire.with(|w| w.sent.len() - w.arrived)
    }

    /// Sends a request.
    pub(crate) fn send(&mut self, mut work: Work, rng: &mut Rng) {
        let cookie = self.cookies;
        // Not in any order, but never twice.
        self.cookies = self.cookies.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let command = match work.verb {
            Verb::Read => command::READ,
            Verb::Write => command::WRITE,
            Verb::Flush => command::FLUSH,
            Verb::Discard => command::TRIM,
            Verb::Zeroes => command::WRITE_ZEROES,
            Verb::Cache => command::CACHE,
            Verb::Extents => command::BLOCK_STATUS,
            Verb::Serial | Verb::Wrong => *rng.pick(&[command::READ, 99, command::FLUSH]),
        };
        let (mut offset, mut len) = work.parts.first().map_or((0, 0), |p| (p.offset, p.len as u32));
        if matches!(work.verb, Verb::Serial | Verb::Wrong) {
            (offset, len) = (u64::MAX - rng.below(3), 512);
        }
        let mut flags = if work.fua { command_flag::FUA } else { 0 };
        if work.verb == Verb::Zeroes && !work.unmap {
            flags |= command_flag::NO_HOLE;
        }
        if work.verb == Verb::Extents && rng.one_in(3) {
            flags |= command_flag::REQ_ONE;
        }
        if command == command::READ {
            self.reads.insert(cookie, (offset, len as usize));
        }
        if self.structured {
            work.mark("structured");
        }
        if offset % 4096 != 0 {
            work.mark("unaligned");
        }
        let mut bytes = request(flags, command, offset, len, cookie);
        if command == command::WRITE {
            let at = bytes.len();
            bytes.resize(at + len as usize, 0);
            fill_pattern(work.parts[0].change, offset, &mut bytes[at..]);
        }
        self.wire.with(|w| w.sent.extend(bytes));
        self.works.insert(cookie, work);
    }

    /// Some of what was sent arrives; true if it ends in the middle of a request.
    pub(crate) fn arrive(&mut self, rng: &mut Rng) -> bool {
        self.wire.with(|w| {
            let left = w.sent.len() - w.arrived;
            if left == 0 {
                return false;
            }
            let most = *rng.pick(&[1, 27, 28, 29, 600, 5000, usize::MAX]);
            let n = rng.between(1, most.min(left) as u64) as usize;
            w.arrived += n;
            w.event = true;
            n < left
        })
    }

    /// The client reads some of the replies. Returns what is over.
    ///
    /// # Errors
    /// What the port has done wrong.
    pub(crate) fn read(&mut self, most: usize) -> Result<Vec<Finished>, Violation> {
        let some: Vec<u8> = self.wire.with(|w| {
            let n = most.min(w.replies.len());
            w.room += n;
            w.event |= n > 0 && w.watched;
            w.replies.drain(..n).collect()
        });
        self.got.extend(some);
        let (all, rest) = replies(&self.got, &self.reads);
        let used = self.got.len() - rest.len();
        self.fragments += u64::from(!rest.is_empty());
        self.got.drain(..used);
        all.into_iter().map(|(cookie, reply)| self.take_back(cookie, reply)).collect()
    }

    fn take_back(&mut self, cookie: u64, reply: Reply) -> Result<Finished, Violation> {
        let Some(work) = self.works.remove(&cookie) else {
            return Err(format!("a reply under a cookie of no request: {cookie:#x}").into());
        };
        self.reads.remove(&cookie);
        let (ok, data) = match (work.verb, reply) {
            (_, Reply::Error(_)) => (false, Vec::new()),
            (Verb::Read, Reply::Data(data)) => (true, data),
            (Verb::Extents, Reply::Extents(extents)) => {
                let sum: u64 = extents.iter().map(|e| u64::from(e.0)).sum();
                if extents.is_empty() || sum > work.parts[0].len {
                    return Err(format!("{work:?}: extents {extents:?}").into());
                }
                (true, Vec::new())
            }
            (Verb::Read | Verb::Extents, reply) => return Err(format!("{work:?} was answered {reply:?}").into()),
            (_, Reply::Done) => (true, Vec::new()),
            (_, reply) => return Err(format!("{work:?} was answered {reply:?}").into()),
        };
        Ok(Finished { work, ok, data })
    }

    /// The way back takes so many bytes more, or none.
    pub(crate) fn set_room(&mut self, room: usize) {
        self.wire.with(|w| {
            let grown = room > w.room;
            w.room = room;
            w.event |= grown && w.watched;
        });
    }

    /// The client says that it sends no more; what it has sent is still to be answered.
    pub(crate) fn half_close(&mut self) {
        self.leaving = true;
        self.wire.with(|w| {
            w.arrived = w.sent.len();
            w.ended = true;
            w.event = true;
        });
    }

    /// The connection breaks.
    pub(crate) fn hang_up(&mut self) {
        self.leaving = true;
        self.wire.with(|w| {
            w.closed = true;
            w.event = true;
        });
    }

    /// Something that is no request follows what was sent.
    pub(crate) fn send_rubbish(&mut self) {
        self.leaving = true;
        self.wire.with(|w| w.sent.extend([0x55; 28]));
    }

    /// Whether something has happened that wakes the worker.
    pub(crate) fn wakes(&mut self) -> bool {
        self.wire.with(|w| std::mem::take(&mut w.event))
    }

    /// Bytes of replies that the client could read.
    pub(crate) fn readable(&self) -> usize {
        self.wire.with(|w| w.replies.len())
    }

    /// Whether the port holds as many requests as it may.
    pub(crate) fn is_full(&self) -> bool {
        self.port.inflight() >= self.limits.requests_max
    }

    /// The connection is over: what was not answered.
    pub(crate) fn end(&mut self) -> Vec<Work> {
        std::mem::take(&mut self.works).into_values().collect()
    }

    /// The port, for the worker.
    pub(crate) fn as_port(&mut self) -> &mut dyn Port {
        &mut self.port
    }
}
